//! What the node has to lend: the cores this process may run on, and most of the memory it may use.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity};
use sublet_proto::{Code, Error};

/// Where a container's memory limit stands, by version of the control groups.
const MEMORY_LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// The highest-numbered `wanted` of the cores this process may run on; all of them if nothing else is said.
pub(crate) fn cores(wanted: Option<u32>) -> Result<Vec<u32>, Error> {
    let set = sched_getaffinity(None)
        .map_err(|errno| Error::new(Code::System, format!("reading the usable cores failed: {errno}")))?;
    let usable: Vec<u32> =
        (0..CpuSet::MAX_CPU).rev().filter(|&core| set.is_set(core)).map(|c| c as u32).collect();
    choose(usable, wanted)
}

fn choose(mut usable: Vec<u32>, wanted: Option<u32>) -> Result<Vec<u32>, Error> {
    let count = wanted.map_or(usable.len(), |wanted| wanted as usize);
    if count == 0 {
        return Err(Error::new(Code::InvalidArgument, "a node without cores cannot lend anything"));
    }
    if count > usable.len() {
        let message = format!("{count} cores are to be lent, but only {} are usable here", usable.len());
        return Err(Error::new(Code::InsufficientResources, message));
    }
    usable.truncate(count);
    Ok(usable)
}

/// `wanted` bytes, or three quarters of what there is: the rest is for the node's own programs.
pub(crate) fn memory_bytes(wanted: Option<u64>) -> Result<u64, Error> {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let usable = MEMORY_LIMITS.iter().filter_map(read_limit).fold(machine, u64::min);
    match wanted {
        None => Ok(usable / 4 * 3),
        Some(wanted) if wanted <= usable => Ok(wanted),
        Some(wanted) => {
            let message =
                format!("{wanted} bytes of memory are to be lent, but only {usable} are usable here");
            Err(Error::new(Code::InsufficientResources, message))
        }
    }
}

/// A number of bytes; there is none where the file says `max` or is not there.
fn read_limit(path: &&str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_cores_are_lent_and_no_more_than_there_are() {
        assert_eq!(choose(vec![7, 3, 0], Some(2)).unwrap(), [7, 3]);
        assert_eq!(choose(vec![7, 3, 0], None).unwrap(), [7, 3, 0]);
        assert_eq!(choose(vec![7, 3, 0], Some(0)).unwrap_err().code, Code::InvalidArgument);
        let error = choose(vec![7, 3, 0], Some(4)).unwrap_err();
        assert!(error.code == Code::InsufficientResources && error.message.contains('4'), "{error}");
    }

    #[test]
    fn this_machine_has_something_to_lend() {
        assert!(!cores(None).unwrap().is_empty());
        let all = memory_bytes(None).unwrap();
        assert!(all > 0);
        assert_eq!(memory_bytes(Some(1)).unwrap(), 1);
        assert_eq!(memory_bytes(Some(u64::MAX)).unwrap_err().code, Code::InsufficientResources);
    }
}
