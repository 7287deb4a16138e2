//! Sends requests to JetStream, without any state and without knowledge of the subjects' meaning.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, DeleteStreamErrorKind, GetStreamErrorKind, PublishError,
    PublishErrorKind,
};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{Config, DeleteMessageErrorKind, DiscardPolicy, LastRawMessageErrorKind};
use async_nats::jetstream::{self, Context, ErrorCode};
use tokio_stream::StreamExt;

use super::link::{NatsFailure, silent};
use super::listing;
use super::names::StoreStream;
use super::sequences::Sequences;
use crate::store::seal::seal;
use crate::store::{BLOB_PART_BYTES, VersionedValue, hex};

/// Largest piece of a blob's part, in bytes: well below the limit of one message when the server sends it in JSON.
pub(super) const PIECE_BYTES: usize = 512 << 10;
/// Pieces of a part.
pub(super) const MAX_PIECES: usize = BLOB_PART_BYTES.div_ceil(PIECE_BYTES);
/// The header with the checksum of a key's value. Values of earlier versions have none.
const SEAL_HEADER: &str = "Sublet-Seal";
/// The header in which a copy has the sequence number of its original.
const COPY_HEADER: &str = "Sublet-Copy-Of";
/// The header in which a part's first piece has the length of the part.
const PART_BYTES_HEADER: &str = "Sublet-Part-Bytes";
/// Messages that are sent and not yet acknowledged.
const MAX_UNACKNOWLEDGED: usize = 1024;

/// Longest time that a stream in the making takes until it accepts messages.
const MAKING: Duration = Duration::from_secs(1);
/// Times that a message is looked up which is listed and not found.
const LOOKS: u32 = 3;
/// Pause between two tries.
const NAP: Duration = Duration::from_millis(20);

/// A message to be published.
#[derive(Clone)]
pub(super) struct Change {
    subject: String,
    message: PublishMessage,
}

impl Change {
    /// A key's new value.
    pub(super) fn put(subject: String, value: &[u8]) -> Change {
        Change { subject, message: PublishMessage::build().payload(value.to_vec().into()) }
    }

    /// A key's new value with its checksum.
    pub(super) fn sealed(subject: String, key: &str, value: &[u8]) -> Change {
        let mut change = Change::put(subject, value);
        change.message = change.message.header(SEAL_HEADER, hex(&seal(key, 0, value)).as_str());
        change
    }

    /// A copy of the message of this sequence number.
    pub(super) fn copy_of(mut self, sequence: u64) -> Change {
        self.message = self.message.header(COPY_HEADER, sequence.to_string().as_str());
        self
    }
}

/// Tells whether a message has the value that was written under a key, by its checksum.
pub(super) fn is_whole(key: &str, message: &StreamMessage) -> bool {
    let written = message.headers.get(SEAL_HEADER);
    written.is_none_or(|written| written.as_str() == hex(&seal(key, 0, &message.payload)))
}

/// Returns the value of a message, with its sequence number as the version.
pub(super) fn versioned(message: &StreamMessage) -> VersionedValue {
    VersionedValue { value: message.payload.to_vec(), version: message.sequence }
}

/// Returns the sequence number of the message that a copy is of.
pub(super) fn copied_sequence(copy: &StreamMessage) -> Option<u64> {
    copy.headers.get(COPY_HEADER)?.as_str().parse().ok()
}

/// Returns the names of all streams of the account.
pub(super) async fn stream_names(jetstream: Context) -> Result<Vec<String>, NatsFailure> {
    let mut pages = jetstream.stream_names();
    let mut names = Vec::new();
    while let Some(next) = pages.next().await {
        names.push(next.map_err(silent)?);
    }
    Ok(names)
}

/// Makes a stream unless it exists.
pub(super) async fn ensure(
    jetstream: Context,
    series: StoreStream,
    replicas: usize,
) -> Result<(), NatsFailure> {
    let config = Config {
        name: series.name,
        subjects: vec![series.subjects],
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        num_replicas: replicas,
        ..Config::default()
    };
    let name = config.name.clone();
    let Err(error) = jetstream.get_or_create_stream(config).await else { return Ok(()) };
    // If several managers start at the same time, all but one may get the error that another stream has the subjects.
    match jetstream.get_stream(name).await {
        Ok(_) => Ok(()),
        Err(_) => Err(NatsFailure::from(error)),
    }
}

/// Publishes messages in order, and waits until each is acknowledged. Returns the stream and the sequence number of each.
pub(super) async fn publish_all(
    jetstream: Context,
    changes: Vec<Change>,
) -> Result<Vec<(String, u64)>, NatsFailure> {
    let begun = Instant::now();
    loop {
        match publish_each(&jetstream, &changes).await {
            // Messages that are stored already may be stored once more: a repeated put has the same effect.
            Err(error) if is_being_made(&error, begun) => tokio::time::sleep(NAP).await,
            ended => return Ok(ended?),
        }
    }
}

/// Tells whether the stream seems to be missing, but not for long: another manager may be making it, and the stream is
/// known before it accepts messages.
fn is_being_made(error: &PublishError, begun: Instant) -> bool {
    error.kind() == PublishErrorKind::StreamNotFound && begun.elapsed() < MAKING
}

async fn publish_each(jetstream: &Context, changes: &[Change]) -> Result<Vec<(String, u64)>, PublishError> {
    let mut sequences = Vec::with_capacity(changes.len());
    let mut unacknowledged = VecDeque::with_capacity(changes.len().min(MAX_UNACKNOWLEDGED));
    for change in changes {
        if unacknowledged.len() == MAX_UNACKNOWLEDGED
            && let Some(oldest) = unacknowledged.pop_front()
        {
            sequences.push(place(oldest.await?));
        }
        let Change { subject, message } = change.clone();
        unacknowledged.push_back(jetstream.send_publish(subject, message).await?);
    }
    for sent in unacknowledged {
        sequences.push(place(sent.await?));
    }
    Ok(sequences)
}

fn place(PublishAck { stream, sequence, .. }: PublishAck) -> (String, u64) {
    (stream, sequence)
}

/// Publishes a message if the last one of its subject has this sequence number; otherwise does nothing.
pub(super) async fn publish_if(
    jetstream: Context,
    change: Change,
    sequence: u64,
) -> Result<Option<Sequences>, NatsFailure> {
    let message = change.message.expected_last_subject_sequence(sequence);
    let begun = Instant::now();
    loop {
        let sent = jetstream.send_publish(change.subject.clone(), message.clone()).await?;
        match sent.await {
            Ok(PublishAck { stream, sequence, .. }) => {
                return Ok(Some(Sequences::from([(stream, sequence)])));
            }
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => return Ok(None),
            Err(error) if is_being_made(&error, begun) => tokio::time::sleep(NAP).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes the last messages of these subjects, if they exist: a stream and a subject each.
pub(super) async fn remove_all(jetstream: Context, places: Vec<(String, String)>) -> Result<(), NatsFailure> {
    let remove = |(stream, subject)| tokio::spawn(remove(jetstream.clone(), stream, subject));
    together(places.into_iter().map(remove)).await.map(drop)
}

/// Removes a message by its sequence number. A purge by subject searches all of the stream, and nats-server 2.9.10
/// keeps counting purged messages as storage in use.
async fn remove(jetstream: Context, stream: String, subject: String) -> Result<(), NatsFailure> {
    let Some(last) = last(jetstream.clone(), stream.clone(), subject).await? else { return Ok(()) };
    delete(jetstream, stream, last.sequence).await.map(drop)
}

/// Deletes a message, and tells whether it existed.
pub(super) async fn delete(jetstream: Context, stream: String, sequence: u64) -> Result<bool, NatsFailure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    match stream.delete_message(sequence).await {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            // Another manager has removed or replaced it.
            DeleteMessageErrorKind::JetStream(refused)
                if refused.error_code() == ErrorCode::NO_MESSAGE_FOUND =>
            {
                Ok(false)
            }
            DeleteMessageErrorKind::JetStream(refused) => Err(NatsFailure::Refused(refused)),
            _ => Err(silent(error)),
        },
    }
}

/// Removes all messages of a stream up to this sequence number, readable or not.
pub(super) async fn purge_to(jetstream: Context, stream: String, sequence: u64) -> Result<(), NatsFailure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    stream.purge().sequence(sequence + 1).await.map(drop).map_err(silent)
}

/// The last message of a subject, as the stream's leader has it.
pub(super) async fn last(
    jetstream: Context,
    stream: String,
    subject: String,
) -> Result<Option<StreamMessage>, NatsFailure> {
    let stream = jetstream.get_stream_no_info(stream).await.map_err(silent)?;
    found(stream.get_last_raw_message_by_subject(&subject).await)
}

/// Returns the message as [`last`] does, or a failure if the server lists a message that it cannot read. If a server
/// finds its own checksum of a message wrong, it reports no message, but lists its subject. This takes the longer, the
/// more subjects there are.
pub(super) async fn last_or_lost(
    jetstream: Context,
    stream: String,
    subject: String,
) -> Result<Option<StreamMessage>, NatsFailure> {
    for _ in 0..LOOKS {
        let message = last(jetstream.clone(), stream.clone(), subject.clone()).await?;
        if message.is_some() || !listing::has(&jetstream, &stream, &subject).await? {
            return Ok(message);
        }
        // Another manager may have replaced or removed it in between.
    }
    Err(NatsFailure::Lost(subject))
}

/// Returns the message as [`last`] does, or a failure if only its copy exists. `copy` is the stream and the subject of
/// the copy.
pub(super) async fn last_or_dropped(
    jetstream: Context,
    stream: String,
    subject: String,
    copy: (String, String),
) -> Result<Option<StreamMessage>, NatsFailure> {
    for _ in 0..LOOKS {
        let message = last(jetstream.clone(), stream.clone(), subject.clone()).await?;
        let (stream_of_copy, copy) = copy.clone();
        if message.is_some() || last(jetstream.clone(), stream_of_copy, copy).await?.is_none() {
            return Ok(message);
        }
        // Another manager may have written or removed it in between.
    }
    Err(NatsFailure::Lost(subject))
}

/// The last message of each of these subjects.
pub(super) async fn last_of_each(
    jetstream: Context,
    stream: String,
    subjects: Vec<String>,
) -> Result<Vec<Option<StreamMessage>>, NatsFailure> {
    let ask = |subject| tokio::spawn(last(jetstream.clone(), stream.clone(), subject));
    together(subjects.into_iter().map(ask)).await
}

/// Removes a stream, if it exists.
pub(super) async fn remove_stream(jetstream: Context, name: String) -> Result<(), NatsFailure> {
    match jetstream.delete_stream(name).await {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            DeleteStreamErrorKind::JetStream(refused)
                if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(())
            }
            DeleteStreamErrorKind::JetStream(refused) => Err(NatsFailure::Refused(refused)),
            _ => Err(silent(error)),
        },
    }
}

/// The state of a stream; that of one that does not exist is zero.
#[derive(Clone, Copy, Default)]
pub(super) struct StreamState {
    /// Number of messages.
    pub(super) messages: u64,
    /// Number of subjects in the server's index.
    pub(super) subjects: u64,
    /// Sequence number of the last message.
    pub(super) last_sequence: u64,
}

/// Returns the states of streams by name.
pub(super) async fn states(
    jetstream: Context,
    streams: Vec<String>,
) -> Result<BTreeMap<String, StreamState>, NatsFailure> {
    let mut states = BTreeMap::new();
    for name in streams {
        let state = match jetstream.get_stream(&name).await {
            Ok(stream) => {
                let state = &stream.cached_info().state;
                StreamState {
                    messages: state.messages,
                    subjects: state.subjects_count,
                    last_sequence: state.last_sequence,
                }
            }
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(refused)
                    if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    StreamState::default()
                }
                GetStreamErrorKind::JetStream(refused) => return Err(NatsFailure::Refused(refused)),
                _ => return Err(silent(error)),
            },
        };
        states.insert(name, state);
    }
    Ok(states)
}

/// Splits a part into pieces: the first, which has the length of the part, and the others.
pub(super) fn pieces(data: &[u8], subject: impl Fn(usize) -> String) -> (Change, Vec<Change>) {
    let (head, tail) = data.split_at(data.len().min(PIECE_BYTES));
    let mut first = Change::put(subject(0), head);
    first.message = first.message.header(PART_BYTES_HEADER, data.len().to_string().as_str());
    let rest = tail.chunks(PIECE_BYTES).enumerate();
    (first, rest.map(|(index, piece)| Change::put(subject(index + 1), piece)).collect())
}

/// Joins a part of its pieces, if none is missing.
pub(super) fn join(pieces: &[Option<StreamMessage>]) -> Option<Vec<u8>> {
    let first = pieces.first()?.as_ref()?;
    let len_bytes = part_bytes(&first.headers)?;
    let count = len_bytes.div_ceil(PIECE_BYTES).max(1);
    let mut data = Vec::with_capacity(len_bytes.min(BLOB_PART_BYTES));
    for piece in pieces.get(..count)? {
        data.extend_from_slice(&piece.as_ref()?.payload);
    }
    (data.len() == len_bytes).then_some(data)
}

fn part_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(PART_BYTES_HEADER)?.as_str().parse().ok()
}

/// The outcomes of tasks that run beside one another, in the order of the tasks.
async fn together<T>(
    tasks: impl Iterator<Item = tokio::task::JoinHandle<Result<T, NatsFailure>>>,
) -> Result<Vec<T>, NatsFailure> {
    let tasks: Vec<_> = tasks.collect();
    let mut outcomes = Vec::with_capacity(tasks.len());
    for task in tasks {
        outcomes.push(task.await.map_err(silent)??);
    }
    Ok(outcomes)
}

fn found(
    answer: Result<StreamMessage, jetstream::stream::LastRawMessageError>,
) -> Result<Option<StreamMessage>, NatsFailure> {
    match answer {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(None),
            LastRawMessageErrorKind::JetStream(refused) => Err(NatsFailure::Refused(refused)),
            _ => Err(silent(error)),
        },
    }
}

impl From<CreateStreamError> for NatsFailure {
    fn from(error: CreateStreamError) -> NatsFailure {
        match error.kind() {
            CreateStreamErrorKind::JetStream(refused) => NatsFailure::Refused(refused),
            _ => silent(error),
        }
    }
}

impl From<PublishError> for NatsFailure {
    fn from(error: PublishError) -> NatsFailure {
        let refused =
            std::error::Error::source(&error).and_then(|source| source.downcast_ref::<jetstream::Error>());
        match refused {
            Some(refused) => NatsFailure::Refused(refused.clone()),
            None => silent(error),
        }
    }
}
