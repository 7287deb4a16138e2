//! The agent's connection to one manager.
//!
//! Every request has a deadline; a connection that was lost is made again by the next request. All of it runs on a
//! tokio runtime of the calling thread, driven only while a request is under way.

use std::future::Future;
use std::time::Duration;

use sublet_proto::package::check_size;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::{
    ConfirmRequest, FetchPackageRequest, FetchSecretsRequest, LeaseGrant, NodeRegistration, NodeReport,
    NodeReportReply, ProcessLeaseRequest, Registration, Variable,
};
use sublet_proto::{Code, Error};
use sublet_runtime::access::{Access, Address};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// How long the manager may take to answer a message.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// How long the manager may take to verify the token behind a provisional ticket.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(5);
/// How long a package may take to arrive.
const FETCH_DEADLINE: Duration = Duration::from_secs(60);

/// A blocking connection to a manager, of one thread.
pub(crate) struct ManagerLink {
    access: Access,
    address: Address,
    runtime: Runtime,
    client: NodesClient<Channel>,
}

impl ManagerLink {
    /// Creates a connection to one of an access's managers. It connects when it is first used.
    pub(crate) fn connect(access: &Access, which: usize) -> Result<ManagerLink, Error> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(Code::System, format!("cannot make a tokio runtime: {error}")))?;
        let channel = {
            let _entered = runtime.enter();
            access.channel(which)?
        };
        let address = access.managers[which].clone();
        Ok(ManagerLink { access: access.clone(), address, runtime, client: NodesClient::new(channel) })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Tells the manager what this node has and what runs on it.
    pub(crate) fn register(&mut self, registration: Registration) -> Result<NodeRegistration, Error> {
        self.answer(ANSWER_DEADLINE, registration, async |client, request| client.register(request).await)
    }

    /// Tells the manager what the node's leases have used and which have ended.
    pub(crate) fn report(&mut self, report: NodeReport) -> Result<NodeReportReply, Error> {
        self.answer(ANSWER_DEADLINE, report, async |client, request| client.report(request).await)
    }

    /// Waits until the manager has verified the token behind a lease, or the caller has given up. Returns the ticket by
    /// which the lease is held from then on.
    pub(crate) fn confirm(&mut self, lease: &str, given_up: oneshot::Receiver<()>) -> Result<Vec<u8>, Error> {
        let request = ConfirmRequest { lease: lease.to_owned() };
        self.answer(CONFIRM_DEADLINE, request, async |client, request| {
            tokio::select! {
                answer = client.confirm_lease(request) => answer,
                _ = given_up => {
                    Err(Error::new(Code::LeaseEnded, "no client waits for the lease any more").into_status())
                }
            }
        })
        .map(|confirmed| confirmed.ticket)
    }

    /// A lease for a program that a process of one of the node's leases spawns on this unit, of this package if one is
    /// said.
    pub(crate) fn lease_for_process(
        &mut self,
        lease: &str,
        unit: u32,
        package: &str,
    ) -> Result<LeaseGrant, Error> {
        let request = ProcessLeaseRequest { lease: lease.to_owned(), unit, package: package.to_owned() };
        self.answer(ANSWER_DEADLINE, request, async |client, request| client.lease_for_process(request).await)
    }

    /// Values of the secrets of one of the node's leases, by the environment variables that are to have them.
    pub(crate) fn fetch_secrets(&mut self, lease: &str) -> Result<Vec<Variable>, Error> {
        let request = FetchSecretsRequest { lease: lease.to_owned() };
        self.answer(ANSWER_DEADLINE, request, async |client, request| client.fetch_secrets(request).await)
            .map(|reply| reply.variables)
    }

    /// An encoded package, of a size that packages may have; what it is worth is the caller's to check.
    pub(crate) fn fetch_package(&mut self, digest: &str) -> Result<Vec<u8>, Error> {
        let ManagerLink { access, address, runtime, client } = self;
        let request = access.authorize(Request::new(FetchPackageRequest { digest: digest.to_owned() }));
        runtime.block_on(within(FETCH_DEADLINE, address, async {
            let failure = |status: Status| address.failure(&status);
            let mut chunks = client.fetch_package(request).await.map_err(failure)?.into_inner();
            let mut encoded = Vec::new();
            while let Some(chunk) = chunks.message().await.map_err(failure)? {
                check_size((encoded.len() + chunk.data.len()) as u64)?;
                encoded.extend_from_slice(&chunk.data);
            }
            Ok(encoded)
        }))
    }

    fn answer<Q, A>(
        &mut self,
        deadline: Duration,
        request: Q,
        ask: impl AsyncFnOnce(&mut NodesClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let ManagerLink { access, address, runtime, client } = self;
        let request = access.authorize(Request::new(request));
        runtime.block_on(within(deadline, address, async {
            ask(client, request).await.map(Response::into_inner).map_err(|status| address.failure(&status))
        }))
    }
}

async fn within<T>(
    deadline: Duration,
    address: &Address,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| {
        let message = format!("the manager at {address} did not answer in {} s", deadline.as_secs());
        Err(Error::new(Code::ManagerUnreachable, message))
    })
}
