//! Measures reads and writes of memory components, beside the same bytes without Sublet.
//!
//! Both sides access the same number of bytes, in accesses of one size, with alternating blocks. In shared memory the
//! raw side is a copy from or to memory of this process. Over TCP it is a plain connection to a thread that sends the
//! requested bytes: one access after the other, or several requested ahead. Writes over TCP are sent without waiting,
//! and followed by one wait until all have arrived.
//!
//! The last result is that of cached lines, beside a copy of the same size.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;
use sublet_fabric::Provider;
use sublet_proto::{Code, Error};
use sublet_runtime::{Invoker, Memory, MemoryPlan, Reading};

use super::raw::plain::Plain;
use super::transport::{CallTransport, Site, TransportFields, Where};

/// Sizes of accesses that are measured by default, in bytes.
pub const SIZES: &[u32] = &[4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Bytes of the memory that both sides access, unless an access is larger than a quarter of it.
const WALK_BYTES: usize = 64 << 20;
/// Bytes that each side moves in a block, and the most accesses of a block.
const BLOCK_BYTES: usize = 32 << 20;
const MAX_ACCESSES: usize = 4096;
/// Accesses that are requested before the first of them is waited for.
const AHEAD: usize = 8;
const LINE_BYTES: usize = 4 << 10;
/// Lines that are read repeatedly: more than fit into a core's own caches, and fewer than fit into the component's
/// cache.
const LINES: usize = 2048;

/// Results for one kind and size of access.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryResult {
    bench: &'static str,
    #[serde(flatten)]
    carried: TransportFields,
    access: AccessKind,
    size_bytes: u32,
    n: u32,
    /// Rate of the median block.
    bytes_per_s: f64,
    raw_bytes_per_s: f64,
    ratio: f64,
    /// Time of one access of the median block.
    median_ns: f64,
}

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessKind {
    /// Reads one after the other.
    Read,
    /// Reads, several of them requested ahead.
    ReadAsync,
    /// Writes, all sent before a wait.
    Write,
    /// Reads of lines that are in the cache.
    CachedRead,
}

/// The headings of [`MemoryResult::cells`].
pub const HEADINGS: [&str; 8] = ["FABRIC", "ACCESS", "BYTES", "BLOCKS", "MB/S", "RAW MB/S", "RATIO", "NS"];

impl MemoryResult {
    /// Formats the results for a table.
    pub fn cells(&self) -> [String; 8] {
        let access = match self.access {
            AccessKind::Read => "read",
            AccessKind::ReadAsync => "read async",
            AccessKind::Write => "write",
            AccessKind::CachedRead => "cached read",
        };
        [
            self.carried.cell(),
            access.to_owned(),
            self.size_bytes.to_string(),
            self.n.to_string(),
            format!("{:.0}", self.bytes_per_s / 1e6),
            format!("{:.0}", self.raw_bytes_per_s / 1e6),
            format!("{:.2}", self.ratio),
            format!("{:.0}", self.median_ns),
        ]
    }
}

/// Size and number of a block's accesses, and the length of the memory.
struct Walk {
    size: usize,
    len: usize,
    accesses: usize,
}

/// The raw side: memory of this process, or a connection.
enum RawMemory {
    Here(Vec<u8>),
    There(Plain),
}

/// Measures every size in turn, with `blocks` blocks on each side. Calls `progress` after each.
pub fn run(
    place: &Where,
    transport: &CallTransport,
    blocks: u32,
    sizes: &[u32],
    mut progress: impl FnMut(),
) -> Result<Vec<MemoryResult>, Error> {
    if transport.fabric == Provider::Ofi {
        let message = "memory is reached by shm and tcp: see --fabric";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let largest = sizes.iter().copied().max().unwrap_or(0) as usize;
    let len = WALK_BYTES.max(4 * largest);
    let site =
        Site::open(place, transport, &["--cores", "1", "--memory", &(2 * len + (1 << 30)).to_string()])?;
    let client = Invoker::connect_with(site.access.clone())?;
    let memory = filled(&client, plan(transport).cache_bytes(0), len)?;
    let is_here = transport.fabric == Provider::Shm;
    let mut raw =
        if is_here { RawMemory::Here(vec![1; len]) } else { RawMemory::There(Plain::connect(site.local)?) };
    let mut figures = Vec::new();
    let ways: &[AccessKind] = if is_here {
        &[AccessKind::Read, AccessKind::Write]
    } else {
        &[AccessKind::Read, AccessKind::ReadAsync, AccessKind::Write]
    };
    for &size in sizes {
        let walk = Walk::new(size as usize, len);
        for &access in ways {
            figures.push(walk.measure((transport, access), blocks, &memory, &mut raw)?);
        }
        progress();
    }
    if !is_here {
        figures.push(cached(transport, blocks, &client)?);
    }
    Ok(figures)
}

/// Measures reads of cached lines.
fn cached(transport: &CallTransport, blocks: u32, client: &Invoker) -> Result<MemoryResult, Error> {
    let walk = Walk { size: LINE_BYTES, len: LINES * LINE_BYTES, accesses: MAX_ACCESSES };
    let memory = filled(client, plan(transport), walk.len)?;
    memory.sync()?;
    memory.read(0, &mut [0; 1])?;
    let mut raw = RawMemory::Here(vec![1; walk.len]);
    walk.measure((transport, AccessKind::CachedRead), blocks, &memory, &mut raw)
}

fn plan(transport: &CallTransport) -> MemoryPlan {
    MemoryPlan::new().initial_bytes(WALK_BYTES as u64).fabric(transport.choice())
}

/// Makes memory whose pages all exist.
fn filled(client: &Invoker, plan: MemoryPlan, len: usize) -> Result<Memory, Error> {
    let memory = client.memory(plan)?;
    let bytes = vec![1; 1 << 20];
    for offset in (0..len).step_by(bytes.len()) {
        memory.write(offset as u64, &bytes[..bytes.len().min(len - offset)])?;
    }
    Ok(memory)
}

impl Walk {
    fn new(size: usize, len: usize) -> Walk {
        Walk { size, len, accesses: (BLOCK_BYTES / size.max(1)).clamp(2, MAX_ACCESSES) }
    }

    /// Offset of each access of a block. The accesses are consecutive, and each block begins where the previous one has
    /// ended.
    fn places(&self, block: usize) -> impl Iterator<Item = usize> {
        let (size, fit) = (self.size, self.len / self.size.max(1));
        debug_assert!(fit > 0, "an access of {size} bytes in memory of {}", self.len);
        let first = block * self.accesses;
        (first..first + self.accesses).map(move |number| number % fit * size)
    }

    fn measure(
        &self,
        (transport, access): (&CallTransport, AccessKind),
        blocks: u32,
        memory: &Memory,
        raw: &mut RawMemory,
    ) -> Result<MemoryResult, Error> {
        // Buffers are reused, as programs do: fresh memory costs more than the measured access.
        let (mut buffer, mut spare) = (vec![1; self.size], Vec::new());
        let (mut ours, mut limit) = (Vec::new(), Vec::new());
        // The first block of each side warms up.
        for block in 0..=blocks as usize {
            let begun = Instant::now();
            self.block((access, block), memory, &mut buffer, &mut spare)?;
            let took = begun.elapsed().as_nanos() as f64;
            let begun = Instant::now();
            self.raw_block(access, block, raw, &mut buffer)?;
            let raw_took = begun.elapsed().as_nanos() as f64;
            if block > 0 {
                ours.push(took);
                limit.push(raw_took);
            }
        }
        let (ours, limit) = (median(ours), median(limit));
        let per_s = |ns: f64| (self.size * self.accesses) as f64 * 1e9 / ns;
        Ok(MemoryResult {
            bench: "memory",
            carried: transport.carried(),
            access,
            size_bytes: u32::try_from(self.size).unwrap_or(u32::MAX),
            n: blocks,
            bytes_per_s: per_s(ours),
            raw_bytes_per_s: per_s(limit),
            ratio: limit / ours,
            median_ns: ours / self.accesses as f64,
        })
    }

    fn block(
        &self,
        (access, block): (AccessKind, usize),
        memory: &Memory,
        buffer: &mut [u8],
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<(), Error> {
        match access {
            AccessKind::Read | AccessKind::CachedRead => {
                self.places(block).try_for_each(|at| memory.read(at as u64, &mut *buffer))
            }
            AccessKind::Write => {
                self.places(block).try_for_each(|at| memory.write_async(at as u64, &*buffer))?;
                memory.sync()
            }
            AccessKind::ReadAsync => {
                let mut asked = VecDeque::with_capacity(AHEAD);
                for at in self.places(block) {
                    if asked.len() == AHEAD
                        && let Some(oldest) = asked.pop_front()
                    {
                        spare.push(Reading::wait(oldest)?);
                    }
                    let into = spare.pop().unwrap_or_else(|| vec![0; self.size]);
                    asked.push_back(memory.read_async(at as u64, into)?);
                    debug_assert!(asked.len() <= AHEAD, "{} of {AHEAD} reads are in flight", asked.len());
                }
                asked.into_iter().try_for_each(|reading| reading.wait().map(|bytes| spare.push(bytes)))
            }
        }
    }

    fn raw_block(
        &self,
        access: AccessKind,
        block: usize,
        raw: &mut RawMemory,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        match (raw, access) {
            (RawMemory::Here(here), AccessKind::Write) => {
                self.places(block).for_each(|at| here[at..at + self.size].copy_from_slice(buffer));
            }
            (RawMemory::Here(here), _) => {
                self.places(block).for_each(|at| buffer.copy_from_slice(&here[at..at + self.size]));
            }
            (RawMemory::There(plain), AccessKind::Write) => {
                (0..self.accesses).try_for_each(|_| plain.send(buffer))?;
                plain.settle()?;
            }
            (RawMemory::There(plain), access) => {
                let ahead = if access == AccessKind::ReadAsync { AHEAD.min(self.accesses) } else { 1 };
                (0..ahead).try_for_each(|_| plain.ask(self.size))?;
                for number in 0..self.accesses {
                    plain.receive(buffer)?;
                    if number + ahead < self.accesses {
                        plain.ask(self.size)?;
                    }
                }
            }
        }
        std::hint::black_box(buffer);
        Ok(())
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}
