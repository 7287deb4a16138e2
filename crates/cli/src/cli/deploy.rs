//! `sublet deploy`: uploads a package, so that its functions can be called.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sublet_image::current_digest;
use sublet_proto::package::{encode, pin_image, unpinned_image};
use sublet_proto::v1::Package;
use sublet_proto::{Code, Error, decode};
use sublet_runtime::deploy::{check_package, left_out, read_package};

use super::ConnectionArguments;
use super::output::CommandOutput;
use super::parse::show_bytes;
use super::time::show_moment;
use super::view::PackageView;

const EXAMPLES: &str = "\
Examples:
  sublet deploy ./libx.so     every exported C function f becomes libx/f
  sublet deploy ./x.wasm      the same for a WebAssembly module: x/f, on every kind of node
  sublet deploy ./pricing     a folder with a sublet.toml:

      name = \"pricing\"
      library = \"libpricing.so\"
      image = \"debian:12\"     # optional: an OCI image in which the functions run, pinned when
                              # it is deployed

      [[function]]            # optional: without any, every exported C function
      name = \"price\"
      symbol = \"price_v2\"     # optional: the function's name

      [wasm]                  # optional, for a WebAssembly module: limits of a call
      deadline_ms = 1000
      memory_bytes = 67108864

  sublet deploy ./words       functions in Python, with a sublet.toml; a module that cannot be parsed, or that
                              lacks a function, is refused:

      name = \"words\"
      kind = \"python\"
      library = \"words.py\"

      [[function]]
      name = \"count\"

      [python]                # optional
      requirements = \"requirements.txt\"  # or a lock file: distributions that the functions import

                              with image = \"python:3.12\" the image's own Python executes them

  sublet deploy ./texts       functions in JavaScript, with a sublet.toml; package-lock.json names dependencies, which
                              npm installs; a module that cannot be parsed is refused:

      name = \"texts\"
      kind = \"nodejs\"
      library = \"index.js\"

      [[function]]
      name = \"shout\"

                              with image = \"node:22\" the image's own Node.js executes them, and imports what the
                              image has

  sublet deploy ./vectors     kernels, with a sublet.toml that names each of them:

      name = \"vectors\"
      kind = \"opencl\"         # or \"cuda\"
      library = \"vectors.cl\"  # OpenCL C or a binary; for cuda PTX, a cubin or a fatbin

      [kernels]               # optional
      options = \"-DSTEPS=8\"  # for OpenCL's compiler: -DNAME[=VALUE] and -cl-*
      deadline_ms = 1000

      [[function]]
      name = \"add\"
      symbol = \"add_floats\"  # optional: the kernel
      program = \"more.cl\"    # optional: source file, if not the library
      bytes_per_item = 4      # optional: one work-item per 4 bytes of input
      items = 1               # optional: minimum of work-items
      group = 64              # optional: work-items per group

  sublet deploy ./pricing     the same functions for several kinds of processing units:

      name = \"pricing\"

      [[function]]
      name = \"price\"
      bytes_per_item = 8      # for kernels

      [[build]]               # keys that a package with one build has at the top
      library = \"x86_64/libpricing.so\"

      [[build]]
      library = \"aarch64/libpricing.so\"

      [[build]]
      kind = \"opencl\"
      library = \"pricing.cl\"
      [[build.function]]      # differences of this build
      name = \"price\"
      symbol = \"price_all\"

The name belongs to the tenant that deploys. Other tenants use TENANT/NAME after `sublet package grant`. A package is
identified by the digest of its content; deploying it again changes nothing.";

/// Deploy a shared object, a WebAssembly module, or a folder with a sublet.toml
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A shared object, a WebAssembly module, or a folder with a sublet.toml
    path: PathBuf,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Report on a deployment.
#[derive(Debug, Serialize)]
struct DeployReport {
    /// Whether the same content was deployed before.
    known: bool,
    #[serde(flatten)]
    package: PackageView,
    /// Package that had this name until now, if it was another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<PackageView>,
    /// Public package of the same name, which this tenant now reaches only as `public/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<PackageView>,
}

/// Deploys a package.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let encoded = read_package(&arguments.path)?;
    check_package(&arguments.path, &encoded)?;
    if let Some(file) = left_out(&arguments.path, &encoded)? {
        output.note(&format!(
            "{} is not part of the package: it may hold the token of a registry",
            file.display()
        ));
    }
    let encoded = pinned(encoded)?;
    let manager = arguments.connection.open()?;
    let encoded = manager.pin_environments(encoded, &arguments.path, &mut |step| output.note(step))?;
    let bar = progress_bar(encoded.len() as u64, output);
    let progress = bar.clone();
    let reply = manager.deploy_with_progress(encoded, move |sent| progress.set_position(sent));
    bar.finish_and_clear();
    let reply = reply?;
    let package = reply.package.ok_or_else(|| Error::new(Code::Protocol, "the manager names no package"))?;
    let deployed = DeployReport {
        known: reply.known,
        package: package.into(),
        replaced: reply.replaced.map(PackageView::from),
        hidden: reply.hidden.map(PackageView::from),
    };
    output.show(&deployed, text)
}

/// Replaces the image names in the package by the digests that their registries return now.
fn pinned(encoded: Vec<u8>) -> Result<Vec<u8>, Error> {
    let mut package: Package = decode("a package", &encoded)?;
    while let Some(image) = unpinned_image(&package)? {
        pin_image(&mut package, &current_digest(&image)?.to_string())?;
    }
    Ok(encode(&package))
}

fn text(deployed: &DeployReport) -> String {
    let DeployReport { known, package, replaced, hidden } = deployed;
    let what = match replaced {
        None if *known => "is unchanged",
        _ => "is deployed",
    };
    let mut text = format!(
        "{} {what}: {} for {}, {}\n",
        package.address(),
        show_bytes(package.size_bytes),
        package.architectures(),
        package.digest
    );
    if let Some(replaced) = replaced {
        let since = show_moment(replaced.deployed_unix_ms);
        text += &format!("  replaces {}, deployed {since}\n", replaced.digest);
    }
    if let Some(hidden) = hidden {
        text += &format!("  hides {}: {} now means this package\n", hidden.address(), hidden.name);
    }
    for build in &package.builds {
        let places = [&build.image, &build.environment].into_iter().filter(|place| !place.is_empty());
        text.extend(places.map(|place| format!("  {} in {place}\n", build.library)));
    }
    for function in &package.functions {
        text += &format!("  {function}\n");
    }
    text
}

/// Creates a progress bar, which appears only on terminals and only for long uploads.
fn progress_bar(len_bytes: u64, output: &CommandOutput) -> ProgressBar {
    if !output.is_for_people() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len_bytes);
    let style = ProgressStyle::with_template("uploading {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use sublet_proto::package::Manifest;

    use super::*;

    #[test]
    fn manifests_in_the_help_text_are_valid() {
        let mut manifests = vec![String::new()];
        let is_toml = |line: &&str| !line.starts_with(' ') || line.trim_start().starts_with('#');
        for line in EXAMPLES.lines() {
            match line.strip_prefix("      ").filter(is_toml).or(line.is_empty().then_some("")) {
                Some(line) => manifests.last_mut().unwrap().extend([line, "\n"]),
                None => manifests.push(String::new()),
            }
        }
        manifests.retain(|manifest| manifest.contains("name = "));
        assert_eq!(manifests.len(), 5);
        for manifest in manifests {
            if let Err(error) = Manifest::parse(&manifest) {
                panic!("{error}\n{manifest}");
            }
        }
    }
}
