//! Functions in native code in images with musl, as Alpine's are: compiled by GCC for musl, in an image with the loader of Debian's
//! musl. A Python with musl is tested in image_pythons.rs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use sublet::{Access, Allocation, Application, Code, FabricChoice, Invoker, RunOptions};
use sublet_fabric::ofi;
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::functions::{foreign, library};
use sublet_tests::platform::{PlatformProcess, assert_echoes, programs};

use crate::image_scene::{ImageScene, crun};
use crate::making::Layer;
use crate::making::tar::{FILE, Tar};

/// GCC for musl.
const COMPILER: &str = "musl-gcc";
/// Text of the image's file that functions read.
const ISSUE: &str = "of the image";
/// A provider of libfabric that needs no device.
const PROVIDER: &str = "tcp;ofi_rxm";

/// A registry, and nodes that have a worker program for musl.
fn scene() -> ImageScene {
    let worker = programs().join("sublet-worker-musl");
    assert!(worker.exists(), "{}: cargo xtask test --only build", worker.display());
    ImageScene::new()
}

/// Deploys a package of a shared object in an image.
fn deploy(scene: &ImageScene, platform: &PlatformProcess, (name, object): (&str, &Path), image: &str) {
    let folder = scene.folder.path().join(format!("package-{name}"));
    fs::create_dir(&folder).unwrap();
    fs::copy(object, folder.join("functions.so")).unwrap();
    let manifest = format!("name = \"{name}\"\nlibrary = \"functions.so\"\nimage = \"{image}\"\n");
    fs::write(folder.join("sublet.toml"), manifest).unwrap();
    platform.json(&["deploy", folder.to_str().unwrap()]);
}

/// A layer with musl, and a file for functions to read.
fn musl() -> Layer {
    let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    let content = fs::read(Path::new("/").join(&loader)).expect("Debian's musl is installed");
    let tar = Tar::new().entry(FILE, loader.as_bytes(), b"", 0o755, &content);
    Layer::gzip(&tar.file("etc/issue", ISSUE.as_bytes()).finish())
}

/// A layer with the C library of this machine.
fn glibc() -> Layer {
    let needed = Command::new("ldd").arg(programs().join("sublet-worker")).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    let paths = needed.split_whitespace().filter(|word| word.starts_with('/'));
    let tar = paths.fold(Tar::new(), |tar, path| {
        tar.entry(FILE, path.trim_start_matches('/').as_bytes(), b"", 0o755, &fs::read(path).unwrap())
    });
    Layer::gzip(&tar.finish())
}

fn read_file(client: &Invoker, path: &str) -> Result<String, sublet::Error> {
    let mut output = [0u8; 64];
    let done = client.submit("read_file", path.as_bytes(), &mut output).and_then(sublet::Invocation::wait)?;
    Ok(String::from_utf8(output[..done.output_bytes].to_vec()).unwrap())
}

/// Checks that functions of `files.c` find the image's files, and may change them.
fn assert_runs_in_image(platform: &PlatformProcess, package: &str) {
    let mut client = platform.client_with(&Allocation::new(package));
    assert_eq!(read_file(&client, "/etc/issue").unwrap(), ISSUE);
    assert_fails(read_file(&client, "/etc/new"), Code::FunctionFailed, &["cannot be read"]);
    let written = client.submit("write_file", b"/etc/new", &mut [0u8; 0]).and_then(sublet::Invocation::wait);
    written.unwrap();
    assert_eq!(read_file(&client, "/etc/new").unwrap(), "written");
    client.deallocate().unwrap();
}

#[test]
fn native_functions_run_in_an_image_with_musl() {
    let scene = scene();
    let image = scene.push("musl", &[musl()]);
    let platform = scene.platform(&[]);
    deploy(&scene, &platform, ("files", &foreign(COMPILER, "files.c")), &image);
    for _ in 0..2 {
        assert_runs_in_image(&platform, "files");
    }
    deploy(&scene, &platform, ("faults", &foreign(COMPILER, "faults.c")), &image);
    let client = platform.client_with(&Allocation::new("faults"));
    let died = client.submit("segfault", &[0u8; 4], &mut [0u8; 8]).and_then(sublet::Invocation::wait);
    assert_fails(died, Code::WorkerDied, &["SIGSEGV", "faults/segfault"]);
    assert_echoes(&client);
}

#[test]
fn an_oci_runtime_starts_the_worker_for_musl() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let scene = scene();
    let platform = scene.platform(&["--container-runtime", crun()]);
    deploy(&scene, &platform, ("files", &foreign(COMPILER, "files.c")), &scene.push("musl", &[musl()]));
    assert_runs_in_image(&platform, "files");
}

#[test]
fn calls_over_tls_reach_a_worker_with_musl() {
    let scene = scene();
    let platform = scene.platform(&["--listen", "127.0.0.1:0", "--fabrics", "tcp"]);
    deploy(&scene, &platform, ("calls", &foreign(COMPILER, "calls.c")), &scene.push("musl", &[musl()]));
    for fabric in ["tcp", "tcp+tls", "shm"] {
        let client = platform.client_with(&Allocation::new("calls").fabric(fabric.parse().unwrap()));
        assert_echoes(&client);
    }
}

#[test]
fn object_decides_in_an_image_with_both_c_libraries() {
    let scene = scene();
    let image = scene.push("both", &[musl(), glibc()]);
    let platform = scene.platform(&[]);
    let objects = [("with-musl", foreign(COMPILER, "files.c")), ("with-glibc", library("files.c"))];
    for (name, object) in objects {
        deploy(&scene, &platform, (name, &object), &image);
        assert_runs_in_image(&platform, name);
    }
}

#[test]
fn libfabric_is_refused_in_an_image_with_musl() {
    let here = match ofi::providers() {
        Ok(providers) => providers.iter().any(|found| found.name == PROVIDER && found.usable.is_ok()),
        Err(_) => false,
    };
    if !here {
        skip(Means::Libfabric, format_args!("there is no libfabric with {PROVIDER}"));
        return;
    }
    let scene = scene();
    let fabric = format!("ofi:{PROVIDER}");
    let platform = scene.platform(&["--listen", "127.0.0.1:0", "--fabrics", &format!("tcp,{fabric}")]);
    let image = scene.push("musl", &[musl()]);
    deploy(&scene, &platform, ("calls", &foreign(COMPILER, "calls.c")), &image);
    let over = |fabric: FabricChoice| Allocation::new("calls").fabric(fabric);
    let refused = platform.invoker().allocate(&over(fabric.parse().unwrap()));
    assert_fails(refused, Code::FabricUnavailable, &[&image, &fabric, "musl", "choose the fabric tcp"]);
    assert_echoes(&platform.client_with(&over("tcp".parse().unwrap())));
}

#[test]
fn swapping_is_refused_in_an_image_with_musl() {
    let may = fs::File::options().read(true).write(true).open("/dev/userfaultfd");
    if let Err(error) = may {
        skip(Means::Userfaultfd, format_args!("/dev/userfaultfd: {error}"));
        return;
    }
    let scene = scene();
    let platform = scene.platform(&["--listen", "127.0.0.1:0"]);
    let image = scene.push("musl", &[musl()]);
    deploy(&scene, &platform, ("swapping", &foreign(COMPILER, "swapping.c")), &image);
    let (own, swapped) = (64u64 << 20, 320u64 << 20);
    let document = serde_json::json!({
        "version": 1, "name": "swaps", "edges": [],
        "components": [{
            "name": "large", "type": "compute", "package": "swapping", "function": "large", "entry": true,
            "parallelism": 1, "resources": { "memory_bytes": own, "swap_bytes": swapped },
        }],
    });
    let access = Access::parse(&platform.address()).unwrap();
    let application =
        Application::deploy(access, document.to_string().as_bytes(), RunOptions::default()).unwrap();
    let refused = application.run(&[0; 24]);
    assert_fails(refused, Code::InvalidArgument, &[&image, "cannot swap memory", "musl"]);
}
