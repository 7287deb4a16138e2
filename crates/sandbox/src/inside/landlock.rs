//! The second wall around files and networks, for the case that the first has a hole: Landlock's rules hold wherever a
//! path leads and whatever is mounted.
//!
//! How much of it there is depends on the kernel; older ones know fewer kinds of access, the oldest none.

use std::error::Error;
use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

use crate::{Network, SCRATCH};

/// The newest of Landlock's interfaces of which everything is used.
const NEWEST: ABI = ABI::V6;

pub(super) fn restrict(network: Network) -> io::Result<()> {
    apply(network).map_err(io::Error::other)
}

fn apply(network: Network) -> Result<(), Box<dyn Error + Send + Sync>> {
    let files = AccessFs::from_all(NEWEST);
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::Execute;
    let devices = AccessFs::from_read(NEWEST) | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(files)?;
    if network == Network::None {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    ruleset
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rule(PathBeneath::new(PathFd::new("/")?, AccessFs::from_read(NEWEST)))?
        .add_rule(PathBeneath::new(PathFd::new("/dev")?, devices))?
        .add_rule(PathBeneath::new(PathFd::new(SCRATCH)?, files & !nodes))?
        .restrict_self()?;
    Ok(())
}
