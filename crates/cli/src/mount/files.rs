//! The names, folders and attributes of a mounted folder.
//!
//! Invariants:
//! - A node lives as long as it has a name, or the kernel knows it: an open file that was removed keeps its bytes.
//! - A name belongs to one node. There are no hard links.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use rustix::io::Errno;

use super::extents::FileData;

/// Number of the folder that is mounted.
pub(crate) const ROOT: u64 = 1;
/// Most files and folders together.
pub(crate) const MAX_NODES: usize = 1 << 20;
/// Longest name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Permission bit of a folder whose new files get the folder's group, and whose new folders get the bit as well.
const SET_GROUP: u16 = 0o2000;

/// Attributes that programs set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeAttributes {
    /// Permission bits.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) accessed: SystemTime,
    pub(crate) modified: SystemTime,
    pub(crate) changed: SystemTime,
}

/// A file, folder or symbolic link.
#[derive(Debug)]
pub(crate) struct FileNode {
    pub(crate) attributes: NodeAttributes,
    pub(crate) content: NodeContent,
    /// Folder with its name; a removed node has none.
    parent: Option<u64>,
    /// Number of times that the kernel has looked it up and not forgotten it.
    lookups: u64,
}

/// Content of a node.
#[derive(Debug)]
pub(crate) enum NodeContent {
    File(FileData),
    Folder(Folder),
    /// Target of a symbolic link.
    Link(OsString),
}

/// Names in a folder.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    entries: BTreeMap<OsString, Entry>,
    /// The names in the order in which they were added, so that a listing continues where it stopped while names come and
    /// go.
    by_position: BTreeMap<u64, OsString>,
    next_position: u64,
    folders: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    node: u64,
    position: u64,
}

/// A line of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListedName<'folder> {
    /// Position after which the listing continues.
    pub(crate) position: u64,
    pub(crate) node: u64,
    pub(crate) name: &'folder OsStr,
}

impl Folder {
    fn add(&mut self, name: &OsStr, node: u64, is_folder: bool) {
        self.next_position += 1;
        let entry = Entry { node, position: self.next_position };
        self.by_position.insert(entry.position, name.to_owned());
        let before = self.entries.insert(name.to_owned(), entry);
        debug_assert!(before.is_none(), "the name {} had a node already", name.display());
        self.folders += u32::from(is_folder);
    }

    fn remove(&mut self, name: &OsStr, is_folder: bool) {
        if let Some(entry) = self.entries.remove(name) {
            self.by_position.remove(&entry.position);
            self.folders -= u32::from(is_folder);
        }
    }

    /// Names behind a position, in the order of their positions.
    pub(crate) fn list(&self, after: u64) -> impl Iterator<Item = ListedName<'_>> {
        self.by_position.range(after.saturating_add(1)..).filter_map(|(position, name)| {
            let entry = self.entries.get(name)?;
            Some(ListedName { position: *position, node: entry.node, name })
        })
    }
}

impl FileNode {
    /// Number of links, as `stat` shows it.
    pub(crate) fn links(&self) -> u32 {
        match &self.content {
            _ if self.parent.is_none() => 0,
            NodeContent::Folder(folder) => 2 + folder.folders,
            _ => 1,
        }
    }

    fn is_folder(&self) -> bool {
        matches!(self.content, NodeContent::Folder(_))
    }
}

/// All nodes; see the [module](self).
#[derive(Debug)]
pub(crate) struct Files {
    nodes: HashMap<u64, FileNode>,
    next: u64,
}

impl Files {
    /// Creates an empty folder with these attributes.
    pub(crate) fn new(attributes: NodeAttributes) -> Files {
        let content = NodeContent::Folder(Folder::default());
        let root = FileNode { attributes, content, parent: Some(ROOT), lookups: 1 };
        Files { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn node(&self, number: u64) -> Result<&FileNode, Errno> {
        self.nodes.get(&number).ok_or(Errno::NOENT)
    }

    pub(crate) fn node_mut(&mut self, number: u64) -> Result<&mut FileNode, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::NOENT)
    }

    pub(crate) fn folder(&self, number: u64) -> Result<&Folder, Errno> {
        match &self.node(number)?.content {
            NodeContent::Folder(folder) => Ok(folder),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The bytes of a file.
    pub(crate) fn data(&self, number: u64) -> Result<&FileData, Errno> {
        match &self.node(number)?.content {
            NodeContent::File(data) => Ok(data),
            NodeContent::Folder(_) => Err(Errno::ISDIR),
            NodeContent::Link(_) => Err(Errno::INVAL),
        }
    }

    /// The bytes and attributes of a file.
    pub(crate) fn file_mut(&mut self, number: u64) -> Result<(&mut FileData, &mut NodeAttributes), Errno> {
        let FileNode { content, attributes, .. } = self.node_mut(number)?;
        match content {
            NodeContent::File(data) => Ok((data, attributes)),
            NodeContent::Folder(_) => Err(Errno::ISDIR),
            NodeContent::Link(_) => Err(Errno::INVAL),
        }
    }

    /// The folder in which a folder has its name.
    pub(crate) fn parent(&self, number: u64) -> Result<u64, Errno> {
        Ok(self.node(number)?.parent.unwrap_or(ROOT))
    }

    /// Finds a name. The kernel knows the node from now on, see [`Files::forget`].
    pub(crate) fn look_up(&mut self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        check_name(name)?;
        let number = self.find(parent, name)?;
        self.remember(number);
        Ok(number)
    }

    /// Creates a node with a name. The kernel knows it from now on.
    pub(crate) fn create(
        &mut self,
        parent: u64,
        name: &OsStr,
        content: NodeContent,
        mut attributes: NodeAttributes,
    ) -> Result<u64, Errno> {
        check_name(name)?;
        match self.find(parent, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let above = self.node(parent)?;
        if above.parent.is_none() {
            return Err(Errno::NOENT);
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(Errno::NOSPC);
        }
        if above.attributes.mode & SET_GROUP != 0 {
            attributes.gid = above.attributes.gid;
            if matches!(content, NodeContent::Folder(_)) {
                attributes.mode |= SET_GROUP;
            }
        }
        let number = self.next;
        self.next += 1;
        let node = FileNode { attributes, content, parent: Some(parent), lookups: 1 };
        let is_folder = node.is_folder();
        self.nodes.insert(number, node);
        self.change(parent, attributes.changed, |folder| folder.add(name, number, is_folder));
        Ok(number)
    }

    /// Removes the name of a file or link. Returns its bytes if nothing uses them any more.
    pub(crate) fn unlink(
        &mut self,
        parent: u64,
        name: &OsStr,
        now: SystemTime,
    ) -> Result<Option<FileData>, Errno> {
        let number = self.find(parent, name)?;
        if self.node(number)?.is_folder() {
            return Err(Errno::ISDIR);
        }
        self.change(parent, now, |folder| folder.remove(name, false));
        Ok(self.lose_name(number, now))
    }

    /// Removes an empty folder.
    pub(crate) fn remove_folder(&mut self, parent: u64, name: &OsStr, now: SystemTime) -> Result<(), Errno> {
        let number = self.find(parent, name)?;
        if !self.folder(number)?.entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.change(parent, now, |folder| folder.remove(name, true));
        self.lose_name(number, now);
        Ok(())
    }

    /// Gives a node another name. Returns the bytes of the file that had the name before, if nothing uses them any more.
    pub(crate) fn rename(
        &mut self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        may_replace: bool,
        now: SystemTime,
    ) -> Result<Option<FileData>, Errno> {
        check_name(new_name)?;
        let number = self.find(parent, name)?;
        let is_folder = self.node(number)?.is_folder();
        if self.node(new_parent)?.parent.is_none() {
            return Err(Errno::NOENT);
        }
        if is_folder && self.is_below(new_parent, number) {
            return Err(Errno::INVAL);
        }
        let replaced = match self.find(new_parent, new_name) {
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
            Ok(_) if !may_replace => return Err(Errno::EXIST),
            Ok(replaced) if replaced == number => return Ok(None),
            Ok(replaced) => Some(replaced),
        };
        if let Some(replaced) = replaced {
            match (is_folder, &self.node(replaced)?.content) {
                (true, NodeContent::Folder(folder)) if !folder.entries.is_empty() => {
                    return Err(Errno::NOTEMPTY);
                }
                (true, NodeContent::Folder(_)) => {}
                (true, _) => return Err(Errno::NOTDIR),
                (false, NodeContent::Folder(_)) => return Err(Errno::ISDIR),
                (false, _) => {}
            }
            self.change(new_parent, now, |folder| folder.remove(new_name, is_folder));
        }
        self.change(parent, now, |folder| folder.remove(name, is_folder));
        self.change(new_parent, now, |folder| folder.add(new_name, number, is_folder));
        let node = self.node_mut(number)?;
        node.parent = Some(new_parent);
        node.attributes.changed = now;
        Ok(replaced.and_then(|replaced| self.lose_name(replaced, now)))
    }

    /// Records that the kernel has forgotten a node `times` times. Returns its bytes if nothing uses them any more.
    pub(crate) fn forget(&mut self, number: u64, times: u64) -> Option<FileData> {
        let node = self.nodes.get_mut(&number)?;
        debug_assert!(node.lookups >= times, "{times} of {} lookups of node {number} end", node.lookups);
        node.lookups = node.lookups.saturating_sub(times);
        self.remove_unused(number)
    }

    fn remember(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups += 1;
        }
    }

    fn find(&self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        self.folder(parent)?.entries.get(name).map(|entry| entry.node).ok_or(Errno::NOENT)
    }

    /// Changes the names in a folder.
    fn change(&mut self, number: u64, now: SystemTime, change: impl FnOnce(&mut Folder)) {
        if let Some(FileNode { content: NodeContent::Folder(folder), attributes, .. }) =
            self.nodes.get_mut(&number)
        {
            change(folder);
            (attributes.modified, attributes.changed) = (now, now);
        }
    }

    /// Whether a folder is `above`, or lies in it.
    fn is_below(&self, mut number: u64, above: u64) -> bool {
        while number != above {
            match self.nodes.get(&number).and_then(|node| node.parent) {
                Some(parent) if number != ROOT => number = parent,
                _ => return false,
            }
        }
        true
    }

    fn lose_name(&mut self, number: u64, now: SystemTime) -> Option<FileData> {
        let node = self.nodes.get_mut(&number)?;
        node.parent = None;
        node.attributes.changed = now;
        self.remove_unused(number)
    }

    fn remove_unused(&mut self, number: u64) -> Option<FileData> {
        let is_used = |node: &FileNode| node.parent.is_some() || node.lookups > 0;
        if self.nodes.get(&number).is_none_or(is_used) {
            return None;
        }
        match self.nodes.remove(&number)?.content {
            NodeContent::File(data) => Some(data),
            _ => None,
        }
    }
}

fn check_name(name: &OsStr) -> Result<(), Errno> {
    if name.len() > MAX_NAME_BYTES { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;
    const OWN: NodeAttributes =
        NodeAttributes { mode: 0o700, uid: 1, gid: 2, accessed: NOW, modified: NOW, changed: NOW };

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    fn file(files: &mut Files, parent: u64, text: &str) -> u64 {
        files.create(parent, name(text), NodeContent::File(FileData::default()), OWN).unwrap()
    }

    fn folder(files: &mut Files, parent: u64, text: &str) -> u64 {
        files.create(parent, name(text), NodeContent::Folder(Folder::default()), OWN).unwrap()
    }

    #[test]
    fn removed_file_lives_until_the_kernel_forgets_it() {
        let mut files = Files::new(OWN);
        let number = file(&mut files, ROOT, "a");
        assert_eq!(files.look_up(ROOT, name("a")), Ok(number));
        assert!(files.unlink(ROOT, name("a"), NOW).unwrap().is_none());
        assert_eq!(files.look_up(ROOT, name("a")), Err(Errno::NOENT));
        assert_eq!(files.node(number).unwrap().links(), 0);
        assert!(files.forget(number, 1).is_none());
        assert!(files.forget(number, 1).is_some());
        assert_eq!((files.node(number).err(), files.len()), (Some(Errno::NOENT), 1));
    }

    #[test]
    fn forgotten_file_with_a_name_stays() {
        let mut files = Files::new(OWN);
        let number = file(&mut files, ROOT, "a");
        assert!(files.forget(number, 1).is_none());
        assert_eq!(files.look_up(ROOT, name("a")), Ok(number));
    }

    #[test]
    fn renaming_replaces_what_may_be_replaced() {
        let mut files = Files::new(OWN);
        let (first, second) = (file(&mut files, ROOT, "a"), file(&mut files, ROOT, "b"));
        let below = folder(&mut files, ROOT, "d");
        let rename = |files: &mut Files, from: &str, to: &str, may_replace| {
            files.rename((ROOT, name(from)), (ROOT, name(to)), may_replace, NOW).map(|data| data.is_some())
        };
        assert_eq!(rename(&mut files, "a", "b", false), Err(Errno::EXIST));
        assert_eq!(rename(&mut files, "a", "d", true), Err(Errno::ISDIR));
        assert_eq!(rename(&mut files, "d", "a", true), Err(Errno::NOTDIR));
        files.forget(second, 1);
        assert_eq!(rename(&mut files, "a", "b", true), Ok(true));
        assert_eq!(files.look_up(ROOT, name("b")), Ok(first));
        let inside = files.rename((ROOT, name("d")), (below, name("x")), true, NOW);
        assert_eq!(inside.unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn names_that_are_too_long_are_refused() {
        let mut files = Files::new(OWN);
        let (longest, longer) = ("n".repeat(MAX_NAME_BYTES), "n".repeat(MAX_NAME_BYTES + 1));
        let number = file(&mut files, ROOT, &longest);
        assert_eq!(files.look_up(ROOT, name(&longest)), Ok(number));
        assert_eq!(files.look_up(ROOT, name(&longer)), Err(Errno::NAMETOOLONG));
        let renamed = files.rename((ROOT, name(&longest)), (ROOT, name(&longer)), true, NOW);
        assert_eq!(renamed.unwrap_err(), Errno::NAMETOOLONG);
    }

    #[test]
    fn folder_passes_its_group_on_where_its_mode_says_so() {
        let mut files = Files::new(OWN);
        let shared = folder(&mut files, ROOT, "d");
        let attributes = &mut files.node_mut(shared).unwrap().attributes;
        (attributes.mode, attributes.gid) = (0o2770, 7);
        let (inside, below) = (file(&mut files, shared, "a"), folder(&mut files, shared, "b"));
        let of = |number| files.node(number).map(|node| (node.attributes.mode, node.attributes.gid));
        assert_eq!(of(inside), Ok((OWN.mode, 7)));
        assert_eq!(of(below), Ok((OWN.mode | 0o2000, 7)));
    }

    #[test]
    fn only_empty_folders_are_removed() {
        let mut files = Files::new(OWN);
        let below = folder(&mut files, ROOT, "d");
        file(&mut files, below, "a");
        assert_eq!(files.node(ROOT).unwrap().links(), 3);
        assert_eq!(files.remove_folder(ROOT, name("d"), NOW), Err(Errno::NOTEMPTY));
        assert_eq!(files.unlink(ROOT, name("d"), NOW).unwrap_err(), Errno::ISDIR);
        files.unlink(below, name("a"), NOW).unwrap();
        files.remove_folder(ROOT, name("d"), NOW).unwrap();
        assert_eq!(files.node(ROOT).unwrap().links(), 2);
        let late = files.create(below, name("b"), NodeContent::File(FileData::default()), OWN);
        assert_eq!(late.unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn listing_continues_while_names_come_and_go() {
        let mut files = Files::new(OWN);
        for text in ["c", "a", "b"] {
            file(&mut files, ROOT, text);
        }
        let first = files.folder(ROOT).unwrap().list(0).next().unwrap();
        let (position, first_name) = (first.position, first.name.to_owned());
        files.unlink(ROOT, &first_name, NOW).unwrap();
        file(&mut files, ROOT, "0");
        let rest: Vec<_> = files.folder(ROOT).unwrap().list(position).map(|listed| listed.name).collect();
        assert_eq!(rest, ["a", "b", "0"].map(name));
    }
}
