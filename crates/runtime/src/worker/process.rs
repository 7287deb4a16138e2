//! A worker process: one for each lease and node, with a thread for each leased core.
//!
//! Its standard input is its control socket. The agent's set-up comes first. Then the client sends its regions and
//! connects ([`super::client`]), and the threads run until the client or the agent is gone. One thread stays at the
//! control socket and maps regions while the others execute: the first, unless the engine needs that one for a worker.
//! Between nodes the agent keeps the other end of that socket, and relays the client's messages.
//!
//! The process drops its rights before it loads the package: no new privileges, memory limited to the lease's, no core
//! dumps. The sandbox isolates it further, and the process dies with the sandbox. It must not die with its parent: in a
//! container of an OCI runtime the parent is the runtime, which ends when it has started the process.
//!
//! The program's [`Engine`] loads the package and calls its functions. Its type is known statically from the start of
//! each thread, and in the thread's whole loop.

use std::os::fd::OwnedFd;
use std::process::exit;
use std::sync::mpsc::channel;

use rustix::process::{Resource, Rlimit};
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::v1;
use sublet_proto::{Code, Error, decode, to_usize, version};

use super::client::WorkerClient;
use super::control;
use super::engine::{Engine, EngineLoad};
use super::executor;
use super::loading;
use super::preparation::{STACK_BYTES, limit_memory, status};
use super::spawned::{self, Execute};
use super::swapping;
use super::threads::{FirstWorker, WorkerProcessState};
use super::variables;

/// Runs a worker process on its control socket until the client is gone, with the engine that is loaded by then; or
/// executes a program in its place. Returns the exit status of the process.
///
/// # Errors
/// The error that was sent to the client, if it could be sent.
pub fn run<E: Engine>(
    control: OwnedFd,
    load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>,
    execute: Execute,
) -> Result<u8, Error> {
    let entered_ns = monotonic_ns();
    let socket = PacketSocket::from(control);
    let Some(first) = control::receive(&socket)? else { return Ok(0) };
    let mut setup: v1::WorkerSetup = decode("the worker's set-up", &first.bytes)?;
    version::check_calls("the agent", setup.calls).inspect_err(|error| control::fail(&socket, error))?;
    let mut descriptors = first.fds;
    if let Some(socket) = setup.shim.then(|| descriptors.pop()).flatten() {
        sublet_xpu::provide(PacketSocket::from(socket));
    }
    variables::set(&setup.variables)?;
    if let Some(program) = setup.program.take() {
        confine(&setup)?;
        if program.path.is_empty() {
            return executor::run(&setup, &program.args, descriptors.into_iter().nth(1), load);
        }
        return spawned::begin(&setup, program, descriptors, execute);
    }
    loading::begin(&socket);
    let process = (|| {
        let device = setup.local_bytes > 0 && descriptors.len() > 2;
        swapping::start(&setup, device.then(|| descriptors.remove(2)))?;
        confine(&setup)?;
        WorkerProcessState::new(setup, descriptors, entered_ns, load)
    })();
    loading::end();
    match process {
        Ok(process) if E::ON_MAIN_THREAD => process.serve_beside(socket),
        Ok(process) => share(process).serve(share(socket)).map(|()| 0),
        Err(error) => {
            control::fail(&socket, &error);
            Err(error)
        }
    }
}

impl WorkerProcessState {
    /// Takes the client's messages on a thread of its own. This one becomes the first worker.
    fn serve_beside(mut self, socket: PacketSocket) -> Result<u8, Error> {
        let (first, is_to_work) = channel();
        self.first = Some(first);
        let (process, socket) = (share(self), share(socket));
        let serve = move || exit(i32::from(status(process.serve(socket).map(|()| 0))));
        std::thread::Builder::new()
            .name("sublet control".into())
            .stack_size(to_usize(STACK_BYTES))
            .spawn(serve)
            .map_err(|error| Error::new(Code::System, format!("starting the control thread: {error}")))?;
        let FirstWorker { post, ready } = is_to_work
            .recv()
            .map_err(|_| Error::new(Code::Internal, "the control thread ended before its process"))?;
        process.run_worker(&post, &ready);
        // The control thread reports why the worker could not begin, and then ends the process.
        loop {
            std::thread::park();
        }
    }

    /// Processes the client's messages. Regions come before the connection, and whenever the client's allocator grows.
    fn serve(&'static self, socket: &'static PacketSocket) -> Result<(), Error> {
        let mut client = WorkerClient::new(self, socket).inspect_err(|error| control::fail(socket, error))?;
        while let Some(packet) = control::receive(socket)? {
            let answer = client.take(packet).inspect_err(|error| control::fail(socket, error))?;
            answer.map_or(Ok(()), |answer| control::send(socket, answer))?;
        }
        Ok(())
    }
}

/// Leaks a value: the process ends only by exit or death, so the threads' shared state may live for ever.
fn share<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn confine(setup: &v1::WorkerSetup) -> Result<(), Error> {
    let failed = |what: &str, error: rustix::io::Errno| Error::new(Code::System, format!("{what}: {error}"));
    rustix::thread::set_no_new_privs(true).map_err(|error| failed("PR_SET_NO_NEW_PRIVS", error))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none).map_err(|error| failed("RLIMIT_CORE", error))?;
    limit_memory(setup, 0)
}
