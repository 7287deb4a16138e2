//! Messages whose memory workers still use: arguments that a function has kept.
//!
//! A worker says so in its reply ([`IN_USE`](sublet::frames::IN_USE)), and in a later one when the memory is free. In between the
//! message belongs to the worker, and is not used for other calls. Memory of a worker process that has ended is free.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::message::WrittenRequest;
use crate::pool::Paper;

/// Most tokens, and most processes, that are remembered of what workers have said: of a worker that invents more of them, the memory
/// that it was lent is not used again until the lease ends.
const MOST_REMEMBERED: usize = 1 << 16;

/// The messages of one client.
#[derive(Default)]
pub struct LentMessages {
    /// Whether there is anything in the table: read without its lock.
    has_any: AtomicBool,
    table: Mutex<LentTable>,
}

#[derive(Default)]
struct LentTable {
    /// Messages, by the tokens of their calls.
    messages: HashMap<u64, Message>,
    /// Tokens whose memory was said to be free before the reply was read that says that it is used.
    freed: HashSet<u64>,
    /// The latest process of each worker, as far as anything was lent to it.
    processes: HashMap<u32, u64>,
    /// Processes that another one has replaced. Their replies may still be read.
    ended: HashSet<u64>,
}

struct Message {
    worker: u32,
    /// Process of the worker; not known at first for a call that failed.
    process: Option<u64>,
    /// Kept, and never looked at.
    _memory: (Arc<WrittenRequest>, Paper),
}

/// Worker and process that have replied.
#[derive(Clone, Copy)]
pub struct ReplySource {
    /// The worker's number among those of all leases.
    pub worker: u32,
    /// The process, if it has said which it is.
    pub process: Option<u64>,
}

impl LentMessages {
    /// A worker uses the memory of this call's request and output from now on.
    #[cold]
    pub fn lend(&self, ReplySource { worker, process }: ReplySource, memory: (Arc<WrittenRequest>, Paper)) {
        let token = memory.0.token;
        let message = Message { worker, process, _memory: memory };
        let dropped = self.change(|table| {
            let mut dropped = table.know(ReplySource { worker, process });
            let is_free = table.freed.remove(&token);
            if is_free || process.is_some_and(|process| table.ended.contains(&process)) {
                dropped.push(message);
            } else {
                dropped.extend(table.messages.insert(token, message));
            }
            dropped
        });
        drop(dropped);
    }

    /// A worker uses memory of these calls no more.
    #[cold]
    pub fn free(&self, by: ReplySource, tokens: impl Iterator<Item = u64>) {
        let dropped = self.change(|table| {
            let mut dropped = table.know(by);
            for token in tokens {
                match table.messages.remove(&token) {
                    Some(message) => dropped.push(message),
                    None if table.freed.len() < MOST_REMEMBERED => drop(table.freed.insert(token)),
                    None => {}
                }
            }
            dropped
        });
        drop(dropped);
    }

    /// A worker has replied.
    #[inline(always)]
    pub fn heard(&self, by: ReplySource) {
        if self.has_any.load(Ordering::Relaxed) {
            self.free(by, std::iter::empty());
        }
    }

    /// All workers have ended.
    pub fn clear(&self) {
        drop(self.change(|table| std::mem::take(&mut table.messages)));
    }

    /// Returns the number of messages that workers use.
    pub fn count(&self) -> usize {
        self.change(|table| table.messages.len())
    }

    fn change<R>(&self, change: impl FnOnce(&mut LentTable) -> R) -> R {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut table);
        self.has_any.store(!table.messages.is_empty() || !table.freed.is_empty(), Ordering::Relaxed);
        changed
    }
}

impl LentTable {
    /// Takes the messages of a process that another one has replaced. They are dropped without the lock: that may wait for the
    /// interpreter.
    fn know(&mut self, ReplySource { worker, process }: ReplySource) -> Vec<Message> {
        let Some(process) = process.filter(|process| !self.ended.contains(process)) else {
            return Vec::new();
        };
        let Some(before) = self.processes.insert(worker, process).filter(|&before| before != process) else {
            return Vec::new();
        };
        if self.ended.len() >= MOST_REMEMBERED {
            return Vec::new();
        }
        self.ended.insert(before);
        for message in self.messages.values_mut().filter(|message| message.worker == worker) {
            // Lent to either of the two: the later one may still use it.
            message.process.get_or_insert(process);
        }
        let ended = self.messages.extract_if(|_, message| message.process == Some(before));
        ended.map(|(_, message)| message).collect()
    }
}
