//! A client's connection to a manager: deploys packages, asks for leases, lists what there is.
//!
//! Nothing here is on the path of a call, so [`ManagerClient`] is blocking and plain. It drives its connection only
//! while a method runs, on the caller's thread; inside of somebody else's tokio runtime, where blocking is
//! forbidden, it does so on a thread of its own for the length of the call. Every method has a deadline.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use sublet_proto::v1::manager_client::ManagerClient as Stub;
use sublet_proto::v1::{self, PackageChunk};
use sublet_proto::{Code, Error};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::codegen::tokio_stream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// How long to wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// How long to wait for an answer.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How long a deployment may take, and how much longer for each [`DEPLOY_STEP_BYTES`] of the package.
const DEPLOY_DEADLINE: Duration = Duration::from_secs(30);
const DEPLOY_STEP_BYTES: usize = 1 << 20;
/// How much of a package travels in one message.
const CHUNK_BYTES: usize = 256 * 1024;
/// Longest path of a Unix socket, in bytes, without the final zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;

const UNIX_SCHEME: &str = "unix:";

/// A blocking client of a manager.
pub struct ManagerClient {
    address: Arc<str>,
    channel: Channel,
    /// Taken only when dropped, because a runtime may not be dropped in the ordinary way inside of another.
    runtime: Option<Runtime>,
}

impl ManagerClient {
    /// Connects to a manager at an address as `unix:/path`.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidArgument`] if this is no such address, [`Code::ManagerUnreachable`] if nobody answers there.
    pub fn connect(address: &str) -> Result<ManagerClient, Error> {
        let socket = socket_path(address)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(Code::System, format!("cannot make a tokio runtime: {error}")))?;
        let connected = wait_for(&runtime, open(address, socket));
        match connected {
            Ok(channel) => Ok(ManagerClient { address: address.into(), channel, runtime: Some(runtime) }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Where the manager is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stores an encoded package and points its name at it.
    pub fn deploy(&self, encoded: Vec<u8>) -> Result<v1::DeployReply, Error> {
        self.deploy_with_progress(encoded, |_| {})
    }

    /// As [`ManagerClient::deploy`]; tells how many bytes have been sent, again and again.
    pub fn deploy_with_progress<F>(&self, encoded: Vec<u8>, progress: F) -> Result<v1::DeployReply, Error>
    where
        F: FnMut(u64) + Send + 'static,
    {
        let steps = u32::try_from(encoded.len() / DEPLOY_STEP_BYTES).unwrap_or(u32::MAX);
        let deadline = DEPLOY_DEADLINE.saturating_add(Duration::from_secs(1).saturating_mul(steps));
        let chunks = Chunks { encoded, sent: 0, progress };
        self.call(deadline, async |mut stub| stub.deploy(tokio_stream::iter(chunks)).await)
    }

    /// What is deployed as "name", "name/function" or "sha256:...".
    pub fn resolve(&self, name: &str) -> Result<v1::PackageInfo, Error> {
        let request = v1::ResolveRequest { name: name.to_owned() };
        self.call(CALL_DEADLINE, async |mut stub| stub.resolve(request).await)
    }

    /// Every deployed package.
    pub fn packages(&self) -> Result<Vec<v1::PackageInfo>, Error> {
        let request = v1::ListPackagesRequest {};
        let list = self.call(CALL_DEADLINE, async |mut stub| stub.list_packages(request).await)?;
        Ok(list.packages)
    }

    /// Asks for a lease; it is granted at once or refused with the reason.
    pub fn request_lease(&self, request: v1::LeaseRequest) -> Result<v1::LeaseGrant, Error> {
        self.call(CALL_DEADLINE, async |mut stub| stub.request_lease(request).await)
    }

    /// Leases that are not ended.
    pub fn leases(&self) -> Result<Vec<v1::Lease>, Error> {
        self.list_leases(v1::ListLeasesRequest { include_ended: false })
    }

    /// All leases that the manager remembers, the newest first.
    pub fn leases_with_ended(&self) -> Result<Vec<v1::Lease>, Error> {
        self.list_leases(v1::ListLeasesRequest { include_ended: true })
    }

    fn list_leases(&self, request: v1::ListLeasesRequest) -> Result<Vec<v1::Lease>, Error> {
        let list = self.call(CALL_DEADLINE, async |mut stub| stub.list_leases(request).await)?;
        Ok(list.leases)
    }

    /// Every node, with what is leased of it.
    pub fn nodes(&self) -> Result<Vec<v1::NodeInfo>, Error> {
        let request = v1::ListNodesRequest {};
        let list = self.call(CALL_DEADLINE, async |mut stub| stub.list_nodes(request).await)?;
        Ok(list.nodes)
    }

    /// What one lease costs, or all of them.
    pub fn bill(&self, lease: Option<&str>) -> Result<v1::BillReply, Error> {
        let request = v1::BillRequest { lease: lease.unwrap_or_default().to_owned() };
        self.call(CALL_DEADLINE, async |mut stub| stub.bill(request).await)
    }

    /// Makes one call under a deadline.
    fn call<T, F, Fut>(&self, deadline: Duration, call: F) -> Result<T, Error>
    where
        T: Send,
        F: FnOnce(Stub<Channel>) -> Fut + Send,
        Fut: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let runtime =
            self.runtime.as_ref().ok_or_else(|| Error::new(Code::Internal, "the client is dropped"))?;
        let stub = Stub::new(self.channel.clone());
        wait_for(runtime, async {
            match tokio::time::timeout(deadline, call(stub)).await {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(self.failure(&status)),
                Err(_) => Err(Error::new(
                    Code::ManagerUnreachable,
                    format!("the manager at {} did not answer in {} s", self.address, deadline.as_secs()),
                )),
            }
        })
    }

    /// The manager's own error, or that it is gone.
    fn failure(&self, status: &Status) -> Error {
        match status.code() {
            tonic::Code::Unavailable | tonic::Code::Cancelled => {
                unreachable_at(&self.address, status.message())
            }
            _ => Error::from_status(status),
        }
    }
}

impl Drop for ManagerClient {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where a manager is unless somebody says otherwise: `$SUBLET_MANAGER`, or the socket in [`default_state`].
pub fn default_address() -> String {
    match std::env::var("SUBLET_MANAGER") {
        Ok(address) if !address.is_empty() => address,
        _ => manager_address(&default_state()),
    }
}

/// The address of the manager whose state is in this folder.
pub fn manager_address(state: &Path) -> String {
    format!("{UNIX_SCHEME}{}", state.join("manager.sock").display())
}

/// The folder of a manager's state: `$SUBLET_STATE`, `$XDG_RUNTIME_DIR/sublet`, `$HOME/.local/state/sublet` or
/// `/tmp/sublet-UID`, whichever is known first.
pub fn default_state() -> PathBuf {
    let folder =
        |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("SUBLET_STATE")
        .or_else(|| folder("XDG_RUNTIME_DIR").map(|path| path.join("sublet")))
        .or_else(|| folder("HOME").map(|path| path.join(".local/state/sublet")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/sublet-{}", rustix::process::getuid().as_raw())))
}

/// The path in an address as `unix:/path`.
pub fn socket_path(address: &str) -> Result<PathBuf, Error> {
    let invalid = |why: &str| {
        Error::new(
            Code::InvalidArgument,
            format!("{address:?} is no address of a manager: {why} (unix:/path)"),
        )
    };
    let path = address.strip_prefix(UNIX_SCHEME).ok_or_else(|| invalid("only Unix sockets are supported"))?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(invalid("the socket's path is not absolute"));
    }
    if path.len() > MAX_SOCKET_PATH_BYTES || path.contains('\0') {
        return Err(invalid(&format!(
            "a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes and no zero"
        )));
    }
    Ok(PathBuf::from(path))
}

async fn open(address: &str, socket: PathBuf) -> Result<Channel, Error> {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The authority is required by HTTP and means nothing on a Unix socket.
    let endpoint = Endpoint::from_static("http://manager");
    let connecting = endpoint.connect_with_connector(connector);
    match tokio::time::timeout(CONNECT_DEADLINE, connecting).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(unreachable_at(address, &root_cause(&error))),
        Err(_) => Err(unreachable_at(address, &format!("no answer in {} s", CONNECT_DEADLINE.as_secs()))),
    }
}

fn unreachable_at(address: &str, why: &str) -> Error {
    Error::new(
        Code::ManagerUnreachable,
        format!("no manager answers at {address}: {why}; start one with: sublet up"),
    )
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Drives the future on this thread, or on another one if this one belongs to a runtime.
fn wait_for<T: Send>(
    runtime: &Runtime,
    future: impl Future<Output = Result<T, Error>> + Send,
) -> Result<T, Error> {
    if Handle::try_current().is_err() {
        return runtime.block_on(future);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("sublet-manager-client".into())
            .spawn_scoped(scope, || runtime.block_on(future))
            .map_err(|error| Error::new(Code::System, format!("cannot start a thread: {error}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An encoded package as it is sent.
struct Chunks<F> {
    encoded: Vec<u8>,
    sent: usize,
    progress: F,
}

impl<F: FnMut(u64)> Iterator for Chunks<F> {
    type Item = PackageChunk;

    fn next(&mut self) -> Option<PackageChunk> {
        let rest = &self.encoded[self.sent..];
        let data = rest[..rest.len().min(CHUNK_BYTES)].to_vec();
        self.sent += data.len();
        (self.progress)(self.sent as u64);
        (!data.is_empty()).then_some(PackageChunk { data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_unix_socket() {
        assert_eq!(socket_path("unix:/run/a b.sock").unwrap(), Path::new("/run/a b.sock"));
        assert_eq!(socket_path("unix:///run/m.sock").unwrap(), Path::new("/run/m.sock"));
        let long = format!("unix:/{}", "a".repeat(107));
        for address in ["", "tcp://host:1", "unix:", "unix:m.sock", "/run/m.sock", &long] {
            let error = socket_path(address).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains("unix:/path"), "{error}");
        }
    }

    #[test]
    fn a_manager_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let address = manager_address(folder.path());
        let error = ManagerClient::connect(&address).err().unwrap();
        assert_eq!(error.code, Code::ManagerUnreachable);
        assert!(error.message.contains(&address) && error.message.contains("sublet up"), "{error}");
    }

    #[test]
    fn a_manager_can_be_missed_from_inside_of_a_runtime() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(async { ManagerClient::connect("unix:/nonexistent").err().unwrap() });
        assert_eq!(error.code, Code::ManagerUnreachable);
    }

    #[test]
    fn chunks_make_the_package_and_tell_their_progress() {
        let (tell, told) = std::sync::mpsc::channel();
        let encoded = vec![7; CHUNK_BYTES + 1];
        let progress = move |bytes| tell.send(bytes).unwrap();
        let chunks = Chunks { encoded: encoded.clone(), sent: 0, progress };
        let whole: Vec<u8> = chunks.flat_map(|chunk| chunk.data).collect();
        assert_eq!(whole, encoded);
        assert_eq!(told.into_iter().max(), Some(encoded.len() as u64));
    }
}
