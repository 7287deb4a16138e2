//! Two ends over a provider of libfabric that needs no hardware (tcp;ofi_rxm), or over the provider that the
//! environment names: `SUBLET_CONFORMANCE_OFI`, and an address of its interface in `SUBLET_CONFORMANCE_OFI_TOWARD`. A
//! run with a named provider tests only that provider.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sublet_fabric::exposed::OWN;
use sublet_fabric::line::{LINE_BYTES, Turn};
use sublet_fabric::ofi::{OfiEndpoint, OfiNetwork};
use sublet_fabric::region::Region;

use crate::pairs::{LEN, PairSide, Passive};

const PROVIDER: &str = "SUBLET_CONFORMANCE_OFI";
const TOWARD: &str = "SUBLET_CONFORMANCE_OFI_TOWARD";

/// A thread that waits on an endpoint without a limit, as a worker does, and so makes progress.
pub struct Waiter {
    done: Arc<AtomicBool>,
    end: Arc<OfiEndpoint>,
    thread: Option<JoinHandle<()>>,
}

impl Waiter {
    fn start(end: Arc<OfiEndpoint>, own: Region) -> Waiter {
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

/// Whether the environment names a provider.
pub fn is_named() -> bool {
    std::env::var_os(PROVIDER).is_some()
}

fn network() -> OfiNetwork {
    let or = |name, default: &str| std::env::var(name).unwrap_or(default.into());
    let toward = or(TOWARD, "127.0.0.1").parse().unwrap();
    OfiNetwork::of(&or(PROVIDER, "tcp;ofi_rxm")).toward(toward)
}

/// Two connected ends, the second served by a thread; it rings the bell.
pub fn ends(bell: OwnedFd) -> (OfiEndpoint, Passive, Waiter) {
    let (ours, theirs) = (PairSide::new(LEN), PairSide::new(LEN));
    let end = OfiEndpoint::new(ours.exposed.clone(), None);
    let passive = Arc::new(OfiEndpoint::new(theirs.exposed.clone(), Some(bell)));
    let answer = open(&end, &passive);
    let waiter = Waiter::start(passive.clone(), theirs.own);
    end.connect(&answer).unwrap();
    (end, Passive::Ofi(passive, theirs.exposed), waiter)
}

/// Connects two ends, each of which learns how the other's own region is reached.
pub fn meet(ours: &OfiEndpoint, theirs: &OfiEndpoint) {
    let answer = open(ours, theirs);
    let is_connected = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_connected.load(Ordering::SeqCst) {
                // That it is down is for the test to find.
                let _ = theirs.progress();
                std::thread::yield_now();
            }
        });
        let connected = ours.connect(&answer);
        is_connected.store(true, Ordering::SeqCst);
        connected.unwrap();
    });
    ours.reach(OWN, theirs.expose(OWN).unwrap()).unwrap();
    theirs.reach(OWN, ours.expose(OWN).unwrap()).unwrap();
}

/// Opens the network at both; returns what the first connects to.
pub fn open(ours: &OfiEndpoint, theirs: &OfiEndpoint) -> Vec<u8> {
    let network = network();
    let contact = ours.open(&network).unwrap();
    theirs.accept(&network, &contact).unwrap()
}
