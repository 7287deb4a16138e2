//! The gRPC services: requests of clients, operators and agents, and their effects on the other parts.
//!
//! The [gate](crate::auth) has identified the caller; here each method checks its request, passes it to the part that
//! handles it, and answers.

mod leases;
mod manager;
mod needs;
mod nodes;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use sublet_proto::v1::manager_server::ManagerServer;
use sublet_proto::v1::nodes_server::{self, NodesServer};
use tonic::body::Body;
use tonic::codegen::http;

use crate::auth::{Authorizer, Replying};
use crate::bill::Bills;
use crate::database::Database;
use crate::graphs::Graphs;
use crate::packages::StorePackages;
use crate::plans::RunPlans;
use crate::quotas::Quotas;
use crate::runs::StoreRuns;
use crate::secrets::StoreSecrets;
use crate::shell::Shell;
use crate::store_managers::StoreManagers;
use crate::tenants::StoreTenants;
use crate::uploads::Uploads;

/// The two services, shared by all connections.
#[derive(Clone)]
pub(crate) struct Service(Arc<ServiceParts>);

/// Parts that the methods use.
pub(crate) struct ServiceParts {
    pub(crate) shell: Arc<Shell>,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) tenants: Arc<StoreTenants>,
    pub(crate) database: Database,
    pub(crate) packages: StorePackages,
    pub(crate) graphs: Graphs,
    pub(crate) runs: StoreRuns,
    pub(crate) plans: Arc<RunPlans>,
    pub(crate) secrets: StoreSecrets,
    pub(crate) bills: Arc<Bills>,
    pub(crate) store_managers: Arc<StoreManagers>,
    pub(crate) uploads: Uploads,
    pub(crate) quotas: Arc<Quotas>,
}

impl Service {
    pub(crate) fn new(parts: ServiceParts) -> Service {
        Service(Arc::new(parts))
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

#[cfg(test)]
mod tests;
