//! What usage costs (R44; rFaaS IV-C): `C = Ca*ta + Cc*tc + Ch*th`, exact in integer nano-units.

use crate::v1::{BillLine, Lease, Price, Usage};

/// What a manager asks if its operator says nothing: in nano-units per GiB-second, core-second and core-second.
/// Polling costs more than computing, so that callers prefer to wait warm (rFaaS-preprint 4.4).
pub const DEFAULT_PRICE: Price = Price {
    allocation_nano_per_gib_s: 1_000,
    compute_nano_per_core_s: 20_000,
    polling_nano_per_core_s: 25_000,
};

const NANOS_PER_SECOND: u128 = 1_000_000_000;
const GIB: u128 = 1 << 30;

/// The bill of one lease. Each component is rounded down once, from exact products.
pub fn bill(lease: &Lease) -> BillLine {
    let usage = lease.usage.unwrap_or_default();
    let price = lease.price.unwrap_or_default();
    let allocation_nano = allocation(&price, &usage, lease.memory_bytes);
    let compute_nano = per_second(price.compute_nano_per_core_s, usage.executing_ns);
    let polling_nano = per_second(price.polling_nano_per_core_s, usage.polling_ns);
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
        total_nano: allocation_nano.saturating_add(compute_nano).saturating_add(polling_nano),
        granted_unix_ms: lease.granted_unix_ms,
        state: lease.state,
    }
}

/// The sum of several bills.
pub fn total(lines: &[BillLine]) -> BillLine {
    let mut sum = BillLine { usage: Some(Usage::default()), ..BillLine::default() };
    for line in lines {
        let (to, from) = (sum.usage.get_or_insert_default(), line.usage.unwrap_or_default());
        to.allocated_ns = to.allocated_ns.saturating_add(from.allocated_ns);
        to.executing_ns = to.executing_ns.saturating_add(from.executing_ns);
        to.polling_ns = to.polling_ns.saturating_add(from.polling_ns);
        to.calls = to.calls.saturating_add(from.calls);
        to.failed_calls = to.failed_calls.saturating_add(from.failed_calls);
        sum.allocation_nano = sum.allocation_nano.saturating_add(line.allocation_nano);
        sum.compute_nano = sum.compute_nano.saturating_add(line.compute_nano);
        sum.polling_nano = sum.polling_nano.saturating_add(line.polling_nano);
        sum.total_nano = sum.total_nano.saturating_add(line.total_nano);
    }
    sum
}

fn allocation(price: &Price, usage: &Usage, memory_bytes: u64) -> u64 {
    let byte_ns = u128::from(usage.allocated_ns) * u128::from(memory_bytes);
    clamp((byte_ns / GIB) * u128::from(price.allocation_nano_per_gib_s) / NANOS_PER_SECOND)
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
            }),
            ..Lease::default()
        };
        let line = bill(&lease);
        assert_eq!((line.allocation_nano, line.compute_nano, line.polling_nano), (100, 300, 500));
        assert_eq!(total(&[line.clone(), line]).total_nano, 1_800);
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
        assert!(bill(&lease).total_nano > 0);
    }
}
