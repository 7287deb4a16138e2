//! `cargo xtask dist`: makes everything that is published, from this tree, in target/packages. It uploads nothing.
//!
//! The parts are made in the order of [`PARTS`]: each uses what those before it have made. A part ends with checks of what
//! it has made; `--check yes` also installs the packages in root file systems of several distributions.

mod archive;
mod elf;
mod package;
mod symbols;
mod target;
mod wheel;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::root;
use crate::step::{Show, Step, StepOutcome, Tally};
use target::{ABORT_PACKAGES, PACKAGES, TARGETS, Target};

/// The target that packages are made for, and the folder that they go to.
struct Dist {
    target: &'static Target,
    /// Folder of the packages of all targets.
    out: PathBuf,
    /// Version of Sublet.
    version: String,
}

/// Makes a part. Returns whether that succeeded.
type Part = fn(&Dist, &mut Step) -> io::Result<bool>;

const PARTS: &[(&str, Part)] = &[
    ("free-threaded", wheel::build_free_threaded),
    ("programs", programs),
    ("materials", materials),
    ("wheel", wheel::make),
    ("free-threaded-wheel", wheel::make_free_threaded),
    ("archive", archive::make),
    ("musl", archive::make_musl),
    ("static", archive::make_static),
    ("deb", package::deb),
    ("image", package::image),
    ("recipes", package::recipes),
];

/// The installations that `--check yes` adds.
const CHECKS: &[(&str, Part)] = &[("installs", package::installs)];

/// `cargo xtask dist [--only PART,...] [--target TRIPLE] [--out DIR] [--check yes]`.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let only = options.take("only");
    let triple = options.take("target").unwrap_or_else(|| TARGETS[0].triple.to_owned());
    let out = options.take("out").map_or_else(|| root().join("target/packages"), PathBuf::from);
    let check = options.take("check");
    options.end()?;
    if let Some(other) = check.as_deref().filter(|&check| check != "yes") {
        return Err(io::Error::other(format!("--check is \"yes\" or left out, not {other:?}")));
    }
    let parts = chosen(only.as_deref(), check.is_some())?;
    if !root().join(target::TOOLS).is_dir() {
        return Err(io::Error::other(
            "the compilers for packages are missing: scripts/setup.sh dist installs them",
        ));
    }
    fs::create_dir_all(&out)?;
    let dist = Dist { target: named(&triple)?, out: out.canonicalize()?, version: version()? };
    let mut sum = Tally::default();
    for (name, part) in parts {
        // Builds take as long as they take: a summary's commands would be stopped.
        let mut step = Step::start(name, Show::Everything)?;
        let outcome = StepOutcome::from(part(&dist, &mut step)?);
        sum.add(step.finish(outcome)?);
        if sum.failed > 0 {
            return Ok(ExitCode::FAILURE);
        }
    }
    dist.write_checksums()?;
    println!("the packages are in {}", dist.out.display());
    println!("{}", sum.sum());
    Ok(ExitCode::SUCCESS)
}

/// Returns the parts to make: those that `--only` names, in their order, or all of them.
fn chosen(only: Option<&str>, check: bool) -> io::Result<Vec<(&'static str, Part)>> {
    let checks = if check { CHECKS } else { &[] };
    let Some(only) = only else { return Ok(PARTS.iter().chain(checks).copied().collect()) };
    let names: Vec<_> = only.split(',').map(str::trim).collect();
    let all = || PARTS.iter().chain(CHECKS);
    if let Some(unknown) = names.iter().find(|&name| !all().any(|(known, _)| known == name)) {
        let known: Vec<_> = all().map(|(name, _)| *name).collect();
        return Err(io::Error::other(format!(
            "there is no part {unknown:?}; there are {}",
            known.join(", ")
        )));
    }
    Ok(all().filter(|(name, _)| names.contains(name)).copied().collect())
}

fn named(triple: &str) -> io::Result<&'static Target> {
    let known = || TARGETS.iter().map(|target| target.triple).collect::<Vec<_>>().join(", ");
    let target = TARGETS.iter().find(|target| target.triple == triple);
    target.ok_or_else(|| io::Error::other(format!("there is no target {triple:?}; there are {}", known())))
}

/// Reads the version of the workspace.
fn version() -> io::Result<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    line.map(str::to_owned).ok_or_else(|| io::Error::other("Cargo.toml has no version"))
}

impl Dist {
    /// Returns the folder in which a part of this target works.
    fn work(&self, part: &str) -> PathBuf {
        root().join("target/xtask/dist").join(self.target.triple).join(part)
    }

    /// Empties the folder in which a part works, and returns its path.
    fn emptied(&self, part: &str) -> io::Result<PathBuf> {
        let folder = self.work(part);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Returns a program or a script of this repository that knows the target and its version.
    fn script(&self, path: &str) -> Command {
        let mut script =
            if path.contains('/') { Command::new(root().join(path)) } else { Command::new(path) };
        self.target.equip(&mut script);
        script.current_dir(root()).env("SUBLET_VERSION", &self.version);
        script.env("SUBLET_NOTICES", self.work("materials").join("LICENSE-THIRD-PARTY"));
        script.envs(native_command().map(|command| ("SUBLET_COMMAND", command)));
        script.env("SUBLET_DEBIAN", self.target.debian).env("SUBLET_IMAGE", self.target.image);
        script
    }

    /// Checks what programs and libraries in a folder need of the system; and that there are at least this many.
    fn check_symbols(&self, step: &mut Step, folder: &Path, at_least: usize) -> io::Result<bool> {
        let (found, count) = symbols::findings(folder, self.target.machine)?;
        for finding in &found {
            step.line(finding)?;
        }
        step.line(&format!("{count} programs and libraries, {} findings", found.len()))?;
        let passed = found.is_empty() && count >= at_least;
        step.count(passed);
        Ok(passed)
    }

    /// Checks the size of a file.
    fn check_size(&self, step: &mut Step, file: &Path, most_bytes: u64) -> io::Result<bool> {
        let bytes = fs::metadata(file)?.len();
        let name = file.file_name().unwrap_or_default().display().to_string();
        step.line(&format!("{name} has {bytes} bytes of at most {most_bytes}"))?;
        println!("  {name}: {:.1} MB", bytes as f64 / 1e6);
        step.count(bytes <= most_bytes);
        Ok(bytes <= most_bytes)
    }

    /// Writes the digests of all packages to SHA256SUMS, which `sha256sum --check` reads.
    fn write_checksums(&self) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.out)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() && name != "SHA256SUMS" {
                names.push(name);
            }
        }
        names.sort();
        let sums = Command::new("sha256sum").arg("--").args(&names).current_dir(&self.out).output()?;
        if !sums.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&sums.stderr).trim().to_owned()));
        }
        fs::write(self.out.join("SHA256SUMS"), sums.stdout)
    }
}

/// Returns the path of the command that is built for this machine.
fn native_command() -> Option<PathBuf> {
    TARGETS.iter().find(|target| target.is_native()).map(|target| target.built().join("sublet"))
}

/// Builds the programs and libraries. Those for another architecture need the command of this one later, which writes
/// completions and manual pages.
fn programs(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    if !dist.target.is_native() && !native_command().is_some_and(|command| command.is_file()) {
        return Err(io::Error::other(
            "the manual is written by this machine's own command: make the packages for its architecture first",
        ));
    }
    target::provide_headers()?;
    if !(step.run(dist.target.build())? && step.run(dist.target.build_without_unwinding())?) {
        return Ok(false);
    }
    dist.target.gather()?;
    Ok(true)
}

/// Writes the bill of materials, and the licences of what is linked.
fn materials(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    let folder = dist.emptied("materials")?;
    let mut write = Command::new("python3");
    write.arg("scripts/dist/bill_of_materials.py").arg(dist.target.triple).arg(&folder);
    write.args(PACKAGES).args(ABORT_PACKAGES);
    write.current_dir(root());
    if !step.run(write)? {
        return Ok(false);
    }
    let name = format!("sublet-{}-{}.cdx.json", dist.version, dist.target.triple);
    fs::copy(folder.join("sublet.cdx.json"), dist.out.join(name))?;
    Ok(true)
}
