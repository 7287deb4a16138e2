//! The node's packages: fetched from the manager once, checked, and unpacked where workers load them from.
//!
//! `STATE/packages/DIGEST/` holds a package's files, its `sublet.toml`, and the encoded `PackageInfo` from which a
//! worker reads the tables of functions. A folder of that name was complete: it is filled under another name, written through to
//! the disk, and renamed. Nothing in it is ever changed but what is [built](crate::execution::kernels) of kernels, which comes later,
//! and of [environments].
//!
//! The manager is not trusted to send the requested package: its digest is computed and its content validated before a
//! file is made. The disk is not trusted either: before a worker starts, its package is verified ([`kept`]). A damaged
//! package is set aside and fetched again.
//!
//! A package is verified and fetched once for all leases that need it, with turns among tenants: see
//! [`shared_work`](crate::execution::shared_work).

mod environment_trees;
mod environments;
mod kept;
mod start_step;
mod wheels;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::sync::lock;
use sublet_proto::package::{CheckedPackage, INFO_FILE, MANIFEST_FILE, is_digest, is_processor, runs_on};
use sublet_proto::v1::{PackageBuild, PackageFile, PackageInfo};
use sublet_proto::{Code, Error, decode};

use tracing::{info, warn};

use crate::execution::cache::{
    self, CacheLookup, DiskSize, EntryKind, EntryUse, Key, NodeCache, PACKAGES, UNFINISHED,
};
use crate::execution::image_interpreters::answer::ImageInterpreter;
use crate::execution::images::Images;
use crate::execution::shared_work::{KnownResults, SharedWork, WorkBounds, WorkRefusal};
use crate::leases::managers::Managers;
use environment_trees::{Environments, TREE};
pub(crate) use kept::FileStamp;
use kept::{Damage, Stamps, check};
pub(crate) use start_step::StartStep;

/// How the folder of a damaged package begins. It stays until the agent's next start, or until the package is damaged
/// again: workers that run have it mounted.
const DAMAGED: &str = ".unfinished-damaged-";
/// Packages whose information is kept in memory.
const MAX_KNOWN: usize = 1024;
/// Bounds of packages that are verified or fetched. Each may use 512 MiB of the agent's memory: its encoding, and its
/// files. A call waits longer than a package may take to arrive, and shorter than the 120 s that clients wait.
const BOUNDS: WorkBounds =
    WorkBounds { of_node: 8, of_tenant: 2, calls_of_tenant: 1024, patience: Duration::from_secs(110) };

/// A package that workers can load.
#[derive(Debug)]
pub(crate) struct UnpackedPackage {
    /// Absolute.
    pub(crate) folder: PathBuf,
    pub(crate) info: PackageInfo,
}

/// A package whose files were found to be those of its digest, and what the file system said of them then.
#[derive(Clone, Debug)]
struct VerifiedPackage {
    unpacked: Arc<UnpackedPackage>,
    stamps: Arc<Stamps>,
}

/// One build of an unpacked package, for this node.
#[derive(Clone, Debug)]
pub(crate) struct Runnable {
    pub(crate) package: Arc<UnpackedPackage>,
    pub(crate) index: u32,
    /// Folder of the environment in which it runs, if it has one.
    pub(crate) environment: Option<PathBuf>,
    /// The interpreter of its image, if that executes it: [`ImageInterpreters`](crate::execution::image_interpreters::ImageInterpreters) adds it.
    pub(crate) image_interpreter: Option<ImageInterpreter>,
    /// Tokens that keep the package and its image from being evicted.
    uses: Vec<EntryUse>,
}

impl Runnable {
    /// Description of the build in the package's information.
    pub(crate) fn build(&self) -> &PackageBuild {
        &self.package.info.builds[self.index as usize]
    }

    /// The same, in an environment, if it has one.
    fn within(mut self, environment: Option<(PathBuf, EntryUse)>) -> Runnable {
        let (folder, in_use) = environment.unzip();
        self.environment = folder;
        self.using(in_use)
    }

    /// The same, with tokens that are dropped with it.
    fn using(mut self, uses: impl IntoIterator<Item = EntryUse>) -> Runnable {
        self.uses.extend(uses);
        self
    }

    /// The build of this index, as a manager has chosen it. Whether a device or an interpreter that it may need is here is for
    /// [`KernelPackages`](crate::execution::kernels::KernelPackages) and [`Runtimes`](crate::execution::runtimes::Runtimes) to say.
    fn of(package: Arc<UnpackedPackage>, index: u32) -> Result<Runnable, Error> {
        let build = package.info.build(index)?;
        let here = std::env::consts::ARCH;
        if is_processor(&build.architecture) && !runs_on(&build.architecture, here) {
            let (name, library, architecture) = (&package.info.name, &build.library, &build.architecture);
            let message =
                format!("{library} of package {name} is for {architecture}, and this node is {here}");
            return Err(Error::new(Code::WrongArchitecture, message));
        }
        Ok(Runnable { package, index, environment: None, image_interpreter: None, uses: Vec::new() })
    }
}

/// The packages of one node.
pub(crate) struct NodePackages {
    folder: PathBuf,
    managers: Arc<Managers>,
    images: Arc<Images>,
    cache: Arc<NodeCache>,
    known: Mutex<KnownResults<String, VerifiedPackage>>,
    /// Packages that are verified or fetched, by digest: none twice at once.
    fetches: SharedWork<String, (Arc<UnpackedPackage>, EntryUse)>,
    environments: Environments,
}

impl NodePackages {
    /// Opens the packages in `STATE/packages`, and removes what an agent that died has left unfinished.
    pub(crate) fn open(
        state: &Path,
        managers: Arc<Managers>,
        images: Arc<Images>,
        cache: Arc<NodeCache>,
    ) -> Result<NodePackages, Error> {
        let folder = state.join(PACKAGES);
        make_folder(&folder)?;
        let failed = |error| failed("reading", &folder, error);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                fs::remove_dir_all(entry.path()).map_err(failed)?;
            } else {
                // It is made anew once its layers are verified.
                remove(&entry.path().join(TREE))?;
            }
        }
        let known = Mutex::new(KnownResults::new(MAX_KNOWN));
        let (fetches, environments) = (SharedWork::new(BOUNDS, describe), Environments::new());
        Ok(NodePackages { folder, managers, images, cache, known, fetches, environments })
    }

    /// A build of the package of a digest, if it is here, with its image, and was verified and has not changed since.
    /// A tenant uses it from now on.
    pub(crate) fn at_hand(&self, digest: &str, build: u32, tenant: &str) -> Result<Option<Runnable>, Error> {
        if !is_digest(digest) {
            return Err(Error::new(Code::UnknownPackage, format!("{digest:?} is not a package's digest")));
        }
        let Some((unpacked, in_use)) = self.unchanged(digest, tenant) else { return Ok(None) };
        let runnable = Runnable::of(unpacked, build)?.using([in_use]);
        let image = self.images.at_hand(runnable.build(), tenant)?;
        let Some(environment) = self.environment_at_hand(runnable.build(), tenant) else { return Ok(None) };
        Ok(image.map(|image| runnable.using(image).within(environment)))
    }

    /// A build of the package of a digest, verified, and fetched with its image if they are not here or damaged: that may
    /// take a minute and more.
    pub(crate) fn ensure(
        &self,
        digest: &str,
        build: u32,
        tenant: &str,
        step: &StartStep,
    ) -> Result<Runnable, Error> {
        if let Some(runnable) = self.at_hand(digest, build, tenant)? {
            return Ok(runnable);
        }
        let (unpacked, in_use) = self.ensure_unpacked(digest, tenant, tenant)?;
        let runnable = Runnable::of(unpacked, build)?.using([in_use]);
        let image = self.images.ensure(runnable.build(), tenant, &|text| step.set(text))?;
        let environment = self.ensure_environment(runnable.build(), tenant, step)?;
        Ok(runnable.using(image).within(environment))
    }

    /// A package for a tenant, verified, and fetched if it is not here or damaged. It counts as work of `turns_of`.
    fn ensure_unpacked(
        &self,
        digest: &str,
        tenant: &str,
        turns_of: &str,
    ) -> Result<(Arc<UnpackedPackage>, EntryUse), Error> {
        if let Some(unpacked) = self.unchanged(digest, tenant) {
            return Ok(unpacked);
        }
        let fetch = || self.verify_or_fetch(digest, tenant);
        let unpacked = self.fetches.execute(&digest.to_owned(), turns_of, fetch)?;
        self.note_use(digest, tenant);
        Ok(unpacked)
    }

    /// Does the work of [`NodePackages::ensure_unpacked`].
    fn verify_or_fetch(&self, digest: &str, tenant: &str) -> Result<(Arc<UnpackedPackage>, EntryUse), Error> {
        if let Some(unpacked) = self.unchanged(digest, tenant) {
            return Ok(unpacked);
        }
        let folder = self.folder.join(digest);
        // The manager's encoding has the last word: it is also fetched if the folder only seems to be that of a layer.
        if (!folder.join(INFO_FILE).exists() && !folder.join(MANIFEST_FILE).exists()) || is_layer(&folder) {
            return self.fetch(digest).and_then(|encoded| self.store(digest, &encoded, tenant));
        }
        let Damage(damage) = match kept::verify(digest, &folder) {
            Ok((info, stamps)) => {
                let size = cache::size_of(&folder).map_err(|error| failed("reading", &folder, error))?;
                let in_use = match self.cache.find(&key(digest), tenant) {
                    CacheLookup::Here(in_use) => in_use,
                    _ => self.cache.keep(&key(digest), size, tenant),
                };
                let unpacked = self.remember(digest, UnpackedPackage { folder, info }, stamps, tenant);
                return Ok((unpacked, in_use));
            }
            Err(damage) => damage,
        };
        warn!(digest, damage, "an unpacked package is damaged, and fetched again");
        let fetched = self.fetch(digest).and_then(|encoded| self.store(digest, &encoded, tenant));
        match &fetched {
            Ok(_) => info!(digest, "the package was fetched again"),
            Err(Error { code, message }) => {
                let message = format!("package {digest} is damaged on this node ({damage}): {message}");
                return Err(Error::new(*code, message));
            }
        }
        fetched
    }

    /// Fetches a package from any manager that answers: all have the same packages.
    fn fetch(&self, digest: &str) -> Result<Vec<u8>, Error> {
        let mut fetched = Err(Error::new(Code::ManagerUnreachable, "no manager is known"));
        for manager in self.managers.connect_each() {
            fetched = manager?.fetch_package(digest);
            if !matches!(&fetched, Err(error) if error.code == Code::ManagerUnreachable) {
                break;
            }
        }
        fetched
    }

    /// A package that was verified before, if nothing of it has changed since.
    fn unchanged(&self, digest: &str, tenant: &str) -> Option<(Arc<UnpackedPackage>, EntryUse)> {
        // The token comes first, so that the entry is not evicted while it is checked.
        let CacheLookup::Here(in_use) = self.cache.find(&key(digest), tenant) else { return None };
        let known = lock(&self.known).find(digest, tenant, Instant::now());
        let VerifiedPackage { unpacked, stamps } = known?;
        stamps.still_hold().then_some((unpacked, in_use))
    }

    fn store(
        &self,
        digest: &str,
        encoded: &[u8],
        tenant: &str,
    ) -> Result<(Arc<UnpackedPackage>, EntryUse), Error> {
        let checked = check(digest, encoded)?;
        if checked.builds.iter().any(PackageBuild::is_layer) {
            let message = format!("{digest} is a layer of environments, which has no functions");
            return Err(Error::new(Code::InvalidPackage, message));
        }
        // Only now: a digest that is not a package's leaves the entry of what is here under it.
        self.cache.forget(&key(digest));
        let size = size(&checked);
        let reservation = self.cache.reserve(&format!("package {digest}"), (size, size), tenant)?;
        let unfinished = RemovalGuard(self.folder.join(format!("{UNFINISHED}{digest}")));
        unpack(&checked, &unfinished.0)?;
        let folder = self.folder.join(digest);
        self.set_aside(digest, &folder)?;
        fs::rename(&unfinished.0, &folder).map_err(|error| failed("renaming to", &folder, error))?;
        sync(&self.folder)?;
        let stamps = Stamps::of(&folder).map_err(|error| failed("reading", &folder, error))?;
        let in_use = self.cache.keep(&key(digest), reservation.size, tenant);
        let unpacked = UnpackedPackage { folder, info: checked.info() };
        Ok((self.remember(digest, unpacked, stamps, tenant), in_use))
    }

    /// Counts what was built of kernels beside a package.
    pub(crate) fn measure(&self, runnable: &Runnable) {
        self.cache.measure(&runnable.package.info.digest);
    }

    /// Moves what stands in the place of a package away.
    fn set_aside(&self, digest: &str, folder: &Path) -> Result<(), Error> {
        let aside = self.folder.join(format!("{DAMAGED}{digest}"));
        remove(&aside)?;
        match fs::rename(folder, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("renaming to", &aside, error))
            }
            _ => Ok(()),
        }
    }

    fn remember(
        &self,
        digest: &str,
        unpacked: UnpackedPackage,
        stamps: Stamps,
        tenant: &str,
    ) -> Arc<UnpackedPackage> {
        let unpacked = Arc::new(unpacked);
        let verified = VerifiedPackage { unpacked: Arc::clone(&unpacked), stamps: Arc::new(stamps) };
        lock(&self.known).insert(&digest.to_owned(), tenant, verified, None);
        unpacked
    }

    /// Notes that a tenant uses an entry which the work of another tenant's call may have made.
    fn note_use(&self, digest: &str, tenant: &str) {
        // The caller has a token of the entry already.
        drop(self.cache.find(&key(digest), tenant));
    }
}

/// The message of a package that was neither verified nor fetched.
fn describe(refusal: WorkRefusal, bounds: &WorkBounds) -> String {
    let WorkBounds { of_node, of_tenant, calls_of_tenant, patience } = bounds;
    match refusal {
        WorkRefusal::TooManyCalls => {
            format!("{calls_of_tenant} starts of this tenant wait for packages already")
        }
        WorkRefusal::TooLate => format!(
            "the package is not here after {} s (try again): a node fetches at most {of_tenant} packages of a tenant and \
             {of_node} of all at once",
            patience.as_secs()
        ),
        WorkRefusal::Panicked => "the fetch of the package has failed".to_owned(),
    }
}

/// Removes what it names when it is dropped, if it is still there.
struct RemovalGuard(PathBuf);

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        // The next agent removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a folder has the information of an unpacked layer of environments.
fn is_layer(folder: &Path) -> bool {
    let info = fs::read(folder.join(INFO_FILE)).ok();
    let info = info.and_then(|bytes| decode::<PackageInfo>("the information of a package", &bytes).ok());
    info.is_some_and(|info| info.is_layer())
}

fn key(digest: &str) -> Key {
    (EntryKind::Package, digest.to_owned())
}

/// At least what a package has when it is unpacked: each file may be in a folder of its own.
fn size(checked: &CheckedPackage) -> DiskSize {
    let files = &checked.package.files;
    let information = checked.info().encoded_len() as u64 + checked.package.manifest.len() as u64;
    let folders: BTreeSet<&Path> =
        files.iter().flat_map(|file| Path::new(&file.path).ancestors().skip(1)).collect();
    let bytes = files.iter().fold(information, |sum, file| sum.saturating_add(file.data.len() as u64));
    // Its folder is among those of its files, its information and its manifest are not among them.
    DiskSize { bytes, files: (files.len() + folders.len().max(1) + 2) as u64 }
}

/// Writes all of a package into a folder that is not there yet.
fn unpack(checked: &CheckedPackage, folder: &Path) -> Result<(), Error> {
    remove(folder)?;
    make_folder(folder)?;
    write(&folder.join(INFO_FILE), &checked.info().encode_to_vec(), false)?;
    write(&folder.join(MANIFEST_FILE), checked.package.manifest.as_bytes(), false)?;
    checked.package.files.iter().try_for_each(|file| unpack_file(file, folder))?;
    open_to_workers(folder).map_err(|error| failed("opening to workers", folder, error))?;
    sync(folder)
}

/// Lets every user read the files of a package, whatever this process's mask is. Workers run as different users and
/// read the files through a mount. The folder above keeps all other users out.
fn open_to_workers(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            open_to_workers(&path)?;
        } else {
            let is_executable = metadata.permissions().mode() & 0o100 != 0;
            fs::set_permissions(&path, Permissions::from_mode(if is_executable { 0o555 } else { 0o444 }))?;
        }
    }
    Ok(())
}

/// The path was checked to stay in the folder, in which there are no links.
fn unpack_file(file: &PackageFile, folder: &Path) -> Result<(), Error> {
    let path = folder.join(&file.path);
    path.parent().map_or(Ok(()), make_folder)?;
    write(&path, &file.data, file.executable)
}

/// Makes a new file that no process may change, and writes it through to the disk.
fn write(path: &Path, bytes: &[u8], executable: bool) -> Result<(), Error> {
    let mode = if executable { 0o500 } else { 0o400 };
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    written().map_err(|error| failed("writing", path, error))
}

fn make_folder(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| failed("making the folder", path, error))
}

fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", folder, error)),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed("writing", folder, error))
}

fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::StoreFull,
        _ => Code::System,
    };
    Error::new(code, format!("{operation} {} failed: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::scope;

    use sublet_image::ImageStore;
    use sublet_proto::package;
    use sublet_proto::package::EnvironmentLayer;
    use sublet_proto::package::digest as digest_of;
    use sublet_proto::v1::Package;
    use sublet_runtime::access::Access;

    fn open(state: &Path) -> NodePackages {
        open_with(state, None)
    }

    fn open_with(state: &Path, cache_bytes: Option<u64>) -> NodePackages {
        let managers = Arc::new(Managers::new(Access::parse("unix:/nowhere").unwrap()));
        let store = ImageStore::open(state.join("images")).unwrap();
        let cache = Arc::new(NodeCache::open(state, store.clone(), cache_bytes).unwrap());
        let images = Arc::new(Images::new(store, cache.clone(), Vec::new()));
        NodePackages::open(state, managers, images, cache).unwrap()
    }

    fn checked(files: &[(&str, &[u8])]) -> CheckedPackage {
        let files = files
            .iter()
            .map(|(path, data)| PackageFile {
                path: path.to_string(),
                data: data.to_vec(),
                executable: false,
            })
            .collect();
        CheckedPackage {
            name: "p".into(),
            digest: String::new(),
            functions: Vec::new(),
            builds: Vec::new(),
            profiles: Vec::new(),
            needs: None,
            size_bytes: 0,
            package: Package { manifest: "name = 'p'".into(), files },
        }
    }

    #[test]
    fn a_package_is_unpacked_with_its_manifest_and_information() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("p");
        unpack(&checked(&[("data/a", b"x"), ("lib/p.so", b"elf")]), &folder).unwrap();
        assert_eq!(fs::read(folder.join("lib/p.so")).unwrap(), b"elf");
        let mode = |path: &str| fs::metadata(folder.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(""), mode("lib"), mode("lib/p.so")], [0o755, 0o755, 0o444]);
        assert_eq!(fs::read(folder.join("data/a")).unwrap(), b"x");
        assert_eq!(fs::read(folder.join(MANIFEST_FILE)).unwrap(), b"name = 'p'");
        let info: PackageInfo = decode("info", &fs::read(folder.join(INFO_FILE)).unwrap()).unwrap();
        assert_eq!(info.name, "p");
    }

    #[test]
    fn what_the_manager_sends_is_checked_before_anything_is_written() {
        let state = tempfile::tempdir().unwrap();
        let packages = open(state.path());
        let asked = digest_of(b"something else");
        assert_eq!(packages.store(&asked, b"junk", "t").unwrap_err().code, Code::InvalidPackage);
        assert_eq!(packages.store(&digest_of(b"junk"), b"junk", "t").unwrap_err().code, Code::InvalidPackage);
        assert_eq!(fs::read_dir(state.path().join("packages")).unwrap().count(), 0);
        assert_eq!(
            packages.ensure("sha256:../../etc", 0, "t", &StartStep::default()).unwrap_err().code,
            Code::UnknownPackage
        );
        assert_eq!(
            packages.ensure(&asked, 0, "t", &StartStep::default()).unwrap_err().code,
            Code::ManagerUnreachable
        );
    }

    #[test]
    fn a_build_is_run_only_where_it_can_be() {
        let of = |architectures: &[&str], index| {
            let build = |architecture: &&str| PackageBuild {
                architecture: architecture.to_string(),
                ..PackageBuild::default()
            };
            let builds = architectures.iter().map(build).collect();
            let info = PackageInfo { builds, ..PackageInfo::default() };
            Runnable::of(Arc::new(UnpackedPackage { folder: PathBuf::new(), info }), index)
        };
        let builds = ["riscv64", std::env::consts::ARCH, "wasm32", "opencl"];
        assert_eq!(of(&builds, 0).unwrap_err().code, Code::WrongArchitecture);
        for index in 1..4 {
            assert_eq!(of(&builds, index).unwrap().build().architecture, builds[index as usize]);
        }
        assert_eq!(of(&builds, 4).unwrap_err().code, Code::InvalidPackage);
    }

    /// A package whose one library is this program's own C library, unpacked by a store.
    fn unpacked(packages: &NodePackages) -> (String, Vec<u8>) {
        let library = PackageFile { path: "libp.so".into(), data: library(), executable: true };
        let data = PackageFile { path: "data/a".into(), data: b"abc".to_vec(), executable: false };
        let package = package::from_files("name = 'p'\nlibrary = 'libp.so'", vec![library, data]).unwrap();
        let encoded = package::encode(&package);
        let digest = digest_of(&encoded);
        packages.store(&digest, &encoded, "t").unwrap();
        (digest, encoded)
    }

    fn library() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("p.c"), folder.path().join("libp.so"));
        fs::write(&source, "unsigned f(void* in, unsigned size, void* out) { return size; }").unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source);
        assert!(compiler.status().unwrap().success());
        fs::read(object).unwrap()
    }

    /// Changes a file that is not writable.
    fn overwrite(path: &Path, bytes: &[u8]) {
        let mode = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, mode).unwrap();
    }

    #[test]
    fn detects_every_damage_of_an_unpacked_package() {
        let state = tempfile::tempdir().unwrap();
        let packages = open(state.path());
        let (digest, encoded) = unpacked(&packages);
        let folder = state.path().join("packages").join(&digest);
        assert!(packages.at_hand(&digest, 0, "t").unwrap().is_some());
        let file = |name: &str| folder.join(name);
        let flip = |name: &str| {
            let mut bytes = fs::read(file(name)).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            overwrite(&file(name), &bytes);
        };
        let damages: [(&str, &dyn Fn()); 8] = [
            ("flipped library", &|| flip("libp.so")),
            ("flipped data", &|| flip("data/a")),
            ("flipped manifest", &|| flip(MANIFEST_FILE)),
            ("flipped information", &|| flip(INFO_FILE)),
            ("missing file", &|| fs::remove_file(file("data/a")).unwrap()),
            ("missing information", &|| fs::remove_file(file(INFO_FILE)).unwrap()),
            ("added file", &|| fs::write(file("data/b"), "x").unwrap()),
            ("changed mode", &|| {
                fs::set_permissions(file("libp.so"), Permissions::from_mode(0o444)).unwrap();
            }),
        ];
        for (what, damage) in damages {
            damage();
            assert!(packages.at_hand(&digest, 0, "t").unwrap().is_none(), "{what}");
            kept::verify(&digest, &folder).expect_err(what);
            assert_eq!(
                packages.ensure(&digest, 0, "t", &StartStep::default()).unwrap_err().code,
                Code::ManagerUnreachable,
                "{what}"
            );
            packages.store(&digest, &encoded, "t").unwrap();
            assert!(packages.at_hand(&digest, 0, "t").unwrap().is_some(), "{what}");
        }
        let entries = fs::read_dir(state.path().join("packages")).unwrap().count();
        assert_eq!(entries, 2, "the package, and its latest damaged folder");
        drop(open(state.path()));
        assert_eq!(fs::read_dir(state.path().join("packages")).unwrap().count(), 1);
    }

    /// Executes something while these packages are fetched for a tenant without an answer.
    fn during_fetches(packages: &NodePackages, digests: &[String], tenant: &str, execute: impl FnOnce()) {
        scope(|scope| {
            let answers: Vec<_> = digests
                .iter()
                .map(|digest| {
                    let (answer, answered) = channel::<()>();
                    let fetch = move || {
                        // The other end is dropped, also if the test fails.
                        let _ = answered.recv();
                        Err(Error::new(Code::ManagerUnreachable, "it does not answer"))
                    };
                    scope.spawn(move || packages.fetches.execute(digest, tenant, fetch).map(drop));
                    answer
                })
                .collect();
            while digests.iter().any(|digest| packages.fetches.calls(digest) == 0) {
                std::thread::yield_now();
            }
            execute();
            drop(answers);
        });
    }

    #[test]
    fn a_fetch_without_answer_delays_no_other_package() {
        let state = tempfile::tempdir().unwrap();
        let (digest, _) = unpacked(&open(state.path()));
        let packages = open(state.path());
        during_fetches(&packages, &[digest_of(b"absent")], "a", || {
            // The package has to be verified before its first use.
            packages.ensure(&digest, 0, "a", &StartStep::default()).unwrap();
        });
    }

    #[test]
    fn a_tenant_with_many_fetches_delays_no_other_tenant() {
        let state = tempfile::tempdir().unwrap();
        let (digest, _) = unpacked(&open(state.path()));
        let packages = open(state.path());
        let digests: Vec<String> =
            (0..BOUNDS.of_node).map(|number| digest_of(&number.to_le_bytes())).collect();
        during_fetches(&packages, &digests, "a", || {
            packages.ensure(&digest, 0, "b", &StartStep::default()).unwrap();
            // An installation may serve several tenants. So it does not wait for packages of the first one.
            let environment = digest_of(b"environment");
            let build = PackageBuild { environment, ..PackageBuild::default() };
            let installed = packages.ensure_environment(&build, "a", &StartStep::default());
            assert_eq!(installed.unwrap_err().code, Code::ManagerUnreachable);
        });
    }

    #[test]
    fn verifies_a_package_again_after_restart_or_touched_file() {
        let state = tempfile::tempdir().unwrap();
        let (digest, _) = unpacked(&open(state.path()));
        let packages = open(state.path());
        assert!(packages.at_hand(&digest, 0, "t").unwrap().is_none(), "not verified yet");
        packages.ensure(&digest, 0, "t", &StartStep::default()).unwrap();
        let data = state.path().join("packages").join(&digest).join("data/a");
        overwrite(&data, b"abc");
        assert!(packages.at_hand(&digest, 0, "t").unwrap().is_none(), "the file may have changed");
        packages.ensure(&digest, 0, "t", &StartStep::default()).unwrap();
        assert!(packages.at_hand(&digest, 0, "t").unwrap().is_some());
        // Files that are built from kernels beside the package are no part of it.
        let built = state.path().join("packages").join(&digest).join(package::BUILT_FOLDER);
        fs::create_dir(&built).unwrap();
        fs::write(built.join("0"), "image").unwrap();
        packages.ensure(&digest, 0, "t", &StartStep::default()).unwrap();
        assert!(packages.at_hand(&digest, 0, "t").unwrap().is_some());
    }

    /// A package of one more file than the library, of this length.
    fn encoded(length: usize, byte: u8) -> (String, Vec<u8>) {
        let library = PackageFile { path: "libp.so".into(), data: library(), executable: true };
        let data = PackageFile { path: "data".into(), data: vec![byte; length], executable: false };
        let package = package::from_files("name = 'p'\nlibrary = 'libp.so'", vec![library, data]).unwrap();
        let encoded = package::encode(&package);
        (digest_of(&encoded), encoded)
    }

    #[test]
    fn evicts_unused_packages_beyond_the_bound_also_after_restart() {
        let state = tempfile::tempdir().unwrap();
        let limit = 1 << 20;
        let packages = open_with(state.path(), Some(limit));
        let are: Vec<_> = (0..4).map(|byte| encoded(300_000, byte)).collect();
        let store = |packages: &NodePackages, index: usize, tenant: &str| {
            packages.store(&are[index].0, &are[index].1, tenant).map(|(_, in_use)| in_use)
        };
        let exists = |index: usize| state.path().join(PACKAGES).join(&are[index].0).exists();
        let in_use = store(&packages, 0, "t").unwrap();
        (1..4).for_each(|index| drop(store(&packages, index, "t").unwrap()));
        assert_eq!([0, 1, 2, 3].map(exists), [true, false, true, true]);
        assert!(packages.at_hand(&are[1].0, 0, "t").unwrap().is_none());
        let usage = packages.cache.usage();
        assert!(usage.used_bytes <= limit && usage.entries_in_use == 1 && usage.evicted == 1, "{usage:?}");
        // All is in use: the next one is refused, by a code and with what there is.
        let held = [2, 3].map(|index| packages.at_hand(&are[index].0, 0, "t").unwrap().unwrap());
        let error = store(&packages, 1, "t").unwrap_err();
        assert_eq!(error.code, Code::StoreFull, "{error}");
        assert!(error.message.contains("which has 1048576 bytes"), "{error}");
        drop((held, in_use));
        drop(packages);
        // The next agent knows what there is, and evicts what is used least recently.
        let packages = open_with(state.path(), Some(limit));
        assert_eq!(packages.cache.usage().entries, 3);
        packages.ensure(&are[0].0, 0, "t", &StartStep::default()).unwrap();
        drop(store(&packages, 1, "t").unwrap());
        assert_eq!([0, 1, 3].map(exists), [true, true, true]);
        drop(packages);
        // One with a lower bound begins with that.
        let packages = open_with(state.path(), Some(limit / 2));
        assert_eq!(packages.cache.usage().entries, 1);
        let (digest, large) = encoded(1 << 20, 9);
        assert_eq!(packages.store(&digest, &large, "t").unwrap_err().code, Code::StoreFull);
        assert_eq!(packages.cache.usage().entries, 1, "what never fits evicts nothing");
    }

    #[test]
    fn keeps_the_entry_of_a_digest_of_another_kind() {
        let state = tempfile::tempdir().unwrap();
        let packages = open(state.path());
        let (package, encoded) = unpacked(&packages);
        let wheel = sublet_wheels::WheelBuilder::new("w", "1").file("w.py", "x = 1").bytes();
        let layer = digest_of(&wheel);
        drop(packages.store_layer(&layer, &wheel, "t").unwrap());
        let used = packages.cache.usage();
        assert_eq!(used.entries, 2);
        // A lease names the wheel as its package, and an environment names the package as its wheel.
        let as_package = packages.ensure(&layer, 0, "t", &StartStep::default()).unwrap_err();
        assert_eq!(as_package.code, Code::ManagerUnreachable, "{as_package}");
        let as_layer =
            EnvironmentLayer { digest: package.clone(), name: "p-1-py3-none-any.whl".into(), size_bytes: 1 };
        packages.ensure_layer(&as_layer, "t").unwrap_err();
        assert_eq!(packages.cache.usage(), used);
        // The manager sends what these digests name.
        let refused = packages.store(&layer, &wheel, "t").unwrap_err();
        assert!(refused.message.contains("a layer of environments"), "{refused}");
        packages.store_layer(&package, &encoded, "t").unwrap_err();
        assert_eq!(packages.cache.usage(), used);
    }

    #[test]
    fn counts_an_unpacked_package_as_it_is_on_the_disk() {
        let state = tempfile::tempdir().unwrap();
        let packages = open(state.path());
        let (digest, _) = unpacked(&packages);
        let size = cache::size_of(&state.path().join(PACKAGES).join(&digest)).unwrap();
        let usage = packages.cache.usage();
        assert_eq!((usage.used_bytes, usage.files), (size.bytes, size.files));
    }

    #[test]
    fn what_a_dead_agent_left_unfinished_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let left = state.path().join("packages").join(format!("{UNFINISHED}x"));
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("part"), "x").unwrap();
        open(state.path());
        assert!(!left.exists());
    }
}
