//! All models of a run together: time goes from event to event, and the party that an event is for acts on it.

use sublet_proto::v1::NodeState;

use super::agent::{JournalFate, SimAgent};
use super::client::SimClient;
use super::clock::{MAX_DRIFT_PPM, SimClock, SimManagerClock};
use super::manager::{BackgroundTasks, Common, SimManager};
use super::network::{CLIENT_HOSTS, LinkEnd, LinkState, SimNetwork, Weather};
use super::plan::{SimFault, SimOptions, SimPlan};
use super::queue::EventQueue;
use super::random::Random;
use super::sabotage::Sabotage;
use super::scene::{Scene, SimCaller, SimEvent, SimMessage};
use super::slab::Slab;
use super::store::{SimStore, StoreHealth, Write};
use super::trace::Trace;
use super::truth::{Invariant, Truth};
use crate::numbers::narrow;

const SECOND_US: u64 = 1_000_000;
/// Between two checks of everything.
const CHECK_US: u64 = 10 * SECOND_US;
/// Time after the last fault until every party has found every other and sent all it had: messages on their way arrive,
/// agents go to another manager after three attempts, and managers miss and find what had gone.
const SETTLING_US: u64 = 60 * SECOND_US;
/// Longest time that something stays broken.
const LONGEST_FAULT_US: u64 = 120 * SECOND_US;
/// Reading of wall clocks when a run begins, in milliseconds of Unix time.
const WALL_MS: u64 = 1_800_000_000_000;
/// How far wall clocks jump at most, in milliseconds: an hour.
const JUMP_MS: u64 = 3_600_000;

/// See the [module](self).
#[derive(Debug)]
pub struct SimWorld {
    plan: SimPlan,
    scene: Scene,
    background_tasks: BackgroundTasks,
    store: SimStore,
    common: Common,
    hosts: Vec<SimHost>,
    agents: Vec<SimAgent>,
    /// Agents that do not come back.
    gone: Vec<bool>,
    clients: Vec<SimClient>,
    reliefs: Vec<Relief>,
    /// The end of the last fault so far.
    mended_at_us: u64,
    is_calm: bool,
    is_over: bool,
}

/// A manager's machine.
#[derive(Debug)]
struct SimHost {
    manager: Option<SimManager>,
    /// Reading of the machine's wall clock when the run began.
    wall_ms: u64,
    drift_ppm: i64,
}

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
enum Relief {
    StartManager(u8),
    StartAgent(u32),
    Lend(u32),
    Open(LinkEnd, LinkEnd),
    OpenManager(u8),
    Weather,
    Store,
}

impl SimWorld {
    /// A run before its first event.
    pub fn new(options: &SimOptions) -> SimWorld {
        let mut random = Random::from_seed(options.seed);
        let plan = SimPlan::draw(options, &mut random);
        let mut truth = Truth::new(plan.capacities.iter().copied(), plan.quotas.len());
        (0..).zip(&plan.quotas).for_each(|(tenant, &quota)| truth.set_quota(tenant, quota));
        let network = SimNetwork::new(plan.managers, options.nodes, plan.weather, random.split());
        let mut drift = random.split();
        let mut drift_ppm =
            || narrow::<_, i64>(drift.below(2 * MAX_DRIFT_PPM.unsigned_abs() + 1)) - MAX_DRIFT_PPM;
        let agents = (0..).zip(&plan.capacities).map(|(number, &capacity)| {
            SimAgent::new(number, capacity, SimClock::start(0, drift_ppm()), plan.managers)
        });
        let agents: Vec<SimAgent> = agents.collect();
        let hosts =
            (0..plan.managers).map(|_| SimHost { manager: None, wall_ms: WALL_MS, drift_ppm: drift_ppm() });
        let tenants: u32 = narrow(plan.quotas.len());
        let mut world = SimWorld {
            scene: Scene {
                now_us: 0,
                queue: EventQueue::default(),
                messages: Slab::default(),
                network,
                truth,
                trace: Trace::default(),
                random,
                sabotage: options.sabotage,
            },
            background_tasks: BackgroundTasks { store_delay_us: 1_000, ..BackgroundTasks::default() },
            store: SimStore::new(),
            common: Common { queue: plan.queue, quotas: plan.quotas.clone() },
            hosts: hosts.collect(),
            gone: vec![false; agents.len()],
            agents,
            clients: (0..plan.clients).map(|number| SimClient::new(number, number % tenants)).collect(),
            reliefs: Vec::new(),
            mended_at_us: 0,
            is_calm: false,
            is_over: false,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        (0..self.plan.managers).for_each(|manager| self.start_manager(manager));
        for agent in 0..narrow::<_, u32>(self.agents.len()) {
            let delay_us = self.scene.random.below(SECOND_US);
            self.later(delay_us, Relief::StartAgent(agent));
        }
        let Scene { queue, random, .. } = &mut self.scene;
        queue.add(CHECK_US, SimEvent::Check);
        queue.add(self.plan.calm_at_us, SimEvent::Calm);
        queue.add(self.plan.end_at_us, SimEvent::End);
        if !self.plan.faults.is_empty() {
            queue.add(random.long_tail(self.plan.fault_every_us), SimEvent::Fault);
        }
        for client in &mut self.clients {
            let at_us = self.scene.random.below(self.plan.manners.pace_us);
            client.wake_at(at_us, &mut self.scene);
        }
    }

    /// Runs to the end, or to the first violation. Says whether there was none.
    pub fn run(&mut self) -> bool {
        while !self.is_over && self.scene.truth.violation().is_none() {
            let Some((at_us, event)) = self.scene.queue.next() else { break };
            self.scene.now_us = self.scene.now_us.max(at_us);
            self.scene.trace.note(at_us, event, event.word());
            self.handle(event);
        }
        let granted = self.scene.truth.leases_granted();
        self.scene.trace.mix(granted);
        self.scene.truth.violation().is_none()
    }

    /// State of the run.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    fn handle(&mut self, event: SimEvent) {
        let SimWorld { scene, background_tasks, agents, clients, hosts, store, plan, .. } = self;
        match event {
            SimEvent::Arrival(place, ..) => self.arrive(place),
            SimEvent::AgentWakes(agent, wake) => agents[agent as usize].wake(wake, scene),
            SimEvent::ClientWakes(client, wake) => {
                clients[client as usize].wake(wake, &plan.manners, self.is_calm, scene);
            }
            SimEvent::Unanswered(SimCaller::Agent(agent), call) => {
                agents[agent as usize].unanswered(call, scene)
            }
            SimEvent::Unanswered(SimCaller::Client(client), call) => {
                clients[client as usize].unanswered(call, &plan.manners, scene);
            }
            SimEvent::ManagerTicks(manager, epoch) => {
                if let Some(manager) = living(hosts, manager, epoch) {
                    manager.tick(background_tasks, store, scene);
                }
            }
            SimEvent::StoreAnswers(place) => self.store_answers(place),
            SimEvent::TokenVerified(place) => {
                let verification = background_tasks.verifications.take(place);
                if let Some(manager) = living(hosts, verification.manager, verification.epoch) {
                    manager.verified(verification, background_tasks, scene);
                }
            }
            SimEvent::Fault => self.fault(),
            SimEvent::Relief(number) => self.relieve(self.reliefs[number as usize]),
            SimEvent::Check => {
                scene.truth.check(scene.now_us);
                scene.after(CHECK_US, SimEvent::Check);
                self.check_counted();
            }
            SimEvent::Calm => self.calm(),
            SimEvent::End => self.end(),
        }
    }

    fn arrive(&mut self, place: u32) {
        let SimWorld { scene, background_tasks, agents, clients, hosts, plan, .. } = self;
        match scene.messages.take(place) {
            SimMessage::Asked(manager, call, ask) => match &mut hosts[usize::from(manager)].manager {
                Some(manager) => manager.asked(call, ask, background_tasks, scene),
                None => scene.refuse(call),
            },
            SimMessage::Answered(call, answer) => match call.caller {
                SimCaller::Agent(agent) => agents[agent as usize].answered(call, answer, scene),
                SimCaller::Client(client) => {
                    clients[client as usize].answered(call, answer, &plan.manners, scene);
                }
            },
            SimMessage::ToAgent(agent, message) => agents[agent as usize].heard(message, scene),
            SimMessage::ToClient(client, round, message) => {
                clients[client as usize].heard(round, message, &plan.manners, scene);
            }
        }
    }

    /// Checks what several managers count, if they have had the time to hear of all that they should know. The check
    /// that a single manager does not count what is over is done at the end.
    fn check_counted(&mut self) {
        let SimWorld { scene, hosts, mended_at_us, .. } = self;
        let now_us = scene.now_us;
        scene.truth.forget_over(now_us);
        if hosts.len() < 2 || now_us < *mended_at_us + SETTLING_US {
            return;
        }
        for manager in hosts.iter().filter_map(|host| host.manager.as_ref()) {
            if let Some(found) = scene.truth.check_counted(now_us, manager.epoch, manager.used()) {
                let found = format!("{found}; its own: {:?}", manager.active().collect::<Vec<_>>());
                scene.truth.violated(Invariant::LeasesCountOnce, found);
            }
        }
    }

    /// A write reaches the store, whether or not its manager still lives.
    fn store_answers(&mut self, place: u32) {
        let write = self.background_tasks.writes.take(place);
        let is_taken = matches!(self.store.health, StoreHealth::Up(_));
        if is_taken && self.scene.sabotage != Some(Sabotage::ForgetWrites) {
            self.take(write.clone());
        }
        if let Some(manager) = living(&mut self.hosts, write.manager, write.epoch) {
            manager.stored(&write, is_taken, &mut self.background_tasks, &mut self.scene);
        }
    }

    fn take(&mut self, write: Write) {
        let id = write.id;
        let kept = self.store.take(write);
        self.scene.truth.stored(self.scene.now_us, id, kept);
    }

    fn start_manager(&mut self, number: u8) {
        let host = &mut self.hosts[usize::from(number)];
        if host.manager.is_some() {
            return;
        }
        if self.store.health == StoreHealth::Unreachable {
            return self.later(SECOND_US, Relief::StartManager(number));
        }
        let wall_ms = host.wall_ms + self.scene.now_us / 1_000;
        let clock = SimManagerClock::start(self.scene.now_us, wall_ms, host.drift_ppm);
        let mut manager = SimManager::start(number, clock, &self.common, &mut self.store, &mut self.scene);
        manager.exchange(&mut self.background_tasks, &mut self.store, &mut self.scene);
        host.manager = Some(manager);
    }

    fn later(&mut self, delay_us: u64, relief: Relief) {
        let number = narrow(self.reliefs.len());
        self.reliefs.push(relief);
        self.mended_at_us = self.mended_at_us.max(self.scene.now_us + delay_us);
        self.scene.after(delay_us, SimEvent::Relief(number));
    }

    fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let fault = self.scene.random.pick(&self.plan.faults);
        self.strike(fault);
        let next_us = self.scene.random.long_tail(self.plan.fault_every_us / 2);
        self.scene.after(next_us, SimEvent::Fault);
    }

    fn strike(&mut self, fault: SimFault) {
        let random = &mut self.scene.random;
        let usual_us = random.pick(&[1, 3, 10]) * SECOND_US;
        let for_us = random.long_tail(usual_us).min(LONGEST_FAULT_US);
        let manager: u8 = narrow(random.below(self.hosts.len() as u64));
        let agent: u32 = narrow(random.below(self.agents.len() as u64));
        let host: u8 = narrow(random.below(CLIENT_HOSTS.into()));
        let (of_agent, of_manager) = (LinkEnd::Agent(agent), LinkEnd::Manager(manager));
        match fault {
            SimFault::ManagerDies => self.kill_manager(manager, for_us),
            SimFault::AgentDies => self.kill_agent(agent, for_us),
            SimFault::RackDies => {
                let all: u32 = narrow(self.agents.len());
                (agent..agent + all.div_ceil(10)).for_each(|agent| self.kill_agent(agent % all, for_us));
            }
            SimFault::AgentGone => self.lose_agent(agent),
            SimFault::Drain => self.set_state(agent, NodeState::Draining, for_us),
            SimFault::Reclaim => self.set_state(agent, NodeState::Reclaimed, for_us + 10 * SECOND_US),
            SimFault::CutAgent => self.cut(of_agent, of_manager, LinkState::Cut, for_us),
            SimFault::Slow => self.cut(of_agent, of_manager, LinkState::Slow, for_us),
            SimFault::CutManager => self.cut_manager(manager, for_us),
            SimFault::CutHost => self.cut(LinkEnd::Host(host), of_manager, LinkState::Cut, for_us),
            SimFault::CutClients => self.cut(LinkEnd::Host(host), of_agent, LinkState::Cut, for_us),
            SimFault::StoreSlow => self.ail(StoreHealth::Up(300_000), for_us),
            SimFault::StoreFull => self.ail(StoreHealth::Full, for_us),
            SimFault::StoreCut => self.ail(StoreHealth::Unreachable, for_us),
            SimFault::Storm => {
                self.scene.network.weather =
                    Weather { loss_ppm: 50_000, duplicate_ppm: 50_000, delay_us: 20_000 };
                self.later(for_us, Relief::Weather);
            }
            SimFault::Burst => self.burst(),
            SimFault::ClocksJump => {
                let jump_ms = self.scene.random.below(2 * JUMP_MS);
                self.hosts[usize::from(manager)].wall_ms = WALL_MS + jump_ms - JUMP_MS;
            }
        }
    }

    fn kill_manager(&mut self, number: u8, for_us: u64) {
        if let Some(manager) = self.hosts[usize::from(number)].manager.take() {
            manager.crash(&mut self.scene);
            self.later(for_us, Relief::StartManager(number));
        }
    }

    fn kill_agent(&mut self, number: u32, for_us: u64) {
        let journal =
            if self.scene.random.chance_ppm(100_000) { JournalFate::Lost } else { JournalFate::Kept };
        if self.agents[number as usize].is_up() {
            self.agents[number as usize].crash(journal, &mut self.scene);
            self.later(for_us, Relief::StartAgent(number));
        }
    }

    fn lose_agent(&mut self, number: u32) {
        let gone = self.gone.iter().filter(|gone| **gone).count();
        if gone < self.agents.len() / 4 {
            self.gone[number as usize] = true;
            self.agents[number as usize].crash(JournalFate::Lost, &mut self.scene);
            self.scene.truth.agent_lost(number);
            self.mended_at_us = self.mended_at_us.max(self.scene.now_us);
        }
    }

    fn set_state(&mut self, agent: u32, state: NodeState, for_us: u64) {
        self.agents[agent as usize].set_state(state, &mut self.scene);
        self.later(for_us, Relief::Lend(agent));
    }

    fn cut(&mut self, a: LinkEnd, b: LinkEnd, link: LinkState, for_us: u64) {
        let directions = self.scene.random.pick(&[1, 2, 3]);
        if directions & 1 != 0 {
            self.scene.network.set(a, b, link);
        }
        if directions & 2 != 0 {
            self.scene.network.set(b, a, link);
        }
        self.later(for_us, Relief::Open(a, b));
    }

    fn cut_manager(&mut self, manager: u8, for_us: u64) {
        let directions = self.scene.random.pick(&[1, 2, 3]);
        let link = |is_cut: bool| if is_cut { LinkState::Cut } else { LinkState::Open };
        self.link_manager(manager, link(directions & 1 != 0), link(directions & 2 != 0));
        self.later(for_us, Relief::OpenManager(manager));
    }

    fn link_manager(&mut self, manager: u8, to: LinkState, from: LinkState) {
        let agents = (0..narrow::<_, u32>(self.agents.len())).map(LinkEnd::Agent);
        let hosts = (0..CLIENT_HOSTS).map(LinkEnd::Host);
        for party in agents.chain(hosts) {
            self.scene.network.set(party, LinkEnd::Manager(manager), to);
            self.scene.network.set(LinkEnd::Manager(manager), party, from);
        }
    }

    fn ail(&mut self, health: StoreHealth, for_us: u64) {
        self.set_health(health);
        self.scene.truth.unsettle(self.scene.now_us + for_us);
        self.later(for_us, Relief::Store);
    }

    fn set_health(&mut self, health: StoreHealth) {
        self.store.health = health;
        self.background_tasks.store_delay_us = match health {
            StoreHealth::Up(delay_us) => delay_us,
            StoreHealth::Full => 1_000,
            StoreHealth::Unreachable => 2 * SECOND_US,
        };
    }

    fn burst(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.is_idle()) {
            client.wake_at(self.scene.now_us, &mut self.scene);
        }
    }

    fn relieve(&mut self, relief: Relief) {
        match relief {
            Relief::StartManager(manager) => self.start_manager(manager),
            Relief::StartAgent(agent) => self.start_agent(agent),
            Relief::Lend(agent) => self.agents[agent as usize].set_state(NodeState::Lending, &mut self.scene),
            Relief::Open(a, b) => {
                self.scene.network.set(a, b, LinkState::Open);
                self.scene.network.set(b, a, LinkState::Open);
            }
            Relief::OpenManager(manager) => self.link_manager(manager, LinkState::Open, LinkState::Open),
            Relief::Weather => self.scene.network.weather = self.plan.weather,
            Relief::Store => self.set_health(StoreHealth::Up(1_000)),
        }
    }

    fn start_agent(&mut self, number: u32) {
        if !self.agents[number as usize].is_up() && !self.gone[number as usize] {
            self.agents[number as usize].start(&mut self.scene);
        }
    }

    /// Ends the faults and the clients' requests.
    fn calm(&mut self) {
        self.is_calm = true;
        self.mended_at_us = self.scene.now_us;
        self.scene.network.heal();
        self.scene.network.weather = Weather::FAIR;
        self.set_health(StoreHealth::Up(1_000));
        (0..self.plan.managers).for_each(|manager| self.start_manager(manager));
        for agent in 0..narrow::<_, u32>(self.agents.len()) {
            self.start_agent(agent);
            self.agents[agent as usize].set_state(NodeState::Lending, &mut self.scene);
        }
    }

    /// Checks that all lent resources are back and can be lent again.
    fn end(&mut self) {
        self.is_over = true;
        let SimWorld { scene, hosts, .. } = self;
        scene.truth.check(scene.now_us);
        scene.truth.check_final();
        for manager in hosts.iter_mut().filter_map(|host| host.manager.as_mut()) {
            manager.check_final(scene);
        }
    }
}

/// A manager, if it still lives the life with this epoch.
fn living(hosts: &mut [SimHost], number: u8, epoch: u64) -> Option<&mut SimManager> {
    hosts[usize::from(number)].manager.as_mut().filter(|manager| manager.epoch == epoch)
}
