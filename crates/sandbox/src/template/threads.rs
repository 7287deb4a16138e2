//! The threads of a language runtime. A copy has only the thread that forks; the others are gone in the middle of their
//! work.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Maximum time until the threads wait. They have nothing to do.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// System calls in which a thread waits for work. A waiting thread has released what it needs for the work.
const WAITS: &[libc::c_long] = &[
    libc::SYS_futex,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
];

/// Threads that a runtime may have when it is forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Only the thread that forks.
    One,
    /// Further threads that wait for work, and do nothing that a copy needs.
    Waiting,
}

impl Threads {
    /// Waits until this holds.
    pub(super) fn await_them(self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            let others = others()?;
            let is_fine = match self {
                Threads::One => others.is_empty(),
                Threads::Waiting => {
                    others.iter().all(|call| WAITS.iter().any(|wait| call == &wait.to_string()))
                }
            };
            if is_fine {
                return Ok(());
            }
            if self == Threads::One || begun.elapsed() > PATIENCE {
                let (count, plural) = (others.len(), if others.len() == 1 { "" } else { "s" });
                return Err(io::Error::other(format!("starts {count} thread{plural}")));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The system call in which each other thread of this process is; "running" outside of one.
fn others() -> io::Result<Vec<String>> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let names =
        fs::read_dir("/proc/self/task")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let others = names.filter(|name| *name != own);
    Ok(others
        .filter_map(|name| fs::read_to_string(format!("/proc/self/task/{name}/syscall")).ok())
        .map(|text| text.split_whitespace().next().unwrap_or_default().to_owned())
        .collect())
}
