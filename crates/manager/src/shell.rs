//! The core among threads: one lock around it, held for microseconds, and never while anything is waited for.
//!
//! A thread with an event takes the lock, lets the core decide, and does the follow-up that costs nothing: it wakes the
//! requests whose answers have come, and notes in the [ledger](crate::ledger) which leases are to be stored. Signing,
//! encoding and the store come after the lock. A request whose answer takes longer waits on a channel of its own; when
//! its client goes away it is withdrawn.

mod ends;
mod grants;
mod neighbours;
mod nodes;
mod processes;
mod reporters;
mod requests;
pub(crate) mod secrets;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use sublet_proto::ticket::{Signing, Verifying};
use sublet_proto::v1::{self, NodeGeneration, PackageInfo, Quota, TenantUse, Ticket};
use sublet_proto::{Code, Error};
use tokio::sync::{oneshot, watch};

use crate::auth::CallerIdentity;
use crate::chance::NameGenerator;
use crate::clock::Clock;
use crate::core::{
    Core, CoreAction, CoreEvent, Lease, LeaseId, Level, NodeKey, Reach, Renewal, RequestId, TenantKey,
    application_of,
};
use crate::database::Database;
use crate::ledger::{Ledger, LedgerEntry, RecordWriter};
use crate::listen::ConnectionId;
use crate::names::UNVERIFIED;
use crate::tenants::UNVERIFIED_QUOTA;
use crate::tokens::TokenId;
use neighbours::Secrets;
pub(crate) use requests::PreparedRequest;

/// Most leases with an invalid token that are remembered for agents that ask.
const MAX_REJECTED: usize = 1024;

/// The core, and the shell's notes beside it.
pub(crate) struct Shell {
    state: Mutex<State>,
    signing: Signing,
    verifying: Verifying,
    secrets: Secrets,
    pub(crate) level: Level,
    pub(crate) clock: Clock,
    pub(crate) ledger: Ledger,
    database: Database,
    /// Grows whenever a provisional lease has been verified or rejected.
    decided: watch::Sender<u64>,
    /// Grows, while a receiver exists, whenever a lease may have ended.
    ended: watch::Sender<u64>,
}

struct State {
    core: Core,
    waiting: HashMap<RequestKey, Vec<WaitingClient>>,
    taken: TokenLeases,
    rejected: VecDeque<(LeaseId, Error)>,
    /// Nodes have gone to other managers: some leases may never end here.
    has_parted: bool,
    /// The connection by which each node's agent reported last.
    reporters: HashMap<NodeKey, ConnectionId>,
    /// Names for requests that have none.
    names: NameGenerator,
    /// Emptied after each event; kept for its memory.
    out: Vec<CoreAction>,
}

/// A request of a tenant.
type RequestKey = (TenantKey, RequestId);
type Answer = Result<RequestOutcome, Error>;

/// Result of a granted request.
pub(crate) enum RequestOutcome {
    Leases(Vec<GrantedLease>),
    /// The client is to ask the manager at this address.
    Handed(Arc<str>),
}

/// A client that waits for an answer, and the token that it showed.
struct WaitingClient {
    reply: oneshot::Sender<Answer>,
    token: Option<TokenId>,
}

/// Tokens with which leases were taken, in both directions.
#[derive(Default)]
struct TokenLeases {
    by_lease: HashMap<LeaseId, TokenId>,
    by_token: HashMap<TokenId, HashSet<LeaseId>>,
}

impl TokenLeases {
    fn insert(&mut self, lease: LeaseId, token: TokenId) {
        self.by_lease.insert(lease, token);
        self.by_token.entry(token).or_default().insert(lease);
    }

    fn remove(&mut self, lease: LeaseId) {
        let Some(token) = self.by_lease.remove(&lease) else { return };
        let Some(leases) = self.by_token.get_mut(&token) else { return };
        leases.remove(&lease);
        if leases.is_empty() {
            self.by_token.remove(&token);
        }
    }

    fn token(&self, lease: LeaseId) -> String {
        self.by_lease.get(&lease).map(TokenId::to_string).unwrap_or_default()
    }
}

/// A lease as it has just been granted or renewed: everything that its ticket says.
pub(crate) struct GrantedLease {
    pub(crate) id: LeaseId,
    ticket: Ticket,
    reach: Arc<Reach>,
    package: Arc<PackageInfo>,
}

impl Shell {
    pub(crate) fn new(
        core: Core,
        signing: Signing,
        database: Database,
        clock: Clock,
    ) -> Result<Shell, Error> {
        let verifying = Verifying::from_bytes(&signing.verifying_key())?;
        let (waiting, taken, rejected, has_parted, reporters, out) = Default::default();
        let names = NameGenerator::new()?;
        let level = core.level();
        Ok(Shell {
            state: Mutex::new(State { core, waiting, taken, rejected, has_parted, reporters, names, out }),
            signing,
            verifying,
            secrets: Secrets::new()?,
            level,
            clock,
            ledger: Ledger::new(),
            database,
            decided: watch::Sender::default(),
            ended: watch::Sender::default(),
        })
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        self.state
            .lock()
            .map_err(|_| Error::new(Code::Internal, "the manager has failed before and serves no more"))
    }

    /// Looks at the core.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Core) -> T) -> Result<T, Error> {
        Ok(look(&self.lock()?.core))
    }

    /// Digests of the packages that active leases use.
    pub(crate) fn packages(&self) -> Result<HashSet<String>, Error> {
        self.look(|core| active_leases(core).map(|lease| lease.package).collect())
    }

    /// Returns the core's key of a tenant.
    pub(crate) fn tenant_key(&self, name: &str) -> Result<TenantKey, Error> {
        Ok(self.lock()?.core.tenant_key(name))
    }

    /// Passes events to the core that no client waits for.
    pub(crate) fn tell(&self, events: impl IntoIterator<Item = CoreEvent>) -> Result<(), Error> {
        let mut state = self.lock()?;
        for event in events {
            self.handle(&mut state, event);
        }
        Ok(())
    }

    /// Lets the core drop the nodes that other managers have by now.
    pub(crate) fn moved(&self, nodes: &[NodeGeneration]) -> Result<(), Error> {
        for NodeGeneration { node: name, generation } in nodes {
            let mut state = self.lock()?;
            let known = state.core.node_key(name).and_then(|key| Some((key, state.core.node(key)?)));
            let Some((key, node)) = known.filter(|(_, node)| node.generation < *generation) else { continue };
            let leases = node.leased;
            self.handle(&mut state, CoreEvent::Moved(key, *generation));
            state.has_parted = true;
            drop(state);
            tracing::info!(node = %name, ?leases, "another manager has the node");
        }
        Ok(())
    }

    /// Passes one event to the core, does what follows, and returns the answer to the caller.
    fn handle(&self, state: &mut State, event: CoreEvent) -> Option<CoreAction> {
        // An immediate answer to a request goes to the caller: no client has waited for it before.
        let is_request = matches!(event, CoreEvent::Request(_));
        let mut out = std::mem::take(&mut state.out);
        state.core.on_event(self.clock.now_ms(), event, &mut out);
        let mut answer = None;
        for action in out.drain(..) {
            match action {
                CoreAction::Granted { .. } | CoreAction::Handed { .. } | CoreAction::Refused { .. }
                    if is_request =>
                {
                    answer = Some(action)
                }
                CoreAction::Granted { tenant, request, leases } => state.granted(tenant, request, &leases),
                CoreAction::Handed { tenant, request, manager } => state.handed(tenant, request, &manager),
                CoreAction::Refused { tenant, request, error } => state.refused(tenant, request, &error),
                CoreAction::Save { lease, revision } => {
                    self.ledger.mark(lease, revision);
                    self.may_have_ended();
                }
                CoreAction::Forgotten(lease) => {
                    state.taken.remove(lease);
                    self.may_have_ended();
                }
                CoreAction::Registered { .. }
                | CoreAction::NotRegistered(_)
                | CoreAction::Reported(_)
                | CoreAction::RegisterAgain
                | CoreAction::Renewed(_)
                | CoreAction::NotRenewed(..) => answer = Some(action),
            }
        }
        state.out = out;
        answer
    }

    /// Gives a lease a later end. `is_callers` decides by the lease's tenant whether the caller may.
    pub(crate) fn renew(
        &self,
        lease: LeaseId,
        timeout_ms: u64,
        is_callers: impl FnOnce(&str) -> bool,
    ) -> Result<GrantedLease, Error> {
        let mut state = self.lock()?;
        state.check_owner(lease, is_callers)?;
        match self.handle(&mut state, CoreEvent::Renew(Renewal { lease, timeout_ms })) {
            Some(CoreAction::Renewed(_)) => state.describe(lease).ok_or_else(|| unknown_lease(lease)),
            Some(CoreAction::NotRenewed(_, error)) => Err(error),
            other => Err(Error::new(Code::Internal, format!("a renewal was answered by {other:?}"))),
        }
    }

    /// Returns a lease's tenant and package.
    pub(crate) fn package_of(
        &self,
        lease: LeaseId,
        is_callers: impl FnOnce(&str) -> bool,
    ) -> Result<(Arc<str>, Arc<PackageInfo>), Error> {
        let state = self.lock()?;
        state.check_owner(lease, is_callers)?;
        let lease = state.core.lease(lease).ok_or_else(|| unknown_lease(lease))?;
        Ok((Arc::clone(&state.core.tenant(lease.tenant).name), Arc::clone(&lease.package)))
    }

    /// Applies the result of the verification of these leases' token: their tenant, or the error.
    pub(crate) fn decide(&self, leases: &[LeaseId], tenant: &Result<Arc<str>, Error>) -> Result<(), Error> {
        let mut state = self.lock()?;
        for &lease in leases {
            let rejection = match tenant {
                Ok(name) => {
                    let tenant = state.core.tenant_key(name);
                    self.handle(&mut state, CoreEvent::Verified(lease, tenant));
                    state.core.lease(lease).is_none_or(|lease| lease.provisional || !lease.is_active()).then(
                        || {
                            let message = format!("the quota of tenant {name} does not allow lease {lease}");
                            Error::new(Code::QuotaExceeded, message)
                        },
                    )
                }
                Err(error) => {
                    self.handle(&mut state, CoreEvent::Rejected(lease, error.clone()));
                    Some(error.clone())
                }
            };
            if let Some(error) = rejection {
                if state.rejected.len() >= MAX_REJECTED {
                    state.rejected.pop_front();
                }
                state.rejected.push_back((lease, error));
            }
        }
        self.decided.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Ends the leases whose token is no longer valid.
    pub(crate) fn end_revoked(&self, is_valid: impl Fn(TokenId) -> bool) -> Result<(), Error> {
        let mut state = self.lock()?;
        let revoked = state.taken.by_token.iter().filter(|(token, _)| !is_valid(**token));
        let leases: Vec<LeaseId> = revoked.flat_map(|(_, leases)| leases.iter().copied()).collect();
        for lease in leases {
            // A provisional lease has its own verification.
            if state.core.lease(lease).is_some_and(|lease| !lease.provisional) {
                let message = "the access token that the lease was taken with has expired or been revoked";
                self.handle(&mut state, CoreEvent::End(lease, Error::new(Code::Unauthenticated, message)));
            }
        }
        Ok(())
    }

    /// Sets these quotas in the core, and removes the limits of all other tenants.
    pub(crate) fn set_quotas(&self, mut quotas: HashMap<String, Quota>) -> Result<(), Error> {
        quotas.insert(UNVERIFIED.into(), UNVERIFIED_QUOTA);
        let known: Vec<Arc<str>> =
            self.look(|core| core.tenants().map(|tenant| Arc::clone(&tenant.name)).collect())?;
        // The limits of applications come with their requests.
        for name in known.into_iter().filter(|name| application_of(name).is_none()) {
            quotas.entry(name.to_string()).or_default();
        }
        quotas.into_iter().try_for_each(|(name, quota)| self.set_quota(&name, quota).map(drop))
    }

    /// Sets a tenant's quota in the core, and returns its use.
    pub(crate) fn set_quota(&self, name: &str, quota: Quota) -> Result<TenantUse, Error> {
        let mut state = self.lock()?;
        let key = state.core.tenant_key(name);
        self.handle(&mut state, CoreEvent::Quota(key, quota));
        Ok(state.core.tenant(key).used())
    }

    /// Writes the due entries of the ledger, for ever.
    pub(crate) async fn keep_ledger(&self, writer: RecordWriter) {
        let writer = Arc::new(Mutex::new(writer));
        self.ledger.run(|due| self.write(due, Arc::clone(&writer))).await;
    }

    async fn write(&self, due: Vec<(LeaseId, u64)>, writer: Arc<Mutex<RecordWriter>>) -> Result<(), Error> {
        let (entries, left): (Arc<Vec<LedgerEntry>>, Option<HashSet<LeaseId>>) = {
            let mut state = self.lock()?;
            let has_parted = std::mem::take(&mut state.has_parted);
            let left = has_parted.then(|| state.core.leases().map(|lease| lease.id).collect());
            (Arc::new(due.iter().filter_map(|&(lease, _)| state.entry(lease)).collect()), left)
        };
        let (written, now_ms) = (Arc::clone(&entries), self.clock.now_ms());
        let result = self
            .database
            .with(move |store| {
                let mut writer = writer
                    .lock()
                    .map_err(|_| Error::new(Code::Internal, "the ledger's writer has failed before"))?;
                left.iter().for_each(|left| writer.keep(left));
                writer.write(store, &written, now_ms)
            })
            .await;
        self.tell(entries.iter().map(|entry| match &result {
            Ok(()) => CoreEvent::Saved(entry.id, entry.revision),
            Err(_) => CoreEvent::SaveFailed(entry.id),
        }))?;
        result
    }
}

impl State {
    /// Answers all clients that wait for this request. If the clients are gone, the leases end by themselves.
    fn granted(&mut self, tenant: TenantKey, request: RequestId, leases: &[LeaseId]) {
        for waiting in self.waiting.remove(&(tenant, request)).unwrap_or_default() {
            let granted = self.take(leases, waiting.token);
            let _ = waiting.reply.send(Ok(RequestOutcome::Leases(granted)));
        }
    }

    /// Sends the waiting clients the manager that they are to ask.
    fn handed(&mut self, tenant: TenantKey, request: RequestId, manager: &Arc<str>) {
        for waiting in self.waiting.remove(&(tenant, request)).unwrap_or_default() {
            let _ = waiting.reply.send(Ok(RequestOutcome::Handed(Arc::clone(manager))));
        }
    }

    /// Notes the token with which leases were taken, and describes them.
    fn take(&mut self, leases: &[LeaseId], token: Option<TokenId>) -> Vec<GrantedLease> {
        if let Some(token) = token {
            leases.iter().for_each(|&lease| self.taken.insert(lease, token));
        }
        leases.iter().filter_map(|&lease| self.describe(lease)).collect()
    }

    fn refused(&mut self, tenant: TenantKey, request: RequestId, error: &Error) {
        for waiting in self.waiting.remove(&(tenant, request)).unwrap_or_default() {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    /// Returns the current content of a lease's ticket.
    fn describe(&self, id: LeaseId) -> Option<GrantedLease> {
        let lease = self.core.lease(id)?;
        let node = self.core.node(lease.node)?;
        let ticket = Ticket {
            lease: Some(self.core.describe(lease)),
            registration: node.registration,
            issued_unix_ms: lease.issued_ms,
            provisional: lease.provisional,
            token: self.taken.token(id),
        };
        Some(GrantedLease { id, ticket, reach: Arc::clone(&node.reach), package: Arc::clone(&lease.package) })
    }

    /// Returns the ledger's entry of a lease.
    fn entry(&self, id: LeaseId) -> Option<LedgerEntry> {
        let lease = self.core.lease(id)?;
        let (described, token) = (self.core.describe(lease), self.taken.token(id));
        Some(LedgerEntry { id, revision: lease.revision, lease: described, token })
    }

    /// Checks that a lease exists and is the caller's: leases of others do not even exist for it.
    fn check_owner(&self, id: LeaseId, is_callers: impl FnOnce(&str) -> bool) -> Result<(), Error> {
        let lease = self.core.lease(id).ok_or_else(|| unknown_lease(id))?;
        let is_callers = is_callers(&self.core.tenant(lease.tenant).name);
        if is_callers { Ok(()) } else { Err(unknown_lease(id)) }
    }
}

pub(crate) fn unknown_lease(id: impl std::fmt::Display) -> Error {
    Error::new(Code::UnknownLease, format!("there is no lease {id}"))
}

/// Returns a lease and the name of its node, whose agent asks.
///
/// # Errors
/// `unknown_lease`; `permission_denied` if the caller is another node's agent.
fn lease_of_agent<'core>(
    core: &'core Core,
    id: LeaseId,
    caller: &CallerIdentity,
) -> Result<(&'core Lease, Arc<str>), Error> {
    let lease = core.lease(id).ok_or_else(|| unknown_lease(id))?;
    let node = core.node(lease.node).map(|node| node.name.clone()).unwrap_or_default();
    caller.check_node(&node)?;
    Ok((lease, node))
}

/// Returns a lease as [`lease_of_agent`] does, if it is active and verified.
fn verified_lease_of_agent<'core>(
    core: &'core Core,
    id: LeaseId,
    caller: &CallerIdentity,
) -> Result<(&'core Lease, Arc<str>), Error> {
    let (lease, node) = lease_of_agent(core, id, caller)?;
    if !lease.is_active() || lease.provisional {
        return Err(Error::new(Code::LeaseEnded, format!("lease {id} is over, or not verified yet")));
    }
    Ok((lease, node))
}

/// The lease of a message.
pub(crate) fn parse_lease(id: &str) -> Result<LeaseId, Error> {
    id.parse()
}

/// A lease as clients see it.
pub(crate) fn active_leases(core: &Core) -> impl Iterator<Item = v1::Lease> + '_ {
    core.leases().filter(|lease| lease.is_active()).map(|lease| core.describe(lease))
}
