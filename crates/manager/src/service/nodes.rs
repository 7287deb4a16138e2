//! The service for agents.

use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::v1::nodes_server::Nodes;
use sublet_proto::v1::{
    ConfirmReply, ConfirmRequest, FetchPackageRequest, FetchSecretsReply, FetchSecretsRequest, LeaseGrant,
    NodeRegistration, NodeReport, NodeReportReply, PackageChunk, PackageRight, ProcessLeaseRequest,
    Registration,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::Service;
use crate::auth::caller;
use crate::listen::Peer;
use crate::packages::Asker;

/// Parts of a package that wait to be sent.
const PARTS_AHEAD: usize = 1;

#[tonic::async_trait]
impl Nodes for Service {
    type FetchPackageStream = ReceiverStream<Result<PackageChunk, Status>>;

    async fn register(&self, request: Request<Registration>) -> Result<Response<NodeRegistration>, Status> {
        let (caller, peer) = (caller(&request)?, request.extensions().get::<Peer>().cloned());
        let (by, managers) =
            ((&caller, peer.as_ref().map(|peer| &*peer.place)), self.0.store_managers.racks());
        let registered = self.0.shell.register(request.into_inner(), by, managers).await;
        registered.map(Response::new).map_err(Error::into_status)
    }

    async fn report(&self, request: Request<NodeReport>) -> Result<Response<NodeReportReply>, Status> {
        let (caller, peer) = (caller(&request)?, request.extensions().get::<Peer>().cloned());
        let (by, managers) =
            ((&caller, peer.as_ref().map(|peer| &*peer.place)), self.0.store_managers.racks());
        let reported = self.0.shell.report(request.into_inner(), by, managers);
        reported.map(Response::new).map_err(Error::into_status)
    }

    async fn confirm_lease(
        &self,
        request: Request<ConfirmRequest>,
    ) -> Result<Response<ConfirmReply>, Status> {
        let caller = caller(&request)?;
        let confirmed = self.0.shell.confirm(&request.into_inner().lease, &caller).await;
        confirmed.map(Response::new).map_err(Error::into_status)
    }

    async fn lease_for_process(
        &self,
        request: Request<ProcessLeaseRequest>,
    ) -> Result<Response<LeaseGrant>, Status> {
        let caller = caller(&request)?;
        let asked = request.into_inner();
        let package = match asked.package.as_str() {
            "" => None,
            named => {
                // The package is resolved by the rights of the tenant whose process asks, and only for a lease of the
                // agent's own node.
                let tenant = self.0.shell.tenant_of(&asked.lease, &caller).map_err(Error::into_status)?;
                let asker = Asker::tenant(&tenant);
                let found = self.0.packages.resolve(asker, named, PackageRight::Execute).await;
                Some(found.map_err(Error::into_status)?)
            }
        };
        let granted = self.0.shell.lease_for_process(&asked, package, &caller).await;
        granted.map(Response::new).map_err(Error::into_status)
    }

    async fn fetch_secrets(
        &self,
        request: Request<FetchSecretsRequest>,
    ) -> Result<Response<FetchSecretsReply>, Status> {
        let caller = caller(&request)?;
        let fetched = async {
            let (tenant, uses) = self.0.shell.secrets_of(&request.get_ref().lease, &caller)?;
            self.0.secrets.open(&tenant, uses).await
        };
        let variables = fetched.await.map_err(Error::into_status)?;
        Ok(Response::new(FetchSecretsReply { variables }))
    }

    async fn fetch_package(
        &self,
        request: Request<FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
        let digest = request.into_inner().digest;
        let known = self.0.packages.of_digest(&digest).await.map_err(Error::into_status)?;
        let (sender, parts) = mpsc::channel(PARTS_AHEAD);
        let service = Arc::clone(&self.0);
        tokio::spawn(async move { service.packages.send(known.digest.clone(), sender).await });
        Ok(Response::new(ReceiverStream::new(parts)))
    }
}
