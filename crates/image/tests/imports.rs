//! Images from files and folders, and the refusal of those that are not what they claim to be.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use sublet_image::manifest::HERE;
use sublet_image::{Digest, DocumentPart, ImageError, ImageLimits, ImageStore};
use sublet_proto::Code;

use crate::making::{self, CONFIG, INDEX, LAYER, Layer, Layout, MANIFEST, Tar, gzip, import_one, left_in};

fn layers() -> [Layer; 2] {
    let bottom = Tar::new().file("hello", b"bottom").file("only/below", b"b").finish();
    [Layer::plain(bottom), Layer::gzip(&Tar::new().file("hello", b"top").finish())]
}

/// A folder with a store, and with space for files to import.
fn place() -> (tempfile::TempDir, ImageStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    (folder, store)
}

/// Checks that the import fails with this code, and leaves nothing.
fn refused(path: &Path, store: &ImageStore, folder: &Path, code: Code) -> ImageError {
    let error = store.import(path, &mut |_| ()).expect_err("it is refused");
    assert_eq!(sublet_proto::Error::from(store.import(path, &mut |_| ()).unwrap_err()).code, code, "{error}");
    let store_folder = folder.join("store");
    assert!(left_in(&store_folder).iter().all(|name| !name.starts_with('.')), "{error}");
    // Layers that were complete stay for the next attempt, but no longer.
    store.prune().unwrap();
    assert_eq!(left_in(&store_folder), Vec::<String>::new(), "{error}");
    error
}

#[test]
fn a_layout_is_taken_as_folder_as_archive_and_compressed() {
    let (folder, store) = place();
    let layout = Layout::of(&folder.path().join("layout"), &layers());
    let image = import_one(&store, &layout.folder).unwrap();
    assert_eq!(image.layers.len(), 2);
    let read = |layer: usize, name: &str| fs::read(image.layers[layer].join(name)).unwrap();
    assert_eq!((read(0, "hello"), read(1, "hello")), (b"bottom".to_vec(), b"top".to_vec()));
    assert_eq!(image.config.env, [("PATH".to_owned(), "/bin".to_owned())]);
    assert_eq!(
        (image.config.user.as_str(), image.config.entry_point.as_slice()),
        ("7", &["/hello".to_owned()][..])
    );
    for (name, bytes) in [("a.tar", layout.tar()), ("b.tar.gz", gzip(&layout.tar()))] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        assert_eq!(import_one(&store, &path).unwrap(), image, "{name}");
    }
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&image));
    assert_eq!(store.find(&image.digest).unwrap(), Some(image));
}

/// Creates an archive as `docker save` wrote them before layouts: a layer that two images have is linked.
fn docker_archive(layers: &[Layer; 2]) -> Vec<u8> {
    let config = making::configuration(HERE, &[layers[0].diff_id, layers[1].diff_id]);
    let second = making::configuration(HERE, &[layers[0].diff_id]);
    let list = r#"[{"Config": "c.json", "RepoTags": ["app:1", "lab:5000/x"], "Layers": ["1/layer.tar", "2/layer.tar"]},
        {"Config": "d.json", "RepoTags": null, "Layers": ["3/layer.tar"]}]"#;
    Tar::new()
        .folder("1/")
        .file("1/layer.tar", &layers[0].blob)
        .file("2/layer.tar", &layers[1].blob)
        .symbolic_link("3/layer.tar", "../1/layer.tar")
        .file("c.json", config.as_bytes())
        .file("d.json", second.as_bytes())
        .file("manifest.json", list.as_bytes())
        .finish()
}

#[test]
fn an_archive_of_docker_save_is_taken_with_its_names() {
    let (folder, store) = place();
    let path = folder.path().join("saved.tar");
    fs::write(&path, docker_archive(&layers())).unwrap();
    let images = store.import(&path, &mut |_| ()).unwrap();
    assert_eq!(images[0].names, ["docker.io/library/app:1", "lab:5000/x:latest"]);
    assert_eq!((images[0].layers.len(), images[1].layers.len()), (2, 1));
    assert_eq!(images[0].layers[0], images[1].layers[0], "a layer is there once");
    let config = making::configuration(HERE, &[layers()[0].diff_id]);
    assert_eq!(
        images[1].digest,
        Digest::of(config.as_bytes()),
        "without a manifest it is named by its configuration"
    );
    assert_eq!(store.named("lab:5000/x:latest").unwrap().as_ref(), Some(&images[0]));
}

#[test]
fn a_name_goes_to_the_image_that_had_it_last() {
    let (folder, store) = place();
    let import = |name: &str, layers: &[Layer]| {
        let layout = Layout::new(&folder.path().join(name));
        let annotations = r#", "annotations": {"io.containerd.image.name": "app:1"}}"#;
        layout.index(&[layout.manifest(layers).replace('}', annotations)]);
        import_one(&store, &layout.folder).unwrap()
    };
    let (old, new) = (import("old", &layers()[..1]), import("new", &layers()));
    assert_eq!(store.named("docker.io/library/app:1").unwrap().unwrap().digest, new.digest);
    assert_eq!(store.find(&old.digest).unwrap().unwrap().names, Vec::<String>::new());
    store.remove(&new.digest).unwrap();
    assert_eq!(store.named("docker.io/library/app:1").unwrap(), None);
    assert!(matches!(store.remove(&new.digest), Err(ImageError::Unknown(_))));
}

#[test]
fn imports_this_machines_image_and_finds_it_by_both_digests() {
    let (folder, store) = place();
    let layout = Layout::new(&folder.path().join("layout"));
    let platform = |architecture: &str| {
        let platform = format!(r#", "platform": {{"os": "linux", "architecture": "{architecture}"}}}}"#);
        layout.manifest(&layers()).replace('}', &platform)
    };
    let missing = making::descriptor(MANIFEST, &Digest::of(b"other"), 5);
    let other = missing.replace('}', r#", "platform": {"os": "linux", "architecture": "s390x"}}"#);
    let index = making::index(&[other, platform(HERE)]);
    layout.index(&[layout.blob(INDEX, index.as_bytes())]);
    let image = import_one(&store, &layout.folder).unwrap();
    let by_index = Digest::of(index.as_bytes());
    assert!(by_index != image.digest);
    assert_eq!(store.find(&by_index).unwrap().unwrap(), image);
}

#[test]
fn blobs_that_are_not_what_was_announced_are_refused() {
    let (folder, store) = place();
    for (index, part) in
        [DocumentPart::Layer, DocumentPart::Config, DocumentPart::Manifest].into_iter().enumerate()
    {
        for (name, change) in changes() {
            let layout = Layout::of(&folder.path().join(format!("{index}{name}")), &layers());
            let manifest = fs::read_to_string(layout.folder.join("index.json")).unwrap();
            let manifest = digests(&manifest).remove(0);
            let parts = digests(&fs::read_to_string(layout.blob_path(&manifest)).unwrap());
            let blob = match part {
                DocumentPart::Manifest => manifest,
                DocumentPart::Config => parts[0],
                _ => parts[2],
            };
            change(&layout.blob_path(&blob));
            refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
        }
    }
}

/// Only its digest or its size distinguishes the configuration from the announced one.
#[test]
fn a_configuration_that_makes_sense_and_is_another_is_refused() {
    let (folder, store) = place();
    let change = |name: &str, change: &dyn Fn(String) -> String| {
        let layout = Layout::of(&folder.path().join(name), &layers());
        let index = fs::read_to_string(layout.folder.join("index.json")).unwrap();
        let manifest = fs::read_to_string(layout.blob_path(&digests(&index)[0])).unwrap();
        let path = layout.blob_path(&digests(&manifest)[0]);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, change(text)).unwrap();
        refused(&layout.folder, &store, folder.path(), Code::InvalidImage)
    };
    let other = change("other", &|text| text.replace(r#""User": "7""#, r#""User": "0""#));
    assert!(matches!(other, ImageError::DigestMismatch { part: DocumentPart::Config, .. }), "{other}");
    let longer = change("longer", &|text| text + " ");
    assert!(matches!(longer, ImageError::Size { relation: "more than", .. }), "{longer}");
    let shorter = change("shorter", &|text| text.replacen(": ", ":", 1));
    assert!(matches!(shorter, ImageError::Size { relation: "fewer than", .. }), "{shorter}");
}

#[test]
fn more_members_images_or_layers_than_may_be_are_refused() {
    let (folder, store) = place();
    let path = folder.path().join("saved");
    let refused_of = |tar: Tar| {
        fs::write(&path, tar.finish()).unwrap();
        refused(&path, &store, folder.path(), Code::InvalidImage)
    };
    let many = (0..=65_536).fold(Tar::new(), |tar, number| tar.file(&number.to_string(), b""));
    let error = refused_of(many);
    assert!(matches!(error, ImageError::TooLarge { limit: 65_536, .. }), "{error}");
    let list = |text: String| Tar::new().file("c", b"{}").file("manifest.json", text.as_bytes());
    let image = r#"{"Config": "c", "Layers": []}"#;
    let error = refused_of(list(format!("[{}]", [image; 257].join(","))));
    assert!(matches!(error, ImageError::TooLarge { limit: 256, .. }), "{error}");
    let layers = [r#""c""#; 128].join(",");
    let error = refused_of(list(format!(r#"[{{"Config": "c", "Layers": [{layers}]}}]"#)));
    assert!(matches!(error, ImageError::Layers(128)), "{error}");
}

type Change = (&'static str, fn(&Path));

/// Changes of a blob that must be detected.
fn changes() -> [Change; 5] {
    [
        ("other", |path| {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("truncated", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("longer", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, [&bytes[..], b"x"].concat()).unwrap();
        }),
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("a link out", |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        }),
    ]
}

/// The digests that a document names, in order.
fn digests(document: &str) -> Vec<Digest> {
    document.split('"').filter_map(|text| text.parse().ok()).collect()
}

#[test]
fn refuses_a_layer_with_another_diff_id() {
    let (folder, store) = place();
    let wrong = Layer { diff_id: Digest::of(b"something else"), ..layers()[1].clone() };
    let layout = Layout::of(&folder.path().join("layout"), &[wrong]);
    let error = refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
    assert!(matches!(error, ImageError::DigestMismatch { part: DocumentPart::Layer, .. }), "{error}");
}

#[test]
fn a_layer_that_wants_out_leaves_nothing() {
    let (folder, store) = place();
    let hostile = Tar::new().file("good", b"x").symbolic_link("link", "..").file("link/out", b"x").finish();
    let layout = Layout::of(&folder.path().join("layout"), &[Layer::gzip(&hostile)]);
    refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
}

#[test]
fn a_bomb_is_refused_before_it_fills_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let limits = ImageLimits { unpacked_bytes: 1 << 20, files: 10 };
    let store = ImageStore::open_with(folder.path().join("store"), limits).unwrap();
    let bomb = Tar::new().file("zeros", &vec![0; 2 << 20]).finish();
    // Two layers that are each within the limits exceed them together.
    let halves = ["a", "b"].map(|name| Layer::gzip(&Tar::new().file(name, &vec![0; 600 << 10]).finish()));
    let mut many = Tar::new();
    for index in 0..11 {
        many = many.file(&index.to_string(), b"");
    }
    let packed = gzip(&bomb);
    let twice = Layer { blob: gzip(&packed), diff_id: Digest::of(&packed) };
    let images = [
        vec![Layer::gzip(&bomb)],
        halves.to_vec(),
        vec![Layer::gzip(&many.finish())],
        vec![Layer::plain(bomb)],
    ];
    for (index, layers) in images.iter().enumerate() {
        let layout = Layout::of(&folder.path().join(index.to_string()), layers);
        let error = store.import(&layout.folder, &mut |_| ()).expect_err("it is too large");
        assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
        assert_eq!(store.list().unwrap(), []);
    }
    // A layer that is compressed twice is not an archive after one decompression.
    let layout = Layout::of(&folder.path().join("twice"), &[twice]);
    store.import(&layout.folder, &mut |_| ()).unwrap_err();
    // A blob larger than the limit of all layers is not fetched at all.
    let huge = Layout::new(&folder.path().join("huge"));
    let diff_id = Digest::of(b"never read");
    let config = huge.blob(CONFIG, making::configuration(HERE, &[diff_id]).as_bytes());
    let layer = making::descriptor(making::LAYER, &diff_id, 2 << 20);
    huge.index(&[huge.blob(MANIFEST, making::manifest(&config, &[layer]).as_bytes())]);
    let error = store.import(&huge.folder, &mut |_| ()).unwrap_err();
    assert!(
        matches!(error, ImageError::TooLarge { part: DocumentPart::Layer, unit: "bytes", .. }),
        "{error}"
    );
    let archive = folder.path().join("bomb.tar.gz");
    fs::write(&archive, gzip(&vec![0; 8 << 20])).unwrap();
    let error = store.import(&archive, &mut |_| ()).unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { part: DocumentPart::Archive, .. }), "{error}");
}

#[test]
fn indexes_that_lead_to_themselves_or_too_far_are_refused() {
    let (folder, store) = place();
    let layout = Layout::new(&folder.path().join("layout"));
    // No document can contain its own digest, so one that leads to itself has a wrong digest.
    let itself = Digest::of(b"itself");
    let index = making::index(&[making::descriptor(INDEX, &itself, 200)]);
    fs::write(layout.blob_path(&itself), &index).unwrap();
    layout.index(&[making::descriptor(INDEX, &itself, index.len())]);
    refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
    let mut next = layout.manifest(&layers());
    for _ in 0..20 {
        next = layout.blob(INDEX, making::index(&[next]).as_bytes());
    }
    layout.index(&[next]);
    let error = refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
    assert!(matches!(error, ImageError::Depth), "{error}");
}

#[test]
fn manifests_with_thousands_of_layers_and_other_bombs_are_refused() {
    let (folder, store) = place();
    let layout = Layout::new(&folder.path().join("layout"));
    let (config, layer) = (layout.blob(CONFIG, b"{}"), layout.blob(LAYER, b""));
    let deep = ["{\"a\":".repeat(100_000), "}".repeat(100_000)].concat();
    let long = format!("{{\"schemaVersion\": 2, \"a\": \"{}\"}}", "x".repeat(5 << 20));
    for document in [making::manifest(&config, &vec![layer; 3000]), deep, long] {
        layout.index(&[layout.blob(MANIFEST, document.as_bytes())]);
        refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
        fs::write(layout.folder.join("index.json"), document).unwrap();
        refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
    }
}

#[test]
fn what_is_for_other_machines_or_no_image_says_so() {
    let (folder, store) = place();
    let layout = Layout::new(&folder.path().join("layout"));
    let config = layout.blob(CONFIG, making::configuration("s390x", &[]).as_bytes());
    layout.index(&[layout.blob(MANIFEST, making::manifest(&config, &[]).as_bytes())]);
    refused(&layout.folder, &store, folder.path(), Code::WrongArchitecture);
    let config = layout.blob(CONFIG, making::configuration(HERE, &[Digest::of(b"")]).as_bytes());
    layout.index(&[layout.blob(MANIFEST, making::manifest(&config, &[]).as_bytes())]);
    refused(&layout.folder, &store, folder.path(), Code::InvalidImage);
    for (name, bytes) in
        [("empty", &b""[..]), ("text", b"no tar"), ("other.tar", &Tar::new().file("a", b"").finish())]
    {
        fs::write(folder.path().join(name), bytes).unwrap();
        refused(&folder.path().join(name), &store, folder.path(), Code::InvalidImage);
    }
    refused(Path::new("/nowhere"), &store, folder.path(), Code::System);
    refused(Path::new("/dev/zero"), &store, folder.path(), Code::InvalidImage);
    let lists = [
        r#"[{"Config": "../../etc/passwd", "Layers": []}]"#,
        r#"[{"Config": "c", "Layers": ["/dev/zero"]}]"#,
    ];
    for list in lists {
        fs::write(
            folder.path().join("saved"),
            Tar::new().file("c", b"{}").file("manifest.json", list.as_bytes()).finish(),
        )
        .unwrap();
        refused(&folder.path().join("saved"), &store, folder.path(), Code::InvalidImage);
    }
    let looped = Tar::new().symbolic_link("index.json", "a").symbolic_link("a", "index.json").finish();
    fs::write(folder.path().join("looped"), looped).unwrap();
    refused(&folder.path().join("looped"), &store, folder.path(), Code::InvalidImage);
}
