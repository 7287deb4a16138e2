//! Connects to one of several managers: tries them in turn, from the one that answered last.
//!
//! If a manager does not answer, the next one is asked. The answers list the managers of the store (rFaaS-preprint
//! 3.4), up to [`MAX_MANAGERS`]; the addresses that the client was given stay first in the list. A learnt address is
//! used only if it can be trusted as much as the given ones: by TLS, or on the same machine. A manager to which a
//! global one has handed a request is known from then on, too, for it has leases of this client's.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use sublet_fabric::sync::lock;
use sublet_proto::v1::ManagerInfo;
use sublet_proto::v1::manager_client::ManagerClient as Stub;
use sublet_proto::{Code, Error};
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::Channel;
use tonic::{ConnectError, Request, Response, Status};

use crate::access::{Access, Address, MAX_MANAGERS};
use crate::random::random_bits;

/// Number of times that all managers are tried before the request fails: a connection that broke while it was idle may
/// lose the first request sent on it.
const ROUNDS: usize = 2;
/// Largest number of managers that a client knows, with those to which a global manager has handed its requests. A store
/// has no more.
const MAX_HANDED_TO: usize = 256;
/// Largest number of nodes for which a client remembers the granting manager. At the limit it forgets all: components
/// that communicate are requested soon after each other.
const MAX_NODES: usize = 4096;
/// Largest answer, in bytes: a list of all leases of a large store.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Whether a request may be made again when it is not known whether it was executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// A repeated request has the same effect as a single one.
    Harmless,
    /// The request is repeated only if it cannot have arrived.
    Unsent,
}

/// Decides which errors are answered by asking the next manager.
pub(super) type AlsoElsewhere = fn(Code) -> bool;

/// The managers that can execute a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whom {
    Any,
    /// Only managers that have nodes.
    Racks,
}

/// Way in which a request is made.
#[derive(Clone, Copy)]
pub(super) struct RequestTerms {
    /// Longest wait for one manager's answer.
    pub(super) deadline: Duration,
    pub(super) repeat: Repeat,
    /// Errors of one manager that another need not have.
    pub(super) also_elsewhere: AlsoElsewhere,
    pub(super) whom: Whom,
}

pub(super) struct ManagerConnection {
    managers: Mutex<ManagerChannels>,
    /// Taken only when dropped, because a runtime may not be dropped in the ordinary way inside of another.
    runtime: Option<Runtime>,
}

struct ManagerChannels {
    access: Access,
    /// Channels, one for each address, made when they are first used.
    channels: Vec<Option<Channel>>,
    /// Number of addresses that were given, and not learnt.
    given: usize,
    current: usize,
    /// The known managers that stand above the others.
    global: Vec<Address>,
    /// The manager that has granted leases on each node.
    of_nodes: HashMap<String, Address>,
}

/// Reason why one manager did not execute a request.
enum RequestFailure {
    /// The manager has answered with this error.
    Said(Error),
    /// Whether or not it was executed is not known.
    Broken(Error),
    /// Whether it was executed is not known, and the deadline has passed.
    TooLate(Error),
    /// The request did not reach the manager, and was not executed.
    NotReached(Error),
}

impl RequestFailure {
    fn error(self) -> Error {
        match self {
            RequestFailure::Said(error)
            | RequestFailure::Broken(error)
            | RequestFailure::TooLate(error)
            | RequestFailure::NotReached(error) => error,
        }
    }
}

impl ManagerConnection {
    /// Begins with a manager at random, so that many clients do not all ask the same.
    pub(super) fn new(access: Access) -> Result<ManagerConnection, Error> {
        let managers = access.managers.len();
        if managers == 0 {
            return Err(Error::new(Code::InvalidArgument, "no address of a manager was given"));
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::of_system("cannot make a tokio runtime", &error))?;
        let current = (random_bits()? % managers as u128) as usize;
        let managers = Mutex::new(ManagerChannels::new(access, current));
        Ok(ManagerConnection { managers, runtime: Some(runtime) })
    }

    /// The manager that is asked next.
    pub(super) fn address(&self) -> String {
        let managers = self.lock();
        managers.access.managers[managers.current].to_string()
    }

    /// Whether there is more than one manager to ask.
    pub(super) fn has_several(&self) -> bool {
        self.lock().channels.len() > 1
    }

    /// Makes a request of one manager after another until one does it.
    pub(super) fn ask<M, T, F, Fut>(&self, terms: RequestTerms, message: M, call: F) -> Result<T, Error>
    where
        M: Clone + Send + Sync,
        T: Send,
        F: Fn(Stub<Channel>, Request<M>) -> Fut + Sync,
        Fut: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let (mut refused, mut unreached) = (None, None);
        let mut left = self.lock().in_turn(terms.whom);
        for _ in 0..ROUNDS {
            let (mut broken, mut silent) = (Vec::new(), Vec::new());
            for address in left {
                match self.ask_one(&address, terms.deadline, &message, &call)? {
                    Ok(answer) => {
                        self.lock().prefer(&address);
                        return Ok(answer);
                    }
                    // Once round: a manager that has refused is not asked again.
                    Err(RequestFailure::Said(error)) if (terms.also_elsewhere)(error.code) => {
                        refused.get_or_insert(error);
                    }
                    Err(RequestFailure::Said(error)) => {
                        self.lock().prefer(&address);
                        return Err(error);
                    }
                    Err(RequestFailure::Broken(error) | RequestFailure::TooLate(error))
                        if terms.repeat == Repeat::Unsent =>
                    {
                        return Err(error);
                    }
                    Err(RequestFailure::TooLate(error)) => unreached = Some(error),
                    Err(RequestFailure::Broken(error)) => {
                        unreached = Some(error);
                        broken.push(address);
                    }
                    Err(RequestFailure::NotReached(error)) => {
                        unreached = Some(error);
                        silent.push(address);
                    }
                }
            }
            // A manager that had answered may be back, with information that the others lack. One that had not is not
            // waited for again.
            left = broken;
            if refused.is_none() {
                left.extend(silent);
            }
        }
        let none = || Error::new(Code::ManagerUnreachable, "no manager is known that has nodes");
        Err(refused.or(unreached).unwrap_or_else(none))
    }

    /// Makes a request that does no harm if it is made twice of this manager alone.
    pub(super) fn ask_at<M, T, F, Fut>(
        &self,
        address: &Address,
        deadline: Duration,
        message: &M,
        call: F,
    ) -> Result<T, Error>
    where
        M: Clone + Send + Sync,
        T: Send,
        F: Fn(Stub<Channel>, Request<M>) -> Fut + Sync,
        Fut: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let mut asked = self.ask_one(address, deadline, message, &call)?;
        // A connection that broke while it was idle may have lost the request.
        if let Err(RequestFailure::Broken(_)) = asked {
            asked = self.ask_one(address, deadline, message, &call)?;
        }
        asked.map_err(RequestFailure::error)
    }

    /// The manager that stands above the others, if there is one.
    pub(super) fn global(&self) -> Option<Address> {
        self.lock().global.first().cloned()
    }

    /// The way to a manager that another one has named.
    ///
    /// # Errors
    /// `invalid_argument` if it is not as safe as the ways to those that were given.
    pub(super) fn reach(&self, named: &str) -> Result<Address, Error> {
        self.lock().reach(named)
    }

    /// Records that a rack's manager has granted leases on these nodes: it is asked first for leases near them.
    pub(super) fn note_nodes<'names>(&self, rack: &Address, nodes: impl Iterator<Item = &'names str>) {
        let mut managers = self.lock();
        managers.prefer(rack);
        for node in nodes {
            if managers.of_nodes.len() >= MAX_NODES {
                managers.of_nodes.clear();
            }
            managers.of_nodes.insert(node.to_owned(), rack.clone());
        }
    }

    /// The manager that has granted leases on the first known one of these nodes.
    pub(super) fn whereabouts(&self, nodes: &[String]) -> Option<Address> {
        let managers = self.lock();
        nodes.iter().find_map(|node| managers.of_nodes.get(node)).cloned()
    }

    /// Learns which managers there are.
    pub(super) fn learn(&self, known: &[ManagerInfo]) {
        self.lock().learn(known);
    }

    fn ask_one<M, T, F, Fut>(
        &self,
        address: &Address,
        deadline: Duration,
        message: &M,
        call: &F,
    ) -> Result<Result<T, RequestFailure>, Error>
    where
        M: Clone + Send + Sync,
        T: Send,
        F: Fn(Stub<Channel>, Request<M>) -> Fut + Sync,
        Fut: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let runtime =
            self.runtime.as_ref().ok_or_else(|| Error::new(Code::Internal, "the client is dropped"))?;
        let (channel, request) = {
            let _entered = runtime.enter();
            let mut managers = self.lock();
            let request = managers.access.authorize(Request::new(message.clone()));
            (managers.channel(address)?, request)
        };
        let stub = Stub::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        let answer = wait_for(runtime, async { tokio::time::timeout(deadline, call(stub, request)).await })?;
        Ok(match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(failure(address, &status)),
            Err(_) => {
                let why = format!("no answer in {} s", deadline.as_secs_f32());
                Err(RequestFailure::TooLate(address.unreachable(&why)))
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, ManagerChannels> {
        lock(&self.managers)
    }
}

impl Drop for ManagerConnection {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl ManagerChannels {
    fn new(access: Access, current: usize) -> ManagerChannels {
        let given = access.managers.len();
        let (global, of_nodes) = Default::default();
        ManagerChannels { access, channels: vec![None; given], given, current, global, of_nodes }
    }

    /// All of them, or all that have nodes, beginning with the one that answered last.
    fn in_turn(&self, whom: Whom) -> Vec<Address> {
        let (before, from) = self.access.managers.split_at(self.current);
        let can = |address: &&Address| whom == Whom::Any || !self.global.contains(address);
        from.iter().chain(before).filter(can).cloned().collect()
    }

    fn reach(&mut self, named: &str) -> Result<Address, Error> {
        let address: Address = named.parse()?;
        if self.access.managers.contains(&address) {
            return Ok(address);
        }
        let refused = |why: &str| {
            let message = format!("a manager has handed the request to the one at {named}, and {why}");
            Err(Error::new(Code::InvalidArgument, message))
        };
        if !self.trusts(&address) {
            return refused(
                "that is not reached as safely as those that were named here: by TLS, with an authority to trust",
            );
        }
        if self.access.managers.len() >= MAX_HANDED_TO {
            return refused(&format!("{MAX_HANDED_TO} are known already"));
        }
        self.access.managers.push(address.clone());
        self.channels.push(None);
        Ok(address)
    }

    /// Asks this one first from now on.
    fn prefer(&mut self, address: &Address) {
        self.current = self.access.managers.iter().position(|one| one == address).unwrap_or(self.current);
    }

    fn channel(&mut self, address: &Address) -> Result<Channel, Error> {
        let Some(which) = self.access.managers.iter().position(|one| one == address) else {
            return Err(Error::new(Code::ManagerUnreachable, format!("the manager at {address} is gone")));
        };
        if let Some(channel) = &self.channels[which] {
            return Ok(channel.clone());
        }
        let channel = self.access.channel(which)?;
        self.channels[which] = Some(channel.clone());
        Ok(channel)
    }

    /// Adds new managers, and forgets learnt ones that are gone. The one in use stays.
    fn learn(&mut self, known: &[ManagerInfo]) {
        let parsed = |info: &ManagerInfo| Some((info.global, info.address.parse::<Address>().ok()?));
        let mut known: Vec<_> = known.iter().filter_map(parsed).collect();
        // The list is bounded, and a global one is of use to all.
        known.sort_by_key(|(is_global, _)| !is_global);
        let is_known = |address: &Address| self.access.managers.contains(address) || self.trusts(address);
        let global = known.iter().filter(|(is_global, address)| *is_global && is_known(address));
        self.global = global.map(|(_, address)| address.clone()).collect();
        let trusted: Vec<_> =
            known.into_iter().map(|(_, address)| address).filter(|address| self.trusts(address)).collect();
        let current = self.access.managers[self.current].clone();
        for which in (self.given..self.access.managers.len()).rev() {
            let address = &self.access.managers[which];
            if *address != current && !trusted.contains(address) {
                self.access.managers.remove(which);
                self.channels.remove(which);
            }
        }
        for address in trusted {
            if self.access.managers.len() < MAX_MANAGERS && !self.access.managers.contains(&address) {
                self.access.managers.push(address);
                self.channels.push(None);
            }
        }
        self.current = self.access.managers.iter().position(|address| *address == current).unwrap_or(0);
    }

    /// Whether a learnt address can be trusted as much as the given ones.
    fn trusts(&self, address: &Address) -> bool {
        let is_tls = |address: &Address| matches!(address, Address::Tcp { tls: true, .. });
        match is_tls(address) {
            true => self.access.ca_pem.is_some(),
            false => !self.access.managers[..self.given].iter().any(is_tls),
        }
    }
}

fn failure(address: &Address, status: &Status) -> RequestFailure {
    let error = address.failure(status);
    match error.code {
        Code::ManagerUnreachable if is_unsent(status) => RequestFailure::NotReached(error),
        Code::ManagerUnreachable => RequestFailure::Broken(error),
        _ => RequestFailure::Said(error),
    }
}

/// Whether there was no connection that the request could have been sent on.
fn is_unsent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Drives the future on this thread, or on another one if this one belongs to a runtime.
fn wait_for<T: Send>(runtime: &Runtime, future: impl Future<Output = T> + Send) -> Result<T, Error> {
    if Handle::try_current().is_err() {
        return Ok(runtime.block_on(future));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("sublet-manager-client".into())
            .spawn_scoped(scope, || runtime.block_on(future))
            .map_err(|error| Error::new(Code::System, format!("cannot start a thread: {error}")))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managers(given: &str) -> ManagerChannels {
        let access = Access::parse(given).unwrap();
        ManagerChannels::new(access, 0)
    }

    fn known(addresses: &[&str]) -> Vec<ManagerInfo> {
        let info = |address: &&str| ManagerInfo { address: (*address).to_owned(), ..Default::default() };
        addresses.iter().map(info).collect()
    }

    fn list(managers: &ManagerChannels) -> Vec<String> {
        managers.access.managers.iter().map(Address::to_string).collect()
    }

    #[test]
    fn learnt_managers_follow_given_ones_and_expire() {
        let mut managers = managers("unix:/a");
        managers.learn(&known(&["unix:/b", "unix:/a", "nonsense", "unix:/c"]));
        assert_eq!(list(&managers), ["unix:/a", "unix:/b", "unix:/c"]);
        managers.current = 2;
        managers.learn(&known(&[]));
        assert_eq!((list(&managers), managers.current), (vec!["unix:/a".into(), "unix:/c".into()], 1));
        assert_eq!(managers.channels.len(), 2);
    }

    #[test]
    fn knows_global_managers_beyond_the_limit_but_not_as_racks() {
        let mut managers = managers("unix:/a");
        let mut many: Vec<String> = (0..100).map(|number| format!("unix:/{number}")).collect();
        let mut infos = known(&many.iter().map(String::as_str).collect::<Vec<_>>());
        infos.push(ManagerInfo { address: "unix:/global".into(), global: true, ..Default::default() });
        managers.learn(&infos);
        let asked = |whom| managers.in_turn(whom).iter().map(Address::to_string).collect::<Vec<_>>();
        assert!(asked(Whom::Any).contains(&"unix:/global".to_owned()));
        many.truncate(MAX_MANAGERS - 2);
        assert_eq!(asked(Whom::Racks), [vec!["unix:/a".to_owned()], many].concat());
        managers.learn(&known(&[]));
        assert!(managers.global.is_empty());
    }

    #[test]
    fn remembers_managers_of_handed_requests_if_their_address_is_safe() {
        let mut managers = managers("unix:/a");
        for number in 1..MAX_HANDED_TO {
            managers.reach(&format!("unix:/{number}")).unwrap();
        }
        assert_eq!(managers.reach("unix:/7").unwrap().to_string(), "unix:/7");
        assert_eq!(managers.reach("unix:/more").unwrap_err().code, Code::InvalidArgument);
        assert_eq!(managers.channels.len(), MAX_HANDED_TO);
        managers.learn(&known(&["unix:/8"]));
        assert_eq!(list(&managers), ["unix:/a", "unix:/8"], "those that are gone are forgotten");
        let refused = managers.reach("https://rack:1").unwrap_err();
        assert!(
            refused.code == Code::InvalidArgument && refused.message.contains("https://rack:1"),
            "{refused}"
        );
    }

    #[test]
    fn the_list_is_bounded() {
        let mut managers = managers("unix:/a");
        let many: Vec<_> = (0..100).map(|number| format!("unix:/{number}")).collect();
        managers.learn(&known(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(managers.access.managers.len(), MAX_MANAGERS);
    }

    #[test]
    fn rejects_learnt_addresses_less_safe_than_given_ones() {
        let mut remote = managers("https://a:1");
        remote.learn(&known(&["unix:/b", "http://127.0.0.1:1", "https://b:1"]));
        assert_eq!(list(&remote), ["https://a:1"], "without an authority there is no TLS either");
        remote.access.ca_pem = Some(Vec::new());
        remote.learn(&known(&["unix:/b", "http://127.0.0.1:1", "https://b:1"]));
        assert_eq!(list(&remote), ["https://a:1", "https://b:1"]);
    }
}
