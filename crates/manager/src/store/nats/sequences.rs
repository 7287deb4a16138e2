//! Records the last position of each stream of a store, in a file of the manager's state folder. A server whose disk
//! has lost messages, or that was started with an older copy of its files, does not report that; its streams then end
//! before a message that it had acknowledged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sublet_proto::{Code, Error};

/// Shortest interval at which the file is written.
const PERIOD: Duration = Duration::from_secs(1);

/// Sequence numbers of the last messages by stream.
pub(super) type Sequences = BTreeMap<String, u64>;

/// The file and its content.
pub(super) struct ReachedSequences {
    file: PathBuf,
    sequences: Sequences,
    written: Option<Instant>,
}

impl ReachedSequences {
    /// Reads a file of notes; empty if the file does not exist.
    pub(super) fn read(file: PathBuf) -> Result<ReachedSequences, Error> {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Error::new(Code::System, format!("cannot read {}: {error}", file.display())));
            }
        };
        let sequence = |line: &str| {
            let (stream, sequence) = line.split_once(' ')?;
            Some((stream.to_owned(), sequence.parse().ok()?))
        };
        // A damaged line is ignored: it says nothing of its stream.
        let sequences = text.lines().filter_map(sequence).collect();
        Ok(ReachedSequences { file, sequences, written: None })
    }

    /// Tells whether a sequence number of a stream is noted.
    pub(super) fn knows(&self, stream: &str) -> bool {
        self.sequences.contains_key(stream)
    }

    /// Whether a stream ends before a message that was acknowledged.
    pub(super) fn is_short(&self, stream: &str, found: &Sequences) -> bool {
        let reached = self.sequences.get(stream).copied().unwrap_or_default();
        found.get(stream).copied().unwrap_or_default() < reached
    }

    /// Forgets the sequence number of a stream.
    pub(super) fn forget(&mut self, stream: &str) {
        self.sequences.remove(stream);
    }

    /// The streams that it knows.
    pub(super) fn streams(&self) -> Vec<String> {
        self.sequences.keys().cloned().collect()
    }

    /// Compares the notes with the streams of the server.
    ///
    /// # Errors
    /// [`Code::StoreDamaged`] if a stream ends before a message that was acknowledged.
    pub(super) fn check(&self, found: &Sequences) -> Result<(), Error> {
        let last = |stream: &str| found.get(stream).copied().unwrap_or_default();
        let short = self.sequences.iter().filter(|(stream, reached)| last(stream) < **reached);
        let short: Vec<_> = short
            .map(|(stream, reached)| format!("{stream} ends with {} of {reached}", last(stream)))
            .collect();
        if short.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the servers of the store have lost messages that they had acknowledged, or an older copy of them: {}. Restore \
             the streams; or remove {} to continue with what is there",
            short.join(", "),
            self.file.display()
        );
        Err(Error::new(Code::StoreDamaged, message))
    }

    /// Notes messages that were acknowledged, and writes the file if the last write is long ago.
    pub(super) fn note(&mut self, acknowledged: Sequences) {
        for (stream, sequence) in acknowledged {
            let known = self.sequences.entry(stream).or_default();
            *known = (*known).max(sequence);
        }
        if self.written.is_none_or(|written| written.elapsed() >= PERIOD) {
            self.write();
        }
    }

    /// Writes the file. Where that fails, an older one says less.
    pub(super) fn write(&mut self) {
        let mut text = String::new();
        for (stream, sequence) in &self.sequences {
            // Text can always be added to a string.
            let _ = writeln!(text, "{stream} {sequence}");
        }
        let new = self.file.with_extension("new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file));
        if let Err(error) = written {
            tracing::debug!(%error, file = %self.file.display(), "how far streams have come is not noted");
        }
        self.written = Some(Instant::now());
    }
}

impl Drop for ReachedSequences {
    fn drop(&mut self) {
        self.write();
    }
}
