//! Drops privileges: a sandbox's processes have one user and one group of their own, and no capabilities, ever.

use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::blank::Blank;

/// The kernel numbers capabilities with fewer bits than these.
const MAX_CAPABILITIES: u32 = 64;

pub(super) fn become_user(blank: &Blank) -> io::Result<()> {
    if blank.leaves_groups {
        set_thread_groups(&[])?;
    }
    let (user, group) = (Uid::from_raw(blank.user), Gid::from_raw(blank.user));
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Gives up all rights over the sandbox's own namespaces, and every way to have some again.
pub(super) fn drop_capabilities() -> io::Result<()> {
    set_no_new_privs(true)?;
    let locked = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(locked)?;
    for number in 0..MAX_CAPABILITIES {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // There are no more of them.
            Err(Errno::INVAL) => break,
            removed => removed?,
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
