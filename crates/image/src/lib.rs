//! OCI images on a node: their sources, their verification, and the folders from which overlays are made.
//!
//! An [`ImageStore`] is one folder of one node. An image gets there from a registry ([`ImageStore::pull`]) or from a file or
//! folder ([`ImageStore::import`]). Both are a [`source`] of blobs, named by their digests, and the same steps follow for
//! both:
//!
//! ```text
//! index -> manifest -> config -> each layer: fetched, verified, unpacked, verified again by its diff id -> record
//! ```
//!
//! Each layer is unpacked once, into a folder of its own that is named by the digest of its content. All images that
//! have the layer share this folder read-only. [`Image::layers`] lists the folders from the bottom to the top, in the
//! form that overlayfs takes as lower layers when it is mounted with `userxattr`.
//!
//! This is a crate of its own so that code for registries and for untrusted archives is linked only into programs that
//! keep images, and never into the process that makes sandboxes.
//!
//! Invariants:
//! - A file or folder with its final name in the store is complete and on the disk. Any other one is ignored, and
//!   removed by the next store that finds no process at work.
//! - Nothing of a layer is ever made, changed or read outside of that layer's folder: see [`layer`].
//! - Nothing from outside is kept before its digest was found to be the requested one.
//! - An image that is listed has all of its layers.
//! - The store has no image that this machine cannot run.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod acquire;
mod credentials;
mod digest;
mod error;
mod import;
pub mod layer;
mod limits;
pub mod manifest;
mod reference;
mod registry;
mod source;
mod store;

pub use credentials::Credentials;
pub use digest::Digest;
pub use error::{DocumentPart, EntryProblem, ImageError};
pub use limits::{ImageLimits, MAX_DOCUMENT_BYTES, MAX_LAYERS};
pub use manifest::Config;
pub use reference::Reference;
pub use registry::{RegistryAccess, RegistryTransport, current_digest, resolve};
pub use store::{Image, ImageStore, InUse, PruneResult, PullProgress};
