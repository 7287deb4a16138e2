//! Texts of the files of control groups.

use std::fs;
use std::path::Path;

/// Returns the number after a word in a file of "word number" lines.
pub(super) fn counter(path: &Path, word: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut numbers = text.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    numbers.next().unwrap_or(0)
}

/// Cores as the kernel reads them: "1,3".
pub(super) fn core_list(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the number that is the whole content of a file.
pub(super) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
