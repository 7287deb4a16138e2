//! Weak isolation as the spawner prepares it: which files of the host sandboxes may read, and what they cannot have.

use std::io;
use std::path::{Path, PathBuf};

use super::root::{LIBRARIES, LOCAL_ZONE, LOCAL_ZONE_NAME, ZONES};
use crate::{Devices, IsolationKind, NetworkAccess, SandboxError, Spec, system};

/// Files of the kernel about the machine, which C libraries and languages read.
const MACHINE: [&str; 6] = [
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/stat",
    "proc/sys/vm/overcommit_memory",
    "sys/devices/system/cpu",
    "sys/kernel/mm/transparent_hugepage",
];

/// See the [module](self).
pub(super) struct WeakRoot {
    /// Paths of the host that all sandboxes may read.
    shown: Vec<PathBuf>,
}

impl WeakRoot {
    /// Prepares sandboxes that may read these paths beside the host's shared libraries.
    pub(super) fn open(shown: Vec<PathBuf>) -> io::Result<WeakRoot> {
        if system::landlock_abi() == 0 {
            let message =
                "this kernel has no Landlock, without which functions could read and write the agent's files";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let common = LIBRARIES.iter().chain(&ZONES).chain(&MACHINE).chain([&LOCAL_ZONE, &LOCAL_ZONE_NAME]);
        let common = common.map(|path| Path::new("/").join(path));
        Ok(WeakRoot { shown: common.chain(shown).collect() })
    }

    /// # Errors
    /// If a specification has what only mounts give.
    pub(super) fn check(spec: &Spec) -> Result<(), SandboxError> {
        if spec.kind.image().is_some() {
            return Err(WeakRoot::refusal("an image"));
        }
        if !spec.lent_folders.is_empty() {
            return Err(WeakRoot::refusal("a lent folder"));
        }
        if matches!(spec.devices, Devices::Drivers | Devices::Gpu | Devices::Own) {
            return Err(WeakRoot::refusal("a device"));
        }
        Ok(())
    }

    /// The error of a sandbox that cannot have something here.
    pub(super) fn refusal(what: &str) -> SandboxError {
        let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        SandboxError::system(format!("giving a sandbox of weak isolation {what}"), source)
    }

    /// Paths of the host that a sandbox may read, with all beneath them.
    pub(super) fn readable(&self, spec: &Spec) -> Vec<PathBuf> {
        let mut readable = self.shown.clone();
        readable.push(spec.program.path().to_owned());
        readable.extend(spec.folder.clone());
        if let IsolationKind::Template(template) = &spec.kind {
            readable.push(template.adapter.clone());
            readable.extend(template.environment.clone().filter(|folder| !folder.as_os_str().is_empty()));
        }
        if spec.network == NetworkAccess::Host {
            readable.extend(["/sys", "/dev/infiniband", "/etc/libibverbs.d"].map(PathBuf::from));
        }
        readable
    }
}
