//! `sublet manager`: runs a manager without an agent.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sublet_manager::{Manager, ManagerOptions, Tls};
use sublet_proto::Error;

use super::daemon::{DaemonPhase, ForWhom, Signals, notify, stop_in_order};
use super::limits;
use super::output::CommandOutput;
use super::settings;
use crate::config::{self, ConfigFlags, EffectiveSettings};

const EXAMPLES: &str = "\
Examples:
  sublet manager                                     use /etc/sublet/manager.toml, if it exists
  sublet manager --state ./m --listen 0.0.0.0:7433   use this state folder, and all networks
  sublet manager --config m.toml --print-config      show the configuration and where each value comes from
  sublet manager --global --store nats --store-url nats://n1:4222 --state ./g
                                                     direct clients to the managers of several racks, which share this store

Flags override the environment, which overrides the file. Agents and clients on other machines
need the manager's address, the certificate in tls/ca.pem of its state folder, and a token: see `sublet token create --help`.

The manager runs until Ctrl-C or SIGTERM; leases continue without it. A second Ctrl-C stops it at once.";

/// Run a manager, which grants leases and keeps packages and the ledger
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Show the configuration and where each value comes from, and exit
    #[arg(long)]
    print_config: bool,

    #[command(flatten)]
    for_whom: ForWhom,

    #[command(flatten)]
    flags: ConfigFlags<config::manager::ManagerProgram>,
}

/// Report that the manager is serving.
#[derive(Debug, Serialize)]
struct ManagerReady {
    manager: String,
    listen: Vec<String>,
    state: PathBuf,
    /// Certificate that agents and clients trust, if this manager created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    pid: u32,
}

/// Runs until a signal.
pub(crate) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    let settings = EffectiveSettings::read(arguments.flags)?;
    if arguments.print_config {
        config::manager::options(&settings)?;
        return settings::show(&settings, output);
    }
    settings::start_log(&settings)?;
    let options = config::manager::options(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::of_system("cannot make a tokio runtime", &error))?;
    runtime.block_on(serve(options, &arguments.for_whom, output))
}

async fn serve(options: ManagerOptions, for_whom: &ForWhom, output: &CommandOutput) -> Result<(), Error> {
    let mut signals = Signals::listen_for(for_whom)?;
    limits::warn_of_file_sizes();
    let ca = matches!(options.tls, Tls::Generated { .. }) && !options.listen.is_empty();
    let serving = ManagerReady {
        manager: format!("unix:{}", options.socket.display()),
        listen: options.listen.iter().map(ToString::to_string).collect(),
        ca: ca.then(|| options.state.join("tls/ca.pem")),
        state: options.state.clone(),
        pid: std::process::id(),
    };
    let manager = Manager::start(options).await?;
    notify(DaemonPhase::Ready);
    let shown = output.announce(&serving, text);
    if shown.is_ok() {
        signals.next().await;
    }
    stop_in_order(manager.stop(), &mut signals).await.and(shown)
}

fn text(serving: &ManagerReady) -> String {
    let ManagerReady { manager, listen, ca, .. } = serving;
    let mut text = format!("the manager serves at {manager}");
    for address in listen {
        text += &format!(" and {address}");
    }
    if let Some(ca) = ca {
        text += &format!("\ncertificate for agents and clients: {}", ca.display());
    }
    text + "\nCtrl-C stops it; leases continue\n"
}
