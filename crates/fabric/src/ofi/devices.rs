//! Detects a network device for which loading libfabric is worthwhile.
//!
//! Loading it and asking each of its providers takes from a tenth of a second to seconds, most of it in libraries that
//! calibrate clocks for cards that are not there. The kernel lists every device that a provider could use which is
//! [chosen by itself](super::ProviderInfo::is_automatic), and looking there takes microseconds. Whoever names a provider
//! has it asked, whatever is listed.

use std::path::Path;

/// Where the kernel lists devices, by class: InfiniBand, RoCE, iWARP, EFA and Omni-Path in the first, Slingshot in the
/// others.
const CLASSES: [&str; 3] = ["infiniband", "cxi", "cxi_user"];

/// Whether there is any.
pub fn has_devices() -> bool {
    has_devices_in(Path::new("/sys/class"))
}

fn has_devices_in(classes: &Path) -> bool {
    CLASSES.iter().any(|class| {
        // What is not there, or may not be seen, has nothing.
        std::fs::read_dir(classes.join(class)).is_ok_and(|mut devices| devices.next().is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;

    #[test]
    fn a_device_of_any_class_is_found_and_a_class_without_devices_is_none() {
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
