//! Tests of processes on standby in images of tenants: the interpreter of an image is started in its container with all
//! restrictions, imports, and becomes a program of its tenant only.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Signal, kill_process};
use sublet_proto::v1::StandbyProcesses;
use sublet_sandbox::{IsolationKind, Spec};

use crate::support::python_image::PythonImage;
use crate::support::standby::{
    NOTES, SAY, TELL, await_end, can_stand_by, finish, kept, only_process_on_standby, own_cores, wait_for,
};
use crate::support::{MIB, SandboxFixture, Sort, StartedSandbox};

/// Attempts of a module of an image, and what it finds and leaves.
const TRIES: &str = "\
tries = [attempt(call) for call in (
    socket.socket, lambda: os.setuid(0), lambda: os.chroot('/tmp'), lambda: os.listdir('/proc/1/fd'))]
packages = os.listdir('/package') if os.path.isdir('/package') else None
open('/written', 'w').write(number)
";

/// A spawner, and an image with a module `beta`.
struct ImageFixture {
    fixture: SandboxFixture,
    image: PythonImage,
}

impl ImageFixture {
    fn open() -> ImageFixture {
        let image = PythonImage::make(&[("beta", &format!("{NOTES}{TRIES}"))], &[]);
        ImageFixture { fixture: SandboxFixture::open(Sort::Process), image }
    }

    #[track_caller]
    fn start(&self, tenant: &str, code: &str, change: impl FnOnce(&mut Spec)) -> StartedSandbox {
        let of_image = self.image.copied(&format!("{SAY}{code}"), &["beta"]);
        self.fixture.start_with(&["one"], |spec| {
            of_image(spec);
            if let IsolationKind::Template(template) = &mut spec.kind {
                template.owner = Some(tenant.to_owned());
            }
            spec.limits.cores = vec![own_cores()[0]];
            spec.limits.scratch_bytes = 8 * MIB;
            change(spec);
        })
    }

    /// Runs code. Returns its output, and whether its process was on standby.
    #[track_caller]
    fn run(&self, tenant: &str, code: &str, change: impl FnOnce(&mut Spec)) -> (String, bool) {
        finish(&self.fixture, self.start(tenant, code, change))
    }

    /// Processes on standby of a tenant, after a look.
    #[track_caller]
    fn kept(&self, tenant: &str) -> Vec<StandbyProcesses> {
        kept(&self.fixture, tenant)
    }

    #[track_caller]
    fn await_standby(&self, tenant: &str) {
        wait_for(&format!("a process waits for {tenant}"), || {
            self.kept(tenant).iter().any(|kept| kept.modules == "beta" && kept.waiting == 1).then_some(())
        });
    }

    /// Starts a program that waits, by which the spawner's processes are found.
    #[track_caller]
    fn witness(&self) -> StartedSandbox {
        let code = format!("{SAY}say('here'); os.read(0, 1)");
        let mut witness = self.fixture.start_with(&[], self.image.started(&code));
        assert_eq!(witness.read_line(), "here");
        witness
    }
}

#[test]
fn only_programs_of_the_tenant_take_its_interpreter() {
    if !can_stand_by() {
        return;
    }
    let fixture = ImageFixture::open();
    let (said, is_standby) = fixture.run("a", TELL, |_| {});
    assert!(said.starts_with("False ") && !is_standby, "the first starts an interpreter: {said}");
    fixture.await_standby("a");
    let (said, is_standby) = fixture.run("b", TELL, |_| {});
    assert!(said.starts_with("False ") && !is_standby, "{said}");
    let mut numbers = Vec::new();
    for _ in 0..3 {
        fixture.await_standby("a");
        let (said, is_standby) = fixture.run("a", TELL, |_| {});
        let (ready, number) = said.trim_end().split_once(' ').unwrap();
        assert!(is_standby && ready == "True", "{said}");
        numbers.push(number.to_owned());
    }
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "a process becomes one program only, and is replaced");
}

#[test]
fn interpreter_of_image_has_every_restriction_on_standby() {
    if !can_stand_by() {
        return;
    }
    let fixture = ImageFixture::open();
    let package = tempfile::tempdir().unwrap();
    fs::write(package.path().join("data"), "of the package").unwrap();
    fs::set_permissions(package.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let code = "\
import beta
say(*beta.walls)
say(*beta.tries)
say(beta.sockets, beta.packages, open('/package/data').read())
say(sys.argv, os.getcwd(), open('/written').read() == beta.number, 'SUBLET_STANDBY' in os.environ)
say(sorted(os.sched_getaffinity(0)), os.cpu_count(), open('/proc/meminfo').readline().split()[1])
shared = os.statvfs('/dev/shm'); say(shared.f_blocks * shared.f_frsize)
";
    let core = *own_cores().last().unwrap();
    let change = |spec: &mut Spec| {
        spec.folder = Some(package.path().to_owned());
        spec.limits.cores = vec![core];
    };
    let (started, _) = fixture.run("a", code, change);
    fixture.await_standby("a");
    let waiting = only_process_on_standby(&fixture.witness());
    let status = fs::read_to_string(format!("/proc/{}/status", waiting.as_raw_nonzero())).unwrap();
    for wall in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(wall), "{wall}: {status}");
    }
    let (said, is_standby) = fixture.run("a", code, change);
    assert!(is_standby, "{said}");
    let [started, said] = [&started, &said].map(|said| said.lines().collect::<Vec<_>>());
    assert_eq!(said[..2], started[..2], "the walls are those of a started interpreter");
    let none = "0000000000000000";
    assert_eq!(said[0], format!("1000 {none} {none} {none} 1 2"));
    assert!(!said[1].contains("BREACH") && said[1].split(' ').count() == 4, "{said:?}");
    // It has a connection to the first process of its sandbox, and none to the spawner.
    assert_eq!(said[2], "1 [] of the package");
    assert_eq!(said[3..], started[3..], "the program sees what one in a started interpreter sees");
}

#[test]
fn program_with_other_variables_or_files_starts_an_interpreter() {
    if !can_stand_by() {
        return;
    }
    let fixture = ImageFixture::open();
    fixture.run("a", TELL, |_| {});
    fixture.await_standby("a");
    let (said, is_standby) = fixture.run("a", TELL, |spec| spec.has_own_variables = true);
    assert!(said.starts_with("False ") && !is_standby, "{said}");
    fixture.await_standby("a");
    // The size of the files in a container cannot change later.
    let (said, is_standby) = fixture.run("a", TELL, |spec| spec.limits.scratch_bytes = 16 * MIB);
    assert!(said.starts_with("False ") && !is_standby, "{said}");
}

#[test]
fn interpreter_on_standby_ends_with_the_layers_of_its_image() {
    if !can_stand_by() {
        return;
    }
    let fixture = ImageFixture::open();
    fixture.run("a", TELL, |_| {});
    fixture.await_standby("a");
    let waiting = only_process_on_standby(&fixture.witness());
    fixture.image.remove();
    let kept = fixture.kept("a");
    assert!(kept.is_empty(), "{kept:?}");
    await_end(waiting);
}

#[test]
fn interpreter_is_started_when_that_on_standby_does_not_answer() {
    if !can_stand_by() {
        return;
    }
    let fixture = ImageFixture::open();
    fixture.run("a", TELL, |_| {});
    fixture.await_standby("a");
    let waiting = only_process_on_standby(&fixture.witness());
    kill_process(waiting, Signal::STOP).unwrap();
    let (said, is_standby) = fixture.run("a", TELL, |_| {});
    assert!(said.starts_with("False ") && !is_standby, "{said}");
    await_end(waiting);
}
