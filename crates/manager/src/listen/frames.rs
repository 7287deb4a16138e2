//! A bound on HTTP/2 frames that cost a peer nothing: PING, SETTINGS, PRIORITY, RST_STREAM and WINDOW_UPDATE frames,
//! and empty ones. Each costs processor time, and the library answers all of them.
//!
//! A connection has credit. Every frame costs one; a request, transferred bytes and time earn some. So the usual frames
//! of a client beside its requests are free, and a connection that sends only such frames is cut.

use std::time::{Duration, Instant};

use sublet_proto::saturating_u64;

/// Most credit of a connection, and its credit at the start, in frames.
const MOST_CREDIT: u32 = 512;
/// Credit that time earns, in frames per second.
const FRAMES_PER_SECOND: u32 = 100;
/// Credit that a request earns, in frames: its data, updates of windows, a ping, its cancellation.
const FRAMES_PER_REQUEST: u32 = 8;
/// Transferred bytes that earn one frame.
const BYTES_PER_FRAME: u32 = 512;
/// Length of a client's connection preface, in bytes.
const PREFACE_BYTES: usize = 24;
/// Length of a frame's header, in bytes.
const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// Counts the frames of one connection.
#[derive(Debug)]
pub(crate) struct FrameCounter {
    at: At,
    credit: u32,
    earned: Instant,
    /// Transferred bytes that have not yet earned a frame.
    bytes: u32,
}

/// Position in the stream of bytes.
#[derive(Debug)]
enum At {
    /// Bytes to skip: the preface, or a frame's payload.
    Skip(usize),
    Header([u8; HEADER_BYTES], usize),
}

/// The connection has sent too many frames for its requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flood;

impl FrameCounter {
    pub(crate) fn new(now: Instant) -> FrameCounter {
        FrameCounter { at: At::Skip(PREFACE_BYTES), credit: MOST_CREDIT, earned: now, bytes: 0 }
    }

    /// Counts received bytes. The clock is read only when the credit is used up.
    pub(crate) fn received(&mut self, mut bytes: &[u8], now: impl Fn() -> Instant) -> Result<(), Flood> {
        while let Some(&first) = bytes.first() {
            match &mut self.at {
                At::Skip(left) => {
                    let skipped = bytes.len().min(*left);
                    bytes = &bytes[skipped..];
                    *left -= skipped;
                    if *left == 0 {
                        self.at = At::Header([0; HEADER_BYTES], 0);
                    }
                }
                At::Header(header, filled) => {
                    header[*filled] = first;
                    *filled += 1;
                    bytes = &bytes[1..];
                    if *filled == HEADER_BYTES {
                        let [a, b, c, kind, ..] = *header;
                        let len_bytes = u32::from_be_bytes([0, a, b, c]);
                        self.at = match len_bytes as usize {
                            0 => At::Header([0; HEADER_BYTES], 0),
                            len => At::Skip(len),
                        };
                        self.frame(kind, len_bytes, &now)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts bytes that were sent: the receiver may acknowledge them.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.transferred(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn transferred(&mut self, bytes: u32) {
        let bytes = self.bytes.saturating_add(bytes);
        self.bytes = bytes % BYTES_PER_FRAME;
        self.earn(bytes / BYTES_PER_FRAME);
    }

    fn earn(&mut self, frames: u32) {
        self.credit = self.credit.saturating_add(frames).min(MOST_CREDIT);
    }

    fn frame(&mut self, kind: u8, len_bytes: u32, now: &impl Fn() -> Instant) -> Result<(), Flood> {
        match kind {
            HEADERS => self.earn(FRAMES_PER_REQUEST),
            DATA => self.transferred(len_bytes),
            _ => {}
        }
        if self.credit == 0 {
            self.earn_by_time(now());
        }
        self.credit = self.credit.checked_sub(1).ok_or(Flood)?;
        Ok(())
    }

    #[cold]
    fn earn_by_time(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.earned).min(Duration::from_secs(60));
        self.earned = now;
        let earned = saturating_u64(passed.as_secs_f64() * f64::from(FRAMES_PER_SECOND));
        self.earn(u32::try_from(earned).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, len_bytes: usize) -> Vec<u8> {
        let [_, a, b, c] = (len_bytes as u32).to_be_bytes();
        let mut frame = vec![a, b, c, kind, 0, 0, 0, 0, 0];
        frame.resize(HEADER_BYTES + len_bytes, 0x5a);
        frame
    }

    fn stream(frames: &[(u8, usize)]) -> Vec<u8> {
        let frames = frames.iter().flat_map(|&(kind, len)| frame(kind, len));
        std::iter::repeat_n(b'P', PREFACE_BYTES).chain(frames).collect()
    }

    #[test]
    fn cuts_floods_of_control_frames() {
        let now = Instant::now();
        for (kind, len) in [(PING, 8), (4, 0), (2, 5), (3, 4), (8, 4), (DATA, 0), (9, 1)] {
            let mut frames = FrameCounter::new(now);
            let flood = stream(&vec![(kind, len); MOST_CREDIT as usize + 1]);
            assert_eq!(frames.received(&flood, || now), Err(Flood), "{kind}");
        }
    }

    #[test]
    fn slow_pings_are_no_flood() {
        let begin = Instant::now();
        let mut frames = FrameCounter::new(begin);
        frames.received(&stream(&[]), || begin).unwrap();
        for number in 0..100_000 {
            let now = begin + Duration::from_secs_f64(f64::from(number) / f64::from(FRAMES_PER_SECOND / 2));
            frames.received(&frame(PING, 8), || now).unwrap();
        }
    }

    #[test]
    fn requests_and_transfers_earn_their_frames() {
        let now = Instant::now();
        let mut frames = FrameCounter::new(now);
        frames.received(&stream(&[]), || now).unwrap();
        for _ in 0..100_000 {
            for (kind, len) in [(HEADERS, 90), (DATA, 40), (8, 4), (PING, 8), (3, 4)] {
                frames.received(&frame(kind, len), || now).unwrap();
            }
        }
        for _ in 0..100_000 {
            frames.sent(16 << 10);
            frames.received(&frame(8, 4), || now).unwrap();
            frames.received(&frame(DATA, 16 << 10), || now).unwrap();
        }
    }

    #[test]
    fn requests_earn_no_credit_beyond_the_most() {
        let now = Instant::now();
        let mut frames = FrameCounter::new(now);
        frames.received(&stream(&vec![(HEADERS, 90); 10_000]), || now).unwrap();
        let flood = frame(PING, 8).repeat(MOST_CREDIT as usize + 1);
        assert_eq!(frames.received(&flood, || now), Err(Flood));
    }

    proptest! {
        #[test]
        fn counts_the_same_however_the_bytes_are_cut(
            frames in proptest::collection::vec((0u8..12, 0usize..40), 1..700),
            piece in 1usize..100,
        ) {
            let (now, bytes) = (Instant::now(), stream(&frames));
            let (mut whole, mut pieces) = (FrameCounter::new(now), FrameCounter::new(now));
            let at_once = whole.received(&bytes, || now);
            let in_pieces = bytes.chunks(piece).try_for_each(|piece| pieces.received(piece, || now));
            prop_assert_eq!(&at_once, &in_pieces);
            if at_once.is_ok() {
                prop_assert_eq!(whole.credit, pieces.credit);
            }
        }
    }
}
