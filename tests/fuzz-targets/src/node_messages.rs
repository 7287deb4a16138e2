//! Packets between a client, its agent, its worker, the spawner of sandboxes, who looks at devices, processes and shims:
//! each of the messages that travel on a node's sockets.

use sublet_proto::{Code, decode, v1};

use crate::{round_trip, values};

/// Decodes the message of a kind; the first byte is the kind.
///
/// # Panics
/// If it is not the same after a round trip, or has an unknown code.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = values::<(u8, &[u8])>(input) else { return };
    match kind % 13 {
        0 => round_trip::<v1::ClientToAgent>(bytes),
        1 => agent_to_client(bytes),
        2 => round_trip::<v1::WorkerSetup>(bytes),
        3 => round_trip::<v1::ClientToWorker>(bytes),
        4 => round_trip::<v1::WorkerToClient>(bytes),
        5 => round_trip::<v1::Package>(bytes),
        6 => round_trip::<v1::SandboxRequest>(bytes),
        7 => round_trip::<v1::SandboxReply>(bytes),
        8 => round_trip::<v1::DeviceLook>(bytes),
        9 => round_trip::<v1::EnterShim>(bytes),
        10 => round_trip::<v1::ShimToProcess>(bytes),
        11 => round_trip::<v1::ShimMessage>(bytes),
        _ => round_trip::<v1::SpawnProgram>(bytes),
    }
}

/// Codes are numbers: an unknown number also decodes to a valid code.
fn agent_to_client(bytes: &[u8]) {
    round_trip::<v1::AgentToClient>(bytes);
    let Ok(packet) = decode::<v1::AgentToClient>("a packet", bytes) else { return };
    if let Some(v1::agent_to_client::Body::Failure(failure)) = packet.body {
        assert!(Code::ALL.contains(&Code::from_number(failure.code)));
    }
}
