//! Graphs: documents under their digests, and the names of a tenant's graphs.
//!
//! A tenant has a record for each version, under its digest, and one for each name. Documents without a version are
//! [garbage](crate::garbage).

use std::collections::HashSet;
use std::sync::Arc;

use prost::Message;
use sublet_proto::graph::{self, Graph};
use sublet_proto::package::is_digest;
use sublet_proto::v1::{GraphDocument, GraphInfo, GraphList, StoreUse};
use sublet_proto::{Code, Error, decode};

use crate::clock::Clock;
use crate::collection;
use crate::database::Database;
use crate::reply::ReplyPage;
use crate::runs;
use crate::store::RECORD_BYTES;
use crate::store::{Batch, BlobPart, Store, each_record, keys};

/// No name and no digest is longer.
const MAX_ADDRESS_BYTES: usize = 128;

/// The graphs of a store.
pub(crate) struct Graphs {
    database: Database,
    clock: Clock,
}

/// A document that is a graph.
pub(crate) struct CheckedGraph {
    info: GraphInfo,
    document: Arc<Vec<u8>>,
}

impl CheckedGraph {
    /// Refuses a document that is not a graph.
    pub(crate) fn of(document: Vec<u8>) -> Result<CheckedGraph, Error> {
        let graph = Graph::parse(&document).map_err(|problems| graph::error("the document", &problems))?;
        let info = GraphInfo {
            digest: sublet_proto::package::digest(&document),
            size_bytes: document.len() as u64,
            deployed_unix_ms: 0,
            components: u32::try_from(graph.components.len()).unwrap_or(u32::MAX),
            name: graph.name,
            swaps: false,
        };
        Ok(CheckedGraph { info, document: Arc::new(document) })
    }
}

impl Graphs {
    pub(crate) fn new(database: Database, clock: Clock) -> Graphs {
        Graphs { database, clock }
    }

    /// Returns the further use of the store if the tenant deployed this graph.
    pub(crate) async fn more(&self, tenant: &str, graph: &CheckedGraph) -> Result<StoreUse, Error> {
        let (version, name) = (key(tenant, &graph.info.digest), key(tenant, &graph.info.name));
        let size_bytes = graph.info.size_bytes;
        let look = move |store: &mut dyn Store| {
            let version_bytes = if store.get(&version)?.is_some() { None } else { Some(size_bytes) };
            let is_named = store.get(&name)?.is_some();
            let graphs = u32::from(version_bytes.is_some() || !is_named);
            let bytes = version_bytes.unwrap_or_default() + 2 * RECORD_BYTES;
            Ok(StoreUse { bytes, graphs, ..StoreUse::default() })
        };
        self.database.with(look).await
    }

    /// Stores a document, and points the tenant's name at it. The document is stored before its name.
    pub(crate) async fn deploy(&self, tenant: &str, graph: CheckedGraph) -> Result<GraphInfo, Error> {
        let CheckedGraph { info, document } = graph;
        let info = GraphInfo { deployed_unix_ms: self.clock.now_ms(), ..info };
        let (by_name, by_digest) = (key(tenant, &info.name), key(tenant, &info.digest));
        let (stored, first) = (info.clone(), Arc::clone(&document));
        let store = move |store: &mut dyn Store| {
            store.put_blob_part(BlobPart { digest: &stored.digest, index: 0 }, &first)?;
            let mut batch = Batch::default();
            batch.put(by_digest, stored.encode_to_vec());
            batch.put(by_name, stored.encode_to_vec());
            store.commit(&batch)
        };
        self.database.keeping_reserve(store).await?;
        collection::note(&self.database, &self.clock, vec![info.digest.clone()]).await?;
        let digest = info.digest.clone();
        let complete = move |store: &mut dyn Store| match store.blob_parts(&digest)? {
            0 => store.put_blob_part(BlobPart { digest: &digest, index: 0 }, &document),
            _ => Ok(()),
        };
        self.database.keeping_reserve(complete).await?;
        Ok(info)
    }

    /// Removes one version of a graph by its digest, or a name and every version that it referred to. Versions that
    /// unfinished runs need stay. Returns the removed versions, and the number of those that stay.
    pub(crate) async fn remove(&self, tenant: &str, address: &str) -> Result<(Vec<GraphInfo>, u32), Error> {
        check_address(address)?;
        let (tenant, address) = (tenant.to_owned(), address.to_owned());
        self.database.with(move |store| remove(store, &tenant, &address)).await
    }

    /// A graph of the tenant by name or digest.
    pub(crate) async fn find(&self, tenant: &str, address: &str) -> Result<GraphDocument, Error> {
        check_address(address)?;
        let key = key(tenant, address);
        let found = self.database.with(move |store| {
            let Some(found) = store.get(&key)? else { return Ok(None) };
            let info: GraphInfo = decode("a stored graph", &found.value)?;
            let document = store.blob_part(BlobPart { digest: &info.digest, index: 0 })?;
            Ok(document.map(|document| GraphDocument { info: Some(info), document }))
        });
        found.await?.ok_or_else(|| unknown(address))
    }

    /// Returns a page of the graphs that the tenant's names refer to.
    pub(crate) async fn list(&self, tenant: &str, after: &str) -> Result<GraphList, Error> {
        let (prefix, after) = (key(tenant, ""), after.to_owned());
        let read = move |store: &mut dyn Store| {
            let mut list = ReplyPage::default();
            each_record(store, &prefix, |record| {
                let name = record.key.trim_start_matches(&prefix);
                if !is_digest(name) && name > after.as_str() && !list.is_full() {
                    list.add(name, decode::<GraphInfo>("a stored graph", &record.value)?);
                }
                Ok(())
            })?;
            Ok(GraphList { graphs: list.items, next: list.next })
        };
        self.database.with(read).await
    }
}

fn unknown(address: &str) -> Error {
    let shown: String = address.chars().take(MAX_ADDRESS_BYTES).collect();
    Error::new(Code::UnknownGraph, format!("no graph {shown:?} is deployed"))
}

fn check_address(address: &str) -> Result<(), Error> {
    if address.is_empty() || address.len() > MAX_ADDRESS_BYTES || address.contains('/') {
        return Err(unknown(address));
    }
    Ok(())
}

fn remove(store: &mut dyn Store, tenant: &str, address: &str) -> Result<(Vec<GraphInfo>, u32), Error> {
    let Some(found) = store.get(&key(tenant, address))? else { return Err(unknown(address)) };
    let info: GraphInfo = decode("a stored graph", &found.value)?;
    let needed = runs::digests_of_unfinished(store, tenant)?;
    let mut batch = Batch::default();
    let mut removed: Vec<GraphInfo> = Vec::new();
    let (mut kept, mut newest) = (0, None::<GraphInfo>);
    each_record(store, &key(tenant, ""), |record| {
        let version: GraphInfo = decode("a stored graph", &record.value)?;
        if version.name != info.name || record.key != key(tenant, &version.digest) {
            return Ok(());
        }
        if is_digest(address) && version.digest != address {
            newest = newest
                .take()
                .filter(|newest| newest.deployed_unix_ms > version.deployed_unix_ms)
                .or(Some(version));
        } else if needed.contains(&version.digest) {
            kept += 1;
        } else {
            batch.remove(record.key.clone());
            removed.push(version);
        }
        Ok(())
    })?;
    let name = key(tenant, &info.name);
    let current =
        store.get(&name)?.map(|found| decode::<GraphInfo>("a stored graph", &found.value)).transpose()?;
    let is_current = current.is_some_and(|current| removed.iter().any(|gone| gone.digest == current.digest));
    match newest {
        // The name refers to the version before, as after a deployment that was undone.
        Some(newest) if is_current => batch.put(name, newest.encode_to_vec()),
        _ if is_current || !is_digest(address) => batch.remove(name),
        _ => {}
    }
    store.commit(&batch)?;
    Ok((removed, kept))
}

/// Returns the bytes of a tenant's graphs, and the number of versions or names, whichever is larger.
pub(crate) fn measure(store: &dyn Store, tenant: &str) -> Result<(u64, u32), Error> {
    let (mut bytes, mut versions, mut names) = (0u64, 0u32, 0u32);
    let prefix = key(tenant, "");
    each_record(store, &prefix, |record| {
        bytes = bytes.saturating_add(RECORD_BYTES);
        if is_digest(&record.key[prefix.len()..]) {
            let info: GraphInfo = decode("a stored graph", &record.value)?;
            bytes = bytes.saturating_add(info.size_bytes);
            versions += 1;
        } else {
            names += 1;
        }
        Ok(())
    })?;
    Ok((bytes, versions.max(names)))
}

/// Digests of the documents that any tenant's graphs refer to.
pub(crate) fn digests(store: &dyn Store) -> Result<HashSet<String>, Error> {
    let mut digests = HashSet::new();
    each_record(store, keys::GRAPH, |record| {
        digests.insert(decode::<GraphInfo>("a stored graph", &record.value)?.digest);
        Ok(())
    })?;
    Ok(digests)
}

fn key(tenant: &str, address: &str) -> String {
    format!("{}{tenant}/{address}", keys::GRAPH)
}
