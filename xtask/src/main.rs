//! The entry point of all chores: `cargo xtask CHORE`. The Makefile and CI use it, too.
//!
//! Each chore is a module with one public function. They start other programs and read their output; they link
//! nothing of Sublet and depend on no crate, so that this compiles in a second on a fresh clone.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod asan;
mod bench;
mod cgroup_vm;
mod circles;
mod coverage;
mod deny;
mod dist;
mod docs;
#[cfg(test)]
mod evidence;
mod fuzz;
mod gpu_check;
mod install;
mod language;
#[cfg(test)]
mod links;
mod loom;
mod map;
mod miri;
mod musl;
mod options;
mod python;
mod second_pu;
mod sim;
mod step;
mod suites;
mod test;
mod upgrade;
mod verbs_vm;
mod vm;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use options::ChoreOptions;

/// The profile of everything that `make test` builds; see Cargo.toml.
const PROFILE: &str = "checked";

struct Chore {
    usage: &'static str,
    help: &'static str,
    run: fn(ChoreOptions) -> io::Result<ExitCode>,
}

const CHORES: &[Chore] = &[
    Chore { usage: "test [--only STEP,...]", help: "everything that `make test` checks", run: test::chore },
    Chore {
        usage: "check",
        help: "format, lints, unit and property tests: before a commit",
        run: test::check,
    },
    Chore { usage: "deny", help: "licences, sources, bans and advisories of dependencies", run: deny::chore },
    Chore {
        usage: "coverage",
        help: "the share of each crate's lines that the Rust tests reach",
        run: coverage::chore,
    },
    Chore {
        usage: "map [--circles yes|write]",
        help: "list the source files, each with its duty; list circles of imports, or lower their table",
        run: map::chore,
    },
    Chore {
        usage: "language [--area AREA] [--rule RULE] [--write yes]",
        help: "list wording that is not plain English; lower the table of what is left",
        run: language::chore,
    },
    Chore { usage: "loom", help: "model-check the rings", run: loom::chore },
    Chore {
        usage: "sim [--seeds N] [--first-seed S] [--nodes N] [--hours H]",
        help: "simulate the control plane with faults, from seeds (1000 of 1000 nodes for 1 h)",
        run: sim::chore,
    },
    Chore {
        usage: "miri",
        help: "interpret the tests of what needs no system under Miri (a nightly compiler)",
        run: miri::chore,
    },
    Chore {
        usage: "asan",
        help: "tests in C, C++ and Python with AddressSanitizer (a nightly compiler)",
        run: asan::chore,
    },
    Chore { usage: "fuzz [--seconds N]", help: "fuzz every decoder, N seconds each (60)", run: fuzz::chore },
    Chore {
        usage: "fuzz-keep",
        help: "replace the kept inputs of fuzzing by the least that cover as much as all that were found",
        run: fuzz::keep,
    },
    Chore {
        usage: "bench",
        help: "measure the promises, and write docs/performance.md and README.md",
        run: bench::chore,
    },
    Chore {
        usage: "bench scad [--only ROW,...]",
        help: "measure the evaluation of Scad beside its peers, and write its section of docs/performance.md",
        run: bench::chore,
    },
    Chore {
        usage: "verbs-vm [--only PART,...] [--limit SECONDS]",
        help: "the fabric's suite and latency over verbs, in an emulated machine",
        run: verbs_vm::chore,
    },
    Chore {
        usage: "cgroup-vm [--only PART,...] [--limit SECONDS]",
        help: "the sandboxes' tests with cgroup v2, in an emulated machine",
        run: cgroup_vm::chore,
    },
    Chore {
        usage: "gpu-check",
        help: "the devices' suite on a GPU by CUDA, where there is one",
        run: gpu_check::chore,
    },
    Chore {
        usage: "second-pu [--only PART,...] [--json FILE]",
        help: "a neighbour of another architecture, in an emulated machine",
        run: second_pu::chore,
    },
    Chore {
        usage: "upgrade [--from COMMIT]",
        help: "upgrade a running system from the version before, process by process",
        run: upgrade::chore,
    },
    Chore { usage: "docs", help: "build the documentation site in target/site", run: docs::chore },
    Chore { usage: "wheel [--out FOLDER]", help: "make the Python wheel", run: python::chore },
    Chore {
        usage: "python [--python PROGRAM] [--testsuite FOLDER]",
        help: "test the Python wheel with an interpreter, and by CPython's own cases",
        run: python::with_interpreter,
    },
    Chore {
        usage: "packages",
        help: "import and use the most used Python packages in sandboxes",
        run: python::packages,
    },
    Chore {
        usage: "dist [--only PART,...] [--target TRIPLE] [--out DIR] [--check yes]",
        help: "make all packages that are published; install them in root file systems",
        run: dist::chore,
    },
    Chore {
        usage: "install --prefix DIR",
        help: "install command, library and headers",
        run: install::chore,
    },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(chore) = CHORES.iter().find(|chore| chore.usage.split(' ').next() == Some(name.as_str())) else {
        return usage(&name);
    };
    match ChoreOptions::parse(arguments).and_then(chore.run) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(name: &str) -> ExitCode {
    if !name.is_empty() && name != "--help" && name != "help" {
        eprintln!("xtask: there is no chore {name:?}");
    }
    eprintln!("usage: cargo xtask CHORE");
    for chore in CHORES {
        eprintln!("  {:<22} {}", chore.usage, chore.help);
    }
    ExitCode::from(2)
}

/// The repository's top folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask/ stands inside the repository").to_path_buf()
}

/// Folder to which cargo builds.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from))
}

/// Path of a program that was built with [`PROFILE`].
fn built(program: &str) -> PathBuf {
    target().join(PROFILE).join(program)
}

/// The cargo that runs this, in the repository's top folder, without colours: its output goes to logs. Removes the
/// variables about this package that cargo set for this program: some build scripts (ring's) run again if one of them
/// changes, and half of the workspace is then compiled again.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told)) {
        command.env_remove(name);
    }
    command.current_dir(root()).env("CARGO_TERM_COLOR", "never").env("CARGO_TERM_PROGRESS_WHEN", "never");
    command
}
