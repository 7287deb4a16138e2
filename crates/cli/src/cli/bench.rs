//! `sublet bench`: measures the cost of calls on this machine.

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use sublet_fabric::Provider;
use sublet_proto::package::is_pinned;
use sublet_proto::{Code, Error};
use sublet_runtime::Access;
use sublet_sandbox::Language;

use super::ConnectionArguments;
use super::daemon::find_spawner;
use super::output::{CommandOutput, table};
use super::parse::{duration, node_modules, size};
use sublet_bench::latency::{CalledFunction, Mode};
use sublet_bench::transport::{CallTransport, Where};
use sublet_bench::{
    MAX_PAYLOAD_BYTES, bandwidth, calls, chain, cold, cold_result, connections, fifo, graph, latency, lease,
    memory, reject, swap, template, throughput,
};

const EXAMPLES: &str = "\
Examples:
  sublet bench latency --mode hot --function echo --sweep     every size, and the raw round trip
  sublet bench latency --mode warm --function noop --size 64
  sublet bench latency --fabric tcp --sweep                   over TCP, and a raw TCP ping-pong
  sublet bench latency --fabric tcp --connections 32          the cost of idle connections
  sublet bench bandwidth --fabric tcp --encrypted             large payloads, in both directions
  sublet bench memory --fabric tcp                            memory components, read and written
  sublet bench swap --pattern random-page --work-us 10        an array larger than local memory
  sublet bench graph                                          runs of a graph: warm, and with prepared environments
  sublet bench cold                                           the steps of a cold start
  sublet bench cold --sandbox template --python .venv/bin/python3 --import numpy     a forked warm Python
  sublet bench cold --sandbox container --image debian:12     in an image that was pulled
  sublet bench throughput --workers 1 --in-flight 8
  sublet bench lease --transport tls                          leases granted per second, and the latency of grants
  sublet bench reject                                         the cost of a busy shared core
  sublet bench fifo --size 4KiB                               a message between two processes, and by a Linux FIFO
  sublet bench chain --functions 5 --language python          chains of functions, and HTTP servers
  sublet bench xpucall                                        a call of the shim, and a flag in shared memory

Over tcp and ofi, `latency` and `bandwidth` start a private instance, unless --manager names one; so do `memory`, `lease`,
`reject`, `fifo`, `chain` and `xpucall`. The others need a manager with an idle core: see `sublet up`. Compare only ratios
within one run, since absolute times drift with the machine.";

/// Largest access that can be measured.
const MAX_ACCESS_BYTES: u32 = 1 << 30;

/// Measure calls, and the machine's limit in the same run
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Latency(LatencyArguments),
    Bandwidth(BandwidthArguments),
    Memory(MemoryArguments),
    Swap(SwapArguments),
    Graph(GraphArguments),
    Cold(ColdStartArguments),
    Throughput(ThroughputArguments),
    Lease(LeaseArguments),
    Reject(RejectionArguments),
    Fifo(FifoArguments),
    Chain(ChainArguments),
    Xpucall(XpuCallArguments),
}

/// Transport and endpoints of the calls
#[derive(Debug, Args)]
struct TransportArguments {
    /// Fabric that carries the calls
    #[arg(long, value_enum, default_value_t = FabricKind::Shm)]
    fabric: FabricKind,
    /// Provider of libfabric, as `sublet fabrics` shows it, for --fabric ofi [default: the best one]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Encrypt the calls, for --fabric tcp; the raw side is never encrypted
    #[arg(long)]
    encrypted: bool,
    /// Address of this machine on which the private instance listens, for tcp and ofi
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen_on: IpAddr,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FabricKind {
    /// Shared memory
    Shm,
    /// TCP
    Tcp,
    /// A network of libfabric
    Ofi,
}

impl TransportArguments {
    fn transport(&self) -> Result<CallTransport, Error> {
        let fabric = match self.fabric {
            FabricKind::Shm => Provider::Shm,
            FabricKind::Tcp => Provider::Tcp,
            FabricKind::Ofi => Provider::Ofi,
        };
        let unfit = |flag: &str, fabric: &str| {
            Err(Error::new(Code::InvalidArgument, format!("--{flag} requires --fabric {fabric}")))
        };
        match self.fabric {
            FabricKind::Tcp | FabricKind::Shm if self.provider.is_some() => unfit("provider", "ofi"),
            FabricKind::Shm | FabricKind::Ofi if self.encrypted => unfit("encrypted", "tcp"),
            _ => Ok(CallTransport { fabric, provider: self.provider.clone(), encrypted: self.encrypted }),
        }
    }

    /// Chooses the instance: a named manager, for shared memory the user's own, otherwise a private instance.
    fn place(&self) -> Result<Where, Error> {
        let named = self.connection.manager.as_ref().is_some_and(|manager| !manager.is_empty());
        if named || self.fabric == FabricKind::Shm {
            Ok(Where::Given(Box::new(self.connection.access()?)))
        } else {
            Ok(Where::Own(self.listen_on))
        }
    }
}

/// The round trip of a call, and the raw round trip between the same two threads
///
/// The raw round trip moves a flag through shared memory, or the same bytes over TCP or by libfabric's fi_writedata. It
/// waits in the same way as the call.
#[derive(Debug, Args)]
struct LatencyArguments {
    #[command(flatten)]
    transport: TransportArguments,
    /// Mode in which the worker waits [default: hot, with --connections warm]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Function to call
    #[arg(long, value_enum, default_value_t = CalledFunction::Echo)]
    function: CalledFunction,
    /// Size of input and output
    #[arg(long, value_name = "SIZE", value_parser = payload_size, default_value = "64", conflicts_with = "sweep")]
    size: u32,
    /// Measure 0, 64 B, 1 kB, 4 kB, 64 kB, 1 MB and 5 MB
    #[arg(long)]
    sweep: bool,
    /// Calls for each size; fewer where payloads are large
    #[arg(long, value_name = "CALLS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    n: u32,
    /// Measure calls to one of 1, 2, 4 and so on up to N connected warm workers, all on one shared core of a private
    /// instance, instead of the raw round trip
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(connections::MOST)),
          conflicts_with_all = ["sweep", "manager"])]
    connections: Option<u32>,
}

/// Throughput of large payloads to a worker and back, and of the same bytes without Sublet
#[derive(Debug, Args)]
struct BandwidthArguments {
    #[command(flatten)]
    transport: TransportArguments,
    /// Mode in which the worker waits
    #[arg(long, value_enum, default_value_t = Mode::Hot)]
    mode: Mode,
    /// Size of input and output [default: 1 MB and 5 MB]
    #[arg(long, value_name = "SIZE", value_parser = payload_size)]
    size: Option<u32>,
    /// Calls for each size
    #[arg(long, value_name = "CALLS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    n: u32,
}

/// Throughput of reads and writes of memory components, and of the same bytes without Sublet
#[derive(Debug, Args)]
struct MemoryArguments {
    #[command(flatten)]
    transport: TransportArguments,
    /// Size of an access [default: 4 KiB, 64 KiB, 1 MiB and 16 MiB]
    #[arg(long, value_name = "SIZE", value_parser = access_size)]
    size: Option<u32>,
    /// Blocks of accesses for each size, on each side
    #[arg(long, value_name = "BLOCKS", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
}

/// Time of a program whose array is larger than its local memory, and with all of it in local memory
#[derive(Debug, Args)]
struct SwapArguments {
    /// Order in which the program accesses the array
    #[arg(long, value_enum, default_value_t = swap::AccessOrder::Sequential)]
    pattern: swap::AccessOrder,
    /// Work on each page of 4 KiB, in microseconds; 0: sum its words
    #[arg(long, value_name = "W", default_value_t = 10.0)]
    work_us: f64,
    /// Fraction of the array in local memory
    #[arg(long, value_name = "FRACTION", default_value_t = 0.4)]
    local: f64,
    /// Local memory
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64MiB")]
    memory: u64,
    /// Rounds through each of the two arrays
    #[arg(long, value_name = "ROUNDS", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Overhead of running a graph, besides the work of its components
#[derive(Debug, Args)]
struct GraphArguments {
    /// Number of runs with warm workers; each chain, which takes a second, runs a tenth as often
    #[arg(long, value_name = "RUNS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Time from the request for a lease to the first result, step by step
#[derive(Debug, Args)]
struct ColdStartArguments {
    /// Sandbox in which workers start
    #[arg(long, value_enum, default_value_t = cold_result::SandboxChoice::Process)]
    sandbox: cold_result::SandboxChoice,
    /// Image for containers, which must contain the C library of the worker program
    #[arg(long, value_name = "IMAGE", required_if_eq("sandbox", "container"))]
    image: Option<String>,
    /// Python to keep warm as a template
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Node.js to keep warm as a template, instead of Python
    #[arg(long, value_name = "PROGRAM")]
    node: Option<PathBuf>,
    /// Folder called node_modules with its modules
    #[arg(long, value_name = "FOLDER", requires = "node", value_parser = node_modules)]
    node_modules: Option<PathBuf>,
    /// Modules to import
    #[arg(long = "import", value_name = "MODULE", value_delimiter = ',')]
    imports: Vec<String>,
    /// Number of cold starts [default: 50, with wasm 20000]
    #[arg(long, value_name = "STARTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    n: Option<u32>,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Calls per second, with several in flight at several workers
#[derive(Debug, Args)]
struct ThroughputArguments {
    /// Number of workers, each on a core of its own
    #[arg(long, value_name = "WORKERS", default_value_t = 1)]
    workers: u32,
    /// Number of calls in flight at each worker
    #[arg(long, value_name = "CALLS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    in_flight: u32,
    /// Size of each input, copied into the worker's inbox
    #[arg(long, value_name = "SIZE", value_parser = payload_size, default_value = "64")]
    size: u32,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    time: Duration,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Leases granted and released per second by a private manager, and the latency of grants at half that load
///
/// Each lease is requested on its own; leases are released in calls of 16. A released lease that was never used keeps its
/// core until its node has confirmed the release, one to two seconds later: the nodes together need a core for each lease
/// of two seconds.
#[derive(Debug, Args)]
struct LeaseArguments {
    /// Transport of the requests
    #[arg(long, value_enum, default_value_t = lease::LeaseTransport::Unix)]
    transport: lease::LeaseTransport,
    /// Number of nodes that register and report, without workers
    #[arg(long, value_name = "NODES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Number of cores of each node
    #[arg(long, value_name = "CORES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,
    /// Number of connections of clients, and of nodes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Number of requests in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Duration of each of the two parts
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    time: Duration,
}

/// Latency of a call that a busy shared core rejects, of one that moves on to a free core, and of a plain warm call
#[derive(Debug, Args)]
struct RejectionArguments {
    /// Number of calls of each kind
    #[arg(long, value_name = "CALLS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    n: u32,
}

/// Time of a message from one process to another through a FIFO, and through a Linux FIFO
///
/// Two worker processes exchange messages, and so do two threads through Linux FIFOs, on the same two cores: once with polling
/// receivers, and once with sleeping ones. COPIES is the time of only copying in and out, without a FIFO.
#[derive(Debug, Args)]
struct FifoArguments {
    /// Size of a message [default: 64 B, 1 KiB, 4 KiB and 64 KiB]
    #[arg(long, value_name = "SIZE", value_parser = payload_size)]
    size: Option<u32>,
    /// Measure between two neighbouring nodes of this machine, one of them a `dpu`, and a plain TCP connection
    #[arg(long)]
    across: bool,
    /// Number of blocks of rounds for each size, on each side
    #[arg(long, value_name = "BLOCKS", default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Chains of functions in one process, in separate processes, and as HTTP servers
///
/// A hop is the additional time of a chain of all functions over a chain of one, divided by the number of additional functions. Functions
/// of one package call each other in place. Between processes, and over HTTP, the client calls each function in turn: workers in separate
/// sandboxes, and server processes without one.
#[derive(Debug, Args)]
struct ChainArguments {
    /// Number of functions of the chain
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=i64::from(chain::MAX_FUNCTIONS)))]
    functions: u32,
    /// Language of the functions and the servers
    #[arg(long, value_enum, default_value_t = chain::FunctionLanguage::Python)]
    language: chain::FunctionLanguage,
    /// Python for the servers, which the node also keeps warm
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    interpreter: PathBuf,
    /// Number of blocks of calls, on each side
    #[arg(long, value_name = "BLOCKS", default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Time of a call of the shim, and of a flag's round trip through shared memory
#[derive(Debug, Args)]
struct XpuCallArguments {
    /// Blocks of calls
    #[arg(long, value_name = "BLOCKS", default_value_t = 101, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    #[command(flatten)]
    connection: ConnectionArguments,
}

fn access_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| (1..=MAX_ACCESS_BYTES).contains(bytes));
    fits.ok_or_else(|| format!("{bytes} bytes: an access must have from 1 to {MAX_ACCESS_BYTES} bytes"))
}

fn payload_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes <= MAX_PAYLOAD_BYTES);
    fits.ok_or_else(|| format!("{bytes} bytes: a measured call has at most {MAX_PAYLOAD_BYTES} bytes"))
}

/// Runs the measurement.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.bench {
        Bench::Latency(latency) => run_latency(latency, output),
        Bench::Bandwidth(bandwidth) => run_bandwidth(bandwidth, output),
        Bench::Memory(memory) => run_memory(memory, output),
        Bench::Swap(swap) => run_swap(swap, output),
        Bench::Graph(graph) => run_graph(graph, output),
        Bench::Cold(cold) => run_cold(cold, output),
        Bench::Throughput(throughput) => run_throughput(throughput, output),
        Bench::Lease(lease) => run_lease(lease, output),
        Bench::Reject(reject) => run_reject(reject, output),
        Bench::Fifo(fifo) => run_fifo(fifo, output),
        Bench::Chain(chain) => run_chain(chain, output),
        Bench::Xpucall(xpucall) => run_xpucall(xpucall, output),
    }
}

fn run_latency(arguments: &LatencyArguments, output: &CommandOutput) -> Result<(), Error> {
    if let Some(connections) = arguments.connections {
        return run_connections(arguments, connections, output);
    }
    let (transport, place) = (arguments.transport.transport()?, arguments.transport.place()?);
    let mode = arguments.mode.unwrap_or(Mode::Hot);
    let plan = latency::PairPlan { mode, function: arguments.function, calls: arguments.n };
    let one = [arguments.size];
    let sizes = if arguments.sweep { latency::SWEEP } else { &one };
    let bar = progress(sizes.len() as u64, output);
    let summaries = latency::run(&place, &transport, plan, sizes, |_| bar.inc(1))?;
    bar.finish_and_clear();
    let text = |summaries: &[latency::LatencyResult]| {
        table(&latency::HEADINGS, &summaries.iter().map(latency::LatencyResult::cells).collect::<Vec<_>>())
    };
    match summaries.as_slice() {
        [one] if !arguments.sweep => output.show(one, |one| text(std::slice::from_ref(one))),
        many => output.show(&many, |many| text(many)),
    }
}

fn run_connections(
    arguments: &LatencyArguments,
    connections: u32,
    output: &CommandOutput,
) -> Result<(), Error> {
    if arguments.mode == Some(Mode::Hot) {
        let message = "--connections requires --mode warm: workers that poll cannot share a core";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let LatencyArguments { function, size, n: calls, .. } = *arguments;
    let plan = connections::ConnectionsPlan { function, size, calls, connections };
    let bar = progress(u64::from(connections::blocks(calls)), output);
    let place = Where::Own(arguments.transport.listen_on);
    let summaries = connections::run(&place, &arguments.transport.transport()?, plan, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summaries, |summaries| {
        table(
            &connections::HEADINGS,
            &summaries.iter().map(connections::ConnectionsResult::cells).collect::<Vec<_>>(),
        )
    })
}

fn run_bandwidth(arguments: &BandwidthArguments, output: &CommandOutput) -> Result<(), Error> {
    let (transport, place) = (arguments.transport.transport()?, arguments.transport.place()?);
    let sizes = arguments.size.map_or(bandwidth::SIZES.to_vec(), |size| vec![size]);
    let bar = progress(sizes.len() as u64, output);
    let of = (arguments.mode, arguments.n);
    let summaries = bandwidth::run(&place, &transport, of, &sizes, |_| bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summaries, |summaries| {
        table(
            &bandwidth::HEADINGS,
            &summaries.iter().map(bandwidth::BandwidthResult::cells).collect::<Vec<_>>(),
        )
    })
}

fn run_memory(arguments: &MemoryArguments, output: &CommandOutput) -> Result<(), Error> {
    let transport = &arguments.transport;
    let named = transport.connection.manager.as_ref().is_some_and(|manager| !manager.is_empty());
    let place = if named { transport.place()? } else { Where::Own(transport.listen_on) };
    let sizes = arguments.size.map_or(memory::SIZES.to_vec(), |size| vec![size]);
    let bar = progress(sizes.len() as u64, output);
    let summaries = memory::run(&place, &transport.transport()?, arguments.n, &sizes, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summaries, |summaries| {
        table(&memory::HEADINGS, &summaries.iter().map(memory::MemoryResult::cells).collect::<Vec<_>>())
    })
}

fn run_swap(arguments: &SwapArguments, output: &CommandOutput) -> Result<(), Error> {
    let plan = swap::SwapBenchPlan {
        pattern: arguments.pattern,
        work_us: arguments.work_us,
        local: arguments.local,
        local_bytes: arguments.memory,
        rounds: arguments.n,
    };
    let bar = progress(u64::from(arguments.n), output);
    let summary = swap::run(&arguments.connection.access()?, &plan, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summary, |summary| table(&swap::HEADINGS, &[summary.cells()]))
}

fn run_graph(arguments: &GraphArguments, output: &CommandOutput) -> Result<(), Error> {
    let bar = progress(graph::steps(arguments.n), output);
    let summary = graph::run(&arguments.connection.access()?, arguments.n, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summary, |summary| table(&graph::HEADINGS, &summary.rows()))
}

fn run_cold(arguments: &ColdStartArguments, output: &CommandOutput) -> Result<(), Error> {
    let n = arguments.n.unwrap_or(arguments.sandbox.usual_starts());
    let bar = progress(u64::from(n), output);
    let named =
        arguments.image.as_deref().filter(|_| arguments.sandbox == cold_result::SandboxChoice::Container);
    let image = match named {
        Some(name) if !is_pinned(name) => Some(format!("{name}@{}", sublet_image::current_digest(name)?)),
        named => named.map(str::to_owned),
    };
    let warm = template::WarmTemplate {
        spawner: find_spawner()?,
        language: if arguments.node.is_some() { Language::Node } else { Language::Python },
        interpreter: arguments.node.clone().unwrap_or_else(|| arguments.python.clone()),
        node_modules: arguments.node_modules.clone(),
        imports: arguments.imports.clone(),
    };
    let plan = cold::ColdStartPlan { sandbox: arguments.sandbox, n, image, warm };
    let summary = cold::run(&arguments.connection.access()?, &plan, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summary, |summary| table(&cold_result::HEADINGS, &summary.rows()))
}

fn run_throughput(arguments: &ThroughputArguments, output: &CommandOutput) -> Result<(), Error> {
    let plan = throughput::ThroughputPlan {
        workers: arguments.workers,
        in_flight: arguments.in_flight,
        size: arguments.size,
        time: arguments.time,
    };
    let summary = throughput::run(&arguments.connection.access()?, plan)?;
    output.show(&summary, |summary| table(&throughput::HEADINGS, &[summary.cells()]))
}

fn run_lease(arguments: &LeaseArguments, output: &CommandOutput) -> Result<(), Error> {
    let plan = lease::LeasePlan {
        transport: arguments.transport,
        nodes: arguments.nodes,
        cores: arguments.cores,
        connections: arguments.connections,
        in_flight: arguments.in_flight,
        time: arguments.time,
    };
    output.show(&lease::run(plan)?, |summary| table(&lease::HEADINGS, &[summary.cells()]))
}

fn run_reject(arguments: &RejectionArguments, output: &CommandOutput) -> Result<(), Error> {
    let bar = progress(u64::from(reject::blocks(arguments.n)), output);
    let summary = reject::run(arguments.n, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summary, |summary| table(&reject::HEADINGS, &summary.rows()))
}

fn run_fifo(arguments: &FifoArguments, output: &CommandOutput) -> Result<(), Error> {
    let sizes = arguments.size.map_or(fifo::SIZES.to_vec(), |size| vec![size]);
    let bar = progress(sizes.len() as u64, output);
    let summaries =
        fifo::run(named(&arguments.connection)?, arguments.across, arguments.n, &sizes, || bar.inc(1))?;
    bar.finish_and_clear();
    let text = |summaries: &[fifo::FifoResult]| {
        table(&fifo::HEADINGS, &summaries.iter().map(fifo::FifoResult::cells).collect::<Vec<_>>())
    };
    match summaries.as_slice() {
        [one] if arguments.size.is_some() => output.show(one, |one| text(std::slice::from_ref(one))),
        many => output.show(&many, |many| text(many)),
    }
}

fn run_chain(arguments: &ChainArguments, output: &CommandOutput) -> Result<(), Error> {
    let bar = progress(u64::from(arguments.n), output);
    let plan = chain::ChainPlan {
        functions: arguments.functions,
        language: arguments.language,
        blocks: arguments.n,
        interpreter: arguments.interpreter.clone(),
    };
    let summary = chain::run(named(&arguments.connection)?, &plan, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summary, |summary| table(&chain::HEADINGS, &[summary.cells()]))
}

fn run_xpucall(arguments: &XpuCallArguments, output: &CommandOutput) -> Result<(), Error> {
    let bar = progress(u64::from(arguments.n), output);
    let summary = calls::run(named(&arguments.connection)?, arguments.n, || bar.inc(1))?;
    bar.finish_and_clear();
    output.show(&summary, |summary| table(&calls::HEADINGS, &[summary.cells()]))
}

/// Returns the manager that was named, if one was.
fn named(connection: &ConnectionArguments) -> Result<Option<Access>, Error> {
    let named = connection.manager.as_ref().is_some_and(|manager| !manager.is_empty());
    named.then(|| connection.access()).transpose()
}

fn progress(steps: u64, output: &CommandOutput) -> ProgressBar {
    if output.is_for_people() && std::io::stderr().is_terminal() {
        ProgressBar::new(steps)
    } else {
        ProgressBar::hidden()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_payloads_that_no_call_can_have() {
        assert_eq!(payload_size("5MiB"), Ok(5 << 20));
        let most = u64::from(MAX_PAYLOAD_BYTES);
        assert_eq!(payload_size(&most.to_string()), Ok(MAX_PAYLOAD_BYTES));
        for bytes in [most + 1, u64::from(u32::MAX), 1 << 32, u64::MAX - 4095, u64::MAX] {
            let refused = payload_size(&bytes.to_string()).unwrap_err();
            assert!(refused.contains("at most 4294963196 bytes"), "{refused}");
        }
    }
}
