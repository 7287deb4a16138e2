//! Detects a network device for which loading libfabric is worthwhile.
//!
//! Loading libfabric and querying each of its providers takes from a tenth of a second to several seconds, most of it
//! in libraries that calibrate clocks for absent cards. The kernel lists every device that an [automatically
//! chosen](super::ProviderInfo::is_automatic) provider could use, and reading that list takes microseconds. A provider
//! that the user names is queried in any case.

use std::path::Path;

/// Directories in which the kernel lists devices, by class: InfiniBand, RoCE, iWARP, EFA and Omni-Path in the first,
/// Slingshot in the others.
const CLASSES: [&str; 3] = ["infiniband", "cxi", "cxi_user"];

/// Whether the kernel lists any such device.
pub fn has_devices() -> bool {
    has_devices_in(Path::new("/sys/class"))
}

fn has_devices_in(classes: &Path) -> bool {
    CLASSES.iter().any(|class| {
        // A directory that is missing or unreadable has no devices.
        std::fs::read_dir(classes.join(class)).is_ok_and(|mut devices| devices.next().is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;

    #[test]
    fn finds_devices_of_any_class_and_ignores_empty_classes() {
        let classes = std::env::temp_dir().join(format!("sublet-classes-{}", std::process::id()));
        assert!(!has_devices_in(&classes));
        for class in ["net/eth0", "infiniband"] {
            create_dir_all(classes.join(class)).unwrap();
        }
        assert!(!has_devices_in(&classes));
        for device in ["infiniband/mlx5_0", "cxi/cxi0", "cxi_user/cxi0"] {
            create_dir_all(classes.join(device)).unwrap();
            assert!(has_devices_in(&classes), "{device}");
            std::fs::remove_dir(classes.join(device)).unwrap();
        }
        std::fs::remove_dir_all(&classes).unwrap();
    }
}
