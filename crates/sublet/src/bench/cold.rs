//! A cold start: from the request for a lease to the first result, step by step.

use serde::Serialize;
use sublet_fabric::clock::monotonic_ns;
use sublet_proto::{Code, Error};
use sublet_runtime::{Access, Allocation, Invoker, Policy};

use super::{PACKAGE, Samples, Summary, deploy, human_ns};

/// The kind of sandbox that workers start in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    /// A plain process.
    Process,
}

/// The steps in their order; each ends where the next begins.
const STEPS: &[&str] = &["lease", "ask_agent", "package", "spawn", "exec", "load", "connect", "first_call"];

/// The figures of all starts.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    bench: &'static str,
    sandbox: Sandbox,
    n: u32,
    median_ns: f64,
    p99_ns: f64,
    steps: Vec<Step>,
}

/// One step of a cold start.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    step: &'static str,
    #[serde(flatten)]
    summary: Summary,
}

/// The headings of [`Figure::rows`].
pub const HEADINGS: [&str; 3] = ["STEP", "MEDIAN", "P99"];

impl Figure {
    /// For a table: the steps, and the whole.
    pub fn rows(&self) -> Vec<[String; 3]> {
        let row = |step: &str, summary: &Summary| {
            [step.to_owned(), human_ns(summary.median_ns), human_ns(summary.p99_ns)]
        };
        let whole = Summary { median_ns: self.median_ns, p99_ns: self.p99_ns };
        let steps = self.steps.iter().map(|step| row(step.step, &step.summary));
        steps.chain([row("request to first result", &whole)]).collect()
    }
}

/// Starts `n` times, each with a lease of its own.
pub fn run(access: &Access, sandbox: Sandbox, n: u32, mut progress: impl FnMut()) -> Result<Figure, Error> {
    let mut invoker = Invoker::connect_with(access.clone())?;
    deploy(invoker.manager())?;
    let mut total = Samples::with_capacity(n as usize);
    let mut steps: Vec<_> = STEPS.iter().map(|_| Samples::with_capacity(n as usize)).collect();
    // One more, not counted: it unpacks the package on the node.
    for start in 0..=n {
        let times = start_once(&mut invoker)?;
        if start > 0 {
            total.push(times[times.len() - 1].saturating_sub(times[0]));
            for (step, pair) in steps.iter_mut().zip(times.windows(2)) {
                step.push(pair[1].saturating_sub(pair[0]));
            }
            progress();
        }
    }
    let whole = total.summary(1.0);
    let steps =
        STEPS.iter().zip(&mut steps).map(|(step, samples)| Step { step, summary: samples.summary(1.0) });
    Ok(Figure {
        bench: "cold",
        sandbox,
        n,
        median_ns: whole.median_ns,
        p99_ns: whole.p99_ns,
        steps: steps.collect(),
    })
}

/// The moments between the steps, in nanoseconds.
fn start_once(invoker: &mut Invoker) -> Result<Vec<u64>, Error> {
    let begun = monotonic_ns();
    invoker.allocate(&Allocation::new(PACKAGE).policy(Policy::AlwaysWarm))?;
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
        cold.spawned_ns,
        cold.entered_ns,
        cold.loaded_ns,
        cold.ready_ns,
        ended,
    ])
}
