//! The second wall around files and networks, for the case that the first has a hole: Landlock's rules hold wherever a
//! path leads and whatever is mounted.
//!
//! How much of it there is depends on the kernel; older ones know fewer kinds of access, the oldest none.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

use super::CreationPlan;
use crate::{FolderAccess, LENT_FOLDERS, NetworkAccess, SCRATCH, SHARED_MEMORY};

/// The newest of Landlock's interfaces of which everything is used.
const NEWEST: ABI = ABI::V6;

pub(super) fn restrict(plan: &CreationPlan) -> io::Result<()> {
    let writable = plan.folders.iter().filter(|folder| folder.access == FolderAccess::Write);
    let writable: Vec<_> = writable.map(|folder| Path::new(LENT_FOLDERS).join(&folder.name)).collect();
    apply(plan.network, plan.image.is_some(), &writable).map_err(io::Error::other)
}

fn apply(
    network: NetworkAccess,
    is_container: bool,
    writable: &[PathBuf],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let files = AccessFs::from_all(NEWEST);
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock;
    let devices = AccessFs::from_read(NEWEST) | AccessFs::WriteFile | AccessFs::IoctlDev;
    // All of a container's files are its own, but those that are mounted read-only.
    let (root, scratch) = match is_container {
        true => (files & !nodes & !AccessFs::IoctlDev, files & !nodes),
        false => (AccessFs::from_read(NEWEST), files & !nodes & !AccessFs::Execute),
    };
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(files)?;
    if network == NetworkAccess::None {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let mut ruleset = ruleset
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rule(PathBeneath::new(PathFd::new("/")?, root))?
        .add_rule(PathBeneath::new(PathFd::new("/dev")?, devices))?
        .add_rule(PathBeneath::new(PathFd::new(SCRATCH)?, scratch))?
        .add_rule(PathBeneath::new(PathFd::new(SHARED_MEMORY)?, scratch))?;
    for folder in writable {
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(folder)?, scratch))?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

/// Files and folders of every process that a sandbox of weak isolation sees, with the rights to them.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Restricts this process to reading these paths of the host, its own folder of `/proc`, and harmless devices.
pub(super) fn restrict_weakly(
    network: NetworkAccess,
    readable: &[PathBuf],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let files = AccessFs::from_all(NEWEST);
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(files)?;
    if network == NetworkAccess::None {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let mut ruleset = ruleset.scope(Scope::from_all(NEWEST))?.create()?;
    let devices = AccessFs::ReadFile | AccessFs::WriteFile;
    let own = [PathBuf::from("/proc/self")];
    let read = readable.iter().chain(&own).map(|path| (path.as_path(), AccessFs::from_read(NEWEST)));
    let devices = DEVICES.iter().map(|path| (Path::new(path), devices));
    for (path, access) in read.chain(devices) {
        // A path that does not exist needs no rule.
        let Ok(open) = PathFd::new(path) else { continue };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(open, access))?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind::PermissionDenied;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;

    use sublet_means::{Means, skip};

    use super::*;
    use crate::system;

    /// Inside of a sandbox other walls stop the same. The rules hold for the thread that takes them alone.
    #[test]
    fn refuses_writes_to_other_files_and_connections() {
        if system::landlock_abi() < 4 {
            skip(Means::LandlockNetworks, "this kernel's Landlock knows no networks");
            return;
        }
        let (own, elsewhere) =
            (tempfile::tempdir_in(SCRATCH).unwrap(), tempfile::tempdir_in("/var/tmp").unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tries = move || {
            apply(NetworkAccess::None, false, &[]).unwrap();
            let written = |folder: &tempfile::TempDir| fs::write(folder.path().join("x"), "").err();
            let socket = UnixListener::bind(own.path().join("socket")).err();
            let connected = TcpStream::connect(address).err();
            [written(&own), written(&elsewhere), socket, connected]
                .map(|error| error.map(|error| error.kind()))
        };
        let denied = Some(PermissionDenied);
        let seen = std::thread::spawn(tries).join().unwrap();
        assert_eq!(seen, [None, denied, denied, denied]);
    }
}
