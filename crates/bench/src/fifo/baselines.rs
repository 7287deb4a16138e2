//! Measures the baselines of a FIFO: two threads on the same cores, by pipes, by a plain TCP connection, or by copies
//! only.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_proto::{Code, Error, to_usize};

use crate::peer_process::lost;
use crate::{PinnedCore, pin};

/// Parameters of a block.
#[derive(Clone, Copy)]
pub(super) struct FifoBlock {
    pub(super) rounds: u32,
    pub(super) think: Duration,
}

/// Connection between the two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FifoTransport {
    /// A FIFO of the kernel in each direction.
    Pipe,
    Tcp,
    /// [`Slots`] in each direction.
    Copies,
}

/// Shared memory into which one thread copies a message, and out of which the other copies it once a number announces
/// it. It does nothing else: no FIFO whose messages are copied in and out takes less time.
struct Slots {
    region: Arc<Region>,
    slot_bytes: u64,
    count: u64,
}

const _: () =
    assert!(Slots::COUNT * Slots::NUMBER_BYTES <= PAGE_BYTES, "the numbers reach into the first slot");

/// One direction of a connection, as one of its ends uses it.
enum Half {
    /// An end of a pipe or of a connection.
    File(std::fs::File),
    Slots(Slots),
}

/// Two threads on the same cores, with a connection in each direction.
pub(super) struct Beside {
    orders: [SyncSender<FifoBlock>; 2],
    took: Receiver<Result<u64, Error>>,
}

impl Beside {
    pub(super) fn start(carrier: FifoTransport, size: u32) -> Result<Beside, Error> {
        let ends = match carrier {
            FifoTransport::Pipe => pipes(),
            FifoTransport::Tcp => connection(),
            FifoTransport::Copies => slots(size),
        };
        let [one, two] =
            ends.map_err(|error| Error::new(Code::System, format!("pipes, sockets or memory: {error}")))?;
        let (tell, took) = sync_channel(2);
        let start = |core: PinnedCore, (from, to): (Half, Half), begins: bool| {
            let (order, orders) = sync_channel::<FifoBlock>(1);
            let tell = tell.clone();
            let body = move || {
                let mut end = BaselineEnd::new(from, to, size as usize, begins);
                let pinned = pin(core);
                for block in orders {
                    let took = pinned.clone().and_then(|()| end.block(block));
                    if begins || took.is_err() {
                        let _ = tell.send(took);
                    }
                }
            };
            let thread = std::thread::Builder::new().name("fifo".into()).spawn(body);
            thread.map_err(|error| Error::new(Code::System, format!("cannot start a thread: {error}")))?;
            Ok::<_, Error>(order)
        };
        let first = start(PinnedCore::Last, one, true)?;
        let second = start(PinnedCore::First, two, false)?;
        Ok(Beside { orders: [first, second], took })
    }

    pub(super) fn block(&self, block: FifoBlock) -> Result<u64, Error> {
        for order in self.orders.iter().rev() {
            order.send(block).map_err(|_| lost())?;
        }
        self.took.recv().map_err(|_| lost())?
    }
}

struct BaselineEnd {
    from: Half,
    to: Half,
    memory: Vec<u8>,
    /// Position of the message in the memory: from the beginning of a page on, as on Sublet's side.
    message: Range<usize>,
    begins: bool,
}

impl BaselineEnd {
    fn new(from: Half, to: Half, size: usize, begins: bool) -> BaselineEnd {
        let memory = vec![7; size + to_usize(PAGE_BYTES)];
        let at = memory.as_ptr().align_offset(to_usize(PAGE_BYTES)).min(to_usize(PAGE_BYTES));
        debug_assert_eq!(
            (memory.as_ptr().addr() + at) % to_usize(PAGE_BYTES),
            0,
            "the message begins at {at}"
        );
        BaselineEnd { from, to, memory, message: at..at + size, begins }
    }

    fn block(&mut self, FifoBlock { rounds, think }: FifoBlock) -> Result<u64, Error> {
        let failed =
            |error: std::io::Error| Error::new(Code::System, format!("a FIFO of the measurement: {error}"));
        if let Half::File(from) = &self.from {
            rustix::io::ioctl_fionbio(from, think.is_zero()).map_err(|error| failed(error.into()))?;
        }
        let mut took = Duration::ZERO;
        for _ in 0..rounds {
            let mut since = Instant::now();
            if self.begins {
                while since.elapsed() < think {}
                since = Instant::now();
                self.send().map_err(failed)?;
            }
            self.receive().map_err(failed)?;
            if self.begins {
                took += since.elapsed();
            } else {
                self.send().map_err(failed)?;
            }
        }
        Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
    }

    fn send(&mut self) -> std::io::Result<()> {
        let message = &self.memory[self.message.clone()];
        match &mut self.to {
            Half::File(to) => write_all(to, message),
            Half::Slots(slots) => slots.put(message).ok_or_else(|| ErrorKind::InvalidData.into()),
        }
    }

    fn receive(&mut self) -> std::io::Result<()> {
        let message = &mut self.memory[self.message.clone()];
        match &mut self.from {
            Half::File(from) => read_all(from, message),
            Half::Slots(slots) => slots.take(message).ok_or_else(|| ErrorKind::InvalidData.into()),
        }
    }
}

fn write_all(to: &mut std::fs::File, mut rest: &[u8]) -> std::io::Result<()> {
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(some) => rest = &rest[some..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_all(from: &mut std::fs::File, mut rest: &mut [u8]) -> std::io::Result<()> {
    while !rest.is_empty() {
        match from.read(rest) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(some) => rest = &mut rest[some..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Slots {
    /// Default number of slots of a ring, and the size of its copies.
    const COUNT: u64 = 16;
    const PIECE_BYTES: usize = 1024;
    /// Bytes of a number. The numbers come first, each in a cache line of its own.
    const NUMBER_BYTES: u64 = 64;

    fn put(&mut self, message: &[u8]) -> Option<()> {
        debug_assert!(
            message.len() as u64 <= self.slot_bytes,
            "{} bytes in a slot of {}",
            message.len(),
            self.slot_bytes
        );
        let (number, at) = self.next();
        for (piece, bytes) in (0..).zip(message.chunks(Slots::PIECE_BYTES)) {
            self.region.write(at + piece * Slots::PIECE_BYTES as u64, bytes)?;
        }
        self.region.view::<AtomicU64>(number)?.store(self.count, Ordering::Release);
        Some(())
    }

    fn take(&mut self, message: &mut [u8]) -> Option<()> {
        let (number, at) = self.next();
        let number = self.region.view::<AtomicU64>(number)?;
        while number.load(Ordering::Acquire) != self.count {
            std::hint::spin_loop();
        }
        for (piece, bytes) in (0..).zip(message.chunks_mut(Slots::PIECE_BYTES)) {
            self.region.read(at + piece * Slots::PIECE_BYTES as u64, bytes)?;
        }
        Some(())
    }

    /// Offsets of the number of the next slot, and of the slot.
    fn next(&mut self) -> (u64, u64) {
        let slot = self.count % Slots::COUNT;
        self.count += 1;
        (slot * Slots::NUMBER_BYTES, PAGE_BYTES + slot * self.slot_bytes)
    }
}

/// For each of two ends, the half that it reads and the half that it writes.
type Ends = [(Half, Half); 2];

fn file(descriptor: impl Into<OwnedFd>) -> Half {
    Half::File(descriptor.into().into())
}

fn pipes() -> std::io::Result<Ends> {
    let (forth, back) = (pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?);
    Ok([(file(back.0), file(forth.1)), (file(forth.0), file(back.1))])
}

/// A TCP connection within this machine, without delay.
fn connection() -> std::io::Result<Ends> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (two, _) = listener.accept()?;
    let both = |stream: TcpStream| {
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>((file(stream.try_clone()?), file(stream)))
    };
    Ok([both(one)?, both(two)?])
}

fn slots(size: u32) -> std::io::Result<Ends> {
    let slot_bytes = u64::from(size).next_multiple_of(PAGE_BYTES);
    let one_way = || {
        let region = Region::create("sublet-copies", PAGE_BYTES + Slots::COUNT * slot_bytes);
        let region = Arc::new(region.map_err(std::io::Error::other)?);
        let half = || Half::Slots(Slots { region: region.clone(), slot_bytes, count: 0 });
        Ok::<_, std::io::Error>((half(), half()))
    };
    let (forth, back) = (one_way()?, one_way()?);
    Ok([(back.0, forth.0), (forth.1, back.1)])
}
