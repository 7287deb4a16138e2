//! Names keys and blobs on a NATS server.
//!
//! A subject is tokens with dots between them, and a token may not contain every character of a key. So each segment of
//! a key becomes one token: special characters are written as `=` and two hexadecimal digits for each of their bytes,
//! and an empty segment as a single `=`. Every key has one subject, and every subject of a stream of keys one key.

use sublet_proto::{Code, Error};

use super::text;
use crate::store::journal::is_copied;
use crate::store::{BlobPart, kind};

/// Longest name of a store, in bytes.
const MAX_NAME_BYTES: usize = 32;

/// The names of one store: several may live on one server.
#[derive(Clone, Debug)]
pub(super) struct StreamNames {
    store: String,
}

/// One stream: its name, and the subjects whose messages it takes. It keeps the last message of each.
#[derive(Clone, Debug)]
pub(super) struct StoreStream {
    pub(super) name: String,
    pub(super) subjects: String,
}

impl StreamNames {
    /// The names of this store.
    pub(super) fn new(store: &str) -> Result<StreamNames, Error> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if store.is_empty() || store.len() > MAX_NAME_BYTES || !store.bytes().all(is_plain) {
            let message =
                format!("the store's name {store:?} is not 1 to {MAX_NAME_BYTES} letters, digits, - or _");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(StreamNames { store: store.to_owned() })
    }

    /// The stream of a key or of a prefix of keys: each kind has one of its own, so that the many leases do not slow
    /// down the few managers.
    pub(super) fn keys(&self, key: &str) -> Result<StoreStream, Error> {
        let kind = kind(key)?;
        Ok(StoreStream { name: self.stream_of_kind(kind), subjects: format!("{}.>", self.key(kind)) })
    }

    /// The name of the stream of a kind's keys.
    pub(super) fn stream_of_kind(&self, kind: &str) -> String {
        format!("{}{kind}", self.keys_prefix())
    }

    /// Returns the prefix of the names of the streams of keys, before the kind.
    pub(super) fn keys_prefix(&self) -> String {
        format!("sublet-{}-key-", self.store)
    }

    /// Returns the subject of a key.
    pub(super) fn key(&self, key: &str) -> String {
        format!("sublet.{}.key.{}", self.store, tokens(key))
    }

    /// Returns the key of a subject.
    pub(super) fn key_of(&self, subject: &str) -> Option<String> {
        let rest = subject.strip_prefix("sublet.")?.strip_prefix(&self.store)?;
        segments(rest.strip_prefix(".key.")?)
    }

    /// The stream of the second copies of a kind's records: one for all kinds that do not grow, and one for each of the
    /// others.
    pub(super) fn copies(&self, kind: &str) -> StoreStream {
        if is_copied(kind) {
            return self.shared_copies();
        }
        StoreStream { name: format!("sublet-{}-copies-{kind}", self.store), subjects: self.copies_of(kind) }
    }

    /// The stream of the copies of all kinds that do not grow.
    pub(super) fn shared_copies(&self) -> StoreStream {
        let store = &self.store;
        StoreStream { name: format!("sublet-{store}-copies"), subjects: format!("sublet.{store}.copy.>") }
    }

    /// The subjects of the copies of a kind's records.
    pub(super) fn copies_of(&self, kind: &str) -> String {
        format!("{}.>", self.copy(kind))
    }

    /// The subject of the copy of a key's record.
    pub(super) fn copy(&self, key: &str) -> String {
        let kind = key.split('/').next().unwrap_or(key);
        let series = if is_copied(kind) { "copy" } else { "copies" };
        format!("sublet.{}.{series}.{}", self.store, tokens(key))
    }

    /// The key of the subject of a copy.
    pub(super) fn copied_key_of(&self, subject: &str) -> Option<String> {
        let rest = subject.strip_prefix("sublet.")?.strip_prefix(&self.store)?;
        segments(rest.strip_prefix(".copy.").or_else(|| rest.strip_prefix(".copies."))?)
    }

    /// The narrowest subjects that hold every key of this prefix, which has a `/`.
    pub(super) fn below(&self, prefix: &str) -> String {
        let whole = prefix.rsplit_once('/').map_or(prefix, |(whole, _)| whole);
        format!("{}.>", self.key(whole))
    }

    /// Returns the stream in which earlier versions noted deployments, and which is not read any more.
    pub(super) fn unread_log(&self) -> String {
        format!("sublet-{}-log-deployments", self.store)
    }

    /// The stream of all blobs.
    pub(super) fn blobs(&self) -> StoreStream {
        let store = &self.store;
        let subjects = format!("sublet.{store}.blob.>");
        StoreStream { name: format!("sublet-{store}-blobs"), subjects }
    }

    /// The subject of one piece of a blob's part.
    pub(super) fn piece(&self, part: BlobPart<'_>, piece: usize) -> String {
        format!("sublet.{}.blob.{}.{}.{piece}", self.store, token(part.digest), part.index)
    }

    /// The subjects of all pieces of a blob.
    pub(super) fn pieces(&self, digest: &str) -> String {
        format!("sublet.{}.blob.{}.>", self.store, token(digest))
    }

    /// The blob and the part of a piece's subject.
    pub(super) fn piece_of(&self, subject: &str) -> Option<(String, u32)> {
        let tokens = subject.strip_prefix("sublet.")?.strip_prefix(&self.store)?.strip_prefix(".blob.")?;
        let mut tokens = tokens.split('.');
        Some((segment(tokens.next()?)?, tokens.next()?.parse().ok()?))
    }
}

fn tokens(key: &str) -> String {
    key.split('/').map(token).collect::<Vec<_>>().join(".")
}

fn segments(tokens: &str) -> Option<String> {
    let segments: Option<Vec<String>> = tokens.split('.').map(segment).collect();
    Some(segments?.join("/"))
}

fn token(segment: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if segment.is_empty() { "=".to_owned() } else { text::escape(segment, '=', is_plain) }
}

fn segment(token: &str) -> Option<String> {
    if token == "=" { Some(String::new()) } else { text::unescape(token, '=') }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> StreamNames {
        StreamNames::new("main").unwrap()
    }

    #[test]
    fn plain_keys_are_readable_in_subjects() {
        assert_eq!(names().key("lease/0a-1"), "sublet.main.key.lease.0a-1");
        assert_eq!(names().keys("lease/0a-1").unwrap().subjects, "sublet.main.key.lease.>");
        assert_eq!(names().below("usage/17/ab"), "sublet.main.key.usage.17.>");
        assert_eq!(names().key("package/sha256:a"), "sublet.main.key.package.sha256=3aa");
    }

    #[test]
    fn a_piece_comes_back_from_its_subject() {
        let part = BlobPart { digest: "sha256:a.b", index: 7 };
        assert_eq!(names().piece_of(&names().piece(part, 1)), Some(("sha256:a.b".to_owned(), 7)));
        assert_eq!(names().piece_of("sublet.other.blob.a.7.1"), None);
    }

    #[test]
    fn a_stores_name_is_plain() {
        for name in ["", "a.b", "a b", "*", "ä", &"a".repeat(33)] {
            assert_eq!(StreamNames::new(name).unwrap_err().code, Code::InvalidArgument, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn every_key_comes_back_from_its_subject(key in any::<String>()) {
            let subject = names().key(&key);
            prop_assert!(subject.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'*' && byte != b'>'));
            prop_assert!(subject.split('.').all(|token| !token.is_empty()));
            prop_assert_eq!(names().key_of(&subject), Some(key.clone()));
            prop_assert_eq!(names().copied_key_of(&names().copy(&key)), Some(key));
        }

        #[test]
        fn any_subject_is_answered(subject in "sublet\\.main\\.key\\.[a-f0-9=.]*") {
            names().key_of(&subject);
        }
    }
}
