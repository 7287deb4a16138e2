//! Decides which connections a listener keeps, by budgets for each class and party and by time limits, and keeps a bounded
//! log of refusals.
//!
//! The manager and the agent each have one [`Admission`] for all of their listeners. It is a data structure without I/O,
//! clock or threads: each event carries the time, and the listeners close the connections that it returns.
//!
//! ```text
//! accept --> enter --> (TLS) --> identify --> begin, end: one pair for each request --> leave
//!               |                    |
//!               |                    +-- refused: the budget of its new class or party is used up
//!               +-- sheds the oldest unidentified connection where its class is full
//! ```
//!
//! Invariants:
//! - Each [`Class`] has connections reserved that no other class can use, so unauthenticated connections and tenants cannot
//!   lock out the operator or agents.
//! - No class has more connections than [`ClassBudget::most`], no [`Party`] more than [`ClassBudget::each`], and all classes together
//!   no more than [`AdmissionLimits::total`].
//! - An identified connection is never shed for another one. An unidentified one is shed only for another connection of
//!   its party, or while no other party of its class has more connections than its own.
//! - A connection that does not identify itself in time expires, whatever it sends meanwhile.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

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
    /// Creates the party of an unidentified connection. One host may have all 2^64 addresses of an IPv6 network, so these
    /// count as one address.
    pub fn at(address: IpAddr) -> Party {
        Party::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }

    /// Returns the class of the party.
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

/// A class of connections, with a budget of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Connections that have shown neither a token nor a ticket.
    Unidentified,
    /// Connections of the operator.
    Operator,
    /// Connections of agents and managers.
    Peers,
    /// Connections of tenants.
    Tenants,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 4] = [Class::Unidentified, Class::Operator, Class::Peers, Class::Tenants];
}

/// Limits on the connections of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassBudget {
    /// Connections that only this class may use.
    pub reserved: usize,
    /// Maximum number of connections of the class.
    pub most: usize,
    /// Maximum number of connections of one party.
    pub each: usize,
}

/// Limits of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Maximum number of connections of all classes together; at least the sum of the reserved ones.
    pub total: usize,
    /// Budget of [`Class::Unidentified`].
    pub unidentified: ClassBudget,
    /// Budget of [`Class::Operator`].
    pub operator: ClassBudget,
    /// Budget of [`Class::Peers`].
    pub peers: ClassBudget,
    /// Budget of [`Class::Tenants`].
    pub tenants: ClassBudget,
    /// Time from the acceptance of a connection to the end of its handshake, in milliseconds.
    pub handshake_ms: u64,
    /// Time from the end of the handshake until the connection is identified, in milliseconds.
    pub first_request_ms: u64,
    /// Time without a request after which an identified connection is closed, in milliseconds.
    pub idle_ms: u64,
}

impl AdmissionLimits {
    /// Returns the budget of a class.
    pub fn of(&self, class: Class) -> ClassBudget {
        match class {
            Class::Unidentified => self.unidentified,
            Class::Operator => self.operator,
            Class::Peers => self.peers,
            Class::Tenants => self.tenants,
        }
    }
}

/// Reason for the refusal of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The party has its maximum number of connections.
    Party(Party, usize),
    /// The class has as many connections as it may have now.
    Class(Class, usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Party(party, most) => {
                write!(f, "{party} has {most} connections, which is the maximum")
            }
            Refusal::Class(class, now) => {
                let of = match class {
                    Class::Unidentified => "unauthenticated connections",
                    Class::Operator => "connections of the operator",
                    Class::Peers => "connections of agents",
                    Class::Tenants => "connections of tenants",
                };
                write!(f, "there are {now} {of}, which is the maximum now")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Time limit that a connection has exceeded.
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

/// Number of a connection; later connections have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

#[derive(Debug)]
struct ConnectionState<T> {
    party: Party,
    is_identified: bool,
    is_shaken: bool,
    /// Start of the current time limit: the acceptance, the end of the handshake, or the end of the latest request.
    since_ms: u64,
    requests: u32,
    handle: T,
}

/// The connections of one party.
#[derive(Debug, Default)]
struct Members {
    all: usize,
    /// Connections that can be shed, the oldest first.
    unidentified: BTreeSet<ConnectionId>,
}

/// The connections of one program. `T` is a handle with which its listeners close a connection.
#[derive(Debug)]
pub struct Admission<T> {
    limits: AdmissionLimits,
    next: u64,
    connections: BTreeMap<ConnectionId, ConnectionState<T>>,
    parties: HashMap<Party, Members>,
    used: [usize; Class::ALL.len()],
}

impl<T> Admission<T> {
    /// Creates an admission without connections.
    pub fn new(limits: AdmissionLimits) -> Admission<T> {
        Admission {
            limits,
            next: 0,
            connections: BTreeMap::new(),
            parties: HashMap::new(),
            used: [0; Class::ALL.len()],
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> &AdmissionLimits {
        &self.limits
    }

    /// Returns the number of connections of a class.
    pub fn used(&self, class: Class) -> usize {
        self.used[class as usize]
    }

    /// Admits a connection and returns its number. If it displaces an unidentified connection, the result also has that
    /// connection's handle, and the caller must close it.
    ///
    /// # Errors
    /// If a limit is reached and no unidentified connection can be displaced.
    pub fn enter(
        &mut self,
        now_ms: u64,
        party: Party,
        handle: T,
    ) -> Result<(ConnectionId, Option<T>), Refusal> {
        let shed = match self.check(&party, None) {
            Ok(()) => None,
            Err(refusal) => {
                let Some(oldest) = self.oldest_to_shed(&party, &refusal) else { return Err(refusal) };
                self.leave(oldest)
            }
        };
        let id = ConnectionId(self.next);
        self.next += 1;
        self.count(&party).unidentified.insert(id);
        let connection = ConnectionState {
            party,
            is_identified: false,
            is_shaken: false,
            since_ms: now_ms,
            requests: 0,
            handle,
        };
        self.connections.insert(id, connection);
        self.assert_consistent();
        Ok((id, shed))
    }

    /// In debug builds, panics unless each connection is counted once, in its class and in its party, within the limits.
    fn assert_consistent(&self) {
        debug_assert_eq!(self.used.iter().sum::<usize>(), self.connections.len(), "connections by class");
        let members = self.parties.values().map(|members| members.all);
        debug_assert_eq!(members.sum::<usize>(), self.connections.len(), "connections by party");
        debug_assert!(
            self.connections.len() <= self.limits.total,
            "{} connections, at most {}",
            self.connections.len(),
            self.limits.total
        );
    }

    /// Notes the end of the handshake, which starts the time limit of the first request.
    pub fn shaken(&mut self, id: ConnectionId, now_ms: u64) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_shaken) {
            connection.is_shaken = true;
            connection.since_ms = now_ms;
        }
    }

    /// Identifies a connection as a party's. A second identification has no effect.
    ///
    /// # Errors
    /// If the party or its class has reached its limit. The connection then stays unidentified, and its time limit continues.
    pub fn identify(&mut self, id: ConnectionId, party: Party, now_ms: u64) -> Result<(), Refusal> {
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
        self.assert_consistent();
        Ok(())
    }

    /// Notes the start of a request: the connection is not idle until its end.
    pub fn begin(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.requests = connection.requests.saturating_add(1);
        }
    }

    /// Notes the end of a request.
    pub fn end(&mut self, id: ConnectionId, now_ms: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.requests = connection.requests.saturating_sub(1);
        // The time limit of an unidentified connection continues, whatever it requests.
        if connection.is_identified {
            connection.since_ms = now_ms;
        }
    }

    /// Removes a closed connection. Returns its handle, if it was present.
    pub fn leave(&mut self, id: ConnectionId) -> Option<T> {
        let ConnectionState { party, handle, .. } = self.connections.remove(&id)?;
        self.uncount(&party, id);
        self.assert_consistent();
        Some(handle)
    }

    /// Removes the connections that have exceeded a time limit, which the caller must close.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(Party, Overdue, T)> {
        let limits = self.limits;
        let overdue = |(&id, connection): (&ConnectionId, &ConnectionState<T>)| {
            let (limit_ms, why) = match (connection.is_identified, connection.is_shaken) {
                (true, _) if connection.requests > 0 => return None,
                (true, _) => (limits.idle_ms, Overdue::Idle),
                (false, true) => (limits.first_request_ms, Overdue::FirstRequest),
                (false, false) => (limits.handshake_ms, Overdue::Handshake),
            };
            (now_ms.saturating_sub(connection.since_ms) >= limit_ms).then_some((id, why))
        };
        let over: Vec<(ConnectionId, Overdue)> = self.connections.iter().filter_map(overdue).collect();
        let take = |(id, why)| {
            let party = self.connections.get(&id)?.party.clone();
            Some((party, why, self.leave(id)?))
        };
        over.into_iter().filter_map(take).collect()
    }

    /// Removes all unidentified connections.
    pub fn drain_unidentified(&mut self) -> Vec<T> {
        let unidentified = self.connections.iter().filter(|(_, connection)| !connection.is_identified);
        let ids: Vec<ConnectionId> = unidentified.map(|(&id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.leave(id)).collect()
    }

    /// Checks that the party may have another connection, which was of the class `from` until now.
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

    /// Chooses the unidentified connection that a new one of the party displaces: the oldest one of that party if it has
    /// reached its limit, otherwise the oldest one of the party with most connections in the class.
    fn oldest_to_shed(&self, party: &Party, refusal: &Refusal) -> Option<ConnectionId> {
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

    fn uncount(&mut self, party: &Party, id: ConnectionId) {
        debug_assert!(
            self.parties.get(party).is_some_and(|members| members.all > 0) && self.used(party.class()) > 0,
            "a connection of {party} was not counted"
        );
        self.used[party.class() as usize] -= 1;
        let Some(members) = self.parties.get_mut(party) else { return };
        members.all -= 1;
        members.unidentified.remove(&id);
        if members.all == 0 {
            self.parties.remove(party);
        }
    }
}
