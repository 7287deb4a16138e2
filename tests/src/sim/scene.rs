//! Holds the state that all models share: time, future events, the network with its messages, and the truth.

use sublet_manager::core::{LeaseId, RequestId, Terms};
use sublet_proto::Error;
use sublet_proto::v1;

use super::network::{CLIENT_HOSTS, Fate, Network, Party};
use super::queue::Queue;
use super::random::Random;
use super::sabotage::Sabotage;
use super::slab::Slab;
use super::trace::Trace;
use super::truth::Truth;

/// What happens, in a few bytes.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message of this kind arrives, to or from this agent or client; it lies at this place of the slab.
    Arrival(u32, Topic, u32),
    /// A call's answer has not come in time, or never will.
    Unanswered(Caller, u32),
    /// It is time for an agent to look what there is to do; void if it has set another time since.
    AgentWakes(u32, u32),
    /// As above, of a client.
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

impl Event {
    /// What tells it from others, for the run's fingerprint.
    pub fn word(&self) -> u64 {
        match *self {
            Event::Arrival(place, topic, who) => {
                1 << 56 | (topic as u64) << 48 | u64::from(who) << 24 | u64::from(place)
            }
            Event::Unanswered(Caller::Agent(agent), call) => {
                2 << 56 | u64::from(agent) << 32 | u64::from(call)
            }
            Event::Unanswered(Caller::Client(client), call) => {
                3 << 56 | u64::from(client) << 32 | u64::from(call)
            }
            Event::AgentWakes(agent, wake) => 4 << 56 | u64::from(agent) << 32 | u64::from(wake),
            Event::ClientWakes(client, wake) => 5 << 56 | u64::from(client) << 32 | u64::from(wake),
            Event::ManagerTicks(manager, epoch) => 6 << 56 | u64::from(manager) << 32 | epoch,
            Event::StoreAnswers(place) => 7 << 56 | u64::from(place),
            Event::TokenVerified(place) => 8 << 56 | u64::from(place),
            Event::Fault => 9 << 56,
            Event::Relief(number) => 10 << 56 | u64::from(number),
            Event::Check => 11 << 56,
            Event::Calm => 12 << 56,
            Event::End => 13 << 56,
        }
    }
}

/// Who waits for a manager's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// By its number.
    Agent(u32),
    /// By its number.
    Client(u32),
}

impl Caller {
    fn number(self) -> u32 {
        match self {
            Caller::Agent(number) | Caller::Client(number) => number,
        }
    }

    /// Where it is.
    pub fn party(self) -> Party {
        match self {
            Caller::Agent(agent) => Party::Agent(agent),
            Caller::Client(client) => host_of(client),
        }
    }
}

/// Where a client lives.
pub fn host_of(client: u32) -> Party {
    Party::Host((client as usize % CLIENT_HOSTS) as u8)
}

/// A call on its way: the answer goes to its caller, under its number, until its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who waits.
    pub caller: Caller,
    /// Different from the caller's other ones.
    pub number: u32,
    /// True time at which the caller gives up.
    pub deadline_us: u64,
}

/// The number of a call whose caller has given it up.
const NOBODYS: u32 = 0;

impl Call {
    /// Whether it was given up before then, and stood in the sockets of a manager that is gone since.
    pub fn is_lost_since(&self, started_us: u64) -> bool {
        self.number == NOBODYS && self.deadline_us < started_us
    }
}

/// What a manager is asked.
#[derive(Clone, Debug)]
pub enum Ask {
    /// By an agent.
    Register(Box<v1::Registration>),
    /// By an agent.
    Report(v1::NodeReport),
    /// By an agent that has a provisional ticket.
    Confirm(LeaseId),
    /// By a client.
    Lease(Box<LeaseAsk>),
    /// By a client.
    Renew {
        /// Which.
        lease: LeaseId,
        /// From now on.
        timeout_ms: u64,
    },
    /// By a client.
    End(LeaseId),
    /// By a client's connection, which has closed: nobody waits for this request's answer.
    Withdraw {
        /// Its tenant's number.
        tenant: u32,
        /// Which.
        request: RequestId,
    },
}

/// A client's request.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    /// Which; the same again if it is repeated.
    pub request: RequestId,
    /// Its tenant's number.
    pub tenant: u32,
    /// What it asks.
    pub terms: Terms,
    /// How long it may wait.
    pub wait_ms: u64,
    /// Whether its token is a good one.
    pub token: Token,
}

/// What a client shows of who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The manager knows it already.
    Known,
    /// It has to be verified, and is good.
    New,
    /// It has to be verified, and is worth nothing.
    Worthless,
}

/// What a manager answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a registration.
    Registered(v1::NodeRegistration),
    /// To a report.
    Reported(v1::NodeReportReply),
    /// To a report: the node has to register.
    RegisterAgain,
    /// To the agent of a provisional lease.
    Confirmed,
    /// To a request: a ticket for each lease.
    Granted(Vec<v1::Ticket>),
    /// To a renewal.
    Renewed(Box<v1::Ticket>),
    /// To an order to end.
    Ended,
    /// To anything.
    Failed(Error),
}

/// What travels.
#[derive(Clone, Debug)]
pub enum Message {
    /// To a manager.
    Asked(u8, Call, Ask),
    /// From a manager, with the agent's or client's call that it answers.
    Answered(Call, Answer),
    /// To an agent, from a client.
    ToAgent(u32, FromClient),
    /// To a client, in the round of its life in which it attached.
    ToClient(u32, u32, FromAgent),
}

/// What a message is about: for people who read a trace.
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

impl Message {
    fn topic(&self) -> (Topic, u32) {
        match self {
            Message::Asked(_, call, ask) => (ask.topic(), call.caller.number()),
            Message::Answered(call, _) => (Topic::Answer, call.caller.number()),
            Message::ToAgent(agent, said) => (said.topic(), *agent),
            Message::ToClient(client, ..) => (Topic::ToClient, *client),
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

/// What a client says to an agent.
#[derive(Clone, Debug)]
pub enum FromClient {
    /// First of all.
    Attach {
        /// Who.
        client: u32,
        /// In which round of its life.
        round: u32,
        /// Why it may.
        ticket: Box<v1::Ticket>,
    },
    /// A later end.
    Renew(Box<v1::Ticket>),
    /// It needs the lease no more.
    Release(LeaseId),
    /// The connection has closed.
    Gone(LeaseId),
}

/// What an agent says to a client.
#[derive(Clone, Debug)]
pub enum FromAgent {
    /// It has the lease.
    Attached,
    /// It does not.
    Refused(LeaseId, Error),
    /// The lease has ended.
    Ended(LeaseId),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Scene {
    /// True time.
    pub now_us: u64,
    /// What will happen.
    pub queue: Queue<Event>,
    /// What travels.
    pub messages: Slab<Message>,
    /// How it travels.
    pub network: Network,
    /// What is the case.
    pub truth: Truth,
    /// What has happened.
    pub trace: Trace<Event>,
    /// For what no other stream is for.
    pub random: Random,
    /// What is made wrong on purpose, to see it found.
    pub sabotage: Option<Sabotage>,
}

/// How long it takes to learn that nobody listens at an address.
const REFUSAL_US: u64 = 500;

impl Scene {
    /// Something happens so long from now.
    pub fn after(&mut self, delay_us: u64, event: Event) {
        self.queue.add(self.now_us + delay_us, event);
    }

    /// A caller asks a manager. It will hear something: an answer, or that none came in time.
    pub fn ask(&mut self, manager: u8, call: Call, ask: Ask) {
        let message = Message::Asked(manager, call, ask);
        let arrives_us = self.send(call.caller.party(), Party::Manager(manager), message);
        if arrives_us.is_none_or(|at_us| at_us >= call.deadline_us) {
            self.queue.add(call.deadline_us, Event::Unanswered(call.caller, call.number));
        }
    }

    /// What a caller asks arrives so much later, too, unless the manager has been started anew by then. Nobody waits for
    /// an answer.
    pub fn ask_late(&mut self, manager: u8, caller: Caller, ask: Ask, late_us: u64) {
        let call = Call { caller, number: NOBODYS, deadline_us: self.now_us };
        self.deliver(self.now_us + late_us, Message::Asked(manager, call, ask));
    }

    /// A manager answers.
    pub fn answer(&mut self, manager: u8, call: Call, answer: Answer) {
        if call.number == NOBODYS {
            return;
        }
        let fate = self.network.send(Party::Manager(manager), call.caller.party());
        let arrives_us = match fate {
            Fate::Once(delay_us) | Fate::Twice(delay_us, _) => self.now_us + delay_us,
            Fate::Lost => u64::MAX,
        };
        if arrives_us >= call.deadline_us {
            return self.queue.add(call.deadline_us, Event::Unanswered(call.caller, call.number));
        }
        let message = Message::Answered(call, answer);
        if let Fate::Twice(_, again_us) = fate {
            self.deliver(self.now_us + again_us, message.clone());
        }
        self.deliver(arrives_us, message);
    }

    /// A manager that is not there was asked.
    pub fn refuse(&mut self, call: Call) {
        if call.number == NOBODYS {
            return;
        }
        self.after(REFUSAL_US, Event::Unanswered(call.caller, call.number));
    }

    /// Sends a message; says when it arrives, if it does.
    pub fn send(&mut self, from: Party, to: Party, message: Message) -> Option<u64> {
        let (once_us, again_us) = match self.network.send(from, to) {
            Fate::Lost => return None,
            Fate::Once(delay_us) => (delay_us, None),
            Fate::Twice(delay_us, again_us) => (delay_us, Some(again_us)),
        };
        if let Some(again_us) = again_us {
            self.deliver(self.now_us + again_us, message.clone());
        }
        self.deliver(self.now_us + once_us, message);
        Some(self.now_us + once_us)
    }

    fn deliver(&mut self, at_us: u64, message: Message) {
        let (topic, who) = message.topic();
        let place = self.messages.put(message);
        self.queue.add(at_us, Event::Arrival(place, topic, who));
    }
}
