//! Tests of the decoders of image indexes, manifests and configurations.

use super::*;

fn descriptor(media_type: &str) -> String {
    format!(r#"{{"mediaType": "{media_type}", "digest": "{}", "size": 7}}"#, Digest::of(b"x"))
}

fn manifest(media_type: &str, layer: &str, layers: usize) -> Vec<u8> {
    let layers = vec![descriptor(layer); layers].join(",");
    let config = descriptor("application/vnd.oci.image.config.v1+json");
    format!(
        r#"{{"schemaVersion": 2, "mediaType": "{media_type}", "config": {config}, "layers": [{layers}]}}"#
    )
    .into_bytes()
}

fn config(rest: &str) -> Vec<u8> {
    format!(r#"{{"architecture": "{HERE}", "os": "linux", "rootfs": {{"diff_ids": []}}{rest}}}"#).into_bytes()
}

fn entry(os: &str, architecture: &str, variant: &str) -> IndexEntry {
    let platform = Platform { os: os.into(), architecture: architecture.into(), variant: variant.into() };
    let descriptor =
        Descriptor { media_type: String::new(), digest: Digest::of(variant.as_bytes()), size_bytes: 1 };
    IndexEntry { descriptor, platform: Some(platform), annotations: None }
}

#[test]
fn manifests_of_both_kinds_are_read() {
    let layers = [
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.oci.image.layer.v1.tar",
    ];
    for (media_type, layer) in MANIFEST_TYPES.iter().flat_map(|kind| layers.map(|layer| (kind, layer))) {
        let ImageDocument::Manifest(manifest) = ImageDocument::read(&manifest(media_type, layer, 2)).unwrap()
        else {
            panic!("it is a manifest");
        };
        assert_eq!((manifest.layers.len(), manifest.layers[0].size_bytes), (2, 7));
    }
}

#[test]
fn what_could_be_taken_for_something_else_is_refused() {
    let (config, layer) = (descriptor("c"), "application/vnd.oci.image.layer.v1.tar");
    let both = format!(r#"{{"schemaVersion": 2, "config": {config}, "layers": [], "manifests": []}}"#);
    let twice = r#"{"schemaVersion": 2, "manifests": [], "manifests": []}"#;
    let old = r#"{"schemaVersion": 1, "manifests": []}"#;
    for document in [both.as_bytes(), twice.as_bytes(), old.as_bytes(), b"{}", b"[]", b"null", b"\"x\"", b""]
    {
        assert!(ImageDocument::read(document).is_err(), "{}", String::from_utf8_lossy(document));
    }
    assert!(ImageDocument::read(&manifest(INDEX_TYPES[0], layer, 1)).is_err(), "an index's type");
    for wrong in ["", "application/wasm", "application/vnd.oci.image.layer.v1.tar+encrypted"] {
        let read = ImageDocument::read(&manifest(MANIFEST_TYPES[0], wrong, 1));
        assert!(matches!(read, Err(ImageError::MediaType { .. })), "{wrong}");
    }
}

#[test]
fn thousands_of_layers_and_bombs_of_json_are_refused() {
    let layer = "application/vnd.oci.image.layer.v1.tar";
    assert!(ImageDocument::read(&manifest(MANIFEST_TYPES[0], layer, MAX_LAYERS)).is_ok());
    let read = ImageDocument::read(&manifest(MANIFEST_TYPES[0], layer, 5000));
    assert!(matches!(read, Err(ImageError::Layers(5000))), "{read:?}");
    let deep = ["[".repeat(1 << 20), "]".repeat(1 << 20)].concat();
    assert!(matches!(ImageDocument::read(deep.as_bytes()), Err(ImageError::Json { .. })));
    let nested =
        config(&format!(r#", "config": {{"Labels": {}{}}}"#, r#"{"a":"#.repeat(1000), "}".repeat(1000)));
    assert!(matches!(Config::read(&nested), Err(ImageError::Json { .. })));
    let large = vec![b' '; MAX_DOCUMENT_BYTES as usize + 1];
    assert!(matches!(ImageDocument::read(&large), Err(ImageError::TooLarge { .. })));
    let diff_ids = vec![format!("\"{}\"", Digest::of(b"")); MAX_LAYERS + 1].join(",");
    let many =
        format!(r#"{{"architecture": "{HERE}", "os": "linux", "rootfs": {{"diff_ids": [{diff_ids}]}}}}"#);
    assert!(matches!(Config::read(many.as_bytes()), Err(ImageError::Layers(_))));
}

#[test]
fn sizes_and_digests_are_what_they_are_called() {
    for (from, to) in
        [("\"size\": 7", "\"size\": -7"), ("\"size\": 7", "\"size\": 7.5"), ("sha256:", "sha1:")]
    {
        let wrong = String::from_utf8(manifest(MANIFEST_TYPES[0], "x", 1)).unwrap().replace(from, to);
        assert!(matches!(ImageDocument::read(wrong.as_bytes()), Err(ImageError::Json { .. })), "{to}");
    }
}

#[test]
fn this_machine_takes_what_all_of_its_kind_can_run() {
    let base = BASE_VARIANTS.iter().find(|(here, _)| *here == HERE).map_or("", |(_, base)| base);
    let entries = [
        entry("windows", HERE, ""),
        entry("linux", "s390x", ""),
        entry("linux", HERE, "v9"),
        entry("linux", HERE, base),
        entry("linux", HERE, ""),
    ];
    assert_eq!(choose(&entries).unwrap(), &entries[3]);
    let silent = IndexEntry { platform: None, ..entry("", "", "silent") };
    assert_eq!(choose(&[entries[0].clone(), silent.clone()]).unwrap(), &silent);
    let error = choose(&entries[..3]).unwrap_err().to_string();
    assert!(error.contains("linux/s390x") && error.contains(HERE), "{error}");
    assert!(matches!(choose(&[]), Err(ImageError::Architecture { .. })));
}

#[test]
fn a_configuration_says_how_an_image_is_run() {
    let read = Config::read(&config(
        r#", "config": {"User": "1:2", "Env": ["A=b=c", "EMPTY=", "nothing", "=x"], "Entrypoint": ["/a"], "Cmd": ["b"],
        "WorkingDir": "/w", "Labels": null}"#,
    ));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = Config {
        architecture: HERE.into(),
        env: vec![pair("A", "b=c"), pair("EMPTY", "")],
        user: "1:2".into(),
        working_folder: "/w".into(),
        entry_point: vec!["/a".into()],
        cmd: vec!["b".into()],
        diff_ids: vec![],
    };
    assert_eq!(read.unwrap(), expected);
    let nothing = Config::read(&config(r#", "config": {"Env": null, "Cmd": null}"#)).unwrap();
    assert_eq!(nothing, Config { architecture: HERE.into(), ..Config::default() });
}

#[test]
fn a_configuration_that_cannot_be_run_here_is_refused() {
    let other = String::from_utf8(config("")).unwrap().replace(HERE, "s390x");
    assert!(matches!(Config::read(other.as_bytes()), Err(ImageError::Architecture { .. })));
    for zero in [r#"{"User": "\u0000"}"#, r#"{"Env": ["A=\u0000"]}"#, r#"{"Cmd": ["a\u0000b"]}"#] {
        let read = Config::read(&config(&format!(r#", "config": {zero}"#)));
        assert!(matches!(read, Err(ImageError::Document { .. })), "{zero}");
    }
}
