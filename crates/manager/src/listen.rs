//! Listeners: connections are accepted from the Unix socket and from TCP, admitted or refused, and encrypted.
//!
//! Each connection has a [slot](places) until it is closed. Handshakes run beside each other: at most one for each slot
//! for unauthenticated connections, and none of them delays an authenticated one. The other frames of a connection are
//! [bounded](frames).

mod frames;
mod slots;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub(crate) use sublet_admission::ConnectionId;
use sublet_admission::Party;
use sublet_proto::{Code, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::tls::Certificates;
use frames::{Flood, FrameCounter};
pub(crate) use slots::{Busy, ConnectionSlot, ConnectionSlots};
pub use slots::{ConnectionLimits, MAX_CONNECTIONS};

/// Pause of listening when the system has no more descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are ready and not yet served.
const READY_AHEAD: usize = 64;

/// The other end of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    /// The user of its process, if it came by the manager's own Unix socket.
    pub(crate) uid: Option<u32>,
    pub(crate) place: Arc<ConnectionSlot>,
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection that is ready to be served.
pub(crate) struct AcceptedConnection {
    stream: Box<dyn Duplex>,
    peer: Peer,
    frames: FrameCounter,
    /// Completes when the connection is to be closed.
    closed: oneshot::Receiver<()>,
}

impl Connected for AcceptedConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Accepts connections from every listener of one manager.
#[derive(Clone)]
pub(crate) struct Intake {
    places: Arc<ConnectionSlots>,
    ready: mpsc::Sender<io::Result<AcceptedConnection>>,
}

impl Intake {
    /// The intake, and the connections that it admits.
    pub(crate) fn new(limits: &ConnectionLimits) -> (Intake, mpsc::Receiver<io::Result<AcceptedConnection>>) {
        let (ready, connections) = mpsc::channel(READY_AHEAD);
        (Intake { places: ConnectionSlots::new(limits), ready }, connections)
    }

    /// The places of its connections.
    pub(crate) fn places(&self) -> Arc<ConnectionSlots> {
        self.places.clone()
    }

    /// Serves the Unix socket until it is aborted.
    pub(crate) async fn unix(self, listener: UnixListener) {
        loop {
            let Some((stream, _)) = self.accepted(listener.accept().await).await else { continue };
            // Only a socket of this kernel has a peer; without credentials the connection is not served.
            let Ok(credentials) = stream.peer_cred() else { continue };
            let uid = credentials.uid();
            let is_operator = uid == 0 || uid == rustix::process::geteuid().as_raw();
            let party = if is_operator { Party::Operator } else { Party::User(uid) };
            let Some((place, closed)) = self.places.enter(party) else { continue };
            self.serve(Box::new(stream), Peer { uid: Some(uid), place }, closed).await;
        }
    }

    /// Serves a TCP listener until it is aborted.
    pub(crate) async fn tcp(self, listener: TcpListener, certificates: Option<Arc<Certificates>>) {
        loop {
            let Some((stream, from)) = self.accepted(listener.accept().await).await else { continue };
            let Some((place, closed)) = self.places.enter(Party::at(from.ip())) else { continue };
            tokio::spawn(self.clone().greet(stream, (from, place), closed, certificates.clone()));
        }
    }

    /// Encrypts a connection and serves it, unless it loses its slot meanwhile.
    async fn greet(
        self,
        stream: TcpStream,
        (from, place): (SocketAddr, Arc<ConnectionSlot>),
        mut closed: oneshot::Receiver<()>,
        certificates: Option<Arc<Certificates>>,
    ) {
        let encrypted = tokio::select! {
            encrypted = encrypt(stream, certificates) => encrypted,
            _ = &mut closed => return,
        };
        match encrypted {
            Ok(stream) => self.serve(stream, Peer { uid: None, place }, closed).await,
            Err(error) => tracing::debug!(%from, %error, "a connection was not encrypted"),
        }
    }

    async fn serve(&self, stream: Box<dyn Duplex>, peer: Peer, closed: oneshot::Receiver<()>) {
        peer.place.shaken();
        let connection =
            AcceptedConnection { stream, peer, frames: FrameCounter::new(Instant::now()), closed };
        // The server that takes the connections may have stopped.
        let _ = self.ready.send(Ok(connection)).await;
    }

    /// Returns the accepted connection, if any. After an error, as when descriptors are short, it first waits.
    async fn accepted<T>(&self, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(accepted) => Some(accepted),
            Err(error) => {
                self.places.note("connections cannot be accepted", &error);
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }
}

async fn encrypt(stream: TcpStream, certificates: Option<Arc<Certificates>>) -> io::Result<Box<dyn Duplex>> {
    stream.set_nodelay(true)?;
    match certificates {
        Some(certificates) => Ok(Box::new(TlsAcceptor::from(certificates.current()).accept(stream).await?)),
        None => Ok(Box::new(stream)),
    }
}

/// Listens on a TCP address.
async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        let code = if error.kind() == io::ErrorKind::AddrInUse {
            Code::AlreadyRunning
        } else {
            Code::InvalidArgument
        };
        Error::new(code, format!("cannot listen on {address}: {error}"))
    })
}

/// Listens on each of these TCP addresses.
pub(crate) async fn bind_all(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, Error> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for &address in addresses {
        listeners.push(bind(address).await?);
    }
    Ok(listeners)
}

/// Returns the address of a listener, with the port that the system chose if none was given.
pub(crate) fn address(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener
        .local_addr()
        .map_err(|error| Error::new(Code::System, format!("a listener has no address: {error}")))
}

impl AcceptedConnection {
    /// Fails once the connection's place was taken from it.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match Pin::new(&mut self.closed).poll(context) {
            Poll::Ready(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for AcceptedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = &buffer.filled()[before..];
        if self.frames.received(received, Instant::now) == Err(Flood) {
            self.peer.place.note("connections were cut", &"they sent floods of HTTP/2 control frames");
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AcceptedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.frames.sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.frames.sent(written);
        Poll::Ready(Ok(written))
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
