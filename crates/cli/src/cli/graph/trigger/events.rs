//! Sources of events that start runs: lines, files, the clock, messages.

use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sublet_manager::store::connect_nats;
use sublet_proto::run::MAX_OUTPUT_BYTES;
use sublet_proto::{Code, Error};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::StreamExt;

use super::event::{EventInput, TriggerEvent, thread, unreachable};
use super::files;
use crate::cli::parse::duration;

/// Source of the events.
#[derive(Debug, Args)]
pub(super) struct TriggerKind {
    #[command(flatten)]
    of: Of,

    /// Servers of the messages
    #[arg(long, value_name = "ADDRESSES", env = "SUBLET_NATS", default_value = "nats://127.0.0.1:4222")]
    nats_url: String,

    /// PEM file of the certificate authority that issued the servers' certificates [default: the system's authorities]
    #[arg(long, value_name = "FILE")]
    nats_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Of {
    /// Run for each line of standard input, with the line, without its newline, as input
    #[arg(long)]
    lines: bool,

    /// Run for each file that is in this folder, is written and closed there, or is moved there. Hidden files are ignored
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,

    /// Run at this interval, with empty input. Ticks during a run are skipped
    #[arg(long, value_name = "TIME", value_parser = duration)]
    every: Option<Duration>,

    /// Run for each message on this NATS subject. Several triggers of the same graph share the messages
    #[arg(long, value_name = "SUBJECT")]
    nats: Option<String>,
}

/// Stream of events.
pub(super) enum EventStream {
    /// Events from a thread that waits for them.
    Thread(Receiver<Result<TriggerEvent, Error>>),
    Clock(Interval, u64),
    Messages(async_nats::Client, async_nats::Subscriber, u64),
}

impl TriggerKind {
    /// Opens the source of events for the graph of this name.
    pub(super) async fn open(&self, graph: &str) -> Result<EventStream, Error> {
        let Of { files, every, nats, .. } = &self.of;
        if let Some(folder) = files {
            return files::watch(folder).map(EventStream::Thread);
        }
        if let Some(every) = every {
            if every.is_zero() {
                return Err(Error::new(
                    Code::InvalidArgument,
                    "--every 0s is not valid: it must be more than 0",
                ));
            }
            let mut clock = interval(*every);
            clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
            return Ok(EventStream::Clock(clock, 0));
        }
        match nats {
            None => lines().map(EventStream::Thread),
            Some(subject) => {
                let client = connect_nats(&self.nats_url, self.nats_ca.as_deref(), "sublet-trigger").await?;
                let group = format!("sublet-{graph}");
                let messages = client.queue_subscribe(subject.clone(), group).await;
                let messages = messages.map_err(|error| {
                    let message = format!("cannot subscribe to {subject:?}: {error}");
                    Error::new(Code::InvalidArgument, message)
                })?;
                // After the flush, the server delivers every later message.
                client.flush().await.map_err(|error| unreachable(&error))?;
                Ok(EventStream::Messages(client, messages, 0))
            }
        }
    }
}

impl EventStream {
    /// Waits for the next event; `None` after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<TriggerEvent>, Error> {
        match self {
            EventStream::Thread(events) => events.recv().await.transpose(),
            EventStream::Clock(clock, count) => {
                clock.tick().await;
                *count += 1;
                Ok(Some(TriggerEvent::numbered(*count, EventInput::Bytes(Vec::new()))))
            }
            EventStream::Messages(client, messages, count) => {
                let Some(message) = messages.next().await else {
                    return Err(Error::new(Code::System, "the NATS servers ended the subscription"));
                };
                *count += 1;
                let bytes = message.payload.to_vec();
                Ok(Some(TriggerEvent::numbered(
                    *count,
                    match message.reply {
                        None => EventInput::Bytes(bytes),
                        Some(to) => EventInput::Asked(bytes, client.clone(), to),
                    },
                )))
            }
        }
    }
}

/// Reads lines of standard input on demand.
fn lines() -> Result<Receiver<Result<TriggerEvent, Error>>, Error> {
    let (tell, events) = channel(1);
    let read = move || {
        let mut input = stdin().lock();
        for number in 1.. {
            let event = match line(&mut input) {
                Ok(None) => break,
                Ok(Some(bytes)) => Ok(TriggerEvent::numbered(number, EventInput::Bytes(bytes))),
                Err(error) => Err(Error::new(Code::System, format!("reading standard input: {error}"))),
            };
            let is_last = event.is_err();
            if tell.blocking_send(event).is_err() || is_last {
                break;
            }
        }
    };
    thread("sublet lines", read)?;
    Ok(events)
}

/// Reads the next line without its newline; at most one byte more than a run's input may have.
fn line(input: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        let there = match input.fill_buf() {
            Ok(there) => there,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if there.is_empty() {
            return Ok((!bytes.is_empty()).then_some(bytes));
        }
        let end = there.iter().position(|byte| *byte == b'\n');
        let part = &there[..end.unwrap_or(there.len())];
        let room = (MAX_OUTPUT_BYTES + 1).saturating_sub(bytes.len());
        bytes.extend_from_slice(&part[..part.len().min(room)]);
        debug_assert!(bytes.len() <= MAX_OUTPUT_BYTES + 1, "{} bytes are kept of a line", bytes.len());
        let read = part.len() + usize::from(end.is_some());
        input.consume(read);
        if end.is_some() {
            return Ok(Some(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_without_newlines() {
        let mut input = &b"one\n\nthree\xff\r\nlast"[..];
        let mut next = || line(&mut input).unwrap();
        assert_eq!(next().unwrap(), b"one");
        assert_eq!(next().unwrap(), b"");
        assert_eq!(next().unwrap(), b"three\xff\r");
        assert_eq!(next().unwrap(), b"last");
        assert_eq!(next(), None);
    }

    #[test]
    fn reads_one_byte_beyond_the_limit_of_a_long_line() {
        let long = [vec![b'x'; MAX_OUTPUT_BYTES * 2], b"\nnext".to_vec()].concat();
        let mut input = std::io::BufReader::with_capacity(1000, &long[..]);
        assert_eq!(line(&mut input).unwrap().unwrap().len(), MAX_OUTPUT_BYTES + 1);
        assert_eq!(line(&mut input).unwrap().unwrap(), b"next");
    }
}
