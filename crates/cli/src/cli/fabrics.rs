//! `sublet fabrics`: shows the fabrics of this machine.

use std::io::IsTerminal;

use clap::Args;
use indicatif::ProgressBar;
use sublet_proto::Error;

use super::output::{CommandOutput, table};
use crate::fabrics::{Chosen, FabricClients, FabricReport, Fabrics, look, measure};
use sublet_bench::human_ns;

const EXAMPLES: &str = "\
Examples:
  sublet fabrics              show fabrics, why some cannot be used, and the choice
  sublet fabrics --measure    measure also the speed of each, within this machine
  sublet fabrics --json       {\"fabrics\": [...], \"chosen\": [...], \"memory_lock_bytes\": ...}

Clients on this machine use shared memory, others the best network that they have in common with the node. The command
needs no running Sublet. `sublet bench latency --fabric tcp` measures a network between two machines.";

/// Show the fabrics of this machine, and which ones calls would use
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Measure each fabric: the round trip of 64 bytes, and the throughput of 1 MiB in both directions
    #[arg(long)]
    measure: bool,
}

/// Shows the fabrics.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let mut fabrics = look()?;
    if arguments.measure {
        let steps = fabrics.fabrics.iter().filter(|fabric| fabric.usable).count() as u64;
        let for_people = output.is_for_people() && std::io::stderr().is_terminal();
        let bar = if for_people { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        measure(&mut fabrics, || bar.inc(1));
        bar.finish_and_clear();
    }
    output.show(&fabrics, |fabrics| text(fabrics, arguments.measure))
}

fn text(fabrics: &Fabrics, measured: bool) -> String {
    let mut headings = vec!["FABRIC", "PROVIDER", "INTERFACE", "ADDRESS", "SPEED", "MTU"];
    if measured {
        headings.extend(["ROUND TRIP", "MB/S"]);
    }
    headings.push("USABLE");
    let rows: Vec<_> = fabrics.fabrics.iter().map(|fabric| row(fabric, measured)).collect();
    let mut text = table(&headings, &rows) + "\n";
    for Chosen { clients, fabric, provider, interface, why } in &fabrics.chosen {
        let clients = match clients {
            FabricClients::ThisMachine => "this machine",
            FabricClients::OtherMachines => "other machines",
        };
        let provider = provider.as_ref().map(|provider| format!(" {provider}")).unwrap_or_default();
        let interface = interface.as_ref().map(|interface| format!(" by {interface}")).unwrap_or_default();
        text += &format!("clients on {clients} use {fabric}{provider}{interface}: {why}\n");
    }
    for fabric in &fabrics.fabrics {
        if let Some(warning) = &fabric.warning {
            text += &format!("warning: {}: {warning}\n", or_none(fabric.interface.as_deref()));
        }
    }
    text
}

fn row(fabric: &FabricReport, measured: bool) -> Vec<String> {
    let mut cells = vec![
        fabric.fabric.to_owned(),
        or_none(fabric.provider.as_deref()),
        or_none(fabric.interface.as_deref()),
        or_none(fabric.address.as_deref()),
        or_none(fabric.bits_per_s.map(speed).as_deref()),
        or_none(fabric.mtu_bytes.map(|mtu| mtu.to_string()).as_deref()),
    ];
    if measured {
        let figures = &fabric.measured;
        cells.push(or_none(figures.map(|figures| human_ns(figures.round_trip_ns)).as_deref()));
        cells.push(or_none(figures.map(|figures| format!("{:.0}", figures.bytes_per_s / 1e6)).as_deref()));
    }
    cells.push(fabric.reason.as_ref().map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}")));
    cells
}

fn or_none(cell: Option<&str>) -> String {
    cell.unwrap_or("-").to_owned()
}

/// Formats a link speed as usual for networks: 25 Gb/s.
fn speed(bits_per_s: u64) -> String {
    match bits_per_s {
        bits if bits >= 1_000_000_000 => format!("{} Gb/s", bits as f64 / 1e9),
        bits => format!("{} Mb/s", bits as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_link_speeds() {
        assert_eq!(speed(100_000_000), "100 Mb/s");
        assert_eq!(speed(2_500_000_000), "2.5 Gb/s");
        assert_eq!(speed(100_000_000_000), "100 Gb/s");
    }

    #[test]
    fn table_shows_reasons_and_choices() {
        let fabric = FabricReport {
            fabric: "tcp",
            interface: Some("eth0".into()),
            reason: Some("the interface is down".into()),
            warning: Some("its MTU".into()),
            ..FabricReport::default()
        };
        let chosen = Chosen {
            clients: FabricClients::OtherMachines,
            fabric: "tcp",
            provider: None,
            interface: Some("eth1".into()),
            why: "because".into(),
        };
        let all = Fabrics { fabrics: vec![fabric], chosen: vec![chosen], memory_lock_bytes: None };
        let shown = text(&all, false);
        for part in [
            "no: the interface is down",
            "clients on other machines use tcp by eth1: because",
            "warning: eth0: its MTU",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(!shown.contains("ROUND TRIP") && text(&all, true).contains("ROUND TRIP"));
    }
}
