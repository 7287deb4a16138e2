//! Two sides that are both at work: each waits on its own end and reaches the other's own region.

use std::sync::atomic::{AtomicBool, Ordering};

use sublet_fabric::exposed::OWN;
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, ofi, shm};

use crate::libfabric;
use crate::pairs::{PairSide, PairTransport, connect, introduce, streams};

/// One of two sides.
pub struct Side {
    pub node: PairSide,
    pub end: Endpoint,
}

/// Two sides with own regions of these sizes, which [`join`] connects. Their memory may be mapped anew until then.
pub fn sides(pair_transport: PairTransport, own_bytes: [u64; 2]) -> [Side; 2] {
    let nodes = own_bytes.map(PairSide::new);
    let ends = [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])].map(|(ours, theirs)| match pair_transport {
        PairTransport::Shm => {
            let len_bytes = theirs.own.len_bytes();
            let end = shm::ShmEndpoint::new(Window::new(1, len_bytes).unwrap(), None);
            end.register(OWN, theirs.own.fd(), len_bytes).unwrap();
            Endpoint::Shm(end)
        }
        PairTransport::Tcp | PairTransport::Tls | PairTransport::Sim(_) => Endpoint::Tcp(ours.end(None)),
        PairTransport::Ofi => Endpoint::Ofi(ofi::OfiEndpoint::new(ours.exposed.clone(), None)),
    });
    let mut ends = ends.into_iter();
    nodes.map(|node| Side { node, end: ends.next().unwrap() })
}

/// Connects the two sides.
pub fn join(pair_transport: PairTransport, [left, right]: &[Side; 2]) {
    match (&left.end, &right.end) {
        (Endpoint::Tcp(ours), Endpoint::Tcp(theirs)) => {
            let streams = streams(pair_transport);
            connect((ours, streams.0), (theirs, streams.1));
            introduce(ours, theirs);
        }
        (Endpoint::Ofi(ours), Endpoint::Ofi(theirs)) => libfabric::meet(ours, theirs),
        // Sides that share memory are connected already.
        _ => {}
    }
}

impl Side {
    pub fn line(&self, offset: u64) -> (&Line, &Watch) {
        self.node.line(offset)
    }

    /// Waits for a line of its own.
    pub fn receive(&self, offset: u64, turn: Turn) {
        assert!(self.end.wait(self.line(offset), turn, None, || false), "{:?}", self.end.down());
    }

    /// Waits, as a worker does, while `act` runs at the other side.
    pub fn serving<T>(&self, act: impl FnOnce() -> T) -> T {
        /// Ends the wait, even if `act` panics.
        struct Stop<'a>(&'a AtomicBool, &'a Side);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
                self.1.end.poke(self.1.line(0).1);
            }
        }
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let never = Turn::of_use(u64::from(u32::MAX) - 1);
                self.end.wait(self.line(0), never, None, || is_done.load(Ordering::SeqCst))
            });
            let _stop = Stop(&is_done, self);
            act()
        })
    }
}
