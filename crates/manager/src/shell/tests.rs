//! The shell on a store that works, that fills up, and that is opened again.

use super::*;
use crate::store::SqliteStore;
use sublet_proto::price::DEFAULT_PRICE;
use sublet_proto::ticket::Verifying;
use sublet_proto::v1::{FunctionInfo, LeaseReport, Usage};

const NOW_MS: u64 = 1_700_000_000_000;

/// A shell whose store can be filled up.
struct House {
    shell: Shell,
    folder: tempfile::TempDir,
}

fn house() -> House {
    let folder = tempfile::tempdir().unwrap();
    let shell = open(&folder, false);
    let mut house = House { shell, folder };
    house.shell.register(NOW_MS, node()).unwrap();
    house.shell.publish(NOW_MS, &package()).unwrap();
    house
}

fn open(folder: &tempfile::TempDir, full: bool) -> Shell {
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
    let shell = Shell::open(Box::new(Fillable { store, full }), DEFAULT_PRICE, NOW_MS);
    shell.unwrap()
}

/// Refuses commits of leases while it is full.
struct Fillable {
    store: SqliteStore,
    full: bool,
}

impl Store for Fillable {
    fn get(&self, key: &str) -> Result<Option<crate::store::Versioned>, Error> {
        self.store.get(key)
    }
    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        self.store.compare_and_swap(key, version, value)
    }
    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        if self.full { Err(Error::new(Code::StoreFull, "full")) } else { self.store.commit(batch) }
    }
    fn scan_back(
        &self,
        prefix: &str,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Vec<crate::store::Record>, Error> {
        self.store.scan_back(prefix, before, limit)
    }
    fn read_log(&self, log: &str, after: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        self.store.read_log(log, after, limit)
    }
    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error> {
        self.store.put_blob_part(part, data)
    }
    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error> {
        self.store.blob_part(part)
    }
    fn remove_blob(&mut self, digest: &str) -> Result<(), Error> {
        self.store.remove_blob(digest)
    }
}

fn node() -> NodeDescription {
    NodeDescription {
        name: "n".into(),
        agent: "unix:/n".into(),
        architecture: "x86_64".into(),
        cores: 2,
        memory_bytes: 1 << 30,
    }
}

fn package() -> Checked {
    Checked {
        name: "p".into(),
        digest: package::digest(b"p"),
        architecture: "x86_64",
        library: "p.so".into(),
        functions: vec![FunctionInfo { name: "f".into(), symbol: "f".into() }],
        size_bytes: 1,
        package: Default::default(),
    }
}

fn asked(cores: u32) -> LeaseRequest {
    LeaseRequest { package: "p".into(), cores, ..LeaseRequest::default() }
}

fn report(lease: &str, state: LeaseState, executing_ns: u64) -> NodeReport {
    let usage = Some(Usage { executing_ns, ..Usage::default() });
    let lease = LeaseReport { lease: lease.into(), state: state.into(), usage, end_reason: "over".into() };
    NodeReport { node: "n".into(), leases: vec![lease] }
}

fn grant(shell: &mut Shell) -> Lease {
    shell.request_lease(NOW_MS, "uid:0".into(), asked(1)).unwrap().lease.unwrap()
}

#[test]
fn a_grant_carries_a_ticket_that_the_registered_key_verifies() {
    let mut house = house();
    let key = house.shell.register(NOW_MS, node()).unwrap().verifying_key;
    let grant = house.shell.request_lease(NOW_MS, "uid:0".into(), asked(2)).unwrap();
    let ticket = Verifying::from_bytes(&key).unwrap().verify(&grant.ticket, NOW_MS).unwrap();
    assert_eq!((ticket.lease, ticket.epoch), (grant.lease, 1));
    assert_eq!(grant.agent, "unix:/n");
}

#[test]
fn packages_are_found_by_name_function_and_digest() {
    let house = house();
    let digest = package().digest;
    for address in ["p", "p/f", &digest, &format!("{digest}/f")] {
        assert_eq!(house.shell.resolve(address).unwrap().digest, digest);
    }
    assert_eq!(house.shell.resolve("q").unwrap_err().code, Code::UnknownPackage);
    assert_eq!(house.shell.resolve(&package::digest(b"q")).unwrap_err().code, Code::UnknownPackage);
    let error = house.shell.resolve("p/g").unwrap_err();
    assert!(error.code == Code::UnknownFunction && error.message.contains("it has f"), "{error}");
    assert_eq!(house.shell.packages().unwrap().packages.len(), 1);
}

#[test]
fn a_package_for_no_node_is_refused_with_both_architectures() {
    let house = house();
    let error =
        house.shell.check_architecture(&Checked { architecture: "aarch64", ..package() }).unwrap_err();
    assert_eq!(error.code, Code::WrongArchitecture);
    assert!(error.message.contains("aarch64") && error.message.contains("x86_64"), "{error}");
}

#[test]
fn a_full_store_refuses_leases_and_loses_no_usage() {
    let House { mut shell, folder } = house();
    let lease = grant(&mut shell);
    drop(shell);
    let mut shell = open(&folder, true);
    shell.register(NOW_MS, node()).unwrap();
    let refused = shell.request_lease(NOW_MS, "uid:0".into(), asked(1)).unwrap_err();
    assert_eq!(refused.code, Code::StoreFull);
    shell.report(NOW_MS, report(&lease.id, LeaseState::Ended, 1_000_000_000)).unwrap();
    let bill = shell.bill(&lease.id).unwrap().total.unwrap();
    assert_eq!(bill.total_nano, DEFAULT_PRICE.compute_nano_per_core_s);
    assert_eq!(shell.bill("").unwrap().total.unwrap().total_nano, bill.total_nano);
    assert_eq!(shell.flush(NOW_MS).unwrap_err().code, Code::StoreFull);
}

#[test]
fn a_restart_keeps_leases_usage_and_the_key_but_not_the_epoch() {
    let mut house = house();
    let before = house.shell.register(NOW_MS, node()).unwrap();
    let lease = grant(&mut house.shell);
    house.shell.report(NOW_MS, report(&lease.id, LeaseState::Attached, 7)).unwrap();
    house.shell.flush(NOW_MS).unwrap();
    let House { shell, folder } = house;
    drop(shell);
    let mut shell = open(&folder, false);
    let after = shell.register(NOW_MS, node()).unwrap();
    assert_eq!((after.verifying_key, after.epoch), (before.verifying_key, before.epoch + 1));
    assert_eq!(shell.leases().leases[0].usage.unwrap().executing_ns, 7);
    assert_eq!(shell.nodes().nodes[0].cores_leased, 1);
    shell.report(NOW_MS, report(&lease.id, LeaseState::Ended, 9)).unwrap();
    assert!(shell.leases().leases.is_empty());
    assert_eq!(shell.leases_with_ended().unwrap().leases[0].usage.unwrap().executing_ns, 9);
}

#[test]
fn lists_stop_where_a_reply_is_full() {
    let lease = Lease { end_reason: "x".repeat(MAX_REPLY_BYTES / 4), ..Lease::default() };
    assert_eq!(within_reply(vec![lease; 9]).len(), 3);
}

#[test]
fn lease_identifiers_are_32_digits_and_sort_by_time() {
    let (early, late) = (new_lease_id(NOW_MS).unwrap(), new_lease_id(NOW_MS + 1).unwrap());
    assert!(early < late && early.len() == 32 && early.bytes().all(|b| b.is_ascii_hexdigit()));
}

#[test]
fn an_unknown_lease_has_no_bill() {
    assert_eq!(house().shell.bill("nothing").unwrap_err().code, Code::UnknownLease);
}
