//! Language runtimes of this node that are kept warm: interpreters, and the modules that each loads before it is
//! forked. Workers for packages in Python and in Node.js are copies of such an interpreter.

use std::fs;
use std::path::{Path, PathBuf};

use sublet_proto::package::{PythonPlatform, is_python, nodejs_architecture, python_architecture, runs_on};
use sublet_proto::v1::{PackageBuild, SandboxTemplate};
use sublet_proto::{Code, Error};
use sublet_sandbox::{Interpreter, Language, MAX_IMPORTS, Template, decode_language};
use tracing::info;

use crate::execution::programs::{find_command, find_program};
use crate::machine::state::system;

/// The program of a worker in Python: what its interpreter has loaded does the rest.
const PYTHON_WORKER: &str = "import sublet_template\nsublet_template.work()\n";
/// The same in Node.js. Only a file has the right to import modules of ECMAScript.
const NODE_WORKER: &str = "require('sublet_template').work((path) => import(path));\n";
/// Command name of the Python that is searched for.
const FOUND_PYTHON: &str = "python3";

/// Interpreters to keep warm.
#[derive(Clone, Debug, Default)]
pub struct WarmInterpreters {
    /// A Python.
    pub python: Python,
    /// Paths in which the Python looks for modules, in place of its own; empty for its own.
    pub python_path: Vec<PathBuf>,
    /// A Node.js, by its path or name.
    pub node: Option<PathBuf>,
    /// The folder of modules that programs of the Node.js find, wherever they are.
    pub node_modules: Option<PathBuf>,
    /// Memory for processes of the Python that have imported modules which no template can have, in bytes; 0 for none. The
    /// node does not lend it.
    pub standby_bytes: u64,
}

/// Choice of the Python to keep warm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Python {
    /// No Python is kept warm.
    #[default]
    None,
    /// This one, by its path or name; the agent does not start if it does not work.
    Named(PathBuf),
    /// The `python3` that is found where programs are, if there is one that works.
    Found,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Runtimes {
    known: Vec<LanguageRuntime>,
}

struct LanguageRuntime {
    language: Language,
    interpreter: Interpreter,
    adapter: PathBuf,
    /// The source file of workers, in the agent's state folder.
    worker: PathBuf,
    /// Architecture of packages for this interpreter; nothing for a version that is not known.
    architecture: Option<String>,
    /// The platform of wheels that it can use, if it can use any but those in pure Python.
    platform: Option<String>,
    /// Paths in which it looks for modules, in place of its own; empty for its own.
    search_path: Vec<PathBuf>,
}

impl Runtimes {
    /// Finds the interpreters. The modules that they load stand beside the program that makes sandboxes.
    pub(crate) fn find(warm: &WarmInterpreters, spawner: &Path, state: &Path) -> Result<Runtimes, Error> {
        let mut known = Vec::new();
        let mut add = |language: Language, found: Result<Interpreter, sublet_sandbox::SandboxError>| {
            let mut interpreter =
                found.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
            let adapter = find_program("template", &spawner.with_file_name(language.adapter()))?;
            let (file, source, architecture, platform) = match language {
                Language::Python => {
                    let architecture = python_architecture(&interpreter.version);
                    let platform = architecture.as_deref().and_then(|python| platform(python, &interpreter));
                    ("worker.py", PYTHON_WORKER, architecture, platform)
                }
                _ => ("worker.js", NODE_WORKER, nodejs_architecture(&interpreter.version), None),
            };
            let mut search_path = Vec::new();
            if language == Language::Python {
                // Sandboxes do not have the links of the host. A path need not exist, as that of the library's archive.
                let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
                search_path = warm.python_path.iter().map(real).collect();
                interpreter.shown.extend(search_path.iter().filter(|path| path.exists()).cloned());
            }
            let worker = state.join(file);
            fs::write(&worker, source).map_err(|error| system("writing", &worker, &error))?;
            known.push(LanguageRuntime {
                language,
                interpreter,
                adapter,
                worker,
                architecture,
                platform,
                search_path,
            });
            Ok::<_, Error>(())
        };
        // Not the file that a link leads to: an environment is known by where its links are.
        let python = |program: &Path| Ok::<_, Error>(Interpreter::python(&find_command("Python", program)?));
        match &warm.python {
            Python::None => {}
            Python::Named(program) => add(Language::Python, python(program)?)?,
            Python::Found => {
                match python(Path::new(FOUND_PYTHON)).and_then(|found| add(Language::Python, found)) {
                    Ok(()) => {}
                    Err(error) => info!(%error, "functions in Python are not executed here"),
                }
            }
        }
        if let Some(program) = &warm.node {
            let modules: Vec<PathBuf> = warm.node_modules.iter().cloned().collect();
            let found = Interpreter::node(&find_command("Node.js", program)?, &modules);
            add(Language::Node, found)?;
        }
        Ok(Runtimes { known })
    }

    /// The Python that is kept warm.
    pub(crate) fn python(&self) -> Option<&Path> {
        let python = self.known.iter().find(|runtime| runtime.language == Language::Python);
        python.map(|runtime| runtime.interpreter.program.as_path())
    }

    /// A specification for each, of a copy without modules of its own.
    pub(crate) fn bare(&self) -> impl Iterator<Item = (Template, PathBuf)> + '_ {
        let template = |runtime: &LanguageRuntime| Template {
            language: runtime.language,
            interpreter: runtime.interpreter.program.clone(),
            adapter: runtime.adapter.clone(),
            imports: Vec::new(),
            environment: None,
            search_path: runtime.search_path.clone(),
            image: None,
            owner: None,
        };
        self.known.iter().map(move |runtime| (template(runtime), runtime.worker.clone()))
    }

    /// Architectures of the packages that this node's interpreters execute.
    fn architectures(&self) -> Vec<String> {
        self.known.iter().filter_map(|runtime| runtime.architecture.clone()).collect()
    }

    /// The same, and the platforms of wheels that they can use.
    pub(crate) fn offered(&self) -> Vec<String> {
        let platforms = self.known.iter().filter_map(|runtime| runtime.platform.clone());
        self.architectures().into_iter().chain(platforms).collect()
    }

    /// Template from which the worker of a build for an interpreter is copied, and the worker's program. A template executes no
    /// code of a tenant. So in an environment the worker imports the build's modules by itself, or is a process on standby that
    /// has imported them for this tenant, if the tenant is known and the node keeps such processes.
    pub(crate) fn worker(
        &self,
        build: &PackageBuild,
        (environment, tenant): (Option<&Path>, Option<&str>),
    ) -> Result<(Template, PathBuf), Error> {
        let is_for = |runtime: &&LanguageRuntime| {
            runtime.architecture.as_ref().is_some_and(|here| runs_on(&build.architecture, here))
        };
        let runtime = self.known.iter().find(is_for).ok_or_else(|| {
            let (library, wanted, offered) = (&build.library, &build.architecture, self.architectures());
            let (language, option) =
                if is_python(wanted) { ("Python", "python") } else { ("Node.js", "node") };
            let here = match offered.is_empty() {
                true => format!("no {language} (its agent was started without --{option})"),
                false => offered.join(", "),
            };
            Error::new(
                Code::WrongArchitecture,
                format!("{library} is for {wanted}, and this node has {here}"),
            )
        })?;
        let can_wait = environment.is_some() && (1..=MAX_IMPORTS).contains(&build.imports.len());
        let owner = tenant.filter(|_| can_wait && is_python(&build.architecture)).map(str::to_owned);
        let are_kept = environment.is_none() || owner.is_some();
        let template = Template {
            language: runtime.language,
            interpreter: runtime.interpreter.program.clone(),
            adapter: runtime.adapter.clone(),
            imports: if are_kept { build.imports.clone() } else { Vec::new() },
            environment: environment.map(Path::to_owned),
            search_path: if environment.is_some() { Vec::new() } else { runtime.search_path.clone() },
            image: None,
            owner,
        };
        Ok((template, runtime.worker.clone()))
    }

    /// Files of the host that sandboxes see beside its libraries.
    pub(crate) fn shown(&self) -> Vec<PathBuf> {
        let all = self.known.iter().flat_map(|runtime| &runtime.interpreter.shown);
        all.cloned().collect()
    }

    /// This node's template for one of which only the language and the modules are known.
    pub(crate) fn complete(&self, wanted: &SandboxTemplate) -> Result<SandboxTemplate, Error> {
        let language = decode_language(wanted.language);
        let runtime = self.known.iter().find(|runtime| Some(runtime.language) == language);
        let runtime = runtime.ok_or_else(|| {
            let name =
                language.map_or_else(|| "such language".to_owned(), |language| format!("{language:?}"));
            let message = format!("this node keeps no {name} warm: its agent was not given one");
            Error::new(Code::InvalidArgument, message)
        })?;
        let bytes = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        Ok(SandboxTemplate {
            interpreter: bytes(&runtime.interpreter.program),
            adapter: bytes(&runtime.adapter),
            search_path: runtime.search_path.iter().map(|path| bytes(path)).collect(),
            // No operator takes a tenant's process on standby.
            owner: None,
            ..wanted.clone()
        })
    }
}

/// The platform of wheels for a Python, if it can use any but those in pure Python.
fn platform(architecture: &str, python: &Interpreter) -> Option<String> {
    let platform = format!("{architecture}-{}-{}", std::env::consts::ARCH, python.libc()?);
    Some(platform).filter(|platform| PythonPlatform::parse(platform).is_some())
}
