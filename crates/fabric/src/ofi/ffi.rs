//! Declares the shim's table and structures like `ofi-shim/shim.h`, and loads the library at the first use.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

#[cfg(libfabric)]
use super::signals::Handlers;
use crate::FabricError;

/// Bytes of the token that a connecting side shows to the listening one.
pub const TOKEN_BYTES: usize = 16;
/// Most bytes of one operation: `OFI_ORDERED_BYTES`.
pub const MAX_TRANSFER_BYTES: u64 = 16 << 20;

/// libfabric's "try again".
pub const EAGAIN: c_int = 11;
/// libfabric's "completed with an error".
pub const EAVAIL: c_int = 259;
/// "No such thing here".
pub const ENODATA: c_int = 61;
/// "Out of memory": among other cases, memory cannot be locked.
pub const ENOMEM: c_int = 12;
/// "This key is in use", or the provider does not accept it.
pub const ENOKEY: c_int = 126;

#[repr(C)]
pub struct Query {
    pub provider: *const c_char,
    pub domain: *const c_char,
    pub source: *const c_char,
    pub kind: u32,
    pub want_descriptor: u32,
}

#[repr(C)]
#[derive(Clone)]
pub struct FfiFacts {
    provider: [c_char; 64],
    fabric: [c_char; 64],
    domain: [c_char; 64],
    address: [c_char; 128],
    pub kind: u32,
    pub is_up: u32,
    pub link_bits_per_second: u64,
    pub link_mtu_bytes: u64,
    pub inject_bytes: u64,
    pub max_message_bytes: u64,
    pub key_bytes: u64,
    pub local_registration: u32,
    pub virtual_addresses: u32,
    pub provider_keys: u32,
    pub writes_in_order: u32,
    pub reads_in_order: u32,
    pub receives: u32,
    pub completion_fd: i32,
    pub event_fd: i32,
}

impl FfiFacts {
    pub fn empty() -> FfiFacts {
        // SAFETY: integers and arrays of integers: all zeros are a value.
        unsafe { std::mem::zeroed() }
    }

    pub fn provider(&self) -> String {
        text_of(&self.provider)
    }

    pub fn fabric(&self) -> String {
        text_of(&self.fabric)
    }

    pub fn domain(&self) -> String {
        text_of(&self.domain)
    }

    pub fn address(&self) -> String {
        text_of(&self.address)
    }
}

/// The text of a C array of characters, up to its first zero.
fn text_of(array: &[c_char]) -> String {
    let bytes: Vec<u8> =
        array.iter().flat_map(|byte| byte.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRegistration {
    pub handle: *mut c_void,
    pub descriptor: *mut c_void,
    pub key: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub local: *mut c_void,
    pub len_bytes: usize,
    pub descriptor: *mut c_void,
    pub remote: u64,
    pub key: u64,
    pub data: u64,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfiCompletion {
    pub context: *mut c_void,
    pub flags: u64,
    pub len_bytes: usize,
    pub buffer: *mut c_void,
    pub data: u64,
}

impl FfiCompletion {
    pub const EMPTY: FfiCompletion = FfiCompletion {
        context: std::ptr::null_mut(),
        flags: 0,
        len_bytes: 0,
        buffer: std::ptr::null_mut(),
        data: 0,
    };
}

#[repr(C)]
pub struct FfiFailure {
    pub context: *mut c_void,
    pub error: i32,
    text: [c_char; 160],
}

impl FfiFailure {
    pub fn empty() -> FfiFailure {
        FfiFailure { context: std::ptr::null_mut(), error: 0, text: [0; 160] }
    }

    /// Text of the provider in addition to the error's own.
    pub fn text(&self) -> String {
        text_of(&self.text)
    }
}

/// `enum ofi_event_kind`.
pub const EVENT_REQUEST: u32 = 1;
pub const EVENT_CONNECTED: u32 = 2;
pub const EVENT_SHUTDOWN: u32 = 3;
pub const EVENT_FAILED: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FfiEvent {
    pub kind: u32,
    pub error: i32,
    pub token: [u8; TOKEN_BYTES],
    pub token_bytes: u32,
}

/// `struct ofi_link`, opaque here.
#[repr(C)]
pub struct RawLink {
    _private: [u8; 0],
}

pub type Visitor = unsafe extern "C" fn(*mut c_void, *const FfiFacts);
type Post = unsafe extern "C" fn(*mut RawLink, *const Transfer) -> c_int;

#[repr(C)]
pub struct FfiTable {
    pub remote_data: u64,
    pub providers: unsafe extern "C" fn(Visitor, *mut c_void) -> c_int,
    pub interfaces: unsafe extern "C" fn(*const Query, Visitor, *mut c_void) -> c_int,
    pub open: unsafe extern "C" fn(*const Query, *mut *mut RawLink, *mut FfiFacts) -> c_int,
    pub close: unsafe extern "C" fn(*mut RawLink),
    pub listen: unsafe extern "C" fn(*mut RawLink) -> c_int,
    pub name: unsafe extern "C" fn(*mut RawLink, *mut c_void, *mut usize) -> c_int,
    pub insert: unsafe extern "C" fn(*mut RawLink, *const c_void, usize) -> c_int,
    pub dial: unsafe extern "C" fn(*mut RawLink, *const c_void, usize, *const u8) -> c_int,
    pub event: unsafe extern "C" fn(*mut RawLink, *mut FfiEvent) -> c_int,
    pub admit: unsafe extern "C" fn(*mut RawLink) -> c_int,
    pub accept: unsafe extern "C" fn(*mut RawLink) -> c_int,
    pub refuse: unsafe extern "C" fn(*mut RawLink),
    pub shutdown: unsafe extern "C" fn(*mut RawLink),
    pub has_atomics: unsafe extern "C" fn(*mut RawLink) -> c_int,
    pub enroll:
        unsafe extern "C" fn(*mut RawLink, *mut c_void, usize, c_int, u64, *mut RawRegistration) -> c_int,
    pub dismiss: unsafe extern "C" fn(*mut c_void),
    pub receive: unsafe extern "C" fn(*mut RawLink, *mut c_void) -> c_int,
    pub write: Post,
    pub write_delivered: Post,
    pub write_data: Post,
    pub write_data_silently: Post,
    pub inject: Post,
    pub inject_data: Post,
    pub read: Post,
    pub fetch_add: Post,
    pub compare_swap: Post,
    pub poll: unsafe extern "C" fn(*mut RawLink, *mut FfiCompletion, usize) -> c_int,
    pub failure: unsafe extern "C" fn(*mut RawLink, *mut FfiFailure) -> c_int,
    pub try_wait: unsafe extern "C" fn(*mut RawLink) -> c_int,
    pub error_text: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The functions that libfabric exports, as pointers that only the shim calls.
#[repr(C)]
struct FfiExports {
    getinfo: *const c_void,
    freeinfo: *const c_void,
    dupinfo: *const c_void,
    fabric: *const c_void,
    strerror: *const c_void,
    version: *const c_void,
}

#[cfg(libfabric)]
unsafe extern "C" {
    fn sublet_ofi_bind(exports: *const FfiExports) -> *const FfiTable;
}

const NEEDED: &str = "the ofi provider needs libfabric.so.1 (Debian: libfabric1, Fedora: libfabric)";

/// Returns libfabric, loaded at the first call and never unloaded: its providers start threads that cannot be stopped.
pub fn table() -> Result<&'static FfiTable, FabricError> {
    static LOADED: OnceLock<Result<&'static FfiTable, String>> = OnceLock::new();
    LOADED.get_or_init(load).clone().map_err(FabricError::Unsupported)
}

#[cfg(not(libfabric))]
fn load() -> Result<&'static FfiTable, String> {
    let _ = bind;
    let reason = if cfg!(target_env = "musl") {
        "this program has no ofi provider: its C library is musl, with which libfabric cannot be loaded"
    } else {
        "this build has no ofi provider: libfabric's headers (Debian: libfabric-dev, Fedora: libfabric-devel) were \
         missing when it was built"
    };
    Err(reason.into())
}

#[cfg(libfabric)]
fn load() -> Result<&'static FfiTable, String> {
    let handlers = Handlers::now();
    let table = bind_and_begin();
    handlers.restore();
    table
}

#[cfg(libfabric)]
fn bind_and_begin() -> Result<&'static FfiTable, String> {
    let exports = bind()?;
    // SAFETY: `exports` has the functions that the shim's header names, of the library that it was built for or a
    // compatible one; no other code calls this.
    let table = unsafe { sublet_ofi_bind(&exports) };
    // SAFETY: null, or the shim's table, which is never freed or changed again.
    let table = unsafe { table.as_ref() }.ok_or_else(|| format!("{NEEDED}, version 1.9 or later"))?;
    // The first query makes libfabric load its providers, with all that these load.
    // SAFETY: the visitor reads nothing.
    unsafe { (table.providers)(ignore, std::ptr::null_mut()) };
    Ok(table)
}

#[cfg(libfabric)]
unsafe extern "C" fn ignore(_context: *mut c_void, _facts: *const FfiFacts) {}

fn bind() -> Result<FfiExports, String> {
    // SAFETY: loading runs the library's own initialization, which has no preconditions.
    let library = unsafe { libloading::Library::new("libfabric.so.1") }
        .map_err(|error| format!("{NEEDED}: {error}"))?;
    let find = |name: &str| {
        // SAFETY: the symbol is taken as an address only.
        let symbol = unsafe { library.get::<*const c_void>(name) };
        symbol.map(|symbol| *symbol).map_err(|error| format!("{NEEDED}: {error}"))
    };
    let exports = FfiExports {
        getinfo: find("fi_getinfo")?,
        freeinfo: find("fi_freeinfo")?,
        dupinfo: find("fi_dupinfo")?,
        fabric: find("fi_fabric")?,
        strerror: find("fi_strerror")?,
        version: find("fi_version")?,
    };
    std::mem::forget(library);
    Ok(exports)
}

impl FfiTable {
    /// Text of libfabric for an error number of either sign.
    pub fn text(&self, error: c_int) -> String {
        // SAFETY: the function takes any number.
        let text = unsafe { (self.error_text)(error.abs()) };
        if text.is_null() {
            return format!("error {}", error.abs());
        }
        // SAFETY: not null, so a string that ends in zero, valid until the next such call of this thread.
        let said = unsafe { CStr::from_ptr(text) };
        format!("{} ({})", said.to_string_lossy(), error.abs())
    }
}
