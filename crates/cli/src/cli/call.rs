//! `sublet call`: calls a function once.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use sublet_proto::isolation::Isolation;
use sublet_proto::needs::{GPU, parse_secret_use};
use sublet_proto::pool::Pool;
use sublet_proto::v1::{Lease, SecretUse};
use sublet_proto::{Code, Error};
use sublet_runtime::{
    Allocation, Buffer, CallOptions, Completion, FabricChoice, Invoker, Policy, is_repeatable,
};

use super::ConnectionArguments;
use super::files::{is_dash, read_up_to, write_output};
use super::output::CommandOutput;
use super::parse::{devices, duration, fabric, isolation, pool, show_bytes, show_ns, size, variable, weight};

const EXAMPLES: &str = "\
Examples:
  sublet call libx/f --input in.bin --output out.bin
  echo hello | sublet call libx/f                         from standard input to standard output
  sublet call libx/f --input in.bin --capacity 64MiB --deadline 10s
  sublet call libx/f --shared --wait 10s --retries 2      use a shared core, and wait for one
  sublet call ./libx.so/f < in.bin                        deploy the shared object first
  sublet call libx/f --fabric tcp+tls < in.bin            use encrypted TCP instead of shared memory
  sublet call vectors/add --pu opencl < in.bin            use the build for OpenCL
  sublet call libx/f --env LEVEL=3 --secret DB_KEY < in   with a variable, and a secret as another one
  sublet call libx/f --folder datasets < in.bin           with a folder of the node, as /folders/datasets

Each call allocates a lease and releases it: a cold start each time. Programs that call often keep a lease.";

/// Call a function once
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Function to call, as package/function; the package is a name, a digest, or the path of a shared object or folder
    name: String,

    /// File with the input, or - for standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: PathBuf,

    /// File for the output, or - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Maximum size of the output [default: the input's size, at least 1 MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    capacity: Option<u64>,

    /// Time limit of the call
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deadline: Option<Duration>,

    /// Use a core shared with other leases: cheaper, but busy at times
    #[arg(long)]
    shared: bool,

    /// Repeat the call up to N times if the worker, its lease or its node ends first. The function may then have run
    /// partially, and more than once
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    retries: u32,

    /// Maximum time to wait for a free core [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,

    /// Maximum time of the worker's start, with fetching what it needs and its imports; the steps of a long start are shown on
    /// a terminal [default: until the lease ends]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    start_timeout: Option<Duration>,

    /// Memory of the lease [default: the manager's default]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Environment variable of the function
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, String)>,

    /// Secret of this tenant that the function gets as an environment variable of the same or another name
    #[arg(long = "secret", value_name = "[VARIABLE=]NAME")]
    secrets: Vec<String>,

    /// Folder that nodes lend; the function sees it as /folders/NAME
    #[arg(long = "folder", value_name = "NAME")]
    folders: Vec<String>,

    /// Devices that belong to the call's lease alone, of a kind that operators of nodes have named
    #[arg(long = "device", value_name = "KIND=N", value_parser = devices)]
    devices: Vec<(String, u32)>,

    /// GPUs that belong to the call's lease alone: short for --device cuda=N, or rocm=N on nodes without that kind
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// Size of the function's temporary files in /tmp, which are part of the lease's memory [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    temporary: Option<u64>,

    /// Isolation that the function must have: process, container, crun, runc, runsc, apptainer or weak [default: any that the
    /// node offers]
    #[arg(long, value_name = "NAME", value_parser = isolation)]
    isolation: Option<Isolation>,

    /// Kind of processing unit: cpu, opencl or cuda [default: the cheapest free one for which the package has builds or
    /// profiles]
    #[arg(long, value_name = "KIND")]
    pu: Option<String>,

    /// Weight of execution time against price in the choice among several kinds of processing units, from 0 (only price) to
    /// 1 (only time)
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.0, hide_default_value = true, value_parser = weight)]
    time_weight: f64,

    /// Use only nodes of this pool: compute, memory or balanced [default: prefer the pool that fits the lease's memory]
    #[arg(long, value_name = "POOL", value_parser = pool)]
    pool: Option<Pool>,

    /// Fabric for the call: auto, shm, tcp, tcp+tls, ofi or ofi:PROVIDER [default: $SUBLET_FABRIC, or shared memory on the
    /// node's own machine and the best common network from other machines]
    #[arg(long, value_name = "FABRIC", value_parser = fabric)]
    fabric: Option<FabricChoice>,

    /// Network interface for other machines, by name or address [default: $SUBLET_INTERFACE, or the routing table's
    /// choice]
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<String>,

    #[command(flatten)]
    connection: ConnectionArguments,
}

impl Arguments {
    fn allocation(&self, package: &str, output: CommandOutput) -> Allocation {
        let mut allocation = Allocation::new(package)
            .on_step(move |step| output.note(step))
            .policy(Policy::AlwaysWarm)
            .memory_bytes(self.memory.unwrap_or(0))
            .wait(self.wait.unwrap_or_default())
            .time_weight(self.time_weight)
            .temporary_bytes(self.temporary.unwrap_or(0));
        for (name, value) in &self.variables {
            allocation = allocation.variable(name, value);
        }
        for SecretUse { variable, secret } in self.secrets.iter().map(|text| parse_secret_use(text)) {
            allocation = allocation.secret(variable, secret);
        }
        for folder in &self.folders {
            allocation = allocation.folder(folder);
        }
        let gpus = self.gpu.map(|count| (GPU.to_owned(), count));
        for (kind, count) in self.devices.iter().chain(&gpus) {
            allocation = allocation.devices(kind, *count);
        }
        if let Some(timeout) = self.start_timeout {
            allocation = allocation.start_timeout(timeout);
        }
        if let Some(isolation) = self.isolation {
            allocation = allocation.isolation(isolation.name());
        }
        if let Some(pu) = &self.pu {
            allocation = allocation.pu(pu);
        }
        if let Some(pool) = self.pool {
            allocation = allocation.pool(pool);
        }
        if let Some(fabric) = &self.fabric {
            allocation = allocation.fabric(fabric.clone());
        }
        if let Some(interface) = &self.interface {
            allocation = allocation.interface(interface);
        }
        if self.shared { allocation.shared() } else { allocation }
    }
}

/// Report on a call.
#[derive(Debug, Serialize)]
struct CallReport {
    function: String,
    lease: String,
    node: String,
    /// Kind of processing unit that executed the call.
    pu: String,
    /// Reason for the choice among several kinds.
    #[serde(skip_serializing_if = "String::is_empty")]
    choice: String,
    /// Index of the package's build that was used.
    build: u32,
    input_bytes: usize,
    output_bytes: usize,
    executing_ns: u64,
    /// Fabric that carried the call.
    fabric: String,
    /// Time from the request for the lease to the result.
    total_ns: u64,
}

/// Calls the function, again after failures that allow it.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let (package, function) = split(&arguments.name)?;
    let to_stdout = is_dash(&arguments.output);
    if to_stdout && !output.is_for_people() {
        let message =
            "--json and the function's output cannot both go to standard output: name a file with --output";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let mut invoker = Invoker::connect_with(arguments.connection.access()?)?;
    let input = read_input(&invoker, &arguments.input)?;
    let capacity = arguments.capacity.unwrap_or_else(|| (input.len() as u64).max(1 << 20));
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let mut result = invoker.buffer::<u8>(capacity)?;
    let allocation = arguments.allocation(package, *output);
    let mut left = arguments.retries;
    let begun = Instant::now();
    let done = loop {
        let called = call_once(&mut invoker, arguments, (&allocation, function), &input, &mut result);
        match called {
            // The lease was lost with its node: repeat the call with another lease.
            Err(error) if left > 0 && is_repeatable(error.code) => {
                left -= 1;
                // The lease has ended; its bill is complete.
                let _ = invoker.deallocate();
            }
            Err(error) => return Err(suggest_capacity(error, arguments.capacity)),
            Ok(done) => break done,
        }
    };
    debug_assert!(done.output_bytes <= capacity, "{} bytes of {capacity}", done.output_bytes);
    let Lease { id: lease, node, pu, choice, build, .. } = invoker.lease().unwrap_or_default();
    let called = CallReport {
        function: arguments.name.clone(),
        lease,
        node,
        pu,
        choice,
        build,
        input_bytes: input.len(),
        output_bytes: done.output_bytes,
        fabric: invoker.fabrics().first().map(FabricChoice::to_string).unwrap_or_default(),
        executing_ns: u64::try_from(done.executing.as_nanos()).unwrap_or(u64::MAX),
        total_ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
    };
    invoker.deallocate()?;
    write_output(&arguments.output, &result.part(..done.output_bytes).to_vec())?;
    if to_stdout {
        return Ok(());
    }
    output.show(&called, text)
}

/// Allocates a lease and calls once.
fn call_once(
    invoker: &mut Invoker,
    arguments: &Arguments,
    (allocation, function): (&Allocation, &str),
    input: &Buffer<u8>,
    result: &mut Buffer<u8>,
) -> Result<Completion, Error> {
    invoker.allocate(allocation)?;
    let deadline = arguments.deadline.map(|limit| Instant::now() + limit);
    // No retries here: the caller repeats a lost call with another lease, on any node.
    let options = CallOptions { deadline, timed: true, retries: 0, worker: None };
    invoker.submit_with(invoker.function(function)?, input, result, options)?.wait()
}

fn text(called: &CallReport) -> String {
    format!(
        "{} on {}: {} in, {} out, {} in the function, {} in all",
        called.function,
        called.pu,
        show_bytes(called.input_bytes as u64),
        show_bytes(called.output_bytes as u64),
        show_ns(called.executing_ns),
        show_ns(called.total_ns),
    )
}

/// Splits a name into package and function.
fn split(name: &str) -> Result<(&str, &str), Error> {
    match name.rsplit_once('/') {
        Some((package, function)) if !package.is_empty() && !function.is_empty() => Ok((package, function)),
        _ => Err(Error::new(
            Code::InvalidArgument,
            format!("{name:?} is not the name of a function: write it as package/function"),
        )),
    }
}

fn suggest_capacity(mut error: Error, capacity: Option<u64>) -> Error {
    if error.code == Code::OutputTooLarge && capacity.is_none() {
        error.message += "; raise it with --capacity";
    }
    error
}

/// Reads the input into memory that the worker reads in place.
fn read_input(invoker: &Invoker, path: &Path) -> Result<Buffer<u8>, Error> {
    let failed = |error| Error::of_system(format_args!("reading the input {}", path.display()), &error);
    // One byte more than the limit, so that input that is too large is detected.
    let limit = u64::from(u32::MAX) + 1;
    let bytes = read_up_to(path, limit).map_err(failed)?;
    if bytes.len() as u64 >= limit {
        let message = format!(
            "the input {} has 4 GiB or more: a call takes at most {} bytes",
            path.display(),
            u32::MAX
        );
        return Err(Error::new(Code::InputTooLarge, message));
    }
    let mut input = invoker.buffer::<u8>(bytes.len())?;
    input.copy_from_slice(&bytes);
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_names_at_the_last_slash() {
        assert_eq!(split("libx/f").unwrap(), ("libx", "f"));
        assert_eq!(split("./libx.so/f").unwrap(), ("./libx.so", "f"));
        for name in ["f", "/f", "libx/", ""] {
            assert_eq!(split(name).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
