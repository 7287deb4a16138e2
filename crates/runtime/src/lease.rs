//! Implements a lease in the client: the inboxes of its workers, the results of its calls, and the state of both.
//!
//! This file defines the lease. The path of a call begins in [`dispatch`] and ends in [`result`]. Everything slow is
//! elsewhere: attaching ([`attach`]), starting the worker process ([`start`]), learning of its death ([`monitor`]).
//!
//! A worker process may die at any moment. The link then raises each worker's `dead_before` to the ring position up to
//! which calls are lost; their owners see that and report why. The ring itself continues: the next worker process of
//! the lease begins at that position. Whether a call is lost, answered or still to come is thus decided by two words,
//! its result's turn and `dead_before`, and nothing is ever reset under a running submission.
//!
//! Over a network the ring is reached by a connection, which ends with the worker process. The client ends it, too,
//! before calls are given up: later requests are neither lost nor a hole in the ring, but kept until the next process
//! is connected ([`worker_connection`]).
//!
//! An invoker may hold several leases; a call that one of them turns away finds the others in their [`worker_set`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sublet_fabric::region::Region;
use sublet_fabric::ring::Sender;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::window::Window;
use sublet_proto::Error;
use sublet_proto::v1::{self, PackageInfo, WorkerOptions};

use crate::arena::Arena;
use crate::fabrics::FabricChoice;
use crate::wire::{InboxLayout, ResultsLayout};
use records::Records;
use transport::WorkerTransport;
use worker_set::WorkerSet;

pub(crate) use call::{Call, SentCall};

pub(crate) mod agent;
pub(crate) mod alarm;
pub(crate) mod attach;
mod call;
pub(crate) mod dial;
pub(crate) mod dispatch;
mod function;
pub(crate) mod link;
mod monitor;
pub(crate) mod nonsense;
mod patience;
pub(crate) mod records;
mod regions;
mod requests;
mod result;
pub(crate) mod run;
mod start;
mod start_progress;
pub(crate) mod steps;
pub(crate) mod transport;
mod worker_connection;
pub(crate) mod worker_set;

/// Number of deaths of its worker process whose reasons a lease remembers.
const REMEMBERED_DEATHS: usize = 64;

/// No worker process: not yet, or not any more. The next submission starts one.
const IDLE: u32 = 0;
const RUNNING: u32 = 1;
/// Status of a lease that is over, for good.
const ENDED: u32 = 2;

/// See the [module](self).
pub(crate) struct ClientLease {
    /// The lease as the manager granted it.
    description: v1::Lease,
    /// Revision of messages that its agent knows.
    pub(crate) messages: u32,
    pub(crate) package: PackageInfo,
    /// The other leases of the invoker.
    pub(crate) worker_set: Arc<WorkerSet>,
    /// The number of this lease's first worker among those of all leases of the invoker.
    pub(crate) first_worker: u32,
    /// Function names with their index, sorted by name.
    names: Vec<(String, u16)>,
    pub(crate) options: WorkerOptions,
    pub(crate) arena: Arc<Arena>,
    /// The arena's.
    window: Arc<Window>,
    inbox: InboxLayout,
    results_layout: ResultsLayout,
    results: Region,
    /// The path to the workers. Region 0 is their inbox.
    worker_transport: WorkerTransport,
    workers: Box<[WorkerLink]>,
    /// Written by the link alone.
    status: AtomicU32,
    /// Not 0: the lease's end has been announced. Written only by the link.
    ending: AtomicU32,
    deaths: Mutex<VecDeque<Death>>,
    pub(crate) ticks_per_ns: f64,
    /// Time that a waiting thread spins before it sleeps, in ticks.
    pub(crate) spin_ticks: u64,
    next_worker: AtomicU32,
    /// Time of the lease's end, by the manager's clock. Changed by renewals.
    expires_unix_ms: AtomicU64,
    link: link::AgentLink,
    starting: steps::Starting,
}

/// The client's side of one worker.
struct WorkerLink {
    ring: Sender,
    records: Records,
    /// Calls at ring positions below this that have no result will never have one. Raised by the link, Release,
    /// before it pokes sleepers; pairs with the Acquire load of every waiter.
    dead_before: AtomicU64,
}

/// Reason why calls below these positions, one for each worker, were lost.
struct Death {
    before: Vec<u64>,
    error: Error,
}

impl WorkerLink {
    pub(super) fn new(slots: u32) -> WorkerLink {
        WorkerLink { ring: Sender::new(slots), records: Records::new(), dead_before: AtomicU64::new(0) }
    }
}

impl ClientLease {
    /// Whether a worker process is running.
    #[inline(always)]
    pub(crate) fn running(&self) -> bool {
        self.status.load(Ordering::Acquire) == RUNNING
    }

    /// Whether the lease is over, for good.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.status.load(Ordering::Acquire) == ENDED
    }

    /// Whether its end has been announced: new calls had better go elsewhere.
    #[inline(always)]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
    }

    /// Approximate number of a worker's calls that are unfinished or uncollected.
    #[inline(always)]
    pub(crate) fn in_use(&self, worker: u32) -> u32 {
        self.workers[worker as usize].records.in_use()
    }

    /// The transport of its calls.
    pub(crate) fn fabric(&self) -> FabricChoice {
        self.worker_transport.fabric()
    }

    /// The lease, with its latest end.
    pub(crate) fn description(&self) -> v1::Lease {
        let expires_unix_ms = self.expires_unix_ms.load(Ordering::Relaxed);
        v1::Lease { expires_unix_ms, ..self.description.clone() }
    }

    /// The lease's id.
    pub(crate) fn id(&self) -> &str {
        &self.description.id
    }

    /// Memory of the lease, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.description.memory_bytes
    }

    /// The records of a worker.
    pub(crate) fn records(&self, worker: u32) -> &Records {
        &self.workers[worker as usize].records
    }

    /// Number of the lease's workers.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one for each core, which are counted in 32 bits")]
    pub(crate) fn workers(&self) -> u32 {
        self.workers.len() as u32
    }
}
