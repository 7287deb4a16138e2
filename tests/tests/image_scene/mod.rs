//! A registry with images of this machine's programs, packed with their libraries, and a node that pulls from it.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../../../crates/sandbox/tests/support/interpreter_files.rs"]
mod interpreter_files;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_tests::platform::{PlatformProcess, programs};

pub use interpreter_files::collect;
use interpreter_files::{is_code, libraries};

use crate::making::tar::{FILE, Tar};
use crate::making::{CONFIG, LAYER, Layer, Layout, MANIFEST, configuration, manifest};
use crate::serving::DebianRegistry;

/// An interpreter of this machine that images get.
pub struct PackedInterpreter {
    /// Path of the program, here and in images.
    pub program: PathBuf,
    /// Version; that of a Python without its last number.
    pub version: String,
    /// The program with what it needs. It is in `/bin`, too.
    pub layer: Layer,
}

impl PackedInterpreter {
    /// Packs the tests' Python: not a virtual environment's, and not a link. Its image has these of its installed folders, if
    /// they exist, and modules of these names and texts.
    pub fn python(installed: &[&str], modules: &[(&str, &str)]) -> PackedInterpreter {
        let ask = "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'), sysconfig.get_path('purelib'), '%d.%d' % sys.version_info[:2], sep='\\n')";
        let told = Command::new(python()).args(["-I", "-c", ask]).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let [program, library, site, version] = told.lines().collect::<Vec<_>>().try_into().unwrap();
        let [program, library, site] = [program, library, site].map(PathBuf::from);
        let (mut files, mut own) = (BTreeSet::from([program.clone()]), BTreeSet::new());
        collect(&library, &mut files);
        let folders = installed.iter().map(|name| site.join(name)).filter(|folder| folder.is_dir());
        folders.for_each(|folder| collect(&folder, &mut own));
        let code: Vec<_> = files.union(&own).filter(|path| is_code(path)).cloned().collect();
        let needed =
            code.iter().chain([&adapter("python")]).flat_map(|path| libraries(path)).collect::<Vec<_>>();
        files.extend(needed.into_iter().filter(|path| !path.starts_with(&site)));
        let mut tar = files.iter().fold(Tar::new(), |tar, path| add(tar, path));
        tar = tar.symbolic_link("bin/python3", program.to_str().unwrap());
        let installed = library.join("site-packages");
        for path in &own {
            tar = add_as(tar, path, &installed.join(path.strip_prefix(&site).unwrap()));
        }
        for (name, text) in modules {
            tar = tar.file(inside(&installed.join(format!("{name}.py"))), text.as_bytes());
        }
        PackedInterpreter { program, version: version.to_owned(), layer: Layer::gzip(&tar.finish()) }
    }

    /// Packs the Node.js of this machine.
    pub fn node() -> PackedInterpreter {
        let ask = "process.execPath + '\\n' + process.versions.node";
        let told = Command::new("node").args(["-p", ask]).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let [program, version] = told.lines().collect::<Vec<_>>().try_into().unwrap();
        let program = PathBuf::from(program);
        let mut files = BTreeSet::from([program.clone()]);
        files.extend(libraries(&program));
        files.extend(libraries(&adapter("node")));
        let tar = files.iter().fold(Tar::new(), |tar, path| add(tar, path));
        let tar = match program.to_str().unwrap() {
            "/bin/node" => tar,
            program => tar.symbolic_link("bin/node", program),
        };
        PackedInterpreter { program, version: version.to_owned(), layer: Layer::gzip(&tar.finish()) }
    }
}

/// The Python that `scripts/setup.sh test` has made.
pub fn python() -> PathBuf {
    sublet_tests::root().join("target/tools/python/bin/python3")
}

/// The library that makes an interpreter a worker.
fn adapter(language: &str) -> PathBuf {
    programs().join(format!("libsublet_template_{language}.so"))
}

/// A registry, and a folder to work in.
pub struct ImageScene {
    pub registry: DebianRegistry,
    pub folder: tempfile::TempDir,
}

impl ImageScene {
    pub fn new() -> ImageScene {
        ImageScene { registry: DebianRegistry::start(), folder: tempfile::tempdir().unwrap() }
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

/// Path of crun, which a node without programs of its own does not find.
pub fn crun() -> &'static str {
    ["/usr/bin/crun", "/usr/sbin/crun"].into_iter().find(|path| Path::new(path).exists()).unwrap_or("crun")
}

/// Adds a file of this machine, in the same place.
fn add(tar: Tar, path: &Path) -> Tar {
    add_as(tar, path, path)
}

/// Adds a file of this machine at another path.
fn add_as(tar: Tar, path: &Path, place: &Path) -> Tar {
    let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
    tar.entry(FILE, inside(place).as_bytes(), b"", mode, &fs::read(path).unwrap())
}

/// An absolute path as an archive has it.
fn inside(path: &Path) -> &str {
    path.to_str().unwrap().trim_start_matches('/')
}

/// A layer with these programs of this machine, their libraries, and a script in place of an interpreter.
pub fn with_script(programs: &[&str], interpreter: &str, script: &str) -> Layer {
    let programs: Vec<_> = programs.iter().map(PathBuf::from).collect();
    let needed = programs.iter().flat_map(|program| libraries(program));
    let files: BTreeSet<PathBuf> = needed.chain(programs.iter().cloned()).collect();
    let tar = files.iter().fold(Tar::new(), |tar, path| add(tar, path));
    Layer::gzip(&tar.entry(FILE, interpreter.as_bytes(), b"", 0o755, script.as_bytes()).finish())
}
