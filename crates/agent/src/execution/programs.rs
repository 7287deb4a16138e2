//! The worker programs: one for native code, one for native code in images with musl, one for WebAssembly, and one for kernels
//! of every kind. That of native code is said to the agent, and the others stand beside it under names of their own.

use std::fs;
use std::path::{Path, PathBuf};

use sublet_proto::package::PackageKind;
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};

use crate::execution::c_library::CLibrary;
use crate::machine::state::system;

/// The program of packages of kernels: it builds them, describes devices, and is the worker program.
pub(crate) const KERNELS: &str = "sublet-worker-kernels";

/// See the [module](self).
pub(crate) struct Programs {
    native: PathBuf,
}

impl Programs {
    /// Finds the programs beside the program for native code.
    pub(crate) fn beside(native: PathBuf) -> Programs {
        Programs { native }
    }

    /// The program that executes a build, where the C library is this one.
    pub(crate) fn of(&self, build: &PackageBuild, libc: CLibrary) -> Result<PathBuf, Error> {
        let kind = PackageKind::parse(&build.kind)?;
        let name = match (kind, libc) {
            (PackageKind::Native, CLibrary::Glibc) => return Ok(self.native.clone()),
            (PackageKind::Native, CLibrary::Musl) => format!("sublet-worker-{}", libc.name()),
            _ if kind.is_of_kernels() => KERNELS.to_owned(),
            _ => format!("sublet-worker-{}", kind.name()),
        };
        let program = self.native.with_file_name(name);
        if is_program(&program) {
            return Ok(program);
        }
        let (library, program) = (&build.library, program.display());
        let why = match kind {
            PackageKind::Native => {
                format!("runs in the image {}, whose C library is {},", build.image, libc.name())
            }
            _ => format!("is of the kind {},", kind.name()),
        };
        Err(Error::new(Code::System, format!("{library} {why} and its worker program {program} is missing")))
    }
}

/// Whether there is such a file and no link: the sandbox gets the file itself.
pub(crate) fn is_program(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
}

/// A file, by the path without links.
pub(crate) fn find_program(what: &str, program: &Path) -> Result<PathBuf, Error> {
    let found = fs::canonicalize(program)
        .map_err(|error| system(&format!("finding the {what} program"), program, &error))?;
    if found.is_file() {
        return Ok(found);
    }
    Err(Error::new(Code::InvalidArgument, format!("the {what} program {} is no file", program.display())))
}

/// An OCI runtime.
pub(crate) fn find_runtime(program: &Path) -> Result<PathBuf, Error> {
    find_command("container runtime", program).and_then(|path| find_program("container runtime", &path))
}

/// A program by its path, or by its name where this process looks for programs.
pub(crate) fn find_command(what: &str, program: &Path) -> Result<PathBuf, Error> {
    if program.components().count() > 1 {
        return std::path::absolute(program).map_err(|error| system("finding", program, &error));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found =
        std::env::split_paths(&folders).map(|folder| folder.join(program)).filter(|path| path.is_file());
    found.next().ok_or_else(|| {
        let message = format!("there is no {what} {} where programs are", program.display());
        Error::new(Code::InvalidArgument, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kind(kind: &str) -> PackageBuild {
        PackageBuild { kind: kind.into(), ..PackageBuild::default() }
    }

    #[test]
    fn each_kind_has_its_program() {
        let folder = tempfile::tempdir().unwrap();
        let native = folder.path().join("my-worker");
        let programs = Programs::beside(native.clone());
        let of = |kind: &str| programs.of(&of_kind(kind), CLibrary::Glibc);
        assert_eq!(of("native").unwrap(), native);
        let error = of("wasm").unwrap_err();
        assert!(error.message.contains("sublet-worker-wasm is missing"), "{error}");
        let wasm = folder.path().join("sublet-worker-wasm");
        std::fs::write(&wasm, "").unwrap();
        assert_eq!(of("wasm").unwrap(), wasm);
        let error = of("cuda").unwrap_err();
        assert!(error.message.contains("the kind cuda") && error.message.contains(KERNELS), "{error}");
        let kernels = folder.path().join(KERNELS);
        std::fs::write(&kernels, "").unwrap();
        assert_eq!([of("opencl").unwrap(), of("cuda").unwrap()], [kernels.clone(), kernels]);
        assert_eq!(of("abacus").unwrap_err().code, Code::InvalidPackage);
    }

    #[test]
    fn images_with_musl_have_a_native_program_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs::beside(folder.path().join("my-worker"));
        let build = PackageBuild { image: "an/image:1".into(), ..of_kind("native") };
        let error = programs.of(&build, CLibrary::Musl).unwrap_err();
        assert!(
            error.message.contains("an/image:1, whose C library is musl")
                && error.message.contains("sublet-worker-musl is missing"),
            "{error}"
        );
        let program = folder.path().join("sublet-worker-musl");
        std::fs::write(&program, "").unwrap();
        assert_eq!(programs.of(&build, CLibrary::Musl).unwrap(), program);
    }
}
