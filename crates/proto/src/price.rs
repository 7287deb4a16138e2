//! Computes the cost of usage (R44; rFaaS IV-C): `C = Ca*ta + Cc*tc + Ch*th`, exact in integer nano-units.

use std::collections::BTreeMap;

use crate::v1::{BillLine, Lease, Price, Usage};

/// Prices of a manager without an operator's prices: in nano-units per GiB-second, core-second and core-second.
/// Polling costs more than computing, so that callers prefer to wait warm (rFaaS-preprint 4.4).
pub const DEFAULT_PRICE: Price = Price {
    allocation_nano_per_gib_s: 1_000,
    compute_nano_per_core_s: 20_000,
    polling_nano_per_core_s: 25_000,
};

const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// One GiB-second, in bytes times nanoseconds.
const GIB_SECOND: u128 = (1 << 30) * NANOS_PER_SECOND;

const _: () = assert!(GIB_SECOND < 1 << 60, "the price of a part of it would exceed 124 bits");

/// Prices of leases, by the kind of processing unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Price of all other kinds.
    pub default: Price,
    /// Prices of some kinds.
    pub by_pu: BTreeMap<String, Price>,
}

impl Default for Prices {
    fn default() -> Prices {
        Prices { default: DEFAULT_PRICE, by_pu: BTreeMap::new() }
    }
}

impl Prices {
    /// Returns the price of a kind of processing unit.
    pub fn of(&self, pu: &str) -> Price {
        self.by_pu.get(pu).copied().unwrap_or(self.default)
    }
}

/// The three terms of a cost, in nano-units, each rounded down once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// `Ca*ta`
    pub allocation_nano: u64,
    /// `Cc*tc`
    pub compute_nano: u64,
    /// `Ch*th`
    pub polling_nano: u64,
}

impl Cost {
    /// `C`
    pub fn total_nano(&self) -> u64 {
        self.allocation_nano.saturating_add(self.compute_nano).saturating_add(self.polling_nano)
    }
}

/// Computes the cost of this usage of a lease with `memory_bytes` bytes of memory.
pub fn cost(price: &Price, usage: &Usage, memory_bytes: u64) -> Cost {
    Cost {
        allocation_nano: allocation(price, usage, memory_bytes),
        compute_nano: per_second(price.compute_nano_per_core_s, usage.executing_ns),
        polling_nano: per_second(price.polling_nano_per_core_s, usage.polling_ns),
    }
}

/// Makes the bill of one lease. Each component is rounded down once, from exact products.
pub fn bill(lease: &Lease) -> BillLine {
    let usage = lease.usage.unwrap_or_default();
    let price = lease.price.unwrap_or_default();
    let cost = cost(&price, &usage, lease.memory_bytes);
    let Cost { allocation_nano, compute_nano, polling_nano } = cost;
    BillLine {
        lease: lease.id.clone(),
        tenant: lease.tenant.clone(),
        package_name: lease.package_name.clone(),
        cores: lease.cores,
        memory_bytes: lease.memory_bytes,
        usage: Some(usage),
        allocation_nano,
        compute_nano,
        polling_nano,
        total_nano: cost.total_nano(),
        granted_unix_ms: lease.granted_unix_ms,
        state: lease.state,
        pu: lease.pu.clone(),
        ..BillLine::default()
    }
}

/// The sum of several bills.
pub fn total(lines: &[BillLine]) -> BillLine {
    let mut sum = BillLine { usage: Some(Usage::default()), ..BillLine::default() };
    lines.iter().for_each(|line| add(&mut sum, line));
    sum
}

/// Adds the usage and cost of one line to another.
pub fn add(sum: &mut BillLine, line: &BillLine) {
    add_usage(sum.usage.get_or_insert_default(), &line.usage.unwrap_or_default());
    sum.allocation_nano = sum.allocation_nano.saturating_add(line.allocation_nano);
    sum.compute_nano = sum.compute_nano.saturating_add(line.compute_nano);
    sum.polling_nano = sum.polling_nano.saturating_add(line.polling_nano);
    sum.total_nano = sum.total_nano.saturating_add(line.total_nano);
}

/// Adds the usage of one lease to another usage. Sums saturate, since the numbers come from agents; the peak is the
/// larger one.
pub fn add_usage(sum: &mut Usage, usage: &Usage) {
    sum.allocated_ns = sum.allocated_ns.saturating_add(usage.allocated_ns);
    sum.executing_ns = sum.executing_ns.saturating_add(usage.executing_ns);
    sum.polling_ns = sum.polling_ns.saturating_add(usage.polling_ns);
    sum.calls = sum.calls.saturating_add(usage.calls);
    sum.failed_calls = sum.failed_calls.saturating_add(usage.failed_calls);
    sum.memory_byte_us = sum.memory_byte_us.saturating_add(usage.memory_byte_us);
    sum.memory_peak_bytes = sum.memory_peak_bytes.max(usage.memory_peak_bytes);
}

fn allocation(price: &Price, usage: &Usage, memory_bytes: u64) -> u64 {
    let byte_ns = u128::from(usage.allocated_ns) * u128::from(memory_bytes);
    // 192 bits would be needed for the product with the price, so whole GiB-seconds go apart from the rest of them:
    // the price of a rest, which is less than 2^60, has at most 124 bits. Rounded down once, saturating at 2^64-1.
    let (gib_s, rest) = (byte_ns / GIB_SECOND, byte_ns % GIB_SECOND);
    let price = u128::from(price.allocation_nano_per_gib_s);
    clamp(gib_s.saturating_mul(price).saturating_add(rest * price / GIB_SECOND))
}

fn per_second(nano_per_second: u64, ns: u64) -> u64 {
    clamp(u128::from(nano_per_second) * u128::from(ns) / NANOS_PER_SECOND)
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_is_the_papers_formula() {
        let lease = Lease {
            memory_bytes: 2 << 30,
            price: Some(Price {
                allocation_nano_per_gib_s: 10,
                compute_nano_per_core_s: 100,
                polling_nano_per_core_s: 1_000,
            }),
            usage: Some(Usage {
                allocated_ns: 5_000_000_000,
                executing_ns: 3_000_000_000,
                polling_ns: 500_000_000,
                calls: 7,
                failed_calls: 0,
                memory_byte_us: 10,
                memory_peak_bytes: 4,
            }),
            ..Lease::default()
        };
        let line = bill(&lease);
        assert_eq!((line.allocation_nano, line.compute_nano, line.polling_nano), (100, 300, 500));
        let total = total(&[line.clone(), line]);
        let usage = total.usage.unwrap();
        assert_eq!((total.total_nano, usage.memory_byte_us, usage.memory_peak_bytes), (1_800, 20, 4));
    }

    #[test]
    fn the_largest_usage_does_not_overflow() {
        let usage = Usage {
            allocated_ns: u64::MAX,
            executing_ns: u64::MAX,
            polling_ns: u64::MAX,
            ..Usage::default()
        };
        let lease = Lease {
            memory_bytes: u64::MAX,
            price: Some(DEFAULT_PRICE),
            usage: Some(usage),
            ..Lease::default()
        };
        assert_eq!(bill(&lease).total_nano, u64::MAX);
    }

    #[test]
    fn sums_of_usage_saturate() {
        let most = Usage {
            allocated_ns: u64::MAX,
            executing_ns: u64::MAX,
            polling_ns: u64::MAX,
            calls: u64::MAX,
            failed_calls: u64::MAX,
            memory_byte_us: u64::MAX,
            memory_peak_bytes: u64::MAX,
        };
        let mut sum = Usage { allocated_ns: 1, calls: 1, memory_peak_bytes: 1, ..Usage::default() };
        add_usage(&mut sum, &most);
        add_usage(&mut sum, &most);
        assert_eq!(sum, most);
    }

    #[test]
    fn allocation_is_rounded_once_however_small_its_parts_are() {
        let of = |allocation_nano_per_gib_s, allocated_ns, memory_bytes| {
            let price = Price { allocation_nano_per_gib_s, ..Price::default() };
            let usage = Usage { allocated_ns, ..Usage::default() };
            cost(&price, &usage, memory_bytes).allocation_nano
        };
        // A byte for a second is less than a GiB times a nanosecond, and still has a cost.
        assert_eq!(of(1 << 40, 1_000_000_000, 1), 1 << 10);
        assert_eq!(of(3, 1_500_000_000, 1 << 30), 4);
        assert_eq!(of(u64::MAX, 1_000_000_000, 1 << 30), u64::MAX);
        assert_eq!(of(1, u64::MAX, 1 << 30), u64::MAX / 1_000_000_000);
    }
}
