//! Lists the subjects of a stream.
//!
//! The server answers one request with all of the subjects, which it takes the longer for the more there are: beyond
//! some ten thousand, longer than an answer may take. A long list is therefore read as the stream's messages, without
//! what they hold, by a consumer that the server forgets soon after.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::Stream;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::link::Failure;
use super::operations::silent;

/// Subjects that a stream may have to be asked for all of them at once.
const MAX_AT_ONCE: u64 = 10_000;
/// Messages that are asked for at a time.
const WINDOW_MESSAGES: usize = 10_000;
/// After so long without a message a list is read from its beginning again.
const SILENCE: Duration = Duration::from_secs(5);
/// Times that a list is begun anew before the server counts as silent.
const ATTEMPTS: u32 = 3;
/// How long the server remembers a consumer that nobody uses.
const CONSUMER_IDLE: Duration = Duration::from_secs(30);

/// The subjects that a stream has messages of, among these. One may stand there twice.
pub(super) async fn subjects(
    jetstream: Context,
    stream: String,
    filter: String,
) -> Result<Vec<String>, Failure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    let count = stream.get_info().await.map_err(silent)?.state.subjects_count;
    if count <= MAX_AT_ONCE { at_once(&stream, filter).await } else { one_by_one(&stream, filter).await }
}

/// Whether a stream has a message of this subject, readable or not.
pub(super) async fn has(jetstream: &Context, stream: &str, subject: &str) -> Result<bool, Failure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    Ok(!at_once(&stream, subject.to_owned()).await?.is_empty())
}

async fn at_once(stream: &Stream<()>, filter: String) -> Result<Vec<String>, Failure> {
    let mut pages = stream.info_with_subjects(filter).await.map_err(silent)?;
    let mut found = Vec::new();
    while let Some(next) = pages.next().await {
        found.push(next.map_err(silent)?.0);
    }
    Ok(found)
}

async fn one_by_one(stream: &Stream<()>, filter: String) -> Result<Vec<String>, Failure> {
    for _ in 0..ATTEMPTS {
        if let Some(found) = read_through(stream, &filter).await? {
            return Ok(found);
        }
    }
    Err(Failure::Silent(format!("it does not list {filter} to its end")))
}

/// All of them; none if the server fell silent on the way. What it sends then may be lost, so nothing of it is complete.
async fn read_through(stream: &Stream<()>, filter: &str) -> Result<Option<Vec<String>>, Failure> {
    let config = pull::Config {
        filter_subject: filter.to_owned(),
        ack_policy: AckPolicy::None,
        headers_only: true,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: CONSUMER_IDLE,
        ..pull::Config::default()
    };
    let consumer: PullConsumer = stream.create_consumer(config).await.map_err(silent)?;
    let mut found = Vec::new();
    // A key that is written meanwhile moves to the end: all are known once the end was reached, be it for a moment.
    let mut left = consumer.cached_info().num_pending;
    while left > 0 {
        let known = found.len();
        let mut window = consumer.fetch().max_messages(WINDOW_MESSAGES).messages().await.map_err(silent)?;
        while left > 0 {
            // The end of a window is not always told where messages are replaced meanwhile.
            let Ok(next) = timeout(SILENCE, window.next()).await else { return Ok(None) };
            let Some(message) = next else { break };
            let message = message.map_err(silent)?;
            left = message.info().map_err(silent)?.pending;
            found.push(message.subject.to_string());
        }
        if found.len() == known {
            break;
        }
    }
    stream.delete_consumer(&consumer.cached_info().name).await.map_err(silent)?;
    Ok(Some(found))
}
