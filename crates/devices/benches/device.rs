//! Measures a launch beside a bare one, and a cached instance beside a build: `cargo bench -p sublet-devices [--
//! N]` prints JSON.
//!
//! - `launch`: a warm call with 64 bytes each way, beside `clEnqueueNDRangeKernel` and `clFinish` of the same kernel with
//!   nothing else, in turns. Inputs and outputs that stay on the device are measured beside it.
//! - `start`: `create` and `start` of a function whose program is on the device, or on disk, beside a build of it.

#![allow(clippy::unwrap_used)]

#[path = "../tests/suite/mod.rs"]
mod suite;
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use sublet_devices::opencl::{OpenCl, bare};
use sublet_devices::{
    CacheSettings, DeviceSandboxId, DeviceSandboxes, KernelProgram, KernelSpec, LaunchInput, LaunchOutput,
    Patience,
};
use suite::{DeviceFixture, ONE, spec, started};
use support::OpenClFixture;

const DEFAULT_LAUNCHES: usize = 2000;
/// Builds take long.
const BUILDS: usize = 7;
const STARTS: usize = 30;

fn main() {
    let launches = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_LAUNCHES);
    println!("{}", launch(launches));
    println!("{}", start());
}

fn call(
    sandboxes: &DeviceSandboxes<OpenCl>,
    id: DeviceSandboxId,
    input: LaunchInput<'_, OpenCl>,
    output: LaunchOutput<'_, OpenCl>,
) {
    assert_eq!(sandboxes.launch(id, input, output, Patience::Forever).unwrap(), 64);
}

fn us(run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_nanos() as f64 / 1e3
}

/// Median and p99.
fn summary(samples: &mut [f64]) -> [f64; 2] {
    samples.sort_by(f64::total_cmp);
    [samples[samples.len() / 2], samples[samples.len() * 99 / 100]]
}

fn launch(count: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let settings = CacheSettings { store: Some(folder.path().join("programs")), ..CacheSettings::default() };
    let sandboxes = DeviceSandboxes::open(OpenClFixture::driver(1), &settings).unwrap();
    let function = spec::<OpenClFixture>(ONE, "echo", "main_kernel");
    let id = started(&sandboxes, std::slice::from_ref(&function))[0];
    let mut bare = bare::Launcher::new(sandboxes.driver(), &function, 64).unwrap();
    let mut buffers = [64, 64].map(|len| sandboxes.buffer(ONE, len).unwrap());
    let (input, mut output) = ([7u8; 64], [0u8; 64]);
    let [one, two] = &mut buffers;
    call(&sandboxes, id, LaunchInput::Host(&input), LaunchOutput::Device(one));
    let (mut ours, mut floor, mut resident) = (vec![], vec![], vec![]);
    for round in 0..count + 100 {
        let times = [
            us(|| call(&sandboxes, id, LaunchInput::Host(&input), LaunchOutput::Host(&mut output))),
            us(|| bare.launch().unwrap()),
            us(|| call(&sandboxes, id, LaunchInput::Device(one), LaunchOutput::Device(two))),
        ];
        if round >= 100 {
            ours.push(times[0]);
            floor.push(times[1]);
            resident.push(times[2]);
        }
    }
    assert_eq!(output, input);
    let [median, p99] = summary(&mut ours);
    let [floor, floor_p99] = summary(&mut floor);
    let [resident, _] = summary(&mut resident);
    format!(
        "{{\"bench\":\"device launch\",\"n\":{count},\"median_us\":{median:.1},\"p99_us\":{p99:.1},\"floor_us\":{floor:.1},\
         \"floor_p99_us\":{floor_p99:.1},\"over_floor_us\":{:.1},\"resident_us\":{resident:.1}}}",
        median - floor
    )
}

fn start() -> String {
    let folder = tempfile::tempdir().unwrap();
    let settings = CacheSettings { store: Some(folder.path().join("programs")), ..CacheSettings::default() };
    let open = || DeviceSandboxes::open(OpenClFixture::driver(1), &settings).unwrap();
    let again = |sandboxes: &DeviceSandboxes<OpenCl>, function: &KernelSpec| {
        let mut ids = Vec::new();
        let time = us(|| ids = started(sandboxes, std::slice::from_ref(function)));
        sandboxes.kill(&ids);
        sandboxes.delete(&ids);
        time
    };
    let (mut builds, mut cached, mut stored) = (vec![], vec![], vec![]);
    for build in 0..BUILDS {
        let mut function = spec::<OpenClFixture>(ONE, "add", "main_kernel");
        if let KernelProgram::Source { text, .. } = &mut function.program {
            text.push_str(&format!("// {build}\n"));
        }
        let sandboxes = open();
        builds.push(again(&sandboxes, &function));
        cached.extend((0..STARTS).map(|_| again(&sandboxes, &function)));
        stored.push(again(&open(), &function));
    }
    let [build, _] = summary(&mut builds);
    let [cached, cached_p99] = summary(&mut cached);
    let [stored, _] = summary(&mut stored);
    format!(
        "{{\"bench\":\"device start\",\"n\":{},\"median_us\":{cached:.1},\"p99_us\":{cached_p99:.1},\"from_disk_us\":{stored:.0},\
         \"build_us\":{build:.0},\"build_over_cached\":{:.0},\"build_over_disk\":{:.0}}}",
        BUILDS * STARTS,
        build / cached,
        build / stored
    )
}
