//! Languages whose runtimes can be kept warm: how each is started as a template, and what modules are called in it.

/// A language whose runtime can be kept warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Language {
    /// Python, from 3.11 on.
    Python,
    /// JavaScript by Node.js, from 20 on.
    Node,
}

/// Where a warm interpreter finds its modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModuleSource {
    /// In its own folders.
    Interpreter,
    /// In an environment, and in its standard library.
    Environment,
    /// In its image, as the image says.
    Image,
}

/// Most bytes of a module's name.
const MAX_MODULE_BYTES: usize = 256;

/// Variable of an interpreter that is on standby in a container, which is no template.
pub(crate) const CONTAINED_STANDBY: &str = "SUBLET_STANDBY";
/// Variable with the path of the adapter.
pub(crate) const ADAPTER: &str = "SUBLET_ADAPTER";
/// Code that a Python executes to load its adapter. The adapter is not executed as a program.
const LOAD_IN_PYTHON: &str = "\
import os
os.environ.pop('LD_PRELOAD', None)
path = os.environ.pop('SUBLET_ADAPTER')
from importlib.machinery import ExtensionFileLoader as Loader
from importlib.util import module_from_spec, spec_from_loader
spec = spec_from_loader('sublet_template', Loader('sublet_template', path))
adapter = module_from_spec(spec)
spec.loader.exec_module(adapter)
exec(compile(adapter.SOURCE, 'sublet_template', 'exec'))";
/// The same in Node.js.
const LOAD_IN_NODE: &str = "\
const adapter = { exports: {} };
process.dlopen(adapter, process.env.SUBLET_ADAPTER);
delete process.env.SUBLET_ADAPTER;
new Function('adapter', 'require', adapter.exports.SOURCE)(adapter.exports, require);";

impl Language {
    /// Returns the name of the library that the interpreter loads to be forked. It is beside the program that makes
    /// sandboxes.
    pub fn adapter(self) -> &'static str {
        match self {
            Language::Python => "libsublet_template_python.so",
            Language::Node => "libsublet_template_node.so",
        }
    }

    /// Arguments of the interpreter, before the names of modules.
    pub(crate) fn arguments(self, source: ModuleSource) -> &'static [&'static str] {
        match (self, source) {
            // Without the modules that are installed for the interpreter: `template.py` adds those of the environment.
            (Language::Python, ModuleSource::Environment) => &["-I", "-S", "-B", "-c", LOAD_IN_PYTHON],
            // Not isolated: the variables of an image apply, as in an interpreter that is started there.
            (Language::Python, ModuleSource::Image) => &["-B", "-c", LOAD_IN_PYTHON],
            // Isolated: nothing in its folder or environment changes its behaviour. It has no folder to write compiled
            // modules to.
            (Language::Python, ModuleSource::Interpreter) => &["-I", "-B", "-c", LOAD_IN_PYTHON],
            // The collector of garbage and the compiler have no threads of their own, which a copy would not have.
            (Language::Node, _) => &["--single-threaded", "--v8-pool-size=0", "--eval", LOAD_IN_NODE, "--"],
        }
    }

    /// Returns the environment of the interpreter, NAME=VALUE. Libraries that compute keep no threads until a program
    /// starts, which has a thread for each of its cores.
    pub(crate) fn environment(self) -> &'static [&'static str] {
        match self {
            Language::Python => &[
                "LANG=C.UTF-8",
                "OMP_NUM_THREADS=1",
                "OPENBLAS_NUM_THREADS=1",
                "MKL_NUM_THREADS=1",
                "BLIS_NUM_THREADS=1",
                "NUMEXPR_NUM_THREADS=1",
            ],
            // Sandboxes refuse io_uring.
            Language::Node => &["LANG=C.UTF-8", "UV_USE_IO_URING=0"],
        }
    }

    /// Whether this can be a module's name: nothing that an interpreter could take for an option, or for a path that leads
    /// somewhere else.
    pub(crate) fn has_module(self, name: &str) -> bool {
        let (separator, also) = match self {
            Language::Python => ('.', ""),
            Language::Node => ('/', "-.@:"),
        };
        let is_part = |part: &str| {
            let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_' || also.contains(letter);
            let begins = |letter: char| letter.is_alphabetic() || letter == '_' || also.contains(letter);
            part.starts_with(begins) && !part.starts_with(['-', '.']) && part.chars().all(is_letter)
        };
        name.len() <= MAX_MODULE_BYTES && name.split(separator).all(is_part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_modules_are_nothing_else() {
        for name in ["numpy", "xml.dom", "_a1", "émile"] {
            assert!(Language::Python.has_module(name), "{name}");
        }
        for name in ["typescript", "@types/node", "lodash.merge", "node:fs", "a/b-c"] {
            assert!(Language::Node.has_module(name), "{name}");
        }
        for name in [
            "",
            "-c",
            "os; x",
            "a..b",
            ".a",
            "1a",
            "a\0b",
            "../a",
            "/a",
            "a/../b",
            "--eval",
            &"a".repeat(1000),
        ] {
            assert!(!Language::Python.has_module(name), "{name}");
            assert!(name == "a..b" || !Language::Node.has_module(name), "{name}");
        }
    }
}
