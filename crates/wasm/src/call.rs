//! Executes a call: creates a fresh instance, copies the input in, calls the function, copies the output out.
//!
//! Input, output and context lie together in a part of the linear memory that the module does not use. If the module
//! exports an allocator, that part is allocated by it. Otherwise it is behind the module's memory: in the reserved page if
//! small enough, else in pages by which the memory grows. Allocators of C libraries may claim the whole memory at their
//! first call, therefore `sublet_function.h` exports them. Others, as Rust's, only use memory by which they have grown it.

use sublet_proto::{Code, to_usize};
use sublet_runtime::worker::engine::{CallInput, CallOutput, Engine, ErrorMessage, FunctionCaller};
use wasmtime::{Instance, Memory, Result, Store, TypedFunc};

use crate::engine::{WasmEngine, WasmFunction};
use crate::failure::CallFailure;
use crate::limits::{MOST_MEMORY_BYTES, PAGE_BYTES};
use crate::reserve::RESERVED_BYTES;
use crate::state::HostState;

/// Size of `struct sublet_context` of `sublet_function.h` in WebAssembly: its own size, and the output's capacity.
const CONTEXT_BYTES: u32 = 8;
/// Alignment of input and output.
const ALIGN_BYTES: u64 = 16;

/// Caller of a module's functions on one worker thread.
pub struct WasmCaller<'engine> {
    engine: &'engine WasmEngine,
    message: ErrorMessage,
    /// Instance of the latest call, which is dropped after the reply.
    used: Option<Store<HostState>>,
}

impl<'engine> WasmCaller<'engine> {
    pub(crate) fn new(engine: &'engine WasmEngine) -> WasmCaller<'engine> {
        WasmCaller { engine, message: ErrorMessage::new(), used: None }
    }
}

impl Engine for WasmEngine {
    type Caller<'engine> = WasmCaller<'engine>;

    fn caller(&self, _worker: u32) -> Result<WasmCaller<'_>, sublet_proto::Error> {
        wasmtime::Engine::tls_eager_initialize();
        Ok(WasmCaller::new(self))
    }
}

impl FunctionCaller for WasmCaller<'_> {
    fn call(&mut self, function: u16, input: CallInput<'_>, mut output: CallOutput<'_>) -> Result<u32, Code> {
        let Some(&function) = self.engine.functions.get(usize::from(function)) else {
            return Err(Code::UnknownFunction);
        };
        let under_way = self.engine.ticker.enter();
        // The pool has one instance for this thread.
        self.used = None;
        let store = self.used.insert(self.engine.store());
        let called = call(self.engine, store, function, input, &mut output);
        drop(under_way);
        called.map_err(|failure| {
            let (code, message) = failure.tell(&self.engine.limits);
            self.message = message;
            code
        })
    }

    fn message(&self) -> &[u8] {
        self.message.as_bytes()
    }

    fn rest(&mut self) {
        self.used = None;
    }
}

impl WasmEngine {
    fn store(&self) -> Store<HostState> {
        let mut store = Store::new(self.instances.module().engine(), HostState::default());
        store.set_epoch_deadline(self.ticker.deadline_ticks());
        store
    }
}

fn call(
    engine: &WasmEngine,
    store: &mut Store<HostState>,
    function: WasmFunction,
    input: CallInput<'_>,
    output: &mut CallOutput<'_>,
) -> Result<u32, CallFailure> {
    if let Some(fuel) = engine.limits.fuel {
        store.set_fuel(fuel)?;
    }
    let live = LiveInstance::start(engine, store)?;
    let place = live.place(engine, store, CallLayout::of(input.len(), output.capacity()))?;
    debug_assert!(place.end <= MOST_MEMORY_BYTES, "{place:?} is beyond the addresses of a module");
    let CallLayout { input: input_at, output: output_at, .. } = place;
    let memory = live.memory.data_mut(&mut *store);
    put(memory, place.context, &CONTEXT_BYTES.to_le_bytes());
    put(memory, place.context + 4, &output.capacity().to_le_bytes());
    input.copy_to(&mut memory[to_usize(input_at)..][..input.len() as usize]);
    let arguments = (address(input_at), input.len(), address(output_at));
    let written = match function.has_context {
        true => {
            let (input, size, output) = arguments;
            let long: TypedFunc<(u32, u32, u32, u32), u32> = live.function(store, &function.export)?;
            long.call(&mut *store, (input, size, output, address(place.context)))
        }
        false => {
            let short: TypedFunc<(u32, u32, u32), u32> = live.function(store, &function.export)?;
            short.call(&mut *store, arguments)
        }
    };
    if let Some(said) = store.data_mut().failure.take() {
        return Err(CallFailure::Said(said));
    }
    let written = written?;
    if written <= output.capacity() {
        output.copy_from(&live.memory.data(&*store)[to_usize(output_at)..][..written as usize]);
    }
    Ok(written)
}

fn put(memory: &mut [u8], at: u64, bytes: &[u8; 4]) {
    memory[to_usize(at)..][..bytes.len()].copy_from_slice(bytes);
}

/// An address as a module has it. An output of no bytes may begin at the end of 4 GiB, which is address 0.
fn address(at: u64) -> u32 {
    (at & 0xffff_ffff) as u32
}

/// Addresses of a call's bytes in the linear memory.
#[derive(Clone, Copy, Debug)]
struct CallLayout {
    context: u64,
    input: u64,
    output: u64,
    end: u64,
}

impl CallLayout {
    /// Lays the bytes out from address 0.
    fn of(input_bytes: u32, output_bytes: u32) -> CallLayout {
        let input = u64::from(CONTEXT_BYTES).next_multiple_of(ALIGN_BYTES);
        let output = (input + u64::from(input_bytes)).next_multiple_of(ALIGN_BYTES);
        CallLayout { context: 0, input, output, end: output + u64::from(output_bytes) }
    }

    /// Moves the layout to this address.
    fn at(self, start: u64) -> CallLayout {
        CallLayout {
            context: self.context + start,
            input: self.input + start,
            output: self.output + start,
            end: self.end + start,
        }
    }
}

/// A started instance.
struct LiveInstance {
    instance: Instance,
    memory: Memory,
}

impl LiveInstance {
    fn start(engine: &WasmEngine, store: &mut Store<HostState>) -> Result<LiveInstance> {
        let instance = engine.instances.instantiate(&mut *store)?;
        let memory = instance
            .get_module_export(&mut *store, &engine.exports.memory)
            .and_then(wasmtime::Extern::into_memory)
            .ok_or_else(|| wasmtime::Error::msg("the module's memory export is not a memory"))?;
        let live = LiveInstance { instance, memory };
        if let Some(initialize) = &engine.exports.initialize {
            live.function::<(), ()>(store, initialize)?.call(&mut *store, ())?;
        }
        Ok(live)
    }

    fn function<P: wasmtime::WasmParams, R: wasmtime::WasmResults>(
        &self,
        store: &mut Store<HostState>,
        export: &wasmtime::ModuleExport,
    ) -> Result<TypedFunc<P, R>> {
        let function = self
            .instance
            .get_module_export(&mut *store, export)
            .and_then(wasmtime::Extern::into_func)
            .ok_or_else(|| wasmtime::Error::msg("the module's function export is not a function"))?;
        function.typed(&*store)
    }

    /// Allocates memory for a call's bytes.
    fn place(
        &self,
        engine: &WasmEngine,
        store: &mut Store<HostState>,
        layout: CallLayout,
    ) -> Result<CallLayout, CallFailure> {
        let start = match (&engine.exports.allocate, engine.reserved) {
            (Some(allocate), _) => self.allocate(store, allocate, layout.end)?,
            (None, Some(reserved)) if layout.end <= RESERVED_BYTES => Some(reserved),
            (None, _) => self.grow(store, layout.end),
        };
        let memory_bytes = self.memory.data_size(&*store) as u64;
        debug_assert!(
            engine.reserved.is_none_or(|at| at + RESERVED_BYTES <= memory_bytes),
            "space is reserved at {:?} of {memory_bytes} bytes",
            engine.reserved
        );
        // The result of a module's allocator is untrusted.
        let placed = start.map(|start| layout.at(start)).filter(|placed| placed.end <= memory_bytes);
        placed.ok_or(CallFailure::NoSpace { wanted_bytes: layout.end, memory_bytes })
    }

    fn allocate(
        &self,
        store: &mut Store<HostState>,
        allocate: &wasmtime::ModuleExport,
        bytes: u64,
    ) -> Result<Option<u64>> {
        let Ok(bytes) = u32::try_from(bytes) else { return Ok(None) };
        let allocate: TypedFunc<u32, u32> = self.function(store, allocate)?;
        let at = allocate.call(&mut *store, bytes)?;
        Ok((at != 0).then_some(u64::from(at)))
    }

    fn grow(&self, store: &mut Store<HostState>, bytes: u64) -> Option<u64> {
        let pages = self.memory.grow(&mut *store, bytes.div_ceil(PAGE_BYTES)).ok()?;
        Some(pages * PAGE_BYTES)
    }
}
