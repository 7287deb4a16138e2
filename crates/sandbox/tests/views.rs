//! Files that programs expect on every machine: `/proc` and `/sys` with the cores and the memory of the sandbox, shared memory,
//! time zones and the list of users.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{CpuSet, sched_getaffinity};
use sublet_means::{Means, skip};
use sublet_sandbox::{Devices, ProgramEnd};

use crate::support::{MIB, SandboxFixture, Sort, is_bounded};

crate::for_every_kind! {
    sees_its_own_cores_and_memory
    sees_nothing_else_of_the_machine_in_proc_and_sys
    keeps_its_files_until_it_ends
    shares_memory_and_semaphores_among_its_own_processes
    shared_memory_has_a_bound_of_its_own
    shared_memory_counts_against_the_limit
    finds_a_name_for_its_user
    finds_its_processes_by_their_numbers
}

/// Returns the text after `word` in the lines of the probe.
fn said<'said>(said: &'said str, word: &str) -> Vec<&'said str> {
    said.lines()
        .filter_map(|line| line.strip_prefix("said ")?.strip_prefix(word)?.strip_prefix(' '))
        .collect()
}

/// The cores that this process may use.
fn allowed_cores() -> Vec<u32> {
    let allowed = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU as u32).filter(|&core| allowed.is_set(core as usize)).collect()
}

fn sees_its_own_cores_and_memory(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let allowed = allowed_cores();
    let [first, last] = [allowed[0], allowed[allowed.len() - 1]];
    let siblings = format!("/sys/devices/system/cpu/cpu{first}/topology/core_cpus_list");
    let [online, possible] = ["online", "possible"].map(|file| format!("/sys/devices/system/cpu/{file}"));
    let words = ["view", &online, &siblings, &possible];
    let cases = [
        (vec![first], 100 * MIB, None),
        (vec![last], 100 * MIB, None),
        (allowed.clone(), 200 * MIB, Some(150 * MIB)),
    ];
    for (cores, memory, shown) in cases {
        let (text, exit) = fixture.run_with(&words, |spec| {
            spec.limits.cores.clone_from(&cores);
            (spec.limits.memory_bytes, spec.limits.shown_memory_bytes) = (Some(memory), shown);
        });
        assert_eq!(exit, ProgramEnd::Status(0), "{text}");
        let total = shown.unwrap_or(memory) / 1024;
        assert_eq!(said(&text, "memory"), [format!("MemTotal:       {total:>8} kB")], "{text}");
        let count = cores.len();
        assert_eq!(said(&text, "cores"), [format!("{count} {count} {count}")], "{text}");
        if count == 1 {
            assert_eq!(said(&text, words[1]), [cores[0].to_string()], "{text}");
            let range = if cores[0] == 0 { "0".to_owned() } else { format!("0-{}", cores[0]) };
            assert_eq!(said(&text, words[3]), [range], "{text}");
        }
        // Other hardware threads of the physical core are not listed.
        if cores == [first] {
            assert_eq!(said(&text, words[2]), [first.to_string()], "{text}");
        }
        assert_eq!(said(&text, "load"), ["3"], "{text}");
    }
}

fn sees_nothing_else_of_the_machine_in_proc_and_sys(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let own = [
        "meminfo",
        "cpuinfo",
        "stat",
        "diskstats",
        "filesystems",
        "loadavg",
        "mounts",
        "net",
        "swaps",
        "sys",
    ];
    let own = own.into_iter().chain(["uptime", "version", "vmstat", "self", "thread-self"]);
    let own: Vec<PathBuf> = own.map(|name| Path::new("/proc").join(name)).collect();
    let is_process = |path: &Path| path.file_name().unwrap().to_str().unwrap().parse::<u32>().is_ok();
    let mut hidden: Vec<String> = all
        .filter(|path| !own.contains(path) && !is_process(path))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    assert!(hidden.len() > 10, "{hidden:?}");
    hidden.extend(
        [
            "/proc/sys/kernel/random/boot_id",
            "/proc/sys/kernel/core_pattern",
            "/sys/class/dmi/id/product_name",
        ]
        .map(str::to_owned),
    );
    let words: Vec<&str> = ["view"].into_iter().chain(hidden.iter().map(String::as_str)).collect();
    let (text, _) = fixture.run(&words);
    for path in &hidden {
        assert_eq!(said(&text, path), ["ENOENT"], "{path}");
    }
    // The files that replace the kernel's describe an idle machine.
    let words = ["view", "/proc/uptime", "/proc/loadavg", "/proc/swaps", "/proc/sys/kernel/hostname"];
    let (text, _) = fixture.run(&words);
    assert_eq!(said(&text, "/proc/uptime"), ["0.00 0.00"]);
    assert_eq!(said(&text, "/proc/loadavg"), ["0.00 0.00 0.00 1/2 2"]);
    assert_eq!(said(&text, "/proc/sys/kernel/hostname"), ["sandbox"]);
    let (text, _) = fixture.run_with(&["disk"], |spec| spec.limits.scratch_bytes = MIB);
    assert!(sort == Sort::Container || text.contains("blocked /proc/x"), "{text}");
}

/// The spawner writes files for more sizes than it keeps. A sandbox keeps its own.
fn keeps_its_files_until_it_ends(sort: Sort) {
    if sort == Sort::Template {
        // The probe prints all of its output when it ends.
        return;
    }
    let fixture = SandboxFixture::open(sort);
    let mut first = fixture.start_with(&["wait"], |spec| spec.limits.memory_bytes = Some(100 * MIB));
    assert_eq!(first.read_line(), "said ready");
    let pid = first.made.state.pid.unwrap();
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/root/{file}")).unwrap();
    let before = ["proc/meminfo", "proc/cpuinfo", "sys/devices/system/cpu/online"].map(read);
    for step in 0..140 {
        let (text, _) =
            fixture.run_with(&["view"], |spec| spec.limits.memory_bytes = Some(101 * MIB + step * 4096));
        assert_eq!(said(&text, "memory"), [format!("MemTotal:       {:>8} kB", 101 * 1024 + step * 4)]);
    }
    assert_eq!(["proc/meminfo", "proc/cpuinfo", "sys/devices/system/cpu/online"].map(read), before);
    assert!(before[0].starts_with("MemTotal:         102400 kB"), "{}", before[0]);
}

fn shares_memory_and_semaphores_among_its_own_processes(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    // The probe fails if a name exists already: names of another sandbox are not visible.
    for _ in 0..2 {
        let (text, exit) = fixture.run(&["share"]);
        assert_eq!((said(&text, "shared"), exit), (vec!["42"], ProgramEnd::Status(0)), "{text}");
        assert!(text.contains("blocked executing what is shared"), "{text}");
    }
}

fn shared_memory_has_a_bound_of_its_own(sort: Sort) {
    let fixture = SandboxFixture::open(sort);
    let (text, _) = fixture.run_with(&["fill"], |spec| {
        spec.limits.memory_bytes = Some(256 * MIB);
        spec.limits.shown_memory_bytes = Some(16 * MIB);
    });
    assert!(text.contains(&format!("said {} ENOSPC", 8 * MIB)), "{text}");
    assert!(text.contains("files ENOSPC"), "{text}");
    // For the kernel, a size of 0 means no limit.
    let (text, _) = fixture.run_with(&["fill"], |spec| {
        spec.limits.memory_bytes = Some(64 * MIB);
        spec.limits.shown_memory_bytes = Some(1);
    });
    assert!(text.contains("said 4096 ENOSPC"), "{text}");
}

fn shared_memory_counts_against_the_limit(sort: Sort) {
    if !is_bounded("memory") {
        skip(Means::Controller("memory"), "nothing bounds memory here");
        return;
    }
    let fixture = SandboxFixture::open(sort);
    let (text, exit) = fixture.run_with(&["fill"], |spec| {
        spec.limits.memory_bytes = Some(64 * MIB);
        spec.limits.shown_memory_bytes = Some(1024 * MIB);
    });
    assert_eq!((said(&text, ""), exit), (vec![], ProgramEnd::OutOfMemory(64 * MIB)), "{text}");
}

fn finds_a_name_for_its_user(sort: Sort) {
    let (text, _) = SandboxFixture::open(sort).run(&["view"]);
    assert_eq!(said(&text, "name"), ["sandbox"], "{text}");
}

fn finds_its_processes_by_their_numbers(sort: Sort) {
    let (text, _) = SandboxFixture::open(sort).run(&["view"]);
    assert_eq!(said(&text, "self"), ["2 of 2"], "{text}");
}

#[test]
fn sandbox_with_drivers_sees_host_processors_and_its_own_memory() {
    let fixture = SandboxFixture::open(Sort::Process);
    let online = "/sys/devices/system/cpu/online";
    let (text, _) = fixture.run_with(&["view", online], |spec| {
        spec.devices = Devices::Drivers;
        spec.limits.cores = vec![allowed_cores()[0]];
        spec.limits.memory_bytes = Some(100 * MIB);
    });
    assert_eq!(said(&text, "memory"), ["MemTotal:         102400 kB"], "{text}");
    assert_eq!(said(&text, online), [fs::read_to_string(online).unwrap().trim()], "{text}");
}

/// Local time of the host, from a new program, whose C library has not read another zone.
fn time_of_the_host(zone: Option<&str>) -> String {
    let mut date = Command::new("date");
    date.args(["--date=@1751328000", "+%Z%z"]).env_remove("TZ");
    if let Some(zone) = zone {
        date.env("TZ", zone);
    }
    String::from_utf8(date.output().unwrap().stdout).unwrap().trim().to_owned()
}

fn local_time(fixture: &SandboxFixture, zone: Option<&str>) -> String {
    let (text, _) = fixture.run_with(&["view"], |spec| {
        spec.env.extend(zone.map(|zone| ("TZ".into(), zone.into())));
    });
    let [time] = said(&text, "time")[..] else { panic!("{text}") };
    let (name, offset) = time.split_at(time.find(['+', '-']).unwrap());
    let seconds: i32 = offset.parse().unwrap();
    let sign = if seconds < 0 { '-' } else { '+' };
    format!("{name}{sign}{:02}{:02}", seconds.abs() / 3600, seconds.abs() / 60 % 60)
}

#[test]
fn local_time_is_the_hosts_without_a_zone_variable() {
    assert!(Path::new("/usr/share/zoneinfo").exists(), "this machine has no time zones (install tzdata)");
    for sort in [Sort::Process, Sort::Template] {
        let fixture = SandboxFixture::open(sort);
        assert_eq!(local_time(&fixture, None), time_of_the_host(None), "{sort:?}");
        for zone in ["America/New_York", "Asia/Kolkata"] {
            let time = local_time(&fixture, Some(zone));
            assert_eq!(time, time_of_the_host(Some(zone)), "{sort:?}");
            assert!(!time.ends_with("+0000"), "{time}");
        }
    }
}

/// A spawner on a host whose local time is that of India, by a link or a copy of the file.
fn in_india(folder: &Path, how: &str) -> PathBuf {
    let (path, etc) = (folder.join("spawner"), folder.join("etc"));
    let (etc, spawner) = (etc.display(), env!("CARGO_BIN_EXE_sublet-spawner"));
    let script = format!(
        "cp -a /etc {etc} && rm {etc}/localtime && {how} /usr/share/zoneinfo/Asia/Kolkata {etc}/localtime && \
         echo Asia/Kolkata > {etc}/timezone && mount --bind {etc} /etc && exec {spawner} \"$@\""
    );
    fs::write(&path, format!("#!/bin/sh\nexec unshare -m sh -c '{script}' x \"$@\"\n")).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn local_time_is_that_of_the_hosts_file() {
    for how in ["ln -s", "cp"] {
        for sort in [Sort::Process, Sort::Template] {
            let folder = tempfile::tempdir().unwrap();
            let fixture = SandboxFixture::open_with(sort, &in_india(folder.path(), how));
            assert_eq!(local_time(&fixture, None), "IST+0530", "{how} {sort:?}");
            let (text, _) = fixture.run(&["view", "/etc/timezone"]);
            assert_eq!(said(&text, "/etc/timezone"), ["Asia/Kolkata"], "{how} {sort:?}");
        }
    }
}

/// A spawner that is started under this umask.
fn under_mask(folder: &Path, mask: &str) -> PathBuf {
    let (text, path) = (folder.join("text"), folder.join(format!("spawner-{mask}")));
    let spawner = env!("CARGO_BIN_EXE_sublet-spawner");
    fs::write(&text, format!("#!/bin/sh\numask {mask}\nexec {spawner} \"$@\"\n")).unwrap();
    // A program that this process has written cannot be executed while a child of another test has its descriptor.
    let copied = std::process::Command::new("install").arg("-m755").args([&text, &path]).status().unwrap();
    assert!(copied.success());
    path
}

#[test]
fn any_umask_of_the_agent_gives_the_same_sandboxes() {
    let folder = tempfile::tempdir().unwrap();
    for mask in ["000", "027", "077"] {
        for sort in [Sort::Process, Sort::Container, Sort::Template] {
            let fixture = SandboxFixture::open_with(sort, &under_mask(folder.path(), mask));
            let (text, exit) = fixture.run(&["view"]);
            assert_eq!(
                (said(&text, "mask"), exit),
                (vec!["022"], ProgramEnd::Status(0)),
                "{mask} {sort:?}: {text}"
            );
            assert_eq!(said(&text, "name"), ["sandbox"], "{mask} {sort:?}");
        }
    }
}
