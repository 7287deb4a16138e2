//! A file or folder that a container is shown.

use std::path::PathBuf;

use crate::FolderAccess;

/// A part of what a container is shown.
pub(in crate::inside) struct ContainerMount {
    /// Path in the container.
    pub(in crate::inside) place: PathBuf,
    /// Path from which the runtime binds it.
    pub(in crate::inside) source: PathBuf,
    pub(in crate::inside) access: FolderAccess,
}
