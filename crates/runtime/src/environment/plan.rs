//! The description of an environment that is to be made.

use std::path::PathBuf;

/// Distributions that an environment has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirements {
    /// Requirements as in a requirements file, such as `numpy>=2`.
    List(Vec<String>),
    /// A requirements file, or a lock file: `pylock.toml` of PEP 751, or `uv.lock`.
    File(PathBuf),
}

/// Description of an environment that is to be made.
#[derive(Clone, Debug)]
pub struct EnvironmentPlan {
    /// Distributions that it has, with all that those require.
    pub requirements: Requirements,
    /// Name among the caller's tenant's; by default one that follows from the content.
    pub name: Option<String>,
    /// Version of Python, as `3.11`; by default the latest that nodes have.
    pub python: Option<String>,
    /// Architecture of the nodes; by default this machine's, if nodes have it.
    pub architecture: Option<String>,
    /// URL of the index of distributions, in place of the configured one; empty: none.
    pub index: Option<String>,
    /// Folders and pages with further wheels.
    pub find_links: Vec<String>,
    /// Resolves anew, even if the same requirements were resolved before.
    pub refresh: bool,
    /// The Python that executes the resolver.
    pub interpreter: PathBuf,
}

impl EnvironmentPlan {
    /// A plan with the defaults.
    pub fn new(requirements: Requirements) -> EnvironmentPlan {
        EnvironmentPlan {
            requirements,
            name: None,
            python: None,
            architecture: None,
            index: None,
            find_links: Vec::new(),
            refresh: false,
            interpreter: default_interpreter(),
        }
    }
}

/// The Python of this machine that executes the resolver unless a plan names one.
fn default_interpreter() -> PathBuf {
    let named = std::env::var_os("SUBLET_PYTHON").filter(|path| !path.is_empty());
    named.map_or_else(|| PathBuf::from("python3"), PathBuf::from)
}
