//! A package's shared object in a worker: its functions, and how they are called.
//!
//! A function is called with four arguments: input, size, output, context. The short form of the interface (`uint32_t
//! f(void*, uint32_t, void*)`, rFaaS Listing 1) declares three of them and ignores the fourth. On x86-64 and aarch64
//! all four are passed in registers that belong to the caller. Therefore one way of calling serves both forms, and a
//! shared object need not say which form each function has.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use libloading::os::unix::{Library as Object, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use sublet_proto::{Code, Error};

use super::components::OPERATIONS;
use super::context::{CallContext, Function, GuardedCall, PackageFunctions};
use super::engine::{CallInput, CallOutput, Engine, EngineLoad, FunctionCaller};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "calling both forms of a function alike relies on the register calling conventions of x86-64 and aarch64"
);

/// A loaded shared object.
pub struct LoadedLibrary {
    functions: PackageFunctions,
    // The functions and their guard point into these; they stay loaded as long as the process.
    _objects: Vec<Object>,
}

impl LoadedLibrary {
    /// Loads a package's shared object from its folder and finds its functions.
    ///
    /// # Errors
    /// The dynamic loader's error, as [`Code::InvalidPackage`], and [`Code::MissingSymbol`].
    pub fn load(load: &EngineLoad<'_>) -> Result<LoadedLibrary, Error> {
        let build = load.package.build(load.build)?;
        let path = load.folder.join(&build.library);
        // SAFETY: loading runs the object's constructors. The tenant has leased this process to run the object's code:
        // the process holds no data of another tenant.
        let object = unsafe { Object::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            let why = said(&error);
            Error::new(Code::InvalidPackage, format!("{} cannot be loaded: {why}", build.library))
        })?;
        let find = |symbol: &String| find(&object, load, &build.library, symbol);
        let indexed = build.symbols.iter().map(find).collect::<Result<Vec<Function>, _>>()?;
        let names = load.package.functions.iter().map(|function| CString::new(function.name.as_str()));
        let names = names.zip(&indexed).filter_map(|(name, &function)| Some((name.ok()?, function)));
        let names: HashMap<CString, Function> = names.collect();
        let mut objects = vec![object];
        let guard = load_guard(&mut objects)?;
        let functions = PackageFunctions { indexed, names, guard };
        Ok(LoadedLibrary { functions, _objects: objects })
    }
}

impl Engine for LoadedLibrary {
    type Caller<'library> = NativeCaller<'library>;

    fn caller(&self, worker: u32) -> Result<NativeCaller<'_>, Error> {
        let functions = &self.functions;
        let context = CallContext::new(worker, Some(NonNull::from(functions)), &OPERATIONS);
        Ok(NativeCaller { functions, context })
    }
}

/// The object by which one thread calls the functions of a shared object.
pub struct NativeCaller<'library> {
    functions: &'library PackageFunctions,
    context: CallContext,
}

impl FunctionCaller for NativeCaller<'_> {
    /// Calls a function in place. A faulty function can only break this process.
    #[inline(always)]
    fn call(&mut self, function: u16, input: CallInput<'_>, mut output: CallOutput<'_>) -> Result<u32, Code> {
        let Some(function) = self.functions.at(function) else {
            return Err(Code::UnknownFunction);
        };
        self.context.begin(output.capacity());
        let (size, input) = (input.len(), input.address().as_ptr().cast());
        let output = output.address().as_ptr().cast();
        let written = self.functions.invoke(&mut self.context, function, (input, size), output)?;
        self.context.settle().map(|()| written)
    }

    fn message(&self) -> &[u8] {
        self.context.message()
    }

    #[inline(always)]
    fn rest(&mut self) {
        self.context.rest();
    }
}

fn find(object: &Object, load: &EngineLoad<'_>, library: &str, symbol: &str) -> Result<Function, Error> {
    // SAFETY: the symbol is used as a function of the interface; that it is one is the tenant's promise.
    let found = unsafe { object.get::<Function>(symbol.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|error| {
        let (package, why) = (&load.package.name, said(&error));
        Error::new(
            Code::MissingSymbol,
            format!("{library} of package {package} has no symbol {symbol}: {why}"),
        )
    })
}

/// The dynamic loader's message, which the error's own text leaves out.
fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The C++ guard, which is empty in a worker with musl: see build.rs.
const GUARD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard.so"));

/// Loads the C++ guard if the package has brought libstdc++ into the process. In a worker with musl, which has no guard, an
/// exception that leaves a function ends the process.
fn load_guard(objects: &mut Vec<Object>) -> Result<Option<GuardedCall>, Error> {
    const RTLD_NOLOAD: c_int = 4;
    if cfg!(target_env = "musl") {
        return Ok(None);
    }
    // SAFETY: with RTLD_NOLOAD nothing is loaded and nothing runs.
    let Ok(standard) = (unsafe { Object::open(Some("libstdc++.so.6"), RTLD_LAZY | RTLD_NOLOAD) }) else {
        return Ok(None);
    };
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Error::new(Code::System, format!("{what} for the C++ guard: {error}"))
    };
    let file = guard_file().map_err(|error| failed("memfd_create", &error))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the guard is our own and has no constructors.
    let guard = unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| failed("dlopen", &said(&error)))?;
    // SAFETY: the type is the one that guard.cpp defines.
    let call = *unsafe { guard.get::<GuardedCall>(b"sublet_guarded_call") }
        .map_err(|error| failed("dlsym", &said(&error)))?;
    objects.extend([standard, guard]);
    Ok(Some(call))
}

fn guard_file() -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("sublet-guard", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < GUARD.len() {
        written += rustix::io::write(&file, &GUARD[written..])?;
    }
    Ok(file)
}
