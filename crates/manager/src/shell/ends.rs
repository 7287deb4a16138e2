//! Ends of leases that clients want, and those who wait for them.

use std::time::Duration;

use sublet_proto::{Code, Error};

use super::{Shell, parse_lease};
use crate::core::{Core, Event, LeaseId};

/// How long an answer waits at most for the ends of leases.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl Shell {
    /// Ends leases before their time. Whether the caller may is asked with their tenants.
    ///
    /// # Errors
    /// Of the first that is not there or not the caller's; the others are ended.
    pub(crate) fn end(&self, leases: &[String], is_callers: impl Fn(&str) -> bool) -> Result<(), Error> {
        let mut ended = Ok(());
        let mut state = self.lock()?;
        for lease in leases {
            let lease = parse_lease(lease).and_then(|id| state.check_owner(id, &is_callers).map(|()| id));
            match lease {
                Ok(id) => {
                    let error = Error::new(Code::LeaseEnded, "it was ended by its tenant");
                    self.handle(&mut state, Event::End(id, error));
                }
                Err(error) => ended = ended.and(Err(error)),
            }
        }
        ended
    }

    /// Waits until none of these leases that are the caller's holds anything any more, but no longer than this.
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
        // Those that have not ended by then end all the same.
        tokio::time::timeout(wait.min(LONGEST_WAIT), all_ended).await.unwrap_or(Ok(()))
    }

    /// Has those look who wait for ends. To be called with the core's lock, which they take before they look.
    pub(super) fn may_have_ended(&self) {
        if self.ended.receiver_count() > 0 {
            self.ended.send_modify(|count| *count += 1);
        }
    }
}

/// Whether a lease of the caller's holds something of its node. Of others nothing is told, not even by waiting.
fn is_held(core: &Core, lease: LeaseId, is_callers: impl Fn(&str) -> bool) -> bool {
    let lease = core.lease(lease).filter(|lease| lease.is_active());
    lease.is_some_and(|lease| is_callers(&core.tenant(lease.tenant).name))
}
