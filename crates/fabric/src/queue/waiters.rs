//! Chooses the thread that reads a connection when several threads wait for it.
//!
//! Messages for all waiters come through one stream. One waiter is the *reader*: it sleeps in the kernel on the stream,
//! and processes the messages for all waiters. The others sleep on the watches of their lines. A reader that leaves
//! pokes one sleeper, which becomes the next reader; a sleeper that leaves for a reason of its own while there is no
//! reader passes the poke on. Thus, as long as any thread waits, there is a reader, or a poked sleeper is about to
//! become it. loom checks this.

use std::ptr::NonNull;

use crate::line::Watch;
use crate::line_wait::LineWait;
use crate::sync::{AtomicU32, Mutex, Ordering, fence, lock};

/// Sleepers that are noted without an allocation.
const USUAL_SLEEPERS: usize = 64;

/// The waiters of one connection.
pub(crate) struct Waiters {
    sleepers: Mutex<Vec<WatchAddress>>,
    /// 1 while there is a reader. The thread that becomes the reader sets it, by compare-and-swap, and clears it. Both
    /// are SeqCst: a reader announces itself before it looks for events, and other threads check for a reader after an
    /// event.
    reading: AtomicU32,
}

/// The watch of a sleeper, which stays where it is as long as its [`Sleeper`] lives.
#[derive(PartialEq, Eq)]
struct WatchAddress(NonNull<Watch>);

// SAFETY: a watch is an atomic word; the place is used under the lock, and its owner takes it out before it goes.
unsafe impl Send for WatchAddress {}

/// The right to read, and the duty to pass it on.
struct ReadRight<'waiters>(&'waiters Waiters);

/// A note of where a waiter sleeps.
pub(crate) struct Sleeper<'waiters, 'watch> {
    waiters: &'waiters Waiters,
    watch: &'watch Watch,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters { sleepers: Mutex::new(Vec::with_capacity(USUAL_SLEEPERS)), reading: AtomicU32::new(0) }
    }

    /// Sleeps on the line's own watch while another thread reads the connection.
    fn sleep_beside_reader<G: FnMut() -> bool>(
        &self,
        awaited: &mut LineWait<'_, G>,
        is_up: impl Fn() -> bool,
    ) {
        let LineWait { line, watch, turn, deadline, give_up } = awaited;
        let _sleeper = self.sleep(watch);
        line.wait(watch, *turn, *deadline, || !self.has_reader() || !is_up() || give_up());
    }

    /// Waits, alone or with other threads, as long as the connection is up. The waiter that is the reader calls `read`
    /// for all of them until its own wait is over. Returns whether the awaited turn has been published.
    pub(crate) fn wait<G: FnMut() -> bool>(
        &self,
        mut awaited: LineWait<'_, G>,
        is_up: impl Fn() -> bool,
        mut read: impl FnMut(&mut LineWait<'_, G>),
    ) -> bool {
        while awaited.left(&is_up).is_some() {
            match self.read() {
                Some(_reader) => read(&mut awaited),
                None => self.sleep_beside_reader(&mut awaited, &is_up),
            }
        }
        awaited.is_here()
    }

    /// Becomes the reader, if there is none.
    fn read(&self) -> Option<ReadRight<'_>> {
        let free = self.reading.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        free.ok().map(|_| ReadRight(self))
    }

    /// Notes that the caller is about to sleep on this watch. It must sleep only while there [is a
    /// reader](Waiters::has_reader), and look at that between its note and its sleep.
    pub(crate) fn sleep<'watch>(&self, watch: &'watch Watch) -> Sleeper<'_, 'watch> {
        lock(&self.sleepers).push(WatchAddress(NonNull::from(watch)));
        Sleeper { waiters: self, watch }
    }

    /// Whether a thread reads the connection.
    pub(crate) fn has_reader(&self) -> bool {
        self.reading.load(Ordering::SeqCst) == 1
    }

    /// Makes every sleeper check again whether its wait is over.
    pub(crate) fn poke_all(&self) {
        for place in lock(&self.sleepers).iter() {
            // SAFETY: the sleeper takes its place out under the lock before its watch can go.
            unsafe { place.0.as_ref() }.poke();
        }
    }

    fn poke_one(&self) {
        if let Some(place) = lock(&self.sleepers).first() {
            // SAFETY: as above.
            unsafe { place.0.as_ref() }.poke();
        }
    }
}

impl Drop for ReadRight<'_> {
    fn drop(&mut self) {
        self.0.reading.store(0, Ordering::SeqCst);
        self.0.poke_one();
    }
}

impl Drop for Sleeper<'_, '_> {
    fn drop(&mut self) {
        let place = WatchAddress(NonNull::from(self.watch));
        let mut sleepers = lock(&self.waiters.sleepers);
        if let Some(index) = sleepers.iter().position(|other| *other == place) {
            sleepers.swap_remove(index);
        }
        drop(sleepers);
        if !self.waiters.has_reader() {
            self.waiters.poke_one();
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use crate::line::{Line, Turn};
    use loom::sync::Arc;
    use loom::thread;

    /// The lines of two waiting threads, and the count of messages that have arrived, in place of the reader's stream.
    struct Model {
        lines: [(Line, Watch); 2],
        arrived: AtomicU32,
        waiters: Waiters,
    }

    impl Model {
        fn wait(&self, own: usize) {
            let (line, watch) = &self.lines[own];
            let turn = Turn::of_use(0);
            let awaited = LineWait { line, watch, turn, deadline: None, give_up: || false };
            let read = |awaited: &mut LineWait<'_, _>| {
                // Takes one message, whosever it is, unless its own has come meanwhile.
                if !awaited.is_here() {
                    let number = self.arrived.fetch_add(1, Ordering::AcqRel) as usize;
                    let (line, watch) = &self.lines[number];
                    line.publish(watch, turn, 0, &[0; 1]);
                }
            };
            assert!(self.waiters.wait(awaited, || true, read));
        }
    }

    #[test]
    fn somebody_reads_as_long_as_anybody_waits() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let model = Arc::new(Model {
                lines: std::array::from_fn(|_| (Line::default(), Watch::default())),
                arrived: AtomicU32::new(0),
                waiters: Waiters::new(),
            });
            let other = {
                let model = model.clone();
                thread::spawn(move || model.wait(0))
            };
            model.wait(1);
            other.join().unwrap();
            assert_eq!(model.arrived.load(Ordering::Acquire), 2);
        });
    }
}
