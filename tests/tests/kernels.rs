//! Packages of kernels as clients and operators see them: deployed, built by the node, called and refused like any other.
//! The device is PoCL's: the processor.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use sublet::{Allocation, Code, Completion, Error, FabricChoice, Invoker, Policy};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::platform::{PlatformProcess, assert_echoes, assert_echoes_of_every_size, kill};
use sublet_tests::process::{children, cpu_ticks, is_alive, is_stopped, spawner, wait_until};
use sublet_tests::{assert_fails, root};
use tempfile::TempDir;

/// A package of kernels in a folder of its own.
struct Package(TempDir);

/// Manifest entries of the functions in `kernels.cl` and `doubling.cl`.
const FUNCTIONS: &str = "
[[function]]
name = 'echo'
bytes_per_item = 1
[[function]]
name = 'add'
symbol = 'main_kernel'
bytes_per_item = 1
[[function]]
name = 'double'
symbol = 'main_kernel'
program = 'more/doubling.cl'
bytes_per_item = 1
[[function]]
name = 'refuse'
[[function]]
name = 'boast'
[[function]]
name = 'spin'
[[function]]
name = 'count'
bytes_per_item = 4
items = 3
group = 8
";

impl Package {
    /// Makes a package with further lines in its manifest.
    fn of(name: &str, more: &str, files: &[(&str, &str)]) -> Package {
        let folder = tempfile::tempdir().unwrap();
        let manifest = format!("name = '{name}'\nkind = 'opencl'\nlibrary = 'kernels.cl'\n{more}");
        fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
        for (file, text) in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Package(folder)
    }

    /// The tests' own two programs.
    fn whole(name: &str, limits: &str) -> Package {
        let source = |file: &str| fs::read_to_string(root().join("tests/functions").join(file)).unwrap();
        let files = [("kernels.cl", source("kernels.cl")), ("more/doubling.cl", source("doubling.cl"))];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        Package::of(name, &format!("{limits}{FUNCTIONS}"), &files)
    }

    /// Makes a package of one source, with one function.
    fn source(name: &str, text: &str) -> Package {
        Package::of(name, "[[function]]\nname = 'f'\n", &[("kernels.cl", text)])
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn allocation(&self) -> Allocation {
        Allocation::new(self.path())
    }
}

fn kernel(body: &str) -> String {
    format!(
        "kernel void f(global const uchar *input, uint size, global uchar *output, uint capacity, \
         global uint *written) {{ {body} }}"
    )
}

fn call(client: &Invoker, function: &str, input: &[u8]) -> Result<(Completion, [u8; 64]), Error> {
    let mut output = [0; 64];
    let done = client.submit(function, input, &mut output)?.wait()?;
    Ok((done, output))
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn kernels_are_called_like_any_function_over_memory_and_networks() {
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--listen", "127.0.0.1:0"]);
    });
    let package = Package::whole("kernels", "");
    let over_tcp = package.allocation().fabric(FabricChoice::Tcp { encrypted: false });
    for allocation in [package.allocation(), over_tcp] {
        let mut client = platform.client_with(&allocation);
        assert_echoes_of_every_size(&mut client);
        // Kernels and helpers of two programs that are called the same.
        assert_eq!(call(&client, "add", &[1, 2, 30]).unwrap().1[..3], [2, 3, 31]);
        assert_eq!(call(&client, "double", &[1, 2, 30]).unwrap().1[..3], [2, 4, 60]);
        assert_fails(call(&client, "refuse", &[]), Code::FunctionFailed, &["kernels/refuse", "not today"]);
        assert_fails(call(&client, "boast", &[]), Code::OutputTooLarge, &["65", "64"]);
        assert_fails(client.function("main_kernel").map(|_| ()), Code::UnknownFunction, &["echo"]);
        let (_, few) = call(&client, "count", &[0; 4]).unwrap();
        let (_, many) = call(&client, "count", &[0; 68]).unwrap();
        assert_eq!((numbers(&few[..8]), numbers(&many[..8])), (vec![8, 8], vec![24, 8]));
        assert_echoes(&client);
        client.deallocate().unwrap();
    }
}

#[test]
fn threads_launch_at_once_and_get_their_own_answers() {
    let platform = PlatformProcess::start();
    let cores = platform.cores().min(4);
    let allocation = Package::whole("kernels", "");
    let allocation = allocation.allocation().cores(cores).policy(Policy::AlwaysWarm);
    let client = platform.client_with(&allocation);
    let inputs: Vec<[u8; 2]> = (0..100).map(|number| [number, number + 1]).collect();
    let mut outputs = vec![[0u8; 2]; inputs.len()];
    let calls: Vec<_> = inputs
        .iter()
        .zip(&mut outputs)
        .map(|(input, output)| client.submit("add", input, output).unwrap())
        .collect();
    for call in calls {
        assert_eq!(call.wait().unwrap().output_bytes, 2);
    }
    assert!(inputs.iter().zip(&outputs).all(|(input, output)| *output == input.map(|byte| byte + 1)));
}

#[test]
fn an_endless_kernel_is_reported_and_its_worker_replaced() {
    let platform = PlatformProcess::start();
    let client =
        platform.client_with(&Package::whole("hurried", "[kernels]\ndeadline_ms = 300\n").allocation());
    let worker = platform.worker();
    assert_fails(
        call(&client, "spin", &[]),
        Code::DeadlineExceeded,
        &["hurried/spin", "ran longer than its package allows, 300 ms"],
    );
    assert!(!is_alive(worker), "it ends with its kernel, before the next call");
    assert_echoes(&client);
    assert_ne!(platform.worker(), worker);
    // A client that does not wait so long has it ended as any function.
    let mut output = [0u8; 8];
    let spinning = client.submit("spin", &[0u8; 0], &mut output).unwrap();
    let late = spinning.wait_deadline(Instant::now() + Duration::from_millis(50));
    assert_fails(late, Code::DeadlineExceeded, &["hurried/spin", "deadline"]);
    assert_echoes(&client);
    platform.assert_serves();
}

#[test]
fn a_lease_ends_while_its_kernel_runs() {
    let platform = PlatformProcess::start();
    platform.json(&["deploy", Package::whole("kernels", "").path()]);
    let mut command = platform.command();
    command.args(["call", "kernels/spin", "--input", "-", "--output", "-"]);
    let mut client = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the worker is there", || !platform.workers().is_empty());
    let worker = platform.worker();
    wait_until("the kernel runs", || cpu_ticks(worker) > 100);
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the worker ends with its lease", || !is_alive(worker));
    platform.assert_serves();
}

#[test]
fn reports_the_compilers_errors_to_the_client() {
    let platform = PlatformProcess::start();
    let broken = Package::source("broken", "kernel void f() { no_such_word(); }");
    // Not only to the first.
    for _ in 0..2 {
        let refused = platform.invoker().allocate(&broken.allocation());
        assert_fails(refused, Code::InvalidPackage, &["kernel \"f\" does not build", "no_such_word"]);
    }
    let other = Package::source("other", "kernel void g(global uint *x) { *x = 1; }");
    let refused = platform.invoker().allocate(&other.allocation());
    assert_fails(refused, Code::MissingSymbol, &["no kernel \"f\""]);
    let form = Package::source("form", "kernel void f(global uint *x) { *x = 1; }");
    assert_fails(platform.invoker().allocate(&form.allocation()), Code::MissingSymbol, &["\"f\""]);
    platform.assert_serves();
}

#[test]
fn an_invalid_binary_is_refused_and_the_node_continues() {
    let platform = PlatformProcess::start();
    for (name, bytes) in [("zeros", [0; 5000]), ("odd", std::array::from_fn(|at| (at * 7 % 256) as u8))] {
        let package = Package::source(name, "");
        fs::write(package.0.path().join("kernels.cl"), [b"poclbin\0", &bytes[..]].concat()).unwrap();
        let refused = platform.invoker().allocate(&package.allocation());
        assert_fails(refused, Code::InvalidPackage, &["kernel \"f\" does not build"]);
    }
    platform.assert_serves();
}

#[test]
fn a_source_reads_no_files_of_the_node() {
    let platform = PlatformProcess::start();
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "sublet_secret_word sublet_secret_word\n").unwrap();
    for path in [secret.path(), Path::new("/etc/passwd"), Path::new("/etc/hostname")] {
        let text = format!("#include \"{}\"\n{}", path.display(), kernel(""));
        let refused = platform.invoker().allocate(&Package::source("reads", &text).allocation());
        let message = refused.unwrap_err().message;
        assert!(message.contains("does not build"), "{message}");
        assert!(!message.contains("secret_word") && !message.contains("root:"), "{message}");
    }
}

#[test]
fn a_kernel_that_writes_outside_ends_its_own_worker_alone() {
    let platform = PlatformProcess::start();
    let text = kernel("for (ulong i = 0; ; i += 4096) output[i] = 1;");
    let client = platform.client_with(&Package::source("outside", &text).allocation());
    let neighbour = platform.client("calls.c");
    assert_fails(call(&client, "f", &[]), Code::WorkerDied, &["outside/f"]);
    assert_echoes(&neighbour);
}

/// The processes that build packages on an agent's node: each is the first process of its sandbox.
fn builders(agent: u32) -> Vec<u32> {
    let below = |parents: Vec<u32>| parents.into_iter().flat_map(children).collect::<Vec<_>>();
    let programs = below(below(spawner(agent).into_iter().collect()));
    // The kind of the package, and the index of its only build.
    let end = [b"/sublet-worker-kernels\0opencl\0".as_slice(), b"0\0"].concat();
    let is_builder =
        |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(&end));
    programs.into_iter().filter(is_builder).collect()
}

#[test]
fn a_slow_build_delays_only_its_own_tenant() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::shared(1, 8));
    let agent = cluster.agents[0].pid();
    // It takes long enough for its builder to be found and stopped.
    let statements: String =
        (0..5000).map(|number| format!("output[{number}] = input[{number}] * {number};\n")).collect();
    for (name, body) in [("slow-1", &*statements), ("slow-2", &*statements), ("quick", "*written = 0;")] {
        cluster.publish(Package::source(name, &kernel(body)).path());
    }
    let lease = |tenant: &str, package: &str| {
        let mut client = connect(&cluster.user(tenant));
        let allocation = Allocation::new(package).memory_bytes(64 << 20).shared();
        client.allocate(&allocation).map(|()| client)
    };
    thread::scope(|scope| {
        let lease = &lease;
        let waiting = ["slow-1", "slow-2"].map(|name| scope.spawn(move || lease("mallory", name).map(drop)));
        wait_until("a package of the tenant is built", || !builders(agent).is_empty());
        let building = builders(agent);
        building.iter().for_each(|&builder| kill(builder, Signal::STOP));
        assert_eq!(building.len(), 1, "packages of one tenant are built at once");
        let client = lease("alice", "quick").unwrap();
        assert_eq!(call(&client, "f", &[]).unwrap().0.output_bytes, 0);
        assert!(is_stopped(building[0]), "the build of the other tenant has ended");
        assert_eq!(builders(agent), building, "the tenant has another package built");
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "the tenant's builds have ended");
        wait_until("the tenant's packages are refused", || {
            for builder in builders(agent) {
                // It may have ended meanwhile.
                let pid = Pid::from_raw(builder.try_into().unwrap()).unwrap();
                let _ = kill_process(pid, Signal::KILL);
            }
            waiting.iter().all(ScopedJoinHandle::is_finished)
        });
        for refused in waiting {
            assert_fails(refused.join().unwrap(), Code::InvalidPackage, &["killed by SIGKILL"]);
        }
    });
}

/// File that the node has built, and the time at which it was built.
fn built(state: &Path) -> (PathBuf, SystemTime) {
    let packages = fs::read_dir(state.join("packages")).unwrap();
    let mut files =
        packages.map(|entry| entry.unwrap().path().join(".built/0")).filter(|path| path.is_file());
    let file = files.next().expect("one package was built");
    assert_eq!(files.next(), None);
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    (file, modified)
}

#[test]
fn a_package_is_rebuilt_only_without_a_valid_image() {
    let folder = tempfile::tempdir().unwrap();
    let package = Package::source("once", &kernel("*written = 0;"));
    let serve = || {
        let platform = PlatformProcess::start_in(folder.path());
        let client = platform.client_with(&package.allocation());
        assert_eq!(call(&client, "f", &[]).unwrap().0.output_bytes, 0);
    };
    serve();
    let (file, first) = built(folder.path());
    serve();
    assert_eq!(built(folder.path()).1, first, "it was built once more");
    fs::remove_file(&file).unwrap();
    fs::write(&file, "damaged").unwrap();
    serve();
    // Also while the agent runs.
    let platform = PlatformProcess::start_in(folder.path());
    for _ in 0..2 {
        let client = platform.client_with(&package.allocation());
        assert_eq!(call(&client, "f", &[]).unwrap().0.output_bytes, 0);
        drop(client);
        fs::remove_file(&file).unwrap();
    }
    drop(platform);
    serve();
    assert!(fs::read(&file).unwrap().len() > 1000);
}

#[test]
fn a_node_executes_kernels_only_on_offered_devices() {
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--devices", "opencl"]);
    });
    assert_eq!(platform.said["node"]["devices"][0], "opencl");
    let package = Package::source("graphics", ".version 7.0\n");
    let manifest = package.0.path().join("sublet.toml");
    let text = fs::read_to_string(&manifest).unwrap().replace("opencl", "cuda");
    fs::write(&manifest, text).unwrap();
    let message = platform.assert_refuses(&["deploy", package.path()], Code::WrongArchitecture);
    assert!(
        message.contains("graphics is for cuda, but nodes are ") && message.contains("opencl"),
        "{message}"
    );
    let without = PlatformProcess::start_with(|up| {
        up.args(["--devices", "none"]);
    });
    let refused = without.invoker().allocate(&Package::source("any", &kernel("")).allocation());
    assert_fails(refused, Code::WrongArchitecture, &["any is for opencl"]);
    without.assert_serves();
}

#[test]
fn deploying_refuses_an_impossible_manifest() {
    let platform = PlatformProcess::start();
    let refused = |more: &str, said: &str| {
        let package = Package::of("odd", more, &[("kernels.cl", &kernel(""))]);
        let message = platform.assert_refuses(&["deploy", package.path()], Code::InvalidPackage);
        assert!(message.contains(said), "{message}");
    };
    refused("", "names 0 functions");
    refused("[[function]]\nname = 'f'\nprogram = 'absent.cl'", "absent.cl");
    refused("[[function]]\nname = 'f'\nsymbol = 'f g'", "f g");
    refused("[[function]]\nname = 'f'\ngroup = 0", "zero");
    refused("[kernels]\noptions = '-I/etc'\n[[function]]\nname = 'f'", "-I/etc");
    let bare = root().join("tests/functions/kernels.cl");
    let message = platform.assert_refuses(&["deploy", bare.to_str().unwrap()], Code::InvalidPackage);
    assert!(message.contains("sublet.toml"), "{message}");
}

#[test]
fn the_example_is_deployed_listed_and_called_by_the_command() {
    let platform = PlatformProcess::start();
    let folder = root().join("examples/kernels");
    let deployed = platform.json(&["deploy", folder.to_str().unwrap()]);
    let build = &deployed["builds"][0];
    assert!(build["kind"] == "opencl" && build["architecture"] == "opencl", "{deployed}");
    let floats =
        |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let output = |function: &str, input: &[f32]| {
        let output = platform.pipe(&["call", function, "--input", "-", "--output", "-"], &floats(input));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(output("vectors/scale", &[1.0, -2.5, 8.0]), floats(&[2.0, -5.0, 16.0]));
    assert_eq!(output("vectors/lengths", &[1.0, 1.0, 1.0, 1.0, 0.0, 3.0, 4.0, 0.0]), floats(&[2.0, 5.0]));
    let refused = platform.pipe(&["call", "vectors/lengths", "--input", "-", "--output", "-"], &[0; 5]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no whole number of vectors"), "{said}");
}

#[test]
fn cold_starts_with_kernels_are_measured() {
    let platform = PlatformProcess::start();
    let cold = platform.json(&["bench", "cold", "--sandbox", "opencl", "--n", "2"]);
    assert!(cold["sandbox"] == "opencl" && cold["steps"].as_array().unwrap().len() == 7, "{cold}");
    assert!(cold["median_us"].as_f64() > Some(0.0) && cold["floor_us"].as_f64() > Some(0.0), "{cold}");
}
