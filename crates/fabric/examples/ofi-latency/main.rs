//! Measures the round trip of a line with a payload over a provider of libfabric, beside a plain `fi_writedata`
//! ping-pong over the same provider, in one interleaved run: `ofi-latency [PROVIDER [ADDRESS [BYTES [BLOCKS]]]]`.
//! Prints JSON. With `--count` before the other arguments it counts the instructions of sending and of receiving
//! instead.
//!
//! `cargo xtask verbs-vm` runs it over verbs; `sublet bench` measures whole calls.

mod count;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use sublet_fabric::FabricError;
use sublet_fabric::exposed::{ExposedMemory, OWN};
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::ofi::raw::PingPong;
use sublet_fabric::ofi::{OfiEndpoint, OfiNetwork};
use sublet_fabric::region::Region;
use sublet_fabric::window::{LineAddress, RegionAddress, Window};

const OWN_BYTES: u64 = 1 << 20;
const PAYLOAD: RegionAddress = RegionAddress { region: OWN, offset: 8192 };
const LINE: LineAddress = LineAddress { region: OWN, line: 0, watch: 4096 };
/// Number of round trips of one kind before those of the other.
const BLOCK: usize = 200;
/// Number of blocks before the measured ones.
const WARM_UP: usize = 5;

struct Side {
    own: Region,
    end: OfiEndpoint,
}

impl Side {
    fn new() -> Result<Side, FabricError> {
        let own = Region::create("own", OWN_BYTES)?;
        let window = Arc::new(Window::new(1, OWN_BYTES)?);
        let end = OfiEndpoint::new(Arc::new(ExposedMemory::new(&own, window, 1)?), None);
        Ok(Side { own, end })
    }

    fn line(&self) -> (&Line, &Watch) {
        let line = self.own.view(LINE.line).expect("the region has a page for it");
        (line, self.own.view(LINE.watch).expect("the region has a page for it"))
    }

    fn send(&self, n: u64, payload: &[u8]) -> Result<(), FabricError> {
        self.end.put(PAYLOAD, payload)?;
        self.end.put_imm(LINE, Turn::of_use(n), 0, &[n, 0, 0, 0])
    }

    fn receive(&self, n: u64) -> Result<(), FabricError> {
        while !self.end.spin(self.line(), Turn::of_use(n), 128) {
            if let Some(reason) = self.end.down() {
                return Err(FabricError::Disconnected { reason });
            }
        }
        Ok(())
    }
}

struct Run {
    network: OfiNetwork,
    len_bytes: usize,
    blocks: usize,
}

fn main() -> Result<(), FabricError> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mode = arguments.next_if(|first| first.starts_with("--"));
    let mut next = |default: &str| arguments.next().unwrap_or(default.into());
    let network = OfiNetwork::of(&next("tcp;ofi_rxm"));
    let toward = next("127.0.0.1").parse().map_err(|_| FabricError::Protocol("not an IP address".into()))?;
    let number =
        |text: String| text.parse().map_err(|_| FabricError::Protocol(format!("{text} is not a number")));
    let run =
        Run { network: network.toward(toward), len_bytes: number(next("64"))?, blocks: number(next("100"))? };
    match mode.as_deref() {
        Some("--count") => return count::trace(),
        Some(_) => return count::be_traced(&run),
        None => {}
    }
    let [endpoint, raw] = measure(&run)?;
    println!(
        "{{\"provider\": \"{}\", \"bytes\": {}, \"round_trips\": {}, \
         \"endpoint_ns\": {{\"median\": {}, \"p99\": {}}}, \"raw_ns\": {{\"median\": {}, \"p99\": {}}}, \
         \"ratio\": {:.3}}}",
        run.network.provider,
        run.len_bytes,
        endpoint.len(),
        at(&endpoint, 0.5),
        at(&endpoint, 0.99),
        at(&raw, 0.5),
        at(&raw, 0.99),
        at(&endpoint, 0.5) as f64 / at(&raw, 0.5) as f64
    );
    Ok(())
}

fn at(sorted: &[u64], share: f64) -> u64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// The two ends of the endpoint's connection and of the ping-pong.
struct Ends {
    client: Side,
    worker: Side,
    ping: PingPong,
    pong: PingPong,
}

/// Connects all ends, one side of each connection in a thread of its own.
fn connect(run: &Run) -> Result<Ends, FabricError> {
    let (client, worker) = (Side::new()?, Side::new()?);
    let max_bytes = run.len_bytes as u64;
    let (mut ping, contact) = PingPong::open(&run.network, max_bytes)?;
    let (mut pong, answer) = PingPong::accept(&run.network, max_bytes, &contact)?;
    let theirs = client.end.open(&run.network)?;
    let ours = worker.end.accept(&run.network, &theirs)?;
    client.end.reach(OWN, worker.end.expose(OWN)?)?;
    worker.end.reach(OWN, client.end.expose(OWN)?)?;
    let connected = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pong.meet()?;
            pong.receive()?;
            while !connected.load(Ordering::SeqCst) {
                worker.end.progress()?;
            }
            Ok(())
        });
        // Some providers connect when the first message is sent.
        let met = ping.connect(&answer).and_then(|()| ping.send(max_bytes));
        let made = met.and_then(|()| client.end.connect(&ours));
        connected.store(true, Ordering::SeqCst);
        made.and(other.join().unwrap_or(Ok(())))
    })?;
    Ok(Ends { client, worker, ping, pong })
}

/// Round trips of the endpoint and of the plain ping-pong, in nanoseconds, sorted.
fn measure(run: &Run) -> Result<[Vec<u64>; 2], FabricError> {
    let Ends { client, worker, mut ping, mut pong } = connect(run)?;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(1);
            answer_all(run, &worker, &mut pong)
        });
        pin(0);
        let measured = ask_all(run, &client, &mut ping);
        other.join().unwrap_or(Ok(()))?;
        measured
    })
}

fn ask_all(run: &Run, client: &Side, ping: &mut PingPong) -> Result<[Vec<u64>; 2], FabricError> {
    let payload = vec![1; run.len_bytes];
    let mut all = [Vec::new(), Vec::new()];
    for block in 0..WARM_UP + run.blocks {
        // The other side changes from the endpoint to the ping-pong, too.
        std::thread::sleep(Duration::from_micros(200));
        for n in 0..BLOCK {
            let n = (block * BLOCK + n) as u64;
            let began = Instant::now();
            client.send(n, &payload)?;
            client.receive(n)?;
            note(&mut all[0], began, block);
        }
        for _ in 0..BLOCK {
            let began = Instant::now();
            ping.send(run.len_bytes as u64)?;
            ping.receive()?;
            note(&mut all[1], began, block);
        }
    }
    all.iter_mut().for_each(|times| times.sort_unstable());
    Ok(all)
}

fn answer_all(run: &Run, worker: &Side, pong: &mut PingPong) -> Result<(), FabricError> {
    let payload = vec![2; run.len_bytes];
    for block in 0..WARM_UP + run.blocks {
        for n in 0..BLOCK {
            let n = (block * BLOCK + n) as u64;
            worker.receive(n)?;
            worker.send(n, &payload)?;
        }
        for _ in 0..BLOCK {
            pong.receive()?;
            pong.send(run.len_bytes as u64)?;
        }
        // No thread polls the ping-pong while calls are made.
        pong.finish()?;
    }
    Ok(())
}

fn note(times: &mut Vec<u64>, began: Instant, block: usize) {
    let took = began.elapsed();
    if block >= WARM_UP {
        times.push(took.as_nanos() as u64);
    }
}

/// Pins this thread to a core, since a move between cores would be measured.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // Where pinning is not permitted, the measurement runs without it.
    let _ = sched_setaffinity(None, &set);
}
