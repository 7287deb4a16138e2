//! Decides which processes reach a segment: its client, and worker processes that its client has invited.
//!
//! An invitation is a number and a secret, and is valid once: for a connection at the agent's port, or for the memory
//! itself if the process is on this node. It states whether the process may write. The client is number 0 and needs no
//! invitation. The number identifies the connection to clients that let further segments join it (see [`SharedConnection`]).
//!
//! Invariants:
//! - A process that has the memory mapped learns of the segment's end before the contents go: the mark of the end is
//!   written first.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use sublet_fabric::greeting::Secret;
use sublet_fabric::region::{Region, read_only};
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::graph::MemoryRights;
use sublet_proto::{Code, Error};
use sublet_runtime::worker::channel::OVER_AT;

use crate::listener::secret::new_secret;
use crate::listener::shared_connection::{JoinedSegment, SharedConnection};

/// Invitations that are not used yet.
const MAX_INVITED: usize = 1024;

/// The client's own number.
pub(crate) const CLIENT: u32 = 0;

/// Access that an invitation grants.
pub(crate) struct InvitedAccess {
    pub(crate) rights: MemoryRights,
    /// The segment's part in the connection to which the invitation leads.
    pub(crate) joined: JoinedSegment,
}

/// See the [module](self).
pub(crate) struct InvitedReaders {
    /// The segment's memory file. A segment on a disk has none: no process maps it.
    memory: Option<OwnedFd>,
    next: u32,
    invited: BTreeMap<u32, (Secret, InvitedAccess)>,
    /// Connections of the client and of invited processes, by their numbers.
    shared_connections: BTreeMap<u32, Weak<SharedConnection>>,
    /// Pages of the processes that have the memory mapped.
    states: Vec<Arc<Region>>,
}

impl InvitedReaders {
    pub(crate) fn of(memory: Option<BorrowedFd<'_>>) -> Result<InvitedReaders, Error> {
        let memory = memory
            .map(|memory| memory.try_clone_to_owned())
            .transpose()
            .map_err(|error| Error::new(Code::System, format!("dup of a segment: {error}")))?;
        let (invited, shared_connections) = Default::default();
        Ok(InvitedReaders { memory, next: CLIENT + 1, invited, shared_connections, states: Vec::new() })
    }

    /// Notes the connection of the client.
    pub(crate) fn serve_client(&mut self, shared_connection: &Arc<SharedConnection>) {
        self.shared_connections.insert(CLIENT, Arc::downgrade(shared_connection));
    }

    /// Connection of a number, if it exists or is expected.
    pub(crate) fn shared_connection(&self, number: u32) -> Option<Arc<SharedConnection>> {
        self.shared_connections.get(&number)?.upgrade()
    }

    /// Creates an invitation with a number that no other process has had, and its secret.
    pub(crate) fn invite(&mut self, invitation: InvitedAccess) -> Result<(u32, Secret), Error> {
        if self.invited.len() >= MAX_INVITED {
            let message = format!("{MAX_INVITED} invitations to the segment were not used yet");
            return Err(Error::new(Code::TryLater, message));
        }
        let number = self.next;
        self.next = number.checked_add(1).ok_or_else(|| {
            Error::new(Code::TryLater, "the segment has used all numbers of invited readers")
        })?;
        let secret = new_secret()?;
        self.shared_connections.retain(|_, shared_connection| shared_connection.strong_count() > 0);
        self.shared_connections.insert(number, Arc::downgrade(invitation.joined.shared_connection()));
        let before = self.invited.insert(number, (secret, invitation));
        debug_assert!(before.is_none() && number != CLIENT, "the number {number} is given twice");
        Ok((number, secret))
    }

    /// Access of a process that proves that it is invited. This uses the invitation up.
    pub(crate) fn enter(
        &mut self,
        number: u32,
        is_by: impl FnOnce(&Secret) -> bool,
    ) -> Option<InvitedAccess> {
        self.invited.get(&number).filter(|(secret, _)| is_by(secret))?;
        self.invited.remove(&number).map(|(_, invitation)| invitation)
    }

    /// Opens the memory for an invited process of this node, which learns of the segment's end by this page.
    pub(crate) fn open(&mut self, rights: MemoryRights, state: &Arc<Region>) -> Result<OwnedFd, Error> {
        let memory = self.memory.as_ref().ok_or_else(|| {
            Error::new(Code::FabricUnavailable, "a segment on a disk is reached over tcp, and not mapped")
        })?;
        let file = match rights {
            MemoryRights::Write => memory
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| Error::new(Code::System, format!("dup of a segment: {error}")))?,
            MemoryRights::Read => read_only(memory.as_fd())?,
        };
        // A process that has ended has released its page.
        self.states.retain(|state| Arc::strong_count(state) > 1);
        self.states.push(state.clone());
        Ok(file)
    }
}

impl Drop for InvitedReaders {
    fn drop(&mut self) {
        for (_, invitation) in self.invited.values() {
            invitation.joined.shared_connection().give_up();
        }
        for state in &self.states {
            let over: Option<&AtomicU64> = state.view(OVER_AT);
            over.expect("a page has two words").store(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::secret::is_same;
    use crate::listener::shared_connection::SegmentBytes;
    use sublet_fabric::region::PAGE_BYTES;

    fn to(region: &Arc<Region>, rights: MemoryRights) -> InvitedAccess {
        let bytes = SegmentBytes::Mapped(region.clone());
        let (joined, _) = SharedConnection::new("tenant", false).lend(&bytes, rights).unwrap().unwrap();
        InvitedAccess { rights, joined }
    }

    fn invited_readers() -> (InvitedReaders, Arc<Region>) {
        let region = Arc::new(Region::create("segment", PAGE_BYTES).unwrap());
        sublet_fabric::region::bar_writers(region.fd()).unwrap();
        (InvitedReaders::of(Some(region.fd())).unwrap(), region)
    }

    #[test]
    fn accepts_an_invitation_once_with_the_stated_rights() {
        let (mut invited_readers, region) = invited_readers();
        let (one, secret) = invited_readers.invite(to(&region, MemoryRights::Read)).unwrap();
        let (two, other) = invited_readers.invite(to(&region, MemoryRights::Write)).unwrap();
        assert!(one != two && one != CLIENT && two != CLIENT && !is_same(&secret, &other));
        let mut enter = |number, by: &Secret| {
            invited_readers.enter(number, |known| is_same(known, by)).map(|invitation| invitation.rights)
        };
        assert_eq!(enter(one, &other), None);
        assert_eq!(enter(one, &secret), Some(MemoryRights::Read));
        assert_eq!(enter(one, &secret), None);
        assert_eq!(enter(two, &other), Some(MemoryRights::Write));
        assert!(invited_readers.enter(CLIENT, |_| true).is_none());
    }

    #[test]
    fn a_connection_is_known_until_its_last_owner_is_gone() {
        let (mut invited_readers, region) = invited_readers();
        let (number, secret) = invited_readers.invite(to(&region, MemoryRights::Read)).unwrap();
        let shared_connection = invited_readers.shared_connection(number).unwrap();
        assert!(
            shared_connection.takes("tenant", false)
                && !shared_connection.takes("another", false)
                && !shared_connection.takes("tenant", true)
        );
        let entered = invited_readers.enter(number, |known| is_same(known, &secret)).unwrap();
        drop(shared_connection);
        assert!(
            invited_readers.shared_connection(number).is_some()
                && invited_readers.shared_connection(CLIENT).is_none()
        );
        drop(entered);
        assert!(invited_readers.shared_connection(number).is_none());
        let (number, _) = invited_readers.invite(to(&region, MemoryRights::Read)).unwrap();
        let shared_connection = invited_readers.shared_connection(number).unwrap();
        drop(invited_readers);
        assert!(
            !shared_connection.takes("tenant", false),
            "the connection takes no segment after its invitation is gone"
        );
    }

    #[test]
    fn invitations_have_a_bound() {
        let (mut invited_readers, region) = invited_readers();
        let reader = || to(&region, MemoryRights::Read);
        for _ in 0..MAX_INVITED {
            invited_readers.invite(reader()).unwrap();
        }
        assert_eq!(invited_readers.invite(reader()).unwrap_err().code, Code::TryLater);
        assert!(invited_readers.enter(1, |_| true).is_some() && invited_readers.invite(reader()).is_ok());
    }

    #[test]
    fn readers_cannot_write_and_all_learn_of_the_end() {
        let (mut invited_readers, region) = invited_readers();
        region.write(0, b"bytes").unwrap();
        let state = Arc::new(Region::create("state", PAGE_BYTES).unwrap());
        let reader = invited_readers.open(MemoryRights::Read, &state).unwrap();
        let writer = invited_readers.open(MemoryRights::Write, &state).unwrap();
        assert!(Region::attach(reader.try_clone().unwrap(), PAGE_BYTES).is_err());
        let read = Region::attach_to_read(reader, PAGE_BYTES).unwrap();
        let mut bytes = [0; 5];
        read.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        Region::attach(writer, PAGE_BYTES).unwrap();
        let over: &AtomicU64 = state.view(OVER_AT).unwrap();
        assert_eq!(over.load(Ordering::Acquire), 0);
        drop(invited_readers);
        assert_eq!(over.load(Ordering::Acquire), 1);
    }
}
