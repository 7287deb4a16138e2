//! Packages of Node.js: functions of a module in JavaScript, executed by a Node.js of the node.
//!
//! Such a build names its kind (`kind = "nodejs"`), the file of its module, and its functions, which callers of any
//! language call with bytes. Its architecture is the major version of Node.js: `nodejs20`, or `nodejs` for any. A build
//! with an image is executed by the Node.js of the image, and its architecture says so: `nodejs20-image`.
//!
//! Modules are not examined here: untrusted programs are read by a process with nothing to lose.

use serde::Deserialize;

use super::digest::is_digest;
use super::platform::{OF_IMAGE, without_image};
use crate::v1::PackageFile;

/// The architecture of builds that run on every Node.js.
pub const ANY_NODEJS: &str = "nodejs";
/// The architecture of nodes that execute functions by the Node.js of their image.
pub const IMAGE_NODEJS: &str = "nodejs-image";
/// File in which a package with installed dependencies has the digest of the sources for which they were installed.
pub const SOURCES_FILE: &str = "node_modules/.sources";
/// Suffixes of the files of modules.
const MODULE_SUFFIXES: [&str; 3] = [".js", ".cjs", ".mjs"];

/// The `[nodejs]` of a manifest: requirements for its Node.js.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodejsNeeds {
    /// The major version, as `20`; any if it is left out.
    pub version: Option<String>,
}

/// The architecture that a Node.js of this version is: `nodejs20` of `20` or `20.11.1`.
pub fn nodejs_architecture(version: &str) -> Option<String> {
    let major = version.split('.').next()?;
    let is_number = (1..=3).contains(&major.len()) && major.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{ANY_NODEJS}{major}"))
}

/// Tells whether an architecture is that of a Node.js, which nodes may have beside their processors.
pub fn is_nodejs(architecture: &str) -> bool {
    is_version(without_image(architecture))
}

/// Tells whether a build of this architecture is executed by the Node.js of its image.
pub fn is_image_nodejs(architecture: &str) -> bool {
    architecture.strip_suffix(OF_IMAGE).is_some_and(is_version)
}

/// Whether this is `nodejs`, or `nodejs20`.
fn is_version(architecture: &str) -> bool {
    architecture.strip_prefix(ANY_NODEJS).is_some_and(|version| {
        version.is_empty() || !version.contains('.') && nodejs_architecture(version).is_some()
    })
}

/// Tells whether this is the path of a module, by its suffix.
pub fn is_module(path: &str) -> bool {
    MODULE_SUFFIXES.iter().any(|suffix| path.ends_with(suffix))
}

/// Digest of the sources for which the dependencies in a package were installed; empty for another package.
pub(super) fn sources_of(files: &[PackageFile]) -> String {
    let note = files.iter().find(|file| file.path == SOURCES_FILE);
    let digest = note.and_then(|file| std::str::from_utf8(&file.data).ok());
    digest.filter(|digest| is_digest(digest)).unwrap_or_default().to_owned()
}

/// Architecture of a build with these requirements, which has an image or has none.
///
/// # Errors
/// The fault, as the rest of a sentence about the manifest.
pub(super) fn architecture(needs: Option<&NodejsNeeds>, image: Option<&str>) -> Result<String, String> {
    let place = if image.is_some() { OF_IMAGE } else { "" };
    let Some(version) = needs.and_then(|needs| needs.version.as_deref()) else {
        return Ok(format!("{ANY_NODEJS}{place}"));
    };
    Some(format!("{ANY_NODEJS}{version}"))
        .filter(|architecture| is_version(architecture) && !version.is_empty())
        .map(|architecture| format!("{architecture}{place}"))
        .ok_or_else(|| format!("says that it needs Node.js {version:?}, not one as \"20\""))
}

/// Checks the file of a module, and its functions by their names and symbols.
///
/// # Errors
/// As for [`architecture`].
pub(super) fn check_module<'build>(
    library: &str,
    functions: impl ExactSizeIterator<Item = (&'build str, &'build str)>,
) -> Result<(), String> {
    if !is_module(library) {
        return Err(format!("names the module {library:?}, which is no file NAME.js, NAME.cjs or NAME.mjs"));
    }
    if functions.len() == 0 {
        return Err("names no [[function]]: functions in Node.js are named".to_owned());
    }
    let mut wrong = functions.filter(|(_, symbol)| !is_path(symbol));
    wrong.next().map_or(Ok(()), |(name, symbol)| {
        Err(format!("says that {name} is {symbol:?}, which is no name in JavaScript"))
    })
}

/// Whether this is names with dots between: a property of what the module exports, or of an object in that.
fn is_path(text: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic() || c == '_' || c == '$';
    text.split('.')
        .all(|name| name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::package::{CheckedPackage, digest, encode, from_files, validate};

    fn checked(manifest: &str) -> Result<CheckedPackage, Error> {
        let file = |path: &str| PackageFile { path: path.into(), data: b"x = 1".to_vec(), executable: false };
        validate(&encode(&from_files(manifest, vec![file("m.js"), file("lib/n.mjs"), file("p.so")])?))
    }

    const MODULE: &str = "name='p'\nkind='nodejs'\nlibrary='m.js'\n";

    #[test]
    fn nodejs_package_has_its_named_functions() {
        let functions = "[[function]]\nname='f'\n[[function]]\nname='g'\nsymbol='tools.$g'\n";
        let package = checked(&format!("{MODULE}{functions}[nodejs]\nversion='20'")).unwrap();
        assert_eq!(package.functions, ["f", "g"]);
        let build = &package.builds[0];
        assert_eq!((build.kind.as_str(), build.architecture.as_str()), ("nodejs", "nodejs20"));
        assert_eq!(build.symbols, ["f", "tools.$g"]);
        let any = checked("name='p'\nkind='nodejs'\nlibrary='lib/n.mjs'\n[[function]]\nname='f'").unwrap();
        assert_eq!(any.builds[0].architecture, ANY_NODEJS);
        let image = format!("image='x@sha256:{}'\n", "0".repeat(64));
        let inside = checked(&format!("{MODULE}{image}{functions}[nodejs]\nversion='20'")).unwrap();
        assert_eq!(inside.builds[0].architecture, "nodejs20-image");
        let inside = checked(&format!("{MODULE}{image}{functions}")).unwrap();
        assert_eq!(inside.builds[0].architecture, IMAGE_NODEJS);
    }

    #[test]
    fn rejects_what_nodejs_cannot_execute() {
        const FUNCTION: &str = "[[function]]\nname='f'\n";
        for (more, named) in [
            ("[[function]]\nname='f'\n[nodejs]\nversion='20.1'", "\"20.1\""),
            ("[[function]]\nname='f'\n[nodejs]\nversion=''", "\"\""),
            ("[[function]]\nname='f'\n[nodejs]\nversion='lts'", "lts"),
            ("[[function]]\nname='f'\n[nodejs]\ncolour='red'", "colour"),
            ("", "no [[function]]"),
            ("[[function]]\nname='f'\nsymbol='f()'", "f()"),
            ("[[function]]\nname='f'\nsymbol='f.'", "\"f.\""),
            ("network=true\n[[function]]\nname='f'", "network"),
            ("image='node:20'\n[[function]]\nname='f'", "the image node:20 is not pinned"),
            ("[[function]]\nname='f'\n[nodejs]\nversion='20-image'", "\"20-image\""),
            ("wasm={}\n[[function]]\nname='f'", "[wasm]"),
            ("kernels={}\n[[function]]\nname='f'", "kernels"),
            ("python={}\n[[function]]\nname='f'", "[python]"),
        ] {
            let error = checked(&format!("{MODULE}{more}")).unwrap_err();
            assert!(error.message.contains(named), "{more}: {error}");
        }
        let message = |manifest: &str| checked(manifest).unwrap_err().message;
        assert!(message(&format!("name='p'\nkind='nodejs'\nlibrary='p.so'\n{FUNCTION}")).contains("p.so"));
        assert!(message("name='p'\nlibrary='p.so'\n[nodejs]\n").contains("kind is not nodejs"));
    }

    #[test]
    fn tells_the_sources_of_installed_dependencies() {
        let sources = |note: &str| {
            let file = |path: &str, text: &str| PackageFile {
                path: path.into(),
                data: text.into(),
                executable: false,
            };
            let manifest = format!("{MODULE}[[function]]\nname='f'\n");
            let files = vec![file("m.js", ""), file(SOURCES_FILE, note)];
            validate(&encode(&from_files(&manifest, files).unwrap())).unwrap().info().sources
        };
        assert_eq!(sources(&digest(b"own files")), digest(b"own files"));
        assert_eq!(sources("sha256:../../etc"), "");
        assert_eq!(checked(&format!("{MODULE}[[function]]\nname='f'\n")).unwrap().info().sources, "");
    }

    #[test]
    fn names_architecture_by_first_number_of_version() {
        assert_eq!(nodejs_architecture("20.11.1").as_deref(), Some("nodejs20"));
        assert!(is_nodejs("nodejs") && is_nodejs("nodejs22"));
        assert!(
            is_nodejs("nodejs22-image") && is_image_nodejs("nodejs22-image") && is_image_nodejs(IMAGE_NODEJS)
        );
        assert!(!is_image_nodejs("nodejs22") && !is_image_nodejs("python3.11-image"));
        for other in ["node", "nodejs2x", "nodejs20.1", "nodejs20-image-image", "python3.11", "x86_64"] {
            assert!(!is_nodejs(other), "{other}");
        }
    }
}
