//! Stores the entries of a run's journal in their order, in a thread of its own, while the run continues.

use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use sublet_proto::v1::JournalEntry;
use sublet_proto::{Code, Error};

/// Largest number of messages with entries that wait to be stored. The run waits when there are more.
const MAX_WAITING: usize = 16;

/// See the [module](self). After an error nothing more is stored, so what is stored is always a beginning of the journal.
pub(super) struct JournalWriter {
    tasks: SyncSender<WriterTask>,
    /// Reason why nothing more is stored.
    failure: Arc<OnceLock<Error>>,
    thread: JoinHandle<()>,
}

enum WriterTask {
    Store(Vec<JournalEntry>),
    /// Answers when the thread has handled all entries before.
    Confirm(Sender<()>),
}

impl JournalWriter {
    /// Starts the thread. It passes entries to `store`, and the first error to `report`.
    ///
    /// # Errors
    /// `system` if no thread can be started.
    pub(super) fn start(
        mut store: impl FnMut(Vec<JournalEntry>) -> Result<(), Error> + Send + 'static,
        report: impl FnOnce(Error) + Send + 'static,
    ) -> Result<JournalWriter, Error> {
        let (tasks, waiting) = sync_channel(MAX_WAITING);
        let failure = Arc::new(OnceLock::new());
        let (known, mut report) = (failure.clone(), Some(report));
        let run = move || {
            for task in waiting {
                match task {
                    WriterTask::Store(entries) if known.get().is_none() => {
                        let Err(error) = store(entries) else { continue };
                        // If the run has ended meanwhile, that is the reason.
                        let _ = known.set(error.clone());
                        if let Some(report) = report.take() {
                            report(error);
                        }
                    }
                    WriterTask::Store(_) => {}
                    // If the receiver is gone, the run is over.
                    WriterTask::Confirm(confirm) => drop(confirm.send(())),
                }
            }
        };
        let thread = std::thread::Builder::new().name("sublet journal".into()).spawn(run);
        let thread = thread.map_err(|error| Error::of_system("starting a journal's thread", &error))?;
        Ok(JournalWriter { tasks, failure, thread })
    }

    /// Has entries stored, after all earlier ones.
    ///
    /// # Errors
    /// The error of an earlier entry: these are then not stored.
    pub(super) fn write(&self, entries: Vec<JournalEntry>) -> Result<(), Error> {
        self.check()?;
        debug_assert!(
            entries.is_sorted_by_key(|entry| entry.number),
            "{} entries of a journal are not in their order",
            entries.len()
        );
        self.tasks.send(WriterTask::Store(entries)).map_err(|_| ended())
    }

    /// Waits until all entries are stored.
    ///
    /// # Errors
    /// The error of the first entry that is not.
    pub(super) fn flush(&self) -> Result<(), Error> {
        let (confirm, confirmed) = channel();
        self.tasks.send(WriterTask::Confirm(confirm)).map_err(|_| ended())?;
        confirmed.recv().map_err(|_| ended())?;
        self.check()
    }

    /// Ends the thread. Entries that are not stored yet, and are not being stored, are dropped.
    pub(super) fn end(self) {
        let JournalWriter { tasks, failure, thread } = self;
        let _ = failure.set(ended());
        drop(tasks);
        // A thread that has panicked has reported that itself.
        let _ = thread.join();
    }

    fn check(&self) -> Result<(), Error> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

#[cold]
fn ended() -> Error {
    Error::new(Code::Internal, "the journal of the run has ended")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Values that a thread has collected.
    type Shared<T> = Arc<Mutex<Vec<T>>>;

    fn entries(number: u64) -> Vec<JournalEntry> {
        vec![JournalEntry { number, ..JournalEntry::default() }]
    }

    /// A writer to a store that is full at the entry `full_at`, with the stored numbers and the reported errors.
    fn writer(full_at: u64) -> (JournalWriter, Shared<u64>, Shared<Error>) {
        let (stored, reported) = (Shared::<u64>::default(), Shared::<Error>::default());
        let (into, errors) = (stored.clone(), reported.clone());
        let store = move |entries: Vec<JournalEntry>| {
            if entries[0].number == full_at {
                return Err(Error::new(Code::StoreFull, "full"));
            }
            into.lock().unwrap().push(entries[0].number);
            Ok(())
        };
        let report = move |error| errors.lock().unwrap().push(error);
        (JournalWriter::start(store, report).unwrap(), stored, reported)
    }

    #[test]
    fn flush_waits_for_all_entries_in_their_order() {
        let (writer, stored, reported) = writer(0);
        (1..=100).for_each(|number| writer.write(entries(number)).unwrap());
        writer.flush().unwrap();
        assert_eq!(*stored.lock().unwrap(), (1..=100).collect::<Vec<_>>());
        writer.end();
        assert!(reported.lock().unwrap().is_empty());
    }

    #[test]
    fn nothing_is_stored_after_an_entry_that_was_not() {
        let (writer, stored, reported) = writer(3);
        // Entries behind the failed one may be refused at once.
        let written: Vec<_> = (1..=8).map(|number| writer.write(entries(number))).collect();
        assert!(written[..3].iter().all(Result::is_ok), "{written:?}");
        assert_eq!(writer.flush().unwrap_err().code, Code::StoreFull);
        assert_eq!(writer.write(entries(9)).unwrap_err().code, Code::StoreFull);
        writer.end();
        assert_eq!(*stored.lock().unwrap(), [1, 2]);
        let reported = reported.lock().unwrap();
        assert_eq!(reported.iter().map(|error| error.code).collect::<Vec<_>>(), [Code::StoreFull]);
    }

    #[test]
    fn end_stores_no_entry_that_waits() {
        let (held, is_held) = sync_channel::<()>(0);
        let stored = Arc::new(Mutex::new(0));
        let count = stored.clone();
        let store = move |_: Vec<JournalEntry>| {
            *count.lock().unwrap() += 1;
            let _ = is_held.recv();
            Ok(())
        };
        let writer = JournalWriter::start(store, |error| panic!("{error}")).unwrap();
        writer.write(entries(1)).unwrap();
        // The first is being stored from here on.
        while *stored.lock().unwrap() == 0 {
            std::thread::yield_now();
        }
        writer.write(entries(2)).unwrap();
        let _ = writer.failure.set(ended());
        drop(held);
        writer.end();
        assert_eq!(*stored.lock().unwrap(), 1);
    }
}
