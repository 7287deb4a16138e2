//! What a request for a lease means: defaults filled in, limits checked.

use sublet_proto::inbox::InboxShape;
use sublet_proto::limits::MAX_TIMEOUT_MS;
use sublet_proto::v1::{LeaseRequest, WorkerOptions};
use sublet_proto::{Code, Error};

/// Lease time if the client does not say: ten minutes.
pub const DEFAULT_TIMEOUT_MS: u64 = 10 * 60 * 1000;
/// Memory for each core, beside the inboxes, if the client does not say.
pub const MEMORY_PER_CORE_BYTES: u64 = 128 << 20;
/// How workers wait and what they take in, if the client does not say.
pub const DEFAULT_OPTIONS: WorkerOptions =
    WorkerOptions { slots: 8, slot_bytes: 64 << 10, hot_timeout_ns: 100_000_000 };

/// What a lease will have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Terms {
    pub(super) cores: u32,
    pub(super) memory_bytes: u64,
    pub(super) timeout_ms: u64,
    pub(super) options: WorkerOptions,
}

impl Terms {
    pub(super) fn of(asked: &LeaseRequest) -> Result<Terms, Error> {
        let options = asked.options.unwrap_or(DEFAULT_OPTIONS);
        let inbox = InboxShape::of(asked.cores, &options)?;
        within("ms of lease time", asked.timeout_ms, 0, MAX_TIMEOUT_MS)?;
        let timeout_ms = if asked.timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { asked.timeout_ms };
        let memory_bytes = memory_bytes(asked, &options, inbox.len_bytes)?;
        Ok(Terms { cores: asked.cores, memory_bytes, timeout_ms, options })
    }
}

fn memory_bytes(asked: &LeaseRequest, options: &WorkerOptions, inbox_bytes: u64) -> Result<u64, Error> {
    match asked.memory_bytes {
        0 => Ok(inbox_bytes.saturating_add(u64::from(asked.cores) * MEMORY_PER_CORE_BYTES)),
        memory_bytes if memory_bytes >= inbox_bytes => Ok(memory_bytes),
        memory_bytes => Err(Error::new(
            Code::InvalidArgument,
            format!(
                "{memory_bytes} bytes of memory asked, but the inboxes alone take {inbox_bytes} ({} cores with {} \
                 slots of {} bytes)",
                asked.cores, options.slots, options.slot_bytes
            ),
        )),
    }
}

fn within(what: &str, asked: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&asked) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("{asked} {what} asked, a lease has {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> LeaseRequest {
        let options = WorkerOptions { slots: 2, slot_bytes: 5_000, hot_timeout_ns: 7 };
        LeaseRequest { cores: 1, options: Some(options), ..LeaseRequest::default() }
    }

    fn message(asked: &LeaseRequest) -> String {
        let error = Terms::of(asked).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        error.message
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let terms = Terms::of(&LeaseRequest { cores: 2, ..LeaseRequest::default() }).unwrap();
        assert_eq!((terms.options, terms.timeout_ms), (DEFAULT_OPTIONS, DEFAULT_TIMEOUT_MS));
        assert_eq!(terms.memory_bytes, 2 * (MEMORY_PER_CORE_BYTES + 8 * (64 << 10) + 4096));
    }

    #[test]
    fn inboxes_are_whole_pages_and_belong_to_the_memory() {
        let inbox = InboxShape::of(1, &asked().options.unwrap()).unwrap().len_bytes;
        assert_eq!(inbox, (1 + 2 * 2) * 4096);
        assert_eq!(Terms::of(&LeaseRequest { memory_bytes: inbox, ..asked() }).unwrap().memory_bytes, inbox);
        let refusal = message(&LeaseRequest { memory_bytes: inbox - 1, ..asked() });
        assert!(refusal.contains("20479") && refusal.contains("20480"), "{refusal}");
    }

    #[test]
    fn what_no_lease_can_have_is_refused_with_the_limit() {
        let options = |slots, slot_bytes| Some(WorkerOptions { slots, slot_bytes, hot_timeout_ns: 0 });
        assert!(message(&LeaseRequest { cores: 0, ..asked() }).contains("cores: 0"));
        assert!(message(&LeaseRequest { cores: 1025, ..asked() }).contains("between 1 and 1024"));
        assert!(message(&LeaseRequest { options: options(0, 1), ..asked() }).contains("slots: 0"));
        assert!(message(&LeaseRequest { options: options(257, 1), ..asked() }).contains("slots: 257"));
        assert!(message(&LeaseRequest { options: options(1, 1 << 32), ..asked() }).contains("slot bytes"));
        assert!(message(&LeaseRequest { timeout_ms: MAX_TIMEOUT_MS + 1, ..asked() }).contains("lease time"));
    }
}
