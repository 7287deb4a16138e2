//! Packages: stored in parts, found by name or digest, remembered while they are used.
//!
//! A package is in the store with all its parts before its name is known. A digest always has the same content. A name
//! belongs to a tenant (see [`names`]), and is looked up in the store again each second, since another manager may
//! deploy.

mod blobs;
mod changes;
mod environments;
mod listing;
mod named;
mod names;
mod records;
mod references;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use sublet_fabric::sync::{read_lock, write_lock};
use sublet_proto::package::{self, CheckedPackage, PUBLIC};
use sublet_proto::v1::{
    DeployReply, PackageGrant, PackageInfo, PackageRight, PinnedPackage, RemovePackageReply, StoreUse,
};
use sublet_proto::{Code, Error};
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::collection;
use crate::database::Database;
use crate::store::{PAGE_RECORDS, RECORD_BYTES, Store, keys};
use changes::PackageRemoval;
use named::{NamedPackage, look_up, unknown};
use names::{is_allowed, is_possible, shown};

pub(crate) use changes::Versions;
pub(crate) use environments::check_leasable;
pub(crate) use listing::{measure, named_digests};
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
            self.database
                .with(move |store| changes::remove(store, (PUBLIC, &name), Versions::All, now_ms))
                .await?;
            self.database.with(move |store| collection::remove_record(store, &digest)).await?;
            self.forget(PUBLIC, &info.name);
            return Err(unknown(address));
        }
        reply.package.ok_or_else(|| Error::new(Code::Internal, "a package was published and is not there"))
    }

    /// Points an owner's name at a package whose parts are all in the store.
    async fn point(&self, owner: &str, info: PackageInfo) -> Result<DeployReply, Error> {
        let (of, stored) = (owner.to_owned(), info.clone());
        let before = self.database.keeping_reserve(move |store| changes::point(store, &of, &stored)).await?;
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
        let change = move |store: &mut dyn Store| changes::grant(store, (&of, &changed), &granted);
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
        let removed = self
            .database
            .with(move |store| changes::remove(store, (&of, &removed), versions, now_ms))
            .await?;
        let PackageRemoval { info, digests } = removed.ok_or_else(|| unknown(&format!("{owner}/{name}")))?;
        self.forget(owner, name);
        digests.iter().for_each(|digest| self.forget(owner, digest));
        Ok(RemovePackageReply {
            package: Some(info),
            versions: u32::try_from(digests.len()).unwrap_or(u32::MAX),
        })
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
