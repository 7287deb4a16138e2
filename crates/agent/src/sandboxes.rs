//! The process that makes this node's sandboxes, and the next one, should it have died.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sublet_proto::Error;
use sublet_sandbox::Sandboxes;
use tracing::warn;

use crate::{lock, system};

/// See the [module](self).
pub(crate) struct Maker {
    program: PathBuf,
    /// Always empty, but for that process.
    root: PathBuf,
    current: Mutex<Arc<Sandboxes>>,
}

impl Maker {
    /// Starts it; the folder is made.
    pub(crate) fn start(program: PathBuf, root: PathBuf) -> Result<Maker, Error> {
        match fs::create_dir(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(system("making the folder", &root, &error));
            }
            _ => {}
        }
        let current = Mutex::new(Arc::new(open(&program, &root)?));
        Ok(Maker { program, root, current })
    }

    /// Where sandboxes are to be made now. Those of one that has died are dead.
    pub(crate) fn current(&self) -> Result<Arc<Sandboxes>, Error> {
        let mut current = lock(&self.current);
        if current.is_gone() {
            warn!("the process that makes sandboxes has died, and every sandbox with it; it is started anew");
            *current = Arc::new(open(&self.program, &self.root)?);
        }
        Ok(current.clone())
    }
}

fn open(program: &Path, root: &Path) -> Result<Sandboxes, Error> {
    Ok(Sandboxes::open(program, root)?)
}
