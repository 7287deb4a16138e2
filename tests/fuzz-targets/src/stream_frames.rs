//! Decodes frames of a data connection: any bytes are a frame in its only form or an error, and no frame reaches
//! memory that was not exposed, or leaves an endpoint that is neither connected nor closed.

use std::sync::{Arc, OnceLock};

use sublet_fabric::exposed::{ExposedMemory, OWN};
use sublet_fabric::region::Region;
use sublet_fabric::sim::{InjectedFaults, Sim};
use sublet_fabric::tcp::frame::{Frame, HEADER_BYTES};
use sublet_fabric::tcp::{ByteStream, TcpEndpoint};
use sublet_fabric::window::Window;

use crate::values;

const OWN_BYTES: u64 = 64 << 10;
const HIDDEN_BYTES: u64 = 4096;
const HIDDEN: u32 = 1;
/// Turns in which an end takes what has been sent.
const TURNS: u32 = 64;

/// A frame's fields, and what follows it. The key is made right if `known`.
type SentFrame<'bytes> = (bool, [u8; HEADER_BYTES], &'bytes [u8]);

/// Sends frames to an endpoint, over a connection whose faults follow from a seed.
///
/// # Panics
/// If a frame has two encodings, if memory was written that is not exposed, or if a failed endpoint is not down.
pub fn run(input: &[u8]) {
    let Some((seed, withdrawn_at, frames)) = values::<(u64, u8, Vec<SentFrame<'_>>)>(input) else { return };
    let (exposed, hidden) = memory();
    let end = TcpEndpoint::new(exposed.clone(), None);
    let (_, ours, peer) =
        Sim::pair(InjectedFaults { window_bytes: 1 << 20, ..InjectedFaults::of_seed(seed) });
    end.connect(ByteStream::sim(ours)).expect("an eventfd is to be had");
    let key = exposed.expose(OWN).expect("it is there").key;
    for (index, (known, mut header, payload)) in frames.into_iter().enumerate() {
        // A frame for a region that was withdrawn is refused, and its bytes are written nowhere.
        if index == usize::from(withdrawn_at) {
            end.withdraw(OWN, "over");
        }
        if known {
            header[1..4].fill(0);
            header[8..16].copy_from_slice(&key.to_le_bytes());
            header[18..24].fill(0);
        }
        if let Ok(frame) = Frame::decode(&header) {
            assert_eq!(frame.encode(), header);
        }
        // Bytes that do not fit into the window are dropped: the endpoint then misreads the bytes after them.
        let _ = peer.write(&header);
        let _ = peer.write(payload);
        let _ = end.progress();
    }
    for _ in 0..TURNS {
        if end.progress().is_err() {
            assert!(end.down().is_some());
            break;
        }
    }
    let mut bytes = [0; HIDDEN_BYTES as usize];
    hidden.read(0, &mut bytes).expect("it is as long");
    assert!(bytes.iter().all(|&byte| byte == 0), "memory was written that the peer must not reach");
}

/// One region that the peer may reach, and one that it may not. They stay for all inputs.
fn memory() -> &'static (Arc<ExposedMemory>, Region) {
    static MEMORY: OnceLock<(Arc<ExposedMemory>, Region)> = OnceLock::new();
    MEMORY.get_or_init(|| {
        let own = Region::create("own", OWN_BYTES).expect("memory is to be had");
        let hidden = Region::create("hidden", HIDDEN_BYTES).expect("memory is to be had");
        let window = Window::new(4, HIDDEN_BYTES).expect("addresses are to be had");
        window.map(HIDDEN, hidden.fd(), HIDDEN_BYTES).expect("it fits");
        (Arc::new(ExposedMemory::new(&own, Arc::new(window), 4).expect("it fits")), hidden)
    })
}
