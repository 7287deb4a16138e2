//! Prepares a process before it becomes a template: a language runtime that is kept warm.
//!
//! A template runs only modules of the operator's interpreter, and no code of a tenant; only where the operator says so, modules
//! of an environment, or the interpreter of an image. It has no rights, no network,
//! and only the host's files that sandboxes have, or those of the image. But it must be able to make first processes of sandboxes. So it has
//! no Landlock, which forbids mounting for ever, and no filter of system calls. It is also in the spawner's user
//! namespace: only from there can the spawner map the users of those processes.

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

use super::blank::NOT_EXECUTED;
use super::{container, mount_points, privileges, root, weak};
use crate::language::{ADAPTER, ModuleSource};
use crate::{Language, Template, system, wire};

/// Resources from which a template is made.
pub(crate) struct Seed<'seed> {
    pub(crate) template: &'seed Template,
    /// Connection to the spawner, its standard input.
    pub(crate) socket: OwnedFd,
    /// Memory file for its output, the end of which the spawner reads if it fails.
    pub(crate) output: OwnedFd,
    /// Mounts of a template with a root of its own; none with weak isolation.
    pub(crate) mounts: Option<TemplateMounts>,
    /// User of the template, if not the spawner's user; only such a template can leave the groups of the spawner's
    /// user.
    pub(crate) user: Option<u32>,
}

/// Detached mounts that only one template has.
pub(crate) struct TemplateMounts {
    pub(crate) adapter: OwnedFd,
    /// Environment whose modules the template imports, if any.
    pub(crate) environment: Option<OwnedFd>,
    /// Layers of the interpreter's image, the lowest first; none for an interpreter of the host.
    pub(crate) layers: Vec<OwnedFd>,
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
    let mut kept = vec![0, 1, 2];
    if let Some(mounts) = &seed.mounts {
        kept.push(mounts.adapter.as_raw_fd());
        kept.extend(mounts.environment.iter().chain(&mounts.layers).map(AsRawFd::as_raw_fd));
    }
    system::keep_only(&mut kept)?;
    let adapter = match &seed.mounts {
        Some(mounts) => {
            enter_root(mounts)?;
            become_user(seed.user)?;
            privileges::drop_capabilities()?;
            OsStr::from_bytes(mount_points::PROGRAM.to_bytes())
        }
        None => {
            weak::drop_own_capabilities()?;
            seed.template.adapter.as_os_str()
        }
    };
    super::die_with_spawner()?;
    system::close_on_exec()?;
    let [program, args, environment] = command(seed.template, adapter)?;
    let program = program.first().ok_or(io::ErrorKind::InvalidInput)?;
    Err(system::exec(program, &args, &environment))
}

fn enter_root(TemplateMounts { adapter, environment, layers }: &TemplateMounts) -> io::Result<()> {
    match layers.as_slice() {
        [] => root::enter_template()?,
        layers => container::enter_template(layers)?,
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(adapter, "", CWD, mount_points::PROGRAM, flags)?;
    if let Some(environment) = environment {
        move_mount(environment, "", CWD, mount_points::MountPoint::ENVIRONMENT.0, flags)?;
    }
    Ok(())
}

fn become_user(user: Option<u32>) -> io::Result<()> {
    let Some(user) = user else { return Ok(()) };
    // The process gives up its capabilities for ever later, and must keep the right to do so.
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_thread_groups(&[])?;
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Variable with the language and the encoding of text.
const LOCALE: &str = "LANG";
/// Variable of a Python with the paths in which it looks for modules, separated by colons.
const SEARCH_PATH: &[u8] = b"SUBLET_SEARCH_PATH=";

/// Returns the program to execute, its arguments, and its environment.
fn command(template: &Template, adapter: &OsStr) -> io::Result<[Vec<CString>; 3]> {
    let text = |word: &OsStr| CString::new(word.as_bytes());
    let program = text(template.interpreter.as_os_str())?;
    let source = match template {
        Template { image: Some(_), .. } => ModuleSource::Image,
        Template { environment: Some(_), .. } => ModuleSource::Environment,
        _ => ModuleSource::Interpreter,
    };
    let fixed = template.language.arguments(source).iter().map(OsStr::new);
    let modules = template.imports.iter().map(OsStr::new);
    let args = fixed.chain(modules).map(text);
    let args = std::iter::once(Ok(program.clone())).chain(args).collect::<Result<_, _>>()?;
    let mut environment = variables(template)?;
    let of_adapter = |variable: &str| CString::new([variable.as_bytes(), b"=", adapter.as_bytes()].concat());
    environment.push(of_adapter(ADAPTER)?);
    // The dynamic loader separates paths by these.
    let can_preload = !adapter.as_bytes().iter().any(|byte| b" :".contains(byte));
    if template.language == Language::Python && template.image.is_none() && can_preload {
        // A Python allocates by its adapter, as every worker does that may swap.
        environment.push(of_adapter("LD_PRELOAD")?);
    }
    if !template.search_path.is_empty() {
        let paths: Vec<_> = template.search_path.iter().map(|path| path.as_os_str().as_bytes()).collect();
        environment.push(CString::new([SEARCH_PATH, &paths.join(&b':')].concat())?);
    }
    Ok([vec![program], args, environment])
}

/// Returns the environment of an interpreter, without what its adapter needs. Programs take the first of several values: an
/// image's own variables come last, so that libraries that compute have one thread.
fn variables(template: &Template) -> io::Result<Vec<CString>> {
    let own = template.image.as_ref().map_or(&[][..], |image| image.env.as_slice());
    let has_locale = own.iter().any(|(name, _)| name == LOCALE);
    let is_wanted = |variable: &&&str| !has_locale || variable.split('=').next() != Some(LOCALE);
    let fixed = template.language.environment().iter().filter(is_wanted);
    let fixed = fixed.map(|&variable| CString::new(variable));
    let own = own.iter().map(|(name, value)| CString::new(wire::variable(name, value)));
    Ok(fixed.chain(own).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TemplateImage;

    #[test]
    fn interpreter_of_image_has_environment_of_image() {
        let pair = |name: &str, value: &str| (name.into(), value.into());
        let env = vec![pair("LANG", "de_DE"), pair("OMP_NUM_THREADS", "8"), pair("PATH", "/opt/bin")];
        let image = Some(TemplateImage { env, ..TemplateImage::default() });
        let template = Template {
            language: Language::Python,
            interpreter: "/opt/bin/python3".into(),
            adapter: "/adapter".into(),
            imports: vec!["json".to_owned()],
            environment: None,
            search_path: Vec::new(),
            image,
            owner: None,
        };
        let [program, args, environment] = command(&template, OsStr::new("/program")).unwrap();
        let value = |name: &str| {
            let pairs =
                environment.iter().map(|variable| variable.to_str().unwrap().split_once('=').unwrap());
            pairs.filter(|(own, _)| *own == name).map(|(_, value)| value).next()
        };
        assert_eq!(program, [c"/opt/bin/python3".to_owned()]);
        assert_eq!([args[1].as_c_str(), args[args.len() - 1].as_c_str()], [c"-B", c"json"]);
        assert_eq!([value("LANG"), value("PATH")], [Some("de_DE"), Some("/opt/bin")]);
        // A copy has no threads but its own, and its template does not swap.
        assert_eq!([value("OMP_NUM_THREADS"), value("LD_PRELOAD")], [Some("1"), None]);
        let own = Template { image: None, ..template };
        let [_, args, environment] = command(&own, OsStr::new("/program")).unwrap();
        assert_eq!(args[1].as_c_str(), c"-I");
        assert!(environment.contains(&c"LD_PRELOAD=/program".to_owned()), "{environment:?}");
    }
}
