//! A worker program of another version than its agent, as after an exchange of the installed programs, ends with an
//! error that names both.

#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use prost::Message;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::Code;
use sublet_proto::v1::{WorkerSetup, WorkerToClient, worker_to_client};
use sublet_proto::version::CALLS;

#[test]
fn worker_refuses_an_agent_of_another_version() {
    let (outside, inside) = PacketSocket::pair().unwrap();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_sublet-worker"))
        .stdin(Stdio::from(OwnedFd::from(inside)))
        .spawn()
        .unwrap();
    let setup = WorkerSetup { calls: CALLS + 1, ..WorkerSetup::default() };
    outside.send(&setup.encode_to_vec(), &[]).unwrap();
    let packet = outside.receive(Some(Duration::from_secs(180))).unwrap().unwrap();
    let said = WorkerToClient::decode(packet.bytes.as_slice()).unwrap().body;
    let Some(worker_to_client::Body::Failure(failure)) = said else { panic!("{said:?}") };
    assert_eq!(Code::from_number(failure.code), Code::VersionMismatch, "{}", failure.message);
    for version in [CALLS, CALLS + 1] {
        assert!(failure.message.contains(&format!("version {version}")), "{}", failure.message);
    }
    assert!(!worker.wait().unwrap().success());
}
