//! The reporter: one thread that keeps the manager informed, and through which the manager ends leases.
//!
//! Each second, and at once when a lease ends, it sends what all leases have used. Usage is cumulative and an end is
//! repeated until it is answered, so no lost report loses anything. When the manager does not answer, leases go on
//! until they expire; the node registers again, since the manager may have been restarted, and tries more and more
//! rarely until it does.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use sublet_proto::ticket::Verifying;
use sublet_proto::v1::NodeReport;
use sublet_proto::{Code, Error};
use tracing::{info, warn};

use crate::ledger::Turn;
use crate::manager::Manager;
use crate::node::Node;

/// From one report to the next: what a node's sudden death can lose of its leases' usage.
const PERIOD: Duration = Duration::from_secs(1);
/// How long to wait after a failed report, at first and at most.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_secs(4);
/// How long a starting agent waits for its manager to start.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// The body of the reporter's thread. Says once whether the node could be registered; if not, it ends.
pub(crate) fn run(node: &Node, manager: &str, registered: &SyncSender<Result<(), Error>>) {
    // The receiver waits for what is sent; if it does not, the agent is gone, and so may this thread be.
    match Reporter::start(node, manager) {
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

struct Reporter<'node> {
    node: &'node Node,
    manager: Manager,
    registered: bool,
    retry: Duration,
}

impl Reporter<'_> {
    fn start<'node>(node: &'node Node, manager: &str) -> Result<Reporter<'node>, Error> {
        let manager = Manager::at(manager)?;
        let mut reporter = Reporter { node, manager, registered: false, retry: FIRST_RETRY };
        let start = Instant::now();
        loop {
            match reporter.register() {
                Err(error) if error.code == Code::ManagerUnreachable && start.elapsed() < START_PATIENCE => {
                    std::thread::sleep(FIRST_RETRY);
                }
                outcome => return outcome.map(|()| reporter),
            }
        }
    }

    fn report_until_finished(&mut self) {
        loop {
            let period = if self.registered { PERIOD } else { self.retry };
            let turn = self.node.ledger.wait_turn(period);
            self.report_and_note();
            if turn == Turn::Finish {
                return;
            }
        }
    }

    fn report_and_note(&mut self) {
        let was_registered = self.registered;
        match self.report() {
            Ok(()) if was_registered => {}
            Ok(()) => {
                info!("the manager answers again");
                self.retry = FIRST_RETRY;
            }
            Err(error) => {
                if was_registered {
                    warn!(%error, "the node could not report; its leases go on");
                } else {
                    self.retry = (self.retry * 2).min(LONGEST_RETRY);
                }
                self.registered = false;
            }
        }
    }

    fn report(&mut self) -> Result<(), Error> {
        if !self.registered {
            self.register()?;
        }
        match self.report_once() {
            // A manager that has started anew does not know the node: it has to register, and report again.
            Err(error) if error.code == Code::Protocol => {
                self.register()?;
                self.report_once()
            }
            outcome => outcome,
        }
    }

    fn report_once(&mut self) -> Result<(), Error> {
        let leases = self.node.ledger.reports();
        let report = NodeReport { node: self.node.description.name.clone(), leases: leases.clone() };
        let reply = self.manager.report(report)?;
        self.node.ledger.answered(&leases, &reply);
        Ok(())
    }

    fn register(&mut self) -> Result<(), Error> {
        let registration = self.manager.register(self.node.description.clone())?;
        self.node.set_verifying(Verifying::from_bytes(&registration.verifying_key)?);
        self.registered = true;
        Ok(())
    }
}
