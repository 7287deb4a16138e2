//! `sublet bench chain`: chains of functions in one process, in separate processes, and as HTTP servers.
//!
//! Three chains of the same functions are measured, with the same payload and in the same language:
//!
//! - *in place*: functions of one package that call each other in one worker process;
//! - *between processes*: each function in a worker process and a sandbox of its own, called by the client in turn;
//! - *HTTP*: each function in a server process of its own, called by the client in turn over connections that stay open.
//!
//! The last two compare like with like: their processes share one core, sleep between calls, and the client polls for
//! each answer. The servers have no sandbox, which favours HTTP. A *hop* is the additional time of a chain of all functions
//! over a chain of one, divided by the number of additional functions.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::Serialize;
use sublet_proto::package;
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invoker, Policy};

use super::private_instance::{PrivateInstance, measured};
use super::{PinnedCore, Samples, human_ns, pin_client, pin_process, unpin};

/// Bytes of the payload, of which the functions use the first eight.
const PAYLOAD_BYTES: usize = 64;
/// Calls of a block in place, and of a block between processes or over HTTP.
const CALLS: u32 = 200;
const REQUESTS: u32 = 20;
/// Blocks before the counted ones.
const UNCOUNTED: u32 = 2;
/// Most bytes of an HTTP answer that are read at once; an answer has fewer.
const ANSWER_BYTES: usize = 4096;
/// Longest chain.
pub const MAX_FUNCTIONS: u32 = 16;
/// Longest time for a server to answer.
const PATIENCE: Duration = Duration::from_secs(10);

const PACKAGE: &str = "sublet-bench-chain";
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/chain.so"));
const MODULE: &str = include_str!("../functions/chain.py");
const SERVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/http_chain"));
const SERVER_MODULE: &str = include_str!("../functions/http_chain.py");

/// Language of the functions and of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FunctionLanguage {
    /// Python, on both sides that of the node.
    Python,
    /// C; the server takes one connection at a time, and does nothing else.
    C,
}

/// Medians of a chain's times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    /// A call of all functions.
    all_ns: f64,
    /// A call of one function.
    one_ns: f64,
    /// The additional time of each function after the first.
    hop_ns: f64,
}

/// The result of the measurement: medians of calls, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct ChainResult {
    bench: &'static str,
    language: FunctionLanguage,
    functions: u32,
    blocks: u32,
    in_place_ns: f64,
    in_place_one_ns: f64,
    in_place_hop_ns: f64,
    process_ns: f64,
    process_one_ns: f64,
    process_hop_ns: f64,
    http_ns: f64,
    http_one_ns: f64,
    http_hop_ns: f64,
    /// The hop over HTTP, divided by the hop between processes.
    http_ratio: f64,
}

/// The headings of [`ChainResult::cells`].
pub const HEADINGS: [&str; 9] = [
    "FUNCTIONS",
    "LANGUAGE",
    "IN PLACE",
    "HOP",
    "PROCESSES",
    "PROCESS HOP",
    "HTTP",
    "HTTP HOP",
    "HTTP RATIO",
];

impl ChainResult {
    fn new(plan: &ChainPlan, in_place: Times, process: Times, http: Times) -> ChainResult {
        ChainResult {
            bench: "chain",
            language: plan.language,
            functions: plan.functions,
            blocks: plan.blocks,
            in_place_ns: in_place.all_ns,
            in_place_one_ns: in_place.one_ns,
            in_place_hop_ns: in_place.hop_ns,
            process_ns: process.all_ns,
            process_one_ns: process.one_ns,
            process_hop_ns: process.hop_ns,
            http_ns: http.all_ns,
            http_one_ns: http.one_ns,
            http_hop_ns: http.hop_ns,
            // A hop below the resolution of the clock counts as 1 ns.
            http_ratio: http.hop_ns / process.hop_ns.max(1.0),
        }
    }

    /// The cells of a table's row.
    pub fn cells(&self) -> [String; 9] {
        [
            self.functions.to_string(),
            format!("{:?}", self.language).to_lowercase(),
            human_ns(self.in_place_ns),
            human_ns(self.in_place_hop_ns),
            human_ns(self.process_ns),
            human_ns(self.process_hop_ns),
            human_ns(self.http_ns),
            human_ns(self.http_hop_ns),
            format!("{:.1}", self.http_ratio),
        ]
    }
}

/// Parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ChainPlan {
    /// Number of functions of the chain, 2 to [`MAX_FUNCTIONS`].
    pub functions: u32,
    /// Language of the functions and the servers.
    pub language: FunctionLanguage,
    /// Number of blocks of calls, on each side.
    pub blocks: u32,
    /// Python interpreter of the servers, if the language is Python.
    pub interpreter: PathBuf,
}

/// The samples of a chain of one function and of a chain of all.
struct ChainSamples {
    one: Samples,
    all: Samples,
}

impl ChainSamples {
    fn new(plan: &ChainPlan, calls: u32) -> ChainSamples {
        let samples = || Samples::with_capacity((plan.blocks * calls) as usize);
        ChainSamples { one: samples(), all: samples() }
    }

    /// Measures a block of calls of each length. The first blocks are not counted.
    fn block(&mut self, plan: &ChainPlan, number: u32, calls: u32, call: &mut Call<'_>) -> Result<(), Error> {
        for (length, samples) in [(1, &mut self.one), (plan.functions, &mut self.all)] {
            for _ in 0..calls {
                let took = timed(length, call)?;
                if number >= UNCOUNTED {
                    samples.push(took);
                }
            }
        }
        Ok(())
    }

    fn times(mut self, plan: &ChainPlan) -> Times {
        debug_assert!((2..=MAX_FUNCTIONS).contains(&plan.functions), "a chain of {}", plan.functions);
        let [one_ns, all_ns] = [&mut self.one, &mut self.all].map(|samples| samples.summary(1.0).median_ns);
        Times { all_ns, one_ns, hop_ns: (all_ns - one_ns) / f64::from(plan.functions - 1) }
    }
}

/// Measures the three chains. Without a manager it starts a private Sublet.
pub fn run(access: Option<Access>, plan: &ChainPlan, mut done: impl FnMut()) -> Result<ChainResult, Error> {
    let in_place = in_place(access.clone(), plan)?;
    let (process, http) = between_processes(access, plan, &mut done)?;
    Ok(ChainResult::new(plan, in_place, process, http))
}

/// Starts `sublet up` with these flags, unless a Sublet is named, and deploys the functions.
fn open(
    access: Option<Access>,
    plan: &ChainPlan,
    cores: &[&str],
) -> Result<(Access, Vec<PrivateInstance>), Error> {
    let interpreter = plan.interpreter.to_string_lossy();
    let mut flags = cores.to_vec();
    if plan.language == FunctionLanguage::Python {
        flags.extend(["--python", &interpreter]);
    }
    let (access, own) = measured(access, || Ok(vec![PrivateInstance::up(&flags)?]))?;
    deploy(&ManagerClient::connect_with(access.clone())?, plan)?;
    Ok((access, own))
}

/// Measures functions that call each other in one polling worker.
fn in_place(access: Option<Access>, plan: &ChainPlan) -> Result<Times, Error> {
    let (access, _own) = open(access, plan, &["--cores", "1"])?;
    let mut invoker = Invoker::connect_with(access)?;
    invoker.allocate(&Allocation::new(PACKAGE).policy(Policy::AlwaysHot))?;
    pin_client()?;
    let mut chain = ChainSamples::new(plan, CALLS);
    for number in 0..UNCOUNTED + plan.blocks {
        chain.block(plan, number, CALLS, &mut |length, answer| call(&invoker, length, answer))?;
    }
    // The next Sublet inherits the cores of this thread.
    unpin()?;
    Ok(chain.times(plan))
}

/// Measures sleeping workers on a shared core, and servers on the same core, in turn.
fn between_processes(
    access: Option<Access>,
    plan: &ChainPlan,
    done: &mut impl FnMut(),
) -> Result<(Times, Times), Error> {
    let places = plan.functions.to_string();
    let (access, _own) =
        open(access, plan, &["--cores", "0", "--shared-cores", "1", "--shared-places", &places])?;
    let workers = (0..plan.functions).map(|_| worker(access.clone())).collect::<Result<Vec<_>, _>>()?;
    let folder = tempfile::tempdir().map_err(|error| failed("making a folder", &error))?;
    let mut servers = ServerProcesses::start(plan, folder.path())?;
    pin_client()?;
    let (mut process, mut http) = (ChainSamples::new(plan, REQUESTS), ChainSamples::new(plan, REQUESTS));
    for number in 0..UNCOUNTED + plan.blocks {
        process.block(plan, number, REQUESTS, &mut |length, answer| {
            workers.iter().take(length as usize).try_for_each(|worker| call(worker, 1, answer))
        })?;
        http.block(plan, number, REQUESTS, &mut |length, answer| servers.call(length, answer))?;
        done();
    }
    Ok((process.times(plan), http.times(plan)))
}

/// A client with a lease of one sleeping worker on a shared core.
fn worker(access: Access) -> Result<Invoker, Error> {
    let mut invoker = Invoker::connect_with(access)?;
    invoker.allocate(&Allocation::new(PACKAGE).policy(Policy::AlwaysWarm).spin(Duration::MAX).shared())?;
    Ok(invoker)
}

/// Executes a chain of the given number of functions. The message is input and output: each function counts itself in
/// it.
type Call<'servers> = dyn FnMut(u32, &mut Message) -> Result<(), Error> + 'servers;

/// The payload: the length of the chain that one process executes, the number of functions that were executed, and other bytes.
type Message = [u8; PAYLOAD_BYTES];

fn word(message: &Message, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| message[at + index]))
}

/// The time of one call of a chain, all of whose functions have been executed.
fn timed(length: u32, call: &mut Call<'_>) -> Result<u64, Error> {
    let mut message = [7; PAYLOAD_BYTES];
    message[4..8].fill(0);
    let begun = Instant::now();
    call(length, &mut message)?;
    let took = begun.elapsed();
    if word(&message, 4) != length {
        let executed = word(&message, 4);
        let text = format!("a chain of {length} functions has executed {executed}");
        return Err(Error::new(Code::FunctionFailed, text));
    }
    Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
}

/// Calls the first function of a package, which calls `length` - 1 others in place.
fn call(invoker: &Invoker, length: u32, message: &mut Message) -> Result<(), Error> {
    let mut input = *message;
    let executed = word(&input, 4);
    input[..4].copy_from_slice(&(executed + length).to_le_bytes());
    invoker.submit("f1", &input, message)?.wait().map(drop)
}

fn deploy(manager: &ManagerClient, plan: &ChainPlan) -> Result<(), Error> {
    let function = |number: u32| format!("\n[[function]]\nname = \"f{number}\"\nsymbol = \"stage\"\n");
    let functions: String = (1..=plan.functions).map(function).collect();
    let (library, kind, data) = match plan.language {
        FunctionLanguage::C => ("chain.so", "", LIBRARY.to_vec()),
        FunctionLanguage::Python => ("chain.py", "kind = \"python\"\n", MODULE.as_bytes().to_vec()),
    };
    let manifest = format!("name = \"{PACKAGE}\"\nlibrary = \"{library}\"\n{kind}{functions}");
    let file = PackageFile { path: library.to_owned(), data, executable: true };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

/// A server process for each function, on the core of the workers, and the client's connections to them.
struct ServerProcesses {
    processes: Vec<Child>,
    connections: Vec<TcpStream>,
}

impl ServerProcesses {
    fn start(plan: &ChainPlan, folder: &Path) -> Result<ServerProcesses, Error> {
        let (program, mut command) = match plan.language {
            FunctionLanguage::C => {
                let program = written(&folder.join("http_chain"), SERVER)?;
                (program.clone(), Command::new(program))
            }
            FunctionLanguage::Python => {
                let program = written(&folder.join("http_chain.py"), SERVER_MODULE.as_bytes())?;
                (program, Command::new(&plan.interpreter))
            }
        };
        if plan.language == FunctionLanguage::Python {
            command.arg(program);
        }
        let mut servers = ServerProcesses { processes: Vec::new(), connections: Vec::new() };
        for _ in 0..plan.functions {
            let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut process = process.map_err(|error| failed("starting a server", &error))?;
            let output = process.stdout.take().map(BufReader::new);
            pin_process(Some(Pid::from_child(&process)), PinnedCore::Last)?;
            servers.processes.push(process);
            let mut port = String::new();
            let read = output.map(|mut output| output.read_line(&mut port)).transpose();
            read.map_err(|error| failed("reading a server's port", &error))?;
            let connection = connect(port.trim_end());
            servers.connections.push(connection.map_err(|error| failed("connecting to a server", &error))?);
        }
        Ok(servers)
    }

    /// Calls the first servers in turn, each with the answer of the one before.
    fn call(&mut self, length: u32, message: &mut Message) -> Result<(), Error> {
        debug_assert!(
            length as usize <= self.connections.len(),
            "a chain of {length} over {} servers",
            self.connections.len()
        );
        for connection in self.connections.iter_mut().take(length as usize) {
            let executed = word(message, 4);
            message[..4].copy_from_slice(&(executed + 1).to_le_bytes());
            exchange(connection, message).map_err(|error| failed("a request over HTTP", &error))?;
        }
        Ok(())
    }
}

fn connect(port: &str) -> io::Result<TcpStream> {
    let connection = TcpStream::connect(format!("127.0.0.1:{port}"))?;
    connection.set_nodelay(true)?;
    connection.set_nonblocking(true)?;
    Ok(connection)
}

/// Sends the message as a request, and polls for the answer, as a client of a worker does.
fn exchange(connection: &mut TcpStream, message: &mut Message) -> io::Result<()> {
    let head = format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {PAYLOAD_BYTES}\r\n\r\n");
    connection.write_all(&[head.as_bytes(), message].concat())?;
    let (mut answer, deadline) = (Vec::with_capacity(ANSWER_BYTES), Instant::now() + PATIENCE);
    loop {
        if let Some(body) = body(&answer) {
            message.copy_from_slice(body);
            return Ok(());
        }
        let mut bytes = [0; ANSWER_BYTES];
        match connection.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
}

/// The body of an answer that has arrived as a whole.
fn body(answer: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"\r\n\r\n";
    let head = answer.windows(END.len()).position(|bytes| bytes == END)?;
    answer[head + END.len()..].get(..PAYLOAD_BYTES)
}

impl Drop for ServerProcesses {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Killing a server that has ended changes nothing.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn written(path: &Path, bytes: &[u8]) -> Result<PathBuf, Error> {
    let write = || {
        File::create(path)?.write_all(bytes)?;
        fs::set_permissions(path, Permissions::from_mode(0o700))
    };
    write().map_err(|error| failed("writing a server", &error))?;
    Ok(path.to_owned())
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(Code::System, format!("{what}: {error}"))
}
