//! Uploads of packages: one of a tenant at a time, each at a minimum rate, and few large ones at once.
//!
//! A package of up to [`SMALL_BYTES`] takes none of the places of large ones, so uploads of other tenants do not delay it.
//! The time that an upload waits for its turn does not count as the client's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sublet_fabric::sync::lock;
use sublet_proto::v1::PackageChunk;
use sublet_proto::{Code, Error, package};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::{Status, Streaming};

/// Large packages that are received at the same time; each may take [`package::MAX_PACKAGE_BYTES`] of memory.
const MAX_LARGE: usize = 2;
/// Bytes of a package that are received before it counts as large.
const SMALL_BYTES: usize = 4 << 20;
/// Time that an upload may take whatever its rate is.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes per second that a client has to send beyond that, on average.
const MIN_BYTES_PER_SECOND: u64 = 128 << 10;
/// Time that one upload may take in all.
const MAX_TIME: Duration = Duration::from_secs(15 * 60);

/// See the [module](self).
pub(crate) struct Uploads {
    large: Arc<Semaphore>,
    /// The turn of each tenant that uploads, or waits to.
    tenants: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

/// A received package, and its places, which are free when it is dropped.
pub(crate) struct Upload {
    pub(crate) encoded: Arc<Vec<u8>>,
    _large: Option<OwnedSemaphorePermit>,
    _turn: OwnedSemaphorePermit,
}

impl Uploads {
    pub(crate) fn new() -> Uploads {
        Uploads { large: Arc::new(Semaphore::new(MAX_LARGE)), tenants: Mutex::default() }
    }

    /// Receives a tenant's package, which cannot grow beyond its limit.
    pub(crate) async fn receive(
        &self,
        tenant: &Arc<str>,
        mut chunks: Streaming<PackageChunk>,
    ) -> Result<Upload, Status> {
        let turn = permit(self.turn_of(tenant)).await?;
        let (mut encoded, mut large, mut taken) = (Vec::new(), None, Duration::ZERO);
        loop {
            let begun = Instant::now();
            let left = may_take(encoded.len()).saturating_sub(taken);
            let received = tokio::time::timeout(left, chunks.message()).await;
            let Some(chunk) = received.map_err(|_| too_slow(encoded.len()).into_status())?? else { break };
            taken += begun.elapsed();
            package::check_size((encoded.len() + chunk.data.len()) as u64).map_err(Error::into_status)?;
            if large.is_none() && encoded.len() + chunk.data.len() > SMALL_BYTES {
                large = Some(permit(self.large.clone()).await?);
            }
            encoded.extend_from_slice(&chunk.data);
        }
        Ok(Upload { encoded: Arc::new(encoded), _large: large, _turn: turn })
    }

    fn turn_of(&self, tenant: &Arc<str>) -> Arc<Semaphore> {
        let mut tenants = lock(&self.tenants);
        if let Some(turn) = tenants.get(tenant).and_then(Weak::upgrade) {
            return turn;
        }
        tenants.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        tenants.insert(tenant.clone(), Arc::downgrade(&turn));
        turn
    }
}

async fn permit(semaphore: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    semaphore.acquire_owned().await.map_err(|_| Status::unavailable("the manager stops"))
}

/// The time that a client may have taken for these bytes until the next ones arrive.
fn may_take(received_bytes: usize) -> Duration {
    let earned = Duration::from_millis(received_bytes as u64 * 1000 / MIN_BYTES_PER_SECOND);
    (GRACE + earned).min(MAX_TIME)
}

fn too_slow(received_bytes: usize) -> Error {
    let message = format!(
        "the upload is too slow: {received_bytes} bytes were received in {} s, and at least {} KiB/s are needed after {} s",
        may_take(received_bytes).as_secs(),
        MIN_BYTES_PER_SECOND >> 10,
        GRACE.as_secs()
    );
    Error::new(Code::Protocol, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trickled_bytes_earn_no_time() {
        assert!(may_take(100) < GRACE + Duration::from_millis(1));
        assert_eq!(may_take(10 * MIN_BYTES_PER_SECOND as usize), GRACE + Duration::from_secs(10));
        assert_eq!(may_take(usize::try_from(package::MAX_PACKAGE_BYTES).unwrap()), MAX_TIME);
    }

    #[test]
    fn turns_of_tenants_that_upload_no_more_are_forgotten() {
        let uploads = Uploads::new();
        let turn = uploads.turn_of(&"a".into());
        assert!(Arc::ptr_eq(&turn, &uploads.turn_of(&"a".into())));
        drop(turn);
        let _other = uploads.turn_of(&"b".into());
        assert_eq!(uploads.tenants.lock().unwrap().len(), 1);
    }
}
