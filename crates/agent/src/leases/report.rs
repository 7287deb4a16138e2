//! The reporter: one thread that keeps a manager informed, and through which managers end leases.
//!
//! The reporter sends the usage of all leases each second. It also sends it at once when a lease ends, when a manager's
//! answer frees a lease that no client attached, or when the node is drained. Usage is cumulative and an end is
//! repeated until it is acknowledged, so a lost report loses no information.
//!
//! The node obeys one manager at a time and stays with it while it answers. When that manager is silent for
//! [`SILENCE`], the node registers with the next one, in turn. A manager that does not know the node (it was restarted,
//! or the node has moved to another by now) asks for a registration. Leases continue through all of this until they
//! expire.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use sublet_proto::v1::{ConnectedNodes, EndOrder, NodeReport, Registration};
use sublet_proto::{Code, Error};
use tracing::{info, warn};

use crate::leases::book::Exchange;
use crate::leases::ledger::{NewsCursor, ThreadStep};
use crate::leases::manager::ManagerLink;
use crate::node::Node;
use crate::signal::WantedEnd;

/// Period of the reports: the sudden death of a node loses at most this much of its leases' usage.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a manager may be silent before the node goes to the next one.
const SILENCE: Duration = Duration::from_secs(2);
/// How long to wait after a failed attempt, at first and at most.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// How long to wait after a manager has refused the node.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// How long a starting agent waits for its manager to start, or to notice that the node's former agent is dead.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// How long a stopping agent waits for a manager that answers and acknowledges its last leases, and how often it asks.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);
const FINISH_STEP: Duration = Duration::from_millis(50);
/// Time between the announcement and the end of a lease that a manager ends. A lease without permission ends at once.
const ORDER_GRACE: Duration = Duration::from_secs(1);
/// Low bits of a generation, which count the registrations since a start of the agent. Should they not suffice, they
/// run on into the time of the start, which later starts are still after.
const GENERATION_SHIFT: u32 = 20;

/// The body of the reporter's thread. Says once whether the node could be registered; if not, it ends.
pub(crate) fn run(node: &Node, registered: &SyncSender<Result<(), Error>>) {
    // The receiver waits for what is sent; if it does not, the agent is gone, and so may this thread be.
    match LeaseReporter::start(node) {
        Ok(mut reporter) => {
            if registered.send(Ok(())).is_ok() {
                reporter.report_until_finished();
            }
        }
        Err(error) => {
            let _ = registered.send(Err(error));
        }
    }
}

struct LeaseReporter<'node> {
    node: &'node Node,
    manager: ManagerLink,
    /// The manager has taken the node up, and has not said since that it does not know it.
    registered: bool,
    /// Generation of the latest registration.
    generation: u64,
    last_answer: Instant,
    /// Attempts that have failed since the last answer.
    failures: u32,
}

impl LeaseReporter<'_> {
    fn start(node: &Node) -> Result<LeaseReporter<'_>, Error> {
        let (manager, start) = (node.leases.managers.connect()?, Instant::now());
        let generation = first_generation(node.started_ms);
        let mut reporter =
            LeaseReporter { node, manager, registered: false, generation, last_answer: start, failures: 0 };
        loop {
            match reporter.register() {
                Err(error) if is_passing(&error) && start.elapsed() < START_PATIENCE => {
                    reporter.move_on()?;
                    std::thread::sleep(FIRST_RETRY);
                }
                // An agent that was killed is missed after a few seconds.
                Err(error) if error.code == Code::AlreadyRunning && start.elapsed() < START_PATIENCE => {
                    std::thread::sleep(FIRST_RETRY);
                }
                outcome => return outcome.map(|()| reporter),
            }
        }
    }

    fn report_until_finished(&mut self) {
        let (mut seen, mut period) = (NewsCursor::default(), PERIOD);
        while self.node.leases.ledger.wait_turn(&mut seen, period) == ThreadStep::Act {
            period = match self.report() {
                Ok(()) => self.answered(),
                Err(error) => self.failed(&error),
            };
        }
        self.finish();
    }

    /// Notes an answer. Returns the time to wait until the next report.
    fn answered(&mut self) -> Duration {
        if self.failures > 0 {
            info!(manager = %self.manager.address(), "a manager answers again");
        }
        self.failures = 0;
        self.last_answer = Instant::now();
        PERIOD
    }

    /// Notes a failure. Returns the time to wait until the next attempt.
    fn failed(&mut self, error: &Error) -> Duration {
        if self.failures == 0 {
            warn!(%error, "the node could not report; its leases continue");
        }
        let is_refused = !is_passing(error);
        self.registered &= !is_refused;
        let managers = u32::try_from(self.node.leases.managers.count()).unwrap_or(u32::MAX);
        let has_done_with_it = !self.registered || self.last_answer.elapsed() >= SILENCE;
        if managers > 1
            && has_done_with_it
            && let Err(error) = self.move_on()
        {
            warn!(%error, "a manager cannot be used");
        }
        // The wait grows with the number of rounds in which all managers were tried in vain.
        let rounds = self.failures / managers.max(1);
        self.failures = self.failures.saturating_add(1);
        if is_refused {
            return REFUSED_RETRY;
        }
        FIRST_RETRY.saturating_mul(1 << rounds.min(8)).min(LONGEST_RETRY)
    }

    fn move_on(&mut self) -> Result<(), Error> {
        self.node.leases.managers.move_on();
        self.registered = false;
        self.manager = self.node.leases.managers.connect()?;
        Ok(())
    }

    fn report(&mut self) -> Result<(), Error> {
        if !self.registered {
            self.register()?;
        }
        match self.report_once() {
            Err(error) if error.code == Code::Protocol => {
                self.register()?;
                self.report_once()
            }
            outcome => outcome,
        }
    }

    fn report_once(&mut self) -> Result<(), Error> {
        let ledger = &self.node.leases.ledger;
        for meter in ledger.meters() {
            meter.look();
        }
        let neighbours = &self.node.links.neighbours;
        let asked = ledger.now();
        let cache = Some(self.node.execution.cache.usage());
        let connected = Some(ConnectedNodes { nodes: self.node.links.shim.connected() });
        let standby = self.node.execution.standby.kept();
        let report =
            NodeReport { neighbours: neighbours.version(), cache, connected, standby, ..ledger.report() };
        let reply = self.manager.report(report.clone())?;
        let exchange = Exchange { asked, answered: ledger.now() };
        let now = Instant::now();
        ledger.reported(&report, &reply, exchange, |order| wanted_end(order, now));
        self.node.leases.managers.learn(&reply.managers);
        reply.neighbours.into_iter().for_each(|told| neighbours.learn(told));
        neighbours.complain();
        Ok(())
    }

    fn register(&mut self) -> Result<(), Error> {
        let (node, ledger) = (self.node, &self.node.leases.ledger);
        self.registered = false;
        self.generation += 1;
        let registration = Registration {
            node: Some(node.description.clone()),
            instance: node.instance.clone(),
            leases: ledger.register(),
            generation: self.generation,
        };
        let asked = ledger.now();
        let reply = self.manager.register(registration)?;
        ledger.registered(&reply, Exchange { asked, answered: ledger.now() })?;
        node.leases.managers.learn(&reply.managers);
        node.links.neighbours.learn(reply.neighbours.unwrap_or_default());
        self.registered = true;
        info!(manager = %self.manager.address(), registration = reply.registration, "the node is registered");
        Ok(())
    }

    /// Reports that all leases have ended to any manager that answers, and waits for it to acknowledge the ends. The
    /// journal keeps ends that are not acknowledged.
    fn finish(&mut self) {
        let start = Instant::now();
        for _ in 0..self.node.leases.managers.count() {
            let Err(error) = self.report() else { break };
            warn!(%error, "the end of the node's leases could not be reported");
            if self.move_on().is_err() || start.elapsed() > FINISH_PATIENCE {
                return;
            }
        }
        while !self.node.leases.ledger.is_empty() && start.elapsed() < FINISH_PATIENCE {
            std::thread::sleep(FINISH_STEP);
            if self.report().is_err() {
                return;
            }
        }
    }
}

/// Lower bound of the generations of an agent that started at this time; the node's earlier agents have lower ones. An
/// agent that has lost its state folder and whose clock was set back too has to wait until its node is forgotten.
fn first_generation(started_ms: u64) -> u64 {
    started_ms << GENERATION_SHIFT
}

/// Whether waiting, or another manager, may help.
fn is_passing(error: &Error) -> bool {
    matches!(
        error.code,
        Code::ManagerUnreachable
            | Code::StoreUnreachable
            | Code::StoreFull
            | Code::TryLater
            | Code::System
            | Code::Internal
    )
}

fn wanted_end(order: &EndOrder, now: Instant) -> WantedEnd {
    let code = match order.code {
        0 => Code::LeaseEnded,
        number => Code::from_number(number),
    };
    let grace = match code {
        Code::PermissionDenied | Code::Unauthenticated => Duration::ZERO,
        _ => ORDER_GRACE,
    };
    let reason = match order.reason.as_str() {
        "" => format!("lease {} was ended by the manager", order.lease),
        reason => reason.to_owned(),
    };
    WantedEnd { reason: Error::new(code, reason), at: now + grace }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_agent_begins_with_a_higher_generation() {
        let at = first_generation;
        let (now_ms, day_ms) = (1_800_000_000_000, 24 * 60 * 60 * 1000);
        // An agent that tries four times a second for a day, and is killed and started again.
        assert!(at(now_ms) + 4 * day_ms / 1000 < at(now_ms + day_ms));
        assert!(at(now_ms) > 0 && at(now_ms) < at(now_ms + 1));
        assert!(at(u64::from(u32::MAX) << 10) > at(now_ms), "for a century");
    }

    #[test]
    fn an_ordered_end_has_a_grace_unless_permission_is_revoked() {
        let now = Instant::now();
        let end = |code, reason: &str| {
            wanted_end(&EndOrder { lease: "a".into(), code, reason: reason.into() }, now)
        };
        let ended = end(0, "");
        assert_eq!((ended.reason.code, ended.at), (Code::LeaseEnded, now + ORDER_GRACE));
        assert_eq!(ended.reason.message, "lease a was ended by the manager");
        let revoked = end(Code::Unauthenticated.number(), "the token was revoked");
        assert_eq!((revoked.reason.message.as_str(), revoked.at), ("the token was revoked", now));
    }
}
