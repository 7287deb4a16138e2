//! Passes on a program's output: the sandbox's first process reads it from a pipe and writes it where its
//! operator reads it.
//!
//! The program never has that file or terminal itself: it could truncate the file or type into the terminal. A sandbox with
//! a log of its own has every byte there. Without one the output goes to the spawner's standard error, in lines that each
//! begin with the sandbox's id, with control characters escaped, so that no line looks like the operator's own programs'.
//!
//! Invariants:
//! - At most [`RATE_BYTES`] a second and [`BURST_BYTES`] at once are written, labels and escapes included. Output beyond that is
//!   read, dropped and counted until [`RESUME_BYTES`] may be written again, and then one line says how much was dropped. A
//!   program never waits for its log.
//! - A log is never longer than [`LOG_BYTES`]: its older half goes first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::SeekFrom;
use rustix::io::retry_on_intr;
use sublet_proto::text::printable_line;

/// Largest log of a sandbox.
const LOG_BYTES: u64 = 1 << 20;
/// Part of a log that is kept when the log reaches its largest size.
const KEPT_BYTES: u64 = LOG_BYTES / 2;
/// Output that is kept each second.
const RATE_BYTES: u64 = 256 << 10;
/// Output that is kept at once after a time without any.
const BURST_BYTES: u64 = 512 << 10;
/// Bytes that must be allowed before output is written again after some was dropped: a flood makes few lines that say so.
const RESUME_BYTES: u64 = RATE_BYTES / 4;
/// Bytes that are read at once: a pipe's capacity.
const CHUNK_BYTES: usize = 64 << 10;
/// Longest line on the spawner's standard error; longer ones are split.
const LINE_BYTES: usize = 1024;
/// Bytes that wait for a standard error that takes none.
const PENDING_BYTES: usize = 256 << 10;
/// Reads after the program's end, for output that it had printed. Later output of other processes of the sandbox is
/// lost with them.
const LAST_READS: usize = 16;

/// The output of one program.
pub(super) struct ProgramOutput {
    /// Reading end of the pipe, until no process has its other end.
    pipe: Option<OwnedFd>,
    sink: Sink,
    allowance: WriteAllowance,
    dropped: u64,
}

/// Destination of output.
pub(crate) enum OutputTarget {
    /// A file of this sandbox only, which gets the output unchanged.
    Log(OwnedFd),
    /// A file that others write to as well, which gets labelled lines.
    Common(OwnedFd),
}

impl AsFd for OutputTarget {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            OutputTarget::Log(file) | OutputTarget::Common(file) => file.as_fd(),
        }
    }
}

enum Sink {
    Log(OwnedFd),
    Labelled(LabelledLines),
    Nowhere,
}

impl ProgramOutput {
    /// Passes output from the pipe to the target, which labels it with the sandbox's id if it is shared.
    pub(super) fn new(pipe: OwnedFd, target: Option<OutputTarget>, id: u64) -> ProgramOutput {
        let sink = match target {
            Some(OutputTarget::Log(log)) => Sink::Log(log),
            Some(OutputTarget::Common(common)) => Sink::Labelled(LabelledLines::new(common, id)),
            None => Sink::Nowhere,
        };
        if let Sink::Log(log) = &sink {
            // A log that cannot be positioned cannot be written, which loses only the output.
            let _ = rustix::fs::seek(log, SeekFrom::End(0));
        }
        ProgramOutput { pipe: Some(pipe), sink, allowance: WriteAllowance::new(Instant::now()), dropped: 0 }
    }

    /// Returns the descriptors to wait for until there is something to do.
    pub(super) fn watched(&self) -> Vec<PollFd<'_>> {
        let mut watched: Vec<_> = self.pipe.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        if let Sink::Labelled(labelled) = &self.sink
            && !labelled.pending.is_empty()
        {
            watched.push(PollFd::new(&labelled.common, PollFlags::OUT));
        }
        watched
    }

    /// Moves the output that is available, without waiting. Returns whether something was read.
    pub(super) fn pass_on(&mut self) -> bool {
        let mut bytes = vec![0; CHUNK_BYTES];
        let count = match self.pipe.as_ref().map(|pipe| retry_on_intr(|| rustix::io::read(pipe, &mut bytes)))
        {
            Some(Ok(count)) => count,
            Some(Err(_)) | None => {
                self.flush();
                return false;
            }
        };
        if count == 0 {
            self.pipe = None;
        }
        let allowed = self.allowance.take(count as u64, self.dropped > 0, Instant::now());
        let allowed = usize::try_from(allowed).unwrap_or(count);
        debug_assert!(allowed <= count, "{allowed} bytes of {count} may be kept");
        if allowed > 0 {
            self.tell_dropped();
            self.write(&bytes[..allowed]);
        }
        self.dropped += (count - allowed) as u64;
        self.flush();
        count > 0
    }

    /// Passes on the output that the program had printed when it ended.
    pub(super) fn finish(&mut self) {
        for _ in 0..LAST_READS {
            if !self.pass_on() {
                break;
            }
        }
        self.tell_dropped();
        if let Sink::Labelled(labelled) = &mut self.sink {
            labelled.end_line();
        }
        self.flush();
    }

    fn tell_dropped(&mut self) {
        if self.dropped > 0 {
            let note = format!(
                "\n[sublet: {} bytes of output were dropped: at most {RATE_BYTES} bytes a second are kept]\n",
                self.dropped
            );
            self.dropped = 0;
            self.write(note.as_bytes());
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match &mut self.sink {
            // A full disk costs output, and nothing else.
            Sink::Log(log) => drop(append(log.as_fd(), bytes)),
            Sink::Labelled(labelled) => {
                let before = labelled.pending.len();
                labelled.add(bytes);
                let written = labelled.pending.len() - before;
                self.allowance.charge(written.saturating_sub(bytes.len()) as u64);
            }
            Sink::Nowhere => {}
        }
    }

    fn flush(&mut self) {
        if let Sink::Labelled(labelled) = &mut self.sink {
            labelled.flush();
        }
    }
}

/// Bytes that may be written now: a bucket that fills with time.
struct WriteAllowance {
    bytes: u64,
    /// Bytes that were written beyond what was allowed.
    debt: u64,
    at: Instant,
}

impl WriteAllowance {
    fn new(now: Instant) -> WriteAllowance {
        WriteAllowance { bytes: BURST_BYTES, debt: 0, at: now }
    }

    /// Returns how many of `wanted` bytes may be written. After a drop, that is 0 until [`RESUME_BYTES`] are allowed.
    fn take(&mut self, wanted: u64, has_dropped: bool, now: Instant) -> u64 {
        let earned = now.saturating_duration_since(self.at).as_micros() * u128::from(RATE_BYTES) / 1_000_000;
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        if earned > 0 {
            let repaid = earned.min(self.debt);
            self.debt -= repaid;
            self.bytes = self.bytes.saturating_add(earned - repaid).min(BURST_BYTES);
            self.at = now;
        }
        if has_dropped && self.bytes < RESUME_BYTES {
            return 0;
        }
        debug_assert!(
            self.bytes <= BURST_BYTES && (self.bytes == 0 || self.debt == 0),
            "{} bytes are allowed, beside a debt of {}",
            self.bytes,
            self.debt
        );
        let taken = wanted.min(self.bytes);
        self.bytes -= taken;
        taken
    }

    /// Takes bytes that were written all the same, as labels.
    fn charge(&mut self, bytes: u64) {
        let taken = bytes.min(self.bytes);
        self.bytes -= taken;
        self.debt += bytes - taken;
    }
}

/// Writes at the end of a log, of which no other process writes.
fn append(log: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| rustix::io::write(log, bytes))?;
        bytes = &bytes[written..];
    }
    if rustix::fs::seek(log, SeekFrom::Current(0))? > LOG_BYTES {
        shorten(log)?;
    }
    Ok(())
}

/// Moves the newer part of a log to its beginning, after a line that says so.
fn shorten(log: BorrowedFd<'_>) -> io::Result<()> {
    let note = format!("[sublet: earlier output was dropped: a log has at most {LOG_BYTES} bytes]\n");
    let end = rustix::fs::seek(log, SeekFrom::End(0))?;
    let (mut from, mut to) = (end.saturating_sub(KEPT_BYTES), 0);
    let mut bytes = vec![0; CHUNK_BYTES];
    to += rustix::io::pwrite(log, note.as_bytes(), to)? as u64;
    while from < end {
        let count = rustix::io::pread(log, &mut bytes, from)?;
        if count == 0 {
            break;
        }
        to += rustix::io::pwrite(log, &bytes[..count], to)? as u64;
        from += count as u64;
    }
    debug_assert!(to <= LOG_BYTES, "a shortened log has {to} bytes, at most {LOG_BYTES}");
    rustix::fs::ftruncate(log, to)?;
    rustix::fs::seek(log, SeekFrom::Start(to))?;
    Ok(())
}

/// Lines on their way to where others write, too.
struct LabelledLines {
    common: OwnedFd,
    label: String,
    /// The line that has not ended.
    line: Vec<u8>,
    pending: Vec<u8>,
}

impl LabelledLines {
    fn new(common: OwnedFd, id: u64) -> LabelledLines {
        LabelledLines { common, label: format!("[sandbox {id}] "), line: Vec::new(), pending: Vec::new() }
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end_line();
            } else {
                self.line.push(byte);
                if self.line.len() >= LINE_BYTES {
                    self.end_line();
                }
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        debug_assert!(line.len() <= LINE_BYTES, "a line of {} bytes, at most {LINE_BYTES}", line.len());
        if !line.is_empty() && self.pending.len() < PENDING_BYTES {
            let text = String::from_utf8_lossy(&line);
            self.pending.extend(format!("{}{}\n", self.label, printable_line(&text)).bytes());
        }
    }

    /// Writes as much as is taken without waiting.
    fn flush(&mut self) {
        while !self.pending.is_empty() {
            let mut ready = [PollFd::new(&self.common, PollFlags::OUT)];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            if !poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0) {
                return;
            }
            // A pipe that is ready takes so much at least without waiting.
            let chunk = &self.pending[..self.pending.len().min(rustix::pipe::PIPE_BUF)];
            match retry_on_intr(|| rustix::io::write(&self.common, chunk)) {
                Ok(written) => drop(self.pending.drain(..written)),
                // The output has no reader any more.
                Err(_) => self.pending.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn allows_a_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut allowance = WriteAllowance::new(start);
        assert_eq!(allowance.take(BURST_BYTES + 5, false, start), BURST_BYTES);
        assert_eq!(allowance.take(10, false, start), 0);
        let later = start + Duration::from_secs(1);
        assert_eq!(allowance.take(u64::MAX, false, later), RATE_BYTES);
        assert_eq!(allowance.take(u64::MAX, false, later + Duration::from_secs(60)), BURST_BYTES);
        allowance.charge(RATE_BYTES);
        assert_eq!(allowance.take(1, false, later + Duration::from_secs(61)), 0);
        assert_eq!(allowance.take(u64::MAX, false, later + Duration::from_secs(62)), RATE_BYTES);
    }

    #[test]
    fn a_flood_is_resumed_a_few_times_a_second() {
        let start = Instant::now();
        let mut allowance = WriteAllowance::new(start);
        allowance.take(BURST_BYTES, false, start);
        let takes = |step: u64| allowance.take(1 << 16, true, start + Duration::from_micros(step * 10));
        let resumed = (0..100_000).map(takes).filter(|&taken| taken > 0).count() as u64;
        assert!((1..=RATE_BYTES / RESUME_BYTES).contains(&resumed), "{resumed}");
    }

    #[test]
    fn labels_count_as_output() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let common = tempfile::tempfile().unwrap();
        let target = OutputTarget::Common(common.try_clone().unwrap().into());
        let mut output = ProgramOutput::new(read, Some(target), 7);
        for _ in 0..32 {
            rustix::io::write(&write, &b"x\n".repeat(1 << 14)).unwrap();
            output.pass_on();
        }
        let len = common.metadata().unwrap().len();
        // The chunk by which the allowance is exceeded has labels, too.
        assert!((BURST_BYTES..2 * BURST_BYTES).contains(&len), "{len} bytes");
    }

    #[test]
    fn log_keeps_newest_part_within_its_limit() {
        let file = tempfile::tempfile().unwrap();
        for number in 0..400_000u32 {
            append(file.as_fd(), format!("{number}\n").as_bytes()).unwrap();
        }
        let len = file.metadata().unwrap().len();
        assert!((KEPT_BYTES..=LOG_BYTES).contains(&len), "{len}");
        let mut text = vec![0; len as usize];
        rustix::io::pread(&file, &mut text, 0).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("[sublet: earlier output was dropped"), "{:.80}", text);
        let kept: Vec<u32> = text.lines().skip(2).map(|line| line.parse().unwrap()).collect();
        assert_eq!(kept.last(), Some(&399_999));
        assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1), "lines are missing in between");
    }

    #[test]
    fn unlogged_lines_are_labelled_and_have_no_control_characters() {
        let mut labelled = LabelledLines::new(tempfile::tempfile().unwrap().into(), 7);
        labelled.add(b"ERROR sublet: gone\n\x1b[2Jwiped\r\xc2\x9b1A\npart");
        labelled.add(&[b'x'; LINE_BYTES]);
        labelled.end_line();
        let text = String::from_utf8(labelled.pending).unwrap();
        assert!(text.lines().all(|line| line.starts_with("[sandbox 7] ")), "{text}");
        assert!(text.contains("[sandbox 7] \\x1b[2Jwiped\\x0d\\x9b1A\n"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }
}
