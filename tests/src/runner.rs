//! A `sublet runner` of a test's own, for the managers of a cluster.

use std::fs;

use sublet::{LogLine, RunHandle};
use sublet_proto::v1::{CreateTokenRequest, Role, RunInfo};

use crate::cluster::Cluster;
use crate::network::Host;
use crate::platform::sublet;
use crate::program::{ServerProgram, inside};

/// Starts a runner of all tenants' runs, with the token of an operator, and waits until it serves.
pub fn start(cluster: &Cluster, name: &str) -> ServerProgram {
    start_with(cluster, name, &operator_token(cluster))
}

/// Does what [`start`] does, on a host of the cluster's network.
pub fn start_on(cluster: &Cluster, name: &str, host: &Host) -> ServerProgram {
    start_by(cluster, name, &operator_token(cluster), Some(host.entry()))
}

/// Starts a runner with a token, and waits until it serves.
pub fn start_with(cluster: &Cluster, name: &str, token: &str) -> ServerProgram {
    start_by(cluster, name, token, None)
}

fn operator_token(cluster: &Cluster) -> String {
    let request = CreateTokenRequest { role: Role::Operator.into(), ..CreateTokenRequest::default() };
    cluster.token(&request).secret
}

fn start_by(cluster: &Cluster, name: &str, token: &str, entry: Option<Vec<String>>) -> ServerProgram {
    let token_file = cluster.folder().join(format!("{name}.token"));
    fs::write(&token_file, token).expect("the folder can be written to");
    let arguments = [
        "runner".to_owned(),
        "--json".to_owned(),
        "--name".to_owned(),
        name.to_owned(),
        "--manager".to_owned(),
        cluster.addresses(),
        "--ca".to_owned(),
        cluster.ca_file().display().to_string(),
        "--token-file".to_owned(),
        token_file.display().to_string(),
    ];
    ServerProgram::start(name, cluster.folder(), move || {
        let mut command = sublet();
        command.args(&arguments).env("SUBLET_LOG", "info");
        for variable in ["SUBLET_CA", "SUBLET_TOKEN", "SUBLET_TOKEN_FILE"] {
            command.env_remove(variable);
        }
        match &entry {
            None => command,
            Some(entry) => inside(entry, &command),
        }
    })
}

/// The managers' record of a run of a tenant.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn record(client: &sublet::Invoker, run: &str) -> RunInfo {
    let page = client.manager().read_run(run, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
    page.info.expect("a run has a record")
}

/// The events of a run, each as its component and its text.
///
/// # Panics
/// If there is no such run.
#[track_caller]
pub fn log(run: &RunHandle) -> Vec<(String, String)> {
    let lines = run.logs().unwrap_or_else(|error| panic!("{error}"));
    lines.into_iter().map(|LogLine { component, text, .. }| (component, text)).collect()
}
