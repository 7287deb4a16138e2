//! CUDA's objects with owners: each is released once, when its last user drops it, and keeps its context.
//!
//! CUDA does not count references: releasing memory or a module either waits for its users or breaks them. For that
//! reason nothing is released while a launch has not ended; after a launch was given up, nothing is ever released.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use sublet_proto::to_usize;

use super::ffi::{self, Address, Handle, Table};
use crate::{
    DeviceError, Driver, DriverKind, KernelArguments, LaunchProgress, MAX_MESSAGE_BYTES, Patience, bytes,
    waiting,
};

/// Bytes of a GPU's name.
const NAME_BYTES: usize = 256;

/// A GPU and its capabilities.
#[derive(Clone, Debug)]
pub struct CudaDeviceInfo {
    /// The GPU's own name.
    pub name: String,
    /// Number of the GPU in the driver.
    pub number: u32,
    /// Compute capability, for instance `8.0`.
    pub capability: (u32, u32),
    /// The newest CUDA version that the driver supports, times 1000.
    pub driver_version: u32,
    /// Units that compute in parallel.
    pub compute_units: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Most work-items of one group.
    pub most_group_items: u32,
}

impl CudaDeviceInfo {
    /// Names GPU and driver with their versions. A program that was built for one identity is valid for no other.
    pub(super) fn identity(&self) -> String {
        let CudaDeviceInfo { name, capability: (major, minor), driver_version, .. } = self;
        format!("{name}; {major}.{minor}; driver {driver_version}")
    }
}

/// Lists all GPUs of the driver. A missing driver or GPU is an error that names it.
pub fn discover() -> Result<Vec<CudaDeviceInfo>, DeviceError> {
    let table = ffi::table()?;
    let (mut count, mut version) = (0, 0);
    // SAFETY: each result is a writable number.
    let codes = unsafe { [(table.device_count)(&mut count), (table.driver_version)(&mut version)] };
    codes.iter().try_for_each(|code| table.check("counting GPUs", *code))?;
    if count <= 0 {
        let reason = "NVIDIA's driver has no GPU".into();
        return Err(DeviceError::Unusable { kind: DriverKind::Cuda, reason });
    }
    (0..count).map(|number| device_info(table, number, version.max(0).cast_unsigned())).collect()
}

/// The GPU that executes a node's packages: the first.
pub fn first() -> Result<CudaDeviceInfo, DeviceError> {
    // The list is not empty, or `discover` returned an error.
    Ok(discover()?.swap_remove(0))
}

fn device_info(table: &Table, number: c_int, driver_version: u32) -> Result<CudaDeviceInfo, DeviceError> {
    let (mut device, mut memory_bytes, mut name) = (0, 0usize, [0 as c_char; NAME_BYTES]);
    // SAFETY: the result is a writable number.
    table.check("opening a GPU", unsafe { (table.device)(&mut device, number) })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a small constant")]
    let name_bytes = NAME_BYTES as c_int;
    // SAFETY: the name has the passed number of bytes, and the other result is a writable number.
    let codes = unsafe {
        [
            (table.device_name)(name.as_mut_ptr(), name_bytes, device),
            (table.device_memory)(&mut memory_bytes, device),
        ]
    };
    codes.iter().try_for_each(|code| table.check("asking a GPU", *code))?;
    let attribute = |which: c_int| {
        let mut value = 0;
        // SAFETY: the result is a writable number.
        let code = unsafe { (table.device_attribute)(&mut value, which, device) };
        table.check("asking a GPU", code).map(|()| value.max(0).cast_unsigned())
    };
    Ok(CudaDeviceInfo {
        name: bytes::told(&name.map(|byte| byte.to_ne_bytes()[0]), NAME_BYTES),
        number: number.cast_unsigned(),
        capability: (attribute(ffi::CAPABILITY_MAJOR)?, attribute(ffi::CAPABILITY_MINOR)?),
        driver_version,
        compute_units: attribute(ffi::MULTIPROCESSORS)?,
        memory_bytes: memory_bytes as u64,
        most_group_items: attribute(ffi::MAX_THREADS_PER_BLOCK)?,
    })
}

/// A context, to which all other objects belong. A thread's calls apply to the context that it has entered last.
pub struct CudaContext {
    table: &'static Table,
    handle: Handle,
}

// SAFETY: a context belongs to no thread; the driver locks it.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    pub fn new(info: &CudaDeviceInfo) -> Result<Arc<CudaContext>, DeviceError> {
        let (table, mut handle, mut device) = (ffi::table()?, null_mut(), 0);
        // SAFETY: the result is a writable number.
        table.check("opening a GPU", unsafe { (table.device)(&mut device, info.number.cast_signed()) })?;
        // SAFETY: the result is a writable handle.
        table.check("making a context", unsafe { (table.create_context)(&mut handle, 0, device) })?;
        Ok(Arc::new(CudaContext { table, handle }))
    }

    fn enter(&self) -> Result<&'static Table, DeviceError> {
        // SAFETY: the context lives as long as this.
        let code = unsafe { (self.table.set_context)(self.handle) };
        self.table.check("entering a context", code).map(|()| self.table)
    }

    /// Makes the driver compile PTX to a cubin.
    pub fn compile(&self, text: &str) -> Result<Vec<u8>, DeviceError> {
        let table = self.enter()?;
        let mut log = vec![0u8; MAX_MESSAGE_BYTES];
        let options = [ffi::JIT_ERROR_LOG, ffi::JIT_ERROR_LOG_BYTES];
        // Options pass numbers in place of pointers.
        let values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut link = null_mut();
        // SAFETY: two options with their values; the log has the passed number of bytes, and outlives the link.
        let code = unsafe { (table.link_create)(2, options.as_ptr(), values.as_ptr(), &mut link) };
        table.check("starting the compiler", code)?;
        let made = link_one(table, link, text);
        // SAFETY: the link was made above, and its result was copied.
        unsafe { (table.link_destroy)(link) };
        made.map_err(|error| {
            let said = bytes::told(&log, MAX_MESSAGE_BYTES);
            let log = if said.is_empty() { error.to_string() } else { said };
            DeviceError::Build { name: String::new(), log }
        })
    }
}

fn link_one(table: &Table, link: Handle, text: &str) -> Result<Vec<u8>, DeviceError> {
    let mut text = text.as_bytes().to_vec();
    text.push(0);
    // SAFETY: a text that ends in zero, of the passed length; no options.
    let code = unsafe {
        let (data, len) = (text.as_mut_ptr().cast(), text.len());
        (table.link_add)(link, ffi::JIT_INPUT_PTX, data, len, c"function".as_ptr(), 0, null(), null())
    };
    table.check("compiling", code)?;
    let (mut cubin, mut len) = (null_mut(), 0);
    // SAFETY: the results are a writable pointer and a writable size.
    table.check("compiling", unsafe { (table.link_complete)(link, &mut cubin, &mut len) })?;
    if cubin.is_null() {
        return Err(DeviceError::Driver { operation: "compiling", reason: "nothing came of it".into() });
    }
    // SAFETY: the driver returns `len` bytes, which exist until the link is destroyed.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), len) }.to_vec())
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // SAFETY: every object of the context keeps the context, so none is left.
        unsafe { (self.table.destroy_context)(self.handle) };
    }
}

/// A loaded program.
pub struct CudaModule {
    inner: Arc<CudaLoadedModule>,
}

struct CudaLoadedModule {
    handle: Handle,
    context: Arc<CudaContext>,
}

// SAFETY: a module belongs to its context and to no thread.
unsafe impl Send for CudaLoadedModule {}
// SAFETY: as above.
unsafe impl Sync for CudaLoadedModule {}

impl CudaModule {
    /// Loads a cubin or fatbin whose sizes were checked.
    pub fn new(context: &Arc<CudaContext>, program: &[u8]) -> Result<CudaModule, DeviceError> {
        let (table, mut handle) = (context.enter()?, null_mut());
        // The driver needs aligned words.
        let mut words = vec![0u64; program.len().div_ceil(8) + 1];
        for (word, bytes) in words.iter_mut().zip(program.chunks(8)) {
            let mut full = [0; 8];
            full[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(full);
        }
        // SAFETY: a whole program, as the caller has checked, followed by zeros.
        let code = unsafe { (table.load)(&mut handle, words.as_ptr().cast()) };
        table.check("loading a program", code)?;
        Ok(CudaModule { inner: Arc::new(CudaLoadedModule { handle, context: Arc::clone(context) }) })
    }

    pub fn kernel(&self, name: &CStr) -> Result<CudaKernel, DeviceError> {
        let (table, mut handle) = (self.inner.context.enter()?, null_mut());
        // SAFETY: the module is loaded, the name ends in zero.
        let code = unsafe { (table.function)(&mut handle, self.inner.handle, name.as_ptr()) };
        let found = table.check("finding a kernel", code);
        found.map_err(|error| DeviceError::NoKernel { name: String::new(), reason: error.to_string() })?;
        Ok(CudaKernel { handle, _module: Arc::clone(&self.inner) })
    }
}

impl Drop for CudaLoadedModule {
    fn drop(&mut self) {
        if let Ok(table) = self.context.enter() {
            // SAFETY: every kernel of the module keeps the module, so none is left.
            unsafe { (table.unload)(self.handle) };
        }
    }
}

/// A kernel.
pub struct CudaKernel {
    handle: Handle,
    _module: Arc<CudaLoadedModule>,
}

// SAFETY: a kernel belongs to its module and to no thread.
unsafe impl Send for CudaKernel {}

/// A piece of memory.
pub struct CudaMemory {
    address: Address,
    len_bytes: u64,
    context: Arc<CudaContext>,
}

impl CudaMemory {
    pub fn new(context: &Arc<CudaContext>, len_bytes: u64) -> Result<CudaMemory, DeviceError> {
        let (table, mut address) = (context.enter()?, 0);
        // SAFETY: the result is a writable address.
        let code = unsafe { (table.allocate)(&mut address, to_usize(len_bytes)) };
        table.check("taking device memory", code)?;
        Ok(CudaMemory { address, len_bytes, context: Arc::clone(context) })
    }

    fn check(&self, len_bytes: u64) -> Result<(), DeviceError> {
        let most_bytes = self.len_bytes;
        if len_bytes <= most_bytes { Ok(()) } else { Err(DeviceError::TooLarge { len_bytes, most_bytes }) }
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if let Ok(table) = self.context.enter() {
            // SAFETY: the memory was allocated for this owner, and every launch that used it has ended.
            unsafe { (table.free)(self.address) };
        }
    }
}

/// A kernel's arguments in their layout in memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArgumentBlock {
    input: Address,
    size: u32,
    _gap: u32,
    output: Address,
    capacity: u32,
    _hole: u32,
    written: Address,
}

const _: () = assert!(size_of::<ArgumentBlock>() == 40 && std::mem::offset_of!(ArgumentBlock, written) == 32);

impl ArgumentBlock {
    pub(super) fn new(arguments: &KernelArguments<'_, impl Driver<Memory = CudaMemory>>) -> ArgumentBlock {
        let KernelArguments { input, size, output, capacity, written } = arguments;
        let (input, output, written) = (input.address, output.address, written.address);
        ArgumentBlock { input, size: *size, _gap: 0, output, capacity: *capacity, _hole: 0, written }
    }
}

/// Number of groups, and number of work-items of each.
#[derive(Clone, Copy)]
pub struct LaunchSize {
    pub groups: u32,
    pub group: u32,
}

/// A stream of commands, executed in order.
pub struct CudaStream {
    handle: Handle,
    context: Arc<CudaContext>,
}

// SAFETY: a stream belongs to its context and to no thread.
unsafe impl Send for CudaStream {}

impl CudaStream {
    pub fn new(context: &Arc<CudaContext>) -> Result<CudaStream, DeviceError> {
        let (table, mut handle) = (context.enter()?, null_mut());
        // SAFETY: the result is a writable handle.
        let code = unsafe { (table.create_stream)(&mut handle, ffi::STREAM_NON_BLOCKING) };
        table.check("making a stream", code)?;
        Ok(CudaStream { handle, context: Arc::clone(context) })
    }

    pub fn write(&self, memory: &CudaMemory, bytes: &[u8]) -> Result<(), DeviceError> {
        memory.check(bytes.len() as u64)?;
        let table = self.context.enter()?;
        // SAFETY: the piece has at least that many bytes, and the host's bytes exist until the stream is done, right
        // below.
        let code = unsafe { (table.write)(memory.address, bytes.as_ptr().cast(), bytes.len(), self.handle) };
        let begun = table.check("writing to the device", code);
        begun.and(self.finish())
    }

    pub fn read(&self, memory: &CudaMemory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        memory.check(bytes.len() as u64)?;
        let table = self.context.enter()?;
        // SAFETY: the piece has at least that many bytes, and the host's bytes exist until the stream is done, right
        // below.
        let code =
            unsafe { (table.read)(bytes.as_mut_ptr().cast(), memory.address, bytes.len(), self.handle) };
        let begun = table.check("reading from the device", code);
        begun.and(self.finish())
    }

    /// Sets bytes to zero before later commands of the stream execute.
    pub fn wipe(&self, memory: &CudaMemory, len_bytes: u64) -> Result<(), DeviceError> {
        memory.check(len_bytes)?;
        debug_assert!(len_bytes.is_multiple_of(4), "{len_bytes} bytes to wipe are not whole words");
        let table = self.context.enter()?;
        // SAFETY: the piece has at least that many bytes, in whole words, since the sizes of pieces and of the written
        // word are.
        let code = unsafe { (table.fill)(memory.address, 0, to_usize(len_bytes) / 4, self.handle) };
        table.check("wiping memory", code)
    }

    pub fn finish(&self) -> Result<(), DeviceError> {
        let table = self.context.enter()?;
        // SAFETY: the function takes any stream.
        table.check("waiting for the device", unsafe { (table.synchronize)(self.handle) })
    }

    /// Launches a kernel, and waits if patience has an end.
    pub fn launch(
        &self,
        kernel: &mut CudaKernel,
        mut block: ArgumentBlock,
        size: LaunchSize,
        patience: Patience,
    ) -> Result<LaunchProgress, DeviceError> {
        let table = self.context.enter()?;
        let mut len = size_of::<ArgumentBlock>();
        // The driver compares the size of the block with the kernel's parameters.
        let extra = [
            ffi::LAUNCH_BUFFER as *mut c_void,
            (&raw mut block).cast(),
            ffi::LAUNCH_BUFFER_SIZE as *mut c_void,
            (&raw mut len).cast(),
            ffi::LAUNCH_END,
        ];
        let (groups, group): (c_uint, c_uint) = (size.groups, size.group);
        // SAFETY: one dimension; the block has the passed number of bytes, and is copied before the call returns.
        let code = unsafe {
            (table.launch)(kernel.handle, groups, 1, 1, group, 1, 1, 0, self.handle, null(), extra.as_ptr())
        };
        table.check("launching", code)?;
        match patience {
            Patience::Forever => Ok(LaunchProgress::Launched),
            Patience::Until(end) => waiting::until(end, || {
                // SAFETY: the function takes any stream.
                let code = unsafe { (table.query)(self.handle) };
                Ok(code != ffi::NOT_READY && table.check("executing the kernel", code).map(|()| true)?)
            }),
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if let Ok(table) = self.context.enter() {
            // SAFETY: the stream was made for this owner, and all its commands were waited for.
            unsafe { (table.destroy_stream)(self.handle) };
        }
    }
}
