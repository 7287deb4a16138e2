//! Environments of Python on a node: the files of their layers, in one tree that workers see read-only.
//!
//! A layer is a wheel: it is fetched and unpacked once (see [`wheels`]), and shared by all environments that list it. The
//! tree of an environment is made of hard links to the files of its layers, so it costs folders and no data:
//!
//! ```text
//! STATE/packages/LAYER/          manifest.pb, site/, data/, scripts/, headers/
//! STATE/packages/ENVIRONMENT/    manifest.pb, sublet.toml, layers.txt
//!   .built/environment/          lib/pythonX.Y/site-packages/, bin/, include/ and what `data` has: as a virtual environment
//! ```
//!
//! The trees are made anew at their first use after the agent's start, when the layers were compared with their records.
//! An environment in the cache keeps its layers there: what its links hold on the disk is counted for as long as it is.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use sublet_fabric::sync::lock;
use sublet_proto::package::wheel::Scheme;
use sublet_proto::package::{
    BUILT_FOLDER, EnvironmentLayer, LAYERS_FILE, PythonPlatform, environment_digest, parse_layers,
};
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};
use tracing::info;

use super::environment_trees::{LAYERS_AT_ONCE, TREE};
use super::start_step::StartStep;
use super::{NodePackages, failed, key, remove};
use crate::execution::cache::{self, CacheLookup, DiskSize, EntryUse};

/// Name of a tree that is not complete, beside it.
const UNFINISHED_TREE: &str = "unfinished";

impl NodePackages {
    /// The tree of a build's environment, and the token of its use: `Some(None)` if it needs none, `None` if the tree has
    /// to be made.
    pub(super) fn environment_at_hand(
        &self,
        build: &PackageBuild,
        tenant: &str,
    ) -> Option<Option<(PathBuf, EntryUse)>> {
        match environment_digest(&build.environment) {
            "" => Some(None),
            digest => self.tree_at_hand(digest, tenant).map(Some),
        }
    }

    fn tree_at_hand(&self, digest: &str, tenant: &str) -> Option<(PathBuf, EntryUse)> {
        // The token comes first, so that the entry is not evicted while its tree is looked up.
        let CacheLookup::Here(in_use) = self.cache.find(&key(digest), tenant) else { return None };
        let tree = lock(&self.environments.ready).get(digest).cloned()?;
        Some((tree, in_use))
    }

    /// Returns the same as [`NodePackages::environment_at_hand`], and fetches and unpacks what is missing.
    pub(super) fn ensure_environment(
        &self,
        build: &PackageBuild,
        tenant: &str,
        step: &StartStep,
    ) -> Result<Option<(PathBuf, EntryUse)>, Error> {
        let digest = environment_digest(&build.environment);
        if digest.is_empty() {
            return Ok(None);
        }
        if let Some(found) = self.tree_at_hand(digest, tenant) {
            return Ok(Some(found));
        }
        let install = || self.install(digest, tenant, step);
        let installed = self.environments.installations.execute(&digest.to_owned(), tenant, install)?;
        self.note_use(digest, tenant);
        Ok(Some(installed))
    }

    /// Fetches and unpacks what is missing of an environment, and makes its tree.
    fn install(&self, digest: &str, tenant: &str, step: &StartStep) -> Result<(PathBuf, EntryUse), Error> {
        if let Some(found) = self.tree_at_hand(digest, tenant) {
            return Ok(found);
        }
        lock(&self.environments.ready).remove(digest);
        step.set("pulling the environment".to_owned());
        // Turns of its own, which no tenant's name is: other tenants may wait for the installation, too. So it does not
        // wait for other packages of this tenant.
        let (environment, in_use) = self.ensure_unpacked(digest, tenant, &format!("environment {digest}"))?;
        let name = &environment.info.name;
        let of = |error: Error| Error::new(error.code, format!("environment {name}: {}", error.message));
        let path = environment.folder.join(LAYERS_FILE);
        let list = fs::read(&path).map_err(|error| failed("reading", &path, error))?;
        let layers = parse_layers(&list).map_err(of)?;
        let uses = self.ensure_layers(&layers, tenant, step).map_err(of)?;
        step.set(format!("installing {name}"));
        let version =
            environment.info.build(0).ok().and_then(|build| PythonPlatform::parse(&build.architecture));
        let version =
            version.ok_or_else(|| of(Error::new(Code::InvalidPackage, "it names no version of Python")))?;
        let tree = self.assemble(&environment.folder, version.version, &layers, tenant).map_err(of)?;
        let size =
            own_size(&environment.folder).map_err(|error| failed("reading", &environment.folder, error))?;
        drop(self.cache.keep_composed(&key(digest), size, tenant, uses));
        lock(&self.environments.ready).insert(digest.to_owned(), tree.clone());
        info!(environment = name, digest, layers = layers.len(), "an environment is installed");
        Ok((tree, in_use))
    }

    /// Makes all layers be here, several at a time.
    fn ensure_layers(
        &self,
        layers: &[EnvironmentLayer],
        tenant: &str,
        step: &StartStep,
    ) -> Result<Vec<EntryUse>, Error> {
        let (next, uses, fault) = (Mutex::new(0), Mutex::new(Vec::new()), Mutex::new(None));
        let work = || {
            while lock(&fault).is_none() {
                let number = {
                    let mut next = lock(&next);
                    *next += 1;
                    *next
                };
                let Some(layer) = layers.get(number - 1) else { return };
                step.set(format!("pulling {}, {number} of {}", layer.distribution(), layers.len()));
                match self.ensure_layer(layer, tenant) {
                    Ok(in_use) => lock(&uses).push(in_use),
                    Err(error) => *lock(&fault) = Some(error),
                }
            }
        };
        thread::scope(|scope| (0..LAYERS_AT_ONCE.min(layers.len())).for_each(|_| drop(scope.spawn(work))));
        let fault = lock(&fault).take();
        fault.map_or_else(|| Ok(std::mem::take(&mut *lock(&uses))), Err)
    }

    /// Makes the tree of an environment in its package's folder.
    fn assemble(
        &self,
        folder: &Path,
        version: (u32, u32),
        layers: &[EnvironmentLayer],
        tenant: &str,
    ) -> Result<PathBuf, Error> {
        let unfinished = folder.join(BUILT_FOLDER).join(UNFINISHED_TREE);
        remove(&unfinished)?;
        let counted: u64 = layers.iter().map(|layer| self.entries_of(layer)).sum();
        let size = DiskSize { bytes: 0, files: counted };
        let reservation = self.cache.reserve("the tree of an environment", (size, size), tenant)?;
        let mut tree = LinkTree { root: unfinished.clone(), made: BTreeSet::new() };
        let linked = tree.folder(Path::new("")).and_then(|()| {
            layers.iter().try_for_each(|layer| {
                Scheme::ALL.into_iter().try_for_each(|scheme| {
                    let from = self.folder.join(&layer.digest).join(scheme.folder());
                    tree.link(&from, &place_of(scheme, version, layer))
                })
            })
        });
        linked.map_err(|error| {
            // The links take only folders; the next attempt removes those that this one cannot.
            let _ = fs::remove_dir_all(&unfinished);
            failed("linking into", &unfinished, error)
        })?;
        drop(reservation);
        let complete = folder.join(TREE);
        remove(&complete)?;
        fs::rename(&unfinished, &complete).map_err(|error| failed("renaming to", &complete, error))?;
        Ok(complete)
    }

    /// The number of files and folders of an unpacked layer.
    fn entries_of(&self, layer: &EnvironmentLayer) -> u64 {
        cache::size_of(&self.folder.join(&layer.digest)).map_or(0, |size| size.files)
    }
}

/// Where the files of a layer are in an environment: as in a virtual environment.
fn place_of(scheme: Scheme, (major, minor): (u32, u32), layer: &EnvironmentLayer) -> PathBuf {
    match scheme {
        Scheme::Site => PathBuf::from(format!("lib/python{major}.{minor}/site-packages")),
        Scheme::Data => PathBuf::new(),
        Scheme::Scripts => PathBuf::from("bin"),
        Scheme::Headers => PathBuf::from(format!("include/python{major}.{minor}/{}", layer.distribution())),
    }
}

/// Size of an environment's package and of the folders of its tree: the files of the tree are those of its layers.
fn own_size(folder: &Path) -> io::Result<DiskSize> {
    let (all, tree) = (cache::size_of(folder)?, cache::size_of(&folder.join(TREE))?);
    Ok(DiskSize { bytes: all.bytes.saturating_sub(tree.bytes), files: all.files })
}

/// A tree of folders with links to files of other trees.
struct LinkTree {
    root: PathBuf,
    /// Folders that were made, relative to the root.
    made: BTreeSet<PathBuf>,
}

impl LinkTree {
    /// Links all files of a folder, if it exists, into a folder of the tree. The first of two files in one place stays.
    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let entries = match fs::read_dir(from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        self.folder(to)?;
        for entry in entries {
            let entry = entry?;
            let place = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.link(&entry.path(), &place)?;
                continue;
            }
            match fs::hard_link(entry.path(), self.root.join(&place)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                linked => linked?,
            }
        }
        Ok(())
    }

    /// Makes a folder and those above it, which every user can read.
    fn folder(&mut self, path: &Path) -> io::Result<()> {
        if !self.made.insert(path.to_owned()) {
            return Ok(());
        }
        if let Some(above) = path.parent() {
            self.folder(above)?;
        }
        let folder = self.root.join(path);
        match path.as_os_str().is_empty() {
            true => fs::create_dir_all(&folder)?,
            false => fs::create_dir(&folder)?,
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o755))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_several_layers_make_one_tree() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b, root) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("tree"));
        for (layer, file, text) in [
            (&a, "x/one.py", "1"),
            (&a, "x/__init__.py", "a"),
            (&b, "x/two.py", "2"),
            (&b, "x/__init__.py", "b"),
        ] {
            let path = layer.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut tree = LinkTree { root: root.clone(), made: BTreeSet::new() };
        tree.folder(Path::new("")).unwrap();
        for layer in [&a, &b, &folder.path().join("absent")] {
            tree.link(layer, Path::new("lib/site")).unwrap();
        }
        let read = |path: &str| fs::read_to_string(root.join("lib/site/x").join(path)).unwrap();
        assert_eq!([read("one.py"), read("two.py"), read("__init__.py")], ["1", "2", "a"]);
        let mode = fs::metadata(root.join("lib/site/x")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o755);
    }

    #[test]
    fn a_file_in_place_of_a_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b, root) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("tree"));
        fs::create_dir(&a).unwrap();
        fs::write(a.join("x"), "").unwrap();
        fs::create_dir_all(b.join("x")).unwrap();
        fs::write(b.join("x/y"), "").unwrap();
        let mut tree = LinkTree { root, made: BTreeSet::new() };
        tree.folder(Path::new("")).unwrap();
        tree.link(&a, Path::new("lib")).unwrap();
        tree.link(&b, Path::new("lib")).unwrap_err();
    }
}
