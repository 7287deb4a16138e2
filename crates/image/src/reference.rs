//! Names of images: registry, repository, and tag or digest.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;
use crate::error::ImageError;

/// Registry of names that have none, as in other tools.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Host of the default registry.
const DEFAULT_HOST: &str = "registry-1.docker.io";
/// Folder in the default registry of names that have none.
const DEFAULT_FOLDER: &str = "library/";
const DEFAULT_TAG: &str = "latest";
/// Longest registry and repository, including the parts that are filled in, so that a written name can always be read
/// again.
const MAX_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;

/// `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`, with missing parts filled in. If there is a digest, it counts instead of the
/// tag.
///
/// ```
/// let reference: sublet_image::Reference = "debian:12".parse().unwrap();
/// assert_eq!(reference.to_string(), "docker.io/library/debian:12");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Host, and port if it is not the usual one.
    pub registry: String,
    /// Name of the image in the registry.
    pub repository: String,
    /// Tag of the image, which can come to mean another image.
    pub tag: Option<String>,
    /// Digest of the image, which always means the same image.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Host that answers for the registry, with its port.
    pub(crate) fn host(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_HOST } else { &self.registry }
    }

    /// Whether the registry is on this machine, so that no other machine can listen or answer.
    pub fn is_local(&self) -> bool {
        let host = match self.registry.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.registry,
        };
        matches!(host, "localhost" | "127.0.0.1" | "[::1]")
    }

    /// Text that identifies the image in the registry: the digest or the tag.
    pub(crate) fn wanted(&self) -> String {
        let tag = || self.tag.clone().unwrap_or_else(|| DEFAULT_TAG.to_owned());
        self.digest.map_or_else(tag, |digest| digest.to_string())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        self.digest.map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Reference, ImageError> {
        let wrong = |reason| ImageError::Reference { text: text.chars().take(MAX_BYTES).collect(), reason };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse()?)),
            None => (text, None),
        };
        let (rest, tag) = split_tag(rest);
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("a tag has letters, digits, `_`, `.` and `-`"));
        }
        let (registry, repository) = split_registry(rest);
        if registry.len() + 1 + repository.len() > MAX_BYTES {
            return Err(wrong("it is too long"));
        }
        if !is_registry(registry) {
            return Err(wrong("its registry is no host with or without a port"));
        }
        if !repository.split('/').all(is_component) {
            return Err(wrong("names have small letters and digits, with `.`, `_` or `-` between them"));
        }
        // A name without tag and digest means the usual tag.
        let tag = tag.or(if digest.is_none() { Some(DEFAULT_TAG) } else { None });
        Ok(Reference { registry: registry.to_owned(), repository, tag: tag.map(str::to_owned), digest })
    }
}

/// A colon after the last slash is a tag's; one before it is a port's.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (text, None),
    }
}

/// A first part with a dot or a colon, or `localhost`, is a registry; else it is a folder.
fn split_registry(text: &str) -> (&str, String) {
    let (registry, repository) = match text.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, text),
    };
    let is_short = registry == DEFAULT_REGISTRY && !repository.contains('/');
    (registry, if is_short { format!("{DEFAULT_FOLDER}{repository}") } else { repository.to_owned() })
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (text, "443"),
    };
    let is_address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match is_address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
            !host.is_empty() && !host.starts_with('-') && host.bytes().all(is_allowed)
        }
    };
    is_host && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_allowed = |byte: u8| is_word(byte) || byte == b'.' || byte == b'-';
    text.len() <= MAX_TAG_BYTES && text.bytes().next().is_some_and(is_word) && text.bytes().all(is_allowed)
}

fn is_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_between = |part: &str| matches!(part, "." | "_" | "__") || part.bytes().all(|byte| byte == b'-');
    text.bytes().next().is_some_and(is_word)
        && text.bytes().next_back().is_some_and(is_word)
        && text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(is_between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> String {
        text.parse::<Reference>().unwrap_or_else(|error| panic!("{error}")).to_string()
    }

    #[test]
    fn fills_in_missing_parts_of_a_name() {
        assert_eq!(whole("debian"), "docker.io/library/debian:latest");
        assert_eq!(whole("user/app:1.2"), "docker.io/user/app:1.2");
        assert_eq!(whole("docker.io/debian"), "docker.io/library/debian:latest");
        assert_eq!(whole("localhost/app"), "localhost/app:latest");
        assert_eq!(whole("localhost:5000/a/b__c/d-e:T_x"), "localhost:5000/a/b__c/d-e:T_x");
        assert_eq!(whole("[::1]:5000/app:1"), "[::1]:5000/app:1");
        let pinned = format!("ghcr.io/a/b@{}", Digest::of(b""));
        assert_eq!(whole(&pinned), pinned);
        assert_eq!("debian".parse::<Reference>().unwrap().host(), DEFAULT_HOST);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(300);
        for text in [
            "",
            ":",
            "/",
            "a//b",
            "a/",
            "/a",
            "A",
            "a:",
            "a:-x",
            "a b",
            "a/../b",
            "a..b",
            "-a",
            "a@sha256:12",
            "http://a.b/c",
            "a.b:x/c",
            "a.b:99999/c",
            "a.b:/c",
            "[::g]/c",
            "a?b",
            "a.b/c#d",
            "a.b/%2e",
            "user@a.b/c",
            "a/b\n",
            &long,
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn bounds_the_length_of_the_whole_name() {
        let longest = "a".repeat(MAX_BYTES - "docker.io/library/".len());
        assert_eq!(whole(&whole(&longest)), whole(&longest));
        let error = format!("{longest}a").parse::<Reference>().unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        let tag = "t".repeat(MAX_TAG_BYTES);
        assert!(whole(&format!("{longest}:{tag}")).ends_with(&tag));
    }

    #[test]
    fn only_this_machine_is_local() {
        let is_local = |text: &str| text.parse::<Reference>().unwrap().is_local();
        for text in ["localhost/a", "localhost:5000/a", "127.0.0.1:5000/a", "[::1]/a", "[::1]:5000/a"] {
            assert!(is_local(text), "{text}");
        }
        for text in ["localhost.example.com/a", "127.0.0.1.nip.io/a", "a", "10.0.0.1:5000/a"] {
            assert!(!is_local(text), "{text}");
        }
    }
}
