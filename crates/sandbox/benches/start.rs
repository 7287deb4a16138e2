//! Measures a sandbox's start from the request to the program's first instruction, and until its first line is read
//! (`heard_us`). A bare fork and exec of the same program is measured in turns with each kind: process, container, weak
//! isolation, and each OCI runtime that is installed. `cargo bench -p sublet-sandbox [-- STARTS]` prints JSON.

#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sublet_sandbox::{IsolationKind, RootImage, Spec};
use support::{SandboxFixture, Sort};

/// Between two starts: the spawner makes ready what the next one needs.
const PAUSE: Duration = Duration::from_millis(10);
const DEFAULT_STARTS: usize = 200;

fn main() {
    let starts = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_STARTS);
    for (kind, sort, program) in [
        ("process", Sort::Process, support::program().to_owned()),
        ("container", Sort::Container, support::image()[0].join("bin/probe")),
    ] {
        measure(kind, &SandboxFixture::open(sort), &program, starts, |_| {});
    }
    measure("weak", &SandboxFixture::weak(Sort::Process), support::program(), starts, |_| {});
    for runtime in ["/usr/bin/crun", "/usr/sbin/runc", "/usr/bin/runsc"].map(Path::new) {
        if !runtime.exists() || !support::is_root() {
            continue;
        }
        let image = RootImage { layers: support::image().to_vec(), working_folder: "/".into() };
        let program = support::image()[0].join("bin/probe");
        let name = runtime.file_name().unwrap().to_str().unwrap();
        measure(name, &SandboxFixture::open(Sort::Container), &program, starts, |spec| {
            spec.kind = IsolationKind::Delegated { runtime: runtime.to_owned(), image: image.clone() };
        });
    }
}

fn measure(kind: &str, fixture: &SandboxFixture, program: &Path, starts: usize, change: impl Fn(&mut Spec)) {
    let (mut sandboxed, mut answered, mut heard, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..starts {
        std::thread::sleep(PAUSE);
        let begun = now_ns();
        let mut tenant = fixture.start_with(&["now"], &change);
        answered.push(now_ns() - begun);
        let said = tenant.read_line();
        heard.push(now_ns() - begun);
        // A kernel of its own has another clock.
        sandboxed.push(said.trim().parse::<u64>().unwrap().saturating_sub(begun));
        fixture.wait(&tenant.made);
        fixture.sandboxes.delete(&[tenant.made.id]).remove(0).unwrap();
        std::thread::sleep(PAUSE);
        bare.push(start_bare(program));
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

fn start_bare(program: &Path) -> u64 {
    let (mut outside, inside) = UnixStream::pair().unwrap();
    let begun = now_ns();
    let mut command = Command::new(program);
    let mut child = command.arg("now").stdin(OwnedFd::from(inside)).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    let mut said = String::new();
    outside.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said.trim().parse::<u64>().unwrap() - begun
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
