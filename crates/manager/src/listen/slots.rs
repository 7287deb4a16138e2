//! The places of connections: the shell around [`Admission`], shared by all listeners of one manager.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use sublet_admission::{Admission, AdmissionLimits, ClassBudget, ConnectionId, Party, RefusalLog};
use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};
use tokio::sync::oneshot;

use crate::core::NodeKey;

/// Most connections of one manager at the same time, if its limit of open files allows them.
pub const MAX_CONNECTIONS: usize = 16_384;
/// File descriptors that are not for connections: listeners, the store, the runtime's own.
const OTHER_FILES: u64 = 128;
/// Least number of connections, whatever the limit of open files.
const LEAST_CONNECTIONS: usize = 64;
/// Connections of one agent at the same time.
const MAX_CONNECTIONS_OF_AN_AGENT: usize = 64;
/// Interval at which connections are checked for timeouts.
const SWEEP: Duration = Duration::from_millis(250);

/// Limits of a manager's connections: their number at a time, and how long they may be silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most connections in all; if unset, [`MAX_CONNECTIONS`], or the number that the limit of open files allows.
    pub total: Option<usize>,
    /// Most connections that have shown no token yet; if unset, an eighth of all, and at most 1024.
    pub unauthenticated: Option<usize>,
    /// Most of these that come from one address; if unset, a quarter of them.
    pub per_address: Option<usize>,
    /// Most connections of one tenant; if unset, a quarter of all.
    pub per_tenant: Option<usize>,
    /// Time until a connection is encrypted.
    pub handshake: Duration,
    /// Time from the end of the handshake until it has shown a valid token.
    pub first_request: Duration,
    /// Time without a request after which it is closed.
    pub idle: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            total: None,
            unauthenticated: None,
            per_address: None,
            per_tenant: None,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(15 * 60),
        }
    }
}

impl ConnectionLimits {
    /// Returns the limits as budgets, for a process that may open this many files.
    fn budgets(&self, files: u64) -> AdmissionLimits {
        let possible = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
        let total = self.total.unwrap_or(MAX_CONNECTIONS).min(possible).max(LEAST_CONNECTIONS);
        let unauthenticated = self.unauthenticated.unwrap_or((total / 8).min(1024)).clamp(1, total / 4);
        let per_address = self.per_address.unwrap_or(unauthenticated.div_ceil(4)).clamp(1, unauthenticated);
        let per_tenant = self.per_tenant.unwrap_or(total.div_ceil(4)).clamp(1, total);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        AdmissionLimits {
            total,
            unidentified: ClassBudget { reserved: unauthenticated, most: unauthenticated, each: per_address },
            operator: ClassBudget { reserved: (total / 16).clamp(4, 64), most: total, each: total },
            peers: ClassBudget { reserved: total / 8, most: total / 2, each: MAX_CONNECTIONS_OF_AN_AGENT },
            tenants: ClassBudget { reserved: 0, most: total, each: per_tenant },
            handshake_ms: ms(self.handshake),
            first_request_ms: ms(self.first_request),
            idle_ms: ms(self.idle),
        }
    }
}

/// All places of one manager.
pub(crate) struct ConnectionSlots {
    /// A connection is closed by dropping its sender.
    admission: Mutex<Admission<oneshot::Sender<()>>>,
    refusals: Mutex<RefusalLog>,
    begun: Instant,
}

/// One connection's place, until it is dropped.
pub(crate) struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    id: ConnectionId,
    is_identified: AtomicBool,
    at_end: Mutex<HashMap<NodeKey, AtEnd>>,
}

/// An action at the end of a connection.
type AtEnd = Box<dyn FnOnce() + Send>;

/// A request of a connection, until it is dropped.
pub(crate) struct Busy(Arc<ConnectionSlot>);

impl ConnectionSlots {
    /// Creates the slots, and raises this process's limit of open files as far as allowed.
    pub(crate) fn new(limits: &ConnectionLimits) -> Arc<ConnectionSlots> {
        let budgets = limits.budgets(raise_files());
        Arc::new(ConnectionSlots {
            admission: Mutex::new(Admission::new(budgets)),
            refusals: Mutex::default(),
            begun: Instant::now(),
        })
    }

    fn admission(&self) -> MutexGuard<'_, Admission<oneshot::Sender<()>>> {
        lock(&self.admission)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns a slot for an accepted connection, and a receiver that completes when the connection is to be closed.
    pub(crate) fn enter(
        self: &Arc<ConnectionSlots>,
        party: Party,
    ) -> Option<(Arc<ConnectionSlot>, oneshot::Receiver<()>)> {
        let (close, closed) = oneshot::channel();
        match self.admission().enter(self.now_ms(), party, close) {
            Ok((id, shed)) => {
                if shed.is_some() {
                    self.note(
                        "unauthenticated connections made way for later ones",
                        &"all their places are used",
                    );
                }
                drop(shed);
                let place = ConnectionSlot {
                    places: self.clone(),
                    id,
                    is_identified: AtomicBool::new(false),
                    at_end: Mutex::default(),
                };
                Some((Arc::new(place), closed))
            }
            Err(refusal) => {
                self.note("connections were refused", &refusal);
                None
            }
        }
    }

    /// Logs a refusal: the first of its kind at once, and summaries of further ones.
    pub(crate) fn note(&self, kind: &str, latest: &dyn std::fmt::Display) {
        let count = lock(&self.refusals).note(self.now_ms(), kind);
        if let Some(count) = count {
            tracing::warn!(count, latest = %latest, "{kind}");
        }
    }

    /// Closes connections that have timed out, until it is aborted.
    pub(crate) async fn sweep(self: Arc<ConnectionSlots>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            let now_ms = self.now_ms();
            let expired = self.admission().expire(now_ms);
            for (party, why, _closed) in &expired {
                tracing::debug!(%party, %why, "a connection is closed");
            }
            let due = lock(&self.refusals).due(now_ms);
            for (kind, count) in due {
                tracing::warn!(count, "{kind}");
            }
        }
    }
}

impl ConnectionSlot {
    /// The connection is encrypted, or needs not be.
    pub(crate) fn shaken(&self) {
        self.places.admission().shaken(self.id, self.places.now_ms());
    }

    /// Notes whose connection it is.
    ///
    /// # Errors
    /// [`Code::TryLater`] if its tenant, or its class, has all the connections that it may have.
    pub(crate) fn identify(&self, party: Party) -> Result<(), Error> {
        if self.is_identified.load(Ordering::Relaxed) {
            return Ok(());
        }
        let identified = self.places.admission().identify(self.id, party, self.places.now_ms());
        match identified {
            Ok(()) => {
                self.is_identified.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(refusal) => {
                self.places.note("connections were refused", &refusal);
                Err(Error::new(Code::TryLater, refusal.to_string()))
            }
        }
    }

    /// The connection's number.
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Sets the action for a node when the connection has ended, in place of an earlier one.
    pub(crate) fn at_end(&self, node: NodeKey, act: impl FnOnce() + Send + 'static) {
        lock(&self.at_end).insert(node, Box::new(act));
    }

    /// A request begins.
    pub(crate) fn begin(self: &Arc<ConnectionSlot>) -> Busy {
        self.places.admission().begin(self.id);
        Busy(self.clone())
    }

    /// See [`ConnectionSlots::note`].
    pub(crate) fn note(&self, kind: &str, latest: &dyn std::fmt::Display) {
        self.places.note(kind, latest);
    }
}

impl Busy {
    /// The connection's place.
    pub(crate) fn place(&self) -> &ConnectionSlot {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let ConnectionSlot { places, id, .. } = &*self.0;
        places.admission().end(*id, places.now_ms());
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.places.admission().leave(self.id);
        let at_end = self.at_end.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(at_end).into_values().for_each(|act| act());
    }
}

/// Raises the limit of open files, and returns it.
fn raise_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    files.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_fit_into_the_limit_of_open_files() {
        for files in [0, 200, 256, 400, 1024, 65_536, u64::MAX] {
            let limits = ConnectionLimits::default().budgets(files);
            let reserved = limits.unidentified.reserved + limits.operator.reserved + limits.peers.reserved;
            assert!(reserved <= limits.total / 2, "{limits:?}");
            assert!(
                limits.total <= LEAST_CONNECTIONS || limits.total as u64 + OTHER_FILES <= files,
                "{limits:?}"
            );
            assert!(limits.operator.reserved >= 4 && limits.peers.reserved >= 8, "{limits:?}");
        }
        let small =
            ConnectionLimits { unauthenticated: Some(9), per_address: Some(99), ..Default::default() };
        assert_eq!(small.budgets(u64::MAX).unidentified, ClassBudget { reserved: 9, most: 9, each: 9 });
    }
}
