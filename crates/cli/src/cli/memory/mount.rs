//! `sublet memory mount`: serves a folder of leased memory until a signal, or until it is unmounted.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use sublet_proto::limits::MAX_TIMEOUT_MS;
use sublet_proto::pool::Pool;
use sublet_proto::{Code, Error};
use sublet_runtime::{FabricChoice, MemoryPlan};

use crate::cli::ConnectionArguments;
use crate::cli::daemon::{self, DaemonPhase, ForWhom, Signals, blocking, notify, stop_in_order};
use crate::cli::output::CommandOutput;
use crate::cli::parse::{absolute, duration, fabric, pool, show_bytes, show_count, show_nano, size};
use crate::cli::view::CostView;
use crate::mount::blocks::BLOCK_BYTES;
use crate::mount::storage::StorageReport;
use crate::mount::{MountOptions, MountedMemory};

const EXAMPLES: &str = "\
Examples:
  sublet memory mount /tmp/spill                       mount a folder of up to 8 GiB, until Ctrl-C
  sublet memory mount /tmp/spill --limit 64GiB         of up to 64 GiB
  sublet memory mount /tmp/spill --fallback /var/tmp   use files in /var/tmp when no memory can be leased

The folder takes memory from nodes as its files grow, one lease for each --chunk, and gives the memory back when files shrink
or are removed; one empty chunk stays. Its files end with it. `df` shows how far they may still grow.

If a node ends, the bytes that it had are lost: reading them is an error (EIO) until they are written again. A program never
gets other bytes. Memory that cannot be leased is an error of the write (ENOSPC), or a file in the folder of --fallback.

It runs until Ctrl-C, SIGTERM or `sublet memory unmount`, then prints what the memory has cost. It needs /dev/fuse, and for users
other than root the program fusermount3.";

/// Default size of all files, in text.
const DEFAULT_LIMIT: &str = "8GiB";
/// Default size of a lease, in text.
const DEFAULT_CHUNK: &str = "64MiB";
/// Default duration of a lease, in text.
const DEFAULT_LEASE: &str = "5m";
/// Shortest duration of a lease: it is extended after a third of that.
const MIN_LEASE: Duration = Duration::from_secs(1);
/// Longest duration of a lease that a manager grants.
const MAX_LEASE: Duration = Duration::from_millis(MAX_TIMEOUT_MS);
/// Smallest size of a lease, in bytes.
const MIN_CHUNK_BYTES: u64 = 1 << 20;
/// Largest size of a lease, in bytes.
const MAX_CHUNK_BYTES: u64 = 16 << 30;
/// Most leases of a folder.
const MAX_CHUNKS: u64 = 1024;
/// One GiB-second, in bytes times nanoseconds.
const GIB_SECOND: f64 = (1_u64 << 30) as f64 * 1e9;

/// Serve a folder of leased memory that grows, until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Path of an empty folder
    #[arg(value_name = "DIR", value_parser = absolute)]
    folder: PathBuf,

    /// Largest size of all files together
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_LIMIT, value_parser = size)]
    limit: u64,

    /// Size of each lease, by which the folder grows
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_CHUNK, value_parser = size)]
    chunk: u64,

    /// Duration of each lease, which is extended in time: the longest time that memory stays leased if this machine is cut off
    #[arg(long, value_name = "TIME", default_value = DEFAULT_LEASE, value_parser = duration)]
    lease: Duration,

    /// Prefer this node, then others of its rack; the first node named that has enough memory
    #[arg(long, value_name = "NODE")]
    near: Vec<String>,

    /// Use only nodes of this pool: compute, memory or balanced [default: prefer the memory pool]
    #[arg(long, value_name = "POOL", value_parser = pool)]
    pool: Option<Pool>,

    /// Transport of the memory: auto, shm, tcp or tcp+tls [default: $SUBLET_FABRIC, or shared memory on the node's own machine and
    /// TCP from other machines]
    #[arg(long, value_name = "FABRIC", value_parser = fabric)]
    fabric: Option<FabricChoice>,

    /// Use files in this folder of a disk when no memory can be leased
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    fallback: Option<PathBuf>,

    /// Let other users enter the folder, as far as the permissions of its files allow
    #[arg(long)]
    allow_other: bool,

    /// Return from writes before their bytes have arrived: faster for programs that write few bytes at a time, but a failed
    /// write is an error of fsync or of a later read
    #[arg(long)]
    write_back: bool,

    #[command(flatten)]
    connection: ConnectionArguments,

    #[command(flatten)]
    for_whom: ForWhom,
}

impl Arguments {
    fn options(&self) -> Result<MountOptions, Error> {
        let chunk_bytes = self.chunk;
        let bounds = MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES;
        if !bounds.contains(&chunk_bytes) || !chunk_bytes.is_multiple_of(BLOCK_BYTES) {
            let message = format!(
                "--chunk {}: it is from {} to {}, in multiples of {}",
                show_bytes(chunk_bytes),
                show_bytes(MIN_CHUNK_BYTES),
                show_bytes(MAX_CHUNK_BYTES),
                show_bytes(BLOCK_BYTES)
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let chunks = self.limit / chunk_bytes;
        if !(1..=MAX_CHUNKS).contains(&chunks) {
            let message = format!(
                "--limit {}: it is from 1 to {MAX_CHUNKS} times the size of --chunk, which is {}",
                show_bytes(self.limit),
                show_bytes(chunk_bytes)
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        if !(MIN_LEASE..=MAX_LEASE).contains(&self.lease) {
            let message = format!("--lease {:?}: it is from {MIN_LEASE:?} to {MAX_LEASE:?}", self.lease);
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let mut plan = MemoryPlan::new().near(self.near.iter().cloned());
        if let Some(pool) = self.pool {
            plan = plan.pool(pool);
        }
        if let Some(fabric) = &self.fabric {
            plan = plan.fabric(fabric.clone());
        }
        Ok(MountOptions {
            folder: self.folder.clone(),
            limit_bytes: chunks * chunk_bytes,
            chunk_bytes,
            lease: self.lease,
            plan,
            fallback: self.fallback.clone(),
            allows_others: self.allow_other,
            writes_back: self.write_back,
        })
    }
}

/// Report that a folder is mounted.
#[derive(Debug, Serialize)]
struct MountedFolder {
    folder: String,
    limit_bytes: u64,
    chunk_bytes: u64,
    pid: u32,
}

/// Report on a folder that has ended.
#[derive(Debug, Serialize)]
struct EndedFolder {
    folder: String,
    /// Number of leases that the folder had.
    leases: u64,
    /// Number of leases that ended early, with their bytes. Their cost is on `sublet bill`, and not here.
    lost_leases: u64,
    /// Number of chunks that were files on the disk.
    disk_chunks: u64,
    /// Leased memory times its duration.
    gib_seconds: f64,
    #[serde(flatten)]
    cost: CostView,
}

/// Serves until a signal.
pub(super) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    daemon::run(serve(arguments, output))
}

async fn serve(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    let options = arguments.options()?;
    let (limit_bytes, chunk_bytes) = (options.limit_bytes, options.chunk_bytes);
    let mut signals = Signals::listen_for(&arguments.for_whom)?;
    let access = arguments.connection.access()?;
    let (mounted, unmounted) = blocking(move || MountedMemory::start(access, options)).await?;
    let folder = mounted.path().display().to_string();
    let ready = MountedFolder { folder: folder.clone(), limit_bytes, chunk_bytes, pid: std::process::id() };
    notify(DaemonPhase::Ready);
    let shown = output.announce(&ready, |ready| {
        let (folder, limit) = (&ready.folder, show_bytes(ready.limit_bytes));
        format!(
            "{folder} takes up to {limit} of leased memory\nCtrl-C unmounts it and gives the memory back\n"
        )
    });
    if shown.is_ok() {
        tokio::select! {
            () = signals.next() => {}
            _ = unmounted => {}
        }
    }
    let stop = async {
        let report = blocking(move || mounted.end()).await?;
        output.announce(&EndedFolder::of(folder, &report), text)
    };
    stop_in_order(stop, &mut signals).await.and(shown)
}

impl EndedFolder {
    fn of(folder: String, report: &StorageReport) -> EndedFolder {
        let bill = &report.bill;
        debug_assert!(
            bill.lost_leases <= bill.leases,
            "{} of {} leases are lost",
            bill.lost_leases,
            bill.leases
        );
        EndedFolder {
            folder,
            leases: bill.leases,
            lost_leases: bill.lost_leases,
            disk_chunks: report.disk_chunks,
            gib_seconds: bill.byte_ns as f64 / GIB_SECOND,
            cost: CostView::from(&bill.total),
        }
    }
}

fn text(ended: &EndedFolder) -> String {
    let mut text = format!(
        "{} had {}: {:.3} GiB-seconds, which cost {}\n",
        ended.folder,
        show_count(ended.leases, "lease"),
        ended.gib_seconds,
        show_nano(ended.cost.total_nano)
    );
    if ended.lost_leases > 0 {
        text += &format!("{} ended early, with the bytes in it\n", show_count(ended.lost_leases, "lease"));
    }
    if ended.disk_chunks > 0 {
        text += &format!("{} on the disk, for want of memory\n", show_count(ended.disk_chunks, "chunk"));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(words: &[&str]) -> Result<MountOptions, Error> {
        let line = Line::try_parse_from(["mount", "/tmp/spill"].iter().chain(words)).unwrap();
        line.arguments.options()
    }

    #[test]
    fn limit_is_a_number_of_chunks() {
        let plain = options(&[]).unwrap();
        assert_eq!((plain.limit_bytes, plain.chunk_bytes), (8 << 30, 64 << 20));
        let rounded = options(&["--limit", "100MiB", "--chunk", "32MiB"]).unwrap();
        assert_eq!((rounded.limit_bytes, rounded.chunk_bytes), (96 << 20, 32 << 20));
    }

    #[test]
    fn rejects_sizes_that_make_no_folder() {
        let wrong: [&[&str]; 7] = [
            &["--lease", "10ms"],
            &["--lease", "25h"],
            &["--limit", "1MiB"],
            &["--limit", "1TiB"],
            &["--chunk", "4096"],
            &["--chunk", "1048577"],
            &["--chunk", "1TiB", "--limit", "2TiB"],
        ];
        for words in wrong {
            let error = options(words).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{words:?}: {error}");
        }
    }
}
