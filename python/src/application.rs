//! Applications of several components, and their runs.

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sublet::{ChannelUse, ComponentUse, Error, LogLine, News, Outcome, RunHandle, RunOptions, Traffic};
use sublet_proto::to_usize;
use sublet_python_buffers::{BufferUse, BufferView};

use crate::component::PyMemory;
use crate::error::{invalid, raised};
use crate::fork_cell::ForkCell;
use crate::invoker::{number, seconds};

/// A deployed graph.
#[pyclass(name = "Application", frozen, module = "sublet._native")]
pub struct PyApplication(ForkCell<sublet::Application>);

/// A run's identifier, of each last component its name and what its instances returned, and what each component had.
/// Last, the name of the memory component that is the result, and the component, if there is one.
type Ran<'py> =
    (String, Vec<(String, Vec<Bound<'py, PyBytes>>)>, Vec<Bound<'py, PyDict>>, Option<(String, PyMemory)>);

/// Reads the options of a run: their names are the fields, with times in seconds.
pub fn chosen(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<RunOptions> {
    let mut chosen = RunOptions::default();
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        let time = || value.extract().and_then(|value: f64| seconds(py, &name, value));
        match name.as_str() {
            "prewarm" => chosen.prewarm = if value.is_none() { None } else { Some(time()?) },
            _ if value.is_none() => (),
            "patience" => chosen.patience = time()?,
            "retries" => chosen.retries = number(py, &name, &value)?,
            "keep_alive" => chosen.keep_alive = time()?,
            "hot_timeout" => chosen.hot_timeout = time()?,
            "lease_timeout" => chosen.lease_timeout = time()?,
            "fabric" => {
                let fabric: String = value.extract()?;
                chosen.fabric = Some(fabric.parse().map_err(|error: Error| raised(py, &error))?);
            }
            _ => return Err(invalid(py, format!("an application has no option {name}"))),
        }
    }
    Ok(chosen)
}

impl PyApplication {
    /// Wraps a deployed application.
    pub fn new(application: sublet::Application) -> PyApplication {
        PyApplication(ForkCell::new(application))
    }
}

#[pymethods]
impl PyApplication {
    /// The digest of its document.
    #[getter]
    fn digest(&self) -> String {
        self.0.digest().to_owned()
    }

    /// Returns the graph's document, with the defaults filled in.
    #[getter]
    fn document(&self) -> String {
        self.0.graph().to_json()
    }

    /// Runs it; calls `news`, if there is any, with what happens: an event, a component, and a number or an exception. The event
    /// `failed` has the failure report, too. Memory components begin with the bytes that `contents` has for their names.
    #[pyo3(signature = (input, news=None, contents=Vec::new()))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        input: &[u8],
        news: Option<&Bound<'py, PyAny>>,
        contents: Vec<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<Ran<'py>> {
        let contents = contents.into_iter().map(|(component, content)| {
            let view = BufferView::of(&content, BufferUse::Reading)?;
            let mut bytes = vec![0; to_usize(view.len_bytes())];
            view.copy_to(0, &mut bytes);
            Ok::<_, PyErr>((component, bytes))
        });
        let contents = contents.collect::<PyResult<Vec<_>>>()?;
        let watch = RunWatch::new(news);
        ran(py, watch, |news, goes_on| self.0.run_filled(input, contents, news, goes_on))
    }

    /// Continues a run whose client has ended.
    #[pyo3(signature = (run, news=None))]
    fn resume<'py>(
        &self,
        py: Python<'py>,
        run: &str,
        news: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Ran<'py>> {
        let watch = RunWatch::new(news);
        ran(py, watch, |news, goes_on| self.0.resume_while(run, news, goes_on))
    }

    /// Begins a run that does not depend on this process.
    fn detach(&self, py: Python<'_>, input: &[u8]) -> PyResult<PyRun> {
        let detached = py.detach(|| self.0.detach(input));
        detached.map(PyRun::new).map_err(|error| raised(py, &error))
    }
}

/// A run that another process drives.
#[pyclass(name = "Run", frozen, module = "sublet._native")]
pub struct PyRun(ForkCell<RunHandle>);

impl PyRun {
    /// Wraps a run.
    pub fn new(run: RunHandle) -> PyRun {
        PyRun(ForkCell::new(run))
    }
}

#[pymethods]
impl PyRun {
    /// The run's identifier.
    #[getter]
    fn id(&self) -> String {
        self.0.id().to_owned()
    }

    /// Waits for the run's result, at most this many seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Ran<'py>> {
        let timeout = timeout.map(|timeout| seconds(py, "timeout", timeout)).transpose()?;
        ran(py, RunWatch::new(None), |_, goes_on| self.0.wait_while(timeout, goes_on))
    }

    /// Ends the run before it is done.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.cancel()).map_err(|error| raised(py, &error))
    }

    /// The latest events of the run: each its time, in milliseconds since 1970, its component or nothing, and its text.
    fn logs(&self, py: Python<'_>) -> PyResult<Vec<(u64, String, String)>> {
        let lines = py.detach(|| self.0.logs()).map_err(|error| raised(py, &error))?;
        let parts = |LogLine { at_unix_ms, component, text }| (at_unix_ms, component, text);
        Ok(lines.into_iter().map(parts).collect())
    }
}

/// A Python thread that waits for a run.
struct RunWatch {
    news: Option<Py<PyAny>>,
    /// Exception that ended the wait.
    raised: Option<PyErr>,
}

impl RunWatch {
    fn new(news: Option<&Bound<'_, PyAny>>) -> RunWatch {
        RunWatch { news: news.map(|news| news.clone().unbind()), raised: None }
    }

    fn hear(&mut self, news: &News) {
        let (Some(called), None) = (&self.news, &self.raised) else { return };
        let told = Python::attach(|py| {
            match news {
                News::Began { component, attempt } => called.call1(py, ("began", component, *attempt)),
                News::Ended { component, took } => called.call1(py, ("ended", component, took.as_secs_f64())),
                News::Waits { component, error } => {
                    called.call1(py, ("waits", component, raised(py, error).into_value(py)))
                }
                News::Lost { component, error } => {
                    called.call1(py, ("lost", component, raised(py, error).into_value(py)))
                }
                News::Failed { component, error, report } => {
                    let (error, report) = (raised(py, error).into_value(py), PyBytes::new(py, report));
                    called.call1(py, ("failed", component, error, report))
                }
            }
            .map(drop)
        });
        self.raised = told.err();
    }

    fn goes_on(&mut self) -> bool {
        if self.raised.is_none() {
            self.raised = Python::attach(|py| py.check_signals()).err();
        }
        self.raised.is_none()
    }
}

/// Runs without the interpreter's lock, until it has ended, the callback raises, or a signal's handler does.
fn ran<'py>(
    py: Python<'py>,
    watch: RunWatch,
    run: impl FnOnce(&mut dyn FnMut(&News), &mut dyn FnMut() -> bool) -> Result<Outcome, Error> + Send,
) -> PyResult<Ran<'py>> {
    let (outcome, watch) = py.detach(|| {
        let watch = RefCell::new(watch);
        let outcome = run(&mut |news| watch.borrow_mut().hear(news), &mut || watch.borrow_mut().goes_on());
        (outcome, watch.into_inner())
    });
    if let Some(raised) = watch.raised {
        return Err(raised);
    }
    let Outcome { run, outputs, components, result } = outcome.map_err(|error| raised(py, &error))?;
    let bytes = |outputs: Vec<Vec<u8>>| outputs.iter().map(|output| PyBytes::new(py, output)).collect();
    let outputs = outputs.into_iter().map(|(component, outputs)| (component, bytes(outputs))).collect();
    let components = components.iter().map(|used| described(py, used)).collect::<PyResult<_>>()?;
    // Nothing else holds it.
    let result = result.and_then(Arc::into_inner);
    let result = result.map(|result| (result.component, PyMemory::new(result.memory)));
    Ok((run, outputs, components, result))
}

fn described<'py>(py: Python<'py>, used: &ComponentUse) -> PyResult<Bound<'py, PyDict>> {
    let described = PyDict::new(py);
    described.set_item("component", &used.component)?;
    described.set_item("attempts", used.attempts)?;
    described.set_item("instances", used.instances)?;
    described.set_item("cores", used.cores)?;
    described.set_item("begin_us", used.begin_us)?;
    described.set_item("end_us", used.end_us)?;
    described.set_item("allocated_bytes", used.allocated_bytes)?;
    described.set_item("used_bytes", used.used_bytes)?;
    described.set_item("allocated_byte_us", used.allocated_byte_us)?;
    described.set_item("used_byte_us", used.used_byte_us)?;
    described.set_item("cpu_ns", used.cpu_ns)?;
    let channels = used.channels.iter().map(|channel| moved(py, channel)).collect::<PyResult<Vec<_>>>()?;
    described.set_item("channels", channels)?;
    Ok(described)
}

/// Describes the data that a component moved to and from a memory component.
fn moved<'py>(py: Python<'py>, channel: &ChannelUse) -> PyResult<Bound<'py, PyDict>> {
    let Traffic { reads, read_bytes, writes, written_bytes, maps, mapped_bytes } =
        channel.traffic.unwrap_or_default();
    let described = PyDict::new(py);
    described.set_item("memory", &channel.memory)?;
    described.set_item("reads", reads)?;
    described.set_item("read_bytes", read_bytes)?;
    described.set_item("writes", writes)?;
    described.set_item("written_bytes", written_bytes)?;
    described.set_item("maps", maps)?;
    described.set_item("mapped_bytes", mapped_bytes)?;
    Ok(described)
}
