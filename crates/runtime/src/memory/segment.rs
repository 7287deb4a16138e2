//! One segment: a lease of memory alone, attached at its agent. On this machine it is mapped; on another its agent serves it
//! over a connection of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sublet_fabric::exposed::{Exposed, OWN, RemoteRegion};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_fabric::tcp;
use sublet_fabric::window::{Address, Window};
use sublet_proto::Error;
use sublet_proto::v1::{self, client_to_agent};

use crate::fabrics::{Here, Terms};
use crate::lease::agent::AgentSocket;
use crate::lease::attach::{reach, read_attached, route};
use crate::lease::link::protocol;

/// The counter of a segment's one connection.
const FIRST_LINK: u64 = 1;

/// See the [module](self). It ends when this is dropped.
pub(super) struct Segment {
    pub(super) lease: v1::Lease,
    /// Where its bytes begin in the component.
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) agent: AgentSocket,
    bytes: Bytes,
}

/// Where they are.
enum Bytes {
    Here(OwnedFd),
    There(Arc<tcp::Endpoint>),
}

impl Segment {
    /// Shows the ticket of a grant to its agent, and takes the memory.
    pub(super) fn attach(
        grants: Vec<v1::LeaseGrant>,
        (offset, len_bytes): (u64, u64),
        terms: &Terms,
    ) -> Result<Segment, Error> {
        let [grant] = <[v1::LeaseGrant; 1]>::try_from(grants)
            .map_err(|grants| protocol(format!("{} grants for one segment", grants.len())))?;
        let (agent, by) = reach(&grant, terms, &Here::default())?;
        let lease = grant.lease.ok_or_else(|| protocol("the grant names no lease"))?;
        let fabric = by.as_ref().map(|(_, network)| network.message());
        agent.tell(client_to_agent::Body::Attach(v1::Attach {
            ticket: grant.ticket,
            start: false,
            fabric,
        }))?;
        let (attached, file) = read_attached(&agent)?;
        if attached.inbox_bytes != len_bytes {
            return Err(protocol(format!(
                "a segment of {} bytes instead of {len_bytes}",
                attached.inbox_bytes
            )));
        }
        let bytes = match by {
            None => {
                Bytes::Here(file.ok_or_else(|| protocol("the agent attached a segment without its memory"))?)
            }
            Some(by) => {
                let memory = attached.memory.ok_or_else(|| protocol("the agent told no key of a segment"))?;
                let stream = route(by, agent.peer_ip(), &lease.id, &attached)?.stream(0, FIRST_LINK)?;
                let end = Arc::new(tcp::Endpoint::new(nothing_of_ours()?, None));
                end.connect(stream)?;
                end.reach(OWN, RemoteRegion { key: memory.key, base: memory.base, len_bytes })?;
                Bytes::There(end)
            }
        };
        Ok(Segment { lease, offset, len_bytes, agent, bytes })
    }

    /// Its memory, if that is on this machine.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::Here(file) => Some(file.as_fd()),
            Bytes::There(_) => None,
        }
    }

    /// Brings bytes of a segment of another machine, from this place of the component.
    pub(super) fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.end()?.get(self.at(offset), into)?)
    }

    /// Takes bytes to a segment of another machine. When this returns they are there.
    pub(super) fn put(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let end = self.end()?;
        end.put(self.at(offset), from)?;
        // What is asked for afterwards is answered afterwards.
        Ok(end.get(self.at(offset), &mut [0; 1])?)
    }

    /// Makes whoever waits for another machine stop to.
    pub(super) fn disconnect(&self, reason: &str) {
        if let Bytes::There(end) = &self.bytes {
            end.disconnect(reason);
        }
    }

    fn end(&self) -> Result<&Arc<tcp::Endpoint>, Error> {
        match &self.bytes {
            Bytes::There(end) => Ok(end),
            Bytes::Here(_) => Err(protocol("a segment of this machine is mapped")),
        }
    }

    fn at(&self, offset: u64) -> Address {
        Address { region: OWN, offset: offset.saturating_sub(self.offset) }
    }
}

/// The agent reaches nothing of this process: no key of it is told.
fn nothing_of_ours() -> Result<Arc<Exposed>, Error> {
    let none = Arc::new(Window::reserve(1, PAGE_BYTES)?);
    Ok(Arc::new(Exposed::new(&Region::create("sublet-nothing", PAGE_BYTES)?, none, 1)?))
}
