//! Worker processes that know each other by the shim, for measurements: each of a lease with one core.

use std::time::Duration;

use sublet_proto::package;
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invocation, Invoker, Policy};

const PACKAGE: &str = "sublet-bench-neighbours";
const FUNCTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/neighbours.so"));

/// A worker process.
pub(super) struct Kin {
    pub(super) invoker: Invoker,
}

/// A FIFO as its reader has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fifo {
    pub(super) descriptor: u64,
    pub(super) object: u64,
}

/// Deploys the functions that are measured.
pub(super) fn deploy(manager: &ManagerClient) -> Result<(), Error> {
    let manifest = format!("name = \"{PACKAGE}\"\nlibrary = \"neighbours.so\"\n");
    let file = PackageFile { path: "neighbours.so".to_owned(), data: FUNCTIONS.to_vec(), executable: true };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

impl Kin {
    pub(super) fn start(access: &Access) -> Result<Kin, Error> {
        Kin::start_on(access, "")
    }

    /// On a kind of processing unit, if one is said.
    pub(super) fn start_on(access: &Access, pu: &str) -> Result<Kin, Error> {
        let mut invoker = Invoker::connect_with(access.clone())?;
        // Who waits for the functions sleeps: they need all cores.
        let allocation = Allocation::new(PACKAGE).policy(Policy::AlwaysWarm).spin(Duration::ZERO);
        invoker.allocate(&if pu.is_empty() { allocation } else { allocation.pu(pu) })?;
        Ok(Kin { invoker })
    }

    /// Calls a function with some words, and returns those that it answers.
    pub(super) fn call<const N: usize>(&self, function: &str, words: &[u64]) -> Result<[u64; N], Error> {
        let mut answer = [0; N];
        self.begin(function, words, &mut answer)?.wait()?;
        Ok(answer)
    }

    /// The same, without waiting.
    pub(super) fn begin<'call>(
        &'call self,
        function: &str,
        words: &'call [u64],
        answer: &'call mut [u64],
    ) -> Result<Invocation<'call>, Error> {
        self.invoker.submit(function, words, answer)
    }

    /// Makes a FIFO that this process reads, with slots for such messages.
    pub(super) fn make(&self, message_bytes: u64) -> Result<Fifo, Error> {
        let slot_bytes = message_bytes.max(1).next_multiple_of(4096);
        let [descriptor, object] = self.call("make", &[slot_bytes])?;
        Ok(Fifo { descriptor, object })
    }

    /// Connects to a FIFO of another, who lets it, and says by which descriptor.
    pub(super) fn join(&self, other: &Kin, fifo: Fifo) -> Result<u64, Error> {
        let [own] = self.call("self", &[])?;
        let [] = other.call("allow", &[own, fifo.object])?;
        let [descriptor] = self.call("join", &[fifo.object])?;
        Ok(descriptor)
    }
}

/// What went wrong with a thread of a measurement.
pub(super) fn lost() -> Error {
    Error::new(Code::Internal, "a thread of the measurement has failed")
}
