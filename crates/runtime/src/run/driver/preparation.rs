//! Prepares the components of a run: leases workers for them, ahead if possible, and makes their memory components.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use sublet_proto::graph::{Compute, Graph, Medium, Relation};
use sublet_proto::limits::MEMORY_PER_CORE_BYTES;
use sublet_proto::{Code, Error};

use super::{ComponentThread, Preparation, RunDriver};
use crate::memory::MemoryPlan;
use crate::run::application::Application;
use crate::run::execute::{Cancel, ComponentExecutor, ComponentJob, Environment};
use crate::run::mailboxes::mailbox;
use crate::run::memory::{Channels, ComponentAccess, MemoryComponent, next_device_memory};
use crate::run::planned::PlannedNode;
use crate::run::swapping;
use crate::run::workers::ComponentWorkers;

/// Longest wait for the resources of an environment that is prepared ahead: resources of components that have just
/// ended take a while to become free.
const EARLY_WAIT: Duration = Duration::from_millis(100);

impl RunDriver<'_> {
    /// Starts a component's thread, which makes its environment ready.
    pub(super) fn spawn(
        &mut self,
        component: usize,
        attempt: u32,
        preparation: Preparation,
    ) -> Result<(), Error> {
        let Application { manager, graph, options, .. } = self.application;
        let of = &graph.components[component];
        let Some(compute) = self.compute_of(component) else {
            return Err(Error::new(Code::Internal, format!("component {} executes nothing", of.name)));
        };
        // Near the components that it communicates with, and then near the rest of the run (Scad 4.1.1).
        let memories = graph.edges_from(component).filter_map(|edge| self.memories.get(&edge.to));
        let mut near: Vec<String> = memories.flat_map(|memory| memory.nodes()).collect();
        near.extend(self.running.values().flat_map(|running| running.cancel.nodes()));
        near.extend(self.nodes.iter().cloned());
        let mut near = self.journal.planned(component).near(near);
        near.dedup();
        near.truncate(8);
        let job = ComponentJob {
            memory_bytes: self.worker_bytes(&of.name, &compute, attempt),
            swaps_if_possible: self.is_swap_chosen(component),
            component,
            name: of.name.clone(),
            application: graph.name.clone(),
            is_limited: graph.limits.limit_application(),
            run: self.journal.run().to_owned(),
            package: self.journal.pinned(&compute.package),
            compute,
            near,
            options: options.clone(),
            idle_timeout: self.application.idle_timeout(),
        };
        let environment = Environment::of(&job.compute);
        let (go, going) = channel();
        let cancel = Arc::new(Cancel::default());
        let executor = ComponentExecutor {
            manager: manager.clone(),
            account: self.account.clone(),
            job,
            cancel: cancel.clone(),
            kept: self.take_idle(&environment, component),
            ahead: preparation.channels,
            early_wait: preparation.wait,
            go: going,
            tell: self.tell.clone(),
        };
        std::thread::Builder::new()
            .name(format!("sublet {}", of.name))
            .spawn(move || executor.run())
            .map_err(|error| Error::new(Code::System, format!("starting a component's thread: {error}")))?;
        self.running.insert(component, ComponentThread { go, cancel, has_begun: false });
        Ok(())
    }

    /// The memory of all instances of a component together, in bytes; `None` leaves it to the managers. With a limit,
    /// the size must be known, as it is counted.
    fn worker_bytes(&self, name: &str, compute: &Compute, attempt: u32) -> Option<u64> {
        let said = compute.resources.memory_bytes;
        let chosen = || self.application.past(|history| history.worker(name, compute, attempt));
        let usual = || self.account.limits_memory().then_some(MEMORY_PER_CORE_BYTES);
        let each = said.or_else(chosen).or_else(usual)?;
        Some(each.saturating_mul(compute.parallelism.into()))
    }

    /// Whether a component swaps because the graph lets all components swap: its document names no size.
    fn is_swap_chosen(&self, component: usize) -> bool {
        let swap_bytes = |graph: &Graph| graph.components.get(component)?.compute()?.resources.swap_bytes;
        swap_bytes(&self.application.graph).is_some() && swap_bytes(&self.application.described).is_none()
    }

    /// Prepares the environments of upcoming components. Resources that are not available now are requested again when
    /// the components begin.
    pub(super) fn prewarm(&mut self) {
        self.prewarm_at = None;
        let upcoming: Vec<usize> = self.progress.upcoming().collect();
        // Each component that runs leaves its workers to one of those that it triggers.
        let mut heirs: HashSet<usize> = HashSet::new();
        for component in upcoming {
            let compute = self.application.graph.components[component].compute();
            if compute.is_some_and(|compute| compute.instances_from.is_some()) {
                // How many workers it needs is known when it begins.
                continue;
            }
            if self.running.contains_key(&component) || self.inherits(component, &mut heirs) {
                continue;
            }
            if self.follows_on_device(component) {
                // Other workers do not have what it accesses.
                continue;
            }
            let attempt = self.uses.components[component].attempts + 1;
            let channels = self.joinable(component);
            let _ = self.spawn(component, attempt, Preparation { wait: EARLY_WAIT, channels });
        }
    }

    /// The memory components that workers of a component may join before it begins. Swap space is used from the moment
    /// at which a process receives its run, so workers that swap join nothing ahead.
    fn joinable(&mut self, component: usize) -> Option<Channels> {
        let compute = self.application.graph.components[component].compute()?;
        if compute.resources.swap_bytes.is_some() {
            return None;
        }
        self.channels(component).ok()
    }

    /// Whether a component will have the workers of one that triggers it, which no other has yet.
    fn inherits(&self, component: usize, heirs: &mut HashSet<usize>) -> bool {
        let graph = &self.application.graph;
        let resources = graph.components[component].compute().map(|compute| &compute.resources);
        if resources.is_some_and(|resources| resources.swap_bytes.is_some()) {
            // Workers that have swapped are not passed on.
            return false;
        }
        let environment = |at: usize| self.compute_of(at).as_ref().map(Environment::of);
        let before = graph.edges_to(component).filter(|edge| edge.relation == Relation::Trigger);
        let running = before.map(|edge| edge.from).filter(|before| self.running.contains_key(before));
        let mut alike = running.filter(|&before| environment(before) == environment(component));
        alike.any(|before| heirs.insert(before))
    }

    /// Workers that a component can use, of this run or of an earlier one.
    fn take_idle(&mut self, environment: &Environment, component: usize) -> Option<ComponentWorkers> {
        let planned = match self.has_device_memory(component) {
            // Its memory is in the workers, wherever the plan has it.
            true => PlannedNode::Beside,
            false => self.journal.planned(component),
        };
        let idle = self.idle.get_mut(environment).and_then(|idle| planned.take(idle));
        let idle = idle.inspect(|workers| workers.hand_on(component));
        idle.or_else(|| self.application.kept(environment, &planned))
    }

    /// Whether a component accesses memory on a device.
    fn has_device_memory(&self, component: usize) -> bool {
        self.device_memories(component).next().is_some()
    }

    /// Whether a component accesses memory on a device that another component which has begun accesses, too: its worker
    /// is that one's.
    fn follows_on_device(&self, component: usize) -> bool {
        self.device_memories(component).any(|memory| self.progress.is_begun_by_another(memory, component))
    }

    /// The memory components on a device that a component accesses.
    fn device_memories(&self, component: usize) -> impl Iterator<Item = usize> {
        let graph = &self.application.graph;
        let is_on_device = move |at: &usize| {
            graph.components[*at].memory().is_some_and(|memory| memory.medium == Medium::Device)
        };
        graph.edges_from(component).map(|edge| edge.to).filter(is_on_device)
    }

    /// The bytes that a memory component begins with, if there are any.
    ///
    /// # Errors
    /// `worker_died` if only the run's first client had them.
    pub(super) fn content(&self, memory: usize) -> Result<Option<Arc<Vec<u8>>>, Error> {
        let content = self.contents.get(&memory).cloned();
        if content.is_some() || !self.journal.is_filled(memory) {
            return Ok(content);
        }
        let message = format!(
            "memory component {} begins with bytes that only the client which began the run had: the run cannot be resumed",
            self.application.graph.components[memory].name
        );
        Err(Error::new(Code::WorkerDied, message))
    }

    /// The memory components that one may access, made where they are not there.
    pub(super) fn channels(&mut self, component: usize) -> Result<Channels, Error> {
        let graph = &self.application.graph;
        let mut channels = Channels { of: component, list: Vec::new(), device_memory_from: 0 };
        for edge in graph.edges_from(component) {
            let Relation::Access(rights) = edge.relation else { continue };
            let memory = match self.memories.get(&edge.to) {
                Some(memory) => memory.clone(),
                None => {
                    let of = &graph.components[edge.to];
                    let memory = of.memory().expect("an access edge leads to memory");
                    let options = &self.application.options;
                    let mut plan = MemoryPlan::new().timeout(options.lease_timeout).wait(options.patience);
                    if graph.limits.limit_application() {
                        plan = plan.application(&graph.name, self.journal.run());
                    }
                    if let Some(fabric) = &options.fabric {
                        plan = plan.fabric(fabric.clone());
                    }
                    let sizes = self.application.past(|history| history.memory(&of.name, memory));
                    let plan = plan.initial_bytes(sizes.initial_bytes).increment_bytes(sizes.increment_bytes);
                    let made = MemoryComponent::new(
                        &self.application.manager,
                        (edge.to, &of.name),
                        (memory, plan, self.content(edge.to)?, self.journal.planned(edge.to)),
                        (&self.account, self.tell.clone()),
                    )?;
                    self.memories.insert(edge.to, made.clone());
                    made
                }
            };
            let mailbox = mailbox(graph, edge.to, component);
            let swaps_from = swapping::instance_of(graph, edge.to);
            channels.list.push(ComponentAccess {
                memory,
                rights,
                mailbox,
                released: Arc::default(),
                swaps_from,
            });
        }
        let on_device = self.memories.values().filter_map(|memory| memory.device_memory());
        channels.device_memory_from = on_device.min().unwrap_or_else(next_device_memory);
        Ok(channels)
    }
}
