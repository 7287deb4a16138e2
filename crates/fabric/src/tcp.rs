//! The TCP provider: frames on a stream, which the waiting threads apply to this side's memory.
//!
//! - [`frame`]: the format on the stream.
//! - *Sending*: small puts are gathered, and large ones sent from the caller's memory; publishing a line sends all of
//!   it with one system call. A sender that waits until the socket accepts more processes arriving frames meanwhile, so
//!   that two ends that send to each other at the same time do not deadlock.
//! - *Receiving*: one system call receives many small frames, or a part of a large payload directly into its region.
//!   One thread at a time reads, for all waiting threads.
//! - *Ends*: a peer that violates the protocol, or names memory that it may not access, is sent the reason, and the
//!   connection ends. The end of a connection wakes all threads that wait on it; its reason stays until the next
//!   connection begins.
//!
//! A hot call makes one system call to send a line, and further ones to poll for its result; a warm call makes one
//! more, to sleep. Neither allocates, and a lock that they take is contended only if threads share the endpoint.
//!
//! Locks are taken in this order: sending, receiving, then any of the small ones (link, replies, requests, waiters),
//! which are never held together. A thread that holds receiving only tries to lock sending.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod encrypted;
pub mod frame;
mod inbox;
mod link;
mod outbox;
mod parts;
mod receiving;
mod regions;
mod replies;
mod requests;
mod sending;
mod stalled;
mod stream;
mod waiting;

pub use stream::ByteStream;

use frame::Frame;
use inbox::Inbox;
use link::TcpLink;
use outbox::{Outbox, SMALL_BYTES};
use receiving::{ReceiveOutcome, Receiving};
use regions::{AccessDestination, PeerRegions};
use replies::Replies;
use requests::{OpenRequest, Requests};
use sending::{LineFrame, Sending};
use sublet_proto::to_usize;

use crate::bell::Bell;
use crate::exposed::{ExposedMemory, RemoteRegion};
use crate::line::{LINE_BYTES, Turn, WATCH_BYTES};
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::waiters::Waiters;
use crate::window::{LineAddress, RegionAddress};
use crate::{FabricError, Provider};

/// Bytes of a word that atomics work on.
const WORD_BYTES: u64 = 8;
/// Time in which a partly sent answer out of a withdrawn region may be completed, and the sleep between two attempts.
const LAST_ANSWER_PATIENCE: Duration = Duration::from_millis(100);
const LAST_ANSWER_NAP: Duration = Duration::from_millis(1);
/// Number of loads of memory for which a requesting thread polls for the reply before it sleeps.
const LOOKS_FOR_REPLY: u32 = 1 << 15;

/// One end of a connection between nodes. It outlives its streams: when the peer's process has ended, the endpoint is
/// connected to the next process by a new stream.
pub struct TcpEndpoint {
    exposed: Arc<ExposedMemory>,
    bell: Bell,
    regions: PeerRegions,
    link: TcpLink,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    requests: Arc<Requests>,
    replies: Replies,
    waiters: Waiters,
    /// 1 if bytes are gathered or could not be sent yet. Written under the lock of `sending`; a hint.
    unsent: AtomicU32,
    /// 1 if the current stream is a simulated one.
    simulated: AtomicU32,
}

impl TcpEndpoint {
    /// Makes an endpoint without a connection. `bell` (an eventfd) is rung where a line asks for it.
    pub fn new(exposed: Arc<ExposedMemory>, bell: Option<OwnedFd>) -> TcpEndpoint {
        TcpEndpoint {
            regions: PeerRegions::new(exposed.regions()),
            exposed,
            bell: Bell(bell),
            link: TcpLink::new(),
            sending: Mutex::new(Sending { stream: None, outbox: Outbox::new() }),
            receiving: Mutex::new(Receiving { stream: None, inbox: Inbox::new(), idle: 0 }),
            requests: Arc::new(Requests::new()),
            replies: Replies::new(),
            waiters: Waiters::new(),
            unsent: AtomicU32::new(0),
            simulated: AtomicU32::new(0),
        }
    }

    /// Connects the endpoint by this stream, on which the peer has authenticated itself. Unsent data of an earlier
    /// stream is lost.
    pub fn connect(&self, stream: ByteStream) -> Result<(), FabricError> {
        self.link.prepare()?;
        self.end_stream("another connection takes its place");
        let stream = Arc::new(stream);
        self.simulated.store(u32::from(stream.is_sim()), Ordering::Relaxed);
        *lock(&self.sending) = Sending { stream: Some(stream.clone()), outbox: Outbox::new() };
        lock(&self.receiving).stream = Some(stream.clone());
        self.link.begin(stream);
        Ok(())
    }

    /// Ends the connection: later operations fail. When this returns, no operation claimed earlier is still being sent.
    pub fn disconnect(&self, reason: &str) {
        self.end_stream(reason);
        self.regions.clear();
    }

    /// Reason why the connection is down, or `None` while it is up.
    #[inline]
    pub fn down(&self) -> Option<String> {
        self.link.reason()
    }

    /// A descriptor that is readable when something has arrived, for polling beside other descriptors. Once it is
    /// readable, call [`TcpEndpoint::progress`] until that fails.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.link.readable()
    }

    /// The bell, which is rung where a line asks for it.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// The memory of this side that the peer may access.
    pub fn exposed(&self) -> &Arc<ExposedMemory> {
        &self.exposed
    }

    /// Makes a region of this side reachable.
    pub fn expose(&self, region: u32) -> Result<RemoteRegion, FabricError> {
        self.exposed.expose(region)
    }

    /// Records how to access the peer's region of a number.
    pub fn reach(&self, region: u32, remote: RemoteRegion) -> Result<(), FabricError> {
        self.regions.set(region, remote)
    }

    /// Forgets the peer's region of a number. Threads that wait for a reply about it stop waiting.
    pub fn forget(&self, region: u32) {
        self.regions.forget(region);
        self.waiters.poke_all();
        self.link.wake();
    }

    /// Withdraws the key of a region. When this returns, no request of the peer reads or writes the region any more:
    /// later requests are refused. A partly sent answer may be completed within 100 ms; otherwise the
    /// connection ends with `reason`.
    pub fn withdraw(&self, region: u32, reason: &str) {
        let bytes = self.exposed.bytes(region);
        self.exposed.withdraw(region);
        lock(&self.receiving).inbox.spare(&bytes);
        let until = Instant::now() + LAST_ANSWER_PATIENCE;
        while lock(&self.sending).outbox.refers_to(&bytes) {
            if Instant::now() >= until {
                return self.disconnect(reason);
            }
            if !self.flush() {
                std::thread::sleep(LAST_ANSWER_NAP);
            }
        }
    }

    /// See [`crate::Endpoint::put_imm`].
    #[inline]
    pub fn put_imm<const WORDS: usize>(
        &self,
        to: LineAddress,
        turn: Turn,
        immediate: u32,
        body: &[u64; WORDS],
    ) -> Result<(), FabricError> {
        let mut sending = self.add_line(self.line_frame(to, turn, immediate, body)?)?;
        self.send_all(&mut sending)?;
        self.leave(sending);
        Ok(())
    }

    /// Publishes a line like [`TcpEndpoint::put_imm`], and may send it later: with the next data that this side sends,
    /// when it waits, or at a call of [`hurry`](TcpEndpoint::hurry).
    #[inline]
    pub fn put_imm_soon<const WORDS: usize>(
        &self,
        to: LineAddress,
        turn: Turn,
        immediate: u32,
        body: &[u64; WORDS],
    ) -> Result<(), FabricError> {
        let sending = self.add_line(self.line_frame(to, turn, immediate, body)?)?;
        self.leave_gathered(sending);
        Ok(())
    }

    /// Sends the lines that [`TcpEndpoint::put_imm_soon`] left.
    #[inline]
    pub fn hurry(&self) {
        if self.is_unsent() {
            self.flush();
        }
    }

    #[inline]
    fn line_frame<'body, const WORDS: usize>(
        &self,
        to: LineAddress,
        turn: Turn,
        immediate: u32,
        body: &'body [u64; WORDS],
    ) -> Result<LineFrame<'body, WORDS>, FabricError> {
        let place = self.aligned(RegionAddress { region: to.region, offset: to.line }, LINE_BYTES)?;
        self.aligned(RegionAddress { region: to.region, offset: to.watch }, WATCH_BYTES)?;
        let (line, watch) = (place.base.wrapping_add(to.line), place.base.wrapping_add(to.watch));
        Ok(LineFrame { key: place.key, line, watch, turn, immediate, body })
    }

    /// See [`crate::Endpoint::put`]. Small payloads are sent with the next data, or when this side waits.
    #[inline]
    pub fn put<'bytes>(
        &self,
        to: RegionAddress,
        bytes: impl Into<SharedBytes<'bytes>>,
    ) -> Result<(), FabricError> {
        let bytes = bytes.into();
        let frame = self.put_frame(to, bytes.len() as u64)?;
        let mut sending = self.sending()?;
        // SAFETY: a small payload is copied, and a large one sent, before the view's borrow ends.
        unsafe { self.add(&mut sending, frame, (bytes.start(), bytes.len())) }?;
        if bytes.len() > SMALL_BYTES {
            self.send_all(&mut sending)?;
            self.leave(sending);
        } else {
            self.leave_gathered(sending);
        }
        Ok(())
    }

    /// See [`crate::Endpoint::push`].
    ///
    /// # Safety
    /// See [`crate::Endpoint::push`].
    #[inline]
    pub unsafe fn push(
        &self,
        to: RegionAddress,
        from: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<(), FabricError> {
        let frame = self.put_frame(to, len_bytes)?;
        let mut sending = self.sending()?;
        // SAFETY: readable until the next line is published, which sends everything; the end of the connection clears
        // the outbox.
        unsafe { self.add(&mut sending, frame, (from, to_usize(len_bytes))) }?;
        self.leave_gathered(sending);
        Ok(())
    }

    /// See [`crate::Endpoint::get`].
    pub fn get<'into>(
        &self,
        from: RegionAddress,
        into: impl Into<SharedBytesMut<'into>>,
    ) -> Result<(), FabricError> {
        let into = into.into();
        let len_bytes = into.len() as u64;
        let place = self.place(from, len_bytes)?;
        // SAFETY: `into` is borrowed for this call, which abandons the request if no reply arrives; see `ask`.
        let request = unsafe { self.requests.bytes(into.start(), len_bytes) };
        let (key, offset) = (place.key, place.base.wrapping_add(from.offset));
        self.ask(from.region, request, |request| Frame::Get { request, key, offset, len_bytes }).map(|_| ())
    }

    /// Requests bytes without waiting for them. `None` if too many earlier requests have not been waited for.
    ///
    /// # Errors
    /// As for [`crate::Endpoint::get`].
    ///
    /// # Safety
    /// The memory at `into` must be writable, and no reference to it be used, until the returned value has been waited
    /// for or dropped. The value must not be forgotten.
    pub unsafe fn begin_get(
        self: &Arc<TcpEndpoint>,
        from: RegionAddress,
        into: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<Option<Getting>, FabricError> {
        let place = self.place(from, len_bytes)?;
        // SAFETY: by the caller's promise; dropping the returned value waits for the reply.
        let Some(request) = (unsafe { self.requests.bytes_ahead(into, len_bytes) }) else {
            return Ok(None);
        };
        let (key, offset) = (place.key, place.base.wrapping_add(from.offset));
        match self.send_request(&request, |request| Frame::Get { request, key, offset, len_bytes }) {
            Ok(connection) => {
                let request = Some((request, connection));
                Ok(Some(Getting { end: self.clone(), region: from.region, request }))
            }
            Err(error) => {
                self.let_go(request);
                Err(error)
            }
        }
    }

    /// See [`crate::Endpoint::fetch_add`].
    pub fn fetch_add(&self, at: RegionAddress, value: u64) -> Result<u64, FabricError> {
        let place = self.aligned(at, WORD_BYTES)?;
        let (key, offset) = (place.key, place.base.wrapping_add(at.offset));
        self.ask(at.region, self.requests.word(), |request| Frame::FetchAdd { request, key, offset, value })
    }

    /// See [`crate::Endpoint::compare_swap`].
    pub fn compare_swap(&self, at: RegionAddress, expected: u64, new: u64) -> Result<u64, FabricError> {
        let place = self.aligned(at, WORD_BYTES)?;
        let (key, offset) = (place.key, place.base.wrapping_add(at.offset));
        self.ask(at.region, self.requests.word(), |request| Frame::CompareSwap {
            request,
            key,
            offset,
            expected,
            new,
        })
    }

    /// See [`crate::Endpoint::mapped`].
    #[inline]
    pub fn mapped(&self, at: RegionAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        self.exposed.pointer(at, len_bytes)
    }

    /// The provider of the current stream.
    pub fn provider(&self) -> Provider {
        if self.simulated.load(Ordering::Relaxed) == 1 { Provider::Sim } else { Provider::Tcp }
    }

    #[inline]
    fn put_frame(&self, to: RegionAddress, len_bytes: u64) -> Result<Frame, FabricError> {
        let place = self.place(to, len_bytes)?;
        Ok(Frame::Put { key: place.key, offset: place.base.wrapping_add(to.offset), len_bytes })
    }

    /// Finds the address of the peer's bytes. Without a connection this is an error, whatever is known of the region.
    #[inline]
    fn place(&self, at: RegionAddress, len_bytes: u64) -> Result<AccessDestination, FabricError> {
        self.regions.find(at, len_bytes).map_err(|error| self.explain(error))
    }

    #[inline]
    fn aligned(&self, at: RegionAddress, len_bytes: u64) -> Result<AccessDestination, FabricError> {
        self.regions.find_aligned(at, len_bytes).map_err(|error| self.explain(error))
    }

    #[cold]
    fn explain(&self, error: FabricError) -> FabricError {
        if self.link.is_up() { error } else { self.link.error() }
    }

    /// Sends a request about a region of the peer and waits for its reply.
    fn ask(
        &self,
        region: u32,
        request: OpenRequest,
        frame: impl FnOnce(u32) -> Frame,
    ) -> Result<u64, FabricError> {
        match self.send_request(&request, frame) {
            Ok(connection) => self.reply(region, request, connection),
            Err(error) => {
                self.let_go(request);
                Err(error)
            }
        }
    }

    /// Sends a request. Returns the number of the connection by which the reply comes.
    fn send_request(
        &self,
        request: &OpenRequest,
        frame: impl FnOnce(u32) -> Frame,
    ) -> Result<u32, FabricError> {
        let mut sending = self.sending()?;
        let connection = self.link.connection();
        if !request.is_open() {
            return Err(FabricError::Disconnected { reason: "another has taken its place".into() });
        }
        // SAFETY: the frame has no payload.
        unsafe { self.add(&mut sending, frame(request.number()), (NonNull::dangling(), 0)) }?;
        self.send_all(&mut sending)?;
        self.leave(sending);
        Ok(connection)
    }

    /// Waits for the reply to a request, or the end of its connection, or until its region is [forgotten](TcpEndpoint::forget).
    fn reply(&self, region: u32, request: OpenRequest, connection: u32) -> Result<u64, FabricError> {
        let (line, turn) = request.line();
        let over = || self.link.connection() != connection || !self.regions.is_known(region);
        if self.spin(line, turn, LOOKS_FOR_REPLY) || self.wait(line, turn, None, over) {
            return request.word().ok_or(FabricError::KeyExpired { region });
        }
        self.let_go(request);
        Err(if self.link.is_up() { FabricError::KeyExpired { region } } else { self.link.error() })
    }

    /// Ends a request that has no reply yet. If the reply is being received, this stops it: no thread writes to the
    /// request's memory while the lock is held, and none will after this returns.
    fn let_go(&self, request: OpenRequest) {
        let mut receiving = lock(&self.receiving);
        let is_coming = receiving.inbox.abandon(request.number());
        if is_coming || !self.link.is_up() {
            drop(request);
            return;
        }
        request.abandon();
        // The connection may have gone down before the request was abandoned, and then no reply will come.
        if !self.link.is_up() {
            self.requests.void_unwanted();
        }
    }

    /// Handles the end of the stream by the peer, without a reason.
    #[cold]
    fn ended_by_peer(&self, amid_frame: bool) -> ReceiveOutcome {
        let amid = if amid_frame { " amid a frame" } else { "" };
        self.fail(&format!("the peer has closed it{amid}"));
        ReceiveOutcome::Down
    }

    /// Handles a failure of the stream itself.
    #[cold]
    fn lost(&self, error: &io::Error) -> ReceiveOutcome {
        self.fail(&format!("the peer is lost: {error}"));
        ReceiveOutcome::Down
    }

    /// Ends a connection on which nothing is acknowledged any more.
    #[cold]
    fn end_if_stalled(&self, stream: &ByteStream) {
        if let Some(why) = stream.stalled() {
            self.fail(&why);
        }
    }

    /// Sends the peer the error, and ends the connection. The peer can still read data sent before.
    #[cold]
    fn cut(&self, error: &FabricError) -> ReceiveOutcome {
        self.end(&format!("cut off, because the peer broke the rules: {error}"), || {
            self.say_why(&error.to_string());
            self.link.shutdown(Shutdown::Write);
        });
        ReceiveOutcome::Down
    }

    /// Ends the connection without sending the peer a reason.
    #[cold]
    fn fail(&self, reason: &str) {
        self.end(reason, || self.link.shutdown(Shutdown::Write));
    }

    /// Ends the connection, and wakes all threads that wait on it. The first reason stays.
    fn end(&self, reason: &str, shut_down: impl FnOnce()) {
        if self.link.end(reason) {
            shut_down();
            self.requests.void_unwanted();
            self.link.wake();
            self.waiters.poke_all();
        }
    }

    fn end_stream(&self, reason: &str) {
        if self.link.is_up() {
            self.flush();
        }
        self.end(reason, || {
            self.say_why(reason);
            self.link.shutdown(Shutdown::Both);
        });
        self.link.forget();
        let mut sending = lock(&self.sending);
        sending.outbox.clear();
        sending.stream = None;
        drop(sending);
        let mut receiving = lock(&self.receiving);
        receiving.inbox.clear();
        receiving.stream = None;
        self.requests.void_all();
        drop(receiving);
        self.replies.clear();
        self.note_unsent(false);
    }
}

/// Bytes that were requested. Dropping this waits for them.
pub struct Getting {
    end: Arc<TcpEndpoint>,
    region: u32,
    /// The request and the number of the connection by which its reply comes, until the reply was waited for.
    request: Option<(OpenRequest, u32)>,
}

impl Getting {
    /// Waits for the bytes.
    ///
    /// # Errors
    /// As for [`crate::Endpoint::get`].
    pub fn wait(mut self) -> Result<(), FabricError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), FabricError> {
        let Some((request, connection)) = self.request.take() else { return Ok(()) };
        self.end.reply(self.region, request, connection).map(|_| ())
    }
}

impl Drop for Getting {
    fn drop(&mut self) {
        // No caller is left to receive the error.
        let _ = self.finish();
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.end_stream("the other end is gone");
    }
}
