//! Names the transports of connections.

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provider {
    /// Shared memory, within a node.
    Shm,
    /// TCP, between any two nodes.
    Tcp,
    /// Any network that libfabric supports: InfiniBand, RoCE, EFA, Slingshot.
    Ofi,
    /// TCP's stream engine over a simulated stream. Only tests use it; no peer can select it.
    #[doc(hidden)]
    Sim,
}

impl Provider {
    /// Every provider that can be chosen.
    pub const ALL: &'static [Provider] = &[Provider::Shm, Provider::Tcp, Provider::Ofi];

    /// Name of the provider, as `--fabric` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Tcp => "tcp",
            Provider::Ofi => "ofi",
            Provider::Sim => "sim",
        }
    }
}
