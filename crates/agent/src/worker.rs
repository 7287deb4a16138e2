//! One lease's worker process: how it is started, ended, and what its end is called.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::v1::{PackageInfo, Started, WorkerSetup};
use sublet_proto::{Code, Error};
use sublet_sandbox::bare::{Exit, Id, Kind, SandboxError, Sandboxes, Signal, Spec};

use crate::attach::Attached;
use crate::node::Node;
use crate::packages::Unpacked;
use crate::shared::{Occupancy, SlotHold};
use crate::signal::wait_readable;

/// How long a killed process may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);
const MIB: u64 = 1 << 20;

/// The worker process of a lease, started and ended by the lease's supervisor. That thread must outlive it, since
/// the process asks to be killed when the thread that started it ends.
pub(crate) struct WorkerProcess {
    sandboxes: Sandboxes,
    id: Id,
    package: Arc<Unpacked>,
    /// On shared cores, until it is known to be dead; if it is dropped before, its sandbox has killed it by then.
    occupancy: Option<Occupancy>,
}

impl WorkerProcess {
    /// Starts it with its package, which was asked for at that time. The socket is the client's end of its control
    /// connection, on which the set-up is already under way.
    pub(crate) fn start(
        node: &Node,
        held: &Attached,
        package: Arc<Unpacked>,
        requested_ns: u64,
    ) -> Result<(WorkerProcess, Started, PacketSocket), Error> {
        let package_ready_ns = monotonic_ns();
        let (outside, inside) = PacketSocket::pair()?;
        let occupancy = held.reservation.slots.as_ref().map(SlotHold::occupy);
        let setup = setup(node, held, &package, occupancy.as_ref())?.encode_to_vec();
        let slots = occupancy.iter().flat_map(|occupancy| &occupancy.regions).map(|region| region.fd());
        let regions: Vec<_> = [held.inbox.fd(), held.meter.region().fd()].into_iter().chain(slots).collect();
        outside.send(&setup, &regions)?;
        let mut sandboxes = Sandboxes::new();
        let (id, pid) = launch(&mut sandboxes, node.worker.clone(), inside.into())?;
        let started = Started { pid, requested_ns, package_ready_ns, spawned_ns: monotonic_ns() };
        Ok((WorkerProcess { sandboxes, id, package, occupancy }, started, outside))
    }

    /// Readable once it has ended.
    pub(crate) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sandboxes.exit_fd(self.id)
    }

    /// Kills it and waits for its end. An error says that it may still run.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        one(self.sandboxes.kill(&[self.id], Signal::KILL))?;
        if let Some(fd) = self.sandboxes.exit_fd(self.id) {
            wait_readable([Some(fd.as_fd())], Some(Instant::now() + LONGEST_END))?;
        }
        match self.exit()? {
            Some(_) => Ok(()),
            None => {
                let message =
                    format!("the worker did not end {} s after it was killed", LONGEST_END.as_secs());
                Err(Error::new(Code::System, message))
            }
        }
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&mut self) -> Result<Option<Exit>, Error> {
        let exit = one(self.sandboxes.state(&[self.id]))?.exit;
        if exit.is_some() {
            self.occupancy = None;
        }
        Ok(exit)
    }

    /// What a client is told about an end that nobody asked for.
    pub(crate) fn describe(&self, exit: Exit, executing: &[u32], memory_bytes: u64) -> String {
        describe(&self.package.info, exit, executing, memory_bytes)
    }
}

fn launch(sandboxes: &mut Sandboxes, program: PathBuf, control: OwnedFd) -> Result<(Id, u32), Error> {
    let spec = Spec { kind: Kind::Process, program, args: Vec::new(), env: Vec::new(), control };
    let id = one(sandboxes.create(vec![spec]))?;
    one(sandboxes.start(&[id]))?;
    let pid = one(sandboxes.state(&[id]))?.pid;
    Ok((id, pid.unwrap_or_default()))
}

fn setup(
    node: &Node,
    held: &Attached,
    package: &Unpacked,
    occupancy: Option<&Occupancy>,
) -> Result<WorkerSetup, Error> {
    let folder = package.folder.to_str().ok_or_else(|| {
        Error::new(Code::InvalidArgument, format!("the path {} is not UTF-8", package.folder.display()))
    })?;
    let carrier = held.carrier.as_ref();
    let identity = carrier.and_then(|carrier| carrier.identity.clone());
    let (certificate, private_key) =
        identity.map_or_else(Default::default, |identity| (identity.certificate, identity.private_key));
    // The inbox is part of what the lease pays for; `attach` has checked that it fits.
    let memory_bytes = held.lease.memory_bytes.saturating_sub(held.inbox.len_bytes());
    Ok(WorkerSetup {
        lease: held.lease.id.clone(),
        package_folder: folder.to_owned(),
        cores: held.reservation.cores.clone(),
        options: Some(held.options),
        memory_bytes,
        ticks_per_ns: node.calibration.ticks_per_ns(),
        slots: occupancy.map(|occupancy| occupancy.slots.clone()).unwrap_or_default(),
        holder: occupancy.map_or(0, |occupancy| occupancy.holder),
        functions: held.meter.layout().functions(),
        fabric: carrier.map(|carrier| carrier.choice.clone()),
        certificate,
        private_key,
        // What a copy takes is taken from the same memory.
        copies_bytes: carrier.map_or(0, |_| memory_bytes),
    })
}

/// The answer about the only one that was asked about.
fn one<T>(mut answers: Vec<Result<T, SandboxError>>) -> Result<T, Error> {
    match answers.pop() {
        Some(answer) => answer.map_err(Error::from),
        None => Err(Error::new(Code::Internal, "a sandbox verb gave no answer")),
    }
}

fn describe(package: &PackageInfo, exit: Exit, executing: &[u32], memory_bytes: u64) -> String {
    let mut names: Vec<String> = executing.iter().map(|&index| function_name(package, index)).collect();
    names.sort_unstable();
    names.dedup();
    let doing = match names.as_slice() {
        [] => "between calls".to_owned(),
        names => format!("while executing {}", names.join(", ")),
    };
    format!("worker {exit} {doing}; the lease's memory is {}", memory(memory_bytes))
}

/// Rounded to a tenth of a MiB.
fn memory(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10 + u128::from(MIB) / 2) / u128::from(MIB);
    match (tenths / 10, tenths % 10) {
        (0, _) => format!("{bytes} bytes"),
        (whole, 0) => format!("{whole} MiB"),
        (whole, tenth) => format!("{whole}.{tenth} MiB"),
    }
}

/// The index comes from memory that a function could have written to.
fn function_name(package: &PackageInfo, index: u32) -> String {
    match package.functions.get(index as usize) {
        Some(function) => format!("{}/{}", package.name, function.name),
        None => format!("function {index} of {}", package.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Cores;
    use crate::resources::{Pool, Reservation, Resources, Wanted};
    use std::num::NonZeroU32;
    use sublet_fabric::slot::{CoreSlot, Holder};
    use sublet_proto::v1::FunctionInfo;

    /// A process on a shared core that waits for the end of its standard input, and has taken the core.
    fn shared_worker(reservation: &Reservation) -> (WorkerProcess, PacketSocket) {
        let (outside, inside) = PacketSocket::pair().unwrap();
        let mut sandboxes = Sandboxes::new();
        let (id, _) = launch(&mut sandboxes, "/bin/cat".into(), inside.into()).unwrap();
        let package = Arc::new(Unpacked { info: PackageInfo::default(), folder: PathBuf::new() });
        let occupancy = reservation.slots.as_ref().unwrap().occupy();
        let holder = Holder { process: NonZeroU32::new(occupancy.holder).unwrap(), worker: 0 };
        assert!(occupancy.regions[0].view::<CoreSlot>(0).unwrap().take(holder), "the core was not free");
        (WorkerProcess { sandboxes, id, package, occupancy: Some(occupancy) }, outside)
    }

    #[test]
    fn however_a_worker_ends_its_shared_core_is_free_once_that_is_known() {
        let cores = Cores { exclusive: Vec::new(), shared: vec![0] };
        let pool = Pool::new(Resources::new(cores, 0, 1).unwrap());
        let reservation = pool.reserve(&Wanted { cores: 1, memory_bytes: 0, shared: true }).unwrap();
        let (mut killed, _control) = shared_worker(&reservation);
        killed.kill().unwrap();
        let (mut ended, control) = shared_worker(&reservation);
        drop(control);
        wait_readable([ended.exit_fd()], Some(Instant::now() + LONGEST_END)).unwrap();
        assert_eq!(ended.exit().unwrap(), Some(Exit::Status(0)));
        let (dropped, _control) = shared_worker(&reservation);
        drop(dropped);
        shared_worker(&reservation);
    }

    #[test]
    fn an_end_is_told_with_what_was_executed_and_the_memory() {
        let function = |name: &str| FunctionInfo { name: name.into(), symbol: name.into() };
        let package = PackageInfo {
            name: "libx".into(),
            functions: vec![function("f"), function("g")],
            ..PackageInfo::default()
        };
        let told = |exit, executing: &[u32], bytes| describe(&package, exit, executing, bytes);
        assert_eq!(
            told(Exit::Signal(11), &[0], 64 * MIB),
            "worker killed by SIGSEGV while executing libx/f; the lease's memory is 64 MiB"
        );
        assert_eq!(
            told(Exit::Status(3), &[1, 0, 1], 4097),
            "worker exited with status 3 while executing libx/f, libx/g; the lease's memory is 4097 bytes"
        );
        assert!(told(Exit::Status(0), &[], 134_742_016).ends_with("is 128.5 MiB"));
        assert!(told(Exit::Status(0), &[], MIB).contains("exited with status 0 between calls"));
        assert!(told(Exit::Status(0), &[9], MIB).contains("function 9 of libx"));
    }
}
