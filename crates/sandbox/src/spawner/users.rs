//! Users of sandboxes. Where the spawner has the right, each sandbox runs as a user of its own, which no other process
//! on the machine has. Otherwise it runs as the spawner's own user.
//!
//! Inside, each sandbox sees itself as the same user, and sees no other user.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;

use rustix::process::{DumpableBehavior, Pid, getgid, getuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities};

use crate::{MAX_SANDBOXES, USER, system};

/// The first of the users that sandboxes are, on the machine: above those that systems give to people, services,
/// containers and virtual machines, below those that are no valid number somewhere.
const FIRST: u32 = 1_900_000_000;
/// Number of first processes that are kept ready.
pub(super) const READY: usize = 8;
/// Number of users of a spawner: the prepared first processes have users already.
#[expect(clippy::cast_possible_truncation, reason = "both are constants, which are asserted to be few below")]
const USERS: u32 = (MAX_SANDBOXES + READY) as u32;
/// Number of spawners with separate users, by their process numbers.
const SPAWNERS: u32 = 1 << 14;

const _: () = assert!((u32::MAX - FIRST) / SPAWNERS >= USERS, "a spawner's users are no valid numbers");

pub(super) struct UserRange {
    /// The first of this spawner's, if it may be others than itself.
    first: Option<u32>,
    taken: Rc<RefCell<BTreeSet<u32>>>,
    /// The spawner's user and group.
    own: (u32, u32),
    leave_groups: bool,
}

/// A user that a sandbox is on the machine. No other is, until this is dropped.
pub(super) struct User {
    number: u32,
    taken: Rc<RefCell<BTreeSet<u32>>>,
}

impl User {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let was_taken = self.taken.borrow_mut().remove(&self.number);
        debug_assert!(was_taken, "user {} is given back, and was not taken", self.number);
    }
}

impl UserRange {
    /// Enters a namespace in which this process has all rights, unless it has them already.
    pub(super) fn enter() -> io::Result<UserRange> {
        // The spawner maps the users of a sandbox by the number of its process in `/proc`.
        let own_number = std::process::id().to_string();
        if fs::read_link("/proc/self").ok().is_none_or(|link| link != Path::new(&own_number)) {
            let message = "the /proc that is mounted here is not of this process's namespace";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let own = (getuid().as_raw(), getgid().as_raw());
        let is_privileged = is_privileged();
        if !is_privileged {
            enter_own_namespace(own)?;
        }
        let first = FIRST + (std::process::id() % SPAWNERS) * USERS;
        let maps = fs::read_to_string("/proc/self/uid_map")? + &fs::read_to_string("/proc/self/gid_map")?;
        let may_map = is_privileged && maps.lines().all(|line| is_mapped(line, first));
        let leave_groups = fs::read_to_string("/proc/self/setgroups")?.trim() == "allow";
        Ok(UserRange { first: may_map.then_some(first), taken: Rc::default(), own, leave_groups })
    }

    /// Users of sandboxes that all run as the spawner's own user, in its namespace.
    pub(super) fn own() -> UserRange {
        let own = (getuid().as_raw(), getgid().as_raw());
        UserRange { first: None, taken: Rc::default(), own, leave_groups: false }
    }

    /// Whether sandboxes can leave the groups of the spawner's user: not if it had to enter a namespace by itself.
    pub(super) fn leave_groups(&self) -> bool {
        self.leave_groups
    }

    /// Whether each sandbox is a user of its own.
    pub(super) fn are_own(&self) -> bool {
        self.first.is_some()
    }

    /// Takes a user that no living sandbox of this spawner has; none if sandboxes can only run as the spawner's user.
    pub(super) fn take(&self) -> io::Result<Vec<User>> {
        self.first.map(|first| self.take_from(first)).into_iter().collect()
    }

    /// Takes a second user as well, which is root of the sandbox's namespace.
    pub(super) fn take_with_root(&self) -> io::Result<Vec<User>> {
        let first = self.first.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                "handing a container to an OCI runtime needs root",
            )
        })?;
        Ok(vec![self.take_from(first)?, self.take_from(first)?])
    }

    fn take_from(&self, first: u32) -> io::Result<User> {
        let mut taken = self.taken.borrow_mut();
        let free = (first..first + USERS).find(|number| !taken.contains(number));
        let number = free.ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        let is_new = taken.insert(number);
        debug_assert!(is_new && taken.len() <= USERS as usize, "user {number} is taken twice: {taken:?}");
        Ok(User { number, taken: self.taken.clone() })
    }

    /// Maps the users of a new process that is in a user namespace of its own: the sandbox's user, and perhaps root.
    pub(super) fn map(&self, process: Pid, users: &[User]) -> io::Result<()> {
        let folder = format!("/proc/{}", process.as_raw_nonzero());
        debug_assert!(users.len() <= 2, "a sandbox has {} users", users.len());
        debug_assert!(users.is_empty() == self.first.is_none(), "{} users of {:?}", users.len(), self.first);
        let line = |(inside, user): (u32, &User)| format!("{inside} {} 1\n", user.number);
        let map: String = [USER, 0].into_iter().zip(users).map(line).collect();
        for (file, own) in [("uid_map", self.own.0), ("gid_map", self.own.1)] {
            let map = if users.is_empty() { format!("{USER} {own} 1") } else { map.clone() };
            fs::write(format!("{folder}/{file}"), map)?;
        }
        Ok(())
    }
}

/// Whether this process may mount, make namespaces and map users.
pub(super) fn is_privileged() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Whether a line of a map, "first there, first here, how many", says that all of these numbers mean something.
fn is_mapped(line: &str, first: u32) -> bool {
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let &[begin, _, count] = numbers.as_slice() else { return false };
    let first = u64::from(first);
    begin <= first && first.saturating_add(USERS.into()) <= begin.saturating_add(count)
}

fn enter_own_namespace((uid, gid): (u32, u32)) -> io::Result<()> {
    system::unshare(libc::CLONE_NEWUSER)?;
    // Entering has made root the owner of `/proc/self`, and this process is not root.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}
