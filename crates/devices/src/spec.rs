//! Defines the specification of a sandbox on a device, and rejects invalid ones before a driver sees them.

use sha2::{Digest as _, Sha256};
use sublet_proto::package::kernels::{MAX_KERNEL_NAME_BYTES, check_options, is_kernel_name};

use crate::{DeviceError, DriverKind, TenantId};

pub use sublet_proto::package::kernels::{MAX_OPTIONS_BYTES, MAX_PROGRAM_BYTES, WorkSize};

/// A digest of SHA-256.
pub(crate) type Digest = [u8; 32];

/// One function: a kernel of a program, and the number of work-items that execute it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Owner of the function.
    pub tenant: TenantId,
    /// Name of the kernel in its program. Kernels of several programs may have the same name.
    pub kernel: String,
    /// Program of the kernel.
    pub program: KernelProgram,
    /// Number of work-items of a launch.
    pub work: WorkSize,
}

/// Program of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelProgram {
    /// OpenCL C, or PTX for CUDA, in UTF-8.
    Source {
        /// The text.
        text: String,
        /// Definitions (`-DNAME`, `-DNAME=value`) and the compiler's `-cl-` switches; no option may name a file. CUDA
        /// takes no options.
        options: String,
    },
    /// Result of the device's own tools: an OpenCL program binary; a cubin or fatbin.
    Binary(Vec<u8>),
}

impl KernelSpec {
    /// Refuses specifications that no driver should receive.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        let refuse = |reason: String| {
            let name = self.kernel.chars().take(MAX_KERNEL_NAME_BYTES).collect();
            Err(DeviceError::Spec { name, reason })
        };
        if !is_kernel_name(&self.kernel) {
            return refuse(format!(
                "a name has 1 to {MAX_KERNEL_NAME_BYTES} letters, digits and '_', no digit first"
            ));
        }
        self.program.check().and_then(|()| self.work.check()).or_else(refuse)
    }

    /// Digest of the function, for the cache in memory: never the same for two tenants, since a program may have
    /// variables.
    pub(crate) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(self.tenant.0.to_le_bytes());
        hash.update(self.program.digest());
        hash.update(self.kernel.as_bytes());
        hash.finalize().into()
    }
}

impl KernelProgram {
    fn check(&self) -> Result<(), String> {
        let len = match self {
            KernelProgram::Source { text, .. } => text.len(),
            KernelProgram::Binary(bytes) => bytes.len(),
        };
        if len == 0 || len > MAX_PROGRAM_BYTES {
            return Err(format!("its program has {len} bytes, and 1 to {MAX_PROGRAM_BYTES} are taken"));
        }
        match self {
            KernelProgram::Source { text, .. } if text.contains('\0') => {
                Err("its source has a zero byte".into())
            }
            KernelProgram::Source { options, .. } => check_options(options),
            KernelProgram::Binary(_) => Ok(()),
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        match self {
            KernelProgram::Source { text, options } => {
                hash.update(b"source\0");
                hash.update(options.as_bytes());
                hash.update([0]);
                hash.update(text.as_bytes());
            }
            KernelProgram::Binary(bytes) => {
                hash.update(b"binary\0");
                hash.update(bytes);
            }
        }
        hash.finalize().into()
    }
}

/// The digest of a program image: of its parts, its device and driver, and the version of the image's format.
pub(crate) fn image_digest<'a>(
    kind: DriverKind,
    identity: &str,
    parts: impl Iterator<Item = (Digest, &'a [String])>,
) -> Digest {
    let mut hash = Sha256::new();
    hash.update(format!("sublet image 1\0{kind}\0{}\0{identity}\0", env!("CARGO_PKG_VERSION")));
    for (program, kernels) in parts {
        hash.update(program);
        hash.update(kernels.join(","));
        hash.update([0]);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kernel: &str, options: &str) -> KernelSpec {
        let program = KernelProgram::Source { text: "kernel void f() {}".into(), options: options.into() };
        KernelSpec { tenant: TenantId(1), kernel: kernel.into(), program, work: WorkSize::ONE }
    }

    #[test]
    fn refuses_empty_or_too_large_programs_and_empty_work() {
        let mut large = spec("f", "");
        large.program = KernelProgram::Binary(vec![0; MAX_PROGRAM_BYTES + 1]);
        assert!(large.check().is_err());
        let mut idle = spec("f", "");
        idle.work.items = 0;
        assert!(idle.check().is_err());
    }

    #[test]
    fn a_function_of_two_tenants_is_two_functions() {
        let (one, mut two) = (spec("f", ""), spec("f", ""));
        two.tenant = TenantId(2);
        assert_ne!(one.digest(), two.digest());
        assert_eq!(one.program.digest(), two.program.digest());
    }
}
