//! Boundary between Rust and C: converts errors to a status and a message, stops panics, checks pointers, reads times.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

use sublet::frames::{SharedBytes, SharedBytesMut};
use sublet::{Code, Error};

/// 0, or the number of a [`Code`]: `enum sublet_status`.
pub type sublet_status = u32;

/// Value of `SUBLET_OK`.
pub const OK: sublet_status = 0;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero byte"),
};

thread_local! {
    static LATEST_ERROR: RefCell<CString> = RefCell::default();
}

/// Converts nanoseconds to a duration; the largest number means forever.
pub(crate) fn duration(ns: u64) -> Duration {
    if ns == u64::MAX { Duration::MAX } else { Duration::from_nanos(ns) }
}

/// Runs an exported function's body.
#[inline(always)]
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Error>) -> sublet_status {
    // State that a panicking body leaves inconsistent is behind the facade, whose locks survive panics.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(error)) => report(&error),
        Err(panic) => report(&panicked(&*panic)),
    }
}

/// Stores an error for [`sublet_error_message`].
#[cold]
fn report(error: &Error) -> sublet_status {
    let message = CString::new(error.message.replace('\0', "?")).unwrap_or_default();
    // On an ending thread, no caller is left to read the message.
    let _ = LATEST_ERROR.try_with(|latest| latest.replace(message));
    error.code.number()
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied();
    let said =
        said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it did not say why");
    Error::new(Code::Internal, format!("the library panicked: {said}"))
}

#[cold]
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message)
}

/// Converts a pointer argument to a reference; an error for null.
///
/// # Safety
/// The pointer is null, or points to a live `T` that no one writes while the reference is used.
#[inline(always)]
pub(crate) unsafe fn argument<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: as the caller vouches.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// Converts a pointer argument to a mutable reference; an error for null.
///
/// # Safety
/// The duties of [`argument`] hold, and no one else reads the value meanwhile either.
#[inline(always)]
pub(crate) unsafe fn argument_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Error> {
    // SAFETY: as the caller vouches.
    unsafe { pointer.as_mut() }.ok_or_else(|| is_null(name))
}

/// Converts a pointer to an output, which may be uninitialized; an error for null.
#[inline(always)]
pub(crate) fn output<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Error> {
    NonNull::new(pointer).ok_or_else(|| is_null(name))
}

/// Converts a string argument to text; an error for null.
///
/// # Safety
/// The pointer is null, or points to a string that ends with 0 and that no one writes while the text is used.
#[inline(always)]
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: not null, so it is such a string.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|_| invalid(format!("the argument `{name}` is not UTF-8")))
}

/// Converts a string argument that may be null to text.
///
/// # Safety
/// The duties of [`text`] hold.
pub(crate) unsafe fn text_if_any<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Error> {
    // SAFETY: as the caller vouches.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, name) }.map(Some) }
}

/// Converts a pointer and a length to a view of the caller's bytes. They may lie in a buffer, which workers can write at
/// any time, so there is no slice of them.
///
/// # Safety
/// The pointer is null, or points to `len_bytes` bytes that stay readable while the view is used.
pub(crate) unsafe fn bytes<'a>(
    data: *const c_void,
    len_bytes: usize,
    name: &str,
) -> Result<SharedBytes<'a>, Error> {
    let start = bytes_address(data.cast_mut(), len_bytes, name)?.unwrap_or(NonNull::dangling());
    // SAFETY: as the caller vouches; no bytes are readable at any address.
    Ok(unsafe { SharedBytes::new(start, len_bytes) })
}

/// Converts a pointer and a length to a view of bytes to write, as [`bytes`] does. The bytes may be uninitialized.
///
/// # Safety
/// The pointer is null, or points to `len_bytes` bytes that stay writable while the view is used.
pub(crate) unsafe fn bytes_mut<'a>(
    data: *mut c_void,
    len_bytes: usize,
    name: &str,
) -> Result<SharedBytesMut<'a>, Error> {
    let start = bytes_address(data, len_bytes, name)?.unwrap_or(NonNull::dangling());
    // SAFETY: as the caller vouches; no bytes are writable at any address.
    Ok(unsafe { SharedBytesMut::new(start, len_bytes) })
}

/// Address of `len_bytes` bytes at a pointer; `None` for no bytes at a null pointer.
pub(crate) fn bytes_address(
    data: *mut c_void,
    len_bytes: usize,
    name: &str,
) -> Result<Option<NonNull<u8>>, Error> {
    match NonNull::new(data.cast::<u8>()) {
        None if len_bytes > 0 => Err(invalid(format!("`{name}` of {len_bytes} bytes at a null pointer"))),
        address => Ok(address),
    }
}

/// Checks that a structure has the size of this version's header.
pub(crate) fn check_size<T>(size_bytes: u32, name: &str) -> Result<(), Error> {
    if size_bytes as usize == size_of::<T>() {
        return Ok(());
    }
    Err(invalid(format!(
        "`{name}` says that it has {size_bytes} bytes, and in this library it has {}: begin with its default",
        size_of::<T>()
    )))
}

#[cold]
fn is_null(name: &str) -> Error {
    invalid(format!("the argument `{name}` is a null pointer"))
}

/// Returns the name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn sublet_status_name(status: sublet_status) -> *const c_char {
    status_name(status).as_ptr()
}

pub(crate) fn status_name(status: sublet_status) -> &'static CStr {
    if status == OK {
        return c"ok";
    }
    match Code::from_number(status) {
        Code::InvalidArgument => c"invalid_argument",
        Code::UnknownFunction => c"unknown_function",
        Code::UnknownPackage => c"unknown_package",
        Code::UnknownLease => c"unknown_lease",
        Code::InvalidPackage => c"invalid_package",
        Code::WrongArchitecture => c"wrong_architecture",
        Code::MissingSymbol => c"missing_symbol",
        Code::InputTooLarge => c"input_too_large",
        Code::OutputTooLarge => c"output_too_large",
        Code::TooManyInFlight => c"too_many_in_flight",
        Code::NotAllocated => c"not_allocated",
        Code::AlreadyAllocated => c"already_allocated",
        Code::UnknownImage => c"unknown_image",
        Code::InvalidImage => c"invalid_image",
        Code::InvalidGraph => c"invalid_graph",
        Code::UnknownGraph => c"unknown_graph",
        Code::UnknownRun => c"unknown_run",
        Code::RunTaken => c"run_taken",
        Code::RunCancelled => c"run_cancelled",
        Code::InsufficientResources => c"insufficient_resources",
        Code::NoCapacity => c"no_capacity",
        Code::LeaseExpired => c"lease_expired",
        Code::LeaseEnded => c"lease_ended",
        Code::PermissionDenied => c"permission_denied",
        Code::Unauthenticated => c"unauthenticated",
        Code::QuotaExceeded => c"quota_exceeded",
        Code::TryLater => c"try_later",
        Code::TicketSuperseded => c"ticket_superseded",
        Code::NodeReclaimed => c"node_reclaimed",
        Code::FunctionFailed => c"function_failed",
        Code::WorkerDied => c"worker_died",
        Code::DeadlineExceeded => c"deadline_exceeded",
        Code::MemoryExceeded => c"memory_exceeded",
        Code::CoreBusy => c"core_busy",
        Code::ManagerUnreachable => c"manager_unreachable",
        Code::AgentUnreachable => c"agent_unreachable",
        Code::Protocol => c"protocol",
        Code::StoreFull => c"store_full",
        Code::System => c"system",
        Code::AlreadyRunning => c"already_running",
        Code::StoreUnreachable => c"store_unreachable",
        Code::FabricUnavailable => c"fabric_unavailable",
        Code::VersionMismatch => c"version_mismatch",
        Code::KeyRefused => c"key_refused",
        Code::LimitTooLow => c"limit_too_low",
        Code::RegistryUnreachable => c"registry_unreachable",
        Code::StoreDamaged => c"store_damaged",
        // The fallback for unknown numbers; a test checks that no code is missing here.
        _ => c"internal",
    }
}

/// Returns the message of the latest failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn sublet_error_message() -> *const c_char {
    LATEST_ERROR.try_with(|latest| latest.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the library's version.
#[unsafe(no_mangle)]
pub extern "C" fn sublet_version() -> *const c_char {
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latest() -> &'static str {
        // SAFETY: the message belongs to this thread, and the test causes no failure before it asks again.
        unsafe { CStr::from_ptr(sublet_error_message()) }.to_str().unwrap()
    }

    #[test]
    fn codes_have_names_and_other_numbers_are_internal() {
        for &code in Code::ALL {
            assert_eq!(status_name(code.number()).to_str(), Ok(code.name()));
        }
        assert_eq!(status_name(OK), c"ok");
        assert_eq!(status_name(9999), c"internal");
    }

    #[test]
    fn an_error_leaves_its_message_on_its_own_thread() {
        assert_eq!(latest(), "");
        assert_eq!(guarded(|| Err(Error::new(Code::NoCapacity, "2 cores asked,\0 1 free"))), 31);
        assert_eq!(latest(), "2 cores asked,? 1 free");
        assert_eq!(guarded(|| Ok(())), OK);
        assert_eq!(latest(), "2 cores asked,? 1 free");
        std::thread::spawn(|| assert_eq!(latest(), "")).join().unwrap();
    }

    #[test]
    fn a_panic_stops_at_the_boundary() {
        assert_eq!(guarded(|| panic!("out of {}", "luck")), 60);
        assert_eq!(latest(), "the library panicked: out of luck");
        assert_eq!(guarded(|| panic!("plain")), 60);
        assert_eq!(latest(), "the library panicked: plain");
    }

    #[test]
    fn null_and_malformed_arguments_are_named() {
        // SAFETY: null pointers and a literal, as each function allows.
        let (null, bad) = unsafe { (text(std::ptr::null(), "name"), text(c"\xff".as_ptr(), "name")) };
        assert_eq!(null.unwrap_err().message, "the argument `name` is a null pointer");
        assert_eq!(bad.unwrap_err().message, "the argument `name` is not UTF-8");
        // SAFETY: null pointers, as both functions allow.
        let (none, missing, no_space) = unsafe {
            (
                bytes(std::ptr::null(), 0, "input"),
                bytes(std::ptr::null(), 3, "input"),
                bytes_mut(std::ptr::null_mut(), 2, "into"),
            )
        };
        assert!(none.unwrap().is_empty());
        assert_eq!(missing.unwrap_err().message, "`input` of 3 bytes at a null pointer");
        assert_eq!(no_space.unwrap_err().message, "`into` of 2 bytes at a null pointer");
        assert!(check_size::<u64>(8, "allocation").is_ok());
        assert!(check_size::<u64>(4, "allocation").unwrap_err().message.contains("4 bytes"));
    }
}
