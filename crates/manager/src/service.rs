//! The gRPC services: what clients, operators and agents may say, and what it means to the parts behind.
//!
//! Who calls has been decided by the [gate](crate::auth); here each method checks what it is asked, hands it to the
//! part that knows, and answers.

mod manager;
mod nodes;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sublet_proto::package;
use sublet_proto::v1::PackageChunk;
use sublet_proto::v1::manager_server::ManagerServer;
use sublet_proto::v1::nodes_server::{self, NodesServer};
use sublet_proto::{Code, Error};
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Status, Streaming};

use crate::auth::{Gate, Replying};
use crate::bill::Bills;
use crate::database::Database;
use crate::fleet::Fleet;
use crate::graphs::Graphs;
use crate::packages::Packages;
use crate::runs::Runs;
use crate::shell::Shell;
use crate::tenants::Tenants;

/// Packages that are received at the same time; each may take [`package::MAX_PACKAGE_BYTES`] of memory.
const MAX_UPLOADS: usize = 2;
/// How long an upload may stand still.
const UPLOAD_IDLE: Duration = Duration::from_secs(10);

/// Both services, for as many connections as there are.
#[derive(Clone)]
pub(crate) struct Service(Arc<Parts>);

/// What the methods use.
pub(crate) struct Parts {
    pub(crate) shell: Arc<Shell>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) database: Database,
    pub(crate) packages: Packages,
    pub(crate) graphs: Graphs,
    pub(crate) runs: Runs,
    pub(crate) bills: Bills,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) uploads: Semaphore,
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Service {
        Service(Arc::new(parts))
    }
}

impl Parts {
    pub(crate) fn uploads() -> Semaphore {
        Semaphore::new(MAX_UPLOADS)
    }
}

/// The methods of both services. The gate has seen that a request is for one of them, so no router looks again.
#[derive(Clone)]
pub(crate) struct Methods {
    manager: ManagerServer<Service>,
    nodes: NodesServer<Service>,
}

impl Methods {
    pub(crate) fn new(service: Service) -> Methods {
        Methods { manager: ManagerServer::new(service.clone()), nodes: NodesServer::new(service) }
    }
}

impl tonic::codegen::Service<http::Request<Body>> for Methods {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Replying;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Replying {
        let path = request.uri().path();
        let service =
            path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(service, _)| service);
        if service == Some(nodes_server::SERVICE_NAME) {
            self.nodes.call(request)
        } else {
            self.manager.call(request)
        }
    }
}

async fn permit(semaphore: &Semaphore) -> Result<SemaphorePermit<'_>, Status> {
    semaphore.acquire().await.map_err(|_| Status::unavailable("the manager stops"))
}

/// Gathers an encoded package, which cannot grow beyond its limit.
async fn receive(mut chunks: Streaming<PackageChunk>) -> Result<Vec<u8>, Status> {
    let mut encoded = Vec::new();
    while let Some(chunk) = next_chunk(&mut chunks).await? {
        package::check_size((encoded.len() + chunk.data.len()) as u64).map_err(Error::into_status)?;
        encoded.extend_from_slice(&chunk.data);
    }
    Ok(encoded)
}

async fn next_chunk(chunks: &mut Streaming<PackageChunk>) -> Result<Option<PackageChunk>, Status> {
    match tokio::time::timeout(UPLOAD_IDLE, chunks.message()).await {
        Ok(chunk) => chunk,
        Err(_) => {
            let message = format!("the upload stood still for {} s", UPLOAD_IDLE.as_secs());
            Err(Error::new(Code::Protocol, message).into_status())
        }
    }
}

#[cfg(test)]
mod tests;
