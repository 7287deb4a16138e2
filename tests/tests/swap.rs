//! Arrays that are swapped to memory components, on real processes.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use sublet::{Code, FabricChoice, Invoker, MemoryPlan, SwapPlan, SwappedMemory, Touching};
use sublet_means::{Means, skip};
use sublet_tests::platform::{PlatformProcess, kill};
use sublet_tests::process::wait_until;

const MIB: u64 = 1 << 20;
const LOCAL_BYTES: u64 = 16 * MIB;
const LEN_BYTES: u64 = 96 * MIB;
/// Tells the helper whose memory to swap to.
const SWAPS: &str = "SUBLET_TEST_SWAPS_TO";

fn open_platform() -> PlatformProcess {
    PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    })
}

/// Makes swapped memory. Returns `None` where it is not permitted, so there is nothing to test.
fn swapped(client: &Invoker, fabric: FabricChoice, plan: SwapPlan) -> Option<SwappedMemory> {
    let space = MemoryPlan::new().initial_bytes(8 * MIB).increment_bytes(8 * MIB).fabric(fabric);
    match client.swapped(plan, space) {
        Err(error) if error.code == Code::LimitTooLow => {
            skip(Means::Userfaultfd, format_args!("{}", error.message));
            None
        }
        made => Some(made.unwrap()),
    }
}

fn leased_bytes(platform: &PlatformProcess) -> u64 {
    platform.json(&["ps"])["nodes"][0]["memory_leased_bytes"].as_u64().unwrap()
}

fn fill(array: &mut [u8], round: u64) {
    for (at, word) in (round..).zip(array.chunks_exact_mut(8)) {
        word.copy_from_slice(&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
    }
}

#[track_caller]
fn assert_filled(array: &[u8], round: u64) {
    for (at, word) in (round..).zip(array.chunks_exact(8)) {
        assert_eq!(word, at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes(), "word {}", at - round);
    }
}

/// Pages of an array that are resident, as the kernel says.
fn resident_bytes(array: &SwappedMemory) -> u64 {
    let mut pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    pagemap.seek(std::io::SeekFrom::Start(array.as_ptr().as_ptr() as u64 / 4096 * 8)).unwrap();
    let mut entries = vec![0; (array.len_bytes() / 4096 * 8) as usize];
    pagemap.read_exact(&mut entries).unwrap();
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() as u64 * 4096
}

#[test]
fn an_array_larger_than_local_memory_uses_a_component() {
    let platform = open_platform();
    for fabric in [FabricChoice::Shm, FabricChoice::Tcp { encrypted: false }] {
        for touching in [Touching::AnyThreads, Touching::OneAtATime] {
            let plan = SwapPlan::new(LEN_BYTES, LOCAL_BYTES).touching(touching);
            let Some(mut array) = swapped(&platform.invoker(), fabric.clone(), plan) else { return };
            assert_eq!(leased_bytes(&platform), 0, "swap space is leased when it is needed");
            for round in 0..2 {
                fill(array.as_mut_slice(), round);
                assert_filled(array.as_slice(), round);
                let resident = resident_bytes(&array);
                assert!(resident <= LOCAL_BYTES, "{resident} bytes are resident");
            }
            let leased = leased_bytes(&platform);
            assert!((LEN_BYTES - LOCAL_BYTES..=LEN_BYTES).contains(&leased), "{leased} bytes are leased");
            array.check().unwrap();
            drop(array);
            wait_until("all of it is given back", || leased_bytes(&platform) == 0);
        }
    }
}

#[test]
fn threads_here_and_there_and_system_calls_see_one_array() {
    let platform = open_platform();
    let plan = SwapPlan::new(LEN_BYTES, LOCAL_BYTES);
    let Some(mut array) = swapped(&platform.invoker(), FabricChoice::Shm, plan) else { return };
    let mut file = tempfile::tempfile().unwrap();
    let mut bytes = vec![0; LEN_BYTES as usize];
    fill(&mut bytes, 5);
    file.write_all(&bytes).unwrap();
    file.rewind().unwrap();
    file.read_exact(array.as_mut_slice()).unwrap();
    let (array, bytes) = (array.as_slice(), bytes.as_slice());
    std::thread::scope(|scope| {
        for seed in 1..5u64 {
            scope.spawn(move || {
                let mut random = seed * 88_172_645_463_325_252;
                for _ in 0..3_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let at = (random % (LEN_BYTES - 100)) as usize;
                    assert_eq!(array[at..at + 100], bytes[at..at + 100], "at {at}");
                }
            });
        }
    });
}

/// Not a test of its own: run by those below, in a process that is sent SIGBUS.
#[test]
fn helper_that_swaps_until_it_is_refused() {
    let Ok(managers) = std::env::var(SWAPS) else { return };
    let client = Invoker::connect_to(&managers).unwrap();
    let plan = SwapPlan::new(LEN_BYTES, LOCAL_BYTES);
    let Some(mut array) = swapped(&client, FabricChoice::Shm, plan) else {
        println!("not permitted");
        return;
    };
    for round in 0.. {
        fill(array.as_mut_slice(), round);
        assert_filled(array.as_slice(), round);
        println!("round {round}");
    }
}

fn helper(platform: &PlatformProcess) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["swap::helper_that_swaps_until_it_is_refused", "--exact", "--nocapture"]);
    command.env(SWAPS, platform.address()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn assert_told(helper: Child, expected: &[&str]) {
    let output = helper.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    if said.contains("not permitted") {
        skip(Means::Userfaultfd, &said);
        return;
    }
    assert_eq!(output.status.signal(), Some(7), "{said} {complained}");
    assert!(expected.iter().all(|part| complained.contains(part)), "{complained}");
    assert!(!complained.contains("panicked"), "it has read something else: {complained}");
}

#[test]
fn touching_memory_of_a_killed_agent_names_the_reason() {
    let mut platform = PlatformProcess::start();
    let mut helper = helper(&platform);
    let mut first = [0; 4096];
    let mut said = String::new();
    while !said.contains("round 0") && !said.contains("not permitted") {
        let len = helper.stdout.as_mut().unwrap().read(&mut first).unwrap();
        assert!(len > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&first[..len]));
    }
    if said.contains("not permitted") {
        skip(Means::Userfaultfd, &said);
        helper.wait().unwrap();
        return;
    }
    kill(platform.pid(), Signal::KILL);
    platform.wait();
    assert_told(helper, &["agent_unreachable", "SIGBUS"]);
}

#[test]
fn exhausted_swap_space_is_reported() {
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--memory", "32MiB"]);
    });
    assert_told(helper(&platform), &["no_capacity", "8388608", "SIGBUS"]);
}
