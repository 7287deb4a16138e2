//! Authenticates and authorizes: every request passes here before its method is called.
//!
//! A caller is known by the access token that it shows. On the manager's own Unix socket it may be known by its user,
//! which the kernel reports: this process's own user and root are operators there. [`RIGHTS`] lists the roles that may
//! call each method; a method that is not in it cannot be called.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use sublet_admission::Party;
use sublet_proto::v1::{Role, Token};
use sublet_proto::{Code, Error, version};
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::clock::Clock;
use crate::listen::{Busy, Peer};
use crate::names::{self, UNVERIFIED, of_user};
use crate::tokens::{ShownToken, TokenId, TokenRecord, TokenVerdict, Tokens};

/// Roles that may call each method of the two services.
const RIGHTS: &[(&str, &[Role])] = &[
    ("/sublet.v1.Manager/Deploy", USERS),
    ("/sublet.v1.Manager/Resolve", USERS),
    ("/sublet.v1.Manager/ListPackages", USERS),
    ("/sublet.v1.Manager/GrantPackage", USERS),
    ("/sublet.v1.Manager/PublishPackage", OPERATORS),
    ("/sublet.v1.Manager/RemovePackage", USERS),
    (REQUEST_LEASE, USERS),
    ("/sublet.v1.Manager/RenewLease", USERS),
    ("/sublet.v1.Manager/EndLease", USERS),
    ("/sublet.v1.Manager/ListLeases", USERS),
    ("/sublet.v1.Manager/ListNodes", USERS),
    ("/sublet.v1.Manager/ListManagers", ALL),
    ("/sublet.v1.Manager/Bill", USERS),
    ("/sublet.v1.Manager/SetSecret", USERS),
    ("/sublet.v1.Manager/ListSecrets", USERS),
    ("/sublet.v1.Manager/RemoveSecret", USERS),
    ("/sublet.v1.Manager/DeployGraph", USERS),
    ("/sublet.v1.Manager/FindGraph", USERS),
    ("/sublet.v1.Manager/ListGraphs", USERS),
    ("/sublet.v1.Manager/RemoveGraph", USERS),
    ("/sublet.v1.Manager/BeginRun", USERS),
    ("/sublet.v1.Manager/Journal", USERS),
    ("/sublet.v1.Manager/ReportRun", USERS),
    ("/sublet.v1.Manager/EndRun", USERS),
    ("/sublet.v1.Manager/DriveRun", USERS),
    ("/sublet.v1.Manager/TakeRun", USERS),
    ("/sublet.v1.Manager/CancelRun", USERS),
    ("/sublet.v1.Manager/ReadRun", USERS),
    ("/sublet.v1.Manager/ListRuns", USERS),
    ("/sublet.v1.Manager/RemoveRuns", USERS),
    ("/sublet.v1.Manager/CollectGarbage", OPERATORS),
    ("/sublet.v1.Manager/BackUpStore", OPERATORS),
    ("/sublet.v1.Manager/CreateToken", OPERATORS),
    ("/sublet.v1.Manager/ListTokens", OPERATORS),
    ("/sublet.v1.Manager/RevokeToken", OPERATORS),
    ("/sublet.v1.Manager/SetTenant", OPERATORS),
    ("/sublet.v1.Manager/ListTenants", OPERATORS),
    ("/sublet.v1.Nodes/Register", AGENTS),
    ("/sublet.v1.Nodes/Report", AGENTS),
    ("/sublet.v1.Nodes/ConfirmLease", AGENTS),
    ("/sublet.v1.Nodes/LeaseForProcess", AGENTS),
    ("/sublet.v1.Nodes/FetchSecrets", AGENTS),
    ("/sublet.v1.Nodes/FetchPackage", AGENTS),
];
/// Methods that a manager answers while its disk is too full for it to begin.
const OF_READ_ONLY: &[&str] = &[
    "/sublet.v1.Manager/Resolve",
    "/sublet.v1.Manager/ListPackages",
    "/sublet.v1.Manager/RemovePackage",
    "/sublet.v1.Manager/ListLeases",
    "/sublet.v1.Manager/ListNodes",
    "/sublet.v1.Manager/ListManagers",
    "/sublet.v1.Manager/Bill",
    "/sublet.v1.Manager/ListSecrets",
    "/sublet.v1.Manager/RemoveSecret",
    "/sublet.v1.Manager/FindGraph",
    "/sublet.v1.Manager/ListGraphs",
    "/sublet.v1.Manager/RemoveGraph",
    "/sublet.v1.Manager/ReadRun",
    "/sublet.v1.Manager/ListRuns",
    "/sublet.v1.Manager/RemoveRuns",
    "/sublet.v1.Manager/CollectGarbage",
    "/sublet.v1.Manager/BackUpStore",
    "/sublet.v1.Manager/ListTokens",
    "/sublet.v1.Manager/RevokeToken",
    "/sublet.v1.Manager/SetTenant",
    "/sublet.v1.Manager/ListTenants",
];
const OPERATORS: &[Role] = &[Role::Operator];
const USERS: &[Role] = &[Role::User, Role::Operator];
const AGENTS: &[Role] = &[Role::Agent, Role::Operator];
const ALL: &[Role] = &[Role::User, Role::Agent, Role::Operator];

/// The one method that does not wait until an unknown token is verified: the sandbox is made meanwhile.
const REQUEST_LEASE: &str = "/sublet.v1.Manager/RequestLease";
const HEADER: &str = "authorization";
/// Names the tenant as whose user an operator acts: a runner drives each tenant's runs with that tenant's rights.
const TENANT_HEADER: &str = "sublet-tenant";
const SCHEME: &str = "Bearer ";

/// Identity of a caller.
#[derive(Clone, Debug)]
pub(crate) struct CallerIdentity {
    /// Tenant that pays.
    pub(crate) tenant: Arc<str>,
    pub(crate) role: Role,
    /// The token that was shown, if one was needed.
    pub(crate) token: Option<TokenId>,
    pub(crate) standing: CallerVerification,
    /// Limits on what an agent may lend.
    pub(crate) lending: Option<Arc<LendingLimits>>,
}

/// State of a caller's verification.
#[derive(Clone, Debug)]
pub(crate) enum CallerVerification {
    Verified,
    /// The store has not yet looked this token up.
    Pending(ShownToken),
}

/// Limits that an agent's token sets.
#[derive(Clone, Debug)]
pub(crate) struct LendingLimits {
    pub(crate) node: String,
    /// 0: no limit.
    pub(crate) max_cores: u32,
    /// 0: no limit.
    pub(crate) max_memory_bytes: u64,
}

impl CallerIdentity {
    pub(crate) fn local(uid: u32) -> CallerIdentity {
        CallerIdentity {
            tenant: of_user(uid).into(),
            role: Role::Operator,
            token: None,
            standing: CallerVerification::Verified,
            lending: None,
        }
    }

    /// The party for which its connection counts.
    fn party(&self) -> Party {
        match (self.role, &self.lending) {
            (Role::Operator, _) => Party::Operator,
            (_, Some(lending)) => Party::Peer(lending.node.as_str().into()),
            _ => Party::Tenant(Arc::clone(&self.tenant)),
        }
    }

    pub(crate) fn pending(shown: ShownToken) -> CallerIdentity {
        CallerIdentity {
            tenant: UNVERIFIED.into(),
            role: Role::User,
            token: Some(shown.id),
            standing: CallerVerification::Pending(shown),
            lending: None,
        }
    }

    /// Returns the identity of a verified token.
    pub(crate) fn of(id: TokenId, record: &TokenRecord) -> CallerIdentity {
        let Token { tenant, node, max_cores, max_memory_bytes, .. } = &record.token;
        let role = record.token.role();
        let lending = (role == Role::Agent).then(|| {
            let limits = LendingLimits {
                node: node.clone(),
                max_cores: *max_cores,
                max_memory_bytes: *max_memory_bytes,
            };
            Arc::new(limits)
        });
        let tenant = if tenant.is_empty() { format!("token:{id}").into() } else { tenant.as_str().into() };
        CallerIdentity { tenant, role, token: Some(id), standing: CallerVerification::Verified, lending }
    }

    /// Returns the identity as whose user the caller acts, if the header names a tenant: with the rights and the quota of
    /// a user of that tenant, and nothing more.
    ///
    /// # Errors
    /// `permission_denied` if the caller is neither an operator nor of this tenant.
    fn acting_for(self, header: Option<&http::HeaderValue>) -> Result<CallerIdentity, Error> {
        let Some(header) = header else { return Ok(self) };
        let named = header.to_str().unwrap_or_default();
        names::check_tenant(named)?;
        match self.role {
            _ if *self.tenant == *named => Ok(self),
            Role::Operator => {
                Ok(CallerIdentity { tenant: named.into(), role: Role::User, lending: None, ..self })
            }
            _ => {
                let message = format!("only an operator acts for another tenant, here for {named:?}");
                Err(Error::new(Code::PermissionDenied, message))
            }
        }
    }

    pub(crate) fn is_operator(&self) -> bool {
        self.role == Role::Operator
    }

    /// Tells whether the caller may see data of this tenant.
    pub(crate) fn may_see(&self, tenant: &str) -> bool {
        self.is_operator() || *self.tenant == *tenant
    }

    /// Checks that an agent acts for its own node.
    pub(crate) fn check_node(&self, node: &str) -> Result<(), Error> {
        match &self.lending {
            Some(lending) if lending.node != node => {
                let message = format!("this access token is for node {:?}, not for {node:?}", lending.node);
                Err(Error::new(Code::PermissionDenied, message))
            }
            _ => Ok(()),
        }
    }

    fn check_role(&self, method: &str, allowed: &[Role]) -> Result<(), Error> {
        if allowed.contains(&self.role) {
            return Ok(());
        }
        let names: Vec<_> = allowed.iter().map(|&role| role_name(role)).collect();
        let method = method.rsplit('/').next().unwrap_or_default();
        let message = format!("{method} is for {}, and this is {}", names.join(" or "), role_name(self.role));
        Err(Error::new(Code::PermissionDenied, message))
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::User => "a user",
        Role::Operator => "an operator",
        Role::Agent => "an agent",
        Role::Unspecified => "nobody",
    }
}

/// Decides which requests are admitted.
pub(crate) struct Authorizer {
    pub(crate) tokens: Arc<Tokens>,
    clock: Clock,
    users: LocalUsers,
    is_read_only: AtomicBool,
}

impl Authorizer {
    pub(crate) fn new(tokens: Tokens, clock: Clock) -> Authorizer {
        Authorizer {
            tokens: Arc::new(tokens),
            clock,
            users: LocalUsers::new(),
            is_read_only: AtomicBool::new(false),
        }
    }

    /// Lets every method pass from now on, or those alone that a read-only manager answers.
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    fn check_writable(&self, method: &str) -> Result<(), Error> {
        if !self.is_read_only.load(Ordering::Relaxed) || OF_READ_ONLY.contains(&method) {
            return Ok(());
        }
        let message = "the manager is read-only until the disk of its state folder has free space again: remove files there, or \
                       packages, graphs and runs";
        Err(Error::new(Code::StoreFull, message))
    }

    /// Identifies the caller without waiting for the store.
    fn identify(
        &self,
        peer: Option<&Peer>,
        header: Option<&http::HeaderValue>,
    ) -> Result<CallerIdentity, Error> {
        let local = peer.and_then(|peer| peer.uid).map(|uid| self.users.get(uid)).transpose()?;
        let Some(header) = header else {
            let missing =
                || Error::new(Code::Unauthenticated, "an access token is needed, and none was shown");
            return local.cloned().ok_or_else(missing);
        };
        let shown: ShownToken = bearer(header)?.parse()?;
        match self.tokens.verify(&shown, self.clock.now_ms())? {
            TokenVerdict::Verified(record) => Ok(CallerIdentity::of(shown.id, &record)),
            TokenVerdict::Unknown => Ok(CallerIdentity::pending(shown)),
        }
    }

    /// Looks up the user that requests a lease, and counts its connection, if that is known, for the tenant.
    pub(crate) async fn look_up_user(
        &self,
        shown: &ShownToken,
        peer: Option<&Peer>,
    ) -> Result<CallerIdentity, Error> {
        let identity = self.look_up(shown).await?;
        identity.check_role(REQUEST_LEASE, USERS)?;
        peer.map_or(Ok(()), |peer| peer.place.identify(identity.party()))?;
        Ok(identity)
    }

    /// Looks up in the store the identity of a token that is not in memory.
    async fn look_up(&self, shown: &ShownToken) -> Result<CallerIdentity, Error> {
        let record = self.tokens.look_up(shown, self.clock.now_ms()).await?;
        Ok(CallerIdentity::of(shown.id, &record))
    }
}

/// The users of this machine that need no token: this process's own, and root.
struct LocalUsers([(u32, CallerIdentity); 2]);

impl LocalUsers {
    fn new() -> LocalUsers {
        LocalUsers([rustix::process::geteuid().as_raw(), 0].map(|uid| (uid, CallerIdentity::local(uid))))
    }

    fn get(&self, uid: u32) -> Result<&CallerIdentity, Error> {
        let [(own, _), _] = self.0;
        let refused = || {
            let message = format!("this socket is for user {own} and root, not for user {uid}");
            Error::new(Code::PermissionDenied, message)
        };
        self.0.iter().find(|(known, _)| *known == uid).map(|(_, user)| user).ok_or_else(refused)
    }
}

fn bearer(header: &http::HeaderValue) -> Result<&str, Error> {
    let text = header.to_str().ok().and_then(|text| text.strip_prefix(SCHEME));
    text.ok_or_else(|| Error::new(Code::Unauthenticated, "the metadata authorization says no bearer token"))
}

/// Methods behind the gate.
#[derive(Clone)]
pub(crate) struct GuardedService<S> {
    inner: S,
    authorizer: Arc<Authorizer>,
}

impl<S> GuardedService<S> {
    pub(crate) fn new(inner: S, authorizer: Arc<Authorizer>) -> GuardedService<S> {
        GuardedService { inner, authorizer }
    }
}

type Reply = Result<http::Response<Body>, Infallible>;
pub(crate) type Replying = Pin<Box<dyn Future<Output = Reply> + Send>>;

impl<S> Service<http::Request<Body>> for GuardedService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future = Replying>
        + Clone
        + Send
        + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Replying;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = RIGHTS.iter().find(|(method, _)| *method == request.uri().path());
        let Some(&(method, allowed)) = method else {
            let message = format!(
                "there is no method {} in this manager, which knows revision {} of Sublet's messages",
                request.uri().path(),
                version::MESSAGES
            );
            return refuse(Error::new(Code::VersionMismatch, message));
        };
        if let Err(error) = self.authorizer.check_writable(method) {
            return refuse(error);
        }
        let peer = request.extensions().get::<Peer>().cloned();
        let tenant = request.headers().get(TENANT_HEADER).cloned();
        let identity = self.authorizer.identify(peer.as_ref(), request.headers().get(HEADER));
        let identity = identity.and_then(|identity| match identity.standing {
            CallerVerification::Verified => identity.acting_for(tenant.as_ref()),
            CallerVerification::Pending(_) => Ok(identity),
        });
        let busy = peer.map(|peer| peer.place.begin());
        match identity {
            Err(error) => refuse(error),
            Ok(CallerIdentity { standing: CallerVerification::Pending(shown), .. })
                if method != REQUEST_LEASE || tenant.is_some() =>
            {
                let (authorizer, inner) = (Arc::clone(&self.authorizer), self.inner.clone());
                Box::pin(async move {
                    let looked_up = authorizer.look_up(&shown).await;
                    let acting = looked_up.and_then(|identity| identity.acting_for(tenant.as_ref()));
                    let checked = acting.and_then(|identity| {
                        identity.check_role(method, allowed)?;
                        admit(busy.as_ref(), &identity).map(|()| identity)
                    });
                    match checked {
                        Ok(identity) => forward(inner, request, identity, busy).await,
                        Err(error) => Ok(error.into_status().into_http()),
                    }
                })
            }
            Ok(identity) => {
                let checked =
                    identity.check_role(method, allowed).and_then(|()| admit(busy.as_ref(), &identity));
                match checked {
                    Ok(()) => {
                        request.extensions_mut().insert(identity);
                        let replying = self.inner.call(request);
                        Box::pin(async move {
                            let _busy = busy;
                            replying.await
                        })
                    }
                    Err(error) => refuse(error),
                }
            }
        }
    }
}

/// Counts a connection for the tenant that it has proved. A token that is still being verified proves nothing.
fn admit(busy: Option<&Busy>, identity: &CallerIdentity) -> Result<(), Error> {
    match (busy, &identity.standing) {
        (Some(busy), CallerVerification::Verified) => busy.place().identify(identity.party()),
        _ => Ok(()),
    }
}

async fn forward<S>(
    mut inner: S,
    mut request: http::Request<Body>,
    identity: CallerIdentity,
    _busy: Option<Busy>,
) -> Reply
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    request.extensions_mut().insert(identity);
    std::future::poll_fn(|context| inner.poll_ready(context)).await?;
    inner.call(request).await
}

fn refuse(error: Error) -> Replying {
    Box::pin(std::future::ready(Ok(error.into_status().into_http())))
}

/// Returns the caller of a method that has been entered.
pub(crate) fn caller<T>(request: &tonic::Request<T>) -> Result<CallerIdentity, tonic::Status> {
    let unknown = || Error::new(Code::Internal, "a request came in without passing the gate").into_status();
    request.extensions().get::<CallerIdentity>().cloned().ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_schema_has_its_roles() {
        let schema = include_str!("../../proto/proto/sublet/v1/control.proto");
        let mut service = "";
        let mut methods = Vec::new();
        for line in schema.lines().map(str::trim_start) {
            let word = |line: &'static str| line.split([' ', '(']).nth(1).unwrap_or_default();
            if line.starts_with("service ") {
                service = word(line);
            } else if line.starts_with("rpc ") {
                methods.push(format!("/sublet.v1.{service}/{}", word(line)));
            }
        }
        let known: Vec<&str> = RIGHTS.iter().map(|(method, _)| *method).collect();
        assert_eq!(methods, known);
    }

    #[test]
    fn only_operators_act_for_another_tenant() {
        let named = |tenant: &str| http::HeaderValue::from_str(tenant).unwrap();
        let operator = CallerIdentity::local(7);
        let acting = operator.clone().acting_for(Some(&named("alice"))).unwrap();
        assert_eq!((&*acting.tenant, acting.role), ("alice", Role::User));
        let refused = acting.clone().acting_for(Some(&named("bob"))).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied);
        assert_eq!(&*acting.acting_for(Some(&named("alice"))).unwrap().tenant, "alice");
        let own = operator.clone().acting_for(Some(&named(&operator.tenant))).unwrap();
        assert_eq!((own.role, &own.tenant), (Role::Operator, &operator.tenant));
        assert_eq!(operator.clone().acting_for(None).unwrap().role, Role::Operator);
        for bad in ["", "a/b", UNVERIFIED] {
            let refused = operator.clone().acting_for(Some(&named(bad))).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn other_users_of_the_machine_are_not_served() {
        let (users, own) = (LocalUsers::new(), rustix::process::geteuid().as_raw());
        assert!(users.get(own).is_ok() && users.get(0).is_ok());
        assert_eq!(users.get(own + 1).unwrap_err().code, Code::PermissionDenied);
    }
}
