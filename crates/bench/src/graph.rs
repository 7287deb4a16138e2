//! Measures the run of a graph relative to its components.
//!
//! The first part is the start of the last of three warm components. The second part is the remaining cost of cold
//! starts in a chain whose next environments are prepared ahead; there no component can use the workers of the previous
//! one. A third chain, whose components all use the same workers, shows the cost of a
//! transition without a cold start. The last part is a program as components and as a whole (`parts.rs`).

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use sublet_fabric::clock::monotonic_ns;
use sublet_proto::Error;
use sublet_runtime::Access;
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::run::{Application, RunOptions};

use super::cold_result::{NS_PER_US, micros};
use super::{PACKAGE, Samples, deploy, human_ns};
use numbers::{median, number_of};
use parts::PartsResult;

mod numbers;
mod parts;

/// Components of the graph that is started warm.
const WARM_COMPONENTS: usize = 3;
/// Components of the chain, and the time of each.
const CHAIN_COMPONENTS: usize = 10;
const CHAIN_STEP: Duration = Duration::from_millis(100);

const _: () = assert!(WARM_COMPONENTS == 3 && CHAIN_COMPONENTS == 10, "the table's rows say 3 and 10");

/// Time for which workers are kept between two runs.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Results of all runs.
#[derive(Clone, Debug, Serialize)]
pub struct GraphResult {
    bench: &'static str,
    n: u32,
    /// Time from the request to the first instruction of the last of three components, with warm workers.
    start_us: f64,
    start_p99_us: f64,
    /// Time of each of ten steps of a chain beyond its 100 ms: with environments that are prepared ahead, without, and
    /// with the workers of the previous component. The first step has no previous one.
    left_us: f64,
    cold_us: f64,
    kept_us: f64,
    /// Share of the cold starts that is hidden, from 0 to 1, for all but the first component. The cold starts are the
    /// additional time of cold components over components that use the previous one's workers.
    hidden: f64,
    /// A program as components on one node.
    parts: PartsResult,
}

/// The headings of [`GraphResult::rows`].
pub const HEADINGS: [&str; 3] = ["WHAT", "MEDIAN", "P99"];

impl GraphResult {
    /// Formats the results for a table.
    pub fn rows(&self) -> Vec<[String; 3]> {
        let us = |us: f64| human_ns(us * NS_PER_US);
        let share = |ratio: f64| format!("{ratio:.3}");
        let row = |what: &str, median: String, p99: String| [what.to_owned(), median, p99];
        vec![
            row("request to the last of 3 warm components", us(self.start_us), us(self.start_p99_us)),
            row("each of 10 steps in a chain, made ready ahead", us(self.left_us), String::new()),
            row("each of 10 steps in a chain, cold", us(self.cold_us), String::new()),
            row("each of 10 steps in a chain, with the workers before", us(self.kept_us), String::new()),
            row("hidden", format!("{:.0}%", self.hidden * 100.0), String::new()),
            row("a program as one component, over none", share(self.parts.merged_ratio), String::new()),
            row("a program as three components, over none", share(self.parts.split_ratio), String::new()),
        ]
    }
}

/// Executes `n` runs of each kind.
pub fn run(access: &Access, n: u32, mut progress: impl FnMut()) -> Result<GraphResult, Error> {
    deploy(&ManagerClient::connect_with(access.clone())?)?;
    let options = RunOptions { keep_alive: KEEP_ALIVE, hot_timeout: Duration::ZERO, ..RunOptions::default() };
    let (start_us, start_p99_us) = start(access, options, n, &mut progress)?;
    let with = |prewarm| RunOptions { prewarm, ..RunOptions::default() };
    let (ahead, never) = (
        open(access, "bench-ahead", CHAIN_COMPONENTS, "nap", WorkerReuse::Own, with(Some(Duration::ZERO)))?,
        open(access, "bench-cold", CHAIN_COMPONENTS, "nap", WorkerReuse::Own, with(None))?,
    );
    let same = open(access, "bench-same", CHAIN_COMPONENTS, "nap", WorkerReuse::OfTheOneBefore, with(None))?;
    let (mut left, mut cold, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    // In turn, so that all have the same conditions. A chain takes a second.
    for _ in 0..n.div_ceil(10) {
        left.push(chain_us(&ahead)?);
        cold.push(chain_us(&never)?);
        kept.push(chain_us(&same)?);
        progress();
    }
    let (left_us, cold_us, kept_us) = (median(&mut left), median(&mut cold), median(&mut kept));
    // The first step is cold in all of them.
    let rest = |us: f64| us * CHAIN_COMPONENTS as f64 - cold_us;
    let hidden = 1.0 - (rest(left_us) - rest(kept_us)) / (rest(cold_us) - rest(kept_us));
    let parts = parts::run(access, n.div_ceil(10), &mut progress)?;
    Ok(GraphResult { bench: "graph", n, start_us, start_p99_us, left_us, cold_us, kept_us, hidden, parts })
}

/// Number of progress steps for `n` runs.
pub fn steps(n: u32) -> u64 {
    u64::from(n) + 2 * u64::from(n.div_ceil(10))
}

fn start(
    access: &Access,
    options: RunOptions,
    n: u32,
    progress: &mut impl FnMut(),
) -> Result<(f64, f64), Error> {
    let application =
        open(access, "bench-warm", WARM_COMPONENTS, "moment", WorkerReuse::OfTheOneBefore, options)?;
    let mut samples = Samples::with_capacity(n as usize);
    // The first run is not counted: it starts the workers.
    for number in 0..=n {
        let asked_ns = monotonic_ns();
        let began_ns = number_of(&application.run(&[])?)?;
        if number > 0 {
            samples.push(began_ns.saturating_sub(asked_ns));
            progress();
        }
    }
    Ok(micros(&mut samples))
}

/// Time of each of a chain's steps beyond the steps themselves, in microseconds.
fn chain_us(application: &Application) -> Result<f64, Error> {
    let step_ns = u64::try_from(CHAIN_STEP.as_nanos()).unwrap_or(u64::MAX);
    let begun = Instant::now();
    application.run(&step_ns.to_le_bytes())?;
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    let beyond = begun.elapsed().saturating_sub(CHAIN_STEP * CHAIN_COMPONENTS as u32);
    Ok(beyond.as_nanos() as f64 / NS_PER_US / CHAIN_COMPONENTS as f64)
}

/// Workers of the components of a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerReuse {
    /// No component can use the workers of another.
    Own,
    OfTheOneBefore,
}

fn open(
    access: &Access,
    name: &str,
    count: usize,
    function: &str,
    workers: WorkerReuse,
    options: RunOptions,
) -> Result<Application, Error> {
    let component = |at: usize| {
        let mut component =
            json!({ "name": format!("c{at}"), "type": "compute", "package": PACKAGE, "function": function });
        if workers == WorkerReuse::Own {
            component["resources"] = json!({ "memory_bytes": (1 << 20) + at * 4096 });
        }
        if at == 0 {
            component["entry"] = Value::Bool(true);
        }
        component
    };
    let edge =
        |at: usize| json!({ "type": "trigger", "from": format!("c{at}"), "to": format!("c{}", at + 1) });
    debug_assert!(count > 0, "{name} has {count} components, and its first one is the entry");
    let components: Vec<Value> = (0..count).map(component).collect();
    let edges: Vec<Value> = (0..count - 1).map(edge).collect();
    let document = json!({ "version": 1, "name": name, "components": components, "edges": edges });
    Application::deploy(access.clone(), document.to_string().as_bytes(), options)
}
