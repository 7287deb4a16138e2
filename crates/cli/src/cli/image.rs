//! `sublet image`: fetches, shows and removes images in the folder of a node's agent.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sublet_image::{
    Credentials, Digest, Image, ImageError, ImageStore, PullProgress, Reference, RegistryAccess,
    RegistryTransport,
};
use sublet_proto::Error;
use sublet_proto::text::printable_line;
use sublet_runtime::access::default_state;

use super::output::{CommandOutput, table};
use super::parse::{show_bytes, show_count};

/// Folder of the images within the state folder.
const FOLDER: &str = "images";

const EXAMPLES: &str = "\
Examples:
  sublet image pull debian:12                    fetch an image from its registry
  sublet image pull --plain-http lab:5000/app    without TLS, which only localhost uses by default
  sublet image import ./app.tar                  read the output of `docker save`, or an OCI layout
  sublet image list                              list the images of this node
  sublet image show debian:12                    show its program, settings and layers
  sublet image remove debian:12
  sublet image prune                             remove layers that belong to no image
  sublet image list --json                       {\"images\": [{\"digest\": \"sha256:...\", \"names\": [...], ...}]}

The agent with the same state folder uses these images; it need not be running. Credentials for registries come from
`docker login`: $DOCKER_CONFIG/config.json or ~/.docker/config.json.";

/// Fetch, show and remove container images of this node
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,

    /// State folder of the agent [default: $SUBLET_STATE, $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet]
    #[arg(long, value_name = "FOLDER", global = true)]
    state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Pull(Pull),
    Import(Import),
    /// Show all images
    List,
    Show(One),
    Remove(One),
    /// Remove the layers that belong to no image and are not in use
    Prune,
}

/// Fetch an image from its registry
#[derive(Debug, Args)]
struct Pull {
    /// Name of the image, as debian:12, ghcr.io/user/app@sha256:... or localhost:5000/app
    #[arg(value_name = "IMAGE")]
    image: String,

    /// Connect without TLS: others on the network can read everything, and change images that are not named by a digest
    #[arg(long)]
    plain_http: bool,
}

/// Import images from a file or a folder
#[derive(Debug, Args)]
struct Import {
    /// An OCI layout, as a folder or a tar, or a tar of `docker save`; tars may be compressed
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

/// An image
#[derive(Debug, Args)]
struct One {
    /// Name or digest of the image
    #[arg(value_name = "IMAGE")]
    image: String,
}

/// JSON output, whose format is stable.
#[derive(Debug, Serialize)]
struct ImagesOutput {
    images: Vec<ImageView>,
}

#[derive(Debug, Serialize)]
struct ImageView {
    digest: String,
    names: Vec<String>,
    architecture: String,
    unpacked_bytes: u64,
    /// Number of device nodes, FIFOs and sockets that were not created.
    skipped: u64,
    env: Vec<String>,
    user: String,
    working_folder: String,
    entry_point: Vec<String>,
    cmd: Vec<String>,
    /// Paths of the layers, the lowest first.
    layers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RemovedImage {
    digest: String,
}

#[derive(Debug, Serialize)]
struct PruneReport {
    layers: usize,
    in_use: usize,
}

/// Runs the subcommand on the agent's image folder.
pub(crate) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    let state = arguments.state.filter(|state| !state.as_os_str().is_empty());
    let store = ImageStore::open(state.unwrap_or_else(default_state).join(FOLDER))?;
    match arguments.verb {
        Verb::Pull(pull) => output.show(&images(vec![fetch(&store, &pull, output)?]), detailed),
        Verb::Import(import) => output.show(&images(take(&store, &import, output)?), detailed),
        Verb::List => output.show(&images(store.list()?), text),
        Verb::Show(one) => output.show(&images(vec![find(&store, &one.image)?]), detailed),
        Verb::Remove(one) => {
            let Image { digest, .. } = find(&store, &one.image)?;
            store.remove(&digest)?;
            let removed = RemovedImage { digest: digest.to_string() };
            output.show(&removed, |removed| {
                format!("{} is removed; `sublet image prune` removes its layers", removed.digest)
            })
        }
        Verb::Prune => {
            let sublet_image::PruneResult { layers, in_use } = store.prune()?;
            output.show(&PruneReport { layers, in_use }, |pruned| {
                format!(
                    "removed {}, {} still in use",
                    show_count(pruned.layers as u64, "layer"),
                    pruned.in_use
                )
            })
        }
    }
}

fn fetch(store: &ImageStore, pull: &Pull, output: &CommandOutput) -> Result<Image, Error> {
    let reference: Reference = pull.image.parse()?;
    let transport = if pull.plain_http { RegistryTransport::Plain } else { RegistryTransport::Safe };
    let access = RegistryAccess { credentials: Credentials::of_docker(&reference)?, transport };
    with_progress(output, |told| store.pull(&reference, &access, told))
}

fn take(store: &ImageStore, import: &Import, output: &CommandOutput) -> Result<Vec<Image>, Error> {
    with_progress(output, |told| store.import(&import.path, told))
}

/// Shows progress if standard error is a terminal.
fn with_progress<T>(
    output: &CommandOutput,
    act: impl FnOnce(&mut dyn FnMut(PullProgress)) -> Result<T, ImageError>,
) -> Result<T, Error> {
    let for_people = output.is_for_people() && std::io::stderr().is_terminal();
    let bar = if for_people { ProgressBar::new(0) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}") {
        bar.set_style(style);
    }
    let done = act(&mut |progress| {
        bar.set_length(progress.wanted_bytes);
        bar.set_position(progress.fetched_bytes);
        bar.set_message(format!("{} of {} layers", progress.layers_done, progress.layers));
    });
    bar.finish_and_clear();
    Ok(done?)
}

/// Finds an image by its digest, or by its name completed with defaults.
fn find(store: &ImageStore, image: &str) -> Result<Image, Error> {
    let found = match image.parse::<Digest>() {
        Ok(digest) => store.find(&digest)?,
        Err(_) => by_name(store, &image.parse()?)?,
    };
    Ok(found.ok_or_else(|| ImageError::Unknown(image.to_owned()))?)
}

fn by_name(store: &ImageStore, reference: &Reference) -> Result<Option<Image>, ImageError> {
    match (store.named(&reference.to_string())?, reference.digest) {
        (None, Some(digest)) => store.find(&digest),
        (found, _) => Ok(found),
    }
}

fn images(images: Vec<Image>) -> ImagesOutput {
    ImagesOutput { images: images.into_iter().map(shown).collect() }
}

fn shown(image: Image) -> ImageView {
    let config = image.config;
    ImageView {
        digest: image.digest.to_string(),
        names: image.names,
        architecture: config.architecture,
        unpacked_bytes: image.unpacked_bytes,
        skipped: image.skipped,
        env: config.env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
        user: config.user,
        working_folder: config.working_folder,
        entry_point: config.entry_point,
        cmd: config.cmd,
        layers: image.layers.iter().map(|layer| layer.display().to_string()).collect(),
    }
}

fn text(ImagesOutput { images }: &ImagesOutput) -> String {
    let row = |image: &ImageView| {
        let name = image.names.iter().find(|name| !name.starts_with("sha256:"));
        let name = name.cloned().unwrap_or_else(|| "-".to_owned());
        [image.digest.clone(), show_bytes(image.unpacked_bytes), image.layers.len().to_string(), name]
    };
    table(&["DIGEST", "SIZE", "LAYERS", "NAME"], &images.iter().map(row).collect::<Vec<_>>())
}

fn detailed(ImagesOutput { images }: &ImagesOutput) -> String {
    images.iter().map(details).collect::<Vec<_>>().join("\n")
}

fn details(image: &ImageView) -> String {
    let mut lines = vec![
        ("digest", image.digest.clone()),
        ("names", image.names.join(" ")),
        ("for", format!("linux/{}", image.architecture)),
        ("size", format!("{}, {} layers", show_bytes(image.unpacked_bytes), image.layers.len())),
        ("user", image.user.clone()),
        ("folder", image.working_folder.clone()),
        ("program", [image.entry_point.as_slice(), &image.cmd].concat().join(" ")),
    ];
    lines.extend(image.env.iter().map(|variable| ("variable", variable.clone())));
    lines.extend(image.layers.iter().map(|layer| ("layer", layer.clone())));
    if image.skipped > 0 {
        lines.push(("left out", format!("{} device nodes, FIFOs or sockets", image.skipped)));
    }
    let lines = lines.iter().filter(|(_, value)| !value.is_empty());
    lines.map(|(name, value)| format!("{name:9} {}\n", printable_line(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            digest: Digest::of(b"x"),
            names: vec!["docker.io/library/debian:12".into(), Digest::of(b"index").to_string()],
            config: sublet_image::Config {
                entry_point: vec!["/bin/sh\u{1b}[2J".into()],
                ..Default::default()
            },
            layers: vec!["/state/images/layers/1".into()],
            unpacked_bytes: 3 << 20,
            files: 9,
            skipped: 2,
        }
    }

    #[test]
    fn output_for_people_is_complete_and_escaped() {
        let shown = images(vec![image()]);
        let (list, one) = (text(&shown), detailed(&shown));
        assert!(list.contains("docker.io/library/debian:12") && list.contains("LAYERS"), "{list}");
        assert!(one.contains("2 device nodes") && one.contains("/state/images/layers/1"), "{one}");
        assert!(!one.contains('\u{1b}'), "{one}");
    }
}
