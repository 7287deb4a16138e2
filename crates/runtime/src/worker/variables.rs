//! Environment variables of a worker process: those of its package, its lease and the lease's secrets.
//!
//! They come with the set-up and not with the start of the process: a copy of a warm interpreter has started before, and
//! the environment with which a process starts is shown by `/proc`, which the values of secrets must not be.

use sublet_proto::needs::check_variables;
use sublet_proto::v1::Variable;
use sublet_proto::{Code, Error};

/// Sets the variables, over those with which the process has started. No other thread of the process runs yet.
pub(super) fn set(variables: &[Variable]) -> Result<(), Error> {
    check_variables(variables).map_err(|error| Error::new(Code::Protocol, error.message))?;
    for Variable { name, value } in variables {
        // SAFETY: this is the only thread that runs functions or the library's code: threads of the process start later, so
        // none reads the environment now. The check has refused names and values that the function cannot have.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_the_agent_cannot_have_checked_are_refused() {
        let variable = |name: &str| Variable { name: name.into(), value: "hidden".into() };
        for name in ["", "A=B", "LD_PRELOAD", "A\0"] {
            let error = set(&[variable(name)]).unwrap_err();
            assert!(error.code == Code::Protocol && !error.message.contains("hidden"), "{error}");
        }
    }
}
