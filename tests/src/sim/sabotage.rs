//! Faults made on purpose, between the models and never in what they test: each breaks one invariant, and a run that
//! does not find it is worth nothing.

use sublet_proto::v1::{LeaseState, NodeReport};

/// What is made wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Reports lack attached leases: their cores are leased again.
    HideLeases,
    /// Reports say that ended leases go on.
    HideEnds,
    /// Reports say twice what was used.
    DoubleUsage,
    /// Agents do not end what has expired.
    Overrun,
    /// Tickets get the registration that their agent has now.
    Reissue,
    /// The store forgets what it says that it has taken.
    ForgetWrites,
    /// Clients' calls are answered twice.
    AnswerTwice,
    /// Clients' calls are not answered.
    DropAnswers,
    /// Managers are told of no quota.
    IgnoreQuotas,
    /// Managers are told of no limit to their queues.
    IgnoreLimits,
    /// A tenant's first waiting request is kept from the core.
    HoldBack,
}

impl Sabotage {
    /// All of them.
    pub const ALL: &'static [Sabotage] = &[
        Sabotage::HideLeases,
        Sabotage::HideEnds,
        Sabotage::DoubleUsage,
        Sabotage::Overrun,
        Sabotage::Reissue,
        Sabotage::ForgetWrites,
        Sabotage::AnswerTwice,
        Sabotage::DropAnswers,
        Sabotage::IgnoreQuotas,
        Sabotage::IgnoreLimits,
        Sabotage::HoldBack,
    ];

    /// Changes a report on its way.
    pub(super) fn spoil_report(self, report: &mut NodeReport) {
        match self {
            Sabotage::HideLeases => report.leases.retain(|lease| lease.state() == LeaseState::Ended),
            Sabotage::HideEnds => {
                report.leases.iter_mut().for_each(|lease| lease.set_state(LeaseState::Attached));
            }
            Sabotage::DoubleUsage => {
                for usage in report.leases.iter_mut().filter_map(|lease| lease.usage.as_mut()) {
                    usage.calls *= 2;
                }
            }
            _ => {}
        }
    }
}
