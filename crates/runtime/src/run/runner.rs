//! Drives detached runs: takes those that no process drives, a bounded number at a time, until it is stopped.
//!
//! Any number of runners may serve the managers of a store, and each may stand in for the others: a run whose runner is
//! gone is taken when its lease ends, and continued from its journal. A runner looks for runs at intervals of random
//! length, so that several do not all ask at once. It acts for the tenant of each run as a user of that tenant.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sublet_proto::v1::{EndRunRequest, RunInfo, TakeRunRequest};
use sublet_proto::{Code, Error};

use super::application::Application;
use super::lease::{DriverLease, LEASE_MS, is_outage, runner_name};
use super::options::RunOptions;
use super::parking::{ExpectedRun, Parking};
use super::warmth::BIN;
use crate::access::Access;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use crate::random::random_bits;

/// Shortest time between two looks for runs, to which as much is added by chance.
const LOOK: Duration = Duration::from_millis(500);

/// Options of a [`Runner`].
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Name for the runs' logs, as the host's name: visible ASCII characters, at most 64.
    pub name: String,
    /// Largest number of runs that it drives at a time.
    pub at_once: u32,
    /// Width of the bins in which it counts the times between runs. The default is a minute; tests have shorter ones.
    pub idle_bin: Duration,
}

impl RunnerOptions {
    /// Options of a runner of this name, which drives up to `at_once` runs at a time.
    pub fn new(name: impl Into<String>, at_once: u32) -> RunnerOptions {
        RunnerOptions { name: name.into(), at_once, idle_bin: BIN }
    }
}

/// Event of a [`Runner`].
#[derive(Clone, Debug)]
pub enum RunnerNews {
    /// The runner has taken a run.
    Taken {
        /// The run's identifier.
        run: String,
        /// Tenant of the run.
        tenant: String,
        /// Number of times that the run was taken, by any process.
        epoch: u64,
    },
    /// The runner drives the run no more: the run has ended, was handed back, or was taken by another process.
    Left {
        /// The run's identifier.
        run: String,
        /// Tenant of the run.
        tenant: String,
        /// Reason, unless the run succeeded.
        error: Option<Error>,
    },
    /// The runner has leased workers for a run that it expects, or tried to.
    Prewarmed {
        /// Name of the graph.
        graph: String,
        /// Tenant whose leases these are.
        tenant: String,
        /// Reason why there are no workers.
        error: Option<Error>,
    },
    /// The runner cannot look for runs. It tries again, and reports each reason once.
    Unable {
        /// Error of the managers.
        error: Error,
    },
}

type Tell = Box<dyn Fn(&RunnerNews) + Send + Sync>;

/// Drives detached runs of one tenant, or of all tenants for operators, until it is stopped or dropped.
pub struct Runner {
    state: Arc<RunnerState>,
    thread: Option<JoinHandle<()>>,
}

struct RunnerState {
    access: Access,
    options: RunnerOptions,
    tell: Tell,
    parking: Parking,
    /// Makes every driver hand its run back.
    leaves: AtomicBool,
    /// Guards no data: the runner's thread holds it from its last look at `leaves` until it waits.
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Runner {
    /// Starts a runner, which calls `tell` with its events.
    ///
    /// # Errors
    /// `invalid_argument` if the name is not valid, or `at_once` or `idle_bin` is 0, and as for [`ManagerClient::connect_with`].
    pub fn start(
        access: Access,
        options: RunnerOptions,
        tell: impl Fn(&RunnerNews) + Send + Sync + 'static,
    ) -> Result<Runner, Error> {
        let RunnerOptions { name, at_once, idle_bin } = &options;
        let is_name = name.bytes().all(|byte| byte.is_ascii_graphic()) && (1..=64).contains(&name.len());
        if !is_name || *at_once == 0 {
            let message = format!(
                "a runner with the name {name:?} that drives {at_once} runs at a time: the name has 1 to 64 visible ASCII \
                 characters, and the number is 1 or more"
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        if idle_bin.is_zero() {
            let message = "times between runs cannot be counted in bins of no width: idle_bin is 0";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let manager = ManagerClient::connect_with(access.clone())?;
        let parking = Parking::new(*idle_bin);
        let state = Arc::new(RunnerState {
            access,
            parking,
            options,
            tell: Box::new(tell),
            leaves: AtomicBool::new(false),
            waiting: Mutex::new(()),
            changed: Condvar::new(),
        });
        let serving = state.clone();
        let thread = std::thread::Builder::new()
            .name("sublet runner".into())
            .spawn(move || serving.serve(&manager))
            .map_err(|error| Error::of_system("starting the runner's thread", &error))?;
        Ok(Runner { state, thread: Some(thread) })
    }

    /// Hands all runs back, so that other runners take them at once, and waits until nothing of them is held here.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.state.leaves.store(true, Ordering::Relaxed);
        self.state.announce_change();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

impl RunnerState {
    fn is_stopping(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    fn announce_change(&self) {
        drop(lock(&self.waiting));
        self.changed.notify_all();
    }

    /// Takes and drives runs until the runner is stopped.
    fn serve(self: &Arc<RunnerState>, manager: &ManagerClient) {
        let (mut runs, mut leasing) = (Vec::<JoinHandle<()>>::new(), Vec::<JoinHandle<()>>::new());
        let mut reported = None::<Error>;
        while !self.is_stopping() {
            runs.retain(|run| !run.is_finished());
            leasing.retain(|lease| !lease.is_finished());
            self.parking.sweep();
            leasing.extend(self.lease_due());
            debug_assert!(runs.len() <= self.options.at_once as usize, "{} runs at a time", runs.len());
            let taken = match runs.len() < self.options.at_once as usize {
                true => self.take(manager).and_then(|taken| self.spawn(taken)),
                false => Ok(None),
            };
            match taken {
                Ok(Some(run)) => {
                    runs.push(run);
                    continue;
                }
                Ok(None) => reported = None,
                Err(error) if reported.as_ref().is_none_or(|last| last.code != error.code) => {
                    (self.tell)(&RunnerNews::Unable { error: error.clone() });
                    reported = Some(error);
                }
                Err(_) => {}
            }
            self.wait();
        }
        for run in runs.into_iter().chain(leasing) {
            // The lease of a run whose thread has panicked ends by itself.
            let _ = run.join();
        }
    }

    /// Leases workers for the runs that are expected, each on a thread of its own.
    fn lease_due(self: &Arc<RunnerState>) -> Vec<JoinHandle<()>> {
        let due = std::iter::from_fn(|| self.parking.take_due());
        let lease = |run: ExpectedRun| {
            let state = self.clone();
            let lease = move || {
                let (graph, tenant) = (run.graph().to_owned(), run.tenant.clone());
                let error = run.lease().err();
                (state.tell)(&RunnerNews::Prewarmed { graph, tenant, error });
            };
            // Without a thread the next run has a cold start.
            std::thread::Builder::new().name("sublet prewarm".into()).spawn(lease).ok()
        };
        due.filter_map(lease).collect()
    }

    fn take(&self, manager: &ManagerClient) -> Result<Option<RunInfo>, Error> {
        let runner = runner_name(&self.options.name)?;
        manager.take_run(TakeRunRequest { runner, lease_ms: LEASE_MS })
    }

    /// Waits for a time of random length, or until something changes.
    fn wait(&self) {
        let chance_ms = random_bits().unwrap_or_default() % LOOK.as_millis();
        let time = LOOK + Duration::from_millis(u64::try_from(chance_ms).unwrap_or_default());
        let waiting = lock(&self.waiting);
        if !self.is_stopping() {
            drop(self.changed.wait_timeout(waiting, time).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Drives a run on a thread of its own.
    fn spawn(self: &Arc<RunnerState>, taken: Option<RunInfo>) -> Result<Option<JoinHandle<()>>, Error> {
        let Some(taken) = taken else { return Ok(None) };
        let state = self.clone();
        let drive = move || {
            // A run that was left is not taken again at once.
            if state.drive(taken).is_none_or(|error| !is_outage(error.code)) {
                state.announce_change();
            }
        };
        let spawned = std::thread::Builder::new().name("sublet run".into()).spawn(drive);
        spawned.map(Some).map_err(|error| Error::of_system("starting a run's thread", &error))
    }

    /// Drives a run, and returns the reason if it has not succeeded.
    fn drive(&self, taken: RunInfo) -> Option<Error> {
        let (run, tenant) = (taken.run.clone(), taken.tenant.clone());
        let epoch = taken.lease.as_ref().map_or(0, |lease| lease.epoch);
        (self.tell)(&RunnerNews::Taken { run: run.clone(), tenant: tenant.clone(), epoch });
        let error = self.drive_as_tenant(taken, epoch).err();
        (self.tell)(&RunnerNews::Left { run, tenant, error: error.clone() });
        error
    }

    fn drive_as_tenant(&self, taken: RunInfo, epoch: u64) -> Result<(), Error> {
        let access = self.access.clone().for_tenant(taken.tenant.clone())?;
        let manager = Arc::new(ManagerClient::connect_with(access)?);
        let run = taken.run.clone();
        let opened = RunOptions::of_terms(&taken.terms.clone().unwrap_or_default())
            .and_then(|options| Application::open_by(manager.clone(), &taken.digest, options))
            .map(|application| self.parking.open(application, &taken))
            .and_then(|(application, parked)| {
                let opened = application.open_taken(taken)?;
                Ok((application, parked, opened))
            });
        match opened {
            // The driver ends the run, or hands it back.
            Ok((application, parked, opened)) => {
                let driven = application.drive_taken(&self.options.name, opened, &self.leaves);
                if let Some(parked) = parked.filter(|_| !self.is_stopping()) {
                    self.parking.ended(application, parked);
                }
                driven
            }
            Err(error) => Err(give_up(&manager, run, epoch, error)),
        }
    }
}

/// Ends a run that cannot be driven, or hands it back if that may pass. Returns the error.
fn give_up(manager: &Arc<ManagerClient>, run: String, epoch: u64, error: Error) -> Error {
    if is_outage(error.code) {
        DriverLease::new(manager.clone(), run, epoch).hand_back();
        return error;
    }
    let (code, message) = (error.code.number(), error.message.clone());
    // Without an answer, the lease ends by itself, and the next runner finds the same.
    let _ = manager.end_run(EndRunRequest { run, code, message, epoch, ..EndRunRequest::default() });
    error
}
