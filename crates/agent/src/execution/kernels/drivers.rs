//! Detects whether libraries for devices are installed on this machine. Their capabilities show only in the sandboxes
//! that use them.

use std::fs;
use std::path::{Path, PathBuf};

use sublet_proto::package::PackageKind;

/// Where OpenCL's loader looks for drivers.
const OPENCL_VENDORS: &str = "/etc/OpenCL/vendors";
/// NVIDIA's driver, if it has a GPU.
const CUDA_NODE: &str = "/dev/nvidiactl";
/// Where hosts have shared libraries, as sandboxes see them.
const LIBRARIES: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"];

/// Whether this machine has drivers for a kind of kernels.
pub(super) fn are_there(kind: PackageKind) -> bool {
    match kind {
        PackageKind::OpenCl => {
            let is_driver =
                |entry: &fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "icd");
            let has_driver = fs::read_dir(OPENCL_VENDORS)
                .is_ok_and(|entries| entries.flatten().any(|entry| is_driver(&entry)));
            has_driver && has_library("libOpenCL.so.1")
        }
        _ => Path::new(CUDA_NODE).exists() && has_library("libcuda.so.1"),
    }
}

fn has_library(name: &str) -> bool {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = LIBRARIES.iter().map(PathBuf::from);
    folders
        .flat_map(|folder| [folder.join(&multiarch).join(name), folder.join(name)])
        .any(|file| file.exists())
}
