//! The kinds of packages: what their library is made of, and therefore what executes it.

use super::python::{ANY_PYTHON, is_python};
use crate::{Code, Error};

/// What a package's library is, told from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A shared object for one kind of processor, called directly.
    Native,
    /// A WebAssembly module, for every processor.
    Wasm,
    /// A module of Python, said by the manifest.
    Python,
    /// Kernels for whatever has a driver of OpenCL, said by the manifest.
    OpenCl,
    /// Kernels for NVIDIA's graphics processors, said by the manifest.
    Cuda,
}

/// The architecture of what runs on every node.
pub const PORTABLE: &str = "wasm32";

const WASM_MAGIC: &[u8] = b"\0asm";

impl Kind {
    /// What a file is. Whatever is not known by its first bytes is read as a shared object, which says what is wrong.
    pub fn of(library: &[u8]) -> Kind {
        if library.starts_with(WASM_MAGIC) { Kind::Wasm } else { Kind::Native }
    }

    /// As it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Native => "native",
            Kind::Wasm => "wasm",
            Kind::Python => "python",
            Kind::OpenCl => "opencl",
            Kind::Cuda => "cuda",
        }
    }

    /// Whether its functions are kernels, executed by nodes that have a device for them, whatever their processor is.
    pub fn is_of_kernels(self) -> bool {
        matches!(self, Kind::OpenCl | Kind::Cuda)
    }

    /// Whether a manifest has to say it, because the library's first bytes do not.
    pub fn is_said(self) -> bool {
        self == Kind::Python || self.is_of_kernels()
    }

    /// From its name.
    pub fn parse(name: &str) -> Result<Kind, Error> {
        match name {
            "native" => Ok(Kind::Native),
            "wasm" => Ok(Kind::Wasm),
            "python" => Ok(Kind::Python),
            "opencl" => Ok(Kind::OpenCl),
            "cuda" => Ok(Kind::Cuda),
            _ => Err(Error::new(Code::InvalidPackage, format!("there is no kind of package {name:?}"))),
        }
    }
}

/// Whether an architecture is none of processors but a device that some nodes have.
pub fn is_device(architecture: &str) -> bool {
    [Kind::OpenCl, Kind::Cuda].iter().any(|device| device.name() == architecture)
}

/// Whether an architecture is one of processors, as each node has them: neither a device nor an interpreter.
pub fn is_processor(architecture: &str) -> bool {
    !is_device(architecture) && !is_python(architecture)
}

/// Whether what is for that architecture is executed by this one: of a node, or of a device or an interpreter that it has.
pub fn runs_on(architecture: &str, node: &str) -> bool {
    match architecture {
        PORTABLE => is_processor(node),
        ANY_PYTHON => is_python(node),
        _ => architecture == node,
    }
}
