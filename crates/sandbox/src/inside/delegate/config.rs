//! The bundle's `config.json`, by OCI's runtime specification: one process without any right, in namespaces of its own.

use std::ffi::CStr;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::shown::ContainerMount;
use crate::inside::CreationPlan;
use crate::inside::container::ROOT;
use crate::inside::plan::LayerMounts;
use crate::{FolderAccess, SHARED_MEMORY, USER};

/// The version of the specification that this module uses.
const VERSION: &str = "1.0.2";
/// Files of `/proc` that show or change the state of the machine.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// For a plan, with what is shown in the container, and from where.
pub(super) fn of(plan: &CreationPlan, image: &LayerMounts, shown: &[ContainerMount]) -> io::Result<String> {
    let words = std::iter::once(&plan.program).chain(plan.args.iter().skip(1));
    let args = words.map(|word| text(word)).collect::<Result<Vec<_>, _>>()?;
    let env = plan.env.iter().map(|variable| text(variable)).collect::<Result<Vec<_>, _>>()?;
    let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({ "type": kind }));
    let none = Vec::<Value>::new();
    let config = json!({
        "ociVersion": VERSION,
        "hostname": "sandbox",
        "root": { "path": ROOT, "readonly": false },
        "process": {
            "terminal": false,
            "user": { "uid": USER, "gid": USER },
            "args": args,
            "env": env,
            "cwd": text(&image.working_folder)?,
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": none, "effective": none, "inheritable": none, "permitted": none, "ambient": none,
            },
        },
        "mounts": mounts(shown, plan.shared_bytes)?,
        "linux": {
            "namespaces": namespaces,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    });
    Ok(config.to_string())
}

fn mounts(shown: &[ContainerMount], shared_bytes: u64) -> io::Result<Vec<Value>> {
    let mut mounts = vec![
        json!({
            "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"],
        }),
        json!({
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", "mode=755", "size=64k"],
        }),
        json!({
            "destination": SHARED_MEMORY, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", "noexec", "mode=1777", format!("size={shared_bytes}")],
        }),
    ];
    for ContainerMount { place, source, access } in shown {
        let access = match access {
            FolderAccess::ReadOnly => "ro",
            FolderAccess::Write => "rw",
        };
        mounts.push(json!({
            "destination": path_text(place)?, "type": "bind", "source": path_text(source)?,
            "options": ["rbind", access, "nosuid", "nodev"],
        }));
    }
    Ok(mounts)
}

/// JSON knows no other text than Unicode.
fn text(bytes: &CStr) -> io::Result<&str> {
    bytes.to_str().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

fn path_text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
