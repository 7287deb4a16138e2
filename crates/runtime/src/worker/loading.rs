//! Tells the client the steps of a worker process that loads its package, as long as it loads.
//!
//! The last step is reported again at intervals, from a thread of its own: so a client knows a process that imports for
//! minutes from one that is stopped. A process that reports no step has no such thread.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use std::os::fd::{AsFd, OwnedFd};

use sublet_fabric::packet::PacketSocket;
use sublet_fabric::sync::lock;
use sublet_proto::v1;
use sublet_proto::v1::worker_to_client::Body;

use super::control;

/// Interval at which a step is reported again.
const AGAIN: Duration = Duration::from_secs(2);

/// State of the loading, which one process does once.
struct Loading {
    socket: Option<OwnedFd>,
    step: String,
    thread: Option<JoinHandle<()>>,
}

static LOADING: Mutex<Loading> = Mutex::new(Loading { socket: None, step: String::new(), thread: None });
static OVER: Condvar = Condvar::new();

/// Lets steps be reported on this control socket from now on.
pub(super) fn begin(socket: &PacketSocket) {
    // Without a copy no steps are reported.
    lock(&LOADING).socket = socket.as_fd().try_clone_to_owned().ok();
}

/// Tells a step, if this process is loading.
pub fn step(step: &str) {
    let mut loading = lock(&LOADING);
    if loading.socket.is_none() {
        return;
    }
    step.clone_into(&mut loading.step);
    loading.tell();
    if loading.thread.is_none() {
        // Without the thread the step is reported once.
        loading.thread = std::thread::Builder::new().name("loading".to_owned()).spawn(repeat).ok();
    }
}

/// Ends the loading: nothing more is reported when this returns.
pub(super) fn end() {
    let thread = {
        let mut loading = lock(&LOADING);
        loading.socket = None;
        loading.thread.take()
    };
    if let Some(thread) = thread {
        OVER.notify_all();
        // It has nothing to return.
        let _ = thread.join();
    }
}

fn repeat() {
    let mut loading = lock(&LOADING);
    while loading.socket.is_some() {
        let (waited, timeout) = OVER.wait_timeout(loading, AGAIN).unwrap_or_else(PoisonError::into_inner);
        loading = waited;
        if timeout.timed_out() {
            loading.tell();
        }
    }
}

impl Loading {
    fn tell(&self) {
        let Some(socket) = self.socket.as_ref().and_then(|socket| socket.try_clone().ok()) else { return };
        // A client that is gone needs no steps; the process ends by itself.
        let progress = v1::Progress { step: self.step.clone() };
        let _ = control::send(&PacketSocket::from(socket), Body::Progress(progress));
    }
}
