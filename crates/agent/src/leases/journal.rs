//! The journal: the usage of the node's leases, in case the agent is killed.
//!
//! `STATE/leases.journal` is rewritten each second, and whenever a lease begins or ends, with every lease whose end the
//! manager has not acknowledged. Workers die with their agent, so the next agent finds there what is still to be
//! billed, at most the last second missing. While the node has no such lease, nothing is written.
//!
//! The file is replaced by renaming, so a killed agent leaves a complete one. It is not synced to the disk: a crash of
//! the whole machine may lose the last seconds' usage. A journal that cannot be read is set aside and never keeps an
//! agent from starting. A failure to write the journal is logged once, and the leases continue.
//!
//! The first line states the format and the digest of the rest: a `Registration` of which only the leases count.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use sublet_proto::package::digest;
use sublet_proto::v1::{Registration, RunningLease};
use sublet_proto::{Code, Error, decode};
use tracing::{info, warn};

use crate::leases::ledger::{NewsCursor, ThreadStep};
use crate::node::Node;

/// Start of a journal, which is followed by the digest.
const FORM: &str = "sublet-leases-1 ";
/// Start of the journals of all versions, which is followed by the number of the form.
const FORMS: &str = "sublet-leases-";
/// Largest journal that is read or written, in bytes.
const MAX_JOURNAL_BYTES: usize = 64 << 20;

/// Period of the journal: a killed agent loses at most this much of its leases' usage.
const PERIOD: Duration = Duration::from_secs(1);

/// Body of the keeper's thread, which writes each second and whenever there is news. The caller writes the journal for
/// the last time, after the answer to the last report.
pub(crate) fn run(node: &Node, mut journal: AgentJournal) -> AgentJournal {
    let mut seen = NewsCursor::with_beginnings();
    while node.leases.ledger.wait_turn(&mut seen, PERIOD) == ThreadStep::Act {
        journal.write(node.leases.ledger.unacknowledged());
    }
    journal
}

/// One agent's journal.
#[derive(Debug)]
pub(crate) struct AgentJournal {
    path: PathBuf,
    /// Whether there may be a file.
    is_there: bool,
    /// Whether the last one could not be written, which was said then.
    is_failing: bool,
}

impl AgentJournal {
    /// Journal of a state folder.
    pub(crate) fn at(state: &Path) -> AgentJournal {
        AgentJournal { path: state.join("leases.journal"), is_there: true, is_failing: false }
    }

    /// Reads the leases that the previous agent has left. Returns none if the journal cannot be read.
    ///
    /// # Errors
    /// `version_mismatch` if an agent of a later version has left it: the journal stays for one that can read it.
    pub(crate) fn read(&self) -> Result<Vec<RunningLease>, Error> {
        match read(&self.path) {
            Ok(leases) => Ok(leases),
            Err(error) if error.code == Code::VersionMismatch => Err(error),
            Err(error) => {
                let aside = self.path.with_extension("journal.damaged");
                warn!(%error, "what the leases before this start have used last is lost; see {}", aside.display());
                // If the rename fails, the damaged file stays, which does no harm.
                let _ = fs::rename(&self.path, aside);
                Ok(Vec::new())
            }
        }
    }

    /// Replaces the journal, or removes it if there are no leases.
    pub(crate) fn write(&mut self, leases: Vec<RunningLease>) {
        if leases.is_empty() && !self.is_there {
            return;
        }
        let is_empty = leases.is_empty();
        let written = if is_empty { remove(&self.path) } else { write(&self.path, leases) };
        match &written {
            Ok(()) if self.is_failing => info!("the journal of the leases is written again"),
            Err(error) if !self.is_failing => {
                warn!(%error, "cannot write the journal of leases: if the agent is killed, their usage is lost");
            }
            _ => {}
        }
        self.is_failing = written.is_err();
        self.is_there = !is_empty || self.is_failing;
    }
}

fn read(path: &Path) -> Result<Vec<RunningLease>, Error> {
    let mut bytes = Vec::new();
    match OpenOptions::new().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened
            .and_then(|file| file.take(MAX_JOURNAL_BYTES as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| failed("reading", path, &error))?,
    };
    refuse_later(path, &bytes)?;
    parse(&bytes).map_err(|why| Error::new(Code::Protocol, format!("the journal {}: {why}", path.display())))
}

/// Refuses a journal of a later form than this version's.
fn refuse_later(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let number = |text: &[u8]| {
        let rest = text.strip_prefix(FORMS.as_bytes())?;
        let digits = &rest[..rest.iter().position(|&byte| byte == b' ')?];
        std::str::from_utf8(digits).ok()?.parse::<u16>().ok()
    };
    match (number(bytes), number(FORM.as_bytes())) {
        (Some(found), Some(own)) if found > own => {
            let message = format!(
                "the journal {} has form {found}, and this version reads form {own}: start the agent that wrote it, or \
                 remove the journal, and what its leases have used last is not billed",
                path.display()
            );
            Err(Error::new(Code::VersionMismatch, message))
        }
        _ => Ok(()),
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<RunningLease>, String> {
    if bytes.len() > MAX_JOURNAL_BYTES {
        return Err(format!("it has more than {MAX_JOURNAL_BYTES} bytes"));
    }
    let end = bytes.iter().position(|&byte| byte == b'\n').ok_or("it has no first line")?;
    let (line, content) = (&bytes[..end], &bytes[end + 1..]);
    let said = line.strip_prefix(FORM.as_bytes()).ok_or("it is of no known form")?;
    if said != digest(content).as_bytes() {
        return Err("its content is not what its digest says".to_owned());
    }
    let content: Registration = decode("its content", content).map_err(|error| error.message)?;
    Ok(content.leases)
}

fn write(path: &Path, leases: Vec<RunningLease>) -> Result<(), Error> {
    let content = Registration { leases, ..Registration::default() }.encode_to_vec();
    let bytes = [format!("{FORM}{}\n", digest(&content)).as_bytes(), &content].concat();
    if bytes.len() > MAX_JOURNAL_BYTES {
        let message = format!("a journal has at most {MAX_JOURNAL_BYTES} bytes, not {}", bytes.len());
        return Err(Error::new(Code::Internal, message));
    }
    let unfinished = path.with_extension("journal.unfinished");
    let replace = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&bytes)?;
        fs::rename(&unfinished, path)
    };
    replace().map_err(|error| failed("writing", path, &error))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, &error)),
        _ => Ok(()),
    }
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::StoreFull,
        _ => Code::System,
    };
    Error::new(code, format!("{operation} {} failed: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::{LeaseReport, Usage};

    fn leases() -> Vec<RunningLease> {
        let usage = Usage {
            allocated_ns: 1,
            executing_ns: 2,
            polling_ns: 3,
            calls: 4,
            failed_calls: 5,
            ..Usage::default()
        };
        let report = LeaseReport { lease: "a".into(), usage: Some(usage), ..LeaseReport::default() };
        vec![RunningLease { ticket: vec![1; 100], report: Some(report), remaining_ms: 7 }]
    }

    #[test]
    fn reads_the_last_journal_and_removes_an_empty_one() {
        let state = tempfile::tempdir().unwrap();
        let mut journal = AgentJournal::at(state.path());
        assert!(journal.read().unwrap().is_empty());
        journal.write([leases(), leases()].concat());
        journal.write(leases());
        assert_eq!(AgentJournal::at(state.path()).read().unwrap(), leases());
        journal.write(Vec::new());
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
        journal.write(Vec::new());
    }

    #[test]
    fn sets_aside_a_journal_with_a_changed_or_missing_byte() {
        let state = tempfile::tempdir().unwrap();
        let mut journal = AgentJournal::at(state.path());
        journal.write(leases());
        let whole = fs::read(&journal.path).unwrap();
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            assert!(parse(&changed).is_err(), "byte {place}");
            assert!(parse(&whole[..place]).is_err(), "cut after {place} bytes");
        }
        fs::write(&journal.path, &whole[1..]).unwrap();
        assert!(journal.read().unwrap().is_empty());
        assert!(!journal.path.exists() && state.path().join("leases.journal.damaged").exists());
        journal.write(leases());
        assert_eq!(journal.read().unwrap(), leases());
    }

    #[test]
    fn refuses_a_journal_of_a_later_form_and_keeps_it() {
        let state = tempfile::tempdir().unwrap();
        let mut journal = AgentJournal::at(state.path());
        journal.write(leases());
        let later = [b"sublet-leases-2 ", &fs::read(&journal.path).unwrap()[FORM.len()..]].concat();
        fs::write(&journal.path, &later).unwrap();
        let error = journal.read().unwrap_err();
        assert_eq!(error.code, Code::VersionMismatch);
        assert!(error.message.contains("form 2") && error.message.contains("form 1"), "{error}");
        assert_eq!(fs::read(&journal.path).unwrap(), later);
    }

    #[test]
    fn survives_a_journal_that_cannot_be_written() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("gone");
        fs::create_dir(&folder).unwrap();
        let mut journal = AgentJournal::at(&folder);
        journal.write(leases());
        fs::remove_dir_all(&folder).unwrap();
        journal.write(leases());
        journal.write(leases());
        assert!(journal.is_failing);
        fs::create_dir(&folder).unwrap();
        journal.write(leases());
        assert!(!journal.is_failing);
        assert_eq!(journal.read().unwrap(), leases());
    }
}
