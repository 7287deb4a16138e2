//! Operations of a call beyond its input and output: other functions, memory components of a graph, and messages.

use std::ffi::{CStr, CString, c_char};
use std::time::Duration;

use crate::{FunctionCall, FunctionContext, FunctionError, PlainValue};

/// Status of an operation that has succeeded.
const OK: u32 = 0;

/// `struct sublet_components` of `sublet_function.h`.
#[repr(C)]
pub(crate) struct Components {
    pub(crate) instance: unsafe extern "C" fn(*mut FunctionContext) -> u32,
    pub(crate) instances: unsafe extern "C" fn(*mut FunctionContext) -> u32,
    pub(crate) why: unsafe extern "C" fn(*mut FunctionContext) -> *const c_char,
    pub(crate) open: unsafe extern "C" fn(*mut FunctionContext, *const c_char, *mut u32) -> u32,
    pub(crate) size: unsafe extern "C" fn(*mut FunctionContext, u32, *mut u64) -> u32,
    pub(crate) read: unsafe extern "C" fn(*mut FunctionContext, u32, u64, *mut u8, u64) -> u32,
    pub(crate) write: unsafe extern "C" fn(*mut FunctionContext, u32, u64, *const u8, u64) -> u32,
    pub(crate) grow: unsafe extern "C" fn(*mut FunctionContext, u32, u64) -> u32,
    /// The operations `map` and `read_async`, which lend memory for longer than one operation.
    pub(crate) lending: [*const (); 2],
    pub(crate) prefetch: unsafe extern "C" fn(*mut FunctionContext, u32, u64, u64) -> u32,
    pub(crate) sync: unsafe extern "C" fn(*mut FunctionContext, u32) -> u32,
    pub(crate) send:
        unsafe extern "C" fn(*mut FunctionContext, *const c_char, u32, *const u8, u64, u64) -> u32,
    pub(crate) receive: unsafe extern "C" fn(
        *mut FunctionContext,
        *const c_char,
        *mut u8,
        u64,
        u64,
        *mut u64,
        *mut u32,
    ) -> u32,
    pub(crate) write_async: unsafe extern "C" fn(*mut FunctionContext, u32, u64, *const u8, u64) -> u32,
    pub(crate) resize: unsafe extern "C" fn(*mut FunctionContext, u32, u64) -> u32,
    pub(crate) release: unsafe extern "C" fn(*mut FunctionContext, u32) -> u32,
    pub(crate) call: unsafe extern "C" fn(
        *mut FunctionContext,
        *const c_char,
        *const u8,
        u32,
        *mut u8,
        u32,
        *mut u32,
    ) -> u32,
}

/// An open memory component of the graph, valid during the call that has opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryChannel(u32);

/// Other functions, and the instance that executes the call.
impl FunctionCall<'_> {
    /// Calls another function of this package by its name, on this thread, and returns the number of bytes that it has
    /// written to `output`. The time of the called function counts as time of this call. Calls nest at most 64 deep.
    ///
    /// # Errors
    /// The called function's error, with its name before it; there is no such function; the output is too small.
    /// Functions in WebAssembly cannot call each other by name.
    pub fn call(&mut self, function: &str, input: &[u8], output: &mut [u8]) -> Result<usize, FunctionError> {
        let name = c_name(function)?;
        let size = |bytes: usize| {
            let too_many = |_| {
                FunctionError::new(format_args!("{function}: {bytes} bytes are too many: at most 4 GiB - 1"))
            };
            u32::try_from(bytes).map_err(too_many)
        };
        let (input_bytes, capacity, mut written) = (size(input.len())?, size(output.len())?, 0);
        self.attempt(|table, context| {
            let (input, output) = (input.as_ptr(), output.as_mut_ptr());
            // SAFETY: slices of these lengths, borrowed for the call; a string that ends with 0; the address of a number.
            unsafe {
                (table.call)(context, name.as_ptr(), input, input_bytes, output, capacity, &mut written)
            }
        })?;
        debug_assert!(written <= capacity, "{function} wrote {written} bytes of output into {capacity}");
        Ok(written as usize)
    }

    /// Number of this instance of a graph's component, from 0, and the number of instances; 0 and 1 outside of runs.
    pub fn instance(&mut self) -> (u32, u32) {
        let Ok((table, context)) = self.components() else { return (0, 1) };
        // SAFETY: the functions take the context of the call.
        unsafe { ((table.instance)(context), (table.instances)(context)) }
    }

    /// Performs an operation, and reads its message if it has failed.
    fn attempt(
        &mut self,
        operation: impl FnOnce(&Components, *mut FunctionContext) -> u32,
    ) -> Result<(), FunctionError> {
        let (table, context) = self.components()?;
        let number = operation(table, context);
        if number == OK {
            return Ok(());
        }
        // SAFETY: the message is a string that ends with 0, valid until the next operation.
        let message = unsafe { CStr::from_ptr((table.why)(context)) }.to_string_lossy().into_owned();
        Err(FunctionError::of_code(number, message))
    }
}

/// Memory components of a graph, which functions of a run share. Offsets and sizes are in bytes.
///
/// The comments of `sublet_function.h` describe these operations in detail. After an error, return it: if a node was lost,
/// the run repeats the component.
impl FunctionCall<'_> {
    /// Opens a memory component by its name in the graph.
    ///
    /// # Errors
    /// The call belongs to no run, or the graph gives no access.
    pub fn open(&mut self, component: &str) -> Result<MemoryChannel, FunctionError> {
        let (name, mut number) = (c_name(component)?, 0);
        // SAFETY: a string that ends with 0, and the address of a number.
        self.attempt(|table, context| unsafe { (table.open)(context, name.as_ptr(), &mut number) })?;
        Ok(MemoryChannel(number))
    }

    /// Size of the component: the end of the last byte that was written.
    ///
    /// # Errors
    /// The component has ended.
    pub fn size(&mut self, channel: MemoryChannel) -> Result<u64, FunctionError> {
        let mut size = 0;
        // SAFETY: the address of a number.
        self.attempt(|table, context| unsafe { (table.size)(context, channel.0, &mut size) })?;
        Ok(size)
    }

    /// Copies values out of the component, from an offset on, to fill `into`.
    ///
    /// # Errors
    /// The component ends before, or has ended.
    pub fn read<T: PlainValue>(
        &mut self,
        channel: MemoryChannel,
        offset: u64,
        into: &mut [T],
    ) -> Result<(), FunctionError> {
        let (at, size) = (into.as_mut_ptr().cast(), size_of_val(into) as u64);
        // SAFETY: the slice is borrowed for the operation, and any bytes are values of its type.
        self.attempt(|table, context| unsafe { (table.read)(context, channel.0, offset, at, size) })
    }

    /// Copies values into the component, which grows for bytes beyond its end. A gap is filled with zeros.
    ///
    /// # Errors
    /// The access is only for reading, or the component has reached its limit.
    pub fn write<T: PlainValue>(
        &mut self,
        channel: MemoryChannel,
        offset: u64,
        from: &[T],
    ) -> Result<(), FunctionError> {
        let (at, size) = (from.as_ptr().cast(), size_of_val(from) as u64);
        // SAFETY: the slice is borrowed for the operation.
        self.attempt(|table, context| unsafe { (table.write)(context, channel.0, offset, at, size) })
    }

    /// Copies values into the component as [`FunctionCall::write`], and does not wait until others can read them, which
    /// [`FunctionCall::sync`] and the end of the function do.
    ///
    /// # Errors
    /// As for [`FunctionCall::write`].
    pub fn write_async<T: PlainValue>(
        &mut self,
        channel: MemoryChannel,
        offset: u64,
        from: &[T],
    ) -> Result<(), FunctionError> {
        let (at, size) = (from.as_ptr().cast(), size_of_val(from) as u64);
        // SAFETY: the slice is borrowed for the operation, which copies it.
        self.attempt(|table, context| unsafe { (table.write_async)(context, channel.0, offset, at, size) })
    }

    /// Grows the component to this size, if it is smaller. New bytes are 0.
    ///
    /// # Errors
    /// As for [`FunctionCall::write`].
    pub fn grow(&mut self, channel: MemoryChannel, size: u64) -> Result<(), FunctionError> {
        // SAFETY: the function takes the context of the call.
        self.attempt(|table, context| unsafe { (table.grow)(context, channel.0, size) })
    }

    /// Resizes the component. Shrinking requires that no other instance or component accesses it.
    ///
    /// # Errors
    /// As for [`FunctionCall::write`]; another one accesses the component.
    pub fn resize(&mut self, channel: MemoryChannel, size: u64) -> Result<(), FunctionError> {
        // SAFETY: the function takes the context of the call.
        self.attempt(|table, context| unsafe { (table.resize)(context, channel.0, size) })
    }

    /// Starts to fetch bytes from other machines that will be read soon.
    ///
    /// # Errors
    /// The channel is not open.
    pub fn prefetch(&mut self, channel: MemoryChannel, offset: u64, size: u64) -> Result<(), FunctionError> {
        // SAFETY: the function takes the context of the call.
        self.attempt(|table, context| unsafe { (table.prefetch)(context, channel.0, offset, size) })
    }

    /// Makes this function's writes visible to others, and makes writes that they have synced visible here.
    ///
    /// # Errors
    /// The component has ended.
    pub fn sync(&mut self, channel: MemoryChannel) -> Result<(), FunctionError> {
        // SAFETY: the function takes the context of the call.
        self.attempt(|table, context| unsafe { (table.sync)(context, channel.0) })
    }

    /// Syncs the component and ends this function's access to it.
    ///
    /// # Errors
    /// The component has ended.
    pub fn release(&mut self, channel: MemoryChannel) -> Result<(), FunctionError> {
        // SAFETY: the function takes the context of the call.
        self.attempt(|table, context| unsafe { (table.release)(context, channel.0) })
    }
}

/// Messages between components of a graph that run at the same time.
impl FunctionCall<'_> {
    /// Sends a message of at most 64 KiB to an instance of another component. Waits for space in the queue, but not for the
    /// receiver. A time of more than 584 million years, such as `Duration::MAX`, is no limit.
    ///
    /// # Errors
    /// The time is over, the component has ended, or the graph has no such edge.
    pub fn send(
        &mut self,
        component: &str,
        instance: u32,
        message: &[u8],
        timeout: Duration,
    ) -> Result<(), FunctionError> {
        let (name, size) = (c_name(component)?, message.len() as u64);
        let (from, timeout) = (message.as_ptr(), milliseconds(timeout));
        // SAFETY: a string that ends with 0, and a slice that is borrowed for the operation, which copies it.
        self.attempt(|table, context| unsafe {
            (table.send)(context, name.as_ptr(), instance, from, size, timeout)
        })
    }

    /// Receives the next message from any instance of another component. Returns its size and the instance.
    ///
    /// # Errors
    /// The time is over; the component has ended and the queue is empty; `into` is too small, and the message stays in the
    /// queue.
    pub fn receive(
        &mut self,
        component: &str,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(usize, u32), FunctionError> {
        let (name, capacity) = (c_name(component)?, into.len() as u64);
        let (at, timeout, mut size, mut instance) = (into.as_mut_ptr(), milliseconds(timeout), 0, 0);
        // SAFETY: a string that ends with 0, a slice that is borrowed for the operation, and the addresses of two numbers.
        self.attempt(|table, context| unsafe {
            (table.receive)(context, name.as_ptr(), at, capacity, timeout, &mut size, &mut instance)
        })?;
        debug_assert!(
            size <= capacity,
            "a message of {size} bytes from {component} was written into {capacity}"
        );
        Ok((usize::try_from(size).unwrap_or(usize::MAX), instance))
    }
}

/// A name as a string of C.
fn c_name(name: &str) -> Result<CString, FunctionError> {
    CString::new(name).map_err(|_| {
        FunctionError::new(format_args!("{name:?} is not a valid name: it contains a zero byte"))
    })
}

/// A time in milliseconds, rounded up, so that only no time at all means not to wait.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
