//! `sublet bill`: what leases have used and cost.

use clap::Args;
use serde::Serialize;
use sublet_proto::{Code, Error};

use super::Connection;
use super::output::{Output, table};
use super::parse::{show_nano, show_ns};
use super::view::{BillLineView, CostView, UsageView};

const EXAMPLES: &str = "\
Examples:
  sublet bill            all leases, the newest first, and their total
  sublet bill LEASE      one of them; `sublet ps` shows their names
  sublet bill --json     times in nanoseconds, money in billionths (nano) of the currency

A lease costs what it holds (GiB-seconds), what it computes and what it polls (core-seconds), each at the price
that `sublet up` was started with. Waiting warm costs less than polling.";

/// Show what leases have used and cost
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Only this lease
    lease: Option<String>,

    #[command(flatten)]
    connection: Connection,
}

/// The result.
#[derive(Debug, Serialize)]
struct Bill {
    leases: Vec<BillLineView>,
    total: Total,
}

#[derive(Debug, Serialize)]
struct Total {
    usage: UsageView,
    #[serde(flatten)]
    cost: CostView,
}

/// Shows the bill.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let reply = arguments.connection.open()?.bill(arguments.lease.as_deref())?;
    let total = reply.total.ok_or_else(|| Error::new(Code::Protocol, "the manager's bill has no total"))?;
    let bill = Bill {
        leases: reply.lines.into_iter().map(BillLineView::from).collect(),
        total: Total { cost: CostView::from(&total), usage: total.usage.into() },
    };
    output.show(&bill, text)
}

fn text(bill: &Bill) -> String {
    let mut rows: Vec<_> = bill.leases.iter().map(lease_row).collect();
    let (lease, nothing) = ("total".to_owned(), String::new());
    rows.push(row([lease, nothing.clone(), nothing], &bill.total.usage, &bill.total.cost));
    table(
        ["LEASE", "PACKAGE", "STATE", "CALLS", "FAILED", "ALLOCATED", "EXECUTING", "POLLING", "COST"],
        &rows,
    )
}

fn lease_row(line: &BillLineView) -> [String; 9] {
    row([line.lease.clone(), line.package.clone(), line.state.to_owned()], &line.usage, &line.cost)
}

fn row([lease, package, state]: [String; 3], usage: &UsageView, cost: &CostView) -> [String; 9] {
    [
        lease,
        package,
        state,
        usage.calls.to_string(),
        usage.failed_calls.to_string(),
        show_ns(usage.allocated_ns),
        show_ns(usage.executing_ns),
        show_ns(usage.polling_ns),
        show_nano(cost.total_nano),
    ]
}
