//! Stores evicted pages in the memory of the run for which this process executes a component.

use std::sync::Arc;

use sublet_proto::{Code, Error};

use crate::swap::Backing;
use crate::worker::worker_run::{self, WorkerRun};

/// Swap space in the current run, as soon as there is one.
pub(super) struct RunsSpace;

impl Backing for RunsSpace {
    /// Does nothing, as the component grows when it is written.
    fn ensure(&self, _len_bytes: u64) -> Result<(), Error> {
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        run()?.swap_space()?.read(offset, into.into())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        run()?.swap_space()?.write(offset, from.into())
    }
}

fn run() -> Result<Arc<WorkerRun>, Error> {
    worker_run::current()
        .ok_or_else(|| Error::new(Code::Internal, "something is swapped, and there is no run"))
}
