//! Adds up what the components of a run move: pure.

use std::collections::BTreeMap;

use sublet_proto::v1::Traffic;

/// Data that compute components have moved to and from one memory component, by their indexes.
pub(super) type TrafficByComponent = BTreeMap<usize, Traffic>;

/// Adds operations and bytes. Worker processes report them, so they may have any values: a sum stays at the largest
/// number.
pub(super) fn add(sum: &mut Traffic, more: &Traffic) {
    *sum = Traffic {
        reads: sum.reads.saturating_add(more.reads),
        read_bytes: sum.read_bytes.saturating_add(more.read_bytes),
        writes: sum.writes.saturating_add(more.writes),
        written_bytes: sum.written_bytes.saturating_add(more.written_bytes),
        maps: sum.maps.saturating_add(more.maps),
        mapped_bytes: sum.mapped_bytes.saturating_add(more.mapped_bytes),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_at_the_largest_number() {
        let most = Traffic { reads: u64::MAX, read_bytes: u64::MAX - 1, writes: 3, ..Traffic::default() };
        let mut sum = most;
        add(&mut sum, &most);
        assert_eq!(sum, Traffic { read_bytes: u64::MAX, writes: 6, ..most });
    }
}
