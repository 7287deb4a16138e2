//! Files that are named on the command line, where `-` is standard input or output.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sublet_proto::{Code, Error};

/// Whether that is standard input, or output.
pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What is there to be read, up to so many bytes.
pub(crate) fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if is_dash(path) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Writes a function's output.
pub(crate) fn write_output(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |error: std::io::Error| {
        let code =
            if error.kind() == std::io::ErrorKind::StorageFull { Code::StoreFull } else { Code::System };
        Error::new(code, format!("writing the output {}: {error}", path.display()))
    };
    if is_dash(path) {
        let mut stdout = std::io::stdout().lock();
        return stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(failed);
    }
    std::fs::write(path, bytes).map_err(failed)
}
