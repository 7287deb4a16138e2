//! `sublet environment`: the environments of Python, in which functions run.

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::{show_bytes, show_count};
use super::time::show_moment;
use super::view::EnvironmentView;

const EXAMPLES: &str = "\
Examples:
  sublet environment list                 environments that this tenant may use
  sublet environment show science         its digest, platform and wheels
  sublet environment remove science       remove it, and its wheels that no other environment has

An environment has the distributions that functions in Python import, in place of those of the node. It is made from
requirements by `sublet deploy` ([python] requirements in sublet.toml) or in Python (sublet.Environment). It belongs to its
tenant as packages do: `sublet package grant` lets another tenant use it, and `sublet package publish` all of them. Packages
and leases that use a removed environment keep it.";

/// List, show and remove environments of Python
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: EnvironmentAction,
}

#[derive(Debug, Subcommand)]
enum EnvironmentAction {
    List(ListEnvironments),
    Show(ShowEnvironment),
    Remove(RemoveEnvironment),
}

/// Show the environments that this tenant may use: its own, public ones and those granted to it
#[derive(Debug, Args)]
struct ListEnvironments {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Show an environment's platform and wheels
#[derive(Debug, Args)]
struct ShowEnvironment {
    /// Name, TENANT/NAME or digest of the environment
    environment: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Remove an environment's name and versions, and wheels that no other environment of its tenant has
#[derive(Debug, Args)]
struct RemoveEnvironment {
    /// Name of the environment; operators: TENANT/NAME, public/NAME for a published one
    environment: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Output of `list`.
#[derive(Debug, Serialize)]
struct EnvironmentReport {
    environments: Vec<EnvironmentView>,
}

/// Lists environments, or shows or removes one.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.action {
        EnvironmentAction::List(list) => {
            let mut packages = list.connection.open()?.packages()?;
            packages.retain(|package| package.is_environment());
            let environments = packages.into_iter().map(EnvironmentView::from).collect();
            output.show(&EnvironmentReport { environments }, |shown| text(&shown.environments))
        }
        EnvironmentAction::Show(show) => {
            let environment = show.connection.open()?.find_environment(&show.environment)?;
            output.show(&EnvironmentView::from(environment), details)
        }
        EnvironmentAction::Remove(remove) => {
            let manager = remove.connection.open()?;
            manager.find_environment(&remove.environment)?;
            let environment = EnvironmentView::from(manager.remove_package(&remove.environment)?);
            output.show(&environment, |environment| {
                format!("{} is removed; its digest was {}\n", environment.address(), environment.digest)
            })
        }
    }
}

fn text(environments: &[EnvironmentView]) -> String {
    let rows: Vec<_> = environments.iter().map(row).collect();
    table(&["ENVIRONMENT", "OWNER", "SIZE", "WHEELS", "FOR", "DIGEST", "DEPLOYED"], &rows)
}

fn row(environment: &EnvironmentView) -> [String; 7] {
    const SHOWN: usize = "sha256:".len() + 12;
    [
        environment.name.clone(),
        environment.owner.clone(),
        show_bytes(environment.size_bytes),
        environment.wheels.len().to_string(),
        environment.platform.clone(),
        environment.digest.chars().take(SHOWN).collect(),
        show_moment(environment.deployed_unix_ms),
    ]
}

fn details(environment: &EnvironmentView) -> String {
    let mut text = format!(
        "{}: {} for {}, {}, {}\n",
        environment.address(),
        show_count(environment.wheels.len() as u64, "wheel"),
        environment.platform,
        show_bytes(environment.size_bytes),
        environment.digest
    );
    let rows: Vec<_> = environment
        .wheels
        .iter()
        .map(|wheel| [wheel.name.clone(), show_bytes(wheel.size_bytes), wheel.digest.clone()])
        .collect();
    text += &table(&["WHEEL", "SIZE", "DIGEST"], &rows);
    text
}
