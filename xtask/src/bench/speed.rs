//! Formats the few measurements that README.md shows.

use super::json::Measurement;
use super::plot::human_ns;

const HEADING: &str = "| operation | Sublet | compared with | ratio |\n|---|---|---|---|\n";
const NS_PER_US: f64 = 1e3;
/// Payload of the calls, in bytes.
const PAYLOAD_BYTES: f64 = 64.0;

/// Returns the cells of an operation if the measurement is of it.
type Operation = fn(&Measurement) -> Option<[String; 4]>;

/// The operations that a reader compares with other systems.
const OPERATIONS: [Operation; 6] = [shared_memory, tcp, process, template, lease, swap];

/// Formats the table of the operations that were measured.
pub fn table(measurements: &[Measurement]) -> String {
    let row = |operation: &Operation| measurements.iter().find_map(operation);
    let rows = OPERATIONS.iter().filter_map(row).map(|cells| format!("| {} |\n", cells.join(" | ")));
    format!("{HEADING}{}", rows.collect::<String>())
}

fn shared_memory(measurement: &Measurement) -> Option<[String; 4]> {
    call(measurement, "shm", "call of 64 B in shared memory", "a flag there and back, and the copy")
}

fn tcp(measurement: &Measurement) -> Option<[String; 4]> {
    call(measurement, "tcp", "call of 64 B over TCP", "the same bytes there and back")
}

/// A hot call of `echo`, unencrypted, on this machine.
fn call(measurement: &Measurement, fabric: &str, operation: &str, raw: &str) -> Option<[String; 4]> {
    let is = |field: &str, text: &str| measurement.text(field) == Some(text);
    let is_plain = !measurement.is("encrypted") && measurement.link().is_none();
    let is_hot_echo =
        is("bench", "latency") && is("mode", "hot") && is("function", "echo") && is("fabric", fabric);
    if !is_hot_echo || !is_plain || measurement.number("size_bytes") != Some(PAYLOAD_BYTES) {
        return None;
    }
    Some([
        operation.to_owned(),
        human_ns(measurement.number("median_ns")?),
        compared(raw, measurement.number("raw_median_ns")?),
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

fn process(measurement: &Measurement) -> Option<[String; 4]> {
    start(
        measurement,
        "process",
        "cold start: from the request for a lease to the first result",
        "fork and exec",
    )
}

fn template(measurement: &Measurement) -> Option<[String; 4]> {
    let raw = "an interpreter that starts and imports";
    start(measurement, "template", "start of Python with modules, as the copy of a warm process", raw)
}

fn start(measurement: &Measurement, sandbox: &str, operation: &str, floor: &str) -> Option<[String; 4]> {
    if measurement.text("bench") != Some("cold") || measurement.text("sandbox") != Some(sandbox) {
        return None;
    }
    let (median_us, floor_us) = (measurement.number("median_us")?, measurement.number("floor_us")?);
    Some([
        operation.to_owned(),
        human_ns(median_us * NS_PER_US),
        compared(floor, floor_us * NS_PER_US),
        format!("{:.2}", median_us / floor_us),
    ])
}

fn lease(measurement: &Measurement) -> Option<[String; 4]> {
    if measurement.text("bench") != Some("lease") {
        return None;
    }
    let rate = format!("{:.0}/s", measurement.number("leases_per_second")?);
    Some(["leases granted and released by a manager".to_owned(), rate, String::new(), String::new()])
}

fn swap(measurement: &Measurement) -> Option<[String; 4]> {
    if measurement.text("bench") != Some("swap") || measurement.text("pattern") != Some("random-page") {
        return None;
    }
    let share = 100.0 * measurement.number("local_bytes")? / measurement.number("len_bytes")?;
    let work_us = measurement.number("work_us")?;
    Some([
        format!("a page of an array with {share:.0}% of it in memory, random order, {work_us} us of work"),
        human_ns(measurement.number("median_ns")?),
        compared("the same with all of it in memory", measurement.number("local_median_ns")?),
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

fn compared(raw: &str, ns: f64) -> String {
    format!("{raw}: {}", human_ns(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_operations_that_were_measured_in_its_order() {
        let line = r#"[{"bench":"cold","sandbox":"process","median_us":4600,"floor_us":2300},
{"bench":"latency","fabric":"tcp","encrypted":true,"mode":"hot","function":"echo","size_bytes":64,"median_ns":1,"raw_median_ns":1,"ratio":1},
{"bench":"latency","fabric":"tcp","encrypted":false,"mode":"warm","function":"echo","size_bytes":64,"median_ns":1,"raw_median_ns":1,"ratio":1},
{"bench":"latency","fabric":"tcp","encrypted":false,"mode":"hot","function":"echo","size_bytes":64,"median_ns":9000,"raw_median_ns":8200,"ratio":1.0976},
{"bench":"lease","leases_per_second":30123.4},
{"bench":"swap","pattern":"random-page","work_us":10.0,"len_bytes":1000,"local_bytes":400,"median_ns":17300,"local_median_ns":11800,"ratio":1.466},
{"bench":"new","median_ns":5}]"#;
        let expected = format!(
            "{HEADING}\
             | call of 64 B over TCP | 9 us | the same bytes there and back: 8.2 us | 1.10 |\n\
             | cold start: from the request for a lease to the first result | 4.6 ms | fork and exec: 2.3 ms | 2.00 |\n\
             | leases granted and released by a manager | 30123/s |  |  |\n\
             | a page of an array with 40% of it in memory, random order, 10 us of work | 17.3 us \
             | the same with all of it in memory: 11.8 us | 1.47 |\n"
        );
        assert_eq!(table(&Measurement::all_of(line)), expected);
    }

    #[test]
    fn leaves_out_measurements_over_a_link() {
        let line = r#"{"bench":"latency","fabric":"shm","mode":"hot","function":"echo","size_bytes":64,"median_ns":160,"raw_median_ns":80,"ratio":2}"#;
        let plain = Measurement::all_of(line);
        assert!(table(&plain).contains("| call of 64 B in shared memory | 160 ns |"));
        let linked: Vec<_> = plain.into_iter().map(|measurement| measurement.over(Some("1gbit"))).collect();
        assert_eq!(table(&linked), HEADING);
    }
}
