//! The Python by which a node executes functions: the one that is named, or the one that is found.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sublet::{Allocation, Code};
use sublet_tests::platform::{PlatformProcess, sublet};
use tempfile::TempDir;

/// A shim of a version manager that has no interpreter for this folder.
const BROKEN: &str = "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n";
/// One that finds its interpreter by a variable of its user's environment.
const WORKING: &str = "#!/bin/sh\nexec \"${HOME:+/usr}/bin/python3\" \"$@\"\n";

/// A folder with a `python3` of this text, its path, and a `PATH` that begins with the folder.
fn shim(text: &str) -> (TempDir, PathBuf, OsString) {
    let folder = tempfile::tempdir().unwrap();
    let shim = folder.path().join("python3");
    fs::write(&shim, text).unwrap();
    fs::set_permissions(&shim, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::join_paths([folder.path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    (folder, shim, path)
}

/// A package in Python with a function `f` that returns its input.
fn package(folder: &TempDir) -> String {
    let package = folder.path().join("package");
    fs::create_dir(&package).unwrap();
    fs::write(package.join("m.py"), "def f(data):\n    return data\n").unwrap();
    let manifest = "name = 'm'\nkind = 'python'\nlibrary = 'm.py'\n[[function]]\nname = 'f'\n";
    fs::write(package.join("sublet.toml"), manifest).unwrap();
    package.to_str().unwrap().to_owned()
}

#[test]
fn a_broken_named_python_keeps_the_node_from_starting() {
    let (folder, shim, _) = shim(BROKEN);
    let mut up = sublet();
    let output = up.args(["up", "--python"]).arg(&shim).arg("--state").arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), i32::try_from(Code::InvalidArgument.number()).ok(), "{said}");
    assert!(said.contains("command not found"), "{said}");
}

#[test]
fn a_node_starts_without_a_broken_python_on_the_path() {
    let (folder, _, path) = shim(BROKEN);
    let platform = PlatformProcess::start_with(|up| {
        up.env_remove("SUBLET_PYTHON").env("PATH", &path);
    });
    assert_eq!(platform.said["python"], Value::Null, "{}", platform.said);
    let message = platform.assert_refuses(&["deploy", &package(&folder)], Code::WrongArchitecture);
    assert!(message.contains("--python"), "{message}");
}

/// The interpreter answers when it is asked where it is, and executes nothing.
#[test]
fn python_is_tried_at_the_start() {
    let (folder, shim, path) = shim("");
    let text = format!("#!/bin/sh\nprintf '{}\\0003.11\\000/usr\\000/usr'\n", shim.display());
    fs::write(&shim, text).unwrap();
    let mut up = sublet();
    let state = folder.path().join("state");
    let output = up.args(["up", "--python"]).arg(&shim).arg("--state").arg(state).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot be used: "), "{said}");
    let platform = PlatformProcess::start_with(|up| {
        up.env_remove("SUBLET_PYTHON").env("PATH", &path);
    });
    assert_eq!(platform.said["python"], Value::Null, "{}", platform.said);
}

#[test]
fn executes_functions_by_the_interpreter_that_a_found_shim_starts() {
    let (folder, _, path) = shim(WORKING);
    let platform = PlatformProcess::start_with(|up| {
        up.env_remove("SUBLET_PYTHON").env("PATH", &path);
    });
    assert_eq!(platform.said["python"], "/usr/bin/python3", "{}", platform.said);
    let client = platform.client_with(&Allocation::new(package(&folder)));
    let mut output = [0u8; 1];
    client.submit("f", b"x", &mut output).unwrap().wait().unwrap();
    assert_eq!(&output, b"x");
}
