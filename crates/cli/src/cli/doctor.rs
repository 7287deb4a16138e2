//! `sublet doctor`: shows how well sandboxes isolate on this machine, and which isolations it has.

use clap::Args;
use serde::Serialize;
use sublet_proto::{Code, Error};
use sublet_sandbox::{Finding, strengths};

use super::daemon::find_spawner;
use super::isolations::{IsolationView, Machine, isolations};
use super::output::{CommandOutput, table};

const EXAMPLES: &str = "\
Examples:
  sublet doctor           show what isolates functions here, and which parts are weak
  sudo sublet doctor      show the same for an agent that runs as root
  sublet doctor --json    {\"walls\": [{\"wall\": \"memory\", \"strength\": \"full\", \"why\": ...}]}

The command creates a sandbox, as an agent of the same user would, and removes it. It needs no running Sublet.";

/// Walls without which no sandbox can be made.
const NECESSARY: [&str; 2] = ["sandboxes", "namespaces"];
/// Consequence of a missing necessary wall.
const LENDS_NOTHING: &str = "\n\nno sandbox can be made here, so `sublet up` lends nothing: it says what to change. `sublet up --isolation weak` lends \
     with less protection, by Landlock, a filter of system calls and limits alone";

/// Place of the measured start times.
const START_TIMES: &str = "times to start in each isolation are measured by `cargo bench -p sublet-sandbox`: see the table in docs/performance.md";

/// Show how well sandboxes isolate on this machine, and which parts are weaker without root
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {}

/// JSON output, whose format is stable.
#[derive(Debug, Serialize)]
struct HealthView {
    walls: Vec<Wall>,
    isolations: Vec<IsolationView>,
}

#[derive(Debug, Serialize)]
struct Wall {
    wall: String,
    strength: &'static str,
    why: String,
}

/// Probes a sandbox and shows the strength of each of its walls.
pub(crate) fn run(output: &CommandOutput) -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("sublet-doctor-{}", std::process::id()));
    let failed =
        |error| Error::new(Code::System, format!("making the folder {} failed: {error}", folder.display()));
    std::fs::create_dir(&folder).map_err(failed)?;
    let found = find_spawner().and_then(|spawner| Ok(strengths(&spawner, &folder)?));
    // The folder is empty: leaving it behind does no harm.
    let _ = std::fs::remove_dir(&folder);
    let walls: Vec<_> = found?.into_iter().map(wall).collect();
    let machine = Machine {
        has_namespaces: has_namespaces(&walls),
        has_landlock: !walls.iter().any(|wall| wall.wall == "landlock" && wall.strength == "missing"),
        is_root: rustix::process::getuid().is_root(),
        has_program,
    };
    let health = HealthView { isolations: isolations(&machine), walls };
    output.show(&health, text)
}

fn has_namespaces(walls: &[Wall]) -> bool {
    !walls.iter().any(|wall| NECESSARY.contains(&wall.wall.as_str()) && wall.strength == "missing")
}

fn has_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

fn wall(Finding { wall, strength, why }: Finding) -> Wall {
    Wall { wall, strength: strength.name(), why }
}

fn text(health: &HealthView) -> String {
    let row = |wall: &Wall| vec![wall.wall.clone(), wall.strength.to_owned(), wall.why.clone()];
    let rows: Vec<_> = health.walls.iter().map(row).collect();
    let weaker = health.walls.iter().filter(|wall| wall.strength != "full").count();
    let sum = match weaker {
        0 => "all walls of a sandbox have full strength here".to_owned(),
        1 => "1 wall of a sandbox has less than full strength here".to_owned(),
        some => format!("{some} walls of a sandbox have less than full strength here"),
    };
    let advice = if has_namespaces(&health.walls) { "" } else { LENDS_NOTHING };
    let isolations = health.isolations.iter().map(|view| {
        let here = view.missing.clone().unwrap_or_else(|| "yes".to_owned());
        vec![view.isolation.to_owned(), here, view.gives.to_owned(), view.costs.to_owned()]
    });
    let isolations: Vec<_> = isolations.collect();
    let isolations = table(&["ISOLATION", "HERE", "GIVES", "COSTS"], &isolations);
    table(&["WALL", "STRENGTH", "WHY"], &rows) + "\n" + &isolations + START_TIMES + "\n\n" + &sum + advice
}
