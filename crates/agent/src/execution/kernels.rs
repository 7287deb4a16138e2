//! Packages of kernels: which kinds this node executes, and the images that it has built from them.
//!
//! A device's driver compiles kernels, and its compiler was not made to withstand hostile input. So the agent handles a
//! program only as bytes. Each package is built once on a node, in a sandbox of its own that sees the package and the
//! files of drivers, on the cores of the first lease that needs it, and only as long as that lease lasts. The built image is trusted no more than the
//! package. It is kept beside the package's files, where only the package's workers read it. A package whose build is slow
//! delays only leases of the tenants that name it: see [`shared_work`](crate::execution::shared_work).
//!
//! After each start of the agent, a package is checked once more before its first worker starts, because drivers may
//! have changed. The check of an image that is still valid takes a fraction of the time of a build.

mod build;
mod builder;
mod device_access;
mod drivers;
mod look;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::package::{BUILT_FOLDER, PackageKind, built_file};
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};
use tracing::info;

pub(crate) use device_access::{devices_of, environment};
pub(crate) use look::DeviceQuery;

use crate::execution::packages::{FileStamp, Runnable, StartStep};
use crate::execution::programs::{KERNELS, is_program};
use crate::execution::sandboxes::SandboxMaker;
use crate::execution::shared_work::{KnownResults, SharedWork, WorkBounds, WorkEnd, WorkRefusal};
use crate::execution::start_cores::StartCores;
use crate::machine::state::system;

/// Bounds of builds. Each build may use 2 GiB of the node's memory, beside those of leases. A call waits longer than one
/// build takes, and shorter than the 120 s that clients wait.
const BOUNDS: WorkBounds =
    WorkBounds { of_node: 2, of_tenant: 1, calls_of_tenant: 1024, patience: Duration::from_secs(110) };
/// Builds whose outcome is remembered.
const MAX_KNOWN: usize = 1024;
/// How long a package is refused without being built again: the state of the node may have been the cause, such as cores
/// that were busy with other work.
const REFUSAL: Duration = Duration::from_secs(60);

/// The kind of a build, if it is one of kernels.
pub(crate) fn kind_of(build: &PackageBuild) -> Option<PackageKind> {
    PackageKind::parse(&build.kind).ok().filter(|kind| kind.is_of_kernels())
}

/// Digest of a package, and index of the build.
///
/// An outcome may serve every tenant: the digest pins all that is built, nothing of a tenant is in the sandbox of a build,
/// and its limits are the same for all.
type BuildKey = (String, u32);

/// Outcome of a build. A success holds the file system's stamp of the image, if the build has one.
type KnownBuild = Result<Option<FileStamp>, Error>;

/// See the [module](self).
pub(crate) struct KernelPackages {
    offered: Vec<PackageKind>,
    builder: PathBuf,
    sandboxes: Arc<SandboxMaker>,
    builds: SharedWork<BuildKey, ()>,
    /// Outcomes of the latest attempts of builds since this agent started.
    known: Mutex<KnownResults<BuildKey, KnownBuild>>,
}

impl KernelPackages {
    /// Finds the kinds that this node offers. The builder is the program of kernels, which stands beside that of workers.
    pub(crate) fn new(
        worker: &Path,
        wanted: Option<&[PackageKind]>,
        sandboxes: Arc<SandboxMaker>,
    ) -> KernelPackages {
        let (offered, builder) = (offered(worker, wanted), worker.with_file_name(KERNELS));
        let (builds, known) = (SharedWork::new(BOUNDS, describe), Mutex::new(KnownResults::new(MAX_KNOWN)));
        KernelPackages { offered, builder, sandboxes, builds, known }
    }

    /// The names of the kinds that this node executes.
    pub(crate) fn offered(&self) -> Vec<String> {
        self.offered.iter().map(|kind| kind.name().to_owned()).collect()
    }

    /// Begins to query the devices of the offered kinds, on these cores.
    pub(crate) fn look(&self, cores: &[u32]) -> Result<DeviceQuery, Error> {
        Ok(DeviceQuery::begin(&self.sandboxes.current()?, &self.builder, &self.offered, cores))
    }

    /// Whether nothing has to be built before a package's workers can start, for a lease of a tenant.
    pub(crate) fn are_at_hand(&self, runnable: &Runnable, tenant: &str) -> bool {
        kind_of(runnable.build()).is_none() || matches!(self.known(runnable, tenant), Some(Ok(())))
    }

    /// Outcome of the latest attempt to build a package. Returns `None` if its image has changed or is missing since;
    /// the builder then checks the image and rebuilds it if it is damaged.
    fn known(&self, runnable: &Runnable, tenant: &str) -> Option<Result<(), Error>> {
        let known = lock(&self.known).find(&key(runnable), tenant, Instant::now())?;
        match known {
            Ok(stamp) if stamp != image_stamp(runnable) => None,
            known => Some(known.map(drop)),
        }
    }

    /// Builds a package if it is one of kernels, for a lease of a tenant and on the lease's cores: that may take as long as a
    /// compiler does.
    ///
    /// # Errors
    /// `wrong_architecture` if the node does not offer the kind, the builder's errors, and `try_later` if the tenant's or
    /// other builds keep the node from building this package.
    pub(crate) fn ensure(
        &self,
        runnable: &Runnable,
        tenant: &str,
        cores: &Arc<StartCores>,
        step: &StartStep,
    ) -> Result<(), Error> {
        let Some(kind) = kind_of(runnable.build()) else { return Ok(()) };
        if !self.offered.contains(&kind) {
            let (name, kind) = (&runnable.package.info.name, kind.name());
            let message =
                format!("package {name} is for {kind}, and this node has no driver or program for that");
            return Err(Error::new(Code::WrongArchitecture, message));
        }
        if let Some(known) = self.known(runnable, tenant) {
            return known;
        }
        step.set(format!("building the kernels of {}", runnable.package.info.name));
        self.builds.execute_unless_given_up(&key(runnable), tenant, || {
            if let Some(known) = self.known(runnable, tenant) {
                return WorkEnd::Done(known);
            }
            let end = cores.end_of(self.build(kind, runnable, cores));
            if let WorkEnd::Done(built) = &end {
                self.remember(runnable, tenant, built);
            }
            end
        })
    }

    /// Keeps the outcome of a build, unless another build may end differently.
    fn remember(&self, runnable: &Runnable, tenant: &str, built: &Result<(), Error>) {
        let until = match built {
            Ok(()) => None,
            Err(error) if is_final(error) => Some(Instant::now() + REFUSAL),
            Err(_) => return,
        };
        let known = built.clone().map(|()| image_stamp(runnable));
        lock(&self.known).insert(&key(runnable), tenant, known, until);
    }

    fn build(&self, kind: PackageKind, runnable: &Runnable, cores: &Arc<StartCores>) -> Result<(), Error> {
        let (begun, folder) = (Instant::now(), &runnable.package.folder);
        let sandboxes = self.sandboxes.current()?;
        let loan = cores.lend()?;
        let image = build::image(sandboxes, &self.builder, (kind, runnable.index), folder, loan)?;
        if !image.is_empty() {
            keep(folder, runnable.index, &image)?;
        }
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let name = &runnable.package.info.name;
        info!(package = name, bytes = image.len(), took_ms, "a package of kernels is ready");
        Ok(())
    }
}

/// Kinds that the operator wants and for which this node has programs and drivers. The default is OpenCL only: a leased
/// GPU lets foreign code send any request to its driver in the kernel, so an operator has to allow this.
fn offered(worker: &Path, wanted: Option<&[PackageKind]>) -> Vec<PackageKind> {
    let has_program = is_program(&worker.with_file_name(KERNELS));
    let is_offered = |kind: &PackageKind| has_program && kind.is_of_kernels() && drivers::are_there(*kind);
    wanted.unwrap_or(&[PackageKind::OpenCl]).iter().copied().filter(is_offered).collect()
}

/// The message of a build without an outcome.
fn describe(refusal: WorkRefusal, bounds: &WorkBounds) -> String {
    let WorkBounds { of_node, of_tenant, calls_of_tenant, patience } = bounds;
    match refusal {
        WorkRefusal::TooManyCalls => {
            format!("{calls_of_tenant} starts of this tenant wait for builds of kernels already")
        }
        WorkRefusal::TooLate => format!(
            "the package's kernels are not built after {} s (try again): a node builds at most {of_tenant} package of a \
             tenant and {of_node} of all at once",
            patience.as_secs()
        ),
        WorkRefusal::Panicked => "the building of the package's kernels has failed".to_owned(),
    }
}

/// Whether another build of the same package would end in the same way.
fn is_final(error: &Error) -> bool {
    matches!(error.code, Code::InvalidPackage | Code::MissingSymbol)
}

fn image_stamp(runnable: &Runnable) -> Option<FileStamp> {
    FileStamp::of(&runnable.package.folder.join(built_file(runnable.index)))
}

fn key(runnable: &Runnable) -> BuildKey {
    (runnable.package.info.digest.clone(), runnable.index)
}

/// Keeps an image beside its package: whole or not at all.
fn keep(folder: &Path, build: u32, image: &[u8]) -> Result<(), Error> {
    let (path, folder) = (folder.join(built_file(build)), folder.join(BUILT_FOLDER));
    let unfinished = path.with_extension("unfinished");
    let written = || {
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        let _ = fs::remove_file(&unfinished);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&unfinished)?;
        file.write_all(image)?;
        // Workers are other users, whatever this process's mask is.
        file.set_permissions(Permissions::from_mode(0o444))?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        File::open(folder)?.sync_all()
    };
    written().map_err(|error| system("writing", &path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_installed_kinds_and_a_gpu_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let worker = folder.path().join("sublet-worker");
        assert_eq!(offered(&worker, None), [], "there are no programs");
        for program in ["sublet-worker-wasm", KERNELS] {
            fs::write(folder.path().join(program), "").unwrap();
        }
        let there = |kind| if drivers::are_there(kind) { vec![kind] } else { Vec::new() };
        assert_eq!(offered(&worker, None), there(PackageKind::OpenCl));
        assert_eq!(offered(&worker, Some(&[])), []);
        assert_eq!(offered(&worker, Some(&[PackageKind::Wasm, PackageKind::Cuda])), there(PackageKind::Cuda));
        fs::remove_file(folder.path().join(KERNELS)).unwrap();
        assert_eq!(offered(&worker, None), []);
    }

    #[test]
    fn replaces_a_built_image_and_lets_workers_read_it() {
        let folder = tempfile::tempdir().unwrap();
        for image in [b"one", b"two"] {
            keep(folder.path(), 1, image).unwrap();
            let path = folder.path().join(built_file(1));
            assert_eq!(fs::read(&path).unwrap(), image);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
        }
        let mode = fs::metadata(folder.path().join(BUILT_FOLDER)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert_eq!(fs::read_dir(folder.path().join(BUILT_FOLDER)).unwrap().count(), 1);
    }
}
