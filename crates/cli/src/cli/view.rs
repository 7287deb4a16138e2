//! Output forms of the manager's messages. The names of their fields in JSON are stable.

use serde::Serialize;
use sublet_proto::Code;
use sublet_proto::isolation::Isolation;
use sublet_proto::v1::{
    BillBy, BillLine, CacheUse, ColdImports, DeviceCount, Lease, LeaseState, LentDevices, ManagerInfo,
    NodeInfo, NodeNetwork, NodeState, PackageBuild, PackageGrant, PackageInfo, PackageLayer,
    StandbyProcesses, Usage,
};

use super::package::right::Right;

/// A node.
#[derive(Debug, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) agent: String,
    /// Version of the agent's program; empty if the agent is older than this field.
    pub(crate) version: String,
    /// The boot id of its operating system: nodes and clients with the same one may share memory.
    pub(crate) host: String,
    /// Address for clients on other machines, if the agent listens for them.
    pub(crate) network: Option<NetworkView>,
    pub(crate) architecture: String,
    /// Kinds of devices that execute kernels, by the names of package kinds.
    pub(crate) devices: Vec<String>,
    /// Interpreters that execute functions on the node.
    pub(crate) runtimes: Vec<String>,
    /// Names of the folders that the node lends.
    pub(crate) folders: Vec<String>,
    /// Devices that the node lends whole to programs.
    pub(crate) lent_devices: Vec<LentDevicesView>,
    /// Isolations that the node offers to functions; "weak" stands alone.
    pub(crate) isolations: Vec<String>,
    pub(crate) pu: String,
    /// Current pool: compute, memory, balanced or flash.
    pub(crate) pool: String,
    /// Rack of the node, if its agent names one.
    pub(crate) rack: Option<String>,
    pub(crate) state: &'static str,
    pub(crate) cores: u32,
    pub(crate) cores_leased: u32,
    pub(crate) shared_cores: u32,
    /// Maximum number of workers on all shared cores together.
    pub(crate) shared_places: u32,
    pub(crate) shared_leased: u32,
    /// Whether leases on its shared cores have shares of them, by control groups.
    pub(crate) has_core_shares: bool,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_leased_bytes: u64,
    pub(crate) last_report_unix_ms: u64,
    /// Cache of packages and images, if the node has reported it.
    pub(crate) cache: Option<CacheView>,
    /// Processes that have imported modules and wait for a lease.
    pub(crate) standby: Vec<StandbyView>,
}

/// Cache of packages and images on a node's disk.
#[derive(Debug, Serialize)]
pub(crate) struct CacheView {
    pub(crate) used_bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) files: u64,
    pub(crate) limit_files: u64,
    pub(crate) entries: u32,
    /// Number of entries that leases use, which are not evicted.
    pub(crate) entries_in_use: u32,
    /// Number of hits since the agent's start.
    pub(crate) evicted: u64,
}

impl From<CacheUse> for CacheView {
    fn from(cache: CacheUse) -> CacheView {
        let CacheUse { used_bytes, limit_bytes, files, limit_files, entries, entries_in_use, evicted } =
            cache;
        CacheView { used_bytes, limit_bytes, files, limit_files, entries, entries_in_use, evicted }
    }
}

/// Processes of a node on standby with the same modules.
#[derive(Debug, Serialize)]
pub(crate) struct StandbyView {
    /// Names of the modules, separated by commas.
    pub(crate) modules: String,
    /// Number of processes that wait for a lease.
    pub(crate) waiting: u32,
    /// Number of processes that still import.
    pub(crate) importing: u32,
    /// Memory of all of them, which the node does not lend.
    pub(crate) memory_bytes: u64,
    /// Tenant of the environment that has the modules; empty for modules of the node's own Python.
    pub(crate) tenant: String,
}

impl From<StandbyProcesses> for StandbyView {
    fn from(standby: StandbyProcesses) -> StandbyView {
        let StandbyProcesses { modules, waiting, importing, memory_bytes, tenant } = standby;
        StandbyView { modules, waiting, importing, memory_bytes, tenant }
    }
}

/// Devices of a kind that a node lends.
#[derive(Debug, Serialize)]
pub(crate) struct LentDevicesView {
    pub(crate) kind: String,
    /// Name of each device.
    pub(crate) names: Vec<String>,
    /// Number of devices that leases have.
    pub(crate) leased: u32,
}

/// The devices that a node lends, with the number of leased ones.
pub(crate) fn lent_devices(lent: Vec<LentDevices>, leased: &[DeviceCount]) -> Vec<LentDevicesView> {
    let view = |LentDevices { kind, names }| {
        let leased = leased.iter().find(|one| one.kind == kind).map_or(0, |one| one.count);
        LentDevicesView { kind, names, leased }
    };
    lent.into_iter().map(view).collect()
}

/// Network access to a node from other machines.
#[derive(Debug, Serialize)]
pub(crate) struct NetworkView {
    pub(crate) address: String,
    /// Fabrics that can carry calls, best first.
    pub(crate) fabrics: Vec<String>,
    /// Whether calls over TCP must be encrypted.
    pub(crate) encrypted: bool,
}

impl From<NodeNetwork> for NetworkView {
    fn from(network: NodeNetwork) -> NetworkView {
        let NodeNetwork { address, fabrics, encrypted, .. } = network;
        NetworkView { address, fabrics, encrypted }
    }
}

impl From<NodeInfo> for NodeView {
    fn from(node: NodeInfo) -> NodeView {
        let state = node_state(node.state());
        let description = node.description.unwrap_or_default();
        NodeView {
            pu: processing_unit(description.pu),
            pool: node.pool,
            rack: (!description.rack.is_empty()).then_some(description.rack),
            state,
            shared_cores: description.shared_cores,
            shared_places: description.shared_places,
            shared_leased: node.shared_leased,
            has_core_shares: description.shared_cores > 0 && !description.no_core_shares,
            name: description.name,
            agent: description.agent,
            version: description.version,
            host: description.host,
            network: description.network.map(NetworkView::from),
            architecture: description.architecture,
            devices: description.devices,
            runtimes: description.runtimes,
            folders: description.folders.into_iter().map(|folder| folder.name).collect(),
            lent_devices: lent_devices(description.lent_devices, &node.devices_leased),
            isolations: description.isolations,
            cores: description.cores,
            cores_leased: node.cores_leased,
            memory_bytes: description.memory_bytes,
            memory_leased_bytes: node.memory_leased_bytes,
            last_report_unix_ms: node.last_report_unix_ms,
            cache: node.cache.map(CacheView::from),
            standby: node.standby.into_iter().map(StandbyView::from).collect(),
        }
    }
}

/// Consequence of weak isolation.
pub(crate) const WEAK_ISOLATION: &str =
    "functions are isolated weakly: Landlock, a filter of system calls and limits alone, without namespaces";

impl NodeView {
    /// Whether functions have no namespaces on the node.
    pub(crate) fn is_weak(&self) -> bool {
        self.isolations.iter().any(|name| name == Isolation::Weak.name())
    }
}

/// A manager.
#[derive(Debug, Serialize)]
pub(crate) struct ManagerView {
    pub(crate) address: String,
    /// Epoch, which grows with each start of a manager on the store.
    pub(crate) epoch: u64,
    pub(crate) nodes: u32,
    pub(crate) cores_free: u32,
    /// Whether this is a global manager, above those of racks.
    pub(crate) global: bool,
    /// Number of requests that wait for capacity.
    pub(crate) waiting: u32,
    pub(crate) last_seen_unix_ms: u64,
}

impl From<ManagerInfo> for ManagerView {
    fn from(manager: ManagerInfo) -> ManagerView {
        ManagerView {
            address: manager.address,
            epoch: manager.epoch,
            nodes: manager.nodes,
            cores_free: manager.cores_free,
            global: manager.global,
            waiting: manager.waiting,
            last_seen_unix_ms: manager.last_seen_unix_ms,
        }
    }
}

/// A deployed package.
#[derive(Debug, Serialize)]
pub(crate) struct PackageView {
    pub(crate) name: String,
    /// Tenant that owns the name; `public`: published by an operator for all tenants.
    pub(crate) owner: String,
    pub(crate) digest: String,
    pub(crate) size_bytes: u64,
    pub(crate) deployed_unix_ms: u64,
    /// Names of the functions, as `package/function`.
    pub(crate) functions: Vec<String>,
    pub(crate) builds: Vec<BuildView>,
    /// Other tenants that may use the name; shown to its owner and to operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) grants: Vec<GrantView>,
}

/// A tenant's right to a package of another tenant.
#[derive(Debug, Serialize)]
pub(crate) struct GrantView {
    pub(crate) tenant: String,
    pub(crate) right: Right,
}

impl GrantView {
    fn of(grant: &PackageGrant) -> Option<GrantView> {
        Right::of(grant).map(|right| GrantView { tenant: grant.tenant.clone(), right })
    }
}

/// Part of a package for one kind of processing unit.
#[derive(Debug, Serialize)]
pub(crate) struct BuildView {
    /// Kind of the library: native, wasm, opencl, cuda.
    pub(crate) kind: String,
    /// Processor or device that executes the build; wasm32: all processors.
    pub(crate) architecture: String,
    pub(crate) library: String,
    /// Image in whose file system the functions run, pinned by its digest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) image: String,
    /// Environment of functions in Python, pinned by its digest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) environment: String,
}

impl From<PackageBuild> for BuildView {
    fn from(build: PackageBuild) -> BuildView {
        let PackageBuild { kind, architecture, library, image, environment, .. } = build;
        BuildView { kind, architecture, library, image, environment }
    }
}

impl PackageView {
    /// Returns the address `owner/name`, which is valid for every tenant.
    pub(crate) fn address(&self) -> String {
        if self.owner.is_empty() { self.name.clone() } else { format!("{}/{}", self.owner, self.name) }
    }

    /// Returns the start of the digest, which distinguishes packages in a table.
    pub(crate) fn short_digest(&self) -> String {
        const SHOWN: usize = "sha256:".len() + 12;
        self.digest.chars().take(SHOWN).collect()
    }

    /// Lists the architectures of the builds.
    pub(crate) fn architectures(&self) -> String {
        self.builds.iter().map(|build| build.architecture.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl From<PackageInfo> for PackageView {
    fn from(package: PackageInfo) -> PackageView {
        let address = |function: &str| format!("{}/{function}", package.name);
        let functions = package.functions.iter().map(|function| address(&function.name)).collect();
        PackageView {
            functions,
            grants: package.grants.iter().filter_map(GrantView::of).collect(),
            name: package.name,
            owner: package.owner,
            digest: package.digest,
            size_bytes: package.size_bytes,
            deployed_unix_ms: package.deployed_unix_ms,
            builds: package.builds.into_iter().map(BuildView::from).collect(),
        }
    }
}

/// An environment of Python.
#[derive(Debug, Serialize)]
pub(crate) struct EnvironmentView {
    pub(crate) name: String,
    /// Tenant that owns the name; `public`: published by an operator for all tenants.
    pub(crate) owner: String,
    pub(crate) digest: String,
    /// Platform that its wheels need, as `python3.11-x86_64-glibc2.17`.
    pub(crate) platform: String,
    /// Size of its wheels.
    pub(crate) size_bytes: u64,
    pub(crate) deployed_unix_ms: u64,
    pub(crate) wheels: Vec<WheelView>,
    /// Other tenants that may use the name; shown to its owner and to operators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) grants: Vec<GrantView>,
}

/// A wheel of an environment.
#[derive(Debug, Serialize)]
pub(crate) struct WheelView {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) size_bytes: u64,
}

impl EnvironmentView {
    /// Returns the address `owner/name`, which is valid for every tenant.
    pub(crate) fn address(&self) -> String {
        if self.owner.is_empty() { self.name.clone() } else { format!("{}/{}", self.owner, self.name) }
    }
}

impl From<PackageInfo> for EnvironmentView {
    fn from(info: PackageInfo) -> EnvironmentView {
        let layers = info.builds.iter().flat_map(|build| &build.layers).cloned();
        let wheels: Vec<_> = layers
            .map(|PackageLayer { digest, name, size_bytes }| WheelView { name, digest, size_bytes })
            .collect();
        EnvironmentView {
            platform: info.architectures(),
            size_bytes: wheels.iter().map(|wheel| wheel.size_bytes).fold(0, u64::saturating_add),
            grants: info.grants.iter().filter_map(GrantView::of).collect(),
            name: info.name,
            owner: info.owner,
            digest: info.digest,
            deployed_unix_ms: info.deployed_unix_ms,
            wheels,
        }
    }
}

/// Usage of a lease.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct UsageView {
    pub(crate) allocated_ns: u64,
    pub(crate) executing_ns: u64,
    pub(crate) polling_ns: u64,
    pub(crate) calls: u64,
    pub(crate) failed_calls: u64,
    pub(crate) memory_byte_us: u64,
    pub(crate) memory_peak_bytes: u64,
}

impl From<Option<Usage>> for UsageView {
    fn from(usage: Option<Usage>) -> UsageView {
        let usage = usage.unwrap_or_default();
        let Usage { allocated_ns, executing_ns, polling_ns, calls, failed_calls, .. } = usage;
        let Usage { memory_byte_us, memory_peak_bytes, .. } = usage;
        UsageView {
            allocated_ns,
            executing_ns,
            polling_ns,
            calls,
            failed_calls,
            memory_byte_us,
            memory_peak_bytes,
        }
    }
}

/// A lease.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseView {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) node: String,
    pub(crate) package: String,
    /// Tenant that owns the package's name; `public`: published by an operator for all tenants.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) package_owner: String,
    pub(crate) package_digest: String,
    /// Digest of the environment in which its functions run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) environment: String,
    pub(crate) pu: String,
    /// Reason for the choice among several kinds of processing units.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) choice: String,
    /// Index of the package's build that the lease runs.
    pub(crate) build: u32,
    pub(crate) cores: u32,
    /// Whether its workers share their cores with those of other leases.
    pub(crate) shared: bool,
    pub(crate) memory_bytes: u64,
    pub(crate) state: &'static str,
    pub(crate) granted_unix_ms: u64,
    pub(crate) expires_unix_ms: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) end_reason: String,
    /// Name of the error code that ended the lease; absent after a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_code: Option<&'static str>,
    pub(crate) usage: UsageView,
    /// Modules that each start of its worker process imports anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cold_imports: Option<ColdImportsView>,
}

/// Modules that a node cannot keep warm.
#[derive(Debug, Serialize)]
pub(crate) struct ColdImportsView {
    /// First module that prevents it.
    pub(crate) module: String,
    /// Effect of the import that prevents it.
    pub(crate) reason: String,
    pub(crate) import_ms: u32,
}

impl From<ColdImports> for ColdImportsView {
    fn from(ColdImports { module, reason, import_ms }: ColdImports) -> ColdImportsView {
        ColdImportsView { module, reason, import_ms }
    }
}

impl From<Lease> for LeaseView {
    fn from(lease: Lease) -> LeaseView {
        LeaseView {
            state: state(lease.state()),
            id: lease.id,
            tenant: lease.tenant,
            node: lease.node,
            package: lease.package_name,
            package_owner: lease.package_owner,
            package_digest: lease.package,
            environment: lease.environment,
            pu: processing_unit(lease.pu),
            choice: lease.choice,
            build: lease.build,
            cores: lease.cores,
            shared: lease.shared,
            memory_bytes: lease.memory_bytes,
            granted_unix_ms: lease.granted_unix_ms,
            expires_unix_ms: lease.expires_unix_ms,
            end_reason: lease.end_reason,
            end_code: (lease.end_code != 0).then(|| Code::from_number(lease.end_code).name()),
            usage: lease.usage.into(),
            cold_imports: lease.cold_imports.map(ColdImportsView::from),
        }
    }
}

/// Returns the lease's package for tables; a lease of only memory has none.
pub(crate) fn shown_package(name: &str) -> &str {
    if name.is_empty() { "-" } else { name }
}

impl LeaseView {
    /// Returns the package for tables, with its owner if that is not the lease's tenant.
    pub(crate) fn shown_package(&self) -> String {
        if self.package_owner.is_empty() || self.package_owner == self.tenant {
            return shown_package(&self.package).to_owned();
        }
        format!("{}/{}", self.package_owner, self.package)
    }
}

/// Usage and costs of a line of a bill. Besides those, only the key of the bill is present.
#[derive(Debug, Default, Serialize)]
pub(crate) struct BillLineView {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<BilledLease>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) tenant: String,
    /// Name of the function; `-` for memory and polling, which no function has used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) function: String,
    /// Kind of processing unit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pu: String,
    /// Start of the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from_unix_ms: Option<u64>,
    pub(crate) usage: UsageView,
    #[serde(flatten)]
    pub(crate) cost: CostView,
}

/// Lease of a line.
#[derive(Debug, Serialize)]
pub(crate) struct BilledLease {
    #[serde(rename = "lease")]
    pub(crate) id: String,
    pub(crate) package: String,
    pub(crate) state: &'static str,
    pub(crate) pu: String,
    pub(crate) cores: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) granted_unix_ms: u64,
}

/// Costs, in nano-units of the currency.
#[derive(Clone, Copy, Debug, Default, Serialize)]
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

impl BillLineView {
    /// Converts a line for a bill of the requested kind.
    pub(crate) fn new(by: BillBy, line: BillLine) -> BillLineView {
        let (cost, usage, state) = (CostView::from(&line), UsageView::from(line.usage), state(line.state()));
        let bare = BillLineView { usage, cost, ..BillLineView::default() };
        match by {
            BillBy::Tenant => BillLineView { tenant: line.tenant, ..bare },
            BillBy::Function => {
                let function = if line.function.is_empty() { "-".to_owned() } else { line.function };
                BillLineView { tenant: line.tenant, function, ..bare }
            }
            BillBy::Pu => BillLineView { pu: processing_unit(line.pu), ..bare },
            BillBy::Period => BillLineView { from_unix_ms: Some(line.from_unix_ms), ..bare },
            BillBy::Lease => BillLineView {
                lease: Some(BilledLease {
                    id: line.lease,
                    package: line.package_name,
                    state,
                    pu: processing_unit(line.pu),
                    cores: line.cores,
                    memory_bytes: line.memory_bytes,
                    granted_unix_ms: line.granted_unix_ms,
                }),
                tenant: line.tenant,
                ..bare
            },
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

/// Name of a node's state.
pub(crate) fn node_state(state: NodeState) -> &'static str {
    match state {
        NodeState::Unspecified => "unknown",
        NodeState::Lending => "lending",
        NodeState::Draining => "draining",
        NodeState::Reclaimed => "reclaimed",
        NodeState::Lost => "lost",
    }
}

/// Kind of processing unit; an empty name means a processor.
fn processing_unit(pu: String) -> String {
    if pu.is_empty() { "cpu".to_owned() } else { pu }
}
