//! Isolations that the operators of a run allow, and that its clients demand.
//!
//! Both follow from numbers that a run has anyway, so they draw nothing from its random streams.

use sublet_manager::core::RequestId;
use sublet_proto::isolation::Isolation;

use crate::numbers::narrow;

/// Isolations that the operator of an agent's node allows. An operator who names none allows processes and containers.
pub fn allowed(agent: u32) -> &'static [Isolation] {
    const CHOICES: [&[Isolation]; 4] =
        [&[], &[Isolation::Process], &[Isolation::Container, Isolation::Crun], &[Isolation::Weak]];
    CHOICES[agent as usize % CHOICES.len()]
}

/// Isolation that a client demands with a request, if it demands one.
pub fn demanded(RequestId(request): RequestId) -> Option<Isolation> {
    const CHOICES: [Option<Isolation>; 8] = [
        Some(Isolation::Process),
        Some(Isolation::Container),
        Some(Isolation::Crun),
        Some(Isolation::Weak),
        None,
        None,
        None,
        None,
    ];
    CHOICES[narrow::<_, usize>(request % 8)]
}

/// Whether a node may have a lease with this demand.
pub fn may_have(agent: u32, demanded: Option<Isolation>) -> bool {
    const USUAL: [Isolation; 2] = [Isolation::Process, Isolation::Container];
    let allowed = allowed(agent);
    let offered = if allowed.is_empty() { &USUAL[..] } else { allowed };
    demanded.is_none_or(|demanded| offered.contains(&demanded))
}
