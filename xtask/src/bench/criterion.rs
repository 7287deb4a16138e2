//! Reads the measurements that Criterion prints.
//!
//! Criterion prints the name of a benchmark, and behind it or in the next line `time: [LOW ESTIMATE HIGH]`, each with its unit.

use super::json::Measurement;

/// The label of a measurement's times.
const TIME: &str = "time:";

/// Returns the estimates in the output of `cargo bench`, in their order.
pub fn measurements(lines: &[String]) -> Vec<Measurement> {
    let mut name = "";
    let mut measurements = Vec::new();
    for line in lines {
        let Some((before, times)) = line.split_once(TIME) else {
            if line.starts_with(|first: char| first.is_alphanumeric()) {
                name = line.trim();
            }
            continue;
        };
        let name = if before.trim().is_empty() { name } else { before.trim() };
        measurements.extend(estimate_ns(times).map(|time_ns| Measurement::of(name, "time_ns", time_ns)));
    }
    measurements
}

/// The middle of three times, in nanoseconds.
fn estimate_ns(times: &str) -> Option<f64> {
    let times = times.trim().strip_prefix('[')?.strip_suffix(']')?;
    let words: Vec<_> = times.split_whitespace().collect();
    let [_, _, estimate, unit, _, _] = words[..] else { return None };
    let scale = match unit {
        "ps" => 1e-3,
        "ns" => 1.0,
        "µs" | "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(estimate.parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_estimates_beside_and_below_names() {
        let output = "Benchmarking core/grant: Warming up\ncore/grant, nearly full of 10000\n                        time:   [1.0 µs 1.5 µs 2.0 µs]\n\
                      \x20                       thrpt:  [1 Melem/s 2 Melem/s 3 Melem/s]\nrefusal                 time:   [80.1 ns 81.0 ns 82 ns]\nno time: [x]";
        let lines: Vec<_> = output.lines().map(str::to_owned).collect();
        let read: Vec<_> = measurements(&lines)
            .iter()
            .map(|measurement| {
                (measurement.text("bench").unwrap().to_owned(), measurement.number("time_ns").unwrap())
            })
            .collect();
        let expected =
            [("core/grant, nearly full of 10000".to_owned(), 1500.0), ("refusal".to_owned(), 81.0)];
        assert_eq!(read, expected);
    }
}
