//! `sublet deploy`: makes functions callable.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sublet_proto::{Code, Error};
use sublet_runtime::deploy::read_package;

use super::Connection;
use super::output::Output;
use super::parse::show_bytes;
use super::view::PackageView;

const EXAMPLES: &str = "\
Examples:
  sublet deploy ./libx.so     every exported C function f becomes libx/f
  sublet deploy ./x.wasm      the same of a WebAssembly module: x/f, on every kind of node
  sublet deploy ./pricing     a folder with a sublet.toml:

      name = \"pricing\"
      library = \"libpricing.so\"

      [[function]]            # optional: without any, every exported C function
      name = \"price\"
      symbol = \"price_v2\"     # optional: the function's name

      [wasm]                  # optional, of a WebAssembly module: what one call may take
      deadline_ms = 1000
      memory_bytes = 67108864

A package is known by the digest of its content; deploying it again changes nothing.";

/// Deploy a shared object, a WebAssembly module, or a folder with a sublet.toml
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A shared object, a WebAssembly module, or a folder with a sublet.toml
    path: PathBuf,

    #[command(flatten)]
    connection: Connection,
}

/// The result.
#[derive(Debug, Serialize)]
struct Deployed {
    /// The same content was there already.
    known: bool,
    #[serde(flatten)]
    package: PackageView,
}

/// Deploys.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let encoded = read_package(&arguments.path)?;
    let manager = arguments.connection.open()?;
    let bar = progress_bar(encoded.len() as u64, output);
    let progress = bar.clone();
    let reply = manager.deploy_with_progress(encoded, move |sent| progress.set_position(sent));
    bar.finish_and_clear();
    let reply = reply?;
    let package = reply.package.ok_or_else(|| Error::new(Code::Protocol, "the manager names no package"))?;
    output.show(&Deployed { known: reply.known, package: package.into() }, text)
}

fn text(deployed: &Deployed) -> String {
    let Deployed { known, package } = deployed;
    let what = if *known { "was deployed already" } else { "is deployed" };
    let mut text = format!(
        "{} {what}: {} for {}, {}\n",
        package.name,
        show_bytes(package.size_bytes),
        package.architecture,
        package.digest
    );
    for function in &package.functions {
        text += &format!("  {function}\n");
    }
    text
}

/// Shown only to people, and only if the upload takes long enough to be seen.
fn progress_bar(len_bytes: u64, output: &Output) -> ProgressBar {
    if !output.is_for_people() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len_bytes);
    let style = ProgressStyle::with_template("uploading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
