//! Untrusted kernels, and the operations that they are denied. Each test attempts its attack.

#![allow(clippy::unwrap_used)]

mod suite;
mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sublet_devices::builder::{Builder, Confinement};
use sublet_devices::opencl::{OpenCl, Partition};
use sublet_devices::{
    CacheSettings, DeviceError, DeviceSandboxStatus, DeviceSandboxes, Driver, ImagePart, KernelProgram,
    KernelSpec, LaunchInput, LaunchOutput, Patience, WorkSize,
};
use suite::{DeviceFixture, ONE, call, open, spec, started};
use support::{OpenClFixture, builder, device};

/// A source with a kernel of the signature of functions.
fn source(before: &str, body: &str) -> String {
    format!(
        "{before}\nkernel void main_kernel(global const uchar *input, uint size, global uchar *output, uint capacity, \
         global uint *written) {{ {body} }}\n"
    )
}

fn of_source(text: String) -> KernelSpec {
    let program = KernelProgram::Source { text, options: String::new() };
    KernelSpec { tenant: ONE, kernel: "main_kernel".into(), program, work: WorkSize::ONE }
}

fn of_binary(bytes: Vec<u8>) -> KernelSpec {
    KernelSpec { program: KernelProgram::Binary(bytes), ..of_source(String::new()) }
}

/// Creates a valid function beside each hostile one, which must succeed.
#[track_caller]
fn refused_alone(sandboxes: &DeviceSandboxes<OpenCl>, hostile: KernelSpec) -> String {
    let mut created = sandboxes.create(&[hostile, spec::<OpenClFixture>(ONE, "echo", "main_kernel")]);
    let good = created.pop().unwrap().unwrap();
    sandboxes.start(&[good]).remove(0).unwrap();
    assert_eq!(call(sandboxes, good, b"x").unwrap(), b"x");
    created.pop().unwrap().unwrap_err().to_string()
}

fn with(builder: Builder) -> DeviceSandboxes<OpenCl> {
    let driver = OpenCl::open(&device(), Partition::Queues(1), Some(builder)).unwrap();
    DeviceSandboxes::open(driver, &CacheSettings { store: Some(suite::store()), ..CacheSettings::default() })
        .unwrap()
}

/// A file that only its owner may read, as an agent's tokens are.
fn secret() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(file.path(), "sublet_secret_word sublet_secret_word\n").unwrap();
    file
}

#[test]
fn a_source_reads_no_files_of_the_host() {
    let (sandboxes, secret) = (open::<OpenClFixture>(1), secret());
    let path = secret.path().display();
    for before in [
        format!("#include \"{path}\""),
        format!("#inc\\\nlude \"{path}\""),
        format!("%:include \"{path}\""),
        format!("#define FILE \"{path}\"\n#include FILE"),
        "#include \"/etc/passwd\"".into(),
        "#include \"/proc/self/environ\"".into(),
    ] {
        let said = refused_alone(&sandboxes, of_source(source(&before, "")));
        assert!(!said.contains("secret_word") && !said.contains("root:"), "{before}: {said}");
        assert!(said.contains("does not build"), "{before}: {said}");
    }
}

/// A kernel whose output is a file, by an assembler's include.
fn assembled(path: &std::path::Path) -> KernelSpec {
    let path = path.display();
    let body = format!(
        "constant uchar *file; __asm__ volatile(\".pushsection .rodata\\n1: .incbin \\\"{path}\\\"\\n.popsection\\n\
         lea 1b(%%rip), %0\" : \"=r\"(file)); for (uint i = 0; i < 18; i++) output[i] = file[i]; *written = 18;"
    );
    of_source(source("", &body))
}

#[test]
fn an_assemblers_include_reads_no_files_of_the_host() {
    let (sandboxes, secret) = (open::<OpenClFixture>(1), secret());
    let created = sandboxes.create(&[assembled(secret.path())]).remove(0);
    let Ok(id) = created else { return };
    sandboxes.start(&[id]).remove(0).unwrap();
    let found = call(&sandboxes, id, &[0; 18]);
    assert!(!found.as_ref().is_ok_and(|bytes| bytes.starts_with(b"sublet_secret_word")), "{found:?}");
}

#[test]
fn without_its_confinement_a_builder_would_read_the_hosts_files() {
    let secret = secret();
    let sandboxes = with(Builder { confinement: Confinement::Surroundings, ..builder() });
    let before = format!("#include \"{}\"", secret.path().display());
    let said = refused_alone(&sandboxes, of_source(source(&before, "")));
    assert!(said.contains("sublet_secret_word"), "the tries are good ones: {said}");
    let ids = started(&sandboxes, &[assembled(secret.path())]);
    assert_eq!(call(&sandboxes, ids[0], &[0; 18]).unwrap(), b"sublet_secret_word");
}

#[test]
fn huge_sources_and_odd_names_never_reach_a_compiler() {
    let sandboxes = open::<OpenClFixture>(1);
    let huge = of_source("x".repeat(sublet_devices::MAX_PROGRAM_BYTES + 1));
    assert!(refused_alone(&sandboxes, huge).contains("bytes"));
    for name in ["main kernel", "x -I/etc", "x;y", "", "ä", "x\0"] {
        let odd = KernelSpec { kernel: name.into(), ..of_source(source("", "")) };
        assert!(refused_alone(&sandboxes, odd).contains("a name has"), "{name:?}");
    }
    assert!(refused_alone(&sandboxes, of_source(source("", "") + "\0")).contains("has a zero byte"));
    for options in ["-I/etc", "-include /etc/passwd", "-DX=1 -o /tmp/x"] {
        let program = KernelProgram::Source { text: source("", ""), options: options.into() };
        let odd = KernelSpec { program, ..of_source(String::new()) };
        assert!(refused_alone(&sandboxes, odd).contains("option"), "{options:?}");
    }
}

#[test]
fn endlessly_expanding_source_ends_at_a_limit_without_others() {
    let doubled: String = (1..64).map(|n| format!("#define M{n} M{} M{}\n", n - 1, n - 1)).collect();
    let bomb = of_source(source(&format!("#define M0 x\n{doubled}int a[] = {{ M63 }};"), ""));
    let mut limited = Builder { time: Duration::from_secs(20), memory_bytes: 3 << 30, ..builder() };
    let said = refused_alone(&with(limited.clone()), bomb.clone());
    assert!(
        said.contains("was killed") || said.contains("not built within") || said.contains("without a word"),
        "{said}"
    );
    limited.time = Duration::from_secs(2);
    let driver = OpenCl::open(&device(), Partition::Queues(1), Some(limited)).unwrap();
    let sandboxes = DeviceSandboxes::open(driver, &CacheSettings::default()).unwrap();
    assert!(sandboxes.create(&[bomb]).remove(0).is_err());
}

#[test]
fn garbage_binaries_fail_alone_even_if_they_crash_the_driver() {
    let sandboxes = open::<OpenClFixture>(1);
    let build = builder_output();
    let mut garbled = build.clone();
    garbled.iter_mut().enumerate().skip(200).for_each(|(at, byte)| *byte ^= (at * 7) as u8);
    let mut other_device = build.clone();
    other_device[8..24].iter_mut().for_each(|byte| *byte ^= 0x55);
    let hostile = [
        b"garbage".to_vec(),
        vec![0; 100_000],
        garbled[..4096.min(garbled.len())].to_vec(),
        garbled.clone(),
        build[..build.len() / 2].to_vec(),
        other_device,
    ];
    for (number, bytes) in hostile.into_iter().enumerate() {
        let said = refused_alone(&sandboxes, of_binary(bytes));
        assert!(said.contains("does not build") || said.contains("has no kernel"), "{number}: {said}");
    }
}

/// A binary as the device's own tools make it.
fn builder_output() -> Vec<u8> {
    let kernels = ["main_kernel".to_owned()];
    let text = OpenClFixture::source("echo");
    let part = ImagePart::Source { text: &text, options: "", kernels: &kernels, prefix: "" };
    OpenClFixture::driver(1).build(&[part]).unwrap().programs.remove(0)
}

#[test]
fn a_good_binary_is_taken() {
    let sandboxes = open::<OpenClFixture>(1);
    let work = WorkSize::per_bytes(1);
    let ids = started(&sandboxes, &[KernelSpec { work, ..of_binary(builder_output()) }]);
    assert_eq!(call(&sandboxes, ids[0], b"some bytes").unwrap(), b"some bytes");
}

/// The code that the tests below run in a process of its own, as each tenant has one.
#[test]
#[ignore = "started by the tests that need a tenant's process"]
fn tenants_process() {
    let sandboxes = open::<OpenClFixture>(2);
    let (body, patience) = match std::env::var("TENANT").unwrap().as_str() {
        "endless" => (
            "for (volatile uint i = 0; ; i++);",
            Patience::Until(Instant::now() + Duration::from_millis(300)),
        ),
        "outside" => ("for (ulong i = 0; ; i += 4096) output[i] = 1;", Patience::Forever),
        other => panic!("{other}"),
    };
    let ids = started(
        &sandboxes,
        &[of_source(source("", body)), spec::<OpenClFixture>(ONE, "echo", "main_kernel")],
    );
    let mut output = [0; 8];
    let ended = sandboxes.launch(ids[0], LaunchInput::Host(b"x"), LaunchOutput::Host(&mut output), patience);
    assert!(matches!(ended, Err(DeviceError::RunsOn)), "{ended:?}");
    let killed = sandboxes.kill(&ids[..1]).remove(0).unwrap();
    assert_eq!(
        (killed.status, killed.launches),
        (DeviceSandboxStatus::Stopped, 1),
        "it says that it runs on"
    );
    assert!(matches!(sandboxes.delete(&ids[..1]).remove(0), Err(DeviceError::RunsOn)));
    assert!(matches!(call(&sandboxes, ids[1], b"x"), Err(DeviceError::RunsOn)));
    assert!(matches!(sandboxes.buffer(ONE, 8), Err(DeviceError::RunsOn)));
    drop(sandboxes);
    println!("tenant: it runs on");
    std::thread::sleep(Duration::from_secs(600));
}

fn tenant(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "tenants_process", "--nocapture", "--test-threads=1"]);
    command.env("TENANT", name).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

#[test]
fn endless_kernel_is_reported_and_ends_with_its_process() {
    use std::io::BufRead;
    let mut child = tenant("endless").spawn().unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let said: Vec<String> =
        lines.map(Result::unwrap).take_while(|line| !line.contains("it runs on")).collect();
    assert!(child.try_wait().unwrap().is_none(), "it ended by itself: {said:?}");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    // The device is available to the next process.
    let sandboxes = open::<OpenClFixture>(1);
    let ids = started(&sandboxes, &[spec::<OpenClFixture>(ONE, "echo", "main_kernel")]);
    assert_eq!(call(&sandboxes, ids[0], b"x").unwrap(), b"x");
}

#[test]
fn a_kernel_that_writes_outside_ends_its_own_process_alone() {
    let output = tenant("outside").output().unwrap();
    let signal = output.status.signal();
    assert!(
        matches!(signal, Some(6 | 7 | 11)),
        "{:?} {}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    let sandboxes = open::<OpenClFixture>(1);
    let ids = started(&sandboxes, &[spec::<OpenClFixture>(ONE, "echo", "main_kernel")]);
    assert_eq!(call(&sandboxes, ids[0], b"x").unwrap(), b"x");
}

#[test]
fn document_ties_each_threat_to_an_existing_test() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(folder.join("../../docs/isolation.md")).unwrap();
    let tests: String = ["tests/hostile.rs", "tests/suite/mod.rs", "../../tests/tests/kernels.rs"]
        .map(|file| std::fs::read_to_string(folder.join(file)).unwrap())
        .concat();
    let (document, _) = document.split_once("\n## What it costs\n").unwrap();
    let rows: Vec<_> = document.lines().filter(|line| line.starts_with("| opencl |")).collect();
    assert!(rows.len() >= 10, "{} rows", rows.len());
    for row in rows {
        let name = row.rsplit('`').nth(1).unwrap_or_else(|| panic!("no test in {row}"));
        let is_there =
            ["()", "<H: DeviceFixture>()"].iter().any(|rest| tests.contains(&format!("fn {name}{rest}")));
        assert!(is_there, "there is no test {name}");
    }
}
