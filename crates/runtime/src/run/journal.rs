//! Records a run in the managers' store, where it survives its client and its components.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sublet_proto::graph::Graph;
use sublet_proto::run::MAX_OUTPUT_BYTES;
use sublet_proto::v1::{self, JournalEntry, PinnedPackage};
use sublet_proto::{Code, Error};

use super::planned::{PlannedNode, planned_nodes};
use super::progress::{KeptRecord, Outputs};
use crate::lease::link::protocol;
use crate::manager::ManagerClient;
use crate::random::random_bits;

/// Number of bytes of entries after which a message is sent.
const BATCH_BYTES: usize = 1 << 20;

/// See the [module](self).
pub(super) struct RunJournal {
    manager: Arc<ManagerClient>,
    run: String,
    graph: Arc<Graph>,
    /// The versions of its components' packages, which stay the same for the whole run.
    packages: Vec<PinnedPackage>,
    /// Preferred locations of the components.
    planned: HashMap<usize, PlannedNode>,
    /// Recorded numbers of instances, by component.
    instances: HashMap<usize, u32>,
    /// The number of the latest entry.
    last: u64,
}

impl RunJournal {
    /// Begins a run of a deployed graph.
    pub(super) fn begin(
        manager: &Arc<ManagerClient>,
        (graph, digest): (&Arc<Graph>, &str),
        input: &[u8],
    ) -> Result<RunJournal, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // So that they sort by time.
        let run =
            format!("{:012x}{:020x}", now.as_millis() & 0xffff_ffff_ffff, random_bits()? & ((1 << 80) - 1));
        debug_assert_eq!(run.len(), 32, "digits of the run {run}, which sort by time in one length only");
        let (name, input) = (digest.to_owned(), input.to_vec());
        let request = v1::BeginRunRequest { run: run.clone(), graph: name, input, plan_only: false };
        let begun = manager.begin_run(request)?;
        Ok(RunJournal {
            manager: manager.clone(),
            run,
            graph: graph.clone(),
            packages: begun.packages,
            planned: planned_nodes(graph, begun.plan),
            instances: HashMap::new(),
            last: 0,
        })
    }

    /// Opens a run whose client is gone: its input, and its records.
    pub(super) fn open(
        manager: &Arc<ManagerClient>,
        graph: &Arc<Graph>,
        run: &str,
    ) -> Result<(RunJournal, Vec<u8>, Vec<KeptRecord>), Error> {
        let mut journal = RunJournal {
            manager: manager.clone(),
            run: run.to_owned(),
            graph: graph.clone(),
            packages: Vec::new(),
            planned: HashMap::new(),
            instances: HashMap::new(),
            last: 0,
        };
        let (mut input, mut entries) = (Vec::new(), Vec::new());
        loop {
            let page = manager.read_run(run, journal.last)?;
            let info = page.info.unwrap_or_default();
            if info.ended_unix_ms != 0 {
                return Err(Error::new(Code::UnknownRun, format!("run {run} has ended")));
            }
            journal.packages = info.packages;
            journal.planned = planned_nodes(graph, info.plan);
            if journal.last == 0 {
                input = page.input;
            }
            let Some(last) = page.entries.last() else { break };
            journal.last = last.number;
            entries.extend(page.entries);
        }
        let (decisions, entries) = entries.into_iter().partition(is_decision);
        journal.instances = decided(graph, decisions)?;
        let records = records(graph, entries)?;
        Ok((journal, input, records))
    }

    /// The version of a component's package when the run began. A package that is deployed under the same name during
    /// the run does not become part of it.
    pub(super) fn pinned(&self, package: &str) -> String {
        let found = self.packages.iter().find(|known| known.package == package);
        found.map_or(package, |known| &known.pinned).to_owned()
    }

    /// The preferred location of a component.
    pub(super) fn planned(&self, component: usize) -> PlannedNode {
        self.planned.get(&component).cloned().unwrap_or_default()
    }

    /// The run's id.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Records the outputs that a component hands on.
    ///
    /// # Errors
    /// `output_too_large`, and the managers' errors. The outputs are then not recorded.
    pub(super) fn record(&mut self, from: usize, to: &[usize], outputs: &Outputs) -> Result<(), Error> {
        let name = |component: usize| self.graph.components[component].name.clone();
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        #[expect(clippy::cast_possible_truncation, reason = "a graph counts instances in 32 bits")]
        let instances = outputs.len() as u32;
        for (instance, output) in (0..).zip(outputs.iter()) {
            if output.len() > MAX_OUTPUT_BYTES {
                return Err(too_large(&name(from), output.len()));
            }
            self.last += 1;
            batch_bytes += output.len();
            batch.push(JournalEntry {
                number: self.last,
                from: name(from),
                to: to.iter().map(|&to| name(to)).collect(),
                instance,
                instances,
                output: output.clone(),
                decided_instances: 0,
            });
            if batch_bytes >= BATCH_BYTES || instance + 1 == instances {
                let entries = std::mem::take(&mut batch);
                self.manager.journal(v1::JournalRequest { run: self.run.clone(), entries })?;
                batch_bytes = 0;
            }
        }
        Ok(())
    }

    /// The recorded number of instances of a component.
    pub(super) fn instances(&self, component: usize) -> Option<u32> {
        self.instances.get(&component).copied()
    }

    /// Records the number of instances with which a component begins, in this run, from now on.
    ///
    /// # Errors
    /// The managers' errors. The number is then not recorded.
    pub(super) fn record_instances(&mut self, component: usize, instances: u32) -> Result<(), Error> {
        self.last += 1;
        let from = self.graph.components[component].name.clone();
        let entry =
            JournalEntry { number: self.last, from, decided_instances: instances, ..JournalEntry::default() };
        self.manager.journal(v1::JournalRequest { run: self.run.clone(), entries: vec![entry] })?;
        self.instances.insert(component, instances);
        Ok(())
    }

    /// Ends the run. The managers may then delete its records.
    pub(super) fn end(
        &self,
        error: Option<&Error>,
        components: Vec<v1::ComponentUse>,
        points: Vec<v1::UsagePoint>,
    ) -> Result<(), Error> {
        let (code, message) =
            error.map_or((0, String::new()), |error| (error.code.number(), error.message.clone()));
        let run = self.run.clone();
        self.manager.end_run(v1::EndRunRequest { run, code, message, components, points }).map(drop)
    }
}

/// Whether an entry records a number of instances instead of an output.
fn is_decision(entry: &JournalEntry) -> bool {
    entry.decided_instances > 0
}

/// The recorded numbers of instances, by component.
fn decided(graph: &Graph, entries: Vec<JournalEntry>) -> Result<HashMap<usize, u32>, Error> {
    let mut decided = HashMap::new();
    for JournalEntry { from, decided_instances, .. } in entries {
        decided.insert(index_of(graph, &from)?, decided_instances);
    }
    Ok(decided)
}

/// The component with a name.
fn index_of(graph: &Graph, name: &str) -> Result<usize, Error> {
    let found = graph.components.iter().position(|component| component.name == name);
    found.ok_or_else(|| protocol(format!("the run's journal is of another graph: it has no {name}")))
}

/// The entries' records, in their order. One of which not all instances' entries are there was never made.
fn records(graph: &Graph, entries: Vec<JournalEntry>) -> Result<Vec<KeptRecord>, Error> {
    let index = |name: &String| index_of(graph, name);
    let (mut records, mut outputs) = (Vec::new(), Vec::new());
    for entry in entries {
        if entry.instance == 0 {
            outputs.clear();
        }
        outputs.push(entry.output);
        if entry.instance + 1 == entry.instances && outputs.len() == entry.instances as usize {
            let to = entry.to.iter().map(index).collect::<Result<_, _>>()?;
            let outputs = Arc::new(std::mem::take(&mut outputs));
            records.push(KeptRecord { from: index(&entry.from)?, to, outputs });
        }
    }
    Ok(records)
}

fn too_large(component: &str, len: usize) -> Error {
    let message = format!(
        "component {component} returned {len} bytes, at most {MAX_OUTPUT_BYTES} are handed on: larger data belongs into a memory component"
    );
    Error::new(Code::OutputTooLarge, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(from: &str, (instance, instances): (u32, u32), output: &str) -> JournalEntry {
        let (from, output) = (from.into(), output.as_bytes().to_vec());
        JournalEntry { from, instance, instances, output, ..JournalEntry::default() }
    }

    /// A graph of two components, a and b.
    fn pair() -> Graph {
        let component = |name, entry| {
            format!(r#"{{"name":"{name}","type":"compute","package":"p","function":"f","entry":{entry}}}"#)
        };
        let json = format!(
            r#"{{"version":1,"name":"g","components":[{},{}],"edges":[{{"type":"trigger","from":"a","to":"b"}}]}}"#,
            component("a", true),
            component("b", false)
        );
        Graph::parse(json.as_bytes()).unwrap()
    }

    /// The components and outputs of the records.
    fn said(entries: Vec<JournalEntry>) -> Result<Vec<(usize, String)>, Error> {
        let records = records(&pair(), entries)?;
        let outputs = |record: &KeptRecord| String::from_utf8(record.outputs.join(&b',')).unwrap();
        Ok(records.iter().map(|record| (record.from, outputs(record))).collect())
    }

    #[test]
    fn numbers_of_instances_are_read_apart_from_outputs() {
        let number = |from: &str, decided_instances| JournalEntry {
            decided_instances,
            from: from.into(),
            ..JournalEntry::default()
        };
        let (first, second) = (entry("a", (0, 2), "1"), entry("a", (1, 2), "2"));
        let all = vec![first, second, number("b", 7), entry("b", (0, 1), "x")];
        let (decisions, entries): (Vec<_>, Vec<_>) = all.into_iter().partition(is_decision);
        assert_eq!(decided(&pair(), decisions).unwrap(), HashMap::from([(1, 7)]));
        assert_eq!(said(entries).unwrap(), [(0, "1,2".to_owned()), (1, "x".to_owned())]);
        let error = decided(&pair(), vec![number("c", 1)]).unwrap_err();
        assert!(error.message.contains("has no c"), "{error}");
    }

    #[test]
    fn what_was_not_recorded_of_all_instances_was_not_recorded() {
        let (first, second) = (entry("a", (0, 2), "1"), entry("a", (1, 2), "2"));
        let whole = (0, "1,2".to_owned());
        assert_eq!(said(vec![first.clone(), second.clone()]).unwrap(), std::slice::from_ref(&whole));
        assert_eq!(said(vec![first.clone()]).unwrap(), []);
        assert_eq!(said(vec![second.clone()]).unwrap(), []);
        // Its client was killed between the two; the next attempt recorded both.
        let begun = entry("a", (0, 2), "lost");
        let next = (1, "b".to_owned());
        let all = vec![begun, first, second, entry("b", (0, 1), "b")];
        assert_eq!(said(all).unwrap(), [whole, next]);
        let error = said(vec![entry("c", (0, 1), "")]).unwrap_err();
        assert!(error.message.contains("has no c"), "{error}");
    }
}
