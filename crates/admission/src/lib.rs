//! Decides which connections a listener keeps: budgets by who is at the other end, time limits, and a bounded log of
//! refusals.
//!
//! The manager and the agent each have one [`Admission`] for all of their listeners. It is a data structure without I/O,
//! clock or threads: the time comes with each event, and the listeners close what it says.
//!
//! ```text
//! accept --> enter --> (TLS) --> identify --> begin, end: one pair for each request --> leave
//!               |                    |
//!               |                    +-- refused: the budget of its new class or party is used up
//!               +-- sheds the oldest unidentified connection where its class is full
//! ```
//!
//! Invariants:
//! - Each [`Class`] has places that no other class can take, so unauthenticated connections and tenants lock out neither
//!   the operator nor agents.
//! - No class has more connections than its [`Budget`] says, no [`Party`] more than its part of that, and all classes
//!   together no more than [`Limits::total`].
//! - An identified connection is never shed for another one. An unidentified one is shed only for another connection of
//!   its party, or while its party has as many as any other of its class.
//! - A connection that does not identify itself in time is expired, whatever it sends meanwhile.

mod refusals;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

pub use refusals::{RefusalLog, SUMMARY_MS};

/// The party that a connection counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// An unidentified connection from this network address. Made by [`Party::at`].
    Address(IpAddr),
    /// An unidentified connection of this Unix user.
    User(u32),
    /// The operator of this program: its own Unix user, root, or an operator's token.
    Operator,
    /// An agent or a manager, by name.
    Peer(Arc<str>),
    /// A tenant, by name.
    Tenant(Arc<str>),
}

impl Party {
    /// An unidentified connection from an address. One host has all 2^64 addresses of an IPv6 network, so these count as one.
    pub fn at(address: IpAddr) -> Party {
        Party::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }

    /// The class whose places the party uses.
    pub fn class(&self) -> Class {
        match self {
            Party::Address(_) | Party::User(_) => Class::Unidentified,
            Party::Operator => Class::Operator,
            Party::Peer(_) => Class::Peers,
            Party::Tenant(_) => Class::Tenants,
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Address(address) => write!(f, "address {address}"),
            Party::User(uid) => write!(f, "user {uid}"),
            Party::Operator => write!(f, "the operator"),
            Party::Peer(name) => write!(f, "agent {name}"),
            Party::Tenant(name) => write!(f, "tenant {name}"),
        }
    }
}

/// A kind of connections with places of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Those that have shown neither a token nor a ticket.
    Unidentified,
    /// The operator's.
    Operator,
    /// Those of agents and managers.
    Peers,
    /// Those of tenants.
    Tenants,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 4] = [Class::Unidentified, Class::Operator, Class::Peers, Class::Tenants];
}

/// The connections that a class may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Places that only this class uses.
    pub reserved: usize,
    /// Connections of the class at the same time.
    pub most: usize,
    /// Connections of one party at the same time.
    pub each: usize,
}

/// What an [`Admission`] allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of all classes at the same time; at least the sum of what is reserved.
    pub total: usize,
    /// See [`Class::Unidentified`].
    pub unidentified: Budget,
    /// See [`Class::Operator`].
    pub operator: Budget,
    /// See [`Class::Peers`].
    pub peers: Budget,
    /// See [`Class::Tenants`].
    pub tenants: Budget,
    /// Time from the acceptance of a connection to the end of its handshake, in milliseconds.
    pub handshake_ms: u64,
    /// Time from the end of the handshake until the connection is identified, in milliseconds.
    pub first_request_ms: u64,
    /// Time without a request after which an identified connection is closed, in milliseconds.
    pub idle_ms: u64,
}

impl Limits {
    /// The budget of a class.
    pub fn of(&self, class: Class) -> Budget {
        match class {
            Class::Unidentified => self.unidentified,
            Class::Operator => self.operator,
            Class::Peers => self.peers,
            Class::Tenants => self.tenants,
        }
    }
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The party has all the connections that one may have.
    Party(Party, usize),
    /// The class has all the connections that it may have now.
    Class(Class, usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Party(party, most) => {
                write!(f, "{party} has {most} connections already, and may have no more at the same time")
            }
            Refusal::Class(class, now) => {
                let of = match class {
                    Class::Unidentified => "unauthenticated connections",
                    Class::Operator => "connections of the operator",
                    Class::Peers => "connections of agents",
                    Class::Tenants => "connections of tenants",
                };
                write!(f, "there are {now} {of} already, and no place for more")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Why a connection is closed by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The handshake was not finished in time.
    Handshake,
    /// No token or ticket was shown in time.
    FirstRequest,
    /// There was no request for a long time.
    Idle,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Overdue::Handshake => "the handshake was not finished in time",
            Overdue::FirstRequest => "no valid token or ticket was shown in time",
            Overdue::Idle => "there was no request for too long",
        })
    }
}

/// A connection's number; later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

#[derive(Debug)]
struct Connection<T> {
    party: Party,
    is_identified: bool,
    is_shaken: bool,
    /// Since when its time limit runs: its acceptance, the end of its handshake, or of its latest request.
    since_ms: u64,
    requests: u32,
    handle: T,
}

/// The connections of one party.
#[derive(Debug, Default)]
struct Members {
    all: usize,
    /// Those that can be shed, the oldest first.
    unidentified: BTreeSet<Id>,
}

/// The connections of one program. `T` is what its listeners need to close one.
#[derive(Debug)]
pub struct Admission<T> {
    limits: Limits,
    next: u64,
    connections: BTreeMap<Id, Connection<T>>,
    parties: HashMap<Party, Members>,
    used: [usize; Class::ALL.len()],
}

impl<T> Admission<T> {
    /// Without connections.
    pub fn new(limits: Limits) -> Admission<T> {
        Admission {
            limits,
            next: 0,
            connections: BTreeMap::new(),
            parties: HashMap::new(),
            used: [0; Class::ALL.len()],
        }
    }

    /// What it allows.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The connections of a class.
    pub fn used(&self, class: Class) -> usize {
        self.used[class as usize]
    }

    /// Admits a connection. It may take the place of an unidentified one, which the caller has to close: its handle comes
    /// beside the new connection's number.
    ///
    /// # Errors
    /// If there is no place, and none of an unidentified connection that it could take.
    pub fn enter(&mut self, now_ms: u64, party: Party, handle: T) -> Result<(Id, Option<T>), Refusal> {
        let shed = match self.check(&party, None) {
            Ok(()) => None,
            Err(refusal) => {
                let Some(oldest) = self.victim(&party, &refusal) else { return Err(refusal) };
                self.leave(oldest)
            }
        };
        let id = Id(self.next);
        self.next += 1;
        self.count(&party).unidentified.insert(id);
        let connection = Connection {
            party,
            is_identified: false,
            is_shaken: false,
            since_ms: now_ms,
            requests: 0,
            handle,
        };
        self.connections.insert(id, connection);
        Ok((id, shed))
    }

    /// The handshake is finished: from now on the time until the first request counts.
    pub fn shaken(&mut self, id: Id, now_ms: u64) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_shaken) {
            connection.is_shaken = true;
            connection.since_ms = now_ms;
        }
    }

    /// The connection has proved to be a party's. What it was identified as first, it stays.
    ///
    /// # Errors
    /// If the party or its class has no place. The connection then stays unidentified, and its time limit runs on.
    pub fn identify(&mut self, id: Id, party: Party, now_ms: u64) -> Result<(), Refusal> {
        let Some(before) = self.connections.get(&id).filter(|connection| !connection.is_identified) else {
            return Ok(());
        };
        let before = before.party.clone();
        if before != party {
            self.check(&party, Some(before.class()))?;
        }
        self.uncount(&before, id);
        self.count(&party);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.party = party;
            connection.is_identified = true;
            connection.is_shaken = true;
            connection.since_ms = now_ms;
        }
        Ok(())
    }

    /// A request begins: the connection is not idle until it ends.
    pub fn begin(&mut self, id: Id) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.requests += 1;
        }
    }

    /// A request has ended.
    pub fn end(&mut self, id: Id, now_ms: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.requests = connection.requests.saturating_sub(1);
        // The limit of an unidentified connection runs on, whatever it asks.
        if connection.is_identified {
            connection.since_ms = now_ms;
        }
    }

    /// The connection is closed. Gives its handle, if it was there.
    pub fn leave(&mut self, id: Id) -> Option<T> {
        let Connection { party, handle, .. } = self.connections.remove(&id)?;
        self.uncount(&party, id);
        Some(handle)
    }

    /// Takes out the connections whose time is over, which the caller has to close.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(Party, Overdue, T)> {
        let limits = self.limits;
        let overdue = |(&id, connection): (&Id, &Connection<T>)| {
            let (limit_ms, why) = match (connection.is_identified, connection.is_shaken) {
                (true, _) if connection.requests > 0 => return None,
                (true, _) => (limits.idle_ms, Overdue::Idle),
                (false, true) => (limits.first_request_ms, Overdue::FirstRequest),
                (false, false) => (limits.handshake_ms, Overdue::Handshake),
            };
            (now_ms.saturating_sub(connection.since_ms) >= limit_ms).then_some((id, why))
        };
        let over: Vec<(Id, Overdue)> = self.connections.iter().filter_map(overdue).collect();
        let take = |(id, why)| {
            let party = self.connections.get(&id)?.party.clone();
            Some((party, why, self.leave(id)?))
        };
        over.into_iter().filter_map(take).collect()
    }

    /// Takes out all connections that are not identified.
    pub fn drain_unidentified(&mut self) -> Vec<T> {
        let unidentified = self.connections.iter().filter(|(_, connection)| !connection.is_identified);
        let ids: Vec<Id> = unidentified.map(|(&id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.leave(id)).collect()
    }

    /// Whether the party may have one more, by a connection that was of the class `from` until now.
    fn check(&self, party: &Party, from: Option<Class>) -> Result<(), Refusal> {
        let class = party.class();
        let budget = self.limits.of(class);
        if self.parties.get(party).is_some_and(|members| members.all >= budget.each) || budget.each == 0 {
            return Err(Refusal::Party(party.clone(), budget.each));
        }
        let used = |of: Class| self.used(of) - usize::from(from == Some(of));
        let claimed = |of: Class| used(of).max(self.limits.of(of).reserved);
        let all: usize = Class::ALL.into_iter().map(claimed).sum();
        let is_within = used(class) < budget.reserved || all < self.limits.total;
        if used(class) < budget.most && is_within { Ok(()) } else { Err(Refusal::Class(class, used(class))) }
    }

    /// The unidentified connection whose place a new one of the party takes: the oldest of that party if it has all that
    /// one may have, and otherwise of the party of its class that has most.
    fn victim(&self, party: &Party, refusal: &Refusal) -> Option<Id> {
        if let Refusal::Party(..) = refusal {
            return self.parties.get(party)?.unidentified.first().copied();
        }
        let of_class = self.parties.iter().filter(|(other, _)| other.class() == party.class());
        let candidates =
            of_class.filter_map(|(_, members)| Some((members.all, *members.unidentified.first()?)));
        candidates.max_by_key(|&(all, oldest)| (all, std::cmp::Reverse(oldest))).map(|(_, oldest)| oldest)
    }

    fn count(&mut self, party: &Party) -> &mut Members {
        self.used[party.class() as usize] += 1;
        let members = self.parties.entry(party.clone()).or_default();
        members.all += 1;
        members
    }

    fn uncount(&mut self, party: &Party, id: Id) {
        self.used[party.class() as usize] -= 1;
        let Some(members) = self.parties.get_mut(party) else { return };
        members.all -= 1;
        members.unidentified.remove(&id);
        if members.all == 0 {
            self.parties.remove(party);
        }
    }
}
