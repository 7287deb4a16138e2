//! The architectures of Python: the version and platform of a node's interpreter, and those that a build or the wheels of
//! an environment need.
//!
//! A platform is written like an architecture: `python3.11-x86_64-glibc2.36` for an interpreter of that version, on that
//! processor, with that C library. Wheels that need `python3.11-x86_64-glibc2.17` run there. Pure Python needs `python3.11`.

use std::fmt;

/// The architecture of builds that run on every Python.
pub const ANY_PYTHON: &str = "python";
/// The architecture of nodes that execute functions by the Python of their image.
pub const IMAGE_PYTHON: &str = "python-image";
/// End of the architecture of builds that are executed by the interpreter of their image.
pub(super) const OF_IMAGE: &str = "-image";

/// Largest number of a version.
const MAX_NUMBER: u32 = 999;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonPlatform {
    /// Version of Python, without its last number.
    pub version: (u32, u32),
    /// Processor and C library, unless any will do.
    pub machine: Option<PlatformMachine>,
}

/// A processor with a C library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformMachine {
    /// Architecture by its Rust name.
    pub architecture: String,
    /// `glibc` or `musl`.
    pub libc: String,
    /// Version of the C library.
    pub libc_version: (u32, u32),
}

impl PythonPlatform {
    /// Parses `python3.11` or `python3.11-x86_64-glibc2.36`.
    pub fn parse(text: &str) -> Option<PythonPlatform> {
        let mut parts = text.strip_prefix(ANY_PYTHON)?.split('-');
        let version = version_of(parts.next()?)?;
        let machine = match (parts.next(), parts.next(), parts.next()) {
            (None, None, None) => None,
            (Some(architecture), Some(libc), None) => {
                let digits = libc.find(|letter: char| letter.is_ascii_digit())?;
                let (libc, number) = libc.split_at(digits);
                let is_known = ["glibc", "musl"].contains(&libc) && is_architecture(architecture);
                let (architecture, libc) = (architecture.to_owned(), libc.to_owned());
                is_known.then_some(())?;
                Some(PlatformMachine { architecture, libc, libc_version: version_of(number)? })
            }
            _ => return None,
        };
        Some(PythonPlatform { version, machine })
    }

    /// The platform of pure Python of a version, which is written as `3.11`.
    pub fn of_version(text: &str) -> Option<PythonPlatform> {
        let version = version_of(text).filter(|(major, minor)| format!("{major}.{minor}") == text)?;
        Some(PythonPlatform { version, machine: None })
    }

    /// The platform that a tag of a wheel means, as `manylinux_2_17_x86_64` or `any`.
    pub fn of_tag(version: (u32, u32), tag: &str) -> Option<PythonPlatform> {
        if tag == "any" {
            return Some(PythonPlatform { version, machine: None });
        }
        let (libc, libc_version, architecture) = libc_of(tag)?;
        let (architecture, libc) = (architecture.to_owned(), libc.to_owned());
        is_architecture(&architecture).then_some(())?;
        Some(PythonPlatform { version, machine: Some(PlatformMachine { architecture, libc, libc_version }) })
    }

    /// Whether what needs this platform runs on another.
    pub fn runs_on(&self, node: &PythonPlatform) -> bool {
        let is_machine = |needed: &PlatformMachine, here: &PlatformMachine| {
            needed.architecture == here.architecture
                && needed.libc == here.libc
                && needed.libc_version <= here.libc_version
        };
        self.version == node.version
            && match (&self.machine, &node.machine) {
                (None, here) => here.is_none(),
                (Some(needed), Some(here)) => is_machine(needed, here),
                (Some(_), None) => false,
            }
    }

    /// The platform that meets both needs, if there can be one.
    pub fn and(self, other: PythonPlatform) -> Option<PythonPlatform> {
        let machine = match (self.machine, other.machine) {
            (None, machine) | (machine, None) => machine,
            (Some(one), Some(other)) => {
                let is_same = one.architecture == other.architecture && one.libc == other.libc;
                is_same.then_some(())?;
                Some(PlatformMachine { libc_version: one.libc_version.max(other.libc_version), ..one })
            }
        };
        (self.version == other.version).then_some(PythonPlatform { version: self.version, machine })
    }

    /// The version of the C library; `None` if any will do.
    pub fn libc_version(&self) -> Option<(u32, u32)> {
        self.machine.as_ref().map(|machine| machine.libc_version)
    }

    /// The last number of the newest glibc 2 whose wheels run here; 0 if only those for any C library do.
    pub fn glibc_minor(&self) -> u32 {
        match &self.machine {
            Some(PlatformMachine { libc, libc_version: (major, minor), .. }) if libc == "glibc" => {
                match major {
                    0 | 1 => 0,
                    2 => *minor,
                    _ => MAX_NUMBER,
                }
            }
            _ => 0,
        }
    }
}

impl fmt::Display for PythonPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        write!(f, "{ANY_PYTHON}{major}.{minor}")?;
        let Some(PlatformMachine { architecture, libc, libc_version: (major, minor) }) = &self.machine else {
            return Ok(());
        };
        write!(f, "-{architecture}-{libc}{major}.{minor}")
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    let number = |text: &str| {
        let is_number = (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    Some((number(major)?, number(minor)?))
}

fn is_architecture(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=32).contains(&text.len()) && text.bytes().all(is_plain)
}

fn libc_of(tag: &str) -> Option<(&'static str, (u32, u32), &str)> {
    // Wheels that were built on one machine and name no version of its C library.
    if let Some(architecture) = tag.strip_prefix("linux_") {
        return Some(("glibc", (2, 0), architecture));
    }
    let old = [("manylinux1_", 5), ("manylinux2010_", 12), ("manylinux2014_", 17)];
    if let Some((minor, architecture)) =
        old.into_iter().find_map(|(prefix, minor)| Some((minor, tag.strip_prefix(prefix)?)))
    {
        return Some(("glibc", (2, minor), architecture));
    }
    let (libc, rest) = tag
        .strip_prefix("manylinux_")
        .map(|rest| ("glibc", rest))
        .or_else(|| tag.strip_prefix("musllinux_").map(|rest| ("musl", rest)))?;
    let mut parts = rest.splitn(3, '_');
    let (major, minor, architecture) = (parts.next()?, parts.next()?, parts.next()?);
    Some((libc, version_of(&format!("{major}.{minor}"))?, architecture))
}

/// The architecture that an interpreter of this version is, as `python3.11` of `3.11` or `3.11.2`.
pub fn python_architecture(version: &str) -> Option<String> {
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next()?, numbers.next()?);
    let is_number = |text: &str| (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(major) && is_number(minor)).then(|| format!("{ANY_PYTHON}{major}.{minor}"))
}

/// Tells whether an architecture is that of an interpreter, which nodes have beside their processors.
pub fn is_python(architecture: &str) -> bool {
    is_version(without_image(architecture)) || PythonPlatform::parse(architecture).is_some()
}

/// Tells whether a build of this architecture is executed by the Python of its image.
pub fn is_image_python(architecture: &str) -> bool {
    architecture.strip_suffix(OF_IMAGE).is_some_and(is_version)
}

/// The architecture of an interpreter of the same version that is not an image's.
pub fn without_image(architecture: &str) -> &str {
    architecture.strip_suffix(OF_IMAGE).unwrap_or(architecture)
}

/// Whether this is `python`, or `python3.11`.
fn is_version(architecture: &str) -> bool {
    let version = architecture.strip_prefix(ANY_PYTHON);
    version.is_some_and(|version| version.is_empty() || python_architecture(version).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> PythonPlatform {
        PythonPlatform::parse(text).unwrap()
    }

    #[test]
    fn versions_are_two_plain_numbers() {
        assert_eq!(PythonPlatform::of_version("3.11"), Some(platform("python3.11")));
        for text in ["", "3", "3.", "3.11.7", "03.11", "3.x", "python3.11"] {
            assert_eq!(PythonPlatform::of_version(text), None, "{text}");
        }
    }

    #[test]
    fn platforms_are_read_as_they_are_written() {
        for text in ["python3.11", "python3.11-x86_64-glibc2.36", "python3.13-aarch64-musl1.2"] {
            assert_eq!(platform(text).to_string(), text);
        }
        for text in [
            "python",
            "python3",
            "python3.11-x86_64",
            "python3.11-x86_64-glibc",
            "python3.11-x86_64-uclibc1.0",
            "python3.11-X86-glibc2.1",
            "python3.11-x86_64-glibc2.36-more",
            "x86_64",
        ] {
            assert_eq!(PythonPlatform::parse(text), None, "{text}");
        }
    }

    #[test]
    fn newer_libraries_run_what_older_ones_do() {
        let runs = |needed: &str, node: &str| platform(needed).runs_on(&platform(node));
        let node = "python3.11-x86_64-glibc2.36";
        assert!(runs("python3.11-x86_64-glibc2.17", node) && runs(node, node));
        assert!(runs("python3.11", "python3.11"));
        for needed in [
            "python3.11-x86_64-glibc2.37",
            "python3.12-x86_64-glibc2.17",
            "python3.11-aarch64-glibc2.17",
            "python3.11-x86_64-musl1.2",
            "python3.11",
        ] {
            assert!(!runs(needed, node), "{needed}");
        }
    }

    #[test]
    fn needs_of_several_wheels_are_met_together() {
        let both = |one: &str, other: &str| platform(one).and(platform(other)).map(|both| both.to_string());
        let (old, new) = ("python3.11-x86_64-glibc2.17", "python3.11-x86_64-glibc2.28");
        assert_eq!(both(old, new).as_deref(), Some(new));
        assert_eq!(both("python3.11", old).as_deref(), Some(old));
        assert_eq!(both(old, "python3.11-aarch64-glibc2.17"), None);
        assert_eq!(both(old, "python3.11-x86_64-musl1.2"), None);
        assert_eq!(both(old, "python3.12"), None);
    }

    #[test]
    fn versions_of_libraries_are_compared_by_both_numbers() {
        let versions = ["python3.11", "python3.11-x86_64-glibc2.36", "python3.11-x86_64-glibc3.1"];
        assert!(versions.map(|text| platform(text).libc_version()).is_sorted());
        let minors = versions.map(|text| platform(text).glibc_minor());
        assert_eq!(minors, [0, 36, MAX_NUMBER]);
        assert_eq!(platform("python3.11-x86_64-musl1.2").glibc_minor(), 0);
    }

    #[test]
    fn names_architecture_without_last_number_of_version() {
        assert_eq!(python_architecture("3.11.2").as_deref(), Some("python3.11"));
        for version in ["3", "", "3.", "3.x", "three.1", "3.1234"] {
            assert_eq!(python_architecture(version), None, "{version}");
        }
        assert!(is_python("python") && is_python("python3.9"));
        assert!(!is_python("pythonic") && !is_python("x86_64") && !is_python("python3"));
    }
}
