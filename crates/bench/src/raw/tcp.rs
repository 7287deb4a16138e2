//! A TCP connection that transfers only the payload: the same bytes in both directions, without delay, and both ends
//! spin or both block. Nothing is copied, and nothing encrypted.
//!
//! At both ends the bytes start at a page boundary, as those of calls do: the worker's are in the memory of calls, the
//! client's in private memory. Some processors copy many times more slowly if target and source have nearly the same
//! offset in a page, as memory of the kernel and of `malloc` does.

use std::io::{Error as IoError, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use sublet_fabric::clock::ticks_ordered;
use sublet_proto::{Code, Error};
use sublet_runtime::{CallOptions, Invocation, Invoker};

use crate::Samples;
use crate::rounds::{Mode, Rounds, UNCOUNTED, think};
use crate::spinning::{receive, send};

/// Longest time for the worker to connect.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Words of the input of `raw_tcp` in `functions/bench.c`.
const PARAMETER_WORDS: usize = 14;
const PAGE_BYTES: usize = 4096;

/// The client's end; the other end is the function `raw_tcp` in the worker.
pub(crate) struct RawTcp {
    listener: TcpListener,
    address: SocketAddr,
    stream: Option<TcpStream>,
    /// Number of the connection, from 1 on.
    connection: u32,
}

/// Parameters of the worker's side of a block.
#[derive(Clone, Copy)]
struct WorkerBlock {
    rounds: u32,
    request_bytes: u32,
    response_bytes: u32,
    sleeps: bool,
}

/// The client's memory of a block: a request's bytes and a response's.
struct BlockMemory {
    request: PageAlignedBytes,
    response: PageAlignedBytes,
}

/// Private memory that starts at a page boundary, and whose pages are all in memory.
struct PageAlignedBytes {
    allocated: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageAlignedBytes {
    fn new(len: usize) -> PageAlignedBytes {
        let allocated = vec![7; len + PAGE_BYTES];
        let start = allocated.as_ptr().align_offset(PAGE_BYTES);
        debug_assert!(start < PAGE_BYTES, "the next page begins after {start} bytes");
        PageAlignedBytes { allocated, start, len }
    }

    fn as_slice(&self) -> &[u8] {
        &self.allocated[self.start..self.start + self.len]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.allocated[self.start..self.start + self.len]
    }
}

impl RawTcp {
    /// Listens on this address for the worker.
    pub(super) fn listen(local: IpAddr) -> Result<RawTcp, Error> {
        let failed = |error| system("listening for the raw connection", &error);
        let listener = TcpListener::bind((local, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(RawTcp { listener, address, stream: None, connection: 0 })
    }

    pub(super) fn block(
        &mut self,
        invoker: &Invoker,
        rounds: &mut Rounds,
        counted: u32,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let (request_bytes, response_bytes) = (rounds.request_bytes(), rounds.response_bytes());
        let sleeps = rounds.mode == Mode::Warm;
        let block = WorkerBlock { rounds: UNCOUNTED + counted, request_bytes, response_bytes, sleeps };
        let think_ticks = rounds.think_ticks;
        self.beside(invoker, rounds, block, |raw, memory| {
            raw.round_trips(block, memory, think_ticks, samples)
        })
    }

    /// Executes `act` while the worker's function sleeps, so that its core is free.
    pub(super) fn while_the_worker_sleeps(
        &mut self,
        invoker: &Invoker,
        rounds: &mut Rounds,
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let block = WorkerBlock { rounds: 1, request_bytes: 1, response_bytes: 1, sleeps: true };
        self.beside(invoker, rounds, block, |raw, memory| {
            act()?;
            raw.round_trips(block, memory, 0, &mut Samples::with_capacity(0))
        })
    }

    /// Makes the worker execute its side of a block, and executes `act` meanwhile.
    fn beside(
        &mut self,
        invoker: &Invoker,
        rounds: &mut Rounds,
        block: WorkerBlock,
        act: impl FnOnce(&mut RawTcp, BlockMemory) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.stream.is_none() {
            self.connection += 1;
        }
        let Rounds { input, output, .. } = rounds;
        input.copy_from(0, &parameters(block, self.connection, self.address));
        let raw = invoker.function("raw_tcp")?;
        let memory = BlockMemory {
            request: PageAlignedBytes::new(block.request_bytes as usize),
            response: PageAlignedBytes::new(block.response_bytes as usize),
        };
        let (told, mut said) = (input.part(..PARAMETER_WORDS), output.part_mut(..1));
        let mut responder = invoker.submit_with(raw, &told, &mut said, CallOptions::default())?;
        let acted = self.connect(&mut responder).and_then(|()| act(self, memory));
        if acted.is_err() {
            // The worker stops waiting when the connection closes.
            self.stream = None;
        }
        responder.wait()?;
        acted
    }

    /// Accepts the worker's connection, if there is none yet.
    fn connect(&mut self, responder: &mut Invocation<'_>) -> Result<(), Error> {
        let begun = Instant::now();
        while self.stream.is_none() {
            match self.listener.accept() {
                Ok((stream, _)) => self.stream = Some(prepared(stream)?),
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(system("taking the raw connection", &error));
                }
                Err(_) if responder.is_ready() || begun.elapsed() > PATIENCE => {
                    let message =
                        format!("the worker does not reach {} for the raw measurement", self.address);
                    return Err(Error::new(Code::System, message));
                }
                Err(_) => std::thread::sleep(LOOK_AGAIN),
            }
        }
        Ok(())
    }

    fn round_trips(
        &mut self,
        block: WorkerBlock,
        mut memory: BlockMemory,
        think_ticks: u64,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else {
            return Err(Error::new(Code::Internal, "no raw connection"));
        };
        let failed = |error| system("a raw round trip", &error);
        stream.set_nonblocking(!block.sleeps).map_err(failed)?;
        for round in 1..=block.rounds {
            think(think_ticks);
            let since = ticks_ordered();
            send(stream, memory.request.as_slice()).map_err(failed)?;
            receive(stream, memory.response.as_mut_slice()).map_err(failed)?;
            if round > UNCOUNTED {
                samples.since(since);
            }
        }
        Ok(())
    }
}

fn prepared(stream: TcpStream) -> Result<TcpStream, Error> {
    let prepared = stream.set_nodelay(true);
    prepared.map_err(|error| system("preparing the raw connection", &error))?;
    Ok(stream)
}

/// `struct tcp_parameters` of `functions/bench.c`.
fn parameters(block: WorkerBlock, connection: u32, address: SocketAddr) -> [u32; PARAMETER_WORDS] {
    debug_assert!(connection > 0, "{connection} is the number of no connection");
    let (is_v6, scope, bytes) = match address {
        SocketAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.ip().octets());
            (false, 0, bytes)
        }
        SocketAddr::V6(v6) => (true, v6.scope_id(), v6.ip().octets()),
    };
    let mut words = [0; PARAMETER_WORDS];
    words[0] = block.rounds;
    words[2..9].copy_from_slice(&[
        block.request_bytes,
        block.response_bytes,
        u32::from(block.sleeps),
        connection,
        u32::from(is_v6),
        u32::from(address.port()),
        scope,
    ]);
    for (word, bytes) in words[9..13].iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

fn system(doing: &str, error: &IoError) -> Error {
    Error::new(Code::System, format!("{doing} failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_starts_at_a_page_boundary() {
        for len in [0, 1, PAGE_BYTES, 3 * PAGE_BYTES + 1] {
            let mut memory = PageAlignedBytes::new(len);
            assert_eq!(memory.as_slice().as_ptr().addr() % PAGE_BYTES, 0);
            assert_eq!((memory.as_slice().len(), memory.as_mut_slice().len()), (len, len));
        }
    }

    #[test]
    fn parameters_lie_where_the_function_reads_them() {
        let block = WorkerBlock { rounds: 9, request_bytes: 64, response_bytes: 1, sleeps: true };
        let words = parameters(block, 3, "127.0.0.1:258".parse().unwrap());
        assert_eq!(words[..9], [9, 0, 64, 1, 1, 3, 0, 258, 0]);
        assert_eq!(words[9].to_ne_bytes(), [127, 0, 0, 1]);
        let words = parameters(block, 3, "[::1]:258".parse().unwrap());
        assert_eq!((words[6], words[12].to_ne_bytes()), (1, [0, 0, 0, 1]));
    }
}
