//! Tests of processes on standby for environments of tenants: each has all restrictions before it executes code of its
//! tenant, becomes a program of this tenant only, and ends with its files.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use sublet_proto::v1::StandbyProcesses;
use sublet_sandbox::{FolderAccess, IsolationKind, LentFolder, ProgramEnd, SandboxProgram, Spec, Template};
use tempfile::TempDir;

use crate::support::standby::{
    NOTES, SAY, TELL, await_end, can_stand_by, finish, kept, only_process_on_standby, own_cores, wait_for,
};
use crate::support::{MIB, SandboxFixture, Sort, StartedSandbox, python, template};

/// Attempts of a module of an environment, and what it finds.
const TRIES: &str = "\
tries = [attempt(call) for call in (
    lambda: open('/new', 'w'), lambda: open('/environment/new', 'w'), socket.socket, lambda: os.setuid(0),
    lambda: os.chroot('/tmp'), lambda: os.listdir('/proc/1/fd'))]
variables, packages = sorted(os.environ), os.listdir('/package')
";

/// Module of an environment, which notes what it can do while it is imported, and starts a thread.
fn beta() -> String {
    format!("{NOTES}{TRIES}")
}

/// A spawner, and environments with a module `beta`.
struct EnvironmentFixture {
    fixture: SandboxFixture,
    folder: TempDir,
    programs: Cell<u32>,
}

impl EnvironmentFixture {
    fn open() -> EnvironmentFixture {
        let (fixture, folder) = (SandboxFixture::open(Sort::Template), tempfile::tempdir().unwrap());
        EnvironmentFixture { fixture, folder, programs: Cell::new(0) }
    }

    fn environment(&self, name: &str, beta: &str) -> PathBuf {
        let environment = self.folder.path().join(name);
        let modules = environment.join(format!("lib/python{}/site-packages", python().version));
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("beta.py"), beta).unwrap();
        environment
    }

    /// Starts a program of a tenant, whose package imports the module from this environment.
    #[track_caller]
    fn start(
        &self,
        (tenant, environment): (&str, &Path),
        text: &str,
        change: impl FnOnce(&mut Spec),
    ) -> StartedSandbox {
        self.programs.set(self.programs.get() + 1);
        let path = self.fixture.folder.path().join(format!("{}.py", self.programs.get()));
        fs::write(&path, format!("{SAY}{text}")).unwrap();
        let (environment, owner) = (Some(environment.to_owned()), Some(tenant.to_owned()));
        let template = Template { environment, owner, ..template(&["beta"]) };
        self.fixture.start_with(&["one"], |spec| {
            spec.kind = IsolationKind::Template(template);
            spec.program = SandboxProgram::Outside(path);
            spec.limits.cores = vec![own_cores()[0]];
            spec.limits.memory_bytes = Some(256 * MIB);
            spec.limits.scratch_bytes = 8 * MIB;
            change(spec);
        })
    }

    /// Runs a program. Returns its output, and whether its process was on standby.
    #[track_caller]
    fn run(&self, whose: (&str, &Path), text: &str) -> (String, bool) {
        self.run_with(whose, text, |_| {})
    }

    #[track_caller]
    fn run_with(&self, whose: (&str, &Path), text: &str, change: impl FnOnce(&mut Spec)) -> (String, bool) {
        finish(&self.fixture, self.start(whose, text, change))
    }

    /// Processes on standby of a tenant, after a look.
    #[track_caller]
    fn kept(&self, tenant: &str) -> Vec<StandbyProcesses> {
        kept(&self.fixture, tenant)
    }

    /// Waits until this number of sets of a tenant have a process that waits, after each had a program.
    #[track_caller]
    fn await_standby(&self, tenant: &str, sets: usize) -> Vec<StandbyProcesses> {
        wait_for(&format!("{sets} processes wait for {tenant}"), || {
            let kept = self.kept(tenant);
            (kept.iter().filter(|kept| kept.waiting > 0).count() >= sets).then_some(kept)
        })
    }

    /// Starts a program that waits, by which the spawner's processes are found.
    #[track_caller]
    fn witness(&self) -> StartedSandbox {
        let text = "say('here'); os.read(0, 1)";
        let mut witness = self.fixture.start_with(&[], |spec| {
            let path = self.fixture.folder.path().join("witness.py");
            fs::write(&path, format!("{SAY}{text}")).unwrap();
            spec.program = SandboxProgram::Outside(path);
        });
        assert_eq!(witness.read_line(), "here");
        witness
    }
}

#[test]
fn only_programs_of_the_tenant_take_its_process() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environment = fixture.environment("science", &beta());
    let (said, is_standby) = fixture.run(("a", &environment), TELL);
    assert!(said.starts_with("False ") && !is_standby, "the first imports by itself: {said}");
    let kept = fixture.await_standby("a", 1);
    assert_eq!((kept.len(), kept[0].waiting, kept[0].importing), (1, 1, 0), "{kept:?}");
    assert!(kept[0].modules == "beta" && kept[0].memory_bytes > 0, "{kept:?}");
    // Another tenant has a right to the same environment.
    let (said, is_standby) = fixture.run(("b", &environment), TELL);
    assert!(said.starts_with("False ") && !is_standby, "{said}");
    let mut numbers = Vec::new();
    for _ in 0..3 {
        fixture.await_standby("a", 1);
        let (said, is_standby) = fixture.run(("a", &environment), TELL);
        let (ready, number) = said.trim_end().split_once(' ').unwrap();
        assert!(is_standby && ready == "True", "{said}");
        numbers.push(number.to_owned());
    }
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "a process becomes one program only, and is replaced");
}

#[test]
fn code_of_environment_has_every_restriction_on_standby() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environment = fixture.environment("science", &beta());
    let package = tempfile::tempdir().unwrap();
    fs::write(package.path().join("data"), "of the package").unwrap();
    fs::set_permissions(package.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = "\
import beta
say(*beta.walls)
say(*beta.tries)
say(beta.sockets, 'GIVEN' in beta.variables, beta.packages, open('/package/data').read())
";
    let change = |spec: &mut Spec| spec.folder = Some(package.path().to_owned());
    fixture.run_with(("a", &environment), text, change);
    fixture.await_standby("a", 1);
    let witness = fixture.witness();
    let waiting = only_process_on_standby(&witness);
    let status = fs::read_to_string(format!("/proc/{}/status", waiting.as_raw_nonzero())).unwrap();
    for wall in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(wall), "{wall}: {status}");
    }
    let (said, is_standby) = fixture.run_with(("a", &environment), text, change);
    assert!(is_standby, "{said}");
    let none = "0000000000000000";
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], format!("1000 {none} {none} {none} 1 2"), "{said}");
    assert!(!lines[1].contains("BREACH") && lines[1].split(' ').count() == 6, "{said}");
    // It has a connection to the first process of its sandbox, and none to the spawner.
    assert_eq!(lines[2..], ["1 True [] of the package"], "{said}");
}

#[test]
fn program_with_own_variables_or_folders_imports_by_itself() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environment = fixture.environment("science", &beta());
    fixture.run(("a", &environment), TELL);
    let lent = tempfile::tempdir().unwrap();
    let folder =
        LentFolder { name: "data".into(), path: lent.path().to_owned(), access: FolderAccess::ReadOnly };
    type Change<'change> = &'change dyn Fn(&mut Spec);
    let differs: [(&str, Change<'_>); 3] = [
        ("variables", &|spec| spec.has_own_variables = true),
        ("folders", &|spec| spec.lent_folders = vec![folder.clone()]),
        ("environment variables", &|spec| spec.env.push(("OTHER".into(), "1".into()))),
    ];
    for (what, change) in differs {
        fixture.await_standby("a", 1);
        let (said, is_standby) = fixture.run_with(("a", &environment), TELL, change);
        assert!(said.starts_with("False ") && !is_standby, "{what}: {said}");
        wait_for("a program like the first takes a process", || {
            let taken = fixture.run(("a", &environment), TELL).1;
            fixture.kept("a");
            taken.then_some(())
        });
    }
}

#[test]
fn tenant_has_one_process_for_each_of_few_environments() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environments: Vec<_> =
        (0..6).map(|number| fixture.environment(&number.to_string(), &beta())).collect();
    fixture.run(("b", &environments[0]), TELL);
    fixture.await_standby("b", 1);
    for environment in &environments {
        fixture.run(("a", environment), TELL);
    }
    let kept = fixture.await_standby("a", 4);
    let counts: Vec<_> = kept.iter().map(|kept| kept.waiting + kept.importing).collect();
    assert_eq!(counts, [1; 4], "{kept:?}");
    assert_eq!(fixture.kept("b").len(), 1, "no process of another tenant has made way");
    // The environments of its latest programs are those that are remembered.
    assert!(!fixture.run(("a", &environments[0]), TELL).1);
    assert!(fixture.run(("a", &environments[5]), TELL).1);
}

#[test]
fn process_ends_with_its_environment() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environment = fixture.environment("science", &beta());
    fixture.run(("a", &environment), TELL);
    fixture.await_standby("a", 1);
    let witness = fixture.witness();
    let waiting = only_process_on_standby(&witness);
    fs::remove_dir_all(&environment).unwrap();
    let kept = fixture.kept("a");
    assert!(kept.is_empty(), "the files of the environment are evicted: {kept:?}");
    await_end(waiting);
}

#[test]
fn process_that_computes_while_it_waits_is_ended() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let busy = format!(
        "{}\ndef compute():\n    while True: pass\nthreading.Thread(target=compute, daemon=True).start()\n",
        beta()
    );
    let environment = fixture.environment("busy", &busy);
    fixture.run(("a", &environment), TELL);
    wait_for("a process is on standby", || (!fixture.kept("a").is_empty()).then_some(()));
    wait_for("it is ended", || fixture.kept("a").is_empty().then_some(()));
    // A program of the tenant begins no other import soon.
    fixture.run(("a", &environment), TELL);
    let kept = fixture.kept("a");
    assert!(kept.is_empty(), "{kept:?}");
}

/// The modules of a tenant can delay their process, and the spawner serves no other request meanwhile.
#[test]
fn program_begins_cold_when_its_process_does_not_answer() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environment = fixture.environment("science", &beta());
    fixture.run(("a", &environment), TELL);
    fixture.await_standby("a", 1);
    let mut witness = fixture.witness();
    let waiting = only_process_on_standby(&witness);
    kill_process(waiting, Signal::STOP).unwrap();
    let (said, is_standby) = fixture.run(("a", &environment), TELL);
    assert!(said.starts_with("False ") && !is_standby, "{said}");
    await_end(waiting);
    let kept = fixture.kept("a");
    assert!(kept.is_empty(), "no other process is begun soon: {kept:?}");
    witness.outside.write_all(b"x").unwrap();
    assert_eq!(fixture.fixture.wait(&witness.made).exit, Some(ProgramEnd::Status(0)));
}

#[test]
fn no_process_on_standby_outlives_its_spawner() {
    if !can_stand_by() {
        return;
    }
    let fixture = EnvironmentFixture::open();
    let environment = fixture.environment("science", &beta());
    fixture.run(("a", &environment), TELL);
    fixture.await_standby("a", 1);
    let witness = fixture.witness();
    let waiting = only_process_on_standby(&witness);
    let spawner = parent(parent(Pid::from_raw(witness.made.state.pid.unwrap().cast_signed()).unwrap()));
    kill_process(spawner, Signal::KILL).unwrap();
    await_end(waiting);
}

#[track_caller]
fn parent(process: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    Pid::from_raw(line.trim().parse().unwrap()).unwrap()
}
