//! Lists in pages that fit into one message.

use prost::Message;

/// Largest list in one reply, in bytes.
const MAX_REPLY_BYTES: usize = 3 << 20;
/// Bytes that a field's key and length add to an item.
const OVERHEAD_BYTES: usize = 8;

/// Items of a list that fit into one reply, and the start of the next reply.
pub(crate) struct ReplyPage<T> {
    pub(crate) items: Vec<T>,
    /// Key of the last item if further items follow it; otherwise empty.
    pub(crate) next: String,
    last: String,
    left_bytes: usize,
}

impl<T> Default for ReplyPage<T> {
    fn default() -> ReplyPage<T> {
        ReplyPage { items: Vec::new(), next: String::new(), last: String::new(), left_bytes: MAX_REPLY_BYTES }
    }
}

impl<T: Message> ReplyPage<T> {
    /// Returns the first items of a list whose keys ascend, after the key `after`.
    pub(crate) fn after(after: &str, items: impl IntoIterator<Item = (String, T)>) -> ReplyPage<T> {
        let mut page = ReplyPage::default();
        for (key, item) in items {
            if key.as_str() > after && !page.add(&key, item) {
                break;
            }
        }
        page
    }

    /// Adds an item while it fits, and tells whether it did. A page without items takes any item, so that each page gets
    /// further.
    pub(crate) fn add(&mut self, key: &str, item: T) -> bool {
        if self.is_full() {
            return false;
        }
        match self.left_bytes.checked_sub(item.encoded_len() + OVERHEAD_BYTES) {
            Some(left) => self.left_bytes = left,
            None if self.items.is_empty() => self.left_bytes = 0,
            None => {
                self.end();
                return false;
            }
        }
        self.items.push(item);
        key.clone_into(&mut self.last);
        true
    }

    /// Ends the page after its last item. Further items may follow.
    pub(crate) fn end(&mut self) {
        self.next.clone_from(&self.last);
    }

    /// Whether an item did not fit.
    pub(crate) fn is_full(&self) -> bool {
        !self.next.is_empty()
    }
}

/// Returns the first items, up to the size of a reply.
pub(crate) fn within_reply<T: Message>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    ReplyPage::after("", items.into_iter().map(|item| (" ".to_owned(), item))).items
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::Lease;

    fn lease(bytes: usize) -> Lease {
        Lease { end_reason: "x".repeat(bytes), ..Lease::default() }
    }

    #[test]
    fn lists_stop_where_a_reply_is_full() {
        assert_eq!(within_reply(vec![lease(MAX_REPLY_BYTES / 4); 9]).len(), 3);
    }

    #[test]
    fn pages_have_each_item_once() {
        let keys = ["a", "b", "c", "d", "e", "f", "g"].map(str::to_owned);
        for (bytes, pages) in
            [(0, 1), (MAX_REPLY_BYTES / 4, 3), (MAX_REPLY_BYTES / 2, 7), (MAX_REPLY_BYTES * 2, 7)]
        {
            let list = || keys.iter().map(|key| (key.clone(), Lease { id: key.clone(), ..lease(bytes) }));
            let (mut seen, mut count, mut after) = (Vec::new(), 0, String::new());
            loop {
                let page = ReplyPage::after(&after, list());
                count += 1;
                seen.extend(page.items.into_iter().map(|lease| lease.id));
                after = page.next;
                if after.is_empty() {
                    break;
                }
            }
            assert_eq!((count, seen.as_slice()), (pages, keys.as_slice()), "leases of {bytes} bytes");
        }
    }
}
