//! Checks what clients and runners say of runs: identifiers, entries of journals, reports and logs.

use sublet_proto::graph::MAX_COMPONENTS;
use sublet_proto::run::{
    MAX_CHANNELS, MAX_ENTRIES, MAX_NODES, MAX_NOTE_BYTES, MAX_NOTES, MAX_OUTPUT_BYTES, MAX_POINTS,
    entries_before,
};
use sublet_proto::v1::{ComponentUse, JournalEntry, RunNote, UsagePoint};
use sublet_proto::{Code, Error};

/// Length of a run's identifier, in hexadecimal digits.
const ID_DIGITS: usize = 32;

pub(super) fn check_id(run: &str) -> Result<(), Error> {
    if run.len() == ID_DIGITS && run.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    let shown: String = run.chars().take(2 * ID_DIGITS).collect();
    Err(Error::new(Code::UnknownRun, format!("{shown:?} is no run: {ID_DIGITS} hexadecimal digits")))
}

pub(super) fn check_uses(components: &[ComponentUse], points: &[UsagePoint]) -> Result<(), Error> {
    let nodes = components.iter().map(|used| used.nodes.len()).max().unwrap_or_default();
    let channels = components.iter().map(|used| used.channels.len()).sum();
    for (what, count, most) in [
        ("components of a run", components.len(), MAX_COMPONENTS),
        ("points of a run", points.len(), MAX_POINTS),
        ("nodes of a component", nodes, MAX_NODES),
        ("pairs of components that moved data", channels, MAX_CHANNELS),
    ] {
        if count > most {
            let message = format!("{count} {what}, at most {most} are kept");
            return Err(Error::new(Code::InvalidArgument, message));
        }
    }
    Ok(())
}

pub(super) fn check_notes(notes: &[RunNote]) -> Result<(), Error> {
    let bytes = notes.iter().map(|note| note.text.len().max(note.component.len())).max().unwrap_or_default();
    for (what, count, most) in [
        ("events of a run's log", notes.len(), MAX_NOTES),
        ("bytes of an event's text", bytes, MAX_NOTE_BYTES),
    ] {
        if count > most {
            let message = format!("{count} {what}, at most {most} are kept");
            return Err(Error::new(Code::InvalidArgument, message));
        }
    }
    Ok(())
}

pub(super) fn check_outputs(outputs: &[String]) -> Result<(), Error> {
    check_names("outputs", outputs)
}

/// Checks the memory components that begin with bytes of the run's client.
pub(super) fn check_filled(filled: &[String], is_detached: bool) -> Result<(), Error> {
    check_names("memory components with bytes of their client", filled)?;
    match filled.first().filter(|_| is_detached) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Code::InvalidArgument,
            format!("memory component {name} of a detached run begins with bytes that only its client has"),
        )),
    }
}

/// Checks the names of components of a run.
fn check_names(what: &str, names: &[String]) -> Result<(), Error> {
    if names.len() <= MAX_COMPONENTS && names.iter().all(|name| name.len() <= MAX_NOTE_BYTES) {
        return Ok(());
    }
    let message = format!("{} {what} of a run, a graph has at most {MAX_COMPONENTS}", names.len());
    Err(Error::new(Code::InvalidArgument, message))
}

/// Checks an entry of the owner of a lease of this epoch.
pub(super) fn check_entry(entry: &JournalEntry, epoch: u64) -> Result<(), Error> {
    let before = entries_before(epoch);
    if !(1..MAX_ENTRIES).contains(&entry.number.wrapping_sub(before)) {
        let (number, last) = (entry.number, before + MAX_ENTRIES - 1);
        let message = format!("entry {number} of a run's journal, there are {} to {last}", before + 1);
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if entry.to.len() > MAX_COMPONENTS {
        let message =
            format!("a message to {} components, a graph has at most {MAX_COMPONENTS}", entry.to.len());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    check_output("the output of an instance", &entry.output)
}

pub(super) fn check_output(what: &str, output: &[u8]) -> Result<(), Error> {
    if output.len() <= MAX_OUTPUT_BYTES {
        return Ok(());
    }
    let message = format!(
        "{what} has {} bytes, at most {MAX_OUTPUT_BYTES} are kept: larger data belongs into a memory component",
        output.len()
    );
    Err(Error::new(Code::OutputTooLarge, message))
}
