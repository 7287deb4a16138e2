//! The report of `sublet fabrics`: the ways to carry calls, and the chosen ones.

use serde::Serialize;

use super::measure::FabricMeasurement;

/// One way to carry calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FabricReport {
    /// The fabric's name in `--fabric`.
    pub(crate) fabric: &'static str,
    /// The provider of libfabric.
    pub(crate) provider: Option<String>,
    /// The network interface, or the RDMA device where there is none.
    pub(crate) interface: Option<String>,
    pub(crate) address: Option<String>,
    #[serde(skip)]
    pub(crate) is_loopback: bool,
    /// The rate of the link, if the kernel or the library knows it.
    pub(crate) bits_per_s: Option<u64>,
    pub(crate) mtu_bytes: Option<u64>,
    pub(crate) usable: bool,
    /// Reason why the fabric is not usable.
    pub(crate) reason: Option<String>,
    /// Problem of a fabric that is usable nevertheless.
    pub(crate) warning: Option<String>,
    pub(crate) measured: Option<FabricMeasurement>,
}

/// The fabric that is chosen by default for one kind of clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Chosen {
    pub(crate) clients: FabricClients,
    pub(crate) fabric: &'static str,
    pub(crate) provider: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) why: String,
}

/// The clients of a chosen fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FabricClients {
    ThisMachine,
    OtherMachines,
}
