//! The archives: a whole installation in one folder, which may be unpacked anywhere, what it needs for images with musl, and
//! the command alone, which is linked with all that it needs and runs on every Linux.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::elf::images;
use super::{Dist, target};
use crate::step::Step;
use crate::{musl, root};

/// Programs and libraries in the archive: those of a wheel but for the Python module, and the C library.
const PROGRAMS: usize = 8;
/// What the archive of the command has of a whole installation, beside the command itself.
const SHARED_FILES: &[&str] = &["share/bash-completion", "share/doc", "share/fish", "share/man", "share/zsh"];

/// Installs into a folder, checks what programs need of the system, and packs the folder.
pub fn make(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    let stage = dist.emptied("archive")?;
    let name = format!("sublet-{}-{}", dist.version, dist.target.triple);
    let mut install = dist.script("scripts/install.sh");
    install.arg(format!("/{name}")).env("DESTDIR", &stage);
    if !step.run(install)? {
        return Ok(false);
    }
    let document = stage.join(&name).join("share/doc/sublet");
    fs::create_dir_all(&document)?;
    fs::copy(root().join("LICENSE"), document.join("LICENSE"))?;
    for file in ["LICENSE-THIRD-PARTY", "sublet.cdx.json"] {
        fs::copy(dist.work("materials").join(file), document.join(file))?;
    }
    Ok(dist.check_symbols(step, &stage, PROGRAMS)? && step.run(pack(dist, &stage, (&name, &name)))?)
}

/// Builds what an agent needs for images with musl, checks that it needs nothing but musl, and packs it into an archive of its
/// own: unpacked in the same place, it adds to the installation of the other archive.
pub fn make_musl(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    if !dist.target.is_native() {
        step.line("left out: Debian's musl is for the architecture of this machine")?;
        return Ok(true);
    }
    if let Some(lack) = musl::lack()? {
        step.line(&lack)?;
        return Ok(false);
    }
    let stage = dist.emptied("musl")?;
    let name = format!("sublet-{}-{}", dist.version, dist.target.triple);
    let folder = stage.join(&name).join("libexec/sublet");
    if !musl::build(step, target::PROFILE, &folder)? {
        return Ok(false);
    }
    let mut passed = true;
    for file in &musl::FILES {
        let needs = needs(&folder.join(file.name))?;
        step.line(&format!("{} needs {}", file.name, needs.join(", ")))?;
        passed &= needs == ["libc.so"];
    }
    step.count(passed);
    Ok(passed && step.run(pack(dist, &stage, (&format!("{name}-musl"), &name)))?)
}

/// Builds the command alone, checks that it needs nothing of the system, and packs it with its manual and completions.
pub fn make_static(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    if !step.run(dist.target.build_static())? {
        return Ok(false);
    }
    let stage = dist.emptied("static")?;
    let name = format!("sublet-{}-{}", dist.version, dist.target.static_triple);
    let (folder, whole) = (stage.join(&name), dist.work("archive"));
    let program = root().join("target").join(dist.target.static_triple).join(target::PROFILE).join("sublet");
    fs::create_dir_all(folder.join("bin"))?;
    fs::create_dir_all(folder.join("share"))?;
    fs::copy(&program, folder.join("bin/sublet"))?;
    let shared = whole.join(format!("sublet-{}-{}", dist.version, dist.target.triple));
    let mut copy = Command::new("cp");
    copy.arg("-a").args(SHARED_FILES.iter().map(|path| shared.join(path))).arg(folder.join("share"));
    let needs = needs(&program)?;
    for need in &needs {
        step.line(&format!("the command needs {need}"))?;
    }
    step.count(needs.is_empty());
    Ok(needs.is_empty() && step.run(copy)? && step.run(pack(dist, &stage, (&name, &name)))?)
}

/// Returns what a program needs of the system: libraries and versions of symbols. What it carries for others to load does not
/// count.
fn needs(program: &Path) -> io::Result<Vec<String>> {
    let Some(images) = images(&fs::read(program)?) else {
        return Ok(vec!["nothing that can be read: it is damaged".to_owned()]);
    };
    let own = images.into_iter().next().unwrap_or_default();
    Ok(own.libraries.into_iter().chain(own.versions).collect())
}

/// Returns the command that packs a folder into an archive of a name. The same tree gives the same archive.
fn pack(dist: &Dist, stage: &Path, (name, folder): (&str, &str)) -> Command {
    let mut pack = Command::new("tar");
    pack.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "--mode=go=rX,u+rw",
    ]);
    pack.args(["--use-compress-program=xz -6 --threads=1", "-cf"]);
    pack.arg(dist.out.join(format!("{name}.tar.xz"))).arg("-C").arg(stage).arg(OsStr::new(folder));
    pack
}
