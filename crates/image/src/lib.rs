//! OCI images on a node: where they come from, how they are checked, and the folders that overlays are made of.
//!
//! A [`Store`] is one folder of one node. An image gets there from a registry ([`Store::pull`]) or from a file or
//! folder ([`Store::import`]); both are a [`source`] of blobs, named by their digests, and go the same way from there:
//!
//! ```text
//! index -> manifest -> config -> each layer: fetched, verified, unpacked, verified again by its diff id -> record
//! ```
//!
//! A layer is unpacked once, into a folder of its own that is named by the digest of its content, and shared read-only
//! by all images that have it. [`Image::layers`] lists those folders from the bottom to the top, in the form that
//! overlayfs takes as lower layers when it is mounted with `userxattr`.
//!
//! This is a crate of its own so that what talks to registries and reads strangers' archives is linked by those who keep
//! images, and never by the process that makes sandboxes.
//!
//! Invariants:
//! - What has its final name in the store is complete and on the disk. Whatever has not is ignored, and removed by the
//!   next store that finds nobody at work.
//! - Nothing of a layer is ever made, changed or read outside of that layer's folder: see [`layer`].
//! - Nothing that comes from outside is kept before its digest was found to be the one that was asked for.
//! - An image that is listed has all of its layers.
//! - There is no image here that this machine cannot run.

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
pub use error::{EntryProblem, ImageError, Part};
pub use limits::{Limits, MAX_DOCUMENT_BYTES, MAX_LAYERS};
pub use manifest::Config;
pub use reference::Reference;
pub use registry::{Access, Transport, resolve};
pub use store::{Image, InUse, Progress, Pruned, Store};
