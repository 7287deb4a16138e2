//! Names of packages in a running manager: each tenant's are its own, and only granted and public ones are shared.

#![allow(clippy::unwrap_used)]

use sublet_proto::v1::*;
use sublet_proto::{Code, Error};

use crate::common::*;

/// A manager with two tenants, alice and bob.
struct Tenants {
    fixture: ManagerFixture,
    alice: Client,
    bob: Client,
}

async fn tenants() -> Tenants {
    let mut fixture = fixture_on_tcp().await;
    let remove = RemovePackageRequest { name: "public/x".into(), ..Default::default() };
    done(fixture.client.remove_package(remove).await).unwrap();
    let alice = fixture.user("alice").await.1;
    let bob = fixture.user("bob").await.1;
    Tenants { fixture, alice, bob }
}

async fn resolve(client: &mut Client, name: &str) -> Result<PackageInfo, Error> {
    done(client.resolve(ResolveRequest { name: name.into() }).await)
}

async fn lease_of(client: &mut Client, package: &str) -> Result<Lease, Error> {
    let asked = LeaseRequest { package: package.into(), cores: 1, ..LeaseRequest::default() };
    let grants = done(client.request_lease(asked).await)?.grants;
    Ok(grants[0].lease.clone().unwrap())
}

async fn end(client: &mut Client, lease: &Lease) {
    let end = EndLeaseRequest { leases: vec![lease.id.clone()], ..EndLeaseRequest::default() };
    done(client.end_lease(end).await).unwrap();
}

async fn grant(
    client: &mut Client,
    name: &str,
    tenant: &str,
    right: PackageRight,
) -> Result<PackageInfo, Error> {
    let grant = Some(PackageGrant { tenant: tenant.into(), right: right.into() });
    done(client.grant_package(GrantPackageRequest { name: name.into(), grant }).await)
}

async fn remove(client: &mut Client, name: &str) -> Result<RemovePackageReply, Error> {
    done(client.remove_package(RemovePackageRequest { name: name.into(), ..Default::default() }).await)
}

fn digest(reply: DeployReply) -> String {
    reply.package.unwrap().digest
}

#[tokio::test]
async fn deploying_under_a_name_changes_no_other_tenants_package() {
    let Tenants { fixture: _fixture, mut alice, mut bob } = tenants().await;
    let hers = digest(deploy(&mut alice, &encoded(1)).await.unwrap());
    let his = deploy(&mut bob, &encoded(2)).await.unwrap();
    assert_eq!((his.known, &his.replaced, &his.hidden), (false, &None, &None));
    let his = digest(his);
    for (client, owner, expected) in [(&mut alice, "alice", &hers), (&mut bob, "bob", &his)] {
        let found = resolve(client, "x").await.unwrap();
        assert_eq!((&found.digest, found.owner.as_str()), (expected, owner));
        let lease = lease_of(client, "x").await.unwrap();
        assert_eq!((&lease.package, lease.package_owner.as_str()), (expected, owner));
        end(client, &lease).await;
    }
    let replaced = deploy(&mut bob, &encoded(3)).await.unwrap().replaced.unwrap();
    assert_eq!((replaced.digest, replaced.owner.as_str()), (his, "bob"));
    assert_eq!(resolve(&mut alice, "x").await.unwrap().digest, hers);
}

#[tokio::test]
async fn rejects_packages_of_other_tenants_by_name_and_digest() {
    let Tenants { mut fixture, mut alice, mut bob } = tenants().await;
    let hers = digest(deploy(&mut alice, &encoded(1)).await.unwrap());
    for name in
        ["x", "x/f", "alice/x", "alice/x/f", &hers, &format!("alice/{hers}"), &format!("alice/x@{hers}")]
    {
        assert_eq!(resolve(&mut bob, name).await.unwrap_err().code, Code::UnknownPackage, "{name}");
        assert_eq!(lease_of(&mut bob, name).await.unwrap_err().code, Code::UnknownPackage, "{name}");
    }
    // The owner's use of the digest a moment ago does not open it to others.
    let lease = lease_of(&mut alice, &hers).await.unwrap();
    end(&mut alice, &lease).await;
    assert_eq!(lease_of(&mut bob, &hers).await.unwrap_err().code, Code::UnknownPackage);
    for name in ["alice/x", "public/x"] {
        assert_eq!(remove(&mut bob, name).await.unwrap_err().code, Code::PermissionDenied);
        let granted = grant(&mut bob, name, "carol", PackageRight::Read).await;
        assert_eq!(granted.unwrap_err().code, Code::PermissionDenied);
    }
    assert_eq!(publish(&mut bob, "x").await.unwrap_err().code, Code::PermissionDenied);
    let listed = done(bob.list_packages(ListPackagesRequest::default()).await).unwrap();
    assert!(listed.packages.is_empty(), "{listed:?}");
    assert_eq!(resolve(&mut fixture.client, "alice/x").await.unwrap().digest, hers, "an operator sees it");
}

#[tokio::test]
async fn own_packages_come_before_public_ones() {
    let Tenants { mut fixture, mut alice, mut bob } = tenants().await;
    let hers = digest(deploy(&mut alice, &encoded(1)).await.unwrap());
    let public = publish(&mut fixture.client, "alice/x").await.unwrap();
    assert_eq!((public.owner.as_str(), &public.digest), ("public", &hers));
    let found = resolve(&mut bob, "x").await.unwrap();
    assert_eq!((found.owner.as_str(), found.digest), ("public", hers.clone()));
    let deployed = deploy(&mut bob, &encoded(2)).await.unwrap();
    assert_eq!(deployed.hidden.unwrap().digest, hers);
    assert_eq!(resolve(&mut bob, "x").await.unwrap().owner, "bob");
    assert_eq!(resolve(&mut bob, "public/x").await.unwrap().digest, hers);
    // The owner's next version is not published yet.
    deploy(&mut alice, &encoded(3)).await.unwrap();
    assert_eq!(resolve(&mut bob, "public/x").await.unwrap().digest, hers);
    remove(&mut fixture.client, "public/x").await.unwrap();
    assert_eq!(resolve(&mut bob, "public/x").await.unwrap_err().code, Code::UnknownPackage);
    assert_eq!(resolve(&mut bob, "x").await.unwrap().owner, "bob");
}

#[tokio::test]
async fn granted_packages_are_leased_until_the_right_is_revoked() {
    let Tenants { fixture: _fixture, mut alice, mut bob } = tenants().await;
    let hers = digest(deploy(&mut alice, &encoded(1)).await.unwrap());
    grant(&mut alice, "x", "bob", PackageRight::Read).await.unwrap();
    let found = resolve(&mut bob, "alice/x/f").await.unwrap();
    assert_eq!((found.owner.as_str(), &found.digest, found.grants.len()), ("alice", &hers, 0));
    assert_eq!(lease_of(&mut bob, "alice/x").await.unwrap_err().code, Code::UnknownPackage);
    let granted = grant(&mut alice, "x", "bob", PackageRight::Execute).await.unwrap();
    assert_eq!(granted.grants.len(), 1, "the owner sees the grants");
    assert_eq!(
        resolve(&mut bob, "x").await.unwrap_err().code,
        Code::UnknownPackage,
        "needs the owner's name"
    );
    let lease = lease_of(&mut bob, "alice/x").await.unwrap();
    assert_eq!((lease.package_owner.as_str(), lease.tenant.as_str()), ("alice", "bob"));
    let listed = done(bob.list_packages(ListPackagesRequest::default()).await).unwrap();
    assert_eq!(listed.packages.len(), 1);

    let renew = RenewRequest { lease: lease.id.clone(), timeout_ms: 60_000 };
    done(bob.renew_lease(renew.clone()).await).unwrap();
    grant(&mut alice, "x", "bob", PackageRight::Unspecified).await.unwrap();
    assert_eq!(done(bob.renew_lease(renew).await).unwrap_err().code, Code::UnknownPackage);
    assert_eq!(lease_of(&mut bob, "alice/x").await.unwrap_err().code, Code::UnknownPackage);
    let listed = done(bob.list_packages(ListPackagesRequest::default()).await).unwrap();
    assert!(listed.packages.is_empty());
}

#[tokio::test]
async fn a_removed_name_means_nothing_until_it_is_deployed_again() {
    let Tenants { fixture: _fixture, mut alice, mut bob } = tenants().await;
    let hers = digest(deploy(&mut alice, &encoded(1)).await.unwrap());
    grant(&mut alice, "x", "bob", PackageRight::Execute).await.unwrap();
    let removed = remove(&mut alice, "x").await.unwrap().package.unwrap();
    assert_eq!((removed.digest.as_str(), removed.owner.as_str()), (hers.as_str(), "alice"));
    for name in ["x", &hers] {
        assert_eq!(resolve(&mut alice, name).await.unwrap_err().code, Code::UnknownPackage, "{name}");
    }
    assert_eq!(remove(&mut alice, "x").await.unwrap_err().code, Code::UnknownPackage);
    let again = deploy(&mut alice, &encoded(1)).await.unwrap();
    assert!(!again.known, "the name is new");
    assert_eq!(digest(again), hers);
    // Rights to a name end with the name.
    assert_eq!(resolve(&mut bob, "alice/x").await.unwrap_err().code, Code::UnknownPackage);
}

#[tokio::test]
async fn runs_keep_the_packages_that_they_began_with() {
    let Tenants { fixture: _fixture, mut alice, mut bob } = tenants().await;
    let hers = digest(deploy(&mut alice, &encoded(1)).await.unwrap());
    grant(&mut alice, "x", "bob", PackageRight::Execute).await.unwrap();
    let document = br#"{"version":1,"name":"g","components":[{"name":"c","type":"compute","package":"alice/x","function":"f","entry":true}]}"#;
    done(bob.deploy_graph(DeployGraphRequest { document: document.to_vec() }).await).unwrap();
    let begin =
        |run: &str| BeginRunRequest { run: run.repeat(16), graph: "g".into(), ..BeginRunRequest::default() };
    let run = done(bob.begin_run(begin("0a")).await).unwrap();
    let pinned = format!("alice/x@{hers}");
    let expected = PinnedPackage { package: "alice/x".into(), pinned: pinned.clone() };
    assert_eq!(run.packages, std::slice::from_ref(&expected));

    let next = digest(deploy(&mut alice, &encoded(2)).await.unwrap());
    assert_eq!(resolve(&mut bob, "alice/x").await.unwrap().digest, next);
    let lease = lease_of(&mut bob, &pinned).await.unwrap();
    assert_eq!((lease.package, lease.package_owner.as_str()), (hers, "alice"));
    let read = ReadRunRequest { run: "0a".repeat(16), after: 0 };
    assert_eq!(done(bob.read_run(read).await).unwrap().info.unwrap().packages, [expected]);

    grant(&mut alice, "x", "bob", PackageRight::Unspecified).await.unwrap();
    assert_eq!(lease_of(&mut bob, &pinned).await.unwrap_err().code, Code::UnknownPackage);
    assert_eq!(done(bob.begin_run(begin("0b")).await).unwrap_err().code, Code::UnknownPackage);
}
