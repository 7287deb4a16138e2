//! `sublet up`: runs manager and agent in one process until a signal.
//!
//! They communicate over the manager's socket as they would between machines. The manager starts first and stops
//! last, so that the agent's last report is in the ledger before the store closes. A runner drives detached runs of graphs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use sublet_agent::{
    Agent, ClientUsers, FolderOptions, FolderUse, NetworkOptions, Python, SharedCores, UnauthenticatedLimits,
    WarmInterpreters,
};
use sublet_image::Digest;
use sublet_manager::Manager;
use sublet_proto::isolation::Isolation;
use sublet_proto::network::Fabric;
use sublet_proto::price::{DEFAULT_PRICE, Prices};
use sublet_proto::pu::PROCESSOR;
use sublet_proto::v1::Price;
use sublet_proto::{Code, Error};
use sublet_runtime::access::{default_address, default_state, manager_address};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Address};

use super::daemon::{
    self, DaemonPhase, ForWhom, Signals, blocking, find_spawner, find_worker, notify, own_node_name,
    stop_in_order,
};
use super::limits;
use super::output::CommandOutput;
use super::parse::{self, node_modules, show_bytes, size};
use super::runner;
use super::view::{NodeView, WEAK_ISOLATION};
use crate::config::agent::{
    DeviceSetting, PLACES_OF_A_SHARED_CORE, device, lent_folder, python as wanted_python, wanted,
};

const EXAMPLES: &str = "\
Examples:
  sublet up                               lend all cores of this machine
  sublet up --cores 2 --memory 4GiB       lend less
  sublet up --cores 3 --shared-cores 1    lend one core to leases that share it
  sublet up --listen 0.0.0.0:7441         also serve clients on other machines
  sublet up --state /tmp/s                use this state folder; in a second terminal:
                                          export SUBLET_MANAGER=unix:/tmp/s/manager.sock

It runs until Ctrl-C or SIGTERM, then ends all leases and keeps their bills. A second Ctrl-C stops it at once.
The next `sublet up` cleans up after one that was killed.";

/// Run a manager and an agent on this machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// State folder [default: $SUBLET_STATE, $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,

    /// Cores to lend exclusively, each to one lease [default: all that are not shared]
    #[arg(long, value_name = "N")]
    cores: Option<u32>,

    /// Memory to lend, as 4GiB [default: most of it]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Cores to share among several leases, in addition to the exclusive ones [default: none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shared_cores: Option<u32>,

    /// Number of workers on all shared cores together [default: 4 per shared core]
    #[arg(long, value_name = "N", requires = "shared_cores")]
    shared_places: Option<u32>,

    /// Accept clients from other machines at this address, as 0.0.0.0:7441 [default: only clients on this machine]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,

    /// Fabrics for calls from other machines, best first: tcp, ofi:PROVIDER [default: all that this machine supports]
    #[arg(long, value_name = "FABRIC", value_delimiter = ',', requires = "listen")]
    fabrics: Vec<Fabric>,

    /// Reject unencrypted calls over TCP
    #[arg(long, requires = "listen")]
    encrypt: bool,

    /// Let functions use this machine's network if their package requests it (network = true in its sublet.toml)
    #[arg(long)]
    lend_network: bool,

    /// Folder that functions can read if their lease names it, as datasets=/srv/datasets; they see it as /folders/datasets
    #[arg(long, value_name = "NAME=FOLDER", value_parser = lent_folder)]
    folder: Vec<(String, PathBuf)>,

    /// Folder in which each tenant's functions can keep files if their lease names it, as work=/srv/work
    #[arg(long, value_name = "NAME=FOLDER", value_parser = lent_folder)]
    scratch_folder: Vec<(String, PathBuf)>,

    /// Maximum size of a worker's temporary files in /tmp, as 1GiB [default: the memory of its lease]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    temporary: Option<u64>,

    /// OCI runtime, by name or path, that creates the containers of packages with an image: crun, runc or another
    /// [default: the agent creates them]
    #[arg(long, value_name = "PROGRAM")]
    container_runtime: Option<PathBuf>,

    /// Isolations that functions may have: process, container, crun, runc, apptainer; or weak alone, with less protection,
    /// where no namespaces can be made [default: process, container, and that of --container-runtime]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse::isolation)]
    isolation: Vec<Isolation>,

    /// Python interpreter for functions in Python, by name or path, for example of a virtual environment; `none` disables
    /// Python [default: $SUBLET_PYTHON, or python3 on PATH]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,

    /// Folder in which that Python looks for modules; with several of these flags, in their order, in place of its own
    /// search path. Functions can read these folders [default: the interpreter's own]
    #[arg(long, value_name = "FOLDER", value_parser = parse::absolute)]
    python_path: Vec<PathBuf>,

    /// Memory for processes in Python that have imported modules which start threads or are of a tenant's environment or image,
    /// and wait for a lease, as 2GiB; it is not lent [default: none]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    standby: Option<u64>,

    /// Node.js for functions in JavaScript, by name or path, kept warm for sandboxes [default: none]
    #[arg(long, value_name = "PROGRAM")]
    node: Option<PathBuf>,

    /// Folder called node_modules with the modules that programs of that Node.js can load
    #[arg(long, value_name = "FOLDER", requires = "node", value_parser = node_modules)]
    node_modules: Option<PathBuf>,

    /// Maximum disk space for packages and images, as 20GiB [default: a quarter of the file system]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cache: Option<u64>,

    /// Registries from which images may be pulled, as docker.io or localhost:5000 [default: all except those on this machine]
    #[arg(long, value_name = "REGISTRY", value_delimiter = ',')]
    registries: Vec<String>,

    /// Images whose Python is kept warm, with fewer protections than a sandbox has, as sha256:...: only images that you
    /// trust [default: none]
    #[arg(long, value_name = "DIGEST", value_delimiter = ',', value_parser = parse::image_digest)]
    image_templates: Vec<Digest>,

    /// Kinds of devices that execute kernels on this node: opencl, cuda, or none [default: opencl]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = device)]
    devices: Vec<DeviceSetting>,

    /// Name of this node [default: the host name]
    #[arg(long)]
    name: Option<String>,

    #[command(flatten)]
    for_whom: ForWhom,

    #[command(flatten)]
    price: PriceArguments,
}

/// Prices, in nano-units: billionths of the currency.
#[derive(Debug, Args)]
struct PriceArguments {
    /// Price of 1 GiB of leased memory for a second, in nano-units
    #[arg(long, value_name = "NANO", default_value_t = DEFAULT_PRICE.allocation_nano_per_gib_s)]
    price_allocation: u64,

    /// Price of executing functions on a core for a second, in nano-units
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

/// Report that manager and agent are running.
#[derive(Debug, Serialize)]
struct UpReady {
    manager: String,
    state: PathBuf,
    pid: u32,
    /// Interpreter that executes functions in Python.
    python: Option<PathBuf>,
    node: NodeView,
}

/// Runs until a signal.
pub(crate) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    daemon::run(serve(arguments, output))
}

async fn serve(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    let mut signals = Signals::listen_for(&arguments.for_whom)?;
    limits::warn_of_file_sizes();
    let state = absolute(
        &arguments.state.clone().filter(|state| !state.as_os_str().is_empty()).unwrap_or_else(default_state),
    )?;
    let programs = AgentPrograms { worker: worker()?, spawner: find_spawner()? };
    let options = sublet_manager::ManagerOptions {
        prices: Prices { default: arguments.price.price(), ..Prices::default() },
        ..sublet_manager::ManagerOptions::in_folder(state.clone())
    };
    let manager = Manager::start(options).await?;
    let served = lend(agent_options(arguments, &state, programs), &state, output, &mut signals).await;
    manager.stop().await.and(served)
}

/// Runs the agent until a signal. The manager runs until this returns.
async fn lend(
    options: sublet_agent::AgentOptions,
    state: &Path,
    output: &CommandOutput,
    signals: &mut Signals,
) -> Result<(), Error> {
    let (state, access) = (state.to_owned(), options.access.clone());
    let started = blocking(move || {
        let agent = Agent::start(options)?;
        let node = ManagerClient::connect_with(access.clone())?.nodes()?.pop();
        let runner = runner::start_of_up(access)?;
        let python = agent.python().map(Path::to_owned);
        let up = UpReady {
            manager: manager_address(&state),
            state,
            pid: std::process::id(),
            python,
            node: node.unwrap_or_default().into(),
        };
        Ok((agent, runner, up))
    });
    let (agent, runner, up) = started.await?;
    notify(DaemonPhase::Ready);
    let shown = output.announce(&up, text);
    if shown.is_ok() {
        signals.next().await;
    }
    // The agent's last report needs the manager, which this thread has to serve in the meantime. Runs give their leases back
    // before the agent ends them: the next start continues these runs.
    let stop = blocking(move || {
        runner.stop();
        agent.stop();
        Ok(())
    });
    stop_in_order(stop, signals).await.and(shown)
}

/// Programs that the agent starts.
struct AgentPrograms {
    worker: PathBuf,
    spawner: PathBuf,
}

fn agent_options(arguments: Arguments, state: &Path, programs: AgentPrograms) -> sublet_agent::AgentOptions {
    debug_assert!(state.is_absolute(), "the state folder {} is relative", state.display());
    sublet_agent::AgentOptions {
        state: state.to_owned(),
        socket: state.join("agent.sock"),
        access: Access {
            managers: vec![Address::Unix(state.join("manager.sock"))],
            ca_pem: None,
            token: None,
            tenant: None,
        },
        name: arguments.name.unwrap_or_else(own_node_name),
        cores: arguments.cores,
        memory_bytes: arguments.memory,
        numa_nodes: Vec::new(),
        flash: None,
        shared: arguments.shared_cores.map(|cores| SharedCores {
            cores,
            places: arguments.shared_places.unwrap_or(cores.saturating_mul(PLACES_OF_A_SHARED_CORE)),
        }),
        worker: programs.worker,
        spawner: programs.spawner,
        lend_network: arguments.lend_network,
        folders: lent(arguments.folder, FolderUse::ReadOnly)
            .chain(lent(arguments.scratch_folder, FolderUse::Scratch))
            .collect(),
        lent_devices: Vec::new(),
        cdi_folders: Vec::new(),
        temporary_bytes: arguments.temporary,
        container_runtime: arguments.container_runtime,
        isolation: arguments.isolation,
        warm: WarmInterpreters {
            python: python(arguments.python),
            python_path: arguments.python_path,
            node: arguments.node,
            node_modules: arguments.node_modules,
            standby_bytes: arguments.standby.unwrap_or(0),
        },
        cache_bytes: arguments.cache,
        registries: arguments.registries,
        image_templates: arguments.image_templates,
        pu: PROCESSOR.to_owned(),
        neighbours: Vec::new(),
        devices: wanted(arguments.devices),
        idle_timeout: None,
        pool: None,
        rack: String::new(),
        clients: ClientUsers::OwnUser,
        connections: UnauthenticatedLimits::default(),
        network: arguments.listen.map(|listen| NetworkOptions {
            fabrics: arguments.fabrics,
            encrypt: arguments.encrypt,
            ..NetworkOptions::at(listen)
        }),
    }
}

/// Folders that are lent for one use.
fn lent(folders: Vec<(String, PathBuf)>, r#use: FolderUse) -> impl Iterator<Item = FolderOptions> {
    folders.into_iter().map(move |(name, path)| FolderOptions { name, path, r#use })
}

/// Returns the interpreter from the flag, the environment variable or PATH, in this order.
fn python(flag: Option<String>) -> Python {
    let said = flag.or_else(|| std::env::var("SUBLET_PYTHON").ok()).filter(|text| !text.is_empty());
    said.map_or(Python::Found, |text| wanted_python(&text))
}

fn text(up: &UpReady) -> String {
    let UpReady { manager, node, python, .. } = up;
    let cores = if node.cores == 1 { "core" } else { "cores" };
    let python = match python {
        Some(program) => {
            format!("Python functions run by {} (choose another with --python)\n", program.display())
        }
        None => {
            "Python functions cannot run here: python3 is not on PATH (use --python PROGRAM)\n".to_owned()
        }
    };
    let weak = if node.is_weak() { format!("{WEAK_ISOLATION}\n") } else { String::new() };
    let mut text = format!(
        "sublet is up at {manager}: {} {cores} and {} to lease\n{python}{weak}\nin a second terminal:\n",
        node.cores,
        show_bytes(node.memory_bytes)
    );
    if *manager != default_address() {
        text += &format!("  export SUBLET_MANAGER={manager}\n");
    }
    text += "  sublet deploy ./libx.so\n  sublet call libx/f --input FILE --output FILE\n  sublet ps\n\n";
    text + "Ctrl-C stops it\n"
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| {
        Error::new(Code::InvalidArgument, format!("cannot use the state folder {}: {error}", path.display()))
    })
}

/// Returns the path of the worker program: `$SUBLET_WORKER`, or beside this program.
fn worker() -> Result<PathBuf, Error> {
    match std::env::var_os("SUBLET_WORKER").filter(|path| !path.is_empty()) {
        Some(path) => absolute(Path::new(&path)),
        None => find_worker(),
    }
}
