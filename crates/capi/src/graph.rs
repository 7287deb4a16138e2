//! Graphs of components and the outcomes of their runs, known to C by handles.

mod detached;

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

use sublet::{Application, ChannelUse, ComponentUse, Error, News, Outcome, RunOptions, RunResult, Traffic};

use crate::boundary::{
    OK, argument, bytes, bytes_mut, check_size, guarded, invalid, output, sublet_status, text, text_if_any,
};
use crate::invoker::sublet_invoker;

/// `struct sublet_application`, opaque to C.
pub struct sublet_application {
    application: Application,
    digest: CString,
}

/// `struct sublet_outcome`, opaque to C.
pub struct sublet_outcome {
    run: CString,
    /// Output of each instance, with its component's name.
    outputs: Vec<(CString, u32, Vec<u8>)>,
    components: Vec<(CString, ComponentUse)>,
    /// Data that compute components moved: the component's name, the memory component's, and the amounts.
    channels: Vec<(CString, CString, Traffic)>,
    /// The memory component that is the result, with its name.
    result: Option<(CString, Arc<RunResult>)>,
}

/// `struct sublet_run_options`.
#[repr(C)]
pub struct sublet_run_options {
    size_bytes: u32,
    retries: u32,
    patience_ns: u64,
    prewarm_ns: u64,
    keep_alive_ns: u64,
    hot_timeout_ns: u64,
    lease_timeout_ns: u64,
    fabric: *const c_char,
}

/// `struct sublet_news`.
#[repr(C)]
pub struct sublet_news {
    event: u32,
    attempt: u32,
    component: *const c_char,
    took_ns: u64,
    status: sublet_status,
    message: *const c_char,
}

/// `sublet_news_callback`.
pub type sublet_news_callback = unsafe extern "C" fn(*const sublet_news, *mut c_void) -> c_int;

/// `struct sublet_output`.
#[repr(C)]
pub struct sublet_output {
    component: *const c_char,
    data: *const c_void,
    len_bytes: usize,
    instance: u32,
}

/// `struct sublet_component_use`.
#[repr(C)]
pub struct sublet_component_use {
    component: *const c_char,
    attempts: u32,
    instances: u32,
    begin_us: u64,
    end_us: u64,
    allocated_bytes: u64,
    used_bytes: u64,
    allocated_byte_us: u64,
    used_byte_us: u64,
    cpu_ns: u64,
}

/// `struct sublet_channel_use`.
#[repr(C)]
pub struct sublet_channel_use {
    component: *const c_char,
    memory: *const c_char,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    maps: u64,
    mapped_bytes: u64,
}

// The sizes that sublet_graph.h asserts.
const _: () = assert!(size_of::<sublet_run_options>() == 56);
const _: () = assert!(size_of::<sublet_news>() == 40);
const _: () = assert!(size_of::<sublet_output>() == 32);
const _: () = assert!(size_of::<sublet_component_use>() == 72);
const _: () = assert!(size_of::<sublet_channel_use>() == 64);

/// `enum sublet_event`.
const BEGAN: u32 = 1;
const ENDED: u32 = 2;
const WAITS: u32 = 3;
const LOST: u32 = 4;

/// Value of `prewarm_ns` for components whose environments are prepared at their start.
const NO_PREWARM_NS: u64 = u64::MAX;

impl sublet_run_options {
    /// Converts options; a null pointer means the defaults.
    ///
    /// # Safety
    /// The pointer is null, or the caller's options, whose `fabric` is null or a string.
    unsafe fn to_facade(options: *const sublet_run_options) -> Result<RunOptions, Error> {
        // SAFETY: as the caller vouches.
        let Some(options) = (unsafe { options.as_ref() }) else { return Ok(RunOptions::default()) };
        check_size::<sublet_run_options>(options.size_bytes, "options")?;
        // SAFETY: as the caller vouches.
        let fabric = unsafe { text_if_any(options.fabric, "options.fabric") }?;
        Ok(RunOptions {
            patience: Duration::from_nanos(options.patience_ns),
            retries: options.retries,
            prewarm: (options.prewarm_ns != NO_PREWARM_NS).then(|| Duration::from_nanos(options.prewarm_ns)),
            keep_alive: Duration::from_nanos(options.keep_alive_ns),
            hot_timeout: Duration::from_nanos(options.hot_timeout_ns),
            lease_timeout: Duration::from_nanos(options.lease_timeout_ns),
            fabric: fabric.map(str::parse).transpose()?,
        })
    }
}

/// Converts a text of the library for C.
fn words(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// Callback for events of a run.
#[derive(Clone, Copy)]
struct Listener {
    call: Option<sublet_news_callback>,
    user: *mut c_void,
}

impl Listener {
    /// Calls the callback; returns whether the run continues.
    fn hear(self, news: &News) -> bool {
        let Some(call) = self.call else { return true };
        let (event, attempt, component, took, error) = match news {
            News::Began { component, attempt } => (BEGAN, *attempt, component, Duration::ZERO, None),
            News::Ended { component, took } => (ENDED, 0, component, *took, None),
            News::Waits { component, error } => (WAITS, 0, component, Duration::ZERO, Some(error)),
            News::Lost { component, error } => (LOST, 0, component, Duration::ZERO, Some(error)),
            // The run's own error reports it.
            News::Failed { .. } => return true,
        };
        let (component, message) = (words(component), error.map(|error| words(&error.message)));
        let told = sublet_news {
            event,
            attempt,
            component: component.as_ptr(),
            took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            status: error.map_or(OK, |error| error.code.number()),
            message: message.as_ref().map_or(null(), |message| message.as_ptr()),
        };
        // SAFETY: the callback is the caller's, for just these arguments, and is called on the caller's own thread.
        unsafe { call(&raw const told, self.user) == 0 }
    }
}

/// Drives a run until it has ended or the listener abandons it.
fn driven(
    listener: Listener,
    run: impl FnOnce(&mut dyn FnMut(&News), &mut dyn FnMut() -> bool) -> Result<Outcome, Error>,
) -> Result<Box<sublet_outcome>, Error> {
    let goes_on = Cell::new(true);
    let mut hear = |news: &News| {
        if goes_on.get() {
            goes_on.set(listener.hear(news));
        }
    };
    let Outcome { run, outputs, components, result } = run(&mut hear, &mut || goes_on.get())?;
    let of = |(component, outputs): (String, Vec<Vec<u8>>)| {
        let component = words(&component);
        (0..).zip(outputs).map(move |(instance, bytes)| (component.clone(), instance, bytes))
    };
    let moved = |used: &ComponentUse| {
        let component = words(&used.component);
        let described = |channel: &ChannelUse| {
            (component.clone(), words(&channel.memory), channel.traffic.unwrap_or_default())
        };
        used.channels.iter().map(described).collect::<Vec<_>>()
    };
    Ok(Box::new(sublet_outcome {
        run: words(&run),
        outputs: outputs.into_iter().flat_map(of).collect(),
        channels: components.iter().flat_map(moved).collect(),
        components: components.into_iter().map(|used| (words(&used.component), used)).collect(),
        result: result.map(|result| (words(&result.component), result)),
    }))
}

/// Hands an application over to C.
fn handle(application: Application) -> *mut sublet_application {
    let digest = words(application.digest());
    Box::into_raw(Box::new(sublet_application { application, digest }))
}

/// Deploys a document.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for invokers, options and outputs; `document` has `len_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_deploy(
    invoker: *const sublet_invoker,
    document: *const c_char,
    len_bytes: usize,
    options: *const sublet_run_options,
    application: *mut *mut sublet_application,
) -> sublet_status {
    guarded(|| {
        let place = output(application, "application")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: the caller's bytes, which it keeps until this returns.
        let document = unsafe { bytes(document.cast(), len_bytes, "document") }?.to_vec();
        // SAFETY: the caller's options, if there are any, with the caller's string in them.
        let options = unsafe { sublet_run_options::to_facade(options) }?;
        let deployed = handle(invoker.facade().deploy_graph(&document, options)?);
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(deployed) };
        Ok(())
    })
}

/// Opens a deployed graph.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for invokers, strings, options and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_open(
    invoker: *const sublet_invoker,
    name: *const c_char,
    options: *const sublet_run_options,
    application: *mut *mut sublet_application,
) -> sublet_status {
    guarded(|| {
        let place = output(application, "application")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: the caller's string.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: the caller's options, if there are any, with the caller's string in them.
        let options = unsafe { sublet_run_options::to_facade(options) }?;
        let opened = handle(invoker.facade().open_graph(name, options)?);
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(opened) };
        Ok(())
    })
}

/// Returns the digest of the document.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for applications and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_digest(
    application: *const sublet_application,
    digest: *mut *const c_char,
) -> sublet_status {
    guarded(|| {
        let place = output(digest, "digest")?;
        // SAFETY: the caller's application, which it does not free meanwhile.
        let application = unsafe { argument(application, "application") }?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(application.digest.as_ptr()) };
        Ok(())
    })
}

/// Runs an application.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for applications, callbacks and outputs; `input` has `input_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_run(
    application: *const sublet_application,
    input: *const c_void,
    input_bytes: usize,
    news: Option<sublet_news_callback>,
    user: *mut c_void,
    outcome: *mut *mut sublet_outcome,
) -> sublet_status {
    guarded(|| {
        let place = output(outcome, "outcome")?;
        // SAFETY: the caller's application, which it does not free meanwhile.
        let application = unsafe { argument(application, "application") }?;
        // SAFETY: the caller's bytes, which it keeps until this returns.
        let input = unsafe { bytes(input, input_bytes, "input") }?.to_vec();
        let listener = Listener { call: news, user };
        let ran = driven(listener, |news, goes_on| application.application.run_while(&input, news, goes_on))?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(Box::into_raw(ran)) };
        Ok(())
    })
}

/// Continues a run.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for applications, strings, callbacks and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_resume(
    application: *const sublet_application,
    run: *const c_char,
    news: Option<sublet_news_callback>,
    user: *mut c_void,
    outcome: *mut *mut sublet_outcome,
) -> sublet_status {
    guarded(|| {
        let place = output(outcome, "outcome")?;
        // SAFETY: the caller's application, which it does not free meanwhile.
        let application = unsafe { argument(application, "application") }?;
        // SAFETY: the caller's string.
        let run = unsafe { text(run, "run") }?;
        let listener = Listener { call: news, user };
        let ran = driven(listener, |news, goes_on| application.application.resume_while(run, news, goes_on))?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(Box::into_raw(ran)) };
        Ok(())
    })
}

/// Frees an application.
///
/// # Safety
/// It is null, or from this library and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_application_free(application: *mut sublet_application) {
    guarded(|| {
        if !application.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller does not use it any more.
            drop(unsafe { Box::from_raw(application) });
        }
        Ok(())
    });
}

/// Returns the run's identifier.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for outcomes and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_run(
    outcome: *const sublet_outcome,
    run: *mut *const c_char,
) -> sublet_status {
    guarded(|| {
        let place = output(run, "run")?;
        // SAFETY: the caller's outcome, which it does not free meanwhile.
        let outcome = unsafe { argument(outcome, "outcome") }?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(outcome.run.as_ptr()) };
        Ok(())
    })
}

/// Writes the outputs of the last components.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for outcomes and outputs; `outputs` has space for `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_outputs(
    outcome: *const sublet_outcome,
    outputs: *mut sublet_output,
    capacity: usize,
    count: *mut usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's outcome, which it does not free meanwhile.
        let outcome = unsafe { argument(outcome, "outcome") }?;
        let described = |(component, instance, bytes): &(CString, u32, Vec<u8>)| sublet_output {
            component: component.as_ptr(),
            data: bytes.as_ptr().cast(),
            len_bytes: bytes.len(),
            instance: *instance,
        };
        // SAFETY: the caller's memory.
        unsafe { listed((outputs, capacity), count, outcome.outputs.iter().map(described)) }
    })
}

/// Writes the resources of each component.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for outcomes and outputs; `components` has space for `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_components(
    outcome: *const sublet_outcome,
    components: *mut sublet_component_use,
    capacity: usize,
    count: *mut usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's outcome, which it does not free meanwhile.
        let outcome = unsafe { argument(outcome, "outcome") }?;
        let described = |(component, used): &(CString, ComponentUse)| sublet_component_use {
            component: component.as_ptr(),
            attempts: used.attempts,
            instances: used.instances,
            begin_us: used.begin_us,
            end_us: used.end_us,
            allocated_bytes: used.allocated_bytes,
            used_bytes: used.used_bytes,
            allocated_byte_us: used.allocated_byte_us,
            used_byte_us: used.used_byte_us,
            cpu_ns: used.cpu_ns,
        };
        // SAFETY: the caller's memory.
        unsafe { listed((components, capacity), count, outcome.components.iter().map(described)) }
    })
}

/// Writes the data that each compute component moved to and from memory components.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for outcomes and outputs; `channels` has space for `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_channels(
    outcome: *const sublet_outcome,
    channels: *mut sublet_channel_use,
    capacity: usize,
    count: *mut usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's outcome, which it does not free meanwhile.
        let outcome = unsafe { argument(outcome, "outcome") }?;
        let described = |(component, memory, moved): &(CString, CString, Traffic)| sublet_channel_use {
            component: component.as_ptr(),
            memory: memory.as_ptr(),
            reads: moved.reads,
            read_bytes: moved.read_bytes,
            writes: moved.writes,
            written_bytes: moved.written_bytes,
            maps: moved.maps,
            mapped_bytes: moved.mapped_bytes,
        };
        // SAFETY: the caller's memory.
        unsafe { listed((channels, capacity), count, outcome.channels.iter().map(described)) }
    })
}

/// Returns the name and the length of the memory component that is the result.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for outcomes and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_result(
    outcome: *const sublet_outcome,
    component: *mut *const c_char,
    len_bytes: *mut u64,
) -> sublet_status {
    guarded(|| {
        let (name_place, len_place) = (output(component, "component")?, output(len_bytes, "len_bytes")?);
        // SAFETY: the caller's outcome, which it does not free meanwhile.
        let outcome = unsafe { argument(outcome, "outcome") }?;
        let result = outcome.result.as_ref();
        let (name, len) =
            result.map_or((null(), 0), |(name, result)| (name.as_ptr(), result.memory.len_bytes()));
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { name_place.write(name) };
        // SAFETY: not null, so it is the caller's number to write.
        unsafe { len_place.write(len) };
        Ok(())
    })
}

/// Copies bytes of the result.
///
/// # Safety
/// The duties of `sublet_graph.h` hold for outcomes; `into` has `len_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_read(
    outcome: *const sublet_outcome,
    offset: u64,
    into: *mut c_void,
    len_bytes: usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's outcome, which it does not free meanwhile.
        let outcome = unsafe { argument(outcome, "outcome") }?;
        let (_, result) =
            outcome.result.as_ref().ok_or_else(|| invalid("the run has no result that is memory"))?;
        // SAFETY: the caller's memory, which it keeps until this returns.
        result.memory.read(offset, unsafe { bytes_mut(into, len_bytes, "into") }?)
    })
}

/// Writes up to `capacity` elements and the total number.
///
/// # Safety
/// `places` is null, or has space for `capacity` elements; `count` is null or valid for writes.
unsafe fn listed<T>(
    (places, capacity): (*mut T, usize),
    count: *mut usize,
    all: impl ExactSizeIterator<Item = T>,
) -> Result<(), Error> {
    let place = output(count, "count")?;
    if places.is_null() && capacity > 0 {
        return Err(invalid(format!("a null pointer for {capacity} elements")));
    }
    let there = all.len();
    for (index, each) in all.take(capacity).enumerate() {
        // SAFETY: not null, with space for `capacity` elements, of which this is one.
        unsafe { places.add(index).write(each) };
    }
    // SAFETY: not null, so it is the caller's memory.
    unsafe { place.write(there) };
    Ok(())
}

/// Frees an outcome.
///
/// # Safety
/// It is null, or from this library and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_outcome_free(outcome: *mut sublet_outcome) {
    guarded(|| {
        if !outcome.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller does not use it any more.
            drop(unsafe { Box::from_raw(outcome) });
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests;
