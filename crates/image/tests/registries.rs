//! Images from registries: from Debian's registry, and from fake ones that send wrong answers.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use sublet_image::manifest::HERE;
use sublet_image::{
    Credentials, Digest, Image, ImageError, ImageStore, PruneResult, Reference, RegistryAccess,
    RegistryTransport, resolve,
};
use sublet_means::{Means, skip};
use sublet_proto::Code;

use crate::making::{self, INDEX, Layer, Layout, Tar, import_one, left_in};
use crate::serving::{Answer, DebianRegistry, FakeRegistry, always, respond};

fn me() -> RegistryAccess {
    let credentials = Credentials::Basic { user: "me".into(), password: "se:cret".into() };
    RegistryAccess { credentials, ..RegistryAccess::default() }
}

fn pull(store: &ImageStore, name: &str, access: &RegistryAccess) -> Result<Image, ImageError> {
    store.pull(&name.parse().unwrap(), access, &mut |_| ())
}

fn code(outcome: Result<Image, ImageError>) -> Code {
    sublet_proto::Error::from(outcome.expect_err("it fails")).code
}

fn layers() -> Vec<Layer> {
    let bottom = Tar::new().file("hello", b"bottom").finish();
    vec![Layer::gzip(&bottom), Layer::gzip(&Tar::new().file(".wh.hello", b"").file("top", b"top").finish())]
}

#[test]
fn pulls_an_image_by_tag_and_pins_its_digest() {
    let (registry, folder) = (DebianRegistry::start(), tempfile::tempdir().unwrap());
    let layout = Layout::new(&folder.path().join("layout"));
    let entry = layout.manifest(&layers());
    layout.index(std::slice::from_ref(&entry));
    registry.push(&layout.folder, "some/app", "1");
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    let name = format!("localhost:{}/some/app:1", registry.port);
    let mut last = sublet_image::PullProgress::default();
    let image = store
        .pull(&name.parse().unwrap(), &RegistryAccess::default(), &mut |progress| last = progress)
        .unwrap();
    assert_eq!((last.fetched_bytes, last.layers_done, last.layers), (last.wanted_bytes, 2, 2));
    assert_eq!(image.names, std::slice::from_ref(&name));
    assert_eq!(fs::read(image.layers[0].join("hello")).unwrap(), b"bottom");
    // The tag moves to another image; the pinned digest does not.
    let digest = resolve(&name.parse().unwrap(), &RegistryAccess::default()).unwrap();
    assert_eq!(digest, image.digest);
    layout.index(&[layout.manifest(&layers()[..1])]);
    registry.push(&layout.folder, "some/app", "1");
    let moved = pull(&store, &name, &RegistryAccess::default()).unwrap();
    assert!(moved.digest != digest && moved.layers == image.layers[..1]);
    let other = ImageStore::open(folder.path().join("other")).unwrap();
    let pinned: Reference = format!("localhost:{}/some/app@{digest}", registry.port).parse().unwrap();
    assert_eq!(other.pull(&pinned, &RegistryAccess::default(), &mut |_| ()).unwrap().digest, digest);
    assert_eq!(resolve(&pinned, &RegistryAccess::default()).unwrap(), digest);
    for missing in ["some/app:2", "another/app:1"] {
        let name = format!("localhost:{}/{missing}", registry.port);
        assert_eq!(code(pull(&other, &name, &RegistryAccess::default())), Code::UnknownImage, "{missing}");
    }
}

#[test]
fn of_several_architectures_this_machine_s_is_pulled() {
    let (registry, folder) = (DebianRegistry::start(), tempfile::tempdir().unwrap());
    let layout = Layout::new(&folder.path().join("layout"));
    let entry = |layers: &[Layer], architecture: &str| {
        let platform = format!(r#", "platform": {{"os": "linux", "architecture": "{architecture}"}}}}"#);
        layout.manifest(layers).replace('}', &platform)
    };
    let index = making::index(&[entry(&layers()[..1], "s390x"), entry(&layers(), HERE)]);
    layout.index(&[layout.blob(INDEX, index.as_bytes())]);
    registry.push(&layout.folder, "app", "latest");
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    let name = format!("localhost:{}/app", registry.port);
    let image = pull(&store, &name, &RegistryAccess::default()).unwrap();
    assert_eq!(image.layers.len(), 2);
    let index = Digest::of(index.as_bytes());
    assert_eq!(resolve(&name.parse().unwrap(), &RegistryAccess::default()).unwrap(), index);
    assert_eq!(store.find(&index).unwrap().unwrap().digest, image.digest);
}

#[test]
fn accepts_only_the_right_password_for_a_registry() {
    let (registry, folder) = (DebianRegistry::with_password(), tempfile::tempdir().unwrap());
    let store = ImageStore::open(folder.path()).unwrap();
    let name = format!("localhost:{}/app", registry.port);
    assert_eq!(code(pull(&store, &name, &RegistryAccess::default())), Code::Unauthenticated);
    let wrong = Credentials::Basic { user: "me".into(), password: "wrong".into() };
    assert_eq!(
        code(pull(&store, &name, &RegistryAccess { credentials: wrong, ..RegistryAccess::default() })),
        Code::Unauthenticated
    );
    // The registry admits the user, and reports that there is no such image.
    assert_eq!(code(pull(&store, &name, &me())), Code::UnknownImage);
}

/// Runs Debian's umoci, which makes images.
fn umoci(folder: &Path, arguments: &[&str]) {
    let output =
        Command::new("umoci").args(arguments).current_dir(folder).output().expect("umoci is installed");
    assert!(output.status.success(), "umoci {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn umoci_layout(folder: &Path) -> PathBuf {
    umoci(folder, &["init", "--layout", "layout"]);
    umoci(folder, &["new", "--image", "layout:app"]);
    folder.join("layout")
}

#[test]
fn runs_an_image_of_a_static_program_from_debians_tools() {
    let (registry, folder) = (DebianRegistry::start(), tempfile::tempdir().unwrap());
    let source = folder.path().join("hello.c");
    fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"hello from an image\"); return 0; }\n")
        .unwrap();
    let program = folder.path().join("hello");
    let built = Command::new("cc").args(["-static", "-O1", "-o"]).args([&program, &source]).status().unwrap();
    assert!(built.success());
    let layout = umoci_layout(folder.path());
    umoci(folder.path(), &["insert", "--rootless", "--image", "layout:app", "hello", "/bin/hello"]);
    umoci(
        folder.path(),
        &["config", "--image", "layout:app", "--config.entrypoint", "/bin/hello", "--config.env", "A=b"],
    );
    registry.push(&layout, "hello", "latest");
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    let image =
        pull(&store, &format!("localhost:{}/hello", registry.port), &RegistryAccess::default()).unwrap();
    assert_eq!(image.config.entry_point, ["/bin/hello"]);
    assert_eq!(
        image.config.env.iter().find(|(name, _)| name == "A").map(|(_, value)| value.as_str()),
        Some("b")
    );
    let layer = image.layers.last().unwrap();
    let output = Command::new(layer.join("bin/hello")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello from an image\n");
}

/// Creates a root with a shell, its libraries and some files that are hidden later.
fn small_root(folder: &Path) {
    let list = Command::new("ldd").arg("/bin/sh").output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    for path in
        list.split_whitespace().filter(|word| word.starts_with('/')).chain(["/bin/sh", "/etc/os-release"])
    {
        let to = folder.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path, to).unwrap();
    }
    fs::write(folder.join("etc/gone"), "x").unwrap();
    fs::create_dir(folder.join("etc/old")).unwrap();
    fs::write(folder.join("etc/old/file"), "x").unwrap();
}

#[test]
fn runs_a_debian_like_root_as_an_overlay() {
    let (registry, folder) = (DebianRegistry::start(), tempfile::tempdir().unwrap());
    small_root(&folder.path().join("root"));
    fs::create_dir(folder.path().join("new")).unwrap();
    fs::write(folder.path().join("new/file2"), "x").unwrap();
    let layout = umoci_layout(folder.path());
    umoci(folder.path(), &["insert", "--rootless", "--image", "layout:app", "root", "/"]);
    umoci(folder.path(), &["insert", "--rootless", "--image", "layout:app", "--whiteout", "/etc/gone"]);
    umoci(folder.path(), &["insert", "--rootless", "--image", "layout:app", "--opaque", "new", "/etc/old"]);
    registry.push(&layout, "debian/like", "12");
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    let image =
        pull(&store, &format!("localhost:{}/debian/like:12", registry.port), &RegistryAccess::default())
            .unwrap();
    assert_eq!(image.layers.len(), 3);
    let lower: Vec<_> = image.layers.iter().rev().map(|layer| layer.display().to_string()).collect();
    let merged = folder.path().join("merged");
    fs::create_dir(&merged).unwrap();
    let script = r#"PATH=$PATH:/usr/sbin:/sbin; mount -t overlay -o "userxattr,lowerdir=$1" overlay "$2" && chroot "$2" /bin/sh -c 'echo /etc/* /etc/old/*'"#;
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(lower.join(":"))
        .arg(&merged);
    let output = command.output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    if complained.contains("unshare:") {
        return skip(Means::Namespaces, format_args!("this user may not make namespaces: {complained}"));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "/etc/old /etc/os-release /etc/old/file2", "{complained}");
}

/// Creates the answers for an image, by the paths under which a registry has them.
fn honest(layers: &[Layer]) -> (BTreeMap<String, Answer>, Digest) {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::of(&folder.path().join("layout"), layers);
    let mut answers = BTreeMap::new();
    for entry in fs::read_dir(layout.folder.join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let digest = format!("sha256:{}", path.file_name().unwrap().to_str().unwrap());
        answers.insert(format!("/v2/app/blobs/{digest}"), always("200 OK", vec![], fs::read(path).unwrap()));
    }
    let index = fs::read_to_string(layout.folder.join("index.json")).unwrap();
    let digest = index.split('"').find_map(|text| text.parse::<Digest>().ok()).unwrap();
    let manifest = fs::read(layout.blob_path(&digest)).unwrap();
    answers.remove(&format!("/v2/app/blobs/{digest}"));
    answers.insert("/v2/app/manifests/".into(), always("200 OK", vec![], manifest));
    (answers, digest)
}

fn pull_from(registry: &FakeRegistry, access: &RegistryAccess) -> (Result<Image, ImageError>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let store = ImageStore::open(folder.path()).unwrap();
    let outcome = pull(&store, &format!("localhost:{}/app", registry.port), access);
    store.prune().unwrap();
    (outcome, left_in(folder.path()))
}

/// Checks that the pull fails with this code and leaves nothing.
fn refused(answers: BTreeMap<String, Answer>, expected: Code) {
    let (outcome, left) = pull_from(&FakeRegistry::start(answers), &RegistryAccess::default());
    let said = format!("{outcome:?}");
    assert_eq!(code(outcome), expected, "{said}");
    assert_eq!(left, Vec::<String>::new(), "{said}");
}

#[test]
fn requests_a_token_and_sends_it_only_to_the_registry() {
    let (images, digest) = honest(&layers());
    let elsewhere = FakeRegistry::start(images.clone());
    let mut answers = BTreeMap::new();
    let realm = FakeRegistry::start(BTreeMap::from([(
        "/token?".to_owned(),
        always("200 OK", vec![], br#"{"access_token": "abc"}"#.to_vec()),
    )]));
    let (realm_port, other_port) = (realm.port, elsewhere.port);
    let serve: Answer = Arc::new(move |head, stream| {
        let path = head.split(' ').nth(1).unwrap();
        if !head.to_lowercase().contains("authorization: bearer abc") {
            let challenge = format!(
                "WWW-Authenticate: Bearer realm=\"http://localhost:{realm_port}/token\",service=\"s\""
            );
            return respond(stream, "401 Unauthorized", &[&challenge], b"");
        }
        match images.iter().find(|(prefix, _)| path.starts_with(prefix.as_str())) {
            // Blobs are on another server, as with most registries.
            Some(_) if path.contains("/blobs/") => {
                let location = format!("Location: http://127.0.0.1:{other_port}{path}");
                respond(stream, "307 Temporary Redirect", &[&location], b"");
            }
            Some((_, answer)) => answer(head, stream),
            None => respond(stream, "404 Not Found", &[], b""),
        }
    });
    answers.insert("/v2/".to_owned(), serve);
    let registry = FakeRegistry::start(answers);
    let (outcome, _) = pull_from(&registry, &me());
    assert_eq!(outcome.unwrap().digest, digest);
    let asked = &realm.requests()[0];
    assert!(asked.contains("service=s") && asked.contains("scope=repository"), "{asked}");
    assert!(
        asked.to_lowercase().contains("authorization: basic bwu6c2u6y3jldA==".to_lowercase().as_str()),
        "{asked}"
    );
    assert_eq!(realm.requests().len(), 1, "one token is enough");
    assert!(elsewhere.requests().len() == 3, "{:?}", elsewhere.requests());
    for request in elsewhere.requests() {
        assert!(!request.to_lowercase().contains("authorization"), "{request}");
    }
    // A client with its own token requests none.
    let token = RegistryAccess { credentials: Credentials::Token("abc".into()), ..RegistryAccess::default() };
    assert_eq!(pull_from(&registry, &token).0.unwrap().digest, digest);
    assert_eq!(realm.requests().len(), 1);
}

#[test]
fn reports_registries_that_refuse_access_or_send_unknown_challenges() {
    for (challenge, expected) in [
        ("Basic realm=\"x\"", Code::Unauthenticated),
        ("Negotiate", Code::Protocol),
        ("Bearer realm=\"ftp://x/\"", Code::Protocol),
        ("Bearer realm=\"http://localhost:1/token\"", Code::RegistryUnreachable),
    ] {
        let header = format!("WWW-Authenticate: {challenge}");
        refused(
            BTreeMap::from([("/".to_owned(), always("401 Unauthorized", vec![header], vec![]))]),
            expected,
        );
    }
    refused(
        BTreeMap::from([("/".to_owned(), always("403 Forbidden", vec![], vec![]))]),
        Code::PermissionDenied,
    );
    refused(
        BTreeMap::from([("/".to_owned(), always("429 Too Many Requests", vec![], vec![]))]),
        Code::TryLater,
    );
    refused(BTreeMap::from([("/".to_owned(), always("500 Oh", vec![], vec![]))]), Code::RegistryUnreachable);
}

#[test]
fn a_registry_that_sends_other_bytes_is_found_out() {
    let name = |answers: &BTreeMap<String, Answer>, index: usize| answers.keys().nth(index).unwrap().clone();
    for blob in 0..3 {
        let (mut answers, _) = honest(&layers());
        let blob = name(&answers, blob);
        answers.insert(blob, always("200 OK", vec![], b"something else".to_vec()));
        refused(answers, Code::InvalidImage);
    }
    let pinned = Digest::of(b"pinned");
    let (answers, _) = honest(&layers());
    let (registry, folder) = (FakeRegistry::start(answers), tempfile::tempdir().unwrap());
    let store = ImageStore::open(folder.path()).unwrap();
    let outcome =
        pull(&store, &format!("localhost:{}/app@{pinned}", registry.port), &RegistryAccess::default());
    assert!(matches!(outcome, Err(ImageError::DigestMismatch { .. })), "{outcome:?}");
}

#[test]
fn gives_up_truncated_endless_and_redirecting_answers() {
    let truncated: Answer = Arc::new(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nonly this");
    });
    let endless: Answer = Arc::new(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
        while stream.write_all(&chunk).is_ok() {}
    });
    let header: Answer = Arc::new(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let in_place_of = |place: &str, answer: &Answer, expected| {
        let (mut answers, _) = honest(&layers());
        let key = answers.keys().find(|path| path.contains(place)).unwrap().clone();
        answers.insert(key, answer.clone());
        refused(answers, expected);
    };
    in_place_of("manifests", &endless, Code::InvalidImage);
    in_place_of("blobs", &endless, Code::InvalidImage);
    for place in ["manifests", "blobs"] {
        in_place_of(place, &truncated, Code::RegistryUnreachable);
        in_place_of(place, &header, Code::RegistryUnreachable);
    }
    let around = always("302 Found", vec!["Location: /around".into()], vec![]);
    let around = FakeRegistry::start(BTreeMap::from([("/".to_owned(), around)]));
    assert_eq!(code(pull_from(&around, &RegistryAccess::default()).0), Code::RegistryUnreachable);
    assert!(around.requests().len() <= 6, "{} requests", around.requests().len());
}

#[test]
fn a_slow_pull_keeps_its_own_layers_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = ImageStore::open(folder.path().join("store")).unwrap();
    let other = Layer::gzip(&Tar::new().file("other", b"other").finish());
    let other = import_one(&store, &Layout::of(&folder.path().join("other"), &[other]).folder).unwrap();
    let (mut answers, digest) = honest(&layers());
    let blob = layers()[1].blob.clone();
    let (ask, asked) = channel();
    let (answer, answered) = channel::<()>();
    let answered = Mutex::new(answered);
    let slow: Answer = Arc::new(move |_, stream| {
        ask.send(()).unwrap();
        // The other end is dropped, also if the test fails.
        let _ = answered.lock().unwrap().recv();
        respond(stream, "200 OK", &[], &blob);
    });
    answers.insert(format!("/v2/app/blobs/{}", Digest::of(&layers()[1].blob)), slow);
    let registry = FakeRegistry::start(answers);
    let name = format!("localhost:{}/app", registry.port);
    let image = std::thread::scope(|scope| {
        let pulling = scope.spawn(|| pull(&store, &name, &RegistryAccess::default()));
        asked.recv().unwrap();
        // The first layer is here, no image has it yet, and the second one is under way.
        assert!(store.remove_if_alone(&other.digest).unwrap(), "the pull keeps another image");
        assert_eq!(store.prune().unwrap(), PruneResult { layers: 0, in_use: 1 });
        drop(answer);
        pulling.join().unwrap().unwrap()
    });
    assert_eq!(image.digest, digest);
    assert_eq!(fs::read(image.layers[0].join("hello")).unwrap(), b"bottom");
    assert_eq!(fs::read(image.layers[1].join("top")).unwrap(), b"top");
    assert!(!other.layers[0].exists());
}

#[test]
fn a_missing_registry_or_one_without_tls_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let store = ImageStore::open(folder.path()).unwrap();
    assert_eq!(code(pull(&store, "localhost:1/app", &RegistryAccess::default())), Code::RegistryUnreachable);
    let (answers, _) = honest(&layers());
    let registry = FakeRegistry::start(answers);
    // This address is not recognized as this machine's own, so TLS is used, which the registry does not support.
    let name = format!("127.0.0.2:{}/app", registry.port);
    assert_eq!(code(pull(&store, &name, &RegistryAccess::default())), Code::RegistryUnreachable);
    // With the transport for untrusted names, the registry receives no bytes at all.
    let stranger = RegistryAccess { transport: RegistryTransport::Elsewhere, ..RegistryAccess::default() };
    for name in [name, format!("localhost:{}/app", registry.port), format!("127.1:{}/app", registry.port)] {
        let refused = pull(&store, &name, &stranger);
        let error = sublet_proto::Error::from(refused.unwrap_err());
        assert_eq!(error.code, Code::RegistryUnreachable);
        assert!(error.message.contains("leads to this machine"), "{error}");
    }
    assert_eq!(registry.requests(), Vec::<String>::new());
}
