//! A registry with images of this machine's programs, packed with their libraries, and a node that pulls from it.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_tests::platform::PlatformProcess;

use crate::making::tar::{FILE, Tar};
use crate::making::{CONFIG, LAYER, Layer, Layout, MANIFEST, configuration, manifest};
use crate::serving::DebianRegistry;

/// A registry, and a folder to work in.
pub struct Scene {
    pub registry: DebianRegistry,
    pub folder: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        Scene { registry: DebianRegistry::start(), folder: tempfile::tempdir().unwrap() }
    }

    /// Uploads an image, and returns its name.
    pub fn push(&self, name: &str, layers: &[Layer]) -> String {
        self.upload(name, &Layout::of(&self.layout(name), layers))
    }

    /// Uploads an image whose configuration is changed by replacing a text.
    pub fn push_with(&self, name: &str, layers: &[Layer], (from, to): (&str, &str)) -> String {
        let layout = Layout::new(&self.layout(name));
        let diff_ids: Vec<_> = layers.iter().map(|layer| layer.diff_id).collect();
        let usual = configuration(sublet_image::manifest::HERE, &diff_ids);
        assert!(usual.contains(from), "{usual}");
        let config = layout.blob(CONFIG, usual.replacen(from, to, 1).as_bytes());
        let blobs: Vec<_> = layers.iter().map(|layer| layout.blob(LAYER, &layer.blob)).collect();
        layout.index(&[layout.blob(MANIFEST, manifest(&config, &blobs).as_bytes())]);
        self.upload(name, &layout)
    }

    fn layout(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("image-{name}"))
    }

    fn upload(&self, name: &str, layout: &Layout) -> String {
        self.registry.push(&layout.folder, name, "1");
        format!("localhost:{}/{name}:1", self.registry.port)
    }

    /// The digest of an image that was uploaded.
    pub fn digest(&self, name: &str) -> String {
        let index = fs::read(self.layout(name).join("index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        index["manifests"][0]["digest"].as_str().unwrap().to_owned()
    }

    /// A node that pulls from this registry, and has no interpreter of its own.
    pub fn platform(&self, more: &[&str]) -> PlatformProcess {
        let bare = self.folder.path().join("bare");
        fs::create_dir_all(&bare).unwrap();
        PlatformProcess::start_with(|up| {
            up.env_remove("SUBLET_PYTHON").env("PATH", format!("{}:/usr/sbin", bare.display()));
            up.args(more).arg("--registries").arg(format!("localhost:{}", self.registry.port));
        })
    }
}

/// The shared libraries that a program or library needs, where it looks for them.
pub fn libraries(path: &Path) -> Vec<PathBuf> {
    let needed = Command::new("ldd").arg(path).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    needed
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(Into::into)
        .collect()
}

/// Adds a file of this machine, in the same place.
pub fn add(tar: Tar, path: &Path) -> Tar {
    let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let inside = path.to_str().unwrap().trim_start_matches('/');
    tar.entry(FILE, inside.as_bytes(), b"", mode, &fs::read(path).unwrap())
}

/// A layer with these programs of this machine, their libraries, and a script in place of an interpreter.
pub fn with_script(programs: &[&str], interpreter: &str, script: &str) -> Layer {
    let programs: Vec<_> = programs.iter().map(PathBuf::from).collect();
    let needed = programs.iter().flat_map(|program| libraries(program));
    let files: BTreeSet<PathBuf> = needed.chain(programs.iter().cloned()).collect();
    let tar = files.iter().fold(Tar::new(), |tar, path| add(tar, path));
    Layer::gzip(&tar.entry(FILE, interpreter.as_bytes(), b"", 0o755, script.as_bytes()).finish())
}
