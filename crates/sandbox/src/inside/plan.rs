//! What a process that was made ahead of time is to become: how the spawner tells it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use sublet_proto::v1::SandboxPlan;

use super::MountPoint;
use crate::{Network, Spec, wire};

/// All that it has to know.
pub(crate) struct Plan {
    /// Detached mounts, and where they belong.
    pub(super) mounts: Vec<(MountPoint, OwnedFd)>,
    pub(super) args: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) control: OwnedFd,
    pub(super) network: Network,
    pub(super) scratch_bytes: u64,
    pub(super) processes: Option<u32>,
}

impl Plan {
    /// Of a sandbox with these mounts.
    pub(crate) fn new(spec: Spec, mounts: Vec<(MountPoint, OwnedFd)>) -> io::Result<Plan> {
        let args = std::iter::once(spec.program.into_os_string()).chain(spec.args);
        let env = spec.env.iter().map(|(name, value)| CString::new(wire::variable(name, value)));
        Ok(Plan {
            mounts,
            args: args.map(|word| CString::new(word.into_vec())).collect::<Result<_, _>>()?,
            env: env.collect::<Result<_, _>>()?,
            control: spec.control,
            network: spec.network,
            scratch_bytes: spec.limits.scratch_bytes,
            processes: spec.limits.processes,
        })
    }

    /// Tells the process at the other end.
    pub(crate) fn send(self, link: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = |strings: Vec<CString>| strings.into_iter().map(CString::into_bytes).collect();
        let message = SandboxPlan {
            places: self.mounts.iter().map(|(place, _)| place.number()).collect(),
            args: bytes(self.args),
            env: bytes(self.env),
            host_network: self.network == Network::Host,
            scratch_bytes: self.scratch_bytes,
            processes: self.processes.unwrap_or(0),
        };
        let mounts = self.mounts.iter().map(|(_, mount)| mount.as_fd());
        wire::send(link, &message, &mounts.chain([self.control.as_fd()]).collect::<Vec<_>>())
    }
}

/// Waits for it.
pub(super) fn receive(link: BorrowedFd<'_>) -> io::Result<Plan> {
    // Without one the spawner is gone, and this process about to be killed.
    let (message, mut fds) = wire::receive::<SandboxPlan>(link)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let control = fds.pop().ok_or(io::ErrorKind::InvalidData)?;
    let places = message.places.into_iter().map(MountPoint::of_number).collect::<Option<Vec<_>>>();
    let places = places.filter(|places| places.len() == fds.len()).ok_or(io::ErrorKind::InvalidData)?;
    let text = |strings: Vec<Vec<u8>>| strings.into_iter().map(CString::new).collect::<Result<_, _>>();
    Ok(Plan {
        mounts: places.into_iter().zip(fds).collect(),
        args: text(message.args)?,
        env: text(message.env)?,
        control,
        network: if message.host_network { Network::Host } else { Network::None },
        scratch_bytes: message.scratch_bytes,
        processes: Some(message.processes).filter(|&processes| processes > 0),
    })
}
