//! Tests that a stream allocates nothing once it has started, whether its ends poll or sleep. Also shows that the
//! allocation counter works.

#![allow(clippy::unwrap_used, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sublet_fabric::exposed::{ExposedMemory, OWN};
use sublet_fabric::line::Turn;
use sublet_fabric::region::Region;
use sublet_fabric::tcp::{ByteStream, TcpEndpoint};
use sublet_fabric::window::{LineAddress, RegionAddress, Window};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duty.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: u64 = 1 << 20;
const DATA: u64 = 4096;
const LINE: LineAddress = LineAddress { region: OWN, line: 0, watch: 64 };
/// Number of counted turns, and of turns before and after, in which threads begin and end.
const TURNS: u64 = 300;
const MARGIN: u64 = 50;

struct Side {
    own: Region,
    end: TcpEndpoint,
}

impl Side {
    fn new(socket: TcpStream) -> Side {
        let own = Region::create("own", LEN).unwrap();
        let window = Arc::new(Window::new(2, 4096).unwrap());
        let end = TcpEndpoint::new(Arc::new(ExposedMemory::new(&own, window, 2).unwrap()), None);
        end.connect(ByteStream::plain(socket).unwrap()).unwrap();
        Side { own, end }
    }

    fn send(&self, n: u64) {
        for (place, len) in [(0, 64), (64, 4096), (8192, 100_000)] {
            let from = self.own.pointer(DATA + place, len).unwrap();
            // SAFETY: no thread writes there while this side has the turn.
            unsafe { self.end.push(RegionAddress { region: OWN, offset: DATA + place }, from, len) }.unwrap();
        }
        self.end.put(RegionAddress { region: OWN, offset: 512 }, &n.to_ne_bytes()).unwrap();
        self.end.put_imm(LINE, Turn::of_use(n), 1, &[n, 2, 3]).unwrap();
    }

    fn receive(&self, n: u64, spins: bool) {
        let line = (self.own.view(LINE.line).unwrap(), self.own.view(LINE.watch).unwrap());
        if spins {
            while !self.end.spin(line, Turn::of_use(n), 128) {
                assert_eq!(self.end.down(), None);
            }
        } else {
            assert!(self.end.wait(line, Turn::of_use(n), None, || false));
        }
    }
}

/// Allocations of both sides.
fn allocations(spins: bool) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let left = Side::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let right = Side::new(listener.accept().unwrap().0);
    left.end.reach(OWN, right.end.expose(OWN).unwrap()).unwrap();
    right.end.reach(OWN, left.end.expose(OWN).unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..TURNS + 2 * MARGIN {
                right.receive(n, spins);
                right.send(n);
            }
        });
        let counted = || ALLOCATIONS.load(Ordering::Relaxed);
        let mut counts = [0; 2];
        for n in 0..TURNS + 2 * MARGIN {
            match n {
                MARGIN => counts[0] = counted(),
                _ if n == MARGIN + TURNS => counts[1] = counted(),
                _ => {}
            }
            left.send(n);
            left.receive(n, spins);
        }
        counts[1] - counts[0]
    })
}

#[test]
fn what_goes_over_a_stream_allocates_nothing() {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1u64)));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before, "it counts");
    for spins in [true, false] {
        assert_eq!(allocations(spins), 0, "in {TURNS} turns, spinning: {spins}");
    }
}
