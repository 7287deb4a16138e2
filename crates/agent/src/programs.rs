//! The worker programs: one for each kind of package. That of native code is said to the agent, and the others stand
//! beside it under its name and theirs.

use std::path::{Path, PathBuf};

use sublet_proto::package::Kind;
use sublet_proto::v1::PackageInfo;
use sublet_proto::{Code, Error};

/// See the [module](self).
pub(crate) struct Programs {
    native: PathBuf,
}

impl Programs {
    /// Those beside the program of native code.
    pub(crate) fn beside(native: PathBuf) -> Programs {
        Programs { native }
    }

    /// The program that executes a package.
    pub(crate) fn of(&self, package: &PackageInfo) -> Result<PathBuf, Error> {
        let kind = Kind::parse(&package.kind)?;
        if kind == Kind::Native {
            return Ok(self.native.clone());
        }
        let program = self.native.with_file_name(format!("sublet-worker-{}", kind.name()));
        if is_program(&program) {
            return Ok(program);
        }
        let (name, kind, program) = (&package.name, kind.name(), program.display());
        let message =
            format!("package {name} is of the kind {kind}, and its worker program {program} is missing");
        Err(Error::new(Code::System, message))
    }
}

/// Whether there is such a file and no link: the sandbox gets the file itself.
pub(crate) fn is_program(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kind(kind: &str) -> PackageInfo {
        PackageInfo { name: "p".into(), kind: kind.into(), ..PackageInfo::default() }
    }

    #[test]
    fn each_kind_has_its_program_and_old_packages_that_of_native_code() {
        let folder = tempfile::tempdir().unwrap();
        let native = folder.path().join("my-worker");
        let programs = Programs::beside(native.clone());
        for kind in ["", "native"] {
            assert_eq!(programs.of(&of_kind(kind)).unwrap(), native);
        }
        let error = programs.of(&of_kind("wasm")).unwrap_err();
        assert!(error.message.contains("sublet-worker-wasm is missing"), "{error}");
        let wasm = folder.path().join("sublet-worker-wasm");
        std::fs::write(&wasm, "").unwrap();
        assert_eq!(programs.of(&of_kind("wasm")).unwrap(), wasm);
        assert_eq!(programs.of(&of_kind("abacus")).unwrap_err().code, Code::InvalidPackage);
    }
}
