//! The `[[profile]]`s of a manifest (Molecule 4.1: a function has several profiles, and the platform chooses): the
//! kinds of processing units on which its functions are executed, with their needs and their speed there.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::kind::{is_device, is_processor_kind};
use super::rules::{invalid, wrong};
use crate::Error;
use crate::v1;

/// Most profiles of a package.
pub const MAX_PROFILES: usize = 16;
/// Largest ratio of a profile's speed to that of others, in either direction.
pub const MAX_SPEED: f64 = 1000.0;
/// The speed of a profile that says none, in thousandths.
const PLAIN_PERMILLE: u32 = 1000;

/// A profile as it is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The kind of processing unit, as leases ask for it: `cpu`, or as nodes call theirs, or a device.
    pub pu: String,
    /// Memory of each worker, unless the lease request names its own; the manager's default if it is left out.
    pub memory_bytes: Option<u64>,
    /// Speed of the functions there, relative to the other profiles; 1 if it is left out.
    pub speed: Option<f64>,
}

/// Checks the profiles of a package.
///
/// # Errors
/// `invalid_package` with the fault.
pub(super) fn check(profiles: &[Profile]) -> Result<(), Error> {
    if profiles.len() > MAX_PROFILES {
        return Err(wrong(format!("has {} profiles, at most {MAX_PROFILES} are taken", profiles.len())));
    }
    let mut seen = BTreeSet::new();
    for Profile { pu, memory_bytes, speed } in profiles {
        if !is_device(pu) && !is_processor_kind(pu) {
            return Err(wrong(format!("has a profile for {pu:?}, which is no kind of processing unit")));
        }
        if !seen.insert(pu) {
            return Err(wrong(format!("has two profiles for {pu}")));
        }
        if *memory_bytes == Some(0) {
            return Err(invalid(format!("no function runs without memory, as the profile for {pu} says")));
        }
        if speed.is_some_and(|speed| !(1.0 / MAX_SPEED..=MAX_SPEED).contains(&speed)) {
            return Err(wrong(format!(
                "says that its functions have a speed on {pu} that is not 0.001 to {MAX_SPEED}"
            )));
        }
    }
    Ok(())
}

impl Profile {
    /// Converts the profile to a manager's form.
    pub(super) fn info(&self) -> v1::Profile {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a speed is checked to be 0.001 to `MAX_SPEED`"
        )]
        let permille = |speed: f64| (speed * f64::from(PLAIN_PERMILLE)).round() as u32;
        let speed_permille = self.speed.map_or(PLAIN_PERMILLE, permille);
        debug_assert!(
            speed_permille > 0,
            "the checked profile for {} has the speed {:?}",
            self.pu,
            self.speed
        );
        v1::Profile {
            pu: self.pu.clone(),
            memory_bytes: self.memory_bytes.unwrap_or_default(),
            speed_permille,
        }
    }
}

impl v1::PackageInfo {
    /// Returns the profile of a kind of processing unit, if it has one.
    pub fn profile(&self, pu: &str) -> Option<&v1::Profile> {
        self.profiles.iter().find(|profile| profile.pu == pu)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Manifest;
    use super::*;

    fn parsed(profiles: &str) -> Result<Vec<v1::Profile>, String> {
        let manifest = Manifest::parse(&format!("name='p'\nlibrary='p.so'\n{profiles}"));
        manifest
            .map(|manifest| manifest.profiles.iter().map(Profile::info).collect())
            .map_err(|error| error.message)
    }

    #[test]
    fn profiles_are_read_with_what_they_leave_out() {
        let said = "[[profile]]\npu='cpu'\n[[profile]]\npu='dpu'\nmemory_bytes=4096\nspeed=0.4\n[[profile]]\npu='opencl'\nspeed=3";
        let info = |pu: &str, memory_bytes, speed_permille| v1::Profile {
            pu: pu.into(),
            memory_bytes,
            speed_permille,
        };
        assert_eq!(
            parsed(said).unwrap(),
            [info("cpu", 0, 1000), info("dpu", 4096, 400), info("opencl", 0, 3000)]
        );
        assert_eq!(parsed("").unwrap(), []);
    }

    #[test]
    fn profiles_that_cannot_be_are_named() {
        let why = |said: &str| parsed(said).unwrap_err();
        assert!(why("[[profile]]\npu='x86_64'").contains("\"x86_64\""));
        assert!(why("[[profile]]\npu='cpu'\n[[profile]]\npu='cpu'").contains("two profiles for cpu"));
        assert!(why("[[profile]]\npu='dpu'\nmemory_bytes=0").contains("without memory"));
        for speed in ["0", "-1", "1001", "nan"] {
            assert!(
                why(&format!("[[profile]]\npu='dpu'\nspeed={speed}")).contains("a speed on dpu"),
                "{speed}"
            );
        }
        assert!(why("[[profile]]\ncolour='red'\npu='cpu'").contains("colour"));
        let many: String = (0..17).map(|number| format!("[[profile]]\npu='k{number}'\n")).collect();
        assert!(why(&many).contains("17 profiles"));
    }
}
