//! Lists the OpenCL devices and their capabilities.

#![allow(unsafe_code)]

use std::ffi::c_uint;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use sublet_fabric::sync::lock;

use super::ffi::{self, Handle, Table, answer, number, text};
use crate::{DeviceError, DriverKind};

/// Most platforms, and most devices of one, that are listed.
const MOST: c_uint = 64;

/// Type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The machine's own processors.
    Processor,
    /// A graphics processor.
    Graphics,
    /// An FPGA or the like.
    Accelerator,
}

/// A device, its capabilities and sizes.
#[derive(Clone, Debug)]
pub struct OpenClDeviceInfo {
    /// The device's own name.
    pub name: String,
    /// The device's manufacturer.
    pub vendor: String,
    /// The platform (the driver) of the device, with its version.
    pub platform: String,
    /// Versions of the device's OpenCL and of its driver.
    pub version: String,
    /// Type of the device.
    pub kind: DeviceKind,
    /// Units that compute in parallel.
    pub compute_units: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Largest piece of it, in bytes.
    pub most_bytes: u64,
    /// Most work-items of one group.
    pub most_group_items: u64,
    /// Whether the device takes sources. Otherwise it takes binaries of its vendor's tools.
    pub has_compiler: bool,
    /// Most parts into which the device can be divided that share only memory.
    pub most_parts: u32,
    /// Whether host and device use the same memory: then commands copy nothing.
    pub shares_memory: bool,
    /// Reason why the device cannot be used, if it cannot.
    pub unusable: Option<String>,
    pub(super) device: OpenClDevice,
}

/// A device of the loader, which exists as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenClDevice(pub Handle);

// SAFETY: a device's handle is an identifier: the loader's functions take it on any thread.
unsafe impl Send for OpenClDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenClDevice {}

impl OpenClDeviceInfo {
    /// Names device and driver with their versions. A program that was built for one identity is valid for no other.
    pub(super) fn identity(&self) -> String {
        let OpenClDeviceInfo { name, vendor, platform, version, .. } = self;
        format!("{platform}; {vendor}; {name}; {version}")
    }
}

/// Lists all devices of all platforms, always in the same order, including those that cannot be used. An empty list is
/// an error that names the missing component.
pub fn discover() -> Result<Vec<OpenClDeviceInfo>, DeviceError> {
    let table = ffi::table()?;
    // PoCL's first answers are wrong if two threads query it at once.
    static ASKING: Mutex<()> = Mutex::new(());
    let _asking = lock(&ASKING);
    let mut platforms = [null_mut(); MOST as usize];
    let mut count = 0;
    // SAFETY: the array has the passed number of entries.
    let code = unsafe { (table.platforms)(MOST, platforms.as_mut_ptr(), &mut count) };
    let unusable = |reason: &str| DeviceError::Unusable { kind: DriverKind::OpenCl, reason: reason.into() };
    if code == ffi::NO_PLATFORM || (code == 0 && count == 0) {
        return Err(unusable("no driver is installed (Debian: pocl-opencl-icd for the processor)"));
    }
    ffi::check("listing platforms", code)?;
    let platforms = &platforms[..count.min(MOST) as usize];
    let found: Vec<_> = platforms.iter().flat_map(|platform| devices(table, *platform)).collect();
    if found.is_empty() { Err(unusable("no driver has a device")) } else { Ok(found) }
}

/// The device that executes a node's packages: the first that can be used. If none can, the first, with its reason.
pub fn first() -> Result<OpenClDeviceInfo, DeviceError> {
    let mut devices = discover()?;
    let usable = devices.iter().position(|info| info.unusable.is_none());
    Ok(devices.swap_remove(usable.unwrap_or(0)))
}

fn devices(table: &Table, platform: Handle) -> Vec<OpenClDeviceInfo> {
    let mut devices = [null_mut(); MOST as usize];
    let mut count = 0;
    // SAFETY: the platform is the loader's, and the array has the passed number of entries.
    let code =
        unsafe { (table.devices)(platform, ffi::DEVICE_TYPE_ALL, MOST, devices.as_mut_ptr(), &mut count) };
    let count = if code == 0 { count.min(MOST) as usize } else { 0 };
    let describe = |what| {
        // SAFETY: `answer` passes a buffer of the size that it names.
        let said = answer("asking a platform", |len, to, out| unsafe {
            (table.platform_info)(platform, what, len, to, out)
        });
        said.map(|bytes| text(&bytes)).unwrap_or_default()
    };
    let name = format!("{} {}", describe(ffi::PLATFORM_NAME), describe(ffi::PLATFORM_VERSION));
    devices[..count].iter().map(|device| device_info(table, OpenClDevice(*device), name.clone())).collect()
}

fn device_info(table: &Table, device: OpenClDevice, platform: String) -> OpenClDeviceInfo {
    let ask = |what: c_uint| {
        // SAFETY: the device is the loader's; `answer` passes a buffer of the size that it names.
        let said = answer("asking a device", |len, to, out| unsafe {
            (table.device_info)(device.0, what, len, to, out)
        });
        said.unwrap_or_default()
    };
    let (word, words) = (|what| number(&ask(what)), |what| text(&ask(what)));
    let unusable = match () {
        () if word(ffi::DEVICE_AVAILABLE) == 0 => Some("its driver says that it is not available".into()),
        () if word(ffi::DEVICE_LITTLE_ENDIAN) == 0 => Some("its bytes are in another order".into()),
        () if word(ffi::DEVICE_COMPUTE_UNITS) == 0 => Some("it has nothing that computes".into()),
        () => None,
    };
    OpenClDeviceInfo {
        name: words(ffi::DEVICE_NAME),
        vendor: words(ffi::DEVICE_VENDOR),
        platform,
        version: format!("{}, driver {}", words(ffi::DEVICE_VERSION), words(ffi::DRIVER_VERSION)),
        kind: match word(ffi::DEVICE_TYPE) {
            bits if bits & ffi::TYPE_CPU != 0 => DeviceKind::Processor,
            bits if bits & ffi::TYPE_GPU != 0 => DeviceKind::Graphics,
            _ => DeviceKind::Accelerator,
        },
        compute_units: u32::try_from(word(ffi::DEVICE_COMPUTE_UNITS)).unwrap_or(u32::MAX),
        memory_bytes: word(ffi::DEVICE_MEMORY),
        most_bytes: word(ffi::DEVICE_MAX_ALLOCATION),
        most_group_items: word(ffi::DEVICE_WORK_GROUP),
        has_compiler: word(ffi::DEVICE_COMPILER) != 0 && word(ffi::DEVICE_LINKER) != 0,
        most_parts: u32::try_from(word(ffi::DEVICE_MOST_SUB_DEVICES)).unwrap_or(u32::MAX),
        shares_memory: word(ffi::DEVICE_SHARED_MEMORY) & ffi::SHARED_FINE != 0 && ffi::shared().is_some(),
        unusable,
        device,
    }
}

/// Divides a device into parts with these numbers of compute units.
pub(super) fn cut(info: &OpenClDeviceInfo, counts: &[u32]) -> Result<Vec<OpenClDevice>, DeviceError> {
    let table = ffi::table()?;
    let mut properties = vec![ffi::PARTITION_BY_COUNTS];
    properties.extend(counts.iter().map(|count| (*count as usize).cast_signed()));
    properties.extend([0, 0]);
    let mut parts = vec![null_mut(); counts.len()];
    let mut made = 0;
    // SAFETY: the list of properties ends in zero; the array has the passed number of entries. The parts are never
    // released: the loader keeps them, like devices, as long as the process.
    let code = unsafe {
        (table.sub_devices)(
            info.device.0,
            properties.as_ptr(),
            ffi::count(counts),
            parts.as_mut_ptr(),
            &mut made,
        )
    };
    ffi::check("cutting the device", code)?;
    if made as usize != counts.len() {
        let reason = format!("{made} parts were made of {}", counts.len());
        return Err(DeviceError::Driver { operation: "cutting the device", reason });
    }
    Ok(parts.into_iter().map(OpenClDevice).collect())
}

/// Marks an absent list of properties.
pub(super) const NO_PROPERTIES: *const isize = null();
