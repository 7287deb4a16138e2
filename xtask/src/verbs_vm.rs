//! `cargo xtask verbs-vm`: the fabric over real verbs without a card, in an emulated machine.
//!
//! Debian's kernel has a network card in software (rdma_rxe). [`scripts/verbs-vm.sh`](../../scripts/verbs-vm.sh) boots it
//! in QEMU, which emulates the processor, so that times mean nothing by themselves: what counts is that the suite passes,
//! and the latency beside that of perftest's `ib_write_lat` and of a plain `fi_writedata` ping-pong in the same guest.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{cargo, root};

/// How `scripts/verbs-vm.sh` says that it cannot.
const SKIPPED: i32 = 75;

/// What the guest does. The card's address is what the script gives it.
const GUEST: &str = r#"
export SUBLET_CONFORMANCE_OFI=verbs SUBLET_CONFORMANCE_OFI_TOWARD=10.0.0.1
status=0
ib_write_lat -d rxe0 -x 1 -s 64 -n 1000 -F >perftest-server.log 2>&1 &
sleep 5
timeout 120 ib_write_lat -d rxe0 -x 1 -s 64 -n 1000 -F 10.0.0.1 >perftest.log 2>&1 || echo "perftest failed"
timeout 180 ./latency verbs 10.0.0.1 64 5 >latency.json || status=1
timeout 300 ./latency --count verbs 10.0.0.1 64 >count.json 2>count.log || echo "instructions were not counted"
timeout 400 ./ofi --test-threads 1 || status=1
timeout 600 ./conformance --test-threads 1 operations:: transfers:: threads:: || status=1
exit $status
"#;

/// Builds, boots, prints what the guest found.
pub fn chore(options: Options) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("verbs-vm", Show::Everything)?;
    let outcome = run(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(step: &mut Step) -> io::Result<Outcome> {
    let share = root().join("target/xtask/verbs-vm");
    if share.exists() {
        std::fs::remove_dir_all(&share)?;
    }
    std::fs::create_dir_all(&share)?;
    for (arguments, name) in [
        (["--test", "conformance"], "conformance"),
        (["--test", "ofi"], "ofi"),
        (["--example", "ofi-latency"], "latency"),
    ] {
        let built = build(arguments)?;
        std::fs::copy(built, share.join(name))?;
    }
    std::fs::write(share.join("guest.sh"), GUEST)?;
    let mut boot = Command::new(root().join("scripts/verbs-vm.sh"));
    let status = boot.arg(&share).current_dir(root()).status()?;
    if status.code() == Some(SKIPPED) {
        return Ok(Outcome::Skipped("there is no emulated machine here; the line above says why".into()));
    }
    for line in read(&share, "guest.log").lines() {
        println!("  {line}");
    }
    report(&share)?;
    step.count(status.success());
    Ok(Outcome::from(status.success()))
}

/// Builds one program of the fabric, and says where it is.
fn build(target: [&str; 2]) -> io::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--release", "-p", "sublet-fabric", "--message-format=json-render-diagnostics"]);
    let output = command.args(target).stderr(std::process::Stdio::inherit()).output()?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().rev().find_map(|line| {
        let name = format!("\"name\":\"{}\"", target[1]);
        line.contains(&name).then(|| field(line, "executable")).flatten()
    });
    match executable {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => Err(io::Error::other(format!("{} could not be built", target[1]))),
    }
}

/// The table, and the same as JSON in `target/xtask/verbs-vm/result.json`.
fn report(share: &Path) -> io::Result<()> {
    let perftest = half_round_trip_us(&read(share, "perftest.log")).map(|half| (half * 2000.0) as u64);
    let latency = read(share, "latency.json");
    let medians = ["endpoint_ns", "raw_ns"].map(|name| {
        latency.split(&format!("\"{name}\": {{\"median\": ")).nth(1)?.split(',').next()?.parse::<u64>().ok()
    });
    let rows = [
        ("line with 64 B, Sublet", medians[0]),
        ("plain fi_writedata", medians[1]),
        ("ib_write_lat", perftest),
    ];
    println!("round trip of 64 B over verbs, in emulation (only the ratios mean something)");
    for (name, median) in rows {
        let ratio = median.zip(perftest).map(|(median, perftest)| median as f64 / perftest as f64);
        let show = |value: Option<String>| value.unwrap_or("not measured".into());
        println!(
            "  {name:<26} {:>12} ns   {:>6} of ib_write_lat",
            show(median.map(|median| median.to_string())),
            show(ratio.map(|ratio| format!("{ratio:.2}")))
        );
    }
    let count = read(share, "count.json");
    println!("  instructions of a call: {}", if count.is_empty() { "not counted\n" } else { &count });
    let or_null = |text: &str| if text.trim().is_empty() { "null".into() } else { text.trim().to_owned() };
    let mut json = String::new();
    let perftest = perftest.map_or("null".into(), |ns| ns.to_string());
    let _ = write!(
        json,
        "{{\"latency\": {}, \"ib_write_lat_round_trip_ns\": {perftest}, \"instructions\": {}}}",
        or_null(&latency),
        or_null(&count)
    );
    println!("{json}");
    std::fs::write(share.join("result.json"), json + "\n")
}

fn read(share: &Path, name: &str) -> String {
    std::fs::read_to_string(share.join(name)).unwrap_or_default()
}

/// The typical latency in the row of figures that perftest prints: half of a round trip.
fn half_round_trip_us(log: &str) -> Option<f64> {
    let row = log.lines().find(|line| line.trim_start().starts_with("64 "))?;
    row.split_whitespace().nth(4)?.parse().ok()
}

/// A text field of a JSON object that has no escapes in it.
fn field(line: &str, name: &str) -> Option<String> {
    let rest = line.split(&format!("\"{name}\":\"")).nth(1)?;
    Some(rest.split('"').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftests_figure_is_found() {
        let log = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                   64      1000          10.40          99.00        12.25    13.00\n";
        assert_eq!(half_round_trip_us(log), Some(12.25));
        assert_eq!(half_round_trip_us("nothing"), None);
    }

    #[test]
    fn an_executable_is_found_in_cargos_messages() {
        let line = r#"{"target":{"name":"ofi"},"executable":"/a/b/ofi-1","fresh":true}"#;
        assert_eq!(field(line, "executable").as_deref(), Some("/a/b/ofi-1"));
        assert_eq!(field(r#"{"executable":null}"#, "executable"), None);
    }
}
