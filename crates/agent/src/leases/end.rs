//! Why a lease ends, and what its client and its manager are told of it.

use sublet_proto::v1::{LeaseEnded, Usage};
use sublet_proto::{Code, Error};

use crate::leases::book;
use crate::listener::message::{self, ToClient};

/// Why a lease ends.
#[derive(Debug)]
pub(crate) enum End {
    Released,
    ClientGone,
    /// The client is told this error.
    Error(Error),
    /// It was never handed to the client, who is told this error; nothing is billed.
    Refused(Error),
}

impl End {
    pub(crate) fn reason(&self) -> String {
        match self {
            End::Released => "released by the client".to_owned(),
            End::ClientGone => "the client is gone".to_owned(),
            End::Error(error) | End::Refused(error) => error.message.clone(),
        }
    }

    /// What the manager is told.
    pub(crate) fn for_the_book(&self) -> book::End {
        book::End { code: self.code(), reason: self.reason() }
    }

    /// The number of the code; 0 after a release.
    fn code(&self) -> u32 {
        match self {
            End::Released => 0,
            End::ClientGone => Code::LeaseEnded.number(),
            End::Error(error) | End::Refused(error) => error.code.number(),
        }
    }

    /// What the client hears last.
    pub(crate) fn message(&self, usage: Usage) -> ToClient {
        match self {
            End::Refused(error) => message::failure(error),
            _ => ToClient::LeaseEnded(LeaseEnded {
                code: self.code(),
                reason: self.reason(),
                usage: Some(usage),
            }),
        }
    }
}
