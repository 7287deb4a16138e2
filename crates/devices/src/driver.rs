//! Defines the operations of a driver for devices, without anything that all drivers share.
//!
//! A driver has one open device, with a number of lanes: launches in one lane execute in order, and lanes execute in
//! parallel. Its handles keep all objects that they need alive, and may be dropped in any order.
//!
//! A caller writes, wipes and releases memory only while no lane contains work that uses it: where host and device
//! share memory the host does this itself, at once. A caller that launches therefore reads the result, or gives the
//! device up for good.

use crate::{DeviceError, DriverKind, Patience};

/// One open device.
pub trait Driver: Sized + Send + Sync + 'static {
    /// The library by which the driver uses devices.
    const KIND: DriverKind;
    /// A loaded device program.
    type Module: Send + Sync;
    /// One kernel, with the arguments of one launch at a time.
    type Kernel: Send;
    /// Memory of the device.
    type Memory: Send + Sync;
    /// A queue in which launches execute in order.
    type Lane: Send;

    /// Names device and driver with their versions: a program that was built stays valid while this is the same.
    fn identity(&self) -> &str;

    /// Largest piece of memory, in bytes.
    fn most_bytes(&self) -> u64;

    /// Number of launches that run at once.
    fn lanes(&self) -> usize;

    /// Makes device programs of several parts: one program if possible.
    fn build(&self, parts: &[ImagePart<'_>]) -> Result<BuildResult, DeviceError>;

    /// Loads a program that was built.
    fn load(&self, program: &[u8]) -> Result<Self::Module, DeviceError>;

    /// Finds a kernel with the signature of functions.
    fn kernel(&self, module: &Self::Module, name: &str) -> Result<Self::Kernel, DeviceError>;

    /// Allocates memory. Its content is undefined.
    fn memory(&self, len_bytes: u64) -> Result<Self::Memory, DeviceError>;

    /// Makes the lane of this number: one of [`Driver::lanes`], or one more for operations other than launches.
    fn lane(&self, number: usize) -> Result<Self::Lane, DeviceError>;

    /// Copies to the device, and returns when the copy is complete.
    fn write(&self, lane: &Self::Lane, memory: &Self::Memory, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the device once all earlier work of the lane has ended.
    fn read(&self, lane: &Self::Lane, memory: &Self::Memory, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Sets the first bytes of a piece to zero before later work of the lane begins.
    fn wipe(&self, lane: &Self::Lane, memory: &Self::Memory, len_bytes: u64) -> Result<(), DeviceError>;

    /// Waits for all work of the lane.
    fn finish(&self, lane: &Self::Lane) -> Result<(), DeviceError>;

    /// Launches a kernel, and waits for its end if patience has one.
    fn launch(
        &self,
        lane: &Self::Lane,
        kernel: &mut Self::Kernel,
        arguments: &KernelArguments<'_, Self>,
        grid: Grid,
        patience: Patience,
    ) -> Result<LaunchProgress, DeviceError>;
}

/// Arguments of a kernel.
pub struct KernelArguments<'a, D: Driver> {
    /// Memory that the kernel reads.
    pub input: &'a D::Memory,
    /// Size of the kernel's input, in bytes.
    pub size: u32,
    /// Memory that the kernel writes.
    pub output: &'a D::Memory,
    /// Most bytes that the kernel may write.
    pub capacity: u32,
    /// Memory of four bytes into which the kernel writes the size of its output.
    pub written: &'a D::Memory,
}

/// Number of work-items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of work-items in all: whole groups.
    pub items: u64,
    /// Number of work-items of a group, if the specification defines it.
    pub group: Option<u32>,
}

/// State of a launch when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchProgress {
    /// The launch was given to the device; later work of the lane waits for it.
    Launched,
    /// Patience has ended before the launch has.
    RunsOn,
}

/// One part of an image.
#[derive(Clone, Debug)]
pub enum ImagePart<'a> {
    /// A source.
    Source {
        /// The source text.
        text: &'a str,
        /// Options for the compiler.
        options: &'a str,
        /// The kernels that are needed.
        kernels: &'a [String],
        /// Prefix of the kernels' names, where several sources become one program.
        prefix: &'a str,
    },
    /// The object that an earlier build made of a source.
    Object {
        /// Content of the object.
        bytes: Vec<u8>,
        /// The prefix with which the object was built.
        prefix: &'a str,
    },
    /// An untrusted binary, complete.
    Binary(&'a [u8]),
}

/// Result of a build.
#[derive(Clone, Debug, Default)]
pub struct BuildResult {
    /// The programs of the image.
    pub programs: Vec<Vec<u8>>,
    /// The location of each part, or the compiler's log.
    pub parts: Vec<Result<BuiltPart, String>>,
}

/// Location of a part in an image.
#[derive(Clone, Debug, Default)]
pub struct BuiltPart {
    /// Object that makes compiling unnecessary the next time, if it is new.
    pub object: Option<Vec<u8>>,
    /// Index of the program that contains the part's kernels.
    pub program: usize,
    /// Whether the kernels' names have the prefix.
    pub is_prefixed: bool,
}
