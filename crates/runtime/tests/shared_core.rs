//! Tests worker processes that share a core, as their clients and their agent see them.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::clock::Calibration;
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_fabric::ring::Position;
use sublet_fabric::slot::{CoreSlot, SLOT_REGION_BYTES};
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_fabric::window::RegionAddress;
use sublet_means::with_growing_time;
use sublet_proto::package::INFO_FILE;
use sublet_proto::v1::{
    self, FunctionInfo, PackageBuild, PackageInfo, WorkerOptions, WorkerSetup, worker_to_client,
};
use sublet_proto::{ALWAYS_WARM_NS, Code};
use sublet_runtime::wire::usage::{self, FunctionTally, UsageLayout, WorkerState, WorkerUsage};
use sublet_runtime::wire::{CallOutcome, Immediate, InboxLayout, OWN_REGION, ResultsLayout, WireRequest};
use tempfile::TempDir;

/// Longest wait for an event that must happen; never asserted as a speed.
const PATIENCE: Duration = Duration::from_secs(180);
const SLOTS: u32 = 8;

/// Adds 1 to the first word of its input.
const MARK: u16 = 0;
/// Runs until the second word of its input is not 0.
const HOLD: u16 = 1;
const SOURCE: &str = "
unsigned mark(void *in, unsigned size, void *out) { ++*(volatile unsigned long *)in; return 0; }
unsigned hold(void *in, unsigned size, void *out) { while (!((volatile unsigned long *)in)[1]); return 0; }
";

/// A shared core, and a package for the workers that share it.
struct SharedCore {
    region: Region,
    package: TempDir,
}

impl SharedCore {
    fn new() -> SharedCore {
        let package = tempfile::tempdir().unwrap();
        let (source, object) = (package.path().join("x.c"), package.path().join("libx.so"));
        fs::write(&source, SOURCE).unwrap();
        let mut compiler = Command::new("cc");
        let compiled = compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status();
        assert!(compiled.unwrap().success());
        let names = ["mark", "hold"].map(str::to_owned);
        let build =
            PackageBuild { library: "libx.so".into(), symbols: names.to_vec(), ..PackageBuild::default() };
        let info = PackageInfo {
            name: "libx".into(),
            functions: names.map(|name| FunctionInfo { name }).to_vec(),
            builds: vec![build],
            ..PackageInfo::default()
        };
        fs::write(package.path().join(INFO_FILE), info.encode_to_vec()).unwrap();
        SharedCore { region: Region::create("core", SLOT_REGION_BYTES).unwrap(), package }
    }

    fn slot(&self) -> &CoreSlot {
        self.region.view(0).unwrap()
    }

    fn holder(&self) -> Option<u32> {
        self.slot().process().map(NonZeroU32::get)
    }

    fn wait_for_holder(&self, holder: Option<u32>) {
        let start = Instant::now();
        while self.holder() != holder {
            assert!(start.elapsed() < PATIENCE, "{:?} holds the core instead of {holder:?}", self.holder());
            std::thread::yield_now();
        }
    }
}

/// A lease's worker process with one worker on the shared core, and its client.
struct Neighbour {
    process: Child,
    inbox: Region,
    results: Region,
    usage: Region,
    submitted: u64,
    _control: PacketSocket,
}

fn inbox_layout() -> InboxLayout {
    InboxLayout::new(1, SLOTS, 64).unwrap()
}

fn usage_layout() -> UsageLayout {
    UsageLayout::new(1, 2)
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Neighbour {
    fn start(core: &SharedCore, holder: u32, hot_timeout_ns: u64) -> Neighbour {
        let (outside, inside) = PacketSocket::pair().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_sublet-worker"))
            .stdin(Stdio::from(OwnedFd::from(inside)))
            .spawn()
            .unwrap();
        let region = |len_bytes| Region::create("test", len_bytes).unwrap();
        let neighbour = Neighbour {
            process,
            inbox: region(inbox_layout().len_bytes()),
            results: region(ResultsLayout::new(1).len_bytes()),
            usage: region(usage_layout().len_bytes()),
            submitted: 0,
            _control: outside,
        };
        let setup = setup(core.package.path(), holder, hot_timeout_ns).encode_to_vec();
        let regions = [neighbour.inbox.fd(), neighbour.usage.fd(), core.region.fd()];
        neighbour._control.send(&setup, &regions).unwrap();
        let results_bytes = neighbour.results.len_bytes();
        let connect = v1::Connect { results_bytes, start_positions: vec![0], ..v1::Connect::default() };
        let body = Some(v1::client_to_worker::Body::Connect(connect));
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let message = v1::ClientToWorker { body }.encode_to_vec();
        neighbour._control.send(&message, &[neighbour.results.fd(), bell.as_fd()]).unwrap();
        let answer = neighbour._control.receive(Some(PATIENCE)).unwrap().unwrap();
        let answer = v1::WorkerToClient::decode(answer.bytes.as_slice()).unwrap().body.unwrap();
        assert!(matches!(answer, worker_to_client::Body::Ready(_)), "{answer:?}");
        neighbour
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends a request; its number.
    fn submit(&mut self, function: u16) -> u64 {
        let count = self.submitted;
        self.submitted += 1;
        let position = Position::new(count, SLOTS);
        let at = inbox_layout().line(0, position.line);
        let line: &Line = self.inbox.view(at.line).unwrap();
        let watch: &Watch = self.inbox.view(at.watch).unwrap();
        let nowhere = RegionAddress { region: OWN_REGION, offset: 0 };
        let request = WireRequest {
            input: nowhere,
            input_len: 64,
            output: nowhere,
            output_capacity: 0,
            result_turn: Turn::of_use(0),
            timed: false,
        };
        line.publish(
            watch,
            position.turn,
            Immediate::new(count as u16, 0, function).to_bits(),
            &request.encode(),
        );
        count
    }

    /// Waits for the error code of a request; `None` if it succeeded.
    fn result(&self, count: u64) -> Option<Code> {
        let at = ResultsLayout::new(1).line(0, count as u16);
        let line: &Line = self.results.view(at.line).unwrap();
        let watch: &Watch = self.results.view(at.watch).unwrap();
        assert!(line.wait(watch, Turn::of_use(0), Some(Instant::now() + PATIENCE), || false), "no answer");
        let (_, body) = line.read();
        let status = CallOutcome::decode(&body).status;
        (status != 0).then(|| Code::from_number(status))
    }

    fn call(&mut self, function: u16) -> Option<Code> {
        let count = self.submit(function);
        self.result(count)
    }

    /// A word of a request's input.
    fn word(&self, count: u64, word: u64) -> &AtomicU64 {
        let payload = inbox_layout().payload(0, Position::new(count, SLOTS).line);
        self.inbox.view(payload + 8 * word).unwrap()
    }

    /// Number of executions of its calls of `mark`.
    fn marks(&self) -> u64 {
        (0..u64::from(SLOTS)).map(|count| self.word(count, 0).load(Ordering::Relaxed)).sum()
    }

    /// Lets a call of `hold` return.
    fn let_go(&self, count: u64) {
        self.word(count, 1).store(1, Ordering::Relaxed);
    }

    fn usage(&self) -> (WorkerUsage, [FunctionTally; 3]) {
        let mut tallies = [FunctionTally::default(); 3];
        (usage::read(&self.usage, usage_layout(), 0, &mut tallies), tallies)
    }

    /// Waits until the worker is in a state: a client may have its answer before the worker has finished with the call.
    fn wait_for_state(&self, state: WorkerState) {
        let start = Instant::now();
        while self.usage().0.state != state {
            assert!(start.elapsed() < PATIENCE, "{:?} and not {state:?}", self.usage().0.state);
            std::thread::yield_now();
        }
    }
}

fn setup(package: &Path, holder: u32, hot_timeout_ns: u64) -> WorkerSetup {
    let usable = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|&core| usable.is_set(core)).unwrap();
    WorkerSetup {
        package_folder: package.to_str().unwrap().into(),
        cores: vec![core as u32],
        options: Some(WorkerOptions {
            slots: SLOTS,
            slot_bytes: 64,
            hot_timeout_ns,
            swap_bytes: 0,
            cores: 0,
            swap_if_possible: false,
        }),
        memory_bytes: 64 << 20,
        ticks_per_ns: Calibration::start().ticks_per_ns(),
        slots: vec![0],
        holder,
        functions: 2,
        ..WorkerSetup::default()
    }
}

#[test]
fn call_on_a_busy_core_is_rejected_and_not_billed() {
    let core = SharedCore::new();
    let mut first = Neighbour::start(&core, 1, ALWAYS_WARM_NS);
    let mut second = Neighbour::start(&core, 2, ALWAYS_WARM_NS);
    let held = first.submit(HOLD);
    core.wait_for_holder(Some(1));
    for _ in 0..3 {
        assert_eq!(second.call(MARK), Some(Code::CoreBusy));
    }
    assert_eq!(second.marks(), 0);
    let (line, tallies) = second.usage();
    assert_eq!((line.rejected, line.polling_ticks, line.state), (3, 0, WorkerState::Sleeping));
    assert_eq!(tallies, [FunctionTally::default(); 3]);
    first.let_go(held);
    assert_eq!(first.result(held), None);
    assert_eq!((second.call(MARK), second.marks()), (None, 1));
    assert_eq!(second.usage().1[usize::from(MARK)].calls, 1);
}

#[test]
fn whoever_has_a_warm_workers_result_finds_the_core_free() {
    let core = SharedCore::new();
    let mut neighbours = [1, 2].map(|holder| Neighbour::start(&core, holder, ALWAYS_WARM_NS));
    for _ in 0..200 {
        for neighbour in &mut neighbours {
            assert_eq!(neighbour.call(MARK), None);
            assert_eq!(core.holder(), None);
        }
    }
    let burst: Vec<_> = (0..SLOTS).map(|_| neighbours[0].submit(MARK)).collect();
    for count in burst {
        assert_eq!(neighbours[0].result(count), None);
    }
    let calls = neighbours.each_ref().map(|neighbour| (neighbour.marks(), neighbour.usage().1[0].calls));
    assert_eq!(calls, [(208, 208), (200, 200)]);
}

#[test]
fn hot_worker_keeps_its_core_until_it_sleeps() {
    with_growing_time(Duration::from_secs(1), |hot_timeout| {
        let core = SharedCore::new();
        let hot_timeout = hot_timeout.as_nanos() as u64;
        let mut hot = Neighbour::start(&core, 1, hot_timeout);
        let mut also_hot = Neighbour::start(&core, 2, hot_timeout);
        core.wait_for_holder(None);
        assert_eq!(hot.call(MARK), None);
        // On a machine that stands still the worker may sleep already.
        let busy = also_hot.call(MARK)?;
        assert_eq!(busy, Code::CoreBusy);
        // It does not poll on a core that is taken.
        also_hot.wait_for_state(WorkerState::Sleeping);
        assert_eq!(hot.call(MARK), None);
        core.wait_for_holder(None);
        hot.wait_for_state(WorkerState::Sleeping);
        assert_eq!(also_hot.call(MARK), None);
        Some(())
    });
}

#[test]
fn agent_frees_the_core_of_a_killed_worker() {
    let core = SharedCore::new();
    let mut first = Neighbour::start(&core, 1, ALWAYS_WARM_NS);
    let mut second = Neighbour::start(&core, 2, ALWAYS_WARM_NS);
    first.submit(HOLD);
    core.wait_for_holder(Some(1));
    first.kill();
    assert_eq!(second.call(MARK), Some(Code::CoreBusy));
    assert_eq!(core.slot().clear_dead(|holder| holder.process.get() == 2), Some(1));
    assert_eq!(second.call(MARK), None);
    let mut successor = Neighbour::start(&core, 3, ALWAYS_WARM_NS);
    assert_eq!(successor.call(MARK), None);
}

#[test]
fn call_of_an_unknown_function_gives_the_core_back() {
    let core = SharedCore::new();
    let mut neighbour = Neighbour::start(&core, 1, ALWAYS_WARM_NS);
    for function in [2, u16::MAX] {
        assert_eq!(neighbour.call(function), Some(Code::UnknownFunction));
        assert_eq!(core.holder(), None);
    }
    let (_, [_, _, unknown]) = neighbour.usage();
    assert_eq!((unknown.calls, unknown.failed_calls), (2, 2));
}
