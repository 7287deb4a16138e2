//! What programs in the foreground share: signals, and what a service manager wants to hear.
//!
//! The first SIGTERM or SIGINT stops in order, the second at once. Who starts such a program for itself alone can have it
//! stopped by its own end. If `$NOTIFY_SOCKET` is set, as systemd does for
//! `Type=notify`, it is told when the program serves and when it begins to stop.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use rustix::process::{Signal as Number, getppid, set_parent_process_death_signal};
use sublet_proto::{Code, Error};
use tokio::signal::unix::{Signal, SignalKind, signal};

const WORKER: &str = "sublet-worker";
const SPAWNER: &str = "sublet-spawner";

/// What a program goes through, as a service manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Ready,
    Stopping,
}

/// Tells the service manager, if there is one; without it, or if it does not listen, nothing follows.
pub(crate) fn notify(phase: Phase) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    let state: &[u8] = match phase {
        Phase::Ready => b"READY=1",
        Phase::Stopping => b"STOPPING=1",
    };
    // A name that begins with @ is not in the file system.
    let address = match socket.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(Path::new(&socket)),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
    if let Err(error) = sent {
        tracing::warn!(socket = %socket.display(), %error, "the service manager cannot be told");
    }
}

/// Runs blocking work beside the signals.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(|error| Error::new(Code::Internal, format!("a part of this program failed: {error}")))?
}

/// Waits for the end of an orderly stop, or for the signal that says: now.
pub(crate) async fn stop_in_order(
    stop: impl Future<Output = Result<(), Error>>,
    signals: &mut Signals,
) -> Result<(), Error> {
    notify(Phase::Stopping);
    tokio::select! {
        stopped = stop => stopped,
        () = signals.next() => {
            tracing::warn!("stopped at once by a second signal");
            std::process::exit(i32::try_from(Code::Internal.number()).unwrap_or(1));
        }
    }
}

/// For whom a program runs.
#[derive(Debug, clap::Args)]
pub(crate) struct ForWhom {
    /// Stop when this process ends, which must be the one that starts this one, as in a script: --with-parent $$
    #[arg(long, value_name = "PID")]
    with_parent: Option<u32>,
}

impl ForWhom {
    /// Asks for SIGTERM at the parent's end; at that of its thread, if it starts processes from several.
    fn stop_with_it(&self) -> Result<(), Error> {
        let Some(parent) = self.with_parent else { return Ok(()) };
        set_parent_process_death_signal(Some(Number::TERM))
            .map_err(|error| Error::new(Code::System, format!("PR_SET_PDEATHSIG failed: {error}")))?;
        // Afterwards: an end before would have been missed.
        if getppid().is_some_and(|pid| pid.as_raw_pid().unsigned_abs() == parent) {
            return Ok(());
        }
        let message = format!("--with-parent: process {parent} has ended, or did not start this one");
        Err(Error::new(Code::InvalidArgument, message))
    }
}

/// The signals that mean: stop.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Also to the end of the process for which this one runs.
    pub(crate) fn listen_for(whom: &ForWhom) -> Result<Signals, Error> {
        let signals = Signals::listen()?;
        whom.stop_with_it()?;
        Ok(signals)
    }

    pub(crate) fn listen() -> Result<Signals, Error> {
        let listen = |kind| {
            let failed = |error| Error::new(Code::System, format!("cannot wait for signals: {error}"));
            signal(kind).map_err(failed)
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The host's name.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// The worker program: beside this one, or where an installation has it.
pub(crate) fn find_worker() -> Result<PathBuf, Error> {
    find(WORKER, "; or set SUBLET_WORKER")
}

/// The program that makes sandboxes, at the same places.
pub(crate) fn find_spawner() -> Result<PathBuf, Error> {
    find(SPAWNER, "")
}

fn find(program: &str, otherwise: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe()
        .map_err(|error| Error::new(Code::System, format!("cannot find this program's own path: {error}")))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(program), folder.join("../libexec/sublet").join(program)];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places = places.map(|path| path.display().to_string()).join(" and ");
        let message = format!("the program {program} is missing: looked for {places}{otherwise}");
        Error::new(Code::System, message)
    })
}
