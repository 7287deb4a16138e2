//! Formats the rows of the report's tables: each function returns the cells of a measurement, or `None` if the
//! measurement is of another benchmark or lacks a field.

use super::super::json::Measurement;
use super::super::plot::{human_bytes, human_ns};

const NS_PER_US: f64 = 1e3;

pub fn latency_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "latency")?;
    let time = |field: &str| measurement.number(field).map(human_ns);
    Some(vec![
        fabric(measurement)?,
        measurement.text("mode")?.to_owned(),
        measurement.text("function")?.to_owned(),
        human_bytes(measurement.number("size_bytes")?),
        time("median_ns")?,
        time("p99_ns")?,
        time("raw_median_ns")?,
        time("raw_p99_ns")?,
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

pub fn bandwidth_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "bandwidth")?;
    let rate = |field: &str| measurement.number(field).map(|rate| format!("{:.0}", rate / 1e6));
    Some(vec![
        fabric(measurement)?,
        human_bytes(measurement.number("size_bytes")?),
        rate("bytes_per_s")?,
        rate("raw_bytes_per_s")?,
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

pub fn memory_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "memory")?;
    let rate = |field: &str| measurement.number(field).map(|rate| format!("{:.0}", rate / 1e6));
    Some(vec![
        fabric(measurement)?,
        measurement.text("access")?.replace('_', " "),
        human_bytes(measurement.number("size_bytes")?),
        rate("bytes_per_s")?,
        rate("raw_bytes_per_s")?,
        format!("{:.2}", measurement.number("ratio")?),
        measurement.number("median_ns").map(human_ns)?,
    ])
}

pub fn swap_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "swap")?;
    let mib =
        |field: &str| measurement.number(field).map(|bytes| format!("{:.0} MiB", bytes / f64::from(1 << 20)));
    Some(vec![
        measurement.text("pattern")?.replace('-', " "),
        format!("{} us", measurement.number("work_us")?),
        mib("len_bytes")?,
        mib("local_bytes")?,
        measurement.number("median_ns").map(human_ns)?,
        measurement.number("local_median_ns").map(human_ns)?,
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

pub fn sizes_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "sizes")?;
    Some(vec![
        measurement.text("application")?.to_owned(),
        measurement.text("policy")?.to_owned(),
        format!("{:.2}", measurement.number("utilisation")?),
        format!("{:.2}", measurement.number("growths_per_run")?),
    ])
}

pub fn pools_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "pools")?;
    let seconds =
        |field: &str| measurement.number(field).map_or_else(|| "-".to_owned(), |s| format!("{s} s"));
    let share = |field: &str| measurement.number(field).map(|share| format!("{share:.2}"));
    Some(vec![
        measurement.text("application")?.to_owned(),
        seconds("apart_after_s"),
        seconds("together_after_s"),
        human_bytes(measurement.number("moved_between_nodes_bytes")?),
        share("most_used")?,
        share("most_used_without")?,
        seconds("above_watermark_s"),
        measurement.number("decision_ns").map(human_ns)?,
    ])
}

pub fn connections_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "connections")?;
    Some(vec![
        fabric(measurement)?,
        format!("{}", measurement.number("connections")?),
        human_bytes(measurement.number("size_bytes")?),
        human_ns(measurement.number("median_ns")?),
        human_ns(measurement.number("p99_ns")?),
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

pub fn messages_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "fifo")?;
    let time = |field: &str| measurement.number(field).map(human_ns);
    let ratio = |field: &str| measurement.number(field).map(|ratio| format!("{ratio:.2}"));
    let none = || "-".to_owned();
    Some(vec![
        if measurement.is("across") { "of two nodes, over tcp" } else { "of one node" }.to_owned(),
        human_bytes(measurement.number("size_bytes")?),
        time("median_ns")?,
        time("raw_ns")?,
        ratio("ratio")?,
        time("copies_ns").unwrap_or_else(none),
        ratio("copies_ratio").unwrap_or_else(none),
        time("asleep_ns")?,
        time("raw_asleep_ns")?,
        ratio("asleep_ratio")?,
    ])
}

pub fn shim_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "xpucall")?;
    let time = |field: &str| measurement.number(field).map(human_ns);
    let ratio = format!("{:.2}", measurement.number("ratio")?);
    Some(vec![time("median_ns")?, time("p99_ns")?, time("raw_median_ns")?, ratio])
}

pub fn chains_row(measurement: &Measurement) -> Option<Vec<String>> {
    of_bench(measurement, "chain")?;
    Some(vec![
        format!("{}", measurement.number("functions")?),
        measurement.text("language")?.to_owned(),
        measurement.number("in_place_hop_ns").map(human_ns)?,
        measurement.number("process_hop_ns").map(human_ns)?,
        measurement.number("http_hop_ns").map(human_ns)?,
        format!("{:.1}", measurement.number("http_ratio")?),
    ])
}

/// The row of a start, by any benchmark that names the kind of its sandbox.
pub fn start_row(measurement: &Measurement) -> Option<Vec<String>> {
    let time = |field: &str| measurement.number(field).map(|us| human_ns(us * NS_PER_US));
    let none = || "-".to_owned();
    let (median_us, floor_us) = (measurement.number("median_us")?, measurement.number("floor_us"));
    Some(vec![
        measurement.text("sandbox")?.to_owned(),
        end_of_start(measurement.text("bench")?, measurement.text("sandbox")?).to_owned(),
        time("median_us")?,
        time("p99_us").unwrap_or_else(none),
        time("floor_us").unwrap_or_else(none),
        floor_us.map_or_else(none, |floor_us| format!("{:.2}", median_us / floor_us)),
        command(measurement),
    ])
}

/// The end of the time of a start, which begins with the request; the name of a benchmark that is not known here.
fn end_of_start<'text>(bench: &'text str, sandbox: &str) -> &'text str {
    match (bench, sandbox) {
        ("cold", "template") => "the first line of a function",
        ("cold", _) => "the first result",
        ("sandbox start", _) => "the first instruction",
        _ => bench,
    }
}

/// The row of a benchmark by Criterion, which has one time.
pub fn criterion_row(measurement: &Measurement) -> Option<Vec<String>> {
    let time_ns = measurement.number("time_ns")?;
    Some(vec![measurement.text("bench")?.to_owned(), human_ns(time_ns), format!("{:.0}", 1e9 / time_ns)])
}

/// The rows of a measurement of any kind, one for each of its numbers: command, labels, field and value.
pub fn other_rows(measurement: &Measurement) -> Vec<Vec<String>> {
    let labels = measurement.labels().collect::<Vec<_>>().join(", ");
    let row = |(name, number): (&str, f64)| {
        let (field, value) = human(name, number);
        vec![command(measurement), labels.clone(), field, value]
    };
    measurement.numbers().map(row).collect()
}

fn command(measurement: &Measurement) -> String {
    measurement.command().map(|command| format!("`{command}`")).unwrap_or_default()
}

fn of_bench(measurement: &Measurement, bench: &str) -> Option<()> {
    (measurement.text("bench") == Some(bench)).then_some(())
}

/// Returns a field's name without its unit, and its number with that unit.
fn human(name: &str, number: f64) -> (String, String) {
    let (field, unit) = name.rsplit_once('_').unwrap_or((name, ""));
    let value = match unit {
        "ns" => human_ns(number),
        "us" => human_ns(number * 1e3),
        "ms" => human_ns(number * 1e6),
        // Neither a rate nor a product.
        "s" | "seconds" if !field.ends_with("per") && !field.ends_with("gb") => human_ns(number * 1e9),
        "bytes" => human_bytes(number),
        _ => return (name.replace('_', " "), plain(number)),
    };
    (field.replace('_', " "), value)
}

fn plain(number: f64) -> String {
    match number {
        whole if whole.fract() == 0.0 => format!("{whole}"),
        large if large.abs() >= 100.0 => format!("{large:.0}"),
        small => format!("{small:.3}"),
    }
}

/// Names the fabric of a measurement with its provider, whether it encrypts, and the rate of its link.
pub fn fabric(measurement: &Measurement) -> Option<String> {
    let provider = measurement.text("provider").map(|provider| format!(", {provider}")).unwrap_or_default();
    let how = if measurement.is("encrypted") { ", encrypted" } else { "" };
    let link = measurement.link().map(|rate| format!(", over a link of {rate}")).unwrap_or_default();
    Some(format!("{}{provider}{how}{link}", measurement.text("fabric")?))
}
