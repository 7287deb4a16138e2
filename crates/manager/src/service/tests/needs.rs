//! Secrets: who gets their values, and when leases that use them are granted.

use sublet_proto::needs::parse_secret_use;
use sublet_proto::v1::{FetchSecretsRequest, Needs, SetSecretRequest};

use super::*;

fn asked(secrets: &[&str]) -> LeaseRequest {
    let secrets = secrets.iter().map(|text| parse_secret_use(text)).collect();
    let needs = Some(Needs { secrets, ..Needs::default() });
    LeaseRequest { package: package::digest(b"p"), cores: 1, needs, ..LeaseRequest::default() }
}

#[tokio::test]
async fn agents_get_secrets_of_their_own_nodes_leases_only() {
    let fixture = fixture().await;
    let secret = SetSecretRequest { name: "KEY".into(), value: "hidden".into() };
    fixture.service.0.secrets.set("t", secret).await.unwrap();
    let token = fixture.token("t").await;
    let request = |asked| {
        let caller = CallerIdentity::pending(token.parse().unwrap());
        fixture.service.request_lease(by(caller, asked))
    };
    // The tenant is known before such a lease is granted.
    let granted = answered(request(asked(&["DB=KEY"])).await).unwrap();
    let ticket = fixture.open(&granted.grants[0].ticket).unwrap();
    assert!(!ticket.provisional);
    let lease = ticket.lease.unwrap();
    assert_eq!(
        (lease.tenant.as_str(), lease.needs.unwrap().secrets),
        ("t", vec![parse_secret_use("DB=KEY")])
    );
    let other = answered(request(asked(&["MISSING"])).await).unwrap_err();
    assert!(other.code == Code::InvalidArgument && other.message.contains("MISSING"), "{other}");

    let fetch = async |identity| {
        let request = FetchSecretsRequest { lease: lease.id.clone() };
        answered(fixture.service.fetch_secrets(by(identity, request)).await)
    };
    let variables = fetch(CallerIdentity::local(0)).await.unwrap().variables;
    assert_eq!((variables[0].name.as_str(), variables[0].value.as_str()), ("DB", "hidden"));
    let of_agent =
        CreateTokenRequest { role: Role::Agent.into(), node: "other".into(), ..Default::default() };
    let (_, text) = fixture.elsewhere.create(of_agent, 1).await.unwrap();
    let shown = text.parse().unwrap();
    let record = fixture.service.0.authorizer.tokens.look_up(&shown, 1).await.unwrap();
    let refused = fetch(CallerIdentity::of(shown.id, &record)).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    let unknown = FetchSecretsRequest { lease: "0".repeat(32) };
    let refused = answered(fixture.service.fetch_secrets(by(CallerIdentity::local(0), unknown)).await);
    assert_eq!(refused.unwrap_err().code, Code::UnknownLease);
}
