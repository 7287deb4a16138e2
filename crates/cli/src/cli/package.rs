//! `sublet package`: the names of packages, and which tenants may use them.

pub(super) mod right;

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;
use sublet_proto::v1::{PackageGrant, PackageRight};

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::{show_bytes, show_count};
use super::time::show_moment;
use super::view::PackageView;

const EXAMPLES: &str = "\
Examples:
  sublet package list
  sublet package show libx                        digest, functions and grants
  sublet package grant libx --to bob              bob may lease alice's package, as alice/libx
  sublet package grant libx --to bob --read       bob may only see it
  sublet package revoke libx --from bob
  sublet package publish alice/libx               operators: every tenant may lease it, as libx or public/libx
  sublet package remove libx

A name belongs to the tenant that deployed the package. `libx` is the caller's own package of this name, or
otherwise the one that an operator has published. `alice/libx` is the package of tenant alice, `public/libx` a published one.
Only its owner and operators change the package behind a name. A lease keeps the package that it was granted for. After
a right is revoked or a name removed, leases of other tenants that depend on it are not renewed.";

/// List packages, and change which tenants may use them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(List),
    Show(Show),
    Grant(Grant),
    Revoke(Revoke),
    Publish(Publish),
    Remove(Remove),
}

/// Show the packages that this tenant may use: its own, public ones and those granted to it
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Show which package an address means now
#[derive(Debug, Args)]
struct Show {
    /// Name, TENANT/NAME or digest of the package
    package: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Let another tenant use a package
#[derive(Debug, Args)]
struct Grant {
    /// Name of the package; operators: TENANT/NAME
    package: String,

    /// Tenant that may use the package
    #[arg(long = "to", value_name = "TENANT")]
    tenant: String,

    /// Let the tenant see the package, but not lease it
    #[arg(long)]
    read: bool,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Take back another tenant's right to a package
#[derive(Debug, Args)]
struct Revoke {
    /// Name of the package; operators: TENANT/NAME
    package: String,

    /// Tenant that may no longer use the package
    #[arg(long = "from", value_name = "TENANT")]
    tenant: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Make a package public, so that every tenant may lease it (operators only)
#[derive(Debug, Args)]
struct Publish {
    /// Name, TENANT/NAME or digest of the package
    package: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Remove a package's name and versions
#[derive(Debug, Args)]
struct Remove {
    /// Name of the package; operators: TENANT/NAME, public/NAME for a published one
    package: String,

    /// Remove only old versions that no unfinished run needs
    #[arg(long)]
    old_versions: bool,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Output of `list`.
#[derive(Debug, Serialize)]
struct Packages {
    packages: Vec<PackageView>,
}

/// Output of `remove --old-versions`.
#[derive(Debug, Serialize)]
struct OldVersions {
    removed: u32,
}

/// Lists packages or changes one.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.action {
        Action::List(list) => {
            let mut packages = list.connection.open()?.packages()?;
            packages.retain(|package| !package.is_environment());
            let packages = Packages { packages: packages.into_iter().map(PackageView::from).collect() };
            output.show(&packages, |shown| text(&shown.packages))
        }
        Action::Show(show) => {
            let package = show.connection.open()?.resolve(&show.package)?;
            output.show(&PackageView::from(package), details)
        }
        Action::Grant(grant) => {
            let right = if grant.read { PackageRight::Read } else { PackageRight::Execute };
            let granted = PackageGrant { tenant: grant.tenant.clone(), right: right.into() };
            let package = grant.connection.open()?.grant_package(&grant.package, granted)?;
            let verb = if grant.read { "read" } else { "lease" };
            output.show(&PackageView::from(package), |package| {
                format!("{} may {verb} {}\n", grant.tenant, package.address())
            })
        }
        Action::Revoke(revoke) => {
            let granted =
                PackageGrant { tenant: revoke.tenant.clone(), right: PackageRight::Unspecified.into() };
            let package = revoke.connection.open()?.grant_package(&revoke.package, granted)?;
            output.show(&PackageView::from(package), |package| {
                format!("{} may no longer use {}\n", revoke.tenant, package.address())
            })
        }
        Action::Publish(publish) => {
            let package = publish.connection.open()?.publish_package(&publish.package)?;
            output.show(&PackageView::from(package), |package| {
                format!("{} is public: every tenant may lease {}\n", package.address(), package.digest)
            })
        }
        Action::Remove(remove) if remove.old_versions => {
            let removed = remove.connection.open()?.remove_old_versions(&remove.package)?;
            output.show(&OldVersions { removed }, |OldVersions { removed }| {
                format!("removed {} of {}\n", show_count((*removed).into(), "old version"), remove.package)
            })
        }
        Action::Remove(remove) => {
            let package = remove.connection.open()?.remove_package(&remove.package)?;
            output.show(&PackageView::from(package), |package| {
                format!("{} is removed; its digest was {}\n", package.address(), package.digest)
            })
        }
    }
}

fn text(packages: &[PackageView]) -> String {
    let rows: Vec<_> = packages.iter().map(row).collect();
    table(&["PACKAGE", "OWNER", "SIZE", "FOR", "DIGEST", "DEPLOYED", "GRANTED TO"], &rows)
}

fn row(package: &PackageView) -> [String; 7] {
    [
        package.name.clone(),
        package.owner.clone(),
        show_bytes(package.size_bytes),
        package.architectures(),
        package.short_digest(),
        show_moment(package.deployed_unix_ms),
        grants(package),
    ]
}

fn grants(package: &PackageView) -> String {
    let grants = package.grants.iter().map(|grant| format!("{} ({})", grant.tenant, grant.right.name()));
    grants.collect::<Vec<_>>().join(", ")
}

fn details(package: &PackageView) -> String {
    let mut text = format!(
        "{}: {} for {}, {}\n",
        package.address(),
        show_bytes(package.size_bytes),
        package.architectures(),
        package.digest
    );
    if !package.grants.is_empty() {
        text += &format!("  granted to {}\n", grants(package));
    }
    for function in &package.functions {
        text += &format!("  {function}\n");
    }
    text
}
