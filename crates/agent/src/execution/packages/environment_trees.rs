//! The trees of environments that a node has, and those that are being made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use crate::execution::cache::EntryUse;
use crate::execution::shared_work::{KnownResults, SharedWork, WorkBounds, WorkRefusal};

/// Path of the tree of an environment in its package's folder.
pub(super) const TREE: &str = ".built/environment";
/// Layers of an environment that are fetched and unpacked at the same time.
pub(super) const LAYERS_AT_ONCE: usize = 2;
/// Layers that are remembered as verified: the most entries that a cache has.
const MAX_VERIFIED: usize = 4096;
/// How long a call waits for its turn, or for work of another call: shorter than the 120 s that clients wait.
const PATIENCE: Duration = Duration::from_secs(110);
/// Bounds of installations.
const INSTALLATIONS: WorkBounds =
    WorkBounds { of_node: 8, of_tenant: 2, calls_of_tenant: 1024, patience: PATIENCE };
/// Bounds of layers that are fetched and unpacked: those of all installations. So a layer waits for no turn, and an
/// installation, which may serve several tenants, does not wait for others of the tenant whose call executes it.
const LAYERS: WorkBounds = WorkBounds {
    of_node: LAYERS_AT_ONCE * INSTALLATIONS.of_node,
    of_tenant: LAYERS_AT_ONCE * INSTALLATIONS.of_node,
    ..INSTALLATIONS
};

/// The environments of a node.
pub(super) struct Environments {
    /// Trees that are complete, by the digests of their environments.
    pub(super) ready: Mutex<BTreeMap<String, PathBuf>>,
    /// Layers that were unpacked or verified since the agent's start.
    pub(super) verified: Mutex<KnownResults<String, ()>>,
    /// Environments that are installed, by digest. Each outcome is the tree and the token of its use.
    pub(super) installations: SharedWork<String, (PathBuf, EntryUse)>,
    /// Layers that are verified or fetched, by digest.
    pub(super) layers: SharedWork<String, EntryUse>,
}

impl Environments {
    /// Makes the table of a node that has no environment yet.
    pub(super) fn new() -> Environments {
        Environments {
            ready: Mutex::default(),
            verified: Mutex::new(KnownResults::new(MAX_VERIFIED)),
            installations: SharedWork::new(INSTALLATIONS, describe_installation),
            layers: SharedWork::new(LAYERS, describe_layer),
        }
    }
}

/// The message of an environment that was not installed.
fn describe_installation(refusal: WorkRefusal, bounds: &WorkBounds) -> String {
    let WorkBounds { of_node, of_tenant, calls_of_tenant, patience } = bounds;
    match refusal {
        WorkRefusal::TooManyCalls => {
            format!("{calls_of_tenant} starts of this tenant wait for environments already")
        }
        WorkRefusal::TooLate => format!(
            "the environment is not installed after {} s (try again): a node installs at most {of_tenant} environments of a \
             tenant and {of_node} of all at once",
            patience.as_secs()
        ),
        WorkRefusal::Panicked => "the installation of the environment has failed".to_owned(),
    }
}

/// The message of a layer that was neither verified nor fetched.
fn describe_layer(refusal: WorkRefusal, bounds: &WorkBounds) -> String {
    match refusal {
        WorkRefusal::TooManyCalls => format!("{} wheels of this tenant wait already", bounds.calls_of_tenant),
        WorkRefusal::TooLate => {
            format!("a wheel is not unpacked after {} s (try again)", bounds.patience.as_secs())
        }
        WorkRefusal::Panicked => "the installation of a wheel has failed".to_owned(),
    }
}
