//! The conformance of all stores, and the behaviour of NATS when its server fails.

#![allow(clippy::unwrap_used)]

mod conformance;
mod copies;
mod damage;
mod faults;
#[path = "../../../../tests/src/nats.rs"]
mod nats;
mod versions;

use nats::NatsServer;
use sublet_manager::peers::{ManagerReport, Peers};
use sublet_manager::store::{Batch, NatsOptions, NatsStore, Store};
use sublet_proto::Error;

fn options(server: &NatsServer) -> NatsOptions {
    NatsOptions { url: server.url(), name: "test".to_owned(), replicas: 1, ca_file: None }
}

fn open(server: &NatsServer) -> NatsStore {
    NatsStore::open(&options(server)).unwrap()
}

fn put(store: &mut dyn Store, key: &str, value: &[u8]) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.put(key.into(), value.into());
    store.commit(&batch)
}

fn value(store: &dyn Store, key: &str) -> Option<Vec<u8>> {
    store.get(key).unwrap().map(|found| found.value)
}

#[test]
fn managers_of_one_server_learn_of_each_other() {
    let server = NatsServer::start();
    let mut stores = [open(&server), open(&server)];
    let [one, two] = &mut stores;
    let mut peers = [Peers::join(one, 1).unwrap(), Peers::join(two, 2).unwrap()];
    for second in 0..2 {
        for (store, peers) in stores.iter_mut().zip(&mut peers) {
            peers.exchange(store, 1000 * second, ManagerReport::default()).unwrap();
        }
    }
    for peers in &peers {
        let epochs: Vec<u64> = peers.table().managers().map(|manager| manager.epoch).collect();
        assert_eq!(epochs, [1, 2]);
    }
    let [leaving, mut staying] = peers;
    let [one, two] = &mut stores;
    leaving.leave(one).unwrap();
    staying.exchange(two, 2000, ManagerReport::default()).unwrap();
    assert_eq!(staying.table().managers().count(), 1);
}
