//! Connections: taken in from the Unix socket and from TCP, bounded in number, and encrypted before anybody waits.
//!
//! Each connection holds a place until it is closed. When every place is taken, a further one is closed at once, so
//! that its client tries another manager or tries again, instead of waiting in a queue that it cannot see. Handshakes
//! run beside each other, a bounded number at a time, and none of them holds up those who are connected.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use sublet_proto::{Code, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::tls::Certificates;

/// Connections of one manager at the same time, if it may have so many files open.
pub const MAX_CONNECTIONS: usize = 16_384;
/// File descriptors that are not connections': listeners, the store, the runtime's own.
const OTHER_FILES: u64 = 128;
/// TLS handshakes at the same time; further connections wait for their turn.
const MAX_HANDSHAKES: usize = 256;
/// How long a connection may take from its first byte until it is encrypted, its turn included.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// How long listening pauses when the system has no more descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are ready and not yet served.
const READY_AHEAD: usize = 64;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A process of this user, on the manager's own Unix socket.
    User(u32),
    /// Somebody on the network, of whom only the address is known.
    Remote(SocketAddr),
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection that is ready to be served.
pub(crate) struct Connection {
    stream: Box<dyn Duplex>,
    peer: Peer,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

/// Takes connections in from every listener of one manager.
#[derive(Clone)]
pub(crate) struct Intake {
    places: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    ready: mpsc::Sender<io::Result<Connection>>,
}

impl Intake {
    /// With what it takes in. Raises this process's limit of open files as far as it may.
    pub(crate) fn new() -> (Intake, mpsc::Receiver<io::Result<Connection>>) {
        let (ready, connections) = mpsc::channel(READY_AHEAD);
        let places = Arc::new(Semaphore::new(places()));
        (Intake { places, handshakes: Arc::new(Semaphore::new(MAX_HANDSHAKES)), ready }, connections)
    }

    /// Serves the Unix socket until it is aborted.
    pub(crate) async fn unix(self, listener: UnixListener) {
        loop {
            let Some((stream, _)) = accepted(listener.accept().await).await else { continue };
            let Some(place) = self.place() else { continue };
            // Only a socket of this kernel has a peer; without one it is nobody's.
            let Ok(credentials) = stream.peer_cred() else { continue };
            let _ = self.ready.send(Ok(local(stream, credentials.uid(), place))).await;
        }
    }

    /// Serves a TCP listener until it is aborted.
    pub(crate) async fn tcp(self, listener: TcpListener, certificates: Option<Arc<Certificates>>) {
        loop {
            let Some((stream, peer)) = accepted(listener.accept().await).await else { continue };
            let Some(place) = self.place() else { continue };
            let (intake, certificates) = (self.clone(), certificates.clone());
            tokio::spawn(async move {
                let encrypted = tokio::time::timeout(HANDSHAKE, intake.encrypt(stream, certificates)).await;
                match encrypted {
                    Ok(Ok(stream)) => {
                        let connection = Connection { stream, peer: Peer::Remote(peer), _place: place };
                        let _ = intake.ready.send(Ok(connection)).await;
                    }
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "a connection was not encrypted"),
                    Err(_) => tracing::debug!(%peer, "a connection was not encrypted in time"),
                }
            });
        }
    }

    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            tracing::debug!("a connection is refused: every place is taken");
        }
        place
    }

    async fn encrypt(
        &self,
        stream: TcpStream,
        certificates: Option<Arc<Certificates>>,
    ) -> io::Result<Box<dyn Duplex>> {
        stream.set_nodelay(true)?;
        let Some(certificates) = certificates else { return Ok(Box::new(stream)) };
        let _turn = self.handshakes.acquire().await.map_err(io::Error::other)?;
        Ok(Box::new(TlsAcceptor::from(certificates.current()).accept(stream).await?))
    }
}

fn local(stream: UnixStream, uid: u32, place: OwnedSemaphorePermit) -> Connection {
    Connection { stream: Box::new(stream), peer: Peer::User(uid), _place: place }
}

/// What was accepted, if anything; where descriptors are short, after a while.
async fn accepted<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(%error, "a connection cannot be accepted");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

/// How many connections there is room for.
fn places() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // Without a limit there is room for all.
    let files = files.unwrap_or(u64::MAX);
    usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX).min(MAX_CONNECTIONS)
}

/// Listens on a TCP address.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        let code = if error.kind() == io::ErrorKind::AddrInUse {
            Code::AlreadyRunning
        } else {
            Code::InvalidArgument
        };
        Error::new(code, format!("cannot listen on {address}: {error}"))
    })
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
