//! The manager's messages as the command shows them: the fields of its JSON, which are a promise.

use serde::Serialize;
use sublet_proto::v1::{BillLine, Lease, LeaseState, NodeInfo, PackageInfo, Usage};

/// A node.
#[derive(Debug, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) agent: String,
    pub(crate) architecture: String,
    pub(crate) cores: u32,
    pub(crate) cores_leased: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_leased_bytes: u64,
    pub(crate) last_report_unix_ms: u64,
}

impl From<NodeInfo> for NodeView {
    fn from(node: NodeInfo) -> NodeView {
        let description = node.description.unwrap_or_default();
        NodeView {
            name: description.name,
            agent: description.agent,
            architecture: description.architecture,
            cores: description.cores,
            cores_leased: node.cores_leased,
            memory_bytes: description.memory_bytes,
            memory_leased_bytes: node.memory_leased_bytes,
            last_report_unix_ms: node.last_report_unix_ms,
        }
    }
}

/// A deployed package.
#[derive(Debug, Serialize)]
pub(crate) struct PackageView {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) architecture: String,
    pub(crate) size_bytes: u64,
    pub(crate) deployed_unix_ms: u64,
    /// As they are called: `package/function`.
    pub(crate) functions: Vec<String>,
}

impl From<PackageInfo> for PackageView {
    fn from(package: PackageInfo) -> PackageView {
        let address = |function: &str| format!("{}/{function}", package.name);
        let functions = package.functions.iter().map(|function| address(&function.name)).collect();
        PackageView {
            functions,
            name: package.name,
            digest: package.digest,
            architecture: package.architecture,
            size_bytes: package.size_bytes,
            deployed_unix_ms: package.deployed_unix_ms,
        }
    }
}

/// What a lease has used.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct UsageView {
    pub(crate) allocated_ns: u64,
    pub(crate) executing_ns: u64,
    pub(crate) polling_ns: u64,
    pub(crate) calls: u64,
    pub(crate) failed_calls: u64,
}

impl From<Option<Usage>> for UsageView {
    fn from(usage: Option<Usage>) -> UsageView {
        let Usage { allocated_ns, executing_ns, polling_ns, calls, failed_calls } = usage.unwrap_or_default();
        UsageView { allocated_ns, executing_ns, polling_ns, calls, failed_calls }
    }
}

/// A lease.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseView {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) node: String,
    pub(crate) package: String,
    pub(crate) package_digest: String,
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) state: &'static str,
    pub(crate) granted_unix_ms: u64,
    pub(crate) expires_unix_ms: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) end_reason: String,
    pub(crate) usage: UsageView,
}

impl From<Lease> for LeaseView {
    fn from(lease: Lease) -> LeaseView {
        LeaseView {
            state: state(lease.state()),
            id: lease.id,
            tenant: lease.tenant,
            node: lease.node,
            package: lease.package_name,
            package_digest: lease.package,
            cores: lease.cores,
            memory_bytes: lease.memory_bytes,
            granted_unix_ms: lease.granted_unix_ms,
            expires_unix_ms: lease.expires_unix_ms,
            end_reason: lease.end_reason,
            usage: lease.usage.into(),
        }
    }
}

/// What a lease costs, in nano-units of the currency.
#[derive(Debug, Serialize)]
pub(crate) struct BillLineView {
    pub(crate) lease: String,
    pub(crate) tenant: String,
    pub(crate) package: String,
    pub(crate) state: &'static str,
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) granted_unix_ms: u64,
    pub(crate) usage: UsageView,
    #[serde(flatten)]
    pub(crate) cost: CostView,
}

/// Money, in nano-units of the currency.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CostView {
    pub(crate) allocation_nano: u64,
    pub(crate) compute_nano: u64,
    pub(crate) polling_nano: u64,
    pub(crate) total_nano: u64,
}

impl From<&BillLine> for CostView {
    fn from(line: &BillLine) -> CostView {
        CostView {
            allocation_nano: line.allocation_nano,
            compute_nano: line.compute_nano,
            polling_nano: line.polling_nano,
            total_nano: line.total_nano,
        }
    }
}

impl From<BillLine> for BillLineView {
    fn from(line: BillLine) -> BillLineView {
        BillLineView {
            cost: CostView::from(&line),
            state: state(line.state()),
            lease: line.lease,
            tenant: line.tenant,
            package: line.package_name,
            cores: line.cores,
            memory_bytes: line.memory_bytes,
            granted_unix_ms: line.granted_unix_ms,
            usage: line.usage.into(),
        }
    }
}

fn state(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Unspecified => "unknown",
        LeaseState::Granted => "granted",
        LeaseState::Attached => "attached",
        LeaseState::Ended => "ended",
    }
}
