//! A client: it asks, holds, lets go, and asks again. Some never come for what they were granted, come late or twice,
//! die without a word, or hold until they are thrown out.

use sublet_manager::core::{LeaseId, LeaseTerms, RequestId};
use sublet_proto::Code;
use sublet_proto::v1::{LeaseRequest, Ticket};

use super::isolation;
use super::manager::{agent_of, lease_id};
use super::network::LinkEnd;
use super::random::Random;
use super::scene::{
    Ask, FromAgent, FromClient, LeaseAsk, ManagerAnswer, Scene, SimCall, SimCaller, SimEvent, SimMessage,
    Token, host_of,
};
use crate::numbers::narrow;

/// How long an answer may take beyond what the request may wait.
const PATIENCE_US: u64 = 5_000_000;
/// How often a request is repeated that was not answered.
const MAX_TRIES: u32 = 3;

/// Behaviour of the clients of a run.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// The usual time between two requests of a client, and for which it holds.
    pub pace_us: u64,
    /// Cores of the usual node.
    pub node_cores: u32,
    /// Longest lease time, in milliseconds.
    pub max_timeout_ms: u64,
    /// Longest time in the queue, in milliseconds.
    pub max_wait_ms: u64,
    /// Rounds in which a client does something that it should not, of a million.
    pub rude_ppm: u32,
    /// Managers to choose from.
    pub managers: u8,
}

/// See the [module](self).
#[derive(Debug)]
pub struct SimClient {
    number: u32,
    tenant: u32,
    /// Counts its requests.
    round: u32,
    wakes: u32,
    calls: u32,
    phase: ClientPhase,
}

#[derive(Debug)]
enum ClientPhase {
    Idle,
    Asking {
        ask: Box<LeaseAsk>,
        manager: u8,
        call: u32,
        tries: u32,
    },
    Holding {
        leases: Vec<HeldTicket>,
        manager: u8,
        timeout_ms: u64,
        until_us: u64,
        end: LeaveKind,
        renewing: Vec<(u32, LeaseId)>,
    },
}

#[derive(Clone, Debug)]
struct HeldTicket {
    id: LeaseId,
    agent: u32,
    ticket: Ticket,
    attach: Attach,
}

/// Time at which a client shows its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attach {
    Now,
    Twice,
    Late,
    Never,
}

/// How a client leaves its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveKind {
    Release,
    Die,
    Expire,
    ByManager,
}

impl SimClient {
    /// One that will ask.
    pub fn new(number: u32, tenant: u32) -> SimClient {
        SimClient { number, tenant, round: 0, wakes: 0, calls: 0, phase: ClientPhase::Idle }
    }

    /// Does nothing until then; whatever else it would have woken for is void.
    pub fn wake_at(&mut self, at_us: u64, scene: &mut Scene) {
        self.wakes += 1;
        scene.queue.add(at_us, SimEvent::ClientWakes(self.number, self.wakes));
    }

    /// Whether it waits for the time of its next request.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, ClientPhase::Idle)
    }

    /// Does what the client planned for this wake-up. In a calm run no client sends further requests.
    pub fn wake(&mut self, wake: u32, manners: &Manners, is_calm: bool, scene: &mut Scene) {
        if wake != self.wakes {
            return;
        }
        match &mut self.phase {
            ClientPhase::Idle if is_calm => {}
            ClientPhase::Idle => self.begin(manners, scene),
            ClientPhase::Asking { .. } => {}
            ClientPhase::Holding { .. } => self.hold_on(manners, is_calm, scene),
        }
    }

    fn begin(&mut self, manners: &Manners, scene: &mut Scene) {
        self.round += 1;
        let random = &mut scene.random;
        let request = RequestId(random.wide_bits());
        let wait_ms = if random.chance_ppm(500_000) { random.between(1, manners.max_wait_ms) } else { 0 };
        let token = match random.below(1_000_000) {
            draw if draw < u64::from(manners.rude_ppm) / 4 => Token::Worthless,
            draw if draw < 100_000 => Token::New,
            _ => Token::Known,
        };
        let (tenant, terms, isolation) = (self.tenant, terms(manners, random), isolation::demanded(request));
        let ask = LeaseAsk { request, tenant, terms, isolation, wait_ms, token };
        let manager: u8 = narrow(random.below(manners.managers.into()));
        self.ask(Box::new(ask), manager, 1, scene);
    }

    fn ask(&mut self, ask: Box<LeaseAsk>, manager: u8, tries: u32, scene: &mut Scene) {
        let call = self.call(ask.wait_ms * 1_000 + PATIENCE_US, scene);
        scene.ask(manager, call, Ask::Lease(ask.clone()));
        self.phase = ClientPhase::Asking { ask, manager, call: call.number, tries };
    }

    fn call(&mut self, patience_us: u64, scene: &Scene) -> SimCall {
        self.calls += 1;
        SimCall {
            caller: SimCaller::Client(self.number),
            number: self.calls,
            deadline_us: scene.now_us + patience_us,
        }
    }

    /// A manager has answered.
    pub fn answered(&mut self, call: SimCall, answer: ManagerAnswer, manners: &Manners, scene: &mut Scene) {
        match &mut self.phase {
            ClientPhase::Asking { call: number, .. } if *number == call.number => match answer {
                ManagerAnswer::Granted(tickets) if !tickets.is_empty() => {
                    self.granted(tickets, manners, scene)
                }
                ManagerAnswer::Failed(error) if error.code == Code::TryLater => {
                    let later = Manners { pace_us: 4 * manners.pace_us, ..*manners };
                    self.rest(&later, scene);
                }
                _ => self.rest(manners, scene),
            },
            ClientPhase::Holding { leases, renewing, .. } => {
                let asked = renewing.iter().find(|(number, _)| *number == call.number);
                let held = asked.and_then(|(_, lease)| leases.iter().find(|held| held.id == *lease));
                if let (Some(held), ManagerAnswer::Renewed(ticket)) = (held, answer) {
                    let agent = held.agent;
                    self.tell(agent, FromClient::Renew(ticket), scene);
                }
            }
            _ => {}
        }
    }

    /// A manager has not answered. The request is repeated, or given up.
    pub fn unanswered(&mut self, number: u32, manners: &Manners, scene: &mut Scene) {
        let ClientPhase::Asking { ask, manager, call, tries } = &self.phase else { return };
        if *call != number {
            return;
        }
        let (ask, manager, tries) = (ask.clone(), *manager, *tries);
        if scene.random.chance_ppm(300_000) {
            let withdrawal = Ask::Withdraw { tenant: ask.tenant, request: ask.request };
            let call = self.call(PATIENCE_US, scene);
            let message = SimMessage::Asked(manager, call, withdrawal);
            scene.send(host_of(self.number), LinkEnd::Manager(manager), message);
        }
        if tries < MAX_TRIES {
            let other = scene.random.chance_ppm(500_000);
            let manager = if other { (manager + 1) % manners.managers } else { manager };
            return self.ask(ask, manager, tries + 1, scene);
        }
        self.rest(manners, scene);
    }

    fn granted(&mut self, tickets: Vec<Ticket>, manners: &Manners, scene: &mut Scene) {
        let ClientPhase::Asking { ask, manager, .. } = &self.phase else { return };
        let (manager, timeout_ms) = (*manager, ask.terms.timeout_ms);
        let is_rude = scene.random.chance_ppm(manners.rude_ppm);
        let rude = [Attach::Now, Attach::Twice, Attach::Late, Attach::Never];
        let attach = if is_rude { scene.random.pick(&rude) } else { Attach::Now };
        let rude = [LeaveKind::Die, LeaveKind::Expire, LeaveKind::ByManager];
        let end = if is_rude {
            scene.random.pick(&rude)
        } else {
            scene.random.pick(&[LeaveKind::Release, LeaveKind::Release, LeaveKind::Die])
        };
        let held = tickets.into_iter().filter_map(|ticket| {
            let lease = ticket.lease.as_ref()?;
            Some(HeldTicket { id: lease_id(&lease.id), agent: agent_of(&lease.node), attach, ticket })
        });
        let leases: Vec<HeldTicket> = held.collect();
        if attach != Attach::Late {
            leases.iter().for_each(|held| self.attach(held, scene));
        }
        if end == LeaveKind::ByManager && scene.random.chance_ppm(500_000) {
            leases.iter().for_each(|held| self.end_by_manager(held.id, manager, scene));
        }
        let until_us = scene.now_us + scene.random.long_tail(manners.pace_us / 2).min(timeout_ms * 4_000);
        self.phase =
            ClientPhase::Holding { leases, manager, timeout_ms, until_us, end, renewing: Vec::new() };
        let first_us = if attach == Attach::Late { scene.random.below(8_000_000) } else { timeout_ms * 600 };
        self.wake_at(until_us.min(scene.now_us + first_us), scene);
    }

    fn attach(&mut self, held: &HeldTicket, scene: &mut Scene) {
        let shows = match held.attach {
            Attach::Never => 0,
            Attach::Now | Attach::Late => 1,
            Attach::Twice => 2,
        };
        for _ in 0..shows {
            let (client, round, ticket) = (self.number, self.round, Box::new(held.ticket.clone()));
            self.tell(held.agent, FromClient::Attach { client, round, ticket }, scene);
        }
    }

    fn end_by_manager(&mut self, lease: LeaseId, manager: u8, scene: &mut Scene) {
        let call = self.call(PATIENCE_US, scene);
        scene.ask(manager, call, Ask::End(lease));
    }

    fn tell(&self, agent: u32, message: FromClient, scene: &mut Scene) {
        scene.send(host_of(self.number), LinkEnd::Agent(agent), SimMessage::ToAgent(agent, message));
    }

    /// Attaches late, renews, or lets go.
    fn hold_on(&mut self, manners: &Manners, is_calm: bool, scene: &mut Scene) {
        let ClientPhase::Holding { leases, manager, timeout_ms, until_us, end, .. } = &mut self.phase else {
            return;
        };
        let (manager, timeout_ms, until_us, end) = (*manager, *timeout_ms, *until_us, *end);
        if scene.now_us >= until_us || is_calm {
            return self.let_go(end, manager, manners, scene);
        }
        let late: Vec<HeldTicket> =
            leases.iter().filter(|held| held.attach == Attach::Late).cloned().collect();
        leases.iter_mut().for_each(|held| held.attach = Attach::Now);
        let ids: Vec<LeaseId> = leases.iter().map(|held| held.id).collect();
        if !late.is_empty() {
            late.iter().for_each(|held| self.attach(held, scene));
        } else if end != LeaveKind::Expire {
            for lease in ids {
                let call = self.call(PATIENCE_US, scene);
                if let ClientPhase::Holding { renewing, .. } = &mut self.phase {
                    renewing.push((call.number, lease));
                }
                scene.ask(manager, call, Ask::Renew { lease, timeout_ms });
            }
        }
        self.wake_at(until_us.min(scene.now_us + timeout_ms * 600), scene);
    }

    fn let_go(&mut self, end: LeaveKind, manager: u8, manners: &Manners, scene: &mut Scene) {
        let ClientPhase::Holding { leases, .. } = std::mem::replace(&mut self.phase, ClientPhase::Idle)
        else {
            return;
        };
        for held in leases {
            match end {
                LeaveKind::Release => self.tell(held.agent, FromClient::Release(held.id), scene),
                LeaveKind::Die => self.tell(held.agent, FromClient::Gone(held.id), scene),
                LeaveKind::ByManager => self.end_by_manager(held.id, manager, scene),
                LeaveKind::Expire => {}
            }
        }
        self.rest(manners, scene);
    }

    /// An agent says something.
    pub fn heard(&mut self, round: u32, message: FromAgent, manners: &Manners, scene: &mut Scene) {
        if round != self.round {
            return;
        }
        let ClientPhase::Holding { leases, .. } = &mut self.phase else { return };
        let is_superseded =
            matches!(&message, FromAgent::Refused(_, error) if error.code == Code::TicketSuperseded);
        if let FromAgent::Refused(id, _) | FromAgent::Ended(id) = message {
            leases.retain(|held| held.id != id);
            if leases.is_empty() {
                self.rest(manners, scene);
            }
        }
        if is_superseded && self.is_idle() {
            // It has done nothing wrong: it asks again at once.
            self.wake_at(scene.now_us, scene);
        }
    }

    fn rest(&mut self, manners: &Manners, scene: &mut Scene) {
        self.phase = ClientPhase::Idle;
        let rest_us = scene.random.long_tail(manners.pace_us / 2);
        self.wake_at(scene.now_us + rest_us, scene);
    }
}

/// Terms that a client requests: mostly little, now and then a whole node, or more than one node has.
fn terms(manners: &Manners, random: &mut Random) -> LeaseTerms {
    let node = manners.node_cores;
    let most = random.pick(&[1, 1, 2, 4, node, node, 3 * node, 10 * node]);
    let cores: u32 = narrow(random.between(1, most.into()));
    let memory_each = random.pick(&[0, 0, 16 << 20, 256 << 20, 700 << 20]);
    let asked = LeaseRequest {
        cores,
        memory_bytes: memory_each * u64::from(cores),
        timeout_ms: random.between(500, manners.max_timeout_ms),
        max_nodes: random.pick(&[0, 0, 1, 4]),
        shared: random.chance_ppm(250_000),
        ..LeaseRequest::default()
    };
    LeaseTerms::of(&asked).expect("clients of the run ask for what a lease may have")
}
