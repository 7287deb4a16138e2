//! Folders of leased memory: real mounts, by real processes.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, XattrFlags, fallocate, mknodat, setxattr, statvfs,
};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use sublet::Code;
use sublet_means::{Means, skip};
use sublet_tests::cluster::{Cluster, LentCores};
use sublet_tests::mounted::{MountedFolder, can_mount};
use sublet_tests::platform::{PlatformProcess, kill};
use sublet_tests::process::{NOBODY, as_user, is_stopped, wait_until};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MIB_LEN: usize = 1 << 20;
/// Leased bytes of a chunk of 1 MiB.
const CHUNK: u64 = MIB + 4096;
const SMALL: [&str; 4] = ["--chunk", "1MiB", "--limit", "16MiB"];
const FABRICS: [&str; 2] = ["shm", "tcp"];
/// Steps of random operations for each transport.
const STEPS: u64 = 600;
/// Size of the file of which a node dies, in MiB.
const PARTS: u64 = 120;

/// Expected bytes of a file: they depend on the offset, so that bytes of another place are noticed.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn open_platform() -> PlatformProcess {
    PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    })
}

fn leased_bytes(platform: &PlatformProcess) -> u64 {
    platform.json(&["ps"])["nodes"][0]["memory_leased_bytes"].as_u64().unwrap()
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// Opens a file so that each read asks for the bytes, and none come from the kernel's cache.
fn open_past_cache(path: &Path) -> File {
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    OpenOptions::new().read(true).custom_flags(direct).open(path).unwrap()
}

/// A place for a folder. The folder is made when it is mounted.
fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn grows_with_its_files_and_gives_memory_back() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    for fabric in FABRICS {
        let arguments = [&SMALL[..], &["--fabric", fabric]].concat();
        let folder = MountedFolder::start(platform.command(), &place.path().join(fabric), &arguments);
        assert_eq!(leased_bytes(&platform), 0);
        fs::write(folder.file("a"), pattern(0, 5 * MIB_LEN + 3)).unwrap();
        assert!(leased_bytes(&platform) >= 5 * MIB);
        let mut read = vec![0; 5 * MIB_LEN + 3];
        open_past_cache(&folder.file("a")).read_exact(&mut read).unwrap();
        assert!(read == pattern(0, read.len()), "over {fabric}");
        let space = statvfs(folder.path()).unwrap();
        assert_eq!(space.f_blocks * space.f_frsize, 16 * MIB);
        assert_eq!(space.f_bavail, space.f_blocks - (5 * MIB / space.f_frsize + 1));
        File::options().write(true).open(folder.file("a")).unwrap().set_len(100).unwrap();
        assert_eq!(fs::read(folder.file("a")).unwrap(), pattern(0, 100));
        fs::remove_file(folder.file("a")).unwrap();
        // One empty chunk stays for the next file.
        wait_until("the memory is given back", || leased_bytes(&platform) == CHUNK);
        let report = folder.end();
        assert!(report["leases"].as_u64() >= Some(5) && report["lost_leases"] == 0, "{report}");
        assert!(report["gib_seconds"].as_f64() > Some(0.0), "{report}");
        assert_eq!(leased_bytes(&platform), 0);
        assert_eq!(fs::read_dir(place.path().join(fabric)).unwrap().count(), 0);
    }
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Does the same operation in each folder by numbers that are the same. Returns what a program sees of it.
fn operate(folder: &Path, random: &mut Random) -> Result<Vec<u8>, ErrorKind> {
    let operation = random.below(11);
    let name = |random: &mut Random| {
        let within = ["", "d0/", "d1/"][usize::try_from(random.below(3)).unwrap()];
        folder.join(format!("{within}f{}", random.below(4)))
    };
    let path = name(random);
    let (offset, len) = (random.below(600_000), usize::try_from(random.below(150_000)).unwrap());
    let seed = random.below(256);
    let other = name(random);
    let sub = folder.join(format!("d{}", random.below(2)));
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let outcome = match operation {
        0 | 1 => File::options().create(true).truncate(false).write(true).open(path).and_then(|file| {
            file.write_all_at(&pattern(seed, len), offset)?;
            Ok(Vec::new())
        }),
        2 => fs::read(path),
        3 => open(&path).and_then(|file| {
            let mut bytes = vec![0; len];
            let read = file.read_at(&mut bytes, offset)?;
            bytes.truncate(read);
            Ok(bytes)
        }),
        4 => open(&path).and_then(|file| file.set_len(offset)).map(|()| Vec::new()),
        5 => fs::remove_file(path).map(|()| Vec::new()),
        6 => fs::rename(path, other).map(|()| Vec::new()),
        7 => fs::create_dir(sub).map(|()| Vec::new()),
        8 => fs::remove_dir(sub).map(|()| Vec::new()),
        9 => File::options().append(true).create(true).open(path).and_then(|mut file| {
            file.write_all(&pattern(seed, len.min(5000)))?;
            Ok(Vec::new())
        }),
        _ => open(&path).and_then(|file| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, offset, len as u64 + 1)?;
            Ok(Vec::new())
        }),
    };
    outcome.map_err(|error| error.kind())
}

/// Names below a folder, with the bytes of files.
fn tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let below = tree(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes));
            found.extend(below);
            found.push((name + "/", Vec::new()));
        } else {
            found.push((name, fs::read(path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn behaves_as_an_ordinary_folder() {
    if !can_mount() {
        return;
    }
    let (platform, place, plain) = (open_platform(), place(), place());
    for (number, more) in
        [&["--fabric", "shm"][..], &["--fabric", "tcp"], &["--write-back"]].iter().enumerate()
    {
        let arguments = [&["--chunk", "1MiB", "--limit", "64MiB"][..], *more].concat();
        let folder = MountedFolder::start(platform.command(), &place.path().join("mounted"), &arguments);
        let compared = plain.path().join(number.to_string());
        fs::create_dir(&compared).unwrap();
        let mut random = [0, 1].map(|_| Random(0x2545_f491_4f6c_dd1d + number as u64));
        for step in 0..STEPS {
            let mounted = operate(folder.path(), &mut random[0]);
            let expected = operate(&compared, &mut random[1]);
            assert!(mounted == expected, "step {step} with {more:?}: {:?}", (mounted.err(), expected.err()));
        }
        assert!(tree(folder.path()) == tree(&compared), "with {more:?}");
        folder.end();
    }
}

#[test]
fn keeps_attributes_and_removed_files_that_are_open() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &SMALL);
    let path = folder.file("a");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&pattern(0, 3 * MIB_LEN)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(time).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (0o640, time));
    symlink("a", folder.file("link")).unwrap();
    assert_eq!(fs::read(folder.file("link")).unwrap().len(), 3 * MIB_LEN);
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(&fs::metadata(&path).unwrap_err()), Some(Errno::NOENT));
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&pattern(3 * MIB, MIB_LEN)).unwrap();
    let mut bytes = vec![0; 4 * MIB_LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(0, bytes.len()));
    drop(file);
    wait_until("the memory of the closed file is given back", || leased_bytes(&platform) == CHUNK);
    folder.end();
}

#[test]
fn refuses_links_devices_and_extended_attributes() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &SMALL);
    let (file, other) = (folder.file("a"), folder.file("b"));
    fs::write(&file, "text").unwrap();
    assert_eq!(errno(&fs::hard_link(&file, &other).unwrap_err()), Some(Errno::PERM));
    assert_eq!(mknodat(CWD, &other, FileType::Fifo, Mode::RUSR, 0), Err(Errno::PERM));
    assert_eq!(setxattr(&file, "user.name", b"value", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    let opened = File::options().write(true).open(&file).unwrap();
    assert_eq!(fallocate(&opened, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(fs::read(&file).unwrap(), b"text");
    drop(opened);
    folder.end();
}

#[test]
fn full_folders_refuse_writes_and_keep_their_files() {
    if !can_mount() {
        return;
    }
    let place = place();
    let small = PlatformProcess::start_with(|command| {
        command.args(["--memory", "64MiB"]);
    });
    // The first is full by its own limit, the second when its node is.
    for (name, limit) in [("limit", "16MiB"), ("node", "256MiB")] {
        let arguments = ["--chunk", "8MiB", "--limit", limit];
        let folder = MountedFolder::start(small.command(), &place.path().join(name), &arguments);
        let mut file = File::create(folder.file("a")).unwrap();
        let mut written = 0;
        let error = loop {
            match file.write(&pattern(written, MIB_LEN)) {
                Ok(more) => written += more as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(errno(&error), Some(Errno::NOSPC), "{name}");
        assert!(
            (16 * MIB..=64 * MIB).contains(&written) && written.is_multiple_of(8 * MIB),
            "{written} bytes"
        );
        let read = fs::read(folder.file("a")).unwrap();
        assert!(read == pattern(0, usize::try_from(written).unwrap()), "{name}");
        fs::remove_file(folder.file("a")).unwrap();
        drop(file);
        // The memory of a removed file is there for the next one, at once or as soon as its node has it back.
        wait_until("there is memory again", || fs::write(folder.file("b"), pattern(0, 16 * MIB_LEN)).is_ok());
        folder.end();
    }
}

#[test]
fn full_folder_warns_once_of_many_refused_writes() {
    if !can_mount() {
        return;
    }
    let place = place();
    let small = PlatformProcess::start_with(|command| {
        command.args(["--memory", "64MiB"]);
    });
    let log = place.path().join("log");
    let mut command = small.command();
    command.stderr(File::create(&log).unwrap());
    let arguments = ["--chunk", "8MiB", "--limit", "256MiB"];
    let folder = MountedFolder::start(command, &place.path().join("m"), &arguments);
    let mut file = File::create(folder.file("a")).unwrap();
    let part = pattern(0, MIB_LEN);
    let errors: Vec<_> = (0..100).filter_map(|_| file.write_all(&part).err()).collect();
    assert!(errors.len() > 20, "{} writes of 100 fail", errors.len());
    assert!(errors.iter().all(|error| errno(error) == Some(Errno::NOSPC)), "{errors:?}");
    drop(file);
    folder.end();
    let log = fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("cannot grow").count(), 1, "{log}");
}

#[test]
fn uses_a_disk_when_no_memory_can_be_leased() {
    if !can_mount() {
        return;
    }
    let (place, disk) = (place(), place());
    let small = PlatformProcess::start_with(|command| {
        command.args(["--memory", "64MiB"]);
    });
    let fallback = disk.path().to_str().unwrap();
    let arguments = ["--chunk", "8MiB", "--limit", "128MiB", "--fallback", fallback];
    let folder = MountedFolder::start(small.command(), &place.path().join("m"), &arguments);
    fs::write(folder.file("a"), pattern(0, 100 * MIB_LEN)).unwrap();
    let mut read = vec![0; 100 * MIB_LEN];
    open_past_cache(&folder.file("a")).read_exact(&mut read).unwrap();
    assert!(read == pattern(0, read.len()));
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "the files on the disk have names");
    let report = folder.end();
    let (leases, disk_chunks) = (report["leases"].as_u64().unwrap(), report["disk_chunks"].as_u64().unwrap());
    assert!(leases > 0 && disk_chunks > 0 && leases + disk_chunks == 13, "{report}");
}

/// Reads each MiB of a file. Returns which of them failed, which must be by EIO.
#[track_caller]
fn lost_parts(file: &File, parts: u64) -> Vec<u64> {
    let mut bytes = vec![0; MIB_LEN];
    let is_lost = |part: &u64| match file.read_exact_at(&mut bytes, part * MIB) {
        Ok(()) => {
            assert!(bytes == pattern(part * MIB, MIB_LEN), "other bytes in MiB {part}");
            false
        }
        Err(error) => {
            assert_eq!(errno(&error), Some(Errno::IO), "{error}");
            true
        }
    };
    (0..parts).filter(is_lost).collect()
}

#[test]
fn killed_node_loses_its_bytes_and_no_others() {
    if !can_mount() {
        return;
    }
    for fabric in FABRICS {
        let mut cluster = Cluster::with_agents(0);
        for memory in ["64MiB", "512MiB"] {
            cluster.add_agent_with(LentCores::cores(1), &["--memory", memory]);
        }
        let place = place();
        let arguments = ["--chunk", "8MiB", "--limit", "256MiB", "--near", "node-0", "--fabric", fabric];
        let folder = MountedFolder::start(cluster.command(), &place.path().join("m"), &arguments);
        fs::write(folder.file("a"), pattern(0, 120 * MIB_LEN)).unwrap();
        let file = open_past_cache(&folder.file("a"));
        assert!(lost_parts(&file, PARTS).is_empty(), "over {fabric}");
        let leases = cluster.operator().manager().leases().unwrap();
        let on_killed = leases.iter().filter(|lease| lease.node == "node-0");
        let expected = on_killed.map(|lease| lease.memory_bytes / MIB).sum::<u64>();
        assert!(expected > 0 && expected <= 64, "{expected} MiB of the file are on the node");
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                wait_until("bytes of the killed node are missed", || !lost_parts(&file, PARTS).is_empty());
            });
            cluster.agents[0].kill();
            reads.join().unwrap();
        });
        let mut lost = Vec::new();
        wait_until("all bytes of the killed node are missed", || {
            lost = lost_parts(&file, PARTS);
            lost.len() as u64 == expected
        });
        // Once the manager misses the node, new files are on the one that is left, and lost bytes can be written anew.
        wait_until("the folder grows again", || {
            fs::write(folder.file("b"), pattern(0, 20 * MIB_LEN)).is_ok()
        });
        assert!(fs::read(folder.file("b")).unwrap() == pattern(0, 20 * MIB_LEN));
        let first = lost[0];
        let writer = File::options().write(true).open(folder.file("a")).unwrap();
        writer.write_all_at(&pattern(first * MIB, MIB_LEN), first * MIB).unwrap();
        assert_eq!(lost_parts(&file, PARTS), lost[1..], "over {fabric}");
        drop((file, writer));
        let report = folder.end();
        assert!(report["lost_leases"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn bytes_that_an_agent_has_freed_are_never_read() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &SMALL);
    fs::write(folder.file("a"), pattern(0, 8 * MIB_LEN)).unwrap();
    let file = open_past_cache(&folder.file("a"));
    assert!(lost_parts(&file, 8).is_empty());
    // A stopped process cannot learn that its leases have ended, until it continues and reads.
    kill(folder.pid(), Signal::STOP);
    wait_until("the process of the folder has stopped", || is_stopped(folder.pid()));
    let client = platform.invoker();
    for lease in client.manager().leases().unwrap() {
        client.manager().end_lease(&lease.id).unwrap();
    }
    wait_until("the agent has freed the memory", || leased_bytes(&platform) == 0);
    kill(folder.pid(), Signal::CONT);
    wait_until("all bytes are missed", || lost_parts(&file, 8).len() == 8);
    drop(file);
    assert_eq!(folder.end()["lost_leases"], 8);
}

#[test]
fn leases_of_a_mounted_folder_are_extended() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let arguments = [&SMALL[..], &["--lease", "5s"]].concat();
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &arguments);
    fs::write(folder.file("a"), pattern(0, MIB_LEN)).unwrap();
    let client = platform.invoker();
    wait_until("the lease is extended for several times its duration", || {
        let leases = client.manager().leases().unwrap();
        leases.iter().any(|lease| lease.expires_unix_ms > lease.granted_unix_ms + 10_000)
    });
    let mut read = vec![0; MIB_LEN];
    open_past_cache(&folder.file("a")).read_exact(&mut read).unwrap();
    assert!(read == pattern(0, MIB_LEN));
    assert_eq!(folder.end()["lost_leases"], 0);
}

#[test]
fn next_mount_removes_one_whose_process_was_killed() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let path = place.path().join("m");
    let mut killed = MountedFolder::start(platform.command(), &path, &SMALL);
    fs::write(killed.file("a"), pattern(0, 3 * MIB_LEN)).unwrap();
    killed.kill();
    assert_eq!(errno(&fs::metadata(&path).unwrap_err()), Some(Errno::NOTCONN));
    wait_until("the memory of the killed process is free", || leased_bytes(&platform) == 0);
    let next = MountedFolder::start(platform.command(), &path, &SMALL);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    fs::write(next.file("a"), pattern(0, MIB_LEN)).unwrap();
    next.end();
    let mut last = MountedFolder::start(platform.command(), &path, &SMALL);
    last.kill();
    let unmounted = platform.json(&["memory", "unmount", path.to_str().unwrap()]);
    assert_eq!(unmounted["process"], Value::Null, "{unmounted}");
    assert!(fs::metadata(&path).unwrap().is_dir());
}

#[test]
fn unmounting_waits_until_memory_is_given_back() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let path = place.path().join("m");
    let shown = path.to_str().unwrap();
    let folder = MountedFolder::start(platform.command(), &path, &SMALL);
    fs::write(folder.file("a"), pattern(0, 3 * MIB_LEN)).unwrap();
    let again = platform.assert_refuses(&["memory", "mount", shown], Code::AlreadyRunning);
    assert!(again.contains("memory unmount"), "{again}");
    let open = File::open(folder.file("a")).unwrap();
    let busy = platform.assert_refuses(&["memory", "unmount", shown], Code::AlreadyRunning);
    assert!(busy.contains("open"), "{busy}");
    assert_eq!(fs::read(folder.file("a")).unwrap().len(), 3 * MIB_LEN);
    drop(open);
    platform.json(&["memory", "unmount", shown]);
    assert_eq!(leased_bytes(&platform), 0);
    assert!(folder.report()["leases"].as_u64() >= Some(3));
}

#[test]
fn folder_and_files_have_names_that_are_not_text() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let (path, link) = (place.path().join(OsStr::from_bytes(b"m\xff")), place.path().join("m"));
    fs::create_dir(&path).unwrap();
    symlink(&path, &link).unwrap();
    let folder = MountedFolder::start(platform.command(), &link, &SMALL);
    let (longest, longer) = ([0xfe_u8; 255], [0xfe_u8; 256]);
    fs::write(path.join(OsStr::from_bytes(&longest)), "text").unwrap();
    let listed: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, [OsStr::from_bytes(&longest)]);
    let refused = fs::metadata(path.join(OsStr::from_bytes(&longer))).unwrap_err();
    assert_eq!(errno(&refused), Some(Errno::NAMETOOLONG));
    folder.end();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn folder_is_unmounted_where_it_has_moved() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let (above, renamed) = (place.path().join("above"), place.path().join("renamed"));
    fs::create_dir(&above).unwrap();
    let folder = MountedFolder::start(platform.command(), &above.join("m"), &SMALL);
    fs::write(folder.file("a"), "text").unwrap();
    fs::rename(&above, &renamed).unwrap();
    assert_eq!(fs::read(renamed.join("m/a")).unwrap(), b"text");
    folder.end();
    assert_eq!(fs::read_dir(renamed.join("m")).unwrap().count(), 0);
}

#[test]
fn signal_ends_a_folder_in_which_files_are_open() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (open_platform(), place());
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &SMALL);
    fs::write(folder.file("a"), pattern(0, MIB_LEN)).unwrap();
    let open = open_past_cache(&folder.file("a"));
    folder.end();
    assert_eq!(leased_bytes(&platform), 0);
    assert!(open.read_at(&mut [0; 10], 0).is_err());
}

#[test]
fn other_users_enter_only_where_they_may() {
    if !can_mount() {
        return;
    }
    if !Means::Root.is_here() {
        return skip(Means::Root, "only root becomes another user");
    }
    let (platform, place) = (open_platform(), place());
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let listed = |path: &Path| as_user(NOBODY, || fs::read_dir(path).map(drop).map_err(|error| error.kind()));
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &SMALL);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(listed(folder.path()), Err(ErrorKind::PermissionDenied));
    folder.end();
    let arguments = [&SMALL[..], &["--allow-other"]].concat();
    let folder = MountedFolder::start(platform.command(), &place.path().join("m"), &arguments);
    assert_eq!(listed(folder.path()), Err(ErrorKind::PermissionDenied));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(listed(folder.path()), Ok(()));
    folder.end();
}

#[test]
fn bad_folders_and_sizes_are_refused() {
    if !can_mount() {
        return;
    }
    let (platform, place) = (PlatformProcess::start(), place());
    let folder = place.path().to_str().unwrap();
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let free = empty.to_str().unwrap();
    let missing = place.path().join("missing");
    fs::write(place.path().join("file"), "text").unwrap();
    let file = place.path().join("file");
    let cases = [
        (vec!["memory", "mount", folder], Code::InvalidArgument, "not empty"),
        (vec!["memory", "mount", missing.to_str().unwrap()], Code::System, "missing"),
        (vec!["memory", "mount", file.to_str().unwrap()], Code::System, "file"),
        (
            vec!["memory", "mount", folder, "--chunk", "1GiB", "--limit", "1MiB"],
            Code::InvalidArgument,
            "--limit",
        ),
        (vec!["memory", "mount", free, "--fallback", free], Code::InvalidArgument, "inside of"),
        (vec!["memory", "mount", free, "--fallback", missing.to_str().unwrap()], Code::System, "--fallback"),
        (vec!["memory", "unmount", folder], Code::InvalidArgument, "no leased memory"),
    ];
    for (arguments, code, named) in cases {
        let message = platform.assert_refuses(&arguments, code);
        assert!(message.contains(named), "{arguments:?}: {message}");
    }
}
