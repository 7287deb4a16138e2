//! The kinds of packages: the type of their library, and therefore its executor.

use super::nodejs::{ANY_NODEJS, IMAGE_NODEJS, is_image_nodejs, is_nodejs};
use super::platform::{ANY_PYTHON, IMAGE_PYTHON, PythonPlatform, is_image_python, is_python};
use crate::v1::PackageBuild;
use crate::{Code, Error};

/// Type of a package's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackageKind {
    /// A shared object for one kind of processor, called directly.
    Native,
    /// A WebAssembly module, for every processor.
    Wasm,
    /// A module of Python, named by the manifest.
    Python,
    /// A module of JavaScript for Node.js, named by the manifest.
    Nodejs,
    /// An environment for functions in Python, named by the manifest. It has no functions.
    Environment,
    /// Kernels for every device with a driver of OpenCL, named by the manifest.
    OpenCl,
    /// Kernels for NVIDIA's graphics processors, named by the manifest.
    Cuda,
}

/// The architecture of builds that run on every node.
pub const PORTABLE: &str = "wasm32";

/// Longest name of a kind of processor, in bytes.
pub const MAX_KIND_BYTES: usize = 32;

const WASM_MAGIC: &[u8] = b"\0asm";

impl PackageKind {
    /// Returns the kind of a file by its first bytes. An unknown file is read as a shared object, which then reports
    /// the fault.
    pub fn of(library: &[u8]) -> PackageKind {
        if library.starts_with(WASM_MAGIC) { PackageKind::Wasm } else { PackageKind::Native }
    }

    /// Returns the name under which it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            PackageKind::Native => "native",
            PackageKind::Wasm => "wasm",
            PackageKind::Python => "python",
            PackageKind::Nodejs => "nodejs",
            PackageKind::Environment => "environment",
            PackageKind::OpenCl => "opencl",
            PackageKind::Cuda => "cuda",
        }
    }

    /// Tells whether its functions are kernels, executed by nodes that have a device for them, with any processor.
    pub fn is_of_kernels(self) -> bool {
        matches!(self, PackageKind::OpenCl | PackageKind::Cuda)
    }

    /// Tells whether a manifest has to name the kind, because the library's first bytes do not show it.
    pub fn is_said(self) -> bool {
        matches!(self, PackageKind::Python | PackageKind::Nodejs | PackageKind::Environment)
            || self.is_of_kernels()
    }

    /// Parses the name of a kind.
    pub fn parse(name: &str) -> Result<PackageKind, Error> {
        match name {
            "native" => Ok(PackageKind::Native),
            "wasm" => Ok(PackageKind::Wasm),
            "python" => Ok(PackageKind::Python),
            "nodejs" => Ok(PackageKind::Nodejs),
            "environment" => Ok(PackageKind::Environment),
            "opencl" => Ok(PackageKind::OpenCl),
            "cuda" => Ok(PackageKind::Cuda),
            _ => Err(Error::new(Code::InvalidPackage, format!("there is no kind of package {name:?}"))),
        }
    }
}

/// Tells whether an architecture is that of a device, which only some nodes have.
pub fn is_device(architecture: &str) -> bool {
    [PackageKind::OpenCl, PackageKind::Cuda].iter().any(|device| device.name() == architecture)
}

/// Tells whether an architecture is that of an interpreter, which a node has only if its operator gave it one. A process
/// of an interpreter has one core.
pub fn is_interpreter(architecture: &str) -> bool {
    is_python(architecture) || is_nodejs(architecture)
}

/// Tells whether a build of this architecture is executed by the interpreter of its image.
pub fn is_image_interpreter(architecture: &str) -> bool {
    is_image_python(architecture) || is_image_nodejs(architecture)
}

/// Tells whether an architecture is that of a processor, which every node has: neither a device nor an interpreter.
pub fn is_processor(architecture: &str) -> bool {
    !is_device(architecture) && !is_interpreter(architecture)
}

/// Tells whether functions of a build can open device nodes of their sandbox: native code and Python, without an image.
pub fn can_open_devices(build: &PackageBuild) -> bool {
    let is_native = is_processor(&build.architecture) && build.architecture != PORTABLE;
    build.image.is_empty() && (is_native || is_python(&build.architecture))
}

/// Tells whether a processor may be of this kind: lower-case letters, digits and `-`, and no device.
pub fn is_processor_kind(kind: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_KIND_BYTES).contains(&kind.len())
        && kind.bytes().all(is_plain)
        && is_processor(kind)
        && kind != PORTABLE
}

/// Tells whether a build for `architecture` runs on `node`: a node's architecture, or that of one of its devices or
/// interpreters.
pub fn runs_on(architecture: &str, node: &str) -> bool {
    match architecture {
        PORTABLE => is_processor(node),
        _ if is_image_python(architecture) => node == IMAGE_PYTHON,
        _ if is_image_nodejs(architecture) => node == IMAGE_NODEJS,
        ANY_PYTHON => is_python(node) && !is_image_python(node),
        ANY_NODEJS => is_nodejs(node) && !is_image_nodejs(node),
        _ => architecture == node || is_for_platform(architecture, node),
    }
}

/// Whether an interpreter of a node is of the platform that wheels need.
fn is_for_platform(architecture: &str, node: &str) -> bool {
    match (PythonPlatform::parse(architecture), PythonPlatform::parse(node)) {
        (Some(needed), Some(node)) => needed.machine.is_some() && needed.runs_on(&node),
        _ => false,
    }
}
