//! Gives the fuzz target `listeners` access to the shim, as a worker process calls it. Compiled with the feature
//! `fuzzing` only.

use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prost::Message;
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_fabric::ring::Position;
use sublet_proto::v1::EnterShim;
use sublet_runtime::access::Access;
use sublet_xpu::wire::{self, CallRequest};

use crate::leases::managers::Managers;
use crate::shim::{ProcessIdentity, Shim};

/// The unit of the shim's processes.
const UNIT: u32 = 7;
/// How long an answer of the shim is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a call: its operation, its record, the length of its payload, and three words.
const CALL_BYTES: usize = 8;

static SHIM: LazyLock<Option<Shim>> = LazyLock::new(|| {
    let managers = Arc::new(Managers::new(Access::parse("unix:/nowhere").ok()?));
    let instance = "0000001fffffffffffffffffffffffff";
    Shim::start(("here", "cpu", instance), &[UNIT], 1, (managers, false)).ok()
});

/// A process enters a shim and makes the calls that the bytes say, or writes them over its page. Another one is served
/// afterwards.
///
/// # Panics
/// If it is not.
pub fn call_shim(bytes: &[u8]) {
    let Some(shim) = &*SHIM else { panic!("the shim does not start") };
    let (outside, inside) = pair();
    let _admission = shim.admit(outside, who("hostile"), None);
    let Some((&how, rest)) = bytes.split_first() else { return };
    if how & 1 == 1 {
        // Any packet in place of the first one.
        let _ = inside.send(rest, &[]);
    } else if let Some(page) = enter(&inside) {
        act(&page, rest);
    }
    assert_serves(shim);
    let _ = inside.receive(Some(Duration::ZERO));
}

fn pair() -> (PacketSocket, PacketSocket) {
    PacketSocket::pair().expect("sockets can be made")
}

fn who(tenant: &str) -> ProcessIdentity {
    ProcessIdentity { lease: "l".into(), tenant: tenant.to_owned(), pu: UNIT, capacity_bytes: 1 << 20 }
}

/// The page of a process that is in, and its bell.
struct Page {
    region: Region,
    bell: OwnedFd,
}

fn enter(socket: &PacketSocket) -> Option<Page> {
    socket.send(&EnterShim { version: wire::VERSION }.encode_to_vec(), &[]).ok()?;
    let mut fds = socket.receive(Some(PATIENCE)).ok()??.fds.into_iter();
    let region = Region::attach(fds.next()?, wire::PAGE_BYTES).ok()?;
    Some(Page { region, bell: fds.next()? })
}

/// Calls, one for each eight bytes; those of an odd number scribble instead.
fn act(page: &Page, bytes: &[u8]) {
    let mut calls = 0;
    for chunk in bytes.chunks_exact(CALL_BYTES).take(64) {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        if chunk[0] & 0x80 != 0 {
            let offset = u64::from(chunk[1]) << 8 | u64::from(chunk[2]);
            page.region.write(offset, &chunk[3..]);
            continue;
        }
        let position = Position::new(calls, wire::RECORDS);
        calls += 1;
        let (line, watch): (Option<&Line>, Option<&Watch>) =
            (page.region.view(wire::request(position.line)), page.region.view(wire::REQUEST_WATCH));
        let Some((line, watch)) = line.zip(watch) else { return };
        let record = u16::from(chunk[1] & 0x1f);
        // A request may name a record that does not exist; the page has no bytes for it.
        page.region.write(wire::payload(u32::from(record) % wire::RECORDS), bytes);
        let request = CallRequest {
            operation: u16::from(chunk[0] & 0x1f),
            record,
            turn: position.turn,
            len_bytes: u32::from(chunk[2]),
            words: [u64::from(chunk[3]), u64::from(UNIT) << 32 | u64::from(chunk[4]), word >> 40],
        };
        let (immediate, body) = request.encode();
        if line.publish(watch, position.turn, immediate, &body) {
            let _ = rustix::io::write(&page.bell, &1u64.to_ne_bytes());
        }
    }
    let _ = rustix::io::write(&page.bell, &1u64.to_ne_bytes());
}

/// Another process may enter and is answered.
fn assert_serves(shim: &Shim) {
    let (outside, inside) = pair();
    let _admission = shim.admit(outside, who("other"), None);
    let process = sublet_xpu::Process::enter(inside).expect("another process may enter");
    assert_eq!(process.rights(process.pid()).map(|rights| rights.to_bits()).ok(), Some(0));
}
