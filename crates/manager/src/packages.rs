//! Packages: stored in parts, found by name or digest, remembered while they are used.
//!
//! A package is in the store with all its parts before its name is known. What a digest stands for never changes and
//! is remembered; what a name stands for is asked of the store again each second, since another manager may deploy.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_proto::package::{self, Checked};
use sublet_proto::v1::{DeployReply, PackageChunk, PackageInfo};
use sublet_proto::{Code, Error, decode};
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;

use crate::database::Database;
use crate::reply::ReplyList;
use crate::store::{BLOB_PART_BYTES, Batch, BlobPart, Store, keys};

/// How long a name stands for what it stood for.
const NAME_AGE: Duration = Duration::from_secs(1);
/// Names, and as many packages, that are remembered; when there are more, all are forgotten and found anew.
const MAX_REMEMBERED: usize = 4096;
/// No name and no digest is longer.
const MAX_ADDRESS_BYTES: usize = 128;
/// How many records are read from the store at a time.
const PAGE_RECORDS: usize = 1000;

/// The packages of a store.
pub(crate) struct Packages {
    database: Database,
    /// One package at a time is stored, so that the failure of one does not take the parts of another.
    storing: Semaphore,
    remembered: RwLock<Remembered>,
}

#[derive(Default)]
struct Remembered {
    by_digest: HashMap<String, Arc<PackageInfo>>,
    by_name: HashMap<String, (Arc<PackageInfo>, Instant)>,
}

impl Packages {
    pub(crate) fn new(database: Database) -> Packages {
        Packages { database, storing: Semaphore::new(1), remembered: RwLock::default() }
    }

    /// A package by "name", "name/function" or digest.
    pub(crate) async fn resolve(&self, address: &str) -> Result<Arc<PackageInfo>, Error> {
        if let Some(known) = self.remembered(address) {
            return known;
        }
        let (name, function) = package::split_address(address);
        if name.len() > MAX_ADDRESS_BYTES {
            return Err(unknown(name));
        }
        let wanted = name.to_owned();
        let found = self.database.with(move |store| find(store, &wanted)).await?;
        let info = Arc::new(found.ok_or_else(|| unknown(name))?);
        self.remember(name, &info);
        check_function(&info, function)?;
        Ok(info)
    }

    /// As [`Packages::resolve`], if the store need not be asked.
    pub(crate) fn remembered(&self, address: &str) -> Option<Result<Arc<PackageInfo>, Error>> {
        let (name, function) = package::split_address(address);
        let remembered = self.remembered.read().unwrap_or_else(PoisonError::into_inner);
        let info = match remembered.by_name.get(name) {
            Some((info, since)) if since.elapsed() < NAME_AGE => info,
            _ => remembered.by_digest.get(name)?,
        };
        Some(check_function(info, function).map(|()| Arc::clone(info)))
    }

    fn remember(&self, name: &str, info: &Arc<PackageInfo>) {
        let mut remembered = self.remembered.write().unwrap_or_else(PoisonError::into_inner);
        let Remembered { by_digest, by_name } = &mut *remembered;
        if by_digest.len().max(by_name.len()) >= MAX_REMEMBERED {
            by_digest.clear();
            by_name.clear();
        }
        by_digest.insert(info.digest.clone(), Arc::clone(info));
        if !package::is_digest(name) {
            by_name.insert(name.to_owned(), (Arc::clone(info), Instant::now()));
        }
    }

    /// The packages that names stand for.
    pub(crate) async fn list(&self) -> Result<Vec<PackageInfo>, Error> {
        self.database
            .with(|store| {
                let mut list = ReplyList::default();
                let mut after = None;
                loop {
                    let names = store.scan(keys::NAME, after.as_deref(), PAGE_RECORDS)?;
                    let Some(last) = names.last() else { return Ok(list.items) };
                    after = Some(last.key.clone());
                    for name in &names {
                        list.add_all(known(store, &String::from_utf8_lossy(&name.value))?);
                    }
                }
            })
            .await
    }

    /// Stores a package's parts, letting others have the store between them, and then its name.
    pub(crate) async fn deploy(
        &self,
        encoded: Arc<Vec<u8>>,
        checked: Checked,
        now_ms: u64,
    ) -> Result<DeployReply, Error> {
        let _turn =
            self.storing.acquire().await.map_err(|_| Error::new(Code::Internal, "the manager stops"))?;
        let digest = checked.digest.clone();
        let is_known = self.database.with(move |store| Ok(known(store, &digest)?.is_some())).await?;
        if !is_known && let Err(error) = self.store_parts(&encoded, &checked.digest).await {
            let digest = checked.digest.clone();
            self.database
                .with(move |store| match known(store, &digest)? {
                    // Another manager was quicker.
                    Some(_) => Ok(()),
                    None => store.remove_blob(&digest),
                })
                .await?;
            return Err(error);
        }
        let info = PackageInfo { deployed_unix_ms: now_ms, ..checked.info() };
        let published = info.clone();
        self.database.with(move |store| publish(store, &published)).await?;
        self.remember(&info.name, &Arc::new(info.clone()));
        Ok(DeployReply { package: Some(info), known: is_known })
    }

    async fn store_parts(&self, encoded: &Arc<Vec<u8>>, digest: &str) -> Result<(), Error> {
        for (index, start) in (0u32..).zip((0..encoded.len()).step_by(BLOB_PART_BYTES)) {
            let (encoded, digest) = (Arc::clone(encoded), digest.to_owned());
            self.database
                .with(move |store| {
                    let end = encoded.len().min(start + BLOB_PART_BYTES);
                    store.put_blob_part(BlobPart { digest: &digest, index }, &encoded[start..end])
                })
                .await?;
        }
        Ok(())
    }

    /// Sends a package's parts until they are all sent or nobody listens.
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

fn find(store: &dyn Store, name: &str) -> Result<Option<PackageInfo>, Error> {
    if package::is_digest(name) {
        return known(store, name);
    }
    match store.get(&format!("{}{name}", keys::NAME))? {
        Some(digest) => known(store, &String::from_utf8_lossy(&digest.value)),
        None => Ok(None),
    }
}

/// The package of this digest, if all of it is in the store.
pub(crate) fn known(store: &dyn Store, digest: &str) -> Result<Option<PackageInfo>, Error> {
    let found = store.get(&format!("{}{digest}", keys::PACKAGE))?;
    found.map(|found| decode("a stored package", &found.value)).transpose()
}

/// Points the package's name at it. All of its parts are in the store.
fn publish(store: &mut dyn Store, info: &PackageInfo) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.put(format!("{}{}", keys::PACKAGE, info.digest), info.encode_to_vec());
    batch.put(format!("{}{}", keys::NAME, info.name), info.digest.clone().into_bytes());
    batch.append(keys::DEPLOYMENTS, info.encode_to_vec());
    store.commit(&batch)
}

fn unknown(name: &str) -> Error {
    let shown: String = name.chars().take(MAX_ADDRESS_BYTES).collect();
    Error::new(Code::UnknownPackage, format!("no package {shown:?} is deployed"))
}

fn check_function(info: &PackageInfo, function: Option<&str>) -> Result<(), Error> {
    const SHOWN: usize = 8;
    let Some(function) = function else { return Ok(()) };
    if info.functions.iter().any(|known| known.name == function) {
        return Ok(());
    }
    let mut names: Vec<_> = info.functions.iter().take(SHOWN).map(|known| known.name.as_str()).collect();
    if info.functions.len() > SHOWN {
        names.push("...");
    }
    let names = names.join(", ");
    let message = format!("package {} has no function {function:?}; it has {names}", info.name);
    Err(Error::new(Code::UnknownFunction, message))
}
