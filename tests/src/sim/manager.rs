//! A manager: the real core, and a model of the shell around it.
//!
//! It answers each call once, stores what the core wants stored, verifies tokens beside the grant, and exchanges with
//! other managers what tenants have. Its memory is gone with its process; the store is not.

use std::collections::BTreeMap;

use prost::Message as _;
use sublet_manager::core::{
    AgentLease, AgentReport, ClientRequest, Core, CoreAction, CoreEvent, CoreSettings, InstanceId, Joining,
    Lease, LeaseId, LeaseReport, LeaseTerms, LendingState, Locality, MAX_PARTS, ManagedNode, QueueLimits,
    Refusals, Renewal, ReportedEnd, RequestId, TenantKey, TokenStatus,
};
use sublet_manager::peers::PeerTable;
use sublet_proto::isolation::Isolation;
use sublet_proto::price::Prices;
use sublet_proto::v1::{
    self, Holding, LeaseState, Needs, NodeGeneration, PackageBuild, PackageInfo, PeerRecord, Quota,
    TenantUse, Usage,
};
use sublet_proto::{Code, Error};

use std::sync::Arc;

use super::clock::SimManagerClock;
use super::fairness::Fairness;
use super::sabotage::Sabotage;
use super::scene::{Ask, LeaseAsk, ManagerAnswer, Scene, SimCall, SimEvent, Token};
use super::slab::Slab;
use super::store::{SimStore, StoreHealth, Write};
use super::truth::{GrantedTruth, Invariant};

/// Between two ticks of a manager.
pub const TICK_US: u64 = sublet_manager::core::TICK_MS * 1_000;
/// How long a request may go unanswered beyond what it may wait: until the tick that ends its waiting.
const ANSWER_SLACK_US: u64 = 2_000_000;
/// Longest time of a write.
const LONGEST_WRITE_US: u64 = 10_000_000;
/// How long a token's verification takes, usually.
const VERIFY_US: u64 = 3_000;
/// Architecture of every node of the run.
pub const ARCHITECTURE: &str = "x86_64";

/// The name of a node.
pub fn node_name(agent: u32) -> String {
    format!("n{agent}")
}

fn tenant_name(number: usize) -> String {
    format!("t{number}")
}

/// The agent of a node's name.
pub(super) fn agent_of(name: &str) -> u32 {
    name.trim_start_matches('n').parse().expect("all nodes of the run are named by node_name")
}

/// Settings that all managers of a run have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// Limits of the queue.
    pub queue: QueueLimits,
    /// Quota of each tenant, by the tenant's number.
    pub quotas: Vec<Quota>,
}

/// A token on its way to be verified.
#[derive(Clone, Copy, Debug)]
pub struct Verification {
    /// Number of the manager that verifies the token.
    pub manager: u8,
    /// Epoch of that manager's life.
    pub epoch: u64,
    /// Request that shows the token.
    pub request: RequestId,
    /// Number of the tenant that shows the token.
    pub tenant: u32,
    /// Whether the verification will succeed.
    pub is_good: bool,
}

/// Operations of managers that take time.
#[derive(Debug, Default)]
pub struct BackgroundTasks {
    /// Writes on their way to the store.
    pub writes: Slab<Write>,
    /// Tokens that are being verified.
    pub verifications: Slab<Verification>,
    /// How long the store usually takes.
    pub store_delay_us: u64,
}

/// One life of a manager.
#[derive(Debug)]
pub struct SimManager {
    number: u8,
    /// Epoch of this life.
    pub epoch: u64,
    started_us: u64,
    clock: SimManagerClock,
    core: Core,
    package: Arc<PackageInfo>,
    tenants: Vec<TenantKey>,
    quotas: Vec<Quota>,
    /// Requests that wait for an answer.
    pending: BTreeMap<RequestId, PendingRequests>,
    fairness: Fairness,
    /// Requests by tokens that were not known, and the leases granted meanwhile.
    unverified: BTreeMap<RequestId, UnverifiedToken>,
    /// Agents that ask whether a token is valid.
    confirming: Vec<(LeaseId, SimCall)>,
    /// Leases in the registration that is being decided, with their usage; `generation` is that of the registration.
    listed: Vec<(LeaseId, Usage)>,
    generation: u64,
    /// The other managers, as it knows them.
    table: PeerTable,
    store_free_us: u64,
    ticks: u64,
    out: Vec<CoreAction>,
}

#[derive(Debug)]
struct PendingRequests {
    tenant: u32,
    isolation: Option<Isolation>,
    calls: Vec<SimCall>,
    answer_by_us: u64,
}

#[derive(Debug, Default)]
struct UnverifiedToken {
    leases: Vec<LeaseId>,
    is_good: Option<bool>,
}

impl SimManager {
    /// Starts a manager on the store.
    pub fn start(
        number: u8,
        clock: SimManagerClock,
        common: &Common,
        store: &mut SimStore,
        scene: &mut Scene,
    ) -> SimManager {
        let epoch = store.next_epoch();
        let seed = scene.random.bits();
        let no_limits = QueueLimits { total: usize::MAX, per_tenant: usize::MAX };
        let queue = if scene.sabotage == Some(Sabotage::IgnoreLimits) { no_limits } else { common.queue };
        let mut core =
            Core::new(CoreSettings { epoch, seed, prices: Prices::default(), queue, balanced_bytes: None });
        let tenants: Vec<TenantKey> =
            (0..common.quotas.len()).map(|number| core.tenant_key(&tenant_name(number))).collect();
        let build = PackageBuild { architecture: ARCHITECTURE.to_owned(), ..PackageBuild::default() };
        let mut manager = SimManager {
            number,
            epoch,
            started_us: scene.now_us,
            clock,
            core,
            package: Arc::new(PackageInfo { builds: vec![build], ..PackageInfo::default() }),
            fairness: Fairness::new(common.queue, tenants.len()),
            tenants,
            quotas: common.quotas.clone(),
            pending: BTreeMap::new(),
            unverified: BTreeMap::new(),
            confirming: Vec::new(),
            listed: Vec::new(),
            generation: 0,
            table: PeerTable::new(epoch),
            store_free_us: 0,
            ticks: 0,
            out: Vec::new(),
        };
        manager.load(store, scene);
        scene.truth.manager_started(epoch);
        scene.after(TICK_US, SimEvent::ManagerTicks(number, epoch));
        manager
    }

    fn load(&mut self, store: &SimStore, scene: &Scene) {
        let now_ms = self.clock.read_ms(scene.now_us);
        for (&tenant, &quota) in self.tenants.iter().zip(&self.quotas) {
            let quota = if scene.sabotage == Some(Sabotage::IgnoreQuotas) { Quota::default() } else { quota };
            self.core.on_event(now_ms, CoreEvent::Quota(tenant, quota), &mut self.out);
        }
        for lease in store.active_of(self.number) {
            self.core.on_event(now_ms, CoreEvent::Restored(Box::new(lease.clone())), &mut self.out);
        }
        assert!(self.out.is_empty(), "a core that is being told what there is has nothing to do yet");
    }

    /// Everyone who waits for this manager learns that it is gone.
    pub fn crash(self, scene: &mut Scene) {
        scene.truth.manager_gone(self.epoch);
        let requests = self.pending.into_values().flat_map(|pending| pending.calls);
        for call in requests.chain(self.confirming.into_iter().map(|(_, call)| call)) {
            scene.refuse(call);
        }
    }

    /// Takes a call.
    pub fn asked(
        &mut self,
        call: SimCall,
        ask: Ask,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        if call.is_lost_since(self.started_us) {
            return;
        }
        match ask {
            Ask::Report(report) => self.report(call, report, background_tasks, scene),
            Ask::Register(registration) => self.register(call, *registration, background_tasks, scene),
            Ask::Lease(ask) => self.request(call, *ask, background_tasks, scene),
            Ask::Confirm(lease) => self.confirm(call, lease, scene),
            Ask::Renew { lease, timeout_ms } => {
                let renewal = Renewal { lease, timeout_ms };
                self.decide(Some(call), CoreEvent::Renew(renewal), background_tasks, scene);
            }
            Ask::End(lease) => {
                let error = Error::new(Code::LeaseEnded, "its client ended it");
                self.decide(None, CoreEvent::End(lease, error), background_tasks, scene);
                scene.answer(self.number, call, ManagerAnswer::Ended);
            }
            Ask::Withdraw { tenant, request } => {
                if self.pending.remove(&request).is_some() {
                    self.fairness.left(request);
                    let event = CoreEvent::Withdraw(self.tenants[tenant as usize], request);
                    self.decide(None, event, background_tasks, scene);
                }
            }
        }
    }

    fn report(
        &mut self,
        call: SimCall,
        mut report: v1::NodeReport,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        if let Some(sabotage) = scene.sabotage {
            sabotage.spoil_report(&mut report);
        }
        let Some(node) = self.core.node_key(&report.node) else {
            return scene.answer(self.number, call, ManagerAnswer::RegisterAgain);
        };
        if self.core.node(node).is_some_and(|known| known.registration == report.registration) {
            for lease in &report.leases {
                scene.truth.heard(lease_id(&lease.lease), lease.usage.unwrap_or_default(), self.epoch);
            }
        }
        let report = AgentReport {
            node,
            registration: report.registration,
            sequence: report.sequence,
            answered: report.answered,
            clock_ms: report.clock_unix_ms,
            lending: lending(report.state()),
            leases: report.leases.into_iter().map(lease_report).collect(),
            neighbours: report.neighbours,
        };
        self.decide(Some(call), CoreEvent::Report(report), background_tasks, scene);
    }

    fn register(
        &mut self,
        call: SimCall,
        mut registration: v1::Registration,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        if let Some(sabotage) = scene.sabotage {
            sabotage.spoil_registration(&mut registration);
        }
        let joining = Joining {
            instance: InstanceId(u128::from_str_radix(&registration.instance, 16).unwrap_or_default()),
            generation: registration.generation,
            leases: registration.leases.into_iter().map(running).collect(),
            description: registration.node.unwrap_or_default(),
        };
        self.generation = joining.generation;
        self.listed =
            joining.leases.iter().map(|running| (running.report.lease, running.report.usage)).collect();
        self.decide(Some(call), CoreEvent::Register(Box::new(joining)), background_tasks, scene);
    }

    fn request(
        &mut self,
        call: SimCall,
        ask: LeaseAsk,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let LeaseAsk { request: id, tenant, terms, isolation, wait_ms, token } = ask;
        let standing = if token == Token::Known { TokenStatus::Verified } else { TokenStatus::Provisional };
        if standing == TokenStatus::Provisional {
            self.verify(id, tenant, token == Token::New, background_tasks, scene);
        }
        let answer_by_us = scene.now_us + wait_ms * 1_000 + ANSWER_SLACK_US;
        let pending = PendingRequests { tenant, isolation, calls: Vec::new(), answer_by_us };
        let pending = self.pending.entry(id).or_insert(pending);
        pending.calls.push(call);
        let (tenant_key, package) = (self.tenants[tenant as usize], self.package.clone());
        let pu = String::new();
        let isolation = isolation.map_or_else(String::new, |isolation| isolation.name().to_owned());
        let request = ClientRequest {
            id,
            tenant: tenant_key,
            standing,
            pu,
            package,
            terms,
            locality: Locality::default(),
            needs: Arc::new(Needs { isolation, ..Needs::default() }),
            wait_ms,
            refusals: Refusals::default(),
            application: None,
        };
        if scene.sabotage == Some(Sabotage::HoldBack) && wait_ms > 0 && self.fairness.is_empty(tenant) {
            self.pending.entry(id).and_modify(|pending| pending.answer_by_us = u64::MAX);
        } else {
            self.decide(None, CoreEvent::Request(Box::new(request)), background_tasks, scene);
        }
        if self.pending.contains_key(&id) {
            if wait_ms == 0 {
                let found = format!("request {id} may not wait and was not answered");
                scene.truth.violated(Invariant::RequestsAreAnsweredOnce, found);
            }
            self.note_held_back(scene);
            self.fairness.waits(id, tenant, &mut scene.truth);
        }
    }

    fn note_held_back(&mut self, scene: &Scene) {
        let now_ms = self.clock.read_ms(scene.now_us);
        let (core, tenants) = (&self.core, &self.tenants);
        self.fairness.hold_back(|tenant| core.is_held_back(tenants[tenant], now_ms));
    }

    fn verify(
        &mut self,
        request: RequestId,
        tenant: u32,
        is_good: bool,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        if self.unverified.contains_key(&request) {
            return;
        }
        self.unverified.insert(request, UnverifiedToken::default());
        let (manager, epoch) = (self.number, self.epoch);
        let place =
            background_tasks.verifications.put(Verification { manager, epoch, request, tenant, is_good });
        let took_us = scene.random.long_tail(VERIFY_US);
        scene.after(took_us, SimEvent::TokenVerified(place));
    }

    /// A token's verification has come to its end.
    pub fn verified(
        &mut self,
        verification: Verification,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let Verification { request, tenant, is_good, .. } = verification;
        let Some(unverified) = self.unverified.get_mut(&request) else { return };
        unverified.is_good = Some(is_good);
        let leases = std::mem::take(&mut unverified.leases);
        self.judge(&leases, tenant, is_good, background_tasks, scene);
        if !is_good && let Some(pending) = self.pending.remove(&request) {
            self.fairness.left(request);
            let event = CoreEvent::Withdraw(self.tenants[tenant as usize], request);
            self.decide(None, event, background_tasks, scene);
            pending.calls.into_iter().for_each(|call| scene.answer(self.number, call, worthless()));
        }
    }

    fn judge(
        &mut self,
        leases: &[LeaseId],
        tenant: u32,
        is_good: bool,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        for &lease in leases {
            let rejection = Error::new(Code::Unauthenticated, "the token is worth nothing");
            let event = if is_good {
                CoreEvent::Verified(lease, self.tenants[tenant as usize])
            } else {
                CoreEvent::Rejected(lease, rejection)
            };
            self.decide(None, event, background_tasks, scene);
            let number = self.number;
            for (_, call) in self.confirming.extract_if(.., |(confirming, _)| *confirming == lease) {
                scene.answer(number, call, if is_good { ManagerAnswer::Confirmed } else { worthless() });
            }
        }
    }

    fn confirm(&mut self, call: SimCall, lease: LeaseId, scene: &mut Scene) {
        match self.core.lease(lease) {
            Some(known) if known.is_active() && !known.provisional => {
                scene.answer(self.number, call, ManagerAnswer::Confirmed);
            }
            Some(known) if known.is_active() => self.confirming.push((lease, call)),
            _ => scene.answer(self.number, call, worthless()),
        }
    }

    /// The store has answered a write of this life.
    pub fn stored(
        &mut self,
        write: &Write,
        is_taken: bool,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let event = if is_taken {
            CoreEvent::Saved(write.id, write.revision)
        } else {
            CoreEvent::SaveFailed(write.id)
        };
        self.decide(None, event, background_tasks, scene);
    }

    /// Half a second has passed.
    pub fn tick(&mut self, background_tasks: &mut BackgroundTasks, store: &mut SimStore, scene: &mut Scene) {
        self.decide(None, CoreEvent::Tick, background_tasks, scene);
        self.ticks += 1;
        if self.ticks.is_multiple_of(2) && store.health != StoreHealth::Unreachable {
            self.exchange(background_tasks, store, scene);
        }
        for (id, pending) in &self.pending {
            if scene.now_us > pending.answer_by_us {
                let found =
                    format!("request {id} of tenant {} has had no answer in its time", pending.tenant);
                scene.truth.violated(Invariant::RequestsAreAnsweredOnce, found);
            }
        }
        scene.after(TICK_US, SimEvent::ManagerTicks(self.number, self.epoch));
    }

    /// Tells the other managers what there is here, and hears what there is with them.
    pub fn exchange(
        &mut self,
        background_tasks: &mut BackgroundTasks,
        store: &mut SimStore,
        scene: &mut Scene,
    ) {
        let holdings = self.tenants.iter().map(|&tenant| self.core.tenant(tenant));
        let holdings =
            holdings.map(|tenant| Holding { tenant: tenant.name.to_string(), r#use: Some(tenant.own) });
        let mut record = PeerRecord {
            epoch: self.epoch,
            beat: self.ticks,
            holdings: holdings.collect(),
            missing: self.core.missing().collect(),
            found: self.core.found(&self.table.missing()),
            ..PeerRecord::default()
        };
        if let Some(sabotage) = scene.sabotage {
            sabotage.spoil_record(&mut record);
        }
        let records = store.exchange(record);
        let now_ms = self.clock.read_ms(scene.now_us);
        self.table.observe(now_ms, records).into_iter().for_each(|dead| store.bury(dead));
        for (number, tenant) in self.tenants.clone().into_iter().enumerate() {
            let used = self.table.elsewhere(&tenant_name(number));
            self.decide(None, CoreEvent::Elsewhere(tenant, used), background_tasks, scene);
        }
        for NodeGeneration { node, generation } in self.table.found() {
            if let Some(node) = self.core.node_key(&node) {
                self.decide(None, CoreEvent::Moved(node, generation), background_tasks, scene);
            }
        }
    }

    /// The leases that it counts as its own, with their nodes.
    pub fn active(&self) -> impl Iterator<Item = (&Lease, Option<&ManagedNode>)> {
        let active = self.core.leases().filter(|lease| lease.is_active());
        active.map(|lease| (lease, self.core.node(lease.node)))
    }

    /// Usage of each tenant, as far as this manager knows, by the tenant's number.
    pub fn used(&self) -> impl Iterator<Item = TenantUse> {
        self.tenants.iter().map(|&tenant| self.core.tenant(tenant).used())
    }

    /// Has the core decide, and does what it says. The call is the one that the event's own answer goes to.
    fn decide(
        &mut self,
        call: Option<SimCall>,
        event: CoreEvent,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let now_ms = self.clock.read_ms(scene.now_us);
        let mut out = std::mem::take(&mut self.out);
        self.core.on_event(now_ms, event, &mut out);
        let mut call = call;
        for action in out.drain(..) {
            let is_answer = matches!(action, CoreAction::Granted { .. } | CoreAction::Refused { .. });
            if is_answer && scene.sabotage == Some(Sabotage::AnswerTwice) {
                self.act(&mut call, action.clone(), background_tasks, scene);
            }
            self.act(&mut call, action, background_tasks, scene);
        }
        self.out = out;
        if let Some(call) = call {
            let found = format!("{call:?} was not answered");
            scene.truth.violated(Invariant::RequestsAreAnsweredOnce, found);
        }
    }

    fn act(
        &mut self,
        call: &mut Option<SimCall>,
        action: CoreAction,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let answer = match action {
            CoreAction::Save { lease, revision } => {
                return self.save(lease, revision, background_tasks, scene);
            }
            CoreAction::Granted { request, leases, .. } => {
                return self.granted(request, &leases, background_tasks, scene);
            }
            CoreAction::Refused { request, error, .. } => {
                return self.answer_request(request, ManagerAnswer::Failed(error), scene);
            }
            CoreAction::Handed { request, manager, .. } => {
                let found =
                    format!("request {request} was handed to {manager}, and none is above the others");
                return scene.truth.violated(Invariant::RequestsAreAnsweredOnce, found);
            }
            CoreAction::Forgotten(_) => return,
            CoreAction::Reported(reported) => ManagerAnswer::Reported(v1::NodeReportReply {
                end: reported.end.into_iter().map(end_order).collect(),
                acknowledged: reported.acknowledged.into_iter().map(|lease| lease.to_string()).collect(),
                now_unix_ms: self.clock.read_ms(scene.now_us),
                managers: Vec::new(),
                sequence: reported.sequence,
                neighbours: None,
            }),
            CoreAction::RegisterAgain => ManagerAnswer::RegisterAgain,
            CoreAction::Registered { registration, .. } => {
                for (lease, usage) in std::mem::take(&mut self.listed) {
                    scene.truth.heard(lease, usage, self.epoch);
                }
                scene.truth.registered(registration, self.generation);
                ManagerAnswer::Registered(v1::NodeRegistration {
                    verifying_key: Vec::new(),
                    registration,
                    now_unix_ms: self.clock.read_ms(scene.now_us),
                    managers: Vec::new(),
                    neighbours: None,
                })
            }
            CoreAction::Renewed(lease) => match self.renewed(lease, scene) {
                Some(ticket) => ManagerAnswer::Renewed(Box::new(ticket)),
                None => return,
            },
            CoreAction::NotRegistered(error) | CoreAction::NotRenewed(_, error) => {
                ManagerAnswer::Failed(error)
            }
        };
        match call.take() {
            Some(call) => scene.answer(self.number, call, answer),
            None => {
                let found = format!("no call waits for {answer:?}");
                scene.truth.violated(Invariant::RequestsAreAnsweredOnce, found);
            }
        }
    }

    fn save(
        &mut self,
        id: LeaseId,
        revision: u64,
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let Some(lease) = self.core.lease(id).map(|lease| self.core.describe(lease)) else { return };
        let (manager, epoch) = (self.number, self.epoch);
        let place = background_tasks.writes.put(Write { manager, epoch, lease, id, revision });
        let took_us = scene.random.long_tail(background_tasks.store_delay_us).min(LONGEST_WRITE_US);
        // One writer for each manager: what is written later arrives later.
        self.store_free_us = self.store_free_us.max(scene.now_us + took_us);
        scene.queue.add(self.store_free_us, SimEvent::StoreAnswers(place));
    }

    fn granted(
        &mut self,
        request: RequestId,
        leases: &[LeaseId],
        background_tasks: &mut BackgroundTasks,
        scene: &mut Scene,
    ) {
        let pending = self.pending.get(&request);
        let (tenant, isolation) =
            (pending.map(|pending| pending.tenant), pending.and_then(|pending| pending.isolation));
        let tickets: Vec<v1::Ticket> = leases.iter().filter_map(|&lease| self.ticket(lease)).collect();
        for (&id, ticket) in leases.iter().zip(&tickets) {
            if let Some(tenant) = tenant.filter(|_| !scene.truth.knows(id)) {
                self.tell_granted(id, (tenant, isolation), ticket, scene);
            }
        }
        self.note_held_back(scene);
        self.fairness.granted(request, &mut scene.truth);
        self.answer_request(request, ManagerAnswer::Granted(tickets), scene);
        if let Some(unverified) = self.unverified.get_mut(&request) {
            match unverified.is_good {
                Some(is_good) => {
                    self.judge(leases, tenant.unwrap_or_default(), is_good, background_tasks, scene)
                }
                None => unverified.leases = leases.to_vec(),
            }
        }
    }

    fn tell_granted(
        &self,
        id: LeaseId,
        (tenant, isolation): (u32, Option<Isolation>),
        ticket: &v1::Ticket,
        scene: &mut Scene,
    ) {
        let Some(lease) = self.core.lease(id) else { return };
        let Some(agent) = self.core.node(lease.node).map(|node| agent_of(&node.name)) else { return };
        let granted = GrantedTruth {
            id,
            agent,
            tenant,
            amount: lease.amount,
            registration: ticket.registration,
            issued_ms: ticket.issued_unix_ms,
            timeout_ms: lease.expires_ms.saturating_sub(lease.granted_ms),
        };
        scene.truth.grant(scene.now_us, granted);
        let needs = ticket.lease.as_ref().and_then(|lease| lease.needs.as_ref());
        scene.truth.isolate(id, isolation, needs.map_or("", |needs| needs.isolation.as_str()));
    }

    fn renewed(&mut self, id: LeaseId, scene: &mut Scene) -> Option<v1::Ticket> {
        let left_ms = self.core.lease(id)?.expires_ms.saturating_sub(self.clock.read_ms(scene.now_us));
        scene.truth.renew(scene.now_us, id, left_ms);
        self.ticket(id)
    }

    fn ticket(&self, id: LeaseId) -> Option<v1::Ticket> {
        let lease = self.core.lease(id)?;
        Some(v1::Ticket {
            lease: Some(self.core.describe(lease)),
            registration: self.core.node(lease.node)?.registration,
            issued_unix_ms: lease.issued_ms,
            provisional: lease.provisional,
            ..v1::Ticket::default()
        })
    }

    fn answer_request(&mut self, request: RequestId, answer: ManagerAnswer, scene: &mut Scene) {
        self.fairness.left(request);
        let Some(pending) = self.pending.remove(&request) else {
            let found = format!("no client waits for request {request} and {answer:?}");
            return scene.truth.violated(Invariant::RequestsAreAnsweredOnce, found);
        };
        if scene.sabotage == Some(Sabotage::DropAnswers) {
            self.pending.insert(request, pending);
            return;
        }
        for call in pending.calls {
            scene.answer(self.number, call, answer.clone());
        }
    }

    /// Checks the invariants of a core that hold once faults have stopped and all leases are over.
    pub fn check_final(&mut self, scene: &mut Scene) {
        let mut found = Vec::new();
        for node in self.core.nodes() {
            let is_own = scene.truth.registration(agent_of(&node.name)) >> 32 == self.epoch;
            if is_own && node.leased != Default::default() {
                found.push(format!("{} still has {:?} leased", node.name, node.leased));
            }
        }
        for lease in self.core.leases().filter(|lease| lease.is_active()) {
            found.push(format!("the core still has {lease:?}"));
        }
        if self.core.waiting() > 0 {
            found.push(format!("{} requests still wait", self.core.waiting()));
        }
        for shared in [false, true] {
            found.extend(self.refusal_of_all(shared, scene));
        }
        for text in found.into_iter().take(1) {
            scene.truth.violated(Invariant::NothingLeaks, format!("manager {}: {text}", self.number));
        }
    }

    /// Asks the core for all that its nodes have. Says if it does not give it.
    fn refusal_of_all(&mut self, shared: bool, scene: &Scene) -> Option<String> {
        let there = self.core.nodes().filter(|node| !node.is_lost());
        let workers: Vec<u32> = there
            .map(|node| if shared { node.capacity.places } else { node.capacity.cores })
            .filter(|&workers| workers > 0)
            .collect();
        if workers.is_empty() || workers.len() > MAX_PARTS {
            return None;
        }
        let options = v1::WorkerOptions { slots: 1, slot_bytes: 64, ..v1::WorkerOptions::default() };
        let cores = workers.iter().sum();
        let memory_bytes = u64::from(cores) << 20;
        let asked =
            v1::LeaseRequest { cores, shared, memory_bytes, options: Some(options), ..Default::default() };
        let request = ClientRequest {
            id: RequestId(u128::from(shared)),
            tenant: self.core.tenant_key("tenant of all workers"),
            standing: TokenStatus::Verified,
            pu: String::new(),
            package: self.package.clone(),
            terms: LeaseTerms::of(&asked).ok()?,
            locality: Locality::default(),
            needs: Arc::default(),
            wait_ms: 0,
            refusals: Refusals::default(),
            application: None,
        };
        let now_ms = self.clock.read_ms(scene.now_us);
        self.core.on_event(now_ms, CoreEvent::Request(Box::new(request)), &mut self.out);
        match self.out.pop() {
            Some(CoreAction::Granted { .. }) => None,
            action => Some(format!(
                "all {cores} workers (shared: {shared}) of its idle nodes were asked: {action:?}"
            )),
        }
    }
}

fn worthless() -> ManagerAnswer {
    ManagerAnswer::Failed(Error::new(Code::Unauthenticated, "the token is worth nothing"))
}

/// The lease of this name.
pub(super) fn lease_id(name: &str) -> LeaseId {
    name.parse().expect("leases of the run have names that their manager made")
}

fn lending(state: v1::NodeState) -> LendingState {
    match state {
        v1::NodeState::Draining => LendingState::Draining,
        v1::NodeState::Reclaimed => LendingState::Reclaimed,
        _ => LendingState::Open,
    }
}

fn lease_report(report: v1::LeaseReport) -> LeaseReport {
    let is_over = report.state() == LeaseState::Ended;
    LeaseReport {
        lease: lease_id(&report.lease),
        usage: report.usage.unwrap_or_default(),
        functions: report.functions,
        cold_imports: report.cold_imports,
        ended: is_over.then_some(ReportedEnd { code: report.end_code, reason: report.end_reason }),
    }
}

/// No party of a run forges signatures, so signatures are not checked.
fn running(running: v1::RunningLease) -> AgentLease {
    let signed =
        v1::SignedTicket::decode(&running.ticket[..]).expect("agents of the run keep tickets as they are");
    let ticket = v1::Ticket::decode(&signed.ticket[..]).expect("agents of the run keep tickets as they are");
    AgentLease {
        lease: Box::new(ticket.lease.unwrap_or_default()),
        report: lease_report(running.report.unwrap_or_default()),
        remaining_ms: running.remaining_ms,
    }
}

fn end_order((lease, error): (LeaseId, Error)) -> v1::EndOrder {
    v1::EndOrder { lease: lease.to_string(), code: error.code.number(), reason: error.message }
}
