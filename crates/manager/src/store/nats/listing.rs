//! Lists the subjects of a stream.
//!
//! The server answers one request with all of the subjects, and takes the longer the more there are: beyond some ten
//! thousand, longer than an answer may take. A long list is therefore read as the stream's messages, only their
//! headers, by a consumer that the server forgets soon after.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::Stream;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::link::{NatsFailure, silent};

/// Most subjects of a stream that are requested at once.
const MAX_AT_ONCE: u64 = 10_000;
/// Messages that are requested at a time.
const WINDOW_MESSAGES: usize = 10_000;
/// Time without a message after which a list is read from its beginning again.
const SILENCE: Duration = Duration::from_secs(5);
/// Times that a list is begun anew before the server counts as silent.
const ATTEMPTS: u32 = 3;
/// Time for which the server remembers an unused consumer.
const CONSUMER_IDLE: Duration = Duration::from_secs(30);

/// Returns the subjects, among these, that a stream has messages of. A subject may occur twice.
pub(super) async fn subjects(
    jetstream: Context,
    stream: String,
    filter: String,
) -> Result<Vec<String>, NatsFailure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    let count = stream.get_info().await.map_err(silent)?.state.subjects_count;
    if count <= MAX_AT_ONCE { at_once(&stream, filter).await } else { one_by_one(&stream, filter).await }
}

/// Whether a stream has a message of this subject, readable or not.
pub(super) async fn has(jetstream: &Context, stream: &str, subject: &str) -> Result<bool, NatsFailure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    Ok(!at_once(&stream, subject.to_owned()).await?.is_empty())
}

async fn at_once(stream: &Stream<()>, filter: String) -> Result<Vec<String>, NatsFailure> {
    let mut pages = stream.info_with_subjects(filter).await.map_err(silent)?;
    let mut found = Vec::new();
    while let Some(next) = pages.next().await {
        found.push(next.map_err(silent)?.0);
    }
    Ok(found)
}

async fn one_by_one(stream: &Stream<()>, filter: String) -> Result<Vec<String>, NatsFailure> {
    for _ in 0..ATTEMPTS {
        if let Some(found) = read_through(stream, &filter).await? {
            return Ok(found);
        }
    }
    Err(NatsFailure::Silent(format!("it does not list {filter} to its end")))
}

/// Returns all subjects; `None` if the server fell silent on the way. Messages that it sends then may be lost, so the
/// list would be incomplete.
async fn read_through(stream: &Stream<()>, filter: &str) -> Result<Option<Vec<String>>, NatsFailure> {
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
    // A key that is written meanwhile moves to the end: all are known once the end was reached, even for a moment.
    let mut left = consumer.cached_info().num_pending;
    while left > 0 {
        let known = found.len();
        let mut window = consumer.fetch().max_messages(WINDOW_MESSAGES).messages().await.map_err(silent)?;
        while left > 0 {
            // The server does not always announce the end of a window while messages are replaced.
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
