//! The node's images, in which the functions of some packages run. Each image is pulled once and shared.
//!
//! Images are kept in `STATE/images`, where `sublet image` finds them, too. The digest that a package pins identifies
//! its image, from whichever registry it was pulled. While a worker runs in an image, no process removes its layers.
//!
//! A tenant names the registry of an image. So that tenants cannot make an agent connect to services of its own
//! machine, registries on this machine are asked only if the operator names them. If the operator names any registries,
//! only these are asked.

use std::sync::Arc;

use sublet_image::{
    Credentials, Digest, DocumentPart, Image, ImageError, ImageLimits, ImageStore, InUse, Reference,
    RegistryAccess, RegistryTransport,
};
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};
use tracing::info;

use crate::execution::cache::{CacheLookup, DiskSize, EntryKind, EntryUse, Key, NodeCache};

/// Size that the first attempt to pull an image may unpack.
const FIRST_ATTEMPT: DiskSize = DiskSize { bytes: 64 << 20, files: 4096 };

/// See the [module](self).
pub(crate) struct Images {
    store: ImageStore,
    cache: Arc<NodeCache>,
    /// Registries that may be asked. An empty list allows every registry outside this machine.
    registries: Vec<String>,
}

/// An image with a lock on its layers.
pub(crate) struct HeldImage {
    pub(crate) image: Image,
    _in_use: InUse,
}

impl Images {
    /// Opens the images of a store, within the bound of the node's cache.
    pub(crate) fn new(store: ImageStore, cache: Arc<NodeCache>, registries: Vec<String>) -> Images {
        Images { store, cache, registries }
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
    pub(crate) fn ensure(&self, build: &PackageBuild, tenant: &str) -> Result<Option<EntryUse>, Error> {
        if let Some(in_use) = self.at_hand(build, tenant)? {
            return Ok(in_use);
        }
        let (reference, digest) = pinned(build)?;
        let transport = self.transport(&reference)?;
        info!(image = build.image, "an image is pulled");
        let access = RegistryAccess { credentials: Credentials::of_docker(&reference)?, transport };
        self.cache.announce(&digest.to_string(), tenant);
        self.pull((&reference, &access), &build.image, tenant).map(Some)
    }

    /// Pulls an image. Its size is known only once it is unpacked. So each attempt may use twice as much of the cache
    /// as the attempt before it; complete layers stay.
    fn pull(&self, from: (&Reference, &RegistryAccess), name: &str, tenant: &str) -> Result<EntryUse, Error> {
        let (largest, what) = (largest(self.cache.limit()), format!("the image {name}"));
        let (mut least, mut most) = (DiskSize { bytes: 1, files: 1 }, FIRST_ATTEMPT.at_most(largest));
        loop {
            let reservation = self.cache.reserve(&what, (least, most), tenant)?;
            let granted = reservation.size;
            let limits = ImageLimits { unpacked_bytes: granted.bytes, files: granted.files };
            match self.store.pull_within(from.0, from.1, limits, &mut |_| ()) {
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
