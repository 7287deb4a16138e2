//! Implements managers and nodes in a test's own process, which use the real messages over real sockets. The test
//! chooses their answers.

#![allow(dead_code, clippy::unwrap_used)]

pub mod manager;
pub mod node;

use std::time::{Duration, Instant};

/// Time after which a test fails because it hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain waited until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
