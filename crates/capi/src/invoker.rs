//! The invoker: connecting, leasing, finding functions, submitting.

use std::ffi::{CString, c_char, c_void};
use std::time::{Duration, Instant};

use sublet::{
    ALWAYS_HOT_NS, ALWAYS_WARM_NS, Allocation, BillLine, CallOptions, Error, Function, Invocation, Invoker,
    Lease, Policy,
};

use crate::boundary::{
    argument, argument_mut, check_size, duration, guarded, invalid, output, sublet_status, text, text_if_any,
};
use crate::invocation::{self, sublet_invocation};
use crate::steps::{StepCallback, sublet_step_callback};

/// `struct sublet_invoker`, opaque to C.
pub struct sublet_invoker {
    invoker: Invoker,
    /// Texts of the lease for C, while there is a lease.
    texts: Option<LeaseTexts>,
    /// Callback for the starts of the leases' workers.
    steps: Option<StepCallback>,
}

struct LeaseTexts {
    id: CString,
    node: CString,
    package: CString,
    owner: CString,
    isolation: CString,
}

/// `struct sublet_allocation`.
#[repr(C)]
pub struct sublet_allocation {
    size_bytes: u32,
    cores: u32,
    package: *const c_char,
    memory_bytes: u64,
    timeout_ns: u64,
    slot_bytes: u64,
    hot_ns: u64,
    spin_ns: u64,
    slots: u32,
    max_nodes: u32,
    wait_ns: u64,
    idle_timeout_ns: u64,
    pu: *const c_char,
    shared: u32,
    time_weight_permille: u32,
    fabric: *const c_char,
    interface: *const c_char,
    pool: *const c_char,
    variables: *const *const c_char,
    secrets: *const *const c_char,
    folders: *const *const c_char,
    temporary_bytes: u64,
    isolation: *const c_char,
    start_timeout_ns: u64,
    on_step: Option<sublet_step_callback>,
    step_user: *mut c_void,
}

/// `struct sublet_lease`.
#[repr(C)]
pub struct sublet_lease {
    id: *const c_char,
    node: *const c_char,
    package: *const c_char,
    owner: *const c_char,
    isolation: *const c_char,
    memory_bytes: u64,
    granted_unix_ms: u64,
    expires_unix_ms: u64,
    start_ns: u64,
    workers: u32,
    functions: u32,
}

/// `struct sublet_bill`.
#[repr(C)]
#[derive(Default)]
pub struct sublet_bill {
    allocated_ns: u64,
    executing_ns: u64,
    polling_ns: u64,
    calls: u64,
    failed_calls: u64,
    allocation_nano: u64,
    compute_nano: u64,
    polling_nano: u64,
    total_nano: u64,
}

/// `struct sublet_function`: a [`Function`], of which C keeps the bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sublet_function {
    opaque: u16,
}

/// `struct sublet_call_options`.
#[repr(C)]
pub struct sublet_call_options {
    worker: u32,
    timed: u32,
    timeout_ns: u64,
    retries: u32,
}

/// `struct sublet_call`.
#[repr(C)]
pub struct sublet_call {
    input: *const c_void,
    input_bytes: usize,
    output: *mut c_void,
    output_bytes: usize,
    options: *const sublet_call_options,
    function: sublet_function,
}

// The sizes that sublet.h asserts of its own structures.
const _: () = assert!(size_of::<sublet_allocation>() == 184);
const _: () = assert!(size_of::<sublet_lease>() == 80);
const _: () = assert!(size_of::<sublet_bill>() == 72);
const _: () = assert!(size_of::<sublet_call_options>() == 24);
const _: () = assert!(size_of::<sublet_call>() == 48);

/// `SUBLET_ANY_WORKER`.
const ANY_WORKER: u32 = u32::MAX;
/// Value of `timeout_ns` for calls without a limit and for leases with the manager's default.
const NO_TIMEOUT_NS: u64 = 0;

impl sublet_invoker {
    /// Converts to the Rust type.
    pub(crate) fn facade(&self) -> &Invoker {
        &self.invoker
    }

    /// Converts to the C type.
    pub(crate) fn handle(invoker: Invoker) -> *mut sublet_invoker {
        Box::into_raw(Box::new(sublet_invoker { invoker, texts: None, steps: None }))
    }

    fn allocate(&mut self, allocation: &Allocation, steps: Option<StepCallback>) -> Result<(), Error> {
        self.invoker.allocate(allocation)?;
        self.steps = steps;
        self.texts = self.invoker.lease().map(|lease| LeaseTexts::new(&lease, &self.invoker));
        Ok(())
    }

    fn deallocate(&mut self) -> Result<sublet_bill, Error> {
        self.texts = None;
        let leases = self.invoker.deallocate_each();
        self.steps = None;
        Ok(leases?.iter().map(sublet::bill).fold(sublet_bill::default(), sublet_bill::with))
    }

    fn lease(&self) -> Result<sublet_lease, Error> {
        let (Some(lease), Some(texts)) = (self.invoker.lease(), &self.texts) else {
            return Err(Error::new(sublet::Code::NotAllocated, "there is no lease: allocate first"));
        };
        let start = self.invoker.cold_start().unwrap_or_default();
        Ok(sublet_lease {
            id: texts.id.as_ptr(),
            node: texts.node.as_ptr(),
            package: texts.package.as_ptr(),
            owner: texts.owner.as_ptr(),
            isolation: texts.isolation.as_ptr(),
            memory_bytes: lease.memory_bytes,
            granted_unix_ms: lease.granted_unix_ms,
            expires_unix_ms: lease.expires_unix_ms,
            start_ns: start.ready_ns.saturating_sub(start.asked_ns),
            workers: self.invoker.workers(),
            functions: self
                .invoker
                .package()
                .map_or(0, |package| u32::try_from(package.functions.len()).unwrap_or(u32::MAX)),
        })
    }

    /// # Safety
    /// As for [`Invoker::submit_raw`], of the call's memory.
    #[inline(always)]
    unsafe fn submit(&self, call: &sublet_call) -> Result<Invocation<'static>, Error> {
        let input_len = checked_size("input", call.input, call.input_bytes)?;
        let output_capacity = checked_size("output", call.output, call.output_bytes)?;
        // SAFETY: the caller's options, or null.
        let options = unsafe { call.options.as_ref() }.map_or_else(CallOptions::default, CallOptions::from);
        // SAFETY: as the caller vouches; the invocation waits for the call's end when it is closed.
        unsafe {
            self.invoker.submit_raw(
                call.function.into(),
                call.input.cast(),
                input_len,
                call.output.cast(),
                output_capacity,
                options,
            )
        }
    }
}

impl LeaseTexts {
    fn new(lease: &Lease, invoker: &Invoker) -> LeaseTexts {
        // A manager or an agent has made the texts; one with a zero byte would only be shown as empty.
        let text = |text: &str| CString::new(text).unwrap_or_default();
        LeaseTexts {
            id: text(&lease.id),
            node: text(&lease.node),
            package: text(&lease.package_name),
            owner: text(&invoker.package_owner()),
            isolation: text(&invoker.isolation().unwrap_or_default()),
        }
    }
}

impl sublet_allocation {
    /// # Safety
    /// `package`, `pu`, `fabric`, `interface`, `pool` and `isolation` are null or strings.
    unsafe fn to_facade(&self) -> Result<Allocation, Error> {
        check_size::<sublet_allocation>(self.size_bytes, "allocation")?;
        // SAFETY: as the caller vouches.
        let package = unsafe { text(self.package, "allocation.package") }?;
        if self.timeout_ns != NO_TIMEOUT_NS
            && u128::from(self.timeout_ns) < Duration::from_millis(1).as_nanos()
        {
            return Err(invalid(format!(
                "a lease of {} ns: the shortest has a millisecond",
                self.timeout_ns
            )));
        }
        // SAFETY: as the caller vouches.
        let pu = unsafe { text_if_any(self.pu, "allocation.pu") }?.unwrap_or_default();
        // SAFETY: as above.
        let fabric = unsafe { text_if_any(self.fabric, "allocation.fabric") }?;
        // SAFETY: as above.
        let interface = unsafe { text_if_any(self.interface, "allocation.interface") }?;
        // SAFETY: as above.
        let pool = unsafe { text_if_any(self.pool, "allocation.pool") }?;
        let mut allocation = Allocation::new(package)
            .cores(self.cores)
            .memory_bytes(self.memory_bytes)
            .timeout(Duration::from_nanos(self.timeout_ns))
            .slots(self.slots)
            .slot_bytes(self.slot_bytes)
            .policy(policy(self.hot_ns))
            .spin(duration(self.spin_ns))
            .max_nodes(self.max_nodes)
            .wait(Duration::from_nanos(self.wait_ns))
            .idle_timeout(Duration::from_nanos(self.idle_timeout_ns))
            .pu(pu)
            .time_weight(f64::from(self.time_weight_permille) / 1000.0);
        if let Some(fabric) = fabric {
            allocation = allocation.fabric(fabric.parse()?);
        }
        if let Some(interface) = interface {
            allocation = allocation.interface(interface);
        }
        if let Some(pool) = pool {
            allocation = allocation.pool(pool.parse()?);
        }
        // SAFETY: as the caller vouches.
        let allocation = unsafe { self.with_needs(allocation) }?;
        Ok(if self.shared != 0 { allocation.shared() } else { allocation })
    }

    /// Adds the limit of a start and the callback for its steps.
    ///
    /// # Safety
    /// Until what is returned is dropped, `on_step` may be called with a string and `step_user` on any thread, if it is not
    /// null.
    unsafe fn with_start(&self, mut allocation: Allocation) -> (Allocation, Option<StepCallback>) {
        if self.start_timeout_ns != NO_TIMEOUT_NS {
            allocation = allocation.start_timeout(duration(self.start_timeout_ns));
        }
        // SAFETY: as the caller vouches.
        let steps = self.on_step.map(|callback| unsafe { StepCallback::new(callback, self.step_user) });
        match steps {
            Some(steps) => (steps.hear(allocation), Some(steps)),
            None => (allocation, None),
        }
    }

    /// Adds variables, secrets, folders, temporary space and the isolation.
    ///
    /// # Safety
    /// `isolation` is null or a string. The lists are null, or end with a null pointer, and their strings are the caller's.
    unsafe fn with_needs(&self, mut allocation: Allocation) -> Result<Allocation, Error> {
        // SAFETY: as the caller vouches.
        for variable in unsafe { texts(self.variables, "allocation.variables") }? {
            // The value may be private: the message has no part of it.
            let (name, value) = variable
                .split_once('=')
                .ok_or_else(|| invalid("an item of allocation.variables is not NAME=VALUE".to_owned()))?;
            allocation = allocation.variable(name, value);
        }
        // SAFETY: as above.
        for text in unsafe { texts(self.secrets, "allocation.secrets") }? {
            let (variable, secret) = text.split_once('=').unwrap_or((text, text));
            allocation = allocation.secret(variable, secret);
        }
        // SAFETY: as above.
        for folder in unsafe { texts(self.folders, "allocation.folders") }? {
            allocation = allocation.folder(folder);
        }
        // SAFETY: as above.
        if let Some(isolation) = unsafe { text_if_any(self.isolation, "allocation.isolation") }? {
            allocation = allocation.isolation(isolation);
        }
        Ok(allocation.temporary_bytes(self.temporary_bytes))
    }
}

/// The strings of a list that ends with a null pointer; none if the list is null.
///
/// # Safety
/// The list is null, or its items up to the null pointer are the caller's strings.
unsafe fn texts<'list>(list: *const *const c_char, what: &str) -> Result<Vec<&'list str>, Error> {
    let mut found = Vec::new();
    if list.is_null() {
        return Ok(found);
    }
    loop {
        // SAFETY: the list has an item here, since none before it was null.
        let item = unsafe { list.add(found.len()).read() };
        if item.is_null() {
            return Ok(found);
        }
        // SAFETY: not null, so it is the caller's string.
        found.push(unsafe { text(item, what) }?);
    }
}

fn policy(hot_ns: u64) -> Policy {
    match hot_ns {
        ALWAYS_HOT_NS => Policy::AlwaysHot,
        ALWAYS_WARM_NS => Policy::AlwaysWarm,
        _ => Policy::HotFor(Duration::from_nanos(hot_ns)),
    }
}

#[inline(always)]
fn checked_size(what: &str, data: *const c_void, len_bytes: usize) -> Result<u32, Error> {
    match u32::try_from(len_bytes) {
        Ok(len) if len == 0 || !data.is_null() => Ok(len),
        Ok(len) => Err(invalid(format!("{what} of {len} bytes at a null pointer"))),
        Err(_) => Err(invalid(format!("{what} of {len_bytes} bytes: a call's sizes have 32 bits"))),
    }
}

impl sublet_bill {
    /// Adds the bill of another lease.
    pub(crate) fn with(self, line: BillLine) -> sublet_bill {
        let usage = line.usage.unwrap_or_default();
        sublet_bill {
            allocated_ns: self.allocated_ns + usage.allocated_ns,
            executing_ns: self.executing_ns + usage.executing_ns,
            polling_ns: self.polling_ns + usage.polling_ns,
            calls: self.calls + usage.calls,
            failed_calls: self.failed_calls + usage.failed_calls,
            allocation_nano: self.allocation_nano + line.allocation_nano,
            compute_nano: self.compute_nano + line.compute_nano,
            polling_nano: self.polling_nano + line.polling_nano,
            total_nano: self.total_nano + line.total_nano,
        }
    }
}

impl From<&sublet_call_options> for CallOptions {
    fn from(options: &sublet_call_options) -> CallOptions {
        let timeout = Some(options.timeout_ns).filter(|&ns| ns != NO_TIMEOUT_NS);
        CallOptions {
            worker: Some(options.worker).filter(|&worker| worker != ANY_WORKER),
            deadline: timeout.and_then(|ns| Instant::now().checked_add(duration(ns))),
            timed: options.timed != 0,
            retries: options.retries,
        }
    }
}

impl From<Function> for sublet_function {
    fn from(function: Function) -> sublet_function {
        // SAFETY: both are two bytes, all of them initialized, and any two bytes are a number.
        unsafe { std::mem::transmute(function) }
    }
}

impl From<sublet_function> for Function {
    #[inline(always)]
    fn from(function: sublet_function) -> Function {
        // SAFETY: both are two bytes, and a function is a number of which no value is invalid: one that the package
        // does not have is answered by `unknown_function`.
        unsafe { std::mem::transmute(function) }
    }
}

/// Connects to managers.
///
/// # Safety
/// The duties of `sublet.h` hold for strings and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_connect(
    manager: *const c_char,
    invoker: *mut *mut sublet_invoker,
) -> sublet_status {
    guarded(|| {
        let place = output(invoker, "invoker")?;
        let invoker = if manager.is_null() {
            Invoker::connect()?
        } else {
            // SAFETY: not null, so it is the caller's string.
            Invoker::connect_to(unsafe { text(manager, "manager") }?)?
        };
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(sublet_invoker::handle(invoker)) };
        Ok(())
    })
}

/// Frees an invoker.
///
/// # Safety
/// It is null, or from [`sublet_invoker_connect`] and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_free(invoker: *mut sublet_invoker) {
    guarded(|| {
        if !invoker.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller does not use it any more.
            drop(unsafe { Box::from_raw(invoker) });
        }
        Ok(())
    });
}

/// Allocates leases.
///
/// # Safety
/// As `sublet.h` says; no other thread may be using the invoker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_allocate(
    invoker: *mut sublet_invoker,
    allocation: *const sublet_allocation,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's invoker, which no one else is using.
        let invoker = unsafe { argument_mut(invoker, "invoker") }?;
        // SAFETY: the caller's allocation.
        let request = unsafe { argument(allocation, "allocation") }?;
        // SAFETY: the strings in it are the caller's.
        let allocation = unsafe { request.to_facade() }?;
        // SAFETY: the header allows such calls until the leases are released, or could not be had.
        let (allocation, steps) = unsafe { request.with_start(allocation) };
        invoker.allocate(&allocation, steps)
    })
}

/// Leases more cores on the same terms.
///
/// # Safety
/// As `sublet.h` says; no other thread may be using the invoker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_grow(invoker: *mut sublet_invoker, cores: u32) -> sublet_status {
    // SAFETY: the caller's invoker, which no one else is using.
    guarded(|| unsafe { argument_mut(invoker, "invoker") }?.invoker.grow(cores))
}

/// Releases all leases.
///
/// # Safety
/// As `sublet.h` says; no other thread may be using the invoker. `bill` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_deallocate(
    invoker: *mut sublet_invoker,
    bill: *mut sublet_bill,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's invoker, which no one else is using.
        let used = unsafe { argument_mut(invoker, "invoker") }?.deallocate()?;
        if !bill.is_null() {
            // SAFETY: not null, so it is the caller's bill to write.
            unsafe { bill.write(used) };
        }
        Ok(())
    })
}

/// Describes the first lease.
///
/// # Safety
/// The duties of `sublet.h` hold for invokers and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_lease(
    invoker: *const sublet_invoker,
    lease: *mut sublet_lease,
) -> sublet_status {
    guarded(|| {
        let place = output(lease, "lease")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let lease = unsafe { argument(invoker, "invoker") }?.lease()?;
        // SAFETY: not null, so it is the caller's lease to write.
        unsafe { place.write(lease) };
        Ok(())
    })
}

/// Finds a function.
///
/// # Safety
/// The duties of `sublet.h` hold for invokers, strings and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_function(
    invoker: *const sublet_invoker,
    name: *const c_char,
    function: *mut sublet_function,
) -> sublet_status {
    guarded(|| {
        let place = output(function, "function")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: null or the caller's string.
        let found = invoker.facade().function(unsafe { text(name, "name") }?)?;
        // SAFETY: not null, so it is the caller's function to write.
        unsafe { place.write(found.into()) };
        Ok(())
    })
}

/// Submits a call.
///
/// # Safety
/// As `sublet.h` says: the call's memory stays readable, writable and untouched until the call has ended, and
/// `invocation` holds no call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_submit(
    invoker: *const sublet_invoker,
    call: *const sublet_call,
    invocation: *mut sublet_invocation,
) -> sublet_status {
    guarded(|| {
        let place = output(invocation, "invocation")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: the caller's description of a call.
        let call = unsafe { argument(call, "call") }?;
        // SAFETY: as this function's caller vouches.
        let submitted = unsafe { invoker.submit(call) }?;
        // SAFETY: not null, so it is the caller's storage, which holds no call.
        unsafe { invocation::store(place, submitted) };
        Ok(())
    })
}
