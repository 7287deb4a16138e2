//! The Python interpreters of images: how a worker is started by the interpreter that its image has.
//!
//! Each image is asked once, in a sandbox of its own, which Python it has, before the first worker is started by it. So an
//! image without a Python that can execute functions is refused with the reason, at the start of the lease.
//!
//! An image belongs to a tenant, and so does its Python: its report is not trusted, and it never runs outside of a
//! sandbox with all walls, unless the operator trusts the image: see [`templates`]. The sandbox has the isolation that the
//! lease demands, and the lease's cores, which it leaves when the lease ends. Images that do not answer delay only leases of
//! the tenants that name them: see [`shared_work`](crate::execution::shared_work).

pub(crate) mod answer;
mod asking;
mod queries;
mod report;
mod templates;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sublet_image::Digest;
use sublet_proto::package::{IMAGE_PYTHON, is_image_python};
use sublet_proto::v1::{Lease, PackageBuild};
use sublet_proto::{Code, Error};
use sublet_sandbox::{IsolationKind, Language, RootImage, SCRATCH, SandboxProgram, Spec, Template};

use crate::execution::images::Images;
use crate::execution::isolations::Isolations;
use crate::execution::packages::{Runnable, StartStep};
use crate::execution::programs::find_program;
use crate::execution::sandboxes::SandboxMaker;
use crate::execution::start_cores::StartCores;
use answer::QueryKey;
use queries::Queries;
use templates::TrustedImages;

/// Code with which an interpreter becomes a worker.
const START: &str = include_str!("image_pythons/start.py");
/// Folders of programs in an image that does not say where they are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// See the [module](self).
pub(crate) struct ImagePythons {
    /// The library of workers; none if this node cannot start any.
    library: Option<PathBuf>,
    sandboxes: Arc<SandboxMaker>,
    images: Arc<Images>,
    isolations: Isolations,
    trusted: TrustedImages,
    queries: Queries,
}

/// A need for the Python of a build's image, on behalf of a lease.
struct PythonRequest<'lease> {
    build: &'lease PackageBuild,
    key: QueryKey,
    /// The lease's tenant, as a manager has signed it.
    tenant: &'lease str,
}

impl ImagePythons {
    /// Finds the library of workers beside the program that makes sandboxes. Images of these digests may have templates.
    pub(crate) fn new(
        spawner: &Path,
        sandboxes: Arc<SandboxMaker>,
        images: Arc<Images>,
        (isolations, trusted): (Isolations, &[Digest]),
    ) -> ImagePythons {
        let library = find_program("template", &spawner.with_file_name(Language::Python.adapter())).ok();
        let trusted = TrustedImages::new(trusted);
        ImagePythons { library, sandboxes, images, isolations, trusted, queries: Queries::new() }
    }

    /// Architectures of the packages that this node executes by the Python of an image.
    pub(crate) fn offered(&self) -> Vec<String> {
        let library = self.library.iter().filter(|_| self.isolations.takes_images());
        library.map(|_| IMAGE_PYTHON.to_owned()).collect()
    }

    /// Adds the Python of its image to a runnable that needs one. `None` if the image has to be asked first, or is refused:
    /// then [`ImagePythons::ensure`] does the rest.
    pub(crate) fn at_hand(&self, mut runnable: Runnable, lease: &Lease) -> Option<Runnable> {
        if is_image_python(&runnable.build().architecture) {
            let request = self.request(runnable.build(), lease).ok()?;
            let known = self.queries.find(&request.key, request.tenant)?;
            runnable.image_python = Some(known.ok()?);
        }
        Some(runnable)
    }

    /// Adds the Python of its image to a runnable that needs one. Asks the image first if its Python is not known, on
    /// the cores of the lease, which may take a minute and more.
    ///
    /// # Errors
    /// `invalid_package` for an image without a usable Python, `try_later` if the tenant's or other images keep the node from
    /// asking this one.
    pub(crate) fn ensure(
        &self,
        mut runnable: Runnable,
        lease: &Lease,
        cores: &Arc<StartCores>,
        step: &StartStep,
    ) -> Result<Runnable, Error> {
        if is_image_python(&runnable.build().architecture) {
            let request = self.request(runnable.build(), lease)?;
            if self.queries.find(&request.key, request.tenant).is_none() {
                step.set(format!("asking the image {} for its Python", request.build.image));
            }
            let ask = || cores.end_of(self.ask(&request, cores));
            let answer = self.queries.find_or_ask(&request.key, request.tenant, ask);
            runnable.image_python = Some(answer.map_err(|error| about(&request.build.image, &error))?);
        }
        Ok(runnable)
    }

    /// The program of a runnable's workers, and its arguments.
    pub(crate) fn worker(&self, runnable: &Runnable) -> Result<(SandboxProgram, Vec<OsString>), Error> {
        let unknown = || Error::new(Code::Internal, "the Python of an image is not known");
        let python = runnable.image_python.as_ref().ok_or_else(unknown)?;
        python.check_version(runnable.build())?;
        let (program, library) = (python.program.clone(), self.library()?.to_owned());
        let program = SandboxProgram::Loading { program, library };
        // Without files of compiled modules, which would be written to memory.
        Ok((program, ["-B", "-c", START].map(OsString::from).into()))
    }

    /// Template of which the worker with this specification, in a container, can be a copy instead, or for which a process of
    /// this tenant can be on standby, if there is one.
    pub(crate) fn template(
        &self,
        runnable: &Runnable,
        (spec, tenant): (&Spec, Option<&str>),
    ) -> Option<Template> {
        let (build, python) = (runnable.build(), runnable.image_python.as_ref()?);
        self.trusted.template((digest(build).ok()?, python), build, (spec, tenant))
    }

    fn library(&self) -> Result<&Path, Error> {
        let missing = || {
            let message = format!(
                "this node lacks {}, by which images' Pythons are workers",
                Language::Python.adapter()
            );
            Error::new(Code::System, message)
        };
        self.library.as_deref().ok_or_else(missing)
    }

    fn request<'lease>(
        &self,
        build: &'lease PackageBuild,
        lease: &'lease Lease,
    ) -> Result<PythonRequest<'lease>, Error> {
        let (isolation, runtime) = self.isolations.of_lease(lease, build)?;
        let key =
            QueryKey { digest: digest(build)?.to_owned(), isolation, runtime: runtime.map(Path::to_owned) };
        Ok(PythonRequest { build, key, tenant: &lease.tenant })
    }
}

/// Names the image in an error that is about it.
fn about(image: &str, Error { code, message }: &Error) -> Error {
    let what = match code {
        Code::InvalidPackage => format!("the image {image} cannot execute Python"),
        Code::TryLater => format!("the Python of the image {image} is not known yet (try again)"),
        _ => format!("the Python of the image {image} cannot be started"),
    };
    Error::new(*code, format!("{what}: {message}"))
}

/// The digest that a build pins.
fn digest(build: &PackageBuild) -> Result<&str, Error> {
    let not_pinned = || Error::new(Code::InvalidPackage, format!("the image {} is not pinned", build.image));
    build.image.rsplit_once('@').map(|(_, digest)| digest).ok_or_else(not_pinned)
}

/// The file system of an image, with how it is isolated.
pub(crate) fn container(image: &sublet_image::Image, runtime: Option<&Path>) -> IsolationKind {
    let folder = &image.config.working_folder;
    let root = RootImage {
        layers: image.layers.clone(),
        working_folder: if folder.is_empty() { "/".into() } else { folder.into() },
    };
    match runtime {
        None => IsolationKind::Container(root),
        Some(runtime) => IsolationKind::Delegated { runtime: runtime.to_owned(), image: root },
    }
}

/// Environment variables of an interpreter in an image: those of the image, and those that it lacks.
pub(crate) fn environment(image: &sublet_image::Image) -> Vec<(OsString, OsString)> {
    let own = &image.config.env;
    let common = [("HOME", SCRATCH), ("TMPDIR", SCRATCH), ("PATH", PATH), ("LANG", "C.UTF-8")];
    let lacking = common.into_iter().filter(|(name, _)| !own.iter().any(|(own, _)| own == name));
    let own = own.iter().map(|(name, value)| (name.into(), value.into()));
    lacking.map(|(name, value)| (name.into(), value.into())).chain(own).collect()
}
