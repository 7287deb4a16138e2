//! Implements the XPU interface for C, which `sublet_xpu.h` declares. The functions have their names in the programs
//! and libraries that use [`export_c`](crate::export_c).
//!
//! Descriptors are numbers, and each is used by one thread at a time: a second one waits.

mod executors;

pub use executors::*;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Code, Error};

use crate::wire::DESCRIPTORS;
use crate::{FifoRights, FifoShape, GlobalId, Reader, Spawn, Unread, Writer, process};

/// Timeout that stands for no limit.
const FOR_EVER: u64 = u64::MAX;

/// `struct sublet_xfifo_shape`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    lines: u32,
    slot_bytes: u32,
}

/// `sublet_xpu_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Capability {
    object: u64,
    rights: u32,
}

enum AnyEnd {
    Reader(Reader),
    Writer(Box<Writer>),
}

static ENDS: [Mutex<Option<AnyEnd>>; DESCRIPTORS as usize] =
    [const { Mutex::new(None) }; DESCRIPTORS as usize];

thread_local! {
    static WHY: RefCell<CString> = RefCell::default();
}

/// Gives the functions of `sublet_xpu.h` their names in the program or library that uses this.
#[macro_export]
macro_rules! export_c {
    () => {
        $crate::export_c! {
            sublet_xpu_why = why() -> *const core::ffi::c_char;
            sublet_get_xpupid = get_xpupid(pid: *mut u64) -> u32;
            sublet_grant_cap = grant_cap(to: u64, object: u64, rights: u32) -> u32;
            sublet_revoke_cap = revoke_cap(from: u64, object: u64, rights: u32) -> u32;
            sublet_cap_rights = cap_rights(object: u64, rights: *mut u32) -> u32;
            sublet_xfifo_init = xfifo_init(name: *const core::ffi::c_char, shape: *const $crate::c::Shape, fd: *mut u32) -> u32;
            sublet_xfifo_connect = xfifo_connect(name: *const core::ffi::c_char, timeout_ms: u64, fd: *mut u32) -> u32;
            sublet_xfifo_connect_to = xfifo_connect_to(object: u64, timeout_ms: u64, fd: *mut u32) -> u32;
            sublet_xfifo_connect_to_read =
                xfifo_connect_to_read(name: *const core::ffi::c_char, timeout_ms: u64, fd: *mut u32) -> u32;
            sublet_xfifo_object = xfifo_object(fd: u32, object: *mut u64) -> u32;
            sublet_xfifo_read = xfifo_read(
                fd: u32, into: *mut core::ffi::c_void, capacity: u64, timeout_ms: u64, size: *mut u64, from: *mut u64
            ) -> u32;
            sublet_xfifo_write = xfifo_write(fd: u32, from: *const core::ffi::c_void, size: u64, timeout_ms: u64) -> u32;
            sublet_xfifo_close = xfifo_close(fd: u32) -> u32;
            sublet_xspawn = xspawn(
                unit: u32,
                path: *const core::ffi::c_char,
                argv: *const *const core::ffi::c_char,
                envp: *const *const core::ffi::c_char,
                capv: *const $crate::c::Capability,
                capabilities: u32,
                pid: *mut u64
            ) -> u32;
            sublet_executor_start =
                executor_start(unit: u32, max_bytes: u64, timeout_ms: u64, executor: *mut u32) -> u32;
            sublet_executor_process = executor_process(executor: u32, pid: *mut u64) -> u32;
            sublet_executor_call = executor_call(
                executor: u32,
                function: *const core::ffi::c_char,
                input: *const core::ffi::c_void,
                size: u64,
                output: *mut core::ffi::c_void,
                capacity: u64,
                timeout_ms: u64,
                written: *mut u64
            ) -> u32;
            sublet_executor_start_of = executor_start_of(
                package: *const core::ffi::c_char, unit: u32, max_bytes: u64, timeout_ms: u64, executor: *mut u32
            ) -> u32;
            sublet_executor_submit = executor_submit(
                executor: u32, function: *const core::ffi::c_char, input: *const core::ffi::c_void, size: u64, timeout_ms: u64
            ) -> u32;
            sublet_executor_result = executor_result(
                executor: u32, output: *mut core::ffi::c_void, capacity: u64, timeout_ms: u64, written: *mut u64
            ) -> u32;
            sublet_executor_stop = executor_stop(executor: u32) -> u32;
            sublet_chain_start = chain_start(
                graph: *const core::ffi::c_char, size: u64, max_bytes: u64, timeout_ms: u64, chain: *mut u32
            ) -> u32;
            sublet_chain_call = chain_call(
                chain: u32,
                input: *const core::ffi::c_void,
                size: u64,
                output: *mut core::ffi::c_void,
                capacity: u64,
                timeout_ms: u64,
                written: *mut u64
            ) -> u32;
            sublet_chain_stop = chain_stop(chain: u32) -> u32;
            sublet_xpu_find = xpu_find(kind: *const core::ffi::c_char, unit: *mut u32) -> u32;
            sublet_xpu_unit = xpu_unit(number: u32, unit: *mut u32) -> u32;
            sublet_xpu_device = xpu_device(unit: u32, name: *const core::ffi::c_char, device: *mut u32) -> u32;
        }
    };
    ($($name:ident = $function:ident ( $($argument:ident : $type:ty),* ) -> $answer:ty;)*) => {
        $(
            #[doc = "See `sublet_xpu.h`."]
            #[doc = ""]
            #[doc = "# Safety"]
            #[doc = "As declared there."]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
                // SAFETY: as the caller vouches.
                unsafe { $crate::c::$function($($argument),*) }
            }
        )*
    };
}

/// Message of the latest error of these functions on this thread.
///
/// # Safety
/// The text is this thread's until its next call.
pub unsafe fn why() -> *const c_char {
    WHY.with_borrow(|why| why.as_ptr())
}

/// # Safety
/// A place for a number.
pub unsafe fn get_xpupid(pid: *mut u64) -> u32 {
    // SAFETY: as the caller vouches.
    guarded(|| unsafe { put(pid, process()?.pid().to_bits()) })
}

/// # Safety
/// None.
pub unsafe fn grant_cap(to: u64, object: u64, rights: u32) -> u32 {
    let id = GlobalId::from_bits;
    guarded(|| process()?.grant(id(to), id(object), FifoRights::from_bits(rights)?))
}

/// # Safety
/// None.
pub unsafe fn revoke_cap(from: u64, object: u64, rights: u32) -> u32 {
    let id = GlobalId::from_bits;
    guarded(|| process()?.revoke(id(from), id(object), FifoRights::from_bits(rights)?))
}

/// # Safety
/// A place for a number.
pub unsafe fn cap_rights(object: u64, rights: *mut u32) -> u32 {
    // SAFETY: as the caller vouches.
    guarded(|| unsafe { put(rights, process()?.rights(GlobalId::from_bits(object))?.to_bits()) })
}

/// # Safety
/// A string that ends with 0 or null, a shape or null, a place for a number.
pub unsafe fn xfifo_init(name: *const c_char, shape: *const Shape, fd: *mut u32) -> u32 {
    guarded(|| {
        // SAFETY: as the caller vouches.
        let (name, shape) = unsafe { (optional_text(name)?, shape.as_ref()) };
        let shape = shape.map_or_else(FifoShape::default, |shape| FifoShape {
            lines: shape.lines,
            slot_bytes: shape.slot_bytes,
        });
        check_place(fd)?;
        let reader = process()?.init(name, shape)?;
        // SAFETY: as the caller vouches.
        unsafe { keep(reader.descriptor(), AnyEnd::Reader(reader), fd) }
    })
}

/// # Safety
/// A string that ends with 0, a place for a number.
pub unsafe fn xfifo_connect(name: *const c_char, timeout_ms: u64, fd: *mut u32) -> u32 {
    guarded(|| {
        check_place(fd)?;
        // SAFETY: as the caller vouches.
        let writer = process()?.connect(unsafe { text(name) }?, deadline(timeout_ms))?;
        // SAFETY: as the caller vouches.
        unsafe { keep(writer.descriptor(), AnyEnd::Writer(Box::new(writer)), fd) }
    })
}

/// # Safety
/// A place for a number.
pub unsafe fn xfifo_connect_to(object: u64, timeout_ms: u64, fd: *mut u32) -> u32 {
    guarded(|| {
        check_place(fd)?;
        let writer = process()?.connect_to(GlobalId::from_bits(object), deadline(timeout_ms))?;
        // SAFETY: as the caller vouches.
        unsafe { keep(writer.descriptor(), AnyEnd::Writer(Box::new(writer)), fd) }
    })
}

/// # Safety
/// A string that ends with 0, a place for a number.
pub unsafe fn xfifo_connect_to_read(name: *const c_char, timeout_ms: u64, fd: *mut u32) -> u32 {
    guarded(|| {
        check_place(fd)?;
        // SAFETY: as the caller vouches.
        let reader = process()?.connect_to_read(unsafe { text(name) }?, deadline(timeout_ms))?;
        // SAFETY: as the caller vouches.
        unsafe { keep(reader.descriptor(), AnyEnd::Reader(reader), fd) }
    })
}

/// # Safety
/// A place for a number.
pub unsafe fn xfifo_object(fd: u32, object: *mut u64) -> u32 {
    guarded(|| {
        let found = match &*end(fd)? {
            Some(AnyEnd::Reader(reader)) => reader.object(),
            Some(AnyEnd::Writer(writer)) => writer.object(),
            None => return Err(not_open(fd)),
        };
        // SAFETY: as the caller vouches.
        unsafe { put(object, found.to_bits()) }
    })
}

/// # Safety
/// `capacity` bytes of `into` may be written. `size` and `from` are addresses of numbers, or null.
pub unsafe fn xfifo_read(
    fd: u32,
    into: *mut c_void,
    capacity: u64,
    timeout_ms: u64,
    size: *mut u64,
    from: *mut u64,
) -> u32 {
    guarded(|| {
        let mut end = end(fd)?;
        let reader = match &mut *end {
            Some(AnyEnd::Reader(reader)) => reader,
            Some(AnyEnd::Writer(_)) => return Err(wrong_way(fd, "written to, and not read")),
            None => return Err(not_open(fd)),
        };
        // SAFETY: the caller vouches that `capacity` bytes may be written during the call.
        let into = unsafe { bytes_mut(into, capacity) }?;
        let (len, writer) = match reader.read(into, deadline(timeout_ms)) {
            Ok(read) => read,
            Err(Unread::Error(error)) => return Err(error),
            Err(Unread::TooLong(len)) => {
                // SAFETY: as the caller vouches.
                unsafe { put_if(size, len) };
                let message = format!("the next message of {len} bytes does not fit into {capacity}");
                return Err(Error::new(Code::OutputTooLarge, message));
            }
        };
        // SAFETY: as the caller vouches.
        unsafe {
            put_if(size, len);
            put_if(from, writer.to_bits());
        }
        Ok(())
    })
}

/// # Safety
/// `size` bytes of `from` may be read.
pub unsafe fn xfifo_write(fd: u32, from: *const c_void, size: u64, timeout_ms: u64) -> u32 {
    guarded(|| {
        let mut end = end(fd)?;
        let writer = match &mut *end {
            Some(AnyEnd::Writer(writer)) => writer,
            Some(AnyEnd::Reader(_)) => return Err(wrong_way(fd, "read, and not written to")),
            None => return Err(not_open(fd)),
        };
        // SAFETY: the caller vouches that `size` bytes may be read during the call.
        writer.write(unsafe { bytes(from, size) }?, deadline(timeout_ms))
    })
}

/// # Safety
/// None.
pub unsafe fn xfifo_close(fd: u32) -> u32 {
    guarded(|| match end(fd)?.take() {
        Some(_) => Ok(()),
        None => Err(not_open(fd)),
    })
}

/// # Safety
/// `path` is a string that ends with 0. `argv` and `envp` are lists of such strings that end with null, or null. `capv`
/// has `capabilities` elements. `pid` is the address of a number.
pub unsafe fn xspawn(
    unit: u32,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    capv: *const Capability,
    capabilities: u32,
    pid: *mut u64,
) -> u32 {
    guarded(|| {
        check_place(pid)?;
        let count = capabilities as usize;
        let capabilities = match (capv.is_null(), count) {
            (_, 0) => &[],
            (true, _) => return Err(null()),
            // SAFETY: as the caller vouches.
            (false, count) => unsafe { std::slice::from_raw_parts(capv, count) },
        };
        let capability =
            |said: &Capability| Ok((GlobalId::from_bits(said.object), FifoRights::from_bits(said.rights)?));
        // SAFETY: as the caller vouches.
        let (path, args, env) = unsafe { (text(path)?, words(argv), words(envp)) };
        let capabilities = capabilities.iter().map(capability).collect::<Result<_, Error>>()?;
        let spawn = Spawn { path: path.to_owned(), args, env, capabilities, ..Spawn::default() };
        let spawned = process()?.spawn(unit, &spawn)?;
        // SAFETY: as the caller vouches.
        unsafe { put(pid, spawned.to_bits()) }
    })
}

/// # Safety
/// A place for a number.
pub unsafe fn xpu_unit(number: u32, unit: *mut u32) -> u32 {
    // SAFETY: as the caller vouches.
    guarded(|| unsafe { put(unit, process()?.unit(number)?) })
}

/// # Safety
/// A text or null, and a place for a number.
pub unsafe fn xpu_device(unit: u32, name: *const c_char, device: *mut u32) -> u32 {
    // SAFETY: as the caller vouches.
    guarded(|| unsafe { put(device, process()?.device(unit, text(name)?)?) })
}

/// # Safety
/// A text or null, and a place for a number.
pub unsafe fn xpu_find(kind: *const c_char, unit: *mut u32) -> u32 {
    // SAFETY: as the caller vouches.
    guarded(|| unsafe { put(unit, process()?.find(text(kind)?)?) })
}

/// Runs a function's body. Returns the number of its error, and catches a panic.
#[inline]
fn guarded(body: impl FnOnce() -> Result<(), Error>) -> u32 {
    // A panic can leave only the descriptor's own state inconsistent.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => report(&error),
        Err(_) => report(&Error::new(Code::Internal, "the library panicked")),
    }
}

#[cold]
fn report(error: &Error) -> u32 {
    let message = CString::new(error.message.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending will not ask for the message any more.
    let _ = WHY.try_with(|why| why.replace(message));
    error.code.number()
}

fn end(fd: u32) -> Result<MutexGuard<'static, Option<AnyEnd>>, Error> {
    let end = ENDS.get(fd as usize).ok_or_else(|| not_open(fd))?;
    Ok(lock(end))
}

/// Copies an answer to the caller's buffer, and reports its length, also if it exceeds the capacity.
///
/// # Safety
/// As for [`bytes_mut`] and [`put_if`].
unsafe fn give(
    answer: &[u8],
    (output, capacity): (*mut c_void, u64),
    written: *mut u64,
) -> Result<(), Error> {
    // SAFETY: as the caller vouches.
    unsafe { put_if(written, answer.len() as u64) };
    // SAFETY: as the caller vouches.
    let mut output = unsafe { bytes_mut(output, capacity) }?;
    if answer.len() > output.len() {
        let message = format!("{} bytes of output do not fit into {capacity}", answer.len());
        return Err(Error::new(Code::OutputTooLarge, message));
    }
    output.copy_from(answer);
    Ok(())
}

/// # Safety
/// As for [`put`].
unsafe fn keep(number: u32, kept: AnyEnd, fd: *mut u32) -> Result<(), Error> {
    *end(number)? = Some(kept);
    // SAFETY: as the caller vouches.
    unsafe { put(fd, number) }
}

#[cold]
fn not_open(fd: u32) -> Error {
    Error::new(Code::InvalidArgument, format!("descriptor {fd} is not open"))
}

#[cold]
fn wrong_way(fd: u32, what: &str) -> Error {
    Error::new(Code::InvalidArgument, format!("descriptor {fd} is {what}"))
}

#[cold]
fn null() -> Error {
    Error::new(Code::InvalidArgument, "a null pointer")
}

fn deadline(timeout_ms: u64) -> Option<Instant> {
    (timeout_ms != FOR_EVER).then(|| Instant::now().checked_add(Duration::from_millis(timeout_ms))).flatten()
}

fn check_place<T>(place: *mut T) -> Result<(), Error> {
    if place.is_null() { Err(null()) } else { Ok(()) }
}

/// # Safety
/// Null, or a place for a value.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Error> {
    check_place(place)?;
    // SAFETY: not null, so it is a place.
    unsafe { place.write(value) };
    Ok(())
}

/// # Safety
/// As for [`put`].
unsafe fn put_if(place: *mut u64, value: u64) {
    if !place.is_null() {
        // SAFETY: not null, so it is a place.
        unsafe { place.write(value) };
    }
}

/// # Safety
/// Null, or a string that ends with 0 and lives as long as it is used.
unsafe fn text<'text>(at: *const c_char) -> Result<&'text str, Error> {
    if at.is_null() {
        return Err(null());
    }
    // SAFETY: not null, so it is such a string.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Error::new(Code::InvalidArgument, "a text that is no UTF-8"))
}

/// # Safety
/// Null, or a list of strings that end with 0, which ends with null.
unsafe fn words(mut at: *const *const c_char) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    // SAFETY: as the caller vouches, each place up to that of the null holds a string.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            words.push(CStr::from_ptr(*at).to_bytes().to_vec());
            at = at.add(1);
        }
    }
    words
}

/// # Safety
/// As for [`text`].
unsafe fn optional_text<'text>(at: *const c_char) -> Result<&'text str, Error> {
    // SAFETY: as the caller vouches.
    if at.is_null() { Ok("") } else { unsafe { text(at) } }
}

/// # Safety
/// `size` bytes that may be written as long as they are used, also by others; null if there are none.
unsafe fn bytes_mut<'bytes>(at: *mut c_void, size: u64) -> Result<SharedBytesMut<'bytes>, Error> {
    match (NonNull::new(at.cast()), usize::try_from(size)) {
        (_, Ok(0)) => Ok(SharedBytesMut::from(&mut [])),
        // SAFETY: not null, so `size` bytes are there.
        (Some(at), Ok(size)) => Ok(unsafe { SharedBytesMut::new(at, size) }),
        _ => Err(null()),
    }
}

/// # Safety
/// `size` bytes that may be read as long as they are used, and that others may write; null if there are none.
unsafe fn bytes<'bytes>(at: *const c_void, size: u64) -> Result<SharedBytes<'bytes>, Error> {
    match (NonNull::new(at.cast_mut().cast()), usize::try_from(size)) {
        (_, Ok(0)) => Ok(SharedBytes::from(&[])),
        // SAFETY: not null, so `size` bytes are there.
        (Some(at), Ok(size)) => Ok(unsafe { SharedBytes::new(at, size) }),
        _ => Err(null()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::wire::DESCRIPTORS;

    const HEADER: &str = include_str!("../../capi/include/sublet_xpu.h");

    #[test]
    fn header_and_exported_names_agree() {
        let starts = ["uint32_t sublet_", "const char *sublet_"];
        let declared = HEADER.lines().filter(|line| starts.iter().any(|start| line.starts_with(start)));
        let name = |line: &str| line.split('(').next()?.rsplit([' ', '*']).next().map(str::to_owned);
        let declared: BTreeSet<String> = declared.filter_map(name).collect();
        let source = include_str!("c.rs");
        let list = source.split("$crate::export_c! {").nth(1).unwrap().split("        }\n").next().unwrap();
        let named = list.split(" =").map(|before| before.rsplit([' ', '\n']).next().unwrap().to_owned());
        let named: BTreeSet<String> = named.filter(|name| name.starts_with("sublet_")).collect();
        assert!(declared.len() > 10, "{declared:?}");
        assert_eq!(declared, named);
    }

    #[test]
    fn rejects_closed_descriptors_and_null_pointers() {
        // SAFETY: only null pointers are passed, which the functions reject.
        unsafe {
            for fd in [0, DESCRIPTORS - 1, DESCRIPTORS, u32::MAX] {
                assert_eq!(super::xfifo_close(fd), 10);
                assert_eq!(super::xfifo_write(fd, std::ptr::null(), 0, 0), 10);
            }
            assert_eq!(super::xfifo_init(std::ptr::null(), std::ptr::null(), std::ptr::null_mut()), 10);
            assert_eq!(super::xfifo_connect(std::ptr::null(), 0, std::ptr::null_mut()), 10);
            let why = std::ffi::CStr::from_ptr(super::why()).to_str().unwrap();
            assert_eq!(why, "a null pointer");
            assert_eq!((super::executor_stop(0), super::chain_stop(u32::MAX)), (10, 10));
            assert_eq!(
                super::chain_call(0, std::ptr::null(), 0, std::ptr::null_mut(), 0, 0, std::ptr::null_mut()),
                10
            );
            assert_eq!(super::chain_start(std::ptr::null(), 1, 0, 0, &mut 0), 10);
            assert_eq!(super::executor_start(1, 0, 0, std::ptr::null_mut()), 10);
            assert_eq!(super::get_xpupid(&mut 0), 10, "no agent has started this process");
        }
    }
}
