//! Pins the image and the environment that a manifest names: adds the digest to the text, and changes nothing else.

use super::build::PythonNeeds;
use super::environment::is_pinned_environment;
use super::image::is_pinned;
use super::manifest::Manifest;
use super::rules::{MANIFEST_FILE, invalid};
use crate::{Error, v1};

/// The first image that a package names and that is not pinned yet.
pub fn unpinned_image(package: &v1::Package) -> Result<Option<String>, Error> {
    let builds = Manifest::parse(&package.manifest)?.builds;
    Ok(builds.into_iter().filter_map(|build| build.image).find(|image| !is_pinned(image)))
}

/// Pins that image: adds the digest to its name in the manifest.
pub fn pin_image(package: &mut v1::Package, digest: &str) -> Result<(), Error> {
    let Some(image) = unpinned_image(package)? else { return Ok(()) };
    let pinned = format!("{image}@{digest}");
    let are_pinned = |manifest: &str| {
        let builds = Manifest::parse(manifest).map(|manifest| manifest.builds).unwrap_or_default();
        builds.iter().filter(|build| build.image.as_ref() == Some(&pinned)).count()
    };
    let before = are_pinned(&package.manifest);
    for quote in ['"', '\''] {
        let changed = package.manifest.replacen(
            &format!("{quote}{image}{quote}"),
            &format!("{quote}{pinned}{quote}"),
            1,
        );
        // A change of another occurrence of the same text has no effect.
        if are_pinned(&changed) > before {
            debug_assert_eq!(
                changed.len(),
                package.manifest.len() + "@".len() + digest.len(),
                "pinning {image} changed more than its name"
            );
            package.manifest = changed;
            return Ok(());
        }
    }
    Err(invalid(format!("{MANIFEST_FILE}: pin the image by hand, as image = {pinned:?}")))
}

/// Entry of a manifest for an environment without its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnpinnedEnvironment {
    /// The name of an environment.
    Named(String),
    /// Requirements, by which it is to be made.
    Required {
        /// Path of a file in the package.
        file: String,
        /// The required version of Python.
        version: Option<String>,
    },
}

/// The first environment that a package names and that is not pinned yet.
///
/// # Errors
/// `invalid_package` if the manifest is not valid.
pub fn unpinned_environment(package: &v1::Package) -> Result<Option<UnpinnedEnvironment>, Error> {
    let builds = Manifest::parse(&package.manifest)?.builds;
    let unpinned = builds.into_iter().filter_map(|build| build.python).find_map(|needs| match needs {
        PythonNeeds { environment: Some(address), .. } => {
            (!is_pinned_environment(&address)).then_some(UnpinnedEnvironment::Named(address))
        }
        PythonNeeds { requirements: Some(file), version, .. } => {
            Some(UnpinnedEnvironment::Required { file, version })
        }
        _ => None,
    });
    Ok(unpinned)
}

/// Pins that environment by its address: adds it to the manifest.
///
/// # Errors
/// `invalid_package` if the manifest is written in a way that has to be changed by hand.
pub fn pin_environment(
    package: &mut v1::Package,
    unpinned: &UnpinnedEnvironment,
    address: &str,
) -> Result<(), Error> {
    let manifest = &package.manifest;
    let are_pinned = |manifest: &str| {
        let builds = Manifest::parse(manifest).map(|manifest| manifest.builds).unwrap_or_default();
        let needs = builds.into_iter().filter_map(|build| build.python);
        needs.filter(|needs| needs.environment.as_deref() == Some(address)).count()
    };
    let before = are_pinned(manifest);
    let text = match unpinned {
        UnpinnedEnvironment::Named(name) => name,
        UnpinnedEnvironment::Required { file, .. } => file,
    };
    for quote in ['"', '\''] {
        let quoted = format!("{quote}{text}{quote}");
        for (at, _) in manifest.match_indices(&quoted) {
            let (head, tail) = (&manifest[..at], &manifest[at + quoted.len()..]);
            let pinned = format!("{quote}{address}{quote}");
            let changes = match unpinned {
                UnpinnedEnvironment::Named(_) => vec![format!("{head}{pinned}{tail}")],
                UnpinnedEnvironment::Required { .. } => ["\n", ", "]
                    .map(|between| format!("{head}{quoted}{between}environment = {pinned}{tail}"))
                    .to_vec(),
            };
            // A change of another occurrence of the same text has no effect.
            if let Some(changed) = changes.into_iter().find(|changed| are_pinned(changed) > before) {
                debug_assert!(
                    changed.len() >= head.len() + tail.len()
                        && changed.starts_with(head)
                        && changed.ends_with(tail),
                    "pinning {text:?} changed more than its entry: {changed}"
                );
                package.manifest = changed;
                return Ok(());
            }
        }
    }
    Err(invalid(format!(
        "{MANIFEST_FILE}: pin the environment by hand, as environment = {address:?} in [python]"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::digest;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn package(image: &str) -> v1::Package {
        let manifest = format!("# \"x\"\nname = \"x\"\nlibrary = \"x\"\nimage = {image} # as it was\n");
        v1::Package { manifest, files: Vec::new() }
    }

    #[test]
    fn pins_an_image_and_changes_nothing_else() {
        for image in ["\"host:5000/a/b:1\"", "'host:5000/a/b:1'", "\"x\""] {
            let mut package = package(image);
            let before = package.manifest.clone();
            assert_eq!(unpinned_image(&package).unwrap().as_deref(), Some(image.trim_matches(['"', '\''])));
            if image == "\"x\"" {
                // The name of the package is the same text, and comes before it.
                assert!(pin_image(&mut package, DIGEST).unwrap_err().message.contains("by hand"));
                continue;
            }
            pin_image(&mut package, DIGEST).unwrap();
            assert_eq!(unpinned_image(&package).unwrap(), None);
            assert_eq!(package.manifest, before.replace(":1", &format!(":1@{DIGEST}")));
            pin_image(&mut package, "sha256:other").unwrap();
            assert_eq!(package.manifest, before.replace(":1", &format!(":1@{DIGEST}")));
        }
    }

    #[test]
    fn pins_what_a_manifest_says_of_environments() {
        let address = digest(b"e");
        let head = "name = 'p'\nkind = 'python'\nlibrary = 'm.py'\n";
        for (python, pinned) in [
            (
                "[python]\nrequirements = \"r.txt\" # all\nversion = \"3.11\"\n",
                "requirements = \"r.txt\"\nenvironment = \"DIGEST\" # all",
            ),
            (
                "python = { requirements = 'r.txt', version = '3.11' }\n",
                "'r.txt', environment = 'DIGEST', version",
            ),
            ("[python]\nenvironment = 'alice/e'\n", "environment = 'DIGEST'"),
        ] {
            let mut package = v1::Package { manifest: format!("{head}{python}"), files: Vec::new() };
            let unpinned = unpinned_environment(&package).unwrap().unwrap();
            pin_environment(&mut package, &unpinned, &address).unwrap();
            assert!(package.manifest.contains(&pinned.replace("DIGEST", &address)), "{}", package.manifest);
            assert_eq!(unpinned_environment(&package).unwrap(), None);
        }
        let manifest = format!("{head}[python]\nrequirements = \"r\\u002etxt\"\n");
        let mut package = v1::Package { manifest, files: Vec::new() };
        let unpinned = unpinned_environment(&package).unwrap().unwrap();
        assert_eq!(unpinned, UnpinnedEnvironment::Required { file: "r.txt".into(), version: None });
        let error = pin_environment(&mut package, &unpinned, &address).unwrap_err();
        assert!(error.message.contains("by hand"), "{error}");
    }
}
