//! A graph's run: its bounds, and how one component's outputs become another's input.

/// Largest input of a run, and largest output of one instance of a component, in bytes: the journal stores both until
/// the next components have them. Larger data belongs into memory components.
pub const MAX_OUTPUT_BYTES: usize = 256 << 10;
/// Numbers of a journal's entries end before this.
pub const MAX_ENTRIES: u64 = 1 << 20;
/// Most points of a run's memory over time.
pub const MAX_POINTS: usize = 256;
/// Most nodes that are reported of a component.
pub const MAX_NODES: usize = 4;
/// Most events of a run's log that are kept: the latest.
pub const MAX_NOTES: usize = 128;
/// Longest text of an event of a run's log, in bytes.
pub const MAX_NOTE_BYTES: usize = 1 << 10;
/// Shortest and longest lease of a run, in milliseconds.
pub const MIN_LEASE_MS: u64 = 1_000;
/// See [`MIN_LEASE_MS`].
pub const MAX_LEASE_MS: u64 = 60_000;
/// Longest name of a process that drives a run, in bytes.
pub const MAX_RUNNER_BYTES: usize = 128;
/// Largest epoch of a run's lease. A run that 1000 processes have taken, and none has ended, is ended.
pub const MAX_EPOCH: u64 = 1_000;
/// Most pairs of a compute component and a memory component for which a run's record has what was moved.
pub const MAX_CHANNELS: usize = 512;

/// The number in front of the entries of a lease's owner. Entries of different owners have different numbers, so a
/// delayed write of an earlier owner replaces none of a later one.
pub fn entries_before(epoch: u64) -> u64 {
    debug_assert!(epoch <= MAX_EPOCH, "a lease of epoch {epoch}");
    epoch * MAX_ENTRIES
}

/// Combines outputs into the input of a component: a single output as it is, several ones each behind its length in 8
/// bytes, little endian, and followed by zeros up to a multiple of 8.
pub fn message(outputs: &[&[u8]]) -> Vec<u8> {
    if let [output] = outputs {
        return output.to_vec();
    }
    let mut message = Vec::new();
    outputs.iter().for_each(|output| push(&mut message, output));
    message
}

/// Appends one of several outputs to those before it.
pub fn push(message: &mut Vec<u8>, output: &[u8]) {
    debug_assert!(message.len().is_multiple_of(8), "an output is appended at byte {}", message.len());
    message.extend((output.len() as u64).to_le_bytes());
    message.extend_from_slice(output);
    message.resize(message.len().next_multiple_of(8), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_stands_behind_its_length() {
        let mut expected = [0; 40];
        (expected[0], expected[8], expected[16]) = (3, b'a', 0);
        expected[8..11].copy_from_slice(b"abc");
        expected[24] = 8;
        expected[32..40].copy_from_slice(b"12345678");
        assert_eq!(message(&[&b"abc"[..], b"", b"12345678"]), expected);
        assert!(message(&[]).is_empty());
        assert_eq!(message(&[b"abc"]), b"abc");
    }
}
