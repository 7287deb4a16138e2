//! Wheels: the layers of environments. A layer is a wheel's file, byte for byte, and its digest is the file's own, as
//! indexes and lock files have it.
//!
//! A wheel is untrusted. [`Wheel::read`] checks that each file has a path that stays inside of the wheel, and that no two
//! files are in each other's place. It also checks that the wheel's `RECORD` has the size and SHA-256 of each file. [`Wheel::content`] returns a file's content only if it is the recorded one. Nothing of a wheel is executed.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use sha2::{Digest, Sha256};

use super::files::check_path;
use super::platform::PythonPlatform;
use super::rules::invalid;
use super::zip;
use crate::Error;

/// The kind of layers.
pub const WHEEL: &str = "wheel";
/// Longest name of a wheel's file, in bytes.
pub const MAX_WHEEL_NAME_BYTES: usize = 250;
/// Largest `RECORD`, in bytes.
const MAX_RECORD_BYTES: u64 = 32 << 20;
/// Most tags of a wheel: those of a compressed name, multiplied.
const MAX_TAGS: usize = 256;
const RECORD: &str = "RECORD";
/// Base64 of hashes in a `RECORD`. The last bits of a text, which mean nothing, may have any value.
const BASE64_URL: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
/// Files that `RECORD` need not have: itself and its signatures.
const UNRECORDED: [&str; 3] = [RECORD, "RECORD.jws", "RECORD.p7s"];

/// Where a file of a wheel is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// In the folder of modules.
    Site,
    /// In the root of the environment.
    Data,
    /// Among the programs of the environment.
    Scripts,
    /// Among the headers of C.
    Headers,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 4] = [Scheme::Site, Scheme::Data, Scheme::Scripts, Scheme::Headers];

    /// Name of the folder of an unpacked layer.
    pub fn folder(self) -> &'static str {
        match self {
            Scheme::Site => "site",
            Scheme::Data => "data",
            Scheme::Scripts => "scripts",
            Scheme::Headers => "headers",
        }
    }
}

/// A file of a wheel, and where it is installed.
#[derive(Clone, Debug)]
pub struct WheelFile<'data> {
    /// Part of an environment in which the file is installed.
    pub scheme: Scheme,
    /// Path of the file in that part, which was checked to stay there.
    pub path: &'data str,
    entry: zip::ZipEntry<'data>,
    /// SHA-256 of the file, unless it is the record itself.
    hash: Option<[u8; 32]>,
}

impl WheelFile<'_> {
    /// Size when it is unpacked, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.entry.size_bytes
    }

    /// Whether it is a program.
    pub fn is_executable(&self) -> bool {
        self.entry.executable
    }

    /// Whether this content is the recorded one.
    pub fn is_content(&self, content: &[u8]) -> bool {
        self.hash.is_none_or(|hash| has_hash(content, &hash))
    }
}

/// A wheel that was checked, but for the contents of its files.
#[derive(Clone, Debug)]
pub struct Wheel<'data> {
    /// The distribution and its version, as `numpy-2.2.6`.
    pub name: String,
    /// Files of the wheel, each in another place.
    pub files: Vec<WheelFile<'data>>,
}

impl<'data> Wheel<'data> {
    /// Reads the file of a wheel.
    ///
    /// # Errors
    /// `invalid_package` with the wheel's fault.
    pub fn read(data: &'data [u8]) -> Result<Wheel<'data>, Error> {
        let entries =
            zip::entries(data).map_err(|fault| invalid(format!("the wheel is damaged: {fault}")))?;
        let name = name_of(&entries)?.to_owned();
        let of = |fault: String| invalid(format!("the wheel {name} {fault}"));
        let record_path = format!("{name}.dist-info/{RECORD}");
        let found = entries.iter().find(|entry| entry.path == record_path);
        let entry = found.ok_or_else(|| of(format!("has no {record_path}")))?;
        if entry.size_bytes > MAX_RECORD_BYTES {
            return Err(of(format!("has a {RECORD} of more than {MAX_RECORD_BYTES} bytes")));
        }
        let record = entry.content().map_err(|fault| of(format!("is damaged: {fault}")))?;
        let record = parse_record(&record).map_err(of)?;
        let paths: BTreeSet<&str> = entries.iter().map(|entry| entry.path).collect();
        if let Some(missing) = record.keys().find(|path| !paths.contains(path.as_str())) {
            return Err(of(format!("has no {missing:?}, which its {RECORD} has")));
        }
        let mut files = Vec::with_capacity(entries.len());
        for entry in entries {
            let (scheme, path) = place_of(&name, entry.path).map_err(of)?;
            check_path(path).map_err(|error| of(format!("is refused: {}", error.message)))?;
            let own = entry.path.strip_prefix(&format!("{name}.dist-info/")).unwrap_or_default();
            let hash = match record.get(entry.path) {
                _ if UNRECORDED.contains(&own) => None,
                Some((_, Some(size))) if *size != entry.size_bytes => {
                    return Err(of(format!("has {:?} in another size than {RECORD} says", entry.path)));
                }
                Some((hash, _)) => Some(*hash),
                None => return Err(of(format!("has {:?}, which its {RECORD} does not have", entry.path))),
            };
            files.push(WheelFile { scheme, path, entry, hash });
        }
        check_places(&files).map_err(of)?;
        Ok(Wheel { name, files })
    }

    /// Returns the content of one of its files.
    ///
    /// # Errors
    /// `invalid_package` if it is damaged, or not what the wheel's record says.
    pub fn content(&self, file: &WheelFile<'_>) -> Result<Vec<u8>, Error> {
        let content = file.entry.content();
        let content =
            content.map_err(|fault| invalid(format!("the wheel {} is damaged: {fault}", self.name)))?;
        if file.is_content(&content) {
            debug_assert_eq!(content.len() as u64, file.size_bytes(), "bytes of {:?}", file.path);
            return Ok(content);
        }
        let path = file.entry.path;
        Err(invalid(format!(
            "the wheel {} has {path:?} with another content than its {RECORD} says",
            self.name
        )))
    }

    /// Size of all its files, unpacked.
    pub fn unpacked_bytes(&self) -> u64 {
        let bytes = self.files.iter().map(WheelFile::size_bytes).fold(0, u64::saturating_add);
        debug_assert!(bytes <= zip::MAX_UNPACKED_BYTES, "the wheel {} unpacks to {bytes} bytes", self.name);
        bytes
    }
}

/// Where the files of an unpacked wheel are, and their SHA-256, by its `RECORD`.
///
/// # Errors
/// `invalid_package` if the record is damaged.
pub fn recorded_files(name: &str, record: &[u8]) -> Result<Vec<(Scheme, String, [u8; 32])>, Error> {
    let of = |fault: String| invalid(format!("the wheel {name} {fault}"));
    let record = parse_record(record).map_err(of)?;
    let placed = record.iter().map(|(path, (hash, _))| {
        let (scheme, path) = place_of(name, path).map_err(of)?;
        check_path(path)?;
        Ok((scheme, path.to_owned(), *hash))
    });
    placed.collect()
}

/// Whether content has this SHA-256.
pub fn has_hash(content: &[u8], hash: &[u8; 32]) -> bool {
    Sha256::digest(content).as_slice() == hash
}

/// The path of the record of an unpacked wheel.
pub fn record_path(name: &str) -> String {
    format!("{}/{name}.dist-info/{RECORD}", Scheme::Site.folder())
}

/// The distribution and its version: what the one folder `*.dist-info` is called.
fn name_of<'data>(entries: &[zip::ZipEntry<'data>]) -> Result<&'data str, Error> {
    let folders = entries.iter().filter_map(|entry| {
        let (folder, _) = entry.path.split_once('/')?;
        folder.strip_suffix(".dist-info")
    });
    let names: BTreeSet<&str> = folders.collect();
    match names.iter().collect::<Vec<_>>()[..] {
        [name] if is_wheel_word(name) && name.contains('-') => Ok(name),
        [] => Err(invalid("the archive is no wheel: it has no folder NAME-VERSION.dist-info")),
        [name] => Err(invalid(format!("the archive is no wheel: {name:.80?} is no name and version"))),
        _ => Err(invalid("the archive is no wheel: it has several folders *.dist-info")),
    }
}

fn is_wheel_word(text: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'+' | b'!');
    !text.is_empty()
        && text.len() <= MAX_WHEEL_NAME_BYTES
        && text.bytes().all(is_plain)
        && !text.starts_with(['.', '-'])
}

/// Where a file of the wheel is installed.
fn place_of<'data>(name: &str, path: &'data str) -> Result<(Scheme, &'data str), String> {
    let Some(inside) = path.strip_prefix(name).and_then(|rest| rest.strip_prefix(".data/")) else {
        return Ok((Scheme::Site, path));
    };
    let (scheme, path) = inside.split_once('/').unwrap_or((inside, ""));
    let scheme = match scheme {
        "purelib" | "platlib" => Scheme::Site,
        "data" => Scheme::Data,
        "scripts" => Scheme::Scripts,
        "headers" => Scheme::Headers,
        _ => return Err(format!("has {inside:?} among its data, which is installed nowhere")),
    };
    Ok((scheme, path))
}

/// Refuses files in one place, and files inside of others.
fn check_places(files: &[WheelFile<'_>]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for file in files {
        if !seen.insert((file.scheme, file.path)) {
            return Err(format!("has two files {:?}", file.path));
        }
    }
    for &(scheme, path) in &seen {
        let mut folders = path.match_indices('/').map(|(end, _)| &path[..end]);
        if let Some(file) = folders.find(|folder| seen.contains(&(scheme, *folder))) {
            return Err(format!("has {file:?} both as a file and as a folder"));
        }
    }
    Ok(())
}

type Recorded = ([u8; 32], Option<u64>);

/// The files of a `RECORD` with hashes, with their sizes. Files without one are left out.
fn parse_record(record: &[u8]) -> Result<BTreeMap<String, Recorded>, String> {
    let record = std::str::from_utf8(record).map_err(|_| format!("has a {RECORD} that is not UTF-8"))?;
    let mut recorded = BTreeMap::new();
    for line in record.lines().filter(|line| !line.is_empty()) {
        let wrong = || format!("has the line {line:.120?} in {RECORD}, which is not PATH,sha256=HASH,SIZE");
        let (path, rest) = split_path(line).ok_or_else(wrong)?;
        let (hash, size) = rest.split_once(',').ok_or_else(wrong)?;
        if hash.is_empty() {
            continue;
        }
        let hash = hash.strip_prefix("sha256=").and_then(decode_hash).ok_or_else(wrong)?;
        let size = if size.is_empty() { None } else { Some(size.parse().map_err(|_| wrong())?) };
        recorded.insert(path, (hash, size));
    }
    Ok(recorded)
}

/// Splits the first field of a line of comma-separated values.
fn split_path(line: &str) -> Option<(String, &str)> {
    let Some(quoted) = line.strip_prefix('"') else {
        return line.split_once(',').map(|(path, rest)| (path.to_owned(), rest));
    };
    let mut path = String::new();
    let mut rest = quoted;
    loop {
        let (part, after) = rest.split_once('"')?;
        path.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                path.push('"');
                rest = more;
            }
            None => return after.strip_prefix(',').map(|rest| (path, rest)),
        }
    }
}

/// Decodes a SHA-256 in base64 for URLs, with or without padding.
fn decode_hash(text: &str) -> Option<[u8; 32]> {
    BASE64_URL.decode(text.trim_end_matches('=')).ok()?.try_into().ok()
}

/// File name of a wheel, which names the distribution, and the platforms on which it can be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelName<'name> {
    /// The distribution and its version, as `numpy-2.2.6`.
    pub distribution: &'name str,
    pythons: &'name str,
    abis: &'name str,
    platforms: &'name str,
}

impl<'name> WheelName<'name> {
    /// Parses `DISTRIBUTION-VERSION[-BUILD]-PYTHONS-ABIS-PLATFORMS.whl`.
    ///
    /// # Errors
    /// `invalid_package` if it is not such a name.
    pub fn parse(name: &'name str) -> Result<WheelName<'name>, Error> {
        let wrong = || invalid(format!("{name:.120?} is not the file name of a wheel"));
        let stem = name.strip_suffix(".whl").filter(|stem| is_wheel_word(stem)).ok_or_else(wrong)?;
        let mut parts = stem.rsplitn(4, '-');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or_else(wrong);
        let (platforms, abis, pythons, before) = (next()?, next()?, next()?, next()?);
        let dashes: Vec<_> = before.match_indices('-').map(|(at, _)| at).collect();
        let distribution = match dashes[..] {
            [_] => before,
            // A number of the build.
            [_, build] => &before[..build],
            _ => return Err(wrong()),
        };
        let counts = [pythons, abis, platforms].map(|tags| tags.split('.').count());
        if counts.iter().product::<usize>() > MAX_TAGS {
            return Err(wrong());
        }
        Ok(WheelName { distribution, pythons, abis, platforms })
    }

    /// The least of the platforms on which a Python of this version can use the wheel; nothing if it is for none.
    pub fn fit(&self, version: (u32, u32)) -> Option<PythonPlatform> {
        let is_python = |tag: &str, abi: &str| match abi {
            "none" => python_of(tag).is_some_and(|(major, minor)| {
                major == version.0 && minor.is_none_or(|minor| minor <= version.1)
            }),
            "abi3" => {
                matches!(cpython_of(tag), Some((major, minor)) if major == version.0 && minor <= version.1)
            }
            abi => cpython_of(tag) == Some(version) && cpython_of(abi) == Some(version),
        };
        let fits = self.pythons.split('.').any(|tag| self.abis.split('.').any(|abi| is_python(tag, abi)));
        let platforms = self.platforms.split('.').filter_map(|tag| PythonPlatform::of_tag(version, tag));
        fits.then(|| platforms.min_by_key(PythonPlatform::libc_version)).flatten()
    }
}

/// The version of `py3` or `py311`, or that of `cp311`, of which only the same minor version is meant.
fn python_of(tag: &str) -> Option<(u32, Option<u32>)> {
    let digits = tag.strip_prefix("py").or_else(|| tag.strip_prefix("cp"))?;
    let (major, minor) = digits.split_at_checked(1)?;
    let minor = if minor.is_empty() { None } else { Some(minor.parse().ok()?) };
    Some((major.parse().ok()?, minor))
}

fn cpython_of(tag: &str) -> Option<(u32, u32)> {
    let (major, minor) = tag.strip_prefix("cp")?.split_at_checked(1)?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use sublet_wheels::WheelBuilder as Made;

    use super::*;

    fn fault(wheel: &Made) -> String {
        let bytes = wheel.bytes();
        let read = Wheel::read(&bytes)
            .and_then(|wheel| wheel.files.iter().try_for_each(|file| wheel.content(file).map(drop)));
        read.unwrap_err().message
    }

    #[test]
    fn files_of_a_wheel_have_their_places() {
        let made = Made::new("a_b", "1.0")
            .file("a_b/__init__.py", "x = 1")
            .file("a,b.py", "y = 1")
            .file("a_b-1.0.data/platlib/more.py", "z = 1")
            .file("a_b-1.0.data/scripts/tool", "t")
            .file("a_b-1.0.data/data/share/d", "d")
            .file("a_b-1.0.data/headers/h.h", "h");
        let bytes = made.bytes();
        let wheel = Wheel::read(&bytes).unwrap();
        assert_eq!(wheel.name, "a_b-1.0");
        let places: Vec<_> = wheel.files.iter().map(|file| (file.scheme, file.path)).collect();
        assert_eq!(
            places[..6],
            [
                (Scheme::Site, "a_b/__init__.py"),
                (Scheme::Site, "a,b.py"),
                (Scheme::Site, "more.py"),
                (Scheme::Scripts, "tool"),
                (Scheme::Data, "share/d"),
                (Scheme::Headers, "h.h"),
            ]
        );
        assert_eq!(wheel.content(&wheel.files[0]).unwrap(), b"x = 1");
        assert_eq!(wheel.unpacked_bytes(), wheel.files.iter().map(WheelFile::size_bytes).sum::<u64>());
    }

    #[test]
    fn rejects_paths_that_leave_the_wheel() {
        for path in [
            "../a.py",
            "/etc/a.py",
            "a/../../b.py",
            "a-1.data/purelib/../../b.py",
            "a\\b.py",
            "a-1.data/scripts/../x",
        ] {
            let message = fault(&Made::new("a", "1").file(path, "x"));
            assert!(message.contains("the wheel a-1 is refused"), "{path}: {message}");
        }
        assert!(fault(&Made::new("a", "1").file("a-1.data/odd/x", "x")).contains("installed nowhere"));
        assert!(
            fault(&Made::new("a", "1").file("x", "x").file("x/y", "y"))
                .contains("both as a file and as a folder")
        );
        let twice = Made::new("a", "1").file("x", "x").file("a-1.data/purelib/x", "y");
        assert!(fault(&twice).contains("two files \"x\""));
    }

    #[test]
    fn rejects_files_that_are_not_those_of_the_record() {
        let (data, name) = (Made::new("a", "1").file("gone.py", "x").bytes(), b"gone.py");
        let mut renamed = data.clone();
        for at in (0..data.len() - name.len())
            .filter(|&at| data[at..].starts_with(name) && data[at + name.len()] != b',')
        {
            renamed[at..at + name.len()].copy_from_slice(b"here.py");
        }
        let error = Wheel::read(&renamed).unwrap_err();
        assert!(error.message.contains("has no \"gone.py\""), "{error}");
        assert!(fault(&Made::new("a", "1").unrecorded("a.py", b"x")).contains("does not have"));
        assert!(fault(&Made::new("a", "1").recorded_as("a.py", b"x", b"y")).contains("another content"));
        assert!(fault(&Made::new("a", "1").recorded_as("a.py", b"x", b"yy")).contains("another size"));
        let empty = Wheel::read(&sublet_wheels::zip(&[("a.py", b"x")])).unwrap_err();
        assert!(empty.message.contains("no wheel"), "{empty}");
        let two = Made::new("a", "1").file("b-1.dist-info/METADATA", "");
        assert!(fault(&two).contains("several folders"));
        let without = sublet_wheels::zip(&[("a-1.dist-info/METADATA", b"")]);
        assert!(Wheel::read(&without).unwrap_err().message.contains("no a-1.dist-info/RECORD"));
    }

    #[test]
    fn names_tell_where_wheels_can_be_installed() {
        let fit = |name: &str| {
            let platform = WheelName::parse(name).unwrap().fit((3, 11));
            platform.map(|platform| platform.to_string())
        };
        for (name, expected) in [
            ("a-1-py3-none-any.whl", Some("python3.11")),
            ("a-1-py2.py3-none-any.whl", Some("python3.11")),
            ("a-1-py310-none-any.whl", Some("python3.11")),
            ("a-1-py312-none-any.whl", None),
            ("a-1-py2-none-any.whl", None),
            (
                "a-1-7-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                Some("python3.11-x86_64-glibc2.17"),
            ),
            (
                "a-1-cp311-cp311-manylinux_3_1_x86_64.manylinux_2_39_x86_64.whl",
                Some("python3.11-x86_64-glibc2.39"),
            ),
            ("a-1-cp39-abi3-manylinux_2_28_aarch64.whl", Some("python3.11-aarch64-glibc2.28")),
            ("a-1-cp312-abi3-manylinux_2_28_x86_64.whl", None),
            ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", None),
            ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", Some("python3.11-x86_64-musl1.2")),
            ("a-1-py3-none-linux_x86_64.whl", Some("python3.11-x86_64-glibc2.0")),
            ("a-1-cp311-cp311-win_amd64.whl", None),
            ("a-1-cp311-cp311-macosx_11_0_arm64.whl", None),
        ] {
            assert_eq!(fit(name).as_deref(), expected, "{name}");
        }
        assert_eq!(WheelName::parse("a_b-1.0-3-py3-none-any.whl").unwrap().distribution, "a_b-1.0");
        for name in [
            "a-1-py3-none-any",
            "a-py3-none-any.whl",
            "-1-py3-none-any.whl",
            "a/1-2-py3-none-any.whl",
            "a-1-2-3-py3-none-any.whl",
        ] {
            assert!(WheelName::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn hashes_are_decoded_or_refused() {
        assert_eq!(decode_hash("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE").unwrap()[31], 1);
        assert_eq!(
            decode_hash("_______________________________________AAAA"),
            Some({
                let mut hash = [0xff; 32];
                hash[29..].fill(0);
                hash[29] = 0xc0;
                hash
            })
        );
        for text in
            ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA*", &"A".repeat(44), &"A".repeat(86)]
        {
            assert_eq!(decode_hash(text), None, "{text}");
        }
    }
}
