//! Places in the common root of sandboxes where something can be mounted.

use std::ffi::CStr;

/// A place in the common root where something can be mounted, relative to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountPoint(pub(crate) &'static str);

impl MountPoint {
    pub(crate) const PROGRAM: MountPoint = MountPoint("program");
    pub(crate) const FOLDER: MountPoint = MountPoint("package");
    pub(crate) const ENVIRONMENT: MountPoint = MountPoint("environment");

    pub(crate) fn number(self) -> u32 {
        let known = (0..).zip(&PLACES).find(|(_, place)| **place == self);
        known.map_or(u32::MAX, |(number, _)| number)
    }

    pub(crate) fn of_number(number: u32) -> Option<MountPoint> {
        PLACES.get(number as usize).copied()
    }
}

/// Path of the program in the sandbox.
pub(crate) const PROGRAM: &CStr = c"/program";
/// Folders of the host that RDMA libraries need, shown at the same paths to sandboxes with the host's network.
pub(crate) const SYSTEM_FOLDERS: [MountPoint; 3] =
    [MountPoint("sys"), MountPoint("dev/infiniband"), MountPoint("etc/libibverbs.d")];
/// Folders of the host that OpenCL needs, shown at the same paths to sandboxes that use devices: the list of drivers,
/// their compilers, the headers of PoCL's, and the list of processors.
pub(crate) const DRIVER_FOLDERS: [MountPoint; 4] = [
    MountPoint("etc/OpenCL"),
    MountPoint("usr/bin"),
    MountPoint("usr/share/pocl"),
    MountPoint("sys/devices/system"),
];
/// Nodes of the host that are shown at the same paths to sandboxes with NVIDIA's first GPU.
pub(crate) const GPU_NODES: [MountPoint; 4] = [
    MountPoint("dev/nvidiactl"),
    MountPoint("dev/nvidia-uvm"),
    MountPoint("dev/nvidia-uvm-tools"),
    MountPoint("dev/nvidia0"),
];
/// Files about cores and memory, which each sandbox has for itself.
pub(crate) const VIEWS: [MountPoint; 4] =
    [MountPoint("proc/meminfo"), MountPoint("proc/cpuinfo"), MountPoint("proc/stat"), SYSTEM_FOLDERS[0]];
/// All places, by which messages number them.
const PLACES: [MountPoint; 17] = [
    MountPoint::PROGRAM,
    MountPoint::FOLDER,
    SYSTEM_FOLDERS[0],
    SYSTEM_FOLDERS[1],
    SYSTEM_FOLDERS[2],
    DRIVER_FOLDERS[0],
    DRIVER_FOLDERS[1],
    DRIVER_FOLDERS[2],
    DRIVER_FOLDERS[3],
    GPU_NODES[0],
    GPU_NODES[1],
    GPU_NODES[2],
    GPU_NODES[3],
    VIEWS[0],
    VIEWS[1],
    VIEWS[2],
    MountPoint::ENVIRONMENT,
];
