//! `sim`: runs the simulator over many seeds, on all cores, and says what came of each.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use sublet_tests::sim::{self, SimOptions, SimOutcome};

const USAGE: &str = "usage: sim [--seeds N] [--first-seed S] [--nodes N] [--hours H] [--minutes M] [--json]";

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => run(&arguments),
        Err(error) => {
            eprintln!("sim: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

struct Arguments {
    seeds: u64,
    first_seed: u64,
    nodes: u32,
    minutes: u64,
    json: bool,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments { seeds: 1, first_seed: 1, nodes: 1_000, minutes: 60, json: false };
        while let Some(word) = words.next() {
            if word == "--json" {
                arguments.json = true;
                continue;
            }
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            let number: u64 = value.parse().map_err(|_| format!("{word} {value} is not a number"))?;
            match word.as_str() {
                "--seeds" => arguments.seeds = number,
                "--first-seed" => arguments.first_seed = number,
                "--nodes" => {
                    arguments.nodes =
                        u32::try_from(number).map_err(|_| format!("{number} nodes are too many"))?
                }
                "--hours" => arguments.minutes = number * 60,
                "--minutes" => arguments.minutes = number,
                _ => return Err(format!("there is no option {word}")),
            }
        }
        if arguments.nodes == 0 || arguments.minutes == 0 {
            return Err("a run has nodes and takes time".into());
        }
        Ok(arguments)
    }

    fn options(&self, seed: u64) -> SimOptions {
        SimOptions { seed, nodes: self.nodes, duration_us: self.minutes * 60_000_000, sabotage: None }
    }
}

fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let next = AtomicU64::new(arguments.first_seed);
    let end = arguments.first_seed.saturating_add(arguments.seeds);
    let (sender, outcomes) = mpsc::channel();
    let mut sum = Sum::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let begun = Instant::now();
                    let outcome = sim::run(&arguments.options(seed));
                    if sender.send((outcome, begun.elapsed())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (outcome, took) in outcomes {
            sum.add(&outcome);
            show(arguments, &outcome, took);
        }
    });
    sum.show(arguments, started.elapsed());
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Default)]
struct Sum {
    passed: u64,
    failed: u64,
    events: u64,
    leases: u64,
    node_hours: f64,
}

impl Sum {
    fn add(&mut self, outcome: &SimOutcome) {
        self.passed += u64::from(outcome.failure.is_none());
        self.failed += u64::from(outcome.failure.is_some());
        self.events += outcome.events;
        self.leases += outcome.leases;
        self.node_hours += node_hours(outcome);
    }

    fn show(&self, arguments: &Arguments, took: Duration) {
        let seconds = took.as_secs_f64();
        let (events_per_s, node_hours_per_s) = (self.events as f64 / seconds, self.node_hours / seconds);
        if arguments.json {
            let sum = json!({
                "seeds": self.passed + self.failed, "failed": self.failed, "nodes": arguments.nodes,
                "events": self.events, "leases": self.leases, "seconds": seconds,
                "events_per_second": events_per_s, "node_hours_per_second": node_hours_per_s,
            });
            return println!("{sum}");
        }
        println!(
            "{} leases, {} events, {:.1} million events/s, {:.0} simulated node-hours/s, {:.0} s",
            self.leases,
            self.events,
            events_per_s / 1e6,
            node_hours_per_s,
            seconds
        );
        // The line has cargo's format, so that a script that counts tests counts these.
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        println!("test result: {verdict}. {} passed; {} failed", self.passed, self.failed);
    }
}

fn node_hours(outcome: &SimOutcome) -> f64 {
    f64::from(outcome.options.nodes) * outcome.simulated_us as f64 / 3.6e9
}

fn show(arguments: &Arguments, outcome: &SimOutcome, took: Duration) {
    let seed = outcome.options.seed;
    if arguments.json {
        let failure = outcome.failure.as_ref().map(|failure| failure.violation.to_string());
        println!(
            "{}",
            json!({
                "seed": seed, "events": outcome.events, "leases": outcome.leases,
                "fingerprint": format!("{:016x}", outcome.fingerprint), "seconds": took.as_secs_f64(), "failure": failure,
            })
        );
        return;
    }
    println!(
        "seed {seed:>6}  {:>10} events  {:>7} leases  {:>6.1} s  {:016x}",
        outcome.events,
        outcome.leases,
        took.as_secs_f64(),
        outcome.fingerprint
    );
    if let Some(failure) = &outcome.failure {
        println!("{failure}", failure = failure.describe(outcome));
    }
}
