//! Passes the requests of clients to the core, and withdraws those whose clients go away.

use std::sync::Arc;

use sublet_proto::v1::{self, PackageInfo, Quota};
use sublet_proto::{Code, Error};
use tokio::sync::oneshot;

use super::{Answer, RequestKey, RequestOutcome, Shell, WaitingClient};
use crate::core::{
    ApplicationLimits, ClientRequest, CoreAction, CoreEvent, LeaseTerms, Locality, Refusals, RequestId,
    RunNumber, TokenStatus, application_name,
};
use crate::tokens::TokenId;

/// A client's request, after everything that needs no core.
pub(crate) struct PreparedRequest {
    /// Name that the client gave the request, if any.
    pub(crate) request: Option<RequestId>,
    pub(crate) tenant: Arc<str>,
    pub(crate) token: Option<TokenId>,
    pub(crate) standing: TokenStatus,
    pub(crate) pu: String,
    pub(crate) package: Arc<PackageInfo>,
    pub(crate) terms: LeaseTerms,
    pub(crate) locality: Locality,
    /// Secrets, folders and temporary space, without variables.
    pub(crate) needs: Arc<v1::Needs>,
    pub(crate) wait_ms: u64,
    pub(crate) refusals: Refusals,
    /// The name of the application whose runs are limited together, and its limits.
    pub(crate) application: Option<(String, Quota)>,
    /// The run of the application, if the client named it.
    pub(crate) run: Option<RunNumber>,
}

/// State of a submitted request.
enum Submission {
    Answered(Answer),
    Waits(RequestKey, oneshot::Receiver<Answer>),
}

impl Shell {
    /// Asks the core for leases, and waits as long as it lets the request wait.
    pub(crate) async fn request(&self, wanted: PreparedRequest) -> Result<RequestOutcome, Error> {
        let (key, answer) = match self.submit(wanted)? {
            Submission::Answered(answer) => return answer,
            Submission::Waits(key, answer) => (key, answer),
        };
        let withdrawal = Withdrawal { shell: self, key };
        let answered = answer.await;
        std::mem::forget(withdrawal);
        answered.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the manager stops")))
    }

    fn submit(&self, wanted: PreparedRequest) -> Result<Submission, Error> {
        let mut state = self.lock()?;
        let tenant = state.core.tenant_key(&wanted.tenant);
        let id = wanted.request.unwrap_or_else(|| RequestId(state.names.next()));
        let application = wanted.application.map(|(name, quota)| {
            let key = state.core.tenant_key(&application_name(&wanted.tenant, &name));
            ApplicationLimits { key, quota, run: wanted.run }
        });
        let request = ClientRequest {
            id,
            tenant,
            standing: wanted.standing,
            pu: wanted.pu,
            package: wanted.package,
            terms: wanted.terms,
            locality: wanted.locality,
            needs: wanted.needs,
            wait_ms: wanted.wait_ms,
            refusals: wanted.refusals,
            application,
        };
        match self.handle(&mut state, CoreEvent::Request(Box::new(request))) {
            Some(CoreAction::Granted { leases, .. }) => {
                Ok(Submission::Answered(Ok(RequestOutcome::Leases(state.take(&leases, wanted.token)))))
            }
            Some(CoreAction::Handed { manager, .. }) => {
                Ok(Submission::Answered(Ok(RequestOutcome::Handed(manager))))
            }
            Some(CoreAction::Refused { error, .. }) => Ok(Submission::Answered(Err(error))),
            _ => {
                let ((reply, answer), key) = (oneshot::channel(), (tenant, id));
                state.waiting.entry(key).or_default().push(WaitingClient { reply, token: wanted.token });
                Ok(Submission::Waits(key, answer))
            }
        }
    }
}

/// Takes a request back when its client has gone away.
struct Withdrawal<'a> {
    shell: &'a Shell,
    key: RequestKey,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        let Ok(mut state) = self.shell.lock() else { return };
        let Some(waiting) = state.waiting.get_mut(&self.key) else { return };
        waiting.retain(|waiting| !waiting.reply.is_closed());
        if waiting.is_empty() {
            state.waiting.remove(&self.key);
            let (tenant, request) = self.key;
            self.shell.handle(&mut state, CoreEvent::Withdraw(tenant, request));
        }
    }
}
