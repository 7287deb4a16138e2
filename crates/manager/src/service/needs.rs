//! Finds the needs of a request beside cores and memory: those of its package and its own.

use std::sync::Arc;

use sublet_proto::package::can_open_devices;
use sublet_proto::v1::{LeaseRequest, Needs, PackageInfo};
use sublet_proto::{Code, Error};

use super::ServiceParts;
use crate::core::LeaseTerms;

impl ServiceParts {
    /// Returns the secrets, folders and temporary space of a request of a verified tenant.
    ///
    /// # Errors
    /// `invalid_argument` for names that are invalid, secrets that do not exist, and space that exceeds the memory;
    /// `permission_denied` if another tenant's package uses secrets that the request does not name.
    pub(super) async fn needs_of(
        &self,
        tenant: &str,
        package: &PackageInfo,
        asked: &LeaseRequest,
    ) -> Result<Arc<Needs>, Error> {
        if asked.needs.is_none() && package.needs.is_none() {
            return Ok(Arc::default());
        }
        let needs = merged(tenant, package, asked)?;
        self.secrets.check(tenant, &needs.secrets).await?;
        Ok(Arc::new(needs))
    }
}

fn merged(tenant: &str, package: &PackageInfo, asked: &LeaseRequest) -> Result<Needs, Error> {
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    let (own, lease) = (package.needs.clone().unwrap_or_default(), asked.needs.clone().unwrap_or_default());
    if asked.is_segment() && !lease.is_empty() {
        return invalid(
            "a segment has no functions: it has no secrets, folders, temporary space and devices".to_owned(),
        );
    }
    if !lease.variables.is_empty() {
        return invalid("environment variables are sent to the lease's agent, not to its manager".to_owned());
    }
    lease.check()?;
    check_foreign(tenant, package, &own, &lease)?;
    let mut needs = own.with(&lease);
    needs.check()?;
    needs.variables.clear();
    if !needs.devices.is_empty() && !package.builds.iter().any(can_open_devices) {
        return invalid(format!(
            "devices asked for package {}, which has neither native code nor Python outside of an image that could open them",
            package.name
        ));
    }
    let memory_bytes = match needs.temporary_bytes {
        0 => u64::MAX,
        // A profile of the package may give each worker another size.
        _ if asked.memory_bytes == 0 && !package.profiles.is_empty() => u64::MAX,
        _ => LeaseTerms::of(asked)?.memory_bytes,
    };
    if needs.temporary_bytes > memory_bytes {
        return invalid(format!(
            "{} bytes of temporary space asked, which is part of the lease's memory of {memory_bytes} bytes: ask for more \
             memory",
            needs.temporary_bytes
        ));
    }
    Ok(needs)
}

/// Refuses to give secrets to a package of another tenant only because the package names them: its author would get
/// them.
fn check_foreign(tenant: &str, package: &PackageInfo, own: &Needs, lease: &Needs) -> Result<(), Error> {
    if package.owner == tenant {
        return Ok(());
    }
    let is_named = |variable: &str| lease.secrets.iter().any(|one| one.variable == *variable);
    match own.secrets.iter().find(|one| !is_named(&one.variable)) {
        Some(one) => {
            let message = format!(
                "package {} of {} wants the secret {:?} as {}: name it in the lease to give it to another tenant's package \
                 (secrets)",
                package.name, package.owner, one.secret, one.variable
            );
            Err(Error::new(Code::PermissionDenied, message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sublet_proto::needs::parse_secret_use;

    use super::*;

    fn package(owner: &str) -> PackageInfo {
        let secrets = vec![parse_secret_use("KEY=key")];
        let needs = Needs { secrets, folders: vec!["data".into()], ..Needs::default() };
        PackageInfo { name: "p".into(), owner: owner.into(), needs: Some(needs), ..PackageInfo::default() }
    }

    fn asked(needs: Needs) -> LeaseRequest {
        LeaseRequest { cores: 1, memory_bytes: 1 << 20, needs: Some(needs), ..LeaseRequest::default() }
    }

    #[test]
    fn foreign_package_gets_only_secrets_that_the_lease_names() {
        assert_eq!(merged("alice", &package("alice"), &asked(Needs::default())).unwrap().secrets.len(), 1);
        for owner in ["bob", "public", ""] {
            let error = merged("alice", &package(owner), &asked(Needs::default())).unwrap_err();
            assert!(error.code == Code::PermissionDenied && error.message.contains("\"key\""), "{error}");
        }
        let named = Needs { secrets: vec![parse_secret_use("KEY=mine")], ..Needs::default() };
        assert_eq!(merged("alice", &package("bob"), &asked(named)).unwrap().secrets[0].secret, "mine");
    }

    #[test]
    fn needs_that_no_lease_can_have_are_refused() {
        let message = |needs| merged("a", &package("a"), &asked(needs)).unwrap_err().message;
        assert!(
            message(Needs { temporary_bytes: 2 << 20, ..Needs::default() })
                .contains("part of the lease's memory")
        );
        assert!(message(Needs { folders: vec!["../x".into()], ..Needs::default() }).contains("../x"));
        let segment =
            LeaseRequest { cores: 0, ..asked(Needs { folders: vec!["x".into()], ..Needs::default() }) };
        let error = merged("a", &PackageInfo::default(), &segment).unwrap_err();
        assert!(error.message.contains("segment"), "{error}");
    }
}
