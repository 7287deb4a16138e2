//! Computes the usage and cost of one lease in a part of time.
//!
//! A cost is a function of cumulative usage, rounded down once for each term. The cost of a part of time is the
//! difference of two such costs, so the parts of a lease add up to the cost of the whole, wherever they are cut.

use std::collections::BTreeMap;

use sublet_proto::price::{self, Cost};
use sublet_proto::v1::{FunctionUsage, Lease, Usage};

use crate::lease_records::{LeaseRecord, Minute, larger};

pub(super) const DAY_MINUTES: u64 = 24 * 60;

/// The first minute of a minute's day, in UTC.
pub(super) fn day_of(minute: u64) -> u64 {
    minute / DAY_MINUTES * DAY_MINUTES
}

/// A lease's usage, cut into periods.
pub(crate) struct UsageSpan {
    pub(crate) lease: Lease,
    base: Usage,
    /// Cumulative usage at the end of each period in which it grew.
    ends: BTreeMap<u64, Usage>,
    /// Within each period.
    functions: BTreeMap<u64, BTreeMap<u32, FunctionUsage>>,
}

/// Usage in a period, and its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PeriodUsage {
    pub(crate) period: u64,
    pub(crate) usage: Usage,
    pub(crate) cost: Cost,
}

/// A function's share of a part, or the rest: holding memory, polling, and computing outside of functions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FunctionShare {
    pub(crate) function: Option<u32>,
    pub(crate) usage: Usage,
    pub(crate) cost: Cost,
}

impl UsageSpan {
    /// All that a lease ever used, in one period.
    pub(crate) fn whole(record: LeaseRecord) -> UsageSpan {
        let functions = record.lease.function_usage.iter().map(|usage| (usage.function, *usage)).collect();
        let ends = BTreeMap::from([(0, record.lease.usage.unwrap_or_default())]);
        let functions = BTreeMap::from([(0, functions)]);
        UsageSpan { lease: record.lease, base: Usage::default(), ends, functions }
    }

    /// Takes a lease's usage from `base` on. `last` is the period of the minute in which its record was written, if
    /// that counts.
    pub(crate) fn from(record: LeaseRecord, base: Usage, last: Option<u64>) -> UsageSpan {
        let usage = record.lease.usage.unwrap_or_default();
        let ends = last.map(|period| (period, usage)).into_iter().collect();
        UsageSpan { lease: record.lease, base, ends, functions: BTreeMap::new() }
    }

    /// Adds a minute, which is in this period.
    pub(crate) fn add(&mut self, period: u64, minute: &Minute) {
        let end = self.ends.entry(period).or_default();
        *end = larger(*end, minute.end);
        let functions = self.functions.entry(period).or_default();
        for grown in &minute.functions {
            let usage = functions
                .entry(grown.function)
                .or_insert(FunctionUsage { function: grown.function, ..FunctionUsage::default() });
            usage.executing_ns = usage.executing_ns.saturating_add(grown.executing_ns);
            usage.calls = usage.calls.saturating_add(grown.calls);
            usage.failed_calls = usage.failed_calls.saturating_add(grown.failed_calls);
        }
    }

    /// Returns the usage of each period, in their order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PeriodUsage> {
        let price = self.lease.price.unwrap_or_default();
        let mut before = self.base;
        self.ends.iter().map(move |(&period, &end)| {
            let end = larger(before, end);
            let cost = |usage| price::cost(&price, usage, self.lease.memory_bytes);
            let (usage, cost) = (usage_between(&before, &end), cost_between(cost(&before), cost(&end)));
            before = end;
            PeriodUsage { period, usage, cost }
        })
    }

    /// Shares the cost of computing in a part out to functions, by prefix sums of their time. The last share is the
    /// rest: nothing is lost or gained by rounding.
    pub(crate) fn shares(&self, part: &PeriodUsage) -> Vec<FunctionShare> {
        let functions = self.functions.get(&part.period).into_iter().flat_map(BTreeMap::values);
        let (mut before_ns, mut shared_nano, mut rest) = (0, 0, part.usage);
        let mut shares: Vec<FunctionShare> = functions
            .map(|function| {
                let end_ns = part.usage.executing_ns.min(function.executing_ns.saturating_add(before_ns));
                let until_nano = share(part.cost.compute_nano, end_ns, part.usage.executing_ns);
                let usage = Usage {
                    executing_ns: end_ns - before_ns,
                    calls: function.calls.min(rest.calls),
                    failed_calls: function.failed_calls.min(rest.failed_calls),
                    ..Usage::default()
                };
                let cost = Cost { compute_nano: until_nano - shared_nano, ..Cost::default() };
                rest = usage_between(&usage, &rest);
                (before_ns, shared_nano) = (end_ns, until_nano);
                FunctionShare { function: Some(function.function), usage, cost }
            })
            .collect();
        let cost = Cost { compute_nano: part.cost.compute_nano - shared_nano, ..part.cost };
        shares.push(FunctionShare { function: None, usage: rest, cost });
        shares
    }
}

fn usage_between(before: &Usage, after: &Usage) -> Usage {
    Usage {
        allocated_ns: after.allocated_ns.saturating_sub(before.allocated_ns),
        executing_ns: after.executing_ns.saturating_sub(before.executing_ns),
        polling_ns: after.polling_ns.saturating_sub(before.polling_ns),
        calls: after.calls.saturating_sub(before.calls),
        failed_calls: after.failed_calls.saturating_sub(before.failed_calls),
        memory_byte_us: after.memory_byte_us.saturating_sub(before.memory_byte_us),
        // The peak of the lease up to here: a peak cannot be summed.
        memory_peak_bytes: after.memory_peak_bytes,
    }
}

fn cost_between(before: Cost, after: Cost) -> Cost {
    Cost {
        allocation_nano: after.allocation_nano.saturating_sub(before.allocation_nano),
        compute_nano: after.compute_nano.saturating_sub(before.compute_nano),
        polling_nano: after.polling_nano.saturating_sub(before.polling_nano),
    }
}

/// The part of a whole, rounded down.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(whole) * u128::from(part) / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(whole)
}
