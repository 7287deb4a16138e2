//! Tenants that attack each other on one machine: a hostile program for each threat of docs/security.md that no other
//! test tries, against real managers and agents. The document's table names the test of every threat.

#![allow(clippy::unwrap_used)]

mod machine;
mod memory;
mod network;
mod sandboxes;

use sublet::{Allocation, Error, Invoker};
use sublet_tests::cluster::{Cluster, connect};

/// The tenant that is attacked.
const ALICE: &str = "alice";
/// The tenant that attacks.
const MALLORY: &str = "mallory";

/// A client of a tenant, with a lease.
#[track_caller]
fn lease(cluster: &Cluster, tenant: &str, allocation: &Allocation) -> Invoker {
    let mut client = connect(&cluster.user(tenant));
    client.allocate(allocation).unwrap_or_else(|error| panic!("{tenant}: {error}"));
    client
}

/// The answer of a function, in words.
fn words(client: &Invoker, function: &str, input: &[u8]) -> Result<[u32; 2], Error> {
    let mut output = [0u32; 2];
    client.submit(function, input, &mut output)?.wait()?;
    Ok(output)
}

/// Checks that a function has tried at least this often, and that no try succeeded.
#[track_caller]
fn assert_blocked(client: &Invoker, function: &str, input: &[u8], least_tries: u32) {
    let [tried, done] = words(client, function, input).unwrap_or_else(|error| panic!("{function}: {error}"));
    assert!(tried >= least_tries, "{function} has tried {tried} times");
    assert_eq!(done, 0, "{done} of {tried} tries of {function} succeeded");
}
