//! Latency that the emulated machine measured: the round trip of a line with 64 bytes, that of `ib_write_lat`, and the
//! instructions of a line.

use std::fmt::Write;
use std::path::Path;

use crate::vm::read;

/// The counts that are shown: a label, and the field of the fabric's measurement.
const COUNTED: [(&str, &str); 4] = [
    ("a line with 64 B, sent", "endpoint_send"),
    ("plain fi_writedata, sent", "raw_send"),
    ("a line with 64 B, received", "endpoint_receive"),
    ("plain fi_writedata, received", "raw_receive"),
];

/// Medians, each over the medians of the rounds. `None` was not measured.
#[derive(Debug, Default, PartialEq)]
pub struct Latency {
    fabric_ns: Option<u64>,
    raw_ns: Option<u64>,
    perftest_ns: Option<u64>,
    /// Ratio of the fabric's latency to that of `ib_write_lat`, in the rounds that have both.
    ratio: Option<f64>,
    rounds: usize,
    instructions: [Option<u64>; COUNTED.len()],
}

impl Latency {
    /// Reads the measurements from the logs that the emulated machine left in the shared folder.
    pub fn read(share: &Path) -> Latency {
        Latency::of(&read(share, "latency.log"), &read(share, "instructions.log"))
    }

    fn of(latency: &str, instructions: &str) -> Latency {
        let measurements =
            |find: fn(&str) -> Option<u64>| latency.lines().filter_map(find).collect::<Vec<_>>();
        let (perftest, fabric) =
            (measurements(perftest_ns), measurements(|line| median_of(line, "endpoint_ns")));
        let ratios = fabric.iter().zip(&perftest).map(|(fabric, perftest)| *fabric as f64 / *perftest as f64);
        Latency {
            rounds: fabric.len(),
            ratio: middle(ratios.collect()),
            fabric_ns: middle(fabric),
            raw_ns: middle(measurements(|line| median_of(line, "raw_ns"))),
            perftest_ns: middle(perftest),
            instructions: COUNTED.map(|(_, field)| number_after(instructions, &format!("\"{field}\": "))),
        }
    }

    /// Formats the measurements for people.
    pub fn table(&self) -> String {
        let mut table = format!(
            "round trip of 64 B over verbs, medians of {} rounds in turn (emulated: only ratios mean something)\n",
            self.rounds
        );
        let of_perftest = |ns: Option<u64>| Some(ns? as f64 / self.perftest_ns? as f64);
        let rows = [
            ("a line with 64 B, the fabric's", self.fabric_ns, self.ratio),
            ("plain fi_writedata", self.raw_ns, of_perftest(self.raw_ns)),
            ("ib_write_lat", self.perftest_ns, of_perftest(self.perftest_ns)),
        ];
        // Writing to a string cannot fail.
        for (name, ns, ratio) in rows {
            let ns = ns.map_or("not measured".to_owned(), |ns| format!("{:.1} us", ns as f64 / 1000.0));
            let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:>8.2} x ib_write_lat"));
            let _ = writeln!(table, "  {name:<32}{ns:>14}{ratio}");
        }
        table += "instructions in this process, without the kernel's\n";
        for ((name, _), count) in COUNTED.iter().zip(self.instructions) {
            let count = count.map_or("not counted".to_owned(), |count| count.to_string());
            let _ = writeln!(table, "  {name:<32}{count:>14}");
        }
        table
    }

    /// Formats the measurements as JSON, for programs.
    pub fn json(&self) -> String {
        let number = |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
        let ratio = self.ratio.map_or("null".to_owned(), |ratio| format!("{ratio:.3}"));
        let counts = COUNTED.iter().zip(self.instructions);
        let counts: Vec<_> =
            counts.map(|((_, field), count)| format!("\"{field}\": {}", number(count))).collect();
        format!(
            "{{\"rounds\": {}, \"fabric_ns\": {}, \"fi_writedata_ns\": {}, \"ib_write_lat_ns\": {}, \
             \"ratio\": {ratio}, \"instructions\": {{{}}}}}",
            self.rounds,
            number(self.fabric_ns),
            number(self.raw_ns),
            number(self.perftest_ns),
            counts.join(", ")
        )
    }
}

/// Parses a row of numbers as perftest prints it. Returns the round trip in ns: twice the typical latency.
fn perftest_ns(line: &str) -> Option<u64> {
    let half_us: f64 = line.trim_start().strip_prefix("64 ")?.split_whitespace().nth(3)?.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of `f64` saturate")]
    let round_trip_ns = (half_us * 2000.0) as u64;
    Some(round_trip_ns)
}

fn median_of(line: &str, field: &str) -> Option<u64> {
    number_after(line, &format!("\"{field}\": {{\"median\": "))
}

fn number_after(text: &str, what: &str) -> Option<u64> {
    let rest = text.split(what).nth(1)?;
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

fn middle<T: Copy + PartialOrd>(mut all: Vec<T>) -> Option<T> {
    all.sort_by(|left, right| left.partial_cmp(right).unwrap_or(std::cmp::Ordering::Equal));
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                         64      1000          10.40          99.00        12.25    13.00\n\
                         {\"provider\": \"verbs\", \"endpoint_ns\": {\"median\": 49000, \"p99\": 7}, \
                         \"raw_ns\": {\"median\": 30000, \"p99\": 8}, \"ratio\": 1.6}\n";

    #[test]
    fn measurements_are_found_in_what_the_programs_print() {
        let slower = ROUND.replace("12.25", "24.50").replace("49000", "98000");
        let counts =
            "{\"endpoint_send\": 500, \"endpoint_receive\": 400, \"raw_send\": 300, \"raw_receive\": 200}";
        let latency = Latency::of(&format!("{ROUND}{slower}{ROUND}"), counts);
        assert_eq!(
            (latency.perftest_ns, latency.fabric_ns, latency.raw_ns),
            (Some(24_500), Some(49_000), Some(30_000))
        );
        assert_eq!((latency.ratio, latency.rounds), (Some(2.0), 3));
        assert_eq!(latency.instructions, [Some(500), Some(300), Some(400), Some(200)]);
        assert!(latency.table().contains("2.00 x ib_write_lat"), "{}", latency.table());
        assert!(latency.json().contains("\"ratio\": 2.000"), "{}", latency.json());
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let latency = Latency::of("nothing", "");
        assert_eq!(latency, Latency::default());
        assert!(latency.table().contains("not measured") && latency.json().contains("\"fabric_ns\": null"));
    }
}
