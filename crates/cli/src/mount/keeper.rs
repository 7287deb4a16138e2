//! Keeps the leases of a mounted folder: a thread extends them in time, gives back those that files no longer need, and
//! adds up their bill.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_proto::price::{add, bill};
use sublet_proto::v1::{BillLine, Lease, Usage};
use sublet_proto::{Code, Error};
use sublet_runtime::Memory;

/// Number of leases that are given back at the same time.
const AT_ONCE: usize = 16;
/// Time between attempts to extend a lease whose manager does not answer.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time without looking for leases to extend.
const IDLE: Duration = Duration::from_secs(60);

/// Usage and cost of all leases of a mounted folder.
#[derive(Debug, Default)]
pub(crate) struct MountBill {
    /// Number of leases.
    pub(crate) leases: u64,
    /// Number of leases that ended before they were given back, with all of their bytes.
    pub(crate) lost_leases: u64,
    /// Product of leased bytes and their time, in byte-nanoseconds.
    pub(crate) byte_ns: u128,
    /// Sum of the lines of all leases that were given back.
    pub(crate) total: BillLine,
}

/// Message to the thread.
enum Order {
    Watch(Weak<Memory>),
    GiveBack(Arc<Memory>),
    /// Reports when all earlier orders are carried out.
    Settle(SyncSender<()>),
}

/// The thread; see the [module](self).
pub(crate) struct Keeper {
    orders: mpsc::Sender<Order>,
    thread: JoinHandle<MountBill>,
}

struct WatchedMemory {
    memory: Weak<Memory>,
    renew_at: Instant,
}

/// Extends leases in turn. A node that does not answer is asked once, since the leases of others must not wait for it.
#[derive(Debug, Default)]
struct RenewalRound {
    silent_nodes: Vec<String>,
}

/// Outcome of an attempt to extend a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Extended,
    /// The next attempt follows soon.
    Failed,
    /// The lease has ended.
    Over,
}

struct KeeperThread {
    orders: Receiver<Order>,
    /// Duration of a lease from each extension on.
    lease: Duration,
    watched: Vec<WatchedMemory>,
    bill: MountBill,
}

impl Keeper {
    /// Starts the thread for leases that last this long.
    pub(crate) fn start(lease: Duration) -> Result<Keeper, Error> {
        let (orders, receiver) = channel();
        let thread =
            KeeperThread { orders: receiver, lease, watched: Vec::new(), bill: MountBill::default() };
        let started = std::thread::Builder::new().name("leases".to_owned()).spawn(move || thread.run());
        let thread = started
            .map_err(|error| Error::of_system("cannot start the thread that extends leases", &error))?;
        Ok(Keeper { orders, thread })
    }

    /// Extends the leases of a memory until it is given back or dropped.
    pub(crate) fn watch(&self, memory: &Arc<Memory>) {
        // The thread runs until this is dropped.
        let _ = self.orders.send(Order::Watch(Arc::downgrade(memory)));
    }

    /// Gives a memory back. The caller has the only reference.
    pub(crate) fn give_back(&self, memory: Arc<Memory>) {
        debug_assert!(Arc::strong_count(&memory) <= 2, "a memory that is given back is still in use");
        let _ = self.orders.send(Order::GiveBack(memory));
    }

    /// Waits until all memories of earlier calls of [`Keeper::give_back`] are given back.
    pub(crate) fn settle(&self) {
        let (done, wait) = sync_channel(1);
        if self.orders.send(Order::Settle(done)).is_ok() {
            // An error means that the thread is gone, and then nothing is outstanding.
            let _ = wait.recv();
        }
    }

    /// Ends the thread after all earlier orders.
    pub(crate) fn end(self) -> Result<MountBill, Error> {
        let Keeper { orders, thread } = self;
        drop(orders);
        thread.join().map_err(|_| Error::new(Code::Internal, "the thread that extends leases failed"))
    }
}

impl KeeperThread {
    fn run(mut self) -> MountBill {
        loop {
            match self.orders.recv_timeout(self.time_to_renewal()) {
                Ok(order) => self.carry_out(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.bill,
            }
            self.renew();
        }
    }

    /// Carries out an order, together with all that have arrived since.
    fn carry_out(&mut self, first: Order) {
        let (mut memories, mut settled) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(order) = next {
            match order {
                Order::Watch(memory) => {
                    self.watched.push(WatchedMemory { memory, renew_at: Instant::now() + self.lease / 3 });
                }
                Order::GiveBack(memory) => memories.push(memory),
                Order::Settle(done) => settled.push(done),
            }
            next = self.orders.try_recv().ok();
        }
        self.give_back(memories);
        for done in settled {
            // The thread that waited may be gone.
            let _ = done.send(());
        }
    }

    fn give_back(&mut self, memories: Vec<Arc<Memory>>) {
        let memories: Vec<Memory> = memories.into_iter().filter_map(Arc::into_inner).collect();
        let mut shares: Vec<Vec<Memory>> = (0..AT_ONCE.min(memories.len())).map(|_| Vec::new()).collect();
        for (index, memory) in memories.into_iter().enumerate() {
            shares[index % AT_ONCE].push(memory);
        }
        let released: Vec<Result<Vec<Lease>, Error>> = std::thread::scope(|scope| {
            let release = |share: Vec<Memory>| share.into_iter().map(Memory::release).collect::<Vec<_>>();
            let threads: Vec<_> =
                shares.into_iter().map(|share| scope.spawn(move || release(share))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
        });
        released.into_iter().for_each(|leases| self.bill.add(leases));
    }

    fn time_to_renewal(&self) -> Duration {
        let next = self.watched.iter().map(|watched| watched.renew_at).min();
        next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()).min(IDLE))
    }

    /// Extends the leases for which it is time.
    fn renew(&mut self) {
        let (now, lease, mut round) = (Instant::now(), self.lease, RenewalRound::default());
        self.watched.retain_mut(|watched| {
            let Some(memory) = watched.memory.upgrade() else { return false };
            if watched.renew_at > now {
                return true;
            }
            let node = memory.segments().first().map(|lease| lease.node.clone()).unwrap_or_default();
            let renewal = round.renew(node, || memory.renew(lease));
            let pause = if renewal == Renewal::Extended { lease / 3 } else { RETRY.min(lease / 6) };
            watched.renew_at = Instant::now() + pause;
            renewal != Renewal::Over
        });
    }
}

impl RenewalRound {
    fn renew(&mut self, node: String, extend: impl FnOnce() -> Result<(), Error>) -> Renewal {
        if self.silent_nodes.contains(&node) {
            return Renewal::Failed;
        }
        let Err(error) = extend() else { return Renewal::Extended };
        tracing::warn!(%error, %node, "cannot extend a lease of the folder's memory");
        match error.code {
            Code::UnknownLease | Code::LeaseExpired | Code::LeaseEnded | Code::NodeReclaimed => Renewal::Over,
            Code::AgentUnreachable | Code::ManagerUnreachable => {
                self.silent_nodes.push(node);
                Renewal::Failed
            }
            _ => Renewal::Failed,
        }
    }
}

impl MountBill {
    fn add(&mut self, released: Result<Vec<Lease>, Error>) {
        match released {
            Ok(leases) => {
                for lease in leases {
                    let line = bill(&lease);
                    let Usage { allocated_ns, .. } = line.usage.unwrap_or_default();
                    self.leases += 1;
                    self.byte_ns = self
                        .byte_ns
                        .saturating_add(u128::from(allocated_ns) * u128::from(lease.memory_bytes));
                    add(&mut self.total, &line);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a lease had ended before it was given back");
                self.leases += 1;
                self.lost_leases += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::Price;

    use super::*;

    #[test]
    fn asks_silent_nodes_once_and_keeps_renewing_others() {
        let mut round = RenewalRound::default();
        let mut asked = Vec::new();
        let leases = [
            ("hung", Some(Code::AgentUnreachable)),
            ("hung", None),
            ("busy", Some(Code::StoreUnreachable)),
            ("busy", None),
            ("idle", Some(Code::LeaseEnded)),
        ];
        let outcomes = leases.map(|(node, code)| {
            round.renew(node.to_owned(), || {
                asked.push(node);
                code.map_or(Ok(()), |code| Err(Error::new(code, "as the test says")))
            })
        });
        assert_eq!(asked, ["hung", "busy", "busy", "idle"]);
        let (failed, extended) = (Renewal::Failed, Renewal::Extended);
        assert_eq!(outcomes, [failed, failed, failed, extended, Renewal::Over]);
    }

    #[test]
    fn adds_up_what_leases_cost() {
        let price = Some(Price { allocation_nano_per_gib_s: 7, ..Price::default() });
        let usage = Some(Usage { allocated_ns: 2_000_000_000, ..Usage::default() });
        let lease = Lease { memory_bytes: 1 << 30, price, usage, ..Lease::default() };
        let mut sum = MountBill::default();
        sum.add(Ok(vec![lease.clone(), lease]));
        sum.add(Err(Error::new(Code::LeaseEnded, "the node is gone")));
        assert_eq!((sum.leases, sum.lost_leases, sum.total.total_nano), (3, 1, 28));
        assert_eq!(sum.byte_ns, (4 << 30) * 1_000_000_000);
    }
}
