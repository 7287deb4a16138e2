//! Ends of leases that clients request, and the clients that wait for them.

use std::time::Duration;

use sublet_proto::{Code, Error};

use super::{Shell, parse_lease};
use crate::core::{Core, CoreEvent, LeaseId};

/// Longest time for which an answer waits for the ends of leases.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl Shell {
    /// Ends leases before their time. `is_callers` decides by their tenants whether the caller may.
    ///
    /// # Errors
    /// Error of the first lease that does not exist or is not the caller's; the others are ended.
    pub(crate) fn end(&self, leases: &[String], is_callers: impl Fn(&str) -> bool) -> Result<(), Error> {
        let mut ended = Ok(());
        let mut state = self.lock()?;
        for lease in leases {
            let lease = parse_lease(lease).and_then(|id| state.check_owner(id, &is_callers).map(|()| id));
            match lease {
                Ok(id) => {
                    let error = Error::new(Code::LeaseEnded, "it was ended by its tenant");
                    self.handle(&mut state, CoreEvent::End(id, error));
                }
                Err(error) => ended = ended.and(Err(error)),
            }
        }
        ended
    }

    /// Waits until none of these leases of the caller's holds resources any more, but no longer than `wait`.
    pub(crate) async fn await_ends(
        &self,
        leases: &[String],
        is_callers: impl Fn(&str) -> bool,
        wait: Duration,
    ) -> Result<(), Error> {
        let leases: Vec<LeaseId> = leases.iter().filter_map(|lease| parse_lease(lease).ok()).collect();
        let mut ended = self.ended.subscribe();
        let all_ended = async {
            loop {
                ended.mark_unchanged();
                if !self.look(|core| leases.iter().any(|&lease| is_held(core, lease, &is_callers)))? {
                    return Ok(());
                }
                let stops = |_| Error::new(Code::Internal, "the manager stops");
                ended.changed().await.map_err(stops)?;
            }
        };
        // Leases that have not ended by then end all the same.
        tokio::time::timeout(wait.min(LONGEST_WAIT), all_ended).await.unwrap_or(Ok(()))
    }

    /// Wakes the tasks that wait for ends. Call it with the core's lock, which they take before they look.
    pub(super) fn may_have_ended(&self) {
        if self.ended.receiver_count() > 0 {
            self.ended.send_modify(|count| *count += 1);
        }
    }
}

/// Tells whether a lease of the caller's holds resources of its node. Leases of others count as unknown, even for a
/// wait.
fn is_held(core: &Core, lease: LeaseId, is_callers: impl Fn(&str) -> bool) -> bool {
    let lease = core.lease(lease).filter(|lease| lease.is_active());
    lease.is_some_and(|lease| is_callers(&core.tenant(lease.tenant).name))
}
