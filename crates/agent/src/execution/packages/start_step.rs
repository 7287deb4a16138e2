//! The step of a start that fetches a package: set by the thread that fetches, told to the client by its supervisor.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;
use sublet_proto::Error;

use crate::signal::Signal;

/// Step of a start that fetches, which its client receives: `pulling numpy, 2 of 7`.
#[derive(Clone, Default)]
pub(crate) struct StartStep(Arc<StepState>);

#[derive(Default)]
struct StepState {
    step: Mutex<String>,
    /// Raised while there is a step that the supervisor has not taken note of.
    changed: Option<Signal>,
}

impl StartStep {
    /// A step whose changes can be waited for.
    pub(crate) fn watched() -> Result<StartStep, Error> {
        Ok(StartStep(Arc::new(StepState { step: Mutex::default(), changed: Some(Signal::new()?) })))
    }

    /// Says what is being done now.
    pub(in crate::execution) fn set(&self, step: String) {
        let mut now = lock(&self.0.step);
        if *now != step {
            *now = step;
            self.0.changed.iter().for_each(Signal::raise);
        }
    }

    /// A descriptor that is readable once there is a new step.
    pub(crate) fn changed(&self) -> Option<BorrowedFd<'_>> {
        self.0.changed.as_ref().map(AsFd::as_fd)
    }

    /// Returns what is being done now.
    pub(crate) fn take_note(&self) -> String {
        self.0.changed.iter().for_each(Signal::clear);
        lock(&self.0.step).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::signal::wait_readable;

    #[test]
    fn tells_only_other_steps_than_the_last() {
        let step = StartStep::watched().unwrap();
        let is_told = || wait_readable([step.changed()], Some(Instant::now())).unwrap()[0];
        assert!(!is_told());
        for (text, expected) in [("a", true), ("a", false), ("b", true)] {
            step.set(text.to_owned());
            assert_eq!((is_told(), step.take_note().as_str()), (expected, text));
        }
    }
}
