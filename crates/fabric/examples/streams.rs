//! Measures the stream engine against a plain socket: ratios of medians, measured in turns.
//!
//! `cargo run --release -p sublet-fabric --example streams [ROUNDS]`

#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use sublet_fabric::exposed::{ExposedMemory, OWN};
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::region::Region;
use sublet_fabric::tcp::{ByteStream, TcpEndpoint};
use sublet_fabric::window::{LineAddress, RegionAddress, Window};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const REGION_BYTES: u64 = 16 << 20;
const DATA: u64 = 4096;
const WATCH: u64 = 64;
/// Number of loads of memory between two readings of the clock, as a hot worker makes them.
const LOOKS: u32 = 128;

#[derive(Clone, Copy, PartialEq)]
enum WaitMode {
    Spinning,
    Blocking,
}

#[derive(Clone, Copy)]
struct Load {
    len_bytes: usize,
    waiting: WaitMode,
    turns: usize,
}

trait StreamTransport {
    /// Sends the payload, or waits for the peer's.
    fn send(&mut self, load: Load) -> Result<()>;
    fn receive(&mut self, load: Load) -> Result<()>;
}

struct Raw {
    socket: TcpStream,
    bytes: Vec<u8>,
}

impl StreamTransport for Raw {
    fn send(&mut self, load: Load) -> Result<()> {
        let mut left = &self.bytes[..load.len_bytes];
        while !left.is_empty() {
            match self.socket.write(left) {
                Ok(len) => left = &left[len..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, load: Load) -> Result<()> {
        let mut left = &mut self.bytes[..load.len_bytes];
        while !left.is_empty() {
            match self.socket.read(left) {
                Ok(0) => return Err("the stream has ended".into()),
                Ok(len) => left = &mut left[len..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

struct Ours {
    end: TcpEndpoint,
    own: Region,
    sent: u64,
    received: u64,
}

impl StreamTransport for Ours {
    fn send(&mut self, load: Load) -> Result<()> {
        let from = self.own.pointer(DATA, load.len_bytes as u64).ok_or("too large")?;
        let to = RegionAddress { region: OWN, offset: DATA };
        // SAFETY: within a region of this side that no thread writes while this side has the turn.
        unsafe { self.end.push(to, from, load.len_bytes as u64) }?;
        let line = LineAddress { region: OWN, line: 0, watch: WATCH };
        self.end.put_imm(line, Turn::of_use(self.sent), 7, &[1, 2, 3])?;
        self.sent += 1;
        Ok(())
    }

    fn receive(&mut self, load: Load) -> Result<()> {
        let line: (&Line, &Watch) = (self.own.view(0).ok_or("line")?, self.own.view(WATCH).ok_or("watch")?);
        let turn = Turn::of_use(self.received);
        self.received += 1;
        let there = match load.waiting {
            WaitMode::Spinning => loop {
                if self.end.spin(line, turn, LOOKS) {
                    break true;
                }
                if self.end.down().is_some() {
                    break false;
                }
            },
            WaitMode::Blocking => self.end.wait(line, turn, None, || false),
        };
        if there { Ok(()) } else { Err(self.end.down().unwrap_or_default().into()) }
    }
}

fn sockets() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

fn raw() -> Result<(Raw, Raw)> {
    let (client, server) = sockets()?;
    let end = |socket| Raw { socket, bytes: vec![1; REGION_BYTES as usize] };
    Ok((end(client), end(server)))
}

fn ours() -> Result<(Ours, Ours)> {
    let (client, server) = sockets()?;
    let end = |socket| -> Result<Ours> {
        let own = Region::create("own", REGION_BYTES)?;
        own.write(DATA, &vec![1; (REGION_BYTES - DATA) as usize]).ok_or("full")?;
        let exposed = ExposedMemory::new(&own, Arc::new(Window::new(2, 4096)?), 2)?;
        let end = TcpEndpoint::new(Arc::new(exposed), None);
        end.connect(ByteStream::plain(socket)?)?;
        Ok(Ours { end, own, sent: 0, received: 0 })
    };
    let (left, right) = (end(client)?, end(server)?);
    left.end.reach(OWN, right.end.expose(OWN)?)?;
    right.end.reach(OWN, left.end.expose(OWN)?)?;
    Ok((left, right))
}

fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Median, and 99th percentile, of the round trips.
fn echo<C: StreamTransport + Send>(ends: &mut (C, C), load: Load) -> Result<(Duration, Duration)> {
    let (left, right) = ends;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || -> Result<()> {
            pin(1)?;
            for _ in 0..load.turns {
                right.receive(load)?;
                right.send(load)?;
            }
            Ok(())
        });
        pin(0)?;
        let mut times = Vec::with_capacity(load.turns);
        for _ in 0..load.turns {
            let start = Instant::now();
            left.send(load)?;
            left.receive(load)?;
            times.push(start.elapsed());
        }
        server.join().map_err(|_| "the server panicked")??;
        times.sort();
        Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(15), |text| text.parse())?;
    let loads = [
        ("hot 64 B", Load { len_bytes: 64, waiting: WaitMode::Spinning, turns: 5000 }),
        ("warm 64 B", Load { len_bytes: 64, waiting: WaitMode::Blocking, turns: 2000 }),
        ("hot 4 kB", Load { len_bytes: 4096, waiting: WaitMode::Spinning, turns: 3000 }),
        ("hot 64 kB", Load { len_bytes: 64 << 10, waiting: WaitMode::Spinning, turns: 1000 }),
        ("hot 1 MB", Load { len_bytes: 1 << 20, waiting: WaitMode::Spinning, turns: 60 }),
        ("warm 1 MB", Load { len_bytes: 1 << 20, waiting: WaitMode::Blocking, turns: 60 }),
        ("hot 5 MB", Load { len_bytes: 5 << 20, waiting: WaitMode::Spinning, turns: 20 }),
        ("warm 5 MB", Load { len_bytes: 5 << 20, waiting: WaitMode::Blocking, turns: 20 }),
    ];
    println!(
        "{:>10} {:>12} {:>12} {:>12} {:>12} {:>7}",
        "echo", "raw", "raw p99", "ours", "ours p99", "ratio"
    );
    for (name, load) in loads {
        let (mut raw, mut ours) = (raw()?, ours()?);
        let spinning = load.waiting == WaitMode::Spinning;
        for end in [&raw.0, &raw.1] {
            end.socket.set_nonblocking(spinning)?;
        }
        let mut figures = [const { Vec::new() }; 5];
        for _ in 0..rounds {
            let (of_raw, of_ours) = (echo(&mut raw, load)?, echo(&mut ours, load)?);
            let ratio = of_ours.0.as_secs_f64() / of_raw.0.as_secs_f64();
            let us = |time: Duration| time.as_secs_f64() * 1e6;
            let round = [us(of_raw.0), us(of_raw.1), us(of_ours.0), us(of_ours.1), ratio];
            for (figure, value) in figures.iter_mut().zip(round) {
                figure.push(value);
            }
        }
        let [raw, raw_p99, ours, ours_p99, ratio] = figures.map(median);
        println!("{name:>10} {raw:>9.1} us {raw_p99:>9.1} us {ours:>9.1} us {ours_p99:>9.1} us {ratio:>7.3}");
    }
    Ok(())
}
