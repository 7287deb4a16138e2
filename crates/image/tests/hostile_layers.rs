//! Layers that try to escape: each is refused or harmless, and nothing outside of its folder changes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sublet_image::layer::{UnpackedLayer, unpack};
use sublet_image::{EntryProblem, ImageError, ImageLimits};
use sublet_proto::Code;

use crate::making::tar::{self, header};
use crate::making::{Tar, gzip};

const SMALL: ImageLimits = ImageLimits { unpacked_bytes: 64 << 20, files: 2000 };

/// A file and a folder that no unpacking may change, beside the folder of a layer.
struct OutsideFiles {
    outer: tempfile::TempDir,
    before: BTreeMap<PathBuf, String>,
}

impl OutsideFiles {
    fn new() -> OutsideFiles {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir_all(outer.path().join("layer")).unwrap();
        fs::create_dir_all(outer.path().join("folder")).unwrap();
        fs::write(outer.path().join("file"), "untouched").unwrap();
        let before = seen(outer.path());
        OutsideFiles { outer, before }
    }

    fn file(&self) -> String {
        self.outer.path().join("file").display().to_string()
    }

    fn folder(&self) -> String {
        self.outer.path().join("folder").display().to_string()
    }

    /// Unpacks an archive, and checks that nothing outside has changed, whatever the outcome.
    fn attack(&self, archive: impl Read) -> Result<UnpackedLayer, ImageError> {
        let layer = File::open(self.outer.path().join("layer")).unwrap();
        let outcome = unpack(archive, layer.as_fd(), &mut SMALL.clone());
        assert_eq!(seen(self.outer.path()), self.before, "something outside has changed");
        outcome
    }

    /// Checks that a layer is refused for this reason.
    fn refused(archive: Tar, expected: EntryProblem) {
        let outcome = OutsideFiles::new().attack(&archive.finish()[..]);
        match outcome {
            Err(ImageError::Entry { problem, .. }) => assert_eq!(problem, expected),
            other => panic!("{other:?} in place of {expected:?}"),
        }
    }
}

/// State of all that is outside of the layer's folder: contents, owners, permissions, times, numbers of links.
fn seen(outer: &Path) -> BTreeMap<PathBuf, String> {
    let paths = ["", "file", "folder"].map(|name| outer.join(name));
    let mut seen = BTreeMap::new();
    for path in paths {
        let found = fs::symlink_metadata(&path).unwrap();
        let entries = fs::read_dir(&path).map(|entries| entries.count()).unwrap_or(0);
        let content = fs::read(&path).unwrap_or_default();
        let rest = (found.uid(), found.mode(), found.mtime(), found.nlink(), found.ino());
        seen.insert(path, format!("{rest:?} {entries} {content:?}"));
    }
    seen
}

#[test]
fn a_path_that_leads_upwards_is_refused() {
    for path in ["../file", "a/../../file", "..", "/../file", "a/.."] {
        OutsideFiles::refused(Tar::new().file(path, b"overwritten"), EntryProblem::Upwards);
    }
    let extended = Tar::new().extended(&[("path", b"../file")]).file("harmless", b"x");
    OutsideFiles::refused(extended, EntryProblem::Upwards);
    let long = format!("{}../file", "a/../".repeat(30));
    OutsideFiles::refused(Tar::new().file(&long, b"x"), EntryProblem::Upwards);
}

#[test]
fn an_absolute_path_stays_in_the_layer() {
    let victim = OutsideFiles::new();
    victim.attack(&Tar::new().file(&victim.file(), b"overwritten").finish()[..]).unwrap();
    let inside = victim.outer.path().join("layer").join(victim.file().trim_start_matches('/'));
    assert_eq!(fs::read(inside).unwrap(), b"overwritten");
}

#[test]
fn nothing_is_written_through_a_symbolic_link_that_leads_out() {
    let folder = OutsideFiles::new().folder();
    for target in [folder.as_str(), "../folder", "..", "/", "/proc/self/cwd", "."] {
        let link = || Tar::new().symbolic_link("link", target);
        for through in [
            link().file("link/new", b"x"),
            link().folder("link/new"),
            link().file("link/deep/er", b"x"),
            link().symbolic_link("link/new", "x"),
            link().file("own", b"").hard_link("link/new", "own"),
            link().file("link/.wh.new", b""),
            link().file("link/.wh..wh..opq", b""),
            link().symbolic_link("second", "link").file("second/new", b""),
        ] {
            OutsideFiles::refused(through, EntryProblem::ThroughLink);
        }
    }
}

#[test]
fn replaces_a_link_of_the_same_name_without_following() {
    let victim = OutsideFiles::new();
    let archive = Tar::new()
        .symbolic_link("link", &victim.file())
        .file("link", b"overwritten")
        .symbolic_link("folder", &victim.folder())
        .entry(tar::FOLDER, b"folder", b"", 0o777, b"")
        .file("folder/new", b"x")
        .symbolic_link("whited", &victim.file())
        .file(".wh.whited", b"");
    victim.attack(&archive.finish()[..]).unwrap();
    let layer = victim.outer.path().join("layer");
    assert!(fs::symlink_metadata(layer.join("link")).unwrap().is_file());
    assert!(fs::symlink_metadata(layer.join("folder")).unwrap().is_dir());
}

#[test]
fn a_folder_that_becomes_a_link_is_not_entered_again() {
    let folder = OutsideFiles::new().folder();
    let archive = Tar::new().folder("a").symbolic_link("a", &folder).file("a/new", b"x");
    OutsideFiles::refused(archive, EntryProblem::ThroughLink);
    // The folder's attributes, which are set last, do not go through the link either.
    let victim = OutsideFiles::new();
    let archive = Tar::new().entry(tar::FOLDER, b"a", b"", 0o777, b"").symbolic_link("a", &victim.folder());
    victim.attack(&archive.finish()[..]).unwrap();
}

#[test]
fn a_hard_link_leads_to_no_file_outside() {
    let refused = |victim: &OutsideFiles, target: &str| {
        let archive = Tar::new().file("a", b"").folder("folder").hard_link("hard", target);
        let outcome = victim.attack(&archive.finish()[..]);
        assert!(matches!(outcome, Err(ImageError::Entry { .. })), "{target}: {outcome:?}");
    };
    let victim = OutsideFiles::new();
    refused(&victim, &victim.file());
    for target in ["/etc/passwd", "nowhere", "a/b", "link/file", "folder", "hard"] {
        refused(&OutsideFiles::new(), target);
    }
    OutsideFiles::refused(Tar::new().hard_link("hard", "../file"), EntryProblem::Upwards);
    OutsideFiles::refused(Tar::new().file("a", b"").hard_link("a", "a"), EntryProblem::MissingTarget);
    let through = Tar::new().symbolic_link("link", "..").hard_link("hard", "link/file");
    OutsideFiles::refused(through, EntryProblem::ThroughLink);
}

#[test]
fn never_writes_through_a_hard_link_to_an_escaping_link() {
    let victim = OutsideFiles::new();
    let archive = Tar::new()
        .symbolic_link("link", &victim.file())
        .hard_link("hard", "link")
        .file("hard", b"overwritten")
        .hard_link("again", "link");
    victim.attack(&archive.finish()[..]).unwrap();
    assert!(fs::symlink_metadata(victim.outer.path().join("layer/again")).unwrap().is_symlink());
}

#[test]
fn device_nodes_are_not_made() {
    let victim = OutsideFiles::new();
    let mut archive = Tar::new();
    for (kind, name) in [(tar::CHARACTER_DEVICE, "null"), (tar::BLOCK_DEVICE, "disk"), (tar::FIFO, "fifo")] {
        archive = archive.entry(kind, name.as_bytes(), b"", 0o666, b"");
    }
    assert_eq!(victim.attack(&archive.finish()[..]).unwrap().skipped, 3);
    assert_eq!(fs::read_dir(victim.outer.path().join("layer")).unwrap().count(), 0);
    // A device node that was not made cannot be written to by a later entry either.
    let written = Tar::new().entry(tar::BLOCK_DEVICE, b"disk", b"", 0o666, b"").file("disk", b"x");
    OutsideFiles::new().attack(&written.finish()[..]).unwrap();
}

#[test]
fn whiteouts_hide_nothing_outside() {
    for path in [".wh...", "a/.wh..", ".wh.", ".wh.../file", ".wh.a/b"] {
        OutsideFiles::refused(Tar::new().file(path, b""), EntryProblem::Whiteout);
    }
    for path in ["../.wh.file", "../.wh..wh..opq", ".wh.a/../../file"] {
        OutsideFiles::refused(Tar::new().file(path, b""), EntryProblem::Upwards);
    }
}

#[test]
fn what_no_file_system_takes_is_refused() {
    let (name, deep) = ("n".repeat(256), "d/".repeat(129));
    let path = format!("{}f", "long/".repeat(500));
    for path in [name.as_str(), deep.as_str(), path.as_str()] {
        OutsideFiles::refused(Tar::new().file(path, b""), EntryProblem::TooLong);
    }
    let target = "t".repeat(4096);
    let archive = Tar::new().extended(&[("linkpath", target.as_bytes())]).symbolic_link("link", "x");
    OutsideFiles::refused(archive, EntryProblem::TooLong);
    let zero = Tar::new().extended(&[("path", b"a\0b")]).file("x", b"");
    OutsideFiles::refused(zero, EntryProblem::ZeroByte);
    OutsideFiles::refused(Tar::new().symbolic_link("link", ""), EntryProblem::Nameless);
    OutsideFiles::refused(Tar::new().file("./", b"x").file(".", b"x"), EntryProblem::Nameless);
    OutsideFiles::refused(Tar::new().file("a", b"").file("a/b", b""), EntryProblem::ThroughFile);
    OutsideFiles::refused(Tar::new().file("a/b", b"").file("a", b""), EntryProblem::ReplacesFolder);
    OutsideFiles::refused(Tar::new().entry(b'S', b"sparse", b"", 0o644, b""), EntryProblem::Kind);
}

#[test]
fn headers_that_disagree_hide_no_entry() {
    // A reader that trusts the extended header sees an entry that a reader of the header does not see.
    let hidden = Tar::new().file("hidden", b"").finish();
    let archive = Tar::new().extended(&[("size", b"0")]).file("outer", &hidden);
    OutsideFiles::refused(archive, EntryProblem::Size);
    let sparse = Tar::new().extended(&[("GNU.sparse.size", b"99999999999")]).file("sparse", b"");
    OutsideFiles::refused(sparse, EntryProblem::Kind);
}

/// Zeros without an end, like the content of an archive bomb.
fn zeros(bytes: u64) -> impl Read {
    io::repeat(0).take(bytes)
}

#[test]
fn a_bomb_ends_at_the_bound() {
    let start = header(tar::FILE, b"zeros", b"", 0o644, 8 << 30);
    let outcome = OutsideFiles::new().attack(start.chain(zeros(8 << 30)));
    assert!(matches!(outcome, Err(ImageError::TooLarge { .. })), "{outcome:?}");
    // These zeros are compressed a thousandfold, and stand after the archive's end.
    let packed = gzip(&vec![0; 80 << 20]);
    assert!(packed.len() < 1 << 20);
    let outcome = OutsideFiles::new().attack(&packed[..]);
    assert!(matches!(outcome, Err(ImageError::TooLarge { .. })), "{outcome:?}");
    let code = sublet_proto::Error::from(outcome.unwrap_err()).code;
    assert_eq!(code, Code::InvalidImage);
}

#[test]
fn more_files_than_may_be_are_refused() {
    let mut archive = Tar::new();
    for index in 0..=SMALL.files {
        archive = archive.file(&format!("{index}"), b"");
    }
    let outcome = OutsideFiles::new().attack(&archive.finish()[..]);
    assert!(matches!(outcome, Err(ImageError::TooLarge { limit: 2000, .. })), "{outcome:?}");
    // Folders that are only named on the way count, too.
    let mut archive = Tar::new();
    for index in 0..20 {
        archive = archive.file(&format!("{index}{}/f", "/d".repeat(120)), b"");
    }
    let outcome = OutsideFiles::new().attack(&archive.finish()[..]);
    assert!(matches!(outcome, Err(ImageError::TooLarge { limit: 2000, .. })), "{outcome:?}");
}

#[test]
fn extended_headers_of_any_length_are_not_read_into_memory() {
    for kind in [tar::LONG_NAME, tar::EXTENDED, b'K', b'g'] {
        let start = header(kind, b"long", b"", 0o644, 8 << 30);
        let outcome = OutsideFiles::new().attack(start.chain(zeros(8 << 30)));
        assert!(matches!(outcome, Err(ImageError::TooLarge { limit: 0x10_0000, .. })), "{outcome:?}");
    }
}

#[test]
fn truncated_or_damaged_layers_never_panic_or_pass_as_whole() {
    let archive =
        Tar::new().extended(&[("path", b"a/b")]).file("x", b"content").folder("c").symbolic_link("d", "e");
    let archive = archive.finish();
    let whole = OutsideFiles::new().attack(&archive[..]).unwrap().diff_id;
    for end in (0..archive.len()).step_by(13) {
        let outcome = OutsideFiles::new().attack(&archive[..end]);
        assert!(outcome.is_err() || outcome.unwrap().diff_id != whole, "{end}");
    }
    let packed = gzip(&archive);
    for end in 0..packed.len() - 1 {
        let outcome = OutsideFiles::new().attack(&packed[..end]);
        assert!(outcome.is_err() || outcome.unwrap().diff_id != whole, "{end}");
    }
    for at in 0..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x10;
        let _ = OutsideFiles::new().attack(&damaged[..]);
    }
}
