//! Tests how layers are unpacked: what is kept, what is dropped, and how whiteouts are made.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::fgetxattr;
use sublet_image::layer::{UnpackedLayer, unpack};
use sublet_image::{Digest, ImageError, ImageLimits};
use sublet_means::{Means, skip};
use tempfile::TempDir;

use crate::making::tar::{self, MODIFIED_S};
use crate::making::{Tar, gzip};

fn unpacked(archive: &[u8]) -> (TempDir, UnpackedLayer) {
    let folder = tempfile::tempdir().unwrap();
    let unpacked = into(folder.path(), archive).unwrap_or_else(|error| panic!("{error}"));
    (folder, unpacked)
}

fn into(folder: &Path, archive: &[u8]) -> Result<UnpackedLayer, ImageError> {
    let opened = File::open(folder).unwrap();
    unpack(archive, opened.as_fd(), &mut ImageLimits { unpacked_bytes: 1 << 30, files: 1000 })
}

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == 0)
}

fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 8];
    let read = fgetxattr(File::open(path).unwrap(), "user.overlay.opaque", &mut value[..]);
    read.is_ok_and(|bytes| &value[..bytes] == b"y")
}

#[test]
fn names_contents_links_permissions_and_times_are_kept() {
    let archive = Tar::new()
        .folder("./")
        .folder("./bin")
        .entry(tar::FILE, b"./bin/run", b"", 0o6755, b"program")
        .entry(tar::FILE, b"secret", b"", 0o040, b"unreadable")
        .entry(tar::FOLDER, b"shut/", b"", 0o1022, b"")
        .file("shut/in", b"")
        .symbolic_link("etc", "/usr/../../etc")
        .hard_link("bin/same", "./bin/run")
        .file("/absolute", b"a")
        .file("deep/er/est", b"b")
        .finish();
    let (folder, unpacked) = unpacked(&gzip(&archive));
    let found = |path: &str| fs::symlink_metadata(folder.path().join(path)).unwrap();
    assert_eq!(unpacked.diff_id, Digest::of(&archive));
    assert_eq!((unpacked.bytes, unpacked.skipped), (archive.len() as u64, 0));
    assert_eq!(fs::read(folder.path().join("bin/run")).unwrap(), b"program");
    assert_eq!(fs::read(folder.path().join("absolute")).unwrap(), b"a");
    let modes =
        ["bin", "bin/run", "secret", "shut", "shut/in", "deep/er"].map(|path| found(path).mode() & 0o7777);
    assert_eq!(modes, [0o755, 0o755, 0o440, 0o1522, 0o644, 0o755]);
    assert_eq!(found("bin/run").ino(), found("bin/same").ino());
    assert_eq!(fs::read_link(folder.path().join("etc")).unwrap(), Path::new("/usr/../../etc"));
    for path in ["", "bin", "bin/run", "secret", "shut", "shut/in", "etc"] {
        assert_eq!(found(path).mtime(), MODIFIED_S, "{path}");
    }
    let owner = if rustix::process::geteuid().is_root() { 1000 } else { rustix::process::geteuid().as_raw() };
    for path in ["", "bin", "bin/run", "secret", "shut", "etc", "absolute", "deep", "deep/er/est"] {
        assert_eq!(found(path).uid(), owner, "{path}");
    }
}

#[test]
fn reads_long_names_from_extended_headers_and_drops_attributes() {
    let long = format!("{}/{}", "d".repeat(200), "n".repeat(255));
    let target = "t".repeat(300);
    let archive = Tar::new()
        .extended(&[
            ("path", long.as_bytes()),
            ("mtime", b"1000000000.75"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ])
        .file("short", b"content")
        .file("next", b"")
        .extended(&[("linkpath", target.as_bytes()), ("mtime", b"-5")])
        .symbolic_link("link", "short")
        .finish();
    let (folder, _) = unpacked(&archive);
    let file = folder.path().join(&long);
    assert_eq!(fs::read(&file).unwrap(), b"content");
    assert_eq!(fs::symlink_metadata(&file).unwrap().mtime(), 1_000_000_000);
    for name in ["security.capability", "user.overlay.opaque"] {
        let read = fgetxattr(File::open(&file).unwrap(), name, &mut [0_u8; 64][..]);
        assert!(read.is_err(), "{name} is kept");
    }
    let link = folder.path().join("link");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&target));
    assert_eq!(fs::symlink_metadata(&link).unwrap().mtime(), -5);
    assert_eq!(fs::symlink_metadata(folder.path().join("next")).unwrap().mtime(), MODIFIED_S);
}

#[test]
fn names_that_are_not_utf8_are_kept_as_they_are() {
    let archive = Tar::new().entry(tar::FILE, b"\xff\xfe/\x80", b"", 0o644, b"x").finish();
    let (folder, _) = unpacked(&archive);
    assert_eq!(fs::read(folder.path().join(OsStr::from_bytes(b"\xff\xfe/\x80"))).unwrap(), b"x");
}

#[test]
fn device_nodes_and_their_like_are_counted_and_not_made() {
    let mut archive = Tar::new().file("file", b"");
    for (kind, name) in [(tar::CHARACTER_DEVICE, "a"), (tar::BLOCK_DEVICE, "dev/sda"), (tar::FIFO, "c")] {
        archive = archive.entry(kind, name.as_bytes(), b"", 0o666, b"");
    }
    let (folder, unpacked) = unpacked(&archive.finish());
    assert_eq!((unpacked.skipped, unpacked.files), (3, 1));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn whiteouts_become_those_of_overlayfs() {
    let archive = Tar::new()
        .file("a/.wh.gone", b"")
        .file(".wh.etc", b"")
        .folder("b")
        .file("b/.wh..wh..opq", b"")
        .file("b/new", b"")
        .file(".wh..wh.plnk", b"")
        .finish();
    let (folder, _) = unpacked(&archive);
    let at = |path: &str| folder.path().join(path);
    assert!(is_whiteout(&at("a/gone")) && is_whiteout(&at("etc")));
    assert!(is_opaque(&at("b")) && !is_opaque(&at("a")) && !is_opaque(folder.path()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_recreated_file_hides_lower_layers_in_either_order() {
    let first =
        Tar::new().file(".wh.d", b"").folder("d").file("d/new", b"").file(".wh.f", b"").file("f", b"x");
    let last =
        Tar::new().folder("d").file("d/new", b"").file(".wh.d", b"").file("f", b"x").file(".wh.f", b"");
    for archive in [first, last] {
        let (folder, _) = unpacked(&archive.finish());
        assert!(is_opaque(&folder.path().join("d")) && folder.path().join("d/new").exists());
        assert_eq!(fs::read(folder.path().join("f")).unwrap(), b"x");
    }
}

#[test]
fn the_last_entry_of_a_name_counts() {
    let archive = Tar::new()
        .file("a", b"first")
        .hard_link("kept", "a")
        .file("a", b"second")
        .folder("empty")
        .file("empty", b"file")
        .symbolic_link("link", "a")
        .folder("link")
        .folder("full")
        .file("full/x", b"")
        .entry(tar::FOLDER, b"full", b"", 0o700, b"")
        .finish();
    let (folder, _) = unpacked(&archive);
    let content = |path: &str| fs::read(folder.path().join(path)).unwrap();
    assert_eq!(
        (content("a"), content("kept"), content("empty")),
        (b"second".to_vec(), b"first".to_vec(), b"file".to_vec())
    );
    assert!(fs::symlink_metadata(folder.path().join("link")).unwrap().is_dir());
    assert_eq!(fs::metadata(folder.path().join("full")).unwrap().mode() & 0o777, 0o700);
    assert!(folder.path().join("full/x").exists());
}

#[test]
fn layers_are_what_an_overlay_is_made_of() {
    let bottom =
        Tar::new().file("a/old", b"").file("a/gone", b"").file("b/old", b"").file("c", b"bottom").finish();
    let top =
        Tar::new().file("a/.wh.gone", b"").file("b/.wh..wh..opq", b"").file("b/new", b"").file("c", b"top");
    let ((bottom, _), (top, _)) = (unpacked(&bottom), unpacked(&top.finish()));
    let merged = tempfile::tempdir().unwrap();
    let script = r#"mount -t overlay -o "userxattr,lowerdir=$1:$2" overlay "$3" && cd "$3" && find . -type f | sort && cat c"#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    let output = command.args([top.path(), bottom.path(), merged.path()]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare:") {
        return skip(Means::Namespaces, format_args!("this user may not make namespaces: {said}"));
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "./a/old\n./b/new\n./c\ntop");
}

#[test]
fn accepts_archives_without_end_mark_or_with_trailing_bytes() {
    let archive = Tar::new().file("a", b"x").0;
    let (folder, short) = unpacked(&archive);
    assert_eq!(short.diff_id, Digest::of(&archive));
    assert!(folder.path().join("a").exists());
    // Debian's umoci leaves out the padding of the last block.
    let cut = &archive[..513];
    assert_eq!(unpacked(cut).1.diff_id, Digest::of(cut));
    assert!(
        into(tempfile::tempdir().unwrap().path(), &archive[..512]).is_err(),
        "the content itself is missing"
    );
    let padded = [Tar::new().file("a", b"x").finish(), vec![0; 9000], b"more".to_vec()].concat();
    assert_eq!(unpacked(&padded).1.diff_id, Digest::of(&padded));
    assert_eq!(unpacked(b"").1.files, 0);
}

#[test]
fn enters_the_layers_folder_only_by_its_descriptor() {
    // The descriptor identifies the layer's folder, whatever becomes of its path.
    let outer = tempfile::tempdir().unwrap();
    let (inner, elsewhere) = (outer.path().join("layer"), outer.path().join("elsewhere"));
    fs::create_dir(&inner).unwrap();
    let opened = File::open(&inner).unwrap();
    fs::rename(&inner, &elsewhere).unwrap();
    symlink("/nowhere", &inner).unwrap();
    let archive = Tar::new().file("a", b"x").finish();
    unpack(&archive[..], opened.as_fd(), &mut ImageLimits::default()).unwrap();
    assert!(elsewhere.join("a").exists());
}
