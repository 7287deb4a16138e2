//! One segment: a lease of memory alone, attached at its agent. On this machine it is mapped; on another its agent serves it
//! over a connection of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use sublet_fabric::exposed::{Exposed, OWN, RemoteRegion};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::tcp;
use sublet_fabric::window::Address;
use sublet_proto::v1::{self, client_to_agent};
use sublet_proto::{Code, Error};

use super::far::Asking;
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
    /// How often something was put, and how much of that is known to be there.
    puts: AtomicU64,
    settled: AtomicU64,
    /// What was asked for and not waited for.
    asked: Arc<AtomicU32>,
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
        let (puts, settled, asked) = Default::default();
        Ok(Segment { lease, offset, len_bytes, agent, bytes, puts, settled, asked })
    }

    /// Its memory, if that is on this machine.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::Here(file) => Some(file.as_fd()),
            Bytes::There(_) => None,
        }
    }

    /// That, or why not.
    pub(super) fn mapped(&self) -> Result<BorrowedFd<'_>, Error> {
        self.file().ok_or_else(|| {
            let (segment, node) = (&self.lease.id, &self.lease.node);
            let message = format!("segment {segment} is on node {node}, which is another machine");
            Error::new(Code::FabricUnavailable, message)
        })
    }

    /// Brings bytes of a segment of another machine, from this place of the component.
    pub(super) fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.end()?.get(self.at(offset), into)?)
    }

    /// Sends bytes to a segment of another machine. When they are [settled](Segment::settle) they are there.
    pub(super) fn put(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.end()?.put(self.at(offset), from)?;
        self.puts.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Asks for bytes of a segment of another machine. None: not now.
    ///
    /// # Safety
    /// As for [`tcp::Endpoint::begin_get`].
    pub(super) unsafe fn begin_get(
        &self,
        offset: u64,
        into: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<Option<Asking>, Error> {
        // SAFETY: as the caller vouches.
        let getting = unsafe { self.end()?.begin_get(self.at(offset), into, len_bytes) }?;
        Ok(getting.map(|getting| Asking::new(getting, self.asked.clone())))
    }

    /// Waits until all that was put before is there: what is asked for afterwards is answered afterwards.
    pub(super) fn settle(&self) -> Result<(), Error> {
        let puts = self.puts.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) < puts {
            self.end()?.get(self.at(self.offset), &mut [0; 1])?;
            self.settled.fetch_max(puts, Ordering::AcqRel);
        }
        Ok(())
    }

    /// What its connection is polled by while something is asked for that nobody waits for.
    pub(super) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::There(end) if self.asked.load(Ordering::Acquire) > 0 => end.readable(),
            _ => None,
        }
    }

    /// Takes what has come.
    pub(super) fn progress(&self) {
        if let Bytes::There(end) = &self.bytes {
            // Who waits for it learns of its end.
            let _ = end.progress();
        }
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
    Ok(Arc::new(Exposed::alone(&Region::create("sublet-nothing", PAGE_BYTES)?)?))
}
