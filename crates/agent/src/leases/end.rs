//! Reasons for the end of a lease, and the messages about it for its client and its manager.

use sublet_proto::v1::{LeaseEnded, Usage};
use sublet_proto::{Code, Error};

use crate::leases::book;
use crate::listener::message::{self, ToClient};

/// Reason for the end of a lease.
#[derive(Debug)]
pub(crate) enum EndReason {
    Released,
    ClientGone,
    /// The lease fails with an error that the client receives.
    Error(Error),
    /// The lease was never handed to the client, which receives this error; nothing is billed.
    Refused(Error),
}

impl EndReason {
    pub(crate) fn reason(&self) -> String {
        match self {
            EndReason::Released => "released by the client".to_owned(),
            EndReason::ClientGone => "the client is gone".to_owned(),
            EndReason::Error(error) | EndReason::Refused(error) => error.message.clone(),
        }
    }

    /// The end as the book records it and the manager learns it.
    pub(crate) fn for_the_book(&self) -> book::BookedEnd {
        book::BookedEnd { code: self.code(), reason: self.reason() }
    }

    /// The number of the code; 0 after a release.
    fn code(&self) -> u32 {
        match self {
            EndReason::Released => 0,
            EndReason::ClientGone => Code::LeaseEnded.number(),
            EndReason::Error(error) | EndReason::Refused(error) => error.code.number(),
        }
    }

    /// The last message to the client.
    pub(crate) fn message(&self, usage: Usage) -> ToClient {
        match self {
            EndReason::Refused(error) => message::failure(error),
            _ => ToClient::LeaseEnded(LeaseEnded {
                code: self.code(),
                reason: self.reason(),
                usage: Some(usage),
            }),
        }
    }
}
