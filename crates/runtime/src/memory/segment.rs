//! One segment: a lease of memory alone, attached at its agent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sublet_proto::v1::{self, client_to_agent};
use sublet_proto::{Code, Error};

use crate::fabrics;
use crate::lease::agent::AgentSocket;
use crate::lease::attach::{connect, read_attached};
use crate::lease::link::protocol;

/// See the [module](self). It ends when this is dropped.
pub(super) struct Segment {
    pub(super) lease: v1::Lease,
    /// Where its bytes begin in the component.
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) agent: AgentSocket,
    file: OwnedFd,
}

impl Segment {
    /// Shows the ticket of a grant to its agent, and takes the memory.
    pub(super) fn attach(grants: Vec<v1::LeaseGrant>, offset: u64, len_bytes: u64) -> Result<Segment, Error> {
        let [grant] = <[v1::LeaseGrant; 1]>::try_from(grants)
            .map_err(|grants| protocol(format!("{} grants for one segment", grants.len())))?;
        let lease = grant.lease.ok_or_else(|| protocol("the grant names no lease"))?;
        if !fabrics::is_own_host(&grant.host) {
            let message = format!(
                "segment {} is on node {}, and memory of other machines is not reached yet",
                lease.id, lease.node
            );
            return Err(Error::new(Code::FabricUnavailable, message));
        }
        let agent = AgentSocket::Local(connect(&grant.agent)?);
        let attach = v1::Attach { ticket: grant.ticket, start: false, fabric: None };
        agent.tell(client_to_agent::Body::Attach(attach))?;
        let (attached, file) = read_attached(&agent)?;
        let file = file.ok_or_else(|| protocol("the agent attached a segment without its memory"))?;
        if attached.inbox_bytes != len_bytes {
            return Err(protocol(format!(
                "a segment of {} bytes instead of {len_bytes}",
                attached.inbox_bytes
            )));
        }
        Ok(Segment { lease, offset, len_bytes, agent, file })
    }

    /// Its memory.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
