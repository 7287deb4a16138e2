//! Holds the leases of one allocation, and chooses the worker of a call (rFaaS III-D).
//!
//! Leases are taken together, all or nothing: if one of them cannot be attached the others are given back. With one
//! lease a call is sent straight to it.

use std::sync::Arc;
use std::time::Duration;

use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_proto::ALWAYS_HOT_NS;
use sublet_proto::limits::MAX_ENDS;
use sublet_proto::v1;
use sublet_proto::{Code, Error, version};

use super::{Allocation, crowded};
use crate::arena::RegisteredMemory;
use crate::fabrics::{FabricChoice, Here};
use crate::lease::attach::{Attaching, ClientContext};
use crate::lease::dispatch::{LOOKS, no_such_worker};
use crate::lease::{Call, ClientLease, SentCall};
use crate::manager::ManagerClient;

/// Number of times that a request is made if its grants cannot be attached.
const ATTEMPTS: u32 = 3;
/// Longest time that a failed allocation waits until the leases that it could not attach are free again. A node takes
/// back a lease that no client has attached with its next two reports, of which the second follows the first at once.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct HeldLeases {
    pub(super) first: Arc<ClientLease>,
    /// The other leases, by the numbers of their workers.
    others: Vec<Arc<ClientLease>>,
    /// The requested terms, with the package's digest.
    allocation: Allocation,
    client_context: ClientContext,
    /// Number of the worker at which the next call that names none begins its search.
    next: AtomicU32,
}

impl HeldLeases {
    /// Takes the leases of an allocation.
    pub(super) fn take(
        manager: &ManagerClient,
        memory: &RegisteredMemory,
        allocation: Allocation,
    ) -> Result<HeldLeases, Error> {
        allocation.check_needs()?;
        let (spin, terms) = (allocation.spin, allocation.terms()?);
        let client_context = ClientContext {
            arena: memory.0.clone(),
            worker_set: Arc::default(),
            spin,
            terms,
            starting: allocation.starting.clone(),
        };
        let mut leases = take_leases(manager, &allocation, &client_context, 0)?.into_iter();
        let first = leases.next().ok_or_else(|| Error::new(Code::Protocol, "a grant without a lease"))?;
        let held = HeldLeases {
            first,
            others: leases.collect(),
            allocation,
            client_context,
            next: AtomicU32::new(0),
        };
        held.warn_if_crowded();
        Ok(held)
    }

    /// Leases more of the same.
    pub(super) fn grow(&mut self, manager: &ManagerClient, cores: u32) -> Result<(), Error> {
        let more = self.allocation.grown_by(cores);
        self.others.extend(take_leases(manager, &more, &self.client_context, self.workers())?);
        self.warn_if_crowded();
        Ok(())
    }

    /// Warns if workers that always poll have every core of this machine. Those on shared cores take turns.
    fn warn_if_crowded(&self) {
        let polls = |lease: &&Arc<ClientLease>| {
            lease.options.hot_timeout_ns == ALWAYS_HOT_NS && lease.fabric() == FabricChoice::Shm
        };
        if !self.allocation.shared {
            crowded::warn_of(self.leases().filter(polls).map(|lease| lease.workers()).sum());
        }
    }

    /// Sends a call to the worker that it names, or to one that looks idle.
    #[inline(always)]
    pub(super) fn dispatch(&self, call: &Call) -> Result<(&Arc<ClientLease>, SentCall), Error> {
        if self.others.is_empty() {
            return Ok((&self.first, self.first.dispatch(call)?));
        }
        self.dispatch_among(call)
    }

    fn dispatch_among(&self, call: &Call) -> Result<(&Arc<ClientLease>, SentCall), Error> {
        if let Some(number) = call.worker {
            let (lease, worker) = self.find(number)?;
            return Ok((lease, lease.dispatch_to(worker, call)?));
        }
        // A lease may end between the choice and the submission; then there is one fewer to choose from.
        for _ in 0..=self.others.len() {
            let Some((lease, worker)) = self.choose() else { break };
            match lease.dispatch_to(worker, call) {
                Err(_) if lease.is_over() => {}
                sent => return Ok((lease, sent?)),
            }
        }
        Err(self.first.why_over())
    }

    /// Chooses a worker that looks idle, of a lease that continues. A lease whose end is announced is chosen only if
    /// there is no other, and one that has ended never.
    fn choose(&self) -> Option<(&Arc<ClientLease>, u32)> {
        let workers = self.workers();
        let first = self.next.fetch_add(1, Ordering::Relaxed) % workers;
        let in_turn = || (first..workers).chain(0..first).filter_map(|number| self.find(number).ok());
        let going_on = in_turn().filter(|(lease, _)| !lease.is_over() && !lease.is_ending());
        let idlest = going_on.take(LOOKS as usize).min_by_key(|(lease, worker)| lease.in_use(*worker));
        idlest.or_else(|| in_turn().find(|(lease, _)| !lease.is_over()))
    }

    /// The worker of a number.
    fn find(&self, number: u32) -> Result<(&Arc<ClientLease>, u32), Error> {
        let after = self.others.partition_point(|lease| lease.first_worker <= number);
        let lease = if after == 0 { &self.first } else { &self.others[after - 1] };
        let worker = number - lease.first_worker;
        if worker < lease.workers() {
            Ok((lease, worker))
        } else {
            Err(no_such_worker(number, self.workers()))
        }
    }

    /// The leases, by the numbers of their workers.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Arc<ClientLease>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The workers of all leases.
    pub(super) fn workers(&self) -> u32 {
        let last = self.others.last().unwrap_or(&self.first);
        last.first_worker + last.workers()
    }

    /// Gives all leases back, and returns each with its usage.
    pub(super) fn end(self) -> Result<Vec<v1::Lease>, Error> {
        // Every agent gets the message before the first answer is awaited.
        let told: Vec<_> = self.leases().map(|lease| (lease, lease.give_back())).collect();
        let ended: Vec<_> = told.into_iter().map(|(lease, told)| (lease, lease.await_end(told))).collect();
        let used = ended
            .into_iter()
            .map(|(lease, usage)| Ok(v1::Lease { usage: Some(usage?), ..lease.description() }));
        used.collect()
    }
}

fn take_leases(
    manager: &ManagerClient,
    allocation: &Allocation,
    client_context: &ClientContext,
    first_worker: u32,
) -> Result<Vec<Arc<ClientLease>>, Error> {
    let (here, in_vain) = (Here::default(), Vec::new());
    LeaseAcquisition { manager, allocation, client_context, first_worker, here, in_vain }.take()
}

/// Leases being taken for all cores of an allocation.
struct LeaseAcquisition<'held> {
    manager: &'held ManagerClient,
    allocation: &'held Allocation,
    client_context: &'held ClientContext,
    /// The number of their first worker.
    first_worker: u32,
    here: Here,
    /// Leases that were granted and could not be attached.
    in_vain: Vec<String>,
}

impl LeaseAcquisition<'_> {
    /// Takes the leases. After a failure, none of the grants that could not be attached holds resources.
    fn take(mut self) -> Result<Vec<Arc<ClientLease>>, Error> {
        self.client_context.terms.check(&self.here)?;
        let taken = self.ask_until_attached();
        if taken.is_err() {
            // The caller may request better terms at once after the error.
            end_unattached(self.manager, &self.in_vain, RELEASE_PATIENCE);
        }
        taken
    }

    /// Requests again, a few times, leases that were granted and cannot be attached because their node registered anew
    /// or went away meanwhile.
    fn ask_until_attached(&mut self) -> Result<Vec<Arc<ClientLease>>, Error> {
        let request = self.allocation.request();
        let (mut attempt, mut out_of_reach) = (1, None);
        loop {
            // Without a name of the client's own, each request is a new one.
            let grants = match self.manager.request_lease(request.clone()) {
                Ok(granted) => granted.grants,
                // The missing capacity is held by the leases that could not be attached.
                Err(error) if error.code == Code::NoCapacity => return Err(out_of_reach.unwrap_or(error)),
                Err(error) => return Err(error),
            };
            let before = self.in_vain.len();
            match self.attach(&request, grants) {
                Ok(leases) => {
                    self.client_context.worker_set.join(&leases);
                    return Ok(leases);
                }
                Err(error) if attempt < ATTEMPTS && may_be_asked_anew(error.code) => {
                    // Meanwhile they keep the next request from the same nodes.
                    end_unattached(self.manager, &self.in_vain[before..], Duration::ZERO);
                    out_of_reach = Some(error).filter(|error| error.code == Code::AgentUnreachable);
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches all grants, or none: after a failure the attached leases are given back, and the others recorded as not
    /// attached.
    fn attach(
        &mut self,
        request: &v1::LeaseRequest,
        grants: Vec<v1::LeaseGrant>,
    ) -> Result<Vec<Arc<ClientLease>>, Error> {
        let ids: Vec<_> = grants.iter().filter_map(|grant| Some(grant.lease.as_ref()?.id.clone())).collect();
        let granted = check_needs_are_granted(request, &grants);
        if let Err(error) = granted.and_then(|()| check_cores_are_granted(request, &grants)) {
            self.in_vain.extend(ids);
            return Err(error);
        }
        // All tickets are shown before any answer is waited for: the nodes start their workers at the same time.
        let (terms, variables) = (&self.client_context.terms, self.allocation.variables());
        let shown = grants.into_iter().map(|grant| Attaching::begin(grant, variables, terms, &self.here));
        let shown: Vec<_> = shown.collect();
        let mut leases: Vec<Arc<ClientLease>> = Vec::new();
        let attached: Result<(), Error> = shown.into_iter().try_for_each(|shown| {
            let number =
                leases.last().map_or(self.first_worker, |lease| lease.first_worker + lease.workers());
            leases.push(shown?.finish(self.client_context, number)?);
            Ok(())
        });
        if attached.is_err() {
            // The reason why not all could be attached is the better thing to say.
            leases.iter().for_each(|lease| drop(lease.end()));
            let in_vain = ids.into_iter().filter(|id| leases.iter().all(|lease| lease.id() != id.as_str()));
            self.in_vain.extend(in_vain);
        }
        attached.map(|()| leases)
    }
}

/// Checks that the manager has granted what functions need beside cores and memory: one of an earlier version ignores it.
fn check_needs_are_granted(request: &v1::LeaseRequest, grants: &[v1::LeaseGrant]) -> Result<(), Error> {
    let has_needs = |grant: &v1::LeaseGrant| grant.lease.as_ref().is_some_and(|lease| lease.needs.is_some());
    let Some(needs) = &request.needs else { return Ok(()) };
    let has_devices = |grant: &v1::LeaseGrant| {
        let granted = grant.lease.as_ref().and_then(|lease| lease.needs.as_ref());
        granted.is_some_and(|granted| granted.devices.len() >= needs.devices.len())
    };
    if !needs.devices.is_empty() && !grants.iter().all(has_devices) {
        version::check_messages("the manager", 0, "devices of a lease", version::DEVICES)?;
    }
    if grants.iter().all(has_needs) {
        return Ok(());
    }
    let what = "secrets, folders and temporary space of a lease";
    version::check_messages("the manager", 0, what, version::NEEDS)
}

/// Checks that the manager has granted workers with as many cores as requested: one of an earlier version grants one.
fn check_cores_are_granted(request: &v1::LeaseRequest, grants: &[v1::LeaseGrant]) -> Result<(), Error> {
    let each = request.options.map_or(1, |options| options.cores_each());
    let has_cores =
        |grant: &v1::LeaseGrant| grant.lease.as_ref().is_some_and(|lease| lease.cores_each() == each);
    if grants.iter().all(has_cores) {
        return Ok(());
    }
    version::check_messages("the manager", 0, "workers with several cores", version::WORKER_CORES)
}

fn may_be_asked_anew(code: Code) -> bool {
    matches!(code, Code::TicketSuperseded | Code::AgentUnreachable | Code::NoCapacity)
}

/// Ends leases that no client has attached, or that are over, and waits for a while until they hold no resources. If
/// the managers cannot be reached, the leases end later by themselves: a manager takes back a lease that no client
/// attaches.
fn end_unattached(manager: &ManagerClient, leases: &[String], wait: Duration) {
    for leases in leases.chunks(MAX_ENDS) {
        let _ = manager.end_leases(leases, wait);
    }
}
