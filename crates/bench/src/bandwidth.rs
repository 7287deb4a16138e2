//! Measures the transfer of large payloads in both directions, beside the same bytes without Sublet.
//!
//! A call sends its payload to the worker, which returns the same number of bytes: one call after the other, as on the
//! raw side. The function copies nothing, since the network copies nothing for the raw side either. In shared memory
//! bytes move only by a copy: there the function is `echo`, and the raw side copies, too.

use serde::Serialize;
use sublet_fabric::Provider;
use sublet_proto::Error;

use super::pairs::measure;
use super::rounds::{CalledFunction, Mode, PairPlan};
use super::subject::Subject;
use super::transport::{CallTransport, Where};

/// Sizes that are measured by default, in bytes.
pub const SIZES: &[u32] = &[1_000_000, 5_000_000];

/// Results for one size.
#[derive(Clone, Debug, Serialize)]
pub struct BandwidthResult {
    #[serde(flatten)]
    subject: Subject,
    n: usize,
    /// Payload in both directions together, divided by the time of the median call.
    bytes_per_s: f64,
    raw_bytes_per_s: f64,
    ratio: f64,
}

/// The headings of [`BandwidthResult::cells`].
pub const HEADINGS: [&str; 7] = ["FABRIC", "MODE", "BYTES", "N", "MB/S", "RAW MB/S", "RATIO"];

impl BandwidthResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 7] {
        let [fabric, mode, _, bytes] = self.subject.cells();
        [
            fabric,
            mode,
            bytes,
            self.n.to_string(),
            format!("{:.0}", self.bytes_per_s / 1e6),
            format!("{:.0}", self.raw_bytes_per_s / 1e6),
            format!("{:.2}", self.ratio),
        ]
    }
}

/// Measures every size in turn, in one lease. Calls `progress` after each.
pub fn run(
    place: &Where,
    transport: &CallTransport,
    (mode, calls): (Mode, u32),
    sizes: &[u32],
    mut progress: impl FnMut(u32),
) -> Result<Vec<BandwidthResult>, Error> {
    let function =
        if transport.fabric == Provider::Shm { CalledFunction::Echo } else { CalledFunction::Exchange };
    let plan = PairPlan { mode, function, calls };
    let mut figures = Vec::with_capacity(sizes.len());
    measure(place, transport, plan, sizes, |size, measured| {
        let per_s = |median_ns: f64| 2.0 * f64::from(size) * 1e9 / median_ns;
        let (ours, limit) = (per_s(measured.ours.median_ns), per_s(measured.raw.median_ns));
        figures.push(BandwidthResult {
            subject: Subject {
                bench: "bandwidth",
                carried: transport.carried(),
                mode,
                function,
                size_bytes: size,
            },
            n: measured.n,
            bytes_per_s: ours,
            raw_bytes_per_s: limit,
            ratio: ours / limit,
        });
        progress(size);
    })?;
    Ok(figures)
}
