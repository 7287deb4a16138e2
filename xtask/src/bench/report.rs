//! Formats measurements as the tables of docs/performance.md.
//!
//! Each measurement has a row: in the first of [`TABLES`] that takes it, or else in the table of other measurements. A
//! command that failed or measured nothing is listed with the reason.

mod rows;

use super::json::Measurement;
use super::plot::{CurvePoint, FabricCurve};

/// The mark before the text that this program writes into a document.
pub const BEGIN: &str = "<!-- Written by `cargo xtask bench` from here -->";
/// The mark after that text.
pub const END: &str = "<!-- to here -->";

/// The mark before the text that `cargo xtask bench scad` writes; [`END`] is after that, too.
pub const BEGIN_OF_SCAD: &str = "<!-- Written by `cargo xtask bench scad` from here -->";

/// Replaces the text between a mark and the next end mark of the document. Returns `None` if the document lacks one of them.
pub fn insert(document: &str, begin: &str, measurements: &str) -> Option<String> {
    let (before, rest) = document.split_once(begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n\n{measurements}\n{END}{after}"))
}

/// Removes all text that commands have written from the document.
pub fn without_measurements(document: &str) -> String {
    [BEGIN, BEGIN_OF_SCAD]
        .iter()
        .fold(document.to_owned(), |text, begin| insert(&text, begin, "").unwrap_or(text))
}

/// A measuring command that failed or measured nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct UnmeasuredCommand {
    pub command: String,
    pub reason: &'static str,
}

/// A table of the report.
struct Table {
    title: &'static str,
    heading: &'static str,
    /// The cells of a measurement, or `None` if the table has no row for it.
    row: fn(&Measurement) -> Option<Vec<String>>,
}

const TABLES: [Table; 12] = [
    Table {
        title: "A call and the raw round trip:",
        heading: "| fabric | waits | function | payload | median | p99 | raw median | raw p99 | ratio |",
        row: rows::latency_row,
    },
    Table {
        title: "Large payloads, there and back:",
        heading: "| fabric | payload | MB/s | raw MB/s | ratio |",
        row: rows::bandwidth_row,
    },
    Table {
        title: "Cold starts, and what they are compared with:",
        heading: "| sandbox | from the request to | median | p99 | compared with | ratio | command |",
        row: rows::start_row,
    },
    Table {
        title: "Memory components:",
        heading: "| fabric | access | size | MB/s | raw MB/s | ratio | one |",
        row: rows::memory_row,
    },
    Table {
        title: "An array larger than its memory, and the same program with all of it here:",
        heading: "| pattern | work a page | array | local | a page | all local | ratio |",
        row: rows::swap_row,
    },
    Table {
        title: "The size of a memory component, by earlier runs and without them:",
        heading: "| application | size | used memory over leased | growths of a run |",
        row: rows::sizes_row,
    },
    Table {
        title: "Applications that share the balanced pool, in simulated time, with plans and without:",
        heading: "| application | apart after | together again after | moved between nodes | most of the pool | without plans | above the watermark | a decision |",
        row: rows::pools_row,
    },
    Table {
        title: "A warm call, with connections that are idle:",
        heading: "| fabric | connections | payload | median | p99 | ratio to 1 connection |",
        row: rows::connections_row,
    },
    Table {
        title: "A message through a FIFO, one way, and through one of the kernel or a TCP connection:",
        heading: "| between two processes | payload | awake | raw | ratio | copying alone | ratio | asleep | raw | ratio |",
        row: rows::messages_row,
    },
    Table {
        title: "A call of the shim and its answer:",
        heading: "| median | p99 | flag's round trip | ratio |",
        row: rows::shim_row,
    },
    Table {
        title: "Functions that call each other:",
        heading: "| functions | language | hop in one process | hop between processes | hop over HTTP | HTTP over processes |",
        row: rows::chains_row,
    },
    Table {
        title: "Single operations:",
        heading: "| operation | time | operations a second |",
        row: rows::criterion_row,
    },
];

/// Formats all measurements as tables, and lists the commands that failed or measured nothing.
pub fn tables(measurements: &[Measurement], unmeasured: &[UnmeasuredCommand]) -> String {
    let mut rows: Vec<Vec<Vec<String>>> = TABLES.iter().map(|_| Vec::new()).collect();
    let mut commands: Vec<Vec<&str>> = TABLES.iter().map(|_| Vec::new()).collect();
    let mut others = Vec::new();
    for measurement in measurements {
        let in_table = |(at, table): (usize, &Table)| Some((at, (table.row)(measurement)?));
        let Some((at, cells)) = TABLES.iter().enumerate().find_map(in_table) else {
            others.extend(rows::other_rows(measurement));
            continue;
        };
        rows[at].push(cells);
        if let Some(command) = measurement.command()
            && !commands[at].contains(&command)
        {
            commands[at].push(command);
        }
    }
    let mut texts = Vec::new();
    for ((table, rows), commands) in TABLES.iter().zip(&rows).zip(&commands) {
        let text = formatted(table.heading, rows).map(|text| format!("{}\n\n{text}", table.title));
        texts.extend(text.map(|text| named(text, commands)));
    }
    let others = formatted("| command | measured | field | value |", &others);
    texts.extend(others.map(|text| format!("Other measurements:\n\n{text}")));
    let listed: Vec<_> =
        unmeasured.iter().map(|one| vec![format!("`{}`", one.command), one.reason.to_owned()]).collect();
    let unmeasured = formatted("| command | reason |", &listed);
    texts.extend(
        unmeasured.map(|text| format!("Commands that failed or measured nothing in this run:\n\n{text}")),
    );
    texts.join("\n")
}

/// Adds the commands of a table below it, but those that are in its rows.
fn named(table: String, commands: &[&str]) -> String {
    let below =
        commands.iter().map(|command| format!("`{command}`")).filter(|command| !table.contains(command));
    let below: String = below.map(|command| format!("- {command}\n")).collect();
    if below.is_empty() { table } else { format!("{table}\nMeasured by:\n\n{below}") }
}

/// Formats rows below a heading, or returns `None` if there are none.
fn formatted(heading: &str, rows: &[Vec<String>]) -> Option<String> {
    let line = "|---".repeat(heading.matches('|').count() - 1);
    let lines: String = rows.iter().map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
    (!rows.is_empty()).then(|| format!("{heading}\n{line}|\n{lines}"))
}

/// Returns the latencies of a sweep, for the plot.
pub fn series(measurements: &[Measurement]) -> Option<FabricCurve> {
    let point = |measurement: &Measurement| {
        let [bytes, call_ns, raw_ns] =
            ["size_bytes", "median_ns", "raw_median_ns"].map(|field| measurement.number(field));
        Some(CurvePoint { bytes: bytes?, call_ns: call_ns?, raw_ns: raw_ns? })
    };
    Some(FabricCurve {
        name: rows::fabric(measurements.first()?)?,
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
    fn text_of_both_commands_is_removed() {
        let document = format!(
            "a\n{BEGIN_OF_SCAD}\n`sublet bench x --json`\n{END}\nb\n{BEGIN}\n`sublet bench y --json`\n{END}\nc\n"
        );
        let rest = without_measurements(&document);
        assert!(!rest.contains("sublet bench"), "{rest}");
        assert!(["a\n", "\nb\n", "\nc\n"].iter().all(|text| rest.contains(text)), "{rest}");
        assert_eq!(without_measurements("no marks"), "no marks");
    }

    #[test]
    fn measurements_stand_between_the_marks_and_all_else_stays() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = insert(&document, BEGIN, "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(insert(&new, BEGIN, "new\n").unwrap(), new);
        assert!(insert("no marks", BEGIN, "new").is_none());
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
        all.extend(measurements(
            r#"{"bench":"swap","pattern":"random-page","work_us":10.0,"len_bytes":167772160,"local_bytes":67108864,"median_ns":17300,"local_median_ns":11800,"ratio":1.466}"#,
        ));
        all.extend(measurements(
            r#"[{"bench":"fifo","across":true,"size_bytes":64,"median_ns":5500,"raw_ns":4800,"ratio":1.146,"asleep_ns":9000,"raw_asleep_ns":30000,"asleep_ratio":0.3},
{"bench":"xpucall","median_ns":260,"p99_ns":300,"raw_median_ns":140,"ratio":1.857},
{"bench":"chain","language":"python","functions":5,"in_place_hop_ns":900,"process_hop_ns":90000,"http_hop_ns":360000,"http_ratio":4.0},
{"bench":"cold","sandbox":"process","median_us":4600,"p99_us":9000,"floor_us":2300,"n":12,"steps":[{"step":"sandbox","median_us":40}]},
{"bench":"sandbox start","sandbox":"runc","median_us":90000},
{"bench":"standby start","sandbox":"standby","median_us":900,"floor_us":1800},
{"bench":"sizes","application":"small","policy":"history","n":500,"utilisation":0.8494,"growths_per_run":3.05},
{"bench":"pools","application":"much","n":300,"apart_after_s":125,"together_after_s":null,"moved_between_nodes_bytes":1000000,"most_used":0.9,"most_used_without":1.1,"above_watermark_s":1,"decision_ns":2500},
{"bench":"reject","fabric":"shm","rejected":{"median_ns":4600},"n":12}]"#,
        ).into_iter().map(|measurement| measurement.by("sublet bench some --json")));
        let text = tables(&all, &[]);
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
        for row in [
            "| small | history | 0.85 | 3.05 |",
            "| much | 125 s | - | 1 MB | 0.90 | 1.10 | 1 s | 2.5 us |",
            "| process | the first result | 4.6 ms | 9 ms | 2.3 ms | 2.00 | `sublet bench some --json` |",
            "| runc | the first instruction | 90 ms | - | - | - | `sublet bench some --json` |",
            "| standby | standby start | 900 us | - | 1.8 ms | 0.50 | `sublet bench some --json` |",
            "| `sublet bench some --json` | reject, shm | rejected.median | 4.6 us |",
            "| `sublet bench some --json` | reject, shm | n | 12 |",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        let linked: Vec<_> = all.iter().map(|measurement| measurement.clone().over(Some("1gbit"))).collect();
        assert!(tables(&linked, &[]).contains("| tcp, over a link of 1gbit | hot |"), "{linked:?}");
        assert!(!text.contains("connections"), "{text}");
        assert!(text.lines().filter(|line| line.starts_with('|')).all(|line| line.ends_with('|')));
    }

    /// A measurement whose benchmark has a table may lack the table's fields.
    #[test]
    fn every_measurement_and_every_command_has_a_row() {
        let benches =
            ["latency", "bandwidth", "memory", "swap", "connections", "fifo", "xpucall", "chain", "new"];
        for bench in benches {
            let line = format!(r#"{{"bench":"{bench}","what_is_new_ns":1234}}"#);
            let found: Vec<_> =
                measurements(&line).into_iter().map(|found| found.by("sublet bench x --json")).collect();
            let text = tables(&found, &[]);
            assert!(
                text.contains(&format!("| `sublet bench x --json` | {bench} | what is new | 1.23 us |")),
                "{text}"
            );
        }
        let nameless = measurements(
            r#"{"single_seconds":1.5,"single_gb_seconds":0.25,"calls_per_s":7,"parts":[{"part":"one","n":3}]}"#,
        );
        let text = tables(&nameless, &[]);
        let rows = [
            "|  |  | single | 1.5 s |",
            "| single gb seconds | 0.250 |",
            "| calls per s | 7 |",
            "| parts.one.n | 3 |",
        ];
        assert!(rows.iter().all(|row| text.contains(row)), "{text}");
        let operation =
            tables(&[Measurement::of("core/grant", "time_ns", 400.0).by("cargo bench -p x")], &[]);
        assert!(operation.contains("| core/grant | 400 ns | 2500000 |"), "{operation}");
        assert!(operation.ends_with("\nMeasured by:\n\n- `cargo bench -p x`\n"), "{operation}");
        let unmeasured =
            UnmeasuredCommand { command: "sublet bench y --json".to_owned(), reason: "it failed" };
        assert!(tables(&[], &[unmeasured]).contains("| `sublet bench y --json` | it failed |"));
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
