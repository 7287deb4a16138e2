//! Environments of Python and their layers, as far as they differ from other packages.
//!
//! A layer has no name. Its tenant has a record of its digest from its upload on, and for as long as one of the tenant's
//! environments lists it. An environment is deployed after its layers, all of which that tenant has uploaded: so no
//! tenant learns which layers others have. A package names its environment by a digest, and may be leased wherever that
//! can be used. Blobs are kept for as long as a package that is kept refers to them.

use std::collections::{HashMap, HashSet};

use sublet_proto::package::{self, CheckedPackage, PythonPlatform};
use sublet_proto::v1::{PackageBuild, PackageInfo, PackageRight};
use sublet_proto::{Code, Error, decode};

use super::StorePackages;
use super::named::look_up;
use super::names::{self, Asker, NameRecord, name_key};
use super::records::known;
use super::references::references;
use crate::store::{Batch, Store, each_record, keys};

impl StorePackages {
    /// Checks what a package that is to be deployed refers to, and has it run only where its environments can be used.
    ///
    /// # Errors
    /// `unknown_package` if the tenant has no right to an environment, or has not uploaded a layer; `invalid_package` if
    /// they are for another Python; `invalid_argument` if the name is that of a package of another kind.
    pub(crate) async fn link(
        &self,
        asker: Asker<'_>,
        mut checked: CheckedPackage,
    ) -> Result<CheckedPackage, Error> {
        let info = checked.info();
        if info.is_layer() {
            return Ok(checked);
        }
        self.check_kind(asker.tenant, &info).await?;
        self.check_layers(asker.tenant, &info).await?;
        for build in checked.builds.iter_mut().filter(|build| !build.environment.is_empty()) {
            let environment = self.resolve(asker, &build.environment, PackageRight::Execute).await;
            let environment = environment.map_err(|error| of_package(&info.name, &error))?;
            build.architecture = joint_platform(&info.name, build, &environment)?;
        }
        Ok(checked)
    }

    /// Refuses to replace a package by an environment of the same name, or the reverse.
    async fn check_kind(&self, tenant: &str, info: &PackageInfo) -> Result<(), Error> {
        let (owner, name, is_environment) = (tenant.to_owned(), info.name.clone(), info.is_environment());
        let before = move |store: &mut dyn Store| look_up(store, &owner, &name);
        match self.database.with(before).await? {
            Some(named) if named.info.is_environment() != is_environment => {
                let ([article, old, new], name) = if is_environment {
                    (["a", "package", "environment"], &info.name)
                } else {
                    (["an", "environment", "package"], &info.name)
                };
                let message = format!(
                    "{tenant}/{name} is {article} {old}: give the {new} another name, or remove the {old} (`sublet {old} remove {name}`)"
                );
                Err(Error::new(Code::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    async fn check_layers(&self, tenant: &str, info: &PackageInfo) -> Result<(), Error> {
        let layers: Vec<String> = info.layers().map(str::to_owned).collect();
        let owner = tenant.to_owned();
        let find = move |store: &mut dyn Store| {
            for layer in layers {
                let is_uploaded = names::read(store, &owner, &layer)?.0.is_some();
                if !is_uploaded || !known(store, &layer)?.is_some_and(|info| info.is_layer()) {
                    return Ok(Some(layer));
                }
            }
            Ok(None)
        };
        match self.database.with(find).await? {
            Some(layer) => {
                let message =
                    format!("environment {}: {tenant} has not uploaded its layer {layer}", info.name);
                Err(Error::new(Code::UnknownPackage, message))
            }
            None => Ok(()),
        }
    }

    /// Checks that what a package refers to was not removed while it was deployed.
    pub(super) async fn check_references(&self, info: &PackageInfo) -> Result<(), Error> {
        let needed: Vec<String> = references(info).map(str::to_owned).collect();
        let find = move |store: &mut dyn Store| {
            for digest in needed {
                if known(store, &digest)?.is_none() {
                    return Ok(Some(digest));
                }
            }
            Ok(None)
        };
        match self.database.with(find).await? {
            Some(digest) => {
                let message = format!("package {}: {digest} was removed meanwhile", info.name);
                Err(Error::new(Code::UnknownPackage, message))
            }
            None => Ok(()),
        }
    }

    /// Removes the records of layers that were uploaded before this time and that no environment of their tenant lists:
    /// the upload was given up. Returns the tenants, and the number of records of each.
    pub(crate) async fn expire_layers(&self, before_ms: u64) -> Result<HashMap<String, u32>, Error> {
        self.database.with(move |store| expire_layers(store, before_ms)).await
    }
}

fn expire_layers(store: &mut dyn Store, before_ms: u64) -> Result<HashMap<String, u32>, Error> {
    let (mut old, mut listed) = (Vec::new(), HashSet::new());
    each_record(store, keys::NAMED, |found| {
        let owned = found.key.strip_prefix(keys::NAMED).and_then(|key| key.split_once('/'));
        let Some((owner, digest)) = owned.filter(|(_, digest)| package::is_digest(digest)) else {
            return Ok(());
        };
        let Some(info) = known(store, digest)? else { return Ok(()) };
        listed.extend(info.layers().map(|layer| (owner.to_owned(), layer.to_owned())));
        let record: NameRecord = decode("a stored name", &found.value)?;
        if info.is_layer() && record.deployed_unix_ms < before_ms {
            old.push((owner.to_owned(), digest.to_owned()));
        }
        Ok(())
    })?;
    let (mut batch, mut expired) = (Batch::default(), HashMap::new());
    for (owner, digest) in old.into_iter().filter(|layer| !listed.contains(layer)) {
        batch.remove(name_key(&owner, &digest));
        *expired.entry(owner).or_default() += 1;
    }
    store.commit(&batch)?;
    Ok(expired)
}

/// The platform on which a build can run in an environment.
fn joint_platform(name: &str, build: &PackageBuild, environment: &PackageInfo) -> Result<String, Error> {
    let of = |fault: String| Error::new(Code::InvalidPackage, format!("package {name}: {fault}"));
    let Some(found) = environment.builds.iter().find(|build| build.is_environment()) else {
        return Err(of(format!("{} is not an environment, but a package", environment.name)));
    };
    let platform = &found.architecture;
    let version_of = |text: &str| PythonPlatform::parse(text).map(|platform| platform.version);
    match (version_of(&build.architecture), version_of(platform)) {
        (Some(own), Some(other)) if own != other => Err(of(format!(
            "it is for {}, and its environment {} for {platform}",
            build.architecture, environment.name
        ))),
        _ => Ok(platform.clone()),
    }
}

fn of_package(name: &str, error: &Error) -> Error {
    let message = error.message.replacen("no package", "no environment", 1);
    let message = message.replacen("sublet package list", "sublet environment list", 1);
    Error::new(error.code, format!("package {name}: {message}"))
}

/// Refuses to lease what has no functions.
///
/// # Errors
/// `invalid_argument`.
pub(crate) fn check_leasable(info: &PackageInfo) -> Result<(), Error> {
    let what = match info {
        info if info.is_environment() => "an environment",
        info if info.is_layer() => "a layer of environments",
        _ => return Ok(()),
    };
    let message = format!(
        "{} is {what}, which has no functions: lease a package that names it, or functions in it \
         (sublet.lease(environment=...))",
        info.name
    );
    Err(Error::new(Code::InvalidArgument, message))
}
