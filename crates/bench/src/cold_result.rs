//! Results of measured cold starts: the steps, the whole, and the floor of each kind of sandbox.

use serde::Serialize;

use super::{Samples, human_ns};

/// The kind of sandbox that workers start in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SandboxChoice {
    /// An isolated process.
    Process,
    /// The same in the file system of an image.
    Container,
    /// A copy of a warm Python: from the request for a sandbox to the first line of a function.
    Template,
    /// A fresh instance in the engine of a process that has loaded the package.
    Wasm,
    /// An isolated process with a device, whose kernels were built before.
    #[value(name = "opencl")]
    OpenCl,
}

impl SandboxChoice {
    /// Default number of starts: more where they take microseconds.
    pub fn usual_starts(self) -> u32 {
        match self {
            SandboxChoice::Process
            | SandboxChoice::Container
            | SandboxChoice::Template
            | SandboxChoice::OpenCl => 50,
            SandboxChoice::Wasm => 20_000,
        }
    }

    /// Name of the floor.
    pub(super) fn floor(self) -> &'static str {
        match self {
            SandboxChoice::Process | SandboxChoice::Container | SandboxChoice::OpenCl => {
                "fork and exec of nothing"
            }
            SandboxChoice::Template => "an interpreter that starts and imports, without a sandbox",
            SandboxChoice::Wasm => "the same of native code",
        }
    }
}

/// Results of all starts.
#[derive(Clone, Debug, Serialize)]
pub struct ColdStartResult {
    pub(super) bench: &'static str,
    pub(super) sandbox: SandboxChoice,
    pub(super) n: u32,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    /// Median of the floor, which is measured in turn with the starts.
    pub(super) floor_us: f64,
    pub(super) steps: Vec<ColdStartStep>,
}

/// One step of a cold start.
#[derive(Clone, Debug, Serialize)]
pub struct ColdStartStep {
    pub(super) step: &'static str,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
}

pub(super) const NS_PER_US: f64 = 1e3;

/// The headings of [`ColdStartResult::rows`].
pub const HEADINGS: [&str; 3] = ["STEP", "MEDIAN", "P99"];

impl ColdStartResult {
    /// Formats the results for a table: the steps, the whole, and the floor.
    pub fn rows(&self) -> Vec<[String; 3]> {
        let human_us = |us: f64| human_ns(us * NS_PER_US);
        let row = |step: &str, median_us, p99_us| [step.to_owned(), human_us(median_us), human_us(p99_us)];
        let whole = match self.sandbox {
            SandboxChoice::Template => "request to the function",
            _ => "request to first result",
        };
        let steps = self.steps.iter().map(|step| row(step.step, step.median_us, step.p99_us));
        let floor = [self.sandbox.floor().to_owned(), human_us(self.floor_us), String::new()];
        steps.chain([row(whole, self.median_us, self.p99_us), floor]).collect()
    }
}

/// Median and p99 of nanoseconds, in microseconds.
pub(super) fn micros(samples: &mut Samples) -> (f64, f64) {
    let summary = samples.summary(1.0);
    (summary.median_ns / NS_PER_US, summary.p99_ns / NS_PER_US)
}
