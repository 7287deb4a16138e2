//! Tests that only templates need: a warm interpreter, its modules, and copies that are independent of each
//! other. Tests for every kind of sandbox are in `conformance.rs` and `attacks.rs`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sublet_means::{Means, skip};
use sublet_sandbox::{
    Interpreter, IsolationKind, MAX_IMPORTS, NetworkAccess, ProgramEnd, SandboxProgram, Spec, Template,
};

use crate::support::{self, MIB, SandboxFixture, Sort, StartedSandbox, python, template};

/// Modules that take long to import.
const MODULES: [&str; 3] = ["numpy", "pandas", "PIL.Image"];
/// Longest wait for a template to become warm.
const PATIENCE: Duration = Duration::from_secs(180);
/// First lines of each program: they define the function that writes a line to the control socket.
const SAY: &str =
    "import os, sys\ndef say(*words): os.write(0, (' '.join(map(str, words)) + '\\n').encode())\n";

/// Makes a specification execute this text instead of the probe.
fn of_text(fixture: &SandboxFixture, text: &str, imports: &[&str]) -> impl FnOnce(&mut Spec) {
    let path =
        fixture.folder.path().join(format!("{}.py", fs::read_dir(fixture.folder.path()).unwrap().count()));
    fs::write(&path, format!("{SAY}{text}")).unwrap();
    let template = template(imports);
    move |spec| {
        spec.kind = IsolationKind::Template(template);
        spec.program = SandboxProgram::Outside(path);
        spec.limits.memory_bytes = Some(512 * MIB);
    }
}

#[track_caller]
fn start(fixture: &SandboxFixture, text: &str, imports: &[&str]) -> StartedSandbox {
    fixture.start_with(&["one", "two"], of_text(fixture, text, imports))
}

/// Runs a program, and returns its output and its exit status.
#[track_caller]
fn run(fixture: &SandboxFixture, text: &str, imports: &[&str]) -> (String, ProgramEnd) {
    fixture.run_with(&["one", "two"], of_text(fixture, text, imports))
}

/// Requests modules until a program finds them loaded when it begins.
#[track_caller]
fn warm(fixture: &SandboxFixture, modules: &[&str]) {
    let begun = Instant::now();
    let module = modules[0];
    while run(fixture, &format!("say('{module}' in sys.modules)"), modules).0 != "True\n" {
        assert!(begun.elapsed() < PATIENCE, "no template gets {modules:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the templates of a sandbox's spawner: the siblings of its first process.
fn templates_of(tenant: &StartedSandbox) -> Vec<Pid> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let spawner = parent(parent(tenant.made.state.pid.unwrap()).unwrap()).unwrap();
    let numbers =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let own_namespace = fs::read_link(format!("/proc/{spawner}/ns/pid")).unwrap();
    let is_template = |pid: &u32| {
        parent(*pid) == Some(spawner)
            && fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|namespace| namespace == own_namespace)
            && fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("sublet_template"))
    };
    numbers.filter(is_template).filter_map(|pid: u32| Pid::from_raw(pid.cast_signed())).collect()
}

#[test]
fn program_runs_as_in_its_own_interpreter() {
    let fixture = SandboxFixture::open(Sort::Template);
    let text = "\
say(__name__, sys.modules['__main__'].__dict__ is globals(), sys.argv[1:], sys.argv[0] == __file__)
say(sys.path[0] == os.path.dirname(__file__), sys.executable, sys.prefix)
say(sorted(os.environ.items()), os.getpid(), sorted(os.listdir('/proc/self/fd')))
import threading, multiprocessing
thread = threading.Thread(target=say, args=('thread',)); thread.start(); thread.join()
say(threading.active_count())
child = os.fork()
if not child: os._exit(5)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    let (said, exit) = run(&fixture, text, &[]);
    let python = python();
    let prefix = python.program.parent().unwrap().parent().unwrap();
    let expected = format!(
        "__main__ True ['one', 'two'] True\nTrue {} {}\n[('GIVEN', 'yes')] 2 ['0', '1', '2', '3']\nthread\n1\n5\n",
        python.program.display(),
        prefix.display()
    );
    assert_eq!((said, exit), (expected, ProgramEnd::Status(0)));
}

#[test]
fn a_program_ends_as_in_an_interpreter_of_its_own() {
    let fixture = SandboxFixture::open(Sort::Template);
    for (text, expected) in [
        ("import atexit; atexit.register(say, 'last'); sys.exit(3)", ("last\n", 3)),
        (
            "sys.excepthook = lambda kind, error, trace: say(kind.__name__, error, trace.tb_frame.f_code.co_name)\n1 / 0",
            ("ZeroDivisionError division by zero <module>\n", 1),
        ),
        ("this is no Python", ("", 1)),
        ("import no_such_module", ("", 1)),
        ("os._exit(9)", ("", 9)),
    ] {
        let (said, exit) = run(&fixture, text, &[]);
        assert_eq!((said.as_str(), exit), (expected.0, ProgramEnd::Status(expected.1)), "{text}");
    }
}

#[test]
fn modules_requested_again_are_loaded_when_a_program_begins() {
    let fixture = SandboxFixture::open(Sort::Template);
    let (said, _) =
        run(&fixture, "say('numpy' in sys.modules); import numpy; say(numpy.arange(3).sum())", &["numpy"]);
    assert_eq!(said, "False\n3\n", "the first imports by itself");
    warm(&fixture, &["numpy"]);
    let (said, _) = run(&fixture, "say('numpy' in sys.modules)", &[]);
    assert_eq!(said, "False\n", "others have a template of their own");
    // More templates than are kept warm: a new request replaces an older template.
    for module in ["json", "csv", "decimal", "sqlite3", "xml.dom", "ctypes.util"] {
        warm(&fixture, &[module]);
    }
    let tenant = start(&fixture, "os.read(0, 1)", &[]);
    assert!(templates_of(&tenant).len() <= 5, "one without modules, and the four that are kept warm");
}

#[test]
fn no_two_copies_have_the_same_random_numbers() {
    let fixture = SandboxFixture::open(Sort::Template);
    let modules = ["numpy.random", "random", "uuid"];
    warm(&fixture, &modules);
    let text = "import numpy, random, uuid\nsay(numpy.random.random(), random.random(), uuid.uuid4(), numpy.random.default_rng().random())";
    let said: Vec<String> = (0..4).map(|_| run(&fixture, text, &modules).0).collect();
    let mut numbers: Vec<&str> = said.iter().flat_map(|line| line.split_whitespace()).collect();
    assert_eq!(numbers.len(), 16);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 16, "{said:?}");
}

#[test]
fn libraries_compute_with_one_thread_for_each_core() {
    let fixture = SandboxFixture::open(Sort::Template);
    warm(&fixture, &["numpy"]);
    let text = "\
import numpy
matrix = numpy.random.random((300, 300))
say(abs(numpy.linalg.inv(matrix) @ matrix - numpy.eye(300)).max() < 1e-6, len(os.listdir('/proc/self/task')))";
    let cores = std::thread::available_parallelism().unwrap().get();
    for (limited, expected) in [(Vec::new(), cores), (vec![0], 1)] {
        // Without the right to limit cores the program has all of them.
        let expected = if support::is_bounded("cpuset") { expected } else { cores };
        let (said, exit) = fixture.run_with(&[], |spec| {
            of_text(&fixture, text, &["numpy"])(spec);
            spec.limits.processes = Some(128);
            spec.limits.cores = limited;
        });
        assert_eq!((said, exit), (format!("True {expected}\n"), ProgramEnd::Status(0)));
    }
}

#[test]
fn what_a_program_does_to_its_interpreter_is_its_own() {
    let fixture = SandboxFixture::open(Sort::Template);
    let bad = "\
import threading, numpy
lock = threading.Lock()
for module in (os, sys, numpy): module.changed = True
def hold():
    with lock: say('held'); threading.Event().wait()
for _ in range(3): threading.Thread(target=hold, daemon=True).start()
__import__('importlib')._bootstrap._blocking_on.clear()
__import__('_imp').acquire_lock()
threading.Event().wait()";
    warm(&fixture, &["numpy"]);
    let mut tenant = start(&fixture, bad, &["numpy"]);
    assert_eq!(tenant.read_line(), "held");
    let text = "import numpy, threading\nsay(any(hasattr(module, 'changed') for module in (os, sys, numpy)), threading.active_count())";
    for _ in 0..3 {
        assert_eq!(run(&fixture, text, &["numpy"]), ("False 1\n".to_owned(), ProgramEnd::Status(0)));
    }
    fixture.kill(&tenant, Signal::KILL);
    assert_eq!(fixture.wait(&tenant.made).exit, Some(ProgramEnd::Signal(9)));
}

#[test]
fn several_are_copied_at_once() {
    let fixture = SandboxFixture::open(Sort::Template);
    let (specs, outsides): (Vec<_>, Vec<_>) = (0..8)
        .map(|number| {
            let (mut spec, outside) = fixture.probe(&[]);
            of_text(&fixture, &format!("os.read(0, 1); sys.exit({number})"), &[])(&mut spec);
            (spec, outside)
        })
        .unzip();
    let made: Vec<_> = fixture.sandboxes.launch(specs).into_iter().map(Result::unwrap).collect();
    for mut outside in outsides {
        outside.write_all(b"x").unwrap();
    }
    let exits: Vec<_> = made.iter().map(|made| fixture.wait(made).exit.unwrap()).collect();
    assert_eq!(exits, [0, 1, 2, 3, 4, 5, 6, 7].map(ProgramEnd::Status));
}

#[test]
fn dead_template_is_restarted_and_its_copies_continue() {
    let fixture = SandboxFixture::open(Sort::Template);
    let mut tenant = start(&fixture, "say('here'); os.read(0, 1); say('still')", &[]);
    assert_eq!(tenant.read_line(), "here");
    for _ in 0..2 {
        let templates = templates_of(&tenant);
        assert!(!templates.is_empty());
        templates.iter().for_each(|&template| kill_process(template, Signal::KILL).unwrap());
        for _ in 0..4 {
            assert_eq!(run(&fixture, "say(1)", &[]).0, "1\n");
        }
    }
    tenant.outside.write_all(b"x").unwrap();
    assert_eq!(tenant.read_all(), "still\n");
}

#[test]
fn template_has_no_rights_no_network_and_a_limit() {
    if !support::is_root() {
        skip(Means::Root, "only root can look at a template");
        return;
    }
    let fixture = SandboxFixture::open(Sort::Template);
    let mut tenant = start(&fixture, "say('here'); os.read(0, 1)", &[]);
    assert_eq!(tenant.read_line(), "here");
    let templates = templates_of(&tenant);
    assert!(!templates.is_empty());
    for template in templates {
        let read = |file: &str| fs::read_to_string(format!("/proc/{template}/{file}")).unwrap();
        let status = read("status");
        let rights = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|set| (set, "0000000000000000"));
        for (what, value) in rights.into_iter().chain([("NoNewPrivs", "1")]) {
            assert!(status.contains(&format!("{what}:\t{value}\n")), "{what}: {status}");
        }
        assert!(!status.contains("Uid:\t0\t") && !status.contains("Gid:\t0\t"), "{status}");
        for kind in ["net", "mnt", "ipc", "uts"] {
            let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).unwrap();
            assert_ne!(of(&template.to_string()), of("self"));
        }
        if support::is_bounded("memory") {
            let limit = read("cgroup").lines().find_map(|line| {
                let (_, group) = line.split_once(':')?;
                let (controllers, group) = group.split_once(':')?;
                let file = match controllers {
                    "memory" => format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"),
                    "" => format!("/sys/fs/cgroup{group}/memory.max"),
                    _ => return None,
                };
                fs::read_to_string(file).ok()
            });
            assert_eq!(limit.unwrap().trim(), (4u64 << 30).to_string());
        }
    }
}

/// Creates a Python environment with the modules of a test.
fn python_with(folder: &Path, modules: &[(&str, &str)]) -> Interpreter {
    let made = Command::new(&python().program).args(["-m", "venv", "--without-pip"]).arg(folder).status();
    assert!(made.unwrap().success());
    let library = fs::read_dir(folder.join("lib")).unwrap().next().unwrap().unwrap().path();
    for (name, text) in modules {
        fs::write(library.join(format!("site-packages/{name}.py")), text).unwrap();
    }
    Interpreter::python(&folder.join("bin/python3")).unwrap()
}

/// A fork does not copy threads, and all copies would share the position in an open file.
#[test]
fn modules_with_threads_or_open_files_are_in_no_template() {
    let threads = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()";
    let modules = [
        ("starts_thread", threads),
        ("keeps_file", "file = open('/dev/zero')"),
        ("fails", "raise RuntimeError('it never works')"),
        ("ends", "import os; os._exit(0)"),
        ("is_fine", ""),
    ];
    let folder = tempfile::tempdir().unwrap();
    let interpreter = python_with(&folder.path().join("environment"), &modules);
    let fixture = SandboxFixture::showing(Sort::Template, &interpreter.shown);
    let ask = |module: &str| {
        fixture.run_with(&[], |spec| {
            of_text(&fixture, &format!("say('{module}' in sys.modules)"), &[])(spec);
            let imports = vec![module.to_owned()];
            let template = Template { interpreter: interpreter.program.clone(), imports, ..template(&[]) };
            spec.kind = IsolationKind::Template(template);
        })
    };
    let begun = Instant::now();
    while ask("is_fine").0 != "True\n" {
        assert!(begun.elapsed() < PATIENCE);
    }
    let warm_after = begun.elapsed();
    for module in ["starts_thread", "keeps_file", "fails", "ends"] {
        let begun = Instant::now();
        while begun.elapsed() < 3 * warm_after {
            assert_eq!(ask(module), ("False\n".to_owned(), ProgramEnd::Status(0)), "{module}");
        }
    }
}

/// Some libraries keep their own file open, as libffi does on most systems. Each copy reads the library at a position
/// of its own, even if the file has been replaced since.
#[test]
fn open_library_is_reopened_in_each_copy() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().canonicalize().unwrap().join("environment/library.so");
    let text =
        format!("import ctypes\npath = {library:?}\ncode = ctypes.CDLL(path)\nfile = open(path, 'rb', 0)");
    let interpreter = python_with(&folder.path().join("environment"), &[("keeps_library", &text)]);
    fs::copy(own_library("libgcc_s"), &library).unwrap();
    let fixture = SandboxFixture::showing(Sort::Template, &interpreter.shown);
    let ask = |text: &str| {
        fixture.run_with(&[], |spec| {
            of_text(&fixture, text, &[])(spec);
            let imports = vec!["keeps_library".to_owned()];
            let template = Template { interpreter: interpreter.program.clone(), imports, ..template(&[]) };
            spec.kind = IsolationKind::Template(template);
        })
    };
    let begun = Instant::now();
    while ask("say('keeps_library' in sys.modules)").0 != "True\n" {
        assert!(begun.elapsed() < PATIENCE, "a module that keeps a library open is not kept warm");
    }
    let reads = "file = sys.modules['keeps_library'].file; say(file.tell(), file.read(4))";
    for _ in 0..2 {
        assert_eq!(ask(reads), ("0 b'\\x7fELF'\n".to_owned(), ProgramEnd::Status(0)));
    }
    fs::remove_file(&library).unwrap();
    fs::write(&library, "another version").unwrap();
    assert_eq!(ask(reads), ("0 b'\\x7fELF'\n".to_owned(), ProgramEnd::Status(0)));
}

/// Returns the path of a library that this process has loaded.
fn own_library(name: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    paths.find(|path| path.contains(name)).unwrap().into()
}

/// If a module prevents a template from being kept, copies without modules name that module and the reason.
#[test]
fn names_module_that_cannot_be_kept_warm() {
    let modules = [
        (
            "starts_threads",
            "import threading\nfor _ in range(2): threading.Thread(target=threading.Event().wait).start()",
        ),
        ("keeps_file", "file = open('/dev/zero')"),
        ("fails", "raise RuntimeError('it\\nfails')"),
        ("fails_at_length", "raise RuntimeError('x' * 1_000_000)"),
        ("ends", "import os; os._exit(0)"),
        ("closes_file", "import keeps_file; keeps_file.file.close()"),
        ("is_fine", ""),
        ("is_fine_too", ""),
    ];
    let folder = tempfile::tempdir().unwrap();
    let interpreter = python_with(&folder.path().join("environment"), &modules);
    let fixture = SandboxFixture::showing(Sort::Template, &interpreter.shown);
    let ask = |modules: &str| {
        let imports: Vec<String> = modules.split(", ").map(str::to_owned).collect();
        let mut tenant = fixture.start_with(&[], |spec| {
            of_text(&fixture, &format!("say('{}' in sys.modules)", imports[1]), &[])(spec);
            let template = Template { interpreter: interpreter.program.clone(), imports, ..template(&[]) };
            spec.kind = IsolationKind::Template(template);
        });
        (tenant.read_all(), tenant.made.cold_imports)
    };
    let begins = "fails with RuntimeError: ";
    let long = format!("{begins}{}", "x".repeat(256 - begins.len()));
    for (modules, named, reason) in [
        ("is_fine, starts_threads, is_fine_too", "starts_threads", "starts 2 threads"),
        ("is_fine, keeps_file, is_fine_too", "keeps_file", "keeps /dev/zero open"),
        ("keeps_file, closes_file, starts_threads", "starts_threads", "starts 2 threads"),
        ("is_fine, fails, is_fine_too", "fails", "fails with RuntimeError: it\\x0afails"),
        ("is_fine, fails_at_length, is_fine_too", "fails_at_length", long.as_str()),
        ("is_fine, ends, is_fine_too", "is_fine, ends, is_fine_too", "ends the interpreter"),
    ] {
        assert_eq!(ask(modules), ("False\n".to_owned(), None), "nothing is known of {modules} at first");
        let begun = Instant::now();
        let cold = loop {
            assert!(begun.elapsed() < PATIENCE, "no reason is reported for {modules}");
            if let (_, Some(cold)) = ask(modules) {
                break cold;
            }
        };
        assert_eq!((cold.module.as_str(), cold.reason.as_str()), (named, reason));
        assert_eq!(ask(modules).1, Some(cold), "the reason is reported for each copy");
    }
    let warm = "is_fine, json, is_fine_too";
    let begun = Instant::now();
    while ask(warm).0 != "True\n" {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(ask(warm).1, None, "what is kept warm is not told of");
    let tenant = fixture.start_with(&[], |spec| {
        of_text(&fixture, "say('here'); os.read(0, 1)", &[])(spec);
        let template = Template { interpreter: interpreter.program.clone(), ..template(&[]) };
        spec.kind = IsolationKind::Template(template);
    });
    templates_of(&tenant).iter().for_each(|&template| kill_process(template, Signal::KILL).unwrap());
    for _ in 0..4 {
        assert_eq!(ask(warm).1, None, "a template that was warm and was killed had no fault");
    }
}

#[test]
fn what_makes_no_template_is_named_and_harms_nobody() {
    let fixture = SandboxFixture::open(Sort::Template);
    let refusal = |change: &dyn Fn(&mut Template, &mut Spec)| {
        let (mut spec, _outside) = fixture.probe(&["exit"]);
        let mut template = template(&[]);
        change(&mut template, &mut spec);
        spec.kind = IsolationKind::Template(template);
        fixture.sandboxes.launch(vec![spec]).remove(0).unwrap_err().to_string()
    };
    for name in ["", "-c", "os; x", "a..b", ".a", "1a", "a/b", "a\0b", &"a".repeat(1000)] {
        let refused = refusal(&|template, _| template.imports = vec![name.to_owned()]);
        assert!(refused.contains("a module is no name"), "{name}: {refused}");
    }
    let many = refusal(&|template, _| template.imports = vec!["os".to_owned(); MAX_IMPORTS + 1]);
    assert!(many.contains("more modules than a package can name"), "{many}");
    let network = refusal(&|_, spec| spec.network = NetworkAccess::Host);
    assert!(network.contains("no network"), "{network}");
    for interpreter in ["/no/such/python", "/usr/lib/os-release"] {
        let refused = refusal(&|template, _| template.interpreter = PathBuf::from(interpreter));
        assert!(refused.contains(interpreter), "{refused}");
    }
    let adapter = refusal(&|template, _| template.adapter = PathBuf::from("/no/such/adapter"));
    assert!(adapter.contains("No such file"), "{adapter}");
    let other = refusal(&|template, _| template.adapter = template.interpreter.clone());
    assert!(other.contains(python().program.to_str().unwrap()), "{other}");
    assert_eq!(run(&fixture, "say(1)", &[]).0, "1\n");
}

/// Returns the memory of a program and of its sandbox's first process in bytes: their own, and their share of common
/// memory.
fn proportional_bytes(tenant: &StartedSandbox) -> u64 {
    let program = tenant.made.state.pid.unwrap();
    let status = fs::read_to_string(format!("/proc/{program}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned();
    let of = |pid: &str| -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    of(&program.to_string()) + of(&parent)
}

/// The paper has 34% less (Molecule, section 6.3); a template's own memory is counted with its copies.
#[test]
fn copies_share_their_memory() {
    const COPIES: usize = 16;
    if !support::is_root() {
        skip(Means::Root, "only root can look at the memory of a sandbox's first process");
        return;
    }
    let fixture = SandboxFixture::open(Sort::Template);
    warm(&fixture, &MODULES);
    let text = "\
import numpy, pandas, PIL.Image
frame = pandas.DataFrame({'a': numpy.arange(1000.0)})
image = PIL.Image.fromarray((frame.a.to_numpy() % 256).astype('uint8').reshape(40, 25)).resize((80, 50))
say('ready', frame.a.mean(), image.size)
os.read(0, 1)";
    let of = |kind: &dyn Fn(&mut Spec)| -> u64 {
        let mut tenants: Vec<_> = (0..COPIES)
            .map(|_| {
                fixture.start_with(&[], |spec| {
                    of_text(&fixture, text, &MODULES)(spec);
                    kind(spec);
                })
            })
            .collect();
        tenants.iter_mut().for_each(|tenant| assert_eq!(tenant.read_line(), "ready 499.5 (80, 50)"));
        let bytes = tenants.iter().map(proportional_bytes).sum();
        for tenant in &tenants {
            fixture.kill(tenant, Signal::KILL);
            fixture.wait(&tenant.made);
        }
        bytes
    };
    let copies = of(&|_| {});
    let cold = of(&|spec| {
        let SandboxProgram::Outside(script) = &spec.program else { return };
        let folder = script.with_extension("folder");
        fs::create_dir(&folder).unwrap();
        fs::copy(script, folder.join("job.py")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        spec.args = vec!["/package/job.py".into()];
        spec.folder = Some(folder);
        spec.kind = IsolationKind::Process;
        spec.program = SandboxProgram::Inside(python().program.clone());
    });
    let saved = 1.0 - copies as f64 / cold as f64;
    println!("{COPIES} copies: {copies} bytes, {COPIES} interpreters: {cold} bytes, {saved:.2} less");
    assert!(saved > 0.5, "{copies} bytes for {COPIES} copies, {cold} for as many interpreters");
}
