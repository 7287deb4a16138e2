//! CUDA's driver functions as `cuda.h` has them, and the driver, which is loaded when first needed.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use crate::library::functions;
use crate::{DeviceError, DriverKind};

/// Any of CUDA's objects.
pub type Handle = *mut c_void;
/// An address on the device.
pub type Address = u64;

functions! {
    /// The functions of CUDA's driver interface that are used. All exist since version 6.
    Table {
        init = b"cuInit\0" (c_uint) -> c_int;
        driver_version = b"cuDriverGetVersion\0" (*mut c_int) -> c_int;
        device_count = b"cuDeviceGetCount\0" (*mut c_int) -> c_int;
        device = b"cuDeviceGet\0" (*mut c_int, c_int) -> c_int;
        device_name = b"cuDeviceGetName\0" (*mut c_char, c_int, c_int) -> c_int;
        device_memory = b"cuDeviceTotalMem_v2\0" (*mut usize, c_int) -> c_int;
        device_attribute = b"cuDeviceGetAttribute\0" (*mut c_int, c_int, c_int) -> c_int;
        create_context = b"cuCtxCreate_v2\0" (*mut Handle, c_uint, c_int) -> c_int;
        destroy_context = b"cuCtxDestroy_v2\0" (Handle) -> c_int;
        set_context = b"cuCtxSetCurrent\0" (Handle) -> c_int;
        load = b"cuModuleLoadData\0" (*mut Handle, *const c_void) -> c_int;
        unload = b"cuModuleUnload\0" (Handle) -> c_int;
        function = b"cuModuleGetFunction\0" (*mut Handle, Handle, *const c_char) -> c_int;
        link_create = b"cuLinkCreate_v2\0" (c_uint, *const c_int, *const *mut c_void, *mut Handle) -> c_int;
        link_add = b"cuLinkAddData_v2\0" (Handle, c_int, *mut c_void, usize, *const c_char, c_uint, *const c_int, *const *mut c_void) -> c_int;
        link_complete = b"cuLinkComplete\0" (Handle, *mut *mut c_void, *mut usize) -> c_int;
        link_destroy = b"cuLinkDestroy\0" (Handle) -> c_int;
        allocate = b"cuMemAlloc_v2\0" (*mut Address, usize) -> c_int;
        free = b"cuMemFree_v2\0" (Address) -> c_int;
        write = b"cuMemcpyHtoDAsync_v2\0" (Address, *const c_void, usize, Handle) -> c_int;
        read = b"cuMemcpyDtoHAsync_v2\0" (*mut c_void, Address, usize, Handle) -> c_int;
        fill = b"cuMemsetD32Async\0" (Address, c_uint, usize, Handle) -> c_int;
        create_stream = b"cuStreamCreate\0" (*mut Handle, c_uint) -> c_int;
        destroy_stream = b"cuStreamDestroy_v2\0" (Handle) -> c_int;
        synchronize = b"cuStreamSynchronize\0" (Handle) -> c_int;
        query = b"cuStreamQuery\0" (Handle) -> c_int;
        launch = b"cuLaunchKernel\0" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *const *mut c_void, *const *mut c_void) -> c_int;
        error_name = b"cuGetErrorName\0" (c_int, *mut *const c_char) -> c_int;
    }
}

pub const MULTIPROCESSORS: c_int = 16;
pub const MAX_THREADS_PER_BLOCK: c_int = 1;
pub const CAPABILITY_MAJOR: c_int = 75;
pub const CAPABILITY_MINOR: c_int = 76;
/// Flag of streams that do not wait for the default stream of their context.
pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const NOT_READY: c_int = 600;
pub const JIT_ERROR_LOG: c_int = 5;
pub const JIT_ERROR_LOG_BYTES: c_int = 6;
pub const JIT_INPUT_PTX: c_int = 1;
/// Marks of the list by which arguments are passed as a block of bytes, whose size the driver then knows.
pub const LAUNCH_END: *mut c_void = std::ptr::null_mut();
pub const LAUNCH_BUFFER: usize = 1;
pub const LAUNCH_BUFFER_SIZE: usize = 2;

/// The functions. The driver is never unloaded.
pub fn table() -> Result<&'static Table, DeviceError> {
    static LOADED: OnceLock<Result<Table, String>> = OnceLock::new();
    let unusable = |reason: &String| DeviceError::Unusable { kind: DriverKind::Cuda, reason: reason.clone() };
    LOADED.get_or_init(load).as_ref().map_err(unusable)
}

fn load() -> Result<Table, String> {
    // SAFETY: loading runs the library's own initialization, which has no preconditions.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    let library = library
        .map_err(|error| format!("libcuda.so.1, which comes with NVIDIA's driver, is needed: {error}"))?;
    let table = Table::find(&library).map_err(|error| format!("NVIDIA's driver is too old: {error}"))?;
    std::mem::forget(library);
    // SAFETY: the function takes no flags, and may be called at any time.
    match unsafe { (table.init)(0) } {
        0 => Ok(table),
        code => Err(format!("NVIDIA's driver does not start: {}", table.name(code))),
    }
}

impl Table {
    /// Text for an error number, with the driver's own name for it.
    pub fn name(&self, code: c_int) -> String {
        let mut name = null();
        // SAFETY: the function takes any number, and `name` is writable.
        let known = unsafe { (self.error_name)(code, &mut name) } == 0 && !name.is_null();
        if !known {
            return format!("CUDA error {code}");
        }
        // SAFETY: not null, so a string of the driver's own, which stays.
        let name = unsafe { CStr::from_ptr(name) };
        format!("{} ({code})", name.to_string_lossy())
    }

    /// Converts the result of a call to an error unless it succeeded.
    pub fn check(&self, operation: &'static str, code: c_int) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(DeviceError::Driver { operation, reason: self.name(code) }) }
    }
}
