//! Isolation of functions: the names by which packages and leases demand it and nodes offer it.

use crate::v1::NodeDescription;
use crate::{Code, Error};

/// Isolation of a worker process from the rest of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isolation {
    /// A process in namespaces of its own.
    Process,
    /// A container of an image, made by the agent.
    Container,
    /// A container of an image, made by crun.
    Crun,
    /// A container of an image, made by runc.
    Runc,
    /// A container of an image with a kernel in user space, made by gVisor's runsc.
    Runsc,
    /// A container of an image, made by Apptainer.
    Apptainer,
    /// Landlock, a filter of system calls and limits of resources alone, on machines that allow no namespaces.
    Weak,
}

impl Isolation {
    /// All isolations.
    pub const ALL: [Isolation; 7] = [
        Isolation::Process,
        Isolation::Container,
        Isolation::Crun,
        Isolation::Runc,
        Isolation::Runsc,
        Isolation::Apptainer,
        Isolation::Weak,
    ];
    /// Isolations of a node that names none.
    const USUAL: [Isolation; 2] = [Isolation::Process, Isolation::Container];

    /// Returns the name of the isolation.
    pub fn name(self) -> &'static str {
        match self {
            Isolation::Process => "process",
            Isolation::Container => "container",
            Isolation::Crun => "crun",
            Isolation::Runc => "runc",
            Isolation::Runsc => "runsc",
            Isolation::Apptainer => "apptainer",
            Isolation::Weak => "weak",
        }
    }

    /// Returns the isolation of this name.
    ///
    /// # Errors
    /// `invalid_argument` with all names.
    pub fn parse(name: &str) -> Result<Isolation, Error> {
        Isolation::ALL.into_iter().find(|isolation| isolation.name() == name).ok_or_else(|| {
            let shown: String = name.chars().take(64).collect();
            let names = Isolation::ALL.map(Isolation::name).join(", ");
            Error::new(Code::InvalidArgument, format!("{shown:?} is not an isolation: use one of {names}"))
        })
    }

    /// Whether functions run in the file system of an image.
    pub fn has_image(self) -> bool {
        !matches!(self, Isolation::Process | Isolation::Weak)
    }

    /// Whether another program makes the containers.
    pub fn is_delegated(self) -> bool {
        self.has_image() && self != Isolation::Container
    }

    /// Whether a node offers the isolation.
    pub fn is_offered(self, node: &NodeDescription) -> bool {
        match node.isolations.is_empty() {
            true => Isolation::USUAL.contains(&self),
            false => node.isolations.iter().any(|name| name == self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_isolation() {
        for isolation in Isolation::ALL {
            assert_eq!(Isolation::parse(isolation.name()).unwrap(), isolation);
        }
        let refused = Isolation::parse("vm").unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.contains("\"vm\"") && refused.message.contains("runsc"), "{refused}");
    }

    #[test]
    fn node_without_names_offers_processes_and_containers() {
        let old = NodeDescription::default();
        assert!(Isolation::Process.is_offered(&old) && Isolation::Container.is_offered(&old));
        assert!(!Isolation::Weak.is_offered(&old) && !Isolation::Runc.is_offered(&old));
        let weak = NodeDescription { isolations: vec!["weak".into()], ..old };
        assert!(Isolation::Weak.is_offered(&weak) && !Isolation::Process.is_offered(&weak));
    }
}
