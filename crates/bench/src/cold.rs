//! Measures cold starts, from the request to the first result, step by step, beside a floor. A process starts with the
//! request for a lease. Its floor is the least time in which the system starts a program that does nothing, and reports
//! its end.

use std::process::{Command, Stdio};
use std::time::Instant;

use sublet_fabric::clock::monotonic_ns;
use sublet_proto::{Code, Error};
use sublet_runtime::{Access, Allocation, Invoker, Policy};

use super::cold_result::{ColdStartResult, ColdStartStep, SandboxChoice, micros};
use super::{
    CONTAINED_PACKAGE, KERNELS_PACKAGE, PACKAGE, Samples, deploy, deploy_in_image, deploy_kernels, instance,
    template,
};

/// Program of the floor of processes: `fork` and `exec` of a program that does nothing.
const NOTHING: &str = "true";

/// The steps in their order; each ends where the next begins.
const STEPS: &[&str] = &["lease", "ask_agent", "package", "sandbox", "load", "connect", "first_call"];

/// Parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ColdStartPlan {
    /// Kind of the sandbox.
    pub sandbox: SandboxChoice,
    /// Number of starts.
    pub n: u32,
    /// The pinned image of a container.
    pub image: Option<String>,
    /// The warm interpreter of a template.
    pub warm: template::WarmTemplate,
}

/// Executes the starts, and reports each.
pub fn run(access: &Access, plan: &ColdStartPlan, progress: impl FnMut()) -> Result<ColdStartResult, Error> {
    let n = plan.n;
    match plan.sandbox {
        SandboxChoice::Process | SandboxChoice::Container | SandboxChoice::OpenCl => {
            processes(access, plan.sandbox, plan.image.as_deref(), n, progress)
        }
        SandboxChoice::Template => template::run(&plan.warm, n, progress),
        SandboxChoice::Wasm => instance::run(access, n, progress),
    }
}

/// Deploys the package for a sandbox, in an image if one is named.
fn prepare(invoker: &Invoker, sandbox: SandboxChoice, image: Option<&str>) -> Result<&'static str, Error> {
    let manager = invoker.manager();
    match (sandbox, image) {
        (SandboxChoice::OpenCl, _) => deploy_kernels(manager).map(|()| KERNELS_PACKAGE),
        (_, Some(image)) => deploy_in_image(manager, image).map(|()| CONTAINED_PACKAGE),
        (_, None) => deploy(manager).map(|()| PACKAGE),
    }
}

/// Starts `n` processes, each with a lease of its own, in an image if one is named.
fn processes(
    access: &Access,
    sandbox: SandboxChoice,
    image: Option<&str>,
    n: u32,
    mut progress: impl FnMut(),
) -> Result<ColdStartResult, Error> {
    let mut invoker = Invoker::connect_with(access.clone())?;
    let package = prepare(&invoker, sandbox, image)?;
    let (mut total, mut floor) = (Samples::with_capacity(n as usize), Samples::with_capacity(n as usize));
    let mut steps: Vec<_> = STEPS.iter().map(|_| Samples::with_capacity(n as usize)).collect();
    // The first start is not counted: it unpacks the package on the node, and builds its kernels.
    for start in 0..=n {
        let times = start_once(&mut invoker, package)?;
        debug_assert_eq!(times.len(), STEPS.len() + 1, "each step begins and ends: {STEPS:?}");
        if start > 0 {
            total.push(times[times.len() - 1].saturating_sub(times[0]));
            for (step, pair) in steps.iter_mut().zip(times.windows(2)) {
                step.push(pair[1].saturating_sub(pair[0]));
            }
            floor.push(start_nothing(Command::new(NOTHING))?);
            progress();
        }
    }
    let (median_us, p99_us) = micros(&mut total);
    let (floor_us, _) = micros(&mut floor);
    let steps = STEPS.iter().zip(&mut steps).map(|(step, samples)| {
        let (median_us, p99_us) = micros(samples);
        ColdStartStep { step, median_us, p99_us }
    });
    Ok(ColdStartResult { bench: "cold", sandbox, n, median_us, p99_us, floor_us, steps: steps.collect() })
}

fn start_nothing(mut command: Command) -> Result<u64, Error> {
    let failed = |error| Error::new(Code::System, format!("starting the floor's program failed: {error}"));
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).status().map_err(failed)?;
    let took_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    match status.success() {
        true => Ok(took_ns),
        false => Err(Error::new(Code::System, format!("the floor's program: {status}"))),
    }
}

/// Times between the steps, in nanoseconds.
fn start_once(invoker: &mut Invoker, package: &str) -> Result<Vec<u64>, Error> {
    let begun = monotonic_ns();
    invoker.allocate(&Allocation::new(package).policy(Policy::AlwaysWarm))?;
    let (input, mut output) = ([0u8; 64], [0u8; 64]);
    let done = invoker.submit("echo", &input, &mut output)?.wait()?;
    let ended = monotonic_ns();
    if done.output_bytes != input.len() {
        return Err(Error::new(Code::Internal, "echo returned something else"));
    }
    let cold = invoker.cold_start().unwrap_or_default();
    invoker.deallocate()?;
    Ok(vec![
        begun,
        cold.asked_ns,
        cold.requested_ns,
        cold.package_ready_ns,
        cold.entered_ns,
        cold.loaded_ns,
        cold.ready_ns,
        ended,
    ])
}
