//! The agent's connection to its manager.
//!
//! Every request has a deadline; a connection that was lost is made again by the next request. All of it runs on a
//! tokio runtime of the calling thread, driven only while a request is under way.

use std::future::Future;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use sublet_proto::package::check_size;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::{FetchPackageRequest, NodeDescription, NodeRegistration, NodeReport, NodeReportReply};
use sublet_proto::{Code, Error};
use sublet_runtime::manager::socket_path;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// How long the manager may take to answer a message.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// How long a package may take to arrive.
const FETCH_DEADLINE: Duration = Duration::from_secs(60);

/// A blocking connection to the manager, of one thread.
pub(crate) struct Manager {
    address: String,
    runtime: Runtime,
    client: NodesClient<Channel>,
}

impl Manager {
    /// To the manager at an address as `unix:/path`; connects when it is first used.
    pub(crate) fn at(address: &str) -> Result<Manager, Error> {
        let path = socket_path(address)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(Code::System, format!("cannot make a tokio runtime: {error}")))?;
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The authority is required by HTTP and means nothing on a Unix socket.
        let endpoint = Endpoint::from_static("http://manager");
        let channel = {
            let _entered = runtime.enter();
            endpoint.connect_with_connector_lazy(connector)
        };
        Ok(Manager { address: address.to_owned(), runtime, client: NodesClient::new(channel) })
    }

    /// Tells the manager what this node has; answers with the key of its tickets.
    pub(crate) fn register(&mut self, node: NodeDescription) -> Result<NodeRegistration, Error> {
        self.answer(async |client| client.register(node).await)
    }

    /// Tells the manager what the node's leases have used and which have ended.
    pub(crate) fn report(&mut self, report: NodeReport) -> Result<NodeReportReply, Error> {
        self.answer(async |client| client.report(report).await)
    }

    /// An encoded package, of a size that packages may have; what it is worth is the caller's to check.
    pub(crate) fn fetch_package(&mut self, digest: &str) -> Result<Vec<u8>, Error> {
        let request = FetchPackageRequest { digest: digest.to_owned() };
        let Manager { address, runtime, client } = self;
        runtime.block_on(within(FETCH_DEADLINE, address, async {
            let failure = |status: Status| failure(address, &status);
            let mut chunks = client.fetch_package(request).await.map_err(failure)?.into_inner();
            let mut encoded = Vec::new();
            while let Some(chunk) = chunks.message().await.map_err(failure)? {
                check_size((encoded.len() + chunk.data.len()) as u64)?;
                encoded.extend_from_slice(&chunk.data);
            }
            Ok(encoded)
        }))
    }

    fn answer<T>(
        &mut self,
        request: impl AsyncFnOnce(&mut NodesClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        let Manager { address, runtime, client } = self;
        runtime.block_on(within(ANSWER_DEADLINE, address, async {
            request(client).await.map(Response::into_inner).map_err(|status| failure(address, &status))
        }))
    }
}

async fn within<T>(
    deadline: Duration,
    address: &str,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| {
        let message = format!("the manager at {address} did not answer in {} s", deadline.as_secs());
        Err(Error::new(Code::ManagerUnreachable, message))
    })
}

/// The manager's own error, or that it is gone.
fn failure(address: &str, status: &Status) -> Error {
    let mut error = Error::from_status(status);
    if error.code == Code::ManagerUnreachable {
        error.message = format!("no manager answers at {address}: {}", root_cause(status));
    }
    error
}

fn root_cause(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
