//! Bad input: packages, names, sizes and requests that make no sense. Each gets its code and a message that names what
//! was wrong, and afterwards everything works as before.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use sublet::{Allocation, Code, Invocation, Invoker, OutputMemory};
use sublet_proto::package;
use sublet_proto::v1::{Package, PackageFile};
use sublet_tests::assert_fails;
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{PlatformProcess, assert_echoes};

/// The value of an ELF header's `e_machine` for a processor that this is not, and its name.
const FOREIGN: (u16, &str) = if cfg!(target_arch = "aarch64") { (62, "x86_64") } else { (183, "aarch64") };
/// Where `e_machine` stands in an ELF header.
const E_MACHINE: std::ops::Range<usize> = 18..20;

fn allocate(platform: &PlatformProcess, package: &Path) -> Result<(), sublet::Error> {
    platform.invoker().allocate(&Allocation::new(package.to_str().unwrap()))
}

/// A folder with a package: a manifest and the library of `calls.c`.
fn package_folder(manifest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    fs::copy(library("calls.c"), folder.path().join("libcalls.so")).unwrap();
    folder
}

#[test]
fn an_unknown_function_is_named_beside_those_that_there_are() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    for name in ["ech", "echo2", "", "libcalls/ech", "libother/echo", "libcalls/"] {
        let message =
            assert_fails(client.function(name).map(|_| ()), Code::UnknownFunction, &["libcalls", name]);
        assert!(message.contains("add_index"), "{message}");
    }
    assert_echoes(&client);
    let message =
        platform.assert_refuses(&["call", "libcalls/nothing", "-o", "/dev/null"], Code::UnknownFunction);
    assert!(message.contains("nothing"), "{message}");
}

#[test]
fn an_unknown_package_is_named() {
    let platform = PlatformProcess::start();
    let digest = format!("sha256:{}", "0".repeat(64));
    for name in ["libnothing", digest.as_str()] {
        let refused = platform.invoker().allocate(&Allocation::new(name));
        assert_fails(refused, Code::UnknownPackage, &[name]);
    }
    assert_fails(allocate(&platform, Path::new("./nothing.so")), Code::InvalidArgument, &["./nothing.so"]);
    platform.assert_serves();
}

#[test]
fn a_package_without_the_symbol_that_it_names_is_refused() {
    let platform = PlatformProcess::start();
    let folder = package_folder(
        "name = 'p'\nlibrary = 'libcalls.so'\n[[function]]\nname = 'f'\nsymbol = 'not_in_there'\n",
    );
    assert_fails(allocate(&platform, folder.path()), Code::MissingSymbol, &["not_in_there", "echo"]);
    platform.assert_serves();
}

#[test]
fn a_package_for_another_architecture_is_refused() {
    let platform = PlatformProcess::start();
    let folder = tempfile::tempdir().unwrap();
    let (machine, name) = FOREIGN;
    let mut elf = fs::read(library("calls.c")).unwrap();
    elf[E_MACHINE].copy_from_slice(&machine.to_le_bytes());
    let path = folder.path().join("libcalls.so");
    fs::write(&path, elf).unwrap();
    assert_fails(
        allocate(&platform, &path),
        Code::WrongArchitecture,
        &["libcalls", name, std::env::consts::ARCH],
    );
    platform.assert_serves();
}

#[test]
fn a_truncated_shared_object_is_refused_wherever_it_ends() {
    let platform = PlatformProcess::start();
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(library("calls.c")).unwrap();
    let path = folder.path().join("libcut.so");
    for len in [0, 3, 63, 64, 1000, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        assert_fails(allocate(&platform, &path), Code::InvalidPackage, &["libcut.so"]);
    }
    platform.assert_serves();
}

#[test]
fn what_is_no_shared_object_is_refused() {
    let platform = PlatformProcess::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libtext.so");
    fs::write(&path, "#!/bin/sh\n".repeat(1000)).unwrap();
    assert_fails(allocate(&platform, &path), Code::InvalidPackage, &["libtext.so"]);
    let message = platform.assert_refuses(&["deploy", path.to_str().unwrap()], Code::InvalidPackage);
    assert!(message.contains("libtext.so"), "{message}");
    platform.assert_serves();
}

#[test]
fn a_folder_with_a_symbolic_link_is_refused() {
    let platform = PlatformProcess::start();
    let folder = package_folder("name = 'p'\nlibrary = 'libcalls.so'\n");
    symlink("/etc/passwd", folder.path().join("data.txt")).unwrap();
    assert_fails(allocate(&platform, folder.path()), Code::InvalidPackage, &["data.txt", "symbolic link"]);
    platform.assert_serves();
}

#[test]
fn the_manager_refuses_a_package_with_an_escaping_path() {
    let platform = PlatformProcess::start();
    let client = platform.invoker();
    let file = |path: &str| PackageFile {
        path: path.to_owned(),
        data: fs::read(library("calls.c")).unwrap(),
        executable: true,
    };
    for path in ["../x", "/etc/x", "a/../../x", "a//x", "./x"] {
        let manifest = "name = 'p'\nlibrary = 'libcalls.so'\n".to_owned();
        // Another client library could send this package: this client's own library makes no such package.
        let encoded = package::encode(&Package { manifest, files: vec![file("libcalls.so"), file(path)] });
        assert_fails(client.manager().deploy(encoded), Code::InvalidPackage, &[path]);
    }
    for manifest in ["name = 'p'\nlibrary = '../libcalls.so'\n", "name = '../p'\nlibrary = 'libcalls.so'\n"] {
        let encoded =
            package::encode(&Package { manifest: manifest.to_owned(), files: vec![file("libcalls.so")] });
        assert_fails(client.manager().deploy(encoded), Code::InvalidPackage, &["../"]);
    }
    platform.assert_serves();
}

#[test]
fn loading_a_package_names_a_missing_symbol() {
    let platform = PlatformProcess::start();
    let missing = &["libunresolved.so", "nobody_provides_this"];
    assert_fails(allocate(&platform, &library("unresolved.c")), Code::InvalidPackage, missing);
    // The lease that could not be used holds nothing.
    let all = Allocation::new(package("calls.c")).cores(platform.cores());
    assert_echoes(&platform.client_with(&all));
}

#[test]
fn an_input_larger_than_the_slot_needs_the_allocator() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&Allocation::new(package("calls.c")).slot_bytes(1000));
    let (input, mut output) = (vec![7u8; 1001], vec![0u8; 1001]);
    let refused = client.submit("echo", &input, &mut output).map(|_| ());
    assert_fails(refused, Code::InputTooLarge, &["libcalls/echo", "1001", "1000"]);
    let fits = client.submit("echo", &input[..1000], &mut output).unwrap().wait().unwrap();
    assert_eq!((fits.output_bytes, &output[..1000]), (1000, &input[..1000]));
    let mut own = client.buffer::<u8>(1001).unwrap();
    own.copy_from_slice(&input);
    assert_eq!(client.submit("echo", &own, &mut output).unwrap().wait().unwrap().output_bytes, 1001);
    assert_eq!(output, input);
}

#[test]
fn an_output_larger_than_its_buffer_is_refused() {
    let platform = PlatformProcess::start();
    let client = platform.client("faults.c");
    let (mut short, mut own) = ([0u8; 10], client.buffer::<u8>(10).unwrap());
    assert_refuses_output(&client, &mut short);
    assert_refuses_output(&client, &mut own);
    assert_refuses_output(&client, &mut [0u8; 0]);
    assert_echoes(&client);
}

/// Checks that a result that has one byte more than the output is refused, with both sizes.
fn assert_refuses_output(client: &Invoker, output: &mut impl OutputMemory) {
    let capacity = output.shared_bytes_mut().len();
    let done = client.submit("boast", &[0u8; 0], output).unwrap().wait();
    let numbers = [format!("{} bytes", capacity + 1), format!("has {capacity}")];
    assert_fails(done, Code::OutputTooLarge, &["libfaults/boast", &numbers[0], &numbers[1]]);
}

#[test]
fn calls_of_size_0_are_calls() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let own = client.buffer::<u8>(0).unwrap();
    let mut sizes = [[77u32]; 2];
    client.submit("measure", &[0u8; 0], &mut sizes[0]).unwrap().wait().unwrap();
    client.submit("measure", &own, &mut sizes[1]).unwrap().wait().unwrap();
    assert_eq!(sizes, [[0], [0]]);
    let done = client.submit("noop", &[1u8], &mut [0u8; 0]).unwrap().wait().unwrap();
    assert_eq!(done.output_bytes, 0);
    assert_echoes(&client);
}

#[test]
fn calls_may_be_one_byte_below_4_gib() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    // Pages that no process touches take no memory.
    let input = client.buffer::<u8>(u32::MAX as usize).unwrap();
    let mut output = client.buffer::<u8>(u32::MAX as usize).unwrap();
    client.submit("measure", &input, &mut output).unwrap().wait().unwrap();
    assert_eq!(output.part(..4).to_vec(), u32::MAX.to_le_bytes());
    client.submit("room", &input, &mut output).unwrap().wait().unwrap();
    assert_eq!(output.part(..4).to_vec(), u32::MAX.to_le_bytes());
    let refused = client.buffer::<u8>(1 << 32).map(|_| ());
    assert_fails(refused, Code::InvalidArgument, &["4294967296", "4294967295"]);
    let refused = client.buffer::<u64>(usize::MAX).map(|_| ());
    assert_fails(refused, Code::InvalidArgument, &["4294967295"]);
    assert_echoes(&client);
}

#[test]
fn a_lease_larger_than_the_node_names_its_size() {
    let platform = PlatformProcess::start();
    let cores = platform.cores();
    let memory_bytes = platform.said["node"]["memory_bytes"].as_u64().unwrap();
    let more = Allocation::new(package("calls.c")).cores(cores + 1);
    let numbers = [format!("{} core", cores + 1), cores.to_string()];
    assert_fails(
        platform.invoker().allocate(&more),
        Code::InsufficientResources,
        &[&numbers[0], &numbers[1]],
    );
    let more = Allocation::new(package("calls.c")).memory_bytes(memory_bytes + 1);
    let refused = platform.invoker().allocate(&more);
    assert_fails(refused, Code::InsufficientResources, &[&(memory_bytes + 1).to_string()]);
    platform.assert_serves();
}

#[test]
fn a_lease_of_used_cores_is_refused_and_granted_later() {
    let platform = PlatformProcess::start();
    let all = Allocation::new(package("calls.c")).cores(platform.cores());
    let mut holder = platform.client_with(&all);
    let mut other = platform.invoker();
    assert_fails(other.allocate(&all), Code::NoCapacity, &["core"]);
    assert_fails(other.allocate(&Allocation::new(package("calls.c"))), Code::NoCapacity, &["core"]);
    assert_echoes(&holder);
    holder.deallocate().unwrap();
    other.allocate(&all).unwrap();
    assert_echoes(&other);
}

#[test]
fn requests_outside_of_the_limits_are_refused_with_the_limit() {
    let platform = PlatformProcess::start();
    let allocation = || Allocation::new(package("calls.c"));
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    for (asked, named) in [
        (allocation().cores(0), "0"),
        (allocation().cores(100_000), "65536"),
        (allocation().slots(u32::MAX), "256"),
        (allocation().slot_bytes(1 << 32), "4294967295"),
        (allocation().timeout(day * 2), "86400000"),
        (allocation().memory_bytes(1), "1 bytes"),
    ] {
        assert_fails(platform.invoker().allocate(&asked), Code::InvalidArgument, &[named]);
    }
    platform.assert_serves();
}

#[test]
fn an_invoker_says_what_it_has_and_has_not() {
    let platform = PlatformProcess::start();
    let mut client = platform.invoker();
    let early = client.submit("echo", &[0u8], &mut [0u8]).map(|_| ());
    assert_fails(early, Code::NotAllocated, &["allocate"]);
    assert_eq!(client.deallocate().unwrap().allocated_ns, 0);
    let allocation = Allocation::new(package("calls.c"));
    client.allocate(&allocation).unwrap();
    let id = client.lease().unwrap().id.clone();
    assert_fails(client.allocate(&allocation), Code::AlreadyAllocated, &[&id]);
    let function = client.function("echo").unwrap();
    let options = sublet::CallOptions { worker: Some(1), ..Default::default() };
    let (input, mut output) = ([0u8], [0u8]);
    let refused = client.submit_with(function, &input, &mut output, options).map(|_| ());
    assert_fails(refused, Code::InvalidArgument, &["worker 1", "has 1"]);
    assert_echoes(&client);
    client.deallocate().unwrap();
    let late = client.submit("echo", &[0u8], &mut [0u8]).and_then(Invocation::wait);
    assert_fails(late, Code::NotAllocated, &["allocate"]);
}

#[test]
fn a_manager_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("manager.sock").display());
    assert_fails(Invoker::connect_to(&address).map(|_| ()), Code::ManagerUnreachable, &[&address]);
    assert_fails(Invoker::connect_to("tcp://here:1").map(|_| ()), Code::InvalidArgument, &["tcp://here:1"]);
}
