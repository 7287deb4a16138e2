//! Defines the engine that calls the functions of a package: native code in this crate ([`super::library`]), or
//! an engine of another.
//!
//! A worker program is [`super::process::run`] with one [`Engine`]. The loop of [`Worker`](super::Worker) is compiled
//! for the engine's own [`FunctionCaller`], so that choosing between engines adds no cost to a call: a process has one kind of
//! package, and runs the program for that kind.
//!
//! A client can write to inputs and outputs at any time. Therefore an engine gets them as [`CallInput`] and [`CallOutput`],
//! which copy, or return addresses to code that handles such writes, and are never references.

use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;

use sublet_fabric::window::RegionAddress;
use sublet_fabric::{Endpoint, SharedBytes, SharedBytesMut};
use sublet_proto::v1::{PackageInfo, Variable};
use sublet_proto::{Code, Error, to_usize};
pub use sublet_xpu::{BufferName, InputSource, OutputSink};

use crate::frames::SharedAddress;
use crate::wire::MAX_MESSAGE_BYTES;

/// A loaded package, shared by the threads of a worker process for as long as it lives.
pub trait Engine: Send + Sync + 'static {
    /// Whether the first worker has to be the thread on which the process began: interpreters have a main thread.
    const ON_MAIN_THREAD: bool = false;

    /// The object by which one thread calls functions.
    type Caller<'engine>: FunctionCaller
    where
        Self: 'engine;

    /// The caller of one worker thread, made on that thread before its first call.
    ///
    /// # Errors
    /// The engine's error, which is sent to the client.
    fn caller(&self, worker: u32) -> Result<Self::Caller<'_>, Error>;
}

/// The object by which one worker thread calls functions; it holds the engine's state for the thread.
pub trait FunctionCaller {
    /// Set if the engine keeps the content of [places](BufferName) between calls, as in the memory of a device.
    const KEEPS: bool = false;

    /// Calls the function of this index in the package, and returns the length of the output. If it exceeds the
    /// output's capacity, the worker reports the error.
    ///
    /// # Errors
    /// [`Code::UnknownFunction`] without such a function. [`Code::FunctionFailed`], [`Code::MemoryExceeded`] and
    /// [`Code::DeadlineExceeded`] come with [`FunctionCaller::message`]. None of them ends the worker.
    fn call(&mut self, function: u16, input: CallInput<'_>, output: CallOutput<'_>) -> Result<u32, Code>;

    /// Calls a function like [`FunctionCaller::call`], with input from a place, or output to one.
    ///
    /// # Errors
    /// As for that; [`Code::Internal`] if the engine keeps no content, or the place has none.
    fn step(
        &mut self,
        function: u16,
        from: InputSource<CallInput<'_>>,
        to: OutputSink<CallOutput<'_>>,
    ) -> Result<u32, Code> {
        match (from, to) {
            (InputSource::Given(input), OutputSink::Given(output)) => self.call(function, input, output),
            _ => Err(Code::Internal),
        }
    }

    /// Copies the input to a place, or a place to the output, and returns the number of bytes.
    ///
    /// # Errors
    /// As for [`FunctionCaller::step`].
    fn copy(
        &mut self,
        _from: InputSource<CallInput<'_>>,
        _to: OutputSink<CallOutput<'_>>,
    ) -> Result<u32, Code> {
        Err(Code::Internal)
    }

    /// Discards the content of a place.
    fn forget(&mut self, _place: BufferName) {}

    /// The error message of the latest call.
    fn message(&self) -> &[u8];

    /// Number of bytes of the output that are a report of the latest call's failure, in the form of the function's
    /// language.
    fn reported_bytes(&self) -> u32 {
        0
    }

    /// The client has its result: time to clean up after the call, or to prepare the next.
    #[inline(always)]
    fn rest(&mut self) {}
}

/// The package that an engine loads, and the limits of all of its calls together.
#[derive(Clone, Copy, Debug)]
pub struct EngineLoad<'setup> {
    /// The folder of the unpacked package.
    pub folder: &'setup Path,
    /// The package.
    pub package: &'setup PackageInfo,
    /// Index of the build to load.
    pub build: u32,
    /// Number of threads that will call its functions.
    pub workers: u32,
    /// Memory of the lease that the process may allocate, in bytes.
    pub memory_bytes: u64,
    /// Environment variables of the functions, which the process has set.
    pub variables: &'setup [Variable],
}

/// A call's input, in memory that the client can write to.
#[derive(Clone, Copy)]
pub struct CallInput<'call> {
    at: NonNull<u8>,
    len: u32,
    client: Option<&'call Endpoint>,
    call: PhantomData<&'call ()>,
}

impl<'call> CallInput<'call> {
    /// An input in private memory, for calls that no client makes.
    pub fn of(bytes: &'call [u8]) -> CallInput<'call> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        CallInput { at: NonNull::from(bytes).cast(), len, client: None, call: PhantomData }
    }

    /// # Safety
    /// `len` bytes at `at` are mapped for as long as the input lives.
    #[inline(always)]
    pub(crate) unsafe fn new(at: NonNull<u8>, len: u32, client: &'call Endpoint) -> Self {
        CallInput { at, len, client: Some(client), call: PhantomData }
    }

    /// The address in this process of other memory of the client's, which stays mapped for as long as that lives.
    /// Between machines it is a copy on this side, which holds only the bytes that were sent.
    #[inline(always)]
    pub fn reach(&self, place: SharedAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        let SharedAddress { number: region, offset } = place;
        self.client?.mapped(RegionAddress { region, offset }, len_bytes)
    }

    /// Length of the input, in bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "an empty input is like any other")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The address of the input in this process, for engines that read it in place.
    #[inline(always)]
    pub fn address(&self) -> NonNull<u8> {
        self.at
    }

    /// Copies it to the front of `into`, as far as both go. A client that writes meanwhile makes them any bytes.
    #[inline(always)]
    pub fn copy_to(&self, into: &mut [u8]) {
        self.copy_from(0, into);
    }

    /// Copies bytes from the offset `at` on.
    #[inline(always)]
    pub fn copy_from(&self, at: u32, into: &mut [u8]) {
        // SAFETY: `new` promises `len` mapped bytes, to which no reference is made.
        let bytes = unsafe { SharedBytes::new(self.at, self.len as usize) };
        bytes.split_at(at as usize).1.copy_to(into);
    }
}

/// A call's output, in memory that the client can write to.
#[derive(Debug)]
pub struct CallOutput<'call> {
    at: NonNull<u8>,
    capacity: u32,
    call: PhantomData<&'call ()>,
}

impl<'call> CallOutput<'call> {
    /// An output in private memory, for calls that no client makes.
    pub fn of(bytes: &'call mut [u8]) -> CallOutput<'call> {
        let capacity = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        CallOutput { at: NonNull::from(bytes).cast(), capacity, call: PhantomData }
    }

    /// # Safety
    /// `capacity` bytes at `at` are mapped for as long as the output lives, and no code in this process has references
    /// to them.
    #[inline(always)]
    pub(crate) unsafe fn new(at: NonNull<u8>, capacity: u32) -> Self {
        CallOutput { at, capacity, call: PhantomData }
    }

    /// Number of bytes that it can hold.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The address of the output in this process, for engines that write it in place.
    #[inline(always)]
    pub fn address(&mut self) -> NonNull<u8> {
        self.at
    }

    /// Writes the first bytes of the output, up to its capacity.
    #[inline(always)]
    pub fn copy_from<'from>(&mut self, from: impl Into<SharedBytes<'from>>) {
        // SAFETY: `new` promises `capacity` mapped bytes, to which no reference is made.
        let mut bytes = unsafe { SharedBytesMut::new(self.at, self.capacity as usize) };
        bytes.copy_from(from);
    }
}

/// Error message of a failed call, truncated to the capacity of a result's message slot.
#[derive(Clone, Debug)]
pub struct ErrorMessage {
    len: usize,
    bytes: [u8; ErrorMessage::CAPACITY],
}

impl ErrorMessage {
    /// Largest length of a message, in bytes.
    pub const CAPACITY: usize = to_usize(MAX_MESSAGE_BYTES);

    /// An empty one.
    pub const fn new() -> ErrorMessage {
        ErrorMessage { len: 0, bytes: [0; ErrorMessage::CAPACITY] }
    }

    /// Creates a message, and truncates it to [`ErrorMessage::CAPACITY`].
    pub fn of(bytes: &[u8]) -> ErrorMessage {
        let mut message = ErrorMessage::new();
        message.len = bytes.len().min(ErrorMessage::CAPACITY);
        message.bytes[..message.len].copy_from_slice(&bytes[..message.len]);
        message
    }

    /// The message's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for ErrorMessage {
    fn default() -> ErrorMessage {
        ErrorMessage::new()
    }
}
