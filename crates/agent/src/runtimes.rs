//! The language runtimes of this node that are kept warm: interpreters, and what each loads to be forked.

use std::path::{Path, PathBuf};

use sublet_proto::v1::SandboxTemplate;
use sublet_proto::{Code, Error};
use sublet_sandbox::{Interpreter, Language, decode_language};

use crate::{find_command, find_program};

/// Which interpreters are to be kept warm.
#[derive(Clone, Debug, Default)]
pub struct Warm {
    /// A Python, by its path or name.
    pub python: Option<PathBuf>,
    /// A Node.js, by its path or name.
    pub node: Option<PathBuf>,
    /// The folder of modules that programs of the Node.js find, wherever they are.
    pub node_modules: Option<PathBuf>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Runtimes {
    known: Vec<Runtime>,
}

struct Runtime {
    language: Language,
    interpreter: Interpreter,
    adapter: PathBuf,
}

impl Runtimes {
    /// What these interpreters load stands beside the program that makes sandboxes.
    pub(crate) fn find(warm: &Warm, spawner: &Path) -> Result<Runtimes, Error> {
        let mut known = Vec::new();
        let mut add = |language: Language, found: Result<Interpreter, sublet_sandbox::SandboxError>| {
            let interpreter = found.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
            let adapter = find_program("template", &spawner.with_file_name(language.adapter()))?;
            known.push(Runtime { language, interpreter, adapter });
            Ok::<_, Error>(())
        };
        // Not the file that a link leads to: an environment is known by where its links are.
        if let Some(program) = &warm.python {
            let found = Interpreter::python(&find_command("Python", program)?);
            add(Language::Python, found)?;
        }
        if let Some(program) = &warm.node {
            let modules: Vec<PathBuf> = warm.node_modules.iter().cloned().collect();
            let found = Interpreter::node(&find_command("Node.js", program)?, &modules);
            add(Language::Node, found)?;
        }
        Ok(Runtimes { known })
    }

    /// What sandboxes see of the host beside its libraries.
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
            ..wanted.clone()
        })
    }
}
