//! Graphs: documents under their digests, and the names that a tenant's have.

use prost::Message;
use sublet_proto::graph::{self, Graph};
use sublet_proto::package::is_digest;
use sublet_proto::v1::{GraphDocument, GraphInfo};
use sublet_proto::{Code, Error, decode};

use crate::database::Database;
use crate::reply::ReplyList;
use crate::store::{Batch, BlobPart, Store, each_record, keys};

/// No name and no digest is longer.
const MAX_ADDRESS_BYTES: usize = 128;

/// The graphs of a store.
pub(crate) struct Graphs {
    database: Database,
}

impl Graphs {
    pub(crate) fn new(database: Database) -> Graphs {
        Graphs { database }
    }

    /// Stores a document, and points the tenant's name at it. The document is there before its name.
    pub(crate) async fn deploy(
        &self,
        tenant: &str,
        document: Vec<u8>,
        now_ms: u64,
    ) -> Result<GraphInfo, Error> {
        let graph = Graph::parse(&document).map_err(|problems| graph::error("the document", &problems))?;
        let info = GraphInfo {
            digest: sublet_proto::package::digest(&document),
            size_bytes: document.len() as u64,
            deployed_unix_ms: now_ms,
            components: graph.components.len() as u32,
            name: graph.name,
        };
        let (by_name, by_digest) = (key(tenant, &info.name), key(tenant, &info.digest));
        let stored = info.clone();
        let store = move |store: &mut dyn Store| {
            store.put_blob_part(BlobPart { digest: &stored.digest, index: 0 }, &document)?;
            let mut batch = Batch::default();
            batch.put(by_digest, stored.encode_to_vec());
            batch.put(by_name, stored.encode_to_vec());
            store.commit(&batch)
        };
        self.database.with(store).await?;
        Ok(info)
    }

    /// A graph of the tenant by name or digest.
    pub(crate) async fn find(&self, tenant: &str, address: &str) -> Result<GraphDocument, Error> {
        let unknown = || {
            let shown: String = address.chars().take(MAX_ADDRESS_BYTES).collect();
            Error::new(Code::UnknownGraph, format!("no graph {shown:?} is deployed"))
        };
        if address.is_empty() || address.len() > MAX_ADDRESS_BYTES || address.contains('/') {
            return Err(unknown());
        }
        let key = key(tenant, address);
        let found = self.database.with(move |store| {
            let Some(found) = store.get(&key)? else { return Ok(None) };
            let info: GraphInfo = decode("a stored graph", &found.value)?;
            let document = store.blob_part(BlobPart { digest: &info.digest, index: 0 })?;
            Ok(document.map(|document| GraphDocument { info: Some(info), document }))
        });
        found.await?.ok_or_else(unknown)
    }

    /// What the tenant's names stand for.
    pub(crate) async fn list(&self, tenant: &str) -> Result<Vec<GraphInfo>, Error> {
        let prefix = key(tenant, "");
        let read = move |store: &mut dyn Store| {
            let mut list = ReplyList::default();
            each_record(store, &prefix, |record| {
                if !is_digest(record.key.trim_start_matches(&prefix)) {
                    list.add_all([decode::<GraphInfo>("a stored graph", &record.value)?]);
                }
                Ok(())
            })?;
            Ok(list.items)
        };
        self.database.with(read).await
    }
}

fn key(tenant: &str, address: &str) -> String {
    format!("{}{tenant}/{address}", keys::GRAPH)
}
