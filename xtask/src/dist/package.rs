//! What is made by scripts: Debian's packages, the OCI image, and the recipes of other package managers; and the
//! installations of all packages in root file systems.

use std::io;

use super::Dist;
use crate::step::Step;

/// Most bytes of the image, as a registry keeps it.
const MOST_IMAGE_BYTES: u64 = 60_000_000;
/// Programs and libraries in Debian's packages: those of the archive.
const PROGRAMS: usize = 8;

/// Makes Debian's packages, and checks them with lintian.
pub fn deb(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    let stage = dist.emptied("deb")?;
    let mut script = dist.script("scripts/dist/deb.sh");
    script.arg(&stage).arg(&dist.out);
    Ok(step.run(script)? && dist.check_symbols(step, &stage, PROGRAMS)?)
}

/// Makes the image, and runs a lease in it where its programs run on this machine.
pub fn image(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    let work = dist.emptied("image")?;
    let mut script = dist.script("scripts/dist/image.sh");
    script.arg(&work).arg(&dist.out);
    if !step.run(script)? {
        return Ok(false);
    }
    let name = format!("sublet-{}-{}.oci.tar", dist.version, dist.target.image);
    dist.check_size(step, &dist.out.join(name), MOST_IMAGE_BYTES)
}

/// Fills in the recipes for Spack, conda and Helm.
pub fn recipes(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    let mut script = dist.script("target/tools/dist/bin/python");
    script.arg("scripts/dist/recipes.py").arg(&dist.out).arg(&dist.version);
    step.run(script)
}

/// Installs the packages in root file systems, and uses them there.
pub fn installs(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    let mut script = dist.script("scripts/dist/installs.sh");
    script.arg(&dist.out);
    step.run(script)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::root;

    #[test]
    fn agent_of_the_chart_lends_what_pods_did_not_request() {
        let tests =
            Command::new("python3").arg("scripts/dist/test_lend.py").current_dir(root()).output().unwrap();
        let report = String::from_utf8_lossy(&tests.stderr);
        assert!(tests.status.success() && report.contains("OK"), "{report}");
    }
}
