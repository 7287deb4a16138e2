//! The body of a blob, whose bytes have to come at a minimum rate.
//!
//! The bound of each read is the HTTP client's. This one bounds a registry that sends a few bytes at a time.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

/// Time that a body may take whatever its rate is.
const GRACE: Duration = Duration::from_secs(60);
/// Bytes per second that a registry has to send beyond that, on average.
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;
/// Time that one body may take in all.
pub(super) const MAX_TIME: Duration = Duration::from_secs(2 * 60 * 60);

/// See the [module](self).
pub(super) struct PacedBody<R> {
    body: R,
    begun: Instant,
    received_bytes: u64,
}

impl<R> PacedBody<R> {
    pub(super) fn new(body: R) -> PacedBody<R> {
        PacedBody { body, begun: Instant::now(), received_bytes: 0 }
    }
}

impl<R: Read> Read for PacedBody<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.body.read(buffer)?;
        self.received_bytes = self.received_bytes.saturating_add(read as u64);
        match read > 0 && self.begun.elapsed() > may_take(self.received_bytes) {
            true => Err(io::Error::new(ErrorKind::TimedOut, too_slow(self.received_bytes))),
            false => Ok(read),
        }
    }
}

/// The time that a registry may have taken for these bytes until the next ones arrive.
fn may_take(received_bytes: u64) -> Duration {
    let earned = Duration::from_secs(received_bytes / MIN_BYTES_PER_SECOND);
    GRACE.saturating_add(earned).min(MAX_TIME)
}

fn too_slow(received_bytes: u64) -> String {
    format!(
        "the download is too slow: {received_bytes} bytes were received in {} s, and at least {} KiB/s are needed after {} s",
        may_take(received_bytes).as_secs(),
        MIN_BYTES_PER_SECOND >> 10,
        GRACE.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trickled_bytes_earn_no_time() {
        assert_eq!(may_take(100), GRACE);
        assert_eq!(may_take(10 * MIN_BYTES_PER_SECOND), GRACE + Duration::from_secs(10));
        assert_eq!(may_take(u64::MAX), MAX_TIME);
    }

    #[test]
    fn gives_up_a_body_that_trickles() {
        let begun = Instant::now()
            .checked_sub(GRACE + Duration::from_secs(1))
            .expect("the machine is up for a minute");
        let mut body = PacedBody { body: &[7; 1000][..], begun, received_bytes: 0 };
        let error = body.read(&mut [0; 100]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("100 bytes"), "{error}");
        let mut body = PacedBody { received_bytes: 2 * MIN_BYTES_PER_SECOND, ..body };
        assert_eq!(body.read(&mut [0; 100]).unwrap(), 100);
    }
}
