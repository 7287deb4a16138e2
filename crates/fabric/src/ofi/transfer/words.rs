//! Atomics on words of the peer: by the provider where it has them, otherwise by the peer's progress.

use crate::FabricError;
use crate::ofi::OfiEndpoint;
use crate::ofi::link::Post;
use crate::ofi::live::PeerRequest;
use crate::ofi::message::{PutDestination, Tail};
use crate::ofi::operations::OperationGroup;
use crate::ofi::regions::aligned;
use crate::window::RegionAddress;

impl OfiEndpoint {
    pub(super) fn change_word(
        &self,
        at: RegionAddress,
        what: Post,
        words: [u64; 2],
    ) -> Result<u64, FabricError> {
        aligned(at, size_of::<u64>() as u64)?;
        self.flush()?;
        let (place, remote) = self.theirs(at, size_of::<u64>() as u64)?;
        if self.lock().live()?.atomics {
            self.let_messages_be_taken()?;
        }
        let (generation, (group, native)) =
            self.attempt(None, |live| Ok(live.operations.begin_group().map(|group| (group, live.atomics))))?;
        let before = match native {
            true => self.change_natively(generation, group, what, words, (place, remote))?,
            false => self.ask(generation, group, what, words, place)?,
        };
        self.end_group(generation, group)?;
        Ok(before)
    }

    fn change_natively(
        &self,
        generation: u64,
        group: OperationGroup,
        what: Post,
        words: [u64; 2],
        (place, remote): (PutDestination, u64),
    ) -> Result<u64, FabricError> {
        self.attempt(Some(generation), |live| {
            // SAFETY: the group's words are inside of the outgoing memory, and this thread's as the group is.
            unsafe { live.words(group.index()).cast::<[u64; 2]>().write(words) };
            Ok(live.change_word(what, place, remote, group)?.then_some(()))
        })?;
        self.finish(generation, group)?;
        let (_, before) = self.attempt(Some(generation), |live| {
            // SAFETY: as above, and the operation that wrote the third word has completed.
            Ok(Some(unsafe { live.words(group.index()).add(2).read_volatile() }))
        })?;
        Ok(before)
    }

    /// Makes the peer's progress change the word.
    fn ask(
        &self,
        generation: u64,
        group: OperationGroup,
        what: Post,
        [operand, expected]: [u64; 2],
        at: PutDestination,
    ) -> Result<u64, FabricError> {
        let number = group.number();
        let question = match what {
            Post::CompareSwap => Tail::CompareSwap { at, expected, new: operand, number },
            _ => Tail::FetchAdd { at, operand, number },
        };
        self.attempt(Some(generation), |live| {
            let sent = live.send(&question, false)?.is_some();
            if sent {
                live.asked[group.index()] = PeerRequest::Waiting;
            }
            Ok(sent.then_some(()))
        })?;
        let (_, before) = self.attempt(Some(generation), |live| match live.asked[group.index()] {
            PeerRequest::Answered(value) => {
                live.asked[group.index()] = PeerRequest::Nothing;
                Ok(Some(value))
            }
            _ => Ok(None),
        })?;
        Ok(before)
    }
}
