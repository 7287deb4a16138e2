//! A first process before its plan is known.

use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use super::seccomp::Filters;
use crate::Walls;

/// Status of a process that did not become the program. It is never read: the process has reported the reason.
pub(super) const NOT_EXECUTED: i32 = 127;
/// Resources of a first process that is made before its plan is known.
pub(crate) struct Blank {
    /// Connection to the spawner.
    pub(crate) link: OwnedFd,
    /// User that the process sees itself as: the sandbox's user, or root for an OCI runtime.
    pub(crate) user: u32,
    /// Whether the groups of the spawner's user can be left: not without privileges.
    pub(crate) leaves_groups: bool,
    pub(crate) filters: Rc<Filters>,
    /// Descriptors to keep of the process that it was forked from: those that a language runtime holds for itself.
    pub(crate) kept: Vec<RawFd>,
    pub(crate) walls: Walls,
}
