//! Tests that every kind of device must pass, written once. Each kind defines how its device is opened and how its
//! kernels are written.

// Each of the tests' programs uses what it needs.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use sublet_devices::worker::KernelEngine;
use sublet_devices::{
    CacheSettings, DeviceBuffer, DeviceError, DeviceSandboxId, DeviceSandboxState, DeviceSandboxStatus,
    DeviceSandboxes, Driver, KernelProgram, KernelSpec, LaunchInput, LaunchOutput, MAX_SANDBOXES, MAX_VECTOR,
    Patience, TenantId, WorkSize, prepare,
};
use sublet_proto::Code;
use sublet_proto::package::{BUILT_FOLDER, MANIFEST_FILE, built_file};
use sublet_proto::v1::PackageInfo;
use sublet_runtime::worker::engine::{self, Engine, EngineLoad, FunctionCaller};

pub const ONE: TenantId = TenantId(1);
pub const TWO: TenantId = TenantId(2);

/// A kind of device.
pub trait DeviceFixture {
    type Driver: Driver;

    /// Opens the device for `lanes` launches at once.
    fn driver(lanes: u32) -> Self::Driver;

    /// A program by its name.
    ///
    /// - `echo`: `main_kernel` copies input to output, a byte for each work-item.
    /// - `add`: `main_kernel` adds one to each byte, by a helper called `helper`.
    /// - `double`: `main_kernel` doubles each byte, by another helper of the same name.
    /// - `leak`: `main_kernel` copies memory from its input on, up to the size of its output, whatever the input's
    ///   size.
    /// - `answers`: `fails` with the message `no luck`, `lies` about the size of its output, `is_silent`.
    /// - `slow`: `main_kernel` computes for a while in one work-item, and then echoes one byte.
    /// - `broken`: does not compile.
    fn source(name: &str) -> String;
}

pub fn open<H: DeviceFixture>(lanes: u32) -> DeviceSandboxes<H::Driver> {
    DeviceSandboxes::open(
        H::driver(lanes),
        &CacheSettings { store: Some(store()), ..CacheSettings::default() },
    )
    .unwrap()
}

/// One folder for all tests of a process: each function is built only once.
pub fn store() -> PathBuf {
    static FOLDER: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join("programs")
}

pub fn spec<H: DeviceFixture>(tenant: TenantId, program: &str, kernel: &str) -> KernelSpec {
    let program = KernelProgram::Source { text: H::source(program), options: String::new() };
    KernelSpec { tenant, kernel: kernel.into(), program, work: WorkSize::per_bytes(1) }
}

pub fn started<D: Driver>(sandboxes: &DeviceSandboxes<D>, specs: &[KernelSpec]) -> Vec<DeviceSandboxId> {
    let ids: Vec<DeviceSandboxId> = sandboxes.create(specs).into_iter().map(Result::unwrap).collect();
    sandboxes
        .start(&ids)
        .into_iter()
        .for_each(|started| assert_eq!(started.unwrap().status, DeviceSandboxStatus::Running));
    ids
}

/// Input and output on the host.
pub fn call<D: Driver>(
    sandboxes: &DeviceSandboxes<D>,
    id: DeviceSandboxId,
    input: &[u8],
) -> Result<Vec<u8>, DeviceError> {
    let mut output = vec![0; input.len() + 64];
    let input = LaunchInput::Host(input);
    let written = sandboxes.launch(id, input, LaunchOutput::Host(&mut output), Patience::Forever)?;
    output.truncate(written as usize);
    Ok(output)
}

pub fn states_and_verbs<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let id = sandboxes.create(&[spec::<H>(ONE, "echo", "main_kernel")]).remove(0).unwrap();
    let state = || sandboxes.state(&[id]).remove(0).unwrap();
    assert_eq!(state(), DeviceSandboxState { status: DeviceSandboxStatus::Created, launches: 0 });
    let early = call(&sandboxes, id, b"x");
    assert!(
        matches!(early, Err(DeviceError::WrongStatus { status: DeviceSandboxStatus::Created, .. })),
        "{early:?}"
    );
    sandboxes.start(&[id]).remove(0).unwrap();
    assert_eq!(state().status, DeviceSandboxStatus::Running);
    let again = sandboxes.start(&[id]).remove(0);
    assert!(
        matches!(again, Err(DeviceError::WrongStatus { status: DeviceSandboxStatus::Running, .. })),
        "{again:?}"
    );
    assert!(matches!(sandboxes.delete(&[id]).remove(0), Err(DeviceError::WrongStatus { .. })));
    assert_eq!(call(&sandboxes, id, b"some bytes").unwrap(), b"some bytes");
    assert_eq!(call(&sandboxes, id, b"").unwrap(), b"");
    assert_eq!(
        sandboxes.kill(&[id]).remove(0).unwrap(),
        DeviceSandboxState { status: DeviceSandboxStatus::Stopped, launches: 0 }
    );
    let late = call(&sandboxes, id, b"x");
    assert!(
        matches!(late, Err(DeviceError::WrongStatus { status: DeviceSandboxStatus::Stopped, .. })),
        "{late:?}"
    );
    sandboxes.delete(&[id]).remove(0).unwrap();
    assert!(matches!(sandboxes.state(&[id]).remove(0), Err(DeviceError::Unknown(_))));
}

pub fn concurrent_creates_keep_the_bound<H: DeviceFixture>() {
    let sandboxes = &open::<H>(1);
    let echo = || spec::<H>(ONE, "echo", "main_kernel");
    for full in 0..MAX_SANDBOXES / MAX_VECTOR {
        // The first vector leaves one place free.
        let count = MAX_VECTOR - usize::from(full == 0);
        let created = sandboxes.create(&vec![echo(); count]);
        assert!(created.iter().all(Result::is_ok), "{full}");
    }
    const THREADS: usize = 8;
    let begin = &Barrier::new(THREADS);
    let created: Vec<_> = std::thread::scope(|scope| {
        let create = |_| {
            scope.spawn(move || {
                begin.wait();
                sandboxes.create(&[spec::<H>(TWO, "echo", "main_kernel")]).remove(0)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(create).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(created.iter().flatten().count(), 1, "{created:?}");
    let refused = created.iter().filter(|created| matches!(created, Err(DeviceError::TooMany)));
    assert_eq!(refused.count(), THREADS - 1, "{created:?}");
    // A deleted sandbox frees its place.
    let id = created.into_iter().find_map(Result::ok).unwrap();
    sandboxes.delete(&[id]).remove(0).unwrap();
    sandboxes.create(&[echo()]).remove(0).unwrap();
}

pub fn large_inputs_come_through<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let id = started(&sandboxes, &[spec::<H>(ONE, "echo", "main_kernel")])[0];
    for len in [1usize, 63, 4096, 4097, 5_000_000] {
        let input: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        assert!(call(&sandboxes, id, &input).unwrap() == input, "{len} bytes");
    }
}

pub fn a_vector_is_one_image_and_fails_alone<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let mut missing = spec::<H>(ONE, "echo", "no_such_kernel");
    missing.program = KernelProgram::Source { text: H::source("echo") + "\n", options: String::new() };
    let specs = [
        spec::<H>(ONE, "add", "main_kernel"),
        spec::<H>(ONE, "broken", "main_kernel"),
        spec::<H>(ONE, "double", "main_kernel"),
        missing,
        spec::<H>(ONE, "echo", "main_kernel"),
        spec::<H>(ONE, "echo", "main kernel"),
    ];
    let created = sandboxes.create(&specs);
    let error = |at: usize| created[at].as_ref().unwrap_err();
    assert!(matches!(error(1), DeviceError::Build { name, log } if name == "main_kernel" && !log.is_empty()));
    assert!(error(1).to_string().len() < 5000, "the log is bounded");
    assert!(matches!(error(3), DeviceError::NoKernel { .. } | DeviceError::Build { .. }), "{}", error(3));
    assert!(matches!(error(5), DeviceError::Spec { .. }), "{}", error(5));
    let ids = [0, 2, 4].map(|at: usize| *created[at].as_ref().unwrap());
    assert!(sandboxes.start(&ids).iter().all(Result::is_ok));
    let outputs = ids.map(|id| call(&sandboxes, id, &[1, 2, 30]).unwrap());
    assert_eq!(outputs, [vec![2, 3, 31], vec![2, 4, 60], vec![1, 2, 30]]);
}

pub fn answers_of_kernels_are_checked<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let specs = ["fails", "lies", "is_silent"].map(|kernel| spec::<H>(ONE, "answers", kernel));
    let ids = started(&sandboxes, &specs);
    assert_eq!(call(&sandboxes, ids[0], b"x").unwrap_err().to_string(), "no luck");
    let lie = call(&sandboxes, ids[1], b"x");
    assert!(matches!(lie, Err(DeviceError::WroteTooMuch { written: 66, capacity_bytes: 65 })), "{lie:?}");
    assert_eq!(call(&sandboxes, ids[2], b"x").unwrap(), b"", "nothing is left of the call before");
}

pub fn a_chain_stays_on_the_device<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let specs = ["add", "double", "echo"].map(|program| spec::<H>(ONE, program, "main_kernel"));
    let ids = started(&sandboxes, &specs);
    let mut buffers: [DeviceBuffer<H::Driver>; 2] = [0, 1].map(|_| sandboxes.buffer(ONE, 1000).unwrap());
    let before = sandboxes.transfers();
    let input: Vec<u8> = (0..100).collect();
    let [one, two] = &mut buffers;
    sandboxes
        .launch(ids[0], LaunchInput::Host(&input), LaunchOutput::Device(one), Patience::Forever)
        .unwrap();
    assert_eq!((one.len_bytes(), one.capacity_bytes()), (100, 1000));
    sandboxes.launch(ids[1], LaunchInput::Device(one), LaunchOutput::Device(two), Patience::Forever).unwrap();
    sandboxes.launch(ids[2], LaunchInput::Device(two), LaunchOutput::Device(one), Patience::Forever).unwrap();
    let between = sandboxes.transfers();
    assert_eq!((between.to_device - before.to_device, between.to_host - before.to_host), (1, 0));
    let mut output = [0; 100];
    sandboxes
        .launch(ids[2], LaunchInput::Device(one), LaunchOutput::Host(&mut output), Patience::Forever)
        .unwrap();
    let after = sandboxes.transfers();
    assert_eq!((after.to_device - before.to_device, after.to_host - before.to_host), (1, 1));
    assert!(output.iter().enumerate().all(|(at, byte)| *byte == (at as u8 + 1) * 2), "{output:?}");
}

pub fn memory_is_wiped_between_tenants<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let leaks = [ONE, TWO].map(|tenant| spec::<H>(tenant, "leak", "main_kernel"));
    let ids = started(&sandboxes, &leaks);
    let echo = started(&sandboxes, &[spec::<H>(ONE, "echo", "main_kernel")])[0];
    let secret = [0x5a; 3000];
    // Through the memory for what comes from the host: what the first call left is looked for by the next.
    call(&sandboxes, echo, &secret).unwrap();
    let look = |id: DeviceSandboxId, input: LaunchInput<'_, H::Driver>| {
        let mut found = vec![1; 4096];
        let written = sandboxes.launch(id, input, LaunchOutput::Host(&mut found), Patience::Forever).unwrap();
        assert_eq!(written, 4096);
        found.iter().filter(|byte| **byte == 0x5a).count()
    };
    assert!(
        look(ids[0], LaunchInput::Host(b"")) >= 2990,
        "the tenant's own is still there: the look is a good one"
    );
    assert_eq!(look(ids[1], LaunchInput::Host(b"")), 0);
    // Through a buffer.
    let mut buffer = sandboxes.buffer(ONE, 4096).unwrap();
    sandboxes
        .launch(echo, LaunchInput::Host(&secret), LaunchOutput::Device(&mut buffer), Patience::Forever)
        .unwrap();
    drop(buffer);
    let before = sandboxes.transfers().reused;
    let mut found = vec![1; 4096];
    let theirs = sandboxes.buffer(TWO, 4096).unwrap();
    assert!(sandboxes.transfers().reused > before, "it is the same memory");
    let output = LaunchOutput::Host(&mut found);
    sandboxes.launch(ids[1], LaunchInput::Device(&theirs), output, Patience::Forever).unwrap();
    assert_eq!(found, vec![0; 4096]);
}

pub fn tenants_share_nothing<H: DeviceFixture>() {
    let sandboxes = open::<H>(2);
    let specs = [ONE, TWO].map(|tenant| spec::<H>(tenant, "echo", "main_kernel"));
    let ids = started(&sandboxes, &specs);
    let mut buffer = sandboxes.buffer(ONE, 100).unwrap();
    let into = sandboxes.launch(
        ids[1],
        LaunchInput::Host(b"x"),
        LaunchOutput::Device(&mut buffer),
        Patience::Forever,
    );
    assert!(matches!(into, Err(DeviceError::Foreign { owner: ONE, user: TWO })), "{into:?}");
    let mut output = [0; 100];
    let from = sandboxes.launch(
        ids[1],
        LaunchInput::Device(&buffer),
        LaunchOutput::Host(&mut output),
        Patience::Forever,
    );
    assert!(matches!(from, Err(DeviceError::Foreign { .. })), "{from:?}");
    let elsewhere = open::<H>(1).buffer(TWO, 100).unwrap();
    let other = LaunchInput::Device(&elsewhere);
    let from = sandboxes.launch(ids[1], other, LaunchOutput::Host(&mut output), Patience::Forever);
    assert!(matches!(from, Err(DeviceError::Driver { .. })), "{from:?}");
    for round in 0..20u8 {
        ids.iter().for_each(|id| assert_eq!(call(&sandboxes, *id, &[round; 9]).unwrap(), [round; 9]));
    }
}

pub fn two_kernels_run_at_once<H: DeviceFixture>() {
    let sandboxes = open::<H>(2);
    let specs = ["slow", "echo"].map(|program| spec::<H>(ONE, program, "main_kernel"));
    let ids = started(&sandboxes, &specs);
    call(&sandboxes, ids[0], &[1]).unwrap();
    let launches = || sandboxes.state(&[ids[0]]).remove(0).unwrap().launches;
    // On a machine that stands still, the slow one may end first. If one waited for the other, it always would.
    let are_at_once = (0..10).any(|_| {
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                call(&sandboxes, ids[0], &[200]).unwrap();
                Instant::now()
            });
            while launches() == 0 && !slow.is_finished() {
                std::thread::yield_now();
            }
            call(&sandboxes, ids[1], b"x").unwrap();
            let echoed = Instant::now();
            echoed < slow.join().unwrap()
        })
    });
    assert!(are_at_once, "the one waited for the other");
}

pub fn what_was_deleted_is_ready_at_once<H: DeviceFixture>() {
    let folder = tempfile::tempdir().unwrap();
    let settings = CacheSettings { store: Some(folder.path().join("programs")), ..CacheSettings::default() };
    let specs = [spec::<H>(ONE, "add", "main_kernel")];
    let sandboxes = DeviceSandboxes::open(H::driver(1), &settings).unwrap();
    let files = || std::fs::read_dir(folder.path().join("programs")).unwrap().count();
    let ids = started(&sandboxes, &specs);
    let built = files();
    assert!(built >= 1, "nothing was kept");
    sandboxes.kill(&ids);
    sandboxes.delete(&ids).remove(0).unwrap();
    for file in std::fs::read_dir(folder.path().join("programs")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    // Neither the disk nor a build: it was there all the time.
    let ids = started(&sandboxes, &specs);
    assert_eq!(files(), 0);
    assert_eq!(call(&sandboxes, ids[0], &[1]).unwrap(), [2]);
}

pub fn damaged_programs_are_built_anew<H: DeviceFixture>() {
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    let settings = CacheSettings { store: Some(programs.clone()), ..CacheSettings::default() };
    let specs = [spec::<H>(ONE, "add", "main_kernel")];
    drop(started(&DeviceSandboxes::open(H::driver(1), &settings).unwrap(), &specs));
    let files = || -> Vec<PathBuf> {
        std::fs::read_dir(&programs).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    for path in files() {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
    }
    let damaged: Vec<_> = files().iter().map(|path| std::fs::read(path).unwrap()).collect();
    let sandboxes = DeviceSandboxes::open(H::driver(1), &settings).unwrap();
    let ids = started(&sandboxes, &specs);
    assert_eq!(call(&sandboxes, ids[0], &[1]).unwrap(), [2]);
    assert!(files().iter().all(|path| !damaged.contains(&std::fs::read(path).unwrap())));
}

pub fn many_threads_get_their_own_answers<H: DeviceFixture>() {
    let sandboxes = Arc::new(open::<H>(2));
    let ids = started(&sandboxes, &["add", "double"].map(|program| spec::<H>(ONE, program, "main_kernel")));
    let threads: Vec<_> = (0..4u8)
        .map(|number| {
            let (sandboxes, id) = (Arc::clone(&sandboxes), ids[usize::from(number % 2)]);
            std::thread::spawn(move || {
                for round in 0..50u8 {
                    let input = [round, number];
                    let wanted =
                        if number % 2 == 0 { input.map(|byte| byte + 1) } else { input.map(|byte| byte * 2) };
                    assert_eq!(call(&sandboxes, id, &input).unwrap(), wanted);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

pub fn launches_that_end_in_time_are_answered<H: DeviceFixture>() {
    let sandboxes = open::<H>(1);
    let id = started(&sandboxes, &[spec::<H>(ONE, "slow", "main_kernel")])[0];
    let (mut output, end) = ([0; 8], Instant::now() + Duration::from_secs(600));
    let written = sandboxes
        .launch(id, LaunchInput::Host(&[5]), LaunchOutput::Host(&mut output), Patience::Until(end))
        .unwrap();
    assert_eq!((written, output[0]), (1, 5));
}

pub fn a_package_is_built_once_and_called_by_a_worker<H: DeviceFixture>() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |file: &str, bytes: &[u8]| std::fs::write(folder.join(file), bytes).unwrap();
    let manifest = format!(
        "name='p'\nkind='{}'\nlibrary='answers'\n[[function]]\nname='fails'\n[[function]]\nname='lies'\n\
         [[function]]\nname='add'\nsymbol='main_kernel'\nprogram='add'\nbytes_per_item=1\n",
        H::Driver::KIND
    );
    write(MANIFEST_FILE, manifest.as_bytes());
    ["answers", "add"].iter().for_each(|program| write(program, H::source(program).as_bytes()));
    std::fs::create_dir(folder.join(BUILT_FOLDER)).unwrap();
    let built = prepare::image(&H::driver(1), folder, 0).unwrap().unwrap();
    write(&built_file(0), &built);
    assert_eq!(prepare::image(&H::driver(1), folder, 0).unwrap(), None, "what is there is good");
    write(&built_file(0), &built[..built.len() - 1]);
    assert!(prepare::image(&H::driver(1), folder, 0).unwrap().is_some(), "it is damaged");
    write(&built_file(0), &built);
    let package = &PackageInfo::default();
    let load = EngineLoad { folder, package, build: 0, workers: 2, memory_bytes: 0, variables: &[] };
    let engine = KernelEngine::load(&load, |lanes| Ok(H::driver(lanes))).unwrap();
    let mut caller = engine.caller(0).unwrap();
    let mut call = |function: u16, input: &[u8]| {
        let mut output = vec![0; 16];
        let ended = caller.call(function, engine::CallInput::of(input), engine::CallOutput::of(&mut output));
        let said = String::from_utf8_lossy(caller.message()).into_owned();
        caller.rest();
        ended.map(|written| (written, output)).map_err(|code| (code, said))
    };
    let large = vec![7; 5 << 20];
    for input in [&[1, 2, 30][..], &[], &large[..16]] {
        let wanted: Vec<u8> = input.iter().map(|byte| byte + 1).collect();
        let (written, output) = call(2, input).unwrap();
        assert_eq!((written as usize, &output[..input.len()]), (input.len(), &wanted[..]));
    }
    assert_eq!(call(0, b"x").unwrap_err(), (Code::FunctionFailed, "no luck".to_owned()));
    assert_eq!(call(1, &large).unwrap().0, 17, "it boasts, which the worker tells");
    assert_eq!(call(3, b"x").unwrap_err().0, Code::UnknownFunction);
    write("add", b"garbage");
    assert!(prepare::image(&H::driver(1), folder, 0).is_err());
}

/// The suite as tests of one kind.
#[macro_export]
macro_rules! conformance {
    ($fixture:ty $(, #[$attribute:meta])?) => {
        $crate::conformance!(@ $fixture, ($(#[$attribute])?), [
            states_and_verbs, large_inputs_come_through, a_vector_is_one_image_and_fails_alone,
            answers_of_kernels_are_checked, a_chain_stays_on_the_device, memory_is_wiped_between_tenants,
            tenants_share_nothing, two_kernels_run_at_once, what_was_deleted_is_ready_at_once,
            damaged_programs_are_built_anew, many_threads_get_their_own_answers,
            launches_that_end_in_time_are_answered, concurrent_creates_keep_the_bound, a_package_is_built_once_and_called_by_a_worker
        ]);
    };
    (@ $fixture:ty, $attribute:tt, [$($name:ident),*]) => {
        $($crate::conformance!(@@ $fixture, $attribute, $name);)*
    };
    (@@ $fixture:ty, ($(#[$attribute:meta])?), $name:ident) => {
        #[test]
        $(#[$attribute])?
        fn $name() {
            suite::$name::<$fixture>();
        }
    };
}
