//! The state of the start of a lease's worker process.

use std::time::Instant;

use sublet_fabric::packet::PacketSocket;
use sublet_proto::Error;
use sublet_proto::v1::Started;

use crate::execution::background_task::BackgroundTask;
use crate::execution::packages::{Runnable, StartStep};

/// Outcome of a start for the client: the started process and, for a client on the node, the client's end of the
/// worker's control socket.
pub(super) type Outcome = Result<(Started, Option<PacketSocket>), Error>;

/// State of a start.
pub(super) enum StartState {
    /// No start is under way, or the client has its outcome.
    None,
    /// The start waits for the package since this time.
    Fetching {
        package: BackgroundTask<Runnable>,
        step: StartStep,
        /// Time at which the start, or a step of it, was last sent to the client.
        told: Instant,
        requested_ns: u64,
    },
    /// The client has to be sent the outcome.
    Over(Outcome),
}
