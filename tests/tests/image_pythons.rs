//! Functions in Python in OCI images: executed by the image's own interpreter, which is this machine's, packed with its
//! libraries and pulled by the node from a real registry. `make test-all` has the same done by an interpreter with musl. Images
//! whose Python cannot execute functions are tested in python/tests/test_images.py.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

use rustix::process::{Pid, Signal, kill_process};
use sublet::{Allocation, Code, Invoker};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::platform::{PlatformProcess, sublet};
use sublet_tests::process::{children, spawner, wait_until};

use crate::image_scene::{ImageScene, PackedInterpreter, collect, crun, with_script};
use crate::making::tar::FILE;
use crate::making::{Layer, Tar};

/// Modules that only the image has, among its installed distributions: an ordinary one, one that prevents a template, one
/// whose templates have no working copies, since these begin in its working folder, and one that knows whether there was a package
/// when it was imported.
const ONLY_HERE: [(&str, &str); 4] = [
    ("only_here", "import os\nvalue = 'of the image'\nimporter = os.getpid()\n"),
    (
        "starts_thread",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    ),
    ("strays", "import os\nos.chdir('/bin')\n"),
    ("says_when", "import os\nvalue = 'in the lease' if os.listdir('/package') else 'ahead'\n"),
];
/// Functions of packages in Python.
const MODULE: &str = "
import os
import sys

def only_here(data):
    import only_here
    return only_here.value.encode()

def interpreter(data):
    return ('%d.%d ' % sys.version_info[:2] + sys.executable).encode()

def variable(data):
    return os.environ.get(bytes(data).decode(), '').encode()

def write(data):
    with open(bytes(data), 'x') as file:
        file.write('written')
    return b'done'

def exists(data):
    return str(os.path.exists(bytes(data))).encode()

def copied(data):
    import only_here
    # A template has another number than the process of a function.
    return str(only_here.importer != os.getpid()).encode()

def fork(data):
    import multiprocessing
    context = multiprocessing.get_context('fork')
    process = context.Process(target=os._exit, args=(7,))
    process.start()
    process.join()
    return str(process.exitcode).encode()

def leave(data):
    os._exit(3)

def when(data):
    import says_when
    return says_when.value.encode()
";
const FUNCTIONS: [&str; 9] =
    ["only_here", "interpreter", "variable", "write", "exists", "copied", "fork", "leave", "when"];

/// Packs the interpreter, once for all tests.
fn packed() -> &'static PackedInterpreter {
    static PACKED: OnceLock<PackedInterpreter> = OnceLock::new();
    PACKED.get_or_init(|| PackedInterpreter::python(&[], &ONLY_HERE))
}

/// Packs the interpreter that scripts/musl-python.sh has compiled, with the loader of Debian's musl.
fn packed_with_musl() -> PackedInterpreter {
    let made = sublet_tests::root().join("target/tools/musl-python");
    let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    let libraries = fs::read_dir(made.join("lib")).expect("scripts/musl-python.sh has compiled a Python");
    let mut files = BTreeSet::new();
    collect(&made, &mut files);
    let library = libraries.flatten().next().unwrap().file_name().into_string().unwrap();
    let version = library.trim_start_matches("python").to_owned();
    let file = |tar: Tar, inside: &str, path: &Path| {
        tar.entry(FILE, inside.as_bytes(), b"", 0o755, &fs::read(path).unwrap())
    };
    let mut tar = file(Tar::new(), &loader, &Path::new("/").join(&loader));
    for path in &files {
        tar = file(tar, &format!("usr/{}", path.strip_prefix(&made).unwrap().display()), path);
    }
    tar = tar.folder(&format!("usr/lib/{library}/lib-dynload"));
    tar = tar.symbolic_link("bin/python3", "/usr/bin/python3");
    for (name, text) in ONLY_HERE {
        tar = tar.file(&format!("usr/lib/{library}/site-packages/{name}.py"), text.as_bytes());
    }
    let program = Path::new("/usr/bin/python3").to_owned();
    PackedInterpreter { program, version, layer: Layer::gzip(&tar.finish()) }
}

/// A layer whose Python sleeps for a number of seconds, by which its process is found, and reports nothing.
fn sleeping_python(seconds: u32) -> Layer {
    let script = format!("#!/bin/sh\nexec /bin/sleep {seconds}\n");
    with_script(&["/bin/sh", "/bin/sleep"], "bin/python3", &script)
}

/// The process that sleeps for this number of seconds.
fn sleeper(seconds: u32) -> Option<Pid> {
    let command = format!("/bin/sleep\0{seconds}\0");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut sleepers = processes.filter(|process| {
        fs::read(process.path().join("cmdline")).is_ok_and(|line| line == command.as_bytes())
    });
    Pid::from_raw(sleepers.next()?.file_name().to_str()?.parse().unwrap())
}

impl ImageScene {
    fn python(&self) -> String {
        self.push("python", &[packed().layer.clone()])
    }

    fn python_with_musl(&self) -> PackedInterpreter {
        let python = packed_with_musl();
        self.push("musl", std::slice::from_ref(&python.layer));
        python
    }

    /// The folder of a package of [`MODULE`] in an image.
    fn package(&self, name: &str, image: &str, more: &str) -> String {
        let folder = self.folder.path().join(format!("package-{name}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("m.py"), MODULE).unwrap();
        let functions: String =
            FUNCTIONS.iter().map(|name| format!("[[function]]\nname = \"{name}\"\n")).collect();
        let manifest = format!(
            "name = \"{name}\"\nkind = \"python\"\nlibrary = \"m.py\"\nimage = \"{image}\"\n{functions}{more}"
        );
        fs::write(folder.join("sublet.toml"), manifest).unwrap();
        folder.to_str().unwrap().to_owned()
    }
}

fn call(client: &Invoker, function: &str, input: &str) -> String {
    let mut output = [0; 256];
    let done =
        client.submit(function, input.as_bytes(), &mut output).and_then(sublet::Invocation::wait).unwrap();
    String::from_utf8(output[..done.output_bytes].to_vec()).unwrap()
}

/// Checks that functions are executed by the image's Python, in the image's files, of which each lease has its own.
fn assert_runs_in_image(platform: &PlatformProcess, package: &str, version: &str) {
    for _ in 0..2 {
        let mut client = platform.client_with(&Allocation::new(package).memory_bytes(64 << 20));
        assert_eq!(call(&client, "only_here", ""), "of the image");
        assert_eq!(call(&client, "interpreter", ""), format!("{version} /bin/python3"));
        // `PATH` is the one of the image, which has no `HOME`.
        assert_eq!(call(&client, "variable", "PATH"), "/bin");
        assert_eq!(call(&client, "variable", "HOME"), "/tmp");
        assert_eq!(call(&client, "exists", "/etc/shadow"), "False");
        assert_eq!(call(&client, "exists", "/new"), "False");
        assert_eq!(call(&client, "write", "/new"), "done");
        assert_eq!(call(&client, "exists", "/new"), "True");
        assert_eq!(call(&client, "fork", ""), "7");
        client.deallocate().unwrap();
    }
}

#[test]
fn functions_are_executed_by_the_python_of_their_image() {
    let scene = ImageScene::new();
    let platform = scene.platform(&[]);
    assert_eq!(platform.said["python"], serde_json::Value::Null, "{}", platform.said);
    let image = scene.python();
    let version = &packed().version;
    let more =
        format!("[python]\nversion = \"{version}\"\nimports = [\"json\"]\n[environment]\nHUE = \"blue\"\n");
    let deployed = platform.json(&["deploy", &scene.package("app", &image, &more)]);
    assert_eq!(deployed["builds"][0]["architecture"], format!("python{version}-image"), "{deployed}");
    let pinned = deployed["builds"][0]["image"].as_str().unwrap();
    assert!(pinned.starts_with(&format!("{image}@sha256:")), "{pinned}");
    assert_runs_in_image(&platform, "app", version);
    let client = platform.client_with(&Allocation::new("app"));
    assert_eq!(call(&client, "variable", "HUE"), "blue");
    let died = client.submit("leave", b"", &mut [0; 8]).and_then(sublet::Invocation::wait);
    assert_fails(died, Code::WorkerDied, &["exited with status 3"]);
    // The next worker starts without the registry.
    drop(scene);
    assert_eq!(call(&client, "variable", "HUE"), "blue");
}

#[test]
#[ignore = "scripts/musl-python.sh compiles the interpreter first, as make test-all does"]
fn functions_are_executed_by_a_python_with_musl() {
    let scene = ImageScene::new();
    let python = scene.python_with_musl();
    let image = format!("localhost:{}/musl:1", scene.registry.port);
    let platform = scene.platform(&[]);
    let imports = format!("[python]\nversion = \"{}\"\nimports = [\"json\"]\n", python.version);
    platform.json(&["deploy", &scene.package("app", &image, &imports)]);
    assert_runs_in_image(&platform, "app", &python.version);
    let client = platform.client_with(&Allocation::new("app"));
    let died = client.submit("leave", b"", &mut [0; 8]).and_then(sublet::Invocation::wait);
    assert_fails(died, Code::WorkerDied, &["exited with status 3"]);
    assert_eq!(call(&client, "only_here", ""), "of the image");
}

#[test]
#[ignore = "scripts/musl-python.sh compiles the interpreter first, as make test-all does"]
fn python_with_musl_is_started_anew_in_trusted_images() {
    let scene = ImageScene::new();
    let python = scene.python_with_musl();
    let image = format!("localhost:{}/musl:1", scene.registry.port);
    let glibc = scene.python();
    let digests = [scene.digest("musl"), scene.digest("python")].join(",");
    let platform = scene.platform(&["--image-templates", &digests]);
    let imports = format!("[python]\nversion = \"{}\"\nimports = [\"only_here\"]\n", python.version);
    platform.json(&["deploy", &scene.package("musl", &image, &imports)]);
    platform.json(&["deploy", &scene.package("glibc", &glibc, &importing("\"only_here\""))]);
    let with_musl = || assert_eq!(lease(&platform, "musl"), (false, None));
    wait_until("a worker in the other image is a copy", || {
        with_musl();
        lease(&platform, "glibc").0
    });
    with_musl();
    assert_eq!(templates(&platform).len(), 1);
}

#[test]
fn an_oci_runtime_starts_the_python_of_an_image() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let scene = ImageScene::new();
    let platform = scene.platform(&["--container-runtime", crun()]);
    let image = scene.python();
    platform.json(&["deploy", &scene.package("app", &image, "")]);
    assert_runs_in_image(&platform, "app", &packed().version);
}

#[test]
fn images_that_never_answer_delay_only_their_own_tenant() {
    let scene = ImageScene::new();
    let mut cluster = Cluster::start(ClusterPlan::default());
    let registry = format!("localhost:{}", scene.registry.port);
    cluster.add_agent_with(LentCores::shared(1, 8), &["--registries", &registry]);
    let seconds = [1, 2, 3].map(|number| 100_000_000 + std::process::id() * 10 + number);
    for seconds in seconds {
        let name = format!("sleeping-{seconds}");
        let image = scene.push(&name, &[sleeping_python(seconds)]);
        cluster.publish(scene.package(&name, &image, ""));
    }
    let other = Layer::gzip(&Tar::new().file("other", b"").finish());
    for (name, layers) in [("first", vec![]), ("second", vec![other])] {
        let image = scene.push(name, &[vec![packed().layer.clone()], layers].concat());
        cluster.publish(scene.package(name, &image, ""));
    }
    let lease = |tenant: &str, package: &str| {
        let mut client = connect(&cluster.user(tenant));
        let allocation = Allocation::new(package).memory_bytes(64 << 20).shared();
        client.allocate(&allocation).map(|()| client)
    };
    // The node has the layer with the Python from now on.
    drop(lease("alice", "first").unwrap());
    thread::scope(|scope| {
        let lease = &lease;
        let waiting = seconds
            .map(|seconds| scope.spawn(move || lease("mallory", &format!("sleeping-{seconds}")).map(drop)));
        let asleep = || seconds.iter().filter_map(|&seconds| sleeper(seconds)).collect::<Vec<_>>();
        wait_until("two images of the tenant are asked", || asleep().len() == 2);
        let client = lease("alice", "second").unwrap();
        assert_eq!(call(&client, "only_here", ""), "of the image");
        assert_eq!(asleep().len(), 2, "the tenant has another number of images asked");
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "another tenant has waited for them");
        wait_until("the tenant's images are refused", || {
            for pid in asleep() {
                // It may have ended meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
            waiting.iter().all(ScopedJoinHandle::is_finished)
        });
        for (refused, seconds) in waiting.into_iter().zip(seconds) {
            let image = format!("sleeping-{seconds}:1@sha256:");
            assert_fails(refused.join().unwrap(), Code::InvalidPackage, &[&image, "killed by SIGKILL"]);
        }
    });
}

#[test]
fn a_query_of_an_image_ends_with_its_lease() {
    let scene = ImageScene::new();
    let mut cluster = Cluster::start(ClusterPlan::default());
    let registry = format!("localhost:{}", scene.registry.port);
    cluster.add_agent_with(LentCores::shared(1, 8), &["--registries", &registry]);
    let seconds = 100_000_000 + std::process::id() * 10;
    let image = scene.push("sleeping", &[sleeping_python(seconds)]);
    cluster.publish(scene.package("sleeping", &image, ""));
    let call = || {
        let mut command = sublet();
        command.env("SUBLET_MANAGER", cluster.addresses()).env("SUBLET_CA", cluster.ca_file());
        command.env("SUBLET_TOKEN", cluster.user_token("alice").secret).env_remove("SUBLET_TOKEN_FILE");
        command.args(["call", "sleeping/fork", "--shared", "--memory", "64MiB"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let end = |mut client: Child| {
        client.kill().unwrap();
        client.wait().unwrap();
    };
    let first = call();
    wait_until("the image is asked", || sleeper(seconds).is_some());
    let asked = sleeper(seconds);
    // Another lease waits for the same answer.
    let second = call();
    let name = cluster.agents[0].name.clone();
    wait_until("both have leases", || cluster.node(&name).is_some_and(|node| node.shared_leased == 2));
    end(first);
    wait_until("the image is asked for the other lease", || {
        sleeper(seconds).is_some_and(|pid| Some(pid) != asked)
    });
    end(second);
    wait_until("no image is asked", || sleeper(seconds).is_none());
}

#[test]
fn an_image_is_asked_in_the_demanded_isolation() {
    if !rustix::process::getuid().is_root() {
        skip(Means::Root, "handing a container to an OCI runtime needs root");
        return;
    }
    let scene = ImageScene::new();
    let runtime = scene.folder.path().join("runtime");
    fs::write(&runtime, "#!/bin/sh\necho unusable >&2\nexit 1\n").unwrap();
    fs::set_permissions(&runtime, PermissionsExt::from_mode(0o755)).unwrap();
    let platform = scene.platform(&["--container-runtime", runtime.to_str().unwrap()]);
    platform.json(&["deploy", &scene.package("app", &scene.python(), "")]);
    let allocation = Allocation::new("app").memory_bytes(64 << 20);
    // The runtime is at fault, and not the image.
    let by_default = platform.invoker().allocate(&allocation);
    assert_fails(by_default, Code::System, &["the Python of the image", "cannot be started"]);
    let client = platform.client_with(&allocation.clone().isolation("container"));
    assert_eq!(call(&client, "only_here", ""), "of the image");
    assert_eq!(client.isolation().as_deref(), Some("container"));
    // The answer in a container is not taken for one in another isolation.
    let by_default = platform.invoker().allocate(&allocation);
    assert_fails(by_default, Code::System, &["the Python of the image", "cannot be started"]);
}

/// Manifest entries of a package for the image's Python with these modules.
fn importing(modules: &str) -> String {
    format!("[python]\nversion = \"{}\"\nimports = [{modules}]\n", packed().version)
}

/// Takes a lease. Returns whether its worker is a copy of a warm interpreter, and why not, if the node knows.
fn lease(platform: &PlatformProcess, package: &str) -> (bool, Option<String>) {
    let mut client = platform.client_with(&Allocation::new(package).memory_bytes(64 << 20));
    let is_copy = call(&client, "copied", "") == "True";
    assert_eq!(call(&client, "only_here", ""), "of the image");
    let cold = client.cold_imports().map(|cold| format!("{} {}", cold.module, cold.reason));
    client.deallocate().unwrap();
    (is_copy, cold)
}

/// The templates of a node, warm or not.
fn templates(platform: &PlatformProcess) -> Vec<Pid> {
    let spawned = children(spawner(platform.pid()).unwrap());
    let is_template = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("SUBLET_ADAPTER"))
            && fs::read_link(format!("/proc/{pid}/ns/pid")).ok() == fs::read_link("/proc/self/ns/pid").ok()
    };
    spawned.into_iter().filter(is_template).filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect()
}

#[test]
fn workers_are_copies_of_a_trusted_images_python() {
    let scene = ImageScene::new();
    let image = scene.python();
    let platform = scene.platform(&["--image-templates", &scene.digest("python")]);
    platform.json(&["deploy", &scene.package("app", &image, &importing("\"only_here\""))]);
    assert_eq!(lease(&platform, "app"), (false, None), "no lease waits for a template");
    wait_until("a worker is a copy", || lease(&platform, "app").0);
    assert_runs_in_image(&platform, "app", &packed().version);
    let client = platform.client_with(&Allocation::new("app"));
    let died = client.submit("leave", b"", &mut [0; 8]).and_then(sublet::Invocation::wait);
    assert_fails(died, Code::WorkerDied, &["exited with status 3"]);
    assert_eq!(call(&client, "only_here", ""), "of the image");
    let templates = templates(&platform);
    assert_eq!(templates.len(), 1);
    kill_process(templates[0], Signal::KILL).unwrap();
    for _ in 0..4 {
        lease(&platform, "app");
    }
}

#[test]
fn only_trusted_images_have_templates() {
    let scene = ImageScene::new();
    let other = Layer::gzip(&Tar::new().file("other", b"").finish());
    let images = [
        ("trusted", scene.push("trusted", &[packed().layer.clone()])),
        ("untrusted", scene.push("untrusted", &[packed().layer.clone(), other])),
    ];
    let platform = scene.platform(&["--image-templates", &scene.digest("trusted")]);
    for (name, image) in images {
        platform.json(&["deploy", &scene.package(name, &image, &importing("\"only_here\""))]);
    }
    let untrusted = || assert_eq!(lease(&platform, "untrusted"), (false, None));
    wait_until("a worker in the trusted image is a copy", || {
        untrusted();
        lease(&platform, "trusted").0
    });
    (0..3).for_each(|_| untrusted());
    assert_eq!(templates(&platform).len(), 1);
}

#[test]
fn lease_takes_the_images_python_that_waits_for_its_tenant() {
    let controllers = ["memory", "cpuset"].map(Means::Controller);
    if let Some(missing) = controllers.into_iter().find(|controller| !controller.is_here()) {
        skip(missing, "without control groups no process is put on standby");
        return;
    }
    let scene = ImageScene::new();
    let image = scene.python();
    let platform = scene.platform(&["--cores", "1", "--memory", "1GiB", "--standby", "256MiB"]);
    platform.json(&["deploy", &scene.package("app", &image, &importing("\"says_when\""))]);
    let when = || {
        let mut client = platform.client_with(&Allocation::new("app").memory_bytes(64 << 20));
        let when = call(&client, "when", "");
        client.deallocate().unwrap();
        when
    };
    assert_eq!(when(), "in the lease");
    let waits = || {
        let shown = platform.json(&["ps"]);
        let sets = shown["nodes"][0]["standby"].as_array().unwrap();
        let waits = |set: &serde_json::Value| set["waiting"].as_u64() > Some(0);
        sets.iter().any(|set| set["modules"] == "says_when" && waits(set))
    };
    wait_until("a lease takes the process that waits in the image", || waits() && when() == "ahead");
    wait_until("another process waits", waits);
    assert_runs_in_image(&platform, "app", &packed().version);
    assert!(templates(&platform).is_empty(), "no template executes an image that is not trusted");
}

#[test]
fn image_that_cannot_be_a_template_starts_its_python() {
    let scene = ImageScene::new();
    let image = scene.python();
    let platform = scene.platform(&["--image-templates", &scene.digest("python")]);
    platform.json(&["deploy", &scene.package("threads", &image, &importing("\"starts_thread\""))]);
    let mut told = None;
    wait_until("the reason is reported", || {
        let (is_copy, cold) = lease(&platform, "threads");
        assert!(!is_copy);
        told = cold;
        told.is_some()
    });
    assert_eq!(told.as_deref(), Some("starts_thread starts 1 thread"));
}

#[test]
fn copy_that_fails_is_replaced_by_a_started_python() {
    let scene = ImageScene::new();
    let image = scene.python();
    let platform = scene.platform(&["--image-templates", &scene.digest("python")]);
    platform.json(&["deploy", &scene.package("strays", &image, &importing("\"only_here\", \"strays\""))]);
    let was_there = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("there is a template", || !templates(&platform).is_empty());
            was_there.store(true, Ordering::Relaxed);
        });
        wait_until("the template is given up", || {
            assert_eq!(lease(&platform, "strays"), (false, None));
            was_there.load(Ordering::Relaxed) && templates(&platform).is_empty()
        });
    });
    assert_eq!(lease(&platform, "strays"), (false, None));
}
