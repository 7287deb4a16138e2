//! Executes a program of the package in place of functions: a program that a process of some processing unit has
//! spawned (Molecule 3.4).
//!
//! The worker process becomes the program, and keeps its limits, core and sandbox. Its time counts as executing from
//! here to its end.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_fabric::clock::ticks;
use sublet_fabric::region::Region;
use sublet_proto::v1::{Program, WorkerSetup};
use sublet_proto::{Code, Error};

use super::preparation::pin;
use crate::wire::usage::{UsageLayout, WorkerMeter};

/// The program to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnedProgram {
    /// Folder of the package.
    pub folder: PathBuf,
    /// Path of the program in the package.
    pub path: PathBuf,
    /// Arguments, of which the first is the program's name.
    pub args: Vec<OsString>,
    /// All environment variables of the program.
    pub env: Vec<(OsString, OsString)>,
}

/// Executes such a program. Returns only the status of its end, or an error if it cannot be executed.
pub type Execute = fn(&SpawnedProgram) -> Result<u8, Error>;

impl SpawnedProgram {
    fn new(folder: &Path, program: Program) -> SpawnedProgram {
        let Program { path, args, env } = program;
        let path = place(folder, &path);
        let mut args: Vec<OsString> = args.into_iter().map(OsString::from_vec).collect();
        if args.is_empty() {
            args.push(path.clone().into());
        }
        let pair = |word: Vec<u8>| {
            let at = word.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (OsStr::from_bytes(&word[..at]), OsStr::from_bytes(&word[at + 1..]));
            (at > 0).then(|| (name.to_owned(), value.to_owned()))
        };
        let env = env.into_iter().filter_map(pair).collect();
        SpawnedProgram { folder: folder.to_owned(), path, args, env }
    }
}

/// The path of a package's program, with this processor's architecture in place of `{arch}`.
pub fn place(folder: &Path, path: &str) -> PathBuf {
    folder.join(path.replace("{arch}", std::env::consts::ARCH))
}

/// Executes the program of a set-up, whose second descriptor is the usage region.
pub(super) fn begin(
    setup: &WorkerSetup,
    program: Program,
    descriptors: Vec<OwnedFd>,
    execute: Execute,
) -> Result<u8, Error> {
    let spawned = SpawnedProgram::new(Path::new(&setup.package_folder), program);
    let core = setup.cores.first_chunk::<1>();
    pin(core.ok_or_else(|| Error::new(Code::Protocol, "a program without a core"))?)?;
    let layout = UsageLayout::new(1, setup.functions);
    let usage = descriptors.into_iter().nth(1);
    let usage = usage.ok_or_else(|| Error::new(Code::Protocol, "a program without a usage region"))?;
    let usage = Region::attach(usage, layout.len_bytes())?;
    // The time counts for no function. The agent closes the account when the process has ended.
    WorkerMeter::new(&usage, layout, 0)?.enter(u16::MAX, ticks(), false);
    execute(&spawned)
}

/// Executes a program of native code.
///
/// # Errors
/// The system's error if the program cannot be executed. On success the function does not return.
pub fn native(spawned: &SpawnedProgram) -> Result<u8, Error> {
    let SpawnedProgram { folder, path, args, env } = spawned;
    let mut command = Command::new(path);
    let name = args.first().map_or(path.as_os_str(), OsString::as_os_str);
    command
        .arg0(name)
        .args(args.iter().skip(1))
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .current_dir(folder);
    if let Some(shim) = sublet_xpu::pass_on()? {
        command.env(sublet_xpu::VARIABLE, shim.to_string());
    }
    let error = command.exec();
    Err(Error::new(Code::System, format!("executing {}: {error}", path.display())))
}

/// Refuses to execute, for engines whose packages have no programs, which agents do not spawn.
///
/// # Errors
/// Always.
pub fn none(_: &SpawnedProgram) -> Result<u8, Error> {
    Err(Error::new(Code::InvalidPackage, "packages of this kind have no programs that could be spawned"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_program_name_architecture_and_variables() {
        let env = ["A=b=c", "=x", "nothing", "E="].map(|word| word.as_bytes().to_vec()).to_vec();
        let program = Program { path: "bin/{arch}/p".into(), args: Vec::new(), env };
        let spawned = SpawnedProgram::new(Path::new("/package"), program);
        let path = format!("/package/bin/{}/p", std::env::consts::ARCH);
        assert_eq!((spawned.path.as_os_str(), &*spawned.args), (path.as_ref(), &[path.clone().into()][..]));
        let pair = |name: &str, value: &str| (name.into(), value.into());
        assert_eq!(spawned.env, [pair("A", "b=c"), pair("E", "")]);
    }
}
