//! The lease of a run: this process drives the run for as long as it has the lease, which it renews.
//!
//! A lost lease shows in the errors of requests about the run: another process has taken it, or the run has ended, as by
//! a cancellation. The driver then stops. Until it notices, the managers refuse what it writes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sublet_proto::run::MAX_RUNNER_BYTES;
use sublet_proto::v1::{DriveRunRequest, RunInfo};
use sublet_proto::{Code, Error};

use crate::manager::ManagerClient;
use crate::random::random_bits;

/// Time without a renewal after which another process may take the lease.
const LEASE: Duration = Duration::from_millis(LEASE_MS);
/// [`LEASE`] in milliseconds.
pub(super) const LEASE_MS: u64 = 5_000;
/// Interval at which a lease is renewed.
pub(super) const RENEWAL: Duration = Duration::from_millis(1_500);
/// Interval at which a lease that another process has is requested again.
const RETRY: Duration = Duration::from_millis(100);

/// Names one attempt of a process to drive a run: nothing else has this name.
pub(super) fn runner_name(process: &str) -> Result<String, Error> {
    let name = format!("{process}#{:032x}", random_bits()?);
    debug_assert!(name.len() <= MAX_RUNNER_BYTES, "the managers refuse the name {name}");
    Ok(name)
}

/// Names one attempt of this client.
pub(super) fn client_name() -> Result<String, Error> {
    runner_name(&format!("client-{}", std::process::id()))
}

/// Takes the lease of a run that another process may have driven. If that process has it still, waits until it ends.
///
/// # Errors
/// `run_taken` if the other process renews it, `lease_ended` if `goes_on` returns false, and `unknown_run` or
/// `run_cancelled` if the run has ended.
pub(super) fn take(
    manager: &ManagerClient,
    run: &str,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<RunInfo, Error> {
    let until = Instant::now() + LEASE + RENEWAL;
    let runner = client_name()?;
    loop {
        let request =
            DriveRunRequest { run: run.to_owned(), runner: runner.clone(), epoch: 0, lease_ms: LEASE_MS };
        match manager.drive_run(request) {
            Err(error) if error.code == Code::RunTaken && Instant::now() < until => {
                if !goes_on() {
                    return Err(Error::new(Code::LeaseEnded, "the run was given up by its client"));
                }
                std::thread::sleep(RETRY);
            }
            // A manager of an earlier version has no leases of runs.
            Err(error) if error.code == Code::VersionMismatch => {
                return Ok(manager.read_run(run, u64::MAX)?.info.unwrap_or_default());
            }
            taken => return taken,
        }
    }
}

/// Whether an error shows that this process does not drive the run any more.
pub(super) fn is_loss(code: Code) -> bool {
    matches!(code, Code::RunTaken | Code::RunCancelled | Code::UnknownRun)
}

/// Whether an error ends no detached run: another attempt may succeed, when managers and store answer again.
pub(super) fn is_outage(code: Code) -> bool {
    matches!(code, Code::ManagerUnreachable | Code::StoreUnreachable | Code::TryLater)
}

/// The lease of one run, which this process has.
pub(super) struct DriverLease {
    manager: Arc<ManagerClient>,
    run: String,
    /// 0: the managers have no leases of runs.
    epoch: u64,
    lost: OnceLock<Error>,
}

impl DriverLease {
    pub(super) fn new(manager: Arc<ManagerClient>, run: String, epoch: u64) -> DriverLease {
        DriverLease { manager, run, epoch, lost: OnceLock::new() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn manager(&self) -> &ManagerClient {
        &self.manager
    }

    /// Renews the lease. If no manager answers, it may be renewed later, as long as no other process has taken it.
    pub(super) fn renew(&self) {
        self.request(LEASE_MS);
    }

    /// Hands the lease back, so that another process takes it at once.
    pub(super) fn hand_back(&self) {
        self.request(0);
    }

    fn request(&self, lease_ms: u64) {
        if self.epoch == 0 {
            return;
        }
        debug_assert!(lease_ms == 0 || lease_ms == LEASE_MS, "a lease of {lease_ms} ms is requested");
        let (run, runner) = (self.run.clone(), String::new());
        let request = DriveRunRequest { run, runner, epoch: self.epoch, lease_ms };
        if let Err(error) = self.manager.drive_run(request) {
            self.note(&error);
        }
    }

    /// Notes the error of a request about the run.
    pub(super) fn note(&self, error: &Error) {
        if is_loss(error.code) {
            // The first error is the one that is reported.
            let _ = self.lost.set(error.clone());
        }
    }

    /// Returns the reason why this process does not drive the run any more.
    pub(super) fn lost(&self) -> Option<&Error> {
        self.lost.get()
    }
}
