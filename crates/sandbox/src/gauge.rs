//! Reads the memory use of a sandbox where the kernel counts it.
//!
//! The kernel counts in the sandbox's control group: the private memory of its processes, the files that they have
//! written in memory, and the kernel's own memory on their behalf. Copies of files on a disk are left out; the kernel
//! takes their memory back when it needs it. Without control groups the memory use is the private memory of the
//! program's own process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::groups::place_of;
use crate::spawner::cgroups::PREFIX;

/// Most that is read of one of the kernel's files: `memory.stat` is the longest.
const FILE_BYTES: usize = 16 << 10;

/// Reader of the memory use of one sandbox.
#[derive(Debug)]
pub struct Gauge(GaugeSource);

#[derive(Debug)]
enum GaugeSource {
    Group {
        now: File,
        /// Peak since the group was made, copies of files included. Older kernels do not count it.
        peak: Option<File>,
        stat: File,
        words: Words,
    },
    Process {
        status: File,
        peak_bytes: u64,
    },
}

/// Lines of `memory.stat`: copies of files, and what of them is files in memory.
#[derive(Clone, Copy, Debug)]
struct Words {
    files: &'static str,
    shared: &'static str,
}

/// Memory use that a [`Gauge`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Present use.
    pub now_bytes: u64,
    /// Largest use that was seen.
    pub peak_bytes: u64,
}

impl Gauge {
    /// Returns the gauge of the sandbox in which this process is the program. Nothing if there is no such process.
    pub fn of(pid: u32) -> Option<Gauge> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let groups = std::fs::read_to_string(process.join("cgroup")).ok()?;
        let source = [("cgroup2", "", V2), ("cgroup", "memory", V1)]
            .into_iter()
            .find_map(|(kind, controller, files)| group(&groups, kind, controller, files));
        let status =
            || Some(GaugeSource::Process { status: File::open(process.join("status")).ok()?, peak_bytes: 0 });
        source.or_else(status).map(Gauge)
    }

    /// Reads the present use. Returns nothing if the sandbox does not exist any more.
    pub fn read(&mut self) -> Option<MemoryUse> {
        match &mut self.0 {
            GaugeSource::Group { now, peak, stat, words } => {
                let stat = text(stat).ok()?;
                let word = |name: &str| stat.lines().find_map(|line| number(line.strip_prefix(name)?));
                let files = word(words.files)?.saturating_sub(word(words.shared).unwrap_or(0));
                let now_bytes = number(&text(now).ok()?)?.saturating_sub(files);
                let peak = peak.as_ref().and_then(|peak| number(&text(peak).ok()?));
                let peak_bytes = peak.unwrap_or(0).saturating_sub(files).max(now_bytes);
                Some(MemoryUse { now_bytes, peak_bytes })
            }
            GaugeSource::Process { status, peak_bytes } => {
                let status = text(status).ok()?;
                let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
                let now_bytes = number(kib?)?.saturating_mul(1024);
                *peak_bytes = now_bytes.max(*peak_bytes);
                Some(MemoryUse { now_bytes, peak_bytes: *peak_bytes })
            }
        }
    }
}

/// Names of the files of one version of control groups.
#[derive(Clone, Copy)]
struct GaugeFiles {
    now: &'static str,
    peak: &'static str,
    words: Words,
}

const V1: GaugeFiles = GaugeFiles {
    now: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    words: Words { files: "total_cache ", shared: "total_shmem " },
};
const V2: GaugeFiles = GaugeFiles {
    now: "memory.current",
    peak: "memory.peak",
    words: Words { files: "file ", shared: "shmem " },
};

/// The group of a process that has these, if it is one that a spawner has made.
fn group(groups: &str, kind: &str, controller: &str, files: GaugeFiles) -> Option<GaugeSource> {
    let folder = sandbox_group(groups, kind, controller)?;
    let open = |name: &str| File::open(folder.join(name));
    Some(GaugeSource::Group {
        now: open(files.now).ok()?,
        peak: open(files.peak).ok(),
        stat: open("memory.stat").ok()?,
        words: files.words,
    })
}

/// The folder of a process's group, if it is one that a spawner has made.
pub(crate) fn sandbox_group(groups: &str, kind: &str, controller: &str) -> Option<PathBuf> {
    let folder = place_of(groups, kind, controller)?.folder;
    let is_made = folder.iter().any(|part| part.to_string_lossy().starts_with(PREFIX));
    is_made.then_some(folder)
}

/// Reads the present text of a file of the kernel.
pub(crate) fn text(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; FILE_BYTES];
    let len = file.read_at(&mut bytes, 0)?;
    bytes.truncate(len);
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(folder: &Path, name: &str, text: &str) -> File {
        std::fs::write(folder.join(name), text).unwrap();
        File::open(folder.join(name)).unwrap()
    }

    #[test]
    fn counts_files_in_memory_but_not_copies_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let stat = "cache 1\nrss 2\ntotal_cache 3000\ntotal_rss 5000\ntotal_shmem 1000\n";
        let source = GaugeSource::Group {
            now: open(at, "now", "9000\n"),
            peak: Some(open(at, "peak", "20000\n")),
            stat: open(at, "stat", stat),
            words: V1.words,
        };
        let mut gauge = Gauge(source);
        assert_eq!(gauge.read(), Some(MemoryUse { now_bytes: 7000, peak_bytes: 18_000 }));
        std::fs::write(at.join("stat"), "garbage\n").unwrap();
        assert_eq!(gauge.read(), None);
    }

    #[test]
    fn reads_private_memory_of_process_without_group() {
        let mut gauge = Gauge::of(std::process::id()).unwrap();
        let before = gauge.read().unwrap();
        let held = vec![1_u8; 64 << 20];
        let after = gauge.read().unwrap();
        assert!(after.now_bytes >= before.now_bytes + (32 << 20), "{before:?} {after:?} {}", held[1]);
        assert!(after.peak_bytes >= after.now_bytes);
        assert!(Gauge::of(u32::MAX).is_none());
    }
}
