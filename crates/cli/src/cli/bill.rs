//! `sublet bill`: shows usage and costs.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use sublet_proto::v1::{BillBy, BillRequest};
use sublet_proto::{Code, Error};

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::{as_ms, duration, show_nano, show_ns};
use super::time::{moment, show_moment};
use super::view::{BillLineView, CostView, UsageView, shown_package};

const EXAMPLES: &str = "\
Examples:
  sublet bill                                     show all leases, the newest first, and their total
  sublet bill LEASE                               show one lease; `sublet ps` shows their identifiers
  sublet bill --by tenant --from 2026-01-01       show the spending of each tenant since then
  sublet bill --function                          show the execution time of each function
  sublet bill --by period --period 1h --from -24h --tenant alice
  sublet bill --by pu                             show the share of each kind of processing unit
  sublet bill --json                              print times in nanoseconds, money in billionths (nano) of the currency

A lease is charged for its memory (GiB-seconds), and for executing and polling (core-seconds), at the prices of its
grant. A warm worker sleeps while it waits, which costs less than polling. Times are in UTC, to the minute; the lines of every kind of bill
add up to exactly the same total. Leases that ended long ago (the manager's retention, 90 days by default) are
one line per tenant, (older), and count by whole days. A bill has at most 3 MiB of lines; below it stands how many
more there are.";

/// Show the usage and costs of leases
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Show only this lease
    lease: Option<String>,

    /// Same as LEASE
    #[arg(long = "lease", value_name = "LEASE", conflicts_with = "lease")]
    named_lease: Option<String>,

    /// Show only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Show a line for each of these
    #[arg(long, value_enum, default_value_t = BillGrouping::Lease)]
    by: BillGrouping,

    /// Short for --by function
    #[arg(long, conflicts_with = "by")]
    function: bool,

    /// Show usage from this time on, as 2026-01-31, 2026-01-31T12:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    from: Option<u64>,

    /// Show usage before this time
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    to: Option<u64>,

    /// Length of the periods of --by period [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    period: Option<Duration>,

    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BillGrouping {
    Lease,
    Tenant,
    Function,
    Period,
    Pu,
}

/// Output: a list whose name says what its lines stand for, and the total.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum BillOutput {
    Leases(Vec<BillLineView>),
    Tenants(Vec<BillLineView>),
    Functions(Vec<BillLineView>),
    Periods(Vec<BillLineView>),
    Pus(Vec<BillLineView>),
}

#[derive(Debug, Serialize)]
struct Bill {
    #[serde(flatten)]
    lines: BillOutput,
    total: Total,
    /// Number of further lines, which are part of the total and do not fit into the manager's reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Total {
    usage: UsageView,
    #[serde(flatten)]
    cost: CostView,
}

impl Arguments {
    fn by(&self) -> BillBy {
        match self.by {
            _ if self.function => BillBy::Function,
            BillGrouping::Lease => BillBy::Lease,
            BillGrouping::Tenant => BillBy::Tenant,
            BillGrouping::Function => BillBy::Function,
            BillGrouping::Period => BillBy::Period,
            BillGrouping::Pu => BillBy::Pu,
        }
    }

    fn request(&self) -> Result<BillRequest, Error> {
        if self.period.is_some() && self.by() != BillBy::Period {
            return Err(Error::new(Code::InvalidArgument, "--period requires --by period"));
        }
        if self.from.zip(self.to).is_some_and(|(from, to)| from >= to) {
            return Err(Error::new(Code::InvalidArgument, "--from must be earlier than --to"));
        }
        Ok(BillRequest {
            lease: self.lease.as_ref().or(self.named_lease.as_ref()).cloned().unwrap_or_default(),
            tenant: self.tenant.clone().unwrap_or_default(),
            from_unix_ms: self.from.unwrap_or(0),
            to_unix_ms: self.to.unwrap_or(0),
            by: self.by().into(),
            period_ms: self.period.map_or(0, as_ms),
        })
    }
}

/// Shows the bill.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let request = arguments.request()?;
    let reply = arguments.connection.open()?.bill(request)?;
    let total = reply.total.ok_or_else(|| Error::new(Code::Protocol, "the manager's bill has no total"))?;
    let by = arguments.by();
    let lines = reply.lines.into_iter().map(|line| BillLineView::new(by, line)).collect();
    let lines = match by {
        BillBy::Lease => BillOutput::Leases(lines),
        BillBy::Tenant => BillOutput::Tenants(lines),
        BillBy::Function => BillOutput::Functions(lines),
        BillBy::Period => BillOutput::Periods(lines),
        BillBy::Pu => BillOutput::Pus(lines),
    };
    let total = Total { cost: CostView::from(&total), usage: total.usage.into() };
    let left_out = (reply.left_out > 0).then_some(reply.left_out);
    output.show(&Bill { lines, total, left_out }, text)
}

fn text(bill: &Bill) -> String {
    let mut text = sums_of(bill);
    if let Some(left_out) = bill.left_out {
        text += &format!(
            "{left_out} more lines do not fit into one bill, and the total includes them: bill a shorter time, one \
             tenant or one lease\n"
        );
    }
    text
}

fn sums_of(bill: &Bill) -> String {
    match &bill.lines {
        BillOutput::Leases(lines) => sums(["LEASE", "TENANT", "PACKAGE", "STATE"], lines, lease, &bill.total),
        BillOutput::Tenants(lines) => sums(["TENANT"], lines, |line| [line.tenant.clone()], &bill.total),
        BillOutput::Functions(lines) => {
            let names = |line: &BillLineView| [line.function.clone(), line.tenant.clone()];
            sums(["FUNCTION", "TENANT"], lines, names, &bill.total)
        }
        BillOutput::Periods(lines) => sums(["FROM"], lines, period, &bill.total),
        BillOutput::Pus(lines) => sums(["PU"], lines, |line| [line.pu.clone()], &bill.total),
    }
}

fn lease(line: &BillLineView) -> [String; 4] {
    let lease = line.lease.as_ref();
    let of = |field: fn(&super::view::BilledLease) -> &str| lease.map_or("", field).to_owned();
    [
        of(|lease| if lease.id.is_empty() { "(older)" } else { &lease.id }),
        line.tenant.clone(),
        of(|lease| shown_package(&lease.package)),
        of(|lease| lease.state),
    ]
}

fn period(line: &BillLineView) -> [String; 1] {
    [show_moment(line.from_unix_ms.unwrap_or(0))]
}

/// Formats lines with their names, usage and costs as a table.
fn sums<const N: usize>(
    headings: [&str; N],
    lines: &[BillLineView],
    names: impl Fn(&BillLineView) -> [String; N],
    total: &Total,
) -> String {
    let mut rows: Vec<_> =
        lines.iter().map(|line| row(names(line).as_slice(), &line.usage, &line.cost)).collect();
    let mut nothing = vec![String::new(); N];
    nothing[0] = "total".to_owned();
    rows.push(row(&nothing, &total.usage, &total.cost));
    let sums = ["CALLS", "FAILED", "ALLOCATED", "EXECUTING", "POLLING", "COST"];
    table(&[&headings[..], &sums].concat(), &rows)
}

fn row(names: &[String], usage: &UsageView, cost: &CostView) -> Vec<String> {
    let sums = [
        usage.calls.to_string(),
        usage.failed_calls.to_string(),
        show_ns(usage.allocated_ns),
        show_ns(usage.executing_ns),
        show_ns(usage.polling_ns),
        show_nano(cost.total_nano),
    ];
    [names, &sums].concat()
}
