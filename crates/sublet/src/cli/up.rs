//! `sublet up`: manager and agent in one process, until it is told to stop.
//!
//! The two talk over the manager's socket as they would between machines. They start in that order and stop in
//! the other one, so that the agent's last report is in the ledger before the store closes.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use sublet_agent::Agent;
use sublet_manager::Manager;
use sublet_proto::price::DEFAULT_PRICE;
use sublet_proto::v1::{NodeInfo, Price};
use sublet_proto::{Code, Error};
use sublet_runtime::manager::{ManagerClient, default_address, default_state, manager_address};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::output::Output;
use super::parse::{show_bytes, size};
use super::view::NodeView;

const EXAMPLES: &str = "\
Examples:
  sublet up                               lend all cores of this machine
  sublet up --cores 2 --memory 4GiB       lend less
  sublet up --state /tmp/s                keep everything in this folder; in a second terminal:
                                          export SUBLET_MANAGER=unix:/tmp/s/manager.sock

It runs until Ctrl-C or SIGTERM, then ends all leases and keeps their bills. A second Ctrl-C does not wait.
Whatever a killed `sublet up` has left behind, the next one clears away.";

const WORKER: &str = "sublet-worker";

/// Run Sublet on this machine: a manager, and an agent that lends its cores
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Folder of the state [default: $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet]
    #[arg(long, value_name = "FOLDER", env = "SUBLET_STATE", hide_env_values = true)]
    state: Option<PathBuf>,

    /// Cores to lend [default: all]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,

    /// Memory to lend, as 4GiB [default: most of it]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Name of this node [default: the host's]
    #[arg(long)]
    name: Option<String>,

    #[command(flatten)]
    price: PriceArguments,
}

/// Money is counted in nano-units: billionths of the currency.
#[derive(Debug, Args)]
struct PriceArguments {
    /// Price of holding a GiB for a second, in nano-units
    #[arg(long, value_name = "NANO", default_value_t = DEFAULT_PRICE.allocation_nano_per_gib_s)]
    price_allocation: u64,

    /// Price of computing on a core for a second, in nano-units
    #[arg(long, value_name = "NANO", default_value_t = DEFAULT_PRICE.compute_nano_per_core_s)]
    price_compute: u64,

    /// Price of polling on a core for a second, in nano-units
    #[arg(long, value_name = "NANO", default_value_t = DEFAULT_PRICE.polling_nano_per_core_s)]
    price_polling: u64,
}

impl PriceArguments {
    fn price(&self) -> Price {
        Price {
            allocation_nano_per_gib_s: self.price_allocation,
            compute_nano_per_core_s: self.price_compute,
            polling_nano_per_core_s: self.price_polling,
        }
    }
}

/// What is said when all is up.
#[derive(Debug, Serialize)]
struct Up {
    manager: String,
    state: PathBuf,
    pid: u32,
    node: NodeView,
}

/// Runs until a signal.
pub(crate) fn run(arguments: Arguments, output: &Output) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Code::System, format!("cannot make a tokio runtime: {error}")))?;
    runtime.block_on(serve(arguments, output))
}

async fn serve(arguments: Arguments, output: &Output) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let state = absolute(&arguments.state.clone().unwrap_or_else(default_state))?;
    let worker = find_worker()?;
    let options = sublet_manager::Options {
        price: arguments.price.price(),
        ..sublet_manager::Options::in_folder(state.clone())
    };
    let manager = Manager::start(options).await?;
    let served = lend(agent_options(arguments, &state, worker), &state, output, &mut signals).await;
    manager.stop().await.and(served)
}

/// Runs the agent until a signal. Its manager is up, and stays so until this returns.
async fn lend(
    options: sublet_agent::Options,
    state: &Path,
    output: &Output,
    signals: &mut Signals,
) -> Result<(), Error> {
    let (state, address) = (state.to_owned(), options.manager.clone());
    let started = blocking(move || {
        let agent = Agent::start(options)?;
        let node = ManagerClient::connect(&address)?.nodes()?.pop();
        Ok((agent, announcement(address, state, node)))
    });
    let (agent, up) = started.await?;
    let shown = output.show(&up, text);
    if shown.is_ok() {
        signals.next().await;
    }
    // The agent's last report needs the manager, which this thread has to serve in the meantime.
    let stop = blocking(move || {
        agent.stop();
        Ok(())
    });
    tokio::select! {
        stopped = stop => stopped.and(shown),
        () = signals.next() => {
            tracing::warn!("stopped without waiting for leases to end");
            std::process::exit(i32::try_from(Code::Internal.number()).unwrap_or(1));
        }
    }
}

fn agent_options(arguments: Arguments, state: &Path, worker: PathBuf) -> sublet_agent::Options {
    sublet_agent::Options {
        state: state.to_owned(),
        socket: state.join("agent.sock"),
        manager: manager_address(state),
        name: arguments.name.unwrap_or_else(host_name),
        cores: arguments.cores,
        memory_bytes: arguments.memory,
        worker,
    }
}

fn announcement(manager: String, state: PathBuf, node: Option<NodeInfo>) -> Up {
    Up { manager, state, pid: std::process::id(), node: node.unwrap_or_default().into() }
}

fn text(up: &Up) -> String {
    let Up { manager, node, .. } = up;
    let mut text = format!(
        "sublet is up at {manager}: {} cores and {} to lease\n\nin a second terminal:\n",
        node.cores,
        show_bytes(node.memory_bytes)
    );
    if *manager != default_address() {
        text += &format!("  export SUBLET_MANAGER={manager}\n");
    }
    text += "  sublet deploy ./libx.so\n  sublet call libx/f --input FILE --output FILE\n  sublet ps\n\n";
    text + "Ctrl-C stops it\n"
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| {
        Error::new(Code::InvalidArgument, format!("no state folder {}: {error}", path.display()))
    })
}

/// The worker program: where `$SUBLET_WORKER` says, beside this one, or where an installation has it.
fn find_worker() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("SUBLET_WORKER").filter(|path| !path.is_empty()) {
        return absolute(Path::new(&path));
    }
    let own = std::env::current_exe()
        .map_err(|error| Error::new(Code::System, format!("cannot find this program's own path: {error}")))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(WORKER), folder.join("../libexec/sublet").join(WORKER)];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places = places.map(|path| path.display().to_string()).join(" and ");
        Error::new(
            Code::System,
            format!("the worker program is missing: looked for {places}; or set SUBLET_WORKER"),
        )
    })
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(|error| Error::new(Code::Internal, format!("a part of `sublet up` failed: {error}")))?
}

/// The signals that mean: stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Error> {
        let listen = |kind| {
            let failed = |error| Error::new(Code::System, format!("cannot wait for signals: {error}"));
            signal(kind).map_err(failed)
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
