//! Files that only their owner may read, such as programs and environments that were installed under a strict umask.
//! Sandboxes run as other users, and see those files that the operator has named, and no others.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_sandbox::{Interpreter, IsolationKind, Language, ProgramEnd, SandboxError, SandboxProgram, Spec};

use crate::support::{SandboxFixture, Sort, is_root, probe, program, template_of};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Creates a virtual environment under a umask, with a package `own` that has a module in a folder of its own.
fn environment(folder: &Path, umask: &str) -> PathBuf {
    let venv = folder.join("venv");
    let script = "umask $0; python3 -m venv --without-pip \"$1\" && cd \"$1\"/lib/python3*/site-packages \
                  && mkdir -p own/inner/most && echo 'value = 7' > own/inner/most/module.py";
    let made = Command::new("sh").args(["-c", script, umask]).arg(&venv).status().unwrap();
    assert!(made.success());
    venv
}

/// A spawner that shows sandboxes an interpreter, and a specification of a program in a copy of it.
fn fixture_of(python: &Path, source: &str) -> (SandboxFixture, impl FnOnce(&mut Spec) + use<>) {
    let interpreter = Interpreter::python(python).unwrap();
    let fixture = SandboxFixture::showing(Sort::Template, &interpreter.shown);
    let file = fixture.folder.path().join("program.py");
    fs::write(&file, source).unwrap();
    let mut template = template_of(Language::Python, &interpreter, &[]);
    let adapter = fixture.folder.path().join("adapter.so");
    fs::copy(&template.adapter, &adapter).unwrap();
    // The modes that a strict umask gives to files.
    set_mode(&file, 0o600);
    set_mode(&adapter, 0o700);
    template.adapter = adapter;
    (fixture, |spec: &mut Spec| {
        spec.kind = IsolationKind::Template(template);
        spec.program = SandboxProgram::Outside(file);
    })
}

const PROGRAM: &str = "import os, own.inner.most.module\nos.write(0, b'%d' % own.inner.most.module.value)\n";

#[test]
fn an_environment_that_only_its_owner_may_read_is_shown() {
    for (umask, mode, deep_mode) in
        [("022", 0o700, 0o755), ("077", 0o700, 0o700), ("027", 0o750, 0o750), ("022", 0o755, 0o700)]
    {
        let folder = tempfile::tempdir().unwrap();
        let venv = environment(folder.path(), umask);
        let module = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path();
        let deep = module.join("site-packages/own/inner/most");
        set_mode(&deep, deep_mode);
        set_mode(&venv, mode);
        let (fixture, spec) = fixture_of(&venv.join("bin/python3"), PROGRAM);
        let (text, exit) = fixture.run_with(&[], spec);
        assert_eq!((text.as_str(), exit), ("7", ProgramEnd::Status(0)), "{umask} {mode:o} {deep_mode:o}");
        for (path, mode) in [(&venv, mode), (&deep, deep_mode)] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, mode, "the host's modes change");
        }
    }
}

fn refusal(fixture: &SandboxFixture, spec: impl FnOnce(&mut Spec)) -> String {
    let (mut wanted, _outside) = fixture.probe(&[]);
    spec(&mut wanted);
    let made: Result<_, SandboxError> = fixture.sandboxes.launch(vec![wanted]).remove(0);
    made.map(drop).unwrap_err().to_string()
}

#[test]
fn home_directory_is_refused_by_name() {
    if !is_root() {
        println!("the sandboxes of this user are its own: they may read what it may");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let venv = environment(folder.path(), "022");
    fs::create_dir(venv.join(".ssh")).unwrap();
    fs::write(venv.join(".ssh/id"), "secret").unwrap();
    set_mode(&venv.join(".ssh/id"), 0o600);
    let (fixture, spec) = fixture_of(&venv.join("bin/python3"), PROGRAM);
    let error = refusal(&fixture, spec);
    assert!(error.contains(".ssh/id is readable only by its owner"), "{error}");
    assert!(
        error.contains(&format!("{} is a home directory", venv.canonicalize().unwrap().display())),
        "{error}"
    );
}

#[test]
fn folder_without_environment_is_refused_by_name() {
    if !is_root() {
        println!("the sandboxes of this user are its own: they may read what it may");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().join("node_modules");
    fs::create_dir(&modules).unwrap();
    set_mode(&modules, 0o700);
    let fixture = SandboxFixture::showing(Sort::Process, std::slice::from_ref(&modules));
    let error = refusal(&fixture, |_| {});
    assert!(error.contains(&format!("chmod -R go+rX {}", modules.display())), "{error}");
}

#[test]
fn a_program_that_only_its_owner_may_execute_is_executed() {
    let fixture = SandboxFixture::open(Sort::Process);
    let closed = fixture.folder.path().join("closed");
    fs::copy(program(), &closed).unwrap();
    // All copies for sandboxes together may take 256 MiB: twelve of this one would not fit.
    let file = fs::File::options().append(true).open(&closed).unwrap();
    (&file).write_all(&vec![0; 32 << 20]).unwrap();
    drop(file);
    set_mode(&closed, 0o700);
    for _ in 0..12 {
        let (mut spec, _outside) = probe(&["exit", "3"]);
        spec.program = SandboxProgram::Outside(closed.clone());
        let made = fixture.sandboxes.launch(vec![spec]).remove(0).unwrap();
        assert_eq!(fixture.wait(&made).exit, Some(ProgramEnd::Status(3)));
    }
}
