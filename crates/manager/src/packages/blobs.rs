//! Stores the parts of packages, and sends them to agents.

use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::v1::{PackageChunk, PackageInfo};
use tokio::sync::mpsc;
use tonic::Status;

use super::StorePackages;
use super::records::known;
use crate::store::{BLOB_PART_BYTES, BlobPart, Store};

impl StorePackages {
    /// Whether a package's record and all of its parts are in the store.
    pub(super) async fn is_complete(&self, info: &PackageInfo) -> Result<bool, Error> {
        let digest = info.digest.clone();
        let parts = info.size_bytes.div_ceil(BLOB_PART_BYTES as u64);
        let look = move |store: &mut dyn Store| {
            Ok(known(store, &digest)?.is_some() && u64::from(store.blob_parts(&digest)?) == parts)
        };
        self.database.with(look).await
    }

    /// Stores all parts. After an error it removes them again, unless another manager has stored the package.
    pub(super) async fn store_parts(&self, encoded: &Arc<Vec<u8>>, digest: &str) -> Result<(), Error> {
        let stored = self.try_store_parts(encoded, digest).await;
        if stored.is_err() {
            let digest = digest.to_owned();
            self.database
                .with(move |store| match known(store, &digest)? {
                    // Another manager was quicker.
                    Some(_) => Ok(()),
                    None => store.remove_blob(&digest),
                })
                .await?;
        }
        stored
    }

    async fn try_store_parts(&self, encoded: &Arc<Vec<u8>>, digest: &str) -> Result<(), Error> {
        for (index, start) in (0u32..).zip((0..encoded.len()).step_by(BLOB_PART_BYTES)) {
            let (encoded, digest) = (Arc::clone(encoded), digest.to_owned());
            self.database
                .keeping_reserve(move |store| {
                    let end = encoded.len().min(start + BLOB_PART_BYTES);
                    store.put_blob_part(BlobPart { digest: &digest, index }, &encoded[start..end])
                })
                .await?;
        }
        Ok(())
    }

    /// Sends a package's parts until all are sent or the receiver is gone.
    pub(crate) async fn send(&self, digest: String, to: mpsc::Sender<Result<PackageChunk, Status>>) {
        for index in 0u32.. {
            let digest = digest.clone();
            let part =
                self.database.with(move |store| store.blob_part(BlobPart { digest: &digest, index })).await;
            let message = match part {
                Ok(Some(data)) => Ok(PackageChunk { data }),
                Ok(None) => return,
                Err(error) => Err(error.into_status()),
            };
            let is_last = message.is_err();
            if to.send(message).await.is_err() || is_last {
                return;
            }
        }
    }
}
