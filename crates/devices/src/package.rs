//! A build of kernels in an unpacked package: the specifications of its functions, and their time limit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use sublet_proto::package::{DEFAULT_DEADLINE_MS, MANIFEST_FILE, Manifest, ManifestFunction, kernels};
use sublet_proto::{Code, Error};

use crate::{KernelProgram, KernelSpec, TenantId};

/// Tenant of all kernels in a process that has one package: it contains no other tenant's kernels.
pub(crate) const ONLY: TenantId = TenantId(1);

/// The functions of a package's build, in their order.
#[derive(Clone, Debug)]
pub struct PackageKernels {
    /// One specification for each function.
    pub specs: Vec<KernelSpec>,
    /// Longest time of a call.
    pub deadline: Duration,
}

impl PackageKernels {
    /// Reads a package's manifest and the programs of one of its builds.
    ///
    /// # Errors
    /// [`Code::System`] if a file cannot be read, and the errors of the manifest.
    pub fn read(folder: &Path, build: u32) -> Result<PackageKernels, Error> {
        let manifest = Manifest::parse(&String::from_utf8_lossy(&read(folder, MANIFEST_FILE)?))?;
        let build = manifest.build(build)?;
        let said = build.kernels.clone().unwrap_or_default();
        let options = said.options.unwrap_or_default();
        let mut programs = BTreeMap::new();
        for function in &build.functions {
            let path = build.program_of(function);
            if !programs.contains_key(path) {
                programs.insert(path, program(read(folder, path)?, &options));
            }
        }
        let spec = |function: &ManifestFunction| KernelSpec {
            tenant: ONLY,
            kernel: function.symbol().to_owned(),
            program: programs[build.program_of(function)].clone(),
            work: function.work(),
        };
        let deadline = Duration::from_millis(said.deadline_ms.unwrap_or(DEFAULT_DEADLINE_MS));
        Ok(PackageKernels { specs: build.functions.iter().map(spec).collect(), deadline })
    }
}

fn program(bytes: Vec<u8>, options: &str) -> KernelProgram {
    match kernels::source(&bytes) {
        Some(text) => KernelProgram::Source { text: text.to_owned(), options: options.to_owned() },
        None => KernelProgram::Binary(bytes),
    }
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>, Error> {
    let path = folder.join(file);
    fs::read(&path).map_err(|error| Error::new(Code::System, format!("reading {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkSize;

    #[test]
    fn each_function_has_its_kernel_its_program_and_its_work() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, bytes: &[u8]| fs::write(folder.path().join(file), bytes).unwrap();
        write(
            MANIFEST_FILE,
            b"name='p'\nkind='opencl'\nlibrary='a.cl'\n[kernels]\noptions='-DN=2'\ndeadline_ms=7\n\
              [[function]]\nname='f'\nsymbol='kernel_f'\nbytes_per_item=4\n[[function]]\nname='g'\nprogram='b'\n",
        );
        write("a.cl", b"text");
        assert_eq!(PackageKernels::read(folder.path(), 0).unwrap_err().code, Code::System, "b is missing");
        write("b", &[0, 255]);
        let PackageKernels { specs, deadline } = PackageKernels::read(folder.path(), 0).unwrap();
        assert_eq!(deadline, Duration::from_millis(7));
        let [f, g] = &specs[..] else { panic!("{specs:?}") };
        assert_eq!(f.program, KernelProgram::Source { text: "text".into(), options: "-DN=2".into() });
        assert_eq!((f.kernel.as_str(), f.work), ("kernel_f", WorkSize::per_bytes(4)));
        assert_eq!((g.kernel.as_str(), &g.program), ("g", &KernelProgram::Binary(vec![0, 255])));
    }
}
