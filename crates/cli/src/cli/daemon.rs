//! Signals and service manager notifications of programs that run in the foreground.
//!
//! The first SIGTERM or SIGINT starts an orderly stop, the second stops at once. A program that is started with
//! `--with-parent` stops when that process ends. If `$NOTIFY_SOCKET` is set, as systemd does for `Type=notify`, the program
//! notifies it when it serves and when it begins to stop.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal as Number, getppid, pidfd_open};
use sublet_proto::pu::is_node_name;
use sublet_proto::{Code, Error};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

const WORKER: &str = "sublet-worker";
const SPAWNER: &str = "sublet-spawner";

/// Phase of a program that is reported to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DaemonPhase {
    Ready,
    Stopping,
}

/// Notifies the service manager, if there is one. Failures are only logged.
pub(crate) fn notify(phase: DaemonPhase) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    let state: &[u8] = match phase {
        DaemonPhase::Ready => b"READY=1",
        DaemonPhase::Stopping => b"STOPPING=1",
    };
    // A name that begins with @ is an abstract socket.
    let address = match socket.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(Path::new(&socket)),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
    if let Err(error) = sent {
        tracing::warn!(socket = %socket.display(), %error, "cannot notify the service manager");
    }
}

/// Runs a program that waits more than it computes, on this thread.
pub(crate) fn run(program: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::of_system("cannot make a tokio runtime", &error))?;
    runtime.block_on(program)
}

/// Runs blocking work on a thread of its own, so that signals are still handled.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(|error| Error::new(Code::Internal, format!("a part of this program failed: {error}")))?
}

/// Waits for an orderly stop, or for a second signal that stops at once.
pub(crate) async fn stop_in_order(
    stop: impl Future<Output = Result<(), Error>>,
    signals: &mut Signals,
) -> Result<(), Error> {
    notify(DaemonPhase::Stopping);
    tokio::select! {
        stopped = stop => stopped,
        () = signals.next() => {
            tracing::warn!("stopped at once by a second signal");
            std::process::exit(i32::try_from(Code::Internal.number()).unwrap_or(1));
        }
    }
}

/// Option for the process that a program runs for.
#[derive(Debug, clap::Args)]
pub(crate) struct ForWhom {
    /// Stop when this process ends, which must be the parent, as in a script: --with-parent $$
    #[arg(long, value_name = "PID")]
    with_parent: Option<u32>,
}

impl ForWhom {
    /// Watches the process whose end stops this program, if there is one. The future completes when that process has ended.
    /// The end of only the thread that has started this program does not count.
    fn watch(&self) -> Result<Option<oneshot::Receiver<()>>, Error> {
        let Some(number) = self.with_parent else { return Ok(None) };
        let has_ended = || {
            let message = format!("--with-parent: process {number} has ended, or did not start this one");
            Error::new(Code::InvalidArgument, message)
        };
        let parent = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(has_ended)?;
        let opened = pidfd_open(parent, PidfdFlags::empty()).map_err(|_| has_ended())?;
        // Checked after opening: a process that is still the parent is the one that was opened.
        if getppid() != Some(parent) {
            return Err(has_ended());
        }
        let (end, ended) = oneshot::channel();
        let wait = move || {
            let waited = retry_on_intr(|| poll(&mut [PollFd::new(&opened, PollFlags::IN)], None));
            if let Err(error) = waited {
                tracing::warn!(process = number, %error, "cannot watch the parent");
            }
            // A send fails only if this program is stopping already.
            let _ = end.send(());
        };
        let started = std::thread::Builder::new().name("parent".to_owned()).spawn(wait);
        let failed = |error| Error::new(Code::System, format!("cannot watch process {number}: {error}"));
        started.map(|_| Some(ended)).map_err(failed)
    }
}

/// Events that stop the program.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Completes at the end of the process that this program runs for; `None` after that.
    parent: Option<oneshot::Receiver<()>>,
    /// Handler that is never awaited: with it, a write beyond the limit of file sizes fails instead of killing this process.
    _file_size: Signal,
}

impl Signals {
    /// Listens for signals, and for the end of the process that this one runs for.
    pub(crate) fn listen_for(whom: &ForWhom) -> Result<Signals, Error> {
        Ok(Signals { parent: whom.watch()?, ..Signals::listen()? })
    }

    pub(crate) fn listen() -> Result<Signals, Error> {
        let listen = |kind| {
            let failed = |error| Error::new(Code::System, format!("cannot wait for signals: {error}"));
            signal(kind).map_err(failed)
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            parent: None,
            _file_size: listen(SignalKind::from_raw(Number::XFSZ.as_raw()))?,
        })
    }

    /// Waits for the next event. The end of the parent is reported once.
    pub(crate) async fn next(&mut self) {
        let parent_ends = async {
            match &mut self.parent {
                Some(parent) => drop(parent.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => return,
            _ = self.terminate.recv() => return,
            () = parent_ends => {}
        }
        self.parent = None;
    }
}

/// Returns the host name.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// Returns the host name as the name of a manager's only node. The kernel calls a host without a name `(none)`.
pub(crate) fn own_node_name() -> String {
    Some(host_name()).filter(|name| is_node_name(name)).unwrap_or_else(|| "localhost".to_owned())
}

/// Finds the worker program: beside this program, or in the installation's folder.
pub(crate) fn find_worker() -> Result<PathBuf, Error> {
    find(WORKER, "; or set SUBLET_WORKER")
}

/// Finds the program that creates sandboxes, in the same folders.
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
