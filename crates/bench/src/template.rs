//! Measures a start of Python or Node.js: from the request for a sandbox to the first line of a function, in a copy of
//! a warm interpreter, beside an interpreter that starts and imports by itself, without a sandbox. The two alternate.
//! No running Sublet is needed.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sublet_fabric::clock::monotonic_ns;
use sublet_proto::{Code, Error};
use sublet_sandbox::{
    Devices, Interpreter, IsolationKind, Language, NetworkAccess, SandboxLimits, SandboxProgram, Sandboxes,
    Spec, Template, Walls,
};

use super::Samples;
use super::cold_result::{ColdStartResult, ColdStartStep, SandboxChoice, micros};

/// Pause between two starts, in which the next copy is prepared.
const PAUSE: Duration = Duration::from_millis(20);
/// Time after which a template that is not warm never becomes so.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes that a function may write.
const SCRATCH_BYTES: u64 = 16 << 20;

/// The warm interpreter.
#[derive(Clone, Debug)]
pub struct WarmTemplate {
    /// The program that makes sandboxes.
    pub spawner: PathBuf,
    /// Language of the interpreter.
    pub language: Language,
    /// The interpreter, by its path or name.
    pub interpreter: PathBuf,
    /// The folder of its modules, for Node.js.
    pub node_modules: Option<PathBuf>,
    /// The modules that the function uses.
    pub imports: Vec<String>,
}

/// One start.
struct TemplateStart {
    total_ns: u64,
    /// Time until the sandbox existed.
    sandbox_ns: u64,
    was_warm: bool,
}

/// Executes `n` starts of each kind.
pub(super) fn run(warm: &WarmTemplate, n: u32, mut progress: impl FnMut()) -> Result<ColdStartResult, Error> {
    let place = tempfile::tempdir().map_err(|error| failed("making a folder", &error))?;
    let (interpreter, source) = warm.of_language()?;
    let script = place.path().join("function");
    fs::write(&script, source).map_err(|error| failed("writing a program", &error))?;
    let root = place.path().join("root");
    fs::create_dir(&root).map_err(|error| failed("making a folder", &error))?;
    let sandboxes = Sandboxes::open(&warm.spawner, &root, &interpreter.shown, Walls::Full)?;
    let template = Template {
        environment: None,
        search_path: Vec::new(),
        language: warm.language,
        interpreter: interpreter.program.clone(),
        adapter: warm.spawner.with_file_name(warm.language.adapter()),
        imports: warm.imports.clone(),
        image: None,
        owner: None,
    };
    let begun = Instant::now();
    while !start(&sandboxes, &template, &script)?.was_warm {
        if begun.elapsed() > PATIENCE {
            let message = format!("no template with the modules {:?} becomes warm", warm.imports);
            return Err(Error::new(Code::System, message));
        }
    }
    let samples = || Samples::with_capacity(n as usize);
    let (mut total, mut floor, mut sandbox, mut function) = (samples(), samples(), samples(), samples());
    for _ in 0..n {
        std::thread::sleep(PAUSE);
        let started = start(&sandboxes, &template, &script)?;
        total.push(started.total_ns);
        sandbox.push(started.sandbox_ns);
        function.push(started.total_ns.saturating_sub(started.sandbox_ns));
        floor.push(start_cold(&interpreter.program, warm.node_modules.as_deref(), &script)?);
        progress();
    }
    let (median_us, p99_us) = micros(&mut total);
    let (floor_us, _) = micros(&mut floor);
    let steps = [("sandbox", &mut sandbox), ("function", &mut function)].map(|(step, samples)| {
        let (median_us, p99_us) = micros(samples);
        ColdStartStep { step, median_us, p99_us }
    });
    let steps = steps.into();
    Ok(ColdStartResult {
        bench: "cold",
        sandbox: SandboxChoice::Template,
        n,
        median_us,
        p99_us,
        floor_us,
        steps,
    })
}

impl WarmTemplate {
    /// Finds the interpreter, and makes a program for it.
    fn of_language(&self) -> Result<(Interpreter, String), Error> {
        match self.language {
            Language::Python => {
                let found = Interpreter::python(&self.interpreter)?;
                Ok((found, in_python(&self.imports)))
            }
            Language::Node => {
                let modules: Vec<_> = self.node_modules.iter().cloned().collect();
                let found = Interpreter::node(&self.interpreter, &modules)?;
                Ok((found, in_javascript(&self.imports)))
            }
            other => Err(Error::new(Code::InvalidArgument, format!("{other:?} is not measured"))),
        }
    }
}

/// Makes a program that reports when its function was entered, and whether its modules were loaded before.
fn in_javascript(imports: &[String]) -> String {
    let names = imports.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    format!(
        "const names = [{names}];\n\
         const warm = names.every((name) => require.resolve(name) === name || require.cache[require.resolve(name)]);\n\
         for (const name of names) require(name);\n\
         const enter = () => require('fs').writeSync(0, `${{process.hrtime.bigint()}} ${{Number(Boolean(warm))}}`);\nenter();\n"
    )
}

/// Makes the same program for Python.
fn in_python(imports: &[String]) -> String {
    let names = imports.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let imported: String = imports.iter().map(|name| format!("import {name}\n")).collect();
    format!(
        "import os, sys, time\nwarm = all(name in sys.modules for name in [{names}])\n{imported}\
         def function():\n    os.write(0, b'%d %d' % (time.monotonic_ns(), warm))\nfunction()\n"
    )
}

fn start(sandboxes: &Sandboxes, template: &Template, script: &Path) -> Result<TemplateStart, Error> {
    let (mut outside, inside) = UnixStream::pair().map_err(|error| failed("making a socket", &error))?;
    let spec = Spec {
        kind: IsolationKind::Template(template.clone()),
        program: SandboxProgram::Outside(script.to_owned()),
        args: Vec::new(),
        env: Vec::new(),
        has_own_variables: false,
        lent_folders: Vec::new(),
        device_mounts: Vec::new(),
        folder: None,
        control: OwnedFd::from(inside),
        log: None,
        network: NetworkAccess::None,
        devices: Devices::None,
        limits: SandboxLimits {
            cores: Vec::new(),
            memory_bytes: None,
            shown_memory_bytes: None,
            processes: None,
            scratch_bytes: SCRATCH_BYTES,
        },
    };
    let begun = monotonic_ns();
    let made = sandboxes.launch(vec![spec]).remove(0)?;
    let sandbox_ns = monotonic_ns().saturating_sub(begun);
    let (entered, was_warm) = told(&mut outside)?;
    // The sandbox ends at about the time at which its socket closes; this is not measured.
    let deadline = Instant::now() + PATIENCE;
    while sandboxes.delete(&[made.id]).remove(0).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(TemplateStart { total_ns: entered.saturating_sub(begun), sandbox_ns, was_warm })
}

/// Starts an interpreter without a sandbox. Returns the time until its function was entered, in nanoseconds.
fn start_cold(interpreter: &Path, modules: Option<&Path>, script: &Path) -> Result<u64, Error> {
    let (mut outside, inside) = UnixStream::pair().map_err(|error| failed("making a socket", &error))?;
    let begun = monotonic_ns();
    let mut command = Command::new(interpreter);
    command.arg(script).env_clear().stdin(OwnedFd::from(inside)).stdout(Stdio::null());
    // Folder of the modules without a sandbox.
    command.envs(modules.map(|folder| ("NODE_PATH", folder)));
    let mut child = command.spawn().map_err(|error| failed("starting an interpreter", &error))?;
    // This also closes this process's copy of the socket.
    drop(command);
    let told = told(&mut outside);
    let _ = child.wait();
    Ok(told?.0.saturating_sub(begun))
}

/// Receives the time at which a function was entered, and whether its modules were loaded.
fn told(outside: &mut UnixStream) -> Result<(u64, bool), Error> {
    let mut text = String::new();
    outside.read_to_string(&mut text).map_err(|error| failed("hearing of a function", &error))?;
    let numbers = text.split_once(' ').and_then(|(at, warm)| Some((at.parse().ok()?, warm == "1")));
    numbers.ok_or_else(|| {
        Error::new(Code::System, "the program was not executed to its end: see what it printed")
    })
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(Code::System, format!("{what} failed: {error}"))
}
