//! The archive: a whole installation in one folder, which may be unpacked anywhere.

use std::fs;
use std::io;
use std::process::Command;

use super::Dist;
use crate::step::Step;

/// Programs and libraries in the archive: those of a wheel but for the Python module, and the C library.
const PROGRAMS: usize = 10;

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
    let materials = dist.work("materials");
    for (from, to) in [
        (crate::root().join("LICENSE"), "LICENSE"),
        (materials.join("LICENSE-THIRD-PARTY"), "LICENSE-THIRD-PARTY"),
        (materials.join("sublet.cdx.json"), "sublet.cdx.json"),
    ] {
        fs::copy(from, document.join(to))?;
    }
    if !dist.check_symbols(step, &stage, PROGRAMS)? {
        return Ok(false);
    }
    let mut pack = Command::new("tar");
    // The same tree gives the same archive.
    pack.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "--mode=go=rX,u+rw",
    ]);
    pack.args(["--use-compress-program=xz -9 --threads=1", "-cf"]);
    pack.arg(dist.out.join(format!("{name}.tar.xz"))).arg("-C").arg(&stage).arg(&name);
    step.run(pack)
}
