//! Implements one segment: a lease of memory alone, attached at its agent. On this machine it is mapped. On another its
//! agent serves it over a connection; if the process already has a connection to a segment there, both share it.

use std::sync::Arc;

use sublet_proto::v1::{self, client_to_agent};
use sublet_proto::{Error, version};

use super::piece::{MemoryPiece, PieceRange};
use super::segment_connection::{ConnectionTarget, SegmentConnection};
use crate::fabrics::{ClientTerms, Here};
use crate::lease::agent::AgentSocket;
use crate::lease::attach::{reach, read_attached, route};
use crate::lease::link::protocol;

/// The counter of a segment's one connection.
const FIRST_LINK: u64 = 1;

/// See the [module](self). It ends when this is dropped.
pub(super) struct Segment {
    pub(super) lease: v1::Lease,
    pub(super) agent: AgentSocket,
    pub(super) piece: Arc<MemoryPiece>,
    /// Network address of its agent for other machines, if it is on a network.
    pub(super) network: Option<v1::NodeNetwork>,
}

impl Segment {
    /// Shows the ticket of a grant to its agent, and takes the memory.
    pub(super) fn attach(
        grants: Vec<v1::LeaseGrant>,
        (offset, len_bytes): (u64, u64),
        terms: &ClientTerms,
    ) -> Result<Segment, Error> {
        let [grant] = <[v1::LeaseGrant; 1]>::try_from(grants)
            .map_err(|grants| protocol(format!("{} grants for one segment", grants.len())))?;
        let (agent, by) = reach(&grant, terms, &Here::default())?;
        let lease = grant.lease.ok_or_else(|| protocol("the grant names no lease"))?;
        let fabric = by.as_ref().map(|(_, network)| network.message());
        let known = by.as_ref().and_then(|by| ConnectionTarget::of(by).known());
        let joins = known.as_ref().map_or_else(String::new, |known| known.segment.clone());
        agent.tell(client_to_agent::Body::Attach(v1::Attach {
            ticket: grant.ticket,
            fabric,
            joins,
            calls: version::CALLS,
            ..v1::Attach::default()
        }))?;
        let (attached, file) = read_attached(&agent)?;
        if attached.inbox_bytes != len_bytes {
            return Err(protocol(format!(
                "a segment of {} bytes instead of {len_bytes}",
                attached.inbox_bytes
            )));
        }
        let at = PieceRange { segment: lease.id.clone(), node: lease.node.clone(), offset, len_bytes };
        let piece = match by {
            None => {
                let file = file.ok_or_else(|| protocol("the agent attached a segment without its memory"))?;
                MemoryPiece::here(at, file)
            }
            Some(by) => {
                let memory = attached.memory.ok_or_else(|| protocol("the agent told no key of a segment"))?;
                let place = ConnectionTarget::of(&by);
                let segment_connection = match known.filter(|_| attached.joined) {
                    Some(known) => known.segment_connection,
                    None => {
                        let route = route(by, agent.peer_ip(), &lease.id, &attached)?;
                        SegmentConnection::connect(route.stream(0, FIRST_LINK)?)?
                    }
                };
                place.note(&lease.id, &segment_connection);
                MemoryPiece::there(at, segment_connection, memory)?
            }
        };
        Ok(Segment { lease, agent, piece: Arc::new(piece), network: grant.network })
    }
}
