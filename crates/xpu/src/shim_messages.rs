//! Messages of the shim to a process: how they are decoded, and their errors.

use std::os::fd::OwnedFd;

use sublet_proto::v1::ShimToProcess;
use sublet_proto::v1::shim_to_process::Body;
use sublet_proto::{Code, Error, decode};

use crate::fifo::FifoShape;

/// Decodes a message of the shim.
pub(crate) fn told(bytes: &[u8]) -> Result<Body, Error> {
    match decode::<ShimToProcess>("what the shim says", bytes)?.body {
        Some(Body::Failure(failure)) => Err(Error::new(Code::from_number(failure.code), failure.message)),
        Some(body) => Ok(body),
        None => Err(out_of_turn()),
    }
}

/// Checks the shape of a FIFO.
pub(crate) fn shape(lines: u32, slot_bytes: u32) -> Result<FifoShape, Error> {
    FifoShape { lines, slot_bytes }.check()
}

/// Returns the descriptors that came with a message, if the message takes `N`.
pub(crate) fn descriptors<const N: usize>(what: &str, fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    let count = fds.len();
    fds.try_into().map_err(|_| {
        Error::new(Code::Protocol, format!("{what} came with {count} descriptors instead of {N}"))
    })
}

/// Returns the error of an answer that fits no question.
pub(crate) fn out_of_turn() -> Error {
    Error::new(Code::Protocol, "the shim has answered what was not asked")
}

/// Returns the error that the shim is gone.
pub(crate) fn shim_gone() -> Error {
    Error::new(Code::AgentUnreachable, "the agent of this processing unit is gone")
}
