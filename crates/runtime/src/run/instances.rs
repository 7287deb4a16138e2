//! Determines the number of a component's instances from data, when the component begins.

use sublet_proto::{Code, Error};

/// Longest part of an output that an error shows, in bytes.
const SHOWN_BYTES: usize = 40;

/// A component whose number of instances follows from an output, the component that has returned the output, and the
/// most instances.
pub(super) struct NumberRule<'run> {
    pub(super) component: &'run str,
    pub(super) from: &'run str,
    pub(super) limit: u32,
}

impl NumberRule<'_> {
    /// Reads the number with which an output begins: decimal digits, which end with the output or before white space.
    ///
    /// # Errors
    /// `invalid_argument` if the output begins otherwise, or if the number is 0 or more than the limit.
    pub(super) fn read(&self, output: &[u8]) -> Result<u32, Error> {
        let NumberRule { component, from, limit } = self;
        let end = output.iter().position(u8::is_ascii_whitespace).unwrap_or(output.len());
        let digits = &output[..end];
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            let shown = String::from_utf8_lossy(&output[..output.len().min(SHOWN_BYTES)]);
            let message = format!(
                "component {component}: the output of {from} begins with {shown:?} instead of a number of instances from 1 to {limit}"
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let digits = String::from_utf8_lossy(digits);
        // A number that is too large to be read is more than the limit, too.
        match digits.parse() {
            Ok(number) if (1..=*limit).contains(&number) => Ok(number),
            _ => {
                let shown: String = digits.chars().take(SHOWN_BYTES).collect();
                let message = format!(
                    "component {component}: {from} asks for {shown} instances, allowed are 1 to {limit}"
                );
                Err(Error::new(Code::InvalidArgument, message))
            }
        }
    }
}

/// Returns the number of parts of `bytes_each` bytes in `len_bytes`: at least 1, and at most `limit`.
pub(super) fn parts_of(len_bytes: u64, bytes_each: u64, limit: u32) -> u32 {
    let parts = len_bytes.div_ceil(bytes_each.max(1)).max(1);
    u32::try_from(parts).unwrap_or(u32::MAX).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_number_at_the_beginning_of_an_output() {
        let rule = NumberRule { component: "map", from: "plan", limit: 64 };
        for (output, number) in
            [("1", 1), ("64", 64), ("007", 7), ("12 parts", 12), ("3\n1 2 3", 3), ("5\t", 5)]
        {
            assert_eq!(rule.read(output.as_bytes()).unwrap(), number, "{output:?}");
        }
        let huge = "9".repeat(1000);
        for (output, said) in [
            ("", "begins with \"\" instead of a number of instances from 1 to 64"),
            ("-3", "begins with \"-3\""),
            ("+3", "begins with \"+3\""),
            (" 3", "begins with \" 3\""),
            ("3.5", "begins with \"3.5\""),
            ("many", "component map: the output of plan begins with \"many\""),
            ("0", "plan asks for 0 instances, allowed are 1 to 64"),
            ("65", "plan asks for 65 instances"),
            (huge.as_str(), "plan asks for 999"),
        ] {
            let error = rule.read(output.as_bytes()).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains(said) && error.message.len() < 200, "{output:.40?}: {error}");
        }
        assert!(rule.read(&[0xff, 0, 1]).unwrap_err().message.contains("instead of a number"));
    }

    #[test]
    fn parts_of_memory_have_instances_up_to_the_limit() {
        let numbers = [0, 1, 100, 101, 300, 301, u64::MAX].map(|len_bytes| parts_of(len_bytes, 100, 4));
        assert_eq!(numbers, [1, 1, 1, 2, 3, 4, 4]);
        assert_eq!(parts_of(u64::MAX, 1, u32::MAX), u32::MAX);
    }
}
