//! Prepares a process before it becomes a template: a language runtime that is kept warm.
//!
//! Nothing of a tenant's ever runs in it, only modules of the operator's interpreter. It has no rights, no network, and of
//! the host's files what sandboxes have. But it must be able to make sandboxes' first processes: it has no Landlock, which
//! forbids mounting for ever, and no filter of system calls; and it is in the spawner's namespace of users, from which
//! alone the spawner can say who those processes are.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use super::{NOT_EXECUTED, privileges, root};
use crate::{Template, system};

/// What it is made with.
pub(crate) struct Seed<'seed> {
    pub(crate) template: &'seed Template,
    /// To the spawner: its standard input.
    pub(crate) socket: OwnedFd,
    /// Where it prints: a memory file, of which the spawner reads the end if it fails.
    pub(crate) output: OwnedFd,
    /// The adapter, as a mount that is not anywhere yet.
    pub(crate) adapter: OwnedFd,
    /// As whom it runs, if not as the spawner's user, whose groups it then can leave.
    pub(crate) user: Option<u32>,
}

/// Becomes the interpreter.
pub(crate) fn run(seed: Seed<'_>) -> ! {
    let name = seed.template.interpreter.display();
    let Err(error) = become_interpreter(&seed);
    eprintln!("starting {name} failed: {error}");
    system::leave(NOT_EXECUTED)
}

fn become_interpreter(seed: &Seed<'_>) -> io::Result<std::convert::Infallible> {
    rustix::stdio::dup2_stdin(&seed.socket)?;
    rustix::stdio::dup2_stdout(&seed.output)?;
    rustix::stdio::dup2_stderr(&seed.output)?;
    system::keep_only(&mut [0, 1, 2, seed.adapter.as_raw_fd()])?;
    root::enter_template()?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&seed.adapter, "", CWD, root::PROGRAM, flags)?;
    become_user(seed.user)?;
    privileges::drop_capabilities()?;
    super::die_with_spawner()?;
    system::close_on_exec()?;
    let [program, args, environment] = command(seed.template)?;
    let program = program.first().ok_or(io::ErrorKind::InvalidInput)?;
    Err(system::exec(program, &args, &environment))
}

fn become_user(user: Option<u32>) -> io::Result<()> {
    let Some(user) = user else { return Ok(()) };
    // What it may do is to be given up for ever, which it must still be allowed to.
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_thread_groups(&[])?;
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// What is executed, with its arguments, and its environment.
fn command(template: &Template) -> io::Result<[Vec<CString>; 3]> {
    let text = |word: &OsStr| CString::new(word.as_bytes());
    let program = text(template.interpreter.as_os_str())?;
    let fixed = template.language.arguments().iter().map(OsStr::new);
    let modules = template.imports.iter().map(OsStr::new);
    let args = fixed.chain(modules).map(text);
    let args = std::iter::once(Ok(program.clone())).chain(args).collect::<Result<_, _>>()?;
    let environment = template.language.environment().iter().map(|&variable| CString::new(variable));
    let environment = environment.collect::<Result<_, _>>()?;
    Ok([vec![program], args, environment])
}
