//! The node's images, in which the functions of some packages run: pulled once from where their packages say, and shared.
//!
//! They are kept in `STATE/images`, where `sublet image` finds them, too. An image is known by the digest that its package
//! has pinned, wherever it came from. While a worker runs in it nobody removes its layers.
//!
//! Which registry is asked is a tenant's word. So that nobody has an agent knock at doors of its own machine, those are asked
//! only if the operator names them; and none but those that are named, if any are.

use std::path::Path;

use sublet_image::{Access, Credentials, Digest, Image, InUse, Reference, Store};
use sublet_proto::v1::PackageInfo;
use sublet_proto::{Code, Error};
use tracing::info;

/// See the [module](self).
pub(crate) struct Images {
    store: Store,
    /// None: any but this machine's own.
    registries: Vec<String>,
}

/// An image with a lock on its layers.
pub(crate) struct HeldImage {
    pub(crate) image: Image,
    _in_use: InUse,
}

impl Images {
    /// Those in a state folder.
    pub(crate) fn open(state: &Path, registries: Vec<String>) -> Result<Images, Error> {
        Ok(Images { store: Store::open(state.join("images"))?, registries })
    }

    /// Whether nothing has to be pulled for a package.
    pub(crate) fn are_at_hand(&self, package: &PackageInfo) -> Result<bool, Error> {
        Ok(package.image.is_empty() || self.find(package)?.is_some())
    }

    /// Pulls a package's image if it has one that is not here: that may take minutes.
    pub(crate) fn ensure(&self, package: &PackageInfo) -> Result<(), Error> {
        if self.are_at_hand(package)? {
            return Ok(());
        }
        let (reference, _) = pinned(package)?;
        self.check_registry(&reference)?;
        info!(image = package.image, "an image is pulled");
        let access = Access { credentials: Credentials::of_docker(&reference)?, ..Access::default() };
        self.store.pull(&reference, &access, &mut |_| ())?;
        Ok(())
    }

    /// A package's image, if it runs in one.
    pub(crate) fn hold(&self, package: &PackageInfo) -> Result<Option<HeldImage>, Error> {
        if package.image.is_empty() {
            return Ok(None);
        }
        let gone = || Error::new(Code::System, format!("the image {} was removed meanwhile", package.image));
        let image = self.find(package)?.ok_or_else(gone)?;
        let in_use = image.hold()?;
        Ok(Some(HeldImage { image, _in_use: in_use }))
    }

    fn check_registry(&self, reference: &Reference) -> Result<(), Error> {
        let is_asked = match self.registries.as_slice() {
            [] => !reference.is_local(),
            registries => registries.contains(&reference.registry),
        };
        if is_asked {
            return Ok(());
        }
        let message = format!("this node pulls no images from {} (registries)", reference.registry);
        Err(Error::new(Code::PermissionDenied, message))
    }

    fn find(&self, package: &PackageInfo) -> Result<Option<Image>, Error> {
        let (_, digest) = pinned(package)?;
        Ok(self.store.find(&digest)?)
    }
}

fn pinned(package: &PackageInfo) -> Result<(Reference, Digest), Error> {
    let reference: Reference = package.image.parse()?;
    let digest = reference.digest.ok_or_else(|| {
        let message = format!("the image {} of package {} is not pinned", package.image, package.name);
        Error::new(Code::InvalidPackage, message)
    })?;
    Ok((reference, digest))
}
