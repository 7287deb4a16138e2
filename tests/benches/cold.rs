//! Measures cold starts of interpreters in real leases, from the request for a lease to the first result, and the installation of
//! an environment on a second node. `cargo bench -p sublet-tests --bench cold [-- STARTS]` prints JSON. It needs the programs of
//! `cargo build --release --workspace` and the tools of `scripts/setup.sh test`.
//!
//! The forms take turns: one start of each, then the next of each. Beside each start an interpreter of this machine starts without
//! a lease or a sandbox, imports the same modules, and prints a line. The program names what this machine lacks, and does not
//! measure it.

#![allow(clippy::unwrap_used)]

#[path = "../tests/image_scene/mod.rs"]
mod image_scene;
#[path = "../../crates/image/tests/making/mod.rs"]
mod making;
#[path = "../../crates/image/tests/serving/mod.rs"]
mod serving;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use image_scene::{ImageScene, PackedInterpreter, python};
use making::{Layer, Tar};
use sublet::{Allocation, Invoker, Policy};
use sublet_proto::package::{self, EnvironmentLayer, environment_of};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::platform::PlatformProcess;
use sublet_wheels::WheelBuilder;

const DEFAULT_STARTS: usize = 50;
/// Between two starts: the node prepares what the next one needs.
const PAUSE: Duration = Duration::from_millis(30);
/// Time after which a template that is not warm never becomes so.
const PATIENCE: Duration = Duration::from_secs(120);
/// Starts of a form that may be no copies of its template.
const MOST_MISSED: usize = 1000;
const MIB: u64 = 1 << 20;
/// Memory of a lease.
const MEMORY_BYTES: u64 = 512 * MIB;
/// Modules that functions use, their folders among the installed ones, and their distributions.
const MODULES: [&str; 3] = ["numpy", "pandas", "PIL.Image"];
const FOLDERS: [&str; 8] =
    ["numpy", "numpy.libs", "pandas", "dateutil", "pytz", "tzdata", "PIL", "pillow.libs"];
const DISTRIBUTIONS: [&str; 3] = ["numpy", "pandas", "pillow"];
/// Number of installations that are measured.
const INSTALLATIONS: usize = 3;
/// Tenant of the leases on two nodes.
const TENANT: &str = "measured";
/// Module that only images have, which knows the process that has imported it.
const IMPORTER: (&str, &str) = ("importer", "import os\nprocess = os.getpid()\n");
/// Functions in Python: one returns its input, and one says whether its process is a copy of the one that has imported a module.
const PYTHON: &str = "\
import os

def echo(data):
    return bytes(data)

def copied(data):
    import importer
    return b'yes' if importer.process != os.getpid() else b'no'
";
const NODEJS: &str = "exports.echo = (input) => input;\n";

fn main() {
    let starts = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(DEFAULT_STARTS);
    let has_node = Command::new("node").arg("--version").output().is_ok();
    let needed = [("docker-registry", serving::has_registry()), ("node", has_node)];
    match needed.into_iter().find(|(_, is_there)| !is_there) {
        Some((program, _)) => eprintln!("not measured: starts of leases, which need {program}"),
        None => measure_starts(starts.max(1)),
    }
    measure_installations();
}

/// A kind of start.
struct LeaseForm {
    name: &'static str,
    client: Invoker,
    allocation: Allocation,
    /// Starts the same without a lease and a sandbox.
    bare: Box<dyn Fn() -> Command>,
    /// Whether only copies of a template with modules are counted.
    is_copy: bool,
    /// Starts that were no copies.
    missed: usize,
    took: Vec<Duration>,
    floor: Vec<Duration>,
}

fn measure_starts(starts: usize) {
    let scene = ImageScene::new();
    let packed = PackedInterpreter::python(&FOLDERS, &[IMPORTER]);
    let node = PackedInterpreter::node();
    let image = scene.push("python", std::slice::from_ref(&packed.layer));
    let more = Layer::gzip(&Tar::new().file("trusted", b"").finish());
    let trusted = scene.push("trusted", &[packed.layer.clone(), more]);
    let image_of_node = scene.push("node", std::slice::from_ref(&node.layer));
    let python = python();
    let platform = scene.platform(&[
        "--python",
        python.to_str().unwrap(),
        "--node",
        node.program.to_str().unwrap(),
        "--image-templates",
        &scene.digest("trusted"),
    ]);
    deploy_environment(&platform, &packed.version);
    let imports = format!("imports = {MODULES:?}\n");
    let with_importer = format!("imports = {:?}\n", [&MODULES[..], &[IMPORTER.0][..]].concat());
    let form = |name: &'static str, kind: &str, image: Option<&str>, more: &str| {
        deploy(&platform, &scene, (name, kind), (image, more));
        let modules = if more.contains("imports") { &MODULES[..] } else { &[] };
        let bare: Box<dyn Fn() -> Command> = match kind {
            "python" => Box::new(bare_python(&python, modules)),
            _ => Box::new(bare_node(&node.program)),
        };
        let allocation = Allocation::new(name).memory_bytes(MEMORY_BYTES).policy(Policy::AlwaysWarm);
        let (client, is_copy) = (platform.invoker(), more.contains(IMPORTER.0));
        LeaseForm { name, client, allocation, bare, is_copy, missed: 0, took: Vec::new(), floor: Vec::new() }
    };
    let mut forms = [
        form("python", "python", None, ""),
        form("python-environment", "python", None, "environment = 'measured'\n"),
        form("image-python", "python", Some(&image), ""),
        form("image-python-modules", "python", Some(&image), &imports),
        form("image-python-copy", "python", Some(&trusted), &with_importer),
        form("nodejs", "nodejs", None, ""),
        form("image-nodejs", "nodejs", Some(&image_of_node), ""),
    ];
    forms.iter_mut().for_each(prepare);
    while let Some(least) = forms.iter().map(|form| form.took.len()).min().filter(|&least| least < starts) {
        forms.iter_mut().filter(|form| form.took.len() == least).for_each(start);
    }
    for form in &mut forms {
        let [least, median, p99] = summary(&mut form.took);
        let [_, floor, _] = summary(&mut form.floor);
        println!(
            "{{\"bench\":\"lease start\",\"lease\":\"{}\",\"n\":{starts},\"median_us\":{median},\"p99_us\":{p99},\
             \"least_us\":{least},\"floor_us\":{floor}}}",
            form.name
        );
    }
}

/// Deploys a small environment, `measured`.
fn deploy_environment(platform: &PlatformProcess, version: &str) {
    let wheel = WheelBuilder::new("beta", "1.0").file("beta.py", "version = 1\n");
    let (bytes, client) = (wheel.bytes(), platform.invoker());
    let (digest, size_bytes) = (package::digest(&bytes), bytes.len() as u64);
    client.manager().deploy(bytes).unwrap();
    let layer = EnvironmentLayer { digest, name: wheel.file_name(), size_bytes };
    let environment = environment_of("measured", version, vec![layer]).unwrap();
    client.manager().deploy(package::encode(&environment)).unwrap();
}

/// Deploys a package of this name and kind, in an image if one is named, with more lines of its requirements.
fn deploy(
    platform: &PlatformProcess,
    scene: &ImageScene,
    (name, kind): (&str, &str),
    (image, more): (Option<&str>, &str),
) {
    let folder = scene.folder.path().join(format!("package-{name}"));
    fs::create_dir(&folder).unwrap();
    let (library, text, functions) = match kind {
        "python" => ("m.py", PYTHON, &["echo", "copied"][..]),
        _ => ("m.js", NODEJS, &["echo"][..]),
    };
    fs::write(folder.join(library), text).unwrap();
    let image = image.map(|image| format!("image = \"{image}\"\n")).unwrap_or_default();
    let functions: String =
        functions.iter().map(|name| format!("[[function]]\nname = \"{name}\"\n")).collect();
    let manifest = format!(
        "name = \"{name}\"\nkind = \"{kind}\"\nlibrary = \"{library}\"\n{image}{functions}[{kind}]\n{more}"
    );
    fs::write(folder.join("sublet.toml"), manifest).unwrap();
    platform.json(&["deploy", folder.to_str().unwrap()]);
}

fn bare_python(program: &Path, modules: &[&str]) -> impl Fn() -> Command + use<> {
    let (program, imports) = (program.to_owned(), modules.iter().map(|name| format!("import {name}\n")));
    let code = format!("{}print(1, flush=True)\n", imports.collect::<String>());
    move || {
        let mut command = Command::new(&program);
        command.args(["-B", "-c", &code]);
        command
    }
}

fn bare_node(program: &Path) -> impl Fn() -> Command + use<> {
    let program = program.to_owned();
    move || {
        let mut command = Command::new(&program);
        command.args(["--eval", "console.log(1)"]);
        command
    }
}

/// Has the node unpack the package and ask the image, and waits until the template that a form needs is warm.
fn prepare(form: &mut LeaseForm) {
    let begun = Instant::now();
    loop {
        let (_, is_copy) = lease(form);
        if is_copy || !form.is_copy {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the template of {} does not become warm", form.name);
        std::thread::sleep(PAUSE);
    }
}

/// Measures one start. That of a form with a template is counted only if it was a copy.
fn start(form: &mut LeaseForm) {
    std::thread::sleep(PAUSE);
    let (took, is_copy) = lease(form);
    if is_copy || !form.is_copy {
        form.took.push(took);
        form.floor.push(start_bare((form.bare)()));
        return;
    }
    form.missed += 1;
    assert!(form.missed < MOST_MISSED, "{} is not copied any more", form.name);
}

/// Takes a lease and calls a function. Returns the time until the result, and whether the worker is a copy with modules.
fn lease(form: &mut LeaseForm) -> (Duration, bool) {
    let begun = Instant::now();
    form.client.allocate(&form.allocation).unwrap_or_else(|error| panic!("{}: {error}", form.name));
    assert_eq!(call(&form.client, "echo"), b"input", "{}", form.name);
    let took = begun.elapsed();
    let is_copy = form.is_copy && call(&form.client, "copied") == b"yes";
    form.client.deallocate().unwrap();
    (took, is_copy)
}

fn call(client: &Invoker, function: &str) -> Vec<u8> {
    let mut output = [0; 64];
    let done =
        client.submit(function, b"input".as_slice(), &mut output).and_then(sublet::Invocation::wait).unwrap();
    output[..done.output_bytes].to_vec()
}

/// Starts a program. Returns the time until its first line.
fn start_bare(mut command: Command) -> Duration {
    let begun = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let took = begun.elapsed();
    assert!(child.wait().unwrap().success() && !line.is_empty(), "{command:?} has failed");
    took
}

/// The least, the median and p99, in microseconds. On a busy machine the least is nearest to what it costs.
fn summary(samples: &mut [Duration]) -> [f64; 3] {
    samples.sort_unstable();
    let at = [0, samples.len() / 2, samples.len() * 99 / 100];
    at.map(|at| samples[at].as_secs_f64() * 1e6)
}

/// Measures how fast a second node installs NumPy, pandas and Pillow from a lock file: fetches the wheels from the manager,
/// checks and unpacks them. The raw side copies the unpacked files.
fn measure_installations() {
    let (mut rates, mut raw_rates, mut unpacked_bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..INSTALLATIONS {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("package");
        let Some(bytes) = make_package(&package, folder.path()) else { return };
        let (installed, copied) = install(&package);
        rates.push(bytes as f64 / installed.as_secs_f64());
        raw_rates.push(bytes as f64 / copied.as_secs_f64());
        unpacked_bytes = bytes;
    }
    let [rate, raw_rate] = [rates, raw_rates].map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "{{\"bench\":\"installation on a second node\",\"n\":{INSTALLATIONS},\"size_bytes\":{unpacked_bytes},\
         \"bytes_per_s\":{rate},\"raw_bytes_per_s\":{raw_rate},\"ratio\":{}}}",
        rate / raw_rate
    );
}

/// Makes a package with a lock file of wheels, which are in another folder. Returns the bytes that they unpack to, if the
/// distributions are installed here.
fn make_package(folder: &Path, wheels: &Path) -> Option<u64> {
    fs::create_dir(folder).unwrap();
    let repack = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/repack.py");
    let mut repack_all = Command::new(python());
    repack_all.arg(repack).arg(wheels).arg(folder.join("pylock.toml")).args(DISTRIBUTIONS);
    let made = repack_all.output().unwrap();
    if !made.status.success() {
        eprintln!("not measured, because wheels cannot be made: {}", String::from_utf8_lossy(&made.stderr));
        return None;
    }
    fs::write(folder.join("m.py"), PYTHON).unwrap();
    let functions = "[[function]]\nname = \"echo\"\n[[function]]\nname = \"copied\"\n";
    let needs = "[python]\nrequirements = \"pylock.toml\"\n";
    let manifest = format!("name = \"installed\"\nkind = \"python\"\nlibrary = \"m.py\"\n{functions}{needs}");
    fs::write(folder.join("sublet.toml"), manifest).unwrap();
    String::from_utf8(made.stdout).unwrap().trim().parse().ok()
}

/// Installs the environment of the package in a folder on two nodes. Returns the time on the second one, and the time of a
/// plain copy of what it has installed.
fn install(folder: &Path) -> (Duration, Duration) {
    let mut cluster = Cluster::start(ClusterPlan::default());
    for _ in 0..2 {
        cluster.add_agent_with(LentCores::cores(1), &["--python", python().to_str().unwrap()]);
    }
    let mut deploy = sublet_tests::platform::sublet();
    deploy.env("SUBLET_MANAGER", cluster.addresses()).env("SUBLET_CA", cluster.ca_file());
    deploy.env("SUBLET_TOKEN", cluster.user_token(TENANT).secret).env_remove("SUBLET_TOKEN_FILE");
    let deployed = deploy.env("SUBLET_PYTHON", python()).arg("deploy").arg(folder).output().unwrap();
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    // The first lease has the first node's only core.
    let leases = [(); 2].map(|()| {
        let mut client = connect(&cluster.user(TENANT));
        client
            .allocate(&Allocation::new("installed").memory_bytes(64 * MIB).policy(Policy::AlwaysWarm))
            .unwrap();
        client
    });
    let cold = leases[1].cold_start().unwrap();
    let installed = Duration::from_nanos(cold.package_ready_ns.saturating_sub(cold.requested_ns));
    (installed, copy(&cluster))
}

/// Copies the wheels that the second node has unpacked. The tree of the environment has links to the same files.
fn copy(cluster: &Cluster) -> Duration {
    let state = cluster.agents[1].state();
    let packages = fs::read_dir(state.join("packages")).unwrap().map(|entry| entry.unwrap().path());
    let wheels: Vec<PathBuf> = packages.filter(|path| path.join("site").is_dir()).collect();
    assert_eq!(wheels.len(), DISTRIBUTIONS.len(), "{wheels:?}");
    let target = tempfile::tempdir_in(state).unwrap();
    let begun = Instant::now();
    let copied = Command::new("cp").arg("-r").args(&wheels).arg(target.path()).status().unwrap();
    assert!(copied.success());
    begun.elapsed()
}
