//! Stores that several processes use at once, also when some are killed or the disk is full.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sublet_image::{Digest, ImageError, ImageStore, PruneResult};
use sublet_means::{Means, skip};
use sublet_proto::Code;

use crate::making::{Layer, Layout, Tar, import_one, left_in};

/// Names of variables that hold the store and the layout for this program when a test starts it again.
const STORE: &str = "SUBLET_TEST_STORE";
const LAYOUT: &str = "SUBLET_TEST_LAYOUT";

fn layer(name: &str) -> Layer {
    Layer::gzip(
        &Tar::new()
            .file(name, name.as_bytes())
            .entry(b'5', b"shut", b"", 0o555, b"")
            .file("shut/in", b"")
            .finish(),
    )
}

/// Number of files that take a while to unpack.
const FILES: usize = 400;

/// A layer of many files.
fn large(name: &str) -> Layer {
    let mut archive = Tar::new();
    for index in 0..FILES {
        archive = archive.file(&format!("{name}/{}/{index}", index % 50), &[7; 3000]);
    }
    Layer::gzip(&archive.finish())
}

/// Creates a command that runs one test of this program again.
fn again(test: &str, store: &Path, layout: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("stores::{test}"), "--nocapture", "--test-threads=1"])
        .env(STORE, store)
        .env(LAYOUT, layout);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Reads the store and the layout from the environment, if this program was started again.
fn told() -> Option<(PathBuf, PathBuf)> {
    Some((std::env::var_os(STORE)?.into(), std::env::var_os(LAYOUT)?.into()))
}

#[test]
fn layers_are_shared_and_pruned_with_their_last_image() {
    let folder = tempfile::tempdir().unwrap();
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    let (base, top) = (layer("base"), layer("top"));
    let one = Layout::of(&folder.path().join("one"), std::slice::from_ref(&base));
    let two = Layout::of(&folder.path().join("two"), &[base, top.clone(), top]);
    let (one, two) = (import_one(&store, &one.folder).unwrap(), import_one(&store, &two.folder).unwrap());
    assert_eq!((one.layers.len(), two.layers.len()), (1, 2), "a layer that is there twice is named once");
    assert_eq!(one.layers[0], two.layers[0]);
    store.remove(&one.digest).unwrap();
    assert_eq!(store.prune().unwrap(), PruneResult { layers: 0, in_use: 0 });
    store.remove(&two.digest).unwrap();
    assert!(two.layers[1].exists());
    let held = two.hold().unwrap();
    assert_eq!(store.prune().unwrap(), PruneResult { layers: 0, in_use: 2 });
    drop(held);
    assert_eq!(store.prune().unwrap(), PruneResult { layers: 2, in_use: 0 });
    assert!(matches!(two.hold(), Err(ImageError::Unknown(_))));
    assert_eq!(left_in(&folder.path().join("store")), Vec::<String>::new());
}

#[test]
fn concurrent_imports_of_an_image_unpack_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let layout = Layout::of(&folder.path().join("layout"), &[large("a"), layer("b")]);
    let inode = |image: &sublet_image::Image| fs::metadata(&image.layers[0]).unwrap().ino();
    let take = || {
        let mut fetched = 0;
        let store = ImageStore::open(&path).unwrap();
        let image =
            store.import(&layout.folder, &mut |progress| fetched = progress.fetched_bytes).unwrap().remove(0);
        (inode(&image), fetched)
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(all.iter().all(|(inode, _)| *inode == all[0].0), "{all:?}");
    let blobs = (large("a").blob.len() + layer("b").blob.len()) as u64;
    assert_eq!(all.iter().map(|(_, fetched)| fetched).sum::<u64>(), blobs, "each layer was fetched once");
}

#[test]
fn filling_for_a_test() {
    let Some((store, layout)) = told() else { return };
    println!("begins");
    let outcome = ImageStore::open(store).and_then(|store| store.import(&layout, &mut |_| ()));
    match outcome {
        Ok(_) => println!("done"),
        Err(error) => println!("failed: {}", sublet_proto::Error::from(error).code),
    }
}

#[test]
fn what_a_killed_process_leaves_is_ignored_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::of(&folder.path().join("layout"), &[large("a"), large("b")]);
    let mut in_between = 0;
    for delay_ms in [0, 5, 10, 20, 40, 80, 160] {
        let path = folder.path().join(format!("store{delay_ms}"));
        let mut child = again("filling_for_a_test", &path, &layout.folder).spawn().unwrap();
        await_line(&mut child, "begins");
        std::thread::sleep(Duration::from_millis(delay_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = ImageStore::open(&path).unwrap();
        in_between += usize::from(store.list().unwrap().is_empty() && !left_in(&path).is_empty());
        assert!(left_in(&path).iter().all(|name| !name.starts_with('.')), "{:?}", left_in(&path));
        // Existing layers are complete, and missing ones are made.
        let image = import_one(&store, &layout.folder).unwrap();
        for (layer, name) in image.layers.iter().zip(["a", "b"]) {
            assert_eq!(files(layer), FILES, "{name} is not complete");
        }
        store.remove(&image.digest).unwrap();
        assert_eq!(store.prune().unwrap().layers, 2);
        assert_eq!(left_in(&path), Vec::<String>::new());
    }
    println!("{in_between} were killed between two layers");
}

fn await_line(child: &mut Child, expected: &str) {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(expected) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended before it began");
    }
}

fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

#[test]
fn what_is_unfinished_stays_while_somebody_is_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let layout = Layout::of(&folder.path().join("layout"), &[layer("a")]);
    let store = ImageStore::open(&path).unwrap();
    let unfinished = path.join("layers/.unfinished-0");
    let mut seen = 0;
    let mut look = |_| {
        fs::create_dir_all(&unfinished).unwrap();
        ImageStore::open(&path).unwrap();
        assert!(unfinished.exists(), "somebody's work was removed");
        seen += 1;
    };
    store.import(&layout.folder, &mut look).unwrap();
    assert!(seen > 0);
    ImageStore::open(&path).unwrap();
    assert!(!unfinished.exists());
}

#[test]
fn reports_a_full_disk_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::of(&folder.path().join("layout"), &[large("a")]);
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let program = std::env::current_exe().unwrap();
    let script = r#"mount -t tmpfs -o size=1m tmpfs "$1" && "$2" --exact stores::filling_for_a_test --nocapture && ls -A "$1/s/layers" "$1/s/images""#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(&disk).arg(program);
    command.env(STORE, disk.join("s")).env(LAYOUT, &layout.folder);
    let output = command.output().unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if complained.contains("unshare:") || complained.contains("mount:") {
        return skip(Means::Namespaces, format_args!("this user may not mount: {complained}"));
    }
    let code = Code::StoreFull.name();
    assert!(said.contains(&format!("failed: {code}")), "{said}{complained}");
    let listed: Vec<_> = said.lines().skip_while(|line| !line.starts_with('/')).collect();
    assert!(listed.iter().all(|line| line.is_empty() || line.starts_with('/')), "{listed:?}");
}

#[test]
fn an_image_that_is_not_there_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = ImageStore::open(folder.path()).unwrap();
    assert_eq!(store.find(&Digest::of(b"")).unwrap(), None);
    assert_eq!(store.named("docker.io/library/debian:12").unwrap(), None);
    assert_eq!(store.list().unwrap(), []);
}
