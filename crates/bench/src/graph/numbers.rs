//! Reads the numbers that runs return, and summarizes measured ones.

use sublet_proto::{Code, Error};
use sublet_runtime::run::Outcome;

/// The number that the last component returned.
pub(super) fn number_of(outcome: &Outcome) -> Result<u64, Error> {
    let said = outcome.outputs.first().and_then(|(_, outputs)| outputs.first());
    let number = said.and_then(|said| <[u8; 8]>::try_from(said.as_slice()).ok()).map(u64::from_le_bytes);
    number.ok_or_else(|| Error::new(Code::Internal, "the last component returned no number"))
}

/// The median, of values that are sorted by this.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
