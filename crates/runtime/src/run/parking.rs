//! Keeps the workers of detached runs in a runner, and leases workers for runs that are expected, as their graphs say.
//!
//! The workers are leases of the run's tenant, which pays for them, and they end with the runner. The times follow from the
//! arrivals in the managers' store: a runner that takes over decides as the one before did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_proto::graph::{Compute, Warmth};
use sublet_proto::v1::RunInfo;
use sublet_proto::{Code, Error};

use super::application::{Application, KeptWorkers};
use super::driver::let_go;
use super::execute::{ComponentJob, Environment};
use super::warmth::{IdleHistogram, WarmPlan};
use super::workers::ComponentWorkers;
use crate::lease::link::lock;

/// Number of earlier runs whose arrivals are considered.
const ARRIVALS: u32 = 128;

/// Idle workers of a runner, and the leases that it is to take.
pub(super) struct Parking {
    /// Width of the bins of histograms.
    bin: Duration,
    kept: Arc<KeptWorkers>,
    expected: Mutex<HashMap<String, ExpectedRun>>,
}

/// A run that is expected, for which workers are to be leased.
pub(super) struct ExpectedRun {
    at: Instant,
    application: Application,
    /// Version of the entry's package in the run before.
    package: String,
    pub(super) tenant: String,
}

/// A run of a graph whose workers are kept.
pub(super) struct ParkedRun {
    key: String,
    plan: WarmPlan,
    package: String,
    tenant: String,
}

impl Parking {
    pub(super) fn new(bin: Duration) -> Parking {
        Parking { bin, kept: Arc::default(), expected: Mutex::default() }
    }

    /// Makes the application of a run that was taken use kept workers, if its graph says so.
    pub(super) fn open(&self, application: Application, taken: &RunInfo) -> (Application, Option<ParkedRun>) {
        let plan = match application.described.warm {
            // Workers that are kept for other graphs yield to the components of this one, too.
            Warmth::Off => {
                return (application.keeping(Duration::ZERO, self.kept.clone(), String::new()), None);
            }
            Warmth::For(seconds) => {
                WarmPlan { prewarm_after: Duration::ZERO, keep_alive: Duration::from_secs(seconds.into()) }
            }
            Warmth::Auto => self.plan(&application),
        };
        let entry = &application.graph.components[application.graph.entry()];
        let named = entry.compute().map_or("", |compute| &compute.package);
        let pinned = taken.packages.iter().find(|known| known.package == named);
        let package = pinned.map_or(named, |known| &known.pinned).to_owned();
        // Workers suit a run of the same tenant that has the same terms and the same versions of packages.
        let RunInfo { tenant, digest, terms, packages, .. } = taken;
        let key = format!("{tenant} {digest} {terms:?} {packages:?}");
        lock(&self.expected).remove(&key);
        let keep_alive = if plan.prewarm_after.is_zero() { plan.keep_alive } else { Duration::ZERO };
        let application = application.keeping(keep_alive, self.kept.clone(), key.clone());
        (application, Some(ParkedRun { key, plan, package, tenant: tenant.clone() }))
    }

    /// The times that follow from earlier runs. If the managers do not answer, there were none.
    fn plan(&self, application: &Application) -> WarmPlan {
        let runs = application.manager.runs(&application.graph.name, ARRIVALS).unwrap_or_default();
        let times = runs.iter().map(|run| (run.began_unix_ms, run.ended_unix_ms)).collect();
        IdleHistogram::of_runs(self.bin, times).plan()
    }

    /// A run has ended. Plans the leases for the next one, unless its workers are kept.
    pub(super) fn ended(&self, application: Application, run: ParkedRun) {
        let ParkedRun { key, plan, package, tenant } = run;
        if plan.prewarm_after.is_zero() {
            return;
        }
        let application = application.keeping(plan.keep_alive, self.kept.clone(), key.clone());
        let at = Instant::now() + plan.prewarm_after;
        lock(&self.expected).insert(key, ExpectedRun { at, application, package, tenant });
    }

    /// Takes an expected run whose workers are to be leased now.
    pub(super) fn take_due(&self) -> Option<ExpectedRun> {
        let (mut expected, now) = (lock(&self.expected), Instant::now());
        let due = expected.iter().find(|(_, run)| run.at <= now).map(|(key, _)| key.clone())?;
        expected.remove(&due)
    }

    /// Gives back workers that were kept for long enough, and forgets those whose leases have ended.
    pub(super) fn sweep(&self) {
        let (mut gone, now) = (Vec::new(), Instant::now());
        let is_over = |workers: &ComponentWorkers| {
            !workers.are_there() || workers.until.is_some_and(|until| until <= now)
        };
        lock(&self.kept).retain(|_, all| {
            gone.extend(all.extract_if(.., |workers| is_over(workers)));
            !all.is_empty()
        });
        let_go(gone.into_iter());
    }
}

impl ExpectedRun {
    /// The name of the graph.
    pub(super) fn graph(&self) -> &str {
        &self.application.graph.name
    }

    /// Leases the workers of the run's entry, if their resources are free.
    ///
    /// # Errors
    /// The managers' errors. `invalid_argument` if workers cannot be leased before their run begins: their number
    /// follows from data, they swap, or the graph limits its application, whose leases name their run.
    pub(super) fn lease(self) -> Result<(), Error> {
        let ExpectedRun { application, package, .. } = self;
        let graph = &application.graph;
        let component = graph.entry();
        let of = &graph.components[component];
        let early =
            |compute: &&Compute| compute.instances_from.is_none() && compute.resources.swap_bytes.is_none();
        let Some(compute) = of.compute().filter(early).filter(|_| !graph.limits.limit_application()) else {
            let message = format!("component {} gets its workers only in its run", of.name);
            return Err(Error::new(Code::InvalidArgument, message));
        };
        let chosen = || application.past(|history| history.worker(&of.name, compute, 1));
        let each = compute.resources.memory_bytes.or_else(chosen);
        let job = ComponentJob {
            component,
            name: of.name.clone(),
            application: graph.name.clone(),
            is_limited: false,
            run: String::new(),
            compute: compute.clone(),
            package,
            memory_bytes: each.map(|each| each.saturating_mul(compute.parallelism.into())),
            swaps_if_possible: false,
            near: Vec::new(),
            options: application.options.clone(),
            idle_timeout: None,
        };
        let workers: ComponentWorkers = job.lease(&application.manager, Duration::ZERO, None)?;
        application.keep(Environment::of(compute), vec![workers]);
        Ok(())
    }
}
