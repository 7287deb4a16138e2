//! Requests leases through a global manager (Scad 4.1): it names the rack's manager to ask, and that one grants.
//!
//! Components that communicate stay together: a request that names nodes to be near to is sent first to the manager
//! that has granted there. If a rack's manager refuses or cannot be reached, the client reports it to the global
//! manager, where the request keeps its turn. Without the global manager the client asks the racks' managers one after
//! the other, until it is back.

use std::time::{Duration, Instant};

use sublet_proto::v1::{LeaseGrants, LeaseRequest};
use sublet_proto::{Code, Error};

use super::{CALL_DEADLINE, ManagerClient, may_have, with_wait};
use crate::access::Address;

/// Pause of a request that may wait, while no global manager answers and no rack has the requested capacity.
const PAUSE: Duration = Duration::from_millis(500);

impl ManagerClient {
    /// Asks for leases where there is a global manager.
    pub(super) fn request_by_global(&self, request: &LeaseRequest) -> Result<LeaseGrants, Error> {
        if let Some(rack) = self.connection.whereabouts(&request.near) {
            match self.request_there(&rack, request) {
                Err(error) if may_be_elsewhere(error.code) => {}
                answered => return answered,
            }
        }
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(global) = self.connection.global() else {
                return self.request_of_racks(with_wait(request, left));
            };
            match self.request_handed(&global, request, until) {
                Err(error) if error.code == Code::ManagerUnreachable => {}
                answered => return answered,
            }
            match self.request_once(with_wait(request, Duration::ZERO)) {
                Err(error) if may_be_elsewhere(error.code) && !left.is_zero() => {}
                answered => return answered,
            }
            std::thread::sleep(PAUSE.min(left));
            // By now another global manager may exist, or none. Any that runs answers the next request, too.
            let _ = self.managers();
        }
    }

    /// Asks the global manager for a rack, and then that rack's manager, until one grants, or no rack is left. Each is
    /// asked once if the request does not wait any more.
    fn request_handed(
        &self,
        global: &Address,
        request: &LeaseRequest,
        until: Instant,
    ) -> Result<LeaseGrants, Error> {
        let (mut refused, mut asked_at_last) = (String::new(), Vec::new());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let asked = LeaseRequest { refused: std::mem::take(&mut refused), ..with_wait(request, left) };
            let given = self.request_at(global, asked)?;
            if given.manager.is_empty() {
                return Ok(given);
            }
            match self.request_there(&self.connection.reach(&given.manager)?, request) {
                Err(error) if may_be_elsewhere(error.code) && !asked_at_last.contains(&given.manager) => {
                    if left.is_zero() {
                        asked_at_last.push(given.manager.clone());
                    }
                    refused = given.manager;
                }
                answered => return answered,
            }
        }
    }

    /// Requests a rack's free capacity from its manager.
    pub(super) fn request_there(&self, rack: &Address, request: &LeaseRequest) -> Result<LeaseGrants, Error> {
        let granted = self.request_at(rack, with_wait(request, Duration::ZERO))?;
        let leases = granted.grants.iter().filter_map(|grant| grant.lease.as_ref());
        self.connection.note_nodes(rack, leases.map(|lease| lease.node.as_str()));
        Ok(granted)
    }

    fn request_at(&self, manager: &Address, request: LeaseRequest) -> Result<LeaseGrants, Error> {
        let deadline = CALL_DEADLINE.saturating_add(Duration::from_millis(request.wait_ms));
        self.connection
            .ask_at(manager, deadline, &request, async |mut stub, request| stub.request_lease(request).await)
    }
}

/// Whether another manager may grant a request that failed with this error.
fn may_be_elsewhere(code: Code) -> bool {
    may_have(code) || code == Code::ManagerUnreachable
}
