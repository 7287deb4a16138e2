//! The three documents of an image, read from untrusted bytes: index, manifest and configuration.
//!
//! Nothing here does I/O. The results are bounded and consistent; fields that are not needed are dropped.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{DocumentPart, ImageError};
use crate::limits::{MAX_DOCUMENT_BYTES, MAX_LAYERS};

/// Name of this machine's architecture in images.
pub const HERE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};
const SYSTEM: &str = "linux";
/// The lowest level of each architecture, which all machines of it have.
const BASE_VARIANTS: &[(&str, &str)] = &[("amd64", "v1"), ("arm64", "v8")];

/// Media types of an index and of a manifest.
const INDEX_TYPES: &[&str] =
    &["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFEST_TYPES: &[&str] =
    &["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
/// Prefixes of the media types of layers. The first bytes of a layer show its compression.
const LAYER_TYPES: &[&str] = &[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];
const COMPRESSIONS: &[&str] = &["", "+gzip", "+zstd", ".gzip", ".zstd"];

/// Types of documents that are requested from a registry.
pub(crate) fn accepted_types() -> impl Iterator<Item = &'static str> {
    INDEX_TYPES.iter().chain(MANIFEST_TYPES).copied()
}

/// A blob by its digest and size.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Descriptor {
    /// Media type that the descriptor states.
    #[serde(default, rename = "mediaType")]
    pub media_type: String,
    /// Digest of the content.
    pub digest: Digest,
    /// Length in bytes.
    #[serde(rename = "size")]
    pub size_bytes: u64,
}

/// A manifest in an index.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct IndexEntry {
    /// The manifest or the next index.
    #[serde(flatten)]
    pub descriptor: Descriptor,
    /// Machines of the manifest; `None` if only its configuration states them.
    #[serde(default)]
    pub platform: Option<Platform>,
    /// Further annotations of the manifest.
    #[serde(default)]
    pub annotations: Option<Annotations>,
}

/// The annotations by which images are named in layouts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Annotations {
    /// A whole name, as containerd and Docker write it.
    #[serde(default, rename = "io.containerd.image.name")]
    pub name: Option<String>,
    /// A tag, or a whole name.
    #[serde(default, rename = "org.opencontainers.image.ref.name")]
    pub reference: Option<String>,
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Platform {
    architecture: String,
    os: String,
    #[serde(default)]
    variant: String,
}

impl Platform {
    /// Whether every machine of this one's architecture is of that kind.
    pub fn is_here(&self) -> bool {
        self.os == SYSTEM
            && self.architecture == HERE
            && (self.variant.is_empty() || BASE_VARIANTS.contains(&(HERE, &self.variant)))
    }
}

/// Document to which a name or a digest leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageDocument {
    /// A list of manifests of one image for several kinds of machines, or of several images.
    Index(Vec<IndexEntry>),
    /// The manifest of an image.
    Manifest(ImageManifest),
}

/// Parts of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageManifest {
    /// The configuration, which describes how the image is run.
    pub config: Descriptor,
    /// The layers, from the bottom to the top.
    pub layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<Vec<IndexEntry>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

impl ImageDocument {
    /// Reads an index or a manifest. A document that could be taken for either is refused.
    pub fn read(bytes: &[u8]) -> Result<ImageDocument, ImageError> {
        let wrong = |problem| Err(ImageError::Document { part: DocumentPart::Manifest, problem });
        let raw: RawDocument = json(DocumentPart::Manifest, bytes)?;
        let is_type = |types: &[&str]| raw.media_type.as_deref().is_none_or(|own| types.contains(&own));
        if raw.schema_version != 2 {
            return wrong("it is not of schema version 2");
        }
        match (raw.manifests, raw.config, raw.layers) {
            (Some(entries), None, None) if is_type(INDEX_TYPES) => Ok(ImageDocument::Index(entries)),
            (None, Some(config), Some(layers)) if is_type(MANIFEST_TYPES) => {
                ImageManifest::checked(config, layers).map(ImageDocument::Manifest)
            }
            (Some(_), None, None) | (None, Some(_), Some(_)) => wrong("its type contradicts its content"),
            _ => wrong("it is neither an index nor a manifest"),
        }
    }
}

impl ImageManifest {
    fn checked(config: Descriptor, layers: Vec<Descriptor>) -> Result<ImageManifest, ImageError> {
        if layers.len() > MAX_LAYERS {
            return Err(ImageError::Layers(layers.len()));
        }
        match layers.iter().find(|layer| !is_layer(&layer.media_type)) {
            Some(Descriptor { media_type, .. }) => {
                let media_type = media_type.chars().take(200).collect();
                Err(ImageError::MediaType { part: DocumentPart::Layer, media_type })
            }
            None => Ok(ImageManifest { config, layers }),
        }
    }
}

fn is_layer(media_type: &str) -> bool {
    let rest = LAYER_TYPES.iter().find_map(|known| media_type.strip_prefix(known));
    rest.is_some_and(|rest| COMPRESSIONS.contains(&rest))
}

/// Selects the manifest of an index for this machine: the first that is for it, or else the first without a platform.
pub fn choose(entries: &[IndexEntry]) -> Result<&IndexEntry, ImageError> {
    let is_for_here = |entry: &&IndexEntry| entry.platform.as_ref().is_some_and(Platform::is_here);
    let says_nothing = |entry: &&IndexEntry| entry.platform.is_none();
    let chosen = entries.iter().find(is_for_here).or_else(|| entries.iter().find(says_nothing));
    chosen.ok_or_else(|| ImageError::Architecture { found: platforms(entries), here: HERE })
}

fn platforms(entries: &[IndexEntry]) -> String {
    const SHOWN: usize = 16;
    let named = entries.iter().filter_map(|entry| entry.platform.as_ref()).take(SHOWN).map(|platform| {
        let slash = if platform.variant.is_empty() { "" } else { "/" };
        let text = format!("{}/{}{slash}{}", platform.os, platform.architecture, platform.variant);
        text.chars().take(64).collect::<String>()
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() { "no machine".to_owned() } else { named.join(", ") }
}

/// Settings with which an image is run, as its author wants it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The processor, by the names of images: `amd64`, `arm64`.
    pub architecture: String,
    /// The environment: names and values.
    pub env: Vec<(String, String)>,
    /// The user and group, as names or numbers: `1000:1000`; empty for no particular user.
    pub user: String,
    /// The working folder; empty for the root.
    pub working_folder: String,
    /// The program and its first arguments.
    pub entry_point: Vec<String>,
    /// The other arguments; the program itself, if there is no entry point.
    pub cmd: Vec<String>,
    /// The digests of the unpacked layers, from the bottom to the top.
    pub diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<RawExecution>,
    rootfs: RawRoot,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawExecution {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
}

#[derive(Deserialize)]
struct RawRoot {
    diff_ids: Option<Vec<Digest>>,
}

impl Config {
    /// Reads a configuration of an image for this machine.
    pub fn read(bytes: &[u8]) -> Result<Config, ImageError> {
        let raw: RawConfig = json(DocumentPart::Config, bytes)?;
        let platform = Platform { architecture: raw.architecture, os: raw.os, variant: String::new() };
        if !platform.is_here() {
            let found = format!("{:.32}/{:.32}", platform.os, platform.architecture);
            return Err(ImageError::Architecture { found, here: HERE });
        }
        let run = raw.config.unwrap_or_default();
        let env = run.env.unwrap_or_default().into_iter();
        let config = Config {
            architecture: platform.architecture,
            env: env.filter_map(variable).collect(),
            user: run.user.unwrap_or_default(),
            working_folder: run.working_dir.unwrap_or_default(),
            entry_point: run.entrypoint.unwrap_or_default(),
            cmd: run.cmd.unwrap_or_default(),
            diff_ids: raw.rootfs.diff_ids.unwrap_or_default(),
        };
        config.checked()
    }

    fn checked(self) -> Result<Config, ImageError> {
        let words = self.entry_point.iter().chain(&self.cmd).chain([&self.user, &self.working_folder]);
        let mut texts = words.chain(self.env.iter().flat_map(|(name, value)| [name, value]));
        let has_zero = texts.any(|text| text.contains('\0'));
        drop(texts);
        if has_zero {
            let problem = "a zero byte is in what is handed to its program";
            return Err(ImageError::Document { part: DocumentPart::Config, problem });
        }
        match self.diff_ids.len() {
            too_many if too_many > MAX_LAYERS => Err(ImageError::Layers(too_many)),
            _ => Ok(self),
        }
    }
}

/// Reads an environment variable. Text without a name and a value is skipped.
fn variable(text: String) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

/// Reads JSON of bounded size and depth.
pub(crate) fn json<'a, T: Deserialize<'a>>(part: DocumentPart, bytes: &'a [u8]) -> Result<T, ImageError> {
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(ImageError::TooLarge { part, limit: MAX_DOCUMENT_BYTES, unit: "bytes" });
    }
    // The library refuses JSON deeper than 128 levels.
    serde_json::from_slice(bytes).map_err(|source| ImageError::Json { part, source })
}

#[cfg(test)]
mod tests;
