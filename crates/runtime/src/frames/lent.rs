//! Messages whose memory workers still use: arguments that a function has kept.
//!
//! A worker says so in its reply ([`IN_USE`](super::IN_USE)), and in a later one when the memory is free. In between the
//! message belongs to the worker, and is not used for other calls. Memory of a worker process that has ended is free.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use sublet_fabric::sync::lock;

/// Most tokens, and most processes, that are remembered of what workers have said: of a worker that invents more of them, the memory
/// that it was lent is not used again until the lease ends.
const MOST_REMEMBERED: usize = 1 << 16;

/// The messages of one client. `Memory` is what holds a message's memory: dropped when no worker uses it, and never read.
pub struct LentMessages<Memory> {
    /// Whether there is anything in the table: read without its lock.
    has_any: AtomicBool,
    table: Mutex<LentTable<Memory>>,
}

struct LentTable<Memory> {
    /// Messages, by the tokens of their calls.
    messages: HashMap<u64, Message<Memory>>,
    /// Tokens whose memory was said to be free before the reply was read that says that it is used.
    freed: HashSet<u64>,
    /// The latest process of each worker, as far as anything was lent to it.
    processes: HashMap<u32, u64>,
    /// Processes that another one has replaced. Their replies may still be read.
    ended: HashSet<u64>,
}

struct Message<Memory> {
    worker: u32,
    /// Process of the worker; not known at first for a call that failed.
    process: Option<u64>,
    _memory: Memory,
}

/// Worker and process that have replied.
#[derive(Clone, Copy)]
pub struct ReplySource {
    /// The worker's number among those of all leases.
    pub worker: u32,
    /// The process, if it has said which it is.
    pub process: Option<u64>,
}

impl<Memory> Default for LentMessages<Memory> {
    fn default() -> LentMessages<Memory> {
        let table = LentTable {
            messages: HashMap::new(),
            freed: HashSet::new(),
            processes: HashMap::new(),
            ended: HashSet::new(),
        };
        LentMessages { has_any: AtomicBool::new(false), table: Mutex::new(table) }
    }
}

impl<Memory> LentMessages<Memory> {
    /// A worker uses the memory of the call with this token, its request's and its output's, from now on.
    #[cold]
    pub fn lend(&self, ReplySource { worker, process }: ReplySource, token: u64, memory: Memory) {
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

    fn change<R>(&self, change: impl FnOnce(&mut LentTable<Memory>) -> R) -> R {
        let mut table = lock(&self.table);
        let changed = change(&mut table);
        self.has_any.store(!table.messages.is_empty() || !table.freed.is_empty(), Ordering::Relaxed);
        changed
    }
}

impl<Memory> LentTable<Memory> {
    /// Takes the messages of a process that another one has replaced. They are dropped without the lock: that may wait for the
    /// interpreter.
    fn know(&mut self, ReplySource { worker, process }: ReplySource) -> Vec<Message<Memory>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn process(process: u64) -> ReplySource {
        ReplySource { worker: 0, process: Some(process) }
    }

    /// Whether the memory is still lent.
    fn is_lent(memory: &Rc<()>) -> bool {
        Rc::strong_count(memory) > 1
    }

    #[test]
    fn memory_is_lent_until_its_worker_frees_it() {
        let messages = LentMessages::default();
        let [first, second] = [Rc::new(()), Rc::new(())];
        messages.lend(process(7), 1, first.clone());
        // The reply that frees it may be read first.
        messages.free(process(7), [2].into_iter());
        messages.lend(process(7), 2, second.clone());
        assert!(is_lent(&first) && !is_lent(&second));
        messages.free(process(7), [1].into_iter());
        assert!(!is_lent(&first));
        assert_eq!(messages.count(), 0);
    }

    #[test]
    fn memory_of_a_process_that_was_replaced_is_free() {
        let messages = LentMessages::default();
        let [of_reply, of_failure, late] = [Rc::new(()), Rc::new(()), Rc::new(())];
        messages.lend(process(7), 1, of_reply.clone());
        messages.lend(ReplySource { worker: 0, process: None }, 2, of_failure.clone());
        messages.heard(ReplySource { worker: 1, process: Some(8) });
        assert!(is_lent(&of_reply));
        messages.heard(process(9));
        assert!(!is_lent(&of_reply));
        // The failed call may have been one of the new process.
        assert!(is_lent(&of_failure));
        messages.lend(process(7), 3, late.clone());
        assert!(!is_lent(&late));
        messages.clear();
        assert!(!is_lent(&of_failure));
    }

    #[test]
    fn invented_tokens_and_processes_take_a_bounded_amount_of_memory() {
        let messages = LentMessages::<Rc<()>>::default();
        let many = 4 * MOST_REMEMBERED as u64;
        messages.free(process(1), 0..many);
        for invented in 2..many {
            messages.heard(process(invented));
        }
        let table = messages.table.lock().unwrap();
        assert_eq!(table.freed.len(), MOST_REMEMBERED);
        assert_eq!(table.ended.len(), MOST_REMEMBERED);
        assert_eq!(table.processes.len(), 1);
        drop(table);
        // Whose memory was freed beyond that bound stays lent until the lease ends.
        let forgotten = Rc::new(());
        messages.lend(process(many), many - 1, forgotten.clone());
        assert!(is_lent(&forgotten));
        messages.clear();
        assert!(!is_lent(&forgotten));
    }
}
