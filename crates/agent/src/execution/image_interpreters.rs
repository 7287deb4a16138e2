//! The interpreters of images, of Python and of Node.js: how a worker is started by the interpreter that its image has.
//!
//! Each image is asked once, in a sandbox of its own, which interpreter it has, before the first worker is started by it. So
//! an image without an interpreter that can execute functions is refused with the reason, at the start of the lease.
//!
//! An image belongs to a tenant, and so does its interpreter: its report is not trusted, and it never runs outside of a
//! sandbox with all walls, unless the operator trusts the image: see [`templates`]. The sandbox has the isolation that the
//! lease demands, and the lease's cores, which it leaves when the lease ends. Images that do not answer delay only leases of
//! the tenants that name them: see [`shared_work`](crate::execution::shared_work).
//!
//! The library that makes an interpreter a worker exists for each C library. An image reports its own first, and is asked
//! again with the library for musl if it has musl.

pub(crate) mod answer;
mod asking;
pub(crate) mod language;
mod node_report;
mod queries;
mod report;
mod templates;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sublet_image::Digest;
use sublet_proto::v1::{Lease, PackageBuild};
use sublet_proto::{Code, Error};
use sublet_sandbox::{IsolationKind, RootImage, SCRATCH, SandboxProgram, Spec, Template};

use crate::execution::c_library::CLibrary;
use crate::execution::images::Images;
use crate::execution::isolations::Isolations;
use crate::execution::packages::{Runnable, StartStep};
use crate::execution::programs::find_program;
use crate::execution::sandboxes::SandboxMaker;
use crate::execution::start_cores::StartCores;
use answer::QueryKey;
use language::ImageLanguage;
use queries::Queries;
use templates::TrustedImages;

/// Folders of programs in an image that does not say where they are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// See the [module](self).
pub(crate) struct ImageInterpreters {
    libraries: WorkerLibraries,
    sandboxes: Arc<SandboxMaker>,
    images: Arc<Images>,
    isolations: Isolations,
    trusted: TrustedImages,
    queries: Queries,
}

/// The libraries of workers that this node has, for each language and C library.
struct WorkerLibraries(BTreeMap<(ImageLanguage, CLibrary), PathBuf>);

/// A need for the interpreter of a build's image, on behalf of a lease.
struct InterpreterRequest<'lease> {
    build: &'lease PackageBuild,
    key: QueryKey,
    /// The lease's tenant, as a manager has signed it.
    tenant: &'lease str,
}

impl ImageInterpreters {
    /// Finds the libraries of workers beside the program that makes sandboxes. Images of these digests may have templates.
    pub(crate) fn new(
        spawner: &Path,
        sandboxes: Arc<SandboxMaker>,
        images: Arc<Images>,
        (isolations, trusted): (Isolations, &[Digest]),
    ) -> ImageInterpreters {
        let (libraries, trusted) = (WorkerLibraries::beside(spawner), TrustedImages::new(trusted));
        ImageInterpreters { libraries, sandboxes, images, isolations, trusted, queries: Queries::new() }
    }

    /// Architectures of the packages that this node executes by the interpreter of an image.
    pub(crate) fn offered(&self) -> Vec<String> {
        let can_start = |language: &ImageLanguage| self.libraries.of(*language, CLibrary::Glibc).is_ok();
        let languages = ImageLanguage::ALL.into_iter().filter(|_| self.isolations.takes_images());
        languages.filter(can_start).map(|language| language.offer().to_owned()).collect()
    }

    /// Adds the interpreter of its image to a runnable that needs one. `None` if the image has to be asked first, or is refused:
    /// then [`ImageInterpreters::ensure`] does the rest.
    pub(crate) fn at_hand(&self, mut runnable: Runnable, lease: &Lease) -> Option<Runnable> {
        if let Some(language) = ImageLanguage::of(runnable.build()) {
            let request = self.request(language, runnable.build(), lease).ok()?;
            let known = self.queries.find(&request.key, request.tenant)?;
            runnable.image_interpreter = Some(known.ok()?);
        }
        Some(runnable)
    }

    /// Adds the interpreter of its image to a runnable that needs one. Asks the image first if that is not known, on
    /// the cores of the lease, which may take a minute and more.
    ///
    /// # Errors
    /// `invalid_package` for an image without a usable interpreter, `try_later` if the tenant's or other images keep the node from
    /// asking this one.
    pub(crate) fn ensure(
        &self,
        mut runnable: Runnable,
        lease: &Lease,
        cores: &Arc<StartCores>,
        step: &StartStep,
    ) -> Result<Runnable, Error> {
        if let Some(language) = ImageLanguage::of(runnable.build()) {
            let request = self.request(language, runnable.build(), lease)?;
            if self.queries.find(&request.key, request.tenant).is_none() {
                step.set(format!("asking the image {} for its {}", request.build.image, language.name()));
            }
            let ask = || cores.end_of(self.ask(&request, cores));
            let answer = self.queries.find_or_ask(&request.key, request.tenant, ask);
            runnable.image_interpreter = Some(answer.map_err(|error| about(&request, &error))?);
        }
        Ok(runnable)
    }

    /// The program of a runnable's workers, and its arguments.
    pub(crate) fn worker(&self, runnable: &Runnable) -> Result<(SandboxProgram, Vec<OsString>), Error> {
        let unknown = || Error::new(Code::Internal, "the interpreter of an image is not known");
        let language = ImageLanguage::of(runnable.build());
        let (interpreter, language) =
            runnable.image_interpreter.as_ref().zip(language).ok_or_else(unknown)?;
        interpreter.check_version(runnable.build())?;
        let library = self.libraries.of(language, interpreter.libc)?.to_owned();
        let program = interpreter.program.clone();
        Ok((SandboxProgram::Loading { program, library }, language.start()))
    }

    /// Template of which the worker with this specification, in a container, can be a copy instead, if there is one. Only
    /// Pythons of images are templates.
    pub(crate) fn template(
        &self,
        runnable: &Runnable,
        (spec, tenant): (&Spec, Option<&str>),
    ) -> Option<Template> {
        let (build, python) = (runnable.build(), runnable.image_interpreter.as_ref()?);
        (ImageLanguage::of(build) == Some(ImageLanguage::Python)).then_some(())?;
        self.trusted.template((digest(build).ok()?, python), build, (spec, tenant))
    }

    fn request<'lease>(
        &self,
        language: ImageLanguage,
        build: &'lease PackageBuild,
        lease: &'lease Lease,
    ) -> Result<InterpreterRequest<'lease>, Error> {
        let (isolation, runtime) = self.isolations.of_lease(lease, build)?;
        let (digest, runtime) = (digest(build)?.to_owned(), runtime.map(Path::to_owned));
        let key = QueryKey { digest, language, isolation, runtime };
        Ok(InterpreterRequest { build, key, tenant: &lease.tenant })
    }
}

impl WorkerLibraries {
    fn beside(spawner: &Path) -> WorkerLibraries {
        let pairs = ImageLanguage::ALL
            .into_iter()
            .flat_map(|language| [CLibrary::Glibc, CLibrary::Musl].map(|libc| (language, libc)));
        let find = |(language, libc): (ImageLanguage, CLibrary)| {
            let library = find_program("template", &spawner.with_file_name(language.adapter(libc)?));
            Some(((language, libc), library.ok()?))
        };
        WorkerLibraries(pairs.filter_map(find).collect())
    }

    /// The library for interpreters of a language that are linked with a C library.
    ///
    /// # Errors
    /// If this node lacks it: `system` for glibc, `invalid_package` for musl, so that the image is not asked again at once.
    fn of(&self, language: ImageLanguage, libc: CLibrary) -> Result<&Path, Error> {
        let missing = || {
            let name = language.name();
            match (libc, language.adapter(libc)) {
                (CLibrary::Glibc, adapter) => {
                    let library = adapter.unwrap_or_default();
                    let message =
                        format!("this node lacks {library}, by which the {name} of an image is a worker");
                    Error::new(Code::System, message)
                }
                (CLibrary::Musl, Some(library)) => {
                    let message = format!("its {name} is linked with musl, and this node lacks {library}");
                    Error::new(Code::InvalidPackage, message)
                }
                (CLibrary::Musl, None) => {
                    let message = format!("its {name} is linked with musl, with which no {name} is a worker");
                    Error::new(Code::InvalidPackage, message)
                }
            }
        };
        self.0.get(&(language, libc)).map(PathBuf::as_path).ok_or_else(missing)
    }
}

/// Names the image in an error that is about it.
fn about(request: &InterpreterRequest<'_>, Error { code, message }: &Error) -> Error {
    let (image, name) = (&request.build.image, request.key.language.name());
    let what = match code {
        Code::InvalidPackage => format!("the image {image} cannot execute {name}"),
        Code::TryLater => format!("the {name} of the image {image} is not known yet (try again)"),
        _ => format!("the {name} of the image {image} cannot be started"),
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
pub(crate) fn environment(image: &sublet_image::Image, language: ImageLanguage) -> Vec<(OsString, OsString)> {
    let own = &image.config.env;
    let common = [("HOME", SCRATCH), ("TMPDIR", SCRATCH), ("PATH", PATH), ("LANG", "C.UTF-8")];
    let common = common.into_iter().chain(language.variables().iter().copied());
    let lacking = common.filter(|(name, _)| !own.iter().any(|(own, _)| own == name));
    let own = own.iter().map(|(name, value)| (name.into(), value.into()));
    lacking.map(|(name, value)| (name.into(), value.into())).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_named_with_its_c_library() {
        let folder = tempfile::tempdir().unwrap();
        let spawner = folder.path().join("sublet-spawner");
        let none = WorkerLibraries::beside(&spawner);
        let adapters = [
            (ImageLanguage::Python, CLibrary::Glibc, "libsublet_template_python.so"),
            (ImageLanguage::Python, CLibrary::Musl, "libsublet_template_python_musl.so"),
            (ImageLanguage::Nodejs, CLibrary::Glibc, "libsublet_template_node.so"),
        ];
        for (language, libc, name) in adapters {
            let error = none.of(language, libc).unwrap_err();
            let code = if libc == CLibrary::Glibc { Code::System } else { Code::InvalidPackage };
            assert!(error.code == code && error.message.contains(name), "{error}");
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let all = WorkerLibraries::beside(&spawner);
        for (language, libc, name) in adapters {
            assert!(all.of(language, libc).unwrap().ends_with(name));
        }
        let error = all.of(ImageLanguage::Nodejs, CLibrary::Musl).unwrap_err();
        assert!(error.code == Code::InvalidPackage && error.message.contains("with musl"), "{error}");
    }
}
