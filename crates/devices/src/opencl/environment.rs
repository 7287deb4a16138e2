//! Sets the environment variables of OpenCL drivers.

#![allow(unsafe_code)]

use super::ENVIRONMENT;

/// With how many threads PoCL computes, as its versions call it.
const THREADS: [&str; 2] = ["POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"];

/// Has drivers compute with so many threads, and do nothing at the time of a call that can be done before. To be called by
/// a process that has no other threads yet, before it uses a device.
///
/// # Panics
/// If there are other threads: they could read the environment while it is changed.
pub fn enter_environment(threads: u32) {
    let others = std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count().saturating_sub(1));
    assert_eq!(others, 0, "the environment is changed while other threads may read it");
    let threads = threads.to_string();
    let counts = THREADS.iter().map(|name| (*name, threads.as_str()));
    for (name, value) in ENVIRONMENT.iter().copied().chain(counts) {
        // SAFETY: nobody reads or changes the environment meanwhile, for there is no other thread: looked at above, and
        // required where that cannot be looked at.
        unsafe { std::env::set_var(name, value) };
    }
}
