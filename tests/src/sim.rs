//! The control plane, simulated: the manager's real core and the agent's real book, with models of all around them,
//! in virtual time and from a seed.
//!
//! ```text
//! world.rs     time goes from event to event; faults strike       plan.rs      what a run is like
//! manager.rs   the core, and a model of its shell                 store.rs     what it keeps
//! agent.rs     the book, and a model of its threads               worker.rs    what uses time
//! client.rs    who asks, holds and lets go                        network.rs   what becomes of messages
//! truth.rs     what is the case, and the invariants               fairness.rs  those of the queue
//! scene.rs     what all models share                              sabotage.rs  what the invariants must find
//! isolation.rs what operators allow and clients demand            random.rs, slab.rs, clock.rs, trace.rs
//! queue.rs     events by their time
//! ```
//!
//! A run is a function of its [`SimOptions`]. It ends with the first violation of an [`Invariant`], which names the event
//! and the command that leads there again.

mod agent;
mod client;
mod clock;
mod fairness;
mod isolation;
mod manager;
mod network;
mod plan;
mod queue;
mod random;
mod sabotage;
mod scene;
mod slab;
mod store;
mod trace;
mod truth;
mod worker;
mod world;

use std::fmt::Write as _;

pub use plan::{SimOptions, SimPlan};
pub use random::Random;
pub use sabotage::Sabotage;
pub use truth::{Invariant, InvariantViolation};

use scene::Scene;
use world::SimWorld;

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct SimOutcome {
    /// Options of the run.
    pub options: SimOptions,
    /// How many events there were.
    pub events: u64,
    /// Leases that were granted.
    pub leases: u64,
    /// Simulated time.
    pub simulated_us: u64,
    /// Equal for equal runs.
    pub fingerprint: u64,
    /// The first violation of an invariant, if there was one.
    pub failure: Option<SimFailure>,
}

/// A violation, and what led there.
#[derive(Clone, Debug)]
pub struct SimFailure {
    /// The invariant that was violated, and how.
    pub violation: InvariantViolation,
    /// The last events, one a line.
    pub trace: String,
}

/// Runs what these options say.
pub fn run(options: &SimOptions) -> SimOutcome {
    let mut world = SimWorld::new(options);
    world.run();
    let scene = world.scene();
    let failure = scene
        .truth
        .violation()
        .map(|violation| SimFailure { violation: violation.clone(), trace: last(scene) });
    SimOutcome {
        options: *options,
        events: scene.trace.events(),
        leases: scene.truth.leases_granted(),
        simulated_us: scene.now_us,
        fingerprint: scene.trace.fingerprint(),
        failure,
    }
}

fn last(scene: &Scene) -> String {
    let mut lines = String::new();
    for (number, at_us, event) in scene.trace.last() {
        // Writing to a string does not fail.
        let _ = writeln!(lines, "{number:>12} {:>14.6} s  {event:?}", at_us as f64 / 1e6);
    }
    lines
}

impl SimFailure {
    /// Describes the failure for a developer: what did not hold, when, after what, and how to reproduce it.
    pub fn describe(&self, outcome: &SimOutcome) -> String {
        let SimOptions { seed, nodes, duration_us, .. } = outcome.options;
        let (number, at_s, minutes) =
            (outcome.events, outcome.simulated_us as f64 / 1e6, duration_us / 60_000_000);
        format!(
            "{}VIOLATION at event {number}, {at_s:.6} s, seed {seed}\n{}\nagain: cargo run --release -p sublet-tests \
             --bin sim -- --first-seed {seed} --seeds 1 --nodes {nodes} --minutes {minutes}",
            self.trace, self.violation
        )
    }
}
