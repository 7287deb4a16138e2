//! Measures a program as three components on one node relative to the same program as one component, and to the program
//! that has no components (Scad 5.2.4).
//!
//! All three are runs of a graph, in turn, and start one worker each. The program without components has its array in
//! memory of its process. Merged by hand, it has the array in a memory component; as three components, each executes
//! one step on that memory.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use sublet_proto::package;
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error, saturating_u64};
use sublet_runtime::Access;
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::run::{Application, RunOptions};

use super::numbers::{median, number_of};

/// Package of the program.
const PACKAGE: &str = "sublet-bench-parts";
const FUNCTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/parts.so"));
/// Words of the array: 8 MiB.
const WORDS: u64 = 1 << 20;
/// Passes over the array by which the number of passes of a run is chosen.
const FIRST_PASSES: u64 = 64;
/// The time that a run should take.
const RUN: Duration = Duration::from_millis(500);

/// Times of the three forms.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PartsResult {
    n: u32,
    /// Time of the program without components, with the start of its worker.
    program_ms: f64,
    /// Times of the other forms over that.
    pub(super) merged_ratio: f64,
    pub(super) split_ratio: f64,
}

/// Runs each form as often.
pub(super) fn run(access: &Access, rounds: u32, mut progress: impl FnMut()) -> Result<PartsResult, Error> {
    deploy(&ManagerClient::connect_with(access.clone())?)?;
    let open = |name: &str, functions: &[&str], has_memory: bool| {
        let options = RunOptions { prewarm: None, ..RunOptions::default() };
        let document = document(name, functions, has_memory).to_string();
        Application::deploy(access.clone(), document.as_bytes(), options)
    };
    let forms = [
        open("bench-program", &["whole"], false)?,
        open("bench-merged", &["merged"], true)?,
        open("bench-split", &["load", "train", "validate"], true)?,
    ];
    let [program, ..] = &forms;
    let first = time(program, FIRST_PASSES)?.0;
    let passes = saturating_u64(RUN.as_secs_f64() / first.as_secs_f64() * FIRST_PASSES as f64).max(1);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        let mut sums = Vec::new();
        for (form, times) in forms.iter().zip(&mut times) {
            let (took, sum) = time(form, passes)?;
            times.push(took.as_secs_f64() * 1e3);
            sums.push(sum);
        }
        if sums.windows(2).any(|pair| pair[0] != pair[1]) {
            let message = format!("the forms of one program returned different sums: {sums:?}");
            return Err(Error::new(Code::Internal, message));
        }
        progress();
    }
    let [program_ms, merged_ms, split_ms] = times.each_mut().map(|times| median(times));
    let (merged_ratio, split_ratio) = (merged_ms / program_ms, split_ms / program_ms);
    Ok(PartsResult { n: rounds, program_ms, merged_ratio, split_ratio })
}

/// Time of a run, and the sum that it returned.
fn time(form: &Application, passes: u64) -> Result<(Duration, u64), Error> {
    let input: Vec<u8> = [WORDS, passes].iter().flat_map(|number| number.to_le_bytes()).collect();
    let begun = Instant::now();
    let outcome = form.run(&input)?;
    Ok((begun.elapsed(), number_of(&outcome)?))
}

fn deploy(manager: &ManagerClient) -> Result<(), Error> {
    let manifest = format!("name = \"{PACKAGE}\"\nlibrary = \"parts.so\"\n");
    let file = PackageFile { path: "parts.so".to_owned(), data: FUNCTIONS.to_vec(), executable: true };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

/// A chain of components that execute these functions, and the memory that they share.
fn document(name: &str, functions: &[&str], has_memory: bool) -> Value {
    let mut components: Vec<Value> = functions
        .iter()
        .enumerate()
        .map(|(at, function)| {
            let is_entry = at == 0;
            json!({ "name": function, "type": "compute", "package": PACKAGE, "function": function, "entry": is_entry })
        })
        .collect();
    let mut edges: Vec<Value> = functions
        .windows(2)
        .map(|pair| json!({ "type": "trigger", "from": pair[0], "to": pair[1] }))
        .collect();
    if has_memory {
        // One segment, so that it has one address.
        let bytes = WORDS * 8;
        components.push(json!({ "name": "samples", "type": "memory", "initial_bytes": bytes }));
        edges.extend(
            functions
                .iter()
                .map(|from| json!({ "type": "access", "from": from, "to": "samples", "rights": "write" })),
        );
    }
    json!({ "version": 1, "name": name, "components": components, "edges": edges })
}

#[cfg(test)]
mod tests {
    use sublet_proto::graph::Graph;

    use super::*;

    #[test]
    fn documents_of_all_forms_are_valid() {
        let forms: [(&[&str], bool); 3] =
            [(&["whole"], false), (&["merged"], true), (&["load", "train", "validate"], true)];
        for (functions, has_memory) in forms {
            let graph = Graph::parse(document("form", functions, has_memory).to_string().as_bytes()).unwrap();
            assert_eq!(graph.components.len(), functions.len() + usize::from(has_memory));
        }
    }
}
