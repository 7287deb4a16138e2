//! Parses and formats sizes, durations, money and paths.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sublet_image::Digest;
use sublet_proto::Error;
use sublet_proto::isolation::Isolation;
use sublet_proto::needs::{check_device_kind, check_variable_name};
use sublet_proto::pool::Pool;
use sublet_runtime::fabrics::FabricChoice;

const SIZE_UNITS: [(&str, u64); 16] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("k", 1 << 10),
];

const DURATION_UNITS_NS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Nano-units of a unit of the currency.
const NANO: u64 = 1_000_000_000;
/// Decimals of an amount of money.
const NANO_DIGITS: usize = 9;

/// Parses a number of bytes: `4096`, `64MiB`, `1G`; K, M, G and T alone are powers of 1024, kB and MB of 1000.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    scaled(text, &SIZE_UNITS).ok_or_else(|| format!("{text:?} is not a size: write it as 4096, 64MiB or 1G"))
}

/// Parses a choice of fabric.
pub(crate) fn fabric(text: &str) -> Result<FabricChoice, String> {
    text.parse().map_err(|error: Error| error.message)
}

/// Parses the name of an isolation.
pub(crate) fn isolation(text: &str) -> Result<Isolation, String> {
    Isolation::parse(text).map_err(|error| error.message)
}

/// Parses the digest of an image, alone or at the end of a pinned name.
pub(crate) fn image_digest(text: &str) -> Result<Digest, String> {
    let digest = text.rsplit_once('@').map_or(text, |(_, digest)| digest);
    digest.parse().map_err(|_| {
        format!("{text:?} is not the digest of an image: write sha256: and 64 digits, as `sublet image list` shows them")
    })
}

/// Parses a pool of nodes.
pub(crate) fn pool(text: &str) -> Result<Pool, String> {
    text.parse().map_err(|error: Error| error.message)
}

/// Parses an environment variable: `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    // The value may be private: the message has no part of the text.
    let (name, value) =
        text.split_once('=').ok_or("an environment variable is written as NAME=VALUE".to_owned())?;
    check_variable_name(name).map_err(|error| error.message)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses a number of devices of a kind: `KIND=N`.
pub(crate) fn devices(text: &str) -> Result<(String, u32), String> {
    let wrong = || format!("{text:?} is not a number of devices of a kind: write it as cuda=1");
    let (kind, count) = text.split_once('=').ok_or_else(wrong)?;
    check_device_kind(kind).map_err(|error| error.message)?;
    Ok((kind.to_owned(), count.parse().map_err(|_| wrong())?))
}

/// Parses a weight from 0 to 1.
pub(crate) fn weight(text: &str) -> Result<f64, String> {
    let weight = text.parse().ok().filter(|weight| (0.0..=1.0).contains(weight));
    weight.ok_or_else(|| format!("{text:?} is not a weight: write a number from 0 to 1, as 0.3"))
}

/// Parses a duration: `10s`, `500ms`, `2m`, `30d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    scaled(text, &DURATION_UNITS_NS)
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("{text:?} is not a duration: write it as 10s, 500ms or 2m"))
}

/// Parses an amount in units of the currency, to the billionth: `12`, `0.000020000`. Returns nano-units.
pub(crate) fn amount(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not an amount: write it as 12.50, with up to {NANO_DIGITS} decimals");
    let (units, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(units) || !is_number(decimals) || decimals.len() > NANO_DIGITS {
        return Err(wrong());
    }
    let fraction = format!("{decimals:0<NANO_DIGITS$}").parse::<u64>().map_err(|_| wrong())?;
    let units = units.parse::<u64>().ok().and_then(|units| units.checked_mul(NANO));
    units.and_then(|units| units.checked_add(fraction)).ok_or_else(wrong)
}

/// Parses `true` or `false`.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

/// Parses a whole number within bounds.
pub(crate) fn whole(text: &str, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    debug_assert!(!bounds.is_empty(), "no number is from {} to {}", bounds.start(), bounds.end());
    let number = text.parse::<u64>().ok().filter(|number| bounds.contains(number));
    number
        .ok_or_else(|| format!("{text:?} is not a whole number from {} to {}", bounds.start(), bounds.end()))
}

/// Parses a whole number of 32 bits within bounds.
pub(crate) fn whole_u32(text: &str, bounds: RangeInclusive<u32>) -> Result<u32, String> {
    let number = whole(text, u64::from(*bounds.start())..=u64::from(*bounds.end()))?;
    Ok(u32::try_from(number).unwrap_or(*bounds.end()))
}

/// Parses a path and makes it absolute.
pub(crate) fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(Path::new(text)).map_err(|error| format!("{text:?} is not a path: {error}"))
}

/// Parses the path of a folder of Node.js modules, which must be called `node_modules`.
pub(crate) fn node_modules(text: &str) -> Result<PathBuf, String> {
    let folder = absolute(text)?;
    if folder.ends_with("node_modules") {
        return Ok(folder);
    }
    Err(format!("{text:?} is not a folder called node_modules"))
}

/// Converts a duration to whole milliseconds.
pub(crate) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

/// Formats a count with its noun, as `1 run` or `2 runs`.
pub(crate) fn show_count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number of bytes: three digits and a binary unit.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut power = 0;
    while value >= 1024.0 && power + 1 < unit.len() {
        value /= 1024.0;
        power += 1;
    }
    if power == 0 || value.fract() == 0.0 {
        return format!("{value} {}", unit[power]);
    }
    let decimals = if value < 10.0 { 2 } else { 1 };
    format!("{value:.decimals$} {}", unit[power])
}

/// Formats a duration.
pub(crate) fn show_ns(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Formats an amount in nano-units exactly, in units of the currency.
pub(crate) fn show_nano(nano: u64) -> String {
    format!("{}.{:09}", nano / NANO, nano % NANO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes_with_units() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64MiB", 64 << 20), ("1G", 1 << 30), ("5 MB", 5_000_000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1X", "20000000T", "1 2"] {
            assert!(size(text).is_err_and(|why| why.contains(text)), "{text}");
        }
    }

    #[test]
    fn image_is_named_by_its_digest_only() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let pinned = format!("registry.example.org:5000/a/b:1@{digest}");
        assert_eq!(image_digest(&digest).unwrap().to_string(), digest);
        assert_eq!(image_digest(&pinned).unwrap().to_string(), digest);
        for text in ["", "registry.example.org/a:1", "@", &digest[1..], &digest[..70], &digest.to_uppercase()]
        {
            assert!(image_digest(text).is_err_and(|why| why.contains("sublet image list")), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("30d"), Ok(Duration::from_secs(30 * 24 * 3600)));
        for text in ["", "10", "s", "1w", "-1s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parses_money_to_the_billionth() {
        for (text, nano) in [("0", 0), ("12", 12 * NANO), ("12.5", 12_500_000_000), ("0.000000001", 1)] {
            assert_eq!(amount(text), Ok(nano), "{text}");
        }
        assert_eq!(amount(&show_nano(1_234_567_890_123)), Ok(1_234_567_890_123));
        for text in ["", ".5", "1.", "-1", "+1", "1.0000000001", "20000000000", "1e3", "1,5"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rejects_whole_numbers_out_of_bounds() {
        assert_eq!(whole("5", 1..=5), Ok(5));
        for text in ["0", "6", "x", "", "-1"] {
            assert!(whole(text, 1..=5).is_err_and(|why| why.contains("from 1 to 5")), "{text}");
        }
    }

    #[test]
    fn formats_numbers_with_units() {
        assert_eq!(show_bytes(1536 << 20), "1.50 GiB");
        assert_eq!(show_bytes(512), "512 B");
        assert_eq!(show_bytes(64 << 20), "64 MiB");
        assert_eq!((show_ns(1_500), show_ns(2_000_000_000)), ("1.5 us".into(), "2.00 s".into()));
        assert_eq!(show_nano(1_500_000_001), "1.500000001");
    }
}
