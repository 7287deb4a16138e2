//! Compiles and links a package's module, from which instances are created.

use std::fs;
use std::path::Path;

use sublet_proto::package::{MANIFEST_FILE, Manifest};
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};
use sublet_runtime::worker::engine::EngineLoad;
use wasmtime::{ExternType, FuncType, InstancePre, Linker, Module, ModuleExport, ValType};

use crate::host;
use crate::limits::CallLimits;
use crate::reserve::{self, ReservedModule};
use crate::state::{HostState, MEMORY};
use crate::ticker::Ticker;

/// Names of a module's exported allocator: that of `sublet_function.h`, or of other tools.
const ALLOCATE: [&str; 2] = ["sublet_allocate", "malloc"];
/// Name of the function that runs before a module's other functions (WASI reactors).
const INITIALIZE: &str = "_initialize";

/// A loaded module. See the [crate](crate).
pub struct WasmEngine {
    pub(crate) instances: InstancePre<HostState>,
    pub(crate) functions: Vec<WasmFunction>,
    pub(crate) exports: Exports,
    /// Address of the space for a call's bytes in every instance.
    pub(crate) reserved: Option<u64>,
    pub(crate) limits: CallLimits,
    pub(crate) ticker: Ticker,
}

/// A function of the package.
#[derive(Clone, Copy)]
pub(crate) struct WasmFunction {
    pub(crate) export: ModuleExport,
    /// Whether the function has the long form.
    pub(crate) has_context: bool,
}

/// Exports of an instance that are used.
pub(crate) struct Exports {
    pub(crate) memory: ModuleExport,
    pub(crate) allocate: Option<ModuleExport>,
    pub(crate) initialize: Option<ModuleExport>,
}

impl WasmEngine {
    /// Compiles and links a package's module.
    ///
    /// # Errors
    /// [`Code::InvalidPackage`] if the module is invalid, has unknown imports, or exceeds the lease's memory at its
    /// start; [`Code::MissingSymbol`]; [`Code::System`] if its files cannot be read.
    pub fn load(load: &EngineLoad<'_>) -> Result<WasmEngine, Error> {
        let manifest = Manifest::parse(&String::from_utf8_lossy(&read(load.folder, MANIFEST_FILE)?))?;
        let limits = CallLimits::new(manifest.build(load.build)?.wasm.unwrap_or_default(), load);
        let engine = wasmtime::Engine::new(&limits.config(load.workers))
            .map_err(|error| Error::new(Code::System, format!("setting Wasmtime up: {error:#}")))?;
        let build = load.package.build(load.build)?;
        let library = &build.library;
        let refused = |error| refused(library, &error);
        let (module, reserved) = compile(&engine, &read(load.folder, library)?, &limits).map_err(refused)?;
        let mut linker = Linker::new(&engine);
        let linked = host::link(&mut linker, &module, load.variables);
        let instances = linked.and_then(|()| linker.instantiate_pre(&module)).map_err(refused)?;
        Ok(WasmEngine {
            functions: functions(&load.package.name, build, &module)?,
            exports: Exports::of(&module, library)?,
            ticker: Ticker::start(&engine, limits.deadline)?,
            instances,
            reserved,
            limits,
        })
    }
}

/// Compiles a module, with reserved space in its memory if none of its code runs before the first call.
fn compile(
    engine: &wasmtime::Engine,
    bytes: &[u8],
    limits: &CallLimits,
) -> wasmtime::Result<(Module, Option<u64>)> {
    let [allocate, malloc] = ALLOCATE;
    match reserve::make(bytes, limits.memory_bytes, &[INITIALIZE, allocate, malloc]) {
        Some(ReservedModule { module, at }) => Ok((Module::from_binary(engine, &module)?, Some(at))),
        None => Ok((Module::from_binary(engine, bytes)?, None)),
    }
}

impl Exports {
    fn of(module: &Module, library: &str) -> Result<Exports, Error> {
        let missing =
            || Error::new(Code::InvalidPackage, format!("{library} exports no memory named {MEMORY:?}"));
        let is_memory = matches!(module.get_export(MEMORY), Some(ExternType::Memory(_)));
        let memory = module.get_export_index(MEMORY).filter(|_| is_memory).ok_or_else(missing)?;
        let function = |name, parameters: &[ValType], results: &[ValType]| {
            let is_one =
                function_type(module, name).is_some_and(|of_type| has_type(&of_type, parameters, results));
            module.get_export_index(name).filter(|_| is_one)
        };
        Ok(Exports {
            memory,
            allocate: ALLOCATE.iter().find_map(|name| function(name, &[ValType::I32], &[ValType::I32])),
            initialize: function(INITIALIZE, &[], &[]),
        })
    }
}

fn functions(package: &str, build: &PackageBuild, module: &Module) -> Result<Vec<WasmFunction>, Error> {
    let find = |symbol: &str| {
        let of_type = function_type(module, symbol)?;
        let is_form = |count| has_type(&of_type, &vec![ValType::I32; count], &[ValType::I32]);
        let export = module.get_export_index(symbol)?;
        (is_form(3) || is_form(4)).then(|| WasmFunction { export, has_context: is_form(4) })
    };
    let missing = |symbol: &str| {
        let library = &build.library;
        let message =
            format!("{library} of package {package} exports no function {symbol} that can be called");
        Error::new(Code::MissingSymbol, message)
    };
    build.symbols.iter().map(|symbol| find(symbol).ok_or_else(|| missing(symbol))).collect()
}

fn function_type(module: &Module, name: &str) -> Option<FuncType> {
    match module.get_export(name)? {
        ExternType::Func(of_type) => Some(of_type),
        _ => None,
    }
}

fn has_type(of_type: &FuncType, parameters: &[ValType], results: &[ValType]) -> bool {
    let are = |values: &mut dyn Iterator<Item = ValType>, expected: &[ValType]| {
        let values: Vec<_> = values.collect();
        values.len() == expected.len()
            && values.iter().zip(expected).all(|(value, expected)| ValType::eq(value, expected))
    };
    are(&mut of_type.params(), parameters) && are(&mut of_type.results(), results)
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>, Error> {
    let path = folder.join(file);
    fs::read(&path).map_err(|error| Error::new(Code::System, format!("reading {}: {error}", path.display())))
}

/// Returns Wasmtime's error message on one line.
fn refused(library: &str, error: &wasmtime::Error) -> Error {
    let why = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    Error::new(Code::InvalidPackage, format!("{library} cannot be used: {why}"))
}
