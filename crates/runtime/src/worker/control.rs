//! Implements a worker process's control socket: the messages that it receives, its answers, and the report of its end.

use std::process::exit;
use std::sync::Once;
use std::time::Duration;

use prost::Message;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_proto::v1::{self, worker_to_client};
use sublet_proto::{Code, Error};

/// The next message; nothing once the other end is gone.
pub(super) fn receive(socket: &PacketSocket) -> Result<Option<Packet>, Error> {
    socket
        .receive(None::<Duration>)
        .map_err(|error| Error::new(Code::System, format!("the control socket: {error}")))
}

pub(super) fn send(socket: &PacketSocket, body: worker_to_client::Body) -> Result<(), Error> {
    let bytes = v1::WorkerToClient { body: Some(body) }.encode_to_vec();
    socket.send(&bytes, &[]).map_err(|error| Error::new(Code::System, format!("the control socket: {error}")))
}

/// Reports why this worker does not work. If that fails, the worker's end has to suffice as a report.
pub(super) fn fail(socket: &PacketSocket, error: &Error) {
    let _ = send(socket, failure(error));
}

pub(super) fn failure(error: &Error) -> worker_to_client::Body {
    let (code, message) = (error.code.number(), error.message.clone());
    worker_to_client::Body::Failure(v1::Failure { code, message })
}

/// Ends the process whose client is out of reach.
#[cold]
pub(super) fn lost(socket: &PacketSocket, why: &str) -> ! {
    end(socket, Error::new(Code::AgentUnreachable, format!("the connection to its client was lost: {why}")))
}

/// Ends the process whose own memory is corrupt.
#[cold]
pub(super) fn confused(socket: &PacketSocket, why: &str) -> ! {
    end(socket, Error::new(Code::Protocol, format!("the worker process ended: {why}")))
}

/// Ends the process for a reason. If several threads have one, the first reports it.
fn end(socket: &PacketSocket, error: Error) -> ! {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!("sublet-worker: {}", error.message);
        fail(socket, &error);
        exit(i32::from(error.code.exit_status()));
    });
    unreachable!("the process has ended")
}
