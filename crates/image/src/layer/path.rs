//! Decides by an entry's path where the entry belongs, and what its name means if it is a whiteout.

use crate::error::{EntryProblem, ImageError};
use crate::limits::{MAX_NAME_BYTES, MAX_PATH_BYTES, MAX_PATH_NAMES};

const WHITEOUT: &[u8] = b".wh.";
/// Prefix of aufs's own files. aufs defined these whiteouts; only one of its own files has a meaning elsewhere.
const WHITEOUT_OF_AUFS: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Meaning of an entry's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The folder of the layer itself.
    Root,
    /// A file of this name in a folder.
    File(FolderEntry),
    /// A whiteout: a file of this name in lower layers is hidden.
    Whiteout(FolderEntry),
    /// An opaque folder: all that lower layers have in this folder is hidden.
    Opaque(Vec<u8>),
    /// An entry that is ignored.
    Nothing,
}

/// A name in a folder of the layer. Neither part can lead out of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FolderEntry {
    /// Names with slashes between them; empty for the layer's own folder.
    pub(crate) folder: Vec<u8>,
    /// The name: not empty, without a slash, neither `.` nor `..`.
    pub(crate) name: Vec<u8>,
}

impl FolderEntry {
    /// The whole path, with slashes between the names.
    pub(crate) fn path(&self) -> Vec<u8> {
        match self.folder.is_empty() {
            true => self.name.clone(),
            false => [&self.folder, &b"/"[..], &self.name].concat(),
        }
    }
}

/// Reads the path of an entry. An absolute path begins at the layer's folder, as in other tools.
pub(crate) fn meaning(path: &[u8]) -> Result<Meaning, ImageError> {
    let Some(FolderEntry { folder, name }) = place(path)? else { return Ok(Meaning::Root) };
    let wrong = || Err(ImageError::entry(path, EntryProblem::Whiteout));
    if folder.split(|&byte| byte == b'/').any(|name| name.starts_with(WHITEOUT_OF_AUFS)) {
        return Ok(Meaning::Nothing);
    }
    if folder.split(|&byte| byte == b'/').any(|name| name.starts_with(WHITEOUT)) {
        return wrong();
    }
    match name.strip_prefix(WHITEOUT) {
        None => Ok(Meaning::File(FolderEntry { folder, name })),
        Some(_) if name == OPAQUE => Ok(Meaning::Opaque(folder)),
        Some(_) if name.starts_with(WHITEOUT_OF_AUFS) => Ok(Meaning::Nothing),
        Some(b"" | b"." | b"..") => wrong(),
        Some(hidden) => Ok(Meaning::Whiteout(FolderEntry { folder, name: hidden.to_owned() })),
    }
}

/// Splits a path by its names alone; `None` if it is the layer's folder itself.
pub(crate) fn place(path: &[u8]) -> Result<Option<FolderEntry>, ImageError> {
    let wrong = |problem| Err(ImageError::entry(path, problem));
    let names = || path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    if path.contains(&0) {
        return wrong(EntryProblem::ZeroByte);
    }
    if names().any(|name| name == b"..") {
        return wrong(EntryProblem::Upwards);
    }
    let is_long = path.len() > MAX_PATH_BYTES || names().count() > MAX_PATH_NAMES;
    if is_long || names().any(|name| name.len() > MAX_NAME_BYTES) {
        return wrong(EntryProblem::TooLong);
    }
    let mut names: Vec<_> = names().collect();
    let name = names.pop();
    let place = name.map(|name| FolderEntry { folder: names.join(&b'/'), name: name.to_owned() });
    debug_assert!(
        place.as_ref().is_none_or(|place| !place.name.contains(&b'/') && !place.folder.starts_with(b"/")),
        "a path that may lead elsewhere: {place:?}"
    );
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(folder: &str, name: &str) -> FolderEntry {
        FolderEntry { folder: folder.into(), name: name.into() }
    }

    #[test]
    fn splits_a_path_into_folder_and_name() {
        for path in ["a/b/c", "./a/b/c", "/a/b/c", "a//b/./c/", "///a/b/c"] {
            assert_eq!(meaning(path.as_bytes()).unwrap(), Meaning::File(at("a/b", "c")), "{path}");
        }
        for path in ["", ".", "/", "./", "/./."] {
            assert_eq!(meaning(path.as_bytes()).unwrap(), Meaning::Root, "{path}");
        }
        assert_eq!(
            meaning(b"a\xff").unwrap(),
            Meaning::File(FolderEntry { folder: vec![], name: b"a\xff".to_vec() })
        );
    }

    #[test]
    fn whiteouts_are_known_by_their_names() {
        assert_eq!(meaning(b"a/.wh.b").unwrap(), Meaning::Whiteout(at("a", "b")));
        assert_eq!(meaning(b"a/.wh...b").unwrap(), Meaning::Whiteout(at("a", "..b")));
        assert_eq!(meaning(b"a/.wh..wh..opq").unwrap(), Meaning::Opaque(b"a".to_vec()));
        assert_eq!(meaning(b".wh..wh..opq").unwrap(), Meaning::Opaque(b"".to_vec()));
        assert_eq!(meaning(b".wh..wh.plnk/1.2").unwrap(), Meaning::Nothing);
        assert_eq!(meaning(b".wh..wh.plnk").unwrap(), Meaning::Nothing);
    }

    #[test]
    fn what_leads_elsewhere_or_nowhere_is_refused() {
        let (deep, long) = ("a/".repeat(200), format!("a/{}", "b".repeat(256)));
        let longer = format!("{}/", "c".repeat(200)).repeat(11);
        for path in [
            "..", "../a", "a/..", "a/../b", "/../a", "a/b\0c", ".wh.", "a/.wh..", ".wh...", ".wh.../a",
            ".wh.a/b", &deep, &long, &longer,
        ] {
            assert!(meaning(path.as_bytes()).is_err(), "{path:?}");
        }
    }
}
