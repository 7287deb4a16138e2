//! Moves the pager to the core of the thread that faults. While it works the thread that faulted sleeps: on that
//! thread's core nobody has to be woken from idleness, and what is put in is in the right cache. So it goes
//! there, as long as only one thread faults and that one is pinned to its core, as a worker's threads are. One
//! that is not would be moved to an idle core each time it is woken; then, and with several threads, the pager
//! runs wherever the kernel likes.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// It is looked where the thread runs each time after so many faults.
const FAULTS_PER_LOOK: u32 = 64;
/// The first look comes sooner.
const FIRST_LOOK: u32 = 4;
/// How often another thread may have faulted in between.
const MAX_CHANGES: u32 = 1;

/// See the [module](self).
pub(super) struct Follow {
    core: Option<usize>,
    thread: u32,
    changes: u32,
    until_look: u32,
}

impl Follow {
    pub(super) fn new() -> Follow {
        run_anywhere();
        Follow { core: None, thread: 0, changes: 0, until_look: FIRST_LOOK }
    }

    /// A thread has faulted.
    pub(super) fn saw(&mut self, thread: u32) {
        self.changes += u32::from(thread != self.thread);
        self.thread = thread;
        self.until_look -= 1;
        if self.until_look == 0 {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        self.until_look = FAULTS_PER_LOOK;
        let is_one = std::mem::take(&mut self.changes) <= MAX_CHANGES;
        let core = if is_one { core_of(self.thread) } else { None };
        if core != self.core {
            match core {
                Some(core) => run_on(&[core]),
                None => run_anywhere(),
            }
            self.core = core;
        }
    }
}

/// The one core that a thread of this process is pinned to.
fn core_of(thread: u32) -> Option<usize> {
    let cores = sched_getaffinity(Some(Pid::from_raw(thread as i32)?)).ok()?;
    let is_pinned = cores.count() == 1;
    is_pinned.then(|| (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core)))?
}

/// Lets this thread run on all cores that the process may use: the kernel leaves out the others. Who started it may be pinned,
/// which is not for a thread that works beside it.
pub(super) fn run_anywhere() {
    run_on(&std::array::from_fn::<_, { CpuSet::MAX_CPU }, _>(|core| core));
}

fn run_on(cores: &[usize]) {
    let mut chosen = CpuSet::new();
    cores.iter().for_each(|core| chosen.set(*core));
    // Where it may not be chosen it stays as it is, which is slower and no worse.
    let _ = sched_setaffinity(None, &chosen);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_where_the_one_thread_is_that_faults_and_is_pinned() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let last = (0..CpuSet::MAX_CPU).rev().find(|core| before.is_set(*core)).unwrap();
            let mut one = CpuSet::new();
            one.set(last);
            sched_setaffinity(None, &one).unwrap();
            assert_eq!(core_of(me), Some(last));
            std::thread::spawn(move || {
                let mut follow = Follow::new();
                (0..FIRST_LOOK).for_each(|_| follow.saw(me));
                assert_eq!(sched_getaffinity(None).unwrap(), one);
                (0..FAULTS_PER_LOOK).for_each(|number| follow.saw(number));
                assert_eq!(sched_getaffinity(None).unwrap(), before);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }
}
