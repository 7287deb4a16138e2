//! Lists the files of a host's interpreter that sandboxes must see to execute its programs.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::SandboxError;

/// Code with which a Python prints its path, its version, and the folders of its modules.
const ASK_PYTHON: &str = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2], sys.prefix, sys.base_prefix, sep='\\0', end='')";
/// Code with which a CPython with a global lock prints its C library and that one's version.
const ASK_LIBC: &str = "import os, sys
if sys.implementation.name == 'cpython' and 't' not in sys.abiflags:
    print(os.confstr('CS_GNU_LIBC_VERSION') or '')";
/// Code with which a Node.js prints its path and its version.
const ASK_NODE: &str = "process.stdout.write(process.execPath + '\\0' + process.versions.node)";
/// Minor version of the oldest Python 3 that the adapter of templates can be loaded into.
const OLDEST_PYTHON_3: u32 = 11;
/// Links that lead to a program; a loop has more.
const MAX_LINKS: usize = 16;
/// Folders that sandboxes must not see as a whole. They see the libraries in them.
const OF_ALL: [&str; 3] = ["/", "/usr", "/usr/local"];

/// An interpreter of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Path of the program, on the host and in sandboxes.
    pub program: PathBuf,
    /// Version as the interpreter reports it; for a Python without its last number.
    pub version: String,
    /// Paths of the host that sandboxes must see beside its libraries.
    pub shown: Vec<PathBuf>,
}

impl Interpreter {
    /// Finds the interpreter of this program, which is executed to report where its modules are, those of a virtual
    /// environment included. A shim, as pyenv, asdf and others have in place of interpreters, leads to the interpreter
    /// that it starts in this process's environment.
    ///
    /// # Errors
    /// If it is not a Python from 3.11 on, or a file is not at the reported path.
    pub fn python(program: &Path) -> Result<Interpreter, SandboxError> {
        let ask = ["-I", "-c", ASK_PYTHON];
        let find = |program: &Path| Interpreter::find(program, &ask, 2);
        let shim = |_| find(&told_by(Command::new(program).args(ask), 2)?.program);
        let found = find(program).or_else(shim).and_then(|found| match minor_of_python_3(&found.version) {
            Some(OLDEST_PYTHON_3..) => Ok(found),
            _ => {
                let message =
                    format!("it is Python {}, and 3.{OLDEST_PYTHON_3} or later is needed", found.version);
                Err(io::Error::new(io::ErrorKind::Unsupported, message))
            }
        });
        found.map_err(|source| {
            SandboxError::system(format!("asking the Python {}", program.display()), source)
        })
    }

    /// The C library of a Python, as `glibc2.36`, by which wheels are chosen; nothing if it uses no wheels with binaries: those
    /// of another implementation or without a global lock are others.
    pub fn libc(&self) -> Option<String> {
        let asked =
            Command::new(&self.program).args(["-I", "-S", "-c", ASK_LIBC]).stdin(Stdio::null()).output();
        let libc = String::from_utf8(asked.ok()?.stdout).ok()?;
        Some(libc.trim().replace(' ', "")).filter(|libc| !libc.is_empty())
    }

    /// Finds the interpreter of this program, which is executed to report its path. Sandboxes also see these folders of
    /// modules.
    ///
    /// # Errors
    /// If it is not a Node.js, or a file is not at the reported path.
    pub fn node(program: &Path, modules: &[PathBuf]) -> Result<Interpreter, SandboxError> {
        let failed =
            |source| SandboxError::system(format!("asking the Node.js {}", program.display()), source);
        let mut found = Interpreter::find(program, &["--eval", ASK_NODE], 0).map_err(failed)?;
        for folder in modules {
            found.shown.push(folder.canonicalize().map_err(failed)?);
        }
        Ok(found)
    }

    /// Finds an interpreter from its own report, separated by zeros: its path, and `folders` folders of its modules.
    fn find(program: &Path, ask: &[&str], folders: usize) -> io::Result<Interpreter> {
        // The environment is empty, as in a sandbox.
        let InterpreterReport { program, version, folders } =
            told_by(Command::new(program).args(ask).env_clear(), folders)?;
        let (program, mut shown) = links(&program)?;
        for folder in folders {
            let folder = folder.canonicalize()?;
            if !OF_ALL.iter().any(|all| Path::new(all) == folder) {
                shown.push(folder);
            }
        }
        Ok(Interpreter { program, version, shown })
    }
}

/// Returns the minor version of a Python 3, whose version is `3.MINOR`.
fn minor_of_python_3(version: &str) -> Option<u32> {
    version.strip_prefix("3.")?.parse().ok()
}

/// Report of an interpreter about itself.
struct InterpreterReport {
    program: PathBuf,
    version: String,
    folders: Vec<PathBuf>,
}

/// Executes an interpreter that must report, separated by zeros, its path, its version and `folders` folders.
fn told_by(command: &mut Command, folders: usize) -> io::Result<InterpreterReport> {
    let output = command.stdin(Stdio::null()).output()?;
    let none = || {
        let words = String::from_utf8_lossy(&output.stderr);
        let why = words.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed nothing");
        io::Error::other(format!("it is not an interpreter: {}, {why:.200}", output.status))
    };
    let mut paths = output.stdout.split(|&byte| byte == 0).map(path);
    let (Some(program), Some(version)) = (paths.next(), paths.next()) else { return Err(none()) };
    let told = InterpreterReport {
        program,
        version: version.to_string_lossy().into_owned(),
        folders: paths.collect(),
    };
    if told.folders.len() != folders || !told.program.is_absolute() {
        return Err(none());
    }
    Ok(told)
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// A program, its folder as it is really called, with all links that lead to the file.
fn links(program: &Path) -> io::Result<(PathBuf, Vec<PathBuf>)> {
    let mut links = vec![really(program)?];
    while let Some(last) = links.last().filter(|_| links.len() <= MAX_LINKS) {
        match fs::read_link(last) {
            Ok(target) => {
                let target = last.parent().unwrap_or(Path::new("/")).join(target);
                links.push(really(&target)?);
            }
            Err(_) => return Ok((links[0].clone(), links)),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// A path whose folder has no links in it.
fn really(file: &Path) -> io::Result<PathBuf> {
    let (folder, name) = file.parent().zip(file.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(folder.canonicalize()?.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Writes a program. Another process does so: a child that a test beside this one forks would hold this process's open
    /// file, which cannot be executed then.
    fn write_program(path: &Path, text: &str) {
        let write = r#"printf '%s' "$2" > "$1" && chmod 755 "$1""#;
        let written = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(text).status().unwrap();
        assert!(written.success());
    }

    #[test]
    fn every_link_to_a_program_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        symlink("b", folder.join("way")).unwrap();
        symlink("../way/middle", folder.join("a/first")).unwrap();
        symlink("last", folder.join("b/middle")).unwrap();
        fs::write(folder.join("b/last"), "").unwrap();
        let (program, shown) = links(&folder.join("a/first")).unwrap();
        assert_eq!(program, folder.join("a/first"));
        assert_eq!(shown, ["a/first", "b/middle", "b/last"].map(|path| folder.join(path)));
        symlink("loop", folder.join("a/loop")).unwrap();
        assert_eq!(links(&folder.join("a/loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn what_is_no_python_is_named() {
        let error = Interpreter::python(Path::new("/bin/true")).unwrap_err().to_string();
        assert!(
            error.contains("the Python /bin/true") && error.contains("it is not an interpreter"),
            "{error}"
        );
    }

    #[test]
    fn rejects_a_python_that_is_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("python3");
        for (version, is_new_enough) in
            [("2.7", false), ("3.10", false), ("3.11", true), ("3.14", true), ("4.0", false)]
        {
            let report = format!("{}\\000{version}\\000/\\000/", program.display());
            write_program(&program, &format!("#!/bin/sh\nprintf '{report}'\n"));
            match Interpreter::python(&program) {
                Ok(found) => assert!(is_new_enough && found.version == version, "{found:?}"),
                Err(error) => {
                    let message = format!("it is Python {version}, and 3.11 or later is needed");
                    assert!(!is_new_enough && error.to_string().contains(&message), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_shim_leads_to_the_interpreter_that_it_starts() {
        let real = Interpreter::python(Path::new("/usr/bin/python3")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("python3");
        let write = |text: &str| write_program(&shim, text);
        // Like a shim of pyenv, this one uses an environment variable, which an interpreter in a sandbox does not have.
        write("#!/bin/sh\nexec \"${HOME:+/usr}/bin/python3\" \"$@\"\n");
        assert_eq!(Interpreter::python(&shim).unwrap(), real);
        write("#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n");
        let error = Interpreter::python(&shim).unwrap_err().to_string();
        assert!(error.contains("127") && error.contains("pyenv: python3: command not found"), "{error}");
    }
}
