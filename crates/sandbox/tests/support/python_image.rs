//! Makes an image of this machine's Python, with its libraries and the probe, and specifications of programs there.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_sandbox::{IsolationKind, RootImage, SandboxProgram, Spec, Template, TemplateImage};
use tempfile::TempDir;

use crate::support::interpreter_files::{collect, is_code, libraries};
use crate::support::{MIB, library, own, python, template};

/// Folder of modules in the image.
const MODULES: &str = "/modules";
/// Path of the probe, as a library, in the image.
const PROBE: &str = "/probe.so";

/// An image of one layer, whose Python is this machine's: not a virtual environment's, and not a link.
pub struct PythonImage {
    layer: PathBuf,
    /// The interpreter, on this machine and in the image.
    pub interpreter: PathBuf,
    _folder: TempDir,
}

impl PythonImage {
    /// Makes an image with these modules, by name and text, and these folders of installed modules.
    pub fn make(modules: &[(&str, &str)], installed: &[&str]) -> PythonImage {
        let ask = "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'), sysconfig.get_path('purelib'), sep='\\n')";
        let told = Command::new(&python().program).args(["-I", "-c", ask]).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let paths: Vec<_> = told.lines().map(PathBuf::from).collect();
        let [interpreter, standard, site] = paths.try_into().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let layer = folder.path().join("layer");
        let mut files = BTreeSet::from([interpreter.clone()]);
        collect(&standard, &mut files);
        let mut own_files = BTreeSet::new();
        let installed = installed.iter().map(|name| site.join(name)).filter(|path| path.is_dir());
        installed.for_each(|path| collect(&path, &mut own_files));
        let code: Vec<_> = files.union(&own_files).filter(|path| is_code(path)).cloned().collect();
        let adapter = template(&[]).adapter;
        files.extend(code.iter().chain([&adapter, &library().to_owned()]).flat_map(|path| libraries(path)));
        files.iter().filter(|path| !path.starts_with(&site)).for_each(|path| add(path, path, &layer));
        for path in &own_files {
            add(path, &Path::new(MODULES).join(path.strip_prefix(&site).unwrap()), &layer);
        }
        add(library(), Path::new(PROBE), &layer);
        fs::create_dir_all(layer.join("bin")).unwrap();
        for (name, text) in modules {
            let path = layer.join(format!("modules/{name}.py"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        symlink(&interpreter, layer.join("bin/python3")).unwrap();
        own(&layer);
        PythonImage { layer, interpreter, _folder: folder }
    }

    /// A template of the image's Python with these modules.
    pub fn template(&self, imports: &[&str]) -> Template {
        let env = [("PATH", "/bin"), ("PYTHONPATH", MODULES), ("LANG", "C.UTF-8")];
        let env = env.map(|(name, value)| (name.into(), value.into())).into();
        let image = Some(TemplateImage { root: self.root(), env });
        Template { interpreter: self.interpreter.clone(), image, ..template(imports) }
    }

    /// Removes the files of the image, as the cache of a node does.
    pub fn remove(&self) {
        fs::remove_dir_all(&self.layer).unwrap();
    }

    fn root(&self) -> RootImage {
        RootImage { layers: vec![self.layer.clone()], working_folder: "/modules".into() }
    }

    /// Makes a specification execute this code by the image's Python: in a copy of its template if that is warm.
    pub fn copied(&self, code: &str, imports: &[&str]) -> impl Fn(&mut Spec) + use<> {
        let template = self.template(imports);
        let args: [OsString; 3] = ["-B", "-c", code].map(Into::into);
        move |spec| {
            spec.program = SandboxProgram::Loading {
                program: template.interpreter.clone(),
                library: template.adapter.clone(),
            };
            let words = std::mem::take(&mut spec.args);
            spec.args = args.iter().cloned().chain(words).collect();
            spec.env = template.image.clone().unwrap_or_default().env;
            spec.limits.memory_bytes = Some(512 * MIB);
            // Libraries that compute have a thread for each core.
            spec.limits.processes = Some(512);
            spec.kind = IsolationKind::Template(template.clone());
        }
    }

    /// The same in a container, which always starts the interpreter.
    pub fn started(&self, code: &str) -> impl Fn(&mut Spec) + use<> {
        let (change, root) = (self.copied(code, &[]), self.root());
        move |spec| {
            change(spec);
            spec.kind = IsolationKind::Container(root.clone());
        }
    }

    /// Code that does what the probe does with the arguments of the program.
    pub fn probing() -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/probe.py");
        fs::read_to_string(path).unwrap().replace("LIBRARY", PROBE)
    }
}

/// Copies a file of this machine to a path of the image.
fn add(from: &Path, inside: &Path, layer: &Path) {
    let to = layer.join(inside.strip_prefix("/").unwrap());
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}
