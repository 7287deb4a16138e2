//! `sublet secret`: the secrets of a tenant, which functions get as environment variables.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::needs::MAX_SECRET_BYTES;
use sublet_proto::v1::SecretInfo;
use sublet_proto::{Code, Error};

use super::ConnectionArguments;
use super::files::read_up_to;
use super::output::{CommandOutput, table};
use super::time::show_moment;

const EXAMPLES: &str = "\
Examples:
  sublet secret set DB_KEY < key.txt          store the content of a file; one newline at its end is removed
  sublet secret set DB_KEY --file key.txt     the same
  sublet secret list                          show the names, never the values
  sublet secret remove DB_KEY                 remove it

A secret belongs to the tenant of the access token. The managers keep it encrypted. A lease that names it, as
sublet.lease(secrets=[\"DB_KEY\"]) or `sublet call --secret DB_KEY`, gives its value to the lease's functions as an
environment variable. No command shows the value.";

/// Store, list and remove secrets
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: SecretAction,
}

#[derive(Debug, Subcommand)]
enum SecretAction {
    Set(SetSecret),
    List(ListSecrets),
    Remove(RemoveSecret),
}

/// Store a secret, in place of one of the same name; leases that run keep the value that they have
#[derive(Debug, Args)]
struct SetSecret {
    /// Name of the secret
    name: String,

    /// File with the value, or - for standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    file: PathBuf,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Show the names of this tenant's secrets
#[derive(Debug, Args)]
struct ListSecrets {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Remove a secret; leases that run keep the value that they have
#[derive(Debug, Args)]
struct RemoveSecret {
    /// Name of the secret
    name: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A secret without its value.
#[derive(Debug, Serialize)]
struct SecretView {
    name: String,
    set_unix_ms: u64,
}

/// Output of `list`.
#[derive(Debug, Serialize)]
struct SecretReport {
    secrets: Vec<SecretView>,
}

impl From<SecretInfo> for SecretView {
    fn from(SecretInfo { name, set_unix_ms }: SecretInfo) -> SecretView {
        SecretView { name, set_unix_ms }
    }
}

/// Stores, lists or removes secrets.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.action {
        SecretAction::Set(set) => {
            let value = read_value(set)?;
            let stored = SecretView::from(set.connection.open()?.set_secret(&set.name, value)?);
            output.show(&stored, |secret| format!("secret {} is stored\n", secret.name))
        }
        SecretAction::List(list) => {
            let secrets = list.connection.open()?.secrets()?.into_iter().map(SecretView::from).collect();
            output.show(&SecretReport { secrets }, |shown| text(&shown.secrets))
        }
        SecretAction::Remove(remove) => {
            let removed = SecretView::from(remove.connection.open()?.remove_secret(&remove.name)?);
            output.show(&removed, |secret| format!("secret {} is removed\n", secret.name))
        }
    }
}

/// Reads the value, without a newline at its end. No error has a part of it.
fn read_value(set: &SetSecret) -> Result<String, Error> {
    let failed = |error| Error::of_system(format_args!("reading the secret {}", set.file.display()), &error);
    let bytes = read_up_to(&set.file, MAX_SECRET_BYTES as u64 + 2).map_err(failed)?;
    let invalid = |message: String| Error::new(Code::InvalidArgument, message);
    let mut value =
        String::from_utf8(bytes).map_err(|_| invalid(format!("secret {} is not UTF-8 text", set.name)))?;
    if value.ends_with('\n') {
        value.pop();
    }
    if value.len() > MAX_SECRET_BYTES {
        return Err(invalid(format!("secret {} has more than {MAX_SECRET_BYTES} bytes", set.name)));
    }
    Ok(value)
}

fn text(secrets: &[SecretView]) -> String {
    let rows: Vec<_> =
        secrets.iter().map(|secret| [secret.name.clone(), show_moment(secret.set_unix_ms)]).collect();
    table(&["SECRET", "SET"], &rows)
}
