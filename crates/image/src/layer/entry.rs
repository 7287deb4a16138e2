//! Unpacks one entry of an archive to its place in the tree.

use std::io::Read;

use crate::error::{EntryProblem, ImageError};
use crate::limits::MAX_TARGET_BYTES;

use super::entries::{ArchiveEntry, FileKind};
use super::path::{FolderEntry, Meaning, meaning, place as place_of};
use super::tree::{Attributes, Tree};

/// Creates the file of an entry, or counts an entry that is not created.
pub(crate) fn place(
    tree: &mut Tree<'_>,
    entry: &ArchiveEntry,
    content: &mut dyn Read,
) -> Result<(), ImageError> {
    match meaning(&entry.path)? {
        Meaning::Root => root(tree, entry),
        Meaning::File(place) => file(tree, entry, &place, content),
        Meaning::Whiteout(place) => tree.whiteout(&place),
        Meaning::Opaque(folder) => tree.make_opaque(&folder),
        Meaning::Nothing => Ok(()),
    }
}

fn root(tree: &mut Tree<'_>, entry: &ArchiveEntry) -> Result<(), ImageError> {
    match entry.kind {
        FileKind::Folder => tree.root(attributes(entry)),
        _ => Err(ImageError::entry(&entry.path, EntryProblem::Nameless)),
    }
}

fn file(
    tree: &mut Tree<'_>,
    entry: &ArchiveEntry,
    place: &FolderEntry,
    content: &mut dyn Read,
) -> Result<(), ImageError> {
    let attributes = attributes(entry);
    match entry.kind {
        FileKind::File => tree.file(place, content, entry.bytes, attributes),
        FileKind::Folder => tree.folder(place, attributes),
        FileKind::SymbolicLink => tree.symbolic_link(place, target(entry)?, attributes),
        FileKind::HardLink => {
            let target = place_of(&entry.target)?;
            let target = target.ok_or_else(|| ImageError::entry(&entry.path, EntryProblem::Nameless))?;
            tree.hard_link(place, &target)
        }
        FileKind::Special => tree.skip(),
        FileKind::Foreign => Err(ImageError::entry(&entry.path, EntryProblem::Kind)),
    }
}

/// Checks the target of a symbolic link. It may lead anywhere, because only the image's own programs follow it, within
/// their root.
fn target(entry: &ArchiveEntry) -> Result<&[u8], ImageError> {
    let wrong = |problem| Err(ImageError::entry(&entry.path, problem));
    match &entry.target {
        target if target.is_empty() => wrong(EntryProblem::Nameless),
        target if target.len() > MAX_TARGET_BYTES => wrong(EntryProblem::TooLong),
        target if target.contains(&0) => wrong(EntryProblem::ZeroByte),
        target => Ok(target),
    }
}

fn attributes(entry: &ArchiveEntry) -> Attributes {
    Attributes { mode: entry.mode, modified_s: entry.modified_s }
}
