//! Holds the state that all models share: time, future events, the network with its messages, and the truth.

use sublet_manager::core::{LeaseId, LeaseTerms, RequestId};
use sublet_proto::Error;
use sublet_proto::isolation::Isolation;
use sublet_proto::v1;

use super::network::{CLIENT_HOSTS, LinkEnd, MessageFate, SimNetwork};
use super::queue::EventQueue;
use super::random::Random;
use super::sabotage::Sabotage;
use super::slab::Slab;
use super::trace::Trace;
use super::truth::Truth;
use crate::numbers::narrow;

/// Event of a run, in a few bytes.
#[derive(Clone, Copy, Debug)]
pub enum SimEvent {
    /// A message of this kind arrives, to or from this agent or client; it lies at this place of the slab.
    Arrival(u32, Topic, u32),
    /// A call's answer has not come in time, or never will.
    Unanswered(SimCaller, u32),
    /// An agent wakes to do the work that is due; void if the agent has set another time since.
    AgentWakes(u32, u32),
    /// A client wakes to do the work that is due; void if the client has set another time since.
    ClientWakes(u32, u32),
    /// A tick of a manager's; void if it has been started anew since.
    ManagerTicks(u8, u64),
    /// The store has answered a manager's write, at this place of the slab.
    StoreAnswers(u32),
    /// A token has been verified, at this place of the slab.
    TokenVerified(u32),
    /// Time for the next fault.
    Fault,
    /// The end of a fault, by its number.
    Relief(u32),
    /// Everything is checked, touched or not.
    Check,
    /// Faults and new clients stop.
    Calm,
    /// The end of the run.
    End,
}

impl SimEvent {
    /// Word that distinguishes the event from others, for the run's fingerprint.
    pub fn word(&self) -> u64 {
        match *self {
            SimEvent::Arrival(place, topic, who) => {
                1 << 56 | (topic as u64) << 48 | u64::from(who) << 24 | u64::from(place)
            }
            SimEvent::Unanswered(SimCaller::Agent(agent), call) => {
                2 << 56 | u64::from(agent) << 32 | u64::from(call)
            }
            SimEvent::Unanswered(SimCaller::Client(client), call) => {
                3 << 56 | u64::from(client) << 32 | u64::from(call)
            }
            SimEvent::AgentWakes(agent, wake) => 4 << 56 | u64::from(agent) << 32 | u64::from(wake),
            SimEvent::ClientWakes(client, wake) => 5 << 56 | u64::from(client) << 32 | u64::from(wake),
            SimEvent::ManagerTicks(manager, epoch) => 6 << 56 | u64::from(manager) << 32 | epoch,
            SimEvent::StoreAnswers(place) => 7 << 56 | u64::from(place),
            SimEvent::TokenVerified(place) => 8 << 56 | u64::from(place),
            SimEvent::Fault => 9 << 56,
            SimEvent::Relief(number) => 10 << 56 | u64::from(number),
            SimEvent::Check => 11 << 56,
            SimEvent::Calm => 12 << 56,
            SimEvent::End => 13 << 56,
        }
    }
}

/// Party that waits for a manager's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCaller {
    /// An agent, by its number.
    Agent(u32),
    /// A client, by its number.
    Client(u32),
}

impl SimCaller {
    fn number(self) -> u32 {
        match self {
            SimCaller::Agent(number) | SimCaller::Client(number) => number,
        }
    }

    /// Party of the network to which the caller belongs.
    pub fn party(self) -> LinkEnd {
        match self {
            SimCaller::Agent(agent) => LinkEnd::Agent(agent),
            SimCaller::Client(client) => host_of(client),
        }
    }
}

/// Host on which a client lives.
pub fn host_of(client: u32) -> LinkEnd {
    LinkEnd::Host(narrow(client % u32::from(CLIENT_HOSTS)))
}

/// A call on its way: the answer goes to its caller, under its number, until its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimCall {
    /// Party that waits for the answer.
    pub caller: SimCaller,
    /// Number of the call, different from those of the caller's other calls.
    pub number: u32,
    /// True time at which the caller gives up.
    pub deadline_us: u64,
}

/// The number of a call whose caller has given it up.
const NOBODYS: u32 = 0;

impl SimCall {
    /// Whether it was given up before then, and stood in the sockets of a manager that is gone since.
    pub fn is_lost_since(&self, started_us: u64) -> bool {
        self.number == NOBODYS && self.deadline_us < started_us
    }
}

/// Request to a manager.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Registration of an agent.
    Register(Box<v1::Registration>),
    /// Report of an agent.
    Report(v1::NodeReport),
    /// Question of an agent that has a provisional ticket.
    Confirm(LeaseId),
    /// Lease request of a client.
    Lease(Box<LeaseAsk>),
    /// Renewal requested by a client.
    Renew {
        /// The lease to renew.
        lease: LeaseId,
        /// Time to the end of the lease, from now on.
        timeout_ms: u64,
    },
    /// End of a lease, requested by a client.
    End(LeaseId),
    /// Withdrawal of a request whose client's connection has closed: no client waits for the answer.
    Withdraw {
        /// Number of the tenant.
        tenant: u32,
        /// The request that is withdrawn.
        request: RequestId,
    },
}

/// A client's request.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    /// Id of the request; a repeated request has the same id.
    pub request: RequestId,
    /// Number of the tenant.
    pub tenant: u32,
    /// Terms of the requested lease.
    pub terms: LeaseTerms,
    /// Isolation that it demands, if any.
    pub isolation: Option<Isolation>,
    /// How long it may wait.
    pub wait_ms: u64,
    /// Whether its token is a good one.
    pub token: Token,
}

/// Token that a client shows as its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The manager knows the token already.
    Known,
    /// The token has to be verified, and is valid.
    New,
    /// The token has to be verified, and is invalid.
    Worthless,
}

/// Answer of a manager.
#[derive(Clone, Debug)]
pub enum ManagerAnswer {
    /// Answer to a registration.
    Registered(v1::NodeRegistration),
    /// Answer to a report.
    Reported(v1::NodeReportReply),
    /// Answer to a report: the node has to register.
    RegisterAgain,
    /// Answer to the agent of a provisional lease.
    Confirmed,
    /// Answer to a request: a ticket for each lease.
    Granted(Vec<v1::Ticket>),
    /// Answer to a renewal.
    Renewed(Box<v1::Ticket>),
    /// Answer to an order to end.
    Ended,
    /// Error answer to any request.
    Failed(Error),
}

/// Message between parties of a run.
#[derive(Clone, Debug)]
pub enum SimMessage {
    /// Request to a manager.
    Asked(u8, SimCall, Ask),
    /// Answer of a manager, with the call of the agent or client that it answers.
    Answered(SimCall, ManagerAnswer),
    /// Message from a client to an agent.
    ToAgent(u32, FromClient),
    /// Message from an agent to a client, with the round of the client's life in which it attached.
    ToClient(u32, u32, FromAgent),
}

/// Topic of a message, for readers of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    Register,
    Report,
    Confirm,
    Request,
    Renew,
    End,
    Withdraw,
    Answer,
    Attach,
    TakeRenewed,
    Release,
    Gone,
    ToClient,
}

impl SimMessage {
    fn topic(&self) -> (Topic, u32) {
        match self {
            SimMessage::Asked(_, call, ask) => (ask.topic(), call.caller.number()),
            SimMessage::Answered(call, _) => (Topic::Answer, call.caller.number()),
            SimMessage::ToAgent(agent, said) => (said.topic(), *agent),
            SimMessage::ToClient(client, ..) => (Topic::ToClient, *client),
        }
    }
}

impl Ask {
    fn topic(&self) -> Topic {
        match self {
            Ask::Register(_) => Topic::Register,
            Ask::Report(_) => Topic::Report,
            Ask::Confirm(_) => Topic::Confirm,
            Ask::Lease(_) => Topic::Request,
            Ask::Renew { .. } => Topic::Renew,
            Ask::End(_) => Topic::End,
            Ask::Withdraw { .. } => Topic::Withdraw,
        }
    }
}

impl FromClient {
    fn topic(&self) -> Topic {
        match self {
            FromClient::Attach { .. } => Topic::Attach,
            FromClient::Renew(_) => Topic::TakeRenewed,
            FromClient::Release(_) => Topic::Release,
            FromClient::Gone(_) => Topic::Gone,
        }
    }
}

/// Message of a client to an agent.
#[derive(Clone, Debug)]
pub enum FromClient {
    /// The client attaches to its lease, before any other message.
    Attach {
        /// Number of the client.
        client: u32,
        /// Round of the client's life.
        round: u32,
        /// Ticket that entitles the client to attach.
        ticket: Box<v1::Ticket>,
    },
    /// The client shows a ticket with a later end.
    Renew(Box<v1::Ticket>),
    /// The client no longer needs the lease.
    Release(LeaseId),
    /// The connection has closed.
    Gone(LeaseId),
}

/// Message of an agent to a client.
#[derive(Clone, Debug)]
pub enum FromAgent {
    /// The agent has attached the client to its lease.
    Attached,
    /// The agent has refused the client's ticket.
    Refused(LeaseId, Error),
    /// The lease has ended.
    Ended(LeaseId),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Scene {
    /// True time.
    pub now_us: u64,
    /// Future events.
    pub queue: EventQueue<SimEvent>,
    /// Messages on their way.
    pub messages: Slab<SimMessage>,
    /// Network on which they travel.
    pub network: SimNetwork,
    /// True state of the run.
    pub truth: Truth,
    /// Events that have happened.
    pub trace: Trace<SimEvent>,
    /// Random numbers for everything that has no stream of its own.
    pub random: Random,
    /// Error that is introduced on purpose, to check that it is found.
    pub sabotage: Option<Sabotage>,
}

/// Time after which a party learns that no process listens at an address.
const REFUSAL_US: u64 = 500;

impl Scene {
    /// Something happens so long from now.
    pub fn after(&mut self, delay_us: u64, event: SimEvent) {
        self.queue.add(self.now_us + delay_us, event);
    }

    /// A caller asks a manager. It will hear something: an answer, or that none came in time.
    pub fn ask(&mut self, manager: u8, call: SimCall, ask: Ask) {
        let message = SimMessage::Asked(manager, call, ask);
        let arrives_us = self.send(call.caller.party(), LinkEnd::Manager(manager), message);
        if arrives_us.is_none_or(|at_us| at_us >= call.deadline_us) {
            self.queue.add(call.deadline_us, SimEvent::Unanswered(call.caller, call.number));
        }
    }

    /// Sends a caller's request to a manager with an additional delay, unless the manager has been started anew by
    /// then. No caller waits for the answer.
    pub fn ask_late(&mut self, manager: u8, caller: SimCaller, ask: Ask, late_us: u64) {
        let call = SimCall { caller, number: NOBODYS, deadline_us: self.now_us };
        self.deliver(self.now_us + late_us, SimMessage::Asked(manager, call, ask));
    }

    /// A manager answers.
    pub fn answer(&mut self, manager: u8, call: SimCall, answer: ManagerAnswer) {
        if call.number == NOBODYS {
            return;
        }
        let fate = self.network.send(LinkEnd::Manager(manager), call.caller.party());
        let arrives_us = match fate {
            MessageFate::Once(delay_us) | MessageFate::Twice(delay_us, _) => self.now_us + delay_us,
            MessageFate::Lost => u64::MAX,
        };
        if arrives_us >= call.deadline_us {
            return self.queue.add(call.deadline_us, SimEvent::Unanswered(call.caller, call.number));
        }
        let message = SimMessage::Answered(call, answer);
        if let MessageFate::Twice(_, again_us) = fate {
            self.deliver(self.now_us + again_us, message.clone());
        }
        self.deliver(arrives_us, message);
    }

    /// A manager that is not there was asked.
    pub fn refuse(&mut self, call: SimCall) {
        if call.number == NOBODYS {
            return;
        }
        self.after(REFUSAL_US, SimEvent::Unanswered(call.caller, call.number));
    }

    /// Sends a message; says when it arrives, if it does.
    pub fn send(&mut self, from: LinkEnd, to: LinkEnd, message: SimMessage) -> Option<u64> {
        let (once_us, again_us) = match self.network.send(from, to) {
            MessageFate::Lost => return None,
            MessageFate::Once(delay_us) => (delay_us, None),
            MessageFate::Twice(delay_us, again_us) => (delay_us, Some(again_us)),
        };
        if let Some(again_us) = again_us {
            self.deliver(self.now_us + again_us, message.clone());
        }
        self.deliver(self.now_us + once_us, message);
        Some(self.now_us + once_us)
    }

    fn deliver(&mut self, at_us: u64, message: SimMessage) {
        let (topic, who) = message.topic();
        let place = self.messages.put(message);
        self.queue.add(at_us, SimEvent::Arrival(place, topic, who));
    }
}
