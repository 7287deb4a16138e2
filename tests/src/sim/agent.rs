//! An agent: the real book, and a model of the threads around it.
//!
//! One call to a manager is on its way at a time, a report each second and whenever a lease has ended; a manager that
//! does not answer is left for the next one. Leases end by the book's own clock. Each second what they have used goes to
//! a journal, which outlives the process; its workers do not.

use std::cell::Cell;
use std::collections::BTreeMap;

use prost::Message as _;
use sublet_agent::book::{BookedEnd, Exchange, LeaseBook, MeasuredUsage};
use sublet_manager::core::{LeaseId, NodeCapacity};
use sublet_proto::v1::{self, NodeState, Usage};
use sublet_proto::{Code, Error, version};

use super::clock::SimClock;
use super::isolation;
use super::manager::{ARCHITECTURE, lease_id, node_name};
use super::network::LinkEnd;
use super::sabotage::Sabotage;
use super::scene::{
    Ask, FromAgent, FromClient, ManagerAnswer, Scene, SimCall, SimCaller, SimEvent, SimMessage, host_of,
};
use super::truth::Invariant;
use super::worker::SimWorker;
use crate::numbers::narrow;

/// Time between two reports, and between two journals.
const PERIOD_US: u64 = 1_000_000;
/// How long a manager may take to answer.
const PATIENCE_US: u64 = 2_000_000;
/// How long to wait after a failed call, at first and at most.
const FIRST_RETRY_US: u64 = 250_000;
const LONGEST_RETRY_US: u64 = 4_000_000;
/// Failed calls after which the next manager is tried.
const MAX_FAILURES: u32 = 3;
/// Registrations that arrive a second time, of a million, and how late at most: a manager that stood still finds in its
/// sockets what was asked by connections that were given up since.
const LATE_PPM: u32 = 200_000;
const LATEST_US: u64 = 10_000_000;
/// Time from the announcement of a reclaim to the end of the node's leases.
const RECLAIM_GRACE_US: u64 = 5_000_000;

/// A machine that lends, and its agent, if that runs.
#[derive(Debug)]
pub struct SimAgent {
    number: u32,
    capacity: NodeCapacity,
    clock: SimClock,
    process: Option<AgentLife>,
    journal: Vec<JournaledLease>,
    /// The manager that it talks to.
    manager: u8,
    managers: u8,
    /// Counts its registrations, over all lives.
    generation: u64,
    /// Counts all that is waited for, over all lives.
    calls: u32,
    wakes: u32,
}

/// One life of an agent.
#[derive(Debug)]
struct AgentLife {
    book: LeaseBook<HeldLease>,
    instance: u128,
    is_registered: bool,
    /// The reporter's call on its way.
    call: Option<Outstanding>,
    failures: u32,
    report_at_us: u64,
    journal_at_us: u64,
    /// Time at which a reclaim ends the node's leases by force.
    reclaim_at_us: Option<u64>,
    /// Provisional leases, by the call that asks for them.
    confirming: BTreeMap<u32, LeaseId>,
    /// Time at which the scene wakes the agent next.
    wakes_at_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    number: u32,
    asked_ms: u64,
}

/// State that the agent keeps with a lease.
#[derive(Debug)]
struct HeldLease {
    id: LeaseId,
    worker: SimWorker,
    since_ns: u64,
    /// Once it has ended.
    used: Cell<Option<Usage>>,
    client: u32,
    round: u32,
}

impl HeldLease {
    fn used(&self, now_ns: u64) -> Usage {
        self.used.get().unwrap_or_else(|| self.worker.used(now_ns - self.since_ns))
    }
}

/// A lease in the journal.
#[derive(Clone, Debug)]
struct JournaledLease {
    id: LeaseId,
    lease: v1::Lease,
    ticket: Vec<u8>,
    used: Usage,
}

/// Fate of a dead agent's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalFate {
    /// The journal exists at the next start.
    Kept,
    /// The journal's disk is gone.
    Lost,
}

impl SimAgent {
    /// A machine without a running agent.
    pub fn new(number: u32, capacity: NodeCapacity, clock: SimClock, managers: u8) -> SimAgent {
        let manager: u8 = narrow(number % u32::from(managers));
        let (process, journal) = (None, Vec::new());
        SimAgent {
            number,
            capacity,
            clock,
            process,
            journal,
            manager,
            managers,
            generation: 0,
            calls: 0,
            wakes: 0,
        }
    }

    /// Whether its agent runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the agent, with what the one before has left behind.
    pub fn start(&mut self, scene: &mut Scene) {
        let mut book = LeaseBook::new(&node_name(self.number));
        for JournaledLease { id, lease, ticket, used } in self.journal.clone() {
            let worker = SimWorker::of(id, lease.cores);
            let held =
                HeldLease { id, worker, since_ns: 0, used: Cell::new(Some(used)), client: 0, round: 0 };
            let code = Code::AgentUnreachable.number();
            book.inherit(lease, ticket, held, BookedEnd { code, reason: "its agent died".to_owned() });
        }
        self.process = Some(AgentLife {
            book,
            instance: scene.random.wide_bits(),
            is_registered: false,
            call: None,
            failures: 0,
            report_at_us: scene.now_us,
            journal_at_us: scene.now_us + PERIOD_US,
            reclaim_at_us: None,
            confirming: BTreeMap::new(),
            wakes_at_us: u64::MAX,
        });
        self.wake_at(scene.now_us, scene);
    }

    /// Kills the agent and with it its workers.
    pub fn crash(&mut self, journal: JournalFate, scene: &mut Scene) {
        if journal == JournalFate::Lost {
            self.journal.drain(..).for_each(|lease| scene.truth.survives(lease.id, None));
        }
        let Some(process) = self.process.take() else { return };
        self.wakes += 1;
        let now_ns = self.clock.read_ns(scene.now_us);
        for (_, entry) in process.book.entries() {
            let held = &entry.holder;
            let known = self.journal.iter().find(|journaled| journaled.id == held.id);
            if held.used.get().is_none() {
                scene.truth.end(scene.now_us, held.id, held.used(now_ns));
            }
            scene.truth.survives(held.id, known.map(|journaled| journaled.used));
            if held.used.get().is_none() {
                self.tell_client(held, FromAgent::Ended(held.id), scene);
            }
        }
        scene.truth.agent_gone(self.number);
    }

    /// The node shall take leases, or not.
    pub fn set_state(&mut self, state: NodeState, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        process.book.set_state(state);
        let is_reclaimed = state == NodeState::Reclaimed;
        process.reclaim_at_us = is_reclaimed.then_some(scene.now_us + RECLAIM_GRACE_US);
        process.report_at_us = scene.now_us;
        self.wake_at(scene.now_us, scene);
    }

    /// Does the work that is due at this wake-up.
    pub fn wake(&mut self, wake: u32, scene: &mut Scene) {
        if wake != self.wakes {
            return;
        }
        let Some(process) = &mut self.process else { return };
        process.wakes_at_us = u64::MAX;
        self.run(scene);
    }

    /// Does whatever is due, and says when to wake next.
    fn run(&mut self, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let now_us = scene.now_us;
        let is_busy = process.reclaim_at_us.is_some() || process.book.entries().next().is_some();
        if is_busy {
            self.end_expired(scene);
            self.keep_journal(scene);
        }
        let Some(process) = &mut self.process else { return };
        if process.call.is_none() && process.report_at_us <= now_us {
            self.talk(scene);
        }
        let next_us = self.next_us(is_busy, now_us);
        self.wake_at(next_us, scene);
    }

    fn next_us(&self, is_busy: bool, now_us: u64) -> u64 {
        let Some(process) = &self.process else { return u64::MAX };
        let report_us = if process.call.is_some() { u64::MAX } else { process.report_at_us };
        if !is_busy {
            return report_us;
        }
        let active = process.book.entries().filter(|(_, entry)| entry.end.is_none());
        let expiry_us = active.map(|(_, entry)| self.clock.when_us(entry.expires * 1_000_000)).min();
        let reclaim_us = process.reclaim_at_us.unwrap_or(u64::MAX);
        report_us
            .min(expiry_us.unwrap_or(u64::MAX))
            .min(process.journal_at_us)
            .min(reclaim_us)
            .max(now_us + 1)
    }

    fn wake_at(&mut self, at_us: u64, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        if at_us < process.wakes_at_us {
            process.wakes_at_us = at_us;
            self.wakes += 1;
            scene.queue.add(at_us, SimEvent::AgentWakes(self.number, self.wakes));
        }
    }

    fn end_expired(&mut self, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let now_ms = self.clock.read_ns(scene.now_us) / 1_000_000;
        let is_reclaimed = process.reclaim_at_us.is_some_and(|at_us| at_us <= scene.now_us);
        if is_reclaimed {
            process.reclaim_at_us = None;
        }
        let is_over = |expires: u64| expires <= now_ms && scene.sabotage != Some(Sabotage::Overrun);
        let entries = process.book.entries().filter(|(_, entry)| entry.end.is_none());
        let over = entries.filter(|(_, entry)| is_reclaimed || is_over(entry.expires));
        let over: Vec<LeaseId> = over.map(|(_, entry)| entry.holder.id).collect();
        let code = if is_reclaimed { Code::NodeReclaimed } else { Code::LeaseExpired };
        over.into_iter().for_each(|lease| self.end(lease, code.number(), scene));
    }

    fn keep_journal(&mut self, scene: &Scene) {
        let Some(process) = &mut self.process else { return };
        if process.journal_at_us > scene.now_us {
            return;
        }
        process.journal_at_us = scene.now_us + PERIOD_US;
        let now_ns = self.clock.read_ns(scene.now_us);
        let entries = process.book.entries().map(|(_, entry)| JournaledLease {
            id: entry.holder.id,
            lease: entry.lease.clone(),
            ticket: entry.ticket.clone(),
            used: entry.holder.used(now_ns),
        });
        self.journal = entries.collect();
    }

    /// Registers or reports.
    fn talk(&mut self, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let now_ns = self.clock.read_ns(scene.now_us);
        let now_ms = now_ns / 1_000_000;
        let read = |held: &HeldLease| MeasuredUsage {
            usage: held.used(now_ns),
            functions: Vec::new(),
            cold_imports: None,
        };
        self.calls += 1;
        let call = SimCall {
            caller: SimCaller::Agent(self.number),
            number: self.calls,
            deadline_us: scene.now_us + PATIENCE_US,
        };
        process.call = Some(Outstanding { number: call.number, asked_ms: now_ms });
        process.report_at_us = scene.now_us + PERIOD_US;
        let ask = if process.is_registered {
            let report = process.book.report(now_ms, read);
            scene.truth.promise(self.number, report.clock_unix_ms);
            Ask::Report(report)
        } else {
            self.generation += 1;
            scene.truth.asks(scene.now_us, self.number, self.generation);
            Ask::Register(Box::new(v1::Registration {
                leases: process.book.register(now_ms, read),
                instance: format!("{:032x}", process.instance),
                node: Some(description(self.number, self.capacity)),
                generation: self.generation,
            }))
        };
        if matches!(ask, Ask::Register(_)) && scene.random.chance_ppm(LATE_PPM) {
            let late_us = scene.random.below(LATEST_US);
            scene.ask_late(self.manager, call.caller, ask.clone(), late_us);
        }
        scene.ask(self.manager, call, ask);
    }

    /// A manager has answered one of its calls.
    pub fn answered(&mut self, call: SimCall, answer: ManagerAnswer, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        if let Some(lease) = process.confirming.remove(&call.number) {
            return self.confirmed(lease, matches!(answer, ManagerAnswer::Confirmed), scene);
        }
        let Some(outstanding) = process.call.filter(|outstanding| outstanding.number == call.number) else {
            return;
        };
        process.call = None;
        let answered = self.clock.read_ns(scene.now_us) / 1_000_000;
        let exchange = Exchange { asked: outstanding.asked_ms, answered };
        match answer {
            ManagerAnswer::Reported(reply) => {
                process.failures = 0;
                let orders = process.book.answered(&reply, exchange);
                for order in &reply.end {
                    scene.truth.void(self.number, lease_id(&order.lease));
                }
                for order in orders {
                    if order.code == Code::AgentUnreachable.number() {
                        let found = format!("agent {} lives and got the order {order:?}", self.number);
                        scene.truth.violated(Invariant::NothingEndsWithoutCause, found);
                    }
                    self.end(lease_id(&order.lease), order.code, scene);
                }
            }
            ManagerAnswer::Registered(registration) => {
                process.failures = 0;
                process.is_registered = true;
                process.report_at_us = scene.now_us;
                process.book.registered(&registration, exchange);
                scene.truth.adopt(scene.now_us, self.number, registration.registration);
            }
            ManagerAnswer::RegisterAgain => {
                process.is_registered = false;
                process.report_at_us = scene.now_us;
            }
            _ => return self.failed(scene),
        }
        self.run(scene);
    }

    /// One of its calls has not been answered.
    pub fn unanswered(&mut self, number: u32, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        if let Some(lease) = process.confirming.remove(&number) {
            return self.confirmed(lease, false, scene);
        }
        if process.call.is_some_and(|call| call.number == number) {
            process.call = None;
            self.failed(scene);
        }
    }

    fn failed(&mut self, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        process.failures += 1;
        let retry_us = (FIRST_RETRY_US << process.failures.min(8)).min(LONGEST_RETRY_US);
        process.report_at_us = scene.now_us + retry_us;
        if process.failures.is_multiple_of(MAX_FAILURES) && self.managers > 1 {
            process.is_registered = false;
            self.manager = (self.manager + 1) % self.managers;
        }
        self.run(scene);
    }

    /// A client says something.
    pub fn heard(&mut self, message: FromClient, scene: &mut Scene) {
        match message {
            FromClient::Attach { client, round, ticket } => self.attach(client, round, *ticket, scene),
            FromClient::Renew(ticket) => self.renew(&ticket, scene),
            FromClient::Release(lease) => self.end(lease, 0, scene),
            FromClient::Gone(lease) => self.end(lease, 0, scene),
        }
        self.run(scene);
    }

    fn attach(&mut self, client: u32, round: u32, mut ticket: v1::Ticket, scene: &mut Scene) {
        if scene.sabotage == Some(Sabotage::Reissue) {
            ticket.registration = scene.truth.registration(self.number);
        }
        let id = ticket.lease.as_ref().map_or(LeaseId(0), |lease| lease_id(&lease.id));
        let Some(process) = &mut self.process else {
            let error = Error::new(Code::AgentUnreachable, "no agent listens");
            return self.say(client, round, FromAgent::Refused(id, error), scene);
        };
        let now_ns = self.clock.read_ns(scene.now_us);
        let workers = ticket.lease.as_ref().map_or(0, |lease| lease.cores);
        let held = HeldLease {
            id,
            worker: SimWorker::of(id, workers),
            since_ns: now_ns,
            used: Cell::new(None),
            client,
            round,
        };
        match process.book.admit(&ticket, encode(&ticket), held, now_ns / 1_000_000) {
            Err(error) => self.say(client, round, FromAgent::Refused(id, error), scene),
            Ok(_) => {
                scene.truth.attach(self.number, id, self.clock, now_ns);
                if ticket.provisional {
                    self.ask_confirmation(id, scene);
                } else {
                    self.say(client, round, FromAgent::Attached, scene);
                }
            }
        }
    }

    fn ask_confirmation(&mut self, lease: LeaseId, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        self.calls += 1;
        let (caller, number) = (SimCaller::Agent(self.number), self.calls);
        process.confirming.insert(number, lease);
        let call = SimCall { caller, number, deadline_us: scene.now_us + PATIENCE_US };
        scene.ask(self.manager, call, Ask::Confirm(lease));
    }

    fn confirmed(&mut self, lease: LeaseId, is_good: bool, scene: &mut Scene) {
        let Some(process) = &self.process else { return };
        let Some(entry) = process.book.entry(&lease.to_string()) else { return };
        if !is_good {
            self.end(lease, Code::Unauthenticated.number(), scene);
            return self.run(scene);
        }
        if entry.end.is_none() {
            self.tell_client(&entry.holder, FromAgent::Attached, scene);
        }
    }

    fn renew(&mut self, ticket: &v1::Ticket, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let now_ms = self.clock.read_ns(scene.now_us) / 1_000_000;
        // A refused ticket changes nothing; the client sees its lease end.
        let _ = process.book.renew(ticket, encode(ticket), now_ms);
    }

    /// Ends a lease, if it still runs: its workers are killed, its usage is final, and the manager hears of it soon.
    fn end(&mut self, lease: LeaseId, code: u32, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let now_ns = self.clock.read_ns(scene.now_us);
        let name = lease.to_string();
        if !process.book.end(&name, BookedEnd { code, reason: String::new() }) {
            return;
        }
        process.report_at_us = scene.now_us;
        let Some(process) = &self.process else { return };
        let Some(held) = process.book.entry(&name).map(|entry| &entry.holder) else { return };
        let used = held.used(now_ns);
        held.used.set(Some(used));
        scene.truth.end(scene.now_us, lease, used);
        self.tell_client(held, FromAgent::Ended(lease), scene);
    }

    fn tell_client(&self, held: &HeldLease, message: FromAgent, scene: &mut Scene) {
        self.say(held.client, held.round, message, scene);
    }

    fn say(&self, client: u32, round: u32, message: FromAgent, scene: &mut Scene) {
        // A client that does not hear gives up by itself.
        scene.send(
            LinkEnd::Agent(self.number),
            host_of(client),
            SimMessage::ToClient(client, round, message),
        );
    }
}

fn description(agent: u32, capacity: NodeCapacity) -> v1::NodeDescription {
    v1::NodeDescription {
        name: node_name(agent),
        agent: format!("unix:/run/{agent}"),
        architecture: ARCHITECTURE.to_owned(),
        cores: capacity.cores,
        memory_bytes: capacity.memory_bytes,
        shared_cores: capacity.places / 2,
        shared_places: capacity.places,
        isolations: isolation::allowed(agent).iter().map(|isolation| isolation.name().to_owned()).collect(),
        messages: version::MESSAGES,
        ..v1::NodeDescription::default()
    }
}

/// No party of a run forges signatures, so tickets are not signed.
fn encode(ticket: &v1::Ticket) -> Vec<u8> {
    v1::SignedTicket { ticket: ticket.encode_to_vec(), signature: Vec::new() }.encode_to_vec()
}
