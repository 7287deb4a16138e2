//! Measures the round trip of one call, beside the raw round trip.

use serde::Serialize;
use sublet_proto::Error;

pub use super::rounds::{CalledFunction, Mode, PairPlan};

use super::human_ns;
use super::pairs::measure;
use super::subject::Subject;
use super::transport::{CallTransport, Where};

/// The sizes of `--sweep`, in bytes.
pub const SWEEP: &[u32] = &[0, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 5 << 20];

/// Results for one size.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyResult {
    #[serde(flatten)]
    subject: Subject,
    n: usize,
    median_ns: f64,
    p99_ns: f64,
    raw_median_ns: f64,
    raw_p99_ns: f64,
    ratio: f64,
}

/// The headings of [`LatencyResult::cells`].
pub const HEADINGS: [&str; 10] =
    ["FABRIC", "MODE", "FUNCTION", "BYTES", "N", "MEDIAN", "P99", "RAW MEDIAN", "RAW P99", "RATIO"];

impl LatencyResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 10] {
        let [fabric, mode, function, bytes] = self.subject.cells();
        [
            fabric,
            mode,
            function,
            bytes,
            self.n.to_string(),
            human_ns(self.median_ns),
            human_ns(self.p99_ns),
            human_ns(self.raw_median_ns),
            human_ns(self.raw_p99_ns),
            format!("{:.2}", self.ratio),
        ]
    }
}

/// Measures every size in turn, in one lease. Calls `progress` after each.
pub fn run(
    place: &Where,
    transport: &CallTransport,
    plan: PairPlan,
    sizes: &[u32],
    mut progress: impl FnMut(u32),
) -> Result<Vec<LatencyResult>, Error> {
    let mut figures = Vec::with_capacity(sizes.len());
    measure(place, transport, plan, sizes, |size, measured| {
        figures.push(LatencyResult {
            subject: Subject {
                bench: "latency",
                carried: transport.carried(),
                mode: plan.mode,
                function: plan.function,
                size_bytes: size,
            },
            n: measured.n,
            median_ns: measured.ours.median_ns,
            p99_ns: measured.ours.p99_ns,
            raw_median_ns: measured.raw.median_ns,
            raw_p99_ns: measured.raw.p99_ns,
            ratio: measured.ours.median_ns / measured.raw.median_ns,
        });
        progress(size);
    })?;
    Ok(figures)
}
