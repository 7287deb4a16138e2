//! A thread of the shim, which admits processes and serves their calls.
//!
//! It polls the pages of processes that have called lately; the others ring a bell. Polling uses a core of the node for
//! which the process does not pay. So the thread polls for each process for at most a tenth of the time. The calls of a
//! process beyond that share are then served once a millisecond until the next second.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::sync::lock;
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::v1::{EnterShim, Failure, ShimToProcess};
use sublet_proto::{Code, Error, decode};
use sublet_xpu::wire;
use tracing::{debug, warn};

use super::member::Member;
use super::{Entrant, State};
use crate::signal::Signal;
use crate::threads::start_thread;

/// How long a page is polled after a call.
const LOOK: Duration = Duration::from_micros(100);
/// How long the thread may poll for one process within each period of [`SHARED`].
const SHARE: Duration = Duration::from_millis(100);
const SHARED: Duration = Duration::from_secs(1);
/// Period of polling for processes that have used up their share.
const SLOW: Duration = Duration::from_millis(1);
/// Number of polls of the pages for each poll of the descriptors.
const LOOKS_PER_POLL: u32 = 64;
/// Most events that one poll of the descriptors returns.
const MAX_EVENTS: usize = 64;
/// The first number of a process. Lower numbers are the thread's own.
const FIRST: u64 = 1;
const WAKE: u64 = 0;

/// See the [module](self). The thread ends when it is dropped.
pub(super) struct Server {
    order_queue: Arc<OrderQueue>,
    thread: Option<JoinHandle<()>>,
}

/// Orders of other threads for this one.
struct OrderQueue {
    wake: Signal,
    orders: Mutex<Orders>,
}

#[derive(Default)]
struct Orders {
    next: u64,
    coming: Vec<(u64, PacketSocket, Entrant)>,
    leaving: Vec<u64>,
    stop: bool,
}

/// Handle that removes an admitted process.
pub(super) struct Leave {
    order_queue: Arc<OrderQueue>,
    number: u64,
}

struct ShimThread {
    order_queue: Arc<OrderQueue>,
    state: Arc<Mutex<State>>,
    epoll: OwnedFd,
    connected_processes: HashMap<u64, ConnectedProcess>,
    /// Processes whose pages are polled.
    hot: Vec<u64>,
    /// Processes that have used up their share.
    slow: Vec<u64>,
    /// Time at the latest check of the clock.
    now: Instant,
    /// Start of the current second of shares.
    since: Instant,
}

/// A process that may enter, or has.
struct ConnectedProcess {
    socket: Arc<PacketSocket>,
    who: Entrant,
    member: Option<Arc<Member>>,
    /// Position of the process's next call.
    next: u64,
    latest: Instant,
    looked: Duration,
}

impl Server {
    pub(super) fn start(state: Arc<Mutex<State>>) -> Result<Server, Error> {
        let failed = |errno| Error::new(Code::System, format!("epoll_create1: {errno}"));
        let orders = Mutex::new(Orders { next: FIRST, ..Orders::default() });
        let order_queue = Arc::new(OrderQueue { wake: Signal::new()?, orders });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        watch(&epoll, order_queue.wake.as_fd(), WAKE)?;
        let (connected_processes, hot, slow) = Default::default();
        let now = Instant::now();
        let thread = ShimThread {
            order_queue: order_queue.clone(),
            state,
            epoll,
            connected_processes,
            hot,
            slow,
            now,
            since: now,
        };
        let thread = start_thread("sublet-shim", move || thread.run())?;
        Ok(Server { order_queue, thread: Some(thread) })
    }

    pub(super) fn admit(&self, socket: PacketSocket, who: Entrant) -> Leave {
        let mut orders = lock(&self.order_queue.orders);
        let number = orders.next;
        orders.next += 1;
        orders.coming.push((number, socket, who));
        self.order_queue.wake.raise();
        Leave { order_queue: self.order_queue.clone(), number }
    }
}

impl Leave {
    /// Removes the process, which is gone.
    pub(super) fn now(&self) {
        lock(&self.order_queue.orders).leaving.push(self.number);
        self.order_queue.wake.raise();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        lock(&self.order_queue.orders).stop = true;
        self.order_queue.wake.raise();
        if let Some(thread) = self.thread.take() {
            // The thread has logged why it failed.
            let _ = thread.join();
        }
    }
}

impl ShimThread {
    fn run(mut self) {
        let mut looks = 0;
        loop {
            if self.hot.is_empty() || looks == 0 {
                looks = LOOKS_PER_POLL;
                if !self.poll() {
                    return;
                }
            }
            looks -= 1;
            self.look();
        }
    }

    /// Handles events of the descriptors, and waits for one if there is nothing to poll. Returns whether to continue.
    fn poll(&mut self) -> bool {
        let timeout = match (self.hot.is_empty(), self.slow.is_empty()) {
            (false, _) => Some(Duration::ZERO),
            (true, false) => Some(SLOW),
            (true, true) => None,
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(MAX_EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                warn!(%errno, "the shim cannot wait any more");
                return false;
            }
        }
        self.now = Instant::now();
        for event in events {
            match event.data.u64() {
                WAKE => {
                    if !self.obey() {
                        return false;
                    }
                }
                number if number & 1 << 63 == 0 => self.hear(number),
                rung => self.wake(rung & !(1 << 63)),
            }
        }
        self.look_slowly();
        true
    }

    fn obey(&mut self) -> bool {
        self.order_queue.wake.clear();
        let (coming, leaving, stop) = {
            let mut orders = lock(&self.order_queue.orders);
            (std::mem::take(&mut orders.coming), std::mem::take(&mut orders.leaving), orders.stop)
        };
        for (number, socket, who) in coming {
            if let Err(error) = watch(&self.epoll, socket.as_fd(), number) {
                warn!(%error, "a process cannot be let in");
                continue;
            }
            let socket = Arc::new(socket);
            let (latest, looked) = (self.now, Duration::ZERO);
            self.connected_processes
                .insert(number, ConnectedProcess { socket, who, member: None, next: 0, latest, looked });
        }
        leaving.into_iter().for_each(|number| self.leave(number));
        !stop
    }

    /// Handles a packet of a process, or its end.
    fn hear(&mut self, number: u64) {
        let Some(connected_process) = self.connected_processes.get_mut(&number) else { return };
        let outcome =
            match (connected_process.socket.receive(Some(Duration::ZERO)), &connected_process.member) {
                (Err(PacketError::TimedOut(_)), _) => return,
                (Ok(Some(packet)), None) => {
                    connected_process.enter(&packet.bytes, &self.state, &self.epoll, number)
                }
                (Ok(Some(_)), Some(_)) => {
                    Err(Error::new(Code::Protocol, "a process speaks out of turn to the shim"))
                }
                (Ok(None) | Err(_), _) => return self.leave(number),
            };
        if let Err(Error { code, message }) = outcome {
            debug!(message, "a process is not let in");
            let failure = Failure { code: code.number(), message };
            let said = ShimToProcess { body: Some(Body::Failure(failure)) }.encode_to_vec();
            let _ = connected_process.socket.try_send(&said, &[]);
            self.leave(number);
        }
    }

    fn leave(&mut self, number: u64) {
        let Some(connected_process) = self.connected_processes.remove(&number) else { return };
        self.hot.retain(|hot| *hot != number);
        self.slow.retain(|slow| *slow != number);
        let _ = epoll::delete(&self.epoll, connected_process.socket.as_fd());
        connected_process.socket.shutdown();
        if let Some(member) = connected_process.member {
            let _ = epoll::delete(&self.epoll, member.bell());
            lock(&self.state).leave(member.pid);
        }
    }

    /// Handles the bell of a process whose page was not polled.
    fn wake(&mut self, number: u64) {
        let Some(connected_process) = self.connected_processes.get_mut(&number) else { return };
        if let Some(member) = &connected_process.member {
            member.hush();
        }
        if !self.hot.contains(&number) && !self.slow.contains(&number) {
            connected_process.latest = self.now;
            self.hot.push(number);
        }
    }

    /// Polls each page of the processes that call, once.
    #[inline]
    fn look(&mut self) {
        let mut index = 0;
        while let Some(&number) = self.hot.get(index) {
            let Some(connected_process) = self.connected_processes.get_mut(&number) else {
                self.hot.swap_remove(index);
                continue;
            };
            match connected_process.serve(&self.state) {
                PagePoll::Call => {
                    connected_process.latest = self.now;
                    index += 1;
                }
                PagePoll::Nothing if connected_process.goes_to_sleep(self.now) => {
                    self.hot.swap_remove(index);
                }
                PagePoll::Nothing => index += 1,
                PagePoll::Nonsense(error) => {
                    debug!(%error, "a process is sent away");
                    self.leave(number);
                }
            }
        }
        self.account();
    }

    /// Charges each polled process its part of the time.
    #[inline]
    fn account(&mut self) {
        let now = Instant::now();
        let looked = now.saturating_duration_since(self.now);
        self.now = now;
        if now.duration_since(self.since) >= SHARED {
            self.since = now;
            self.connected_processes
                .values_mut()
                .for_each(|connected_process| connected_process.looked = Duration::ZERO);
        }
        let each = looked / u32::try_from(self.hot.len().max(1)).unwrap_or(u32::MAX);
        for number in &self.hot {
            if let Some(connected_process) = self.connected_processes.get_mut(number) {
                connected_process.looked += each;
            }
        }
        if self.hot.iter().any(|number| {
            self.connected_processes.get(number).is_some_and(ConnectedProcess::has_used_its_share)
        }) {
            self.slow_down();
        }
    }

    #[cold]
    fn slow_down(&mut self) {
        let connected_processes = &self.connected_processes;
        let (slow, hot) = self.hot.drain(..).partition::<Vec<_>, _>(|number| {
            connected_processes.get(number).is_some_and(ConnectedProcess::has_used_its_share)
        });
        self.hot = hot;
        self.slow.extend(slow);
    }

    /// Polls once for each process that has used up its share. The shares begin anew each second.
    fn look_slowly(&mut self) {
        if self.slow.is_empty() {
            return;
        }
        let now = self.now;
        let is_over = now.duration_since(self.since) >= SHARED;
        for number in std::mem::take(&mut self.slow) {
            let Some(connected_process) = self.connected_processes.get_mut(&number) else { continue };
            match connected_process.serve(&self.state) {
                _ if is_over => {
                    connected_process.latest = now;
                    self.hot.push(number);
                }
                PagePoll::Nonsense(_) => self.leave(number),
                PagePoll::Call | PagePoll::Nothing => self.slow.push(number),
            }
        }
    }
}

/// Outcome of polling one page.
enum PagePoll {
    Nothing,
    Call,
    Nonsense(Error),
}

impl ConnectedProcess {
    fn enter(
        &mut self,
        packet: &[u8],
        state: &Mutex<State>,
        epoll: &OwnedFd,
        number: u64,
    ) -> Result<(), Error> {
        let EnterShim { version } = decode("a process's first packet", packet)?;
        if version != wire::VERSION {
            let message = format!(
                "the process speaks version {version} of the shim's page, the agent {}",
                wire::VERSION
            );
            return Err(Error::new(Code::VersionMismatch, message));
        }
        let member = lock(state).enter(&self.who, self.socket.clone())?;
        let watched = watch(epoll, member.bell(), number | 1 << 63);
        // The process rings its bell from its first call on.
        while !member.sleep(self.next) {
            match self.serve_of(&member, state) {
                PagePoll::Call => {}
                PagePoll::Nothing => break,
                PagePoll::Nonsense(error) => return Err(error),
            }
        }
        self.member = Some(member);
        watched
    }

    /// Serves the next call, if there is one.
    #[inline]
    fn serve(&mut self, state: &Mutex<State>) -> PagePoll {
        match self.member.clone() {
            Some(member) => self.serve_of(&member, state),
            None => PagePoll::Nothing,
        }
    }

    #[inline]
    fn serve_of(&mut self, member: &Member, state: &Mutex<State>) -> PagePoll {
        let Some(request) = member.look(self.next) else { return PagePoll::Nothing };
        self.next += 1;
        match member.take(&request) {
            Ok((tag, Ok(call))) => lock(state).call(member.pid, tag, call),
            Ok((tag, Err(error))) => member.answer(tag, Err(error)),
            Err(error) => return PagePoll::Nonsense(error),
        }
        PagePoll::Call
    }

    fn has_used_its_share(&self) -> bool {
        self.looked >= SHARE
    }

    /// Whether the process has not called for long, so that its page is not polled until it rings.
    fn goes_to_sleep(&self, now: Instant) -> bool {
        let is_idle = now.saturating_duration_since(self.latest) >= LOOK;
        is_idle && self.member.as_ref().is_none_or(|member| member.sleep(self.next))
    }
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, number: u64) -> Result<(), Error> {
    let data = epoll::EventData::new_u64(number);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN)
        .map_err(|errno| Error::new(Code::System, format!("epoll_ctl failed: {errno}")))
}
