//! The Python that an image has, and the key by which a node remembers it.

use std::path::PathBuf;

use sublet_proto::isolation::Isolation;
use sublet_proto::package::python::without_image;
use sublet_proto::package::python_architecture;
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};

use crate::execution::c_library::CLibrary;

/// Name of the interpreter, which is looked up in the image.
pub(super) const PROGRAM: &str = "python3";

/// The Python of an image, which can execute functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePython {
    /// Path in the image.
    pub(super) program: PathBuf,
    /// Version without its last number.
    pub(super) version: String,
    /// The C library with which it is linked.
    pub(crate) libc: CLibrary,
}

impl ImagePython {
    /// Checks that it is of the version that a build requires, if it requires one.
    pub(super) fn check_version(&self, build: &PackageBuild) -> Result<(), Error> {
        let (wanted, found) = (without_image(&build.architecture), python_architecture(&self.version));
        let version = wanted.trim_start_matches(char::is_alphabetic);
        if version.is_empty() || found.as_deref() == Some(wanted) {
            return Ok(());
        }
        let (image, library, has) = (&build.image, &build.library, &self.version);
        let message = format!("the image {image} has Python {has}, and {library} is for Python {version}");
        Err(Error::new(Code::WrongArchitecture, message))
    }
}

/// The Python of an image, or the reason why it cannot be used, which does not name the image.
pub(super) type Answer = Result<ImagePython, Error>;

/// All on which an answer depends, beside this node.
///
/// An answer may serve every tenant. The digest pins each byte of the image, and the node has checked them when it pulled
/// the image. Nothing of a tenant is in the sandbox of a query, and its limits are the same for all. So a tenant can shape
/// the answer only by the content of its image, and another tenant that names the same digest has chosen the same content,
/// which its workers execute in any case. An answer that the state of the node may have caused is not kept, or not for long.
/// The name of the image is not part of the key: it may mean another image tomorrow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueryKey {
    pub(super) digest: String,
    pub(super) isolation: Isolation,
    /// The program that makes the container, if another program does.
    pub(super) runtime: Option<PathBuf>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn key(digest: &str) -> QueryKey {
        QueryKey { digest: digest.to_owned(), isolation: Isolation::Container, runtime: None }
    }

    pub(crate) fn python(version: &str) -> Answer {
        let (program, version) = ("/bin/python3".into(), version.to_owned());
        Ok(ImagePython { program, version, libc: CLibrary::Glibc })
    }
}
