//! Measures a start in WebAssembly: from a request to a warm engine to the first result of a fresh instance, beside the
//! same call of native code, which has no instances. The two alternate, each in a lease of its own, on the same core.

use sublet_fabric::clock::{Calibration, ticks, ticks_ordered};
use sublet_proto::package::{self, encode};
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};
use sublet_runtime::{Access, Allocation, CallOptions, Invoker, Policy};

use super::cold_result::{ColdStartResult, ColdStartStep, NS_PER_US, SandboxChoice, micros};
use super::{PACKAGE, Samples, deploy, pin_client};

/// Package of the module.
const MODULE_PACKAGE: &str = "sublet-bench-wasm";
/// The function `echo` in WebAssembly:
///
/// ```wat
/// (module
///   (memory (export "memory") 1)
///   (func (export "echo") (param i32 i32 i32) (result i32)
///     local.get 2 local.get 0 local.get 1 memory.copy local.get 1))
/// ```
const MODULE: &[u8] = b"\0asm\x01\0\0\0\
    \x01\x08\x01\x60\x03\x7f\x7f\x7f\x01\x7f\
    \x03\x02\x01\0\
    \x05\x03\x01\0\x01\
    \x07\x11\x02\x06memory\x02\0\x04echo\0\0\
    \x0a\x10\x01\x0e\0\x20\x02\x20\0\x20\x01\xfc\x0a\0\0\x20\x01\x0b";
const INPUT_BYTES: usize = 64;
/// Number of turns of each side.
const TURNS: u32 = 10;
/// Calls of a turn before the counted ones.
const UNCOUNTED: u32 = 100;

/// Samples of one side.
struct SideSamples {
    total: Samples,
    executing: Samples,
}

impl SideSamples {
    fn with_capacity(samples: u32) -> SideSamples {
        let samples = || Samples::with_capacity(samples as usize);
        SideSamples { total: samples(), executing: samples() }
    }
}

/// Calls `n` times, each time in a new instance.
pub(super) fn run(access: &Access, n: u32, mut progress: impl FnMut()) -> Result<ColdStartResult, Error> {
    let calibration = Calibration::start();
    pin_client()?;
    let mut invoker = Invoker::connect_with(access.clone())?;
    deploy(invoker.manager())?;
    let file = PackageFile { path: "echo.wasm".to_owned(), data: MODULE.to_vec(), executable: false };
    let manifest = format!("name = \"{MODULE_PACKAGE}\"\nlibrary = \"echo.wasm\"\n");
    invoker.manager().deploy(encode(&package::from_files(&manifest, vec![file])?))?;
    let (mut wasm, mut native) = (SideSamples::with_capacity(n), SideSamples::with_capacity(n));
    let calls = n.div_ceil(TURNS);
    for _ in 0..TURNS {
        turn(&mut invoker, MODULE_PACKAGE, calls, &mut wasm)?;
        turn(&mut invoker, PACKAGE, calls, &mut native)?;
        (0..calls).for_each(|_| progress());
    }
    Ok(outcome(wasm, native, calibration.ticks_per_ns()))
}

/// Calls a hot worker of a package for one turn.
fn turn(invoker: &mut Invoker, package: &str, calls: u32, side: &mut SideSamples) -> Result<(), Error> {
    invoker.allocate(&Allocation::new(package).policy(Policy::AlwaysHot))?;
    let echo = invoker.function("echo")?;
    let (input, mut output) = (invoker.buffer::<u8>(INPUT_BYTES)?, invoker.buffer::<u8>(INPUT_BYTES)?);
    let options = CallOptions { timed: true, ..CallOptions::default() };
    for call in 0..UNCOUNTED + calls {
        let since = ticks_ordered();
        let done = invoker.submit_with(echo, &input, &mut output, options)?.wait()?;
        let took = ticks().saturating_sub(since);
        if done.output_bytes != INPUT_BYTES {
            return Err(Error::new(Code::Internal, "echo returned something else"));
        }
        if call >= UNCOUNTED {
            side.total.push(took);
            side.executing.push(u64::try_from(done.executing.as_nanos()).unwrap_or(u64::MAX));
        }
    }
    drop((input, output));
    invoker.deallocate().map(drop)
}

fn outcome(mut wasm: SideSamples, mut native: SideSamples, ticks_per_ns: f64) -> ColdStartResult {
    debug_assert_eq!(wasm.total.len(), native.total.len(), "the sides take turns of the same length");
    debug_assert_eq!(wasm.total.len(), wasm.executing.len(), "each call has both times");
    let total = wasm.total.summary(ticks_per_ns);
    let (median_us, p99_us) = micros(&mut wasm.executing);
    ColdStartResult {
        bench: "cold",
        sandbox: SandboxChoice::Wasm,
        n: u32::try_from(wasm.total.len()).unwrap_or(u32::MAX),
        median_us: total.median_ns / NS_PER_US,
        p99_us: total.p99_ns / NS_PER_US,
        floor_us: native.total.summary(ticks_per_ns).median_ns / NS_PER_US,
        // All work of the worker, including the end of the previous instance; the rest is the way there and back.
        steps: vec![ColdStartStep { step: "execute", median_us, p99_us }],
    }
}
