//! OpenCL's functions as `CL/cl.h` has them, and the loader (libOpenCL), which is loaded when first needed.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::library::functions;
use crate::{DeviceError, DriverKind};

/// Any of OpenCL's objects.
pub type Handle = *mut c_void;
type Size = usize;
type Sizes = *const usize;
type Answer = *mut c_void;
type Waits = *const Handle;
type Notify = *const c_void;

functions! {
    /// The functions of OpenCL 1.2 that are used.
    Table {
        platforms = b"clGetPlatformIDs\0" (c_uint, *mut Handle, *mut c_uint) -> c_int;
        platform_info = b"clGetPlatformInfo\0" (Handle, c_uint, Size, Answer, *mut Size) -> c_int;
        devices = b"clGetDeviceIDs\0" (Handle, u64, c_uint, *mut Handle, *mut c_uint) -> c_int;
        device_info = b"clGetDeviceInfo\0" (Handle, c_uint, Size, Answer, *mut Size) -> c_int;
        sub_devices = b"clCreateSubDevices\0" (Handle, *const isize, c_uint, *mut Handle, *mut c_uint) -> c_int;
        create_context = b"clCreateContext\0" (*const isize, c_uint, *const Handle, Notify, Answer, *mut c_int) -> Handle;
        release_context = b"clReleaseContext\0" (Handle) -> c_int;
        create_queue = b"clCreateCommandQueue\0" (Handle, Handle, u64, *mut c_int) -> Handle;
        release_queue = b"clReleaseCommandQueue\0" (Handle) -> c_int;
        create_buffer = b"clCreateBuffer\0" (Handle, u64, Size, Answer, *mut c_int) -> Handle;
        release_memory = b"clReleaseMemObject\0" (Handle) -> c_int;
        program_of_source = b"clCreateProgramWithSource\0" (Handle, c_uint, *const *const c_char, Sizes, *mut c_int) -> Handle;
        program_of_binary = b"clCreateProgramWithBinary\0" (Handle, c_uint, *const Handle, Sizes, *const *const u8, *mut c_int, *mut c_int) -> Handle;
        compile = b"clCompileProgram\0" (Handle, c_uint, *const Handle, *const c_char, c_uint, Waits, *const *const c_char, Notify, Answer) -> c_int;
        link = b"clLinkProgram\0" (Handle, c_uint, *const Handle, *const c_char, c_uint, Waits, Notify, Answer, *mut c_int) -> Handle;
        build = b"clBuildProgram\0" (Handle, c_uint, *const Handle, *const c_char, Notify, Answer) -> c_int;
        program_info = b"clGetProgramInfo\0" (Handle, c_uint, Size, Answer, *mut Size) -> c_int;
        build_info = b"clGetProgramBuildInfo\0" (Handle, Handle, c_uint, Size, Answer, *mut Size) -> c_int;
        release_program = b"clReleaseProgram\0" (Handle) -> c_int;
        create_kernel = b"clCreateKernel\0" (Handle, *const c_char, *mut c_int) -> Handle;
        release_kernel = b"clReleaseKernel\0" (Handle) -> c_int;
        kernel_info = b"clGetKernelInfo\0" (Handle, c_uint, Size, Answer, *mut Size) -> c_int;
        set_argument = b"clSetKernelArg\0" (Handle, c_uint, Size, *const c_void) -> c_int;
        launch = b"clEnqueueNDRangeKernel\0" (Handle, Handle, c_uint, Sizes, Sizes, Sizes, c_uint, Waits, *mut Handle) -> c_int;
        read = b"clEnqueueReadBuffer\0" (Handle, Handle, c_uint, Size, Size, Answer, c_uint, Waits, *mut Handle) -> c_int;
        write = b"clEnqueueWriteBuffer\0" (Handle, Handle, c_uint, Size, Size, *const c_void, c_uint, Waits, *mut Handle) -> c_int;
        fill = b"clEnqueueFillBuffer\0" (Handle, Handle, *const c_void, Size, Size, Size, c_uint, Waits, *mut Handle) -> c_int;
        flush = b"clFlush\0" (Handle) -> c_int;
        finish = b"clFinish\0" (Handle) -> c_int;
        event_info = b"clGetEventInfo\0" (Handle, c_uint, Size, Answer, *mut Size) -> c_int;
        release_event = b"clReleaseEvent\0" (Handle) -> c_int;
    }
}

functions! {
    /// Functions of OpenCL 2 for memory that host and device share.
    Shared {
        allocate = b"clSVMAlloc\0" (Handle, u64, Size, c_uint) -> *mut c_void;
        free = b"clSVMFree\0" (Handle, *mut c_void) -> ();
        set_argument = b"clSetKernelArgSVMPointer\0" (Handle, c_uint, *const c_void) -> c_int;
    }
}

pub const PLATFORM_VERSION: c_uint = 0x0901;
pub const PLATFORM_NAME: c_uint = 0x0902;
pub const DEVICE_TYPE: c_uint = 0x1000;
pub const DEVICE_COMPUTE_UNITS: c_uint = 0x1002;
pub const DEVICE_WORK_GROUP: c_uint = 0x1004;
pub const DEVICE_MAX_ALLOCATION: c_uint = 0x1010;
pub const DEVICE_MEMORY: c_uint = 0x101F;
pub const DEVICE_LITTLE_ENDIAN: c_uint = 0x1026;
pub const DEVICE_AVAILABLE: c_uint = 0x1027;
pub const DEVICE_COMPILER: c_uint = 0x1028;
pub const DEVICE_NAME: c_uint = 0x102B;
pub const DEVICE_VENDOR: c_uint = 0x102C;
pub const DRIVER_VERSION: c_uint = 0x102D;
pub const DEVICE_VERSION: c_uint = 0x102F;
pub const DEVICE_LINKER: c_uint = 0x103E;
pub const DEVICE_MOST_SUB_DEVICES: c_uint = 0x1043;
pub const DEVICE_SHARED_MEMORY: c_uint = 0x1053;
/// Capability: host and device may both use a piece, without synchronization, while no kernel uses it.
pub const SHARED_FINE: u64 = 1 << 1;
pub const MEMORY_SHARED_FINE: u64 = 1 << 10;
pub const PARTITION_BY_COUNTS: isize = 0x1087;
pub const DEVICE_TYPE_ALL: u64 = 0xFFFF_FFFF;
pub const TYPE_CPU: u64 = 1 << 1;
pub const TYPE_GPU: u64 = 1 << 2;
pub const MEMORY_READ_WRITE: u64 = 1;
pub const PROGRAM_BINARY_SIZES: c_uint = 0x1165;
pub const PROGRAM_BINARIES: c_uint = 0x1166;
pub const PROGRAM_BUILD_LOG: c_uint = 0x1183;
pub const KERNEL_NUMBER_OF_ARGUMENTS: c_uint = 0x1191;
pub const EVENT_STATUS: c_uint = 0x11D3;
pub const NO_PLATFORM: c_int = -1001;

struct OpenClLibrary {
    table: Table,
    shared: Option<Shared>,
}

/// The functions. The library is never unloaded, since its drivers start threads.
pub fn table() -> Result<&'static Table, DeviceError> {
    loaded().map(|loaded| &loaded.table)
}

/// The functions of OpenCL 2, where the loader has them.
pub fn shared() -> Option<&'static Shared> {
    loaded().ok().and_then(|loaded| loaded.shared.as_ref())
}

fn loaded() -> Result<&'static OpenClLibrary, DeviceError> {
    static LOADED: OnceLock<Result<OpenClLibrary, String>> = OnceLock::new();
    let unusable =
        |reason: &String| DeviceError::Unusable { kind: DriverKind::OpenCl, reason: reason.clone() };
    LOADED.get_or_init(load).as_ref().map_err(unusable)
}

fn load() -> Result<OpenClLibrary, String> {
    let needed = "libOpenCL.so.1 (Debian: ocl-icd-libopencl1, Fedora: ocl-icd) is needed";
    // SAFETY: loading runs the library's own initialization, which has no preconditions.
    let library = unsafe { libloading::Library::new("libOpenCL.so.1") };
    let library = library.map_err(|error| format!("{needed}: {error}"))?;
    let table = Table::find(&library).map_err(|error| format!("{needed}, for OpenCL 1.2: {error}"))?;
    let shared = Shared::find(&library).ok();
    std::mem::forget(library);
    Ok(OpenClLibrary { table, shared })
}

/// Name of an error number in `CL/cl.h`.
pub fn error_name(code: c_int) -> String {
    let name = match code {
        -1 => "CL_DEVICE_NOT_FOUND",
        -2 => "CL_DEVICE_NOT_AVAILABLE",
        -3 => "CL_COMPILER_NOT_AVAILABLE",
        -4 => "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        -5 => "CL_OUT_OF_RESOURCES",
        -6 => "CL_OUT_OF_HOST_MEMORY",
        -11 => "CL_BUILD_PROGRAM_FAILURE",
        -14 => "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
        -15 => "CL_COMPILE_PROGRAM_FAILURE",
        -16 => "CL_LINKER_NOT_AVAILABLE",
        -17 => "CL_LINK_PROGRAM_FAILURE",
        -18 => "CL_DEVICE_PARTITION_FAILED",
        -30 => "CL_INVALID_VALUE",
        -33 => "CL_INVALID_DEVICE",
        -42 => "CL_INVALID_BINARY",
        -43 => "CL_INVALID_BUILD_OPTIONS",
        -45 => "CL_INVALID_PROGRAM_EXECUTABLE",
        -46 => "CL_INVALID_KERNEL_NAME",
        -47 => "CL_INVALID_KERNEL_DEFINITION",
        -49 => "CL_INVALID_ARG_INDEX",
        -50 => "CL_INVALID_ARG_VALUE",
        -51 => "CL_INVALID_ARG_SIZE",
        -52 => "CL_INVALID_KERNEL_ARGS",
        -54 => "CL_INVALID_WORK_GROUP_SIZE",
        -55 => "CL_INVALID_WORK_ITEM_SIZE",
        -59 => "CL_INVALID_OPERATION",
        -61 => "CL_INVALID_BUFFER_SIZE",
        -63 => "CL_INVALID_GLOBAL_WORK_SIZE",
        -66 => "CL_INVALID_COMPILER_OPTIONS",
        -68 => "CL_INVALID_DEVICE_PARTITION_COUNT",
        NO_PLATFORM => "CL_PLATFORM_NOT_FOUND_KHR",
        _ => return format!("OpenCL error {code}"),
    };
    format!("{name} ({code})")
}

/// Converts the result of a call to an error unless it succeeded.
pub fn check(operation: &'static str, code: c_int) -> Result<(), DeviceError> {
    if code >= 0 { Ok(()) } else { Err(DeviceError::Driver { operation, reason: error_name(code) }) }
}

/// The answer of a call that returns bytes. The call is asked for their number first.
pub fn answer(
    operation: &'static str,
    mut ask: impl FnMut(usize, *mut c_void, *mut usize) -> c_int,
) -> Result<Vec<u8>, DeviceError> {
    let mut len = 0;
    check(operation, ask(0, std::ptr::null_mut(), &mut len))?;
    let mut bytes = vec![0; len];
    if len > 0 {
        check(operation, ask(len, bytes.as_mut_ptr().cast(), &mut len))?;
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Number of entries of an array of devices or programs.
#[expect(clippy::cast_possible_truncation, reason = "both are few: of one machine, and of one package")]
pub fn count<T>(array: &[T]) -> c_uint {
    array.len() as c_uint
}

/// A number of 4 or 8 bytes in an answer.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A text in an answer.
pub fn text(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map(CStr::to_bytes).unwrap_or(bytes);
    String::from_utf8_lossy(text).trim().to_owned()
}
