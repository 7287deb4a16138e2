//! Measures a message from one process to another through a FIFO of the shim, beside the same through a Linux FIFO; or
//! from one node to another on the same machine, beside the same over a plain TCP connection.
//!
//! Sublet's side goes between two worker processes in sandboxes of their own. A Linux FIFO needs a file system that
//! both processes see, so the other side consists of two threads of this process on the same two cores: a pipe costs
//! them no more than it costs two processes. Both sides send back and forth in blocks that alternate; a message takes
//! half of a round. In the state *awake* the receiver polls for the message (the Linux FIFO is read without blocking).
//! In the state *asleep* the writer pauses before each round, so that its peer sleeps.
//!
//! Within a node a third side only copies: the least time of a FIFO that copies a message in and out.

mod baselines;

use std::time::{Duration, Instant};

use serde::Serialize;
use sublet_proto::{Code, Error};
use sublet_runtime::Access;
use sublet_runtime::manager::ManagerClient;

use super::peer_process::{self, PeerProcess};
use super::private_instance::{PrivateInstance, measured};
use super::{PinnedCore, Samples, human_ns, pin};
use baselines::{Beside, FifoBlock, FifoTransport};

/// Rounds of a block.
const AWAKE_ROUNDS: u32 = 256;
const ASLEEP_ROUNDS: u32 = 16;
/// Pause of the writer, so that its peer sleeps.
const THINK: Duration = Duration::from_micros(200);
/// Longest time until two nodes are linked, and part of the error before that.
const LINKING: Duration = Duration::from_secs(10);
const UNLINKED: &str = "no neighbour, or is out of reach";
/// Blocks before the counted ones.
const UNCOUNTED: u32 = 2;

/// Largest message that is measured.
pub const MAX_BYTES: u32 = 512 << 10;
/// Sizes that are measured by default, in bytes.
pub const SIZES: &[u32] = &[64, 1 << 10, 4 << 10, 64 << 10];

/// Results for one size: medians of blocks, one way.
#[derive(Clone, Debug, Serialize)]
pub struct FifoResult {
    bench: &'static str,
    /// Whether the message goes between two nodes, over TCP.
    across: bool,
    size_bytes: u32,
    blocks: u32,
    median_ns: f64,
    /// Time through a Linux FIFO, or, between nodes, over a plain TCP connection.
    raw_ns: f64,
    /// Ratio of both, with both peers awake.
    ratio: f64,
    /// Within a node: time of the copies only, and its ratio to the Linux FIFO.
    copies_ns: Option<f64>,
    copies_ratio: Option<f64>,
    asleep_ns: f64,
    raw_asleep_ns: f64,
    asleep_ratio: f64,
}

/// The headings of [`FifoResult::cells`].
pub const HEADINGS: [&str; 9] =
    ["BYTES", "AWAKE", "RAW", "RATIO", "COPIES", "RATIO", "ASLEEP", "RAW", "RATIO"];

impl FifoResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 9] {
        let or_none = |shown: Option<String>| shown.unwrap_or_else(|| "-".into());
        [
            self.size_bytes.to_string(),
            human_ns(self.median_ns),
            human_ns(self.raw_ns),
            format!("{:.2}", self.ratio),
            or_none(self.copies_ns.map(human_ns)),
            or_none(self.copies_ratio.map(|ratio| format!("{ratio:.2}"))),
            human_ns(self.asleep_ns),
            human_ns(self.raw_asleep_ns),
            format!("{:.2}", self.asleep_ratio),
        ]
    }
}

/// Measures `blocks` blocks of every size. Without a manager it starts a private Sublet, or, between nodes, a private
/// one of two nodes.
pub fn run(
    access: Option<Access>,
    across: bool,
    blocks: u32,
    sizes: &[u32],
    mut done: impl FnMut(),
) -> Result<Vec<FifoResult>, Error> {
    if let Some(size) = sizes.iter().find(|size| **size > MAX_BYTES) {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{size} bytes: at most {MAX_BYTES} are measured"),
        ));
    }
    let start = || if across { computer() } else { Ok(vec![PrivateInstance::up(&["--cores", "2"])?]) };
    let (access, _own) = measured(access, start)?;
    peer_process::deploy(&ManagerClient::connect_with(access.clone())?)?;
    let carrier = if across { FifoTransport::Tcp } else { FifoTransport::Pipe };
    let (one, two) = match across {
        false => (PeerProcess::start(&access)?, PeerProcess::start(&access)?),
        true => (PeerProcess::start_on(&access, "cpu")?, PeerProcess::start_on(&access, "dpu")?),
    };
    let mut figures = Vec::new();
    for &size in sizes {
        let ours = SubletFifos::new(&one, &two, size)?;
        let raw = Beside::start(carrier, size)?;
        let mut sides: Vec<Side<'_>> =
            vec![Box::new(|block| ours.block(block)), Box::new(|block| raw.block(block))];
        if !across {
            let copies = Beside::start(FifoTransport::Copies, size)?;
            sides.push(Box::new(move |block| copies.block(block)));
        }
        let awake = FifoBlock { rounds: AWAKE_ROUNDS, think: Duration::ZERO };
        let asleep = FifoBlock { rounds: ASLEEP_ROUNDS, think: THINK };
        let (awake, asleep) = (medians(&sides, blocks, awake)?, medians(&sides[..2], blocks, asleep)?);
        let copies_ns = awake.get(2).copied();
        figures.push(FifoResult {
            bench: "fifo",
            across,
            size_bytes: size,
            blocks,
            median_ns: awake[0],
            raw_ns: awake[1],
            ratio: awake[0] / awake[1],
            copies_ns,
            copies_ratio: copies_ns.map(|copies| copies / awake[1]),
            asleep_ns: asleep[0],
            raw_asleep_ns: asleep[1],
            asleep_ratio: asleep[0] / asleep[1],
        });
        done();
    }
    Ok(figures)
}

/// Starts a manager, and a host and a DPU that name each other, each with a core.
fn computer() -> Result<Vec<PrivateInstance>, Error> {
    let manager = PrivateInstance::manager(&["--listen", ""])?;
    let agent = |core: PinnedCore, name: &str, pu: &str, neighbour: &str| {
        pin(core)?;
        let flags = ["--pu", pu, "--neighbour", neighbour, "--devices", "none", "--listen", "127.0.0.1:0"];
        manager.agent(name, &[["--cores", "1"].as_slice(), &flags].concat())
    };
    let host = agent(PinnedCore::Last, "bench-host", "cpu", "bench-dpu")?;
    let dpu = agent(PinnedCore::First, "bench-dpu", "dpu", "bench-host")?;
    Ok(vec![manager, host, dpu])
}

/// Repeats an operation until two new nodes are linked.
fn linked<T>(make: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let until = Instant::now() + LINKING;
    loop {
        match make() {
            Err(error) if error.message.contains(UNLINKED) && Instant::now() < until => {
                std::thread::sleep(THINK);
            }
            made => return made,
        }
    }
}

/// One side: executes a block, and returns the time of its rounds, in nanoseconds.
type Side<'sides> = Box<dyn Fn(FifoBlock) -> Result<u64, Error> + 'sides>;

/// Executes blocks of all sides in turn. Returns each side's median time of a message, in nanoseconds.
fn medians(sides: &[Side<'_>], blocks: u32, block: FifoBlock) -> Result<Vec<f64>, Error> {
    let mut samples: Vec<_> = sides.iter().map(|_| Samples::with_capacity(blocks as usize)).collect();
    for number in 0..UNCOUNTED + blocks {
        for (side, samples) in sides.iter().zip(&mut samples) {
            let took = side(block)?;
            if number >= UNCOUNTED {
                samples.push(took);
            }
        }
    }
    // A round is two messages.
    let messages = f64::from(block.rounds) * 2.0;
    Ok(samples.iter_mut().map(|samples| samples.summary(messages).median_ns).collect())
}

/// Two worker processes, with a FIFO each way.
struct SubletFifos<'peers> {
    one: &'peers PeerProcess,
    two: &'peers PeerProcess,
    size: u64,
    /// For each end, the descriptor that it reads and the one that it writes.
    ends: [[u64; 2]; 2],
}

impl<'peers> SubletFifos<'peers> {
    fn new(
        one: &'peers PeerProcess,
        two: &'peers PeerProcess,
        size: u32,
    ) -> Result<SubletFifos<'peers>, Error> {
        let size = u64::from(size);
        let (first, second) = (one.make(size)?, two.make(size)?);
        // The second connects back once it has been written to, as a server does.
        let forth = linked(|| one.join(two, second))?;
        let [] = one.call("say", &[forth])?;
        let [_] = two.call("hear", &[second.descriptor])?;
        let back = linked(|| two.join(one, first))?;
        let ends = [[first.descriptor, forth], [second.descriptor, back]];
        Ok(SubletFifos { one, two, size, ends })
    }

    /// Executes a block. Returns the time of its rounds, in nanoseconds.
    fn block(&self, FifoBlock { rounds, think }: FifoBlock) -> Result<u64, Error> {
        let words = |[from, to]: [u64; 2], begins: bool| {
            let think_ns = if begins { u64::try_from(think.as_nanos()).unwrap_or(u64::MAX) } else { 0 };
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
