//! Warns of a client that has left itself no core.
//!
//! Workers that always poll never yield their cores. If they occupy all cores of the machine, the client's threads run
//! only when the kernel's scheduler preempts a worker, and each call takes milliseconds in place of less than a
//! microsecond.

use std::sync::atomic::{AtomicBool, Ordering};

/// File in which the kernel lists the online cores, such as `0-3,6`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Whether this process has been warned.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Warns once, on standard error, if this number of polling workers leaves no core of the machine for anything else.
pub(super) fn warn_of(polling_workers: u32) {
    let Some(cores) = std::fs::read_to_string(ONLINE).ok().and_then(|list| count(&list)) else { return };
    if let Some(warning) = warning(polling_workers, cores)
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        eprintln!("{warning}");
    }
}

fn warning(polling_workers: u32, cores: u32) -> Option<String> {
    let all = if cores == 1 { "the only core".to_owned() } else { format!("all {cores} cores") };
    (polling_workers >= cores).then(|| {
        format!(
            "sublet: {polling_workers} always hot workers poll on {all} of this machine, which leaves none for the client: calls \
             will be slow; lease fewer cores, or choose another policy than always hot"
        )
    })
}

/// Number of cores in such a list.
fn count(list: &str) -> Option<u32> {
    let range = |range: &str| match range.split_once('-') {
        Some((first, last)) => last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1),
        None => range.parse::<u32>().ok().map(|_| 1),
    };
    list.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_cores_that_are_online() {
        let lists = [
            ("0-3,6\n", Some(5)),
            ("0\n", Some(1)),
            ("0-1", Some(2)),
            ("", None),
            ("3-1", None),
            ("a-b", None),
        ];
        for (list, cores) in lists {
            assert_eq!(count(list), cores, "{list:?}");
        }
    }

    #[test]
    fn warns_if_no_core_is_left() {
        assert_eq!(warning(1, 2), None);
        assert_eq!(warning(0, 1), None);
        assert!(warning(2, 2).unwrap().contains("all 2 cores"));
        assert!(warning(1, 1).unwrap().contains("the only core"));
    }
}
