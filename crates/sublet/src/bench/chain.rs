//! `sublet bench chain`: functions that call each other, beside the same functions as servers that call each other by HTTP.
//!
//! A client calls the first function of a chain, which calls the next, and so on; what the last answers comes back the same way. What a
//! *hop* costs is what a chain of all of them takes beyond a chain of one, for each function more. Both sides do the same to
//! the same payload, in the same language, over connections that stay.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use sublet_proto::package;
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invoker, Policy};

use super::own::{Own, measured};
use super::{Samples, human_ns, pin_client};

/// Bytes of the payload, of which the functions use the first eight.
const PAYLOAD_BYTES: usize = 64;
/// Calls of a block, and of a block of HTTP.
const CALLS: u32 = 200;
const REQUESTS: u32 = 20;
/// Blocks that come first and are not counted.
const UNCOUNTED: u32 = 2;
/// Longest chain.
pub const MAX_FUNCTIONS: u32 = 16;
/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

const PACKAGE: &str = "sublet-bench-chain";
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/chain.so"));
const MODULE: &str = include_str!("../../functions/chain.py");
const SERVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/http_chain"));
const SERVER_MODULE: &str = include_str!("../../functions/http_chain.py");

/// What the functions, and the servers, are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python, on both sides that of the node.
    Python,
    /// C; the server takes one connection at a time, and does nothing else.
    C,
}

/// The figures: medians of calls, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    bench: &'static str,
    language: Language,
    functions: u32,
    blocks: u32,
    /// Of the whole chain, and of a chain of one.
    median_ns: f64,
    one_ns: f64,
    hop_ns: f64,
    http_median_ns: f64,
    http_one_ns: f64,
    http_hop_ns: f64,
    /// HTTP's hop over ours.
    http_ratio: f64,
}

/// The headings of [`Figure::cells`].
pub const HEADINGS: [&str; 7] =
    ["FUNCTIONS", "LANGUAGE", "CHAIN", "HOP", "HTTP CHAIN", "HTTP HOP", "HTTP RATIO"];

impl Figure {
    /// For a table.
    pub fn cells(&self) -> [String; 7] {
        [
            self.functions.to_string(),
            format!("{:?}", self.language).to_lowercase(),
            human_ns(self.median_ns),
            human_ns(self.hop_ns),
            human_ns(self.http_median_ns),
            human_ns(self.http_hop_ns),
            format!("{:.0}", self.http_ratio),
        ]
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of how many functions the chain is, 2 to [`MAX_FUNCTIONS`].
    pub functions: u32,
    /// Theirs and the servers'.
    pub language: Language,
    /// Blocks of calls, on each side.
    pub blocks: u32,
    /// Of the servers, if it is Python.
    pub interpreter: PathBuf,
}

/// Measures. Without a manager it has a Sublet of its own.
pub fn run(access: Option<Access>, plan: &Plan, mut done: impl FnMut()) -> Result<Figure, Error> {
    let interpreter = plan.interpreter.to_string_lossy();
    let mut flags = vec!["--cores", "1"];
    if plan.language == Language::Python {
        flags.extend(["--python", &interpreter]);
    }
    let (access, _own) = measured(access, || Ok(vec![Own::up(&flags)?]))?;
    let place = tempfile::tempdir().map_err(|error| failed("making a folder", &error))?;
    let mut servers = Servers::start(plan, place.path())?;
    deploy(&ManagerClient::connect_with(access.clone())?, plan)?;
    let mut invoker = Invoker::connect_with(access)?;
    invoker.allocate(&Allocation::new(PACKAGE).policy(Policy::AlwaysHot))?;
    pin_client()?;
    let capacity = |each: u32| Samples::with_capacity((plan.blocks * each) as usize);
    let (mut all, mut one) = (capacity(CALLS), capacity(CALLS));
    let (mut http_all, mut http_one) = (capacity(REQUESTS), capacity(REQUESTS));
    for number in 0..UNCOUNTED + plan.blocks {
        let measure = |count, length, samples: &mut Samples, call: &mut Call<'_>| {
            let took = (0..count).map(|_| timed(length, call)).collect::<Result<Vec<_>, _>>()?;
            took.into_iter().filter(|_| number >= UNCOUNTED).for_each(|took| samples.push(took));
            Ok::<_, Error>(())
        };
        for (length, samples) in [(1, &mut one), (plan.functions, &mut all)] {
            measure(CALLS, length, samples, &mut |payload, answer| call(&invoker, payload, answer))?;
        }
        for (length, samples) in [(1, &mut http_one), (plan.functions, &mut http_all)] {
            measure(REQUESTS, length, samples, &mut |payload, answer| servers.call(payload, answer))?;
        }
        done();
    }
    let [all, one, http_all, http_one] =
        [all, one, http_all, http_one].map(|mut samples| samples.summary(1.0).median_ns);
    let hops = f64::from(plan.functions - 1);
    let (hop_ns, http_hop_ns) = ((all - one) / hops, (http_all - http_one) / hops);
    Ok(Figure {
        bench: "chain",
        language: plan.language,
        functions: plan.functions,
        blocks: plan.blocks,
        median_ns: all,
        one_ns: one,
        hop_ns,
        http_median_ns: http_all,
        http_one_ns: http_one,
        http_hop_ns,
        // What is shorter than the clock tells is as short as that.
        http_ratio: http_hop_ns / hop_ns.max(1.0),
    })
}

/// Calls the first function of a chain: the payload, and where the answer goes.
type Call<'servers> = dyn FnMut(&[u8], &mut [u8]) -> Result<(), Error> + 'servers;

/// The time of one call of a chain, all of whose functions have been executed.
fn timed(length: u32, call: &mut Call<'_>) -> Result<u64, Error> {
    let (mut payload, mut answer) = ([7; PAYLOAD_BYTES], [0; PAYLOAD_BYTES]);
    payload[..4].copy_from_slice(&length.to_le_bytes());
    payload[4..8].fill(0);
    let begun = Instant::now();
    call(&payload, &mut answer)?;
    let took = begun.elapsed();
    payload[4..8].copy_from_slice(&length.to_le_bytes());
    if answer != payload {
        return Err(Error::new(Code::FunctionFailed, format!("a chain of {length} answers {answer:?}")));
    }
    Ok(took.as_nanos() as u64)
}

fn call(invoker: &Invoker, payload: &[u8], answer: &mut [u8]) -> Result<(), Error> {
    invoker.submit("f1", payload, answer)?.wait().map(drop)
}

fn deploy(manager: &ManagerClient, plan: &Plan) -> Result<(), Error> {
    let function = |number: u32| format!("\n[[function]]\nname = \"f{number}\"\nsymbol = \"stage\"\n");
    let functions: String = (1..=plan.functions).map(function).collect();
    let (library, kind, data) = match plan.language {
        Language::C => ("chain.so", "", LIBRARY.to_vec()),
        Language::Python => ("chain.py", "kind = \"python\"\n", MODULE.as_bytes().to_vec()),
    };
    let manifest = format!("name = \"{PACKAGE}\"\nlibrary = \"{library}\"\n{kind}{functions}");
    let file = PackageFile { path: library.to_owned(), data, executable: true };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

/// Servers, each of which knows the next, and a connection to the first.
struct Servers {
    processes: Vec<Child>,
    connection: BufReader<TcpStream>,
}

impl Servers {
    fn start(plan: &Plan, folder: &Path) -> Result<Servers, Error> {
        let program = match plan.language {
            Language::C => written(&folder.join("http_chain"), SERVER)?,
            Language::Python => written(&folder.join("http_chain.py"), SERVER_MODULE.as_bytes())?,
        };
        let mut processes = Vec::new();
        let mut port = String::new();
        for _ in 0..plan.functions {
            let mut command = match plan.language {
                Language::C => Command::new(&program),
                Language::Python => Command::new(&plan.interpreter),
            };
            if plan.language == Language::Python {
                command.arg(&program);
            }
            if !port.is_empty() {
                command.arg(&port);
            }
            let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut process = process.map_err(|error| failed("starting a server", &error))?;
            let said = process.stdout.take().map(BufReader::new);
            processes.push(process);
            port.clear();
            let read = said.map(|mut said| said.read_line(&mut port)).transpose();
            read.map_err(|error| failed("hearing of a server's port", &error))?;
            port.truncate(port.trim_end().len());
        }
        let connection = TcpStream::connect(format!("127.0.0.1:{port}"))
            .and_then(|connection| {
                connection.set_nodelay(true)?;
                connection.set_read_timeout(Some(PATIENCE))?;
                Ok(connection)
            })
            .map_err(|error| failed("connecting to a server", &error))?;
        Ok(Servers { processes, connection: BufReader::new(connection) })
    }

    fn call(&mut self, payload: &[u8], answer: &mut [u8]) -> Result<(), Error> {
        let head = format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", payload.len());
        let request = [head.as_bytes(), payload].concat();
        self.exchange(&request, answer).map_err(|error| failed("a request over HTTP", &error))
    }

    fn exchange(&mut self, request: &[u8], answer: &mut [u8]) -> std::io::Result<()> {
        self.connection.get_mut().write_all(request)?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.connection.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line.trim_end().is_empty() {
                return self.connection.read_exact(answer);
            }
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // One that has ended is as good as killed.
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
