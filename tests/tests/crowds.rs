//! More requests at once than can be granted: each is answered, waiting is bounded and fair among tenants, requests
//! beyond the bounds get an error that says to try later, and the manager serves afterwards with as much memory as
//! before.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet::{Access, Allocation, Code, Error};
use sublet_proto::v1::LeaseRequest;
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::functions::package;
use sublet_tests::hand::ByHand;
use sublet_tests::process::{PATIENCE, resident_kib};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::transport::Channel;

const REQUESTS: usize = 10_000;
const TENANTS: usize = 4;
/// Connections of each tenant.
const CHANNELS: usize = 8;
/// How long each may wait.
const WAIT_MS: u64 = 4_000;
/// Most growth of the manager's memory: a kibibyte for each request that may wait, and what its allocator keeps.
const MAY_GROW_KIB: u64 = 128 << 10;

/// Asks once; a lease that is granted is attached to and given back.
async fn ask(access: Arc<Access>, channel: Channel, package: String) -> Result<(), Error> {
    let request = LeaseRequest { package, cores: 1, wait_ms: WAIT_MS, ..LeaseRequest::default() };
    let answer = ManagerClient::new(channel).request_lease(access.authorize(Request::new(request))).await;
    let grants = answer.map_err(|status| Error::from_status(&status))?.into_inner().grants;
    let used = tokio::task::spawn_blocking(move || {
        let (agent, attached) = ByHand::show(&grants[0], &grants[0].ticket);
        attached.map(|_| agent.release())
    });
    used.await.unwrap()
}

/// How many requests of each tenant ended how.
type Counts = BTreeMap<(usize, Option<&'static str>), usize>;

/// Gives beside the counts why requests were to be made later.
async fn ask_all(users: Vec<Access>, package: &str) -> (Counts, BTreeSet<String>) {
    let mut asking = JoinSet::new();
    let mut asked = vec![0; users.len()];
    for (tenant, access) in users.into_iter().enumerate() {
        let channels: Vec<_> = (0..CHANNELS).map(|_| access.channel(0).unwrap()).collect();
        let access = Arc::new(access);
        // The first tenant asks for most, and is not to keep the others out.
        let requests = if tenant == 0 { REQUESTS - (TENANTS - 1) * REQUESTS / 10 } else { REQUESTS / 10 };
        for number in 0..requests {
            let asking_once = ask(access.clone(), channels[number % CHANNELS].clone(), package.to_owned());
            asking.spawn(async move { (tenant, asking_once.await) });
        }
        asked[tenant] = requests;
    }
    let (mut counts, mut too_many) = (Counts::new(), BTreeSet::new());
    let all = async {
        while let Some(answered) = asking.join_next().await {
            let (tenant, answer) = answered.unwrap();
            too_many.extend(
                answer.as_ref().err().filter(|error| error.code == Code::TryLater).map(Error::to_string),
            );
            *counts.entry((tenant, answer.err().map(|error| error.code.name()))).or_default() += 1;
        }
    };
    tokio::time::timeout(PATIENCE * 2, all).await.expect("every request is answered");
    for (tenant, asked) in asked.into_iter().enumerate() {
        let answered: usize =
            counts.iter().filter(|((of, _), _)| *of == tenant).map(|(_, count)| count).sum();
        assert_eq!(answered, asked, "tenant {tenant}");
    }
    (counts, too_many)
}

#[test]
fn ten_thousand_requests_are_answered_within_bounds_and_fairly() {
    let mut cluster = Cluster::start(ClusterPlan {
        arguments: ["--queue-total", "2000", "--queue-per-tenant", "600"].map(str::to_owned).to_vec(),
        ..ClusterPlan::default()
    });
    cluster.add_agent(LentCores::cores(1));
    cluster.assert_serves();
    cluster.publish(package("calls.c"));
    let users: Vec<_> = (0..TENANTS).map(|tenant| cluster.user(&format!("tenant-{tenant}"))).collect();
    let mut client = connect(&users[0]);
    client.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE)).unwrap();
    let package = client.package().unwrap().digest.clone();
    client.deallocate().unwrap();
    let manager = cluster.managers[0].pid();
    let before_kib = resident_kib(manager);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (counts, too_many) = runtime.block_on(ask_all(users, &package));
    println!("{counts:?}");
    for (_, code) in counts.keys() {
        let known = [None, Some(Code::TryLater.name()), Some(Code::NoCapacity.name())];
        assert!(known.contains(code), "{counts:?}");
    }
    // Three tenants leave some capacity to the fourth, and all four together want more than there is.
    for bound in ["600 requests of this tenant", "2000 requests are waiting"] {
        assert!(too_many.iter().any(|message| message.contains(bound)), "{bound}: {too_many:?}, {counts:?}");
    }
    // There is one core for all, and each tenant has had it: the small ones as the large one.
    let served = |tenant: usize| counts.get(&(tenant, None)).copied().unwrap_or(0);
    for tenant in 0..TENANTS {
        assert!(served(tenant) > 0, "tenant {tenant} got nothing: {counts:?}");
    }
    let after_kib = resident_kib(manager);
    assert!(after_kib < before_kib + MAY_GROW_KIB, "{before_kib} KiB before, {after_kib} KiB after");
    cluster.assert_serves();
    cluster.wait_until_idle();
}
