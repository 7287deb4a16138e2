//! Defines the operations of a driver for devices, without anything that all drivers share.
//!
//! A driver has one open device, with a number of lanes: what is in one lane goes in order, and lanes go at once. Its
//! handles keep what they need alive, and may be dropped in any order.
//!
//! A caller writes, wipes and releases memory only while nothing that uses it is in a lane: where host and device share
//! memory it is the host that does it, at once. Who launches therefore reads, or gives the device up for good.

use crate::{DeviceError, Kind, Patience};

/// One open device.
pub trait Driver: Sized + Send + Sync + 'static {
    /// By which library.
    const KIND: Kind;
    /// A device program, loaded.
    type Module: Send + Sync;
    /// One kernel, with the arguments of one launch at a time.
    type Kernel: Send;
    /// Memory of the device.
    type Memory: Send + Sync;
    /// Where launches go in order.
    type Lane: Send;

    /// Device and driver with their versions: where this is the same, a program that was built is still good.
    fn identity(&self) -> &str;

    /// Largest piece of memory, in bytes.
    fn most_bytes(&self) -> u64;

    /// How many launches run at once.
    fn lanes(&self) -> usize;

    /// Makes device programs of several parts: one if that can be.
    fn build(&self, parts: &[Part<'_>]) -> Result<Build, DeviceError>;

    /// Loads what was built.
    fn load(&self, program: &[u8]) -> Result<Self::Module, DeviceError>;

    /// Finds a kernel of the form that functions have.
    fn kernel(&self, module: &Self::Module, name: &str) -> Result<Self::Kernel, DeviceError>;

    /// Takes memory, whose content is whatever it was.
    fn memory(&self, len_bytes: u64) -> Result<Self::Memory, DeviceError>;

    /// Makes the lane of this number, of [`Driver::lanes`] and one more for what is not a launch.
    fn lane(&self, number: usize) -> Result<Self::Lane, DeviceError>;

    /// Copies to the device, and returns when it is done.
    fn write(&self, lane: &Self::Lane, memory: &Self::Memory, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the device when all that is before it in the lane has ended.
    fn read(&self, lane: &Self::Lane, memory: &Self::Memory, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Sets the first bytes of a piece to zero, before what follows in the lane begins.
    fn wipe(&self, lane: &Self::Lane, memory: &Self::Memory, len_bytes: u64) -> Result<(), DeviceError>;

    /// Waits for all that is in the lane.
    fn finish(&self, lane: &Self::Lane) -> Result<(), DeviceError>;

    /// Launches a kernel, and waits for its end if patience has one.
    fn launch(
        &self,
        lane: &Self::Lane,
        kernel: &mut Self::Kernel,
        arguments: &Arguments<'_, Self>,
        grid: Grid,
        patience: Patience,
    ) -> Result<Progress, DeviceError>;
}

/// What a kernel is called with.
pub struct Arguments<'a, D: Driver> {
    /// What it reads.
    pub input: &'a D::Memory,
    /// How much of that is its input, in bytes.
    pub size: u32,
    /// What it writes.
    pub output: &'a D::Memory,
    /// How much it may write, in bytes.
    pub capacity: u32,
    /// Where it says how much it wrote: four bytes.
    pub written: &'a D::Memory,
}

/// How many work-items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Altogether: whole groups.
    pub items: u64,
    /// Of a group, if that is said.
    pub group: Option<u32>,
}

/// What is known when a launch returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was given to the device; what follows in the lane waits for it.
    Launched,
    /// Patience has ended, and it has not.
    RunsOn,
}

/// What an image is made of.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// A source.
    Source {
        /// Its text.
        text: &'a str,
        /// What the compiler is told.
        options: &'a str,
        /// Its kernels that are wanted.
        kernels: &'a [String],
        /// What is to stand before their names, where several sources become one program.
        prefix: &'a str,
    },
    /// What an earlier build made of such a source.
    Object {
        /// What it returned.
        bytes: Vec<u8>,
        /// With which prefix.
        prefix: &'a str,
    },
    /// A stranger's binary, complete.
    Binary(&'a [u8]),
}

/// What a build made.
#[derive(Clone, Debug, Default)]
pub struct Build {
    /// The programs of the image.
    pub programs: Vec<Vec<u8>>,
    /// For each part where it is, or what the compiler said.
    pub parts: Vec<Result<BuiltPart, String>>,
}

/// Where a part of an image is.
#[derive(Clone, Debug, Default)]
pub struct BuiltPart {
    /// What saves compiling the next time, if it is new.
    pub object: Option<Vec<u8>>,
    /// In which of the programs its kernels are.
    pub program: usize,
    /// Whether the prefix stands before their names.
    pub is_prefixed: bool,
}
