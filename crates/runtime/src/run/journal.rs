//! Records a run in the managers' store, where it survives its client and its components.
//!
//! Entries are stored in their order by a thread ([`writer`]), while the run continues. A client that dies leaves a
//! beginning of its journal, and what its components did beyond that is lost with it. So the driver waits until all
//! entries are stored before anything leaves the run: before it returns outputs, and before and after a component with
//! external effects.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sublet_proto::graph::Graph;
use sublet_proto::run::{MAX_OUTPUT_BYTES, entries_before};
use sublet_proto::v1::{self, JournalEntry, PinnedPackage, RunNote};
use sublet_proto::{Code, Error, version};

use super::lease::{self, DriverLease, LEASE_MS};
use super::planned::{PlannedNode, planned_nodes};
use super::progress::{KeptRecord, Outputs};
use crate::lease::link::protocol;
use crate::manager::ManagerClient;
use crate::random::random_bits;
use writer::JournalWriter;

mod writer;

/// Number of bytes of entries after which a message is sent.
const BATCH_BYTES: usize = 1 << 20;

/// See the [module](self).
pub(super) struct RunJournal {
    manager: Arc<ManagerClient>,
    run: String,
    graph: Arc<Graph>,
    lease: Arc<DriverLease>,
    is_detached: bool,
    /// Memory components that began with bytes which only the run's first client has.
    filled: HashSet<usize>,
    /// The versions of its components' packages, which stay the same for the whole run.
    packages: Vec<PinnedPackage>,
    /// Preferred locations of the components.
    planned: HashMap<usize, PlannedNode>,
    /// Recorded numbers of instances, by component.
    instances: HashMap<usize, u32>,
    /// Components with external effects that have begun.
    begun: HashSet<usize>,
    /// The number of the latest entry.
    last: u64,
    /// Stores the entries. Without it, they are stored by the thread that records them.
    writer: Option<JournalWriter>,
}

/// Input, records and log of a run that another process has driven, as the managers have them.
pub(super) struct KeptRun {
    pub(super) input: Vec<u8>,
    pub(super) records: Vec<KeptRecord>,
    pub(super) notes: Vec<RunNote>,
}

/// An identifier for a new run. Identifiers sort by the time of the run.
fn new_id() -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let run = format!("{:012x}{:020x}", now.as_millis() & 0xffff_ffff_ffff, random_bits()? & ((1 << 80) - 1));
    debug_assert_eq!(run.len(), 32, "digits of the run {run}, which sort by time in one length only");
    Ok(run)
}

/// Begins a detached run of a deployed graph, which a runner drives on these terms. Returns its identifier.
///
/// # Errors
/// `version_mismatch` if the manager knows no detached runs, and the managers' errors.
pub(super) fn detach(
    manager: &ManagerClient,
    digest: &str,
    input: &[u8],
    terms: v1::RunTerms,
) -> Result<String, Error> {
    let begun = manager.begin_run(v1::BeginRunRequest {
        run: new_id()?,
        graph: digest.to_owned(),
        input: input.to_vec(),
        detached: Some(terms),
        ..v1::BeginRunRequest::default()
    })?;
    match begun.terms {
        Some(_) => Ok(begun.run),
        None => Err(refuse(manager, begun, "detached runs")?),
    }
}

/// Ends a run that a manager of an earlier version has begun without what was requested. Returns the reason.
///
/// # Errors
/// The managers' errors.
fn refuse(manager: &ManagerClient, begun: v1::RunInfo, what: &str) -> Result<Error, Error> {
    let refused = version::check_messages("the manager", 0, what, version::RUN_LEASES);
    let error = refused.err().unwrap_or_else(|| protocol(format!("the manager does not know {what}")));
    let (code, message, epoch) = (error.code.number(), error.message.clone(), epoch_of(&begun));
    let run = begun.run;
    manager.end_run(v1::EndRunRequest { run, code, message, epoch, ..v1::EndRunRequest::default() })?;
    Ok(error)
}

/// The epoch of a run's lease; 0 if the run has none.
pub(super) fn epoch_of(info: &v1::RunInfo) -> u64 {
    info.lease.as_ref().map_or(0, |lease| lease.epoch)
}

impl RunJournal {
    /// Begins a run of a deployed graph, which this process drives. It alone has the bytes with which the memory
    /// components in `filled` begin.
    ///
    /// # Errors
    /// `version_mismatch` if the manager does not record these components, and the managers' errors.
    pub(super) fn begin(
        manager: &Arc<ManagerClient>,
        (graph, digest): (&Arc<Graph>, &str),
        (input, filled): (&[u8], Vec<String>),
    ) -> Result<RunJournal, Error> {
        let begun = manager.begin_run(v1::BeginRunRequest {
            run: new_id()?,
            graph: digest.to_owned(),
            input: input.to_vec(),
            runner: lease::client_name()?,
            lease_ms: LEASE_MS,
            filled: filled.clone(),
            ..v1::BeginRunRequest::default()
        })?;
        match begun.filled == filled {
            true => Ok(RunJournal::of(manager, graph, begun)),
            false => Err(refuse(manager, begun, "memory components with bytes of their client")?),
        }
    }

    /// The journal of a run whose lease this process has.
    fn of(manager: &Arc<ManagerClient>, graph: &Arc<Graph>, info: v1::RunInfo) -> RunJournal {
        let epoch = epoch_of(&info);
        let filled = info.filled.iter().filter_map(|name| index_of(graph, name).ok()).collect();
        RunJournal {
            manager: manager.clone(),
            lease: Arc::new(DriverLease::new(manager.clone(), info.run.clone(), epoch)),
            run: info.run,
            graph: graph.clone(),
            is_detached: info.terms.is_some(),
            filled,
            packages: info.packages,
            planned: planned_nodes(graph, info.plan),
            instances: HashMap::new(),
            begun: HashSet::new(),
            last: entries_before(epoch),
            writer: None,
        }
    }

    /// Opens a run that another process has driven, and whose lease this one has taken.
    pub(super) fn open(
        manager: &Arc<ManagerClient>,
        graph: &Arc<Graph>,
        taken: v1::RunInfo,
    ) -> Result<(RunJournal, KeptRun), Error> {
        let mut journal = RunJournal::of(manager, graph, taken);
        let (mut input, mut notes, mut entries, mut after) = (Vec::new(), Vec::new(), Vec::new(), 0);
        loop {
            let page = manager.read_run(&journal.run, after)?;
            if page.info.is_some_and(|info| info.ended_unix_ms != 0) {
                return Err(Error::new(Code::UnknownRun, format!("run {} has ended", journal.run)));
            }
            if after == 0 {
                (input, notes) = (page.input, page.notes);
            }
            let Some(last) = page.entries.last() else { break };
            after = last.number;
            entries.extend(page.entries);
        }
        // Entries of managers that know no leases have small numbers, whichever process has written them.
        journal.last = journal.last.max(after);
        for begins in entries.extract_if(.., |entry| entry.begins) {
            journal.begun.insert(index_of(graph, &begins.from)?);
        }
        let (decisions, entries) = entries.into_iter().partition(is_decision);
        journal.instances = decided(graph, decisions)?;
        let records = records(graph, entries)?;
        Ok((journal, KeptRun { input, records, notes }))
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

    /// Whether a memory component began with bytes that only the run's first client has.
    pub(super) fn is_filled(&self, memory: usize) -> bool {
        self.filled.contains(&memory)
    }

    /// The run's id.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Has entries stored while the run continues. `report` is called with the first error.
    pub(super) fn start_writing(&mut self, report: impl FnOnce(Error) + Send + 'static) {
        let (manager, run, epoch) = (self.manager.clone(), self.run.clone(), self.lease.epoch());
        let store = move |entries| manager.journal(v1::JournalRequest { run: run.clone(), entries, epoch });
        self.writer = JournalWriter::start(store, report).ok();
    }

    /// Waits until everything recorded so far is stored.
    ///
    /// # Errors
    /// The managers' error, if something is not stored.
    pub(super) fn flush(&self) -> Result<(), Error> {
        self.writer.as_ref().map_or(Ok(()), JournalWriter::flush)
    }

    /// Stores nothing more: entries that wait are dropped.
    pub(super) fn stop_writing(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.end();
        }
    }

    fn store(&self, entries: Vec<JournalEntry>) -> Result<(), Error> {
        let epoch = self.lease.epoch();
        debug_assert!(
            entries.iter().all(|entry| entry.number > entries_before(epoch)),
            "an entry among those of an earlier lease than {epoch}: {entries:?}"
        );
        if let Some(writer) = &self.writer {
            return writer.write(entries);
        }
        self.manager.journal(v1::JournalRequest { run: self.run.clone(), entries, epoch })
    }

    /// The run's lease, by which this process drives it.
    pub(super) fn lease(&self) -> &Arc<DriverLease> {
        &self.lease
    }

    /// Whether the run is detached: its end may be left to another process.
    pub(super) fn is_detached(&self) -> bool {
        self.is_detached
    }

    /// Records the outputs that a component hands on.
    ///
    /// # Errors
    /// `output_too_large`, and the managers' errors, also those of earlier entries. The outputs are then not recorded.
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
                ..JournalEntry::default()
            });
            if batch_bytes >= BATCH_BYTES || instance + 1 == instances {
                let entries = std::mem::take(&mut batch);
                self.store(entries)?;
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
    /// The managers' errors, also those of earlier entries. The number is then not recorded.
    pub(super) fn record_instances(&mut self, component: usize, instances: u32) -> Result<(), Error> {
        self.last += 1;
        let from = self.graph.components[component].name.clone();
        let entry =
            JournalEntry { number: self.last, from, decided_instances: instances, ..JournalEntry::default() };
        self.store(vec![entry])?;
        self.instances.insert(component, instances);
        Ok(())
    }

    /// Records that a component with external effects begins, in this run.
    ///
    /// # Errors
    /// `worker_died` if it has begun before: what became of it is not known, and it is not executed a second time. The
    /// managers' errors otherwise.
    pub(super) fn record_beginning(&mut self, component: usize) -> Result<(), Error> {
        let from = self.graph.components[component].name.clone();
        if self.begun.contains(&component) {
            let message = format!(
                "component {from} has external effects, and would have to be executed again: the process that drove the \
                 run ended during its execution"
            );
            return Err(Error::new(Code::WorkerDied, message));
        }
        self.last += 1;
        self.store(vec![JournalEntry { number: self.last, from, begins: true, ..JournalEntry::default() }])?;
        self.flush()?;
        self.begun.insert(component);
        Ok(())
    }

    /// Ends the run. The managers may then delete its records.
    pub(super) fn end(&self, end: RunEnd<'_>) -> Result<(), Error> {
        let (code, message) = match end.outcome {
            Ok(_) => (0, String::new()),
            Err(error) => (error.code.number(), error.message.clone()),
        };
        let outputs = end.outcome.as_ref().map_or(&[][..], Vec::as_slice);
        let name = |component: usize| self.graph.components[component].name.clone();
        let request = v1::EndRunRequest {
            run: self.run.clone(),
            code,
            message,
            components: end.components,
            points: end.points,
            epoch: self.lease.epoch(),
            notes: end.notes,
            outputs: outputs.iter().map(|(component, _)| name(*component)).collect(),
        };
        self.manager.end_run(request).map(drop)
    }
}

/// End of a run, for the managers' record of it.
pub(super) struct RunEnd<'end> {
    pub(super) outcome: &'end Result<Vec<(usize, Outputs)>, Error>,
    pub(super) components: Vec<v1::ComponentUse>,
    pub(super) points: Vec<v1::UsagePoint>,
    pub(super) notes: Vec<RunNote>,
}

/// The outputs of components, by their names.
type NamedOutputs = Vec<(String, Vec<Vec<u8>>)>;

/// Returns the outputs of a detached run that has succeeded, from its journal's entries: for each of these components, in
/// their order, what its instances returned last.
///
/// # Errors
/// `protocol` if the journal lacks one of them.
pub(super) fn outputs_of(names: &[String], entries: Vec<JournalEntry>) -> Result<NamedOutputs, Error> {
    let mut latest: HashMap<String, Vec<Vec<u8>>> =
        complete(entries).into_iter().map(|(entry, outputs)| (entry.from, outputs)).collect();
    let output = |name: &String| {
        let output = latest.remove(name);
        output.map(|output| (name.clone(), output)).ok_or_else(|| {
            protocol(format!("the run's journal does not have the output of component {name}"))
        })
    };
    names.iter().map(output).collect()
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

/// The entries' records, in their order.
fn records(graph: &Graph, entries: Vec<JournalEntry>) -> Result<Vec<KeptRecord>, Error> {
    let index = |name: &String| index_of(graph, name);
    let record = |(entry, outputs): (JournalEntry, Vec<Vec<u8>>)| -> Result<KeptRecord, Error> {
        let to = entry.to.iter().map(index).collect::<Result<_, _>>()?;
        Ok(KeptRecord { from: index(&entry.from)?, to, outputs: Arc::new(outputs) })
    };
    complete(entries).into_iter().map(record).collect()
}

/// The last entry of each record, with the outputs of all instances. A record of which not all instances' entries are
/// there was never made. Entries may say anything: their writer was a process of the tenant.
fn complete(entries: Vec<JournalEntry>) -> Vec<(JournalEntry, Vec<Vec<u8>>)> {
    let (mut complete, mut outputs) = (Vec::new(), Vec::new());
    for mut entry in entries {
        if entry.instance == 0 {
            outputs.clear();
        }
        outputs.push(std::mem::take(&mut entry.output));
        let is_last = entry.instances.checked_sub(1) == Some(entry.instance);
        if is_last && outputs.len() == entry.instances as usize {
            complete.push((entry, std::mem::take(&mut outputs)));
        }
    }
    complete
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
    fn outputs_are_the_latest_complete_ones() {
        let entries = vec![
            entry("a", (0, 2), "1"),
            entry("a", (1, 2), "2"),
            entry("b", (0, 1), "b"),
            entry("a", (0, 2), "3"),
            entry("a", (0, 2), "4"),
            entry("a", (1, 2), "5"),
        ];
        let names = ["b".to_owned(), "a".to_owned()];
        let outputs = outputs_of(&names, entries.clone()).unwrap();
        let bytes = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(outputs, [("b".to_owned(), bytes(&["b"])), ("a".to_owned(), bytes(&["4", "5"]))]);
        let missing = outputs_of(&["c".to_owned()], entries).unwrap_err();
        assert!(missing.message.contains("component c"), "{missing}");
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
        let unlikely = [(u32::MAX, 0), (u32::MAX, u32::MAX), (0, 0), (3, 2)].map(|of| entry("a", of, "x"));
        assert_eq!(said(unlikely.to_vec()).unwrap(), []);
    }
}
