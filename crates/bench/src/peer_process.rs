//! Worker processes that communicate by the shim, for measurements: each has a lease of one core.

use std::time::Duration;

use sublet_proto::package;
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invocation, Invoker, Policy};

const PACKAGE: &str = "sublet-bench-neighbours";
const FUNCTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/neighbours.so"));

/// A worker process.
pub(super) struct PeerProcess {
    pub(super) invoker: Invoker,
}

/// A FIFO, as its reader sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderFifo {
    pub(super) descriptor: u64,
    pub(super) object: u64,
}

/// Deploys the measured functions.
pub(super) fn deploy(manager: &ManagerClient) -> Result<(), Error> {
    let manifest = format!("name = \"{PACKAGE}\"\nlibrary = \"neighbours.so\"\n");
    let file = PackageFile { path: "neighbours.so".to_owned(), data: FUNCTIONS.to_vec(), executable: true };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

impl PeerProcess {
    pub(super) fn start(access: &Access) -> Result<PeerProcess, Error> {
        PeerProcess::start_on(access, "")
    }

    /// Starts a process on a kind of processing unit, if one is named.
    pub(super) fn start_on(access: &Access, pu: &str) -> Result<PeerProcess, Error> {
        let mut invoker = Invoker::connect_with(access.clone())?;
        // The thread that waits for the functions sleeps: they need all cores.
        let allocation = Allocation::new(PACKAGE).policy(Policy::AlwaysWarm).spin(Duration::ZERO);
        invoker.allocate(&if pu.is_empty() { allocation } else { allocation.pu(pu) })?;
        Ok(PeerProcess { invoker })
    }

    /// Calls a function with some words, and returns the words of its answer.
    pub(super) fn call<const N: usize>(&self, function: &str, words: &[u64]) -> Result<[u64; N], Error> {
        let mut answer = [0; N];
        self.begin(function, words, &mut answer)?.wait()?;
        Ok(answer)
    }

    /// Begins a call like [`PeerProcess::call`] without waiting for it.
    pub(super) fn begin<'call>(
        &'call self,
        function: &str,
        words: &'call [u64],
        answer: &'call mut [u64],
    ) -> Result<Invocation<'call>, Error> {
        self.invoker.submit(function, words, answer)
    }

    /// Makes a FIFO that this process reads, with slots for messages of this size.
    pub(super) fn make(&self, message_bytes: u64) -> Result<ReaderFifo, Error> {
        let slot_bytes = message_bytes.max(1).next_multiple_of(4096);
        let [descriptor, object] = self.call("make", &[slot_bytes])?;
        Ok(ReaderFifo { descriptor, object })
    }

    /// Connects to a FIFO of another process, which permits it, and returns the descriptor.
    pub(super) fn join(&self, other: &PeerProcess, fifo: ReaderFifo) -> Result<u64, Error> {
        let [own] = self.call("self", &[])?;
        let [] = other.call("allow", &[own, fifo.object])?;
        let [descriptor] = self.call("join", &[fifo.object])?;
        Ok(descriptor)
    }
}

/// Error of a thread of a measurement.
pub(super) fn lost() -> Error {
    Error::new(Code::Internal, "a thread of the measurement has failed")
}
