//! `sublet deploy`: makes functions callable.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sublet_image::{Access, Credentials, Reference, resolve};
use sublet_proto::package::{encode, pin_image, unpinned_image};
use sublet_proto::v1::Package;
use sublet_proto::{Code, Error, decode};
use sublet_runtime::deploy::read_package;

use super::Connection;
use super::output::Output;
use super::parse::show_bytes;
use super::time::show_moment;
use super::view::PackageView;

const EXAMPLES: &str = "\
Examples:
  sublet deploy ./libx.so     every exported C function f becomes libx/f
  sublet deploy ./x.wasm      the same of a WebAssembly module: x/f, on every kind of node
  sublet deploy ./pricing     a folder with a sublet.toml:

      name = \"pricing\"
      library = \"libpricing.so\"
      image = \"debian:12\"     # optional: an OCI image in which the functions run, pinned when
                              # it is deployed

      [[function]]            # optional: without any, every exported C function
      name = \"price\"
      symbol = \"price_v2\"     # optional: the function's name

      [wasm]                  # optional, of a WebAssembly module: what one call may take
      deadline_ms = 1000
      memory_bytes = 67108864

  sublet deploy ./words       functions in Python, with a sublet.toml; a module that cannot be parsed, or that
                              lacks a function, is refused:

      name = \"words\"
      kind = \"python\"
      library = \"words.py\"

      [[function]]
      name = \"count\"

  sublet deploy ./vectors     kernels, with a sublet.toml that names each of them:

      name = \"vectors\"
      kind = \"opencl\"         # or \"cuda\"
      library = \"vectors.cl\"  # OpenCL C or a binary; of cuda PTX, a cubin or a fatbin

      [kernels]               # optional
      options = \"-DSTEPS=8\"  # of OpenCL's compiler: -DNAME[=VALUE] and -cl-*
      deadline_ms = 1000

      [[function]]
      name = \"add\"
      symbol = \"add_floats\"  # optional: the kernel
      program = \"more.cl\"    # optional: where it is, if not in the library
      bytes_per_item = 4      # optional: a work-item for each 4 bytes of input
      items = 1               # optional: but so many at least
      group = 64              # optional: work-items of a group

  sublet deploy ./pricing     the same functions for several processing units, each checked:

      name = \"pricing\"

      [[function]]
      name = \"price\"
      bytes_per_item = 8      # where it is a kernel

      [[build]]               # what stands at the top where there is one build stands here
      library = \"x86_64/libpricing.so\"

      [[build]]
      library = \"aarch64/libpricing.so\"

      [[build]]
      kind = \"opencl\"
      library = \"pricing.cl\"
      [[build.function]]      # what is otherwise in this build
      name = \"price\"
      symbol = \"price_all\"

The name belongs to the tenant that deploys: TENANT/NAME for others, to whom `sublet package grant` gives rights. A
package is known by the digest of its content; deploying it again changes nothing.";

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
    /// The package that the name stood for until now, if that was another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<PackageView>,
    /// The public package of the same name, which this tenant now reaches only as `public/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<PackageView>,
}

/// Deploys.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let encoded = pinned(read_package(&arguments.path)?)?;
    let manager = arguments.connection.open()?;
    let bar = progress_bar(encoded.len() as u64, output);
    let progress = bar.clone();
    let reply = manager.deploy_with_progress(encoded, move |sent| progress.set_position(sent));
    bar.finish_and_clear();
    let reply = reply?;
    let package = reply.package.ok_or_else(|| Error::new(Code::Protocol, "the manager names no package"))?;
    let deployed = Deployed {
        known: reply.known,
        package: package.into(),
        replaced: reply.replaced.map(PackageView::from),
        hidden: reply.hidden.map(PackageView::from),
    };
    output.show(&deployed, text)
}

/// The same package with the images that it names pinned by the digests that their registries say now.
fn pinned(encoded: Vec<u8>) -> Result<Vec<u8>, Error> {
    let mut package: Package = decode("a package", &encoded)?;
    while let Some(image) = unpinned_image(&package)? {
        pin_image(&mut package, &digest_of_image(&image)?)?;
    }
    Ok(encode(&package))
}

/// What an image's name means now in its registry.
pub(super) fn digest_of_image(image: &str) -> Result<String, Error> {
    let reference: Reference = image.parse()?;
    let access = Access { credentials: Credentials::of_docker(&reference)?, ..Access::default() };
    Ok(resolve(&reference, &access)?.to_string())
}

fn text(deployed: &Deployed) -> String {
    let Deployed { known, package, replaced, hidden } = deployed;
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
    for build in package.builds.iter().filter(|build| !build.image.is_empty()) {
        text += &format!("  {} in {}\n", build.library, build.image);
    }
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
