//! Waits for what agents do again and again: reports to their manager, and journals of their leases.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::cluster::{AgentProcess, ManagerProcess};
use crate::process::wait_until;

/// Waits until a manager has received further reports of a node. The last of two was made after this call.
#[track_caller]
pub fn wait_for_reports(manager: &ManagerProcess, node: &str, reports: u32) {
    let last = || manager.node(node).map(|node| node.last_report_unix_ms);
    for _ in 0..reports {
        let before = last();
        wait_until("the node reports to its manager", || last() != before);
    }
}

/// Waits until an agent's journal has the usage of its leases until this call: killing the agent does not lose it.
#[track_caller]
pub fn wait_for_journal(agent: &AgentProcess) {
    let journal = agent.state().join("leases.journal");
    let written = || fs::metadata(&journal).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()));
    // The agent may have collected the usage for the first journal before this call.
    for _ in 0..2 {
        let before = written();
        wait_until("the agent writes its journal", || {
            let now = written();
            // Without a lease there is nothing to write.
            now != before || (now.is_none() && agent.workers().is_empty())
        });
    }
}
