//! Describes the leases that a client requests.

use std::time::Duration;

use sublet_proto::pool::Pool;
use sublet_proto::v1::{self, WorkerOptions};
use sublet_proto::{ALWAYS_HOT_NS, ALWAYS_WARM_NS, Error, saturating_u64};

use crate::fabrics::{ClientTerms, FabricChoice};
use crate::lease::steps::{Starting, StepListener};

/// Way in which workers wait for calls (rFaaS III-C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Poll for ever: the shortest latency, and a core that is paid for all the time.
    AlwaysHot,
    /// Sleep after every call: costs nothing between calls, and a wake-up at each.
    AlwaysWarm,
    /// Poll for this long after a call, then sleep.
    HotFor(Duration),
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::HotFor(Duration::from_millis(1))
    }
}

impl Policy {
    fn hot_timeout_ns(self) -> u64 {
        match self {
            Policy::AlwaysHot => ALWAYS_HOT_NS,
            Policy::AlwaysWarm => ALWAYS_WARM_NS,
            Policy::HotFor(time) => u64::try_from(time.as_nanos()).unwrap_or(ALWAYS_HOT_NS),
        }
    }
}

/// Terms of the leases that a client requests. Made by [`Allocation::new`] and changed by its methods.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub(super) package: String,
    pub(super) cores: u32,
    /// Cores of each worker.
    cores_each: u32,
    memory_bytes: u64,
    timeout: Duration,
    slots: u32,
    slot_bytes: u64,
    /// Swap memory of each worker, in bytes.
    swap_bytes: u64,
    /// Whether workers that cannot swap do without.
    swap_if_possible: bool,
    policy: Policy,
    pub(super) spin: Duration,
    max_nodes: u32,
    pub(super) shared: bool,
    wait: Duration,
    idle_timeout: Duration,
    pu: String,
    /// Weight of the execution time against the price, in thousandths.
    time_weight: u32,
    near: Vec<String>,
    warm: String,
    /// Name of the graph whose runs are limited together; empty: none.
    application: String,
    /// The run of that graph; empty: none.
    run: String,
    pool: Option<Pool>,
    fabric: Option<FabricChoice>,
    interface: Option<String>,
    /// Environment variables of the functions, and their secrets, folders and temporary space.
    needs: v1::Needs,
    pub(super) starting: Starting,
}

impl Allocation {
    /// Requests one core for the functions of a package: a deployed one by name or digest, another tenant's by
    /// `tenant/name`, or the path of a package folder or shared object, which is deployed first. A path begins with `/`
    /// or `.`, ends with `.so` or `.wasm`, or has more than one slash: `./a/b` is a path, `a/b` is package `b` of
    /// tenant `a`.
    pub fn new(package: impl Into<String>) -> Allocation {
        Allocation {
            package: package.into(),
            cores: 1,
            cores_each: 1,
            memory_bytes: 0,
            timeout: Duration::ZERO,
            slots: 8,
            slot_bytes: 64 << 10,
            swap_bytes: 0,
            swap_if_possible: false,
            policy: Policy::default(),
            spin: Duration::from_micros(50),
            max_nodes: 0,
            shared: false,
            wait: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            pu: String::new(),
            time_weight: 0,
            near: Vec::new(),
            warm: String::new(),
            application: String::new(),
            run: String::new(),
            pool: None,
            fabric: None,
            interface: None,
            needs: v1::Needs::default(),
            starting: Starting::default(),
        }
    }

    /// Requests this number of cores, each with a worker unless [`Allocation::cores_each`] says otherwise, on any number of
    /// nodes.
    pub fn cores(mut self, cores: u32) -> Allocation {
        self.cores = cores;
        self
    }

    /// Gives each worker this number of cores, all on one node, for functions that have threads or processes of their own.
    /// The number of all cores must be a multiple of it. A call counts as executing on all cores of its worker.
    pub fn cores_each(mut self, cores: u32) -> Allocation {
        self.cores_each = cores;
        self
    }

    /// Sets the memory for all cores together, in bytes. The default is the manager's.
    pub fn memory_bytes(mut self, memory_bytes: u64) -> Allocation {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Sets the duration of the leases. The default is the manager's.
    pub fn timeout(mut self, timeout: Duration) -> Allocation {
        self.timeout = timeout;
        self
    }

    /// Sets the number of inbox slots for each worker, at least 1 and rounded up to a power of two. It bounds the calls
    /// that travel or wait while one executes.
    pub fn slots(mut self, slots: u32) -> Allocation {
        self.slots = slots.checked_next_power_of_two().unwrap_or(u32::MAX);
        self
    }

    /// Sets the size of an inbox slot, in bytes: the largest input that may lie outside of the invoker's buffers. Such
    /// an input is copied into a slot.
    pub fn slot_bytes(mut self, slot_bytes: u64) -> Allocation {
        self.slot_bytes = slot_bytes;
        self
    }

    /// Sets the way in which the workers wait.
    pub fn policy(mut self, policy: Policy) -> Allocation {
        self.policy = policy;
        self
    }

    /// Sets how long a thread that waits for a result polls before it sleeps. [`Duration::MAX`] polls for ever.
    pub fn spin(mut self, spin: Duration) -> Allocation {
        self.spin = spin;
        self
    }

    /// Limits the number of nodes; 1 keeps all workers together.
    pub fn max_nodes(mut self, max_nodes: u32) -> Allocation {
        self.max_nodes = max_nodes;
        self
    }

    /// Shares the workers' cores with those of other leases (rFaaS III-D): each executes only while its core is free,
    /// and a call that finds the core busy is sent to another worker. Not for workers that always poll.
    pub fn shared(mut self) -> Allocation {
        self.shared = true;
        self
    }

    /// Prefers these nodes, the first with enough capacity, and then the nodes of their rack: the nodes of the
    /// components that the workers communicate with. The preference applies only if all cores fit on one node. A lease
    /// says on which node it is.
    pub fn near<N: Into<String>>(mut self, nodes: impl IntoIterator<Item = N>) -> Allocation {
        self.near = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Prefers nodes that had leases with the same key, such as an application's and a component's name, since their
    /// environment may be warm there. Nodes that [`Allocation::near`] names come first.
    pub fn warm(mut self, key: impl Into<String>) -> Allocation {
        self.warm = key.into();
        self
    }

    /// Restricts the leases to nodes of this pool. Without this, nodes of the pool that fits the requested memory are
    /// preferred, and others are used if that is full.
    pub fn pool(mut self, pool: Pool) -> Allocation {
        self.pool = Some(pool);
        self
    }

    /// Sets the longest wait for capacity, in the manager's queue. The default is not to wait.
    pub fn wait(mut self, wait: Duration) -> Allocation {
        self.wait = wait;
        self
    }

    /// Sets the time without a call after which the lease ends. The default is the node's.
    pub fn idle_timeout(mut self, idle_timeout: Duration) -> Allocation {
        self.idle_timeout = idle_timeout;
        self
    }

    /// Requests processing units of this kind: `cpu`, or a name that nodes give theirs, or a device, `opencl` or
    /// `cuda`. Without this, the kinds are those for which the package has builds, or profiles if it has any. The
    /// manager then chooses the kind with free units on which the work costs least ([`Allocation::time_weight`]).
    /// [`Lease::pu`](sublet_proto::v1::Lease) names the chosen kind.
    pub fn pu(mut self, kind: impl Into<String>) -> Allocation {
        self.pu = kind.into();
        self
    }

    /// Sets the weight of execution time against price if the package can be executed on several kinds of processing
    /// units: from 0, the price alone, to 1, the time alone. The package's profiles give the speed on each kind
    /// (Molecule, section 4.1), and [`Lease::choice`](sublet_proto::v1::Lease) reports the comparison. The default is
    /// 0.
    pub fn time_weight(mut self, weight: f64) -> Allocation {
        // The manager rejects a value that is not a weight.
        let permille = (weight * 1000.0).round();
        self.time_weight = if permille >= 0.0 {
            u32::try_from(saturating_u64(permille)).unwrap_or(u32::MAX)
        } else {
            u32::MAX
        };
        self
    }

    /// Sets the transport of the calls. The default is `$SUBLET_FABRIC`, or the best that client and node both have.
    pub fn fabric(mut self, fabric: FabricChoice) -> Allocation {
        self.fabric = Some(fabric);
        self
    }

    /// Sets the interface for connections to other machines, by its name or one of its addresses. The default is
    /// `$SUBLET_INTERFACE`, or the machine's routes.
    pub fn interface(mut self, interface: impl Into<String>) -> Allocation {
        self.interface = Some(interface.into());
        self
    }

    /// Sets an environment variable of the functions, over one of the same name in the package's manifest. A name has
    /// letters, digits and `_`, and no digit in front.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Allocation {
        self.needs.variables.push(v1::Variable { name: name.into(), value: value.into() });
        self
    }

    /// Gives the functions a secret of the tenant as the value of an environment variable: `sublet secret set` stores it.
    pub fn secret(mut self, variable: impl Into<String>, name: impl Into<String>) -> Allocation {
        self.needs.secrets.push(v1::SecretUse { variable: variable.into(), secret: name.into() });
        self
    }

    /// Requires nodes that lend this folder, which functions see as `/folders/NAME`.
    pub fn folder(mut self, name: impl Into<String>) -> Allocation {
        self.needs.folders.push(name.into());
        self
    }

    /// Requires this many devices of a kind that operators of nodes have named, as `cuda`, in place of the number in the
    /// package's manifest. They belong to the lease alone until it ends. `gpu` means `cuda` or else `rocm`.
    pub fn devices(mut self, kind: impl Into<String>, count: u32) -> Allocation {
        self.needs.devices.push(v1::DeviceCount { kind: kind.into(), count });
        self
    }

    /// Sets the size of the temporary files of each worker process (`/tmp`), in bytes. They are part of its memory. The
    /// default is 64 MiB, or the lease's memory if that is less.
    pub fn temporary_bytes(mut self, bytes: u64) -> Allocation {
        self.needs.temporary_bytes = bytes;
        self
    }

    /// Requires an isolation of the functions from the rest of their node: `process`, `container`, `crun`, `runc`, `runsc`,
    /// `apptainer` or `weak`. By default any that the node offers.
    pub fn isolation(mut self, name: impl Into<String>) -> Allocation {
        self.needs.isolation = name.into();
        self
    }

    /// Calls a function, on any thread, with each step of a start that takes time: fetching the package and its
    /// environment, and importing modules. It must return soon.
    pub fn on_step(mut self, function: impl Fn(&str) + Send + Sync + 'static) -> Allocation {
        self.starting.listener = Some(StepListener::new(function));
        self
    }

    /// Sets the longest time of a worker's start. Without this, a start that continues may take until the lease ends.
    pub fn start_timeout(mut self, timeout: Duration) -> Allocation {
        self.starting.limit = Some(timeout);
        self
    }

    /// Counts the leases under the limits over all runs of an application, for one of these runs.
    pub(crate) fn application(mut self, name: &str, run: &str) -> Allocation {
        name.clone_into(&mut self.application);
        run.clone_into(&mut self.run);
        self
    }

    /// Sets the amount of memory that each worker may swap, in bytes, to memory of the run for which it executes a
    /// component.
    pub(crate) fn swap_bytes(mut self, bytes: u64) -> Allocation {
        self.swap_bytes = bytes;
        self
    }

    /// Sets the amount of memory that each worker may swap like [`Allocation::swap_bytes`]; workers that cannot swap do
    /// without.
    pub(crate) fn swap_if_possible(mut self, bytes: u64) -> Allocation {
        self.swap_if_possible = true;
        self.swap_bytes(bytes)
    }

    /// The terms by which its nodes are reached.
    pub(super) fn terms(&self) -> Result<ClientTerms, Error> {
        ClientTerms::new(self.fabric.clone(), self.interface.clone())
    }

    /// The same terms for a package by its digest or name.
    pub(super) fn of(&self, package: String) -> Allocation {
        Allocation { package, ..self.clone() }
    }

    /// The same terms for this number of cores, with the same memory for each core.
    pub(super) fn grown_by(&self, cores: u32) -> Allocation {
        let memory_bytes = u128::from(self.memory_bytes) * u128::from(cores) / u128::from(self.cores.max(1));
        let memory_bytes = u64::try_from(memory_bytes).unwrap_or(u64::MAX);
        Allocation { cores, memory_bytes, ..self.clone() }
    }

    /// The environment variables, which go to the agents.
    pub(super) fn variables(&self) -> &[v1::Variable] {
        &self.needs.variables
    }

    /// Checks what the functions need.
    ///
    /// # Errors
    /// `invalid_argument` with the name of what is invalid.
    pub(super) fn check_needs(&self) -> Result<(), Error> {
        self.needs.check()
    }

    pub(super) fn request(&self) -> v1::LeaseRequest {
        let needs = v1::Needs { variables: Vec::new(), ..self.needs.clone() };
        v1::LeaseRequest {
            package: self.package.clone(),
            request: String::new(),
            cores: self.cores,
            memory_bytes: self.memory_bytes,
            timeout_ms: milliseconds(self.timeout),
            max_nodes: self.max_nodes,
            shared: self.shared,
            wait_ms: milliseconds(self.wait),
            idle_timeout_ms: milliseconds(self.idle_timeout),
            pu: self.pu.clone(),
            time_weight_permille: self.time_weight,
            near: self.near.clone(),
            warm: self.warm.clone(),
            pool: self.pool.map(|pool| pool.to_string()).unwrap_or_default(),
            refused: String::new(),
            application: self.application.clone(),
            run: self.run.clone(),
            needs: Some(needs).filter(|needs| !needs.is_empty()),
            options: Some(WorkerOptions {
                slots: self.slots,
                slot_bytes: self.slot_bytes,
                hot_timeout_ns: self.policy.hot_timeout_ns(),
                swap_bytes: self.swap_bytes,
                cores: self.cores_each,
                swap_if_possible: self.swap_if_possible,
            }),
        }
    }
}

/// Whole milliseconds, at least one of any time that is one.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_asked() {
        let allocation = Allocation::new("hello")
            .cores(4)
            .memory_bytes(400)
            .max_nodes(1)
            .shared()
            .wait(Duration::from_micros(1))
            .idle_timeout(Duration::from_secs(2))
            .pu("gpu")
            .pool(Pool::Balanced);
        let request = allocation.of("sha256:1".into()).request();
        assert_eq!((request.cores, request.memory_bytes, request.max_nodes), (4, 400, 1));
        assert_eq!((request.shared, request.wait_ms, request.idle_timeout_ms), (true, 1, 2000));
        assert_eq!((request.pu.as_str(), request.package.as_str()), ("gpu", "sha256:1"));
        assert_eq!(request.pool, "balanced");
        assert!(request.needs.is_none());
        let needy = allocation
            .clone()
            .variable("A", "hidden")
            .secret("K", "key")
            .folder("data")
            .temporary_bytes(1 << 20)
            .devices("cuda", 2)
            .isolation("process");
        let needs = needy.request().needs.unwrap();
        assert_eq!((needs.variables.len(), needs.secrets.len(), needs.folders.len()), (0, 1, 1));
        assert_eq!(needs.isolation, "process");
        assert_eq!((needs.devices[0].kind.as_str(), needs.devices[0].count), ("cuda", 2));
        assert!(needy.variables().len() == 1 && !format!("{needy:?}").contains("hidden"));
        let more = allocation.grown_by(2).request();
        assert_eq!((more.cores, more.memory_bytes), (2, 200));
    }
}
