//! Restricts a program where no namespaces can be made: Landlock, a filter of system calls and limits of resources alone.
//!
//! The first process restricts only its capabilities: it executes nothing of the program, which cannot reach it. The
//! program's process takes all other restrictions itself, since they name it: the filter has its number, and Landlock its
//! folder of `/proc`. It can start no other process, so its end is the end of everything in the sandbox. The kernel kills it
//! when the first process dies.

use std::io;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

use super::plan::WeakWalls;
use super::{CreationPlan, CreationStep, landlock, seccomp};
use crate::system;

/// Prepares the first process.
pub(super) fn prepare_first() -> Result<(), (CreationStep, io::Error)> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| (CreationStep::Identity, errno.into()))?;
    drop_own_capabilities().map_err(|error| (CreationStep::Capabilities, error))
}

/// Applies the restrictions of the program's process, which the first process has forked.
pub(super) fn restrict(plan: &CreationPlan, walls: &WeakWalls) -> Result<(), (CreationStep, io::Error)> {
    let at = |step: CreationStep| move |error: io::Error| (step, error);
    drop_own_capabilities().map_err(at(CreationStep::Capabilities))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| (CreationStep::Identity, errno.into()))?;
    if !is_child_of(plan.first) {
        // The first process has died meanwhile, so nothing would end this one.
        system::leave(0);
    }
    landlock::restrict_weakly(plan.network, &walls.readable)
        .map_err(|error| (CreationStep::Landlock, io::Error::other(error)))?;
    seccomp::filter_weakly(plan.network, plan.devices).map_err(at(CreationStep::Seccomp))
}

/// Gives up the capabilities of a process that has no user namespace of its own, and may lack the right to lock them. A
/// program that is executed by root has none either, since the process gives up new privileges.
pub(super) fn drop_own_capabilities() -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

fn is_child_of(first: Option<Pid>) -> bool {
    first.is_none_or(|first| getppid() == Some(first))
}

/// Sets the limits of the program's process that stand in place of those of a control group.
pub(super) fn limit(walls: &WeakWalls) -> Result<(), Errno> {
    let Some(bytes) = walls.memory_bytes else { return Ok(()) };
    let at_most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    // A copy of a template begins with the memory of that.
    setrlimit(Resource::Data, at_most(bytes.saturating_add(system::own_data_bytes())))?;
    setrlimit(Resource::Fsize, at_most(bytes))
}
