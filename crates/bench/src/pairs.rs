//! Measures calls beside raw round trips: blocks of both alternate, so that both see the same states of the machine.

use sublet_fabric::clock::{Calibration, ticks_ordered};
use sublet_proto::{Error, saturating_u64};
use sublet_runtime::{CallOptions, Function, Invoker};

use super::raw::RawSide;
use super::rounds::{CalledFunction, HEAD_BYTES, Mode, PairPlan, Rounds, THINK, UNCOUNTED, think};
use super::transport::{CallTransport, Site, Where};
use super::{Samples, Summary, allocate, pin_client};

/// Size above which fewer calls suffice, since each takes long.
const LARGE_BYTES: u32 = 64 << 10;
const LARGE_CALLS: u32 = 2_000;

/// Results for one size.
pub(super) struct PairSummary {
    pub(super) n: usize,
    pub(super) ours: Summary,
    pub(super) raw: Summary,
}

/// Measures every size in turn, in one lease. Calls `done` with the results of each.
pub(super) fn measure(
    place: &Where,
    transport: &CallTransport,
    plan: PairPlan,
    sizes: &[u32],
    mut done: impl FnMut(u32, &PairSummary),
) -> Result<(), Error> {
    let calibration = Calibration::start();
    let transport = &transport.resolved()?;
    let site = Site::open(place, transport, &[])?;
    pin_client()?;
    let mut invoker = Invoker::connect_with(site.access.clone())?;
    allocate(&mut invoker, &transport.allocation(plan.mode))?;
    let mut raw = RawSide::new(transport, site.local, sizes.iter().copied().max().unwrap_or_default())?;
    for &size in sizes {
        let pairs = Pairs::new(&invoker, &mut raw, plan, size)?;
        done(size, &pairs.run(calibration.ticks_per_ns())?);
    }
    drop(raw);
    invoker.deallocate().map(drop)
}

/// The state of one size's measurement.
struct Pairs<'run> {
    invoker: &'run Invoker,
    limit: &'run mut RawSide,
    called: Function,
    calls: u32,
    rounds: Rounds,
    ours: Samples,
    raw: Samples,
}

impl<'run> Pairs<'run> {
    fn new(
        invoker: &'run Invoker,
        limit: &'run mut RawSide,
        plan: PairPlan,
        size: u32,
    ) -> Result<Pairs<'run>, Error> {
        let samples = || Samples::with_capacity(plan.calls as usize);
        Ok(Pairs {
            called: invoker.function(plan.function.name())?,
            rounds: Rounds::new(invoker, plan, size)?,
            calls: plan.calls,
            ours: samples(),
            raw: samples(),
            invoker,
            limit,
        })
    }

    fn run(mut self, ticks_per_ns: f64) -> Result<PairSummary, Error> {
        if self.rounds.mode == Mode::Warm {
            self.rounds.think_ticks = saturating_u64(THINK.as_nanos() as f64 * ticks_per_ns);
        }
        let (blocks, counted) = self.blocks();
        for _ in 0..blocks {
            calls(self.invoker, self.called, &mut self.rounds, counted, &mut self.ours)?;
            self.limit.block(self.invoker, &mut self.rounds, counted, &mut self.raw)?;
        }
        let n = self.ours.len();
        debug_assert_eq!(n, self.raw.len(), "both sides have {blocks} blocks of {counted} rounds");
        Ok(PairSummary { n, ours: self.ours.summary(ticks_per_ns), raw: self.raw.summary(ticks_per_ns) })
    }

    /// Number of blocks, and of counted rounds in each.
    fn blocks(&self) -> (u32, u32) {
        let moves = self.rounds.function == CalledFunction::Echo || !self.limit.is_shared_memory();
        let large = moves && self.rounds.size > LARGE_BYTES;
        let slow = large || self.rounds.mode == Mode::Warm;
        let counted = if slow { 16 } else { 128 };
        let calls = if large { self.calls.min(LARGE_CALLS) } else { self.calls };
        (calls.div_ceil(counted).max(1), counted)
    }
}

fn calls(
    invoker: &Invoker,
    called: Function,
    rounds: &mut Rounds,
    counted: u32,
    samples: &mut Samples,
) -> Result<(), Error> {
    let size = rounds.size as usize;
    for round in 0..UNCOUNTED + counted {
        think(rounds.think_ticks);
        let input = rounds.input.part(..).bytes().part(HEAD_BYTES..HEAD_BYTES + size);
        let mut output = rounds.output.part_mut(HEAD_BYTES..HEAD_BYTES + size);
        let since = ticks_ordered();
        invoker.submit_with(called, &input, &mut output, CallOptions::default())?.wait()?;
        if round >= UNCOUNTED {
            samples.since(since);
        }
    }
    Ok(())
}
