//! Archives, layers and layouts made by hand, including ones that no tool makes.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod tar;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use sublet_image::manifest::HERE;
use sublet_image::{Digest, Image, ImageError, ImageStore};

pub use tar::Tar;

/// One layer of an image: the content of its blob, and the digest of the unpacked blob.
#[derive(Clone)]
pub struct Layer {
    pub blob: Vec<u8>,
    pub diff_id: Digest,
}

impl Layer {
    /// Creates an uncompressed layer.
    pub fn plain(archive: Vec<u8>) -> Layer {
        Layer { diff_id: Digest::of(&archive), blob: archive }
    }

    pub fn gzip(archive: &[u8]) -> Layer {
        Layer { diff_id: Digest::of(archive), blob: gzip(archive) }
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A layout in a folder, whose blobs can be anything.
pub struct Layout {
    pub folder: PathBuf,
}

impl Layout {
    pub fn new(folder: &Path) -> Layout {
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
        Layout { folder: folder.to_owned() }
    }

    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs/sha256").join(digest.hex())
    }

    /// Adds a blob and returns its descriptor.
    pub fn blob(&self, media_type: &str, bytes: &[u8]) -> String {
        let digest = Digest::of(bytes);
        fs::write(self.blob_path(&digest), bytes).unwrap();
        descriptor(media_type, &digest, bytes.len())
    }

    /// Adds a manifest of these layers for this machine, and returns its descriptor.
    pub fn manifest(&self, layers: &[Layer]) -> String {
        let diff_ids: Vec<_> = layers.iter().map(|layer| layer.diff_id).collect();
        let config = self.blob(CONFIG, configuration(HERE, &diff_ids).as_bytes());
        let blobs: Vec<_> = layers.iter().map(|layer| self.blob(LAYER, &layer.blob)).collect();
        self.blob(MANIFEST, manifest(&config, &blobs).as_bytes())
    }

    pub fn index(&self, entries: &[String]) {
        fs::write(self.folder.join("index.json"), index(entries)).unwrap();
    }

    /// Creates the layout of one image.
    pub fn of(folder: &Path, layers: &[Layer]) -> Layout {
        let layout = Layout::new(folder);
        layout.index(&[layout.manifest(layers)]);
        layout
    }

    /// Creates an archive of the layout.
    pub fn tar(&self) -> Vec<u8> {
        let mut tar = Tar::new().file("oci-layout", &fs::read(self.folder.join("oci-layout")).unwrap());
        tar = tar.file("index.json", &fs::read(self.folder.join("index.json")).unwrap());
        for entry in fs::read_dir(self.folder.join("blobs/sha256")).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("blobs/sha256/{}", path.file_name().unwrap().to_str().unwrap());
            tar = tar.file(&name, &fs::read(path).unwrap());
        }
        tar.finish()
    }
}

pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

pub fn descriptor(media_type: &str, digest: &Digest, bytes: usize) -> String {
    format!(r#"{{"mediaType": "{media_type}", "digest": "{digest}", "size": {bytes}}}"#)
}

pub fn manifest(config: &str, layers: &[String]) -> String {
    let layers = layers.join(",");
    format!(r#"{{"schemaVersion": 2, "mediaType": "{MANIFEST}", "config": {config}, "layers": [{layers}]}}"#)
}

pub fn index(entries: &[String]) -> String {
    format!(r#"{{"schemaVersion": 2, "mediaType": "{INDEX}", "manifests": [{}]}}"#, entries.join(","))
}

pub fn configuration(architecture: &str, diff_ids: &[Digest]) -> String {
    let diff_ids: Vec<_> = diff_ids.iter().map(|digest| format!("\"{digest}\"")).collect();
    let run = r#"{"Env": ["PATH=/bin"], "Entrypoint": ["/hello"], "WorkingDir": "/", "User": "7"}"#;
    format!(
        r#"{{"architecture": "{architecture}", "os": "linux", "config": {run}, "rootfs": {{"type": "layers", "diff_ids": [{}]}}}}"#,
        diff_ids.join(",")
    )
}

/// Imports a file that must have exactly one image.
pub fn import_one(store: &ImageStore, path: &Path) -> Result<Image, ImageError> {
    let mut images = store.import(path, &mut |_| ())?;
    assert_eq!(images.len(), 1);
    Ok(images.remove(0))
}

/// Files in the folders of a store, except its lock. The list is empty after an operation that has failed correctly.
pub fn left_in(store: &Path) -> Vec<String> {
    let folders = ["", "images", "names", "layers", "facts"].map(|name| store.join(name));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["images", "names", "layers", "facts", "lock"].contains(&name.as_str())).collect()
}
