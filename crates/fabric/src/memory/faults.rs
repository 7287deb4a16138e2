//! Faults of this process that it sees to itself (userfaultfd): who touches a page of a watched [`Stretch`] that is not
//! there, or writes one that is protected, sleeps until another thread has put it there.
//!
//! It is transparent: instructions and system calls alike wait. That needs a right, for who holds up the kernel in the
//! middle of a copy may be up to something: `CAP_SYS_PTRACE`, the sysctl `vm.unprivileged_userfaultfd`, or
//! `/dev/userfaultfd`.
//!
//! Invariants:
//! - Of two stretches a page is in one at a time: [`Faults::shift`] moves it without a copy.
//! - A page that is put in protected is not writable for a moment.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::FabricError;
use crate::stretch::Stretch;
use kernel::{Call, Copy, Features, Message, Move, Poison, Protect, Range, Register};

mod kernel;

/// How often a page that somebody holds for a moment is tried again.
const MAX_TRIES: u32 = 1 << 16;
/// Ranges that are given back at once, at most.
pub const MAX_RANGES: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub struct Faults {
    file: OwnedFd,
    features: Features,
    /// This process, where the kernel takes several ranges of it at a time.
    process: Option<OwnedFd>,
}

/// Somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was touched.
    pub address: u64,
    /// How.
    pub touch: Touch,
    /// The thread, as the kernel numbers it.
    pub thread: u32,
}

/// What a thread did that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It read a page that is not there.
    Read,
    /// It wrote one that is not there.
    Write,
    /// It wrote one that is protected.
    Protected,
}

/// Whether who writes a page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// It may be written.
    Allowed,
    /// Who writes it faults.
    Faults,
}

/// Bytes of a stretch, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub len_bytes: u64,
}

impl Faults {
    /// Of this process.
    ///
    /// # Errors
    /// [`FabricError::Limit`] where the machine refuses it; the message says what would allow it.
    pub fn open() -> Result<Faults, FabricError> {
        Faults::made(kernel::open)
    }

    /// Of this process, which may not open the [`device`] itself.
    ///
    /// # Errors
    /// [`FabricError::Limit`] if this is not that device, or the machine refuses it.
    pub fn of_device(device: BorrowedFd<'_>) -> Result<Faults, FabricError> {
        Faults::made(|| kernel::made_of(device))
    }

    fn made(make: impl Fn() -> Result<OwnedFd, FabricError>) -> Result<Faults, FabricError> {
        // What there is can be asked for once, before anything is chosen.
        let offered = kernel::negotiate(&make()?, Features::empty())?;
        let needed = Features::PROTECTED | Features::THREAD;
        if !offered.contains(needed) {
            return Err(FabricError::system("userfaultfd with write protection".to_owned(), Errno::NOSYS));
        }
        let file = make()?;
        let features = needed | (offered & (Features::MOVE | Features::POISON));
        kernel::negotiate(&file, features)?;
        let own = rustix::process::getpid();
        let process = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).ok();
        Ok(Faults { file, features, process })
    }

    /// Whether [`Faults::shift`] can be had.
    pub fn can_shift(&self) -> bool {
        self.features.contains(Features::MOVE)
    }

    /// From now on pages of this stretch that are not there are waited for, and protection is heeded.
    pub fn watch(&self, stretch: &Stretch) -> Result<(), FabricError> {
        self.register(stretch, kernel::REGISTER_MISSING | kernel::REGISTER_PROTECTED)
    }

    /// From now on pages can be shifted to this stretch. Who touches one that is not there is given a new one.
    pub fn accept(&self, stretch: &Stretch) -> Result<(), FabricError> {
        self.register(stretch, kernel::REGISTER_PROTECTED)
    }

    fn register(&self, stretch: &Stretch, mode: u64) -> Result<(), FabricError> {
        let all = Extent { offset: 0, len_bytes: stretch.len_bytes() };
        let mut register = Register { range: range(stretch, all)?, mode, ioctls: 0 };
        self.call(&mut register)
            .map_err(|error| FabricError::system(format!("watching {} bytes", all.len_bytes), error))
    }

    /// The next who waits. Sleeps until there is one.
    pub fn next(&self) -> Result<Fault, FabricError> {
        loop {
            match Message::read(&self.file) {
                Ok(Some(message)) => return Ok(message.fault()),
                Ok(None) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(FabricError::system("reading faults".to_owned(), error)),
            }
        }
    }

    /// Puts new pages with these bytes where none are, and wakes who waits for them.
    pub fn fill(
        &self,
        stretch: &Stretch,
        offset: u64,
        bytes: &[u8],
        writing: Writing,
    ) -> Result<(), FabricError> {
        let len_bytes = bytes.len() as u64;
        let into = range(stretch, Extent { offset, len_bytes })?;
        let mode = if writing == Writing::Faults { kernel::COPY_PROTECTED } else { 0 };
        let mut done = 0;
        for _ in 0..MAX_TRIES {
            let mut copy = Copy {
                into: into.start + done,
                from: bytes.as_ptr() as u64 + done,
                len_bytes: len_bytes - done,
                mode,
                copied: 0,
            };
            match self.call(&mut copy) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => done += copy.copied.max(0) as u64,
                Err(error) => return Err(FabricError::system(format!("filling {into:?}"), error)),
            }
        }
        Err(FabricError::system(format!("filling {into:?}"), Errno::AGAIN))
    }

    /// Moves those pages of a range that are there to another stretch where none are: all of them or none. Nobody is
    /// woken.
    ///
    /// # Errors
    /// `EBUSY`, as a system error, if a device or the kernel holds one of them.
    pub fn shift(
        &self,
        to: (&Stretch, u64),
        from: (&Stretch, u64),
        len_bytes: u64,
    ) -> Result<(), FabricError> {
        let (into, out) = (
            range(to.0, Extent { offset: to.1, len_bytes })?,
            range(from.0, Extent { offset: from.1, len_bytes })?,
        );
        self.move_pages(into.start, out.start, len_bytes).map_err(|(done, error)| {
            if done > 0 {
                // They were there before, so they can go back; if not, what comes next says so.
                let _ = self.move_pages(out.start, into.start, done);
            }
            FabricError::system(format!("moving {out:?} to {into:?}"), error)
        })
    }

    /// How many bytes were moved when it failed, and why.
    fn move_pages(&self, into: u64, from: u64, len_bytes: u64) -> Result<(), (u64, Errno)> {
        let mut done = 0;
        for _ in 0..MAX_TRIES {
            let mut moving = Move {
                into: into + done,
                from: from + done,
                len_bytes: len_bytes - done,
                mode: kernel::MOVE_WAKES_NOBODY | kernel::MOVE_SKIPS_HOLES,
                moved: 0,
            };
            match self.call(&mut moving) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => done += moving.moved.max(0) as u64,
                Err(error) => return Err((done, error)),
            }
            if done == len_bytes {
                return Ok(());
            }
        }
        Err((done, Errno::AGAIN))
    }

    /// Lets writes to pages that are there fault, or no longer, and wakes who waits to write.
    pub fn protect(&self, stretch: &Stretch, extent: Extent, writing: Writing) -> Result<(), FabricError> {
        let mode = if writing == Writing::Faults { kernel::PROTECT } else { 0 };
        let range = range(stretch, extent)?;
        loop {
            match self.call(&mut Protect { range, mode }) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(FabricError::system(format!("protecting {range:?}"), error)),
            }
        }
    }

    /// Wakes who waits for these pages: it looks anew.
    pub fn wake(&self, stretch: &Stretch, extent: Extent) -> Result<(), FabricError> {
        let range = range(stretch, extent)?;
        self.call(&mut kernel::Wake(range))
            .map_err(|error| FabricError::system(format!("waking for {range:?}"), error))
    }

    /// Makes pages that are not there be lost: who touches them is sent SIGBUS, and who waits for them is woken to it.
    /// Says whether the kernel can do so.
    pub fn poison(&self, stretch: &Stretch, extent: Extent) -> Result<bool, FabricError> {
        let range = range(stretch, extent)?;
        if !self.features.contains(Features::POISON) {
            return Ok(false);
        }
        match self.call(&mut Poison { range, mode: 0, updated: 0 }) {
            Ok(()) | Err(Errno::EXIST | Errno::AGAIN) => Ok(true),
            Err(error) => Err(FabricError::system(format!("poisoning {range:?}"), error)),
        }
    }

    /// Gives pages of a stretch back to the machine, as many ranges at a time as the kernel takes.
    ///
    /// # Safety
    /// As for [`Stretch::discard`].
    pub unsafe fn discard(&self, stretch: &Stretch, extents: &[Extent]) -> Result<(), FabricError> {
        for some in extents.chunks(MAX_RANGES) {
            let ranges = some.iter().map(|extent| range(stretch, *extent)).collect::<Result<Vec<_>, _>>()?;
            // SAFETY: the ranges are of the stretch, and nobody's by the caller's word.
            let at_once = self.process.as_ref().is_some_and(|own| unsafe { kernel::discard(own, &ranges) });
            if !at_once {
                for extent in some {
                    // SAFETY: as above; to discard what was discarded changes nothing.
                    unsafe { stretch.discard(extent.offset, extent.len_bytes) }?;
                }
            }
        }
        Ok(())
    }

    fn call<C: Call>(&self, call: &mut C) -> Result<(), Errno> {
        kernel::call(&self.file, call)
    }
}

fn range(stretch: &Stretch, extent: Extent) -> Result<Range, FabricError> {
    let Extent { offset, len_bytes } = extent;
    let start = stretch.pointer(offset, len_bytes);
    let start = start.ok_or(FabricError::OutOfBounds { region: 0, offset, len_bytes })?;
    Ok(Range { start: start.as_ptr() as u64, len_bytes })
}

/// What a process needs that may not open it itself: for [`Faults::of_device`].
///
/// # Errors
/// [`FabricError::Limit`] where the machine refuses it; the message says what would allow it.
pub fn device() -> Result<OwnedFd, FabricError> {
    kernel::device()
}

/// Whether this process may see to its faults.
pub fn is_permitted() -> bool {
    kernel::open().is_ok()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
