//! A short ping-pong over a fabric, both of whose ends are in this process.
//!
//! Nothing leaves the machine: a kernel takes what is for an address of its own at once. So this says what the fabric
//! costs this machine, and not what its cables carry.

use std::hint::spin_loop;
use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use sublet_fabric::ofi::OfiNetwork;
use sublet_fabric::ofi::raw::PingPong;
use sublet_proto::{Code, Error};

use sublet_bench::{PinnedCore, connect_ofi, pin, spinning};

/// Size of the messages that measure the round trip, in bytes.
const SMALL_BYTES: usize = 64;
/// Size of the messages that measure the bandwidth, in bytes.
const LARGE_BYTES: usize = 1 << 20;
/// Minimum time of each of the two measurements.
const LONG_ENOUGH: Duration = Duration::from_millis(200);
const MAX_ROUNDS: usize = 20_000;

/// The measurements of one fabric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct FabricMeasurement {
    /// The median round trip of 64 bytes.
    pub(crate) round_trip_ns: f64,
    /// The bandwidth of 1 MiB messages, both ways together, at the median round trip.
    pub(crate) bytes_per_s: f64,
}

/// One end of a ping-pong. All messages have the size that both ends were made for.
pub(super) trait PingPongEnd: Send {
    fn send(&mut self) -> Result<(), Error>;
    /// Spins; says `false` when the other end has finished.
    fn receive(&mut self) -> Result<bool, Error>;
    /// Tells the other end that nothing more comes.
    fn finish(&mut self) -> Result<(), Error>;
}

/// Measures the round trip and the bandwidth, with two new ends for each.
pub(super) fn measure<E: PingPongEnd>(
    mut connect: impl FnMut(usize) -> Result<(E, E), Error>,
) -> Result<FabricMeasurement, Error> {
    let round_trip_ns = ping_pong(connect(SMALL_BYTES)?)?;
    let large_ns = ping_pong(connect(LARGE_BYTES)?)?;
    Ok(FabricMeasurement { round_trip_ns, bytes_per_s: 2.0 * LARGE_BYTES as f64 * 1e9 / large_ns })
}

/// The median round trip, in nanoseconds, between two cores. An end stays until both are done.
fn ping_pong<E: PingPongEnd>((mut near, mut far): (E, E)) -> Result<f64, Error> {
    let ask = || {
        let asked = pin(PinnedCore::First).and_then(|()| ask(&mut near, LONG_ENOUGH));
        near.finish()?;
        asked
    };
    let answer = || {
        pin(PinnedCore::Last)?;
        while far.receive()? {
            far.send()?;
        }
        Ok(())
    };
    let failed = |_| Error::new(Code::Internal, "a thread of the ping-pong has failed");
    thread::scope(|scope| {
        let (asking, answering) = (scope.spawn(ask), scope.spawn(answer));
        let median_ns = asking.join().map_err(failed)?;
        answering.join().map_err(failed)?.and(median_ns)
    })
}

/// The median of the round trips within a time, and of one at least.
fn ask(near: &mut impl PingPongEnd, long_enough: Duration) -> Result<f64, Error> {
    let (begun, mut times_ns) = (Instant::now(), Vec::with_capacity(MAX_ROUNDS));
    // A thread that gets no core for the whole time measures one round trip after it.
    while times_ns.is_empty() || (times_ns.len() < MAX_ROUNDS && begun.elapsed() < long_enough) {
        let since = Instant::now();
        near.send()?;
        if !near.receive()? {
            return Err(Error::new(Code::Internal, "the far end is gone"));
        }
        times_ns.push(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times_ns.sort_unstable();
    Ok(times_ns[times_ns.len() / 2] as f64)
}

/// Shared memory: a copy, and a flag that counts the messages.
pub(super) struct SharedMemoryEnd {
    shared: Arc<[CacheLineFlag; 2]>,
    own: usize,
    count: u32,
    from: Vec<u8>,
    to: Vec<u8>,
}

/// A flag on cache lines of its own.
#[repr(align(128))]
struct CacheLineFlag(AtomicU32);

/// The flag of an end that has finished.
const FINISHED: u32 = u32::MAX;

const _: () =
    assert!(MAX_ROUNDS < FINISHED as usize, "a count of messages would say that an end has finished");

impl SharedMemoryEnd {
    pub(super) fn connect(bytes: usize) -> (SharedMemoryEnd, SharedMemoryEnd) {
        let shared = Arc::new([CacheLineFlag(AtomicU32::new(0)), CacheLineFlag(AtomicU32::new(0))]);
        let end = |own| SharedMemoryEnd {
            shared: shared.clone(),
            own,
            count: 0,
            from: vec![7; bytes],
            to: vec![0; bytes],
        };
        (end(0), end(1))
    }
}

impl PingPongEnd for SharedMemoryEnd {
    fn send(&mut self) -> Result<(), Error> {
        self.to.copy_from_slice(&self.from);
        self.shared[self.own].0.store(self.count + u32::from(self.own == 0), Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, Error> {
        self.count += 1;
        loop {
            match self.shared[1 - self.own].0.load(Ordering::Acquire) {
                FINISHED => return Ok(false),
                seen if seen == self.count => return Ok(true),
                _ => spin_loop(),
            }
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.shared[self.own].0.store(FINISHED, Ordering::Release);
        Ok(())
    }
}

/// A TCP connection to an address of this machine.
pub(super) struct Tcp {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Tcp {
    pub(super) fn connect(address: IpAddr, bytes: usize) -> Result<(Tcp, Tcp), Error> {
        let connect = || -> io::Result<(TcpStream, TcpStream)> {
            let listener = TcpListener::bind((address, 0))?;
            let near = TcpStream::connect(listener.local_addr()?)?;
            let (far, _) = listener.accept()?;
            for stream in [&near, &far] {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
            }
            Ok((near, far))
        };
        let (near, far) = connect().map_err(|error| failed(&error))?;
        let end = |stream| Tcp { stream, bytes: vec![7; bytes] };
        Ok((end(near), end(far)))
    }
}

impl PingPongEnd for Tcp {
    fn send(&mut self) -> Result<(), Error> {
        spinning::send(&mut self.stream, &self.bytes).map_err(|error| failed(&error))
    }

    fn receive(&mut self) -> Result<bool, Error> {
        match spinning::receive(&mut self.stream, &mut self.bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.stream.shutdown(Shutdown::Write).map_err(|error| failed(&error))
    }
}

/// A provider of libfabric.
pub(super) struct Ofi {
    end: PingPong,
    bytes: u64,
    /// Whether the local end sends its last message. Written by that end, before the message.
    over: Arc<AtomicBool>,
}

impl Ofi {
    pub(super) fn connect(network: &OfiNetwork, bytes: usize) -> Result<(Ofi, Ofi), Error> {
        let (bytes, over) = (bytes as u64, Arc::new(AtomicBool::new(false)));
        let (near, far) = connect_ofi(network, bytes)?;
        let end = |end| Ofi { end, bytes, over: over.clone() };
        Ok((end(near), end(far)))
    }
}

impl PingPongEnd for Ofi {
    fn send(&mut self) -> Result<(), Error> {
        Ok(self.end.send(self.bytes)?)
    }

    fn receive(&mut self) -> Result<bool, Error> {
        self.end.receive()?;
        if !self.over.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.end.send(1)?;
        self.end.finish()?;
        Ok(false)
    }

    /// Sends a last message and waits for its answer: not every provider reports the end of a connection to the peer.
    fn finish(&mut self) -> Result<(), Error> {
        self.over.store(true, Ordering::Release);
        self.end.send(1)?;
        Ok(self.end.receive()?)
    }
}

fn failed(error: &io::Error) -> Error {
    Error::new(Code::System, format!("a TCP ping-pong failed: {error}"))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn both_ends_come_to_an_end() {
        let measured = measure(|bytes| Ok(SharedMemoryEnd::connect(bytes))).unwrap();
        assert!(measured.round_trip_ns > 0.0 && measured.bytes_per_s > 0.0, "{measured:?}");
        let measured = measure(|bytes| Tcp::connect(Ipv4Addr::LOCALHOST.into(), bytes)).unwrap();
        assert!(measured.round_trip_ns > 0.0 && measured.bytes_per_s > 0.0, "{measured:?}");
    }

    #[test]
    fn measures_one_round_trip_when_no_time_is_left() {
        struct EchoingEnd;
        impl PingPongEnd for EchoingEnd {
            fn send(&mut self) -> Result<(), Error> {
                Ok(())
            }
            fn receive(&mut self) -> Result<bool, Error> {
                Ok(true)
            }
            fn finish(&mut self) -> Result<(), Error> {
                Ok(())
            }
        }
        assert!(ask(&mut EchoingEnd, Duration::ZERO).unwrap() >= 0.0);
    }

    #[test]
    fn an_end_that_fails_ends_the_other() {
        struct Failing;
        impl PingPongEnd for Failing {
            fn send(&mut self) -> Result<(), Error> {
                Err(Error::new(Code::System, "no"))
            }
            fn receive(&mut self) -> Result<bool, Error> {
                Ok(false)
            }
            fn finish(&mut self) -> Result<(), Error> {
                Ok(())
            }
        }
        assert_eq!(measure(|_| Ok((Failing, Failing))).unwrap_err().message, "no");
    }
}
