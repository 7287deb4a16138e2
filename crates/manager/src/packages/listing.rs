//! Lists the packages of a store, and measures how much of the store each tenant uses.

use std::collections::HashSet;

use sublet_proto::package::{self, PUBLIC};
use sublet_proto::v1::{PackageInfo, PackageList, PackageRight};
use sublet_proto::{Error, decode};

use super::StorePackages;
use super::named::look_up;
use super::names::{Asker, NameRecord, is_allowed, name_key};
use super::records::known;
use crate::reply::ReplyPage;
use crate::store::{RECORD_BYTES, Store, each_record, keys};

impl StorePackages {
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
pub(crate) fn named_digests(store: &dyn Store) -> Result<HashSet<String>, Error> {
    let mut digests = HashSet::new();
    each_record(store, keys::NAMED, |found| {
        let record: NameRecord = decode("a stored name", &found.value)?;
        digests.insert(record.digest);
        Ok(())
    })?;
    Ok(digests)
}
