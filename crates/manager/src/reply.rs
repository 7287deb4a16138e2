//! Lists that fit into one message.

use prost::Message;

/// Largest list in one reply, in bytes; further items are left out.
const MAX_REPLY_BYTES: usize = 3 << 20;
/// Bytes that a field's key and length add to an item.
const OVERHEAD_BYTES: usize = 8;

/// Items that fit into one reply.
pub(crate) struct ReplyList<T> {
    pub(crate) items: Vec<T>,
    left_bytes: usize,
}

impl<T> Default for ReplyList<T> {
    fn default() -> ReplyList<T> {
        ReplyList { items: Vec::new(), left_bytes: MAX_REPLY_BYTES }
    }
}

impl<T: Message> ReplyList<T> {
    /// Adds items while they fit, and tells whether all did.
    pub(crate) fn add_all(&mut self, items: impl IntoIterator<Item = T>) -> bool {
        for item in items {
            let Some(left) = self.left_bytes.checked_sub(item.encoded_len() + OVERHEAD_BYTES) else {
                self.left_bytes = 0;
                return false;
            };
            self.left_bytes = left;
            self.items.push(item);
        }
        true
    }
}

/// Returns the first items, up to the size of a reply.
pub(crate) fn within_reply<T: Message>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list = ReplyList::default();
    list.add_all(items);
    list.items
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::Lease;

    #[test]
    fn lists_stop_where_a_reply_is_full() {
        let lease = Lease { end_reason: "x".repeat(MAX_REPLY_BYTES / 4), ..Lease::default() };
        assert_eq!(within_reply(vec![lease; 9]).len(), 3);
    }
}
