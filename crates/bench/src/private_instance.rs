//! A private Sublet of a measurement: a child process of this program that does not outlive it, with a temporary state
//! folder.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sublet_proto::{Code, Error};
use sublet_runtime::{Access, Address};

/// Longest time for an orderly stop.
const STOP: Duration = Duration::from_secs(10);
/// Time between two checks whether it has stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A running child, which is stopped when this is dropped.
pub(super) struct PrivateInstance {
    process: Child,
    state: PathBuf,
}

/// The measured Sublet: the named one, or the first of the private ones, which live as long as the returned value.
pub(super) fn measured(
    named: Option<Access>,
    start: impl FnOnce() -> Result<Vec<PrivateInstance>, Error>,
) -> Result<(Access, Vec<PrivateInstance>), Error> {
    if let Some(access) = named {
        return Ok((access, Vec::new()));
    }
    let own = start()?;
    let none = || Error::new(Code::Internal, "there is no Sublet to be measured");
    let access = own.first().map(PrivateInstance::access).ok_or_else(none)?;
    Ok((access, own))
}

impl PrivateInstance {
    /// Starts `sublet up` with these flags, and waits until it serves.
    pub(super) fn up(flags: &[&str]) -> Result<PrivateInstance, Error> {
        let state = make_state()?;
        PrivateInstance::start(Command::new(own_program()?).arg("up").args(flags), state)
    }

    /// Starts `sublet manager` with these flags and no configuration, and waits until it serves.
    pub(super) fn manager(flags: &[&str]) -> Result<PrivateInstance, Error> {
        let state = make_state()?;
        let config = state.join("manager.toml");
        fs::write(&config, "").map_err(|error| failed("writing", &config, &error))?;
        PrivateInstance::start(
            Command::new(own_program()?).arg("manager").arg("--config").arg(&config).args(flags),
            state,
        )
    }

    /// Starts an agent of this manager with these flags, and waits until it serves. It inherits the cores of the
    /// calling thread.
    pub(super) fn agent(&self, name: &str, flags: &[&str]) -> Result<PrivateInstance, Error> {
        let state = make_state()?;
        let config = state.join("agent.toml");
        fs::write(&config, "").map_err(|error| failed("writing", &config, &error))?;
        let manager = format!("unix:{}", self.state.join("manager.sock").display());
        let mut command = Command::new(own_program()?);
        command.arg("agent").arg("--config").arg(&config);
        if std::env::var_os("SUBLET_LOG").is_none() {
            command.env("SUBLET_LOG", "error");
        }
        PrivateInstance::start(command.args(["--manager", &manager, "--name", name]).args(flags), state)
    }

    fn start(command: &mut Command, state: PathBuf) -> Result<PrivateInstance, Error> {
        for (variable, _) in std::env::vars_os() {
            let text = variable.to_string_lossy();
            if text.starts_with("SUBLET_") && !matches!(&*text, "SUBLET_WORKER" | "SUBLET_LOG") {
                command.env_remove(&variable);
            }
        }
        command
            .arg("--json")
            .arg("--state")
            .arg(&state)
            .args(["--with-parent", &std::process::id().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = command.spawn().map_err(|error| failed("starting a Sublet in", &state, &error))?;
        let mut own = PrivateInstance { process, state };
        own.wait_until_it_serves()?;
        Ok(own)
    }

    /// Waits until the child serves: then it prints one line. It reports errors on standard error.
    fn wait_until_it_serves(&mut self) -> Result<(), Error> {
        let mut line = String::new();
        let said = self.process.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        match said {
            Some(Ok(bytes)) if bytes > 0 => Ok(()),
            _ => Err(Error::new(Code::ManagerUnreachable, "the Sublet of this measurement did not start")),
        }
    }

    /// Access to its Unix socket.
    pub(super) fn access(&self) -> Access {
        Access {
            managers: vec![Address::Unix(self.state.join("manager.sock"))],
            ca_pem: None,
            token: None,
            tenant: None,
        }
    }

    /// Access to one of its ports by TLS, with its own certificate authority.
    pub(super) fn access_by_tls(&self, port: u16, token: String) -> Result<Access, Error> {
        let access = Access::parse(&format!("https://{}:{port}", Ipv4Addr::LOCALHOST))?;
        access.with_ca_file(&self.state.join("tls/ca.pem"))?.with_token(token)
    }

    fn stop(&mut self) {
        if kill_process(Pid::from_child(&self.process), Signal::TERM).is_ok() {
            let since = Instant::now();
            while since.elapsed() < STOP {
                match self.process.try_wait() {
                    Ok(None) => std::thread::sleep(LOOK_AGAIN),
                    Ok(Some(_)) | Err(_) => return,
                }
            }
        }
        // The child did not stop, or has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for PrivateInstance {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = fs::remove_dir_all(&self.state) {
            tracing::warn!(folder = %self.state.display(), %error, "a measurement's folder cannot be removed");
        }
    }
}

/// A port on which no process listens now.
pub(super) fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    let port = listener.map(|address| address.port());
    port.map_err(|error| Error::new(Code::System, format!("finding a free port failed: {error}")))
}

fn own_program() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .map_err(|error| Error::new(Code::System, format!("cannot find this program's own path: {error}")))
}

fn make_state() -> Result<PathBuf, Error> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let state = std::env::temp_dir().join(format!("sublet-bench-{}-{number}", std::process::id()));
    let made = DirBuilder::new().mode(0o700).create(&state);
    made.map_err(|error| failed("making the folder", &state, &error))?;
    Ok(state)
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::System, format!("{doing} {} failed: {error}", path.display()))
}
