//! Defines the engine that calls the functions of a package: native code in this crate ([`super::library`]), or
//! an engine of another.
//!
//! A worker program is [`super::process::run`] with one [`Engine`]. The loop of [`Worker`](super::Worker) is compiled for
//! the engine's own [`Caller`], so that choosing between engines costs a call nothing: a process has one kind of package,
//! and its program is that kind's.
//!
//! A client can write to inputs and outputs at any time. Therefore an engine gets them as [`Input`] and [`Output`], which
//! copy, or hand out addresses to who knows what to do with them, and are never references.

use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;

use sublet_fabric::window::Address;
use sublet_fabric::{Endpoint, SharedBytes, SharedBytesMut};
use sublet_proto::v1::PackageInfo;
use sublet_proto::{Code, Error};
pub use sublet_xpu::{Place, Sink, Source};

use crate::frames::Shared;
use crate::wire::MAX_MESSAGE_BYTES;

/// A loaded package, shared by the threads of a worker process for as long as it lives.
pub trait Engine: Send + Sync + 'static {
    /// Whether the first worker has to be the thread on which the process began: interpreters have a main thread.
    const ON_MAIN_THREAD: bool = false;

    /// What one thread calls functions with.
    type Caller<'engine>: Caller
    where
        Self: 'engine;

    /// The caller of one worker thread, made on that thread before its first call.
    ///
    /// # Errors
    /// Whatever keeps the engine from it is told to the client.
    fn caller(&self, worker: u32) -> Result<Self::Caller<'_>, Error>;
}

/// What one worker thread calls functions with; it holds what an engine has for each thread.
pub trait Caller {
    /// Whether what is in [places](Place) stays with the engine, as in the memory of a device.
    const KEEPS: bool = false;

    /// Calls the function of this index in the package, and says how many bytes of output there are. More than the
    /// output's capacity is an error that the worker finds by itself.
    ///
    /// # Errors
    /// [`Code::UnknownFunction`] without such a function. With [`Code::FunctionFailed`], [`Code::MemoryExceeded`] and
    /// [`Code::DeadlineExceeded`] goes [`Caller::message`]. None of them ends the worker.
    fn call(&mut self, function: u16, input: Input<'_>, output: Output<'_>) -> Result<u32, Code>;

    /// As [`Caller::call`], of a function that reads what was left in a place, or leaves its output in another one.
    ///
    /// # Errors
    /// As for that; [`Code::Internal`] if something is to be kept and the engine does not, or has nothing.
    fn step(&mut self, function: u16, from: Source<Input<'_>>, to: Sink<Output<'_>>) -> Result<u32, Code> {
        match (from, to) {
            (Source::Given(input), Sink::Given(output)) => self.call(function, input, output),
            _ => Err(Code::Internal),
        }
    }

    /// Copies what is given to a place, or from one to where it is wanted, and says how many bytes.
    ///
    /// # Errors
    /// As for [`Caller::step`].
    fn copy(&mut self, _from: Source<Input<'_>>, _to: Sink<Output<'_>>) -> Result<u32, Code> {
        Err(Code::Internal)
    }

    /// Nobody wants what is in a place.
    fn forget(&mut self, _place: Place) {}

    /// Why the latest call failed.
    fn message(&self) -> &[u8];

    /// How many bytes of its output say more about why the latest call failed, in the form of the function's language.
    fn reported_bytes(&self) -> u32 {
        0
    }

    /// The client has its result: time to clean up after the call, or to prepare the next.
    #[inline(always)]
    fn rest(&mut self) {}
}

/// What an engine is loaded from, and what all of its calls together may take.
#[derive(Clone, Copy, Debug)]
pub struct Load<'setup> {
    /// The folder of the unpacked package.
    pub folder: &'setup Path,
    /// The package,
    pub package: &'setup PackageInfo,
    /// and which of its builds is to be loaded.
    pub build: u32,
    /// How many threads will call its functions.
    pub workers: u32,
    /// The lease's memory as far as the process may allocate it.
    pub memory_bytes: u64,
}

/// A call's input, in memory that the client can write to.
#[derive(Clone, Copy)]
pub struct Input<'call> {
    at: NonNull<u8>,
    len: u32,
    client: Option<&'call Endpoint>,
    call: PhantomData<&'call ()>,
}

impl<'call> Input<'call> {
    /// One of private memory, for calls that no client makes.
    pub fn of(bytes: &'call [u8]) -> Input<'call> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Input { at: NonNull::from(bytes).cast(), len, client: None, call: PhantomData }
    }

    /// # Safety
    /// So many bytes are mapped there for as long as the input lives.
    #[inline(always)]
    pub(crate) unsafe fn new(at: NonNull<u8>, len: u32, client: &'call Endpoint) -> Self {
        Input { at, len, client: Some(client), call: PhantomData }
    }

    /// Where other memory of the client's lies in this process, which stays mapped for as long as that lives. Between
    /// machines it is this side's copy, which holds only what was sent.
    #[inline(always)]
    pub fn reach(&self, place: Shared, len_bytes: u64) -> Option<NonNull<u8>> {
        let Shared { number: region, offset } = place;
        self.client?.mapped(Address { region, offset }, len_bytes)
    }

    /// How many bytes it has.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "an empty input is like any other")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Where it lies in this process, for those who read it in place.
    #[inline(always)]
    pub fn address(&self) -> NonNull<u8> {
        self.at
    }

    /// Copies it to the front of `into`, as far as both go. A client that writes meanwhile makes them any bytes.
    #[inline(always)]
    pub fn copy_to(&self, into: &mut [u8]) {
        self.copy_from(0, into);
    }

    /// The same from one of its bytes on.
    #[inline(always)]
    pub fn copy_from(&self, at: u32, into: &mut [u8]) {
        // SAFETY: `new` promises `len` mapped bytes, to which no reference is made.
        let bytes = unsafe { SharedBytes::new(self.at, self.len as usize) };
        bytes.split_at(at as usize).1.copy_to(into);
    }
}

/// Where a call's output goes, in memory that the client can write to.
#[derive(Debug)]
pub struct Output<'call> {
    at: NonNull<u8>,
    capacity: u32,
    call: PhantomData<&'call ()>,
}

impl<'call> Output<'call> {
    /// One of private memory, for calls that no client makes.
    pub fn of(bytes: &'call mut [u8]) -> Output<'call> {
        let capacity = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Output { at: NonNull::from(bytes).cast(), capacity, call: PhantomData }
    }

    /// # Safety
    /// So many bytes are mapped there for as long as the output lives, and nobody in this process refers to them.
    #[inline(always)]
    pub(crate) unsafe fn new(at: NonNull<u8>, capacity: u32) -> Self {
        Output { at, capacity, call: PhantomData }
    }

    /// How many bytes it takes.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Where it lies in this process, for those who write it in place.
    #[inline(always)]
    pub fn address(&mut self) -> NonNull<u8> {
        self.at
    }

    /// Writes its first bytes, as far as it goes.
    #[inline(always)]
    pub fn copy_from<'from>(&mut self, from: impl Into<SharedBytes<'from>>) {
        // SAFETY: `new` promises `capacity` mapped bytes, to which no reference is made.
        let mut bytes = unsafe { SharedBytesMut::new(self.at, self.capacity as usize) };
        bytes.copy_from(from);
    }
}

/// What a failed call has to say, cut to what a result has room for.
#[derive(Clone, Debug)]
pub struct Message {
    len: usize,
    bytes: [u8; MAX_MESSAGE_BYTES as usize],
}

impl Message {
    /// How many bytes it can have.
    pub const CAPACITY: usize = MAX_MESSAGE_BYTES as usize;

    /// An empty one.
    pub const fn new() -> Message {
        Message { len: 0, bytes: [0; Message::CAPACITY] }
    }

    /// As much of it as there is room for.
    pub fn of(bytes: &[u8]) -> Message {
        let mut message = Message::new();
        message.len = bytes.len().min(Message::CAPACITY);
        message.bytes[..message.len].copy_from_slice(&bytes[..message.len]);
        message
    }

    /// What it says.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for Message {
    fn default() -> Message {
        Message::new()
    }
}
