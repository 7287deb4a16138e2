//! Calls of a process to its shim, over the page that they share, and the descriptors of the process.

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
use sublet_proto::v1::{EnterShim, Entered};
use sublet_proto::{Code, Error};

use crate::capability::GlobalId;
use crate::fifo::Spares;
use crate::shim_messages::{descriptors, out_of_turn, shim_gone, told};
use crate::wire::{self, CallRequest, DESCRIPTORS, DescriptorState, Operation, PAYLOAD_BYTES, RECORDS};

/// Number of polls for an answer before the caller sleeps.
const LOOKS: u32 = 20_000;
/// Longest sleep of a caller before it checks whether the shim still exists.
const NAP: Duration = Duration::from_millis(50);
/// Longest time that the shim may take to let a process in.
const ENTER_PATIENCE: Duration = Duration::from_secs(10);

/// State that a process shares with its shim.
pub(super) struct ProcessState {
    pub(super) pid: GlobalId,
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
    pub(super) spares: Spares,
}

/// An object that a process has by a number, until it closes it.
pub(crate) struct ObjectDescriptor {
    process: Arc<ProcessState>,
    number: u32,
}

impl ObjectDescriptor {
    pub(super) fn new(process: &Arc<ProcessState>, number: u32) -> ObjectDescriptor {
        ObjectDescriptor { process: process.clone(), number }
    }

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
    /// Becomes a process of the shim at the other end of a socket.
    pub(super) fn enter(socket: PacketSocket) -> Result<ProcessState, Error> {
        socket.send(&EnterShim { version: wire::VERSION }.encode_to_vec(), &[])?;
        let packet = socket.receive(Some(ENTER_PATIENCE))?.ok_or_else(shim_gone)?;
        let Packet { bytes, fds } = packet;
        let Entered { pid } = match told(&bytes)? {
            Body::Entered(entered) => entered,
            _ => return Err(out_of_turn()),
        };
        let [page, bell] = descriptors("the shim's page and bell", fds)?;
        let page = Region::attach(page, wire::PAGE_BYTES)?;
        Ok(ProcessState {
            pid: GlobalId::from_bits(pid),
            socket,
            page,
            bell: Bell(Some(bell)),
            ring: Sender::new(RECORDS),
            free: AtomicU32::new((1 << RECORDS) - 1),
            uses: std::array::from_fn(|_| AtomicU32::new(0)),
            packets: Mutex::new(()),
            spares: Spares::default(),
        })
    }

    /// Calls the shim, and waits for its answer.
    #[inline]
    pub(super) fn call(&self, operation: Operation, words: [u64; 3], payload: &[u8]) -> Result<u64, Error> {
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
        #[expect(clippy::cast_possible_truncation, reason = "below `RECORDS`, and within a page")]
        let (record, len_bytes) = (record as u16, payload.len() as u32);
        let request = CallRequest { operation: operation as u16, record, turn, len_bytes, words };
        let by = Occupant { record, turn };
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
        self.await_answer(record.into(), turn)
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
    pub(super) fn call_for_packet(
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
