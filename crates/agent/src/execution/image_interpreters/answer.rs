//! The interpreter that an image has, and the key by which a node remembers it.

use std::path::PathBuf;

use sublet_proto::isolation::Isolation;
use sublet_proto::package::python::without_image;
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};

use super::language::ImageLanguage;
use crate::execution::c_library::CLibrary;

/// The interpreter of an image, which can execute functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageInterpreter {
    /// Path in the image.
    pub(super) program: PathBuf,
    /// Version; that of a Python without its last number.
    pub(super) version: String,
    /// The C library with which it is linked.
    pub(crate) libc: CLibrary,
}

impl ImageInterpreter {
    /// Checks that it is of the version that a build requires, if it requires one.
    pub(super) fn check_version(&self, build: &PackageBuild) -> Result<(), Error> {
        let Some(language) = ImageLanguage::of(build) else { return Ok(()) };
        let (wanted, found) = (without_image(&build.architecture), language.architecture(&self.version));
        let version = wanted.trim_start_matches(char::is_alphabetic);
        if version.is_empty() || found.as_deref() == Some(wanted) {
            return Ok(());
        }
        let (image, library, has, name) = (&build.image, &build.library, &self.version, language.name());
        let message = format!("the image {image} has {name} {has}, and {library} is for {name} {version}");
        Err(Error::new(Code::WrongArchitecture, message))
    }
}

/// The interpreter of an image, or the reason why it cannot be used, which does not name the image.
pub(super) type Answer = Result<ImageInterpreter, Error>;

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
    pub(super) language: ImageLanguage,
    pub(super) isolation: Isolation,
    /// The program that makes the container, if another program does.
    pub(super) runtime: Option<PathBuf>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn key(digest: &str) -> QueryKey {
        QueryKey {
            digest: digest.to_owned(),
            language: ImageLanguage::Python,
            isolation: Isolation::Container,
            runtime: None,
        }
    }

    pub(crate) fn python(version: &str) -> Answer {
        let (program, version) = ("/bin/python3".into(), version.to_owned());
        Ok(ImageInterpreter { program, version, libc: CLibrary::Glibc })
    }

    #[test]
    fn rejects_an_interpreter_of_another_version_than_the_builds() {
        let check = |architecture: &str, version: &str| {
            let build = PackageBuild {
                architecture: architecture.to_owned(),
                library: "m".to_owned(),
                image: "app:1".to_owned(),
                ..PackageBuild::default()
            };
            let (program, version) = ("/p".into(), version.to_owned());
            ImageInterpreter { program, version, libc: CLibrary::Glibc }.check_version(&build)
        };
        for (architecture, version) in [
            ("python-image", "3.12"),
            ("python3.12-image", "3.12"),
            ("nodejs-image", "22.1.0"),
            ("nodejs22-image", "22.1.0"),
        ] {
            assert_eq!(check(architecture, version), Ok(()), "{architecture}");
        }
        for (architecture, version, message) in [
            ("python3.1-image", "3.12", "app:1 has Python 3.12, and m is for Python 3.1"),
            ("nodejs2-image", "22.1.0", "app:1 has Node.js 22.1.0, and m is for Node.js 2"),
        ] {
            let error = check(architecture, version).unwrap_err();
            assert!(error.code == Code::WrongArchitecture && error.message.contains(message), "{error}");
        }
    }
}
