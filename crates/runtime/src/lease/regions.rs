//! Sends the arena's regions to a lease's worker process: those that hold something when it starts, more when the arena
//! grows.
//!
//! A worker process answers each region once, in order. Over a network a request for a region may time out before its
//! answer comes, because the agent is stopped. The region is then not mapped, and is not sent again: its answer is
//! processed before the next request.

use std::os::fd::{AsFd, BorrowedFd};

use sublet_proto::v1::{self, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error};

use super::ClientLease;
use super::link::{Control, Untold, lock, protocol};
use super::start::read_worker;
use super::transport::RegionKeys;
use crate::arena::MapsRegions;

impl MapsRegions for ClientLease {
    fn publish_regions(&self) -> Result<(), Error> {
        let mut control = lock(&self.link.control);
        if control.worker.is_none() || self.is_over() {
            return Ok(());
        }
        match self.send_regions(&mut control) {
            // The waiting callers learn the reason from the worker's death or the lease's end.
            Err(error) if error.code == Code::WorkerDied || self.is_over() => Ok(()),
            sent => sent,
        }
    }
}

impl ClientLease {
    pub(super) fn send_regions(&self, control: &mut Control) -> Result<(), Error> {
        self.take_late_answer(control)?;
        let known = std::mem::take(&mut control.regions);
        let mut mapped = known.clone();
        let sent = self.arena.regions_in_use(
            |number| known.contains(&number),
            |number, file, len_bytes| {
                self.send_region(control, number, (file.as_fd(), len_bytes))?;
                mapped.insert(number);
                Ok(())
            },
        );
        control.regions = mapped;
        sent
    }

    fn send_region(
        &self,
        control: &mut Control,
        region: u32,
        (file, len_bytes): (BorrowedFd<'_>, u64),
    ) -> Result<(), Error> {
        debug_assert!(
            control.untold.is_none(),
            "region {region} is sent before the answer of {:?}",
            control.untold.as_ref().map(|untold| untold.region)
        );
        let RegionKeys { key, keys } = match self.worker_transport.remote() {
            Some(remote) => remote.expose(region)?,
            None => RegionKeys::default(),
        };
        let message = client_to_worker::Body::MapRegion(v1::MapRegion { region, len_bytes, key, keys });
        let answer = self.ask_worker(control, message, &[file]);
        if let (Err(error), Some(_)) = (&answer, self.worker_transport.remote())
            && error.code == Code::AgentUnreachable
        {
            control.untold = Some(Untold { region, len_bytes });
        }
        self.take_answer(answer?, region, len_bytes)
    }

    /// Learns how a region is reached that the worker process has mapped.
    fn take_answer(&self, answer: worker_to_client::Body, region: u32, len_bytes: u64) -> Result<(), Error> {
        let mapped = match answer {
            worker_to_client::Body::RegionMapped(mapped) if mapped.region == region => mapped,
            other => return Err(protocol(format!("the worker answered a region with {other:?}"))),
        };
        let said = RegionKeys { key: mapped.key, keys: mapped.keys };
        self.worker_transport.remote().map_or(Ok(()), |remote| remote.reach(region, said, len_bytes))
    }

    /// Processes the answer for which an earlier request did not wait long enough.
    fn take_late_answer(&self, control: &mut Control) -> Result<(), Error> {
        let Some(Untold { region, len_bytes }) = control.untold else { return Ok(()) };
        self.check_lives(control)?;
        let answer = self.hear_worker(control)?;
        control.untold = None;
        match read_worker(&answer) {
            // The region did not fit into the worker's memory. The next user of the region requests it again.
            Err(error) if error.code == Code::InsufficientResources => Ok(()),
            answer => {
                self.take_answer(answer?, region, len_bytes)?;
                control.regions.insert(region);
                Ok(())
            }
        }
    }
}
