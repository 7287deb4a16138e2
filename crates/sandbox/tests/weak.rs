//! Weak isolation: a sandbox without namespaces is one process that reads few files, writes none, and reaches no other process.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, kill_process};
use sublet_sandbox::{
    Devices, FolderAccess, IsolationKind, LentFolder, ProgramEnd, RootImage, SandboxProgram, Signal,
};

use crate::support::{MIB, SandboxFixture, Sort, image, probe, template};

/// The kinds of sandboxes that weak isolation has.
const SORTS: [Sort; 2] = [Sort::Process, Sort::Template];

/// Asserts that the probe made at least `tries` attempts, and that none succeeded but those with these words.
#[track_caller]
fn assert_blocked(said: &str, tries: usize, but: &[&str]) {
    let is_other = |line: &&str| line.starts_with("BREACH") && !but.iter().any(|word| line.contains(word));
    let breaches: Vec<_> = said.lines().filter(is_other).collect();
    assert!(breaches.is_empty(), "{breaches:#?}");
    let blocked = said.lines().filter(|line| line.starts_with("blocked")).count();
    assert!(blocked >= tries, "{blocked} of {tries} tries: {said}");
    assert!(said.ends_with("said done\n"), "it did not come to its end: {said}");
}

fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

#[track_caller]
fn assert_dies(pid: u32) {
    for _ in 0..6000 {
        if !is_alive(pid) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("process {pid} is alive");
}

#[test]
fn has_no_namespaces_and_reports_its_end() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        assert_eq!(fixture.run(&["exit", "7"]).1, ProgramEnd::Status(7), "{sort:?}");
        assert_eq!(fixture.run(&["abort"]).1, ProgramEnd::Signal(6), "{sort:?}");
        let mut waiting = fixture.start(&["wait", "5"]);
        assert_eq!(waiting.read_line(), "said ready");
        let pid = waiting.made.state.pid.unwrap();
        for space in ["user", "mnt", "pid", "net"] {
            let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{space}")).ok();
            // A process without the right to look cannot tell, which a sandbox that has ended would look like.
            assert!(of(&pid.to_string()).is_none_or(|own| Some(own) == of("self")), "{sort:?}: {space}");
        }
        waiting.outside.write_all(b"x").unwrap();
        assert_eq!(fixture.wait(&waiting.made).exit, Some(ProgramEnd::Status(5)), "{sort:?}");
    }
}

#[test]
fn reads_few_files_of_the_host() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        let secret = fixture.folder.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let own = format!("/proc/{}/environ", std::process::id());
        let paths = [
            "/etc/shadow",
            "/etc/passwd",
            "/home",
            "/root",
            "/var/log",
            "/run",
            "/bin/sh",
            "/sys/kernel/uevent_seqnum",
            "/dev/mem",
            "/dev/kmsg",
            "/dev/shm",
            "/proc/cmdline",
            "/proc/1/environ",
            &own,
            secret.to_str().unwrap(),
        ];
        let words: Vec<_> = ["files"].into_iter().chain(paths).collect();
        // Some hosts lack some of these files.
        assert_blocked(&fixture.run(&words).0, 6 * paths.len(), &[]);
    }
}

#[test]
fn reads_its_package_and_writes_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("own"), "own").unwrap();
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        let path = folder.path().join("own");
        let (said, _) = fixture.run_with(&["files", path.to_str().unwrap()], |spec| {
            spec.folder = Some(folder.path().to_owned());
        });
        assert!(
            said.contains(&format!("BREACH {}", path.display())),
            "{sort:?} cannot read its package: {said}"
        );
        let (said, _) = fixture.run(&["disk"]);
        assert_blocked(&said, 8, &[]);
        assert!(
            said.contains("said 0 EBADF\n") && said.contains("said 0 files EACCES\n"),
            "{sort:?}: {said}"
        );
        assert!(!Path::new("/tmp/fill").exists() && !Path::new("/x").exists());
    }
}

#[test]
fn changes_and_watches_no_file() {
    let folder = tempfile::tempdir().unwrap();
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        let (secret, own) = (fixture.folder.path().join("secret"), folder.path().join("own"));
        fs::write(&secret, "secret").unwrap();
        fs::write(&own, "own").unwrap();
        let modes = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.mode(), found.mtime_nsec(), found.len())
        };
        let before = (modes(&secret), modes(&own));
        let (said, _) =
            fixture.run_with(&["touch", secret.to_str().unwrap(), own.to_str().unwrap()], |spec| {
                spec.folder = Some(folder.path().to_owned());
            });
        assert_blocked(&said, 14, &[]);
        assert_eq!((modes(&secret), modes(&own)), before, "{sort:?}");
    }
}

#[test]
fn reaches_no_other_process() {
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        let (said, _) = fixture.run(&["processes", &other.id().to_string()]);
        // There is no init of its own.
        assert_blocked(&said, 20, &["ending init"]);
        assert!(other.try_wait().unwrap().is_none(), "{sort:?}");
    }
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn makes_no_socket_and_leads_none_elsewhere() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        assert_blocked(&fixture.run(&["sockets"]).0, 36, &[]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
        let given = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut outside, _) = listener.accept().unwrap();
        let port = elsewhere.local_addr().unwrap().port().to_string();
        let tenant = fixture.start_with(&["reconnect", &port], |spec| spec.control = OwnedFd::from(given));
        fixture.wait(&tenant.made);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut outside, &mut said).unwrap();
        assert_blocked(&said, 8, &[]);
    }
}

#[test]
fn calls_of_the_kernels_dark_corners_are_refused() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        assert_blocked(&fixture.run(&["calls"]).0, 36, &[]);
        assert_blocked(&fixture.run(&["namespaces"]).0, 24, &[]);
    }
}

#[test]
fn starts_no_other_process() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        assert_eq!(fixture.run(&["forks"]).0, "said 0 EPERM\n", "{sort:?}");
    }
}

#[test]
fn templates_import_no_module_that_a_tenant_names() {
    let fixture = SandboxFixture::weak(Sort::Template);
    let file = fixture.folder.path().join("program.py");
    fs::write(&file, "import os, sys\nos.write(0, b'%d' % ('colorsys' in sys.modules))\n").unwrap();
    // Elsewhere the module is warm after a few requests.
    for _ in 0..200 {
        let (said, _) = fixture.run_with(&[], |spec| {
            spec.kind = IsolationKind::Template(template(&["colorsys"]));
            spec.program = SandboxProgram::Outside(file.clone());
        });
        assert_eq!(said, "0");
    }
}

#[test]
fn private_memory_has_a_limit() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        let mut waiting = fixture.start(&["wait", "0"]);
        assert_eq!(waiting.read_line(), "said ready");
        let pid = waiting.made.state.pid.unwrap();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let most = |what: &str| -> u64 {
            let line = limits.lines().find(|line| line.starts_with(what)).unwrap();
            line[what.len()..].split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        // The specification's, with what a copy of a template begins with.
        let data = most("Max data size");
        assert!((64 * MIB..1024 * MIB).contains(&data), "{sort:?}: {data}");
        assert_eq!((most("Max file size"), most("Max core file size")), (64 * MIB, 0), "{sort:?}");
    }
}

#[test]
fn nothing_outlives_its_sandbox_or_its_spawner() {
    for sort in SORTS {
        let fixture = SandboxFixture::weak(sort);
        let start = || {
            let mut tenant = fixture.start(&["wait", "0"]);
            assert_eq!(tenant.read_line(), "said ready");
            (tenant.made.state.pid.unwrap(), tenant)
        };
        let ((killed, tenant), (orphaned, _kept)) = (start(), start());
        fixture.kill(&tenant, Signal::KILL);
        let exit = fixture.wait(&tenant.made).exit;
        assert_eq!((exit, is_alive(killed)), (Some(ProgramEnd::Signal(9)), false), "{sort:?}");
        // Its first process, whose parent is the spawner.
        let parent = |pid: u32| -> u32 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let spawner = i32::try_from(parent(parent(orphaned))).unwrap();
        kill_process(Pid::from_raw(spawner).unwrap(), Signal::KILL).unwrap();
        assert_dies(orphaned);
    }
}

#[test]
fn refuses_what_only_mounts_give() {
    let fixture = SandboxFixture::weak(Sort::Process);
    let refused = |change: &dyn Fn(&mut sublet_sandbox::Spec)| {
        let (mut spec, _outside) = probe(&[]);
        change(&mut spec);
        fixture.sandboxes.launch(vec![spec]).remove(0).map(drop).unwrap_err().to_string()
    };
    let contained = refused(&|spec| {
        let root = RootImage { layers: image().to_vec(), working_folder: PathBuf::from("/") };
        spec.kind = IsolationKind::Container(root);
        spec.program = SandboxProgram::Inside("/bin/probe".into());
    });
    assert!(contained.contains("weak isolation an image"), "{contained}");
    let lent = refused(&|spec| {
        let (name, path) = ("data".to_owned(), PathBuf::from("/usr"));
        spec.lent_folders.push(LentFolder { name, path, access: FolderAccess::ReadOnly });
    });
    assert!(lent.contains("weak isolation a lent folder"), "{lent}");
    let device = refused(&|spec| spec.devices = Devices::Drivers);
    assert!(device.contains("weak isolation a device"), "{device}");
}
