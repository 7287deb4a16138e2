//! Resource limits of this process (`ulimit`): raised where possible, and checked before a command begins.
//!
//! Below these limits the libraries that a command uses may panic or wait for ever, so it does not begin. A command that
//! needs more, as for a lease with many cores, fails later with the same code, [`Code::LimitTooLow`].

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sublet_proto::{Code, Error};

const MIB: u64 = 1 << 20;
/// The most open files that this process asks for: an agent uses no more.
const MOST_FILES: u64 = 1 << 16;

/// The least limits with which a command works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    files: u64,
    address_bytes: u64,
    file_bytes: u64,
}

/// The needs of a command that asks a manager or calls functions.
pub(crate) const CLIENT: Needs = Needs { files: 32, address_bytes: 64 * MIB, file_bytes: 0 };
/// The needs of a command that serves clients: stores, packages and the memory of leases are files, and threads need address space.
pub(crate) const SERVER: Needs = Needs { files: 256, address_bytes: 512 * MIB, file_bytes: 64 * MIB };

const _: () = assert!(
    CLIENT.files <= SERVER.files && SERVER.files <= MOST_FILES,
    "a command needs more open files than it asks for"
);

/// Raises the limit of open files, has writes beyond the limit of file sizes fail instead of ending this process, and checks
/// the limits.
///
/// # Errors
/// [`Code::LimitTooLow`] with the limit and how to raise it.
pub(crate) fn prepare(needs: &Needs) -> Result<(), Error> {
    raise_files();
    sublet_sandbox::ignore_file_size_signal()
        .map_err(|error| Error::of_system("cannot ignore SIGXFSZ", &error))?;
    let current = |resource| getrlimit(resource).current;
    let limits = [
        (current(Resource::Nofile), needs.files, "open files", "n"),
        (current(Resource::As), needs.address_bytes, "address space, in bytes,", "v"),
        (current(Resource::Fsize), needs.file_bytes, "file sizes, in bytes,", "f"),
    ];
    limits.into_iter().try_for_each(|(limit, least, what, flag)| check(limit, least, what, flag))
}

fn check(limit: Option<u64>, least: u64, what: &str, flag: &str) -> Result<(), Error> {
    let Some(limit) = limit.filter(|&limit| limit < least) else { return Ok(()) };
    let message = format!(
        "the limit of {what} is {limit}, and must be at least {least} (raise it with ulimit -{flag})"
    );
    Err(Error::new(Code::LimitTooLow, message))
}

/// Warns of leases that cannot be served because their memory is a larger file than this process may write.
pub(crate) fn warn_of_file_sizes() {
    if let Some(bytes) = getrlimit(Resource::Fsize).current {
        tracing::warn!(
            "the limit of file sizes is {bytes} bytes (ulimit -f): leases with more memory cannot be served"
        );
    }
}

/// Raises the soft limit of open files as far as the hard limit allows. Where that fails, the limit stays.
fn raise_files() {
    let files = getrlimit(Resource::Nofile);
    let most = files.maximum.unwrap_or(u64::MAX).min(MOST_FILES);
    let wanted = most.max(files.current.unwrap_or(u64::MAX));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..files });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_limit_that_is_too_low() {
        let of = |limit| check(limit, 32, "open files", "n");
        assert!(of(None).is_ok() && of(Some(32)).is_ok());
        let error = of(Some(31)).unwrap_err();
        let message = "the limit of open files is 31, and must be at least 32 (raise it with ulimit -n)";
        assert_eq!((error.code, error.message.as_str()), (Code::LimitTooLow, message));
    }
}
