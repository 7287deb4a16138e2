//! Starts a lease's worker process: at once if its package is here, otherwise when the package has been fetched and, if
//! it is one of kernels, built.
//!
//! A package is fetched on a thread of its own, while the supervisor sends signs of life to the client and handles the
//! end of the lease. A fetch continues after its lease has ended, for the next lease of the package. Only the work that it
//! does on the lease's cores ends with the lease: see [`StartCores`]. The process is started on the supervisor's thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::clock::monotonic_ns;
use sublet_proto::v1::{self, Lease};
use sublet_proto::{Code, Error};
use tracing::{debug, error};

use super::Supervisor;
use super::start_state::{Outcome, StartState};
use crate::execution::background_task::BackgroundTask;
use crate::execution::packages::{Runnable, StartStep};
use crate::execution::start_cores::StartCores;
use crate::execution::worker::WorkerProcess;
use crate::leases::end::EndReason;
use crate::listener::message::{self, ToClient};

/// Interval at which a step of a start is sent again. The client gives up a start of which it hears nothing for minutes.
const AGAIN: Duration = Duration::from_secs(10);
/// Step of a start whose package has said none.
const FETCHING: &str = "fetching the package";

impl Supervisor<'_> {
    /// Starts a worker on the client's request.
    pub(super) fn start(&mut self) -> Result<Option<EndReason>, Error> {
        if self.worker.is_some() || self.is_fetching() {
            let message = format!("the worker of lease {} runs already", self.held.lease.id);
            return self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)));
        }
        if self
            .held
            .one_shot_program
            .as_ref()
            .is_some_and(|one_shot_program| one_shot_program.program.is_none())
        {
            let message =
                format!("the program of lease {} was started: it is executed once", self.held.lease.id);
            return self.tell(message::failure(&Error::new(Code::AlreadyAllocated, message)));
        }
        self.begin_start();
        self.tell_start()
    }

    pub(super) fn begin_start(&mut self) {
        let requested_ns = monotonic_ns();
        let Lease { id, package, build, tenant, .. } = &self.held.lease;
        if self.held.lease.is_segment() {
            let message = format!("lease {id} is a segment: it has memory, and no cores");
            self.start = StartState::Over(Err(Error::new(Code::InvalidArgument, message)));
            return;
        }
        let at_hand = self.node.execution.packages.at_hand(package, *build, tenant);
        let begun =
            at_hand.and_then(|runnable| match runnable.and_then(|runnable| self.executable(runnable)) {
                Some(runnable) => Ok(StartState::Over(self.start_worker(runnable, requested_ns))),
                None => {
                    let step = StartStep::watched()?;
                    let (package, told) = (self.fetch(step.clone())?, Instant::now());
                    Ok(StartState::Fetching { package, step, told, requested_ns })
                }
            });
        self.start = begun.unwrap_or_else(|error| StartState::Over(Err(error)));
    }

    /// A runnable with its image's interpreter, if nothing has to be built or asked before its workers can start.
    fn executable(&self, runnable: Runnable) -> Option<Runnable> {
        let execution = &self.node.execution;
        if !execution.kernels.are_at_hand(&runnable, &self.held.lease.tenant) {
            return None;
        }
        execution.image_interpreters.at_hand(runnable, &self.held.lease)
    }

    /// Continues a start once its package is fetched, or cannot be fetched.
    pub(super) fn go_on_starting(&mut self) {
        let StartState::Fetching { package, requested_ns, .. } = &self.start else { return };
        let (fetched, requested_ns) = (package.outcome(), *requested_ns);
        if let Some(fetched) = fetched {
            let started = fetched.and_then(|runnable| self.start_worker(runnable, requested_ns));
            self.start = StartState::Over(started);
        }
    }

    /// Sends the client the outcome of a start, if it is known.
    pub(super) fn tell_start(&mut self) -> Result<Option<EndReason>, Error> {
        match std::mem::replace(&mut self.start, StartState::None) {
            StartState::Over(outcome) => {
                if let Err(error) = &outcome {
                    error!(lease = self.held.lease.id, %error, "the worker could not be started");
                }
                self.tell_started(outcome)
            }
            start => {
                self.start = start;
                Ok(None)
            }
        }
    }

    /// Gives up a start that waits for its package. Returns whether there was one.
    pub(super) fn give_up_start(&mut self) -> bool {
        let is_fetching = self.is_fetching();
        if is_fetching {
            self.start = StartState::None;
        }
        is_fetching
    }

    pub(super) fn is_fetching(&self) -> bool {
        matches!(self.start, StartState::Fetching { .. })
    }

    /// A descriptor that is readable once the package of a start is fetched, or cannot be fetched.
    pub(super) fn fetched(&self) -> Option<BorrowedFd<'_>> {
        match &self.start {
            StartState::Fetching { package, .. } => Some(package.as_fd()),
            _ => None,
        }
    }

    /// A descriptor that is readable once a start that waits for its package has a step to tell.
    pub(super) fn stepped(&self) -> Option<BorrowedFd<'_>> {
        match &self.start {
            StartState::Fetching { step, .. } => step.changed(),
            _ => None,
        }
    }

    /// Time at which the step of a start that waits for its package is sent again.
    pub(super) fn next_step(&self) -> Option<Instant> {
        match &self.start {
            StartState::Fetching { told, .. } => Some(*told + AGAIN),
            _ => None,
        }
    }

    /// Tells the client what a start that waits for its package does now.
    pub(super) fn tell_step(&mut self) -> Result<Option<EndReason>, Error> {
        let StartState::Fetching { step, told, .. } = &mut self.start else { return Ok(None) };
        *told = Instant::now();
        let step = Some(step.take_note()).filter(|step| !step.is_empty());
        let step = step.unwrap_or_else(|| FETCHING.to_owned());
        self.tell(ToClient::Progress(v1::Progress { step }))
    }

    /// The lease's cores, as work of its starts uses them.
    fn start_cores(&mut self) -> Result<Arc<StartCores>, Error> {
        if let Some(cores) = &self.start_cores {
            return Ok(cores.clone());
        }
        let cores = StartCores::new(self.held.reservation.cores.clone())?;
        Ok(self.start_cores.insert(cores).clone())
    }

    fn fetch(&mut self, step: StartStep) -> Result<BackgroundTask<Runnable>, Error> {
        let cores = self.start_cores()?;
        let (packages, lease) = (self.node.execution.packages.clone(), self.held.lease.clone());
        let kernels = self.node.execution.kernels.clone();
        debug!(lease = lease.id, digest = lease.package, "the worker's package is fetched");
        let image_interpreters = self.node.execution.image_interpreters.clone();
        let fetch = move || {
            let runnable = packages.ensure(&lease.package, lease.build, &lease.tenant, &step)?;
            let runnable = image_interpreters.ensure(runnable, &lease, &cores, &step)?;
            kernels.ensure(&runnable, &lease.tenant, &cores, &step)?;
            packages.measure(&runnable);
            Ok(runnable)
        };
        BackgroundTask::begin("sublet-fetch", fetch).map(|(package, _)| package)
    }

    fn start_worker(&mut self, runnable: Runnable, requested_ns: u64) -> Outcome {
        let (worker, started, control) = WorkerProcess::start(self.node, &self.held, runnable, requested_ns)?;
        debug!(lease = self.held.lease.id, pid = started.pid, "worker started");
        match worker.was_on_standby() {
            true => self.held.meter.watch_standby(started.pid),
            false => self.held.meter.watch(started.pid),
        }
        self.held.meter.note_cold_imports(started.cold_imports.clone());
        if let Some(one_shot_program) = &mut self.held.one_shot_program {
            one_shot_program.program = None;
        }
        self.worker = Some(worker);
        if let Some(idle) = &mut self.idle {
            idle.touch(Instant::now());
        }
        match &mut self.relay {
            Some(relay) => relay.begin(control).map(|()| (started, None)),
            None => Ok((started, Some(control))),
        }
    }
}
