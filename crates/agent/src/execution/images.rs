//! The node's images, in which the functions of some packages run. Each image is pulled once and shared.
//!
//! Images are kept in `STATE/images`, where `sublet image` finds them, too. The digest that a package pins identifies
//! its image, from whichever registry it was pulled. While a worker runs in an image, no process removes its layers.
//!
//! A tenant names the registry of an image. So that tenants cannot make an agent connect to services of its own
//! machine, registries on this machine are asked only if the operator names them. If the operator names any registries,
//! only these are asked. An image is pulled once for all leases that need it, with turns among tenants: see
//! [`shared_work`](crate::execution::shared_work). So a registry that sends slowly delays only leases of the tenants that
//! name it.

use std::sync::Arc;
use std::time::Duration;

use sublet_image::{
    Credentials, Digest, DocumentPart, Image, ImageError, ImageLimits, ImageStore, InUse, PullProgress,
    Reference, RegistryAccess, RegistryTransport,
};
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};
use tracing::info;

use crate::execution::cache::{CacheLookup, DiskSize, EntryKind, EntryUse, Key, NodeCache};
use crate::execution::shared_work::{SharedWork, WorkBounds, WorkRefusal};

/// Size that the first attempt to pull an image may unpack.
const FIRST_ATTEMPT: DiskSize = DiskSize { bytes: 64 << 20, files: 4096 };
/// Bounds of pulls. A call waits shorter than the 120 s that clients wait.
const BOUNDS: WorkBounds =
    WorkBounds { of_node: 8, of_tenant: 2, calls_of_tenant: 1024, patience: Duration::from_secs(110) };

/// See the [module](self).
pub(crate) struct Images {
    store: ImageStore,
    cache: Arc<NodeCache>,
    /// Registries that may be asked. An empty list allows every registry outside this machine.
    registries: Vec<String>,
    /// Images that are pulled, by name and digest. Each outcome is the token of the image's use, if it needs one.
    pulls: SharedWork<String, Option<EntryUse>>,
}

/// An image with a lock on its layers.
pub(crate) struct HeldImage {
    pub(crate) image: Image,
    _in_use: InUse,
}

impl Images {
    /// Opens the images of a store, within the bound of the node's cache.
    pub(crate) fn new(store: ImageStore, cache: Arc<NodeCache>, registries: Vec<String>) -> Images {
        Images { store, cache, registries, pulls: SharedWork::new(BOUNDS, describe) }
    }

    /// The token of a build's image for as long as a tenant uses it: `Some(None)` if no token is needed, because there is no
    /// image or it is the operator's own. `None` if it has to be pulled.
    pub(crate) fn at_hand(
        &self,
        build: &PackageBuild,
        tenant: &str,
    ) -> Result<Option<Option<EntryUse>>, Error> {
        if build.image.is_empty() {
            return Ok(Some(None));
        }
        let Some(image) = self.find(build)? else { return Ok(None) };
        Ok(match self.cache.find(&key(&image), tenant) {
            CacheLookup::Here(in_use) => Some(Some(in_use)),
            CacheLookup::Unknown => Some(None),
            CacheLookup::Leaving => None,
        })
    }

    /// Returns the token like [`Images::at_hand`], and pulls the image first if it is missing, which may take minutes.
    ///
    /// # Errors
    /// Those of the pull, and `try_later` if the image is not pulled in time.
    pub(crate) fn ensure(
        &self,
        build: &PackageBuild,
        tenant: &str,
        tell: &dyn Fn(String),
    ) -> Result<Option<EntryUse>, Error> {
        if let Some(in_use) = self.at_hand(build, tenant)? {
            return Ok(in_use);
        }
        // The pull may be that of another call, and only that call hears of its progress.
        tell(format!("waiting for the image {}", build.image));
        let pulled = self.pulls.execute(&build.image, tenant, || self.find_or_pull(build, tenant, tell));
        let in_use = pulled.map_err(|error| about(&build.image, error))?;
        // The pull of another tenant's call may have made the entry, which this tenant uses, too.
        self.at_hand(build, tenant).map(|_| in_use)
    }

    /// Does the work of [`Images::ensure`].
    fn find_or_pull(
        &self,
        build: &PackageBuild,
        tenant: &str,
        tell: &dyn Fn(String),
    ) -> Result<Option<EntryUse>, Error> {
        if let Some(in_use) = self.at_hand(build, tenant)? {
            return Ok(in_use);
        }
        let (reference, digest) = pinned(build)?;
        let transport = self.transport(&reference)?;
        info!(image = build.image, "an image is pulled");
        tell(format!("pulling the image {}", build.image));
        let access = RegistryAccess { credentials: Credentials::of_docker(&reference)?, transport };
        self.cache.announce(&digest.to_string(), tenant);
        self.pull((&reference, &access), &build.image, (tenant, tell)).map(Some)
    }

    /// Pulls an image. Its size is known only once it is unpacked. So each attempt may use twice as much of the cache
    /// as the attempt before it; complete layers stay.
    fn pull(
        &self,
        from: (&Reference, &RegistryAccess),
        name: &str,
        (tenant, tell): (&str, &dyn Fn(String)),
    ) -> Result<EntryUse, Error> {
        let (largest, what) = (largest(self.cache.limit()), format!("the image {name}"));
        let (mut least, mut most) = (DiskSize { bytes: 1, files: 1 }, FIRST_ATTEMPT.at_most(largest));
        loop {
            let reservation = self.cache.reserve(&what, (least, most), tenant)?;
            let granted = reservation.size;
            let limits = ImageLimits { unpacked_bytes: granted.bytes, files: granted.files };
            let mut pulled = |progress: PullProgress| {
                let PullProgress { layers_done, layers, .. } = progress;
                tell(format!("pulling the image {name}, {layers_done} of {layers} layers"));
            };
            match self.store.pull_within(from.0, from.1, limits, &mut pulled) {
                Ok(image) => return Ok(self.cache.keep(&key(&image), DiskSize::of_image(&image), tenant)),
                Err(ImageError::TooLarge { part: DocumentPart::Layer, .. }) if granted != largest => {
                    drop(reservation);
                    self.store.prune_if_alone()?;
                    least = granted.plus(DiskSize { bytes: 1, files: 1 }).at_most(largest);
                    most = granted.plus(granted).at_most(largest);
                }
                Err(error) => {
                    self.store.prune_if_alone()?;
                    return Err(explain(error, &what, largest));
                }
            }
        }
    }

    /// A build's image, if it runs in one.
    pub(crate) fn hold(&self, build: &PackageBuild) -> Result<Option<HeldImage>, Error> {
        if build.image.is_empty() {
            return Ok(None);
        }
        let gone = || Error::new(Code::System, format!("the image {} was removed meanwhile", build.image));
        let image = self.find(build)?.ok_or_else(gone)?;
        let in_use = image.hold()?;
        Ok(Some(HeldImage { image, _in_use: in_use }))
    }

    /// Selects how a registry is asked, or refuses it.
    fn transport(&self, reference: &Reference) -> Result<RegistryTransport, Error> {
        match self.registries.as_slice() {
            [] if !reference.is_local() => Ok(RegistryTransport::Elsewhere),
            registries if registries.contains(&reference.registry) => Ok(RegistryTransport::Safe),
            _ => {
                let message = format!("this node pulls no images from {} (registries)", reference.registry);
                Err(Error::new(Code::PermissionDenied, message))
            }
        }
    }

    fn find(&self, build: &PackageBuild) -> Result<Option<Image>, Error> {
        let (_, digest) = pinned(build)?;
        Ok(self.store.find(&digest)?)
    }
}

/// The message of an image that was not pulled.
fn describe(refusal: WorkRefusal, bounds: &WorkBounds) -> String {
    let WorkBounds { of_node, of_tenant, calls_of_tenant, patience } = bounds;
    match refusal {
        WorkRefusal::TooManyCalls => {
            format!("{calls_of_tenant} starts of this tenant wait for images already")
        }
        WorkRefusal::TooLate => format!(
            "it was not pulled within {} s: a node pulls at most {of_tenant} images of a tenant and {of_node} of all at once",
            patience.as_secs()
        ),
        WorkRefusal::Panicked => "its pull has failed".to_owned(),
    }
}

/// Names the image in an error that says that it may be here later.
fn about(image: &str, error: Error) -> Error {
    match error.code {
        Code::TryLater => Error::new(
            error.code,
            format!("the image {image} is not here yet (try again): {}", error.message),
        ),
        _ => error,
    }
}

fn key(image: &Image) -> Key {
    (EntryKind::Image, image.digest.to_string())
}

/// Largest size of an image on this node: the limit for any image, or the size of the cache if that is less.
fn largest(cache: DiskSize) -> DiskSize {
    let ImageLimits { unpacked_bytes: bytes, files } = ImageLimits::default();
    DiskSize { bytes, files }.at_most(cache)
}

/// An image that is too large for this node's cache may fit elsewhere.
fn explain(error: ImageError, what: &str, largest: DiskSize) -> Error {
    let any = ImageLimits::default();
    let is_bound = largest.bytes < any.unpacked_bytes || largest.files < any.files;
    match error {
        ImageError::TooLarge { part: DocumentPart::Layer, .. } if is_bound => {
            let DiskSize { bytes, files } = largest;
            let message = format!(
                "{what} does not fit into this node's cache, which has {bytes} bytes and {files} files (raise cache)"
            );
            Error::new(Code::StoreFull, message)
        }
        error => error.into(),
    }
}

fn pinned(build: &PackageBuild) -> Result<(Reference, Digest), Error> {
    let reference: Reference = build.image.parse()?;
    let digest = reference.digest.ok_or_else(|| {
        let message = format!("the image {} is not pinned", build.image);
        Error::new(Code::InvalidPackage, message)
    })?;
    Ok((reference, digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread::scope;

    fn open(state: &std::path::Path, registries: &[String]) -> Images {
        let store = ImageStore::open(state.join("images")).unwrap();
        let cache = Arc::new(NodeCache::open(state, store.clone(), Some(1 << 30)).unwrap());
        Images::new(store, cache, registries.to_vec())
    }

    fn build(registry: &str, number: usize) -> PackageBuild {
        let image = format!("{registry}/app@{}", Digest::of(&number.to_le_bytes()));
        PackageBuild { image, ..PackageBuild::default() }
    }

    #[test]
    fn a_registry_without_answer_delays_no_other_tenant() {
        let state = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let silent = format!("localhost:{}", listener.local_addr().unwrap().port());
        // No program listens on this port, so its registry fails at once.
        let closed = "localhost:1".to_owned();
        let images = &open(state.path(), &[silent.clone(), closed.clone()]);
        let silent = &silent;
        scope(|scope| {
            let ensure = |number, tenant| {
                scope.spawn(move || {
                    images.ensure(&build(silent, number), tenant, &|_| ()).map(drop).unwrap_err().code
                })
            };
            let pulls: Vec<_> = (0..BOUNDS.of_tenant).map(|number| ensure(number, "a")).collect();
            // A call for the same image joins the pull that is under way.
            let connections: Vec<_> = pulls.iter().map(|_| listener.accept().unwrap().0).collect();
            let joined = ensure(0, "b");
            // A tenant's calls for more images wait for their turns, and leave the node's to others.
            let waiting: Vec<_> =
                (BOUNDS.of_tenant..BOUNDS.of_node).map(|number| ensure(number, "a")).collect();
            let is_called = |number| images.pulls.calls(&build(silent, number).image) > 0;
            while !(0..BOUNDS.of_node).all(is_called) {
                std::thread::yield_now();
            }
            let other = images.ensure(&build(&closed, 0), "b", &|_| ()).map(drop).unwrap_err();
            assert_eq!(other.code, Code::RegistryUnreachable, "{other}");
            assert!(!joined.is_finished() && !waiting.iter().any(|pull| pull.is_finished()));
            // Both registries refuse all connections from now on.
            drop((connections, listener));
            for pull in pulls.into_iter().chain(waiting).chain([joined]) {
                assert_eq!(pull.join().unwrap(), Code::RegistryUnreachable);
            }
        });
    }

    #[test]
    fn a_late_image_is_named() {
        let late = Error::new(Code::TryLater, describe(WorkRefusal::TooLate, &BOUNDS));
        let named = about("localhost:1/app", late);
        assert_eq!(named.code, Code::TryLater);
        assert!(named.message.starts_with("the image localhost:1/app is not here yet"), "{named}");
        assert!(named.message.contains("110 s"), "{named}");
    }
}
