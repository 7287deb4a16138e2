//! `sublet logs`: shows the output of a lease's functions that this machine's agent has kept.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;
use sublet_runtime::access::default_state;

use super::output::{CommandOutput, check_standard_output};

const EXAMPLES: &str = "\
Examples:
  sublet ps                                           show the leases
  sublet logs LEASE                                   show the output of a lease's functions
  sublet logs LEASE --state /var/lib/sublet/agent     use the agent with this state folder

The agent keeps the newest 1 MiB of output of each lease, and the logs of 128 ended leases. The output of Python
functions also goes to their caller.";

/// Show the output of a lease's functions on this machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Identifier of the lease, as `sublet ps` shows it
    lease: String,

    /// State folder of the agent [default: $SUBLET_STATE, $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
}

/// Output of a lease.
#[derive(Debug, Serialize)]
struct LogOutput<'lease> {
    lease: &'lease str,
    log: String,
}

/// Prints the log.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let state = arguments.state.clone().filter(|path| !path.as_os_str().is_empty());
    let bytes = sublet_agent::read_log(&state.unwrap_or_else(default_state), &arguments.lease)?;
    if output.is_for_people() && !std::io::stdout().is_terminal() {
        check_standard_output()?;
        return match std::io::stdout().lock().write_all(&bytes) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Error::of_system("cannot write to standard output", &error))
            }
            _ => Ok(()),
        };
    }
    let log = LogOutput { lease: &arguments.lease, log: String::from_utf8_lossy(&bytes).into_owned() };
    output.show(&log, |log| log.log.clone())
}
