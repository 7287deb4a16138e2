//! `sublet bench`: what calls cost here.

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use sublet_proto::Error;

use super::Connection;
use super::output::{Output, table};
use super::parse::{duration, size};
use crate::bench::{cold, latency, lease, reject, throughput};

const EXAMPLES: &str = "\
Examples:
  sublet bench latency --mode hot --function echo --sweep     every size, beside the raw round trip
  sublet bench latency --mode warm --function noop --size 64
  sublet bench cold                                           the steps of a cold start
  sublet bench throughput --workers 1 --in-flight 8
  sublet bench lease --transport tls                          leases granted a second, and how long a grant takes
  sublet bench reject                                         what a busy shared core costs

The first three need a manager with an idle core: see `sublet up`; the others start what they need. Ratios within one
run hold; absolute times drift with the machine.";

/// Measure calls, beside the limit of the machine in the same run
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Latency(Latency),
    Cold(Cold),
    Throughput(Throughput),
    Lease(Lease),
    Reject(Reject),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fabric {
    /// Shared memory
    Shm,
}

/// The round trip of a call, and the raw round trip between the same two threads
#[derive(Debug, Args)]
struct Latency {
    /// What carries the calls
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// How the worker waits
    #[arg(long, value_enum, default_value_t = latency::Mode::Hot)]
    mode: latency::Mode,
    /// What is called
    #[arg(long, value_enum, default_value_t = latency::Called::Echo)]
    function: latency::Called,
    /// Size of input and output
    #[arg(long, value_name = "SIZE", value_parser = size_32, default_value = "64", conflicts_with = "sweep")]
    size: u32,
    /// Measure 0, 64 B, 1 kB, 4 kB, 64 kB, 1 MB and 5 MB
    #[arg(long)]
    sweep: bool,
    /// Calls for each size; fewer where copies are large
    #[arg(long, value_name = "CALLS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    n: u32,
    #[command(flatten)]
    connection: Connection,
}

/// From the request for a lease to the first result, step by step
#[derive(Debug, Args)]
struct Cold {
    /// What workers start in
    #[arg(long, value_enum, default_value_t = cold::Sandbox::Process)]
    sandbox: cold::Sandbox,
    /// Cold starts
    #[arg(long, value_name = "STARTS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    n: u32,
    #[command(flatten)]
    connection: Connection,
}

/// Calls a second, with several in flight at several workers
#[derive(Debug, Args)]
struct Throughput {
    /// Workers, each on a core of its own
    #[arg(long, value_name = "WORKERS", default_value_t = 1)]
    workers: u32,
    /// Calls in flight at each worker
    #[arg(long, value_name = "CALLS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    in_flight: u32,
    /// Size of each input, copied into the worker's inbox
    #[arg(long, value_name = "SIZE", value_parser = size_32, default_value = "64")]
    size: u32,
    /// For how long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    time: Duration,
    #[command(flatten)]
    connection: Connection,
}

/// Leases granted and given back a second by a manager of its own, and how long a grant takes at half that load
///
/// Each lease is asked for by a request of its own; they are given back in calls of 16. A lease that was given back
/// without having been used keeps its core until its node has answered that it knows, one to two seconds later: the
/// nodes together need a core for each lease of two seconds.
#[derive(Debug, Args)]
struct Lease {
    /// What carries the requests
    #[arg(long, value_enum, default_value_t = lease::Transport::Unix)]
    transport: lease::Transport,
    /// Nodes that register and report, without workers
    #[arg(long, value_name = "NODES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Cores of each node
    #[arg(long, value_name = "CORES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,
    /// Connections of clients, and as many of nodes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Requests in flight at each connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// For how long, each of the two parts
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    time: Duration,
}

/// A call that a busy shared core rejects, and one that goes on to a free core, beside a plain warm call
#[derive(Debug, Args)]
struct Reject {
    /// Calls of each kind
    #[arg(long, value_name = "CALLS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    n: u32,
}

fn size_32(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    // The measured buffers have a page of their own before the payload.
    u32::try_from(bytes + 4096)
        .map(|with_head| with_head - 4096)
        .map_err(|_| format!("{bytes} bytes: a call takes less than 4 GiB"))
}

/// Measures.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    match &arguments.bench {
        Bench::Latency(latency) => run_latency(latency, output),
        Bench::Cold(cold) => run_cold(cold, output),
        Bench::Throughput(throughput) => run_throughput(throughput, output),
        Bench::Lease(lease) => run_lease(lease, output),
        Bench::Reject(reject) => run_reject(reject, output),
    }
}

fn run_latency(arguments: &Latency, output: &Output) -> Result<(), Error> {
    let Fabric::Shm = arguments.fabric;
    let plan = latency::Plan { mode: arguments.mode, function: arguments.function, calls: arguments.n };
    let one = [arguments.size];
    let sizes = if arguments.sweep { latency::SWEEP } else { &one };
    let bar = progress(sizes.len() as u64, output);
    let figures = latency::run(&arguments.connection.access()?, plan, sizes, |_| bar.inc(1))?;
    bar.finish_and_clear();
    let text = |figures: &[latency::Figure]| {
        table(&latency::HEADINGS, &figures.iter().map(latency::Figure::cells).collect::<Vec<_>>())
    };
    match figures.as_slice() {
        [one] if !arguments.sweep => output.show(one, |one| text(std::slice::from_ref(one))),
        many => output.show(&many, |many| text(many)),
    }
}

fn run_cold(arguments: &Cold, output: &Output) -> Result<(), Error> {
    let bar = progress(u64::from(arguments.n), output);
    let access = arguments.connection.access()?;
    let figure = cold::run(&access, arguments.sandbox, arguments.n, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&figure, |figure| table(&cold::HEADINGS, &figure.rows()))
}

fn run_throughput(arguments: &Throughput, output: &Output) -> Result<(), Error> {
    let plan = throughput::Plan {
        workers: arguments.workers,
        in_flight: arguments.in_flight,
        size: arguments.size,
        time: arguments.time,
    };
    let figure = throughput::run(&arguments.connection.access()?, plan)?;
    output.show(&figure, |figure| table(&throughput::HEADINGS, &[figure.cells()]))
}

fn run_lease(arguments: &Lease, output: &Output) -> Result<(), Error> {
    let plan = lease::Plan {
        transport: arguments.transport,
        nodes: arguments.nodes,
        cores: arguments.cores,
        connections: arguments.connections,
        in_flight: arguments.in_flight,
        time: arguments.time,
    };
    output.show(&lease::run(plan)?, |figure| table(&lease::HEADINGS, &[figure.cells()]))
}

fn run_reject(arguments: &Reject, output: &Output) -> Result<(), Error> {
    let bar = progress(u64::from(reject::blocks(arguments.n)), output);
    let figure = reject::run(arguments.n, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&figure, |figure| table(&reject::HEADINGS, &figure.rows()))
}

fn progress(steps: u64, output: &Output) -> ProgressBar {
    if output.is_for_people() && std::io::stderr().is_terminal() {
        ProgressBar::new(steps)
    } else {
        ProgressBar::hidden()
    }
}
