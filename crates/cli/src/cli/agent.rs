//! `sublet agent`: runs an agent until a signal, or changes the state of a running one.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use sublet_agent::{Agent, AgentOptions};
use sublet_proto::Error;
use sublet_proto::v1::{Command, NodeState, NodeStatus};

use super::daemon::{self, DaemonPhase, ForWhom, Signals, blocking, notify, stop_in_order};
use super::limits;
use super::output::CommandOutput;
use super::parse::{as_ms, duration, show_ns};
use super::settings;
use super::view::node_state;
use crate::config::{self, ConfigFlags, EffectiveSettings};

const EXAMPLES: &str = "\
Examples:
  sublet agent                           use /etc/sublet/agent.toml, if it exists
  sublet agent --manager https://m1:7433,https://m2:7433 --ca ca.pem --token-file token
  sublet agent --listen ''               open no port: serve only clients on this machine
  sublet agent --print-config            show the configuration and where each value comes from
  sublet agent --drain                   grant no new leases; return when the last one has ended
  sublet agent --reclaim --grace 10s     withdraw the node: all leases end within 10 s
  sublet agent --lend                    lend again

Flags override the environment, which overrides the file. The agent runs until Ctrl-C or SIGTERM, then ends
its leases; a second Ctrl-C stops it at once. --drain, --reclaim and --lend change the state of the agent that runs with
the same configuration. Interrupting one of them does not undo the change.";

/// Time that leases get to end after `--reclaim` without `--grace`.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Run an agent, which lends this node's cores; or drain, reclaim or lend the node of a running agent
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Grant no new leases, and wait until the last one has ended by itself
    #[arg(long, group = "wanted")]
    drain: bool,

    /// Withdraw the node: ask all leases to end, and end them by force after the grace period
    #[arg(long, group = "wanted")]
    reclaim: bool,

    /// Lend again after --drain or --reclaim
    #[arg(long, group = "wanted")]
    lend: bool,

    /// Grace period of --reclaim [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "reclaim", conflicts_with_all = ["drain", "lend"])]
    grace: Option<Duration>,

    /// Show the configuration and where each value comes from, and exit
    #[arg(long, conflicts_with = "wanted")]
    print_config: bool,

    #[command(flatten)]
    whom: ForWhom,

    #[command(flatten)]
    flags: ConfigFlags<config::agent::AgentProgram>,
}

impl Arguments {
    /// Returns the command for a running agent, if the flags request one.
    fn wanted(&self) -> Option<Command> {
        let (state, grace) = match (self.drain, self.reclaim, self.lend) {
            (true, ..) => (NodeState::Draining, Duration::ZERO),
            (_, true, _) => (NodeState::Reclaimed, self.grace.unwrap_or(DEFAULT_GRACE)),
            (.., true) => (NodeState::Lending, Duration::ZERO),
            _ => return None,
        };
        Some(Command { state: state.into(), grace_ms: as_ms(grace) })
    }
}

/// Report that the agent is serving.
#[derive(Debug, Serialize)]
struct AgentReady {
    agent: String,
    /// Address for clients on other machines, if the agent listens for them.
    address: Option<String>,
    name: String,
    managers: Vec<String>,
    pid: u32,
}

/// State of the node after a command.
#[derive(Debug, Serialize)]
struct NodeReport {
    state: &'static str,
    leases: u32,
    grace_left_ms: u64,
}

/// Runs an agent until a signal, or sends a command to a running one.
pub(crate) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    let wanted = arguments.wanted();
    let settings = EffectiveSettings::read(arguments.flags)?;
    if let Some(command) = wanted {
        return tell(&config::agent::socket(&settings)?, command, output);
    }
    if arguments.print_config {
        config::agent::check(&settings)?;
        return settings::show(&settings, output);
    }
    settings::start_log(&settings)?;
    let options = config::agent::options(&settings)?;
    daemon::run(serve(options, &arguments.whom, output))
}

async fn serve(options: AgentOptions, whom: &ForWhom, output: &CommandOutput) -> Result<(), Error> {
    let mut signals = Signals::listen_for(whom)?;
    limits::warn_of_file_sizes();
    let mut serving = AgentReady {
        address: None,
        agent: format!("unix:{}", options.socket.display()),
        name: options.name.clone(),
        managers: options.access.managers.iter().map(ToString::to_string).collect(),
        pid: std::process::id(),
    };
    let started = blocking(move || Agent::start(options));
    let agent = tokio::select! {
        agent = started => agent?,
        // The agent is still waiting for a manager: there are no leases to end.
        () = signals.next() => return Ok(()),
    };
    notify(DaemonPhase::Ready);
    serving.address = agent.address().map(str::to_owned);
    let shown = output.announce(&serving, text);
    if shown.is_ok() {
        signals.next().await;
    }
    let stop = blocking(move || {
        agent.stop();
        Ok(())
    });
    stop_in_order(stop, &mut signals).await.and(shown)
}

fn text(serving: &AgentReady) -> String {
    let AgentReady { agent, address, name, managers, .. } = serving;
    let elsewhere = address.iter().map(|address| format!(" and {address}")).collect::<String>();
    format!(
        "node {name} is lent at {agent}{elsewhere}, by {}\nCtrl-C ends its leases and stops it\n",
        managers.join(" or ")
    )
}

fn tell(socket: &Path, command: Command, output: &CommandOutput) -> Result<(), Error> {
    let mut last = None;
    let status = sublet_agent::command(socket, command, |status| {
        let told = (status.leases, status.grace_left_ms / 1000);
        if output.is_for_people() && last.replace(told) != Some(told) {
            // Progress is optional: a closed standard error does not fail the command.
            let _ = writeln!(std::io::stderr(), "{}", progress(status));
        }
    })?;
    let done = NodeReport {
        state: node_state(status.state()),
        leases: status.leases,
        grace_left_ms: status.grace_left_ms,
    };
    output.show(&done, |done| format!("the node is {}: {}\n", done.state, leases(done.leases)))
}

fn progress(status: &NodeStatus) -> String {
    let grace = match status.grace_left_ms {
        0 => String::new(),
        ms => format!(", {} of grace", show_ns(ms.saturating_mul(1_000_000))),
    };
    format!("{}: {} left{grace}", node_state(status.state()), leases(status.leases))
}

fn leases(count: u32) -> String {
    match count {
        0 => "no leases".to_owned(),
        1 => "1 lease".to_owned(),
        _ => format!("{count} leases"),
    }
}
