//! Functions in Node.js in OCI images: executed by the image's own Node.js, which is this machine's, packed with its libraries
//! and pulled by the node from a real registry, and images whose Node.js cannot execute functions.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::OnceLock;

use sublet::{Allocation, Code, Error, Invoker};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::platform::PlatformProcess;

use crate::image_scene::{ImageScene, PackedInterpreter, crun, with_script};
use crate::making::tar::FILE;
use crate::making::{Layer, Tar};

const MIB: u64 = 1 << 20;
/// Working folder of the image, which has its modules.
const APP: &str = "/app";
/// Functions of packages in Node.js.
const MODULE: &str = "
const fs = require('fs');

exports.only_here = () => require('only-here').value;
exports.imported = async () => (await import('only-here')).default.value;
exports.shared = () => require('shared').value;
exports.interpreter = () => `${process.versions.node} ${process.execPath}`;
exports.folder = () => process.cwd();
exports.variable = (input) => process.env[input.toString()] ?? '';
exports.write = (input) => { fs.writeFileSync(input.toString(), 'written', { flag: 'wx' }); return 'done'; };
exports.exists = (input) => String(fs.existsSync(input.toString()));
exports.later = async (input) => { await new Promise((done) => setTimeout(done, 1)); return input; };
exports.never = () => new Promise(() => {});
exports.refuse = () => { throw new TypeError('not today'); };
exports.leave = () => process.exit(3);
";
const FUNCTIONS: [&str; 12] = [
    "only_here",
    "imported",
    "shared",
    "interpreter",
    "folder",
    "variable",
    "write",
    "exists",
    "later",
    "never",
    "refuse",
    "leave",
];

/// Packs the Node.js, once for all tests.
fn packed() -> &'static PackedInterpreter {
    static PACKED: OnceLock<PackedInterpreter> = OnceLock::new();
    PACKED.get_or_init(PackedInterpreter::node)
}

/// A layer with modules of the image.
fn modules() -> Layer {
    let tar = ["only-here", "shared"].into_iter().fold(Tar::new(), |tar, name| {
        tar.file(&format!("app/node_modules/{name}/index.js"), b"exports.value = 'of the image';\n")
    });
    Layer::gzip(&tar.finish())
}

/// The major version of the packed Node.js.
fn major() -> &'static str {
    packed().version.split('.').next().unwrap()
}

impl ImageScene {
    fn node(&self) -> String {
        let folder = ("\"WorkingDir\": \"/\"", "\"WorkingDir\": \"/app\"");
        self.push_with("node", &[packed().layer.clone(), modules()], folder)
    }

    /// The folder of a package of [`MODULE`] in an image.
    fn nodejs_package(&self, name: &str, image: &str, more: &str) -> String {
        let folder = self.folder.path().join(format!("package-{name}"));
        let functions: String =
            FUNCTIONS.iter().map(|name| format!("[[function]]\nname = \"{name}\"\n")).collect();
        let manifest = format!(
            "name = \"{name}\"\nkind = \"nodejs\"\nlibrary = \"m.js\"\nimage = \"{image}\"\n{functions}{more}"
        );
        let own = "exports.value = 'of the package';\n";
        for (file, text) in
            [("m.js", MODULE), ("sublet.toml", manifest.as_str()), ("node_modules/shared/index.js", own)]
        {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder.to_str().unwrap().to_owned()
    }
}

fn allocation(package: &str) -> Allocation {
    Allocation::new(package).memory_bytes(128 * MIB)
}

fn call(client: &Invoker, function: &str, input: &str) -> Result<String, Error> {
    let mut output = [0; 256];
    let done = client.submit(function, input.as_bytes(), &mut output).and_then(sublet::Invocation::wait)?;
    Ok(String::from_utf8(output[..done.output_bytes].to_vec()).unwrap())
}

#[track_caller]
fn assert_answers(client: &Invoker, function: &str, input: &str, expected: &str) {
    assert_eq!(call(client, function, input).unwrap(), expected, "{function}({input:?})");
}

/// Checks that functions are executed by the image's Node.js, in the image's files, of which each lease has its own.
fn assert_runs_in_image(platform: &PlatformProcess, package: &str) {
    let PackedInterpreter { program, version, .. } = packed();
    for _ in 0..2 {
        let mut client = platform.client_with(&allocation(package));
        assert_answers(&client, "only_here", "", "of the image");
        assert_answers(&client, "imported", "", "of the image");
        assert_answers(&client, "shared", "", "of the package");
        assert_answers(&client, "interpreter", "", &format!("{version} {}", program.display()));
        assert_answers(&client, "folder", "", APP);
        // `PATH` is the one of the image, which has no `HOME`.
        assert_answers(&client, "variable", "PATH", "/bin");
        assert_answers(&client, "variable", "HOME", "/tmp");
        assert_answers(&client, "exists", "/etc/shadow", "false");
        assert_answers(&client, "exists", "/new", "false");
        assert_answers(&client, "write", "/new", "done");
        assert_answers(&client, "exists", "/new", "true");
        assert_answers(&client, "later", "hello", "hello");
        client.deallocate().unwrap();
    }
}

#[test]
fn functions_are_executed_by_the_nodejs_of_their_image() {
    let scene = ImageScene::new();
    let platform = scene.platform(&[]);
    let image = scene.node();
    let more = format!("[nodejs]\nversion = \"{}\"\n[environment]\nHUE = \"blue\"\n", major());
    let deployed = platform.json(&["deploy", &scene.nodejs_package("app", &image, &more)]);
    assert_eq!(deployed["builds"][0]["architecture"], format!("nodejs{}-image", major()), "{deployed}");
    let pinned = deployed["builds"][0]["image"].as_str().unwrap();
    assert!(pinned.starts_with(&format!("{image}@sha256:")), "{pinned}");
    assert_runs_in_image(&platform, "app");
    let client = platform.client_with(&allocation("app"));
    assert_answers(&client, "variable", "HUE", "blue");
    // Each failed call leaves the worker as it was, but the last one.
    assert_fails(call(&client, "refuse", ""), Code::FunctionFailed, &["TypeError: not today (at ", "m.js:"]);
    assert_fails(call(&client, "never", ""), Code::FunctionFailed, &["the promise is never settled"]);
    assert_answers(&client, "later", "hello", "hello");
    assert_fails(call(&client, "leave", ""), Code::WorkerDied, &["exited with status 3"]);
    // The next worker starts without the registry.
    drop(scene);
    assert_answers(&client, "variable", "HUE", "blue");
}

#[test]
fn an_oci_runtime_starts_the_nodejs_of_an_image() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let scene = ImageScene::new();
    let platform = scene.platform(&["--container-runtime", crun()]);
    platform.json(&["deploy", &scene.nodejs_package("app", &scene.node(), "")]);
    assert_runs_in_image(&platform, "app");
}

#[test]
fn answer_about_one_language_is_no_answer_about_another() {
    let scene = ImageScene::new();
    let platform = scene.platform(&[]);
    let image = scene.node();
    platform.json(&["deploy", &scene.nodejs_package("app", &image, "")]);
    let lease = || {
        let mut client = platform.client_with(&allocation("app"));
        assert_answers(&client, "only_here", "", "of the image");
        client.deallocate().unwrap();
    };
    lease();
    let folder = scene.folder.path().join("package-other");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("m.py"), "def f(data):\n    return data\n").unwrap();
    let manifest = format!("name = \"other\"\nkind = \"python\"\nlibrary = \"m.py\"\nimage = \"{image}\"\n");
    fs::write(folder.join("sublet.toml"), manifest).unwrap();
    platform.json(&["deploy", folder.to_str().unwrap()]);
    let refused = platform.invoker().allocate(&allocation("other"));
    assert_fails(
        refused,
        Code::InvalidPackage,
        &["cannot execute Python", "it has no python3 in the folders"],
    );
    lease();
}

/// A layer with a script in place of a Node.js that prints this report.
fn reporting(fields: &[&str]) -> Layer {
    let report = [&["sublet-node"][..], fields].concat().join("\\t");
    with_script(&["/bin/sh"], "bin/node", &format!("#!/bin/sh\nprintf '{report}\\n'\n"))
}

/// A layer with the packed Node.js as if it were for another processor: the header of the program says so.
fn foreign() -> Layer {
    let mut program = fs::read(&packed().program).unwrap();
    program[18] ^= 0xff;
    Layer::gzip(&Tar::new().entry(FILE, b"bin/node", b"", 0o755, &program).finish())
}

/// A layer with a Node.js and no libraries.
fn without_loader() -> Layer {
    let program = fs::read(&packed().program).unwrap();
    Layer::gzip(&Tar::new().entry(FILE, b"bin/node", b"", 0o755, &program).finish())
}

#[test]
fn images_without_a_usable_nodejs_are_refused_with_the_reason() {
    let scene = ImageScene::new();
    let platform = scene.platform(&[]);
    let broken = "#!/bin/sh\necho 'node: its parts do not fit' >&2\nexit 1\n";
    let processor = format!("its node is not a program for {}", std::env::consts::ARCH);
    for (name, layer, reason) in [
        (
            "none",
            Layer::gzip(&Tar::new().file("etc/issue", b"x").finish()),
            "it has no node in the folders of its PATH (/bin)",
        ),
        ("foreign", foreign(), processor.as_str()),
        ("alone", without_loader(), "its node names a loader that it does not have"),
        (
            "silent",
            with_script(&["/bin/sh"], "bin/node", "#!/bin/sh\n"),
            "it exited with status 0, it printed nothing",
        ),
        (
            "broken",
            with_script(&["/bin/sh"], "bin/node", broken),
            "it exited with status 1, node: its parts do not fit",
        ),
        (
            "old",
            reporting(&["18.20.4", "node", "", "/bin/node", ""]),
            "its Node.js is 18.20.4, and 20 or later is needed",
        ),
        (
            "other",
            reporting(&["22.6.0", "bun", "2.36", "/bin/node", ""]),
            "its node is \"bun\", and Node.js is needed",
        ),
        ("musl", reporting(&["22.6.0", "node", "", "/bin/node", ""]), "not built for glibc"),
        (
            "unloadable",
            reporting(&["22.6.0", "node", "2.31", "/bin/node", "GLIBC_2.34 not found"]),
            "cannot load Sublet's worker: GLIBC_2.34 not found",
        ),
    ] {
        let image = scene.push(name, &[layer]);
        platform.json(&["deploy", &scene.nodejs_package(name, &image, "")]);
        // The image is asked once, and the answer is the same.
        for _ in 0..2 {
            let refused = platform.invoker().allocate(&allocation(name));
            let named = format!("the image {image}@sha256:");
            assert_fails(refused, Code::InvalidPackage, &[&named, "cannot execute Node.js", reason]);
        }
    }
}

#[test]
fn nodejs_of_another_version_or_machine_than_required_is_refused() {
    let scene = ImageScene::new();
    let platform = scene.platform(&[]);
    let PackedInterpreter { version, layer, .. } = packed();
    let image = scene.node();
    platform.json(&["deploy", &scene.nodejs_package("later", &image, "[nodejs]\nversion = \"999\"\n")]);
    let refused = platform.invoker().allocate(&allocation("later"));
    let has = format!("has Node.js {version}, and m.js is for Node.js 999");
    assert_fails(refused, Code::WrongArchitecture, &[&has]);
    let machine = format!("\"architecture\": \"{}\"", sublet_image::manifest::HERE);
    let foreign = (machine.as_str(), "\"architecture\": \"s390x\"");
    let image = scene.push_with("machines", std::slice::from_ref(layer), foreign);
    platform.json(&["deploy", &scene.nodejs_package("machines", &image, "")]);
    let refused = platform.invoker().allocate(&allocation("machines"));
    assert_fails(refused, Code::WrongArchitecture, &["linux/s390x"]);
}
