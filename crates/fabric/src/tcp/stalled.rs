//! Detects a connection on which sent data is never acknowledged, although its host may be alive: a switch that drops
//! packets by size lets small ones pass and no large one.
//!
//! The kernel would continue for a quarter of an hour. Its own limit (TCP_USER_TIMEOUT) cannot be used here: that also
//! ends a connection whose peer cannot buffer more, such as a worker that computes.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Time without an acknowledgement of sent data after which the connection counts as stalled.
const SILENCE: Duration = Duration::from_secs(1);
/// Number of retransmissions after which the connection counts as stalled, if that time has passed as well.
const REPEATS: u8 = 2;

/// Reason why sent data will not be acknowledged, if that is so.
#[cold]
pub(super) fn stalled(socket: &TcpStream) -> Option<String> {
    let info = info(socket)?;
    // A peer with a full buffer is probed, and answers the probe.
    let is_stalled = info.tcpi_unacked > 0
        && info.tcpi_probes == 0
        && info.tcpi_retransmits >= REPEATS
        && Duration::from_millis(info.tcpi_last_ack_recv.into()) >= SILENCE;
    is_stalled.then(|| {
        format!(
            "{} packets of up to {} bytes were sent {} times and not acknowledged for {} ms; if small calls pass and large \
             ones do not, compare the MTU of both machines and of what is between them",
            info.tcpi_unacked,
            info.tcpi_snd_mss,
            info.tcpi_retransmits + 1,
            info.tcpi_last_ack_recv
        )
    })
}

fn info(socket: &TcpStream) -> Option<libc::tcp_info> {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    #[expect(clippy::cast_possible_truncation, reason = "the structure has a few hundred bytes")]
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `info` has.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    (asked == 0).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn acknowledging_peer_and_one_with_full_buffer_are_not_stalled() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_peer, _) = listener.accept().unwrap();
        socket.write_all(b"hello").unwrap();
        assert_eq!(stalled(&socket), None);
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        std::thread::sleep(2 * SILENCE);
        assert_eq!(
            stalled(&socket),
            None,
            "a peer with a full buffer was taken for one that is out of reach"
        );
    }
}
