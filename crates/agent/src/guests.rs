//! Who else reaches a segment than its client: worker processes that its client has invited.
//!
//! An invitation is a number and a secret, and is good once: for a connection at the agent's port, or for the memory itself if
//! the process is on this node. It says whether the guest may write.
//!
//! Invariants:
//! - Whoever reads what is mapped learns that it is over before its bytes go: the word for that is written first.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sublet_fabric::greeting::Secret;
use sublet_fabric::region::{Region, read_only};
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::{Code, Error};
use sublet_runtime::worker::channel::OVER_AT;

use crate::carrier::new_secret;

/// Invitations that nobody has used yet.
const MAX_INVITED: usize = 1024;

/// What an invitation is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) writable: bool,
    pub(crate) encrypted: bool,
}

/// See the [module](self).
pub(crate) struct Guests {
    memory: OwnedFd,
    next: u32,
    invited: BTreeMap<u32, (Secret, Rights)>,
    /// Pages of those who have it mapped.
    states: Vec<Arc<Region>>,
}

impl Guests {
    pub(crate) fn of(memory: BorrowedFd<'_>) -> Result<Guests, Error> {
        let memory = memory
            .try_clone_to_owned()
            .map_err(|error| Error::new(Code::System, format!("dup of a segment: {error}")))?;
        // 0 is the client itself.
        Ok(Guests { memory, next: 1, invited: BTreeMap::new(), states: Vec::new() })
    }

    /// A number that no other guest has had, and its secret.
    pub(crate) fn invite(&mut self, rights: Rights) -> Result<(u32, Secret), Error> {
        if self.invited.len() >= MAX_INVITED {
            let message = format!("{MAX_INVITED} invitations to the segment were not used yet");
            return Err(Error::new(Code::TryLater, message));
        }
        let number = self.next;
        self.next = number.checked_add(1).ok_or_else(|| {
            Error::new(Code::TryLater, "the segment has had as many guests as there are numbers")
        })?;
        let secret = new_secret()?;
        self.invited.insert(number, (secret, rights));
        Ok((number, secret))
    }

    /// What a guest may that proves to be invited. It is not any more.
    pub(crate) fn enter(&mut self, number: u32, is_by: impl FnOnce(&Secret) -> bool) -> Option<Rights> {
        let rights =
            self.invited.get(&number).filter(|(secret, _)| is_by(secret)).map(|(_, rights)| *rights)?;
        self.invited.remove(&number);
        Some(rights)
    }

    /// The memory itself, for a guest of this node that learns by this page when it is over.
    pub(crate) fn open(&mut self, rights: Rights, state: &Arc<Region>) -> Result<OwnedFd, Error> {
        let file = match rights.writable {
            true => self
                .memory
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| Error::new(Code::System, format!("dup of a segment: {error}")))?,
            false => read_only(self.memory.as_fd())?,
        };
        // A process that is gone has let go of its page.
        self.states.retain(|state| Arc::strong_count(state) > 1);
        self.states.push(state.clone());
        Ok(file)
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        for state in &self.states {
            let over: Option<&AtomicU64> = state.view(OVER_AT);
            over.expect("a page has two words").store(1, Ordering::Release);
        }
    }
}

/// Takes as long for a wrong one as for the right one.
pub(crate) fn is_same(one: &Secret, other: &Secret) -> bool {
    one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_fabric::region::PAGE_BYTES;

    const READER: Rights = Rights { writable: false, encrypted: false };
    const WRITER: Rights = Rights { writable: true, encrypted: true };

    fn guests() -> (Guests, Region) {
        let region = Region::create("segment", PAGE_BYTES).unwrap();
        sublet_fabric::region::bar_writers(region.fd()).unwrap();
        (Guests::of(region.fd()).unwrap(), region)
    }

    #[test]
    fn an_invitation_is_good_once_and_for_what_it_says() {
        let (mut guests, _region) = guests();
        let (one, secret) = guests.invite(READER).unwrap();
        let (two, other) = guests.invite(WRITER).unwrap();
        assert!(one != two && one != 0 && two != 0 && !is_same(&secret, &other));
        assert_eq!(guests.enter(one, |known| is_same(known, &other)), None);
        assert_eq!(guests.enter(one, |known| is_same(known, &secret)), Some(READER));
        assert_eq!(guests.enter(one, |known| is_same(known, &secret)), None);
        assert_eq!(guests.enter(two, |known| is_same(known, &other)), Some(WRITER));
        assert_eq!(guests.enter(0, |_| true), None);
    }

    #[test]
    fn invitations_have_a_bound() {
        let (mut guests, _region) = guests();
        for _ in 0..MAX_INVITED {
            guests.invite(READER).unwrap();
        }
        assert_eq!(guests.invite(READER).unwrap_err().code, Code::TryLater);
        assert!(guests.enter(1, |_| true).is_some() && guests.invite(READER).is_ok());
    }

    #[test]
    fn who_may_read_gets_memory_to_read_and_all_learn_that_it_is_over() {
        let (mut guests, region) = guests();
        region.write(0, b"bytes").unwrap();
        let state = Arc::new(Region::create("state", PAGE_BYTES).unwrap());
        let (reader, writer) = (guests.open(READER, &state).unwrap(), guests.open(WRITER, &state).unwrap());
        assert!(Region::attach(reader.try_clone().unwrap(), PAGE_BYTES).is_err());
        let read = Region::attach_to_read(reader, PAGE_BYTES).unwrap();
        let mut bytes = [0; 5];
        read.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        Region::attach(writer, PAGE_BYTES).unwrap();
        let over: &AtomicU64 = state.view(OVER_AT).unwrap();
        assert_eq!(over.load(Ordering::Acquire), 0);
        drop(guests);
        assert_eq!(over.load(Ordering::Acquire), 1);
    }
}
