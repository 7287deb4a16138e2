//! Tests what an installation contains: the units of systemd, and their readiness notice.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sublet_means::{Means, skip};

/// After this long something that should have happened never will.
const PATIENCE: Duration = Duration::from_secs(180);
const SUBLET: &str = env!("CARGO_BIN_EXE_sublet");

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// The units as they are installed, under a prefix that has the command.
fn install_units(prefix: &Path) -> Vec<PathBuf> {
    fs::create_dir(prefix.join("bin")).unwrap();
    std::os::unix::fs::symlink(SUBLET, prefix.join("bin/sublet")).unwrap();
    let fill = |unit: &str| {
        let text = fs::read_to_string(packaging().join("systemd").join(unit)).unwrap();
        let path = prefix.join(unit);
        fs::write(&path, text.replace("@PREFIX@", prefix.to_str().unwrap())).unwrap();
        path
    };
    ["sublet-manager.service", "sublet-agent.service", "sublet-runner.service"].map(fill).to_vec()
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let prefix = tempfile::tempdir().unwrap();
    let units = install_units(prefix.path());
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output();
    let output = match verified {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip(Means::SystemdAnalyze, "systemd-analyze is not installed here");
            return;
        }
        output => output.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // It also speaks of units that this machine has of its own.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("sublet-")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

#[test]
fn the_units_and_the_configurations_name_the_same_places() {
    for program in ["manager", "agent"] {
        let read = |path: String| fs::read_to_string(packaging().join(path)).unwrap();
        let unit = read(format!("systemd/sublet-{program}.service"));
        let config = read(format!("{program}.toml"));
        assert!(unit.contains(&format!("StateDirectory=sublet/{program}\n")));
        assert!(config.contains(&format!("\nstate = \"/var/lib/sublet/{program}\"\n")));
        assert!(unit.contains(&format!("RuntimeDirectory=sublet-{program}\n")));
        assert!(config.contains(&format!("\nsocket = \"/run/sublet-{program}/{program}.sock\"\n")));
    }
}

/// A program that is killed at the end.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn service_manager_is_notified_of_start_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let told = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut bytes = [0; 64];
        let len_bytes = told.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len_bytes]).into_owned()
    };
    let config = folder.path().join("empty.toml");
    fs::write(&config, "").unwrap();
    let mut manager = Command::new(SUBLET);
    manager.args(["manager", "--listen", "", "--config"]).arg(&config).env_remove("SUBLET_LISTEN");
    manager.arg("--state").arg(folder.path().join("state")).stdout(Stdio::null());
    let mut manager =
        RunningProgram(manager.env("NOTIFY_SOCKET", folder.path().join("notify")).spawn().unwrap());
    assert_eq!(hear(), "READY=1");
    kill_process(Pid::from_child(&manager.0), Signal::TERM).unwrap();
    assert_eq!(hear(), "STOPPING=1");
    assert_eq!(manager.0.wait().unwrap().code(), Some(0));
}
