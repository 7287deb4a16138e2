//! Implements a process's own view: what it asks of the shim, and what it makes of the answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::v1::{Capability, FifoMade, Program, SpawnProgram};
use sublet_proto::{Code, Error};

use crate::capability::{FifoRights, GlobalId};
use crate::fifo::{FifoShape, Reader, Writer};
use crate::shim_messages::{descriptors, out_of_turn, shape};
use crate::wire::{Operation, PAYLOAD_BYTES, check_name};
use shim_calls::ProcessState;

pub(crate) use shim_calls::ObjectDescriptor;

mod shim_calls;

/// First and longest pause between two tries to connect to a FIFO that has no reader.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// A global process: this one. It is left when this and all that was made of it are dropped.
#[derive(Clone)]
pub struct Process {
    shared: Arc<ProcessState>,
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

impl Process {
    /// Becomes a global process by the socket that this process was started with.
    ///
    /// # Errors
    /// The shim's error, for example that the process may not enter; `version_mismatch`; `agent_unreachable`.
    pub fn enter(socket: PacketSocket) -> Result<Process, Error> {
        Ok(Process { shared: Arc::new(ProcessState::enter(socket)?) })
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
        FifoRights::from_bits(narrow(rights)?)
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
        self.shared.call(Operation::Unit, [number.into(), 0, 0], &[]).and_then(narrow)
    }

    /// The device of this name, such as `opencl0`, of the node of a processor ([`Process::unit`]): a unit where
    /// functions of this package are executed, if it has a build for such devices.
    ///
    /// # Errors
    /// `invalid_argument` if that node has no such device; `agent_unreachable` if it is no neighbour, or out of reach.
    pub fn device(&self, processor: u32, name: &str) -> Result<u32, Error> {
        check_name(name)?;
        let found = self.shared.call(Operation::Device, [processor.into(), 0, 0], name.as_bytes());
        found.and_then(narrow)
    }

    /// A unit of this kind, such as `dpu` or `opencl`: a processor or a device of this process's own node if there is
    /// one, or else of a linked one.
    ///
    /// # Errors
    /// `agent_unreachable` if there is none; `invalid_argument` for an unknown kind.
    pub fn find(&self, kind: &str) -> Result<u32, Error> {
        check_name(kind)?;
        self.shared.call(Operation::Find, [0; 3], kind.as_bytes()).and_then(narrow)
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
        Arc::new(ObjectDescriptor::new(&self.shared, number))
    }
}

/// A number of 32 bits that the shim answered.
fn narrow(answer: u64) -> Result<u32, Error> {
    let wide =
        |_| Error::new(Code::Protocol, format!("the shim answered {answer}: its numbers have 32 bits"));
    u32::try_from(answer).map_err(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_answers_beyond_32_bits() {
        assert_eq!(narrow(u64::from(u32::MAX)).unwrap(), u32::MAX);
        let error = narrow(1 << 32 | 7).unwrap_err();
        assert_eq!((error.code, error.message.contains("4294967303")), (Code::Protocol, true), "{error}");
    }
}
