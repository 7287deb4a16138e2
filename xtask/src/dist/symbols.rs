//! The rule for what programs and libraries may need of a system: symbol versions that glibc 2.28 and GCC 8 have, of the
//! libraries that every Linux distribution has. It is the rule of the platform tag `manylinux_2_28`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::elf::{ElfImage, images, is_elf};

/// Latest versions of symbols, by the beginning of their names.
const LATEST: &[(&str, &[u32])] =
    &[("GLIBC_", &[2, 28]), ("GLIBCXX_", &[3, 4, 24]), ("CXXABI_", &[1, 3, 11]), ("GCC_", &[7, 0, 0])];

/// Libraries that may be loaded; the loader is among them.
const LIBRARIES: &[&str] = &[
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "libutil.so.1",
];

/// Finds what the programs and libraries in a folder, and those that they carry, need beyond the rule. Returns one sentence
/// for each finding, and the number of files that were read.
pub fn findings(folder: &Path, machine: u16) -> io::Result<(Vec<String>, usize)> {
    let (mut found, mut count) = (Vec::new(), 0);
    for path in files(folder)? {
        let bytes = fs::read(&path)?;
        if !is_elf(&bytes) {
            continue;
        }
        count += 1;
        let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
        match images(&bytes) {
            Some(images) => {
                let faults = images.iter().flat_map(|image| faults(image, machine, LATEST));
                found.extend(faults.map(|fault| format!("{name} {fault}")));
            }
            None => found.push(format!("{name} is damaged, or carries a damaged ELF file")),
        }
    }
    Ok((found, count))
}

/// Returns the paths of all files under a folder, without those that links name.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            found.extend(files(&entry.path())?);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn faults(image: &ElfImage, machine: u16, latest: &[(&str, &[u32])]) -> Vec<String> {
    let mut faults = Vec::new();
    if image.machine != machine {
        faults.push(format!("is for architecture {}, not {machine}", image.machine));
    }
    let versions = image.versions.iter().filter(|version| !is_allowed(version, latest));
    faults.extend(versions.map(|version| format!("needs {version}")));
    let libraries = image.libraries.iter().filter(|name| !LIBRARIES.contains(&name.as_str()));
    faults.extend(libraries.map(|name| format!("loads {name}")));
    faults
}

/// Whether a version is of a known kind, and not later than the latest of its kind.
fn is_allowed(version: &str, latest: &[(&str, &[u32])]) -> bool {
    latest.iter().any(|(kind, latest)| {
        let numbers = version.strip_prefix(kind).and_then(numbers);
        numbers.is_some_and(|numbers| numbers.as_slice() <= *latest)
    })
}

/// Parses a version such as `2.28`. Returns `None` for a name that is not a version, such as `PRIVATE`.
fn numbers(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of the architecture of x86-64.
    const X86_64: u16 = 62;

    #[test]
    fn versions_are_compared_as_numbers() {
        for allowed in ["GLIBC_2.28", "GLIBC_2.9", "GLIBC_2.2.5", "GLIBCXX_3.4", "CXXABI_1.3.2", "GCC_3.0"] {
            assert!(is_allowed(allowed, LATEST), "{allowed}");
        }
        for later in ["GLIBC_2.29", "GLIBC_2.100", "GLIBC_3", "GLIBC_PRIVATE", "GLIBCXX_3.4.25", "ZLIB_1.2"] {
            assert!(!is_allowed(later, LATEST), "{later}");
        }
    }

    #[test]
    fn names_what_an_image_needs_too_much() {
        let image = ElfImage {
            machine: 183,
            libraries: vec!["libc.so.6".into(), "libssl.so.3".into()],
            versions: vec!["GLIBC_2.17".into(), "GLIBC_2.34".into()],
        };
        let expected = ["is for architecture 183, not 62", "needs GLIBC_2.34", "loads libssl.so.3"];
        assert_eq!(faults(&image, X86_64, LATEST), expected);
    }

    #[test]
    fn finds_a_program_of_this_machine_too_new_for_glibc_2_2() {
        let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let image = &images(&bytes).unwrap()[0];
        let old = faults(image, image.machine, &[("GLIBC_", &[2, 2]), ("GCC_", &[9])]);
        assert!(old.iter().any(|fault| fault.starts_with("needs GLIBC_2.")), "{old:?}");
    }

    #[test]
    fn reads_each_elf_file_of_a_folder() {
        let folder = std::env::temp_dir().join(format!("xtask-symbols-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::copy(std::env::current_exe().unwrap(), folder.join("bin/program")).unwrap();
        fs::write(folder.join("bin/script"), "#!/bin/sh\n").unwrap();
        fs::write(folder.join("cut"), b"\x7fELF\x02\x01\x01 and no more").unwrap();
        let (found, count) = findings(&folder, 0).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(count, 2);
        assert!(found.iter().any(|found| found.starts_with("bin/program is for architecture")), "{found:?}");
        assert!(found.iter().any(|found| found.starts_with("cut is damaged")), "{found:?}");
        assert!(!found.iter().any(|found| found.contains("script")), "{found:?}");
    }
}
