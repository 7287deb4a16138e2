//! Checks the requests of a client that connects, and makes the answers.

use sublet_fabric::clock::monotonic_ns;
use sublet_proto::v1::{self, worker_to_client};
use sublet_proto::{Code, Error};

use super::threads::WorkerProcessState;
use crate::wire::{OWN_REGION, ResultsLayout};

/// A worker process's answer, if it gives one.
pub(super) type Answer = Result<Option<worker_to_client::Body>, Error>;

/// Connection data by which a client on another node reaches the workers.
#[derive(Default)]
pub(super) struct ConnectionData {
    pub(super) inbox: Option<v1::RegionKey>,
    pub(super) inbox_keys: Vec<v1::RegionKey>,
    pub(super) contacts: Vec<Vec<u8>>,
}

/// The message that all worker threads wait for calls.
pub(super) fn ready(process: &WorkerProcessState, reached: ConnectionData) -> worker_to_client::Body {
    let WorkerProcessState { entered_ns, loaded_ns, .. } = *process;
    let ConnectionData { inbox, inbox_keys, contacts } = reached;
    let ready_ns = monotonic_ns();
    worker_to_client::Body::Ready(v1::Ready { entered_ns, loaded_ns, ready_ns, inbox, contacts, inbox_keys })
}

pub(super) fn second_connection() -> Error {
    Error::new(Code::Protocol, "a second connection of the client")
}

pub(super) fn check_number(region: &v1::MapRegion) -> Result<(), Error> {
    if region.region == OWN_REGION {
        return Err(Error::new(Code::Protocol, "region 0 is the results region"));
    }
    Ok(())
}

/// The size of the results region, which both sides know.
pub(super) fn check_results(process: &WorkerProcessState, connect: &v1::Connect) -> Result<u64, Error> {
    let expected = ResultsLayout::new(process.workers()).len_bytes();
    if connect.results_bytes != expected {
        let message = format!("a results region of {} bytes instead of {expected}", connect.results_bytes);
        return Err(Error::new(Code::Protocol, message));
    }
    Ok(expected)
}
