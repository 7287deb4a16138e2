//! The simulator on small, hostile clusters; that its runs are reproducible; and that each of its checks can fail.
//! `cargo xtask sim` runs it on large ones. `SUBLET_TEST_SIM_SEEDS` says how many small ones there are (50).

use std::panic::catch_unwind;

use sublet_tests::numbers::from_environment;
use sublet_tests::sim::{self, Invariant, Sabotage, SimOptions, SimOutcome};

const MINUTE_US: u64 = 60_000_000;
/// Seeds of small clusters.
const SEEDS: u64 = 50;
/// Seeds that each sabotage is tried with: a run may lack what the sabotage spoils.
const TRIES: u64 = 200;

fn run(seed: u64, nodes: u32, sabotage: Option<Sabotage>) -> SimOutcome {
    sim::run(&SimOptions { seed, nodes, duration_us: 10 * MINUTE_US, sabotage })
}

#[test]
fn invariants_hold_on_small_clusters_whatever_fails() {
    for seed in 1..=from_environment("SUBLET_TEST_SIM_SEEDS").unwrap_or(SEEDS) {
        let outcome = run(seed, 1 + (seed % 30) as u32, None);
        if let Some(failure) = &outcome.failure {
            panic!("{}", failure.describe(&outcome));
        }
        assert!(outcome.events > 1_000, "seed {seed} had {} events only", outcome.events);
    }
}

#[test]
fn only_the_same_seed_gives_the_same_run() {
    let (first, again, other) = (run(7, 30, None), run(7, 30, None), run(8, 30, None));
    assert_eq!((first.fingerprint, first.events), (again.fingerprint, again.events));
    assert_ne!(first.fingerprint, other.fingerprint);
}

#[test]
fn what_is_made_wrong_on_purpose_is_found() {
    use Invariant::*;
    let expected = |sabotage| match sabotage {
        Sabotage::HideLeases => NothingIsLeasedTwice,
        Sabotage::HideEnds => NothingLeaks,
        Sabotage::DoubleUsage => NothingIsBilledTwice,
        Sabotage::Overrun => LeasesEndInTime,
        Sabotage::Reissue => TicketsAreTakenOnce,
        Sabotage::ForgetWrites => NoUsageIsLost,
        Sabotage::AnswerTwice | Sabotage::DropAnswers => RequestsAreAnsweredOnce,
        Sabotage::IgnoreQuotas => QuotasHold,
        Sabotage::IgnoreLimits => QueuesAreBounded,
        Sabotage::HoldBack => NobodyStarves,
        Sabotage::HideFound => LeasesCountOnce,
        Sabotage::Unnumbered => NothingEndsWithoutCause,
        Sabotage::AllowAll => IsolationsAreAllowed,
    };
    for &sabotage in Sabotage::ALL {
        // An assertion of the manager may end a run before the check that is tried here.
        let runs = (1..=TRIES).filter_map(|seed| catch_unwind(|| run(seed, 30, Some(sabotage))).ok());
        let failures = runs.filter_map(|outcome| outcome.failure);
        let mut found = failures.map(|failure| failure.violation.of);
        assert!(found.any(|of| of == expected(sabotage)), "{sabotage:?} was not found in {TRIES} seeds");
    }
}

#[test]
fn a_failure_names_event_cause_and_reproduction() {
    let outcome = run(1, 30, Some(Sabotage::DropAnswers));
    let failure = outcome.failure.as_ref().expect("unanswered requests are found");
    let text = failure.describe(&outcome);
    for part in
        ["VIOLATION at event", "requests are answered once", "--first-seed 1", "--nodes 30 --minutes 10"]
    {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert!(failure.trace.lines().count() > 10, "{}", failure.trace);
}
