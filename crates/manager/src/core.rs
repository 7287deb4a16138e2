//! The manager's decisions: a pure state machine of nodes, leases and tenants.
//!
//! Everything that happens is an [`CoreEvent`], everything to be done a [`CoreAction`]. The core has no clock, no randomness
//! and no input or output. The shell passes the time and a seed, and does what the actions say. The same core therefore
//! runs in a simulator, with thousands of nodes and every fault that a network has.
//!
//! ```text
//! grant.rs     requests, renewals, orders to end: what clients want
//! report.rs    registrations, reports, ticks: what agents say, and what their silence means
//! moved.rs     nodes that go to another manager
//! global.rs    the level above: racks in the place of nodes
//! nodes.rs     nodes and what is leased of them       placement.rs  which node a lease goes to
//! resources.rs  amounts of cores and memory           classes.rs    nodes that run the same at one price
//! racks.rs     nodes near each other                  pools.rs      what a node has most of
//! neighbours.rs  nodes that name each other
//! lease.rs     a lease's life                         table.rs      all of them
//! tenants.rs   quotas                                 waiting.rs    the bounded, fair queue
//! aggregation.rs  which components of a run share a node
//! application_runs.rs  runs under common limits
//! ```
//!
//! Invariants:
//! - The leased part of a node is the sum of its leases that have not ended; a grant never exceeds what is free.
//! - The agent is the authority on its node. Its registration is the truth from which the view is made; a ticket
//!   holds for one registration, so two managers never lease the same core, whatever each believes.
//! - A grant to which no client has attached is taken back only when its agent's own clock has passed the ticket's end
//!   and its report does not list it: the agent's report decides, not the time that has passed.
//! - Usage is cumulative and only grows, held to wall time; a report that is repeated or late is counted once.
//! - A lease that was attached is forgotten only when its last usage is in the store and its agent knows that, or is
//!   gone, to another manager or for good.
//! - A request is answered once: granted or refused, at once or after its wait. The wait is bounded and fair.
//! - Two nodes are linked if each names the other and both are registered. A node that names one which does not name it
//!   gets no report of that.
//!
//! Silence is counted in ticks, not in time: a manager that itself stood still does not blame its nodes for it.

mod aggregation;
mod application_runs;
mod chance;
mod classes;
mod description;
mod devices;
mod global;
mod grant;
mod hash;
mod ids;
mod lease;
mod locality;
mod messages;
mod moved;
mod neighbours;
mod nodes;
mod placement;
mod pools;
mod racks;
mod ranked;
mod report;
mod resources;
mod seats;
mod table;
mod tenants;
mod terms;
mod waiting;
mod weighing;

use sublet_proto::price::Prices;
use sublet_proto::v1::{self, LeaseState};

pub use aggregation::{Amount, CommunicatingSet, Decision, PoolResources, WHOLE_PERMILLE, decide};
pub use application_runs::RunNumber;
pub use classes::DEFAULT_PU;
pub(crate) use classes::may_run_on;
pub use ids::{ClassKey, InstanceId, LeaseId, NodeKey, RequestId, TenantKey};
pub use lease::{Lease, LeaseEnd, LeasePhase};
pub use locality::{Locality, MAX_NEAR};
pub use messages::{
    AgentLease, AgentReport, ApplicationLimits, ClientRequest, CoreAction, CoreEvent, Joining, LeaseReport,
    Neighbourhood, NeighbourhoodNode, RackStanding, Refusals, Renewal, ReportAnswer, ReportedEnd,
    TokenStatus,
};
pub use nodes::{Level, MAX_NODES, ManagedNode, SILENCE_TICKS, TICK_MS};
pub use placement::MAX_PARTS;
pub use racks::MAX_RACKS;
pub use resources::{LeaseResources, LendingState, NodeCapacity, Reach};
pub use tenants::{Tenant, application_name, application_of};
pub use terms::{
    DEFAULT_OPTIONS, DEFAULT_TIMEOUT_MS, LeaseTerms, MAX_WAIT_MS, MAX_WORKERS, MEMORY_PER_CORE_BYTES,
};
pub use waiting::{MAX_OVERTAKES, QueueLimits};

use chance::Chance;
use global::Global;
use nodes::Nodes;
use table::LeaseTable;
use tenants::TenantTable;
use waiting::WaitQueue;

/// Time after a lease's expiry at which the manager ends it without its agent, or orders the agent to end it.
pub const EXPIRY_SLACK_MS: u64 = 1_000;
const EPOCH_SHIFT: u32 = 32;
/// Events for each item of a consistency check.
#[cfg(debug_assertions)]
const LOOK_STEPS: usize = 4;

/// Settings of a core, fixed at its start.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    /// Number that is unique among all managers of a store, and grows with each start of one; 32 bits.
    pub epoch: u64,
    /// Seed of the choices among equals, and of lease names.
    pub seed: u64,
    /// Prices of new leases.
    pub prices: Prices,
    /// Limits of the queue.
    pub queue: QueueLimits,
    /// Memory for each core that nodes of the balanced pool have left, if nodes without a named pool belong to virtual
    /// pools. Nodes with more than twice as much are in the memory pool, those with less than half in the compute pool
    /// (Scad, section 4).
    pub balanced_bytes: Option<u64>,
}

/// The state machine.
#[derive(Debug)]
pub struct Core {
    nodes: Nodes,
    tenants: TenantTable,
    leases: LeaseTable,
    waiting: WaitQueue,
    queue: QueueLimits,
    chance: Chance,
    /// Number of the latest registration.
    registration: u64,
    /// State of the level above racks.
    global: Option<Box<Global>>,
    /// Events until the next look at the whole, which is amortized over as many events as there are things to look at.
    #[cfg(debug_assertions)]
    events_until_look: usize,
}

impl Core {
    /// Creates a core without nodes and leases.
    pub fn new(settings: CoreSettings) -> Core {
        let balanced_bytes = settings.balanced_bytes;
        let nodes = Nodes::new(settings.prices.clone(), balanced_bytes, Level::Rack);
        Core::with(nodes, None, settings)
    }

    /// Creates a core of the level above racks, without racks: it leases nothing, and hands requests to racks.
    pub fn global(settings: CoreSettings) -> Core {
        // The rack's manager reports the pool of each node.
        let nodes = Nodes::new(settings.prices.clone(), None, Level::Global);
        Core::with(nodes, Some(Box::default()), settings)
    }

    fn with(nodes: Nodes, global: Option<Box<Global>>, settings: CoreSettings) -> Core {
        let CoreSettings { epoch, seed, queue, .. } = settings;
        Core {
            nodes,
            tenants: TenantTable::default(),
            leases: LeaseTable::default(),
            waiting: WaitQueue::new(queue),
            queue,
            chance: Chance::new(seed),
            registration: epoch << EPOCH_SHIFT,
            global,
            #[cfg(debug_assertions)]
            events_until_look: 0,
        }
    }

    /// Handles one event, and adds the resulting actions to `out`.
    pub fn on_event(&mut self, now_ms: u64, event: CoreEvent, out: &mut Vec<CoreAction>) {
        match event {
            CoreEvent::Register(joining) => self.register(now_ms, *joining, out),
            CoreEvent::Report(report) => self.report(now_ms, report, out),
            CoreEvent::Disconnected(node) => self.nodes.miss(node),
            CoreEvent::Request(request) => self.request(now_ms, request, out),
            CoreEvent::Withdraw(tenant, request) => self.withdraw(tenant, request),
            CoreEvent::Verified(lease, tenant) => self.verified(lease, tenant),
            CoreEvent::Rejected(lease, error) => self.rejected(lease, error),
            CoreEvent::Renew(renewal) => self.renew(now_ms, renewal, out),
            CoreEvent::End(lease, error) => self.order_end(lease, error),
            CoreEvent::Quota(tenant, quota) => self.tenants.get_mut(tenant).quota = quota,
            CoreEvent::Elsewhere(tenant, used) => self.tenants.get_mut(tenant).elsewhere = used,
            CoreEvent::Moved(node, generation) => self.moved(node, generation, out),
            CoreEvent::Racks(standings) => self.racks_stand(now_ms, standings, out),
            CoreEvent::Restored(lease) => self.restore(now_ms, &lease),
            CoreEvent::Saved(lease, revision) => self.saved(lease, revision, out),
            CoreEvent::SaveFailed(lease) => self.save_failed(lease),
            CoreEvent::Tick => self.tick(now_ms, out),
        }
        #[cfg(debug_assertions)]
        self.look();
    }

    /// Asserts the invariants of the whole once in as many events as it takes steps.
    #[cfg(debug_assertions)]
    fn look(&mut self) {
        match self.events_until_look.checked_sub(1) {
            Some(left) => self.events_until_look = left,
            None => {
                self.assert_consistent();
                let things = self.nodes().count() + self.leases().count() + self.waiting.len();
                self.events_until_look = LOOK_STEPS * things;
            }
        }
    }

    /// Panics unless each table agrees with its indexes, and the leased part of each node is the sum of its leases.
    #[cfg(debug_assertions)]
    fn assert_consistent(&self) {
        self.nodes.assert_consistent();
        self.leases.assert_consistent();
        self.waiting.assert_consistent();
        if self.level() == Level::Rack {
            self.nodes.iter().for_each(|(key, node)| self.assert_node(key, node));
        }
    }

    #[cfg(debug_assertions)]
    fn assert_node(&self, key: NodeKey, node: &ManagedNode) {
        let (mut leased, mut attached, mut unattached) = (NodeCapacity::default(), 0, 0);
        for (slot, lease) in (0u32..).zip(&node.leases) {
            let Some(lease) = self.leases.get(*lease) else {
                panic!("{} lists the lease {lease}", node.name)
            };
            assert_eq!((lease.node, lease.marks.node_slot), (key, slot), "where lease {} stands", lease.id);
            if lease.is_active() {
                leased = leased.plus(lease.amount);
                *(if lease.state == LeasePhase::Attached { &mut attached } else { &mut unattached }) += 1;
            }
        }
        assert_eq!(node.leased, leased, "leased of node {}", node.name);
        assert_eq!((node.attached, node.unattached), (attached, unattached), "leases of node {}", node.name);
    }

    /// Returns the kind of its nodes.
    pub fn level(&self) -> Level {
        self.nodes.level
    }

    /// Returns the node of this name, if it has registered or has leases.
    pub fn node_key(&self, name: &str) -> Option<NodeKey> {
        self.nodes.find(name)
    }

    /// Returns the key of the tenant of this name, and adds the tenant if it is new.
    pub fn tenant_key(&mut self, name: &str) -> TenantKey {
        self.tenants.key(name)
    }

    /// A lease that is not forgotten.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.get(self.leases.find(id)?)
    }

    /// All leases that are not forgotten, in no order.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// A node.
    pub fn node(&self, key: NodeKey) -> Option<&ManagedNode> {
        self.nodes.get(key)
    }

    /// All nodes, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = &ManagedNode> {
        self.nodes.iter().map(|(_, node)| node)
    }

    /// Returns the node that has this unit, out of a node itself and those that it is linked with, and the unit's kind.
    pub fn beside(&self, key: NodeKey, unit: u32) -> Option<(&ManagedNode, String)> {
        self.nodes.beside(key, unit)
    }

    /// Notes the size of a node's cache of packages and images, only for display.
    pub fn note_cache(&mut self, node: NodeKey, cache: Option<v1::CacheUse>) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.cache = cache;
        }
    }

    /// Notes the nodes to which a node's agent is connected, only for display. Names of other nodes than its neighbours
    /// are left out.
    pub fn note_connected(&mut self, node: NodeKey, connected: Option<v1::ConnectedNodes>) {
        self.nodes.note_connected(node, connected);
    }

    /// Notes the processes that wait on standby on a node, only for display.
    pub fn note_standby(&mut self, node: NodeKey, standby: Vec<v1::StandbyProcesses>) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.standby = standby;
        }
    }

    /// A node as users see it.
    pub fn info(&self, node: &ManagedNode) -> v1::NodeInfo {
        v1::NodeInfo { units: self.nodes.units(node), ..node.info() }
    }

    /// A tenant.
    pub fn tenant(&self, key: TenantKey) -> &Tenant {
        self.tenants.get(key)
    }

    /// Whether a tenant has no turn now, because it lets grants lapse while others wait.
    pub fn is_held_back(&self, key: TenantKey, now_ms: u64) -> bool {
        self.tenants.held_back_until(key, now_ms).is_some()
    }

    /// All tenants that were ever named.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.iter()
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A lease as it travels and is stored.
    pub fn describe(&self, lease: &Lease) -> v1::Lease {
        let node = self.nodes.get(lease.node);
        let state = match lease.state {
            LeasePhase::Granted => LeaseState::Granted,
            LeasePhase::Attached | LeasePhase::Moved => LeaseState::Attached,
            LeasePhase::Ended => LeaseState::Ended,
        };
        v1::Lease {
            id: lease.id.to_string(),
            tenant: self.tenants.get(lease.tenant).name.to_string(),
            node: node.map(|node| node.name.to_string()).unwrap_or_default(),
            package: lease.package.digest.clone(),
            package_name: lease.package.name.clone(),
            package_owner: lease.package.owner.clone(),
            cores: lease.amount.workers,
            memory_bytes: lease.amount.memory_bytes,
            granted_unix_ms: lease.granted_ms,
            expires_unix_ms: lease.expires_ms,
            options: Some(lease.options),
            state: state.into(),
            price: Some(lease.price),
            usage: Some(lease.usage),
            end_reason: lease.end.as_ref().map(|end| end.reason.to_string()).unwrap_or_default(),
            ended_unix_ms: lease.end.as_ref().map_or(0, |end| end.at_ms),
            shared: lease.amount.shared,
            pu: self.nodes.classes.pu(lease.class).to_owned(),
            functions: u32::try_from(lease.package.functions.len()).unwrap_or(u32::MAX),
            idle_timeout_ms: lease.idle_timeout_ms,
            function_usage: lease.functions.clone(),
            end_code: lease.end.as_ref().and_then(|end| end.code).map_or(0, |code| code.number()),
            build: lease.build,
            choice: lease.choice.to_string(),
            cold_imports: lease.cold_imports.as_deref().cloned(),
            environment: lease.package.environment_of(lease.build).to_owned(),
            needs: Some(lease.needs.as_ref().clone()).filter(|needs| !needs.is_empty()),
            pool: lease.amount.pool.to_string(),
            application: lease
                .application
                .and_then(|key| application_of(&self.tenants.get(key).name))
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
