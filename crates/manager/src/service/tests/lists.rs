//! Lists that do not fit into one reply: their pages have each item once, in the order of the list.

use super::*;
use crate::lease_records::LeaseRecord;
use crate::store::{Batch, keys};
use prost::Message;

/// Bytes of text that make each item so large that about six fit into a reply.
const LARGE: usize = 500_000;
const ITEMS: usize = 20;

fn large() -> String {
    "x".repeat(LARGE)
}

/// Returns all items of a list, whose pages this returns, and checks that it has several pages.
async fn all<T>(mut page: impl AsyncFnMut(String) -> (Vec<T>, String)) -> Vec<T> {
    let (mut items, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (more, next) = page(after).await;
        items.extend(more);
        pages += 1;
        if next.is_empty() {
            assert!(pages > 2, "{} items came in {pages} pages", items.len());
            return items;
        }
        after = next;
    }
}

async fn put(fixture: &ServiceFixture, records: Vec<(String, Vec<u8>)>) {
    let mut batch = Batch::default();
    records.into_iter().for_each(|(key, record)| batch.put(key, record));
    fixture.service.0.database.with(move |store| store.commit(&batch)).await.unwrap();
}

fn user(tenant: &str) -> CallerIdentity {
    let token = Token { tenant: tenant.into(), role: Role::User.into(), ..Token::default() };
    CallerIdentity::of("1".repeat(16).parse().unwrap(), &token_record(token))
}

fn token_record(token: Token) -> crate::tokens::TokenRecord {
    let mut record = crate::tokens::TokenRecord::default();
    record.token = token;
    record
}

#[tokio::test]
async fn leases_of_the_ledger_and_active_ones_are_listed_once_the_newest_first() {
    let fixture = super::fixture().await;
    let active = fixture.request(&fixture.token("t").await, 1).await.unwrap();
    fixture.confirm(&active).await.unwrap();
    let active = active.grants[0].lease.as_ref().unwrap().id.clone();
    let ids: Vec<String> = (0..ITEMS).map(|number| format!("{number:032x}")).collect();
    let records = ids.iter().map(|id| {
        let mut record = LeaseRecord::default();
        record.lease = Lease {
            id: id.clone(),
            tenant: "t".into(),
            state: LeaseState::Ended.into(),
            end_reason: large(),
            ..Lease::default()
        };
        (format!("{}{id}", keys::LEASE), record.encode_to_vec())
    });
    put(&fixture, records.collect()).await;
    let listed = all(async |after| {
        let asked = ListLeasesRequest { include_ended: true, after };
        let page = answered(fixture.service.list_leases(by(user("t"), asked)).await).unwrap();
        (page.leases, page.next)
    });
    let listed: Vec<String> = listed.await.into_iter().map(|lease| lease.id).collect();
    assert!(active > ids[ITEMS - 1]);
    let expected: Vec<String> = [active].into_iter().chain(ids.into_iter().rev()).collect();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn packages_of_each_owner_are_listed_once() {
    let fixture = super::fixture().await;
    let packages = &fixture.service.0.packages;
    for (owner, number) in ["alice", "bob", PUBLIC].iter().flat_map(|owner| (0..7).map(move |n| (owner, n))) {
        let content = format!("{owner} {number}").into_bytes();
        let checked = CheckedPackage {
            name: format!("p{number}"),
            digest: package::digest(&content),
            functions: vec![large()],
            ..package()
        };
        packages.deploy(owner, Arc::new(content), checked).await.unwrap();
    }
    let grant = PackageGrant { tenant: "alice".into(), right: PackageRight::Read.into() };
    let granted = GrantPackageRequest { name: "p3".into(), grant: Some(grant) };
    answered(fixture.service.grant_package(by(user("bob"), granted)).await).unwrap();
    let list = async |caller: CallerIdentity| {
        let listed = all(async |after| {
            let asked = ListPackagesRequest { after };
            let page = answered(fixture.service.list_packages(by(caller.clone(), asked)).await).unwrap();
            (page.packages, page.next)
        });
        listed.await.into_iter().map(|info| format!("{}/{}", info.owner, info.name)).collect::<Vec<_>>()
    };
    let of = |owner: &str| (0..7).map(move |number| format!("{owner}/p{number}")).collect::<Vec<_>>();
    let small = vec![format!("{PUBLIC}/p")];
    let shown = [of("alice"), small.clone(), of(PUBLIC), vec!["bob/p3".into()]].concat();
    assert_eq!(list(user("alice")).await, shown);
    assert_eq!(list(CallerIdentity::local(0)).await, [of("alice"), of("bob"), small, of(PUBLIC)].concat());
}

#[tokio::test]
async fn runs_are_listed_up_to_a_limit_the_newest_first() {
    let fixture = super::fixture().await;
    let ids: Vec<String> = (0..ITEMS).map(|number| format!("{number:032x}")).collect();
    let records = ids.iter().map(|id| {
        let info = RunInfo { run: id.clone(), ended_unix_ms: 1, message: large(), ..RunInfo::default() };
        (format!("{}t/{id}", keys::RUN), info.encode_to_vec())
    });
    put(&fixture, records.collect()).await;
    let page = async |limit: u32, after: String| {
        let asked = ListRunsRequest { limit, after, ..ListRunsRequest::default() };
        let page = answered(fixture.service.list_runs(by(user("t"), asked)).await).unwrap();
        (page.runs.into_iter().map(|info| info.run).collect::<Vec<_>>(), page.next)
    };
    let newest: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(all(async |after| page(0, after).await).await, newest);
    assert_eq!(all(async |after| page(2, after).await).await, newest);
    assert_eq!(page(2, String::new()).await, (newest[..2].to_vec(), newest[1].clone()));
}

#[tokio::test]
async fn graphs_tokens_and_tenants_are_listed_once() {
    let fixture = super::fixture().await;
    let names: Vec<String> = (0..ITEMS).map(|number| format!("a{number:02}")).collect();
    let mut records = Vec::new();
    for (number, name) in (0..).zip(&names) {
        let graph = GraphInfo { name: name.clone(), digest: large(), ..GraphInfo::default() };
        records.push((format!("{}t/{name}", keys::GRAPH), graph.encode_to_vec()));
        let id = format!("{number:016x}");
        // The newest token has the least id.
        let created_unix_ms = 100 - number;
        let token = Token { id: id.clone(), created_unix_ms, note: large(), ..Token::default() };
        records.push((format!("{}{id}", keys::TOKEN), token_record(token).encode_to_vec()));
        let tenant = Tenant { name: name.clone() + &large(), ..Tenant::default() };
        records.push((format!("{}{name}", keys::TENANT), tenant.encode_to_vec()));
    }
    put(&fixture, records).await;
    let service = &fixture.service;
    let graphs = all(async |after| {
        let page = answered(service.list_graphs(by(user("t"), ListGraphsRequest { after })).await).unwrap();
        (page.graphs, page.next)
    });
    assert_eq!(graphs.await.into_iter().map(|graph| graph.name).collect::<Vec<_>>(), names);
    let tokens = all(async |after| {
        let asked = ListTokensRequest { include_revoked: false, after };
        let page = answered(service.list_tokens(by(CallerIdentity::local(0), asked)).await).unwrap();
        (page.tokens, page.next)
    });
    let created: Vec<u64> = tokens.await.into_iter().map(|token| token.created_unix_ms).collect();
    assert_eq!(created, (81..=100).collect::<Vec<_>>(), "the oldest first");
    let tenants = all(async |after| {
        let asked = by(CallerIdentity::local(0), ListTenantsRequest { after });
        let page = answered(service.list_tenants(asked).await).unwrap();
        (page.tenants, page.next)
    });
    let tenants = tenants.await.into_iter().map(|tenant| tenant.name.trim_end_matches('x').to_owned());
    assert_eq!(tenants.filter(|name| names.contains(name)).collect::<Vec<_>>(), names);
}
