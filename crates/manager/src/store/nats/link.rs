//! The connection to a server of NATS: blocking calls on the outside, one thread of its own with an async runtime
//! inside.
//!
//! It reconnects by itself. While it is not connected every operation fails at once instead of waiting in line: a
//! request that is sent minutes late might undo another manager's later write. An operation that is under way when the
//! server falls silent fails at its deadline, and may still be carried out.

use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{Client, ConnectOptions};
use sublet_proto::{Code, Error};
use tokio::runtime::Runtime;

use super::options::NatsOptions;
use super::servers::Servers;

/// Longest time for a server's answer to one request.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest time of an operation of many requests, each within its own deadline.
const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// Longest time for a server's answer to a ping. After two pings without an answer the connection is closed.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Largest message that the server must take, in bytes: its own default.
const MESSAGE_BYTES: usize = 1 << 20;

/// A connection.
pub(super) struct NatsConnection {
    /// `None` once it is closed.
    runtime: Option<Runtime>,
    client: Client,
    jetstream: Context,
    servers: String,
}

/// Failure of an operation.
#[derive(Debug)]
pub(super) enum NatsFailure {
    /// The server answered that it will not.
    Refused(jetstream::Error),
    /// No server answered, or its answer could not be understood.
    Silent(String),
    /// The server has a message of this subject that it cannot read.
    Lost(String),
}

impl NatsConnection {
    /// Connects to one of the servers.
    pub(super) fn open(options: &NatsOptions) -> Result<NatsConnection, Error> {
        let servers = Servers::parse(&options.url)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sublet-nats")
            .enable_all()
            .build()
            .map_err(|error| Error::new(Code::System, format!("cannot start the store's thread: {error}")))?;
        let mut connect = ConnectOptions::new()
            .name("sublet-manager")
            .ping_interval(PING_INTERVAL)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(DEADLINE))
            .reconnect_delay_callback(|attempt| {
                RECONNECT_PAUSE
                    .min(Duration::from_millis(10).saturating_mul(u32::try_from(attempt).unwrap_or(u32::MAX)))
            });
        connect = servers.authorize(connect);
        if let Some(ca_file) = &options.ca_file {
            connect = connect.add_root_certificates(ca_file.clone());
        }
        let (shown, addresses) = (servers.to_string(), servers.addresses);
        let (client, jetstream) = wait(&runtime, DEADLINE, async move {
            let connecting = connect.connect(addresses.as_slice());
            let client = connecting.await.map_err(|error| NatsFailure::Silent(error.to_string()))?;
            Ok((client.clone(), jetstream::new(client)))
        })
        .map_err(|failure| failure.into_error(&shown))?;
        let link = NatsConnection { runtime: Some(runtime), client, jetstream, servers: shown };
        link.check_message_size()?;
        Ok(link)
    }

    /// Returns the servers, without the secrets in their addresses.
    pub(super) fn servers(&self) -> &str {
        &self.servers
    }

    /// Runs an operation, until its deadline at the longest.
    pub(super) fn run<T, F>(&self, operation: impl FnOnce(Context) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NatsFailure>> + Send + 'static,
    {
        self.run_within(DEADLINE, operation)
    }

    /// Runs an operation whose length depends on the stored records: each of its requests has the usual deadline.
    pub(super) fn run_long<T, F>(&self, operation: impl FnOnce(Context) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NatsFailure>> + Send + 'static,
    {
        self.run_within(LONG_DEADLINE, operation)
    }

    fn run_within<T, F>(&self, deadline: Duration, operation: impl FnOnce(Context) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NatsFailure>> + Send + 'static,
    {
        let outcome = match (&self.runtime, self.client.connection_state()) {
            (Some(runtime), State::Connected) => wait(runtime, deadline, operation(self.jetstream.clone())),
            _ => Err(NatsFailure::Silent("there is no connection".to_owned())),
        };
        outcome.map_err(|failure| failure.into_error(&self.servers))
    }

    fn check_message_size(&self) -> Result<(), Error> {
        let max_bytes = self.client.max_payload();
        if max_bytes >= MESSAGE_BYTES {
            return Ok(());
        }
        let servers = &self.servers;
        let message =
            format!("the store {servers} takes messages of {max_bytes} bytes, {MESSAGE_BYTES} are needed");
        Err(Error::new(Code::InvalidArgument, message))
    }
}

impl Drop for NatsConnection {
    fn drop(&mut self) {
        // The thread that drops it may itself run in an async runtime, which is not to be blocked.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Blocks until an operation has its outcome. Unlike a runtime's own blocking this may be called on any thread.
fn wait<T, F>(runtime: &Runtime, deadline: Duration, operation: F) -> Result<T, NatsFailure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, NatsFailure>> + Send + 'static,
{
    let (sender, outcome) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let late = |_| Err(NatsFailure::Silent(format!("no answer within {} s", deadline.as_secs())));
        let result = tokio::time::timeout(deadline, operation).await.unwrap_or_else(late);
        // The send fails only if the waiting thread is gone.
        let _ = sender.send(result);
    });
    outcome.recv().unwrap_or_else(|_| Err(NatsFailure::Silent("the store is closed".to_owned())))
}

/// The failure of an operation whose answer did not come or made no sense.
pub(super) fn silent(error: impl std::fmt::Display) -> NatsFailure {
    NatsFailure::Silent(error.to_string())
}

impl NatsFailure {
    fn into_error(self, servers: &str) -> Error {
        match self {
            NatsFailure::Refused(error) if is_full(&error) => {
                Error::new(Code::StoreFull, format!("the store {servers} is full: {error}"))
            }
            NatsFailure::Refused(error) => {
                Error::new(Code::StoreUnreachable, format!("the store {servers} refused: {error}"))
            }
            NatsFailure::Silent(why) => {
                Error::new(Code::StoreUnreachable, format!("the store {servers} does not answer: {why}"))
            }
            NatsFailure::Lost(subject) => {
                let message = format!(
                    "the store {servers} is damaged: it lists the record {subject} and cannot read it (restore a backup of its \
                     stream)"
                );
                Error::new(Code::StoreDamaged, message)
            }
        }
    }
}

fn is_full(error: &jetstream::Error) -> bool {
    const FULL: [ErrorCode; 4] = [
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
        ErrorCode::INSUFFICIENT_RESOURCES,
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ];
    let of_stream = error.error_code() == ErrorCode::STREAM_STORE_FAILED;
    FULL.contains(&error.error_code()) || (of_stream && error.to_string().contains("maximum"))
}
