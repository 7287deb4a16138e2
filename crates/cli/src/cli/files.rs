//! Reads and writes files named on the command line, where `-` is standard input or output.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sublet_proto::{Code, Error};

use super::output::check_standard_output;

/// Returns whether the path means standard input or output.
pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads up to `limit` bytes.
pub(crate) fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if is_dash(path) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Warns of a file with a secret that other users can read or change.
pub(crate) fn warn_of_open_secret(path: &Path) {
    const OTHERS_READ: u32 = 0o004;
    const OTHERS_WRITE: u32 = 0o022;
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    let who = match (mode & OTHERS_WRITE != 0, mode & OTHERS_READ != 0) {
        (true, _) => "changed",
        (false, true) => "read",
        (false, false) => return,
    };
    tracing::warn!(
        "the token file {} can be {who} by other users (mode {mode:04o}): make it private with chmod 600",
        path.display()
    );
}

/// Writes a command's output to a file, or to standard output.
pub(crate) fn write_output(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut left = Some(bytes.to_vec());
    write_parts(path, || Ok(left.take().unwrap_or_default()))
}

/// Writes a command's output to a file, or to standard output, part by part until one is empty.
pub(crate) fn write_parts(
    path: &Path,
    mut next: impl FnMut() -> Result<Vec<u8>, Error>,
) -> Result<(), Error> {
    let what = format!("writing the output {}", path.display());
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::StorageFull => Error::new(Code::StoreFull, format!("{what}: {error}")),
        _ => Error::of_system(&what, &error),
    };
    let mut to: Box<dyn Write> = if is_dash(path) {
        check_standard_output()?;
        Box::new(std::io::stdout().lock())
    } else {
        Box::new(std::fs::File::create(path).map_err(failed)?)
    };
    loop {
        let part = next()?;
        if part.is_empty() {
            return to.flush().map_err(failed);
        }
        to.write_all(&part).map_err(failed)?;
    }
}
