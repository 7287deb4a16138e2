//! Measures a call of a client that is connected to more and more workers.
//!
//! The workers share one core and sleep. Calls go to the first of them; the others are connected and idle. Thus only
//! the number of connections that a client and a node have to check grows. Leases of one worker and of several
//! alternate in short blocks, each a lease of its own.

use serde::Serialize;
use sublet_fabric::clock::{Calibration, ticks_ordered};
use sublet_proto::{Error, saturating_u64};
use sublet_runtime::{CallOptions, Invoker};

use super::rounds::{CalledFunction, Mode, THINK, UNCOUNTED, think};
use super::subject::Subject;
use super::transport::{CallTransport, Site, Where};
use super::{Samples, human_ns, pin_client};

/// Most workers of one client.
pub const MOST: u32 = 32;
/// Counted calls of a block.
const BLOCK: u32 = 100;
/// Memory of a lease, and additional memory for each worker, in bytes.
const MEMORY_BYTES: u64 = 32 << 20;
const MEMORY_OF_A_WORKER: u64 = 4 << 20;

/// Parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionsPlan {
    /// The called function.
    pub function: CalledFunction,
    /// Bytes of input and output.
    pub size: u32,
    /// Calls for each number of connections.
    pub calls: u32,
    /// Most connections.
    pub connections: u32,
}

/// Results for one number of connections.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionsResult {
    #[serde(flatten)]
    subject: Subject,
    connections: u32,
    n: usize,
    median_ns: f64,
    p99_ns: f64,
    /// Ratio of the median to the median with one connection.
    ratio: f64,
}

/// The headings of [`ConnectionsResult::cells`].
pub const HEADINGS: [&str; 7] = ["FABRIC", "CONNECTIONS", "BYTES", "N", "MEDIAN", "P99", "RATIO"];

impl ConnectionsResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 7] {
        let [fabric, _, _, bytes] = self.subject.cells();
        [
            fabric,
            self.connections.to_string(),
            bytes,
            self.n.to_string(),
            human_ns(self.median_ns),
            human_ns(self.p99_ns),
            format!("{:.2}", self.ratio),
        ]
    }
}

/// Measures 1, 2, 4 and so on up to the plan's connections. Calls `progress` after each round of blocks.
pub fn run(
    place: &Where,
    transport: &CallTransport,
    plan: ConnectionsPlan,
    mut progress: impl FnMut(),
) -> Result<Vec<ConnectionsResult>, Error> {
    let calibration = Calibration::start();
    let places = plan.connections.to_string();
    let shared = ["--cores", "0", "--shared-cores", "1", "--shared-places", &places];
    let transport = &transport.resolved()?;
    let site = Site::open(place, transport, &shared)?;
    pin_client()?;
    let mut invoker = Invoker::connect_with(site.access.clone())?;
    super::deploy(invoker.manager())?;
    let think_ticks = saturating_u64(THINK.as_nanos() as f64 * calibration.ticks_per_ns());
    let mut measured: Vec<_> =
        counts(plan.connections).map(|count| (count, Samples::with_capacity(plan.calls as usize))).collect();
    debug_assert!(
        measured.is_sorted_by(|(one, _), (next, _)| one < next),
        "the numbers of connections do not grow up to {}",
        plan.connections
    );
    for _ in 0..blocks(plan.calls) {
        for (connections, samples) in &mut measured {
            block(&mut invoker, (transport, plan), *connections, think_ticks, samples)?;
        }
        progress();
    }
    Ok(summaries(transport, plan, measured, calibration.ticks_per_ns()))
}

/// Number of rounds of blocks for this number of calls, which is the number of progress steps.
pub fn blocks(calls: u32) -> u32 {
    calls.div_ceil(BLOCK).max(1)
}

/// Powers of two below `most`, and `most`.
fn counts(most: u32) -> impl Iterator<Item = u32> {
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(move |&count| count < most);
    powers.chain([most])
}

/// Executes the calls of a block, in a separate lease with this number of workers.
fn block(
    invoker: &mut Invoker,
    (transport, plan): (&CallTransport, ConnectionsPlan),
    connections: u32,
    think_ticks: u64,
    samples: &mut Samples,
) -> Result<(), Error> {
    let memory_bytes = MEMORY_BYTES + MEMORY_OF_A_WORKER * u64::from(connections);
    let allocation = transport.allocation(Mode::Warm).shared().cores(connections).memory_bytes(memory_bytes);
    invoker.allocate(&allocation)?;
    let called = invoker.function(plan.function.name())?;
    let mut output = invoker.buffer::<u8>(plan.size as usize)?;
    let mut input = invoker.buffer::<u8>(plan.size as usize)?;
    input.fill(7);
    for round in 0..UNCOUNTED + BLOCK {
        think(think_ticks);
        let options = CallOptions { worker: Some(0), ..CallOptions::default() };
        let since = ticks_ordered();
        invoker.submit_with(called, &input, &mut output, options)?.wait()?;
        if round >= UNCOUNTED {
            samples.since(since);
        }
    }
    drop((input, output));
    invoker.deallocate().map(drop)
}

fn summaries(
    transport: &CallTransport,
    plan: ConnectionsPlan,
    measured: Vec<(u32, Samples)>,
    ticks_per_ns: f64,
) -> Vec<ConnectionsResult> {
    let mut summaries: Vec<ConnectionsResult> = Vec::with_capacity(measured.len());
    for (connections, mut samples) in measured {
        let summary = samples.summary(ticks_per_ns);
        debug_assert!(
            connections == 1 || !summaries.is_empty(),
            "the first ratio is to {connections} connections"
        );
        let one_ns = summaries.first().map_or(summary.median_ns, |one| one.median_ns);
        summaries.push(ConnectionsResult {
            subject: Subject {
                bench: "connections",
                carried: transport.carried(),
                mode: Mode::Warm,
                function: plan.function,
                size_bytes: plan.size,
            },
            connections,
            n: samples.len(),
            median_ns: summary.median_ns,
            p99_ns: summary.p99_ns,
            ratio: summary.median_ns / one_ns,
        });
    }
    summaries
}

#[cfg(test)]
mod tests {
    use sublet_fabric::Provider;

    use super::*;

    #[test]
    fn connections_double_up_to_the_most() {
        let counts = |most| counts(most).collect::<Vec<_>>();
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(32), [1, 2, 4, 8, 16, 32]);
        assert_eq!(counts(5), [1, 2, 4, 5]);
    }

    #[test]
    fn ratios_are_to_one_connection() {
        let samples = |ticks: u64| {
            let mut samples = Samples::with_capacity(1);
            samples.push(ticks);
            samples
        };
        let plan = ConnectionsPlan { function: CalledFunction::Echo, size: 64, calls: 1, connections: 2 };
        let transport = CallTransport { fabric: Provider::Tcp, provider: None, encrypted: false };
        let summaries = summaries(&transport, plan, vec![(1, samples(100)), (2, samples(110))], 1.0);
        let json = serde_json::to_value(&summaries).unwrap();
        assert_eq!((&json[0]["ratio"], &json[1]["ratio"]), (&1.0.into(), &1.1.into()));
        assert_eq!((&json[1]["bench"], &json[1]["mode"]), (&"connections".into(), &"warm".into()));
    }
}
