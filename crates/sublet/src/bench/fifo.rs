//! A message from one process to another through a FIFO of the shim, beside the same through a Linux FIFO.
//!
//! Ours goes between two worker processes in sandboxes of their own. A Linux FIFO needs a file system that both see, so the other
//! side are two threads of this process on the same two cores: a pipe costs them no more than two processes. Both sides go to and
//! fro in blocks that alternate; a message takes half of a round. *Awake*, whoever waits looks for the message all the time (the
//! Linux FIFO is read without blocking); *asleep*, the writer pauses before each round, so that its peer sleeps.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use sublet_proto::{Code, Error};
use sublet_runtime::Access;
use sublet_runtime::manager::ManagerClient;

use super::kin::{self, Kin, lost};
use super::own::Own;
use super::{Core, Samples, human_ns, pin};

/// Rounds of a block.
const AWAKE_ROUNDS: u32 = 256;
const ASLEEP_ROUNDS: u32 = 16;
/// How long the writer pauses, so that its peer sleeps.
const THINK: Duration = Duration::from_micros(200);
/// Blocks that come first and are not counted.
const UNCOUNTED: u32 = 2;

/// Largest message that is measured.
pub const MAX_BYTES: u32 = 512 << 10;
/// What is measured if nothing is said, in bytes.
pub const SIZES: &[u32] = &[64, 1 << 10, 4 << 10, 64 << 10];

/// One size's figures: one way, medians of blocks.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    bench: &'static str,
    size_bytes: u32,
    blocks: u32,
    median_ns: f64,
    linux_ns: f64,
    /// Over the Linux FIFO, both awake.
    ratio: f64,
    asleep_ns: f64,
    linux_asleep_ns: f64,
    asleep_ratio: f64,
}

/// The headings of [`Figure::cells`].
pub const HEADINGS: [&str; 7] = ["BYTES", "AWAKE", "LINUX FIFO", "RATIO", "ASLEEP", "LINUX FIFO", "RATIO"];

impl Figure {
    /// For a table.
    pub fn cells(&self) -> [String; 7] {
        [
            self.size_bytes.to_string(),
            human_ns(self.median_ns),
            human_ns(self.linux_ns),
            format!("{:.2}", self.ratio),
            human_ns(self.asleep_ns),
            human_ns(self.linux_asleep_ns),
            format!("{:.2}", self.asleep_ratio),
        ]
    }
}

/// How a block goes.
#[derive(Clone, Copy)]
struct Block {
    rounds: u32,
    think: Duration,
}

/// Measures every size, so many blocks each. Without a manager it has a Sublet of its own.
pub fn run(
    access: Option<Access>,
    blocks: u32,
    sizes: &[u32],
    mut done: impl FnMut(),
) -> Result<Vec<Figure>, Error> {
    if let Some(size) = sizes.iter().find(|size| **size > MAX_BYTES) {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{size} bytes: at most {MAX_BYTES} are measured"),
        ));
    }
    let own = access.is_none().then(|| Own::up(&["--cores", "2"])).transpose()?;
    let Some(access) = access.or_else(|| own.as_ref().map(Own::access)) else { return Err(lost()) };
    kin::deploy(&ManagerClient::connect_with(access.clone())?)?;
    let (one, two) = (Kin::start(&access)?, Kin::start(&access)?);
    let mut figures = Vec::new();
    for &size in sizes {
        let ours = Ours::new(&one, &two, size)?;
        let linux = Linux::start(size)?;
        let awake = pairs(&ours, &linux, blocks, Block { rounds: AWAKE_ROUNDS, think: Duration::ZERO })?;
        let asleep = pairs(&ours, &linux, blocks, Block { rounds: ASLEEP_ROUNDS, think: THINK })?;
        figures.push(Figure {
            bench: "fifo",
            size_bytes: size,
            blocks,
            median_ns: awake.0,
            linux_ns: awake.1,
            ratio: awake.0 / awake.1,
            asleep_ns: asleep.0,
            linux_asleep_ns: asleep.1,
            asleep_ratio: asleep.0 / asleep.1,
        });
        done();
    }
    Ok(figures)
}

/// A block of ours after one of theirs; a message of each.
fn pairs(ours: &Ours<'_>, linux: &Linux, blocks: u32, block: Block) -> Result<(f64, f64), Error> {
    let (mut own, mut theirs) =
        (Samples::with_capacity(blocks as usize), Samples::with_capacity(blocks as usize));
    for number in 0..UNCOUNTED + blocks {
        let (a, b) = (ours.block(block)?, linux.block(block)?);
        if number >= UNCOUNTED {
            own.push(a);
            theirs.push(b);
        }
    }
    // A round is two messages.
    let one_way = |samples: &mut Samples| samples.summary(f64::from(block.rounds) * 2.0).median_ns;
    Ok((one_way(&mut own), one_way(&mut theirs)))
}

/// Two worker processes, with a FIFO each way.
struct Ours<'kin> {
    one: &'kin Kin,
    two: &'kin Kin,
    size: u64,
    /// What each reads, and what it writes to.
    ends: [[u64; 2]; 2],
}

impl<'kin> Ours<'kin> {
    fn new(one: &'kin Kin, two: &'kin Kin, size: u32) -> Result<Ours<'kin>, Error> {
        let size = u64::from(size);
        let (first, second) = (one.make(size)?, two.make(size)?);
        let ends = [[first.descriptor, one.join(two, second)?], [second.descriptor, two.join(one, first)?]];
        Ok(Ours { one, two, size, ends })
    }

    /// How long its rounds take, in nanoseconds.
    fn block(&self, Block { rounds, think }: Block) -> Result<u64, Error> {
        let words = |[from, to]: [u64; 2], begins: bool| {
            let think_ns = if begins { think.as_nanos() as u64 } else { 0 };
            [from, to, u64::from(rounds), self.size, u64::from(begins), think_ns]
        };
        let (first, second) = (words(self.ends[0], true), words(self.ends[1], false));
        let (mut took, mut nothing) = ([0u64], [0u64]);
        let answering = self.two.begin("rounds", &second, &mut nothing)?;
        self.one.begin("rounds", &first, &mut took)?.wait()?;
        answering.wait()?;
        Ok(took[0])
    }
}

/// Two threads on the same cores, with a pipe each way.
struct Linux {
    orders: [SyncSender<Block>; 2],
    took: Receiver<Result<u64, Error>>,
}

impl Linux {
    fn start(size: u32) -> Result<Linux, Error> {
        let failed = |error: rustix::io::Errno| Error::new(Code::System, format!("pipe2 failed: {error}"));
        let (forth, back) =
            (pipe_with(PipeFlags::CLOEXEC).map_err(failed)?, pipe_with(PipeFlags::CLOEXEC).map_err(failed)?);
        let (tell, took) = sync_channel(2);
        let start = |core: Core, (from, to): (OwnedFd, OwnedFd), begins: bool| {
            let (order, orders) = sync_channel::<Block>(1);
            let tell = tell.clone();
            let body = move || {
                let mut end =
                    LinuxEnd { from: from.into(), to: to.into(), message: vec![7; size as usize], begins };
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
        let first = start(Core::Last, (back.0, forth.1), true)?;
        let second = start(Core::First, (forth.0, back.1), false)?;
        Ok(Linux { orders: [first, second], took })
    }

    fn block(&self, block: Block) -> Result<u64, Error> {
        for order in self.orders.iter().rev() {
            order.send(block).map_err(|_| lost())?;
        }
        self.took.recv().map_err(|_| lost())?
    }
}

struct LinuxEnd {
    from: std::fs::File,
    to: std::fs::File,
    message: Vec<u8>,
    begins: bool,
}

impl LinuxEnd {
    fn block(&mut self, Block { rounds, think }: Block) -> Result<u64, Error> {
        let failed =
            |error: std::io::Error| Error::new(Code::System, format!("a FIFO of the measurement: {error}"));
        let blocking = !think.is_zero();
        rustix::io::ioctl_fionbio(&self.from, !blocking).map_err(|error| failed(error.into()))?;
        let mut took = Duration::ZERO;
        for _ in 0..rounds {
            let mut since = Instant::now();
            if self.begins {
                while since.elapsed() < think {}
                since = Instant::now();
                self.to.write_all(&self.message).map_err(failed)?;
            }
            self.receive().map_err(failed)?;
            if self.begins {
                took += since.elapsed();
            } else {
                self.to.write_all(&self.message).map_err(failed)?;
            }
        }
        Ok(took.as_nanos() as u64)
    }

    fn receive(&mut self) -> std::io::Result<()> {
        let mut got = 0;
        while got < self.message.len() {
            match self.from.read(&mut self.message[got..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(some) => got += some,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
