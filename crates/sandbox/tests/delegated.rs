//! Containers that OCI runtimes create: crun, runc and gVisor's runsc, which the set-up of the tests installs.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sublet_means::{Means, skip};
use sublet_sandbox::{
    IsolationKind, ProgramEnd, RootImage, SandboxError, SandboxProgram, SandboxStatus, Signal, Spec,
};

use crate::support::{MIB, SandboxFixture, Sort, image, is_root};

/// Returns the OCI runtimes of this machine, or none if this test may not use them.
fn runtimes() -> Vec<PathBuf> {
    if !is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return Vec::new();
    }
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    let found =
        |name: &str| folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    let installed =
        |name: &str| found(name).unwrap_or_else(|| panic!("scripts/setup.sh test installs {name}"));
    ["crun", "runc"].map(installed).to_vec()
}

fn hand_over(spec: &mut Spec, runtime: &Path) {
    let image = RootImage { layers: image().to_vec(), working_folder: "/".into() };
    spec.kind = IsolationKind::Delegated { runtime: runtime.to_owned(), image };
    spec.limits.processes = Some(64);
}

#[test]
fn a_runtimes_container_goes_through_the_states_of_its_life() {
    let fixture = SandboxFixture::open(Sort::Container);
    for runtime in runtimes() {
        let (mut spec, mut outside) = fixture.probe(&["wait", "3"]);
        hand_over(&mut spec, &runtime);
        let made = fixture.sandboxes.create(vec![spec]).remove(0).unwrap();
        let state = || fixture.sandboxes.state(&[made.id]).remove(0).unwrap();
        assert_eq!(state().status, SandboxStatus::Created);
        assert_eq!(fixture.sandboxes.start(&[made.id]).remove(0).unwrap().status, SandboxStatus::Running);
        assert!(matches!(
            fixture.sandboxes.delete(&[made.id]).remove(0),
            Err(SandboxError::WrongStatus { .. })
        ));
        outside.write_all(b"x").unwrap();
        let stopped = fixture.wait(&made);
        assert_eq!(
            (stopped.status, stopped.exit),
            (SandboxStatus::Stopped, Some(ProgramEnd::Status(3))),
            "{runtime:?}"
        );
        fixture.sandboxes.delete(&[made.id]).remove(0).unwrap();
        let mut tenant = fixture.start_with(&["wait"], |spec| hand_over(spec, &runtime));
        assert_eq!(tenant.read_line(), "said ready");
        let pid = tenant.made.state.pid.unwrap();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_eq!(name.trim(), "probe", "it is the container's process");
        fixture.kill(&tenant, Signal::USR1);
        // The first process of a namespace receives only signals that it handles.
        assert_eq!(
            fixture.sandboxes.state(&[tenant.made.id]).remove(0).unwrap().status,
            SandboxStatus::Running
        );
        fixture.kill(&tenant, Signal::KILL);
        assert_eq!(fixture.wait(&tenant.made).exit, Some(ProgramEnd::Signal(9)));
    }
}

#[test]
fn delegated_container_has_only_its_image_and_shown_files() {
    let fixture = SandboxFixture::open(Sort::Container);
    let folder = fixture.folder.path().join("package");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("theirs"), "shown").unwrap();
    let program = fixture.folder.path().join("outside");
    std::fs::copy(image()[0].join("bin/probe"), &program).unwrap();
    for runtime in runtimes() {
        for program in [SandboxProgram::Inside("/bin/probe".into()), SandboxProgram::Outside(program.clone())]
        {
            let (said, exit) = fixture.run_with(&["change", "/etc/issue", "/etc/gone"], |spec| {
                hand_over(spec, &runtime);
                spec.program = program;
            });
            let expected =
                "said /etc/issue upper, changed, ENOENT\nsaid /etc/gone ENOENT, changed, ENOENT\nsaid done\n";
            assert_eq!((said.as_str(), exit), (expected, ProgramEnd::Status(0)), "{runtime:?}");
        }
        let (said, _) = fixture.run_with(&["show"], |spec| hand_over(spec, &runtime));
        let lines = |word: &str| said.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!(lines("said fd "), 3, "{said}");
        assert!(
            said.contains("said env GIVEN=yes\n") && said.contains("said user 1000 pid 1 parent 0"),
            "{said}"
        );
        let (said, _) = fixture.run_with(&["files", "/package/theirs"], |spec| {
            hand_over(spec, &runtime);
            spec.folder = Some(folder.clone());
        });
        assert!(said.contains("BREACH /package/theirs"), "the folder is to be read: {said}");
        assert_eq!(std::fs::read_to_string(image()[1].join("etc/issue")).unwrap(), "upper");
    }
}

#[test]
fn delegated_container_has_shared_memory_and_sees_an_idle_machine() {
    let fixture = SandboxFixture::open(Sort::Container);
    for runtime in runtimes() {
        let (said, exit) = fixture.run_with(&["share"], |spec| hand_over(spec, &runtime));
        assert!(said.contains("said shared 42\n") && exit == ProgramEnd::Status(0), "{runtime:?}: {said}");
        let (said, _) = fixture.run_with(&["view", "/proc/uptime", "/proc/loadavg"], |spec| {
            hand_over(spec, &runtime);
            spec.limits.memory_bytes = Some(100 * MIB);
        });
        let lines = [
            "said /proc/uptime 0.00 0.00\n",
            "said /proc/loadavg 0.00 0.00 0.00 1/2 2\n",
            "said memory MemTotal:         102400 kB\n",
        ];
        lines.iter().for_each(|line| assert!(said.contains(line), "{runtime:?}: {line}{said}"));
    }
}

#[test]
fn what_a_runtimes_container_may_not_do_it_cannot() {
    let fixture = SandboxFixture::open(Sort::Container);
    let secret = fixture.folder.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    for runtime in runtimes() {
        let paths = ["files", "/etc/shadow", "/home", "/proc/kcore", "/dev/mem", secret.to_str().unwrap()];
        let (said, _) = fixture.run_with(&["walls"], |spec| hand_over(spec, &runtime));
        let none = "0000000000000000";
        let rights = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|set| (set, none));
        for (what, value) in rights.into_iter().chain([("NoNewPrivs", "1")]) {
            assert!(said.contains(&format!("said {what} {value}\n")), "{runtime:?} {what}: {said}");
        }
        for words in [&paths[..], &["mounts"]] {
            let (said, _) = fixture.run_with(words, |spec| hand_over(spec, &runtime));
            let breaches: Vec<_> = said.lines().filter(|line| line.starts_with("BREACH")).collect();
            assert!(breaches.is_empty() && said.ends_with("said done\n"), "{runtime:?} {words:?}: {said}");
        }
    }
}

#[test]
fn delegated_container_obeys_limits_and_ends_with_all_processes() {
    let fixture = SandboxFixture::open(Sort::Container);
    for runtime in runtimes() {
        let (_, exit) = fixture.run_with(&["memory", "private"], |spec| {
            hand_over(spec, &runtime);
            spec.limits.memory_bytes = Some(48 * MIB);
        });
        assert_eq!(exit, ProgramEnd::OutOfMemory(48 * MIB), "{runtime:?}");
        let (said, exit) = fixture.run_with(&["flood"], |spec| hand_over(spec, &runtime));
        // The bundle is in the same file system. The runtime's own files are not: it writes them after the container
        // has filled it.
        let written = said
            .lines()
            .find_map(|line| line.strip_prefix("said ")?.strip_suffix(" ENOSPC")?.parse::<u64>().ok());
        assert!(written.is_some_and(|bytes| (3 * MIB..=4 * MIB).contains(&bytes)), "{runtime:?}: {said}");
        assert!(said.contains("files ENOSPC") && exit == ProgramEnd::Status(0), "{runtime:?}: {said}");
        let mut tenant = fixture.start_with(&["survive"], |spec| hand_over(spec, &runtime));
        for _ in 0..3 {
            assert_eq!(tenant.read_line(), "said hidden");
        }
        fixture.kill(&tenant, Signal::KILL);
        assert_eq!(fixture.wait(&tenant.made).exit, Some(ProgramEnd::Signal(9)));
        assert_eq!(tenant.read_all(), "", "a surviving process would have the socket");
    }
}

#[test]
fn invalid_runtime_is_an_error() {
    if !is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let fixture = SandboxFixture::open(Sort::Container);
    let (mut spec, _outside) = fixture.probe(&["exit"]);
    hand_over(&mut spec, Path::new("/no/such/runtime"));
    let error = fixture.sandboxes.launch(vec![spec]).remove(0).unwrap_err().to_string();
    assert!(error.contains("executing a sandbox's program failed: No such file"), "{error}");
    let (mut spec, _outside) = fixture.probe(&["exit"]);
    hand_over(&mut spec, Path::new("/bin/false"));
    let error = fixture.sandboxes.launch(vec![spec]).remove(0).unwrap_err().to_string();
    assert!(error.contains("making a container by an OCI runtime"), "{error}");
}

/// Starts of gVisor of which one has to succeed.
const GVISOR_STARTS: usize = 12;

#[test]
fn gvisor_runs_a_program_on_a_kernel_of_its_own() {
    if !is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let runtime = Path::new("/usr/bin/runsc");
    assert!(runtime.exists(), "scripts/setup.sh test installs runsc");
    let fixture = SandboxFixture::open(Sort::Container);
    // Debian's gVisor, of 2022, crashes in a part of its starts on newer kernels: while it makes the container, or later,
    // with one of several statuses.
    let ends_as = |words: &[&str], wanted: ProgramEnd| {
        let attempt = || {
            let (mut spec, mut outside) = fixture.probe(words);
            hand_over(&mut spec, runtime);
            let made = fixture.sandboxes.launch(vec![spec]).remove(0).map_err(|error| error.to_string())?;
            let mut said = String::new();
            outside.read_to_string(&mut said).unwrap();
            let exit = fixture.wait(&made).exit;
            if exit == Some(wanted) { Ok(said) } else { Err(format!("{exit:?}")) }
        };
        first_start(attempt)
    };
    let said = ends_as(&["files", "/proc/version", "/etc/issue"], ProgramEnd::Status(0));
    assert!(said.contains("BREACH /etc/issue"), "the image's file is to be read: {said:?}");
    ends_as(&["exit", "7"], ProgramEnd::Status(7));
    first_start(|| {
        let (mut spec, _outside) = fixture.probe(&["spin", "1"]);
        hand_over(&mut spec, runtime);
        let made = fixture.sandboxes.launch(vec![spec]).remove(0).map_err(|error| error.to_string())?;
        fixture.sandboxes.kill(&[made.id], Signal::KILL).remove(0).map_err(|error| error.to_string())?;
        let exit = fixture.wait(&made).exit;
        if exit == Some(ProgramEnd::Signal(9)) { Ok(()) } else { Err(format!("{exit:?}")) }
    });
}

/// Starts gVisor until it does not crash, and returns what that start gives.
fn first_start<T>(attempt: impl Fn() -> Result<T, String>) -> T {
    let mut crashes = Vec::new();
    for _ in 0..GVISOR_STARTS {
        match attempt() {
            Ok(given) => return given,
            Err(crash) => crashes.push(crash),
        }
    }
    panic!("none of {GVISOR_STARTS} starts of gVisor ended as its program did: {crashes:?}");
}

#[test]
fn apptainer_is_given_the_image_the_mounts_and_the_program() {
    if !is_root() {
        skip(Means::Root, "handing a container to a runtime needs root");
        return;
    }
    // Sandboxes cover /tmp.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let recorder = folder.path().join("apptainer");
    std::fs::write(&recorder, "#!/bin/sh\nprintf '%s\\n' \"$@\" \"given $APPTAINERENV_GIVEN\" >&0\nexit 5\n")
        .unwrap();
    for path in [folder.path(), &recorder] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let package = tempfile::tempdir().unwrap();
    let fixture = SandboxFixture::open(Sort::Container);
    let (said, exit) = fixture.run_with(&["exit", "7"], |spec| {
        hand_over(spec, &recorder);
        spec.folder = Some(package.path().to_owned());
        spec.program = SandboxProgram::Inside("/bin/probe".into());
    });
    let words: Vec<_> = said.lines().collect();
    let start = [
        "--quiet",
        "exec",
        "--containall",
        "--no-home",
        "--cleanenv",
        "--no-privs",
        "--writable",
        "--pwd",
        "/",
    ];
    assert_eq!(words[..start.len()], start, "{said}");
    let end = ["root", "/bin/probe", "exit", "7", "given yes"];
    assert_eq!(words[words.len() - end.len()..], end, "{said}");
    let binds = &words[start.len()..words.len() - end.len()];
    assert!(binds.chunks(2).all(|pair| pair[0] == "--bind" && pair[1].ends_with(":ro")), "{said}");
    assert!(binds.iter().any(|word| word.ends_with(":/package:ro")), "{said}");
    assert_eq!(exit, ProgramEnd::Status(5));
}
