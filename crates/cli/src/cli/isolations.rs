//! The isolations of functions as `sublet doctor` shows them: whether this machine has each, what it gives, and what it costs.

use serde::Serialize;
use sublet_proto::isolation::Isolation;

/// JSON output, whose format is stable.
#[derive(Debug, Serialize)]
pub(crate) struct IsolationView {
    pub(crate) isolation: &'static str,
    /// Whether an agent of this user can offer the isolation here.
    pub(crate) available: bool,
    /// Reason why it is not available.
    pub(crate) missing: Option<String>,
    pub(crate) gives: &'static str,
    pub(crate) costs: &'static str,
}

/// Properties of a machine by which it has isolations.
pub(crate) struct Machine {
    pub(crate) has_namespaces: bool,
    pub(crate) has_landlock: bool,
    pub(crate) is_root: bool,
    /// Whether a program of this name is on PATH.
    pub(crate) has_program: fn(&str) -> bool,
}

/// All isolations on this machine.
pub(crate) fn isolations(machine: &Machine) -> Vec<IsolationView> {
    Isolation::ALL.into_iter().map(|isolation| view(isolation, machine)).collect()
}

fn view(isolation: Isolation, machine: &Machine) -> IsolationView {
    let missing = missing(isolation, machine);
    let (gives, costs) = described(isolation);
    IsolationView { isolation: isolation.name(), available: missing.is_none(), missing, gives, costs }
}

fn missing(isolation: Isolation, machine: &Machine) -> Option<String> {
    let name = isolation.name();
    match isolation {
        Isolation::Weak => (!machine.has_landlock).then(|| "the kernel has no Landlock".to_owned()),
        _ if !machine.has_namespaces => Some("no namespaces can be made".to_owned()),
        _ if !isolation.is_delegated() => None,
        _ if !(machine.has_program)(name) => Some(format!("{name} is not on PATH")),
        _ => (!machine.is_root).then(|| "it needs root".to_owned()),
    }
}

/// The benefit of an isolation, and its cost.
fn described(isolation: Isolation) -> (&'static str, &'static str) {
    match isolation {
        Isolation::Process => (
            "the walls above around the host's shared libraries",
            "the quickest start; no file system of its own",
        ),
        Isolation::Container => {
            ("the walls above around an image", "a start like that of a process, with the layers to mount")
        }
        Isolation::Crun | Isolation::Runc => (
            "namespaces and an image, by another program that is widely known",
            "a slower start; no filter of system calls and no Landlock",
        ),
        Isolation::Runsc => (
            "a kernel in user space between the function and the host's",
            "a much slower start and slower system calls; only for `sublet sandbox create`: functions cannot run in it",
        ),
        Isolation::Apptainer => ("an image by the runtime of many clusters", "untried"),
        Isolation::Weak => (
            "Landlock, a filter of system calls and limits, without namespaces",
            "one wall in place of two; no temporary files, folders, images and other processes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Machine = Machine {
        has_namespaces: true,
        has_landlock: true,
        is_root: true,
        has_program: |name| name == "crun",
    };

    fn available(machine: &Machine) -> Vec<&'static str> {
        isolations(machine).iter().filter(|view| view.available).map(|view| view.isolation).collect()
    }

    #[test]
    fn names_what_each_isolation_lacks() {
        assert_eq!(available(&WHOLE), ["process", "container", "crun", "weak"]);
        assert_eq!(available(&Machine { is_root: false, ..WHOLE }), ["process", "container", "weak"]);
        assert_eq!(available(&Machine { has_namespaces: false, ..WHOLE }), ["weak"]);
        assert_eq!(available(&Machine { has_landlock: false, ..WHOLE }), ["process", "container", "crun"]);
        let runc = &isolations(&WHOLE)[3];
        assert_eq!(runc.missing.as_deref(), Some("runc is not on PATH"));
    }
}
