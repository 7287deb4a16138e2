//! The servers and the name of a store.

use std::fmt;
use std::path::PathBuf;

/// Servers and name of a store.
#[derive(Clone)]
pub struct NatsOptions {
    /// The servers: `nats://[user:password@]host[:port]`, or `tls://`; several are separated by commas.
    pub url: String,
    /// The store's name on them: 1 to 32 letters, digits, `-` or `_`.
    pub name: String,
    /// Number of servers that keep a copy: 1, or 3 or 5 in a cluster. It does not change for a stream that already
    /// exists.
    pub replicas: usize,
    /// The authorities to trust for `tls://`, in PEM; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
}

/// Omits the address, which may contain a secret.
impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions").field("name", &self.name).finish_non_exhaustive()
    }
}
