//! Names of packages among tenants, in real processes: programs run their own tenant's packages, whatever others deploy.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sublet::{Access, Allocation, Code, Invoker};
use sublet_proto::Error;
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::{ConfirmRequest, CreateTokenRequest, LeaseRequest, Role};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::platform::sublet;
use tempfile::TempDir;
use tonic::Request;

/// Most tokens that are made until a manager grants a lease for one that it does not know yet.
const ATTEMPTS: u32 = 30;

/// A package `libname` whose function `who` writes one letter.
fn library(letter: char) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("name.c");
    let text = format!(
        "unsigned who(const void *in, unsigned size, void *out) {{ *(char *)out = '{letter}'; return 1; }}\n"
    );
    fs::write(&source, text).unwrap();
    let object = folder.path().join("libname.so");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&object, &source]).status().unwrap();
    assert!(made.success());
    folder
}

/// A tenant with a token in a file, as a user of the command.
struct Tenant {
    access: Access,
    folder: TempDir,
    managers: String,
    ca: std::path::PathBuf,
}

impl Tenant {
    fn of(cluster: &Cluster, name: &str) -> Tenant {
        let folder = tempfile::tempdir().unwrap();
        let secret = cluster.user_token(name).secret;
        fs::write(folder.path().join("token"), &secret).unwrap();
        let access = cluster.access(&cluster.addresses(), &secret);
        Tenant { access, folder, managers: cluster.addresses(), ca: cluster.ca_file() }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = sublet();
        command.env("SUBLET_MANAGER", &self.managers).env("SUBLET_CA", &self.ca);
        command.env("SUBLET_TOKEN_FILE", self.folder.path().join("token"));
        command.args(arguments).output().unwrap()
    }

    /// Standard output of the command, which succeeds.
    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], code: Code) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), i32::try_from(code.number()).ok(), "{arguments:?}: {text}");
        text
    }

    fn deploy(&self, library: &TempDir) -> String {
        self.text(&["deploy", path(&library.path().join("libname.so"))])
    }

    /// Answer of the package's function, and the owner of the package according to the lease.
    fn who(&self, package: &str) -> (char, String) {
        let mut client = connect(&self.access);
        client.allocate(&Allocation::new(package.to_owned())).unwrap_or_else(|error| panic!("{error}"));
        (who(&client), client.package().unwrap().owner.clone())
    }
}

fn who(client: &Invoker) -> char {
    let mut output = [0u8; 1];
    client.submit("who", b"", &mut output).and_then(sublet::Invocation::wait).unwrap();
    char::from(output[0])
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts managers and an agent. Managers of one store learn of each other's changes within a second.
fn cluster(managers: u8) -> Cluster {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(managers));
    cluster.add_agent(LentCores::cores(2));
    cluster
}

#[test]
fn programs_run_their_own_tenants_package_whatever_others_deploy() {
    let cluster = cluster(2);
    let (alice, bob) = (Tenant::of(&cluster, "alice"), Tenant::of(&cluster, "bob"));
    let (hers, his) = (library('a'), library('b'));
    let deployed = alice.deploy(&hers);
    assert!(deployed.starts_with("alice/libname is deployed: "), "{deployed}");
    assert!(alice.deploy(&hers).starts_with("alice/libname is unchanged: "));
    assert_eq!(alice.who("libname"), ('a', "alice".into()));
    let deployed = bob.deploy(&his);
    assert!(
        deployed.starts_with("bob/libname is deployed: ") && !deployed.contains("replaces"),
        "{deployed}"
    );
    for _ in 0..3 {
        assert_eq!(alice.who("libname"), ('a', "alice".into()));
        assert_eq!(bob.who("libname"), ('b', "bob".into()));
    }
    let refused = bob.refused(&["call", "alice/libname/who"], Code::UnknownPackage);
    assert!(refused.contains("is deployed by this tenant, is public, or is granted to it"), "{refused}");
    // A folder of the package's name in the working directory, which another user may have made, is not deployed.
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("libname")).unwrap();
    let shown = sublet()
        .current_dir(folder.path())
        .env("SUBLET_MANAGER", &alice.managers)
        .env("SUBLET_CA", &alice.ca)
        .env("SUBLET_TOKEN_FILE", alice.folder.path().join("token"))
        .args(["call", "libname/who", "--output", "-"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "a", "{}", String::from_utf8_lossy(&shown.stderr));
}

#[test]
fn lease_by_a_foreign_digest_is_not_confirmed() {
    let cluster = cluster(2);
    let alice = Tenant::of(&cluster, "alice");
    let deployed = alice.deploy(&library('a'));
    let digest = deployed.split_whitespace().find(|word| word.starts_with("sha256:")).unwrap();
    let first = &cluster.managers[0].address;
    let hers = cluster.access(first, &cluster.user_token("alice").secret);
    connect(&hers).allocate(&Allocation::new(digest)).unwrap();
    let of_node =
        CreateTokenRequest { role: Role::Agent.into(), node: "node-0".into(), ..Default::default() };
    let agent = cluster.access(first, &cluster.token(&of_node).secret);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let confirm = |his: &Access| {
        runtime.block_on(async {
            let asked = LeaseRequest { package: digest.into(), cores: 1, ..LeaseRequest::default() };
            let mut manager = ManagerClient::new(his.channel(0).unwrap());
            let granted = manager.request_lease(his.authorize(Request::new(asked))).await;
            let lease =
                granted.map_err(|status| (false, status))?.into_inner().grants.remove(0).lease.unwrap().id;
            let mut nodes = NodesClient::new(agent.channel(0).unwrap());
            let confirmed =
                nodes.confirm_lease(agent.authorize(Request::new(ConfirmRequest { lease }))).await;
            confirmed.map(drop).map_err(|status| (true, status))
        })
    };
    // The first manager knows the package, and not the token. It grants a lease before it knows the tenant, unless it
    // learns of the token before the request comes.
    for _ in 0..ATTEMPTS {
        let asked =
            CreateTokenRequest { tenant: "bob".into(), role: Role::User.into(), ..Default::default() };
        let secret = cluster.managers[1].operator().manager().create_token(asked).unwrap().secret;
        let (was_granted, status) = confirm(&cluster.access(first, &secret)).unwrap_err();
        let refused = Error::from_status(&status);
        assert_eq!(refused.code, Code::UnknownPackage, "{refused}");
        if was_granted {
            return;
        }
    }
    panic!("the first manager knew each of {ATTEMPTS} tokens before it granted a lease");
}

#[test]
fn command_grants_publishes_and_removes_packages() {
    let cluster = cluster(1);
    let (alice, bob) = (Tenant::of(&cluster, "alice"), Tenant::of(&cluster, "bob"));
    let (hers, his, next) = (library('a'), library('b'), library('c'));
    alice.deploy(&hers);
    assert_eq!(alice.text(&["package", "grant", "libname", "--to", "bob"]), "bob may lease alice/libname\n");
    assert_eq!(bob.who("alice/libname"), ('a', "alice".into()));
    let listed = bob.text(&["package", "list"]);
    assert!(listed.contains("alice") && !listed.contains("bob (execute)"), "{listed}");
    assert!(alice.text(&["package", "list"]).contains("bob (execute)"));
    alice.text(&["package", "revoke", "libname", "--from", "bob"]);
    bob.refused(&["call", "alice/libname/who"], Code::UnknownPackage);

    let refused = alice.refused(&["package", "publish", "libname"], Code::PermissionDenied);
    assert!(refused.contains("operator"), "{refused}");
    cluster.json(&["package", "publish", "alice/libname"]);
    assert_eq!(bob.who("libname"), ('a', "public".into()));
    let deployed = bob.deploy(&his);
    assert!(deployed.contains("hides public/libname: libname now means this package"), "{deployed}");
    let deployed = bob.deploy(&next);
    assert!(deployed.contains("  replaces sha256:"), "{deployed}");
    assert_eq!((bob.who("libname").0, bob.who("public/libname").0), ('c', 'a'));

    assert!(bob.text(&["package", "remove", "libname"]).starts_with("bob/libname is removed"));
    bob.refused(&["package", "remove", "public/libname"], Code::PermissionDenied);
    assert_eq!(bob.who("libname"), ('a', "public".into()));
    let everything: Value = cluster.json(&["package", "list"]);
    let owners: Vec<_> = everything["packages"].as_array().unwrap().iter().map(|it| &it["owner"]).collect();
    assert_eq!(owners, ["alice", "public"]);
    cluster.json(&["package", "remove", "public/libname"]);
    bob.refused(&["call", "libname/who"], Code::UnknownPackage);
}
