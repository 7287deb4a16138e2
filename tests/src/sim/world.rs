//! All models of a run together: time goes from event to event, and the party that an event is for acts on it.

use sublet_proto::v1::NodeState;

use super::agent::{Agent, Journal};
use super::client::Client;
use super::clock::{Clock, MAX_DRIFT_PPM, ManagerClock};
use super::manager::{Common, Errands, Manager};
use super::network::{CLIENT_HOSTS, Link, Network, Party, Weather};
use super::plan::{Fault, Options, Plan};
use super::queue::Queue;
use super::random::Random;
use super::sabotage::Sabotage;
use super::scene::{Caller, Event, Message, Scene};
use super::slab::Slab;
use super::store::{Health, Store, Write};
use super::trace::Trace;
use super::truth::{Invariant, Truth};

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
pub struct World {
    plan: Plan,
    scene: Scene,
    errands: Errands,
    store: Store,
    common: Common,
    hosts: Vec<Host>,
    agents: Vec<Agent>,
    /// Agents that do not come back.
    gone: Vec<bool>,
    clients: Vec<Client>,
    reliefs: Vec<Relief>,
    /// The end of the last fault so far.
    mended_at_us: u64,
    is_calm: bool,
    is_over: bool,
}

/// A manager's machine.
#[derive(Debug)]
struct Host {
    manager: Option<Manager>,
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
    Open(Party, Party),
    OpenManager(u8),
    Weather,
    Store,
}

impl World {
    /// A run before its first event.
    pub fn new(options: &Options) -> World {
        let mut random = Random::from_seed(options.seed);
        let plan = Plan::draw(options, &mut random);
        let mut truth = Truth::new(plan.capacities.iter().copied(), plan.quotas.len());
        (0..).zip(&plan.quotas).for_each(|(tenant, &quota)| truth.set_quota(tenant, quota));
        let network = Network::new(plan.managers, options.nodes, plan.weather, random.split());
        let mut drift = random.split();
        let mut drift_ppm = || drift.below(2 * MAX_DRIFT_PPM as u64 + 1) as i64 - MAX_DRIFT_PPM;
        let agents = (0..).zip(&plan.capacities).map(|(number, &capacity)| {
            Agent::new(number, capacity, Clock::start(0, drift_ppm()), plan.managers)
        });
        let agents: Vec<Agent> = agents.collect();
        let hosts =
            (0..plan.managers).map(|_| Host { manager: None, wall_ms: WALL_MS, drift_ppm: drift_ppm() });
        let tenants = plan.quotas.len() as u32;
        let mut world = World {
            scene: Scene {
                now_us: 0,
                queue: Queue::default(),
                messages: Slab::default(),
                network,
                truth,
                trace: Trace::default(),
                random,
                sabotage: options.sabotage,
            },
            errands: Errands { store_delay_us: 1_000, ..Errands::default() },
            store: Store::new(),
            common: Common { queue: plan.queue, quotas: plan.quotas.clone() },
            hosts: hosts.collect(),
            gone: vec![false; agents.len()],
            agents,
            clients: (0..plan.clients).map(|number| Client::new(number, number % tenants)).collect(),
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
        for agent in 0..self.agents.len() as u32 {
            let delay_us = self.scene.random.below(SECOND_US);
            self.later(delay_us, Relief::StartAgent(agent));
        }
        let Scene { queue, random, .. } = &mut self.scene;
        queue.add(CHECK_US, Event::Check);
        queue.add(self.plan.calm_at_us, Event::Calm);
        queue.add(self.plan.end_at_us, Event::End);
        if !self.plan.faults.is_empty() {
            queue.add(random.long_tail(self.plan.fault_every_us), Event::Fault);
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

    fn handle(&mut self, event: Event) {
        let World { scene, errands, agents, clients, hosts, store, plan, .. } = self;
        match event {
            Event::Arrival(place, ..) => self.arrive(place),
            Event::AgentWakes(agent, wake) => agents[agent as usize].wake(wake, scene),
            Event::ClientWakes(client, wake) => {
                clients[client as usize].wake(wake, &plan.manners, self.is_calm, scene);
            }
            Event::Unanswered(Caller::Agent(agent), call) => agents[agent as usize].unanswered(call, scene),
            Event::Unanswered(Caller::Client(client), call) => {
                clients[client as usize].unanswered(call, &plan.manners, scene);
            }
            Event::ManagerTicks(manager, epoch) => {
                if let Some(manager) = living(hosts, manager, epoch) {
                    manager.tick(errands, store, scene);
                }
            }
            Event::StoreAnswers(place) => self.store_answers(place),
            Event::TokenVerified(place) => {
                let verification = errands.verifications.take(place);
                if let Some(manager) = living(hosts, verification.manager, verification.epoch) {
                    manager.verified(verification, errands, scene);
                }
            }
            Event::Fault => self.fault(),
            Event::Relief(number) => self.relieve(self.reliefs[number as usize]),
            Event::Check => {
                scene.truth.check(scene.now_us);
                scene.after(CHECK_US, Event::Check);
                self.check_counted();
            }
            Event::Calm => self.calm(),
            Event::End => self.end(),
        }
    }

    fn arrive(&mut self, place: u32) {
        let World { scene, errands, agents, clients, hosts, plan, .. } = self;
        match scene.messages.take(place) {
            Message::Asked(manager, call, ask) => match &mut hosts[usize::from(manager)].manager {
                Some(manager) => manager.asked(call, ask, errands, scene),
                None => scene.refuse(call),
            },
            Message::Answered(call, answer) => match call.caller {
                Caller::Agent(agent) => agents[agent as usize].answered(call, answer, scene),
                Caller::Client(client) => {
                    clients[client as usize].answered(call, answer, &plan.manners, scene);
                }
            },
            Message::ToAgent(agent, message) => agents[agent as usize].heard(message, scene),
            Message::ToClient(client, round, message) => {
                clients[client as usize].heard(round, message, &plan.manners, scene);
            }
        }
    }

    /// Checks what several managers count, if they have had the time to hear of all that they should know. The check
    /// that a single manager does not count what is over is done at the end.
    fn check_counted(&mut self) {
        let World { scene, hosts, mended_at_us, .. } = self;
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
        let write = self.errands.writes.take(place);
        let is_taken = matches!(self.store.health, Health::Up(_));
        if is_taken && self.scene.sabotage != Some(Sabotage::ForgetWrites) {
            self.take(write.clone());
        }
        if let Some(manager) = living(&mut self.hosts, write.manager, write.epoch) {
            manager.stored(&write, is_taken, &mut self.errands, &mut self.scene);
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
        if self.store.health == Health::Unreachable {
            return self.later(SECOND_US, Relief::StartManager(number));
        }
        let wall_ms = host.wall_ms + self.scene.now_us / 1_000;
        let clock = ManagerClock::start(self.scene.now_us, wall_ms, host.drift_ppm);
        let mut manager = Manager::start(number, clock, &self.common, &mut self.store, &mut self.scene);
        manager.exchange(&mut self.errands, &mut self.store, &mut self.scene);
        host.manager = Some(manager);
    }

    fn later(&mut self, delay_us: u64, relief: Relief) {
        let number = self.reliefs.len() as u32;
        self.reliefs.push(relief);
        self.mended_at_us = self.mended_at_us.max(self.scene.now_us + delay_us);
        self.scene.after(delay_us, Event::Relief(number));
    }

    fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let fault = self.scene.random.pick(&self.plan.faults);
        self.strike(fault);
        let next_us = self.scene.random.long_tail(self.plan.fault_every_us / 2);
        self.scene.after(next_us, Event::Fault);
    }

    fn strike(&mut self, fault: Fault) {
        let random = &mut self.scene.random;
        let usual_us = random.pick(&[1, 3, 10]) * SECOND_US;
        let for_us = random.long_tail(usual_us).min(LONGEST_FAULT_US);
        let manager = random.below(self.hosts.len() as u64) as u8;
        let agent = random.below(self.agents.len() as u64) as u32;
        let host = random.below(CLIENT_HOSTS as u64) as u8;
        let (of_agent, of_manager) = (Party::Agent(agent), Party::Manager(manager));
        match fault {
            Fault::ManagerDies => self.kill_manager(manager, for_us),
            Fault::AgentDies => self.kill_agent(agent, for_us),
            Fault::RackDies => {
                let all = self.agents.len() as u32;
                (agent..agent + all.div_ceil(10)).for_each(|agent| self.kill_agent(agent % all, for_us));
            }
            Fault::AgentGone => self.lose_agent(agent),
            Fault::Drain => self.set_state(agent, NodeState::Draining, for_us),
            Fault::Reclaim => self.set_state(agent, NodeState::Reclaimed, for_us + 10 * SECOND_US),
            Fault::CutAgent => self.cut(of_agent, of_manager, Link::Cut, for_us),
            Fault::Slow => self.cut(of_agent, of_manager, Link::Slow, for_us),
            Fault::CutManager => self.cut_manager(manager, for_us),
            Fault::CutHost => self.cut(Party::Host(host), of_manager, Link::Cut, for_us),
            Fault::CutClients => self.cut(Party::Host(host), of_agent, Link::Cut, for_us),
            Fault::StoreSlow => self.ail(Health::Up(300_000), for_us),
            Fault::StoreFull => self.ail(Health::Full, for_us),
            Fault::StoreCut => self.ail(Health::Unreachable, for_us),
            Fault::Storm => {
                self.scene.network.weather =
                    Weather { loss_ppm: 50_000, duplicate_ppm: 50_000, delay_us: 20_000 };
                self.later(for_us, Relief::Weather);
            }
            Fault::Burst => self.burst(),
            Fault::ClocksJump => {
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
        let journal = if self.scene.random.chance_ppm(100_000) { Journal::Lost } else { Journal::Kept };
        if self.agents[number as usize].is_up() {
            self.agents[number as usize].crash(journal, &mut self.scene);
            self.later(for_us, Relief::StartAgent(number));
        }
    }

    fn lose_agent(&mut self, number: u32) {
        let gone = self.gone.iter().filter(|gone| **gone).count();
        if gone < self.agents.len() / 4 {
            self.gone[number as usize] = true;
            self.agents[number as usize].crash(Journal::Lost, &mut self.scene);
            self.scene.truth.agent_lost(number);
            self.mended_at_us = self.mended_at_us.max(self.scene.now_us);
        }
    }

    fn set_state(&mut self, agent: u32, state: NodeState, for_us: u64) {
        self.agents[agent as usize].set_state(state, &mut self.scene);
        self.later(for_us, Relief::Lend(agent));
    }

    fn cut(&mut self, a: Party, b: Party, link: Link, for_us: u64) {
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
        let link = |is_cut: bool| if is_cut { Link::Cut } else { Link::Open };
        self.link_manager(manager, link(directions & 1 != 0), link(directions & 2 != 0));
        self.later(for_us, Relief::OpenManager(manager));
    }

    fn link_manager(&mut self, manager: u8, to: Link, from: Link) {
        let agents = (0..self.agents.len() as u32).map(Party::Agent);
        let hosts = (0..CLIENT_HOSTS as u8).map(Party::Host);
        for party in agents.chain(hosts) {
            self.scene.network.set(party, Party::Manager(manager), to);
            self.scene.network.set(Party::Manager(manager), party, from);
        }
    }

    fn ail(&mut self, health: Health, for_us: u64) {
        self.set_health(health);
        self.scene.truth.unsettle(self.scene.now_us + for_us);
        self.later(for_us, Relief::Store);
    }

    fn set_health(&mut self, health: Health) {
        self.store.health = health;
        self.errands.store_delay_us = match health {
            Health::Up(delay_us) => delay_us,
            Health::Full => 1_000,
            Health::Unreachable => 2 * SECOND_US,
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
                self.scene.network.set(a, b, Link::Open);
                self.scene.network.set(b, a, Link::Open);
            }
            Relief::OpenManager(manager) => self.link_manager(manager, Link::Open, Link::Open),
            Relief::Weather => self.scene.network.weather = self.plan.weather,
            Relief::Store => self.set_health(Health::Up(1_000)),
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
        self.set_health(Health::Up(1_000));
        (0..self.plan.managers).for_each(|manager| self.start_manager(manager));
        for agent in 0..self.agents.len() as u32 {
            self.start_agent(agent);
            self.agents[agent as usize].set_state(NodeState::Lending, &mut self.scene);
        }
    }

    /// Checks that all lent resources are back and can be lent again.
    fn end(&mut self) {
        self.is_over = true;
        let World { scene, hosts, .. } = self;
        scene.truth.check(scene.now_us);
        scene.truth.check_final();
        for manager in hosts.iter_mut().filter_map(|host| host.manager.as_mut()) {
            manager.check_final(scene);
        }
    }
}

/// A manager, if it still lives the life with this epoch.
fn living(hosts: &mut [Host], number: u8, epoch: u64) -> Option<&mut Manager> {
    hosts[usize::from(number)].manager.as_mut().filter(|manager| manager.epoch == epoch)
}
