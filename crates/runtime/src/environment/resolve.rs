//! Executes the resolver, a program in Python, and reads the wheels that it has found.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sublet_proto::package::{EnvironmentLayer, PythonPlatform};
use sublet_proto::{Code, Error};

use super::plan::{EnvironmentPlan, Requirements};

/// The program.
const RESOLVER: &str = include_str!("resolve.py");
/// Longest line of the program's output, in bytes.
const MAX_LINE_BYTES: usize = 4 << 20;

/// A wheel in the client's cache.
pub(super) struct CachedWheel {
    pub(super) layer: EnvironmentLayer,
    path: PathBuf,
}

impl CachedWheel {
    /// Reads its file.
    pub(super) fn read(&self) -> Result<Vec<u8>, Error> {
        let failed = |error| Error::of_system(format_args!("cannot read {}", self.path.display()), &error);
        fs::read(&self.path).map_err(failed)
    }
}

/// Finds the wheels of a plan for a platform.
pub(super) fn resolve(
    plan: &EnvironmentPlan,
    target: &PythonPlatform,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<CachedWheel>, Error> {
    let request = request(plan, target)?;
    let program = plan.interpreter.display();
    let failed = |what: &str, error: std::io::Error| {
        Error::of_system(format_args!("{what} {program}, which resolves requirements"), &error)
    };
    let mut resolver = Command::new(&plan.interpreter)
        .args(["-I", "-c", RESOLVER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed("cannot start", error))?;
    if let Some(mut input) = resolver.stdin.take() {
        // If it has ended already, its status tells more than this error.
        let _ = input.write_all(request.to_string().as_bytes());
    }
    let mut outcome = None;
    if let Some(output) = resolver.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|error| failed("cannot read from", error))?;
            let message: Value = match line.len() {
                0..=MAX_LINE_BYTES => serde_json::from_str(&line).unwrap_or_default(),
                _ => Value::Null,
            };
            match message.get("step").and_then(Value::as_str) {
                Some(text) => step(text),
                None => outcome = Some(message),
            }
        }
    }
    let status = resolver.wait().map_err(|error| failed("cannot wait for", error))?;
    let outcome = outcome.unwrap_or_default();
    if let Some(why) = outcome.get("error").and_then(Value::as_str) {
        return Err(Error::new(Code::InvalidArgument, why));
    }
    let wheels =
        outcome.get("wheels").and_then(Value::as_array).map(|wheels| wheels.iter().map(found).collect());
    let broken = || Error::new(Code::System, format!("{program} ended without a result ({status})"));
    wheels.and_then(|wheels: Option<Vec<CachedWheel>>| wheels).filter(|_| status.success()).ok_or_else(broken)
}

fn found(wheel: &Value) -> Option<CachedWheel> {
    let text = |key: &str| wheel.get(key).and_then(Value::as_str);
    let layer = EnvironmentLayer {
        digest: format!("sha256:{}", text("sha256")?),
        name: text("name")?.to_owned(),
        size_bytes: wheel.get("size").and_then(Value::as_u64)?,
    };
    Some(CachedWheel { layer, path: PathBuf::from(text("path")?) })
}

fn request(plan: &EnvironmentPlan, target: &PythonPlatform) -> Result<Value, Error> {
    let (list, file) = match &plan.requirements {
        Requirements::List(list) => (Some(list), None),
        Requirements::File(file) => {
            let absolute = std::path::absolute(file);
            let absolute = absolute
                .map_err(|error| Error::of_system(format_args!("cannot find {}", file.display()), &error))?;
            (None, Some(absolute.to_string_lossy().into_owned()))
        }
    };
    let architecture = target.machine.as_ref().map(|machine| machine.architecture.as_str());
    let (major, minor) = target.version;
    Ok(json!({
        "requirements": list.cloned().unwrap_or_default(),
        "file": file,
        "python": format!("{major}.{minor}"),
        "architecture": architecture,
        "glibc": target.glibc_minor(),
        "index": plan.index,
        "find_links": plan.find_links.iter().map(|link| absolute_link(link)).collect::<Vec<_>>(),
        "cache": cache()?.to_string_lossy(),
        "refresh": plan.refresh,
        "tool": std::env::var("SUBLET_RESOLVER").ok().filter(|tool| !tool.is_empty()),
    }))
}

/// A folder by its absolute path, since the resolver may work in another one; URLs as they are.
fn absolute_link(link: &str) -> String {
    match std::path::absolute(link) {
        Ok(path) if !link.contains("://") => path.to_string_lossy().into_owned(),
        _ => link.to_owned(),
    }
}

/// The folder of wheels and resolutions of this user.
fn cache() -> Result<PathBuf, Error> {
    let named = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    let cache = cache.filter(|cache| cache.is_absolute()).map(|cache| cache.join("sublet"));
    let missing = "wheels are kept in a cache: set HOME or XDG_CACHE_HOME to an absolute path";
    cache.ok_or_else(|| Error::new(Code::InvalidArgument, missing))
}
