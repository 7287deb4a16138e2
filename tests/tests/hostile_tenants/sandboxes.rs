//! Hostile functions of every kind beside another tenant's, and sandboxes of an agent without rights.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use sublet::{Allocation, Code, Invoker, Policy};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::{module, package};
use sublet_tests::platform::{PlatformProcess, assert_echoes, executing_process};
use sublet_tests::process::SOMEBODY;
use tempfile::TempDir;

use super::{ALICE, MALLORY, assert_blocked, lease};

const MIB: u64 = 1 << 20;

/// A package of some files, whose manifest says this.
fn folder(manifest: &str, files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
    folder
}

fn of(folder: &TempDir) -> Allocation {
    Allocation::new(folder.path().to_str().unwrap()).memory_bytes(64 * MIB)
}

fn call(client: &Invoker, function: &str, input: &[u32]) -> Result<[u32; 16], sublet::Error> {
    let mut output = [0u32; 16];
    client.submit(function, input, &mut output)?.wait()?;
    Ok(output)
}

#[test]
fn hostile_modules_leave_another_tenants_calls_alone() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    let module_of_tests = Allocation::new(module("modules.c").to_str().unwrap()).memory_bytes(64 * MIB);
    let victim = lease(&cluster, ALICE, &module_of_tests);
    let worker = cluster.agents[0].worker();
    let manifest = "name = 'hurried'\nlibrary = 'modules.wasm'\n[wasm]\ndeadline_ms = 100\n";
    let hostile = folder(manifest, &[("modules.wasm", &fs::read(module("modules.c")).unwrap())]);
    let mallory = lease(&cluster, MALLORY, &of(&hostile));
    for function in [
        "spin",
        "recurse",
        "fall_down",
        "trap",
        "read_outside",
        "leap",
        "overflow",
        "devour",
        "leave",
        "fail_from_nowhere",
        "random_to_nowhere",
        "print_nowhere",
        "traces",
    ] {
        // Some calls succeed: the other effects of the call are what counts.
        if let Err(error) = call(&mallory, function, &[16]) {
            let code = error.code;
            assert!(
                matches!(code, Code::FunctionFailed | Code::DeadlineExceeded | Code::MemoryExceeded),
                "{error}"
            );
        }
        assert_eq!(call(&victim, "traces", &[3]).unwrap()[..3], [7, 0, 0], "after {function}");
    }
    assert!(cluster.agents[0].workers().contains(&worker), "the victim's worker has changed");
}

#[test]
fn hostile_kernels_leave_another_tenants_calls_alone() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    let victim = lease(&cluster, ALICE, &Allocation::new(package("calls.c")));
    let worker = executing_process(&victim);
    for (body, code) in [
        ("for (volatile uint i = 0; ; i++);", Code::DeadlineExceeded),
        ("for (ulong i = 0; ; i += 4096) output[i] = 1;", Code::WorkerDied),
        ("for (ulong i = 0; ; i += 4096) output[-i] = input[-i];", Code::WorkerDied),
        ("*(volatile global uint *)8 = 7;", Code::WorkerDied),
        ("*written = capacity + 1;", Code::OutputTooLarge),
    ] {
        let text = format!(
            "kernel void f(global uchar *input, uint size, global uchar *output, uint capacity, \
             global uint *written) {{ {body} }}"
        );
        let manifest = "name = 'hostile'\nkind = 'opencl'\nlibrary = 'hostile.cl'\n[kernels]\ndeadline_ms = 300\n\
                        [[function]]\nname = 'f'\n";
        let hostile = folder(manifest, &[("hostile.cl", text.as_bytes())]);
        let mallory = lease(&cluster, MALLORY, &of(&hostile));
        assert_fails(call(&mallory, "f", &[1]), code, &["hostile/f"]);
        assert_echoes(&victim);
        assert_eq!(executing_process(&victim), worker, "the victim's worker has changed");
    }
}

/// A `sublet up` of another user, without any rights, with more arguments.
fn without_rights(more: &[&str]) -> PlatformProcess {
    PlatformProcess::start_with(|up| {
        let state = up.get_args().last().expect("it has a state folder").to_owned();
        let parent = Path::new(&state).parent().expect("it is in a folder of the test's own");
        chown(parent, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        fs::set_permissions(parent, Permissions::from_mode(0o755)).unwrap();
        let mut wrapped = Command::new("setpriv");
        let user = SOMEBODY.to_string();
        wrapped.args([
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ]);
        wrapped.arg(up.get_program()).args(up.get_args()).args(more);
        for (name, value) in up.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped.stdin(Stdio::null()).stdout(Stdio::piped());
        *up = wrapped;
    })
}

#[test]
fn functions_of_an_unprivileged_agent_are_isolated() {
    if !rustix::process::geteuid().is_root() {
        skip(Means::Root, "only root can start an agent as another user");
        return;
    }
    let platform = without_rights(&[]);
    let victim = platform.client_with(&Allocation::new(package("calls.c")));
    let worker = platform.worker();
    // All sandboxes are of one user there.
    assert_eq!(fs::metadata(format!("/proc/{worker}")).unwrap().uid(), SOMEBODY);
    let mallory =
        platform.client_with(&Allocation::new(package("hostile_tenant.c")).policy(Policy::AlwaysWarm));
    assert_blocked(&mallory, "stalk", &[], 30_000);
    let state = platform.state().display().to_string();
    let paths: String = ["", "/agent.sock", "/manager.sock", "/store.sqlite", "/packages", "/logs"]
        .iter()
        .map(|name| format!("{state}{name}\0"))
        .chain([format!("/proc/{worker}/mem\0"), "/etc/shadow\0".into(), "/dev/mem\0".into()])
        .collect();
    assert_blocked(&mallory, "pry", paths.as_bytes(), 27);
    assert_echoes(&victim);
    assert!(platform.workers().contains(&worker), "the victim's worker has changed");
}

#[test]
fn node_whose_shared_cores_have_no_shares_is_named() {
    if !rustix::process::geteuid().is_root() {
        skip(Means::Root, "only root can start an agent as another user");
        return;
    }
    let platform = without_rights(&["--cores", "1", "--shared-cores", "1"]);
    let said = platform.run(&["ps"]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("has no cpu controller"), "{said}");
    assert_eq!(platform.json(&["ps"])["nodes"][0]["has_core_shares"], false);
}
