//! Page faults that this process handles itself (userfaultfd). A thread that touches a missing page of a watched
//! [`Stretch`], or writes a protected one, sleeps until another thread has supplied the page.
//!
//! The handling is transparent: both instructions and system calls wait. It needs a privilege, since a process that
//! delays the kernel in the middle of a copy may be an attacker: `CAP_SYS_PTRACE`, the sysctl
//! `vm.unprivileged_userfaultfd`, or access to `/dev/userfaultfd`.
//!
//! Invariants:
//! - A page belongs to one stretch at a time: [`PageFaults::shift`] moves it between two without a copy.
//! - A page that is inserted as protected is never writable in between.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::FabricError;
use crate::stretch::Stretch;
use kernel::{FaultCopy, FaultMessage, FaultRange, Features, Ioctl, Move, Poison, Protect, Register};

pub use page_fault::{PageFault, Touch};

mod kernel;
mod page_fault;

/// Most attempts for a page that the kernel or a device holds for a moment.
const MAX_TRIES: u32 = 1 << 16;
/// Most ranges that one system call gives back.
pub const MAX_RANGES: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub struct PageFaults {
    file: OwnedFd,
    features: Features,
    /// This process, where the kernel gives back several ranges in one call.
    process: Option<OwnedFd>,
}

/// Whether a write to a page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// The page may be written.
    Allowed,
    /// A write to the page faults.
    Faults,
}

/// Bytes of a stretch, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length of the extent.
    pub len_bytes: u64,
}

impl PageFaults {
    /// Opens fault handling for this process.
    ///
    /// # Errors
    /// [`FabricError::Limit`] where the machine refuses it; the message says what would allow it.
    pub fn open() -> Result<PageFaults, FabricError> {
        PageFaults::made(kernel::open)
    }

    /// Opens fault handling for this process through a [`device`] that it may not open itself.
    ///
    /// # Errors
    /// [`FabricError::Limit`] if this is not that device, or the machine refuses it.
    pub fn of_device(device: BorrowedFd<'_>) -> Result<PageFaults, FabricError> {
        PageFaults::made(|| kernel::made_of(device))
    }

    fn made(make: impl Fn() -> Result<OwnedFd, FabricError>) -> Result<PageFaults, FabricError> {
        // The available features can be requested once, before any is chosen.
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
        Ok(PageFaults { file, features, process })
    }

    /// Whether the kernel supports [`PageFaults::shift`].
    pub fn can_shift(&self) -> bool {
        self.features.contains(Features::MOVE)
    }

    /// Starts to report faults on missing pages of this stretch, and to enforce write protection.
    pub fn watch(&self, stretch: &Stretch) -> Result<(), FabricError> {
        self.register(stretch, kernel::REGISTER_MISSING | kernel::REGISTER_PROTECTED)
    }

    /// Allows pages to be shifted to this stretch from now on. A thread that touches a missing page of it gets a new
    /// one.
    pub fn accept(&self, stretch: &Stretch) -> Result<(), FabricError> {
        self.register(stretch, kernel::REGISTER_PROTECTED)
    }

    fn register(&self, stretch: &Stretch, mode: u64) -> Result<(), FabricError> {
        let all = Extent { offset: 0, len_bytes: stretch.len_bytes() };
        let mut register = Register { range: range(stretch, all)?, mode, ioctls: 0 };
        self.call(&mut register)
            .map_err(|error| FabricError::system(format!("watching {} bytes", all.len_bytes), error))
    }

    /// Returns the next fault of a waiting thread. Sleeps until there is one.
    pub fn next(&self) -> Result<PageFault, FabricError> {
        loop {
            match FaultMessage::read(&self.file) {
                Ok(Some(message)) => return Ok(message.fault()),
                Ok(None) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(FabricError::system("reading faults".to_owned(), error)),
            }
        }
    }

    /// Inserts new pages with these bytes where pages are missing, and wakes the threads that wait for them.
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
            let mut copy = FaultCopy {
                into: into.start + done,
                from: bytes.as_ptr() as u64 + done,
                len_bytes: len_bytes - done,
                mode,
                copied: 0,
            };
            match self.call(&mut copy) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => done += copy.copied.max(0).cast_unsigned(),
                Err(error) => return Err(FabricError::system(format!("filling {into:?}"), error)),
            }
        }
        Err(FabricError::system(format!("filling {into:?}"), Errno::AGAIN))
    }

    /// Moves the existing pages of a range to another stretch, where the pages are missing. Moves all of them or none,
    /// and wakes no thread.
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
                // The pages were there before, so they can go back; if that fails, the next access reports it.
                let _ = self.move_pages(out.start, into.start, done);
            }
            FabricError::system(format!("moving {out:?} to {into:?}"), error)
        })
    }

    /// Moves pages. An error contains the number of bytes moved before it.
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
                Err(Errno::AGAIN) => done += moving.moved.max(0).cast_unsigned(),
                Err(error) => return Err((done, error)),
            }
            if done == len_bytes {
                return Ok(());
            }
        }
        Err((done, Errno::AGAIN))
    }

    /// Sets whether writes to existing pages fault, and wakes the threads that wait to write.
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

    /// Wakes the threads that wait for these pages. Each repeats its access.
    pub fn wake(&self, stretch: &Stretch, extent: Extent) -> Result<(), FabricError> {
        let range = range(stretch, extent)?;
        self.call(&mut kernel::Wake(range))
            .map_err(|error| FabricError::system(format!("waking for {range:?}"), error))
    }

    /// Marks missing pages as lost: a thread that touches one gets SIGBUS, also if it waits for the page already.
    /// Returns whether the kernel supports this.
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

    /// Gives pages of a stretch back to the machine, up to [`MAX_RANGES`] ranges in one system call where the kernel
    /// can.
    ///
    /// # Safety
    /// As for [`Stretch::discard`].
    pub unsafe fn discard(&self, stretch: &Stretch, extents: &[Extent]) -> Result<(), FabricError> {
        for some in extents.chunks(MAX_RANGES) {
            let ranges = some.iter().map(|extent| range(stretch, *extent)).collect::<Result<Vec<_>, _>>()?;
            // SAFETY: the ranges are of the stretch, and by the caller's promise no thread uses them.
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

    fn call<C: Ioctl>(&self, call: &mut C) -> Result<(), Errno> {
        kernel::call(&self.file, call)
    }
}

fn range(stretch: &Stretch, extent: Extent) -> Result<FaultRange, FabricError> {
    let Extent { offset, len_bytes } = extent;
    let start = stretch.pointer(offset, len_bytes);
    let start = start.ok_or(FabricError::OutOfBounds { region: 0, offset, len_bytes })?;
    Ok(FaultRange { start: start.as_ptr() as u64, len_bytes })
}

/// Opens the device for a process that may not open it itself, for [`PageFaults::of_device`].
///
/// # Errors
/// [`FabricError::Limit`] where the machine refuses it; the message says what would allow it.
pub fn device() -> Result<OwnedFd, FabricError> {
    kernel::device()
}

/// Whether this process may handle its own page faults.
pub fn is_permitted() -> bool {
    kernel::open().is_ok()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
