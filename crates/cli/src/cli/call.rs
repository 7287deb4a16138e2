//! `sublet call`: calls one function once.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use sublet_proto::pool::Pool;
use sublet_proto::v1::Lease;
use sublet_proto::{Code, Error};
use sublet_runtime::{
    Allocation, Buffer, CallOptions, Completion, FabricChoice, Invoker, Policy, is_repeatable,
};

use super::Connection;
use super::files::{is_dash, read_up_to, write_output};
use super::output::Output;
use super::parse::{duration, fabric, pool, show_bytes, show_ns, size, weight};

const EXAMPLES: &str = "\
Examples:
  sublet call libx/f --input in.bin --output out.bin
  echo hello | sublet call libx/f                         standard input to standard output
  sublet call libx/f --input in.bin --capacity 64MiB --deadline 10s
  sublet call libx/f --shared --wait 10s --retries 2      on a shared core, when there is one
  sublet call ./libx.so/f < in.bin                        deploys the shared object on the way
  sublet call libx/f --fabric tcp+tls < in.bin            encrypted, and not by shared memory
  sublet call vectors/add --pu opencl < in.bin            by its build for OpenCL, if it has several

Takes a lease, calls, and gives the lease back: a cold start each time. Programs that call often keep a lease.";

/// Call a function once
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// package/function; the package is a name, a digest, or the path of a shared object or folder
    name: String,

    /// File with the input, or - for standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: PathBuf,

    /// File for the output, or - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Room for the output [default: the input's size, and at least 1 MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    capacity: Option<u64>,

    /// End the call if it has not returned by then
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deadline: Option<Duration>,

    /// On a core that is shared with other leases: cheaper to have, and busy at times
    #[arg(long)]
    shared: bool,

    /// Call again, up to so often, if the worker, its lease or its node ends before the call does. The function may
    /// then have run in part, and more than once
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    retries: u32,

    /// Wait at most so long for a free core [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,

    /// Memory of the lease [default: the manager's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// The kind of processing unit: cpu, or as nodes call theirs, opencl or cuda [default: of those for which the package
    /// has builds, or profiles, the cheapest that is free]
    #[arg(long, value_name = "KIND")]
    pu: Option<String>,

    /// Where the package can be executed on several kinds of processing units: how much the time counts that its work takes, beside
    /// what it costs, from 0, the price alone, to 1, the time alone
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.0, hide_default_value = true, value_parser = weight)]
    time_weight: f64,

    /// On nodes of this pool alone: compute, memory or balanced [default: rather on those of the pool that its memory says]
    #[arg(long, value_name = "POOL", value_parser = pool)]
    pool: Option<Pool>,

    /// What carries the call: auto, shm, tcp, tcp+tls, ofi or ofi:PROVIDER [default: $SUBLET_FABRIC, and else shared
    /// memory on the node's own machine, and the best common network from another one]
    #[arg(long, value_name = "FABRIC", value_parser = fabric)]
    fabric: Option<FabricChoice>,

    /// Connect to other machines by this interface: its name, or one of its addresses [default: $SUBLET_INTERFACE, and
    /// else as the routes say]
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<String>,

    #[command(flatten)]
    connection: Connection,
}

impl Arguments {
    fn allocation(&self, package: &str) -> Allocation {
        let mut allocation = Allocation::new(package)
            .policy(Policy::AlwaysWarm)
            .memory_bytes(self.memory.unwrap_or(0))
            .wait(self.wait.unwrap_or_default())
            .time_weight(self.time_weight);
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

/// What is told beside the output.
#[derive(Debug, Serialize)]
struct Called {
    function: String,
    lease: String,
    node: String,
    /// The kind of processing unit that it ran on,
    pu: String,
    /// why on that, where there were several,
    #[serde(skip_serializing_if = "String::is_empty")]
    choice: String,
    /// and by which of its package's builds.
    build: u32,
    input_bytes: usize,
    output_bytes: usize,
    executing_ns: u64,
    /// What carried the call.
    fabric: String,
    /// From the request for the lease to the result.
    total_ns: u64,
}

/// Calls.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let (package, function) = split(&arguments.name)?;
    let to_stdout = is_dash(&arguments.output);
    if to_stdout && !output.is_for_people() {
        let message =
            "--json and the function's output cannot share standard output: name a file with --output";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let mut invoker = Invoker::connect_with(arguments.connection.access()?)?;
    let input = read_input(&invoker, &arguments.input)?;
    let capacity = arguments.capacity.unwrap_or_else(|| (input.len() as u64).max(1 << 20));
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let mut result = invoker.buffer::<u8>(capacity)?;
    let mut left = arguments.retries;
    let begun = Instant::now();
    let done = loop {
        let called = call_once(&mut invoker, arguments, (package, function), &input, &mut result);
        match called {
            // The lease went with its node: what may be repeated is, by another one.
            Err(error) if left > 0 && is_repeatable(error.code) => {
                left -= 1;
                // It is over, and its bill says what it used.
                let _ = invoker.deallocate();
            }
            Err(error) => return Err(suggest_capacity(error, arguments.capacity)),
            Ok(done) => break done,
        }
    };
    let Lease { id: lease, node, pu, choice, build, .. } = invoker.lease().unwrap_or_default();
    let called = Called {
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
    write_output(&arguments.output, &result[..done.output_bytes])?;
    if to_stdout {
        return Ok(());
    }
    output.show(&called, text)
}

/// Takes a lease and calls once.
fn call_once(
    invoker: &mut Invoker,
    arguments: &Arguments,
    (package, function): (&str, &str),
    input: &Buffer<u8>,
    result: &mut Buffer<u8>,
) -> Result<Completion, Error> {
    invoker.allocate(&arguments.allocation(package))?;
    let deadline = arguments.deadline.map(|limit| Instant::now() + limit);
    // Whoever calls this counts: a call that is lost is repeated with another lease, on whatever node has one.
    let options = CallOptions { deadline, timed: true, retries: 0, worker: None };
    invoker.submit_with(invoker.function(function)?, input, result, options)?.wait()
}

fn text(called: &Called) -> String {
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

/// The package and the function of a name.
fn split(name: &str) -> Result<(&str, &str), Error> {
    match name.rsplit_once('/') {
        Some((package, function)) if !package.is_empty() && !function.is_empty() => Ok((package, function)),
        _ => Err(Error::new(
            Code::InvalidArgument,
            format!("{name} does not name a function as package/function"),
        )),
    }
}

fn suggest_capacity(mut error: Error, capacity: Option<u64>) -> Error {
    if error.code == Code::OutputTooLarge && capacity.is_none() {
        error.message += "; give it more with --capacity";
    }
    error
}

/// Reads the input into memory that the worker reads in place.
fn read_input(invoker: &Invoker, path: &Path) -> Result<Buffer<u8>, Error> {
    let failed = |error| Error::new(Code::System, format!("reading the input {}: {error}", path.display()));
    // One byte more than a call can take says that there is too much.
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
    fn a_name_is_split_at_its_last_slash() {
        assert_eq!(split("libx/f").unwrap(), ("libx", "f"));
        assert_eq!(split("./libx.so/f").unwrap(), ("./libx.so", "f"));
        for name in ["f", "/f", "libx/", ""] {
            assert_eq!(split(name).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
