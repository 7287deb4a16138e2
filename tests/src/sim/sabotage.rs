//! Faults made on purpose, between the models and never in what they test: each breaks one invariant, and a run that
//! does not find it is worth nothing.

use sublet_proto::isolation::Isolation;
use sublet_proto::v1::{LeaseState, NodeReport, PeerRecord, Registration};

/// Errors that can be introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Reports lack attached leases: their cores are leased again.
    HideLeases,
    /// Reports list ended leases as running.
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
    /// Managers do not know any quota.
    IgnoreQuotas,
    /// Managers do not know the limits of their queues.
    IgnoreLimits,
    /// A tenant's first waiting request is kept from the core.
    HoldBack,
    /// Managers do not say which nodes they have that others miss.
    HideFound,
    /// Registrations do not say which of them is the later.
    Unnumbered,
    /// Registrations say that operators allow every isolation.
    AllowAll,
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
        Sabotage::HideFound,
        Sabotage::Unnumbered,
        Sabotage::AllowAll,
    ];

    /// How many managers it takes.
    pub(super) fn managers(self) -> u8 {
        if self == Sabotage::HideFound { 2 } else { 1 }
    }

    /// Changes what a manager tells the others.
    pub(super) fn spoil_record(self, record: &mut PeerRecord) {
        if self == Sabotage::HideFound {
            record.found.clear();
        }
    }

    /// Changes a registration on its way.
    pub(super) fn spoil_registration(self, registration: &mut Registration) {
        if self == Sabotage::Unnumbered {
            registration.generation = 0;
        }
        if let (Sabotage::AllowAll, Some(node)) = (self, &mut registration.node) {
            node.isolations = Isolation::ALL.map(|isolation| isolation.name().to_owned()).to_vec();
        }
    }

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
