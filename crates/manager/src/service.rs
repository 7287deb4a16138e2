//! The manager's gRPC services on a Unix socket.
//!
//! Who calls is known from the kernel: the credentials of the socket's peer. Only this process's user and root are
//! served, and their user is the tenant. Each call is a hand-over to the [`Shell`] on a thread that may block.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sublet_proto::package::{self, Checked};
use sublet_proto::v1::manager_server::Manager;
use sublet_proto::v1::nodes_server::Nodes;
use sublet_proto::v1::{
    BillReply, BillRequest, DeployReply, FetchPackageRequest, LeaseGrant, LeaseList, LeaseRequest,
    ListLeasesRequest, ListNodesRequest, ListPackagesRequest, NodeDescription, NodeList, NodeRegistration,
    NodeReport, NodeReportReply, PackageChunk, PackageInfo, PackageList, ResolveRequest,
};
use sublet_proto::{Code, Error};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

use crate::shell::Shell;
use crate::store::{BLOB_PART_BYTES, BlobPart};

/// Packages that are received at the same time; each may take [`package::MAX_PACKAGE_BYTES`] of memory.
const MAX_UPLOADS: usize = 2;
/// How long an upload may stand still.
const UPLOAD_IDLE: Duration = Duration::from_secs(10);
/// Parts of a package that wait to be sent.
const PARTS_AHEAD: usize = 1;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Who calls.
#[derive(Clone, Debug)]
struct Tenant(String);

/// Lets only this user and root in, and notes who it is.
pub(crate) fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
    let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
    let denied = |message: String| Error::new(Code::PermissionDenied, message).into_status();
    let uid = peer.ok_or_else(|| denied("the caller's user is unknown".into()))?.uid();
    let own = rustix::process::geteuid().as_raw();
    if uid != own && uid != 0 {
        return Err(denied(format!("this manager serves user {own}, not user {uid}")));
    }
    request.extensions_mut().insert(Tenant(format!("uid:{uid}")));
    Ok(request)
}

/// Both services.
#[derive(Clone)]
pub(crate) struct Service {
    shell: Arc<Mutex<Shell>>,
    uploads: Arc<Semaphore>,
    /// One package at a time is stored, so that the failure of one does not take the parts of another.
    storing: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(shell: Arc<Mutex<Shell>>) -> Service {
        Service {
            shell,
            uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
            storing: Arc::new(Semaphore::new(1)),
        }
    }

    /// Does something with the shell, on a thread that may block.
    async fn with_shell<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Shell) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let shell = Arc::clone(&self.shell);
        blocking(move || act(&mut *lock(&shell)?)).await
    }

    async fn answer<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Shell) -> Result<T, Error> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        self.with_shell(act).await.map(Response::new)
    }

    /// Stores a package's parts, letting others have the shell between them, and then its name.
    async fn store(&self, encoded: Arc<Vec<u8>>, checked: Arc<Checked>) -> Result<DeployReply, Status> {
        let _turn = permit(&self.storing).await?;
        let digest = checked.digest.clone();
        if self.with_shell(move |shell| shell.known(&digest)).await?.is_none() {
            let stored = self.store_parts(&encoded, &checked.digest).await;
            if let Err(status) = stored {
                let digest = checked.digest.clone();
                self.with_shell(move |shell| shell.remove_parts(&digest)).await?;
                return Err(status);
            }
        }
        self.with_shell(move |shell| shell.publish(now_ms(), &checked)).await
    }

    async fn store_parts(&self, encoded: &Arc<Vec<u8>>, digest: &str) -> Result<(), Status> {
        for (index, start) in (0u32..).zip((0..encoded.len()).step_by(BLOB_PART_BYTES)) {
            let (encoded, digest) = (Arc::clone(encoded), digest.to_owned());
            self.with_shell(move |shell| {
                let end = encoded.len().min(start + BLOB_PART_BYTES);
                shell.put_part(BlobPart { digest: &digest, index }, &encoded[start..end])
            })
            .await?;
        }
        Ok(())
    }

    /// Sends a package's parts until they are all sent or nobody listens.
    async fn send_parts(self, digest: String, to: mpsc::Sender<Result<PackageChunk, Status>>) {
        for index in 0u32.. {
            let digest = digest.clone();
            let part = self.with_shell(move |shell| shell.part(BlobPart { digest: &digest, index })).await;
            let message = match part {
                Ok(Some(data)) => Ok(PackageChunk { data }),
                Ok(None) => return,
                Err(status) => Err(status),
            };
            if to.send(message).await.is_err() {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl Manager for Service {
    async fn deploy(
        &self,
        request: Request<Streaming<PackageChunk>>,
    ) -> Result<Response<DeployReply>, Status> {
        let _upload = permit(&self.uploads).await?;
        let encoded = Arc::new(receive(request.into_inner()).await?);
        let bytes = Arc::clone(&encoded);
        let checked = Arc::new(blocking(move || package::validate(&bytes)).await?);
        let package = Arc::clone(&checked);
        self.with_shell(move |shell| shell.check_architecture(&package)).await?;
        self.store(encoded, checked).await.map(Response::new)
    }

    async fn resolve(&self, request: Request<ResolveRequest>) -> Result<Response<PackageInfo>, Status> {
        let name = request.into_inner().name;
        self.answer(move |shell| shell.resolve(&name)).await
    }

    async fn list_packages(&self, _: Request<ListPackagesRequest>) -> Result<Response<PackageList>, Status> {
        self.answer(|shell| shell.packages()).await
    }

    async fn request_lease(&self, request: Request<LeaseRequest>) -> Result<Response<LeaseGrant>, Status> {
        let Tenant(tenant) = tenant(&request)?;
        let asked = request.into_inner();
        self.answer(move |shell| shell.request_lease(now_ms(), tenant, asked)).await
    }

    async fn list_leases(&self, request: Request<ListLeasesRequest>) -> Result<Response<LeaseList>, Status> {
        if request.into_inner().include_ended {
            return self.answer(|shell| shell.leases_with_ended()).await;
        }
        self.answer(|shell| Ok(shell.leases())).await
    }

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<NodeList>, Status> {
        self.answer(|shell| Ok(shell.nodes())).await
    }

    async fn bill(&self, request: Request<BillRequest>) -> Result<Response<BillReply>, Status> {
        let lease = request.into_inner().lease;
        self.answer(move |shell| shell.bill(&lease)).await
    }
}

#[tonic::async_trait]
impl Nodes for Service {
    type FetchPackageStream = ReceiverStream<Result<PackageChunk, Status>>;

    async fn register(
        &self,
        request: Request<NodeDescription>,
    ) -> Result<Response<NodeRegistration>, Status> {
        let node = request.into_inner();
        self.answer(move |shell| shell.register(now_ms(), node)).await
    }

    async fn report(&self, request: Request<NodeReport>) -> Result<Response<NodeReportReply>, Status> {
        let report = request.into_inner();
        self.answer(move |shell| shell.report(now_ms(), report)).await
    }

    async fn fetch_package(
        &self,
        request: Request<FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
        let digest = request.into_inner().digest;
        let known = self.with_shell(move |shell| shell.resolve(&digest)).await?;
        let (sender, parts) = mpsc::channel(PARTS_AHEAD);
        tokio::spawn(self.clone().send_parts(known.digest, sender));
        Ok(Response::new(ReceiverStream::new(parts)))
    }
}

/// Takes the shell for a moment.
pub(crate) fn lock(shell: &Mutex<Shell>) -> Result<std::sync::MutexGuard<'_, Shell>, Error> {
    shell.lock().map_err(|_| Error::new(Code::Internal, "the manager has failed before and serves no more"))
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result.map_err(Error::into_status),
        Err(error) => Err(Error::new(Code::Internal, format!("the manager failed: {error}")).into_status()),
    }
}

async fn permit(semaphore: &Semaphore) -> Result<tokio::sync::SemaphorePermit<'_>, Status> {
    semaphore.acquire().await.map_err(|_| Status::unavailable("the manager stops"))
}

fn tenant<T>(request: &Request<T>) -> Result<Tenant, Status> {
    let unknown = || Error::new(Code::PermissionDenied, "the caller's user is unknown").into_status();
    request.extensions().get::<Tenant>().cloned().ok_or_else(unknown)
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
