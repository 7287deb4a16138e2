//! Helps the tests of sandboxes: a spawner, and a program that tries operations.

#![allow(clippy::unwrap_used, dead_code)]

mod interpreter_files;
pub mod python_image;
pub mod standby;

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use sublet_sandbox::{
    Devices, Finding, Interpreter, IsolationKind, Language, NetworkAccess, NewSandbox, ProgramEnd, RootImage,
    SandboxLimits, SandboxProgram, SandboxState, Sandboxes, Signal, Spec, Strength, Template, USER, Walls,
    strengths,
};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
const SPAWNER: &str = env!("CARGO_BIN_EXE_sublet-spawner");
/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(180);

/// A kind of sandbox, without the parameters of a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Process,
    Container,
    Template,
}

/// Defines a test for every kind of sandbox, of each function that takes a kind.
#[macro_export]
macro_rules! for_every_kind {
    ($($test:ident)*) => {
        mod process {
            $(#[test] fn $test() { super::$test($crate::support::Sort::Process) })*
        }
        mod container {
            $(#[test] fn $test() { super::$test($crate::support::Sort::Container) })*
        }
        mod template {
            $(#[test] fn $test() { super::$test($crate::support::Sort::Template) })*
        }
    };
}

/// The spawner of one test, with a folder.
pub struct SandboxFixture {
    sort: Sort,
    pub sandboxes: Sandboxes,
    pub folder: TempDir,
}

/// A sandbox that was started, and the outside of its control socket.
pub struct StartedSandbox {
    pub made: NewSandbox,
    pub outside: UnixStream,
}

impl SandboxFixture {
    /// Starts a spawner for sandboxes of a kind.
    pub fn open(sort: Sort) -> SandboxFixture {
        SandboxFixture::open_with(sort, Path::new(SPAWNER))
    }

    /// Starts a spawner whose sandboxes also see these paths of the host.
    pub fn showing(sort: Sort, shown: &[PathBuf]) -> SandboxFixture {
        SandboxFixture::made_by(sort, Path::new(SPAWNER), shown)
    }

    /// Starts a spawner like [`SandboxFixture::open`], by another program.
    pub fn open_with(sort: Sort, spawner: &Path) -> SandboxFixture {
        let mut shown = Vec::new();
        if sort == Sort::Template {
            shown.extend_from_slice(&python().shown);
            shown.push(library().to_owned());
        }
        SandboxFixture::made_by(sort, spawner, &shown)
    }

    /// Starts a spawner whose sandboxes have weak isolation.
    pub fn weak(sort: Sort) -> SandboxFixture {
        let mut shown = Vec::new();
        if sort == Sort::Template {
            shown.extend_from_slice(&python().shown);
            shown.push(library().to_owned());
        }
        SandboxFixture::walled(sort, Path::new(SPAWNER), &shown, Walls::Weak)
    }

    fn made_by(sort: Sort, spawner: &Path, shown: &[PathBuf]) -> SandboxFixture {
        SandboxFixture::walled(sort, spawner, shown, Walls::Full)
    }

    fn walled(sort: Sort, spawner: &Path, shown: &[PathBuf], walls: Walls) -> SandboxFixture {
        let folder = tempfile::tempdir().unwrap();
        // The mode of an agent's folder.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let sandboxes = Sandboxes::open(spawner, &root, shown, walls).unwrap();
        SandboxFixture { sort, sandboxes, folder }
    }

    /// Returns a specification of the probe with these arguments, and the outside of its control socket.
    pub fn probe(&self, words: &[&str]) -> (Spec, UnixStream) {
        match self.sort {
            Sort::Process => probe(words),
            Sort::Container => contained_probe(words),
            Sort::Template => copied_probe(words),
        }
    }

    /// Starts the probe with these arguments.
    #[track_caller]
    pub fn start(&self, words: &[&str]) -> StartedSandbox {
        self.start_with(words, |_| {})
    }

    /// Starts a sandbox like [`SandboxFixture::start`], with a changed specification.
    #[track_caller]
    pub fn start_with(&self, words: &[&str], change: impl FnOnce(&mut Spec)) -> StartedSandbox {
        let (mut spec, outside) = self.probe(words);
        change(&mut spec);
        let made = self.sandboxes.launch(vec![spec]).remove(0).unwrap_or_else(|error| panic!("{error}"));
        StartedSandbox { made, outside }
    }

    /// Waits for the end of a sandbox.
    #[track_caller]
    pub fn wait(&self, made: &NewSandbox) -> SandboxState {
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let ready = poll(&mut [PollFd::new(&made.ended, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(ready, 1, "the sandbox does not end");
        self.sandboxes.state(&[made.id]).remove(0).unwrap()
    }

    /// Runs the probe with these arguments, and returns its output and its exit status.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> (String, ProgramEnd) {
        self.run_with(words, |_| {})
    }

    /// Runs the probe like [`SandboxFixture::run`], with a changed specification.
    #[track_caller]
    pub fn run_with(&self, words: &[&str], change: impl FnOnce(&mut Spec)) -> (String, ProgramEnd) {
        let mut tenant = self.start_with(words, change);
        let said = tenant.read_all();
        (said, self.wait(&tenant.made).exit.unwrap())
    }

    pub fn kill(&self, tenant: &StartedSandbox, signal: Signal) {
        self.sandboxes.kill(&[tenant.made.id], signal).remove(0).unwrap();
    }
}

impl StartedSandbox {
    /// Reads the output until no process in the sandbox has the socket any more.
    pub fn read_all(&mut self) -> String {
        self.outside.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut said = Vec::new();
        self.outside.read_to_end(&mut said).unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Reads the next line.
    pub fn read_line(&mut self) -> String {
        self.outside.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        while self.outside.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8_lossy(&line).into_owned()
    }
}

/// A specification of the probe with these words, and the outside of its control socket.
pub fn probe(words: &[&str]) -> (Spec, UnixStream) {
    let (outside, inside) = UnixStream::pair().unwrap();
    let spec = Spec {
        lent_folders: Vec::new(),
        device_mounts: Vec::new(),
        kind: IsolationKind::Process,
        program: SandboxProgram::Outside(program().to_owned()),
        args: words.iter().map(Into::into).collect(),
        env: vec![("GIVEN".into(), "yes".into())],
        has_own_variables: false,
        folder: None,
        control: OwnedFd::from(inside),
        log: None,
        network: NetworkAccess::None,
        devices: Devices::None,
        limits: SandboxLimits {
            cores: Vec::new(),
            memory_bytes: Some(64 * MIB),
            shown_memory_bytes: None,
            processes: Some(32),
            scratch_bytes: 4 * MIB,
        },
    };
    (spec, outside)
}

/// Returns a specification like [`probe`], in a container whose image has the probe.
pub fn contained_probe(words: &[&str]) -> (Spec, UnixStream) {
    let (mut spec, outside) = probe(words);
    spec.kind = IsolationKind::Container(RootImage { layers: image().to_vec(), working_folder: "/".into() });
    spec.program = SandboxProgram::Inside("/bin/probe".into());
    (spec, outside)
}

/// Returns a specification like [`probe`], in a copy of a template: a Python program that calls the probe as a library.
pub fn copied_probe(words: &[&str]) -> (Spec, UnixStream) {
    static SOURCE: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    let (source, _) = SOURCE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.py");
        let text = fs::read_to_string(programs().join("probe.py")).unwrap();
        fs::write(&path, text.replace("LIBRARY", library().to_str().unwrap())).unwrap();
        (path, folder)
    });
    let (mut spec, outside) = probe(words);
    spec.kind = IsolationKind::Template(template(&[]));
    spec.program = SandboxProgram::Outside(source.clone());
    (spec, outside)
}

/// Returns a template of the tests' Python.
pub fn template(imports: &[&str]) -> Template {
    template_of(Language::Python, python(), imports)
}

/// Returns a template of an interpreter.
pub fn template_of(language: Language, interpreter: &Interpreter, imports: &[&str]) -> Template {
    Template {
        environment: None,
        search_path: Vec::new(),
        language,
        interpreter: interpreter.program.clone(),
        adapter: Path::new(SPAWNER).with_file_name(language.adapter()),
        imports: imports.iter().map(ToString::to_string).collect(),
        image: None,
        owner: None,
    }
}

/// Returns the Python that `scripts/setup.sh` has installed, with widely used modules.
pub fn python() -> &'static Interpreter {
    static PYTHON: OnceLock<Interpreter> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin/python3");
        Interpreter::python(&folder).unwrap_or_else(|error| panic!("scripts/setup.sh test makes it: {error}"))
    })
}

/// The layers of a small image: the probe below; above it a changed file, and one that is gone.
pub fn image() -> &'static [PathBuf] {
    static IMAGE: OnceLock<(Vec<PathBuf>, TempDir)> = OnceLock::new();
    let (layers, _) = IMAGE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let [lower, upper] = ["lower", "upper"].map(|name| folder.path().join(name));
        fs::create_dir_all(lower.join("bin")).unwrap();
        compile(&["-static"], &lower.join("bin/probe"));
        for (layer, text) in [(&lower, "lower"), (&upper, "upper")] {
            fs::create_dir_all(layer.join("etc")).unwrap();
            fs::write(layer.join("etc/issue"), text).unwrap();
        }
        fs::write(lower.join("etc/gone"), "lower").unwrap();
        // A device 0/0, which every user may create.
        let (mode, none) = (rustix::fs::Mode::empty(), rustix::fs::makedev(0, 0));
        let gone = upper.join("etc/gone");
        rustix::fs::mknodat(rustix::fs::CWD, gone, rustix::fs::FileType::CharacterDevice, mode, none)
            .unwrap();
        for layer in [&lower, &upper] {
            own(layer);
        }
        (vec![lower, upper], folder)
    });
    layers
}

/// Gives all files of a layer to the user of the sandboxes, if this test is root.
pub fn own(path: &Path) {
    if !is_root() {
        return;
    }
    std::os::unix::fs::lchown(path, Some(USER), Some(USER)).unwrap();
    if fs::symlink_metadata(path).unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| own(&entry.unwrap().path()));
    }
}

/// Returns the probe, which is compiled at the first call.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    let (path, _) = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe");
        compile(&[], &path);
        (path, folder)
    });
    path
}

/// Returns the probe as a library, which is compiled at the first call.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    let (path, _) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libprobe.so");
        compile(&["-shared", "-fPIC"], &path);
        (path, folder)
    });
    path
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

fn compile(flags: &[&str], to: &Path) {
    let source = programs().join("probe.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(compiler)
        .args(["-O1", "-w"])
        .args(flags)
        .arg("-o")
        .arg(to)
        .arg(source)
        .status()
        .unwrap();
    assert!(compiled.success());
}

/// Whether a control group limits sandboxes here by this controller. Root can create groups, and so can a user with a
/// delegated group.
pub fn is_bounded(controller: &str) -> bool {
    static FOUND: OnceLock<Vec<Finding>> = OnceLock::new();
    let found = FOUND.get_or_init(|| strengths(Path::new(SPAWNER), Path::new("/usr")).unwrap());
    found.iter().any(|finding| finding.wall == controller && finding.strength == Strength::Full)
}

/// Whether this test has the rights to be several users.
pub fn is_root() -> bool {
    rustix::process::getuid().is_root()
}
