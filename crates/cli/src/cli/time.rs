//! Parses and formats points in time: RFC 3339, a date, or a time before now. In milliseconds of Unix time, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use super::parse::{as_ms, duration};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Current time of this machine's clock.
pub(crate) fn now_ms() -> u64 {
    as_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Parses `2026-01-31`, `2026-01-31T12:00:00Z`, `2026-01-31T12:00:00.5+01:00`, or `-2h` for two hours ago.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    moment_at(text, now_ms())
}

fn moment_at(text: &str, now_ms: u64) -> Result<u64, String> {
    let wrong = || {
        format!("{text:?} is not a time: write it as 2026-01-31, 2026-01-31T12:00:00Z or -2h (two hours ago)")
    };
    if let Some(ago) = text.strip_prefix('-') {
        let ago = duration(ago).map_err(|_| wrong())?;
        return Ok(now_ms.saturating_sub(as_ms(ago)));
    }
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let day = day(date).ok_or_else(wrong)?;
    let within = time.map_or(Some(0), time_of_day_ms).ok_or_else(wrong)?;
    let ms = i64::try_from(day * DAY_MS).ok().and_then(|ms| ms.checked_add(within)).ok_or_else(wrong)?;
    u64::try_from(ms).map_err(|_| wrong())
}

/// Formats a point in time by RFC 3339, to the second.
pub(crate) fn show_moment(unix_ms: u64) -> String {
    let (year, month, day) = date(unix_ms / DAY_MS);
    let second = unix_ms % DAY_MS / 1000;
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

/// Days since 1970-01-01.
fn day(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let valid = parts.next().is_none() && year >= 1970 && (1..=12).contains(&month);
    if !valid || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let years = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum::<u64>();
    let days = years + (1..month).map(|month| days_of(year, month)).sum::<u64>() + day - 1;
    debug_assert_eq!(self::date(days), (year, month, day), "{days} days after 1970-01-01");
    Some(days)
}

/// Year, month and day of the month.
fn date(mut days: u64) -> (u64, u64, u64) {
    // Inverse of `day`. Cycles of 400 years have the same length, so that the computation is bounded for any number.
    const CYCLE_DAYS: u64 = 146_097;
    let mut year = 1970 + days / CYCLE_DAYS * 400;
    days %= CYCLE_DAYS;
    loop {
        let of_year = if is_leap(year) { 366 } else { 365 };
        if days < of_year {
            break;
        }
        days -= of_year;
        year += 1;
    }
    let mut month = 1;
    while days >= days_of(year, month) {
        days -= days_of(year, month);
        month += 1;
    }
    debug_assert!(month <= 12, "{days} days are left after December {year}");
    (year, month, days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Milliseconds since midnight in UTC; an offset can make them negative or more than a day.
fn time_of_day_ms(text: &str) -> Option<i64> {
    let zone = text.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = text.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = time.split(':').map(|part| digits(part, 2));
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    if parts.next().is_some() || hours > 23 || minutes > 59 || seconds > 59 {
        return None;
    }
    let second = (hours * 60 + minutes) * 60 + seconds;
    let ms = i64::try_from(second * 1000 + milliseconds(fraction)?).ok()?;
    let ms = ms - offset_ms(zone)?;
    debug_assert!(ms.unsigned_abs() < 2 * DAY_MS, "{ms} ms after midnight");
    Some(ms)
}

fn milliseconds(fraction: &str) -> Option<u64> {
    let known = fraction.get(..fraction.len().min(3))?;
    digits(fraction, fraction.len())?;
    digits(&format!("{known:0<3}"), 3)
}

fn offset_ms(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    let ms = i64::try_from((hours * 60 + minutes) * 60_000).ok()?;
    (hours <= 23 && minutes <= 59).then_some(sign * ms)
}

/// Parses a number of exactly `digits` digits.
fn digits(text: &str, count: usize) -> Option<u64> {
    let is_number = text.len() == count && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn parses_dates_and_times() {
        for (text, ms) in [
            ("1970-01-01", 0),
            ("2026-01-31", 1_769_817_600_000),
            ("2024-02-29T12:00:00Z", 1_709_208_000_000),
            ("2024-02-29t12:00:00.25z", 1_709_208_000_250),
            ("2024-02-29 13:30+01:30", 1_709_208_000_000),
            ("2024-02-28T23:00:00-13:00", 1_709_208_000_000),
            ("-2h", NOW_MS - 7_200_000),
            ("-1d", NOW_MS - 86_400_000),
        ] {
            assert_eq!(moment_at(text, NOW_MS), Ok(ms), "{text}");
        }
    }

    #[test]
    fn rejects_invalid_times_with_examples() {
        for text in [
            "",
            "now",
            "2h",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-01-31T",
            "2026-01-31T12",
            "2026-01-31T12:00",
            "2026-01-31T24:00:00Z",
            "1969-12-31",
            "2026-1-31",
            "2026-01-31T12:00:00+1",
            "-",
            "1970-01-01T00:00:00+01:00",
        ] {
            assert!(moment_at(text, NOW_MS).is_err_and(|why| why.contains("-2h")), "{text}");
        }
    }

    #[test]
    fn formatted_times_parse_to_the_same_time() {
        assert_eq!(show_moment(1_709_208_000_250), "2024-02-29T12:00:00Z");
        for days in (0..200_000u64).step_by(97) {
            let ms = days * DAY_MS + 86_399_000;
            assert_eq!(moment_at(&show_moment(ms), NOW_MS), Ok(ms));
        }
        assert!(!show_moment(u64::MAX).is_empty());
    }
}
