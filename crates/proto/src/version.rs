//! Versions by which processes of different builds recognize what they may exchange.
//!
//! Two numbers are enough. [`CALLS`] is for what both ends must read alike: ends of different versions refuse each
//! other. [`MESSAGES`] is for additions to messages. A receiver ignores a field that it does not know. So a sender
//! checks that the receiver knows each field whose loss would change the result.
//!
//! Builds before these numbers send neither of them, which reads as 0.

use crate::{Code, Error};

/// Version of calls: the layout of lines, rings and frames, and the messages between client, agent and worker. It
/// changes with every change of these that the other end does not understand.
pub const CALLS: u32 = 1;

/// Revision of messages that this build knows. It grows with each added field that a receiver must not ignore.
pub const MESSAGES: u32 = DEVICES;

/// Revision that added environment variables, secrets, lent folders and temporary space of functions.
pub const NEEDS: u32 = 1;

/// Revision that added workers with several cores.
pub const WORKER_CORES: u32 = 2;

/// Revision that added limits over all runs of an application.
pub const APPLICATION_LIMITS: u32 = 3;

/// Revision that added leases of runs, and detached runs.
pub const RUN_LEASES: u32 = 4;

/// Revision that added memory components of kernels, which earlier workers ignore.
pub const KERNEL_MEMORY: u32 = 5;

/// Revision that added devices of leases.
pub const DEVICES: u32 = 6;

/// Checks that a peer has the same version of calls. 0 stands for 1: the first version did not send its number.
///
/// # Errors
/// `version_mismatch`, which names both versions.
pub fn check_calls(peer: &str, version: u32) -> Result<(), Error> {
    let version = version.max(1);
    if version == CALLS {
        return Ok(());
    }
    let message =
        format!("{peer} speaks version {version} of Sublet's network protocol, and this end version {CALLS}");
    Err(Error::new(Code::VersionMismatch, message))
}

/// Checks that a peer knows the messages for `what`, which were added in the revision `needed`.
///
/// # Errors
/// `version_mismatch`, which names both revisions.
pub fn check_messages(peer: &str, revision: u32, what: &str, needed: u32) -> Result<(), Error> {
    debug_assert!(needed <= MESSAGES, "{what} need revision {needed}, and this build knows {MESSAGES}");
    if revision >= needed {
        return Ok(());
    }
    Err(too_old(peer, revision, what, needed))
}

/// The error of a peer that would ignore what is requested.
fn too_old(peer: &str, revision: u32, what: &str, needed: u32) -> Error {
    let message = format!(
        "{peer} knows revision {revision} of Sublet's messages, and {what} need revision {needed}: upgrade it"
    );
    Error::new(Code::VersionMismatch, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_another_version_of_calls_and_names_both() {
        assert!(check_calls("the agent", 0).is_ok() && check_calls("the agent", CALLS).is_ok());
        let error = check_calls("the agent", CALLS + 1).unwrap_err();
        assert_eq!(error.code, Code::VersionMismatch);
        assert!(error.message.contains("version 2") && error.message.contains("version 1"), "{error}");
    }

    #[test]
    fn refuses_a_receiver_of_an_earlier_revision_and_names_both() {
        assert!(check_messages("the agent", NEEDS, "secrets", NEEDS).is_ok());
        assert!(check_messages("the agent", NEEDS + 1, "secrets", NEEDS).is_ok());
        let error = check_messages("the agent", 0, "secrets", NEEDS).unwrap_err();
        assert_eq!(error.code, Code::VersionMismatch);
        assert!(error.message.contains("revision 0") && error.message.contains("revision 1"), "{error}");
    }
}
