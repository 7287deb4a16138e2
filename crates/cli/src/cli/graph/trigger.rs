//! `sublet graph trigger`: runs a graph for each event (Scad 4.1).

mod event;
mod events;
mod files;
mod pending_file;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};
use sublet_runtime::run::{Application, RunOptions};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use super::run::{Conditions, outputs};
use crate::cli::daemon::{DaemonPhase, ForWhom, Signals, blocking, notify, stop_in_order};
use crate::cli::files::write_output;
use crate::cli::output::CommandOutput;
use crate::cli::parse::{duration, show_bytes, show_ns};
use event::TriggerEvent;
use events::TriggerKind;

const EXAMPLES: &str = "\
Examples:
  sublet graph trigger app.json --files inbox      run for each file that is or appears in the folder; after its
                                                     run the file moves to inbox/done or inbox/failed
  tail -F events.log | sublet graph trigger app --lines --output results
                                                   run for each line, with the line as input; outputs are results/1, results/2, ...
  sublet graph trigger app --every 5m              run at once, then every 5 minutes
  sublet graph trigger app --nats jobs.resize --nats-url nats://n1:4222
                                                   run for each message, with the message as input; the output is the reply

The command runs until there are no more events, or until Ctrl-C or SIGTERM: then it takes no further events, and waits for the
current runs. A second Ctrl-C stops it at once; `sublet graph resume` continues interrupted runs. A failed run is reported and stops
no other run; the exit status is then that of the last failure.";

/// Run a graph for each event
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Trigger {
    /// A document, which is deployed first, or the name or digest of a deployed graph. The path of a document contains a
    /// slash or ends with .json
    graph: String,

    #[command(flatten)]
    kind: TriggerKind,

    /// Maximum number of concurrent runs; further events wait
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    at_once: u32,

    /// Folder for outputs: one file per event, with the name of the event's file or a number from 1 on
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Keep idle workers this long for the next event
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    keep_alive: Duration,

    #[command(flatten)]
    conditions: Conditions,

    #[command(flatten)]
    for_whom: ForWhom,
}

/// Report for an event whose run succeeded.
#[derive(Serialize)]
struct SuccessReport<'run> {
    event: &'run str,
    run: &'run str,
    total_ns: u64,
    output_bytes: u64,
}

/// Report for an event whose run failed.
#[derive(Serialize)]
struct FailureReport<'run> {
    event: &'run str,
    error: &'run str,
    message: &'run str,
    number: u32,
}

/// Runs the graph for events.
struct Runner {
    application: Application,
    folder: Option<PathBuf>,
    output: CommandOutput,
    tally: Mutex<RunTally>,
}

#[derive(Default)]
struct RunTally {
    ended: u64,
    failed: u64,
    last: Option<Error>,
}

/// Runs until there are no more events, or until a signal.
pub(super) fn run(arguments: &Trigger, output: &CommandOutput) -> Result<(), Error> {
    let Trigger { graph, output: folder, keep_alive, conditions, .. } = arguments;
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::of_system(format_args!("cannot make {}", folder.display()), &error))?;
    }
    let options = RunOptions { keep_alive: *keep_alive, ..conditions.options() };
    let runner = Arc::new(Runner {
        application: conditions.open(graph, options)?,
        folder: folder.clone(),
        output: CommandOutput::new(!output.is_for_people()),
        tally: Mutex::default(),
    });
    let failed = |error| Error::of_system("cannot make a tokio runtime", &error);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let served = runtime.block_on(serve(arguments, &runner));
    runtime.shutdown_background();
    served.and(runner.verdict())
}

async fn serve(arguments: &Trigger, runner: &Arc<Runner>) -> Result<(), Error> {
    let Trigger { kind, at_once, for_whom, .. } = arguments;
    let mut signals = Signals::listen_for(for_whom)?;
    let mut events = kind.open(&runner.application.graph().name).await?;
    notify(DaemonPhase::Ready);
    let slots = Arc::new(Semaphore::new(*at_once as usize));
    let mut runs = JoinSet::new();
    let ended = loop {
        // A slot first, then the event: events that cannot run yet wait at their source.
        let slot = tokio::select! {
            slot = slots.clone().acquire_owned() => slot,
            () = signals.next() => break Ok(()),
        };
        let event = tokio::select! {
            event = events.next() => event,
            () = signals.next() => break Ok(()),
        };
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let seeing = runner.clone();
        runs.spawn(async move {
            let done = seeing.see_to(event).await;
            drop(slot);
            done
        });
        while let Some(done) = runs.try_join_next() {
            runner.note_end(done);
        }
    };
    // Later events are for other consumers.
    drop(events);
    let rest = async {
        while let Some(done) = runs.join_next().await {
            runner.note_end(done);
        }
        Ok(())
    };
    stop_in_order(rest, &mut signals).await?;
    ended
}

impl Runner {
    /// Runs the graph for an event, again if the event has changed meanwhile.
    async fn see_to(self: &Arc<Runner>, event: TriggerEvent) -> Result<(), Error> {
        let event = Arc::new(event);
        loop {
            let (runner, of) = (self.clone(), event.clone());
            let ran = blocking(move || runner.run(&of)).await;
            let done = ran.as_ref().map(drop).map_err(Error::clone);
            if event.finish(ran).await? {
                return done;
            }
            // The event has changed: this run counts on its own, and another one follows.
            self.note(done);
        }
    }

    /// Runs the graph once and returns its output.
    fn run(&self, event: &TriggerEvent) -> Result<Vec<u8>, Error> {
        let begun = Instant::now();
        let outcome = event.input().and_then(|input| self.application.run(&input)).and_then(|outcome| {
            let bytes = outputs(&outcome);
            if let Some(folder) = &self.folder {
                write_output(&folder.join(&event.name), &bytes)?;
            }
            Ok((outcome.run, bytes))
        });
        let total_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.tell(&event.name, total_ns, &outcome)?;
        outcome.map(|(_, bytes)| bytes)
    }

    fn tell(
        &self,
        event: &str,
        total_ns: u64,
        outcome: &Result<(String, Vec<u8>), Error>,
    ) -> Result<(), Error> {
        match outcome {
            Ok((run, bytes)) => {
                let report = SuccessReport { event, run, total_ns, output_bytes: bytes.len() as u64 };
                self.output.show(&report, |report| {
                    let SuccessReport { event, run, total_ns, output_bytes } = report;
                    format!(
                        "{event}: run {run} succeeded in {}, output {}",
                        show_ns(*total_ns),
                        show_bytes(*output_bytes)
                    )
                })
            }
            Err(Error { code, message }) => {
                let failed = FailureReport { event, error: code.name(), message, number: code.number() };
                self.output.show(&failed, |_| format!("{event}: error[{code}]: {message}"))
            }
        }
    }

    fn note_end(&self, done: Result<Result<(), Error>, JoinError>) {
        let failed =
            |error: JoinError| Err(Error::new(Code::Internal, format!("a run's task failed: {error}")));
        self.note(done.unwrap_or_else(failed));
    }

    fn note(&self, done: Result<(), Error>) {
        let mut tally = lock(&self.tally);
        tally.ended += 1;
        if let Err(error) = done {
            tally.failed += 1;
            tally.last = Some(error);
        }
        debug_assert!(tally.failed <= tally.ended, "{} of {} runs failed", tally.failed, tally.ended);
    }

    /// Returns the last error, if a run failed.
    fn verdict(&self) -> Result<(), Error> {
        let mut tally = lock(&self.tally);
        let (failed, ended) = (tally.failed, tally.ended);
        debug_assert_eq!(tally.last.is_some(), failed > 0, "an error of {failed} failed runs");
        match tally.last.take() {
            None => Ok(()),
            Some(Error { code, message }) => {
                Err(Error::new(code, format!("{failed} of {ended} runs failed, the last with: {message}")))
            }
        }
    }
}
