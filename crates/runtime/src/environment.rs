//! Environments of Python, made on the client: resolves requirements for the nodes' platform, and gives the managers the
//! wheels that they lack.
//!
//! A program of its own ([`resolve`]) finds the wheels. It uses uv or pip, and executes nothing of a distribution. The
//! environment is a package that lists the wheels by their digests; its digest is what packages and leases name.

mod plan;
mod resolve;

use sublet_proto::package::{
    self, EnvironmentLayer, LAYERS_FILE, PythonPlatform, UnpinnedEnvironment, environment_of,
    pin_environment, unpinned_environment,
};
use sublet_proto::v1::{NodeState, Package, PackageInfo};
use sublet_proto::{Code, Error, decode};

use crate::manager::ManagerClient;

pub use plan::{EnvironmentPlan, Requirements};

/// Beginning of the names of environments that were given none.
const NAME_PREFIX: &str = "environment-";
/// Digits of the digest in such a name.
const NAME_DIGITS: usize = 12;

impl ManagerClient {
    /// Makes an environment, unless the managers have it already. Calls `step` with a description of each step.
    ///
    /// # Errors
    /// `invalid_argument` with the reason why the requirements cannot be met; `wrong_architecture` if no node has such a
    /// Python; `invalid_package` if a wheel is not valid; and as for [`ManagerClient::deploy`].
    pub fn make_environment(
        &self,
        plan: &EnvironmentPlan,
        step: &mut dyn FnMut(&str),
    ) -> Result<PackageInfo, Error> {
        let target = self.target(plan)?;
        let wheels = resolve::resolve(plan, &target, step)?;
        let (major, minor) = target.version;
        let layers: Vec<EnvironmentLayer> = wheels.iter().map(|wheel| wheel.layer.clone()).collect();
        let named = |name: &str| environment_of(name, &format!("{major}.{minor}"), layers.clone());
        let package = match &plan.name {
            Some(name) => named(name)?,
            None => named(&own_name(&named("environment")?))?,
        };
        let encoded = package::encode(&package);
        let digest = package::digest(&encoded);
        let known = self.resolve(plan.name.as_deref().unwrap_or(&digest));
        if let Some(info) = known.ok().filter(|info| info.digest == digest) {
            return Ok(info);
        }
        let mut missing = Vec::new();
        for wheel in &wheels {
            match self.resolve(&wheel.layer.digest) {
                Ok(_) => {}
                Err(error) if error.code == Code::UnknownPackage => missing.push(wheel),
                Err(error) => return Err(error),
            }
        }
        for (number, wheel) in (1..).zip(&missing) {
            step(&format!("uploading {}, {number} of {}", wheel.layer.distribution(), missing.len()));
            let deployed = self.deploy(wheel.read()?);
            deployed.map_err(|error| {
                Error::new(error.code, format!("the wheel {}: {}", wheel.layer.name, error.message))
            })?;
        }
        let reply = self.deploy(encoded)?;
        reply.package.ok_or_else(|| Error::new(Code::Protocol, "the manager names no environment"))
    }

    /// Finds an environment by its name or digest.
    ///
    /// # Errors
    /// `unknown_package`, and `invalid_argument` if it is a package of another kind.
    pub fn find_environment(&self, address: &str) -> Result<PackageInfo, Error> {
        let info = self.resolve(address).map_err(|error| {
            let message = error.message.replacen("no package", "no environment", 1);
            Error::new(error.code, message.replacen("sublet package list", "sublet environment list", 1))
        })?;
        if info.is_environment() {
            return Ok(info);
        }
        let message = format!("{address} is not an environment, but a package with functions");
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// Makes the environments that a package's manifest describes by requirements, and pins those that it names. Files are
    /// in the package's folder.
    ///
    /// # Errors
    /// As for [`ManagerClient::make_environment`], and `unknown_package` for a name.
    pub fn pin_environments(
        &self,
        encoded: Vec<u8>,
        folder: &std::path::Path,
        step: &mut dyn FnMut(&str),
    ) -> Result<Vec<u8>, Error> {
        let mut package: Package = decode("a package", &encoded)?;
        let mut is_changed = false;
        while let Some(unpinned) = unpinned_environment(&package)? {
            let address = match &unpinned {
                UnpinnedEnvironment::Named(name) => self.find_environment(name)?.pinned_address(),
                UnpinnedEnvironment::Required { file, version } => {
                    let requirements = Requirements::File(folder.join(file));
                    let plan =
                        EnvironmentPlan { python: version.clone(), ..EnvironmentPlan::new(requirements) };
                    self.make_environment(&plan, step)?.digest
                }
            };
            pin_environment(&mut package, &unpinned, &address)?;
            is_changed = true;
        }
        Ok(if is_changed { package::encode(&package) } else { encoded })
    }

    /// The platform for which wheels are chosen: that of the nodes with the version of Python. Wheels have to fit all of
    /// them that have the same architecture.
    fn target(&self, plan: &EnvironmentPlan) -> Result<PythonPlatform, Error> {
        let nodes = self.nodes()?;
        let living = nodes.iter().filter(|node| node.state() != NodeState::Lost);
        let runtimes = living.flat_map(|node| node.description.iter()).flat_map(|node| &node.runtimes);
        let all: Vec<PythonPlatform> = runtimes
            .filter_map(|runtime| PythonPlatform::parse(runtime))
            .filter(|platform| platform.machine.as_ref().is_some_and(|machine| machine.libc == "glibc"))
            .collect();
        let version = match &plan.python {
            Some(python) => python_version(python)?,
            None => all.iter().map(|platform| platform.version).max().unwrap_or_default(),
        };
        let own = plan.architecture.as_deref().unwrap_or(std::env::consts::ARCH);
        let is_own = |platform: &&PythonPlatform| {
            platform.version == version
                && platform.machine.as_ref().is_some_and(|machine| machine.architecture == own)
        };
        let of_version =
            |platform: &&PythonPlatform| platform.version == version && plan.architecture.is_none();
        let least = |platforms: Vec<&PythonPlatform>| {
            let architecture = platforms.first().and_then(|platform| platform.machine.clone())?.architecture;
            let is_same = |platform: &&&PythonPlatform| {
                platform.machine.as_ref().is_some_and(|machine| machine.architecture == architecture)
            };
            platforms
                .iter()
                .filter(is_same)
                .min_by_key(|platform| platform.libc_version())
                .map(|&one| one.clone())
        };
        let found = least(all.iter().filter(is_own).collect());
        let found = found.or_else(|| least(all.iter().filter(of_version).collect()));
        found.ok_or_else(|| {
            let (major, minor) = version;
            let mut offered: Vec<_> = all.iter().map(ToString::to_string).collect();
            offered.sort();
            offered.dedup();
            let offered = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
            let wanted = plan.architecture.as_ref().map_or_else(String::new, |own| format!(" on {own}"));
            let python = if minor == 0 { "a Python".to_owned() } else { format!("Python {major}.{minor}") };
            let message = format!("no node has {python}{wanted} that can use wheels; nodes have {offered}");
            Error::new(Code::WrongArchitecture, message)
        })
    }
}

/// A name that follows from an environment's layers.
fn own_name(package: &Package) -> String {
    let list = package.files.iter().find(|file| file.path == LAYERS_FILE);
    let digest = package::digest(list.map(|file| file.data.as_slice()).unwrap_or_default());
    let digits = digest.rsplit(':').next().unwrap_or_default();
    format!("{NAME_PREFIX}{}", &digits[..NAME_DIGITS.min(digits.len())])
}

fn python_version(text: &str) -> Result<(u32, u32), Error> {
    PythonPlatform::of_version(text).map(|platform| platform.version).ok_or_else(|| {
        let message = format!("{text:?} is not a version of Python: give two numbers, as \"3.11\"");
        Error::new(Code::InvalidArgument, message)
    })
}
