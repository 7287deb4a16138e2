//! `sublet sandbox`: the five verbs of the OCI runtime, with which operators create and inspect sandboxes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_image::{Digest, Image, ImageStore, Reference};
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{SandboxAnswer, SandboxCreate, SandboxIds, SandboxKill, SandboxList};
use sublet_proto::v1::{SandboxRequest, SandboxSpec, SandboxTemplate};
use sublet_proto::{Code, Error};
use sublet_runtime::access::default_state;
use sublet_sandbox::{
    CONTAINER, DELEGATED, MAX_VECTOR, PROCESS, SandboxState, SandboxStatus, Signal, TEMPLATE, decode_answer,
    encode_language,
};

use super::output::{CommandOutput, table};
use super::parse::{absolute, size};

const EXAMPLES: &str = "\
Examples:
  sublet sandbox create -- /bin/ls -l /          create a sandbox without starting its program
  sublet sandbox create --count 8 --start --memory 64MiB -- /usr/bin/python3 -c 'print(1)'
  sublet sandbox create --start --image debian:12 -- /bin/ls -l /
  sublet sandbox create --start --template python --import numpy -- ./job.py 7
  sublet sandbox start 3 4                        start the programs of two
  sublet sandbox state                            show all sandboxes of the node, including those of leases
  sublet sandbox kill 3 --signal TERM
  sublet sandbox delete 3 4                       delete two that have ended
  sublet sandbox state --json                     {\"sandboxes\": [{\"id\": 3, \"status\": \"stopped\", \"pid\": 71, ...}]}

The node's agent creates sandboxes, for its own user and for root. A program's output goes to the agent's log in lines that begin
with [sandbox ID], at most 256 KiB a second. Of the host, a program sees only shared libraries. Sandboxes of leases are shown, but
end only with their leases.";

/// Create, start, inspect, kill and delete sandboxes of this node
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,

    /// Unix socket of the agent [default: $SUBLET_AGENT, or the socket of this user's `sublet up`]
    #[arg(long, value_name = "PATH", global = true)]
    agent: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Create(Box<Create>),
    Start(Ids),
    State(AnyIds),
    Kill(Kill),
    Delete(Ids),
}

/// Create sandboxes for a program
#[derive(Debug, Args)]
struct Create {
    /// Program and arguments; in an image, a path within it [default: the image's program]
    #[arg(required_unless_present = "image", last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,

    /// Create containers of an image of this node, by its name in `sublet image list`
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// OCI runtime that creates the containers
    #[arg(long, value_name = "PROGRAM", requires = "image", value_parser = absolute)]
    runtime: Option<PathBuf>,

    /// Fork a warm language runtime of the node, which executes the program's source file
    #[arg(long, value_enum, value_name = "LANGUAGE", conflicts_with = "image")]
    template: Option<LanguageArgument>,

    /// Modules to import ahead of time once they are requested often enough
    #[arg(long = "import", value_name = "MODULE", value_delimiter = ',', requires = "template")]
    imports: Vec<String>,

    /// Number of identical sandboxes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_VECTOR as i64))]
    count: u32,

    /// Start the programs at once
    #[arg(long)]
    start: bool,

    /// Folder that the program sees, read-only, as /package
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    folder: Option<PathBuf>,

    /// Variable for the environment, which is empty otherwise
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,

    /// Cores on which the program may run, as 0,3 [default: all cores of the agent]
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    cores: Vec<u32>,

    /// Maximum memory of all processes together, as 64MiB [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Maximum number of processes and threads [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    processes: Option<u32>,

    /// Size of /tmp
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    scratch: u64,

    /// Let it use this machine's network
    #[arg(long)]
    network: bool,
}

/// A language whose runtime nodes keep warm.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LanguageArgument {
    /// Interpreter of `sublet up --python` or the agent's configuration.
    Python,
    /// Node.js of `sublet up --node` or the agent's configuration.
    Node,
}

/// Ids of sandboxes
#[derive(Debug, Args)]
struct Ids {
    /// Ids of the sandboxes, as `create` has printed them
    #[arg(required = true, value_name = "ID", num_args = 1..=MAX_VECTOR)]
    ids: Vec<u64>,
}

/// Show the state of sandboxes
#[derive(Debug, Args)]
struct AnyIds {
    /// Ids of the sandboxes [default: all]
    #[arg(value_name = "ID", num_args = 0..=MAX_VECTOR)]
    ids: Vec<u64>,
}

/// Send a signal to the programs of sandboxes
#[derive(Debug, Args)]
struct Kill {
    #[command(flatten)]
    which: Ids,

    /// Signal, as TERM or 15; KILL ends everything in the sandbox
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    signal: i32,
}

/// JSON output, whose format is stable.
#[derive(Debug, Serialize)]
struct SandboxesOutput {
    sandboxes: Vec<SandboxView>,
}

#[derive(Debug, Serialize)]
struct SandboxView {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Exit status or signal of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<String>,
    /// Error of the verb for this sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Sends the request to the agent and shows the state of each sandbox. Fails if the verb failed for one of them.
pub(crate) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    let socket =
        super::given(&arguments.agent, "SUBLET_AGENT").unwrap_or_else(|| default_state().join("agent.sock"));
    let ask = |body| sublet_agent::sandboxes(&socket, SandboxRequest { body: Some(body) });
    let (verb, answers) = match arguments.verb {
        Verb::Create(create) => {
            let images = socket.with_file_name("images");
            ("create", ask(Body::Create(specifications(*create, &images)?))?)
        }
        Verb::Start(Ids { ids }) => ("start", ask(Body::Start(SandboxIds { ids }))?),
        Verb::State(AnyIds { ids }) if ids.is_empty() => ("look at", all(ask)?),
        Verb::State(AnyIds { ids }) => ("look at", ask(Body::State(SandboxIds { ids }))?),
        Verb::Kill(Kill { which: Ids { ids }, signal }) => {
            ("kill", ask(Body::Kill(SandboxKill { ids, signal }))?)
        }
        Verb::Delete(Ids { ids }) => ("delete", ask(Body::Delete(SandboxIds { ids }))?),
    };
    let told: Vec<_> = answers.into_iter().map(|answer| (answer.id, decode_answer(answer, verb))).collect();
    let mut failed = None;
    let sandboxes = told.into_iter().map(|(id, outcome)| match outcome {
        Ok((_, SandboxState { status, pid, exit })) => SandboxView {
            id,
            status: Some(name(status)),
            pid,
            exit: exit.map(|exit| exit.to_string()),
            error: None,
        },
        Err(error) => {
            let message = error.to_string();
            failed.get_or_insert(Error::new(Code::InvalidArgument, message.clone()));
            SandboxView { id, status: None, pid: None, exit: None, error: Some(message) }
        }
    });
    let sandboxes = SandboxesOutput { sandboxes: sandboxes.collect() };
    output.show(&sandboxes, text)?;
    failed.map_or(Ok(()), Err)
}

/// Fetches the state of all sandboxes, in batches that fit into a reply.
fn all(ask: impl Fn(Body) -> Result<Vec<SandboxAnswer>, Error>) -> Result<Vec<SandboxAnswer>, Error> {
    let mut known = Vec::new();
    loop {
        let from = known.last().map_or(0, |last: &SandboxAnswer| last.id + 1);
        match ask(Body::List(SandboxList { from }))? {
            more if more.is_empty() => return Ok(known),
            more => known.extend(more),
        }
    }
}

fn specifications(mut create: Create, images: &Path) -> Result<SandboxCreate, Error> {
    let words = std::mem::take(&mut create.program);
    let of_kind = match &create.image {
        None => of_host(words, create.template, create.imports)?,
        Some(name) => of_image(words, create.runtime.as_deref(), &find_image(images, name)?)?,
    };
    let env = create.env.into_iter().map(String::into_bytes);
    let spec = SandboxSpec {
        env: of_kind.env.iter().cloned().chain(env).collect(),
        folder: create.folder.map(|folder| folder.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
        host_network: create.network,
        cores: create.cores,
        memory_bytes: create.memory.unwrap_or(0),
        processes: create.processes.unwrap_or(0),
        scratch_bytes: create.scratch,
        ..of_kind
    };
    debug_assert!((1..=MAX_VECTOR).contains(&(create.count as usize)), "{} sandboxes at once", create.count);
    Ok(SandboxCreate { specs: vec![spec; create.count as usize], start: create.start })
}

fn of_host(
    words: Vec<OsString>,
    template: Option<LanguageArgument>,
    imports: Vec<String>,
) -> Result<SandboxSpec, Error> {
    let mut words = words.into_iter();
    let program = absolute(&words.next().unwrap_or_default().to_string_lossy())
        .map_err(|reason| Error::new(Code::InvalidArgument, reason))?;
    Ok(SandboxSpec {
        kind: if template.is_some() { TEMPLATE } else { PROCESS },
        // The agent fills in the rest.
        template: template.map(|language| {
            let language = match language {
                LanguageArgument::Python => sublet_sandbox::Language::Python,
                LanguageArgument::Node => sublet_sandbox::Language::Node,
            };
            SandboxTemplate { language: encode_language(language), imports, ..SandboxTemplate::default() }
        }),
        program: program.into_os_string().into_vec(),
        args: words.map(OsString::into_vec).collect(),
        ..SandboxSpec::default()
    })
}

fn of_image(words: Vec<OsString>, runtime: Option<&Path>, image: &Image) -> Result<SandboxSpec, Error> {
    let own = image.config.entry_point.iter().chain(&image.config.cmd).map(OsString::from);
    let words: Vec<OsString> = if words.is_empty() { own.collect() } else { words };
    let (program, args) =
        words.split_first().ok_or_else(|| refuse("the image names no program".to_owned()))?;
    if !Path::new(program).is_absolute() {
        return Err(refuse(format!("the program {program:?} is not an absolute path in the image")));
    }
    let folder = Some(&image.config.working_folder).filter(|folder| !folder.is_empty());
    Ok(SandboxSpec {
        kind: if runtime.is_some() { DELEGATED } else { CONTAINER },
        program: program.as_bytes().to_vec(),
        program_inside: true,
        args: args.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: image.config.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect(),
        layers: image.layers.iter().map(|layer| layer.as_os_str().as_bytes().to_vec()).collect(),
        working_folder: folder.map_or("/", String::as_str).as_bytes().to_vec(),
        runtime: runtime.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
        ..SandboxSpec::default()
    })
}

/// Finds an image by its digest, or by the name it was pulled or imported with.
fn find_image(folder: &Path, name: &str) -> Result<Image, Error> {
    let none = || refuse(format!("this node has no image {name:?}: see `sublet image list`"));
    if !folder.is_dir() {
        return Err(none());
    }
    let store = ImageStore::open(folder)?;
    let found = match name.parse::<Digest>() {
        Ok(digest) => store.find(&digest)?,
        Err(_) => store.named(&name.parse::<Reference>()?.to_string())?,
    };
    found.ok_or_else(none)
}

fn refuse(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

/// Parses a signal: a number, or a name with or without SIG.
fn signal(text: &str) -> Result<i32, String> {
    let named = |number: &i32| {
        let is_it = |name: &str| name == text || name.strip_prefix("SIG") == Some(text);
        sublet_sandbox::signal_name(*number).is_some_and(is_it)
    };
    let number = text.parse().ok().or_else(|| (1..=64).find(named));
    let known = number.filter(|&number| Signal::from_named_raw(number).is_some());
    known.ok_or_else(|| format!("{text:?} is not a signal: write it as TERM or 15"))
}

fn name(status: SandboxStatus) -> &'static str {
    match status {
        SandboxStatus::Creating => "creating",
        SandboxStatus::Created => "created",
        SandboxStatus::Running => "running",
        SandboxStatus::Stopped => "stopped",
    }
}

fn text(SandboxesOutput { sandboxes }: &SandboxesOutput) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| {
            vec![
                sandbox.id.to_string(),
                or_dash(sandbox.status.map(str::to_owned)),
                or_dash(sandbox.pid.map(|pid| pid.to_string())),
                or_dash(sandbox.exit.clone().or_else(|| sandbox.error.clone())),
            ]
        })
        .collect();
    table(&["ID", "STATUS", "PID", "END"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_signals_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "15"] {
            assert_eq!(signal(text), Ok(15), "{text}");
        }
        for text in ["", "SIG", "0", "65", "-9", "TERMINATE", "term"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rejects_variables_without_name() {
        assert!(variable("A=").is_ok() && variable("A=b=c").is_ok());
        assert!(variable("=b").is_err() && variable("A").is_err());
    }
}
