//! Implements the client's interface: takes leases, submits calls, gives leases back (rFaaS IV-B, Listing 2).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use sublet_proto::v1;
use sublet_proto::{Code, Error, package, price};

pub(crate) mod allocation;
mod crowded;
mod held_leases;

pub use allocation::{Allocation, Policy};

use crate::access::Access;
use crate::arena::{Buffer, InputMemory, OutputMemory, RegisteredMemory};
use crate::deploy::{LockedPackage, PackageSources, check_package, is_path, read_sources};
use crate::fabrics::FabricChoice;
use crate::invocation::Invocation;
use crate::lease::link::{ColdStart, Notice};
use crate::lease::{Call, ClientLease};
use crate::manager::ManagerClient;
use crate::memory::{Memory, MemoryPlan};
use crate::swap::{SwapPlan, SwappedMemory};
use allocation::milliseconds;
use held_leases::HeldLeases;

/// A function of the current lease's package, found once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(u16);

/// Choices for one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Number of the worker that executes the call, among those of all leases. `None` chooses one that looks idle.
    pub worker: Option<u32>,
    /// Time by which the call must have ended; see [`Invocation::wait_deadline`].
    pub deadline: Option<Instant>,
    /// Whether the completion reports the time that the worker spent in the function. Costs some nanoseconds.
    pub timed: bool,
    /// Number of times that the call may be repeated, on another worker or on its own again, if its worker, its lease
    /// or its node ends before the call does. The call may then be executed in part, and more than once.
    pub retries: u32,
}

impl CallOptions {
    /// Allows `retries` repetitions of the call; see [`CallOptions::retries`].
    pub fn repeatable(mut self, retries: u32) -> CallOptions {
        self.retries = retries;
        self
    }
}

/// A client of the managers of one store. It allocates memory, holds the leases that one [`Allocation`] was granted,
/// with those that it has grown by, and submits calls to their workers.
///
/// The workers may be on several nodes, with a lease for each. They are numbered consecutively. A call that names no
/// worker is sent to one that looks idle and whose lease is not about to end.
///
/// Submitting takes `&self`, from any number of threads at once, and so does renewing; leasing takes `&mut self`.
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
/// println!("{}", String::from_utf8_lossy(&output.part(..done.output_bytes).to_vec()));
/// invoker.deallocate()?;
/// # Ok(())
/// # }
/// ```
///
/// Sixteen workers, on any nodes that have free cores within a minute, and calls that survive the loss of a node:
///
/// ```no_run
/// # fn main() -> Result<(), sublet_proto::Error> {
/// use std::time::Duration;
/// use sublet_runtime::{Access, Allocation, CallOptions, Invoker};
///
/// let access = Access::parse("https://one.example:7433,https://two.example:7433")?;
/// let access = access.with_ca_file("ca.pem".as_ref())?.with_token_file("token".as_ref())?;
/// let mut invoker = Invoker::connect_with(access)?;
/// invoker.allocate(&Allocation::new("hello").cores(16).wait(Duration::from_secs(60)))?;
/// let greet = invoker.function("greet")?;
/// let mut output = [0u8; 64];
/// let options = CallOptions::default().repeatable(2);
/// invoker.submit_with(greet, b"world", &mut output, options)?.wait()?;
/// for notice in invoker.notices() {
///     println!("lease {} will end: {}", notice.lease, notice.error);
/// }
/// invoker.renew(Duration::from_secs(600))?;
/// # Ok(())
/// # }
/// ```
pub struct Invoker {
    pub(crate) manager: Arc<ManagerClient>,
    memory: RegisteredMemory,
    held: Option<HeldLeases>,
    /// Whether this process has deployed the leased package by its path.
    has_sent_package: bool,
}

impl Invoker {
    /// Creates an invoker that shares a connection to managers.
    pub(crate) fn of(manager: Arc<ManagerClient>) -> Result<Invoker, Error> {
        Ok(Invoker { manager, memory: RegisteredMemory::new()?, held: None, has_sent_package: false })
    }

    /// The leases, by the numbers of their workers.
    pub(crate) fn leases_held(&self) -> impl Iterator<Item = &Arc<ClientLease>> {
        self.held.iter().flat_map(HeldLeases::leases)
    }

    /// Submits a call of a function of the leased package: `function` reads `input` and writes `output`. A [`Buffer`]
    /// and [parts](Buffer::part) of it are used in place; other input is copied into the worker's inbox, and other
    /// output out of a buffer, once. Blocks only while the worker has a call in each of its slots.
    ///
    /// # Errors
    /// `not_allocated`, `unknown_function`, `input_too_large`, `too_many_in_flight`, and whatever has ended all leases.
    #[inline(always)]
    pub fn submit<'call, I: InputMemory + ?Sized, O: OutputMemory + ?Sized>(
        &self,
        function: &str,
        input: &'call I,
        output: &'call mut O,
    ) -> Result<Invocation<'call>, Error> {
        let function = self.function(function)?;
        self.submit_with(function, input, output, CallOptions::default())
    }

    /// Submits a call like [`Invoker::submit`], with a function found before and with options.
    #[inline(always)]
    pub fn submit_with<'call, I: InputMemory + ?Sized, O: OutputMemory + ?Sized>(
        &self,
        function: Function,
        input: &'call I,
        output: &'call mut O,
        options: CallOptions,
    ) -> Result<Invocation<'call>, Error> {
        let (input, output) = (input.shared_bytes(), output.shared_bytes_mut());
        let input_len = call_size("input", input.len())?;
        let output_capacity = call_size("output", output.len())?;
        // SAFETY: the views' bytes can be accessed for `'call`, which the invocation carries, and no reference to them is
        // used in this time that forbids it: that is the duty of whatever made the views.
        unsafe {
            self.submit_raw(
                function,
                input.start().as_ptr(),
                input_len,
                output.start().as_ptr(),
                output_capacity,
                options,
            )
        }
    }

    /// Submits a call like [`Invoker::submit_with`], for callers whose memory the compiler does not check.
    ///
    /// # Safety
    /// `input` must be readable for `input_len` bytes and `output` writable for `output_capacity` bytes until the
    /// invocation has ended or been dropped. Until then no `&mut` to the input and no reference to the output is used.
    /// Other code may access both through pointers; what it writes meanwhile may reach the function or be overwritten.
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
        let CallOptions { worker, deadline, timed, retries } = options;
        let function = function.0;
        let call =
            Call { function, worker, input, input_len, output, output_capacity, timed, retries, deadline };
        let (lease, sent) = self.held()?.dispatch(&call)?;
        Ok(Invocation::new(lease, sent, call))
    }

    /// Finds a function of the leased package, by its own name or as `package/function`.
    #[inline(always)]
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        self.held()?.first.function(name).map(Function)
    }

    /// A client of the managers at `$SUBLET_MANAGER`, or of this machine's own `sublet up`; see [`Access::from_env`].
    pub fn connect() -> Result<Invoker, Error> {
        Invoker::connect_with(Access::from_env()?)
    }

    /// Creates a client of the managers at addresses such as `unix:/run/sublet/manager.sock` or `https://host:port`,
    /// separated by commas. Reads trusted certificates and the token from the environment.
    pub fn connect_to(managers: &str) -> Result<Invoker, Error> {
        Invoker::connect_with(Access::parse(managers)?.with_env()?)
    }

    /// A client of these managers.
    ///
    /// # Errors
    /// `manager_unreachable` if none of them answers, `unauthenticated` if the token is not valid.
    pub fn connect_with(access: Access) -> Result<Invoker, Error> {
        Invoker::connect_with_memory(access, &RegisteredMemory::new()?)
    }

    /// Creates a client like [`Invoker::connect_with`], with memory that other invokers may use, too.
    pub fn connect_with_memory(access: Access, memory: &RegisteredMemory) -> Result<Invoker, Error> {
        let manager = Arc::new(ManagerClient::connect_with(access)?);
        Ok(Invoker { manager, memory: memory.clone(), held: None, has_sent_package: false })
    }

    /// Creates another invoker with the same connection, without leases, with this memory.
    pub fn another(&self, memory: &RegisteredMemory) -> Invoker {
        Invoker { manager: self.manager.clone(), memory: memory.clone(), held: None, has_sent_package: false }
    }

    /// A memory component, which leases nothing before it is written.
    ///
    /// # Errors
    /// `invalid_argument` for sizes that no segment has.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), sublet_proto::Error> {
    /// use sublet_runtime::{Invoker, MemoryPlan};
    ///
    /// let invoker = Invoker::connect()?;
    /// let mut memory = invoker.memory(MemoryPlan::new().initial_bytes(1 << 20).increment_bytes(4 << 20))?;
    /// memory.write(0, &[7; 3 << 20])?;
    /// let mut byte = [0];
    /// memory.read((3 << 20) - 1, &mut byte)?;
    /// memory.resize(1 << 20)?;
    /// for lease in memory.release()? {
    ///     println!("{} bytes on {}: {:?}", lease.memory_bytes, lease.node, lease.usage);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory(&self, plan: MemoryPlan) -> Result<Memory, Error> {
        Memory::new(self.manager.clone(), plan)
    }

    /// Gives the managers a package, by the path of its folder or library; its digest. The package gets the name of its
    /// manifest among the caller's tenant's.
    ///
    /// # Errors
    /// `invalid_package`, and the managers' errors.
    pub fn deploy(&self, path: &Path) -> Result<String, Error> {
        let encoded = match read_sources(path)? {
            PackageSources::Whole(encoded) => encoded,
            PackageSources::Locked(locked) => match self.find_installed(&locked)? {
                Some(digest) => return Ok(digest),
                None => locked.install()?,
            },
        };
        let encoded = self.manager.pin_environments(encoded, path, &mut |_| ())?;
        let digest = package::digest(&encoded);
        if self.manager.resolve(&digest).is_err() {
            check_package(path, &encoded)?;
            self.manager.deploy(encoded)?;
        }
        Ok(digest)
    }

    /// The digest of the tenant's package that was made of the same sources, if the managers have it under its name. A public
    /// package of that name is another tenant's.
    fn find_installed(&self, locked: &LockedPackage) -> Result<Option<String>, Error> {
        match self.manager.resolve(&locked.name) {
            Ok(known) => {
                let is_same = known.sources == locked.sources && known.owner != package::PUBLIC;
                Ok(is_same.then_some(known.digest))
            }
            Err(error) if error.code == Code::UnknownPackage => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an array of which a part lies in a memory component, which is leased as it is needed. The component has
    /// no cache: the resident part is one.
    ///
    /// # Errors
    /// As for [`SwappedMemory::new`] and [`Invoker::memory`].
    ///
    /// ```no_run
    /// # use sublet_runtime::{Invoker, MemoryPlan, SwapPlan};
    /// # fn main() -> Result<(), sublet_proto::Error> {
    /// let invoker = Invoker::connect()?;
    /// let mut array = invoker.swapped(SwapPlan::new(8 << 30, 1 << 30), MemoryPlan::new().increment_bytes(256 << 20))?;
    /// array.as_mut_slice()[7 << 30] = 1;
    /// array.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn swapped(&self, plan: SwapPlan, space: MemoryPlan) -> Result<SwappedMemory, Error> {
        SwappedMemory::new(plan, Box::new(self.memory(space.cache_bytes(0))?))
    }

    /// Leases all of the requested cores, on the number of nodes that this takes, and starts their workers, which then
    /// wait as their policy says. Blocks for a cold start; a call ahead of time hides it. After an error the invoker
    /// holds no lease.
    ///
    /// # Errors
    /// `already_allocated`; the fault of the package; `insufficient_resources` or `no_capacity` if the nodes do not
    /// have these resources, ever or now; `quota_exceeded`; `try_later` if too many requests wait; `fabric_unavailable`
    /// if the calls cannot use the chosen transport. After any error no resources of a node are held, except on a node
    /// whose agent its manager cannot reach either.
    pub fn allocate(&mut self, allocation: &Allocation) -> Result<(), Error> {
        if let Some(held) = &self.held {
            let message = format!("this invoker holds lease {}: deallocate it first", held.first.id());
            return Err(Error::new(Code::AlreadyAllocated, message));
        }
        let package = self.deploy_if_path(&allocation.package)?;
        self.has_sent_package = is_path(&allocation.package);
        self.held = Some(HeldLeases::take(&self.manager, &self.memory, allocation.of(package))?);
        Ok(())
    }

    /// Leases `cores` more cores for the same functions, on the same terms. Their workers are numbered after the
    /// existing ones. If not all of these cores are available, the invoker keeps the leases that it had.
    ///
    /// # Errors
    /// `not_allocated`, and as for [`Invoker::allocate`].
    pub fn grow(&mut self, cores: u32) -> Result<(), Error> {
        self.held.as_mut().ok_or_else(not_allocated)?.grow(&self.manager, cores)
    }

    /// Sets the end of all leases to `timeout` from now, as far as the manager allows. Returns the error of a lease
    /// that cannot be renewed; the others are renewed. A lease that has ended stays ended: if all have ended, their
    /// error is returned.
    pub fn renew(&self, timeout: Duration) -> Result<(), Error> {
        let held = self.held()?;
        let mut failed = held.leases().all(|lease| lease.is_over()).then(|| held.first.why_over());
        for lease in held.leases().filter(|lease| !lease.is_over()) {
            let grant = self.manager.renew_lease(lease.id(), milliseconds(timeout));
            if let Err(error) = grant.and_then(|grant| lease.renew(grant)) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The ends of leases that their agents have announced (rFaaS III-A). Calls continue until then; new calls are sent
    /// to other leases if there are any.
    pub fn notices(&self) -> Vec<Notice> {
        let leases = self.held.iter().flat_map(HeldLeases::leases);
        leases.filter_map(|lease| lease.notice()).collect()
    }

    /// Gives all leases back and returns their total usage. Calls that have not ended fail with `lease_ended`. Does
    /// nothing without a lease.
    ///
    /// # Errors
    /// `agent_unreachable` if an agent is gone: the lease is then over, too, and only the bill has its usage.
    pub fn deallocate(&mut self) -> Result<v1::Usage, Error> {
        let mut total = v1::Usage::default();
        for usage in self.deallocate_each()?.into_iter().filter_map(|lease| lease.usage) {
            price::add_usage(&mut total, &usage);
        }
        Ok(total)
    }

    /// Gives all leases back like [`Invoker::deallocate`], and returns each with its usage.
    pub fn deallocate_each(&mut self) -> Result<Vec<v1::Lease>, Error> {
        self.held.take().map_or_else(|| Ok(Vec::new()), |held| held.end())
    }

    /// Allocates a buffer of `len` values that workers reach without copying, now or in a later lease. Workers on
    /// another machine have a copy of it within their lease's memory, and a call's bytes are sent between the two.
    ///
    /// # Errors
    /// `insufficient_resources` if a lease on another machine has no memory left for the copy; smaller buffers may fit.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.memory.buffer(len)
    }

    /// The first lease, if there is one: the one with most of the workers.
    pub fn lease(&self) -> Option<v1::Lease> {
        self.held.as_ref().map(|held| held.first.description())
    }

    /// Every lease, in the order of their workers' numbers; those that are over included.
    pub fn leases(&self) -> Vec<v1::Lease> {
        self.held.iter().flat_map(HeldLeases::leases).map(|lease| lease.description()).collect()
    }

    /// The transport of the calls of each lease, in the order of [`Invoker::leases`].
    pub fn fabrics(&self) -> Vec<FabricChoice> {
        self.held.iter().flat_map(HeldLeases::leases).map(|lease| lease.fabric()).collect()
    }

    /// The leased package, if there is one.
    pub fn package(&self) -> Option<&v1::PackageInfo> {
        self.held.as_ref().map(|held| &held.first.package)
    }

    /// The tenant that owns the leased package; empty without a lease, and where the manager does not report an owner.
    pub fn package_owner(&self) -> String {
        let Some(held) = &self.held else { return String::new() };
        if self.has_sent_package { held.first.description().tenant } else { held.first.package.owner.clone() }
    }

    /// Returns whether the leased package is this client's own: deployed by this process from its path, or by its
    /// tenant under its name. Results of other packages are bytes from another tenant's program. False without a lease,
    /// and where the manager does not report an owner.
    pub fn owns_package(&self) -> bool {
        let is_tenants = |held: &HeldLeases| {
            let owner = &held.first.package.owner;
            !owner.is_empty() && *owner == held.first.description().tenant
        };
        self.held.as_ref().is_some_and(|held| self.has_sent_package || is_tenants(held))
    }

    /// The number of workers of all leases; 0 without one.
    pub fn workers(&self) -> u32 {
        self.held.as_ref().map_or(0, HeldLeases::workers)
    }

    /// Times at which the first lease's latest cold start reached each step.
    pub fn cold_start(&self) -> Option<ColdStart> {
        self.held.as_ref().map(|held| held.first.cold_start())
    }

    /// Modules among the package's imports that a node of the leases cannot keep warm, with the reason: its worker
    /// process imported them when it started. A node knows the reason only after it has tried to keep them, from about
    /// the third lease on.
    pub fn cold_imports(&self) -> Option<v1::ColdImports> {
        self.held.iter().flat_map(HeldLeases::leases).find_map(|lease| lease.cold_imports())
    }

    /// Isolation of the first lease's latest worker process from the rest of its node, by its name; empty if the agent is older
    /// than this client. `None` without a lease.
    pub fn isolation(&self) -> Option<String> {
        self.held.as_ref().map(|held| held.first.isolation())
    }

    /// The managers, for everything that is not a call.
    pub fn manager(&self) -> &ManagerClient {
        &self.manager
    }

    #[inline(always)]
    fn held(&self) -> Result<&HeldLeases, Error> {
        self.held.as_ref().ok_or_else(not_allocated)
    }

    fn deploy_if_path(&self, name: &str) -> Result<String, Error> {
        if is_path(name) { self.deploy(Path::new(name)) } else { Ok(name.to_owned()) }
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
