//! Sets the environment variables of OpenCL drivers.

#![allow(unsafe_code)]

/// Environment variables of every process that uses a device.
pub const ENVIRONMENT: &[(&str, &str)] = &[("POCL_WORK_GROUP_SPECIALIZATION", "0")];

/// Variables for the number of PoCL's threads, by the names of its versions.
const THREADS: [&str; 2] = ["POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"];

/// Makes drivers compute with `threads` threads, and do all possible work before the time of a call. The process must
/// have no other threads yet, and must not have used a device.
///
/// # Panics
/// If there are other threads: they could read the environment while it is changed.
pub fn enter_environment(threads: u32) {
    let others = std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count().saturating_sub(1));
    assert_eq!(others, 0, "the environment is changed while other threads may read it");
    let threads = threads.to_string();
    let counts = THREADS.iter().map(|name| (*name, threads.as_str()));
    for (name, value) in ENVIRONMENT.iter().copied().chain(counts) {
        // SAFETY: no other thread reads or changes the environment meanwhile, since there is none: checked above, and
        // required where it cannot be checked.
        unsafe { std::env::set_var(name, value) };
    }
}
