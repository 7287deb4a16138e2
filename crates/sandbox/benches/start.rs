//! Measures a sandbox's start from the request to the program's first instruction, and until its first line is read
//! (`heard_us`). A bare fork and exec of the same program is measured in turns with each kind: process, container, weak
//! isolation, and each OCI runtime that is installed. `cargo bench -p sublet-sandbox [-- STARTS]` prints JSON.
//!
//! The last two kinds begin at a function of a Python in an image that uses NumPy, pandas and PIL: in an interpreter that a
//! container starts, and in a copy of a warm one. Beside them this machine's interpreter is started without a sandbox.

#![allow(clippy::unwrap_used)]

#[path = "../tests/support/python_image.rs"]
mod python_image;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sublet_sandbox::{IsolationKind, RootImage, Spec};
use support::{SandboxFixture, Sort};

use python_image::PythonImage;

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
/// Starts of an interpreter that imports these modules are fewer by this factor.
const FEWER: usize = 10;
/// Time after which a template that is not warm never becomes so.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let starts = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_STARTS);
    for (kind, sort, program) in [
        ("process", Sort::Process, support::program().to_owned()),
        ("container", Sort::Container, support::image()[0].join("bin/probe")),
    ] {
        measure(kind, &SandboxFixture::open(sort), &probe(&program), starts, |_| {});
    }
    measure("weak", &SandboxFixture::weak(Sort::Process), &probe(support::program()), starts, |_| {});
    for runtime in ["/usr/bin/crun", "/usr/sbin/runc", "/usr/bin/runsc"].map(Path::new) {
        if !runtime.exists() || !support::is_root() {
            continue;
        }
        let image = RootImage { layers: support::image().to_vec(), working_folder: "/".into() };
        let program = support::image()[0].join("bin/probe");
        let name = runtime.file_name().unwrap().to_str().unwrap();
        measure(name, &SandboxFixture::open(Sort::Container), &probe(&program), starts, |spec| {
            spec.kind = IsolationKind::Delegated { runtime: runtime.to_owned(), image: image.clone() };
        });
    }
    measure_image(starts.div_ceil(FEWER));
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
    measure("image-python", &fixture, &bare, starts, image.started(FUNCTION));
    let copied = image.copied(FUNCTION, &MODULES);
    let begun = Instant::now();
    while !fixture.run_with(&[], &copied).0.ends_with(" 1\n") {
        assert!(begun.elapsed() < PATIENCE, "the template in the image does not become warm");
    }
    measure("image-python-copy", &fixture, &bare, starts, copied);
}

/// Starts the probe without a sandbox.
fn probe(program: &Path) -> impl Fn() -> Command {
    move || {
        let mut command = Command::new(program);
        command.arg("now");
        command
    }
}

fn measure(
    kind: &str,
    fixture: &SandboxFixture,
    unisolated: &dyn Fn() -> Command,
    starts: usize,
    change: impl Fn(&mut Spec),
) {
    let (mut sandboxed, mut answered, mut heard, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..starts {
        std::thread::sleep(PAUSE);
        let begun = now_ns();
        let mut tenant = fixture.start_with(&["now"], &change);
        answered.push(now_ns() - begun);
        let said = tenant.read_line();
        heard.push(now_ns() - begun);
        // A kernel of its own has another clock.
        sandboxed.push(first_ns(&said).saturating_sub(begun));
        fixture.wait(&tenant.made);
        fixture.sandboxes.delete(&[tenant.made.id]).remove(0).unwrap();
        std::thread::sleep(PAUSE);
        bare.push(start_bare(unisolated()));
    }
    let [least, first, first_p99] = summary(&mut sandboxed);
    let [_, answer, _] = summary(&mut answered);
    let [_, heard, _] = summary(&mut heard);
    let [floor_least, floor, floor_p99] = summary(&mut bare);
    println!(
        "{{\"bench\":\"sandbox start\",\"sandbox\":\"{kind}\",\"n\":{starts},\"median_us\":{first},\"p99_us\":{first_p99},\
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
