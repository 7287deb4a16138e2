//! Implements the thread of a compute component: it leases workers, waits until the component begins, and calls its
//! instances.
//!
//! It may be started before its component begins, so that the environment is ready by then (Scad 4.1.2): workers are
//! leased, and have joined the memory that exists. In this case it uses only resources that are free, or become free
//! soon, and gives them up when a component that has begun waits for them.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_proto::graph::{Compute, Resources};
use sublet_proto::package::is_device;
use sublet_proto::run::MAX_OUTPUT_BYTES;
use sublet_proto::{Error, v1, version};

use super::budget::{BudgetAmount, BudgetShare, RunBudget, WaitCallbacks};
use super::event::{ComponentFailure, ExecutionResult, RunEvent, is_lost};
use super::memory::{Channels, ComponentAccess, Link, LinkTime};
use super::options::RunOptions;
use super::progress::Outputs;
use super::uses::{Now, UsageReading, WorkerMemory, micros};
use super::workers::ComponentWorkers;
use crate::arena::Buffer;
use crate::invocation::Invocation;
use crate::invoker::{Allocation, CallOptions, Invoker, Policy};
use crate::lease::ClientLease;
use crate::lease::link::lock;
use crate::manager::ManagerClient;

/// Requirements of a compute component on its workers. Workers of one component can execute another with equal
/// requirements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Environment {
    package: String,
    instances: u32,
    resources: Resources,
}

impl Environment {
    pub(super) fn of(compute: &Compute) -> Environment {
        let Compute { package, parallelism, resources, .. } = compute;
        Environment { package: package.clone(), instances: *parallelism, resources: resources.clone() }
    }
}

/// A compute component to execute.
pub(super) struct ComponentJob {
    pub(super) component: usize,
    pub(super) name: String,
    pub(super) application: String,
    /// Whether the graph limits all runs of the application together.
    pub(super) is_limited: bool,
    pub(super) run: String,
    pub(super) compute: Compute,
    /// The leased package: the version of the component's package when the run began.
    pub(super) package: String,
    /// Memory of all instances together, in bytes; `None` leaves it to the managers.
    pub(super) memory_bytes: Option<u64>,
    /// Whether workers that cannot swap do without: the graph lets all components swap, and names no size for this one.
    pub(super) swaps_if_possible: bool,
    pub(super) near: Vec<String>,
    pub(super) options: RunOptions,
    /// Time after which the agent ends idle workers; `None`: they may be idle for as long as their client has them.
    pub(super) idle_timeout: Option<Duration>,
}

/// Message that the component begins.
pub(super) struct Go {
    pub(super) attempt: u32,
    pub(super) input: Arc<Vec<u8>>,
    pub(super) channels: Channels,
}

/// Cancels the execution of a component, and makes its usage visible to other threads.
#[derive(Default)]
pub(super) struct Cancel {
    is_cancelled: AtomicU32,
    leases: Mutex<Vec<WorkerMemory>>,
}

impl Cancel {
    /// Ends the current execution, or the one to come.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(1, Ordering::Release);
        for watched in lock(&self.leases).drain(..) {
            // If the agent cannot be reached, it is gone, and its lease with it.
            let _ = watched.lease().give_back();
        }
    }

    /// The usage of its workers, and the nodes that they are on.
    pub(super) fn look(&self) -> (Now, Vec<String>) {
        let mut leases = lock(&self.leases);
        let now = leases.iter_mut().map(WorkerMemory::look).sum();
        (now, leases.iter().map(|watched| watched.lease().description().node).collect())
    }

    /// The nodes that its workers are on.
    pub(super) fn nodes(&self) -> Vec<String> {
        lock(&self.leases).iter().map(|watched| watched.lease().description().node).collect()
    }

    fn watch(&self, workers: &ComponentWorkers) {
        lock(&self.leases).extend(workers.first.iter().cloned().map(WorkerMemory::new));
        if self.is_cancelled() {
            self.cancel();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire) != 0
    }
}

/// The whole of a thread.
pub(super) struct ComponentExecutor {
    pub(super) manager: Arc<ManagerClient>,
    pub(super) account: Arc<RunBudget>,
    pub(super) job: ComponentJob,
    pub(super) cancel: Arc<Cancel>,
    /// Workers of another component that is done.
    pub(super) kept: Option<ComponentWorkers>,
    /// The memory components that workers join before the component begins.
    pub(super) ahead: Option<Channels>,
    /// Time after which it reports that it waits for workers.
    pub(super) early_wait: Duration,
    pub(super) go: Receiver<Go>,
    pub(super) tell: Sender<RunEvent>,
}

impl ComponentExecutor {
    pub(super) fn run(mut self) {
        let kept =
            self.kept.take().filter(ComponentWorkers::are_there).and_then(|workers| self.take_over(workers));
        let early = match kept {
            Some(workers) => Some(Ok(workers)),
            None => self
                .account
                .take(self.job.component, self.amount())
                .map(|share| self.lease(self.early_wait, share)),
        };
        let ahead = early.as_ref().and_then(|early| self.prepare(early.as_ref().ok()?));
        // The sender was dropped: the component is not needed.
        let Ok(go) = self.go.recv() else { return };
        let workers = match early {
            Some(Err(error)) if error.code.may_pass_by_waiting() && !self.options().patience.is_zero() => {
                // If the receiver is gone, the run is over.
                let _ = self.tell.send(RunEvent::Wanting { component: self.job.component, error });
                self.lease_late()
            }
            Some(early) => early,
            None => self.lease_late(),
        };
        if self.cancel.is_cancelled() {
            return;
        }
        let Go { attempt, input, channels } = go;
        // The next components' environments may be prepared from now on. Before, this would take the same cores.
        let called = || drop(self.tell.send(RunEvent::Called));
        let began = Instant::now();
        let (outputs, joined_ahead, mut workers) = match workers {
            Ok(workers) => {
                let linked = self.link(&workers, ahead, channels);
                let joined_ahead = linked.as_ref().map_or(0, |linked| linked.joined_ahead);
                let execute = |linked: LinkedWorkers| workers.execute(&self.job, &input, &linked, called);
                (linked.map_err(failure).and_then(execute), joined_ahead, Some(workers))
            }
            Err(error) => (Err(failure(error)), 0, None),
        };
        let outputs = outputs.map_err(|failure| failure.of(&self.job));
        let memory_bytes = workers.as_ref().map_or(0, ComponentWorkers::memory_bytes);
        let leased = workers.as_ref().map_or(Duration::ZERO, |workers| workers.since.elapsed());
        let readings = workers.as_mut().map_or_else(Vec::new, ComponentWorkers::read);
        // Memory of this component that workers have swapped to is gone with it.
        let is_done = outputs.is_ok() && self.job.compute.resources.swap_bytes.is_none();
        let ended = ExecutionResult {
            component: self.job.component,
            attempt,
            workers: workers.filter(|_| is_done),
            outputs,
            began,
            memory_bytes,
            allocated_byte_us: memory_bytes.saturating_mul(micros(leased)),
            readings,
            joined_ahead,
        };
        let _ = self.tell.send(RunEvent::Ended(Box::new(ended)));
    }

    /// Prepares workers that were leased before their component begins, as far as that is possible now. The rest is
    /// requested again when it begins, and then reports its reason.
    fn prepare(&self, workers: &ComponentWorkers) -> Option<AheadLinks> {
        self.cancel.watch(workers);
        // Allocates the output buffers, so that the workers have mapped them.
        let _ = workers.outputs(&self.job);
        let channels = self.ahead.clone()?;
        let links = workers.links(self.job.compute.parallelism, &channels, LinkTime::Ahead).ok()?;
        Some(AheadLinks { channels, links })
    }

    /// Connects workers whose component begins to its memory, unless they are connected already.
    fn link(
        &self,
        workers: &ComponentWorkers,
        ahead: Option<AheadLinks>,
        channels: Channels,
    ) -> Result<LinkedWorkers, Error> {
        if channels.iter().any(|access| access.mailbox.is_none() && access.swaps_from.is_none()) {
            let pu = self.job.compute.resources.pu.as_deref().unwrap_or_default();
            let check = |lease: &Arc<ClientLease>| check_memory(&lease.description(), pu, lease.messages);
            workers.invoker.leases_held().try_for_each(check)?;
        }
        if let Some(AheadLinks { channels: known, links }) = ahead {
            let joined: Option<u32> = links.iter().map(|link| link.begin(&channels)).sum();
            if let Some(joined_ahead) = joined {
                return Ok(LinkedWorkers { channels: known, links, joined_ahead });
            }
        }
        let links = workers.links(self.job.compute.parallelism, &channels, LinkTime::Begin)?;
        Ok(LinkedWorkers { channels, links, joined_ahead: 0 })
    }

    fn options(&self) -> &RunOptions {
        &self.job.options
    }

    /// The share of the run's limits that the component will hold.
    fn amount(&self) -> BudgetAmount {
        let cores = self.job.compute.cores().into();
        BudgetAmount { cores, bytes: self.job.memory_bytes.unwrap_or(0) }
    }

    /// Workers of another component, or of another run if this one may have them.
    fn take_over(&self, mut workers: ComponentWorkers) -> Option<ComponentWorkers> {
        if workers.share.is_none() {
            let amount = BudgetAmount { bytes: workers.memory_bytes(), ..self.amount() };
            workers.share = Some(self.account.take(self.job.component, amount)?);
        }
        Some(workers)
    }

    /// Workers, as soon as the run may have them and the managers can give them.
    fn lease_late(&self) -> Result<ComponentWorkers, Error> {
        let component = self.job.component;
        let mut tell = |error| {
            let _ = self.tell.send(RunEvent::Waits { component, error });
        };
        let wait = WaitCallbacks { tell: &mut tell, is_wanted: &|| !self.cancel.is_cancelled() };
        let share = self.account.hold(component, self.amount(), wait)?;
        self.lease(self.options().patience, share).inspect(|workers| self.cancel.watch(workers))
    }

    fn lease(&self, wait: Duration, share: BudgetShare) -> Result<ComponentWorkers, Error> {
        self.job.lease(&self.manager, wait, Some(share))
    }
}

impl ComponentJob {
    /// Leases its workers. Without a share they belong to no run.
    pub(super) fn lease(
        &self,
        manager: &Arc<ManagerClient>,
        wait: Duration,
        share: Option<BudgetShare>,
    ) -> Result<ComponentWorkers, Error> {
        let ComponentJob { application, name, compute, package, near, options, .. } = self;
        let mut allocation = Allocation::new(package)
            .cores(compute.cores())
            .cores_each(compute.resources.cores_each())
            .policy(Policy::HotFor(options.hot_timeout))
            .slots(1)
            .timeout(options.lease_timeout)
            .near(near.iter().cloned())
            .warm(format!("{application}/{name}"))
            .wait(wait);
        if self.is_limited {
            allocation = allocation.application(application, &self.run);
        }
        if let Some(time) = self.idle_timeout {
            allocation = allocation.idle_timeout(time);
        }
        if let Some(bytes) = self.memory_bytes {
            allocation = allocation.memory_bytes(bytes);
        }
        if let Some(fabric) = &options.fabric {
            allocation = allocation.fabric(fabric.clone());
        }
        if let Some(pu) = &compute.resources.pu {
            allocation = allocation.pu(pu);
        }
        if let Some(pool) = compute.resources.pool {
            allocation = allocation.pool(pool);
        }
        if let Some(bytes) = compute.resources.swap_bytes {
            allocation = match self.swaps_if_possible {
                true => allocation.swap_if_possible(bytes),
                false => allocation.swap_bytes(bytes),
            };
        }
        let mut invoker = Invoker::of(manager.clone())?;
        invoker.allocate(&allocation)?;
        let first: Vec<UsageReading> = invoker.leases_held().map(UsageReading::ask).collect();
        Ok(ComponentWorkers {
            before: first.clone(),
            first,
            invoker,
            since: Instant::now(),
            until: None,
            share,
        })
    }
}

/// Connections of workers to memory from before their component begins.
struct AheadLinks {
    channels: Channels,
    links: Vec<Link>,
}

/// Connections of workers to the memory of their component, which begins.
struct LinkedWorkers {
    channels: Channels,
    links: Vec<Link>,
    /// Segments that the workers had joined before.
    joined_ahead: u32,
}

impl ComponentWorkers {
    /// Sends each worker process its run, with these memory components.
    fn links(&self, instances: u32, channels: &Channels, time: LinkTime) -> Result<Vec<Link>, Error> {
        let link =
            |lease: &Arc<ClientLease>| Link::open(lease, lease.first_worker, instances, channels, time);
        self.invoker.leases_held().map(link).collect()
    }

    /// Calls every instance, and waits for all.
    fn execute(
        &self,
        job: &ComponentJob,
        input: &[u8],
        linked: &LinkedWorkers,
        called: impl FnOnce(),
    ) -> Result<Outputs, ComponentFailure> {
        let instances = job.compute.parallelism;
        let outputs = self.call(job, input, called);
        let (spaces, memory): (Vec<&ComponentAccess>, Vec<&ComponentAccess>) =
            linked.channels.iter().partition(|access| access.swaps_from.is_some());
        if let Err(ComponentFailure::Lost(error)) = outputs {
            // A process that touches swapped bytes whose memory is gone is killed; the reason for the memory's loss
            // says more.
            let why = spaces.iter().find_map(|access| access.memory.check().err());
            return Err(why.map_or(ComponentFailure::Lost(error), failure));
        }
        if outputs.is_err() {
            // Functions may learn that their agent is gone, and fail for it, before their client does.
            self.await_agents();
        }
        // Output of a process that ended meanwhile is invalid, since its successor does not know the run. So is
        // everything that was read from lost memory.
        linked.links.iter().try_for_each(Link::check).map_err(ComponentFailure::Lost)?;
        memory.iter().try_for_each(|access| access.check(instances)).map_err(ComponentFailure::Lost)?;
        outputs
    }

    /// The buffers for the instances' outputs.
    fn outputs(&self, job: &ComponentJob) -> Result<Vec<Buffer<u8>>, Error> {
        (0..job.compute.parallelism).map(|_| self.invoker.buffer(MAX_OUTPUT_BYTES)).collect()
    }

    fn call(
        &self,
        job: &ComponentJob,
        bytes: &[u8],
        called: impl FnOnce(),
    ) -> Result<Outputs, ComponentFailure> {
        let function = self.invoker.function(&job.compute.function).map_err(failure)?;
        let mut input: Buffer<u8> = self.invoker.buffer(bytes.len()).map_err(failure)?;
        input.copy_from_slice(bytes);
        let mut outputs = self.outputs(job).map_err(failure)?;
        let mut calls: Vec<_> = outputs
            .iter_mut()
            .zip(0..)
            .map(|(output, worker)| {
                let options = CallOptions { worker: Some(worker), ..CallOptions::default() };
                self.invoker.submit_with(function, &input, output, options)
            })
            .collect();
        called();
        let done: Vec<_> = calls.iter_mut().map(ended).collect();
        drop(calls);
        let take = |(output, done): (&Buffer<u8>, Result<usize, (Error, usize)>)| match done {
            Ok(len) => Ok(output.part(..len).to_vec()),
            Err((error, _)) if is_lost(error.code) => Err(ComponentFailure::Lost(error)),
            Err((error, reported)) => Err(ComponentFailure::Failed(error, output.part(..reported).to_vec())),
        };
        outputs.iter().zip(done).map(take).collect::<Result<_, _>>().map(Arc::new)
    }
}

impl ComponentFailure {
    /// Adds the component's name to the error.
    fn of(self, job: &ComponentJob) -> ComponentFailure {
        let named = |error: Error| {
            let Compute { package, function, .. } = &job.compute;
            Error::new(
                error.code,
                format!("component {} ({package}/{function}): {}", job.name, error.message),
            )
        };
        match self {
            ComponentFailure::Lost(error) => ComponentFailure::Lost(named(error)),
            ComponentFailure::Failed(error, report) => ComponentFailure::Failed(named(error), report),
        }
    }
}

/// Checks that the workers of a lease know memory components: those of earlier nodes ignore them if they execute kernels,
/// and the output would be a wrong one. `pu` is what the component requires.
fn check_memory(lease: &v1::Lease, pu: &str, messages: u32) -> Result<(), Error> {
    if !is_device(pu) && !is_device(&lease.pu) {
        return Ok(());
    }
    let agent = format!("the agent of node {}", lease.node);
    version::check_messages(&agent, messages, "memory components of kernels", version::KERNEL_MEMORY)
}

fn failure(error: Error) -> ComponentFailure {
    if is_lost(error.code) {
        ComponentFailure::Lost(error)
    } else {
        ComponentFailure::Failed(error, Vec::new())
    }
}

/// Waits for a call. Returns the length of its output, or its error with the length of the report in its output.
fn ended(call: &mut Result<Invocation<'_>, Error>) -> Result<usize, (Error, usize)> {
    let call = call.as_mut().map_err(|error| (error.clone(), 0))?;
    match call.finish() {
        Ok(done) => Ok(done.output_bytes),
        Err(error) => Err((error, call.reported_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use sublet_proto::Code;

    use super::*;

    #[test]
    fn refuses_nodes_whose_kernels_ignore_memory() {
        let lease = |pu: &str| v1::Lease { node: "n1".into(), pu: pu.into(), ..v1::Lease::default() };
        let (earlier, now) = (version::RUN_LEASES, version::KERNEL_MEMORY);
        for (pu, messages) in [("", 0), ("cpu", earlier), ("opencl", now)] {
            assert_eq!(check_memory(&lease(pu), "", messages), Ok(()), "{pu} with {messages}");
        }
        for (leased, required) in [("opencl", ""), ("", "cuda")] {
            let error = check_memory(&lease(leased), required, earlier).unwrap_err();
            assert_eq!(error.code, Code::VersionMismatch);
            assert!(error.message.contains("node n1") && error.message.contains("revision 5"), "{error}");
        }
    }
}
