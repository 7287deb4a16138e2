//! Measures a sandbox's start from the request to the program's first instruction, and until its first line is read
//! (`heard_us`). A bare fork and exec of the same program is measured in turns with each kind: process, container, weak
//! isolation, and each OCI runtime that is installed. `cargo bench -p sublet-sandbox [-- STARTS]` prints JSON.
//!
//! The last kinds begin at a function in Python that uses NumPy, pandas and PIL: in an interpreter that a container starts, in a
//! copy of a warm one, and in a process on standby, whose module has also started a thread. Beside them this machine's
//! interpreter is started without a sandbox, and imports the same. The program names what this machine lacks, and does not
//! measure it.

#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sublet_sandbox::{Interpreter, IsolationKind, RootImage, SandboxProgram, Spec, Template};
use support::{MIB, SandboxFixture, Sort, StartedSandbox};

use support::python_image::PythonImage;

/// Between two starts: the spawner makes ready what the next one needs.
const PAUSE: Duration = Duration::from_millis(10);
const DEFAULT_STARTS: usize = 200;
/// Modules of the function in Python, and their folders among the installed modules.
const MODULES: [&str; 3] = ["numpy", "pandas", "PIL.Image"];
const FOLDERS: [&str; 8] =
    ["numpy", "numpy.libs", "pandas", "dateutil", "pytz", "tzdata", "PIL", "pillow.libs"];
/// The function in Python. Its line has the time at which the function is entered, and whether it is of a copy.
const FUNCTION: &str = "\
import os, sys, time
import numpy, pandas, PIL.Image
def function(): os.write(0, b'%d %d\\n' % (time.monotonic_ns(), 'sublet_template' in sys.modules))
function()";
/// The same function, of a module that no template can have.
const STANDBY_FUNCTION: &str = "\
import os, sys, time
was_there = 'threaded' in sys.modules
import threaded
def function(): os.write(0, b'%d %d\\n' % (time.monotonic_ns(), was_there))
function()";
/// Memory for processes on standby, and of each.
const STANDBY_BYTES: u64 = 1024 * MIB;
const STANDBY_PROCESS_BYTES: u64 = 512 * MIB;
/// Starts of an interpreter that imports these modules are fewer by this factor.
const FEWER: usize = 10;
/// Starts of a kind that may fail or be no copies, beside one for each that is counted.
const MOST_MISSED: usize = 20;
/// Time after which a template that is not warm never becomes so.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let starts = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_STARTS);
    for (kind, sort, program) in [
        ("process", Sort::Process, support::program().to_owned()),
        ("container", Sort::Container, support::image()[0].join("bin/probe")),
    ] {
        measure((kind, false), (&SandboxFixture::open(sort), &|| {}), &probe(&program), starts, |_| {});
    }
    let weak = SandboxFixture::weak(Sort::Process);
    measure(("weak", false), (&weak, &|| {}), &probe(support::program()), starts, |_| {});
    for runtime in ["/usr/bin/crun", "/usr/sbin/runc", "/usr/bin/runsc"].map(Path::new) {
        let name = runtime.file_name().unwrap().to_str().unwrap();
        if !runtime.exists() || !support::is_root() {
            eprintln!("not measured: {name}, which needs root and {}", runtime.display());
            continue;
        }
        let image = RootImage { layers: support::image().to_vec(), working_folder: "/".into() };
        let program = support::image()[0].join("bin/probe");
        let change = |spec: &mut Spec| {
            spec.kind = IsolationKind::Delegated { runtime: runtime.to_owned(), image: image.clone() };
        };
        let fixture = SandboxFixture::open(Sort::Container);
        measure((name, false), (&fixture, &|| {}), &probe(&program), starts, change);
    }
    measure_image(starts.div_ceil(FEWER));
    measure_standby(starts.div_ceil(FEWER));
}

/// Measures the function of an image's Python.
fn measure_image(starts: usize) {
    let fixture = SandboxFixture::open(Sort::Process);
    let image = PythonImage::make(&[], &FOLDERS);
    let bare = || {
        let mut command = Command::new(&support::python().program);
        command.args(["-B", "-c", FUNCTION]);
        command
    };
    measure(("image-python", false), (&fixture, &|| {}), &bare, starts, image.started(FUNCTION));
    let copied = image.copied(FUNCTION, &MODULES);
    let begun = Instant::now();
    while !fixture.run_with(&[], &copied).0.ends_with(" 1\n") {
        assert!(begun.elapsed() < PATIENCE, "the template in the image does not become warm");
    }
    measure(("image-python-copy", true), (&fixture, &|| {}), &bare, starts, copied);
}

/// Measures the function in a process that has imported its module before the request, beside a fresh import.
fn measure_standby(starts: usize) {
    let missing = ["memory", "cpuset"].into_iter().find(|controller| !support::is_bounded(controller));
    if let Some(controller) = missing {
        eprintln!("not measured: standby, which needs the control group controller {controller}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("function.py");
    fs::write(&program, STANDBY_FUNCTION).unwrap();
    let interpreter = threaded_python(&folder.path().join("environment"));
    let shown = [&interpreter.shown[..], &support::python().shown[..]].concat();
    let fixture = SandboxFixture::showing(Sort::Template, &shown);
    let cores = own_cores();
    let change = |spec: &mut Spec| {
        let (interpreter, imports) = (interpreter.program.clone(), vec!["threaded".to_owned()]);
        spec.kind = IsolationKind::Template(Template { interpreter, imports, ..support::template(&[]) });
        spec.program = SandboxProgram::Outside(program.clone());
        spec.limits.cores = vec![cores[0]];
        spec.limits.memory_bytes = Some(STANDBY_PROCESS_BYTES);
        spec.limits.processes = Some(512);
    };
    let is_waiting = || {
        let kept = fixture.sandboxes.keep_standby(cores.clone(), STANDBY_BYTES).unwrap();
        kept.iter().any(|kept| kept.modules == "threaded" && kept.waiting > 0)
    };
    let await_standby = || {
        let begun = Instant::now();
        while !is_waiting() {
            assert!(begun.elapsed() < PATIENCE, "no process waits on standby");
            std::thread::sleep(PAUSE);
        }
    };
    // The spawner knows only after some starts that the module prevents a template.
    let begun = Instant::now();
    while !is_waiting() {
        assert!(begun.elapsed() < PATIENCE, "the module is not put on standby");
        fixture.run_with(&[], change);
    }
    let bare = || {
        let mut command = Command::new(&interpreter.program);
        command.args(["-B", "-c", STANDBY_FUNCTION]);
        command
    };
    measure(("standby", true), (&fixture, &await_standby), &bare, starts, change);
}

/// Makes an environment whose module `threaded` imports the modules of the function, and starts a thread.
fn threaded_python(environment: &Path) -> Interpreter {
    let python = &support::python().program;
    let made = Command::new(python).args(["-m", "venv", "--without-pip"]).arg(environment).status();
    assert!(made.unwrap().success());
    let ask = "import sysconfig; print(sysconfig.get_path('purelib'), end='')";
    let site = Command::new(python).args(["-I", "-c", ask]).output().unwrap().stdout;
    let (site, modules) = (String::from_utf8(site).unwrap(), MODULES.join(", "));
    let text = format!(
        "import sys, threading\nsys.path.append({site:?})\nimport {modules}\n\
         threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    );
    let library = fs::read_dir(environment.join("lib")).unwrap().next().unwrap().unwrap().path();
    fs::write(library.join("site-packages/threaded.py"), text).unwrap();
    Interpreter::python(&environment.join("bin/python3")).unwrap()
}

/// The cores on which this program may run.
fn own_cores() -> Vec<u32> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
    cores.map(|core| u32::try_from(core).unwrap()).collect()
}

/// Starts the probe without a sandbox.
fn probe(program: &Path) -> impl Fn() -> Command {
    move || {
        let mut command = Command::new(program);
        command.arg("now");
        command
    }
}

/// Measures a kind of start. If it is one of copies, only these are counted: their lines say that they are. Starts that fail, as some
/// of Debian's runsc do, are not counted either. `prepare` is called before each start, and is not measured.
fn measure(
    (kind, is_copy): (&str, bool),
    (fixture, prepare): (&SandboxFixture, &dyn Fn()),
    unisolated: &dyn Fn() -> Command,
    starts: usize,
    change: impl Fn(&mut Spec),
) {
    let (mut sandboxed, mut answered, mut heard, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut missed = 0;
    while sandboxed.len() < starts {
        prepare();
        std::thread::sleep(PAUSE);
        let begun = now_ns();
        let (mut spec, outside) = fixture.probe(&["now"]);
        change(&mut spec);
        let made = fixture.sandboxes.launch(vec![spec]).remove(0);
        let answer_ns = now_ns() - begun;
        let said = made.map(|made| {
            let mut tenant = StartedSandbox { made, outside };
            let said = (tenant.read_line(), now_ns() - begun);
            fixture.wait(&tenant.made);
            fixture.sandboxes.delete(&[tenant.made.id]).remove(0).unwrap();
            said
        });
        let (said, heard_ns) = match said {
            Ok((said, heard_ns)) if !said.is_empty() && (!is_copy || said.ends_with(" 1")) => {
                (said, heard_ns)
            }
            other => {
                missed += 1;
                assert!(missed < starts + MOST_MISSED, "{missed} starts of {kind} have failed: {other:?}");
                continue;
            }
        };
        answered.push(answer_ns);
        heard.push(heard_ns);
        // A kernel of its own has another clock.
        sandboxed.push(first_ns(&said).saturating_sub(begun));
        std::thread::sleep(PAUSE);
        bare.push(start_bare(unisolated()));
    }
    let [least, first, first_p99] = summary(&mut sandboxed);
    let [_, answer, _] = summary(&mut answered);
    let [_, heard, _] = summary(&mut heard);
    let [floor_least, floor, floor_p99] = summary(&mut bare);
    println!(
        "{{\"bench\":\"sandbox start\",\"sandbox\":\"{kind}\",\"n\":{starts},\"missed\":{missed},\"median_us\":{first},\"p99_us\":{first_p99},\
         \"least_us\":{least},\"answer_us\":{answer},\"heard_us\":{heard},\"floor_us\":{floor},\"floor_p99_us\":{floor_p99},\
         \"floor_least_us\":{floor_least}}}"
    );
}

fn start_bare(mut command: Command) -> u64 {
    let (mut outside, inside) = UnixStream::pair().unwrap();
    let begun = now_ns();
    let mut child = command.stdin(OwnedFd::from(inside)).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    let mut said = String::new();
    outside.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    first_ns(&said) - begun
}

/// Returns the time in a line.
fn first_ns(said: &str) -> u64 {
    said.split_whitespace().next().unwrap().parse().unwrap()
}

/// The least, the median and p99, in microseconds. On a busy machine the least is nearest to what it costs.
fn summary(samples: &mut [u64]) -> [f64; 3] {
    samples.sort_unstable();
    [samples[0], samples[samples.len() / 2], samples[samples.len() * 99 / 100]].map(|ns| ns as f64 / 1e3)
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
