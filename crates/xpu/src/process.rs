//! Implements a process's own view: its calls to the shim, and its descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::bell::Bell;
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::ring::{Occupant, Sender};
use sublet_fabric::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::v1::{Capability, EnterShim, Entered, FifoMade, Program, ShimToProcess, SpawnProgram};
use sublet_proto::{Code, Error, decode};

use crate::capability::{FifoRights, GlobalId};
use crate::fifo::{FifoShape, Reader, Spares, Writer};
use crate::wire::{
    self, CallRequest, DESCRIPTORS, DescriptorState, Operation, PAYLOAD_BYTES, RECORDS, check_name,
};

/// Number of polls for an answer before the caller sleeps.
const LOOKS: u32 = 20_000;
/// Longest sleep of a caller before it checks whether the shim still exists.
const NAP: Duration = Duration::from_millis(50);
/// First and longest pause between two tries to connect to a FIFO that has no reader.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Longest time that the shim may take to let a process in.
const ENTER_PATIENCE: Duration = Duration::from_secs(10);

/// A global process: this one. It is left when this and all that was made of it are dropped.
#[derive(Clone)]
pub struct Process {
    shared: Arc<ProcessState>,
}

struct ProcessState {
    pid: GlobalId,
    socket: PacketSocket,
    page: Region,
    bell: Bell,
    ring: Sender,
    /// A bit for each record that is free.
    free: AtomicU32,
    /// Number of times that each record was used. Written by the thread that holds the record.
    uses: [AtomicU32; RECORDS as usize],
    /// Held from a call until the packet that comes with its answer.
    packets: Mutex<()>,
    spares: Spares,
}

/// A program to start: see [`Process::spawn`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spawn {
    /// Path of the program in the package; `{arch}` stands for the architecture of the unit's processor, such as
    /// `x86_64`. In a package of Python, a Python file.
    pub path: String,
    /// Arguments, of which the first is the program's name; empty: the path.
    pub args: Vec<Vec<u8>>,
    /// All environment variables, as `NAME=VALUE`.
    pub env: Vec<Vec<u8>>,
    /// Rights that the program has from the beginning.
    pub capabilities: Vec<(GlobalId, FifoRights)>,
    /// Package of the program, by its name or digest; empty: this process's.
    pub package: String,
}

/// An object that a process has by a number, until it closes it.
pub(crate) struct ObjectDescriptor {
    process: Arc<ProcessState>,
    number: u32,
}

impl Process {
    /// Becomes a global process by the socket that this process was started with.
    ///
    /// # Errors
    /// The shim's error, for example that the process may not enter; `version_mismatch`; `agent_unreachable`.
    pub fn enter(socket: PacketSocket) -> Result<Process, Error> {
        socket.send(&EnterShim { version: wire::VERSION }.encode_to_vec(), &[])?;
        let packet = socket.receive(Some(ENTER_PATIENCE))?.ok_or_else(shim_gone)?;
        let Packet { bytes, fds } = packet;
        let Entered { pid } = match told(&bytes)? {
            Body::Entered(entered) => entered,
            _ => return Err(out_of_turn()),
        };
        let [page, bell] = descriptors("the shim's page and bell", fds)?;
        let page = Region::attach(page, wire::PAGE_BYTES)?;
        let shared = ProcessState {
            pid: GlobalId::from_bits(pid),
            socket,
            page,
            bell: Bell(Some(bell)),
            ring: Sender::new(RECORDS),
            free: AtomicU32::new((1 << RECORDS) - 1),
            uses: std::array::from_fn(|_| AtomicU32::new(0)),
            packets: Mutex::new(()),
            spares: Spares::default(),
        };
        Ok(Process { shared: Arc::new(shared) })
    }

    /// Global id of the process (`get_xpupid`).
    pub fn pid(&self) -> GlobalId {
        self.shared.pid
    }

    /// Grants rights to a FIFO to another process (`grant_cap`), on any processing unit. They are in effect when this
    /// returns.
    ///
    /// # Errors
    /// `permission_denied` without the right to own it; `invalid_argument` if there is no such process or FIFO, or they
    /// are another tenant's.
    pub fn grant(&self, to: GlobalId, object: GlobalId, rights: FifoRights) -> Result<(), Error> {
        let words = [to.to_bits(), object.to_bits(), u64::from(rights.to_bits())];
        self.shared.call(Operation::Grant, words, &[]).map(drop)
    }

    /// Revokes rights (`revoke_cap`), and ends the connections that were made by them. No message passes any more when
    /// this returns.
    ///
    /// # Errors
    /// As for [`Process::grant`].
    pub fn revoke(&self, from: GlobalId, object: GlobalId, rights: FifoRights) -> Result<(), Error> {
        let words = [from.to_bits(), object.to_bits(), u64::from(rights.to_bits())];
        self.shared.call(Operation::Revoke, words, &[]).map(drop)
    }

    /// The rights of this process to a FIFO.
    pub fn rights(&self, object: GlobalId) -> Result<FifoRights, Error> {
        let rights = self.shared.call(Operation::Rights, [object.to_bits(), 0, 0], &[])?;
        FifoRights::from_bits(rights as u32)
    }

    /// Makes a FIFO that this process reads and owns (`xfifo_init`). Its name is valid in the whole computer, among the
    /// tenant's FIFOs; with an empty name it has only its id. The FIFO ends with this process.
    ///
    /// # Errors
    /// `invalid_argument` for an invalid name or shape, `already_allocated` if the name is in use on any processing
    /// unit.
    pub fn init(&self, name: &str, shape: FifoShape) -> Result<Reader, Error> {
        check_name(name)?;
        let FifoShape { lines, slot_bytes } = shape.check()?;
        self.reader(Operation::Init, [u64::from(lines), u64::from(slot_bytes), 0], name)
    }

    /// Connects to a FIFO by its name to write to it (`xfifo_connect`). While the FIFO has no reader, waits at most
    /// until the deadline.
    ///
    /// # Errors
    /// `permission_denied` without the right to write; `invalid_argument` if there is no such FIFO; `deadline_exceeded`.
    pub fn connect(&self, name: &str, deadline: Option<Instant>) -> Result<Writer, Error> {
        check_name(name)?;
        self.retry(deadline, || self.writer(0, name))
    }

    /// Connects like [`Process::connect`], by the FIFO's id.
    ///
    /// # Errors
    /// As for [`Process::connect`].
    pub fn connect_to(&self, object: GlobalId, deadline: Option<Instant>) -> Result<Writer, Error> {
        self.retry(deadline, || self.writer(object.to_bits(), ""))
    }

    /// Connects to a FIFO by its name to read it, when its reader has closed it.
    ///
    /// # Errors
    /// As for [`Process::connect`], with the right to read.
    pub fn connect_to_read(&self, name: &str, deadline: Option<Instant>) -> Result<Reader, Error> {
        check_name(name)?;
        self.retry(deadline, || self.reader(Operation::ConnectToRead, [0; 3], name))
    }

    /// Starts a program of a package on a processor of the computer (`xspawn`): of its own node or of one that is
    /// linked with it. The program has a lease of its own, of one core and the memory that this process has for each of
    /// its cores. It ends with this process. It has only the rights in `spawn`.
    ///
    /// # Errors
    /// `invalid_argument` for a path that is not a program of the package, and for more than [`PAYLOAD_BYTES`] of
    /// words; `permission_denied` for a FIFO that this process does not own; `agent_unreachable` if there is no such
    /// unit; `no_capacity` and other errors of the manager.
    pub fn spawn(&self, unit: u32, spawn: &Spawn) -> Result<GlobalId, Error> {
        if spawn.path.is_empty() {
            return Err(Error::new(Code::InvalidArgument, "the path of the program is empty"));
        }
        self.start(unit, spawn)
    }

    /// A program, or without a path an executor.
    pub(crate) fn start(&self, unit: u32, spawn: &Spawn) -> Result<GlobalId, Error> {
        let capability = |&(object, rights): &(GlobalId, FifoRights)| Capability {
            object: object.to_bits(),
            rights: rights.to_bits(),
        };
        let Spawn { path, args, env, capabilities, package } = spawn;
        let program = Program { path: path.clone(), args: args.clone(), env: env.clone() };
        let capabilities = capabilities.iter().map(capability).collect();
        let (program, package) = (Some(program), package.clone());
        let said = SpawnProgram { program, capabilities, package }.encode_to_vec();
        if said.len() as u64 > PAYLOAD_BYTES {
            let message = format!(
                "a program with {} bytes of arguments, environment and capabilities: at most {PAYLOAD_BYTES}",
                said.len()
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        self.shared.call(Operation::Spawn, [unit.into(), 0, 0], &said).map(GlobalId::from_bits)
    }

    /// The processors of the computer, by number: 0 is this process's own, and from 1 on come those that are linked
    /// with it now, in the order of their ids.
    ///
    /// # Errors
    /// `invalid_argument` beyond the last.
    pub fn unit(&self, number: u32) -> Result<u32, Error> {
        self.shared.call(Operation::Unit, [number.into(), 0, 0], &[]).map(|unit| unit as u32)
    }

    /// The device of this name, such as `opencl0`, of the node of a processor ([`Process::unit`]): a unit where
    /// functions of this package are executed, if it has a build for such devices.
    ///
    /// # Errors
    /// `invalid_argument` if that node has no such device; `agent_unreachable` if it is no neighbour, or out of reach.
    pub fn device(&self, processor: u32, name: &str) -> Result<u32, Error> {
        check_name(name)?;
        let found = self.shared.call(Operation::Device, [processor.into(), 0, 0], name.as_bytes());
        found.map(|unit| unit as u32)
    }

    /// A unit of this kind, such as `dpu` or `opencl`: a processor or a device of this process's own node if there is
    /// one, or else of a linked one.
    ///
    /// # Errors
    /// `agent_unreachable` if there is none; `invalid_argument` for an unknown kind.
    pub fn find(&self, kind: &str) -> Result<u32, Error> {
        check_name(kind)?;
        self.shared.call(Operation::Find, [0; 3], kind.as_bytes()).map(|unit| unit as u32)
    }

    fn retry<T>(
        &self,
        deadline: Option<Instant>,
        connect: impl Fn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            match connect() {
                Err(error) if error.code == Code::TryLater => {
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    if left == Some(Duration::ZERO) {
                        return Err(Error::new(Code::DeadlineExceeded, error.message));
                    }
                    std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn writer(&self, object: u64, name: &str) -> Result<Writer, Error> {
        let (number, body, fds) =
            self.shared.call_for_packet(Operation::Connect, [object, 0, 0], name.as_bytes())?;
        let descriptor = self.descriptor(number);
        let Body::Joined(joined) = body else { return Err(out_of_turn()) };
        match self.shared.spares.write(&joined, fds) {
            Ok((end, shape)) => Ok(Writer::new(descriptor, GlobalId::from_bits(joined.object), end, shape)),
            Err(error) => {
                descriptor.close();
                Err(error)
            }
        }
    }

    fn reader(&self, operation: Operation, words: [u64; 3], name: &str) -> Result<Reader, Error> {
        let (number, body, fds) = self.shared.call_for_packet(operation, words, name.as_bytes())?;
        let descriptor = self.descriptor(number);
        let Body::Made(FifoMade { object, lines, slot_bytes }) = body else { return Err(out_of_turn()) };
        let [socket] = descriptors("a FIFO's socket", fds)?;
        let shape = shape(lines, slot_bytes)?;
        Ok(Reader::new(descriptor, GlobalId::from_bits(object), PacketSocket::from(socket), shape))
    }

    fn descriptor(&self, number: u32) -> Arc<ObjectDescriptor> {
        Arc::new(ObjectDescriptor { process: self.shared.clone(), number })
    }
}

impl ObjectDescriptor {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// State of the descriptor, as the shim has written it.
    #[inline]
    pub(crate) fn state(&self) -> DescriptorState {
        let word: Option<&AtomicU64> = self.process.page.view(wire::state(self.number));
        // A number that the page has no place for is refused when it is given out.
        word.map_or(DescriptorState(0), |word| DescriptorState(word.load(Ordering::Acquire)))
    }

    /// The process's connections that other FIFOs can share.
    pub(crate) fn spares(&self) -> &Spares {
        &self.process.spares
    }

    /// Closes the descriptor. The shim may know already that it is over.
    pub(crate) fn close(&self) {
        let _ = self.process.call(Operation::Close, [u64::from(self.number), 0, 0], &[]);
    }

    /// Ends one of the connections of a FIFO that is read.
    pub(crate) fn cut(&self, connection: u32) -> Result<(), Error> {
        let words = [u64::from(self.number), u64::from(connection), 0];
        self.process.call(Operation::Cut, words, &[]).map(drop)
    }
}

impl ProcessState {
    /// Calls the shim, and waits for its answer.
    #[inline]
    fn call(&self, operation: Operation, words: [u64; 3], payload: &[u8]) -> Result<u64, Error> {
        let record = self.claim_record();
        let answered = self.call_by(record, operation, words, payload);
        self.free.fetch_or(1 << record, Ordering::Release);
        answered
    }

    /// Claims a free record. There is one for each call that may be under way; more threads wait.
    fn claim_record(&self) -> u32 {
        loop {
            let free = self.free.load(Ordering::Relaxed);
            let record = free.trailing_zeros();
            if record < RECORDS && self.free.fetch_and(!(1 << record), Ordering::Acquire) & 1 << record != 0 {
                return record;
            }
            std::thread::yield_now();
        }
    }

    fn call_by(
        &self,
        record: u32,
        operation: Operation,
        words: [u64; 3],
        payload: &[u8],
    ) -> Result<u64, Error> {
        let uses = &self.uses[record as usize];
        let turn = Turn::of_use(u64::from(uses.fetch_add(1, Ordering::Relaxed)));
        let page_is_short = || Error::new(Code::Internal, "the shim's page is smaller than its layout");
        self.page.write(wire::payload(record), payload).ok_or_else(page_is_short)?;
        let request = CallRequest {
            operation: operation as u16,
            record: record as u16,
            turn,
            len_bytes: payload.len() as u32,
            words,
        };
        let by = Occupant { record: record as u16, turn };
        // There are as many lines as records, and each line's last occupant has its answer when its record is free.
        let position = loop {
            match self.ring.claim(by, |_, last| self.is_answered(u32::from(last.record), last.turn)) {
                Some(position) => break position,
                None => std::thread::yield_now(),
            }
        };
        let line: &Line = self.page.view(wire::request(position.line)).ok_or_else(page_is_short)?;
        let watch: &Watch = self.page.view(wire::REQUEST_WATCH).ok_or_else(page_is_short)?;
        let (immediate, body) = request.encode();
        if line.publish(watch, position.turn, immediate, &body) {
            self.bell.ring();
        }
        self.ring.sent(position, by);
        self.await_answer(record, turn)
    }

    fn is_answered(&self, record: u32, turn: Turn) -> bool {
        let line: Option<&Line> = self.page.view(wire::answer(record));
        // A record that is in use again has been answered.
        line.is_some_and(|line| line.is(turn))
            || self.uses[record as usize].load(Ordering::Relaxed) != turn.to_bits()
    }

    fn await_answer(&self, record: u32, turn: Turn) -> Result<u64, Error> {
        let page_is_short = || Error::new(Code::Internal, "the shim's page is smaller than its layout");
        let line: &Line = self.page.view(wire::answer(record)).ok_or_else(page_is_short)?;
        let watch: &Watch = self.page.view(wire::answer_watch(record)).ok_or_else(page_is_short)?;
        if !line.spin(turn, LOOKS) {
            while !line.wait(watch, turn, Some(Instant::now() + NAP), || false) {
                if self.socket.is_closed() && !line.is(turn) {
                    return Err(shim_gone());
                }
            }
        }
        let (status, [value, len_bytes]) = line.read();
        if status == 0 {
            return Ok(value);
        }
        let mut message = vec![0; len_bytes.min(PAYLOAD_BYTES) as usize];
        self.page.read(wire::payload(record), &mut message).ok_or_else(page_is_short)?;
        Err(Error::new(Code::from_number(status), String::from_utf8_lossy(&message)))
    }

    /// Calls for a descriptor, whose number comes with a packet.
    fn call_for_packet(
        &self,
        operation: Operation,
        words: [u64; 3],
        payload: &[u8],
    ) -> Result<(u32, Body, Vec<OwnedFd>), Error> {
        let _held = lock(&self.packets);
        let number = self.call(operation, words, payload)?;
        let number =
            u32::try_from(number).ok().filter(|&number| number < DESCRIPTORS).ok_or_else(out_of_turn)?;
        // It was sent before the answer.
        let packet = self.socket.receive(Some(NAP))?.ok_or_else(shim_gone)?;
        Ok((number, told(&packet.bytes)?, packet.fds))
    }
}

fn told(bytes: &[u8]) -> Result<Body, Error> {
    match decode::<ShimToProcess>("what the shim says", bytes)?.body {
        Some(Body::Failure(failure)) => Err(Error::new(Code::from_number(failure.code), failure.message)),
        Some(body) => Ok(body),
        None => Err(out_of_turn()),
    }
}

pub(crate) fn shape(lines: u32, slot_bytes: u32) -> Result<FifoShape, Error> {
    FifoShape { lines, slot_bytes }.check()
}

pub(crate) fn descriptors<const N: usize>(what: &str, fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    let count = fds.len();
    fds.try_into().map_err(|_| {
        Error::new(Code::Protocol, format!("{what} came with {count} descriptors instead of {N}"))
    })
}

pub(crate) fn out_of_turn() -> Error {
    Error::new(Code::Protocol, "the shim has answered what was not asked")
}

/// Returns the error that the shim is gone.
pub(crate) fn shim_gone() -> Error {
    Error::new(Code::AgentUnreachable, "the agent of this processing unit is gone")
}
