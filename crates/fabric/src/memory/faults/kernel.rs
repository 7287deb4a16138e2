//! Declares the system calls of userfaultfd and their layouts (linux/userfaultfd.h).

use std::ops::{BitAnd, BitOr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::page_fault::{PageFault, Touch};
use crate::FabricError;

const VERSION: u64 = 0xaa;
pub(super) const REGISTER_MISSING: u64 = 1;
pub(super) const REGISTER_PROTECTED: u64 = 1 << 1;
pub(super) const COPY_PROTECTED: u64 = 1 << 1;
pub(super) const MOVE_WAKES_NOBODY: u64 = 1;
pub(super) const MOVE_SKIPS_HOLES: u64 = 1 << 1;
pub(super) const PROTECT: u64 = 1;
const EVENT_FAULT: u8 = 0x12;
const FAULT_WRITE: u64 = 1;
const FAULT_PROTECTED: u64 = 1 << 1;
const DEVICE: &str = "/dev/userfaultfd";
/// Number of the `ioctl` by which the device makes a descriptor of userfaultfd.
const NEW: u32 = 0xaa00;

/// Features of the kernel's userfaultfd, as a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features(u64);

impl Features {
    pub(super) const PROTECTED: Features = Features(1);
    pub(super) const THREAD: Features = Features(1 << 8);
    pub(super) const POISON: Features = Features(1 << 14);
    pub(super) const MOVE: Features = Features(1 << 16);

    pub(super) const fn empty() -> Features {
        Features(0)
    }

    pub(super) fn contains(self, others: Features) -> bool {
        self & others == others
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Features;

    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

/// An argument of `ioctl` with its number: bits 0 to 7 are the command, 8 to 15 the subsystem, 16 to 29 the size, 30
/// and 31 the direction.
///
/// # Safety
/// The type's layout is that of the kernel's argument for the number.
pub(super) unsafe trait Ioctl {
    const NUMBER: u32;
}

const fn both_ways(command: u32, len_bytes: usize) -> u32 {
    ioctl_number(3, command, len_bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "asserted here: a size has 14 bits")]
const fn ioctl_number(direction: u32, command: u32, len_bytes: usize) -> u32 {
    assert!(len_bytes < 1 << 14);
    direction << 30 | (len_bytes as u32) << 16 | 0xaa << 8 | command
}

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct FaultRange {
    pub(super) start: u64,
    pub(super) len_bytes: u64,
}

#[repr(C)]
pub(super) struct Register {
    pub(super) range: FaultRange,
    pub(super) mode: u64,
    pub(super) ioctls: u64,
}

#[repr(transparent)]
pub(super) struct Wake(pub(super) FaultRange);

#[repr(C)]
pub(super) struct FaultCopy {
    pub(super) into: u64,
    pub(super) from: u64,
    pub(super) len_bytes: u64,
    pub(super) mode: u64,
    pub(super) copied: i64,
}

#[repr(C)]
pub(super) struct Move {
    pub(super) into: u64,
    pub(super) from: u64,
    pub(super) len_bytes: u64,
    pub(super) mode: u64,
    pub(super) moved: i64,
}

#[repr(C)]
pub(super) struct Protect {
    pub(super) range: FaultRange,
    pub(super) mode: u64,
}

#[repr(C)]
pub(super) struct Poison {
    pub(super) range: FaultRange,
    pub(super) mode: u64,
    pub(super) updated: i64,
}

/// `struct uffd_msg`: an event, and for a fault its flags, address and thread.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct FaultMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    unused: u32,
}

const _: () = {
    assert!(size_of::<Api>() == 24 && size_of::<FaultRange>() == 16 && size_of::<Register>() == 32);
    assert!(size_of::<FaultCopy>() == 40 && size_of::<Move>() == 40 && size_of::<Protect>() == 24);
    assert!(size_of::<Poison>() == 32 && size_of::<FaultMessage>() == 32);
};

// SAFETY: `struct uffdio_api`.
unsafe impl Ioctl for Api {
    const NUMBER: u32 = both_ways(0x3f, size_of::<Api>());
}
// SAFETY: `struct uffdio_register`.
unsafe impl Ioctl for Register {
    const NUMBER: u32 = both_ways(0, size_of::<Register>());
}
// SAFETY: `struct uffdio_range`; this one the kernel's header has as one way.
unsafe impl Ioctl for Wake {
    const NUMBER: u32 = ioctl_number(2, 2, size_of::<Wake>());
}
// SAFETY: `struct uffdio_copy`.
unsafe impl Ioctl for FaultCopy {
    const NUMBER: u32 = both_ways(3, size_of::<FaultCopy>());
}
// SAFETY: `struct uffdio_move`.
unsafe impl Ioctl for Move {
    const NUMBER: u32 = both_ways(5, size_of::<Move>());
}
// SAFETY: `struct uffdio_writeprotect`.
unsafe impl Ioctl for Protect {
    const NUMBER: u32 = both_ways(6, size_of::<Protect>());
}
// SAFETY: `struct uffdio_poison`.
unsafe impl Ioctl for Poison {
    const NUMBER: u32 = both_ways(8, size_of::<Poison>());
}

/// The number of a call in the type that the C library has for it: musl's is signed, with the same bits.
fn request(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}

pub(super) fn call<C: Ioctl>(file: &OwnedFd, call: &mut C) -> Result<(), Errno> {
    // SAFETY: the number fits the type, which lives longer than the call. The calls act on pages of watched stretches
    // only: existing pages are not changed, but moved to the address that their owner names.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request(C::NUMBER), std::ptr::from_mut(call)) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Makes a descriptor for which no features are chosen yet. Reading it sleeps, and no child process inherits it by
/// `exec`.
pub(super) fn open() -> Result<OwnedFd, FabricError> {
    // SAFETY: the call makes a descriptor and touches no memory.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if let Some(made) = i32::try_from(made).ok().filter(|made| *made >= 0) {
        // SAFETY: the descriptor was made just now, and has no other owner.
        return Ok(unsafe { OwnedFd::from_raw_fd(made) });
    }
    match last_error() {
        Errno::PERM => made_of(device()?.as_fd()),
        error => Err(FabricError::system("userfaultfd".to_owned(), error)),
    }
}

/// Opens the device.
pub(super) fn device() -> Result<OwnedFd, FabricError> {
    let device =
        std::fs::File::options().read(true).write(true).open(DEVICE).map_err(|error| refused(&error))?;
    Ok(device.into())
}

fn refused(error: &std::io::Error) -> FabricError {
    FabricError::Limit(format!(
        "userfaultfd is refused ({DEVICE}: {error}): let this user read and write {DEVICE}, or set the sysctl \
         vm.unprivileged_userfaultfd to 1"
    ))
}

/// Makes the same descriptor as [`open`], by the device.
pub(super) fn made_of(device: BorrowedFd<'_>) -> Result<OwnedFd, FabricError> {
    // SAFETY: the call makes a descriptor and touches no memory.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), request(NEW), libc::O_CLOEXEC) };
    if made < 0 {
        return Err(refused(&last_error().into()));
    }
    // SAFETY: the descriptor was made just now, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Chooses features, and returns those that exist. May be called once for a descriptor.
pub(super) fn negotiate(file: &OwnedFd, features: Features) -> Result<Features, FabricError> {
    let mut api = Api { version: VERSION, features: features.0, ioctls: 0 };
    call(file, &mut api)
        .map_err(|error| FabricError::system(format!("userfaultfd with {features:?}"), error))?;
    Ok(Features(api.features))
}

/// Gives ranges of this process back to the machine. Returns whether all of them were given back.
///
/// # Safety
/// No thread uses these ranges.
pub(super) unsafe fn discard(own: &OwnedFd, ranges: &[FaultRange]) -> bool {
    const { assert!(size_of::<FaultRange>() == size_of::<libc::iovec>()) };
    // SAFETY: a range has the layout of an iovec: an address, and a length. By the caller's promise no thread uses
    // their bytes.
    let done = unsafe {
        let (advice, flags) = (libc::MADV_DONTNEED, 0);
        libc::syscall(
            libc::SYS_process_madvise,
            own.as_raw_fd(),
            ranges.as_ptr(),
            ranges.len(),
            advice,
            flags,
        )
    };
    u64::try_from(done) == Ok(ranges.iter().map(|range| range.len_bytes).sum::<u64>())
}

impl FaultMessage {
    /// Reads the next message. `None` if it is not a fault.
    pub(super) fn read(file: &OwnedFd) -> Result<Option<FaultMessage>, Errno> {
        let mut message = FaultMessage::default();
        // SAFETY: the kernel writes whole messages, of this layout and size, and any bytes are a valid message.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::from_mut(&mut message).cast::<u8>(),
                size_of::<FaultMessage>(),
            )
        };
        let len = rustix::io::read(file, bytes)?;
        Ok((len == size_of::<FaultMessage>() && message.event == EVENT_FAULT).then_some(message))
    }

    pub(super) fn fault(&self) -> PageFault {
        let touch = match self.flags {
            flags if flags & FAULT_PROTECTED != 0 => Touch::Protected,
            flags if flags & FAULT_WRITE != 0 => Touch::Write,
            _ => Touch::Read,
        };
        PageFault { address: self.address, touch, thread: self.thread }
    }
}
