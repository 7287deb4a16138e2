//! OpenCL's objects with owners: each is released once, when its last user drops it, and keeps its context.
//!
//! OpenCL counts references itself: an object that an unfinished command uses stays until the command has ended. All
//! its functions may be called from any thread, except the one that sets a kernel's arguments; an [`OpenClKernel`] is
//! therefore not shared.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use sublet_proto::to_usize;

use super::discover::{NO_PROPERTIES, OpenClDevice};
use super::ffi::{self, Handle, Shared, Table, answer, check};
use crate::{DeviceError, LaunchProgress, MAX_MESSAGE_BYTES, Patience, bytes, waiting};

/// Number of every kernel's arguments.
const ARGUMENTS: u64 = 5;

type Release = unsafe extern "C" fn(Handle) -> c_int;

/// An object that is released when it is dropped.
struct OwnedObject {
    handle: Handle,
    release: Release,
}

// SAFETY: OpenCL's objects belong to no thread.
unsafe impl Send for OwnedObject {}
// SAFETY: OpenCL's functions may be called with the same object at once, except for a kernel's arguments; see `OpenClKernel`.
unsafe impl Sync for OwnedObject {}

impl OwnedObject {
    fn new(
        operation: &'static str,
        handle: Handle,
        code: c_int,
        release: Release,
    ) -> Result<OwnedObject, DeviceError> {
        check(operation, code)?;
        if handle.is_null() {
            return Err(DeviceError::Driver { operation, reason: "nothing came of it".into() });
        }
        Ok(OwnedObject { handle, release })
    }
}

impl Drop for OwnedObject {
    fn drop(&mut self) {
        // SAFETY: the object was made for this owner and is released only here.
        unsafe { (self.release)(self.handle) };
    }
}

/// Devices that share memory and programs.
pub struct OpenClContext {
    table: &'static Table,
    context: OwnedObject,
    pub devices: Vec<OpenClDevice>,
    /// Functions for memory that the host shares. `None`: memory is the device's only, and commands copy bytes.
    shared: Option<&'static Shared>,
}

impl OpenClContext {
    pub fn new(devices: Vec<OpenClDevice>, shares_memory: bool) -> Result<Arc<OpenClContext>, DeviceError> {
        let (table, mut code) = (ffi::table()?, 0);
        let handles: Vec<Handle> = devices.iter().map(|device| device.0).collect();
        // SAFETY: the array has the passed number of devices; there is no callback.
        let handle = unsafe {
            (table.create_context)(
                NO_PROPERTIES,
                ffi::count(&handles),
                handles.as_ptr(),
                null(),
                null_mut(),
                &mut code,
            )
        };
        let context = OwnedObject::new("making a context", handle, code, table.release_context)?;
        let shared = ffi::shared().filter(|_| shares_memory);
        Ok(Arc::new(OpenClContext { table, context, devices, shared }))
    }

    fn handles(&self) -> Vec<Handle> {
        self.devices.iter().map(|device| device.0).collect()
    }
}

/// A queue of commands, executed in order.
pub struct CommandQueue {
    queue: OwnedObject,
    context: Arc<OpenClContext>,
}

impl CommandQueue {
    pub fn new(context: &Arc<OpenClContext>, device: OpenClDevice) -> Result<CommandQueue, DeviceError> {
        let (table, mut code) = (context.table, 0);
        // SAFETY: the device is one of the context's.
        let handle = unsafe { (table.create_queue)(context.context.handle, device.0, 0, &mut code) };
        let queue = OwnedObject::new("making a queue", handle, code, table.release_queue)?;
        Ok(CommandQueue { queue, context: Arc::clone(context) })
    }

    pub fn write(&self, memory: &OpenClMemory, bytes: &[u8]) -> Result<(), DeviceError> {
        memory.check(bytes.len() as u64)?;
        let buffer = match &memory.place {
            MemoryLocation::Device(buffer) => buffer,
            MemoryLocation::Shared(at) => {
                // SAFETY: the piece has at least that many bytes, and no queue contains work that uses it: see
                // `Driver`.
                unsafe { at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
                return Ok(());
            }
        };
        // SAFETY: the piece has at least that many bytes, and the copy is complete when the blocking call returns.
        let code = unsafe {
            (self.context.table.write)(
                self.queue.handle,
                buffer.handle,
                1,
                0,
                bytes.len(),
                bytes.as_ptr().cast(),
                0,
                null(),
                null_mut(),
            )
        };
        check("writing to the device", code)
    }

    pub fn read(&self, memory: &OpenClMemory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        memory.check(bytes.len() as u64)?;
        let buffer = match &memory.place {
            MemoryLocation::Device(buffer) => buffer,
            MemoryLocation::Shared(at) => {
                self.finish()?;
                let len = bytes.len();
                // SAFETY: the piece has at least that many bytes, and the work that wrote them has ended.
                unsafe { at.copy_to_nonoverlapping(NonNull::from(bytes).cast(), len) };
                return Ok(());
            }
        };
        // SAFETY: the piece has at least that many bytes, and the copy is complete when the blocking call returns.
        let code = unsafe {
            (self.context.table.read)(
                self.queue.handle,
                buffer.handle,
                1,
                0,
                bytes.len(),
                bytes.as_mut_ptr().cast(),
                0,
                null(),
                null_mut(),
            )
        };
        check("reading from the device", code)
    }

    /// Sets bytes to zero before later commands of the queue execute.
    pub fn wipe(&self, memory: &OpenClMemory, len_bytes: u64) -> Result<(), DeviceError> {
        memory.check(len_bytes)?;
        let buffer = match &memory.place {
            MemoryLocation::Device(buffer) => buffer,
            MemoryLocation::Shared(at) => {
                // SAFETY: the piece has at least that many bytes, and no queue contains work that uses it: see
                // `Driver`.
                unsafe { at.write_bytes(0, to_usize(len_bytes)) };
                return Ok(());
            }
        };
        let pattern = 0u32;
        debug_assert!(len_bytes.is_multiple_of(4), "{len_bytes} bytes to wipe are not whole patterns");
        // SAFETY: the pattern is copied before the call returns; the piece has at least that many bytes, in whole
        // patterns, since the sizes of pieces and of the written word are.
        let code = unsafe {
            (self.context.table.fill)(
                self.queue.handle,
                buffer.handle,
                (&raw const pattern).cast(),
                size_of::<u32>(),
                0,
                to_usize(len_bytes),
                0,
                null(),
                null_mut(),
            )
        };
        check("wiping memory", code)
    }

    pub fn finish(&self) -> Result<(), DeviceError> {
        // SAFETY: the function takes any queue.
        check("waiting for the device", unsafe { (self.context.table.finish)(self.queue.handle) })
    }

    /// Launches a kernel, and waits if patience has an end.
    pub fn launch(
        &self,
        kernel: &mut OpenClKernel,
        items: u64,
        group: Option<u32>,
        patience: Patience,
    ) -> Result<LaunchProgress, DeviceError> {
        let table = self.context.table;
        let (items, group, mut event) = (to_usize(items), group.map(|group| group as usize), null_mut());
        let group = group.as_ref().map_or(null(), |group| group as *const usize);
        let wanted = if patience == Patience::Forever { null_mut() } else { &raw mut event };
        // SAFETY: one dimension, whose two sizes exist during the call; the kernel's arguments are set.
        let code = unsafe {
            (table.launch)(
                self.queue.handle,
                kernel.kernel.handle,
                1,
                null(),
                &items,
                group,
                0,
                null(),
                wanted,
            )
        };
        check("launching", code)?;
        let Patience::Until(end) = patience else { return Ok(LaunchProgress::Launched) };
        let event = OwnedObject::new("launching", event, 0, table.release_event)?;
        // SAFETY: the function takes any queue.
        check("launching", unsafe { (table.flush)(self.queue.handle) })?;
        let progress = waiting::until(end, || {
            let mut status: c_int = 0;
            // SAFETY: the buffer has the size of the requested number.
            let code = unsafe {
                let (to, len) = ((&raw mut status).cast::<c_void>(), size_of::<c_int>());
                (table.event_info)(event.handle, ffi::EVENT_STATUS, len, to, null_mut())
            };
            check("asking for a launch", code)?;
            check("executing the kernel", status).map(|()| status == 0)
        });
        if matches!(progress, Ok(LaunchProgress::RunsOn)) {
            std::mem::forget(event);
        }
        progress
    }
}

/// A piece of memory.
pub struct OpenClMemory {
    place: MemoryLocation,
    len_bytes: u64,
    context: Arc<OpenClContext>,
}

enum MemoryLocation {
    /// Memory of the device: only commands access it.
    Device(OwnedObject),
    /// Memory that the host accesses, too.
    Shared(NonNull<u8>),
}

// SAFETY: the bytes belong to no thread; they are copied in and out, and never lent.
unsafe impl Send for OpenClMemory {}
// SAFETY: the caller decides about concurrent reads and writes, as for the device's own memory: a kernel can write
// anywhere. No reference to the bytes is ever made.
unsafe impl Sync for OpenClMemory {}

impl OpenClMemory {
    pub fn new(context: &Arc<OpenClContext>, len_bytes: u64) -> Result<OpenClMemory, DeviceError> {
        let place = match context.shared {
            Some(shared) => OpenClMemory::share(context, shared, len_bytes)?,
            None => OpenClMemory::take(context, len_bytes)?,
        };
        Ok(OpenClMemory { place, len_bytes, context: Arc::clone(context) })
    }

    fn take(context: &OpenClContext, len_bytes: u64) -> Result<MemoryLocation, DeviceError> {
        let (table, mut code, len) = (context.table, 0, to_usize(len_bytes));
        // SAFETY: no memory of the host is involved.
        let handle = unsafe {
            let flags = ffi::MEMORY_READ_WRITE;
            (table.create_buffer)(context.context.handle, flags, len, null_mut(), &mut code)
        };
        OwnedObject::new("taking device memory", handle, code, table.release_memory)
            .map(MemoryLocation::Device)
    }

    fn share(
        context: &OpenClContext,
        shared: &Shared,
        len_bytes: u64,
    ) -> Result<MemoryLocation, DeviceError> {
        let flags = ffi::MEMORY_READ_WRITE | ffi::MEMORY_SHARED_FINE;
        // SAFETY: the context's devices support this; the alignment is that of the largest type.
        let at = unsafe { (shared.allocate)(context.context.handle, flags, to_usize(len_bytes), 0) };
        let none =
            DeviceError::Driver { operation: "taking shared memory", reason: "there is no more".into() };
        NonNull::new(at.cast()).map(MemoryLocation::Shared).ok_or(none)
    }

    fn check(&self, len_bytes: u64) -> Result<(), DeviceError> {
        let most_bytes = self.len_bytes;
        if len_bytes <= most_bytes { Ok(()) } else { Err(DeviceError::TooLarge { len_bytes, most_bytes }) }
    }
}

impl Drop for OpenClMemory {
    fn drop(&mut self) {
        if let (MemoryLocation::Shared(at), Some(shared)) = (&self.place, self.context.shared) {
            // SAFETY: the memory was allocated for this owner, and every launch that used it has ended: see `Driver`.
            unsafe { (shared.free)(self.context.context.handle, at.as_ptr().cast()) };
        }
    }
}

/// A program, at any stage of its build.
pub struct OpenClModule {
    program: OwnedObject,
    context: Arc<OpenClContext>,
}

impl OpenClModule {
    pub fn of_source(context: &Arc<OpenClContext>, source: &str) -> Result<OpenClModule, DeviceError> {
        let (table, mut code) = (context.table, 0);
        let (text, len) = (source.as_ptr().cast(), source.len());
        // SAFETY: one text of the passed length, which is copied before the call returns.
        let handle = unsafe { (table.program_of_source)(context.context.handle, 1, &text, &len, &mut code) };
        let program = OwnedObject::new("taking a source", handle, code, table.release_program)?;
        Ok(OpenClModule { program, context: Arc::clone(context) })
    }

    /// Makes a program of the same binary for each device of the context.
    pub fn of_binary(context: &Arc<OpenClContext>, binary: &[u8]) -> Result<OpenClModule, DeviceError> {
        let (table, mut code, handles) = (context.table, 0, context.handles());
        let count = handles.len();
        let (lens, binaries) = (vec![binary.len(); count], vec![binary.as_ptr(); count]);
        let mut each = vec![0; count];
        // SAFETY: for each device a binary of the passed length, copied before the call returns, and a writable number.
        let handle = unsafe {
            (table.program_of_binary)(
                context.context.handle,
                ffi::count(&handles),
                handles.as_ptr(),
                lens.as_ptr(),
                binaries.as_ptr(),
                each.as_mut_ptr(),
                &mut code,
            )
        };
        let program = OwnedObject::new("taking a binary", handle, code, table.release_program)?;
        each.iter().try_for_each(|code| check("taking a binary", *code))?;
        Ok(OpenClModule { program, context: Arc::clone(context) })
    }

    /// Compiles a source to a program that can be linked.
    pub fn compile(&self, options: &CStr) -> Result<(), DeviceError> {
        let (table, handles) = (self.context.table, self.context.handles());
        // SAFETY: the array has the passed number of devices; there are no headers and no callback.
        let code = unsafe {
            (table.compile)(
                self.program.handle,
                ffi::count(&handles),
                handles.as_ptr(),
                options.as_ptr(),
                0,
                null(),
                null(),
                null(),
                null_mut(),
            )
        };
        self.built(code, "compiling")
    }

    /// Links several compiled programs into one.
    pub fn link(
        context: &Arc<OpenClContext>,
        modules: &[&OpenClModule],
    ) -> Result<OpenClModule, DeviceError> {
        let (table, mut code, handles) = (context.table, 0, context.handles());
        let programs: Vec<Handle> = modules.iter().map(|module| module.program.handle).collect();
        // SAFETY: the arrays have the passed numbers of devices and programs; there are no options and no callback.
        let handle = unsafe {
            (table.link)(
                context.context.handle,
                ffi::count(&handles),
                handles.as_ptr(),
                c"".as_ptr(),
                ffi::count(&programs),
                programs.as_ptr(),
                null(),
                null_mut(),
                &mut code,
            )
        };
        let program = OwnedObject::new(
            "linking",
            handle,
            if handle.is_null() { code } else { 0 },
            table.release_program,
        )?;
        let module = OpenClModule { program, context: Arc::clone(context) };
        module.built(code, "linking").map(|()| module)
    }

    /// Makes a complete binary executable.
    pub fn build(&self) -> Result<(), DeviceError> {
        let (table, handles) = (self.context.table, self.context.handles());
        // SAFETY: the array has the passed number of devices; there are no options and no callback.
        let code = unsafe {
            (table.build)(
                self.program.handle,
                ffi::count(&handles),
                handles.as_ptr(),
                c"".as_ptr(),
                null(),
                null_mut(),
            )
        };
        self.built(code, "building")
    }

    /// The binary for the first device: all devices of a context are of one kind.
    pub fn binary(&self) -> Result<Vec<u8>, DeviceError> {
        let operation = "taking the program";
        let table = self.context.table;
        let program = self.program.handle;
        // SAFETY: `answer` passes a buffer of the size that it names.
        let sizes = answer(operation, |len, to, out| unsafe {
            (table.program_info)(program, ffi::PROGRAM_BINARY_SIZES, len, to, out)
        })?;
        let size = |size: &[u8]| to_usize(ffi::number(size));
        let mut binaries: Vec<Vec<u8>> =
            sizes.chunks_exact(size_of::<usize>()).map(|bytes| vec![0; size(bytes)]).collect();
        let mut pointers: Vec<*mut u8> = binaries.iter_mut().map(|binary| binary.as_mut_ptr()).collect();
        // SAFETY: a pointer for each device, each to a buffer of the size that the driver has just named.
        let code = unsafe {
            let (to, len) = (pointers.as_mut_ptr().cast(), pointers.len() * size_of::<*mut u8>());
            (table.program_info)(program, ffi::PROGRAM_BINARIES, len, to, null_mut())
        };
        check(operation, code)?;
        let first = binaries.into_iter().next().filter(|binary| !binary.is_empty());
        first.ok_or_else(|| DeviceError::Driver { operation, reason: "the driver gives none".into() })
    }

    /// Converts a compiler's failure to an error with its log.
    fn built(&self, code: c_int, operation: &'static str) -> Result<(), DeviceError> {
        let Err(error) = check(operation, code) else { return Ok(()) };
        let (table, device) = (self.context.table, self.context.devices[0].0);
        // SAFETY: `answer` passes a buffer of the size that it names.
        let log = answer(operation, |len, to, out| unsafe {
            (table.build_info)(self.program.handle, device, ffi::PROGRAM_BUILD_LOG, len, to, out)
        });
        let log = bytes::told(&log.unwrap_or_default(), MAX_MESSAGE_BYTES);
        let log = if log.is_empty() { error.to_string() } else { log };
        Err(DeviceError::Build { name: String::new(), log })
    }
}

/// A kernel. Setting its arguments and launching it need exclusive access.
pub struct OpenClKernel {
    kernel: OwnedObject,
    table: &'static Table,
}

impl OpenClKernel {
    pub fn new(module: &OpenClModule, name: &CStr) -> Result<OpenClKernel, DeviceError> {
        let (table, mut code) = (module.context.table, 0);
        // SAFETY: the name ends in zero.
        let handle = unsafe { (table.create_kernel)(module.program.handle, name.as_ptr(), &mut code) };
        let no_kernel = |reason: String| DeviceError::NoKernel { name: String::new(), reason };
        let kernel = OwnedObject::new("finding a kernel", handle, code, table.release_kernel)
            .map_err(|error| no_kernel(error.to_string()))?;
        let kernel = OpenClKernel { kernel, table };
        match kernel.arguments()? {
            ARGUMENTS => Ok(kernel),
            count => Err(no_kernel(format!("it has {count} arguments, and functions have {ARGUMENTS}"))),
        }
    }

    pub fn set_memory(&mut self, number: c_uint, memory: &OpenClMemory) -> Result<(), DeviceError> {
        // SAFETY: the driver reads the handle, or takes the address, during the call; it refuses an argument of another
        // size.
        let code = unsafe {
            match (&memory.place, memory.context.shared) {
                (MemoryLocation::Shared(at), Some(shared)) => {
                    (shared.set_argument)(self.kernel.handle, number, at.as_ptr().cast())
                }
                (MemoryLocation::Device(OwnedObject { handle, .. }), _) => {
                    let size = size_of::<Handle>();
                    (self.table.set_argument)(self.kernel.handle, number, size, (&raw const *handle).cast())
                }
                (MemoryLocation::Shared(_), None) => unreachable!("shared memory is taken by what shares it"),
            }
        };
        check("setting an argument", code)
    }

    pub fn set_number(&mut self, number: c_uint, value: u32) -> Result<(), DeviceError> {
        // SAFETY: the driver reads the number during the call; it refuses an argument of another size.
        let code = unsafe {
            let value = (&raw const value).cast();
            (self.table.set_argument)(self.kernel.handle, number, size_of::<u32>(), value)
        };
        check("setting an argument", code)
    }

    fn arguments(&self) -> Result<u64, DeviceError> {
        // SAFETY: `answer` passes a buffer of the size that it names.
        let said = answer("asking a kernel", |len, to, out| unsafe {
            (self.table.kernel_info)(self.kernel.handle, ffi::KERNEL_NUMBER_OF_ARGUMENTS, len, to, out)
        })?;
        Ok(ffi::number(&said))
    }
}
