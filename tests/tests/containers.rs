//! Functions in the file systems of OCI images: deployed with an image's name, pulled from a real registry by the node, and
//! called as any others.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use sublet::{Allocation, Code, Invoker};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{PlatformProcess, assert_memory_bomb_ends_alone, programs, sublet};
use sublet_tests::process::wait_until;

use crate::making::tar::{FILE, Tar};
use crate::making::{Layer, Layout};
use crate::serving::DebianRegistry;

/// Text of the image's file that functions read.
const ISSUE: &str = "of the image";

/// A registry with an image that has the host's C library, and a folder to work in.
struct Scene {
    registry: DebianRegistry,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene { registry: DebianRegistry::start(), folder: tempfile::tempdir().unwrap() };
        scene.push("with", &[Layer::gzip(&libraries()), Layer::gzip(&issue())]);
        scene.push("without", &[Layer::gzip(&issue())]);
        scene
    }

    fn push(&self, name: &str, layers: &[Layer]) {
        let layout = Layout::of(&self.folder.path().join(name), layers);
        self.registry.push(&layout.folder, name, "1");
    }

    /// A node that pulls from this registry.
    fn platform(&self, more: &[&str]) -> PlatformProcess {
        PlatformProcess::start_with(|up| {
            up.args(more).arg("--registries").arg(format!("localhost:{}", self.registry.port));
        })
    }

    fn name(&self, image: &str) -> String {
        format!("localhost:{}/{image}", self.registry.port)
    }

    /// The folder of a package of `files.c` in an image.
    fn package(&self, name: &str, image: &str) -> String {
        self.package_of("files.c", name, image)
    }

    fn package_of(&self, source: &'static str, name: &str, image: &str) -> String {
        let folder = self.folder.path().join(format!("package-{name}"));
        fs::create_dir(&folder).unwrap();
        fs::copy(library(source), folder.join("functions.so")).unwrap();
        let manifest = format!("name = \"{name}\"\nlibrary = \"functions.so\"\nimage = \"{image}\"\n");
        fs::write(folder.join("sublet.toml"), manifest).unwrap();
        folder.to_str().unwrap().to_owned()
    }
}

/// The shared libraries that the worker program needs, where it looks for them.
fn libraries() -> Vec<u8> {
    let needed = Command::new("ldd").arg(programs().join("sublet-worker")).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    let paths = needed.split_whitespace().filter(|word| word.starts_with('/'));
    let tar = paths.fold(Tar::new(), |tar, path| {
        tar.entry(FILE, path.trim_start_matches('/').as_bytes(), b"", 0o755, &fs::read(path).unwrap())
    });
    tar.finish()
}

fn issue() -> Vec<u8> {
    Tar::new().file("etc/issue", ISSUE.as_bytes()).finish()
}

fn read_file(client: &Invoker, path: &str) -> Result<String, sublet::Error> {
    let mut output = [0u8; 64];
    let done = client.submit("read_file", path.as_bytes(), &mut output).and_then(sublet::Invocation::wait)?;
    Ok(String::from_utf8(output[..done.output_bytes].to_vec()).unwrap())
}

fn write_file(client: &Invoker, path: &str) -> Result<(), sublet::Error> {
    client.submit("write_file", path.as_bytes(), &mut [0u8; 0]).and_then(sublet::Invocation::wait).map(drop)
}

/// Checks that a function finds its image, and that its changes to the image are visible only to itself.
fn assert_runs_in_image(platform: &PlatformProcess, package: &str) {
    for _ in 0..2 {
        let mut client = platform.client_with(&Allocation::new(package));
        assert_eq!(read_file(&client, "/etc/issue").unwrap(), ISSUE);
        // The list of users is not the host's: it has the sandbox's own alone.
        assert!(read_file(&client, "/etc/passwd").unwrap().starts_with("sandbox:x:"));
        assert_fails(read_file(&client, "/etc/shadow"), Code::FunctionFailed, &["cannot be read"]);
        assert_fails(read_file(&client, "/etc/new"), Code::FunctionFailed, &["cannot be read"]);
        write_file(&client, "/etc/new").unwrap();
        write_file(&client, "/etc/issue").unwrap();
        assert_eq!(read_file(&client, "/etc/new").unwrap(), "written");
        assert_eq!(read_file(&client, "/etc/issue").unwrap(), "written");
        assert_fails(write_file(&client, "/package/new"), Code::FunctionFailed, &["cannot be written"]);
        assert!(!read_file(&client, "/package/sublet.toml").unwrap().is_empty());
        client.deallocate().unwrap();
    }
}

#[test]
fn functions_run_in_the_pinned_image_without_its_registry() {
    let scene = Scene::new();
    let platform = scene.platform(&[]);
    let folder = scene.package("app", &scene.name("with:1"));
    let deployed = platform.json(&["deploy", &folder]);
    let image = deployed["builds"][0]["image"].as_str().unwrap();
    let (name, digest) = image.split_once('@').unwrap();
    assert!(name == scene.name("with:1") && digest.len() == 71, "{image}");
    let cold = platform.json(&[
        "bench",
        "cold",
        "--sandbox",
        "container",
        "--n",
        "2",
        "--image",
        &scene.name("with:1"),
    ]);
    assert!(cold["sandbox"] == "container" && cold["steps"].as_array().unwrap().len() == 7, "{cold}");
    // A later change of the tag has no effect.
    scene.push("with", &[Layer::gzip(&Tar::new().file("etc/issue", b"another").finish())]);
    assert_runs_in_image(&platform, "app");
    let other = scene.package("other", &scene.name("without:1"));
    platform.json(&["deploy", &other]);
    drop(scene);
    assert_runs_in_image(&platform, "app");
    let mut client = platform.invoker();
    let refused = client.allocate(&Allocation::new("other"));
    let error = refused.expect_err("no registry has that image any more");
    assert!(error.message.contains("localhost"), "{}: {error}", error.code);
    // Nothing is held by that.
    assert_runs_in_image(&platform, "app");
}

#[test]
fn an_image_is_pulled_over_tls_from_a_trusted_registry() {
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    let of = |address: Ipv4Addr| rcgen::generate_simple_self_signed([address.to_string()]).unwrap();
    let (own, other) = (of(ADDRESS), of(Ipv4Addr::new(127, 0, 0, 3)));
    let Scene { registry, folder } = Scene::new();
    let pull = |port: u16, name: &str, trusted: &rcgen::Certificate| {
        let file = folder.path().join("trusted.pem");
        fs::write(&file, trusted.pem()).unwrap();
        let mut command = sublet();
        command.args(["image", "pull", &format!("{ADDRESS}:{port}/{name}"), "--state"]);
        command.arg(folder.path().join("state")).env("SSL_CERT_FILE", file).output().unwrap()
    };
    let refused = |output: std::process::Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("certificate"), "{said}");
    };
    let registry = registry.over_tls(ADDRESS, &own.cert.pem(), &own.signing_key.serialize_pem());
    refused(pull(registry.port, "with:1", &other.cert));
    let pulled = pull(registry.port, "with:1", &own.cert);
    assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    // Trusted, but of another address.
    let registry = registry.over_tls(ADDRESS, &other.cert.pem(), &other.signing_key.serialize_pem());
    refused(pull(registry.port, "without:1", &other.cert));
}

#[test]
fn a_memory_bomb_in_an_image_is_killed_alone() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "without control groups there is no limit of a sandbox's memory");
        return;
    }
    let scene = Scene::new();
    let image = scene.name("with:1");
    for (name, more) in [("ours", &[][..]), ("theirs", &["--container-runtime", "crun"])] {
        let platform = scene.platform(more);
        let package = scene.package_of("faults.c", name, &image);
        platform.json(&["deploy", &package]);
        assert_memory_bomb_ends_alone(&platform, &Allocation::new(name).memory_bytes(64 << 20));
    }
}

#[test]
fn a_node_uses_only_remote_or_named_registries() {
    let scene = Scene::new();
    let elsewhere = PlatformProcess::start_with(|up| {
        up.args(["--registries", "registry.example.org"]);
    });
    for (number, platform) in [PlatformProcess::start(), elsewhere].iter().enumerate() {
        let name = format!("app{number}");
        platform.json(&["deploy", &scene.package(&name, &scene.name("with:1"))]);
        let refused = platform.invoker().allocate(&Allocation::new(name));
        assert_fails(refused, Code::PermissionDenied, &["pulls no images from localhost", "registries"]);
    }
}

#[test]
fn a_node_keeps_images_within_its_cache_limit() {
    const LIMIT: u64 = 64 << 20;
    let scene = Scene::new();
    let zeros = Tar::new().file("zeros", &vec![0; 2 * LIMIT as usize]).finish();
    let names = (0..5000).fold(Tar::new(), |tar, number| tar.file(&number.to_string(), b"")).finish();
    let platform = scene.platform(&["--cache", "64MiB"]);
    let mut client = platform.invoker();
    for (name, large) in [("zeros", zeros), ("names", names)] {
        scene.push(name, &[Layer::gzip(&large)]);
        platform.json(&["deploy", &scene.package(name, &scene.name(&format!("{name}:1")))]);
        let refused = client.allocate(&Allocation::new(name));
        assert_fails(refused, Code::StoreFull, &[&format!("/{name}:1"), "67108864 bytes", "4096 files"]);
    }
    platform.json(&["deploy", &scene.package("app", &scene.name("with:1"))]);
    assert_runs_in_image(&platform, "app");
    let cache = || platform.json(&["ps", "--nodes"])["nodes"][0]["cache"].take();
    wait_until("the node reports its cache", || cache()["entries"].as_u64() > Some(1));
    let cache = cache();
    assert!(cache["limit_bytes"] == LIMIT && cache["used_bytes"].as_u64().unwrap() <= LIMIT, "{cache}");
}

#[test]
fn what_is_no_image_to_run_in_is_named() {
    let scene = Scene::new();
    let platform = scene.platform(&[]);
    let unpinned = scene.package("unpinned", &scene.name("with:1"));
    let mut client = platform.invoker();
    let refused = client.allocate(&Allocation::new(unpinned));
    assert_fails(refused, Code::InvalidPackage, &["with:1 is not pinned", "sublet deploy"]);
    let unknown = scene.package("unknown", &scene.name("nothing:1"));
    let message = platform.assert_refuses(&["deploy", &unknown], Code::UnknownImage);
    assert!(message.contains("nothing"), "{message}");
    let empty = scene.package("empty", &scene.name("without:1"));
    platform.json(&["deploy", &empty]);
    let refused = client.allocate(&Allocation::new("empty"));
    assert_fails(refused, Code::System, &["executing", "shared library", "glibc", "without:1@sha256:"]);
    let module = scene.folder.path().join("module");
    fs::create_dir(&module).unwrap();
    fs::copy(sublet_tests::functions::module("portable.c"), module.join("x.wasm")).unwrap();
    let manifest = format!("name = 'x'\nlibrary = 'x.wasm'\nimage = '{}'\n", scene.name("with:1"));
    fs::write(module.join("sublet.toml"), manifest).unwrap();
    let message = platform.assert_refuses(&["deploy", module.to_str().unwrap()], Code::InvalidPackage);
    assert!(message.contains("names an image"), "{message}");
}

#[test]
fn a_node_can_have_an_oci_runtime_make_its_containers() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let scene = Scene::new();
    let platform = scene.platform(&["--container-runtime", "crun"]);
    platform.json(&["deploy", &scene.package("app", &scene.name("with:1"))]);
    assert_runs_in_image(&platform, "app");
    let output = sublet()
        .args(["up", "--json", "--container-runtime", "no-such-runtime", "--state"])
        .arg(Path::new(scene.folder.path()).join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no container runtime no-such-runtime"), "{said}");
}

#[test]
fn isolation_of_package_or_lease_chooses_container_maker() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let scene = Scene::new();
    let platform = scene.platform(&["--isolation", "process,container,crun,runc"]);
    let folder = scene.package("app", &scene.name("with:1"));
    let manifest = Path::new(&folder).join("sublet.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, format!("{text}isolation = \"crun\"\n")).unwrap();
    platform.json(&["deploy", &folder]);
    let any = Allocation::new("app");
    let leases = [
        (any.clone(), "crun"),
        (any.clone().isolation("runc"), "runc"),
        (any.clone().isolation("container"), "container"),
    ];
    for (allocation, name) in leases {
        let mut client = platform.client_with(&allocation);
        assert_eq!(read_file(&client, "/etc/issue").unwrap(), ISSUE, "{name}");
        assert_eq!(client.isolation().as_deref(), Some(name));
        client.deallocate().unwrap();
    }
    let mut client = platform.invoker();
    let refused = client.allocate(&any.clone().isolation("process"));
    assert_fails(refused, Code::InvalidArgument, &["process", "an image"]);
    let refused = client.allocate(&any.isolation("runsc"));
    assert_fails(refused, Code::InsufficientResources, &["isolation \"runsc\""]);
    fs::write(&manifest, format!("{text}isolation = \"process\"\n")).unwrap();
    let message = platform.assert_refuses(&["deploy", &folder], Code::InvalidPackage);
    assert!(message.contains("an image"), "{message}");
    let limited = scene.platform(&["--isolation", "container"]);
    let refused = limited.invoker().allocate(&Allocation::new(package("calls.c")).isolation("process"));
    assert_fails(refused, Code::InsufficientResources, &["isolation \"process\""]);
}
