//! Starts the named threads of the agent.

use std::thread::JoinHandle;

use sublet_proto::{Code, Error};

/// Starts a thread of this name.
pub(crate) fn start_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| Error::new(Code::System, format!("cannot start the thread {name}: {error}")))
}
