//! Tests of processes on standby: they have imported modules that no template can have, and each becomes one program.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Signal, kill_process};
use sublet_proto::v1::StandbyProcesses;
use sublet_sandbox::{Devices, Interpreter, IsolationKind, ProgramEnd, SandboxProgram, Spec, Template};
use tempfile::TempDir;

use crate::support::standby::{
    PATIENCE, SAY, STANDBY_BYTES, can_stand_by, finish, own_cores, processes_on_standby, wait_for,
};
use crate::support::{MIB, SandboxFixture, Sort, StartedSandbox, python, template};

/// Module whose thread executes what is put into a queue, which keeps a file open, and which no other process has the same
/// number of.
const THREADED: &str = "\
import os, queue, threading
asked, answers = queue.Queue(), queue.Queue()
def serve():
    while True:
        call = asked.get()
        try:
            answers.put(repr(call()))
        except BaseException as error:
            answers.put(type(error).__name__)
threading.Thread(target=serve, daemon=True).start()
def ask(call):
    asked.put(call)
    return answers.get()
file = open('/dev/zero', 'rb')
number = os.urandom(8).hex()
cores = len(os.sched_getaffinity(0))
given = os.environ.get('GIVEN')
open('/tmp/kept', 'w').write('written while importing')
";
/// A spawner whose Python has modules that no template can have.
struct StandbyFixture {
    fixture: SandboxFixture,
    interpreter: Interpreter,
    programs: Cell<u32>,
    _folder: TempDir,
}

impl StandbyFixture {
    fn open(modules: &[(&str, &str)]) -> StandbyFixture {
        let folder = tempfile::tempdir().unwrap();
        let environment = folder.path().join("environment");
        let made =
            Command::new(&python().program).args(["-m", "venv", "--without-pip"]).arg(&environment).status();
        assert!(made.unwrap().success());
        let library = fs::read_dir(environment.join("lib")).unwrap().next().unwrap().unwrap().path();
        for (name, text) in modules {
            fs::write(library.join(format!("site-packages/{name}.py")), text).unwrap();
        }
        let interpreter = Interpreter::python(&environment.join("bin/python3")).unwrap();
        let fixture = SandboxFixture::showing(Sort::Template, &interpreter.shown);
        StandbyFixture { fixture, interpreter, programs: Cell::new(0), _folder: folder }
    }

    /// Starts a program on one core that asks for a module.
    #[track_caller]
    fn start(&self, text: &str, module: &str, change: impl FnOnce(&mut Spec)) -> StartedSandbox {
        self.programs.set(self.programs.get() + 1);
        let path = self.fixture.folder.path().join(format!("{}.py", self.programs.get()));
        fs::write(&path, format!("{SAY}{text}")).unwrap();
        let imports = vec![module.to_owned()];
        let template = Template { interpreter: self.interpreter.program.clone(), imports, ..template(&[]) };
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
    fn run(&self, text: &str, module: &str, change: impl FnOnce(&mut Spec)) -> (String, bool) {
        finish(&self.fixture, self.start(text, module, change))
    }

    #[track_caller]
    fn keep(&self, bytes: u64) -> Vec<StandbyProcesses> {
        self.fixture.sandboxes.keep_standby(own_cores(), bytes).unwrap()
    }

    /// Runs programs until one takes a process on standby.
    #[track_caller]
    fn await_taken(&self, module: &str) {
        let what = format!("a program takes a process with {module}");
        wait_for(&what, || {
            let is_taken = self.run("", module, |_| {}).1;
            if !is_taken {
                self.keep(STANDBY_BYTES);
            }
            is_taken.then_some(())
        });
    }

    /// Asks for a module until as many processes wait with it.
    #[track_caller]
    fn await_standby(&self, module: &str, count: u32) -> StandbyProcesses {
        wait_for(&format!("{count} processes wait with {module}"), || {
            let kept = self.keep(STANDBY_BYTES);
            let waiting = kept.iter().find(|kept| kept.modules == module && kept.waiting >= count);
            if kept.iter().all(|kept| kept.modules != module) {
                self.run("", module, |_| {});
            }
            waiting.cloned()
        })
    }
}

#[test]
fn module_with_threads_is_imported_when_a_program_begins() {
    if !can_stand_by() {
        return;
    }
    let fixture = StandbyFixture::open(&[("threaded", THREADED)]);
    let kept = fixture.await_standby("threaded", 2);
    assert!(kept.memory_bytes > 0 && kept.memory_bytes <= STANDBY_BYTES, "{kept:?}");
    let package = tempfile::tempdir().unwrap();
    fs::write(package.path().join("data"), "of the package").unwrap();
    fs::set_permissions(package.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = "\
say('threaded' in sys.modules)
import threaded, threading
say(threaded.ask(lambda: 1 + 1), threaded.file.read(1) == b'\\0', threading.active_count())
say(threaded.cores, threaded.given, open('/tmp/kept').read())
say(open('/package/data').read(), sys.argv[1:], sorted(os.environ.items()), os.getcwd())
say(sorted(os.sched_getaffinity(0)), os.cpu_count())
say(open('/proc/meminfo').readline().split()[1])
files = os.statvfs('/tmp'); say(files.f_blocks * files.f_frsize)
shared = os.statvfs('/dev/shm'); say(shared.f_blocks * shared.f_frsize)
say(threaded.number)
";
    let core = *own_cores().last().unwrap();
    let change = |spec: &mut Spec| {
        spec.folder = Some(package.path().to_owned());
        spec.limits.cores = vec![core];
    };
    let mut numbers = Vec::new();
    for _ in 0..3 {
        fixture.await_standby("threaded", 1);
        let (said, is_standby) = fixture.run(text, "threaded", change);
        assert!(is_standby, "{said}");
        let mut lines: Vec<&str> = said.lines().collect();
        numbers.push(lines.pop().unwrap().to_owned());
        let memory = format!("{}", 256 * MIB / 1024);
        let (files, shared) = (format!("{}", 8 * MIB), format!("{}", 128 * MIB));
        let own = format!("[{core}] 1");
        let expected = [
            "True",
            "2 True 2",
            "1 yes written while importing",
            "of the package ['one'] [('GIVEN', 'yes')] /",
            own.as_str(),
            memory.as_str(),
            files.as_str(),
            shared.as_str(),
        ];
        assert_eq!(lines, expected);
    }
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "a process becomes one program only");
}

/// A thread keeps the restrictions of the thread that started it, so they have to be there before a module is imported.
#[test]
fn thread_of_module_has_every_restriction() {
    if !can_stand_by() {
        return;
    }
    let fixture = StandbyFixture::open(&[("threaded", THREADED)]);
    let text = "\
import threaded, ctypes, socket
say('threads', len(os.listdir('/proc/self/task')))
for thread in os.listdir('/proc/self/task'):
    lines = open(f'/proc/self/task/{thread}/status').read().splitlines()
    status = dict(line.split(':', 1) for line in lines)
    say(*(status[name].split()[0] for name in ('Uid', 'Gid', 'CapEff', 'CapPrm', 'CapBnd', 'NoNewPrivs', 'Seccomp')))
library = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    def attempt():
        done = getattr(library, name)(*arguments)
        return os.strerror(ctypes.get_errno()) if done else 'BREACH'
    return attempt
say(threaded.ask(lambda: open('/new', 'w')), threaded.ask(lambda: open('/package/new', 'w')))
say(threaded.ask(lambda: socket.socket()), threaded.ask(lambda: os.setuid(0)))
say(threaded.ask(call('unshare', 0x10000000)), threaded.ask(call('mount', b'x', b'/tmp', b'tmpfs', 0, None)))
say(threaded.ask(call('chroot', b'/tmp')), threaded.ask(lambda: os.kill(1, 9)))
say(threaded.ask(lambda: open('/tmp/mine', 'w').write('x')))
";
    fixture.await_standby("threaded", 1);
    let (said, is_standby) = fixture.run(text, "threaded", |_| {});
    assert!(is_standby, "{said}");
    let none = "0000000000000000";
    let thread = format!("1000 1000 {none} {none} {none} 1 2");
    let (lines, denied) = (said.lines().collect::<Vec<_>>(), "'Operation not permitted'");
    let refused = format!("{denied} {denied}");
    assert_eq!(lines[..3], ["threads 2", thread.as_str(), thread.as_str()], "{said}");
    assert!(lines[3].split(' ').all(|error| ["OSError", "PermissionError"].contains(&error)), "{said}");
    assert_eq!(lines[4], "PermissionError PermissionError", "{said}");
    assert_eq!(lines[5], refused, "{said}");
    // Init has no handler for the signal, and so does not get it, where Landlock does not refuse it.
    let kills = ["None", "PermissionError"].map(|end| format!("{denied} {end}"));
    assert!(kills.iter().any(|expected| lines[6] == *expected), "{said}");
    assert_eq!(lines[7..], ["1"], "{said}");
}

#[test]
fn program_that_differs_imports_by_itself() {
    if !can_stand_by() {
        return;
    }
    // With the memory of the interpreter, and what a process on standby may take beyond that, more than a program's limit.
    let large = format!("{THREADED}\nheld = bytearray(b'x') * (47 << 20)\n");
    let fixture = StandbyFixture::open(&[("threaded", &large)]);
    let text = "say('threaded' in sys.modules); import threaded; say(threaded.ask(lambda: 3))";
    let imported = ("False\n3\n".to_owned(), false);
    let cores = own_cores();
    type Change<'change> = &'change dyn Fn(&mut Spec);
    let differs: [(&str, Change<'_>); 5] = [
        ("environment", &|spec| spec.env.push(("OTHER".into(), "1".into()))),
        ("variables", &|spec| spec.has_own_variables = true),
        ("memory", &|spec| spec.limits.memory_bytes = Some(64 * MIB)),
        ("devices", &|spec| spec.devices = Devices::Faults),
        ("cores", &|spec| spec.limits.cores = if cores.len() > 1 { cores.clone() } else { Vec::new() }),
    ];
    for (what, change) in differs {
        fixture.await_taken("threaded");
        fixture.await_standby("threaded", 1);
        assert_eq!(fixture.run(text, "threaded", change), imported, "{what}");
    }
    // Processes for programs that are no longer asked for make way.
    fixture.await_taken("threaded");
}

#[test]
fn dead_process_on_standby_harms_no_program() {
    if !can_stand_by() {
        return;
    }
    let fixture = StandbyFixture::open(&[("threaded", THREADED)]);
    fixture.await_standby("threaded", 1);
    let mut witness = fixture.start("say('here'); os.read(0, 1)", "threaded", |_| {});
    assert_eq!(witness.read_line(), "here");
    fixture.await_standby("threaded", 1);
    assert!(!processes_on_standby(&witness).is_empty());
    wait_for("no dead process is kept", || {
        // A second one may have been importing at the look before.
        for process in processes_on_standby(&witness) {
            // It may have ended meanwhile.
            let _ = kill_process(process, Signal::KILL);
        }
        fixture.keep(STANDBY_BYTES).is_empty().then_some(())
    });
    let text = "import threaded; say(threaded.ask(lambda: 4))";
    assert_eq!(fixture.run(text, "threaded", |_| {}).0, "4\n");
    witness.outside.write_all(b"x").unwrap();
    assert_eq!(fixture.fixture.wait(&witness.made).exit, Some(ProgramEnd::Status(0)));
}

#[test]
fn keeps_no_process_without_memory_or_idle_cores() {
    if !can_stand_by() {
        return;
    }
    let fixture = StandbyFixture::open(&[("threaded", THREADED), ("is_fine", "")]);
    let sandboxes = &fixture.fixture.sandboxes;
    // Without standby every program imports by itself, and the reason is known after some time.
    let begun = Instant::now();
    while fixture.start("", "threaded", |_| {}).made.cold_imports.is_none() {
        assert!(begun.elapsed() < PATIENCE, "no reason is known");
    }
    for (cores, bytes) in [(own_cores(), 0), (Vec::new(), STANDBY_BYTES), (own_cores(), MIB)] {
        for _ in 0..5 {
            let kept = sandboxes.keep_standby(cores.clone(), bytes).unwrap();
            assert!(kept.is_empty(), "{cores:?} {bytes}: {kept:?}");
            assert!(!fixture.run("", "threaded", |_| {}).1);
        }
    }
    fixture.await_standby("threaded", 1);
    let begun = Instant::now();
    while fixture.run("say('is_fine' in sys.modules)", "is_fine", |_| {}).0 != "True\n" {
        assert!(begun.elapsed() < PATIENCE);
    }
    let kept = fixture.keep(STANDBY_BYTES);
    assert!(kept.iter().all(|kept| kept.modules == "threaded"), "others have a template: {kept:?}");
}

#[test]
fn module_that_fails_is_not_imported_again_and_again() {
    if !can_stand_by() {
        return;
    }
    let ends = format!("{THREADED}\nos._exit(3)");
    let fixture = StandbyFixture::open(&[("ends", &ends), ("threaded", THREADED)]);
    fixture.await_standby("threaded", 1);
    let begun = Instant::now();
    let mut seen = 0;
    while fixture.start("", "ends", |_| {}).made.cold_imports.is_none() || seen < 20 {
        seen += 1;
        let kept = fixture.keep(STANDBY_BYTES);
        assert!(kept.iter().all(|kept| kept.modules != "ends" || kept.waiting == 0), "{kept:?}");
        assert!(begun.elapsed() < PATIENCE, "no reason is known");
    }
    // The failed attempt is over, and no other one begins soon.
    let is_over = || fixture.keep(STANDBY_BYTES).iter().all(|kept| kept.modules != "ends");
    wait_for("the failed attempt is over", || is_over().then_some(()));
    for _ in 0..10 {
        fixture.run("", "ends", |_| {});
        let kept = fixture.keep(STANDBY_BYTES);
        assert!(kept.iter().all(|kept| kept.modules != "ends"), "{kept:?}");
    }
    let (said, _) = fixture.run("import threaded; say(threaded.ask(lambda: 5))", "threaded", |_| {});
    assert_eq!(said, "5\n", "others have theirs");
}

#[test]
fn waiting_processes_stay_within_their_memory() {
    const BOUND: u64 = 100 * MIB;
    if !can_stand_by() {
        return;
    }
    let large = format!("{THREADED}\nheld = bytearray(b'x') * (48 << 20)\n");
    let fixture = StandbyFixture::open(&[("large", &large), ("threaded", THREADED)]);
    let begun = Instant::now();
    // Programs ask for both kinds in turn; all processes together have their memory within the bound at any time.
    let mut kinds = std::collections::BTreeSet::new();
    while kinds.len() < 2 {
        let kept = fixture.keep(BOUND);
        let bytes: u64 = kept.iter().map(|kept| kept.memory_bytes).sum();
        assert!(bytes <= BOUND, "{kept:?}");
        kinds.extend(kept.into_iter().filter(|kept| kept.waiting > 0).map(|kept| kept.modules));
        assert!(begun.elapsed() < PATIENCE, "only {kinds:?}");
        for module in ["large", "threaded"] {
            fixture.run("", module, |_| {});
        }
    }
}
