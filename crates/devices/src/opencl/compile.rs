//! Makes one program of several sources: the work of a builder.

use std::ffi::CString;
use std::fmt::Write;
use std::sync::Arc;

use super::live::{OpenClContext, OpenClModule};
use super::{OpenClDeviceInfo, discover};
use crate::driver::{BuildResult, BuiltPart, ImagePart};
use crate::{DeviceError, DriverKind, MAX_MESSAGE_BYTES, bytes};

const NO_COMPILER: &str = "the device has no compiler: it takes binaries that its vendor's tools have made";

/// Builds for the device of this identity.
pub(crate) fn serve(identity: &str, parts: &[ImagePart<'_>]) -> Result<BuildResult, DeviceError> {
    let devices = discover()?;
    let gone = || unusable(format!("there is no device {identity:?} for the builder"));
    let info = devices.iter().find(|info| info.identity() == identity).ok_or_else(gone)?;
    let context = OpenClContext::new(vec![info.device], info.shares_memory)?;
    let mut build = BuildResult::default();
    let mut linkable = Vec::new();
    for part in parts {
        let made = match part {
            ImagePart::Binary(binary) => whole(&context, binary).map(|()| build.take(binary.to_vec(), false)),
            _ => compiled(&context, info, part).map(|(module, object)| {
                linkable.push((build.parts.len(), module));
                BuiltPart { object, program: 0, is_prefixed: true }
            }),
        };
        build.parts.push(made.map_err(said));
    }
    link(&context, linkable, &mut build);
    debug_assert!(
        build.parts.iter().flatten().all(|part| part.program < build.programs.len()),
        "a part was linked into none of {} programs",
        build.programs.len()
    );
    Ok(build)
}

/// The build without a builder, which accepts binaries only.
pub(super) fn binaries_only(parts: &[ImagePart<'_>]) -> BuildResult {
    let mut build = BuildResult::default();
    for part in parts {
        let made = match part {
            ImagePart::Binary(binary) => Ok(build.take(binary.to_vec(), false)),
            _ => Err("sources need a builder, and there is none".to_owned()),
        };
        build.parts.push(made);
    }
    build
}

impl BuildResult {
    /// Adds a program that consists of one part.
    fn take(&mut self, program: Vec<u8>, is_prefixed: bool) -> BuiltPart {
        self.programs.push(program);
        BuiltPart { object: None, program: self.programs.len() - 1, is_prefixed }
    }
}

/// Checks that a binary can be loaded here.
fn whole(context: &Arc<OpenClContext>, binary: &[u8]) -> Result<(), DeviceError> {
    OpenClModule::of_binary(context, binary)?.build()
}

/// A module that can be linked, and its object if that is new.
fn compiled(
    context: &Arc<OpenClContext>,
    info: &OpenClDeviceInfo,
    part: &ImagePart<'_>,
) -> Result<(OpenClModule, Option<Vec<u8>>), DeviceError> {
    let ImagePart::Source { text, options, kernels, prefix } = part else {
        let ImagePart::Object { bytes, .. } = part else { unreachable!("binaries are not linked") };
        return Ok((OpenClModule::of_binary(context, bytes)?, None));
    };
    if !info.has_compiler {
        return Err(DeviceError::Build { name: String::new(), log: NO_COMPILER.into() });
    }
    let mut line = (*options).to_owned();
    for kernel in *kernels {
        let _ = write!(line, " -D{kernel}={prefix}{kernel}");
    }
    let module = OpenClModule::of_source(context, text)?;
    module.compile(&CString::new(line).expect("options have no zero bytes"))?;
    let object = module.binary()?;
    Ok((module, Some(object)))
}

/// Links all modules into one program if possible, otherwise into several.
fn link(context: &Arc<OpenClContext>, mut rest: Vec<(usize, OpenClModule)>, build: &mut BuildResult) {
    while !rest.is_empty() {
        let all: Vec<_> = (0..rest.len()).collect();
        let (program, chosen) = match linked(context, &rest, &all) {
            Ok(program) => (Ok(program), all),
            Err(_) => largest(context, &rest),
        };
        let (taken, left) = split(rest, &chosen);
        rest = left;
        let parts = taken.into_iter().map(|(part, _)| part);
        match program {
            Ok(program) => {
                build.programs.push(program);
                parts.for_each(|part| {
                    build.parts[part].iter_mut().for_each(|part| part.program = build.programs.len() - 1)
                });
            }
            Err(error) => parts.for_each(|part| build.parts[part] = Err(said(error.clone()))),
        }
    }
}

/// Links the first module with all modules that can be linked with it and each other. Returns its error if it cannot be
/// linked at all.
fn largest(
    context: &Arc<OpenClContext>,
    modules: &[(usize, OpenClModule)],
) -> (Result<Vec<u8>, DeviceError>, Vec<usize>) {
    let mut chosen = vec![0];
    let mut program = linked(context, modules, &chosen);
    for next in (1..modules.len()).filter(|_| program.is_ok()).collect::<Vec<_>>() {
        chosen.push(next);
        match linked(context, modules, &chosen) {
            Ok(larger) => program = Ok(larger),
            Err(_) => drop(chosen.pop()),
        }
    }
    (program, chosen)
}

fn linked(
    context: &Arc<OpenClContext>,
    modules: &[(usize, OpenClModule)],
    chosen: &[usize],
) -> Result<Vec<u8>, DeviceError> {
    let modules: Vec<_> = chosen.iter().map(|at| &modules[*at].1).collect();
    OpenClModule::link(context, &modules)?.binary()
}

fn split<T>(all: Vec<T>, chosen: &[usize]) -> (Vec<T>, Vec<T>) {
    let (taken, left): (Vec<_>, Vec<_>) =
        all.into_iter().enumerate().partition(|(at, _)| chosen.contains(at));
    let items = |pairs: Vec<(usize, T)>| pairs.into_iter().map(|(_, item)| item).collect();
    (items(taken), items(left))
}

/// Text for a failure: the log of a compiler, or the error.
fn said(error: DeviceError) -> String {
    match error {
        DeviceError::Build { log, .. } => log,
        other => bytes::told(other.to_string().as_bytes(), MAX_MESSAGE_BYTES),
    }
}

/// The error for a device that cannot be used.
pub(super) fn unusable(reason: String) -> DeviceError {
    DeviceError::Unusable { kind: DriverKind::OpenCl, reason }
}
