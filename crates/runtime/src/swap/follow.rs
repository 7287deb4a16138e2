//! Moves the pager to the core of the thread that faults. While the pager works that thread sleeps: its core is then
//! awake, and the pages that are put in are in its cache. The pager moves there as long as only one thread faults and
//! that thread is pinned to its core, as a worker's threads are. A thread that is not pinned would be moved to an idle
//! core each time it is woken. In that case, and with several threads, the pager runs wherever the kernel schedules it.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Number of faults after which the faulting thread's core is checked again.
const FAULTS_PER_LOOK: u32 = 64;
/// Number of faults until the first check.
const FIRST_LOOK: u32 = 4;
/// Largest number of changes of the faulting thread between two checks at which the pager still follows it.
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

    /// Records a fault of a thread.
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
    let cores = sched_getaffinity(Some(Pid::from_raw(i32::try_from(thread).ok()?)?)).ok()?;
    let is_pinned = cores.count() == 1;
    is_pinned.then(|| (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core)))?
}

/// Lets this thread run on all cores that the process may use: the kernel ignores the others. A thread inherits the
/// affinity of its starter, which may be pinned to a core that this thread must not share.
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
    fn follows_a_single_pinned_faulting_thread() {
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
