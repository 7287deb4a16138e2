//! Formats measurements as the tables of docs/performance.md.

use super::json::Measurement;
use super::plot::{CurvePoint, FabricCurve, human_bytes, human_ns};

const BEGIN: &str = "<!-- Written by `cargo xtask bench` from here -->";
const END: &str = "<!-- to here -->";

/// Replaces the text between the two marks of the document. Returns `None` if the document lacks a mark.
pub fn insert(document: &str, measurements: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{measurements}\n{END}{after}"))
}

/// Removes the text between the two marks from the document.
pub fn without_measurements(document: &str) -> String {
    insert(document, "").unwrap_or_else(|| document.to_owned())
}

/// The benchmarks that have a table of their own.
const KINDS: [&str; 8] =
    ["latency", "bandwidth", "memory", "swap", "connections", "fifo", "xpucall", "chain"];

/// Formats one table for each benchmark of [`KINDS`] that has measurements, and one for all other benchmarks.
pub fn tables(measurements: &[Measurement]) -> String {
    let of = |bench: &str| {
        measurements.iter().filter(|measurement| measurement.text("bench") == Some(bench)).collect::<Vec<_>>()
    };
    let latency = table(
        "| fabric | waits | function | payload | median | p99 | raw median | raw p99 | ratio |",
        &of("latency"),
        latency_row,
    );
    let bandwidth = table("| fabric | payload | MB/s | raw MB/s | ratio |", &of("bandwidth"), bandwidth_row);
    let memory =
        table("| fabric | access | size | MB/s | raw MB/s | ratio | one |", &of("memory"), memory_row);
    let swap = table(
        "| pattern | work a page | array | local | a page | all local | ratio |",
        &of("swap"),
        swap_row,
    );
    let connections = table(
        "| fabric | connections | payload | median | p99 | ratio to 1 connection |",
        &of("connections"),
        connections_row,
    );
    let messages = table(
        "| between two processes | payload | awake | raw | ratio | copying alone | ratio | asleep | raw | ratio |",
        &of("fifo"),
        messages_row,
    );
    let shim = table("| median | p99 | flag's round trip | ratio |", &of("xpucall"), shim_row);
    let chains = table(
        "| functions | language | hop in one process | hop between processes | hop over HTTP | HTTP over processes |",
        &of("chain"),
        chains_row,
    );
    let is_other =
        |measurement: &&Measurement| !measurement.text("bench").is_some_and(|bench| KINDS.contains(&bench));
    let others = others(&measurements.iter().filter(is_other).collect::<Vec<_>>());
    let titled = [
        ("A call and the raw round trip:", latency),
        ("Large payloads, there and back:", bandwidth),
        ("Memory components:", memory),
        ("An array larger than its memory, and the same program with all of it here:", swap),
        ("A warm call, with connections that are idle:", connections),
        ("A message through a FIFO, one way, and through one of the kernel or a TCP connection:", messages),
        ("A call of the shim and its answer:", shim),
        ("Functions that call each other:", chains),
        ("Other measurements:", others),
    ];
    let shown = titled.into_iter().filter_map(|(title, table)| Some(format!("{title}\n\n{}", table?)));
    shown.collect::<Vec<_>>().join("\n")
}

fn table(
    heading: &str,
    measurements: &[&Measurement],
    row: fn(&Measurement) -> Option<Vec<String>>,
) -> Option<String> {
    let rows: Vec<_> = measurements.iter().filter_map(|measurement| row(measurement)).collect();
    let line = "|---".repeat(heading.matches('|').count() - 1);
    let rows: String = rows.iter().map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
    (!rows.is_empty()).then(|| format!("{heading}\n{line}|\n{rows}"))
}

fn latency_row(measurement: &Measurement) -> Option<Vec<String>> {
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

fn bandwidth_row(measurement: &Measurement) -> Option<Vec<String>> {
    let rate = |field: &str| measurement.number(field).map(|rate| format!("{:.0}", rate / 1e6));
    Some(vec![
        fabric(measurement)?,
        human_bytes(measurement.number("size_bytes")?),
        rate("bytes_per_s")?,
        rate("raw_bytes_per_s")?,
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

fn memory_row(measurement: &Measurement) -> Option<Vec<String>> {
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

fn swap_row(measurement: &Measurement) -> Option<Vec<String>> {
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

fn connections_row(measurement: &Measurement) -> Option<Vec<String>> {
    Some(vec![
        fabric(measurement)?,
        format!("{}", measurement.number("connections")?),
        human_bytes(measurement.number("size_bytes")?),
        human_ns(measurement.number("median_ns")?),
        human_ns(measurement.number("p99_ns")?),
        format!("{:.2}", measurement.number("ratio")?),
    ])
}

fn messages_row(measurement: &Measurement) -> Option<Vec<String>> {
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

fn shim_row(measurement: &Measurement) -> Option<Vec<String>> {
    let time = |field: &str| measurement.number(field).map(human_ns);
    let ratio = format!("{:.2}", measurement.number("ratio")?);
    Some(vec![time("median_ns")?, time("p99_ns")?, time("raw_median_ns")?, ratio])
}

fn chains_row(measurement: &Measurement) -> Option<Vec<String>> {
    Some(vec![
        format!("{}", measurement.number("functions")?),
        measurement.text("language")?.to_owned(),
        measurement.number("in_place_hop_ns").map(human_ns)?,
        measurement.number("process_hop_ns").map(human_ns)?,
        measurement.number("http_hop_ns").map(human_ns)?,
        format!("{:.1}", measurement.number("http_ratio")?),
    ])
}

/// Formats the table of the benchmarks that have no table of their own: a row for each number of each measurement.
fn others(measurements: &[&Measurement]) -> Option<String> {
    let row = |measurement: &&Measurement| {
        let labels = measurement.labels().collect::<Vec<_>>().join(", ");
        let command = measurement.command().unwrap_or_default().trim_end_matches(" --json").to_owned();
        let numbers: Vec<_> = measurement.numbers().collect();
        let rows = numbers.into_iter().map(move |(name, number)| {
            let (field, value) = human(name, number);
            format!("| `{command}` | {labels} | {field} | {value} |\n")
        });
        rows.collect::<String>()
    };
    let rows: String = measurements.iter().map(row).collect();
    (!rows.is_empty()).then(|| format!("| command | measured | field | value |\n|---|---|---|---|\n{rows}"))
}

/// Returns a field's name without its unit, and its number with that unit.
fn human(name: &str, number: f64) -> (String, String) {
    let (field, unit) = name.rsplit_once('_').unwrap_or((name, ""));
    let value = match unit {
        "ns" => human_ns(number),
        "us" => human_ns(number * 1e3),
        "ms" => human_ns(number * 1e6),
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
fn fabric(measurement: &Measurement) -> Option<String> {
    let provider = measurement.text("provider").map(|provider| format!(", {provider}")).unwrap_or_default();
    let how = if measurement.is("encrypted") { ", encrypted" } else { "" };
    let link = measurement.link().map(|rate| format!(", over a link of {rate}")).unwrap_or_default();
    Some(format!("{}{provider}{how}{link}", measurement.text("fabric")?))
}

/// Returns the latencies of a sweep, for the plot.
pub fn series(measurements: &[Measurement]) -> Option<FabricCurve> {
    let point = |measurement: &Measurement| {
        let [bytes, call_ns, raw_ns] =
            ["size_bytes", "median_ns", "raw_median_ns"].map(|field| measurement.number(field));
        Some(CurvePoint { bytes: bytes?, call_ns: call_ns?, raw_ns: raw_ns? })
    };
    Some(FabricCurve {
        name: fabric(measurements.first()?)?,
        points: measurements.iter().filter_map(point).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurements(line: &str) -> Vec<Measurement> {
        Measurement::all_of(line)
    }

    #[test]
    fn measurements_stand_between_the_marks_and_all_else_stays() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = insert(&document, "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(insert(&new, "new\n").unwrap(), new);
        assert!(insert("no marks", "new").is_none());
    }

    #[test]
    fn each_kind_of_measurement_has_its_table() {
        let mut all = measurements(
            r#"{"bench":"latency","fabric":"tcp","encrypted":false,"mode":"hot","function":"echo","size_bytes":64,
"median_ns":9000,"p99_ns":12000,"raw_median_ns":8200,"raw_p99_ns":11000,"ratio":1.0976}"#,
        );
        all.extend(measurements(
            r#"[{"bench":"bandwidth","fabric":"ofi","provider":"tcp;ofi_rxm","size_bytes":1000000,"bytes_per_s":5e9,"raw_bytes_per_s":5.1e9,"ratio":0.98}]"#,
        ));
        all.extend(measurements(r#"{"bench":"cold","median_ns":1}"#));
        all.extend(measurements(
            r#"{"bench":"swap","pattern":"random-page","work_us":10.0,"len_bytes":167772160,"local_bytes":67108864,"median_ns":17300,"local_median_ns":11800,"ratio":1.466}"#,
        ));
        all.extend(measurements(
            r#"[{"bench":"fifo","across":true,"size_bytes":64,"median_ns":5500,"raw_ns":4800,"ratio":1.146,"asleep_ns":9000,"raw_asleep_ns":30000,"asleep_ratio":0.3},
{"bench":"xpucall","median_ns":260,"p99_ns":300,"raw_median_ns":140,"ratio":1.857},
{"bench":"chain","language":"python","functions":5,"in_place_hop_ns":900,"process_hop_ns":90000,"http_hop_ns":360000,"http_ratio":4.0},
{"bench":"cold","sandbox":"process","median_us":4600,"n":12}]"#,
        ).into_iter().map(|measurement| measurement.by("sublet bench some --json")));
        let text = tables(&all);
        assert!(
            text.contains("| tcp | hot | echo | 64 B | 9 us | 12 us | 8.2 us | 11 us | 1.10 |"),
            "{text}"
        );
        assert!(text.contains("| ofi, tcp;ofi_rxm | 1 MB | 5000 | 5100 | 0.98 |"), "{text}");
        assert!(
            text.contains("| random page | 10 us | 160 MiB | 64 MiB | 17.3 us | 11.8 us | 1.47 |"),
            "{text}"
        );
        assert!(
            text.contains(
                "| of two nodes, over tcp | 64 B | 5.5 us | 4.8 us | 1.15 | - | - | 9 us | 30 us | 0.30 |"
            ),
            "{text}"
        );
        assert!(text.contains("| 260 ns | 300 ns | 140 ns | 1.86 |"), "{text}");
        assert!(text.contains("| 5 | python | 900 ns | 90 us | 360 us | 4.0 |"), "{text}");
        assert!(text.contains("| `sublet bench some` | cold, process | median | 4.6 ms |"), "{text}");
        assert!(text.contains("| `sublet bench some` | cold, process | n | 12 |"), "{text}");
        let linked: Vec<_> = all.iter().map(|measurement| measurement.clone().over(Some("1gbit"))).collect();
        assert!(tables(&linked).contains("| tcp, over a link of 1gbit | hot |"), "{linked:?}");
        assert!(!text.contains("connections"), "{text}");
        assert!(text.lines().filter(|line| line.starts_with('|')).all(|line| line.ends_with('|')));
    }

    #[test]
    fn a_sweep_is_a_series() {
        let sweep = measurements(
            r#"[{"fabric":"shm","size_bytes":0,"median_ns":1,"raw_median_ns":1},{"fabric":"shm","size_bytes":64,"median_ns":190,"raw_median_ns":140}]"#,
        );
        let series = series(&sweep).unwrap();
        assert_eq!((series.name.as_str(), series.points.len(), series.points[1].call_ns), ("shm", 2, 190.0));
        assert_eq!(super::series(&[]), None);
    }
}
