//! Options for the runs of an application.

use std::time::Duration;

use sublet_proto::Error;
use sublet_proto::v1::RunTerms;

use crate::fabrics::FabricChoice;

/// Options for the runs of an application.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Longest time that a component waits for cores or memory, in the managers' fair queue. The default is 30 s.
    pub patience: Duration,
    /// Number of times that a component may be lost and begin again. The default is 3.
    pub retries: u32,
    /// Time after the beginning of their predecessors when the environments of the next components are prepared (Scad's
    /// tau). The default is zero: at once. `None` prepares them when the components begin.
    pub prewarm: Option<Duration>,
    /// Time for which workers are kept for the next run of the same application. The default is zero.
    pub keep_alive: Duration,
    /// Time for which workers poll after a call, see [`Policy`](crate::Policy).
    pub hot_timeout: Duration,
    /// Longest time that anything in a run may take: its leases end by themselves after this time. The default is an
    /// hour.
    pub lease_timeout: Duration,
    /// Transport of the calls of components, and of the bytes of memory to and from other machines. The default is
    /// shared memory on the same machine, and the best common network otherwise.
    pub fabric: Option<FabricChoice>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            patience: Duration::from_secs(30),
            retries: 3,
            prewarm: Some(Duration::ZERO),
            keep_alive: Duration::ZERO,
            hot_timeout: Duration::ZERO,
            lease_timeout: Duration::from_secs(3600),
            fabric: None,
        }
    }
}

impl RunOptions {
    /// The terms for the runner of a detached run. Workers poll after calls for no time, and are kept if the graph says so.
    pub(super) fn to_terms(&self) -> RunTerms {
        RunTerms {
            patience_ms: millis(self.patience),
            retries: self.retries,
            prewarm_ms: self.prewarm.map(millis),
            lease_timeout_ms: millis(self.lease_timeout),
            fabric: self.fabric.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// The options for a detached run with these terms.
    ///
    /// # Errors
    /// `invalid_argument` if this version knows no such transport.
    pub(super) fn of_terms(terms: &RunTerms) -> Result<RunOptions, Error> {
        let RunTerms { patience_ms, retries, prewarm_ms, lease_timeout_ms, ref fabric } = *terms;
        Ok(RunOptions {
            patience: Duration::from_millis(patience_ms),
            retries,
            prewarm: prewarm_ms.map(Duration::from_millis),
            lease_timeout: Duration::from_millis(lease_timeout_ms),
            fabric: if fabric.is_empty() { None } else { Some(fabric.parse()?) },
            ..RunOptions::default()
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_a_detached_run_keep_the_options() {
        let options = RunOptions {
            patience: Duration::from_secs(7),
            retries: 9,
            prewarm: None,
            lease_timeout: Duration::from_secs(11),
            fabric: Some(FabricChoice::Tcp { encrypted: true }),
            ..RunOptions::default()
        };
        for options in [RunOptions::default(), options] {
            let read = RunOptions::of_terms(&options.to_terms()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{options:?}"));
        }
        let unknown = RunTerms { fabric: "pigeon".into(), ..RunTerms::default() };
        assert!(RunOptions::of_terms(&unknown).unwrap_err().message.contains("pigeon"));
    }
}
