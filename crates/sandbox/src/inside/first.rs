//! The life of the first process of a sandbox that is no copy of a template.

use std::os::fd::AsFd;

use super::{
    Blank, CreationStep, await_start, become_sandbox, contained_standby, give_up, init, make_ready, plan,
};

/// Becomes a sandbox by its plan, and starts the program. Until that is known, an interpreter of an image is on standby in it
/// if the spawner orders that.
pub(crate) fn run(blank: &Blank) -> ! {
    let link = blank.link.as_fd();
    let prepared = make_ready(blank).and_then(|()| {
        let mut plan = plan::receive(link).map_err(|error| (CreationStep::Plan, error))?;
        if plan.is_standby {
            contained_standby::lead(blank, plan);
        }
        become_sandbox(blank, &mut plan).map(|()| plan)
    });
    match prepared {
        Ok(plan) => {
            await_start(link);
            init::run(plan, blank)
        }
        Err((step, error)) => give_up(link, step, &error),
    }
}
