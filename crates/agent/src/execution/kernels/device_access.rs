//! Access to the host for processes that use a device: device files, and environment variables.

use std::ffi::OsString;

use sublet_proto::package::PackageKind;
use sublet_sandbox::{Devices, SCRATCH};

/// Environment of every process that uses a device: where it may write, and where compilers find linkers.
pub(crate) fn environment() -> Vec<(OsString, OsString)> {
    [("HOME", SCRATCH), ("PATH", "/usr/bin")].map(|(name, value)| (name.into(), value.into())).to_vec()
}

/// Access that the sandboxes of a kind have to the host's devices.
pub(crate) fn devices_of(kind: PackageKind) -> Devices {
    if kind == PackageKind::Cuda { Devices::Gpu } else { Devices::Drivers }
}
