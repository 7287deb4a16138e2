//! The fields of a manifest's builds: the library and the functions of each, and what its kind requires or limits.

use serde::Deserialize;

use super::kind::PackageKind;
use super::nodejs::NodejsNeeds;
use super::rules::wrong;
use crate::Error;

/// Longest symbol that a manifest may name, in bytes.
pub const MAX_SYMBOL_BYTES: usize = 255;
/// Longest time of a call of a WebAssembly function if its package names none, in milliseconds.
pub const DEFAULT_DEADLINE_MS: u64 = 60_000;
/// The longest time that a package may give its calls, in milliseconds: a day.
pub const MAX_DEADLINE_MS: u64 = 24 * 60 * 60 * 1000;

/// A `[[build]]` of a manifest: the functions for one kind of processing unit. A manifest of one build has all these
/// fields at its top.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The path of the library in the package.
    pub library: String,
    /// Kind of the library, if its first bytes do not show it: `python`, `nodejs`, `opencl` or `cuda`.
    pub kind: Option<String>,
    /// Whether the functions open connections by themselves. Only nodes that lend their network then execute them.
    #[serde(default)]
    pub network: bool,
    /// The OCI image in whose file system the functions run, as `REGISTRY/NAME:TAG@sha256:...`. Without a digest it can
    /// neither be stored nor run: [`super::pin_image`].
    pub image: Option<String>,
    /// The functions that are offered. Empty: every exported C function.
    #[serde(default, rename = "function")]
    pub functions: Vec<ManifestFunction>,
    /// Limits of calls of a WebAssembly module.
    pub wasm: Option<WasmLimits>,
    /// How kernels are compiled, and the limits of their calls.
    pub kernels: Option<KernelLimits>,
    /// Requirements for the Python.
    pub python: Option<PythonNeeds>,
    /// Requirements for the Node.js.
    pub nodejs: Option<NodejsNeeds>,
}

/// The `[wasm]` of a manifest: the limits of one call of a WebAssembly function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WasmLimits {
    /// Longest time of the call, in milliseconds; [`DEFAULT_DEADLINE_MS`] if it is left out.
    pub deadline_ms: Option<u64>,
    /// The largest size of its linear memory, in bytes, including input and output. If it is left out, its part of the
    /// lease's memory, which is never exceeded.
    pub memory_bytes: Option<u64>,
    /// Units of fuel that it may burn, about one for each instruction; no limit if it is left out.
    pub fuel: Option<u64>,
}

/// One `[[function]]` of a manifest, or the fields in which a `[[build.function]]` differs for its build.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFunction {
    /// Name by which callers call it.
    pub name: String,
    /// Symbol that the library exports, or a package's kernel; the same as the name if it is left out.
    pub symbol: Option<String>,
    /// Path of a kernel's program; the build's library if it is left out.
    pub program: Option<String>,
    /// Least number of work-items that execute a kernel; 1 if it is left out.
    pub items: Option<u32>,
    /// Bytes of input for each work-item of a kernel; any number if it is left out.
    pub bytes_per_item: Option<u32>,
    /// Work-items of a kernel's group; the driver chooses if it is left out.
    pub group: Option<u32>,
}

/// The `[python]` of a manifest: requirements for its interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonNeeds {
    /// The version without its last number, as `3.11`; any if it is left out.
    pub version: Option<String>,
    /// Modules that are imported before a worker is requested, if its node has them warm.
    #[serde(default)]
    pub imports: Vec<String>,
    /// File of the package, or a lock file, that says which distributions its functions import. They are resolved when
    /// the package is deployed, which names the environment.
    pub requirements: Option<String>,
    /// The environment in which its functions run: NAME, TENANT/NAME or a digest. A stored package has a digest.
    pub environment: Option<String>,
}

/// The `[kernels]` of a manifest: how its sources are compiled, and the limits of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelLimits {
    /// Options for OpenCL's compiler: `-DNAME[=VALUE]` and `-cl-*`.
    pub options: Option<String>,
    /// Longest time of a call, in milliseconds; [`super::DEFAULT_DEADLINE_MS`] if it is left out.
    pub deadline_ms: Option<u64>,
}

impl Build {
    /// Returns its named kind, if it has to name one.
    ///
    /// # Errors
    /// `invalid_package` if it names a kind that need not, or cannot, be named.
    pub fn said_kind(&self) -> Result<Option<PackageKind>, Error> {
        let Some(name) = &self.kind else { return Ok(None) };
        let kind = PackageKind::parse(name).ok().filter(|kind| kind.is_said());
        kind.map(Some).ok_or_else(|| {
            wrong(format!(
                "says the kind {name:?}, which is not python, nodejs, environment, opencl or cuda: only these are named"
            ))
        })
    }
}

impl ManifestFunction {
    /// Returns the library's symbol of the function.
    pub fn symbol(&self) -> &str {
        self.symbol.as_deref().unwrap_or(&self.name)
    }
}
