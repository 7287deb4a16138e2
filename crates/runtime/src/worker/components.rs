//! The operations of a call's context, which `sublet_function.h` declares: memory components, messages, and calls of
//! other functions.
//!
//! Nothing here is on the path of a call that does not use it.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Code, Error};

use super::calls::sublet_context_call;
use super::context::{CallContext, ContextOperations};
use super::worker_run::ReceiveError;

/// The operations of every context.
pub(super) static OPERATIONS: ContextOperations = ContextOperations {
    instance: sublet_context_instance,
    instances: sublet_context_instances,
    why: sublet_context_why,
    open: sublet_context_open,
    size: sublet_context_size,
    read: sublet_context_read,
    write: sublet_context_write,
    grow: sublet_context_grow,
    map: sublet_context_map,
    read_async: sublet_context_read_async,
    prefetch: sublet_context_prefetch,
    sync: sublet_context_sync,
    send: sublet_context_send,
    receive: sublet_context_receive,
    write_async: sublet_context_write_async,
    resize: sublet_context_resize,
    release: sublet_context_release,
    call: sublet_context_call,
};

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_instance(context: *mut CallContext) -> u32 {
    // SAFETY: as the caller vouches.
    let Some(context) = (unsafe { context.as_mut() }) else { return 0 };
    let worker = context.worker;
    context.run().map_or(0, |run| run.instance(worker))
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_instances(context: *mut CallContext) -> u32 {
    // SAFETY: as the caller vouches.
    let Some(context) = (unsafe { context.as_mut() }) else { return 1 };
    context.run().map_or(1, |run| run.instances)
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_why(context: *mut CallContext) -> *const c_char {
    // SAFETY: as the caller vouches.
    unsafe { context.as_ref() }.map_or(std::ptr::null(), |context| context.why.as_ptr().cast())
}

/// # Safety
/// As for [`with`]; a string that ends with 0, and the address of a number.
unsafe extern "C" fn sublet_context_open(
    context: *mut CallContext,
    component: *const c_char,
    channel: *mut u32,
) -> u32 {
    let open = |context: &mut CallContext| {
        let worker = context.worker;
        let run = context.run()?;
        // SAFETY: the function vouches for a string.
        let number = run.channel(unsafe { string(component) }?)?.held_by(worker)?.number();
        // SAFETY: the function vouches for the address of a number, or null.
        unsafe { store(channel, number) }
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, open) }
}

/// # Safety
/// As for [`with`]; `size` is the address of a number.
unsafe extern "C" fn sublet_context_size(context: *mut CallContext, channel: u32, size: *mut u64) -> u32 {
    let read = |context: &mut CallContext| {
        let len_bytes = context.channel(channel)?.len_bytes()?;
        // SAFETY: the function vouches for the address of a number, or null.
        unsafe { store(size, len_bytes) }
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, read) }
}

/// # Safety
/// As for [`with`]; `size` bytes of `into` may be written.
unsafe extern "C" fn sublet_context_read(
    context: *mut CallContext,
    channel: u32,
    offset: u64,
    into: *mut c_void,
    size: u64,
) -> u32 {
    let read = |context: &mut CallContext| {
        // SAFETY: the function vouches for `size` bytes that may be written. Its client may write them, too, if they
        // lie in an output.
        let into = unsafe { bytes_mut(into, size) }?;
        context.channel(channel)?.read(offset, into)
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, read) }
}

/// # Safety
/// As for [`with`]; `size` bytes of `from` may be read.
unsafe extern "C" fn sublet_context_write(
    context: *mut CallContext,
    channel: u32,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> u32 {
    let write = |context: &mut CallContext| {
        // SAFETY: the function vouches for `size` bytes that may be read. Its client may write them, if they lie in an input.
        let from = unsafe { bytes(from, size) }?;
        context.channel(channel)?.write(offset, from)
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, write) }
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_grow(context: *mut CallContext, channel: u32, size: u64) -> u32 {
    // SAFETY: as the caller vouches.
    unsafe { with(context, |context| context.channel(channel)?.grow(size)) }
}

/// # Safety
/// As for [`with`]; the address of a pointer.
unsafe extern "C" fn sublet_context_map(
    context: *mut CallContext,
    channel: u32,
    offset: u64,
    size: u64,
    at: *mut *mut c_void,
) -> u32 {
    let map = |context: &mut CallContext| {
        let mapped = context.channel(channel)?.mapped(offset, size)?;
        // SAFETY: the function vouches for the address of a pointer, or null.
        unsafe { store(at, mapped.as_ptr().cast()) }
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, map) }
}

/// # Safety
/// As for [`with`]; `size` bytes that may be written until the channel is synced or the call ends.
unsafe extern "C" fn sublet_context_read_async(
    context: *mut CallContext,
    channel: u32,
    offset: u64,
    into: *mut c_void,
    size: u64,
) -> u32 {
    let read = |context: &mut CallContext| {
        // SAFETY: the function vouches for `size` bytes that may be written until they are waited for, also by its client.
        let into = unsafe { bytes_mut(into, size) }?;
        // SAFETY: the same; what this returns is kept until the channel is synced or the call has ended.
        let reading = unsafe { context.channel(channel)?.read_async_raw(offset, into) }?;
        context.reading.push((channel, reading));
        Ok(())
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, read) }
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_prefetch(
    context: *mut CallContext,
    channel: u32,
    offset: u64,
    size: u64,
) -> u32 {
    let prefetch = |context: &mut CallContext| {
        context.channel(channel)?.prefetch(offset, size);
        Ok(())
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, prefetch) }
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_sync(context: *mut CallContext, channel: u32) -> u32 {
    let sync = |context: &mut CallContext| {
        context.finish_reading(|of| of == channel)?;
        context.channel(channel)?.sync()
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, sync) }
}

/// # Safety
/// As for [`with`]; `component` is a string that ends with 0, and `size` bytes of `from` may be read.
unsafe extern "C" fn sublet_context_send(
    context: *mut CallContext,
    component: *const c_char,
    instance: u32,
    from: *const c_void,
    size: u64,
    timeout_ms: u64,
) -> u32 {
    let send = |context: &mut CallContext| {
        // SAFETY: the function vouches for a string.
        let component = unsafe { string(component) }?;
        // SAFETY: and for `size` bytes that may be read, and that its client may write.
        let message = unsafe { bytes(from, size) }?;
        let worker = context.worker;
        let run = context.run()?;
        run.send(run.instance(worker), (component, instance), message, deadline(timeout_ms))
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, send) }
}

/// # Safety
/// As for [`with`]; `component` is a string that ends with 0, `capacity` bytes of `into` may be written, and `size` and
/// `instance` are addresses of numbers, or null.
unsafe extern "C" fn sublet_context_receive(
    context: *mut CallContext,
    component: *const c_char,
    into: *mut c_void,
    capacity: u64,
    timeout_ms: u64,
    size: *mut u64,
    instance: *mut u32,
) -> u32 {
    let receive = |context: &mut CallContext| {
        // SAFETY: the function vouches for a string.
        let component = unsafe { string(component) }?;
        // SAFETY: and for `capacity` bytes that may be written, also by its client.
        let room = unsafe { bytes_mut(into, capacity) }?;
        let worker = context.worker;
        let run = context.run()?;
        let (len, from) = match run.receive(run.instance(worker), component, room, deadline(timeout_ms)) {
            Ok((len, from)) => (len, Ok(from)),
            Err(ReceiveError::TooLong(len)) => {
                let message = format!(
                    "a message of {len} bytes from component {component} does not fit into {capacity}"
                );
                (len, Err(Error::new(Code::OutputTooLarge, message)))
            }
            Err(ReceiveError::Error(error)) => return Err(error),
        };
        if let Some(size) = NonNull::new(size) {
            // SAFETY: not null, so it is a place for a number.
            unsafe { size.write(len.into()) };
        }
        let from = from?;
        if let Some(instance) = NonNull::new(instance) {
            // SAFETY: as above.
            unsafe { instance.write(from) };
        }
        Ok(())
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, receive) }
}

/// # Safety
/// As for [`with`]; `size` bytes of `from` may be read.
unsafe extern "C" fn sublet_context_write_async(
    context: *mut CallContext,
    channel: u32,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> u32 {
    let write = |context: &mut CallContext| {
        // SAFETY: the function vouches for `size` bytes that may be read. Its client may write them, if they lie in an input.
        let from = unsafe { bytes(from, size) }?;
        context.channel(channel)?.write_async(offset, from)
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, write) }
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_resize(context: *mut CallContext, channel: u32, size: u64) -> u32 {
    let resize = |context: &mut CallContext| {
        context.finish_reading(|of| of == channel)?;
        let worker = context.worker;
        context.channel(channel)?.resize(worker, size)
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, resize) }
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn sublet_context_release(context: *mut CallContext, channel: u32) -> u32 {
    let release = |context: &mut CallContext| {
        context.finish_reading(|of| of == channel)?;
        let worker = context.worker;
        let instance = context.run()?.instance(worker);
        context.channel(channel)?.release(worker, instance)
    };
    // SAFETY: as the caller vouches.
    unsafe { with(context, release) }
}

/// The time in `timeout_ms` milliseconds; `None` if that is beyond what the clock represents.
fn deadline(timeout_ms: u64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_millis(timeout_ms))
}

/// Writes a result.
///
/// # Safety
/// The address of a `T`, or null.
unsafe fn store<T>(at: *mut T, value: T) -> Result<(), Error> {
    let at = NonNull::new(at).ok_or_else(null)?;
    // SAFETY: not null, so it is the address of a `T`.
    unsafe { at.write(value) };
    Ok(())
}

/// # Safety
/// A string that ends with 0, or null.
unsafe fn string<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(null());
    }
    // SAFETY: not null, so it is a string that ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::new(Code::InvalidArgument, "a name that is no UTF-8"))
}

/// # Safety
/// `size` bytes that may be read, and that others may write; or null.
unsafe fn bytes<'a>(from: *const c_void, size: u64) -> Result<SharedBytes<'a>, Error> {
    let (start, len) = checked(from, size)?;
    // SAFETY: as the caller vouches.
    Ok(unsafe { SharedBytes::new(start, len) })
}

/// # Safety
/// `size` bytes that may be written, also by others; or null.
unsafe fn bytes_mut<'a>(into: *mut c_void, size: u64) -> Result<SharedBytesMut<'a>, Error> {
    let (start, len) = checked(into, size)?;
    // SAFETY: as the caller vouches.
    Ok(unsafe { SharedBytesMut::new(start, len) })
}

/// # Safety
/// The function's own context, during its call, or null.
unsafe fn with(context: *mut CallContext, what: impl FnOnce(&mut CallContext) -> Result<(), Error>) -> u32 {
    // SAFETY: the caller passes the context that it was given, which no other thread uses during the call.
    match unsafe { context.as_mut() } {
        Some(context) => context.attempt(what),
        None => Code::InvalidArgument.number(),
    }
}

/// Address and length of memory of this process. Only no bytes may be at null.
fn checked(at: *const c_void, size: u64) -> Result<(NonNull<u8>, usize), Error> {
    let start = NonNull::new(at.cast_mut().cast());
    let start = if size == 0 { start.unwrap_or(NonNull::dangling()) } else { start.ok_or_else(null)? };
    let len = usize::try_from(size).ok().filter(|size| *size <= isize::MAX as usize);
    let len = len.ok_or_else(|| {
        Error::new(Code::InvalidArgument, format!("{size} bytes are more than a process has"))
    })?;
    Ok((start, len))
}

#[cold]
fn null() -> Error {
    Error::new(Code::InvalidArgument, "a null pointer")
}
