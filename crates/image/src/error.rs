//! Defines the errors of images.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use sublet_proto::{Code, Error};

use crate::digest::Digest;
use crate::limits::{MAX_INDEX_DEPTH, MAX_LAYERS};

/// The parts of which an image consists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A list of manifests, one for each kind of machine.
    Index,
    /// The list of an image's configuration and layers.
    Manifest,
    /// How an image is run.
    Config,
    /// Some of an image's files.
    Layer,
    /// The archive or folder in which images came.
    Archive,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Index => "index",
            Part::Manifest => "manifest",
            Part::Config => "configuration",
            Part::Layer => "layer",
            Part::Archive => "archive",
        })
    }
}

/// Why a file of a layer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// A `..` in its path.
    #[error("its path has a `..` in it")]
    Upwards,
    /// A zero byte in its path or its target.
    #[error("its path or target has a zero byte in it")]
    ZeroByte,
    /// A path, a name or a target that no file system takes.
    #[error("its path, a name in it or its target is too long")]
    TooLong,
    /// The layer's own root in place of a file, or a link without a target.
    #[error("it has no name or no target")]
    Nameless,
    /// A whiteout that hides nothing that can be there, or a folder that is named as one.
    #[error("it is no whiteout that can be followed")]
    Whiteout,
    /// A path that leads through a symbolic link of the same layer.
    #[error("its path leads through a symbolic link")]
    ThroughLink,
    /// A path that leads through a file.
    #[error("its path leads through a file that is no folder")]
    ThroughFile,
    /// A hard link to what is not in the layer.
    #[error("it is a hard link to a file that the layer does not have")]
    MissingTarget,
    /// A file in place of a folder that has files.
    #[error("it replaces a folder that is not empty")]
    ReplacesFolder,
    /// Something that no layer has: a sparse file, a volume's label.
    #[error("it is of a kind that layers do not have")]
    Kind,
    /// Another size in the extended header than in the header.
    #[error("its headers disagree about its size")]
    Size,
}

/// Why an image could not be fetched, read, kept or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Not a name of an image.
    #[error("{text:?} does not name an image: {reason}")]
    Reference {
        /// What was given.
        text: String,
        /// Why not.
        reason: &'static str,
    },
    /// Not a digest.
    #[error("{text:?} is no digest as sha256:... with 64 digits")]
    NoDigest {
        /// What was given.
        text: String,
    },
    /// The store has no such image.
    #[error("there is no image {0} here")]
    Unknown(String),
    /// The registry has no such image or blob.
    #[error("the registry {registry} has no {what}")]
    NotInRegistry {
        /// Its host.
        registry: String,
        /// What was asked for.
        what: String,
    },
    /// Not the JSON that it should be.
    #[error("the {part} cannot be read: {source}")]
    Json {
        /// Of which part.
        part: Part,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// A document that contradicts itself or the specification.
    #[error("the {part} is invalid: {problem}")]
    Document {
        /// Which.
        part: Part,
        /// What is wrong.
        problem: &'static str,
    },
    /// A kind of layer or document that is not known here.
    #[error("the {part} is of the unknown type {media_type:?}")]
    MediaType {
        /// Of which part.
        part: Part,
        /// What it says of itself.
        media_type: String,
    },
    /// An index that leads to an index, too often.
    #[error("more than {MAX_INDEX_DEPTH} indexes lead to one another")]
    Depth,
    /// Too many layers.
    #[error("the image has {0} layers; {MAX_LAYERS} are possible")]
    Layers(usize),
    /// Other bytes than those that were asked for.
    #[error("the {part} {expected} has the digest {actual}")]
    DigestMismatch {
        /// Of which part.
        part: Part,
        /// What it should be.
        expected: Digest,
        /// What it is.
        actual: Digest,
    },
    /// More or fewer bytes than were announced.
    #[error("the {part} {digest} has {relation} the {expected_bytes} bytes that were announced")]
    Size {
        /// Of which part.
        part: Part,
        /// Its digest.
        digest: Digest,
        /// More than, fewer than.
        relation: &'static str,
        /// What was announced.
        expected_bytes: u64,
    },
    /// Beyond a bound.
    #[error("the {part} has more than {limit} {unit}")]
    TooLarge {
        /// Which part.
        part: Part,
        /// The bound.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// A file of a layer that is not taken.
    #[error("the layer's file {path:?} cannot be taken: {problem}")]
    Entry {
        /// Its path in the layer.
        path: String,
        /// Why.
        problem: EntryProblem,
    },
    /// Compressed data or an archive that cannot be read, as it is truncated or damaged.
    #[error("the {part} is damaged: {source}")]
    Damaged {
        /// Which part.
        part: Part,
        /// What was found.
        source: io::Error,
    },
    /// For other machines.
    #[error("the image is for {found}, and this machine is linux/{here}")]
    Architecture {
        /// For which, separated by commas.
        found: String,
        /// This one.
        here: &'static str,
    },
    /// A file or folder in which there are no images.
    #[error("{} is no OCI layout and no tar of one or of `docker save`", path.display())]
    NoImages {
        /// Which.
        path: PathBuf,
    },
    /// The registry wants to know who asks, or does not let them.
    #[error("the registry {registry} refuses access (status {status}): check the name and the credentials")]
    Refused {
        /// Its host.
        registry: String,
        /// By HTTP.
        status: u16,
    },
    /// The registry answers something else than it should.
    #[error("the registry {registry} answered {what} with status {status}")]
    Status {
        /// Its host.
        registry: String,
        /// What was asked for.
        what: String,
        /// By HTTP.
        status: u16,
    },
    /// An answer that makes no sense.
    #[error("the registry {registry} sent what makes no sense: {problem}")]
    Nonsense {
        /// Its host.
        registry: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The registry could not be reached.
    #[error("the registry {registry} does not answer: {source}")]
    Unreachable {
        /// Its host.
        registry: String,
        /// Why.
        source: Box<ureq::Error>,
    },
    /// The file with credentials cannot be used.
    #[error("the credentials in {} cannot be used: {problem}", path.display())]
    CredentialsFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        problem: &'static str,
    },
    /// Something that the store needs of the system could not be done.
    #[error("{operation} {} failed: {source}", path.display())]
    System {
        /// What.
        operation: &'static str,
        /// With which file; inside of a layer it is relative to that.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ImageError {
    /// That an operation failed in the system.
    pub(crate) fn system(
        operation: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<io::Error>,
    ) -> ImageError {
        ImageError::System { operation, path: path.as_ref().to_owned(), source: source.into() }
    }

    /// That a file of a layer is not taken.
    pub(crate) fn entry(path: &[u8], problem: EntryProblem) -> ImageError {
        let path = String::from_utf8_lossy(path).chars().take(200).collect();
        ImageError::Entry { path, problem }
    }

    fn code(&self) -> Code {
        match self {
            ImageError::Reference { .. } | ImageError::NoDigest { .. } => Code::InvalidArgument,
            ImageError::CredentialsFile { .. } => Code::InvalidArgument,
            ImageError::Unknown(_) | ImageError::NotInRegistry { .. } => Code::UnknownImage,
            ImageError::Architecture { .. } => Code::WrongArchitecture,
            ImageError::Refused { status: 401, .. } => Code::Unauthenticated,
            ImageError::Refused { .. } => Code::PermissionDenied,
            ImageError::Status { status: 429, .. } => Code::TryLater,
            ImageError::Status { .. } | ImageError::Unreachable { .. } => Code::RegistryUnreachable,
            ImageError::Nonsense { .. } => Code::Protocol,
            ImageError::System { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::StoreFull,
                _ => Code::System,
            },
            _ => Code::InvalidImage,
        }
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Error {
        Error::new(error.code(), error.to_string())
    }
}
