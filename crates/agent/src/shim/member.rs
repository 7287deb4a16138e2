//! A process that has entered: the page that it shares with the shim.
//!
//! The process can write to the page at any time. Each value that is read from it is copied once and then checked. The
//! shim keeps its own copies of the states that it publishes there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use prost::Message;
use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_fabric::ring::Position;
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::v1::{Capability, Entered, ShimToProcess, SpawnProgram};
use sublet_proto::{Code, Error, decode, to_usize};
use sublet_xpu::wire::{self, CallRequest, DescriptorState, Operation, PAYLOAD_BYTES, RECORDS};
use sublet_xpu::{FifoRights, FifoShape, GlobalId};

use super::core::{FifoTarget, ShimCall, SpawnRequest, Tag};

/// See the [module](self).
pub(super) struct Member {
    pub(super) pid: GlobalId,
    /// Lease to which the process belongs.
    pub(super) lease: String,
    socket: Arc<PacketSocket>,
    page: Region,
    /// Rung by the process when it has called while no thread polled its page.
    bell: OwnedFd,
    /// The states of its descriptors, as the shim has set them.
    states: Box<[AtomicU64]>,
    /// Calls that were taken and not answered.
    waiting: AtomicU32,
}

impl Member {
    pub(super) fn new(pid: GlobalId, lease: &str, socket: Arc<PacketSocket>) -> Result<Member, Error> {
        let page = Region::create("sublet-shim", wire::PAGE_BYTES)?;
        let states = (0..wire::DESCRIPTORS).map(|_| AtomicU64::new(0)).collect();
        let waiting = AtomicU32::new(0);
        Ok(Member { pid, lease: lease.to_owned(), socket, page, bell: new_bell()?, states, waiting })
    }

    /// Informs the process that it has entered.
    pub(super) fn welcome(&self) -> Result<(), Error> {
        let entered = Entered { pid: self.pid.to_bits() };
        self.send(Body::Entered(entered), &[self.page.fd(), self.bell.as_fd()])
    }

    /// Sends a packet without waiting: a process has to receive what it has requested.
    pub(super) fn send(&self, body: Body, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        Ok(self.socket.try_send(&ShimToProcess { body: Some(body) }.encode_to_vec(), fds)?)
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(super) fn hush(&self) {
        // Fails only if it was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Returns the call at this position, if there is one.
    #[inline]
    pub(super) fn look(&self, count: u64) -> Option<CallRequest> {
        let position = Position::new(count, RECORDS);
        let line: &Line = self.page.view(wire::request(position.line))?;
        line.is(position.turn).then(|| CallRequest::decode(line.read()))
    }

    /// Whether the process will ring its bell at this position. If not, the call is there already.
    pub(super) fn sleep(&self, count: u64) -> bool {
        let position = Position::new(count, RECORDS);
        let line: Option<&Line> = self.page.view(wire::request(position.line));
        let watch: Option<&Watch> = self.page.view(wire::REQUEST_WATCH);
        line.zip(watch).is_some_and(|(line, watch)| line.ask_bell(watch, position.turn))
    }

    /// Decodes a call for the core. More calls than a process has records are a protocol error.
    #[inline]
    pub(super) fn take(&self, request: &CallRequest) -> Result<(Tag, Result<ShimCall, Error>), Error> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= RECORDS || u32::from(request.record) >= RECORDS {
            let message = format!("process {} calls what makes no sense", self.pid);
            return Err(Error::new(Code::Protocol, message));
        }
        let tag = u64::from(request.turn.to_bits()) << 32 | u64::from(request.record);
        Ok((tag, self.read(request)))
    }

    fn read(&self, request: &CallRequest) -> Result<ShimCall, Error> {
        let operation = Operation::from_number(request.operation)?;
        let [first, second, third] = request.words;
        let object = GlobalId::from_bits(second);
        let rights = || FifoRights::from_bits(number_of(third, "rights")?);
        let descriptor = || number_of(first, "a descriptor");
        Ok(match operation {
            Operation::Grant => ShimCall::Grant { to: GlobalId::from_bits(first), object, rights: rights()? },
            Operation::Revoke => {
                ShimCall::Revoke { from: GlobalId::from_bits(first), object, rights: rights()? }
            }
            Operation::Rights => ShimCall::Rights { object: GlobalId::from_bits(first) },
            Operation::Init => {
                let shape = FifoShape { lines: number(first)?, slot_bytes: number(second)? };
                ShimCall::Init { name: self.name(request)?, shape }
            }
            Operation::Connect => ShimCall::Connect { to: self.target(request)? },
            Operation::ConnectToRead => ShimCall::ConnectToRead { to: self.target(request)? },
            Operation::Close => ShimCall::Close { descriptor: descriptor()? },
            Operation::Object => ShimCall::Object { descriptor: descriptor()? },
            Operation::Cut => {
                ShimCall::Cut { descriptor: descriptor()?, connection: number_of(second, "a connection")? }
            }
            Operation::Spawn => ShimCall::Spawn(Box::new(self.spawn(request)?)),
            Operation::Unit => ShimCall::Unit { number: first },
            Operation::Device => {
                ShimCall::Device { processor: number_of(first, "a processor")?, name: self.name(request)? }
            }
            Operation::Find => ShimCall::Find { kind: self.name(request)? },
        })
    }

    fn target(&self, request: &CallRequest) -> Result<FifoTarget, Error> {
        match request.words[0] {
            0 => self.name(request).map(FifoTarget::Named),
            object => Ok(FifoTarget::Object(GlobalId::from_bits(object))),
        }
    }

    fn spawn(&self, request: &CallRequest) -> Result<SpawnRequest, Error> {
        let said: SpawnProgram = decode("a program to be spawned", &self.payload(request)?)?;
        let unit = number_of(request.words[0], "a processing unit")?;
        let program = said.program.ok_or_else(|| Error::new(Code::Protocol, "nothing is to be spawned"))?;
        let capability =
            |said: &Capability| Ok((GlobalId::from_bits(said.object), FifoRights::from_bits(said.rights)?));
        let capabilities = said.capabilities.iter().map(capability).collect::<Result<_, Error>>()?;
        Ok(SpawnRequest { unit, program, package: said.package, capabilities })
    }

    /// Copies a payload, so that the process cannot change it afterwards.
    fn payload(&self, request: &CallRequest) -> Result<Vec<u8>, Error> {
        let outside = || Error::new(Code::Protocol, "a payload outside of the page");
        if u64::from(request.len_bytes) > PAYLOAD_BYTES {
            return Err(outside());
        }
        let mut bytes = vec![0; request.len_bytes as usize];
        let read = self.page.read(wire::payload(u32::from(request.record)), &mut bytes);
        read.map(|()| bytes).ok_or_else(outside)
    }

    fn name(&self, request: &CallRequest) -> Result<String, Error> {
        wire::check_name_len(request.len_bytes as usize)?;
        let no_text = |_| Error::new(Code::InvalidArgument, "a name that is no UTF-8");
        let name = String::from_utf8(self.payload(request)?).map_err(no_text)?;
        wire::check_name(&name).map(|()| name)
    }

    /// Answers a call.
    #[inline]
    pub(super) fn answer(&self, tag: Tag, answer: Result<u64, Error>) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let (record, turn) = ((tag & 0xffff_ffff) as u32, Turn::from_bits((tag >> 32) as u32));
        let (status, body) = match answer {
            Ok(value) => (0, [value, 0]),
            Err(error) => (error.code.number(), [0, self.put_message(record, &error.message)]),
        };
        let line: Option<&Line> = self.page.view(wire::answer(record));
        let watch: Option<&Watch> = self.page.view(wire::answer_watch(record));
        if let Some((line, watch)) = line.zip(watch) {
            line.publish(watch, turn, status, &body);
        }
    }

    #[cold]
    fn put_message(&self, record: u32, message: &str) -> u64 {
        let message = &message.as_bytes()[..message.len().min(to_usize(PAYLOAD_BYTES))];
        self.page.write(wire::payload(record), message).map_or(0, |()| message.len() as u64)
    }

    /// Marks a descriptor as open.
    pub(super) fn open(&self, descriptor: u32) {
        self.set(descriptor, |_| DescriptorState(0));
    }

    /// Notes that one more packet about a descriptor was sent.
    pub(super) fn count_packet(&self, descriptor: u32) {
        self.set(descriptor, DescriptorState::with_packet);
    }

    /// Marks a descriptor as ended.
    pub(super) fn end(&self, descriptor: u32, code: Code) {
        self.set(descriptor, |state| state.with_end(code));
    }

    /// Sets the state of a descriptor. The next state derives from the shim's own copy, whatever the process writes to
    /// the word.
    fn set(&self, descriptor: u32, next: impl Fn(DescriptorState) -> DescriptorState) {
        let Some(kept) = self.states.get(descriptor as usize) else { return };
        let state = next(DescriptorState(kept.load(Ordering::Relaxed)));
        kept.store(state.0, Ordering::Relaxed);
        let word: Option<&sublet_fabric::sync::AtomicU64> = self.page.view(wire::state(descriptor));
        if let Some(word) = word {
            word.store(state.0, Ordering::Release);
        }
    }
}

fn number(word: u64) -> Result<u32, Error> {
    number_of(word, "a FIFO's ring with a dimension of more than 32 bits")
}

fn number_of(word: u64, what: &str) -> Result<u32, Error> {
    u32::try_from(word).map_err(|_| Error::new(Code::InvalidArgument, format!("{what}: {word}")))
}

/// Creates an eventfd that never blocks.
pub(super) fn new_bell() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::new(Code::System, format!("eventfd failed: {errno}")))
}
