//! Two ends over a provider of libfabric that needs no hardware (tcp;ofi_rxm), or the one that the environment names:
//! `SUBLET_CONFORMANCE_OFI`, and an address of its interface in `SUBLET_CONFORMANCE_OFI_TOWARD`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sublet_fabric::line::{LINE_BYTES, Turn};
use sublet_fabric::ofi::{Endpoint, Network};
use sublet_fabric::region::Region;

use crate::pairs::{LEN, Node, Passive};

/// A thread that waits on an end for ever, as a worker does: it makes progress.
pub struct Waiter {
    done: Arc<AtomicBool>,
    end: Arc<Endpoint>,
    thread: Option<JoinHandle<()>>,
}

impl Waiter {
    fn start(end: Arc<Endpoint>, own: Region) -> Waiter {
        let done = Arc::new(AtomicBool::new(false));
        let (stop, waits) = (done.clone(), end.clone());
        let thread = std::thread::spawn(move || {
            let line = (own.view(0).unwrap(), own.view(LINE_BYTES).unwrap());
            waits.wait(line, Turn::of_use(0), None, || stop.load(Ordering::SeqCst));
        });
        Waiter { done, end, thread: Some(thread) }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        self.end.disconnect("the test is over");
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Two connected ends, the second served by a thread; it rings the bell.
pub fn ends(bell: OwnedFd) -> (Endpoint, Passive, Waiter) {
    let or = |name, default: &str| std::env::var(name).unwrap_or(default.into());
    let toward = or("SUBLET_CONFORMANCE_OFI_TOWARD", "127.0.0.1").parse().unwrap();
    let network = Network::of(&or("SUBLET_CONFORMANCE_OFI", "tcp;ofi_rxm")).toward(toward);
    let (ours, theirs) = (Node::new(LEN), Node::new(LEN));
    let end = Endpoint::new(ours.exposed.clone(), None);
    let passive = Arc::new(Endpoint::new(theirs.exposed.clone(), Some(bell)));
    let contact = end.open(&network).unwrap();
    let answer = passive.accept(&network, &contact).unwrap();
    let waiter = Waiter::start(passive.clone(), theirs.own);
    end.connect(&answer).unwrap();
    (end, Passive::Ofi(passive, theirs.exposed), waiter)
}
