//! Waits until a thread sleeps, for tests of what wakes it.

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

/// Pause between two looks at a thread.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Time after which a thread that polls is not waited for any longer.
const LONGEST: Duration = Duration::from_secs(10);

/// Starts a thread, and returns when it sleeps, or has ended. It then waits for what the test does next.
///
/// A test may not fail because a thread is woken before it sleeps: a thread that only polls is waited for ten seconds.
pub fn spawn_until_asleep<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    act: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (tell, told) = channel();
    let thread = scope.spawn(move || {
        // The receiver is gone if the test has failed.
        let _ = tell.send(fs::read_link("/proc/thread-self"));
        act()
    });
    let Ok(Ok(own)) = told.recv() else { return thread };
    let (folder, begun, mut seen) = (Path::new("/proc").join(own), Instant::now(), 0);
    // On its way to where it waits, a thread may sleep for a moment.
    while seen < 2 && !thread.is_finished() && begun.elapsed() < LONGEST {
        sleep(LOOK_AGAIN);
        seen = if is_asleep(&folder) { seen + 1 } else { 0 };
    }
    thread
}

/// Whether the thread of a folder in `/proc` sleeps.
fn is_asleep(folder: &Path) -> bool {
    let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    // The name before may hold any character.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn waits_for_a_sleeping_thread_and_no_ended_one() {
        let lock = Mutex::new(0);
        std::thread::scope(|scope| {
            let held = lock.lock().unwrap();
            let waits = spawn_until_asleep(scope, || *lock.lock().unwrap());
            assert!(!waits.is_finished());
            drop(held);
            assert_eq!(waits.join().unwrap(), 0);
            assert_eq!(spawn_until_asleep(scope, || 7).join().unwrap(), 7);
        });
    }
}
