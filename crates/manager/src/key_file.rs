//! Files of the state folder with a secret of 32 bytes, each followed by its SHA-256.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use sublet_proto::{Code, Error};

/// Bytes of a secret.
pub(crate) const KEY_BYTES: usize = 32;

/// A secret of a key file.
pub(crate) type Key = [u8; KEY_BYTES];

/// Content of a key file.
#[derive(PartialEq, Eq)]
pub(crate) enum KeyFile {
    Missing,
    Damaged,
    Good(Key),
}

impl KeyFile {
    /// Reads a key file; `what` names the key in errors.
    pub(crate) fn read(file: &Path, what: &str) -> Result<KeyFile, Error> {
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KeyFile::Missing),
            Err(error) => {
                let message = format!("cannot read {what} in {}: {error}", file.display());
                return Err(Error::new(Code::System, message));
            }
        };
        let Some((key, sum)) = bytes.split_first_chunk::<KEY_BYTES>() else { return Ok(KeyFile::Damaged) };
        Ok(if Sha256::digest(key).as_slice() == sum { KeyFile::Good(*key) } else { KeyFile::Damaged })
    }
}

/// Writes a key file whole or not at all, readable only by this user from the first byte on.
pub(crate) fn write(file: &Path, key: &Key, what: &str) -> Result<(), Error> {
    write_whole(file, key).map_err(|error| {
        Error::new(Code::System, format!("cannot write {what} to {}: {error}", file.display()))
    })
}

fn write_whole(file: &Path, key: &Key) -> io::Result<()> {
    let new = file.with_extension("key-new");
    if new.exists() {
        fs::remove_file(&new)?;
    }
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    open.write_all(key)?;
    open.write_all(&Sha256::digest(key))?;
    open.sync_all()?;
    fs::rename(&new, file)?;
    file.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}
