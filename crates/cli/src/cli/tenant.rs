//! `sublet tenant`: sets tenants' quotas, and shows their use.

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;
use sublet_proto::pool::Pool;
use sublet_proto::v1::{Quota, Tenant};

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::{amount, show_bytes, show_nano, size, whole_u32};

const EXAMPLES: &str = "\
Examples:
  sublet tenant set alice --cores 16 --memory 64GiB --leases 4
  sublet tenant set alice --spend 250.00       total spending, in units of the currency
  sublet tenant set alice --spend none         no limit
  sublet tenant set alice --store 64GiB --runs default
  sublet tenant set alice --swap true          components of its graphs may outgrow their memory
  sublet tenant list

Limits that are not named stay as they are. Limits that were never set do not apply, except those on the store and the
ledger: tenants other than operators' have 4 GiB, 1,000 packages, 1,000 graphs, 10,000 runs and 500,000 leases a day,
at most a quarter of them at once. A tenant that has reached its limit of spending gets no leases, and loses those that
it has. A tenant is created by its first token or quota.";

/// Limit the resources of tenants, and show their use
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Set(Set),
    List(List),
}

/// A limit on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit<T> {
    None,
    Of(T),
}

/// Set a tenant's limits; `none` removes a limit
#[derive(Debug, Args)]
struct Set {
    /// Name of the tenant
    name: String,

    /// Maximum cores at a time, including shared ones
    #[arg(long, value_name = "N", value_parser = cores)]
    cores: Option<Limit<u32>>,

    /// Maximum memory at a time
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<Limit<u64>>,

    /// Maximum memory at a time in a pool of nodes, for each pool to be limited: `memory=32GiB`
    #[arg(long, value_name = "POOL=SIZE", value_parser = pool_memory)]
    pool_memory: Vec<(Pool, Limit<u64>)>,

    /// Maximum leases at a time
    #[arg(long, value_name = "N", value_parser = cores)]
    leases: Option<Limit<u32>>,

    /// Maximum total spending, in units of the currency with up to 9 decimals
    #[arg(long, value_name = "AMOUNT", value_parser = spend)]
    spend: Option<Limit<u64>>,

    /// Maximum size of packages, graphs and intermediate results of runs in the store, or `default`
    #[arg(long, value_name = "SIZE", value_parser = stored)]
    store: Option<LimitWithDefault<u64>>,

    /// Maximum number of versions of packages, or `default`
    #[arg(long, value_name = "N", value_parser = count)]
    packages: Option<LimitWithDefault<u32>>,

    /// Maximum number of versions of graphs, or `default`
    #[arg(long, value_name = "N", value_parser = count)]
    graphs: Option<LimitWithDefault<u32>>,

    /// Maximum number of recorded runs, of which new ones replace the oldest, or `default`
    #[arg(long, value_name = "N", value_parser = count)]
    runs: Option<LimitWithDefault<u32>>,

    /// Whether components of its graphs swap memory, unless a graph says otherwise
    #[arg(long, value_name = "true|false")]
    swap: Option<bool>,

    /// Maximum number of leases granted in a day, or `default`
    #[arg(long, value_name = "N", value_parser = count)]
    leases_per_day: Option<LimitWithDefault<u32>>,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A limit that has a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitWithDefault<T> {
    Default,
    Of(T),
}

/// Show every tenant, with its limits and their use
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A tenant. Absent fields mean no limit.
#[derive(Debug, Serialize)]
struct TenantView {
    name: String,
    cores: u32,
    cores_limit: Option<u32>,
    memory_bytes: u64,
    memory_limit_bytes: Option<u64>,
    pools: Vec<PoolView>,
    leases: u32,
    leases_limit: Option<u32>,
    spent_nano: u64,
    spend_limit_nano: Option<u64>,
    store_bytes: u64,
    packages: u32,
    graphs: u32,
    runs: u32,
    store_limit_bytes: Option<u64>,
    packages_limit: Option<u32>,
    graphs_limit: Option<u32>,
    runs_limit: Option<u32>,
    leases_per_day_limit: Option<u32>,
    /// Whether components of its graphs swap, unless a graph says otherwise.
    swaps: bool,
}

/// Memory of a tenant's leases in a pool.
#[derive(Debug, Serialize)]
struct PoolView {
    pool: Pool,
    memory_bytes: u64,
    memory_limit_bytes: Option<u64>,
}

/// Output of `list`.
#[derive(Debug, Serialize)]
struct TenantsOutput {
    tenants: Vec<TenantView>,
}

impl From<Tenant> for TenantView {
    fn from(tenant: Tenant) -> TenantView {
        let (quota, used) = (tenant.quota.unwrap_or_default(), tenant.r#use.unwrap_or_default());
        let stored = tenant.stored.unwrap_or_default();
        TenantView {
            name: tenant.name,
            cores: used.cores,
            cores_limit: quota.cores,
            memory_bytes: used.memory_bytes,
            memory_limit_bytes: quota.memory_bytes,
            pools: Pool::ALL
                .map(|pool| PoolView {
                    pool,
                    memory_bytes: used.pool_bytes(pool),
                    memory_limit_bytes: quota.pool_bytes(pool),
                })
                .into(),
            leases: used.leases,
            leases_limit: quota.leases,
            spent_nano: used.spent_nano,
            spend_limit_nano: quota.spend_nano,
            store_bytes: stored.bytes,
            packages: stored.packages,
            graphs: stored.graphs,
            runs: stored.runs,
            store_limit_bytes: quota.store_bytes,
            packages_limit: quota.packages,
            graphs_limit: quota.graphs,
            runs_limit: quota.runs,
            leases_per_day_limit: quota.leases_per_day,
            swaps: quota.swap.unwrap_or_default(),
        }
    }
}

impl<T: Copy> Limit<T> {
    /// Returns the new limit from the option, if given, and the old limit.
    fn over(said: Option<Limit<T>>, held: Option<T>) -> Option<T> {
        match said {
            None => held,
            Some(Limit::None) => None,
            Some(Limit::Of(limit)) => Some(limit),
        }
    }
}

fn limit<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    if text == "none" { Ok(Limit::None) } else { parse(text).map(Limit::Of).map_err(|why| why + ", or none") }
}

impl<T: Copy> LimitWithDefault<T> {
    /// Returns the new limit from the option, if given, and the old limit.
    fn over(said: Option<LimitWithDefault<T>>, held: Option<T>) -> Option<T> {
        match said {
            None => held,
            Some(LimitWithDefault::Default) => None,
            Some(LimitWithDefault::Of(limit)) => Some(limit),
        }
    }
}

/// Parses a limit that has a default. The type's maximum stands for no limit.
fn with_default<T>(
    text: &str,
    none: T,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<LimitWithDefault<T>, String> {
    match text {
        "default" => Ok(LimitWithDefault::Default),
        "none" => Ok(LimitWithDefault::Of(none)),
        text => parse(text).map(LimitWithDefault::Of).map_err(|why| why + ", or none, or default"),
    }
}

fn stored(text: &str) -> Result<LimitWithDefault<u64>, String> {
    with_default(text, u64::MAX, size)
}

fn count(text: &str) -> Result<LimitWithDefault<u32>, String> {
    with_default(text, u32::MAX, |text| whole_u32(text, 0..=u32::MAX))
}

fn cores(text: &str) -> Result<Limit<u32>, String> {
    limit(text, |text| whole_u32(text, 0..=u32::MAX))
}

fn memory(text: &str) -> Result<Limit<u64>, String> {
    limit(text, size)
}

/// Parses the limit of a pool's memory.
fn pool_memory(text: &str) -> Result<(Pool, Limit<u64>), String> {
    let (pool, limit) = text.split_once('=').ok_or("a pool and a size, as memory=32GiB, were expected")?;
    Ok((pool.parse::<Pool>().map_err(|error| error.message)?, memory(limit)?))
}

fn spend(text: &str) -> Result<Limit<u64>, String> {
    limit(text, amount)
}

/// Sets limits or lists tenants.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.action {
        Action::Set(set) => run_set(set, output),
        Action::List(list) => {
            let tenants = list.connection.open()?.list_tenants()?;
            let tenants = TenantsOutput { tenants: tenants.into_iter().map(TenantView::from).collect() };
            output.show(&tenants, |shown| text(&shown.tenants))
        }
    }
}

fn run_set(set: &Set, output: &CommandOutput) -> Result<(), Error> {
    let manager = set.connection.open()?;
    let known = manager.list_tenants()?.into_iter().find(|tenant| tenant.name == set.name);
    let held = known.and_then(|tenant| tenant.quota).unwrap_or_default();
    let mut quota = Quota {
        cores: Limit::over(set.cores, held.cores),
        memory_bytes: Limit::over(set.memory, held.memory_bytes),
        leases: Limit::over(set.leases, held.leases),
        spend_nano: Limit::over(set.spend, held.spend_nano),
        store_bytes: LimitWithDefault::over(set.store, held.store_bytes),
        packages: LimitWithDefault::over(set.packages, held.packages),
        graphs: LimitWithDefault::over(set.graphs, held.graphs),
        runs: LimitWithDefault::over(set.runs, held.runs),
        leases_per_day: LimitWithDefault::over(set.leases_per_day, held.leases_per_day),
        swap: set.swap.or(held.swap),
        ..held
    };
    for &(pool, limit) in &set.pool_memory {
        *quota.pool_bytes_mut(pool) = Limit::over(Some(limit), None);
    }
    let tenant =
        manager.set_tenant(Tenant { name: set.name.clone(), quota: Some(quota), ..Tenant::default() })?;
    output.show(&TenantView::from(tenant), |tenant| text(std::slice::from_ref(tenant)))
}

fn text(tenants: &[TenantView]) -> String {
    let rows: Vec<_> = tenants.iter().map(row).collect();
    table(&["TENANT", "CORES", "MEMORY", "IN POOLS", "LEASES", "SPENT", "STORED"], &rows)
}

/// Describes the use of a pool whose memory is limited.
fn limited(PoolView { pool, memory_bytes, memory_limit_bytes }: &PoolView) -> Option<String> {
    let limit = show_bytes((*memory_limit_bytes)?);
    Some(format!("{pool} {} of {limit}", show_bytes(*memory_bytes)))
}

fn row(tenant: &TenantView) -> Vec<String> {
    let of = |used: String, limit: Option<String>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used,
    };
    vec![
        tenant.name.clone(),
        of(tenant.cores.to_string(), tenant.cores_limit.map(|limit| limit.to_string())),
        of(show_bytes(tenant.memory_bytes), tenant.memory_limit_bytes.map(show_bytes)),
        tenant.pools.iter().filter_map(limited).collect::<Vec<_>>().join(", "),
        of(tenant.leases.to_string(), tenant.leases_limit.map(|limit| limit.to_string())),
        of(show_nano(tenant.spent_nano), tenant.spend_limit_nano.map(show_nano)),
        of(
            show_bytes(tenant.store_bytes),
            tenant.store_limit_bytes.filter(|limit| *limit != u64::MAX).map(show_bytes),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_option_keeps_limit_and_none_removes_it() {
        assert_eq!(Limit::over(None, Some(3)), Some(3));
        assert_eq!(Limit::over(Some(cores("none").unwrap()), Some(3)), None);
        assert_eq!(Limit::over(Some(cores("5").unwrap()), Some(3)), Some(5));
        assert_eq!(spend("1.5"), Ok(Limit::Of(1_500_000_000)));
        assert_eq!(pool_memory("memory=1KiB"), Ok((Pool::Memory, Limit::Of(1024))));
        assert_eq!(pool_memory("compute=none"), Ok((Pool::Compute, Limit::None)));
        for (wrong, said) in [("1KiB", "memory=32GiB"), ("disk=1KiB", "no pool"), ("memory=x", "or none")] {
            assert!(pool_memory(wrong).is_err_and(|why| why.contains(said)), "{wrong}");
        }
        assert!(cores("x").is_err_and(|why| why.ends_with("or none")));
        assert_eq!(LimitWithDefault::over(Some(stored("default").unwrap()), Some(3)), None);
        assert_eq!(LimitWithDefault::over(Some(stored("none").unwrap()), Some(3)), Some(u64::MAX));
        assert_eq!(LimitWithDefault::over(Some(count("5").unwrap()), None), Some(5));
        assert!(count("x").is_err_and(|why| why.ends_with("or default")));
    }
}
