//! Tests of templates in images: copies of an image's warm Python have the walls and the files of a container. Tests of
//! templates as such are in `templates.rs`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sublet_means::{Means, skip};
use sublet_sandbox::{IsolationKind, Language, NetworkAccess, ProgramEnd, Spec};

use crate::support::python_image::PythonImage;
use crate::support::{self, SandboxFixture, Sort, StartedSandbox};

/// Longest wait for a template to become warm.
const PATIENCE: Duration = Duration::from_secs(60);
/// First lines of each program: they define the function that writes a line to the control socket, and whether the program runs
/// in a copy.
const SAY: &str = "import os, sys\ncopied = 'sublet_template' in sys.modules\ndef say(*words): os.write(0, (' '.join(map(str, words)) + '\\n').encode())\n";
/// Modules of the image.
const MODULES: [(&str, &str); 4] = [
    ("kept", "state = []\nimport os\nimporter = os.getpid()"),
    ("keeps_library", "import ctypes\ncode = ctypes.CDLL('/probe.so')\nfile = open('/probe.so', 'rb', 0)"),
    (
        "starts_thread",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    ),
    ("writes", "open('/left', 'w')"),
];

/// A spawner, and an image of Python.
struct Scene {
    fixture: SandboxFixture,
    image: PythonImage,
}

impl Scene {
    fn new() -> Scene {
        Scene { fixture: SandboxFixture::open(Sort::Process), image: PythonImage::make(&MODULES, &[]) }
    }

    /// Runs code with modules in a copy, if there is one.
    #[track_caller]
    fn run(&self, code: &str, imports: &[&str]) -> (String, ProgramEnd) {
        self.fixture.run_with(&["one", "two"], self.image.copied(&format!("{SAY}{code}"), imports))
    }

    #[track_caller]
    fn start(&self, code: &str, imports: &[&str]) -> StartedSandbox {
        self.fixture.start_with(&[], self.image.copied(&format!("{SAY}{code}"), imports))
    }

    /// Requests modules until a program is executed by a copy.
    #[track_caller]
    fn warm(&self, imports: &[&str]) {
        let begun = Instant::now();
        while self.run("say(copied)", imports).0 != "True\n" {
            assert!(begun.elapsed() < PATIENCE, "no template in the image gets {imports:?}");
        }
    }

    /// Output of the probe with these arguments, in a new interpreter and in a copy.
    #[track_caller]
    fn probe(&self, words: &[&str]) -> [String; 2] {
        let code = PythonImage::probing();
        let started = self.fixture.run_with(words, self.image.started(&code)).0;
        // It fails in an interpreter that has just been started.
        let copied = format!("import sys\nassert 'sublet_template' in sys.modules\n{code}");
        [started, self.fixture.run_with(words, self.image.copied(&copied, &[])).0]
    }
}

/// The templates of a sandbox's spawner.
fn templates_of(tenant: &StartedSandbox) -> Vec<Pid> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let spawner = parent(parent(tenant.made.state.pid.unwrap()).unwrap()).unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let is_template = |pid: &u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent(*pid) == Some(spawner)
            && namespace(*pid) == namespace(spawner)
            && command.contains("SUBLET_ADAPTER")
    };
    numbers.filter(is_template).filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect()
}

#[test]
fn program_in_a_copy_runs_as_in_a_started_interpreter() {
    let scene = Scene::new();
    let code = "\
say(__name__, sys.argv, sys.executable, sys.prefix, os.getcwd(), os.getpid(), sys.flags)
say(sys.path, sorted(os.environ.items()), sorted(os.listdir('/proc/self/fd')), os.listdir('/proc/self/task'))
say(sorted(os.listdir('/')), '__file__' in globals(), sys.modules['__main__'].__dict__ is globals())
import kept, multiprocessing
process = multiprocessing.get_context('fork').Process(target=os._exit, args=(7,)); process.start(); process.join()
say(process.exitcode)
sys.exit(3)";
    let started = scene.fixture.run_with(&["one", "two"], scene.image.started(&format!("{SAY}{code}")));
    assert!(started.0.ends_with("\n7\n"), "{}", started.0);
    scene.warm(&[]);
    let copied = scene.run(&format!("assert copied\n{code}"), &[]);
    assert_eq!(copied, started);
    assert_eq!(copied.1, ProgramEnd::Status(3));
}

#[test]
fn copy_has_the_walls_of_a_container() {
    let scene = Scene::new();
    scene.warm(&[]);
    let outside = std::process::id().to_string();
    let attacks: [(&[&str], usize); 6] = [
        (&["files", "/etc/shadow", "/home", "/usr/share", "/dev/mem", "/proc/kcore", "/proc/cmdline"], 36),
        (&["processes", &outside], 30),
        (&["sockets"], 36),
        (&["namespaces"], 27),
        (&["mounts"], 10),
        (&["calls"], 38),
    ];
    for (words, tries) in attacks {
        let counts = scene.probe(words).map(|said| {
            assert!(!said.contains("BREACH") && said.ends_with("said done\n"), "{words:?}: {said}");
            said.lines().filter(|line| line.starts_with("blocked")).count()
        });
        assert!(counts[0] == counts[1] && counts[0] >= tries, "{words:?}: {counts:?}");
    }
    let kinds = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "group", "host", "core", "first"];
    let [started, copied] = scene.probe(&["walls"]).map(|said| {
        let lines = said.lines().filter_map(|line| line.strip_prefix("said "));
        let walls = lines.filter(|line| kinds.iter().any(|kind| line.starts_with(kind)));
        walls.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(copied, started);
    assert!(copied.contains(&"CapEff 0000000000000000".to_owned()), "{copied:?}");
    assert!(copied.contains(&"Seccomp 2".to_owned()), "{copied:?}");
}

#[test]
fn changes_of_a_copy_are_its_own() {
    let scene = Scene::new();
    scene.warm(&["kept"]);
    let code = "\
import kept
say(copied, kept.importer != os.getpid(), kept.state, os.path.exists('/new'), os.path.exists('/tmp/new'))
kept.state.append(1)
for path in ('/new', '/tmp/new', '/modules/kept.py'): open(path, 'w').write('raise SystemExit')";
    for _ in 0..4 {
        let ended = scene.run(code, &["kept"]);
        assert_eq!(ended, ("True True [] False False\n".to_owned(), ProgramEnd::Status(0)));
    }
}

/// The file of the library is of the template's root, which is not in the sandbox.
#[test]
fn open_library_is_reopened_in_each_copy() {
    let scene = Scene::new();
    let imports = ["keeps_library"];
    scene.warm(&imports);
    let reads = "file = sys.modules['keeps_library'].file; say(file.tell(), file.read(4))";
    for _ in 0..2 {
        let ended = scene.run(reads, &imports);
        assert_eq!(ended, ("0 b'\\x7fELF'\n".to_owned(), ProgramEnd::Status(0)));
    }
}

#[test]
fn what_prevents_a_template_is_named_and_the_interpreter_started() {
    let scene = Scene::new();
    for (module, reason) in [("starts_thread", "starts 1 thread"), ("writes", "fails with OSError")] {
        let begun = Instant::now();
        let cold = loop {
            assert!(begun.elapsed() < PATIENCE, "no reason is reported for {module}");
            let mut tenant = scene.start("say(copied)", &[module]);
            assert_eq!(tenant.read_all(), "False\n");
            if let Some(cold) = tenant.made.cold_imports {
                break cold;
            }
        };
        assert_eq!(cold.module, module);
        assert!(cold.reason.starts_with(reason), "{}", cold.reason);
    }
}

#[test]
fn interpreter_is_started_without_its_template() {
    let scene = Scene::new();
    assert_eq!(scene.run("say(copied)", &[]).0, "False\n", "nothing waits for a template");
    scene.warm(&[]);
    let mut tenant = scene.start("say('here'); os.read(0, 1); say('still')", &[]);
    assert_eq!(tenant.read_line(), "here");
    let templates = templates_of(&tenant);
    assert_eq!(templates.len(), 1);
    templates.iter().for_each(|&template| kill_process(template, Signal::KILL).unwrap());
    for _ in 0..4 {
        assert_eq!(scene.run("say(1)", &[]), ("1\n".to_owned(), ProgramEnd::Status(0)));
    }
    rustix::io::write(&tenant.outside, b"x").unwrap();
    assert_eq!(tenant.read_all(), "still\n");
}

#[test]
fn template_in_an_image_has_no_rights_and_changes_nothing() {
    if !support::is_root() {
        skip(Means::Root, "only root can look at a template");
        return;
    }
    let scene = Scene::new();
    scene.warm(&[]);
    let mut tenant = scene.start("say('here'); os.read(0, 1)", &[]);
    assert_eq!(tenant.read_line(), "here");
    for template in templates_of(&tenant) {
        let template = template.as_raw_nonzero();
        let read = |file: &str| fs::read_to_string(format!("/proc/{template}/{file}")).unwrap();
        let status = read("status");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n") && !status.contains("Uid:\t0\t"), "{status}");
        let mounts = read("mountinfo");
        let roots = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/"));
        let options: Vec<_> = roots.filter_map(|line| line.split(" - ").nth(1)?.split(' ').nth(2)).collect();
        assert_eq!(options.len(), 1, "{mounts}");
        assert!(options[0].split(',').any(|option| option == "ro"), "{mounts}");
        let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
        assert_ne!(network(&template.to_string()), network("self"));
    }
}

#[test]
fn template_ends_with_the_layers_of_its_image() {
    let scene = Scene::new();
    scene.warm(&[]);
    let mut tenant = scene.start("say('here'); os.read(0, 1)", &[]);
    assert_eq!(tenant.read_line(), "here");
    let look = || scene.fixture.sandboxes.keep_standby(Vec::new(), 0).unwrap();
    assert!(look().is_empty());
    assert_eq!(templates_of(&tenant).len(), 1, "a look harms no template whose layers are there");
    scene.image.remove();
    look();
    assert!(templates_of(&tenant).is_empty(), "it would keep the files of the layers on the disk");
}

#[test]
fn what_makes_no_template_in_an_image_is_named() {
    let scene = Scene::new();
    let refusal = |change: &dyn Fn(&mut Spec)| {
        let (mut spec, _outside) = scene.fixture.probe(&[]);
        scene.image.copied("", &[])(&mut spec);
        change(&mut spec);
        scene.fixture.sandboxes.launch(vec![spec]).remove(0).unwrap_err().to_string()
    };
    let of_template = |change: fn(&mut sublet_sandbox::Template)| {
        refusal(&|spec| match &mut spec.kind {
            IsolationKind::Template(template) => change(template),
            other => panic!("{other:?}"),
        })
    };
    let network = refusal(&|spec| spec.network = NetworkAccess::Host);
    assert!(network.contains("no network"), "{network}");
    for refused in [
        of_template(|template| template.language = Language::Node),
        of_template(|template| template.environment = Some("/environment".into())),
        of_template(|template| template.search_path = vec!["/modules".into()]),
    ] {
        assert!(refused.contains("a Python with the modules of the image"), "{refused}");
    }
    let layers = of_template(|template| {
        let root = &mut template.image.as_mut().unwrap().root;
        root.layers = vec![root.layers[0].clone(); sublet_sandbox::MAX_LAYERS + 1];
    });
    assert!(layers.contains("at most 128 layers"), "{layers}");
}
