//! Leases, and calls of their functions.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sublet::frames::{Head, SHARES_MEMORY, SharedBytes, SharedBytesMut};
use sublet::{
    Access, Allocation, BillLine, BillRequest, CallOptions, Code, Error, FabricChoice, Function, Invocation,
    Lease, Policy, Price, ProcessingUnit, RegisteredMemory, Usage, own_host,
};
use sublet_python_buffers::{BufferUse, BufferView};

use crate::application::{PyApplication, PyRun, chosen};
use crate::call::{CallBuffers, PyCall, SentRequest};
use crate::component::{PyMemory, planned};
use crate::error::{invalid, raised};
use crate::fork_cell::{self, ForkCell};
use crate::message::{LentMemory, WrittenRequest};
use crate::pool::{MemoryPool, Paper};

/// An input that is no larger goes by the inbox, in bytes.
const COPIED_BYTES: u32 = 16 << 10;
/// The kind of package whose functions are in Python.
const PYTHON: &str = "python";

/// Results of [`PyInvoker::package`], in that order.
type PackageFields = (String, String, Vec<String>, bool, bool, String);

/// Whether a package is given by the path of its folder or library, and not by its address.
#[pyfunction]
pub fn is_path(package: &str) -> bool {
    sublet::is_path(package)
}

/// A client of managers, which holds what it has leased.
#[pyclass(name = "Invoker", frozen, module = "sublet._native")]
pub struct PyInvoker(Arc<LeasedInvoker>);

/// An invoker, and what is known of its leases once they are held.
pub struct LeasedInvoker {
    invoker: RwLock<ForkCell<sublet::Invoker>>,
    /// Memory that the lease's workers reach.
    pub pool: Arc<MemoryPool>,
    /// Messages whose memory the workers use after their calls.
    pub lent: LentMemory,
}

/// Options of a call.
#[derive(Clone, Copy)]
pub struct RequestedCall {
    /// Function of the leased package.
    pub function: Function,
    /// Number of the worker that must execute the call; any worker if not set.
    pub worker: Option<u32>,
    /// Number of times that it may be repeated on another worker if its own ends.
    pub retries: u32,
    /// Latest time for the call's end.
    pub deadline: Option<Instant>,
}

impl Drop for LeasedInvoker {
    fn drop(&mut self) {
        if fork_cell::is_forked() {
            return;
        }
        // Agents are asked, which takes a while: other threads of the interpreter continue meanwhile.
        let invoker = self.invoker.get_mut().unwrap_or_else(PoisonError::into_inner);
        Python::try_attach(|py| py.detach(|| invoker.deallocate())).map(drop).unwrap_or_default();
    }
}

impl LeasedInvoker {
    fn of(invoker: sublet::Invoker, pool: Arc<MemoryPool>) -> PyInvoker {
        PyInvoker(Arc::new(LeasedInvoker {
            invoker: RwLock::new(ForkCell::new(invoker)),
            pool,
            lent: LentMemory::default(),
        }))
    }

    /// Sends a call with memory that stays at its address until the call has ended; the owner of the invocation keeps
    /// it.
    pub fn send(
        &self,
        asked: &RequestedCall,
        (input, input_len): (&Paper, u32),
        (output, output_len): (&Paper, usize),
    ) -> Result<Invocation<'static>, Error> {
        let output_len = u32::try_from(output_len).unwrap_or(u32::MAX);
        self.send_raw(asked, (input.start().as_ptr(), input_len), (output.start().as_ptr(), output_len))
    }

    /// Returns the address at which workers find an input: its own, or that of a copy if it is too large for an inbox.
    fn within_reach(
        &self,
        input: &BufferView,
        len_bytes: u32,
    ) -> Result<((*const u8, u32), CallBuffers), Error> {
        let at = input.pointer().as_ptr().cast_const();
        if len_bytes <= COPIED_BYTES || self.pool.memory().locate(at, u64::from(len_bytes)).is_some() {
            return Ok(((at, len_bytes), CallBuffers::default()));
        }
        let page = self.pool.take(u64::from(len_bytes))?;
        // SAFETY: both have at least that many bytes, the one kept by the view and the other by the page.
        unsafe {
            let from = SharedBytes::new(input.pointer(), len_bytes as usize);
            SharedBytesMut::new(page.start(), from.len()).copy_from(from);
        }
        Ok(((page.start().as_ptr(), len_bytes), CallBuffers { input: Some(page), ..CallBuffers::default() }))
    }

    fn send_raw(
        &self,
        asked: &RequestedCall,
        (input, input_len): (*const u8, u32),
        (output, output_len): (*mut u8, u32),
    ) -> Result<Invocation<'static>, Error> {
        let RequestedCall { function, worker, retries, deadline } = *asked;
        let options = CallOptions { worker, retries, deadline, timed: false };
        let invoker = self.invoker.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a `PyCall` gives up its invocation before what keeps the memory, and an invocation waits for its end before that.
        unsafe { invoker.submit_raw(function, input, input_len, output, output_len, options) }
    }
}

#[pymethods]
impl PyInvoker {
    /// A client of the managers at these addresses, or of those that the environment names.
    #[staticmethod]
    #[pyo3(signature = (managers=None, *, ca_file=None, token=None, token_file=None))]
    fn connect(
        py: Python<'_>,
        managers: Option<&str>,
        ca_file: Option<PathBuf>,
        token: Option<String>,
        token_file: Option<PathBuf>,
    ) -> PyResult<PyInvoker> {
        let connected = py.detach(|| {
            let mut access = match managers {
                Some(managers) => Access::parse(managers)?.with_env()?,
                None => Access::from_env()?,
            };
            if let Some(path) = ca_file {
                access = access.with_ca_file(&path)?;
            }
            if let Some(path) = token_file {
                access = access.with_token_file(&path)?;
            }
            if let Some(token) = token {
                access = access.with_token(token)?;
            }
            let pool = MemoryPool::shared()?;
            let invoker = sublet::Invoker::connect_with_memory(access, pool.memory())?;
            Ok(LeasedInvoker::of(invoker, pool.clone()))
        });
        connected.map_err(|error| raised(py, &error))
    }

    /// Makes another invoker with the same connection, without leases. It is either for workers on this machine, which
    /// reach all registered arrays, or for others, which have copies in their memory, and reach only the messages of
    /// their calls.
    fn another(&self, py: Python<'_>, is_near: bool) -> PyResult<PyInvoker> {
        let made = py.detach(|| {
            let pool = if is_near {
                MemoryPool::shared()?.clone()
            } else {
                MemoryPool::of(RegisteredMemory::new()?)
            };
            Ok(LeasedInvoker::of(self.read().another(pool.memory()), pool))
        });
        made.map_err(|error: Error| raised(py, &error))
    }

    /// A memory component, which leases nothing before its first access.
    #[pyo3(signature = (**options))]
    fn memory(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<PyMemory> {
        let plan = planned(py, options)?;
        let made = py.detach(|| self.read().memory(plan));
        made.map(PyMemory::new).map_err(|error| raised(py, &error))
    }

    /// Gives the managers a package, by the path of its folder; its digest.
    fn deploy(&self, py: Python<'_>, path: PathBuf) -> PyResult<String> {
        py.detach(|| self.read().deploy(&path)).map_err(|error| raised(py, &error))
    }

    /// Gives the managers the document of a graph, and opens it.
    #[pyo3(signature = (document, **options))]
    fn deploy_graph(
        &self,
        py: Python<'_>,
        document: &[u8],
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyApplication> {
        let options = chosen(py, options)?;
        let made = py.detach(|| self.read().deploy_graph(document, options));
        made.map(PyApplication::new).map_err(|error| raised(py, &error))
    }

    /// Opens a deployed graph, by its name or digest.
    #[pyo3(signature = (name, **options))]
    fn open_graph(
        &self,
        py: Python<'_>,
        name: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyApplication> {
        let options = chosen(py, options)?;
        let made = py.detach(|| self.read().open_graph(name, options));
        made.map(PyApplication::new).map_err(|error| raised(py, &error))
    }

    /// A run, by its identifier.
    fn open_run(&self, run: &str) -> PyRun {
        PyRun::new(self.read().open_run(run))
    }

    /// Whether a node of the managers is on this machine, as far as one may know.
    fn has_near_nodes(&self, py: Python<'_>) -> bool {
        py.detach(|| match (self.read().manager().nodes(), own_host()) {
            (Ok(nodes), Ok(host)) => {
                nodes.iter().flat_map(|node| &node.description).any(|node| node.host == host)
            }
            _ => true,
        })
    }

    /// Leases cores for the functions of a package: what `options` says are the methods of an allocation, with times in seconds.
    #[pyo3(signature = (package, **options))]
    fn allocate(&self, py: Python<'_>, package: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let mut allocation = Allocation::new(package);
        for (name, value) in options.into_iter().flatten() {
            let name: String = name.extract()?;
            if !value.is_none() {
                allocation = choose(py, allocation, &name, &value)?;
            }
        }
        py.detach(|| self.write().allocate(&allocation)).map_err(|error| raised(py, &error))
    }

    /// Leases `cores` more cores on the same terms.
    fn grow(&self, py: Python<'_>, cores: u32) -> PyResult<()> {
        py.detach(|| self.write().grow(cores)).map_err(|error| raised(py, &error))
    }

    /// Sets the end of all leases to `timeout` seconds from now.
    fn renew(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(py, "timeout", timeout)?;
        py.detach(|| self.read().renew(timeout)).map_err(|error| raised(py, &error))
    }

    /// Releases everything. Returns each lease, with its use.
    fn deallocate<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let leases = py.detach(|| self.write().deallocate_each());
        self.0.lent.clear();
        let leases = leases.map_err(|error| raised(py, &error))?;
        leases.iter().map(|lease| described(py, lease)).collect()
    }

    /// The leases, those that are over included.
    fn leases<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let leases = py.detach(|| self.read().leases());
        leases.iter().map(|lease| described(py, lease)).collect()
    }

    /// Returns announcements of the agents: the lease, and a message that says when it will end in Unix seconds, and
    /// why.
    fn notices(&self, py: Python<'_>) -> Vec<(String, String)> {
        let notices = py.detach(|| self.read().notices());
        notices.into_iter().map(|notice| (notice.lease, notice.error.message)).collect()
    }

    /// Returns the fabric that carries the calls of each lease.
    fn fabrics(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.read().fabrics()).iter().map(ToString::to_string).collect()
    }

    /// Returns use and cost of one lease, or of all that the caller may see: a dict for each lease, the newest first.
    #[pyo3(signature = (lease=None))]
    fn bill<'py>(&self, py: Python<'py>, lease: Option<String>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let request = BillRequest { lease: lease.unwrap_or_default(), ..BillRequest::default() };
        let bill = py.detach(|| self.read().manager().bill(request)).map_err(|error| raised(py, &error))?;
        bill.lines.iter().map(|line| billed(py, line)).collect()
    }

    /// Returns every processing unit of the managers, a dict for each.
    fn pus<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let units = py.detach(|| self.read().manager().units()).map_err(|error| raised(py, &error))?;
        units.iter().map(|unit| computing(py, unit)).collect()
    }

    /// A module that a node of the leases cannot keep warm, what importing it does, and how many milliseconds the imports take.
    fn cold_imports(&self, py: Python<'_>) -> Option<(String, String, u32)> {
        let cold = py.detach(|| self.read().cold_imports())?;
        Some((cold.module, cold.reason, cold.import_ms))
    }

    /// Returns the name of the isolation of the lease's workers, or None without a lease.
    fn isolation(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.read().isolation())
    }

    /// Returns the number of messages of ended calls that workers still use.
    fn lent(&self) -> usize {
        self.0.lent.count()
    }

    /// Returns the number of workers.
    fn workers(&self, py: Python<'_>) -> u32 {
        py.detach(|| self.read().workers())
    }

    /// Whether all of them share this process's memory.
    fn shares_memory(&self, py: Python<'_>) -> bool {
        py.detach(|| self.read().fabrics()).iter().all(|fabric| *fabric == FabricChoice::Shm)
    }

    /// The leased package: its name, its digest, its functions, whether they are in Python, whether the package is this
    /// client's own, and the package's owner.
    fn package(&self, py: Python<'_>) -> Option<PackageFields> {
        py.detach(|| {
            let invoker = self.read();
            let package = invoker.package()?;
            let functions = package.functions.iter().map(|function| function.name.clone()).collect();
            let is_python = package.builds.iter().all(|build| build.kind == PYTHON);
            let (name, digest) = (package.name.clone(), package.digest.clone());
            Some((name, digest, functions, is_python, invoker.owns_package(), package.owner.clone()))
        })
    }

    /// Calls a function in Python with parts of which the first is a pickle.
    #[pyo3(signature = (function, operation, parts, *, capacity=0, shares_memory=false, worker=None, retries=0, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names where they are said")]
    fn call(
        &self,
        py: Python<'_>,
        function: &str,
        operation: u32,
        parts: Vec<Bound<'_, PyAny>>,
        capacity: u32,
        shares_memory: bool,
        worker: Option<u32>,
        retries: u32,
        timeout: Option<f64>,
    ) -> PyResult<PyCall> {
        static TOKENS: AtomicU64 = AtomicU64::new(1);
        let token = TOKENS.fetch_add(1, Ordering::Relaxed);
        let operation = if shares_memory { operation | SHARES_MEMORY } else { operation };
        let head = Head { operation, token };
        let request = WrittenRequest::new(py, head, &parts, (&self.0.pool, shares_memory))?;
        let asked = self.asked(py, function, worker, retries, timeout)?;
        let failed = |error: Error| raised(py, &error);
        let output = self.0.pool.take(u64::from(capacity)).map_err(failed)?;
        let invocation = self.0.send(&asked, (&request.paper, request.len_bytes), (&output, output.len()));
        let sent = SentRequest::Objects { request: Arc::new(request), output };
        Ok(PyCall::new(invocation.map_err(failed)?, asked, sent, self.0.clone()))
    }

    /// Calls a function that is not in Python. Its input is an object's memory. Its output is another object's memory,
    /// or new memory of
    /// the given size.
    #[pyo3(signature = (function, input, output, *, worker=None, retries=0, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names where they are said")]
    fn call_bytes(
        &self,
        py: Python<'_>,
        function: &str,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        worker: Option<u32>,
        retries: u32,
        timeout: Option<f64>,
    ) -> PyResult<PyCall> {
        let asked = self.asked(py, function, worker, retries, timeout)?;
        let input = BufferView::of(input, BufferUse::Reading)?;
        let failed = |error: Error| raised(py, &error);
        let (from, mut held) =
            self.0.within_reach(&input, size(py, "input", input.len_bytes())?).map_err(failed)?;
        let (invocation, sent) = if let Ok(capacity) = output.extract::<u32>() {
            let paper = self.0.pool.take(u64::from(capacity)).map_err(failed)?;
            let to = (paper.start().as_ptr(), capacity);
            let invocation = self.0.send_raw(&asked, from, to);
            held.output = Some(paper);
            held.views.push(Arc::new(input));
            (invocation, SentRequest::Bytes(held))
        } else {
            let output = BufferView::of(output, BufferUse::Writing)?;
            let to = (output.pointer().as_ptr(), size(py, "output", output.len_bytes())?);
            let invocation = self.0.send_raw(&asked, from, to);
            held.views.extend([Arc::new(input), Arc::new(output)]);
            (invocation, SentRequest::Bytes(held))
        };
        Ok(PyCall::new(invocation.map_err(failed)?, asked, sent, self.0.clone()))
    }
}

impl PyInvoker {
    pub(crate) fn read(&self) -> std::sync::RwLockReadGuard<'_, ForkCell<sublet::Invoker>> {
        self.0.invoker.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, ForkCell<sublet::Invoker>> {
        self.0.invoker.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(
        &self,
        py: Python<'_>,
        function: &str,
        worker: Option<u32>,
        retries: u32,
        timeout: Option<f64>,
    ) -> PyResult<RequestedCall> {
        let function = self.read().function(function).map_err(|error| raised(py, &error))?;
        let timeout = timeout.map(|timeout| seconds(py, "timeout", timeout)).transpose()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(RequestedCall { function, worker, retries, deadline })
    }
}

/// One of the choices of an allocation.
fn choose(
    py: Python<'_>,
    allocation: Allocation,
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<Allocation> {
    let time = || value.extract().and_then(|value: f64| seconds(py, name, value));
    Ok(match name {
        "cores" => allocation.cores(number(py, name, value)?),
        "memory_bytes" => allocation.memory_bytes(number(py, name, value)?),
        "timeout" => allocation.timeout(time()?),
        "slots" => allocation.slots(number(py, name, value)?),
        "slot_bytes" => allocation.slot_bytes(number(py, name, value)?),
        "policy" => allocation.policy(policy(py, value)?),
        "spin" => allocation.spin(time()?),
        "start_timeout" => allocation.start_timeout(time()?),
        "progress" => {
            let function = value.clone().unbind();
            allocation.on_step(move |step| tell_step(&function, step))
        }
        "max_nodes" => allocation.max_nodes(number(py, name, value)?),
        "shared" => match value.extract()? {
            true => allocation.shared(),
            false => allocation,
        },
        "wait" => allocation.wait(time()?),
        "idle_timeout" => allocation.idle_timeout(time()?),
        "pu" => allocation.pu(value.extract::<String>()?),
        "time_weight" => allocation.time_weight(value.extract()?),
        "fabric" => {
            let fabric: String = value.extract()?;
            allocation.fabric(fabric.parse().map_err(|error: Error| raised(py, &error))?)
        }
        "interface" => allocation.interface(value.extract::<String>()?),
        "pool" => {
            let pool: String = value.extract()?;
            allocation.pool(pool.parse().map_err(|error: Error| raised(py, &error))?)
        }
        "variables" => each_pair(value, allocation, Allocation::variable)?,
        "secrets" => each_pair(value, allocation, Allocation::secret)?,
        "folders" => value.extract::<Vec<String>>()?.into_iter().fold(allocation, Allocation::folder),
        "devices" => {
            let counts = value.extract::<std::collections::BTreeMap<String, u32>>()?.into_iter();
            counts.fold(allocation, |allocation, (kind, count)| allocation.devices(kind, count))
        }
        "temporary_bytes" => allocation.temporary_bytes(number(py, name, value)?),
        "isolation" => allocation.isolation(value.extract::<String>()?),
        _ => return Err(invalid(py, format!("a lease has no option {name}"))),
    })
}

/// Adds each pair of a dict of texts to an allocation.
fn each_pair(
    pairs: &Bound<'_, PyAny>,
    allocation: Allocation,
    add: fn(Allocation, String, String) -> Allocation,
) -> PyResult<Allocation> {
    let mut allocation = allocation;
    for (name, value) in pairs.cast::<PyDict>()? {
        allocation = add(allocation, name.extract()?, value.extract()?);
    }
    Ok(allocation)
}

/// Calls a function of the program with a step of a start. An exception of it is printed, as for other callbacks.
fn tell_step(function: &Py<PyAny>, step: &str) {
    Python::try_attach(|py| {
        if let Err(error) = function.call1(py, (step,)) {
            error.write_unraisable(py, Some(function.bind(py)));
        }
    });
}

/// Parses a policy: `hot`, `warm`, or a number of seconds to poll after each call.
fn policy(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Policy> {
    if let Ok(time) = value.extract::<f64>() {
        return Ok(Policy::HotFor(seconds(py, "policy", time)?));
    }
    match value.extract::<String>()?.as_str() {
        "hot" => Ok(Policy::AlwaysHot),
        "warm" => Ok(Policy::AlwaysWarm),
        other => Err(invalid(
            py,
            format!("the policy {other:?} is neither \"hot\", \"warm\" nor a number of seconds"),
        )),
    }
}

/// Reads a number. The exception for a number out of range has the option's name.
pub fn number<'py, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
    py: Python<'py>,
    name: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<T> {
    value.extract().map_err(|error: PyErr| match error.is_instance_of::<PyOverflowError>(py) {
        true => invalid(py, format!("the {name} {value} is out of range")),
        false => error,
    })
}

/// A time that was said as a number.
pub fn seconds(py: Python<'_>, what: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| invalid(py, format!("the {what} {value} is no time in seconds")))
}

fn size(py: Python<'_>, what: &str, len_bytes: u64) -> PyResult<u32> {
    u32::try_from(len_bytes).map_err(|_| {
        let message = format!("an {what} of {len_bytes} bytes: at most {} are taken", u32::MAX);
        raised(py, &Error::new(Code::InvalidArgument, message))
    })
}

/// A lease, as Python has it.
pub fn described<'py>(py: Python<'py>, lease: &Lease) -> PyResult<Bound<'py, PyDict>> {
    let described = PyDict::new(py);
    described.set_item("id", &lease.id)?;
    described.set_item("node", &lease.node)?;
    described.set_item("package", &lease.package)?;
    described.set_item("pu", &lease.pu)?;
    described.set_item("choice", &lease.choice)?;
    described.set_item("cores", lease.cores)?;
    described.set_item("memory_bytes", lease.memory_bytes)?;
    described.set_item("expires_unix_ms", lease.expires_unix_ms)?;
    if let Some(usage) = &lease.usage {
        described.set_item("usage", used(py, usage)?)?;
    }
    Ok(described)
}

fn billed<'py>(py: Python<'py>, line: &BillLine) -> PyResult<Bound<'py, PyDict>> {
    let billed = PyDict::new(py);
    billed.set_item("lease", &line.lease)?;
    billed.set_item("tenant", &line.tenant)?;
    billed.set_item("package", &line.package_name)?;
    billed.set_item("pu", &line.pu)?;
    billed.set_item("cores", line.cores)?;
    billed.set_item("memory_bytes", line.memory_bytes)?;
    billed.set_item("usage", used(py, line.usage.as_ref().unwrap_or(&Usage::default()))?)?;
    billed.set_item("allocation_nano", line.allocation_nano)?;
    billed.set_item("compute_nano", line.compute_nano)?;
    billed.set_item("polling_nano", line.polling_nano)?;
    billed.set_item("total_nano", line.total_nano)?;
    Ok(billed)
}

fn computing<'py>(py: Python<'py>, unit: &ProcessingUnit) -> PyResult<Bound<'py, PyDict>> {
    let Price { allocation_nano_per_gib_s, compute_nano_per_core_s, polling_nano_per_core_s } =
        unit.price.unwrap_or_default();
    let (price, computing) = (PyDict::new(py), PyDict::new(py));
    price.set_item("allocation_nano_per_gib_s", allocation_nano_per_gib_s)?;
    price.set_item("compute_nano_per_core_s", compute_nano_per_core_s)?;
    price.set_item("polling_nano_per_core_s", polling_nano_per_core_s)?;
    computing.set_item("id", unit.id)?;
    computing.set_item("node", &unit.node)?;
    computing.set_item("unit", &unit.unit)?;
    computing.set_item("kind", &unit.kind)?;
    computing.set_item("architecture", &unit.architecture)?;
    computing.set_item("model", &unit.model)?;
    computing.set_item("cores", unit.cores)?;
    computing.set_item("memory_bytes", unit.memory_bytes)?;
    computing.set_item("abilities", PyTuple::new(py, &unit.abilities)?)?;
    computing.set_item("price", price)?;
    computing.set_item("neighbours", PyTuple::new(py, &unit.neighbours)?)?;
    Ok(computing)
}

fn used<'py>(py: Python<'py>, usage: &Usage) -> PyResult<Bound<'py, PyDict>> {
    let used = PyDict::new(py);
    used.set_item("calls", usage.calls)?;
    used.set_item("failed_calls", usage.failed_calls)?;
    used.set_item("allocated_ns", usage.allocated_ns)?;
    used.set_item("executing_ns", usage.executing_ns)?;
    used.set_item("polling_ns", usage.polling_ns)?;
    Ok(used)
}
