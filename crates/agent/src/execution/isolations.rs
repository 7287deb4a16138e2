//! Isolations that this node offers to functions, and the choice of one for each lease.

use std::path::{Path, PathBuf};

use sublet_proto::isolation::Isolation;
use sublet_proto::v1::{Lease, PackageBuild};
use sublet_proto::{Code, Error};
use sublet_sandbox::Walls;

use crate::execution::programs::find_runtime;

/// Reason why a node cannot offer gVisor.
const NO_FUNCTIONS_IN_GVISOR: &str = "functions cannot run under runsc: gVisor's kernel cannot check the seals of memory that a worker shares with its client \
     (`sublet sandbox create --runtime` runs other programs under it)";

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Isolations {
    /// Offered isolations, each with the program that makes its containers, if another program does.
    offered: Vec<(Isolation, Option<PathBuf>)>,
    /// The program that makes containers of leases that demand no isolation, if any.
    container_runtime: Option<PathBuf>,
}

impl Isolations {
    /// Finds the programs of allowed isolations. Without a list the node offers processes, containers, and the isolation of
    /// its container runtime.
    ///
    /// # Errors
    /// `invalid_argument` for a list with `weak` and others, for gVisor, and if a program is missing.
    pub(crate) fn find(allowed: &[Isolation], runtime: Option<&Path>) -> Result<Isolations, Error> {
        if allowed.contains(&Isolation::Runsc) || runtime.and_then(isolation_of) == Some(Isolation::Runsc) {
            return Err(Error::new(Code::InvalidArgument, NO_FUNCTIONS_IN_GVISOR.to_owned()));
        }
        let container_runtime = runtime.map(find_runtime).transpose()?;
        if allowed.contains(&Isolation::Weak) && (allowed.len() > 1 || runtime.is_some()) {
            let message = "a node with the isolation weak offers no other isolation and no container runtime";
            return Err(Error::new(Code::InvalidArgument, message.to_owned()));
        }
        let own =
            container_runtime.as_deref().and_then(isolation_of).map(|own| (own, container_runtime.clone()));
        let offered: Vec<_> = if allowed.is_empty() {
            let usual = [Isolation::Process, Isolation::Container].map(|isolation| (isolation, None));
            usual.into_iter().chain(own).collect()
        } else {
            let mut allowed = allowed.to_vec();
            allowed.sort_unstable();
            allowed.dedup();
            let one = |isolation: Isolation| match &own {
                Some((known, program)) if *known == isolation => Ok((isolation, program.clone())),
                _ if isolation.is_delegated() => {
                    Ok((isolation, Some(find_runtime(Path::new(isolation.name()))?)))
                }
                _ => Ok((isolation, None)),
            };
            allowed.into_iter().map(one).collect::<Result<_, Error>>()?
        };
        Ok(Isolations { offered, container_runtime })
    }

    /// Names of the offered isolations.
    pub(crate) fn names(&self) -> Vec<String> {
        self.offered.iter().map(|(isolation, _)| isolation.name().to_owned()).collect()
    }

    /// Whether packages with an image can be executed here.
    pub(crate) fn takes_images(&self) -> bool {
        self.container_runtime.is_some() || self.offered.iter().any(|(isolation, _)| isolation.has_image())
    }

    /// Walls of this node's sandboxes.
    pub(crate) fn walls(&self) -> Walls {
        match self.is_weak() {
            true => Walls::Weak,
            false => Walls::Full,
        }
    }

    /// Whether functions have no namespaces here.
    pub(crate) fn is_weak(&self) -> bool {
        self.offered.iter().any(|(isolation, _)| *isolation == Isolation::Weak)
    }

    /// Chooses the isolation of everything that a lease executes of a build, as [`Isolations::choose`] does.
    pub(crate) fn of_lease(
        &self,
        lease: &Lease,
        build: &PackageBuild,
    ) -> Result<(Isolation, Option<&Path>), Error> {
        let wanted = lease.needs.as_ref().map_or("", |needs| needs.isolation.as_str());
        self.choose(wanted, !build.image.is_empty())
    }

    /// Chooses the isolation of a lease that demands this one, or any if it is empty. Returns also the program that makes its
    /// container, if another program does.
    ///
    /// # Errors
    /// `invalid_argument` for an isolation that does not fit the package, `insufficient_resources` for one that the node does
    /// not offer.
    fn choose(&self, wanted: &str, has_image: bool) -> Result<(Isolation, Option<&Path>), Error> {
        if wanted.is_empty() {
            return self.usual(has_image);
        }
        let wanted = Isolation::parse(wanted)?;
        if wanted.has_image() != has_image {
            let has = if has_image { "an image, which it cannot run" } else { "no image, which it needs" };
            let message =
                format!("the lease demands the isolation {}, and its package has {has}", wanted.name());
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let found = self.offered.iter().find(|(isolation, _)| *isolation == wanted);
        found
            .map(|(isolation, program)| (*isolation, program.as_deref()))
            .ok_or_else(|| self.missing(&format!("the isolation {}", wanted.name())))
    }

    fn usual(&self, has_image: bool) -> Result<(Isolation, Option<&Path>), Error> {
        if let (true, Some(program)) = (has_image, &self.container_runtime) {
            let isolation = isolation_of(program).unwrap_or(Isolation::Container);
            return Ok((isolation, Some(program)));
        }
        let found = self.offered.iter().find(|(isolation, _)| isolation.has_image() == has_image);
        let what = if has_image {
            "an isolation for packages with an image"
        } else {
            "an isolation for packages without an image"
        };
        found.map(|(isolation, program)| (*isolation, program.as_deref())).ok_or_else(|| self.missing(what))
    }

    fn missing(&self, what: &str) -> Error {
        let message = format!("the node does not offer {what}, only {}", self.names().join(", "));
        Error::new(Code::InsufficientResources, message)
    }
}

/// The isolation of an OCI runtime, by the name of its program.
fn isolation_of(program: &Path) -> Option<Isolation> {
    let name = program.file_name()?.to_str()?;
    Isolation::parse(name).ok().filter(|isolation| isolation.is_delegated())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use sublet_proto::v1::Needs;

    fn chosen(isolations: &Isolations, wanted: &str, has_image: bool) -> Result<Isolation, Code> {
        isolations.choose(wanted, has_image).map(|(isolation, _)| isolation).map_err(|error| error.code)
    }

    #[test]
    fn offers_processes_and_containers_by_default() {
        let isolations = Isolations::find(&[], None).unwrap();
        assert_eq!(isolations.names(), ["process", "container"]);
        assert_eq!(chosen(&isolations, "", false), Ok(Isolation::Process));
        assert_eq!(chosen(&isolations, "", true), Ok(Isolation::Container));
        assert_eq!(chosen(&isolations, "runsc", true), Err(Code::InsufficientResources));
        assert_eq!(chosen(&isolations, "runsc", false), Err(Code::InvalidArgument));
        assert_eq!(chosen(&isolations, "process", true), Err(Code::InvalidArgument));
        assert_eq!(chosen(&isolations, "vm", false), Err(Code::InvalidArgument));
        assert_eq!(isolations.walls(), Walls::Full);
    }

    #[test]
    fn a_lease_gets_the_isolation_that_it_demands() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = folder.path().join("runtime");
        std::fs::write(&runtime, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o755)).unwrap();
        let isolations = Isolations::find(&[], Some(&runtime)).unwrap();
        let build = PackageBuild { image: "image@sha256:1".into(), ..PackageBuild::default() };
        let lease = |isolation: &str| Lease {
            needs: Some(Needs { isolation: isolation.into(), ..Needs::default() }),
            ..Lease::default()
        };
        let of_lease = |lease: &Lease| isolations.of_lease(lease, &build).unwrap();
        assert_eq!(of_lease(&Lease::default()), (Isolation::Container, Some(&*runtime)));
        assert_eq!(of_lease(&lease("")), (Isolation::Container, Some(&*runtime)));
        assert_eq!(of_lease(&lease("container")), (Isolation::Container, None));
    }

    #[test]
    fn weak_isolation_excludes_all_others() {
        let weak = Isolations::find(&[Isolation::Weak], None).unwrap();
        assert_eq!((chosen(&weak, "", false), weak.walls()), (Ok(Isolation::Weak), Walls::Weak));
        assert_eq!(chosen(&weak, "process", false), Err(Code::InsufficientResources));
        assert_eq!(chosen(&weak, "", true), Err(Code::InsufficientResources));
        let both = Isolations::find(&[Isolation::Weak, Isolation::Process], None).unwrap_err();
        assert_eq!(both.code, Code::InvalidArgument);
    }

    #[test]
    fn refuses_gvisor_which_cannot_run_functions() {
        for (allowed, runtime) in [(&[Isolation::Runsc][..], None), (&[], Some(Path::new("/usr/bin/runsc")))]
        {
            let refused = Isolations::find(allowed, runtime).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument);
            assert!(refused.message.contains("runsc"), "{refused}");
        }
    }

    #[test]
    fn operator_limits_isolations() {
        let only = Isolations::find(&[Isolation::Container], None).unwrap();
        assert_eq!(chosen(&only, "", false), Err(Code::InsufficientResources));
        assert_eq!(chosen(&only, "", true), Ok(Isolation::Container));
    }
}
