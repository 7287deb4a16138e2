//! System calls that no library wraps, each in a function that keeps its promises.
//!
//! All that fork have one duty in common: the process that calls them has a single thread. Then the child may do what
//! any process may; had it others, it could find their locks held for ever.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};

/// Flag as the kernel defines it: the library's constant does not fit its type.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Side of a fork.
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The process that made it, with its number and a descriptor of it.
    Parent(Pid, OwnedFd),
}

/// Options of a new process.
#[derive(Clone, Copy, Default)]
pub(crate) struct Clone<'fd> {
    /// `CLONE_NEW...`, or `CLONE_VFORK` to wait until it has ended or become another program.
    pub(crate) flags: i32,
    /// The control group (v2) that it begins in.
    pub(crate) cgroup: Option<BorrowedFd<'fd>>,
    /// Whether it is a child of this process's parent.
    pub(crate) is_sibling: bool,
}

/// Forks this process, which must have a single thread.
pub(crate) fn clone(how: Clone<'_>) -> io::Result<Fork> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all fields are integers, for which zero says: nothing.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    let flags = |flags: i32| u64::from(flags.cast_unsigned());
    arguments.flags = flags(libc::CLONE_PIDFD | how.flags);
    arguments.pidfd = (&raw mut pidfd) as u64;
    match how.is_sibling {
        // It signals its end as this process does.
        true => arguments.flags |= flags(libc::CLONE_PARENT),
        false => arguments.exit_signal = flags(libc::SIGCHLD),
    }
    // The C library keeps a thread's number in its memory: the kernel must write the child's number there.
    if let Some(number) = thread_number() {
        arguments.flags |= flags(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID);
        arguments.child_tid = number;
    }
    if let Some(cgroup) = how.cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = number_of(cgroup);
    }
    // SAFETY: without CLONE_VM the child has memory of its own, and continues on its copy of this stack; `arguments`
    // and `pidfd` live throughout the call. That there are no other threads is the caller's duty.
    let mut pid =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    if pid < 0 && how.cgroup.is_none() && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        // Container runtimes refuse `clone3`, whose flags their filters cannot see.
        pid = older_clone(&arguments);
    }
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid) if pid > 0 => match Pid::from_raw(pid) {
            // SAFETY: the kernel has just opened it for us.
            Some(pid) => Ok(Fork::Parent(pid, unsafe { OwnedFd::from_raw_fd(pidfd) })),
            None => Err(io::ErrorKind::InvalidData.into()),
        },
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks this process, which must have a single thread, by the older call, and continues when the child has become
/// another program or has ended. Returns the child's number to the parent, and nothing to the child.
pub(crate) fn fork_until_exec() -> io::Result<Option<Pid>> {
    let none = std::ptr::null::<libc::c_void>();
    let flags = libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has memory of its own, and continues on its copy of this stack; null says that
    // neither a new stack nor a place for its number is wanted. That there are no other threads is the caller's duty.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    checked(pid)?;
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw))
}

/// Forks by the older call, as the arguments of `clone3` say, without a control group.
fn older_clone(arguments: &libc::clone_args) -> libc::c_long {
    let flags = arguments.flags | arguments.exit_signal;
    let (stack, tls) = (0_u64, 0_u64);
    #[cfg(target_arch = "x86_64")]
    let (fourth, fifth) = (arguments.child_tid, tls);
    #[cfg(not(target_arch = "x86_64"))]
    let (fourth, fifth) = (tls, arguments.child_tid);
    // SAFETY: as for `clone3`, whose caller passes addresses that live throughout this call. This call takes the address of
    // the process's descriptor in place of that of the parent's number.
    unsafe { libc::syscall(libc::SYS_clone, flags, stack, arguments.pidfd, fourth, fifth) }
}

/// Private writable memory of this process, in bytes, as the kernel counts it for the limit of that.
pub(crate) fn own_data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")?.strip_suffix("kB"));
    data.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or_default().saturating_mul(1024)
}

/// Address at which the C library keeps the number of this thread, if the kernel reports it.
fn thread_number() -> Option<u64> {
    let mut address: u64 = 0;
    // SAFETY: the kernel writes an address into `address`, which has the size of one.
    let told = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut address) };
    (told == 0 && address != 0).then_some(address)
}

/// Forks this process as the C library does, with all that its users have asked it to do before and after.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: that there are no other threads is the caller's duty.
    let pid = unsafe { libc::fork() };
    checked(pid.into())?;
    Ok(Pid::from_raw(pid))
}

/// Becomes another program. Returns only what prevented it.
pub(crate) fn exec(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: each pointer is to a string that ends with 0 and lives throughout the call, and both lists end with null.
    // A signal's default is a valid disposition for it; Rust's own start has changed this one.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr());
    }
    io::Error::last_os_error()
}

/// Leaves namespaces for new ones of this process's own.
pub(crate) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: no memory is passed; with CLONE_NEW... flags nothing that this process holds becomes invalid.
    checked(unsafe { libc::unshare(flags) }.into())
}

/// Adds attributes (`MOUNT_ATTR_...`) to a mount and all beneath it.
pub(crate) fn restrict_mount(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let change =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    change_mount(mount, &change)
}

/// Maps the owners of the files of a detached mount, and of all mounts beneath it, to the users that have the same
/// numbers in a namespace of users.
pub(crate) fn map_owners(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let change = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: number_of(users),
    };
    change_mount(mount, &change)
}

/// An open descriptor's number, which is never negative.
fn number_of(open: BorrowedFd<'_>) -> u64 {
    u64::from(open.as_raw_fd().cast_unsigned())
}

fn change_mount(mount: BorrowedFd<'_>, change: &libc::mount_attr) -> io::Result<()> {
    // SAFETY: the descriptor is open, the path is an empty string, and `change` lives throughout the call.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            std::ptr::from_ref(change),
            size_of::<libc::mount_attr>(),
        )
    })
}

/// Has all descriptors above the standard ones closed when this process becomes another program.
pub(crate) fn close_on_exec() -> io::Result<()> {
    close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes all descriptors but these, in a process that never again uses what owns the others: one that was just
/// started, or one that was forked and does not return to where that happened.
pub(crate) fn keep_only(descriptors: &mut [RawFd]) -> io::Result<()> {
    descriptors.sort_unstable();
    let mut first = 0;
    for kept in descriptors.iter().filter_map(|&number| libc::c_uint::try_from(number).ok()) {
        if kept > first {
            close_range(first, kept - 1, 0)?;
        }
        first = kept + 1;
    }
    close_range(first, libc::c_uint::MAX, 0)
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: no memory is passed. With the flag the descriptors stay open until exec; without it nothing uses them any
    // more, which is the duty of `keep_only`'s caller.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
}

/// Makes a number refer to another descriptor. The descriptor that it referred to is closed; the caller must ensure
/// that no other code uses that one.
pub(crate) fn replace(number: RawFd, descriptor: OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::dup3(descriptor.as_raw_fd(), number, libc::O_CLOEXEC) }.into())
}

/// Returns the flags of an open descriptor. Fails if the number is not one.
pub(crate) fn status_flags(number: RawFd) -> io::Result<OFlags> {
    // SAFETY: no memory is passed; the kernel reports a number that is not a descriptor.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
    checked(flags.into())?;
    Ok(OFlags::from_bits_retain(flags.cast_unsigned()))
}

/// Makes a descriptor that is readable while the end of a child was not waited for. Blocks the signal of such ends from
/// now on.
pub(crate) fn child_ends() -> io::Result<OwnedFd> {
    let set = child_signal();
    // SAFETY: the set lives throughout the calls; the descriptor is new and has no other owner.
    unsafe {
        checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        checked(fd.into())?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Unblocks the signal that [`child_ends`] has blocked.
pub(crate) fn hear_child_ends() -> io::Result<()> {
    let set = child_signal();
    // SAFETY: the set lives throughout the call.
    checked(unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) }.into())
}

fn child_signal() -> libc::sigset_t {
    // SAFETY: `sigemptyset` makes it a set before it is used as one.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        set
    }
}

/// Has a write beyond the limit of file sizes fail, and not end this process. Programs that it starts inherit that.
///
/// # Errors
/// What the system says.
pub fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: no memory is passed; ignoring is a valid disposition for this signal.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ends this process without running anything of what it was forked from.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: ends the process, whatever its state.
    unsafe { libc::_exit(status) }
}

/// Has the kernel ask a filter about each system call of this process and of all that it will start, for ever. The process
/// must have given up new privileges.
pub(crate) fn filter_calls(program: &[libc::sock_filter]) -> io::Result<()> {
    let len = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let none: libc::c_ulong = 0;
    // SAFETY: `len` is the number of the program's instructions, which the kernel copies and does not change.
    checked(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, none, &raw const program)
    })
}

/// The newest of Landlock's interfaces that the kernel has; 0 if it has none.
pub(crate) fn landlock_abi() -> u32 {
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the kernel reads no memory, and only says a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    u32::try_from(abi).unwrap_or(0)
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The name of a signal that ends processes.
pub fn signal_name(number: i32) -> Option<&'static str> {
    const NAMES: [(Signal, &str); 18] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMES.iter().find(|(signal, _)| signal.as_raw() == number).map(|&(_, name)| name)
}
