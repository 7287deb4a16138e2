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
pub enum DocumentPart {
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

impl fmt::Display for DocumentPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DocumentPart::Index => "index",
            DocumentPart::Manifest => "manifest",
            DocumentPart::Config => "configuration",
            DocumentPart::Layer => "layer",
            DocumentPart::Archive => "archive",
        })
    }
}

/// Reason why a file of a layer is refused.
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
    /// A hard link to a file that the layer does not have.
    #[error("it is a hard link to a file that the layer does not have")]
    MissingTarget,
    /// A file in place of a folder that has files.
    #[error("it replaces a folder that is not empty")]
    ReplacesFolder,
    /// An entry of a kind that no layer has: a sparse file, a volume's label.
    #[error("it is of a kind that layers do not have")]
    Kind,
    /// Another size in the extended header than in the header.
    #[error("its headers disagree about its size")]
    Size,
}

/// Error of fetching, reading, keeping or finding an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Not a name of an image.
    #[error("{text:?} does not name an image: {reason}")]
    Reference {
        /// The rejected text.
        text: String,
        /// Why the text is not a name.
        reason: &'static str,
    },
    /// Not a digest.
    #[error("{text:?} is no digest as sha256:... with 64 digits")]
    NoDigest {
        /// The rejected text.
        text: String,
    },
    /// The store has no such image.
    #[error("there is no image {0} here")]
    Unknown(String),
    /// The registry has no such image or blob.
    #[error("the registry {registry} has no {what}")]
    NotInRegistry {
        /// Host of the registry.
        registry: String,
        /// The requested image or blob.
        what: String,
    },
    /// The document is not the expected JSON.
    #[error("the {part} cannot be read: {source}")]
    Json {
        /// Part that cannot be read.
        part: DocumentPart,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// A document that contradicts itself or the specification.
    #[error("the {part} is invalid: {problem}")]
    Document {
        /// Part that is invalid.
        part: DocumentPart,
        /// Description of the problem.
        problem: &'static str,
    },
    /// A kind of layer or document that is not known here.
    #[error("the {part} is of the unknown type {media_type:?}")]
    MediaType {
        /// Part of the unknown type.
        part: DocumentPart,
        /// Type that the part states.
        media_type: String,
    },
    /// Too many indexes that lead to one another.
    #[error("more than {MAX_INDEX_DEPTH} indexes lead to one another")]
    Depth,
    /// Too many layers.
    #[error("the image has {0} layers; {MAX_LAYERS} are possible")]
    Layers(usize),
    /// Other bytes than those that were requested.
    #[error("the {part} {expected} has the digest {actual}")]
    DigestMismatch {
        /// Part with the wrong digest.
        part: DocumentPart,
        /// Digest that was requested.
        expected: Digest,
        /// Digest of the received bytes.
        actual: Digest,
    },
    /// More or fewer bytes than were announced.
    #[error("the {part} {digest} has {relation} the {expected_bytes} bytes that were announced")]
    Size {
        /// Part of the wrong size.
        part: DocumentPart,
        /// Digest of the part.
        digest: Digest,
        /// The relation in words: more than, fewer than.
        relation: &'static str,
        /// Announced size in bytes.
        expected_bytes: u64,
    },
    /// A part exceeds a limit.
    #[error("the {part} has more than {limit} {unit}")]
    TooLarge {
        /// Part that is too large.
        part: DocumentPart,
        /// The limit.
        limit: u64,
        /// Unit of the limit.
        unit: &'static str,
    },
    /// A file of a layer that is refused.
    #[error("the layer's file {path:?} cannot be taken: {problem}")]
    Entry {
        /// Path of the file in the layer.
        path: String,
        /// Why the file is refused.
        problem: EntryProblem,
    },
    /// Compressed data or an archive that cannot be read, as it is truncated or damaged.
    #[error("the {part} is damaged: {source}")]
    Damaged {
        /// Part that is damaged.
        part: DocumentPart,
        /// Error of the reader.
        source: io::Error,
    },
    /// The image is for other machines.
    #[error("the image is for {found}, and this machine is linux/{here}")]
    Architecture {
        /// Machines of the image, separated by commas.
        found: String,
        /// Architecture of this machine.
        here: &'static str,
    },
    /// A file or folder in which there are no images.
    #[error("{} is no OCI layout and no tar of one or of `docker save`", path.display())]
    NoImages {
        /// Path of the file or folder.
        path: PathBuf,
    },
    /// The registry requires authentication, or refuses these credentials.
    #[error("the registry {registry} refuses access (status {status}): check the name and the credentials")]
    Refused {
        /// Host of the registry.
        registry: String,
        /// HTTP status of the answer.
        status: u16,
    },
    /// The registry answers with an unexpected status.
    #[error("the registry {registry} answered {what} with status {status}")]
    Status {
        /// Host of the registry.
        registry: String,
        /// The requested image or blob.
        what: String,
        /// HTTP status of the answer.
        status: u16,
    },
    /// An answer of a registry that is invalid.
    #[error("the registry {registry} sent what makes no sense: {problem}")]
    Nonsense {
        /// Host of the registry.
        registry: String,
        /// Why the answer is invalid.
        problem: &'static str,
    },
    /// The registry could not be reached.
    #[error("the registry {registry} does not answer: {source}")]
    Unreachable {
        /// Host of the registry.
        registry: String,
        /// Error of the HTTP client.
        source: Box<ureq::Error>,
    },
    /// Too many processes make the same layer.
    #[error("{copies} processes fetch or unpack the layer {diff_id} already (try again)")]
    LayerBusy {
        /// Digest of the unpacked layer.
        diff_id: Digest,
        /// Number of these processes.
        copies: usize,
    },
    /// A layer was removed each time that it was made.
    #[error("the layer {diff_id} was removed meanwhile by other processes (try again)")]
    LayerRemoved {
        /// Digest of the unpacked layer.
        diff_id: Digest,
    },
    /// The file with credentials cannot be used.
    #[error("the credentials in {} cannot be used: {problem}", path.display())]
    CredentialsFile {
        /// Path of the file with credentials.
        path: PathBuf,
        /// Why the file cannot be used.
        problem: &'static str,
    },
    /// An operation of the system has failed.
    #[error("{operation} {} failed: {source}", path.display())]
    System {
        /// The failed operation.
        operation: &'static str,
        /// File of the operation; within a layer, the path is relative to the layer.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl ImageError {
    /// Creates the error of an operation that failed in the system.
    pub(crate) fn system(
        operation: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<io::Error>,
    ) -> ImageError {
        ImageError::System { operation, path: path.as_ref().to_owned(), source: source.into() }
    }

    /// Creates the error of a layer's file that is refused.
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
            ImageError::LayerBusy { .. } | ImageError::LayerRemoved { .. } => Code::TryLater,
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
