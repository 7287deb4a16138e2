//! An event that starts a run, and the destination of the run's output.

use sublet_proto::run::MAX_OUTPUT_BYTES;
use sublet_proto::{Code, Error};

use super::pending_file::PendingFile;

/// An event.
pub(super) struct TriggerEvent {
    /// Name that is unique among the events.
    pub(super) name: String,
    pub(super) what: EventInput,
}

/// Input of an event's run, and the destination of the output.
pub(super) enum EventInput {
    Bytes(Vec<u8>),
    File(PendingFile),
    Asked(Vec<u8>, async_nats::Client, async_nats::Subject),
}

impl TriggerEvent {
    pub(super) fn numbered(number: u64, what: EventInput) -> TriggerEvent {
        TriggerEvent { name: number.to_string(), what }
    }

    /// Reads the run's input: one byte more than the limit, if it is larger than that.
    pub(super) fn input(&self) -> Result<Vec<u8>, Error> {
        match &self.what {
            EventInput::Bytes(bytes) | EventInput::Asked(bytes, ..) => Ok(bytes.clone()),
            EventInput::File(taken) => taken.read(MAX_OUTPUT_BYTES as u64 + 1),
        }
    }

    /// Finishes the event after its run. Returns false if the event has changed meanwhile and needs another run.
    pub(super) async fn finish(&self, ran: Result<Vec<u8>, Error>) -> Result<bool, Error> {
        match &self.what {
            EventInput::Bytes(_) => Ok(true),
            EventInput::File(taken) => taken.put_away(ran.is_ok()),
            EventInput::Asked(_, client, to) => {
                reply(client, to.clone(), ran).await.map_err(|error| unreachable(&error))?;
                Ok(true)
            }
        }
    }
}

/// Replies to the requester; errors have the form that NATS services use.
async fn reply(
    client: &async_nats::Client,
    to: async_nats::Subject,
    ran: Result<Vec<u8>, Error>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match ran {
        Ok(bytes) => client.publish(to, bytes.into()).await?,
        Err(Error { code, message }) => {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Service-Error-Code", code.number().to_string());
            headers.insert("Nats-Service-Error", format!("{code}: {}", message.replace(['\r', '\n'], " ")));
            client.publish_with_headers(to, headers, Vec::new().into()).await?;
        }
    }
    Ok(client.flush().await?)
}

/// Makes the error of NATS servers that cannot be reached.
pub(super) fn unreachable(error: &dyn std::fmt::Display) -> Error {
    Error::new(Code::System, format!("the NATS servers do not answer: {error}"))
}

/// Starts a thread that waits for events until their receiver is dropped.
pub(super) fn thread(name: &str, act: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = std::thread::Builder::new().name(name.into()).spawn(act);
    started.map(drop).map_err(|error| Error::new(Code::System, format!("starting a thread: {error}")))
}
