//! The client's door: take a lease, submit calls, give it back (rFaaS IV-B, Listing 2).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use sublet_proto::v1::{self, WorkerOptions};
use sublet_proto::{ALWAYS_HOT_NS, ALWAYS_WARM_NS, Code, Error, package};

use crate::arena::{Arena, Buffer};
use crate::deploy::read_package;
use crate::invocation::Invocation;
use crate::lease::link::ColdStart;
use crate::lease::{Call, Lease};
use crate::manager::{ManagerClient, default_address};

/// How workers wait for calls (rFaaS III-C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Poll for ever: the shortest latency, and a core that is paid for all the time.
    AlwaysHot,
    /// Sleep after every call: costs nothing between calls, and a wake-up at each.
    AlwaysWarm,
    /// Poll for this long after a call, then sleep.
    HotFor(Duration),
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::HotFor(Duration::from_millis(1))
    }
}

impl Policy {
    fn hot_timeout_ns(self) -> u64 {
        match self {
            Policy::AlwaysHot => ALWAYS_HOT_NS,
            Policy::AlwaysWarm => ALWAYS_WARM_NS,
            Policy::HotFor(time) => u64::try_from(time.as_nanos()).unwrap_or(ALWAYS_HOT_NS),
        }
    }
}

/// What to lease. Made by [`Allocation::new`] and changed by its methods.
#[derive(Clone, Debug)]
pub struct Allocation {
    package: String,
    cores: u32,
    memory_bytes: u64,
    timeout: Duration,
    slots: u32,
    slot_bytes: u64,
    policy: Policy,
    spin: Duration,
}

impl Allocation {
    /// One core for the functions of a package: a deployed one by name or digest, or the path of a package folder or
    /// shared object, which is deployed on the way. A path has a slash in it, ends with `.so`, or is `.`.
    pub fn new(package: impl Into<String>) -> Allocation {
        Allocation {
            package: package.into(),
            cores: 1,
            memory_bytes: 0,
            timeout: Duration::ZERO,
            slots: 8,
            slot_bytes: 64 << 10,
            policy: Policy::default(),
            spin: Duration::from_micros(50),
        }
    }

    /// So many cores, each with a worker.
    pub fn cores(mut self, cores: u32) -> Allocation {
        self.cores = cores;
        self
    }

    /// So much memory for the lease; without this, the manager's default.
    pub fn memory_bytes(mut self, memory_bytes: u64) -> Allocation {
        self.memory_bytes = memory_bytes;
        self
    }

    /// For so long; without this, the manager's default.
    pub fn timeout(mut self, timeout: Duration) -> Allocation {
        self.timeout = timeout;
        self
    }

    /// So many inbox slots for each worker, at least 1 and rounded up to a power of two: calls that may travel or
    /// wait while one executes.
    pub fn slots(mut self, slots: u32) -> Allocation {
        self.slots = slots.checked_next_power_of_two().unwrap_or(u32::MAX);
        self
    }

    /// Inputs of up to so many bytes may lie outside of the invoker's buffers: they are copied into a slot.
    pub fn slot_bytes(mut self, slot_bytes: u64) -> Allocation {
        self.slot_bytes = slot_bytes;
        self
    }

    /// How the workers wait.
    pub fn policy(mut self, policy: Policy) -> Allocation {
        self.policy = policy;
        self
    }

    /// How long whoever waits for a result polls before it sleeps; [`Duration::MAX`] polls for ever.
    pub fn spin(mut self, spin: Duration) -> Allocation {
        self.spin = spin;
        self
    }

    fn request(&self, package: String) -> v1::LeaseRequest {
        v1::LeaseRequest {
            package,
            cores: self.cores,
            memory_bytes: self.memory_bytes,
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
            options: Some(WorkerOptions {
                slots: self.slots,
                slot_bytes: self.slot_bytes,
                hot_timeout_ns: self.policy.hot_timeout_ns(),
            }),
        }
    }
}

/// A function of the current lease's package, found once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(u16);

/// Choices for one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Which worker executes it; without this, one that looks idle.
    pub worker: Option<u32>,
    /// By when it must have ended; see [`Invocation::wait_deadline`].
    pub deadline: Option<Instant>,
    /// Whether the completion is to tell the time that the worker spent in the function. Costs some nanoseconds.
    pub timed: bool,
}

/// A client of one manager: allocates memory, holds at most one lease, and submits calls to its workers.
///
/// Submitting takes `&self`, from any number of threads at once; leasing takes `&mut self`.
///
/// ```no_run
/// # fn main() -> Result<(), sublet_proto::Error> {
/// use sublet_runtime::{Allocation, Invoker};
///
/// let mut invoker = Invoker::connect()?;
/// invoker.allocate(&Allocation::new("./libhello.so"))?;
/// let mut input = invoker.buffer::<u8>(5)?;
/// input.copy_from_slice(b"world");
/// let mut output = invoker.buffer::<u8>(64)?;
/// let done = invoker.submit("greet", &input, &mut output)?.wait()?;
/// println!("{}", String::from_utf8_lossy(&output[..done.output_bytes]));
/// invoker.deallocate()?;
/// # Ok(())
/// # }
/// ```
pub struct Invoker {
    manager: ManagerClient,
    arena: Arc<Arena>,
    lease: Option<Arc<Lease>>,
}

impl Invoker {
    /// Submits a call of a function of the leased package: `function` reads `input` and writes `output`. Memory from
    /// [`Invoker::buffer`] is used in place; other input is copied into the worker's inbox, and other output out of
    /// a buffer, once. Blocks only while the worker has a call in each of its slots.
    ///
    /// # Errors
    /// `not_allocated`, `unknown_function`, `input_too_large`, `too_many_in_flight`, and whatever has ended the lease.
    #[inline(always)]
    pub fn submit<'call, I: Pod, O: Pod>(
        &self,
        function: &str,
        input: &'call [I],
        output: &'call mut [O],
    ) -> Result<Invocation<'call>, Error> {
        let function = self.function(function)?;
        self.submit_with(function, input, output, CallOptions::default())
    }

    /// As [`Invoker::submit`], with a function found before and with choices.
    #[inline(always)]
    pub fn submit_with<'call, I: Pod, O: Pod>(
        &self,
        function: Function,
        input: &'call [I],
        output: &'call mut [O],
        options: CallOptions,
    ) -> Result<Invocation<'call>, Error> {
        let (input, output): (&[u8], &mut [u8]) =
            (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        let input_len = call_size("input", input.len())?;
        let output_capacity = call_size("output", output.len())?;
        // SAFETY: both slices are borrowed for `'call`, which the invocation carries.
        unsafe {
            self.submit_raw(
                function,
                input.as_ptr(),
                input_len,
                output.as_mut_ptr(),
                output_capacity,
                options,
            )
        }
    }

    /// As [`Invoker::submit_with`], for callers whose memory the compiler does not watch over.
    ///
    /// # Safety
    /// `input` must be readable for `input_len` bytes and `output` writable for `output_capacity` bytes until the
    /// invocation has ended or been dropped, and nobody may write either meanwhile.
    #[inline(always)]
    pub unsafe fn submit_raw<'call>(
        &self,
        function: Function,
        input: *const u8,
        input_len: u32,
        output: *mut u8,
        output_capacity: u32,
        options: CallOptions,
    ) -> Result<Invocation<'call>, Error> {
        let lease = self.held_lease()?;
        let CallOptions { worker, deadline, timed } = options;
        let call = Call { function: function.0, worker, input, input_len, output, output_capacity, timed };
        let sent = lease.dispatch(&call)?;
        Ok(Invocation::new(lease, sent, call, deadline))
    }

    /// Finds a function of the leased package, by its own name or as `package/function`.
    #[inline(always)]
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        self.held_lease()?.function(name).map(Function)
    }

    /// A client of the manager at `$SUBLET_MANAGER`, or of this machine's own `sublet up`.
    pub fn connect() -> Result<Invoker, Error> {
        Invoker::connect_to(&default_address())
    }

    /// A client of the manager at an address such as `unix:/run/sublet/manager.sock`.
    pub fn connect_to(manager: &str) -> Result<Invoker, Error> {
        Ok(Invoker { manager: ManagerClient::connect(manager)?, arena: Arena::new()?, lease: None })
    }

    /// Takes a lease and starts its workers, which then wait as their policy says. Blocks for a cold start; done
    /// ahead of time it hides one.
    ///
    /// # Errors
    /// `already_allocated`; what is wrong with the package; `insufficient_resources` or `no_capacity` where no node
    /// has so much, ever or now.
    pub fn allocate(&mut self, allocation: &Allocation) -> Result<(), Error> {
        if let Some(lease) = &self.lease {
            let message = format!("this invoker holds lease {}: deallocate it first", lease.description.id);
            return Err(Error::new(Code::AlreadyAllocated, message));
        }
        let package = self.deploy_if_path(&allocation.package)?;
        let grant = self.manager.request_lease(allocation.request(package))?;
        let lease = Lease::attach(grant, self.arena.clone(), allocation.spin)?;
        if let Err(error) = lease.revive() {
            // Why the workers did not start is the better thing to say.
            let _ = lease.end();
            return Err(error);
        }
        self.lease = Some(lease);
        Ok(())
    }

    /// Gives the lease back and returns what it used. Calls that have not ended fail with `lease_ended`. Without a
    /// lease it does nothing.
    ///
    /// # Errors
    /// `agent_unreachable` if its agent is gone: then the lease is over, too, and only the bill says what it used.
    pub fn deallocate(&mut self) -> Result<v1::Usage, Error> {
        match self.lease.take() {
            Some(lease) => lease.end(),
            None => Ok(v1::Usage::default()),
        }
    }

    /// Allocates a buffer of `len` values that workers reach without copying, now or in a later lease.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Buffer::new(&self.arena, len, || self.lease.as_ref().map_or(Ok(()), |lease| lease.publish_regions()))
    }

    /// The lease, if there is one.
    pub fn lease(&self) -> Option<&v1::Lease> {
        self.lease.as_ref().map(|lease| &lease.description)
    }

    /// The leased package, if there is one.
    pub fn package(&self) -> Option<&v1::PackageInfo> {
        self.lease.as_ref().map(|lease| &lease.package)
    }

    /// The number of workers; 0 without a lease.
    pub fn workers(&self) -> u32 {
        self.lease.as_ref().map_or(0, |lease| lease.workers())
    }

    /// When the lease's latest cold start reached what.
    pub fn cold_start(&self) -> Option<ColdStart> {
        self.lease.as_ref().map(|lease| lease.cold_start())
    }

    /// The manager, for everything that is not a call.
    pub fn manager(&self) -> &ManagerClient {
        &self.manager
    }

    #[inline(always)]
    fn held_lease(&self) -> Result<&Arc<Lease>, Error> {
        self.lease.as_ref().ok_or_else(not_allocated)
    }

    fn deploy_if_path(&self, name: &str) -> Result<String, Error> {
        let is_path = name.contains('/') || name.ends_with(".so") || name == ".";
        if !is_path {
            return Ok(name.to_owned());
        }
        let encoded = read_package(Path::new(name))?;
        let digest = package::digest(&encoded);
        if self.manager.resolve(&digest).is_err() {
            self.manager.deploy(encoded)?;
        }
        Ok(digest)
    }
}

impl Drop for Invoker {
    fn drop(&mut self) {
        // The agent ends the lease as well when it sees the connection close.
        let _ = self.deallocate();
    }
}

#[inline(always)]
fn call_size(what: &str, len_bytes: usize) -> Result<u32, Error> {
    u32::try_from(len_bytes).map_err(|_| too_large(what, len_bytes))
}

#[cold]
fn too_large(what: &str, len_bytes: usize) -> Error {
    let message = format!("{what} of {len_bytes} bytes: a call's sizes have 32 bits");
    Error::new(Code::InvalidArgument, message)
}

#[cold]
fn not_allocated() -> Error {
    Error::new(Code::NotAllocated, "there is no lease: allocate first")
}
