//! The node's images, in which the functions of some packages run: pulled once from where their packages say, and shared.
//!
//! They are kept in `STATE/images`, where `sublet image` finds them, too. An image is known by the digest that its package
//! has pinned, wherever it came from. While a worker runs in it nobody removes its layers.
//!
//! Which registry is asked is a tenant's word. So that nobody has an agent knock at doors of its own machine, those are asked
//! only if the operator names them; and none but those that are named, if any are.

use std::path::Path;

use sublet_image::{Access, Credentials, Digest, Image, InUse, Reference, Store, Transport};
use sublet_proto::v1::PackageBuild;
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

    /// Whether nothing has to be pulled for a build of a package.
    pub(crate) fn are_at_hand(&self, build: &PackageBuild) -> Result<bool, Error> {
        Ok(build.image.is_empty() || self.find(build)?.is_some())
    }

    /// Pulls a build's image if it has one that is not here: that may take minutes.
    pub(crate) fn ensure(&self, build: &PackageBuild) -> Result<(), Error> {
        if self.are_at_hand(build)? {
            return Ok(());
        }
        let (reference, _) = pinned(build)?;
        let transport = self.transport(&reference)?;
        info!(image = build.image, "an image is pulled");
        let access = Access { credentials: Credentials::of_docker(&reference)?, transport };
        self.store.pull(&reference, &access, &mut |_| ())?;
        Ok(())
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

    /// How a registry is asked, if it is.
    fn transport(&self, reference: &Reference) -> Result<Transport, Error> {
        match self.registries.as_slice() {
            [] if !reference.is_local() => Ok(Transport::Elsewhere),
            registries if registries.contains(&reference.registry) => Ok(Transport::Safe),
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

fn pinned(build: &PackageBuild) -> Result<(Reference, Digest), Error> {
    let reference: Reference = build.image.parse()?;
    let digest = reference.digest.ok_or_else(|| {
        let message = format!("the image {} is not pinned", build.image);
        Error::new(Code::InvalidPackage, message)
    })?;
    Ok((reference, digest))
}
