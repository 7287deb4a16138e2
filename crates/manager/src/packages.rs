//! Packages: stored in parts, found by name or digest, remembered while they are used.
//!
//! A package is in the store with all its parts before its name is known. A digest always has the same content. A name
//! belongs to a tenant (see [`names`]), and is looked up in the store again each second, since another manager may
//! deploy.

mod environments;
mod names;
mod records;
mod references;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::sync::{read_lock, write_lock};
use sublet_proto::package::{self, CheckedPackage, PUBLIC};
use sublet_proto::v1::{
    DeployReply, PackageChunk, PackageGrant, PackageInfo, PackageList, PackageRight, PinnedPackage,
    RemovePackageReply, StoreUse,
};
use sublet_proto::{Code, Error, decode};
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;

use crate::clock::Clock;
use crate::database::Database;
use crate::reply::ReplyPage;
use crate::store::RECORD_BYTES;
use crate::store::{BLOB_PART_BYTES, Batch, BlobPart, PAGE_RECORDS, Store, each_record, keys};
use crate::{collection, runs};
use names::{NameRecord, is_allowed, is_possible, name_key, shown};

pub(crate) use environments::check_leasable;
pub(crate) use names::{Asker, migrate};
pub(crate) use records::known;
pub(crate) use references::add_references;

/// Time for which a look-up of a name is used.
const NAME_AGE: Duration = Duration::from_secs(1);
/// Most names that are remembered; when there are more, all are forgotten and found anew.
const MAX_REMEMBERED: usize = 4096;

/// The packages of a store.
pub(crate) struct StorePackages {
    database: Database,
    clock: Clock,
    /// One package at a time is stored, so that the failure of one does not take the parts of another.
    storing: Semaphore,
    remembered: Arc<RwLock<HashMap<String, Lookup>>>,
}

/// A package under one of its owner's names, or under its digest.
#[derive(Debug)]
struct NamedPackage {
    record: NameRecord,
    info: Arc<PackageInfo>,
}

/// Package that the store had under a name, and the time of the look-up.
type Lookup = (Option<Arc<NamedPackage>>, Instant);

/// Whether a name that was missing within the last second is looked up in the store again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Remembered,
    LookedFor,
}

impl StorePackages {
    pub(crate) fn new(database: Database, clock: Clock) -> StorePackages {
        StorePackages { database, clock, storing: Semaphore::new(1), remembered: Arc::default() }
    }

    /// The package that an address means for the caller, if it has this right to it.
    pub(crate) async fn resolve(
        &self,
        asker: Asker<'_>,
        address: &str,
        right: PackageRight,
    ) -> Result<Arc<PackageInfo>, Error> {
        for missing in [Missing::Remembered, Missing::LookedFor] {
            for reading in package::readings(address) {
                let named =
                    reading.owner.map_or([Some(asker.tenant), Some(PUBLIC)], |owner| [Some(owner), None]);
                for owner in named.into_iter().flatten() {
                    if let Some(info) = self.find(asker, (owner, reading.package), right, missing).await? {
                        return check_function(&info, reading.function).map(|()| info);
                    }
                }
                if asker.is_operator && package::is_digest(reading.package) {
                    let info = self.of_digest(reading.package).await?;
                    return check_function(&info, reading.function).map(|()| info);
                }
            }
        }
        Err(unknown(address))
    }

    /// Returns the package of a digest, for agents, which execute packages by digest.
    pub(crate) async fn of_digest(&self, digest: &str) -> Result<Arc<PackageInfo>, Error> {
        let wanted = shown(digest);
        let found = self.database.with(move |store| known(store, &wanted)).await?;
        found.map(Arc::new).ok_or_else(|| unknown(digest))
    }

    /// Returns the package of a digest that some tenant has used a moment ago, without asking the store, for a caller
    /// whose tenant is not known: [`StorePackages::check_digest`] checks later whether it was the caller's.
    pub(crate) fn remembered(&self, digest: &str) -> Option<Arc<PackageInfo>> {
        if !package::is_digest(digest) {
            return None;
        }
        let remembered = read_lock(&self.remembered);
        let named = remembered.get(digest)?.0.as_ref()?;
        Some(Arc::clone(&named.info))
    }

    /// Refuses a digest that the caller may not use.
    pub(crate) async fn check_digest(&self, asker: Asker<'_>, digest: &str) -> Result<(), Error> {
        self.resolve(asker, digest, PackageRight::Execute).await.map(drop)
    }

    /// Refuses the package of a lease whose owner has revoked the right to it, or has removed its name.
    pub(crate) async fn check_still_allowed(&self, tenant: &str, info: &PackageInfo) -> Result<(), Error> {
        if [tenant, PUBLIC, ""].contains(&info.owner.as_str()) {
            return Ok(());
        }
        self.resolve(Asker::tenant(tenant), &info.pinned_address(), PackageRight::Execute).await.map(drop)
    }

    /// Returns the pinned packages of a graph's components, each once.
    pub(crate) async fn pin<'a>(
        &self,
        asker: Asker<'_>,
        components: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Vec<PinnedPackage>, Error> {
        let mut all: Vec<PinnedPackage> = Vec::new();
        for (component, package) in components {
            if all.iter().any(|known| known.package == package) {
                continue;
            }
            let info = self.resolve(asker, package, PackageRight::Execute).await.map_err(|error| {
                Error::new(error.code, format!("component {component}: {}", error.message))
            })?;
            all.push(PinnedPackage { package: package.to_owned(), pinned: info.pinned_address() });
        }
        Ok(all)
    }

    /// Finds the package of a name, if it exists and the caller has this right to it. `name@digest` is a package of the
    /// name's owner for callers with a right to the name.
    async fn find(
        &self,
        asker: Asker<'_>,
        (owner, name): (&str, &str),
        right: PackageRight,
        missing: Missing,
    ) -> Result<Option<Arc<PackageInfo>>, Error> {
        let (name, pin) = name.split_once('@').map_or((name, None), |(name, pin)| (name, Some(pin)));
        let Some(named) = self.named(owner, name, missing).await? else { return Ok(None) };
        if !is_allowed(asker, owner, &named.record, right) {
            return Ok(None);
        }
        match pin {
            None => Ok(Some(Arc::clone(&named.info))),
            Some(digest) if !package::is_digest(digest) => Ok(None),
            Some(digest) => {
                let pinned = self.named(owner, digest, missing).await?;
                Ok(pinned.map(|pinned| Arc::clone(&pinned.info)).filter(|info| info.name == named.info.name))
            }
        }
    }

    async fn named(
        &self,
        owner: &str,
        name: &str,
        missing: Missing,
    ) -> Result<Option<Arc<NamedPackage>>, Error> {
        if !is_possible(owner, name) {
            return Ok(None);
        }
        let key = format!("{owner}/{name}");
        let remembered = read_lock(&self.remembered).get(&key).cloned();
        let look_up =
            || look_up_and_remember(self.database.clone(), Arc::clone(&self.remembered), owner, name);
        match remembered {
            Some((named, since))
                if since.elapsed() < NAME_AGE && (named.is_some() || missing == Missing::Remembered) =>
            {
                Ok(named)
            }
            // A digest keeps its meaning, so its leases do not wait for the store. A task looks up
            // beside them, once a second, whether its owner has removed it.
            Some((Some(named), _)) if package::is_digest(name) => {
                remember(&self.remembered, key, Some(Arc::clone(&named)));
                tokio::spawn(look_up());
                Ok(Some(named))
            }
            _ => look_up().await,
        }
    }

    fn forget(&self, owner: &str, name: &str) {
        let mut remembered = write_lock(&self.remembered);
        remembered.remove(&format!("{owner}/{name}"));
    }

    /// Returns a page of the packages that the caller may resolve by their names: its own, public ones and those granted
    /// to it; all of them for operators.
    pub(crate) async fn list(&self, asker: Asker<'_>, after: &str) -> Result<PackageList, Error> {
        let (tenant, is_operator, after) = (asker.tenant.to_owned(), asker.is_operator, after.to_owned());
        self.database
            .with(move |store| {
                let asker = Asker { tenant: &tenant, is_operator };
                let mut list = PackagePage { asker, after: &after, page: ReplyPage::default() };
                if is_operator {
                    list.add_below(store, "", keys::NAMED)?;
                } else {
                    list.add_below(store, "1/", &name_key(&tenant, ""))?;
                    list.add_below(store, "2/", &name_key(PUBLIC, ""))?;
                    list.add_granted(store, "3/")?;
                }
                Ok(PackageList { packages: list.page.items, next: list.page.next })
            })
            .await
    }

    /// Returns the further use of the store if the tenant deployed this package.
    pub(crate) async fn more(&self, tenant: &str, package: &CheckedPackage) -> Result<StoreUse, Error> {
        let info = package.info();
        let is_layer = info.is_layer();
        let PackageInfo { name, digest, size_bytes, .. } = info;
        let tenant = tenant.to_owned();
        let look = move |store: &mut dyn Store| {
            let has_version = names::read(store, &tenant, &digest)?.0.is_some();
            let has_name = names::read(store, &tenant, &name)?.0.is_some();
            let is_new = !has_version || !(is_layer || has_name);
            let records_bytes = if is_new { 2 * RECORD_BYTES } else { 0 };
            let bytes = if has_version { 0 } else { size_bytes } + records_bytes;
            let packages = u32::from(!is_layer && is_new);
            Ok(StoreUse { bytes, packages, ..StoreUse::default() })
        };
        self.database.with(look).await
    }

    /// Stores a package's parts, letting others use the store between them, and then its name among the tenant's.
    pub(crate) async fn deploy(
        &self,
        tenant: &str,
        encoded: Arc<Vec<u8>>,
        checked: CheckedPackage,
    ) -> Result<DeployReply, Error> {
        let _turn =
            self.storing.acquire().await.map_err(|_| Error::new(Code::Internal, "the manager stops"))?;
        let digest = checked.digest.clone();
        let is_stored = self.database.with(move |store| Ok(known(store, &digest)?.is_some())).await?;
        if !is_stored {
            self.store_parts(&encoded, &checked.digest).await?;
        }
        let info = PackageInfo { deployed_unix_ms: self.clock.now_ms(), ..checked.info() };
        let reply = self.point(tenant, info.clone()).await?;
        // A collector may have removed it before the name referred to it.
        if !self.is_complete(&info).await? {
            self.store_parts(&encoded, &checked.digest).await?;
            self.point(tenant, info.clone()).await?;
        }
        self.check_references(&info).await?;
        if info.is_layer() {
            return Ok(reply);
        }
        let hidden = self.named(PUBLIC, &info.name, Missing::LookedFor).await?.filter(|_| tenant != PUBLIC);
        Ok(DeployReply { hidden: hidden.map(|named| named.info.as_ref().clone()), ..reply })
    }

    /// Points a public name at a package that is stored.
    pub(crate) async fn publish(&self, asker: Asker<'_>, address: &str) -> Result<PackageInfo, Error> {
        let info = self.resolve(asker, address, PackageRight::Read).await?;
        let deployed_unix_ms = self.clock.now_ms();
        let info = PackageInfo {
            deployed_unix_ms,
            grants: Vec::new(),
            owner: String::new(),
            ..info.as_ref().clone()
        };
        let reply = self.point(PUBLIC, info.clone()).await?;
        if !self.is_complete(&info).await? {
            let (name, digest) = (info.name.clone(), info.digest.clone());
            let now_ms = self.clock.now_ms();
            self.database.with(move |store| remove(store, (PUBLIC, &name), Versions::All, now_ms)).await?;
            self.database.with(move |store| collection::remove_record(store, &digest)).await?;
            self.forget(PUBLIC, &info.name);
            return Err(unknown(address));
        }
        reply.package.ok_or_else(|| Error::new(Code::Internal, "a package was published and is not there"))
    }

    /// Points an owner's name at a package whose parts are all in the store.
    async fn point(&self, owner: &str, info: PackageInfo) -> Result<DeployReply, Error> {
        let (of, stored) = (owner.to_owned(), info.clone());
        let before = self.database.keeping_reserve(move |store| point(store, &of, &stored)).await?;
        let noted = references::references(&info).chain([info.digest.as_str()]).map(str::to_owned);
        collection::note(&self.database, &self.clock, noted.collect()).await?;
        self.forget(owner, &info.name);
        // It is remembered by its digest, too, for its first leases.
        if !info.is_layer() {
            self.named(owner, &info.name, Missing::LookedFor).await?;
        }
        let owned = |info: PackageInfo| PackageInfo { owner: owner.to_owned(), ..info };
        Ok(DeployReply {
            // It does not tell whether the content is stored: that would reveal packages of other tenants.
            known: before.as_ref().is_some_and(|before| before.digest == info.digest),
            replaced: before.filter(|before| before.digest != info.digest).map(owned),
            package: Some(owned(info)),
            hidden: None,
        })
    }

    /// Changes which tenants may use a name.
    pub(crate) async fn grant(
        &self,
        asker: Asker<'_>,
        name: &str,
        granted: PackageGrant,
    ) -> Result<PackageInfo, Error> {
        let (owner, name) = names::owned(asker, name)?;
        let (of, changed, granted_right) = (owner.to_owned(), name.to_owned(), granted.right());
        let change = move |store: &mut dyn Store| grant(store, (&of, &changed), &granted);
        let info = match granted_right {
            PackageRight::Unspecified => self.database.with(change).await?,
            PackageRight::Read | PackageRight::Execute => self.database.keeping_reserve(change).await?,
        };
        self.forget(owner, name);
        Ok(info)
    }

    /// Removes versions of a package from its owner, and its name unless only old versions are removed. Returns the
    /// package of the name, and the number of removed versions.
    pub(crate) async fn remove(
        &self,
        asker: Asker<'_>,
        name: &str,
        versions: Versions,
    ) -> Result<RemovePackageReply, Error> {
        let (owner, name) = names::owned(asker, name)?;
        let (of, removed) = (owner.to_owned(), name.to_owned());
        let now_ms = self.clock.now_ms();
        let removed =
            self.database.with(move |store| remove(store, (&of, &removed), versions, now_ms)).await?;
        let PackageRemoval { info, digests } = removed.ok_or_else(|| unknown(&format!("{owner}/{name}")))?;
        self.forget(owner, name);
        digests.iter().for_each(|digest| self.forget(owner, digest));
        Ok(RemovePackageReply { package: Some(info), versions: digests.len() as u32 })
    }

    /// Removes the records of names that were removed before this time, and returns their number.
    pub(crate) async fn expire_names(&self, before_ms: u64) -> Result<u64, Error> {
        let (mut expired, mut after) = (0, None::<String>);
        loop {
            let (behind, now_ms) = (after.take(), self.clock.now_ms());
            let expire = move |store: &mut dyn Store| {
                let page = store.scan(keys::NAMED, behind.as_deref(), PAGE_RECORDS)?;
                let expired = names::expire_page(store, &page, before_ms, now_ms)?;
                Ok((expired, page.into_iter().last().map(|last| last.key)))
            };
            let (more, reached) = self.database.with(expire).await?;
            expired += u64::from(more);
            if reached.is_none() {
                return Ok(expired);
            }
            after = reached;
        }
    }

    /// Whether a package's record and all of its parts are in the store.
    async fn is_complete(&self, info: &PackageInfo) -> Result<bool, Error> {
        let digest = info.digest.clone();
        let parts = info.size_bytes.div_ceil(BLOB_PART_BYTES as u64);
        let look = move |store: &mut dyn Store| {
            Ok(known(store, &digest)?.is_some() && u64::from(store.blob_parts(&digest)?) == parts)
        };
        self.database.with(look).await
    }

    /// Stores all parts. After an error it removes them again, unless another manager has stored the package.
    async fn store_parts(&self, encoded: &Arc<Vec<u8>>, digest: &str) -> Result<(), Error> {
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

/// Looks up an owner's name or digest in the store, and remembers the result.
fn look_up_and_remember(
    database: Database,
    remembered: Arc<RwLock<HashMap<String, Lookup>>>,
    owner: &str,
    name: &str,
) -> impl Future<Output = Result<Option<Arc<NamedPackage>>, Error>> + Send + use<> {
    let (owner, name) = (owner.to_owned(), name.to_owned());
    async move {
        let key = format!("{owner}/{name}");
        let found = database.with(move |store| look_up(store, &owner, &name)).await?;
        let named = found.map(Arc::new);
        remember(&remembered, key, named.clone());
        Ok(named)
    }
}

fn remember(remembered: &RwLock<HashMap<String, Lookup>>, key: String, named: Option<Arc<NamedPackage>>) {
    let mut remembered = write_lock(remembered);
    if remembered.len() >= MAX_REMEMBERED {
        remembered.clear();
    }
    if let Some(named) = &named {
        remembered.insert(named.record.digest.clone(), (Some(Arc::clone(named)), Instant::now()));
    }
    remembered.insert(key, (named, Instant::now()));
}

fn look_up(store: &dyn Store, owner: &str, name: &str) -> Result<Option<NamedPackage>, Error> {
    let Some(record) = names::read(store, owner, name)?.0 else { return Ok(None) };
    let info = known(store, &record.digest)?;
    Ok(info.map(|info| NamedPackage { info: Arc::new(info_of(info, owner, &record)), record }))
}

fn info_of(info: PackageInfo, owner: &str, record: &NameRecord) -> PackageInfo {
    PackageInfo { owner: owner.to_owned(), deployed_unix_ms: record.deployed_unix_ms, ..info }
}

/// A page of packages. Their keys are `GROUP/OWNER/NAME`, and ascend.
struct PackagePage<'a> {
    asker: Asker<'a>,
    after: &'a str,
    page: ReplyPage<PackageInfo>,
}

impl PackagePage<'_> {
    /// Adds the names below a key, with their grants where the caller may know them.
    fn add_below(&mut self, store: &dyn Store, group: &str, prefix: &str) -> Result<(), Error> {
        each_record(store, prefix, |found| {
            let owned = found.key.strip_prefix(keys::NAMED).and_then(|key| key.split_once('/'));
            let Some((owner, name)) = owned.filter(|(_, name)| !package::is_digest(name)) else {
                return Ok(());
            };
            let Some(key) = self.key(group, owner, name) else { return Ok(()) };
            if let Some(named) = look_up(store, owner, name)? {
                let is_shown = owner == self.asker.tenant || self.asker.is_operator;
                let grants = if is_shown { named.record.grants } else { Vec::new() };
                self.page.add(&key, PackageInfo { grants, ..named.info.as_ref().clone() });
            }
            Ok(())
        })
    }

    fn add_granted(&mut self, store: &dyn Store, group: &str) -> Result<(), Error> {
        let prefix = format!("{}{}/", keys::GRANTED, self.asker.tenant);
        each_record(store, &prefix, |found| {
            let Some((owner, name)) = found.key[prefix.len()..].split_once('/') else { return Ok(()) };
            let Some(key) = self.key(group, owner, name) else { return Ok(()) };
            let named = look_up(store, owner, name)?;
            let allowed =
                named.filter(|named| is_allowed(self.asker, owner, &named.record, PackageRight::Read));
            if let Some(named) = allowed {
                self.page.add(&key, named.info.as_ref().clone());
            }
            Ok(())
        })
    }

    /// Returns a package's key if it belongs to this page or to a later one, and this page has space.
    fn key(&self, group: &str, owner: &str, name: &str) -> Option<String> {
        let key = format!("{group}{owner}/{name}");
        (key.as_str() > self.after && !self.page.is_full()).then_some(key)
    }
}

/// Points a name at a package, and lets its owner use the digest; returns the package that the name referred to before.
fn point(store: &mut dyn Store, owner: &str, info: &PackageInfo) -> Result<Option<PackageInfo>, Error> {
    let (digest, deployed_unix_ms) = (&info.digest, info.deployed_unix_ms);
    let record =
        |grants| NameRecord { digest: digest.clone(), deployed_unix_ms, grants, ..NameRecord::default() };
    let mut batch = Batch::default();
    batch.put(format!("{}{}", keys::PACKAGE, info.digest), info.encode_to_vec());
    batch.put(name_key(owner, &info.digest), record(Vec::new()).encode_to_vec());
    store.commit(&batch)?;
    if info.is_layer() {
        // Only environments refer to it.
        return Ok(None);
    }
    let grants_of =
        |before: Option<&NameRecord>| before.map(|before| before.grants.clone()).unwrap_or_default();
    let before = names::change(store, (owner, &info.name), |before| Ok(record(grants_of(before))))?;
    let Some(before) = before else { return Ok(None) };
    Ok(known(store, &before.digest)?.map(|info| info_of(info, owner, &before)))
}

fn grant(
    store: &mut dyn Store,
    (owner, name): (&str, &str),
    granted: &PackageGrant,
) -> Result<PackageInfo, Error> {
    let missing = || unknown(&format!("{owner}/{name}"));
    names::change(store, (owner, name), |before| {
        let mut record = before.cloned().ok_or_else(missing)?;
        names::grant(owner, &mut record, granted)?;
        Ok(record)
    })?;
    // This record is only for lists: the right is in the name's record.
    let key = names::granted_key(&granted.tenant, owner, name);
    let mut batch = Batch::default();
    match granted.right() {
        PackageRight::Unspecified => batch.remove(key),
        PackageRight::Read | PackageRight::Execute => batch.put(key, Vec::new()),
    }
    store.commit(&batch)?;
    let NamedPackage { record, info } = look_up(store, owner, name)?.ok_or_else(missing)?;
    Ok(PackageInfo { grants: record.grants, ..info.as_ref().clone() })
}

/// Versions of a package that are to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    /// Versions that the name does not refer to any more, and that no unfinished run of the owner needs.
    Old,
    /// All versions, and the name.
    All,
}

/// Versions that were removed from an owner's package.
struct PackageRemoval {
    /// Package that the name refers to, or referred to.
    info: PackageInfo,
    /// Digests of the removed versions.
    digests: Vec<String>,
}

fn remove(
    store: &mut dyn Store,
    (owner, name): (&str, &str),
    which: Versions,
    now_ms: u64,
) -> Result<Option<PackageRemoval>, Error> {
    let Some(named) = look_up(store, owner, name)? else { return Ok(None) };
    let mut digests = versions(store, owner, name)?;
    let mut batch = Batch::default();
    match which {
        Versions::Old => {
            let needed = runs::digests_of_unfinished(store, owner)?;
            digests.retain(|digest| *digest != named.record.digest && !needed.contains(digest));
        }
        Versions::All => {
            let removed = names::change(store, (owner, name), |_| Ok(NameRecord::removed(now_ms)))?;
            for grant in removed.unwrap_or_default().grants {
                batch.remove(names::granted_key(&grant.tenant, owner, name));
            }
        }
    }
    let layers = references::layers_of_removed(store, owner, &digests)?;
    digests.iter().chain(&layers).for_each(|digest| batch.remove(name_key(owner, digest)));
    store.commit(&batch)?;
    Ok(Some(PackageRemoval { info: named.info.as_ref().clone(), digests }))
}

/// Digests of an owner's packages of this name.
fn versions(store: &dyn Store, owner: &str, name: &str) -> Result<Vec<String>, Error> {
    let mut digests = Vec::new();
    let prefix = name_key(owner, "");
    each_record(store, &prefix, |found| {
        let digest = &found.key[prefix.len()..];
        let is_version = |info: PackageInfo| info.name == name && !info.is_layer();
        if package::is_digest(digest) && known(store, digest)?.is_some_and(is_version) {
            digests.push(digest.to_owned());
        }
        Ok(())
    })?;
    Ok(digests)
}

/// Returns the bytes of a tenant's packages, and the number of versions or names, whichever is larger. Layers of
/// environments count by their bytes only.
pub(crate) fn measure(store: &dyn Store, tenant: &str) -> Result<(u64, u32), Error> {
    let (mut bytes, mut versions, mut names) = (0u64, 0u32, 0u32);
    let prefix = name_key(tenant, "");
    each_record(store, &prefix, |found| {
        let (name, record) =
            (&found.key[prefix.len()..], decode::<NameRecord>("a stored name", &found.value)?);
        let is_version = package::is_digest(name);
        let info = if is_version { known(store, name)? } else { None };
        let is_layer = info.as_ref().is_some_and(PackageInfo::is_layer);
        bytes = bytes.saturating_add(RECORD_BYTES).saturating_add(info.map_or(0, |info| info.size_bytes));
        versions += u32::from(is_version && !is_layer);
        // A removed name keeps a record, which does not count as a name.
        names += u32::from(!is_version && !record.digest.is_empty());
        Ok(())
    })?;
    Ok((bytes, versions.max(names)))
}

/// Returns the digests that any name or version refers to.
pub(crate) fn digests(store: &dyn Store) -> Result<HashSet<String>, Error> {
    let mut digests = HashSet::new();
    each_record(store, keys::NAMED, |found| {
        let record: NameRecord = decode("a stored name", &found.value)?;
        digests.insert(record.digest);
        Ok(())
    })?;
    Ok(digests)
}

fn unknown(address: &str) -> Error {
    let message = format!(
        "no package {:?} is deployed by this tenant, is public, or is granted to it (see `sublet package list`)",
        shown(address)
    );
    Error::new(Code::UnknownPackage, message)
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
