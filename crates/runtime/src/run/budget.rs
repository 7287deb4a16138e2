//! Accounts for the resources that a run holds under its graph's limits, and for the components that wait: pure, but
//! for [`BudgetShare`] and the lock.
//!
//! A component requests its share before it leases, or before a memory component grows, and returns it when the lease
//! has ended. A request that does not fit waits until enough is returned. If all holders wait themselves, or are memory
//! components that stay allocated for the waiting ones, nothing will be returned. The budget detects this at once and
//! refuses the request.
//!
//! Invariants:
//! - The granted shares never exceed the limits.
//! - A refused request would wait for ever.
//! - A request that could be granted is not refused, and of several that fit the one that has waited longest is first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use sublet_proto::graph::{Graph, Relation, RunLimits};
use sublet_proto::{Code, Error};

use crate::lease::link::lock;

/// Interval at which a waiting request checks whether it is still needed.
const LOOK: Duration = Duration::from_millis(50);

/// Cores, and bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BudgetAmount {
    pub(super) cores: u64,
    pub(super) bytes: u64,
}

/// A granted share.
#[derive(Clone, Copy, Debug)]
struct HeldShare {
    /// The component that executes with it, or that it is the memory of.
    of: usize,
    amount: BudgetAmount,
    is_memory: bool,
    /// Set while the share is being returned.
    is_leaving: bool,
}

/// A waiting request.
#[derive(Clone, Copy, Debug)]
struct BudgetRequest {
    /// The component that waits for it.
    by: usize,
    what: BudgetNeed,
}

#[derive(Clone, Copy, Debug)]
enum BudgetNeed {
    Workers(BudgetAmount),
    /// A memory component that is to have `to_bytes` bytes.
    Memory {
        of: usize,
        to_bytes: u64,
    },
}

/// Decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Granted. The share has this number from now on.
    Granted(u64),
    Waits,
    /// Refused: enough will never be returned.
    Refused,
}

/// The decisions, without locks or I/O.
#[derive(Debug, Default)]
struct BudgetState {
    limits: RunLimits,
    /// The granted shares, by number.
    held: BTreeMap<u64, HeldShare>,
    /// The waiting requests, in the order of their arrival.
    wants: BTreeMap<u64, BudgetRequest>,
    /// Components that have begun and may still ask, or end.
    begun: BTreeSet<usize>,
    /// Pairs of components that exchange messages: neither ends without the other.
    partners: Vec<(usize, usize)>,
    next: u64,
}

impl BudgetState {
    fn new(limits: RunLimits) -> BudgetState {
        BudgetState { limits, ..BudgetState::default() }
    }

    fn of(graph: &Graph) -> BudgetState {
        let messages = graph.edges.iter().filter(|edge| edge.relation == Relation::Message);
        let partners = messages.map(|edge| (edge.from, edge.to)).collect();
        BudgetState { partners, ..BudgetState::new(graph.limits.clone()) }
    }

    fn want(&mut self, want: BudgetRequest) -> u64 {
        self.next += 1;
        let before = self.wants.insert(self.next, want);
        debug_assert!(before.is_none(), "two wants have the number {}", self.next);
        self.next
    }

    /// Decides on the request of this number.
    fn judge(&mut self, number: u64) -> Verdict {
        let Some(&want) = self.wants.get(&number) else { return Verdict::Refused };
        // A request for nothing more takes nothing from others.
        let has_it = self.missing(want.what) == BudgetAmount::default();
        let is_first = has_it || !self.wants.range(..number).any(|(_, earlier)| self.fits(earlier));
        if is_first && self.fits(&want) {
            self.wants.remove(&number);
            return Verdict::Granted(self.grant(number, want));
        }
        if self.can_change() { Verdict::Waits } else { Verdict::Refused }
    }

    fn grant(&mut self, number: u64, want: BudgetRequest) -> u64 {
        let (of, amount, is_memory) = match want.what {
            BudgetNeed::Workers(amount) => (want.by, amount, false),
            BudgetNeed::Memory { of, to_bytes } => (of, BudgetAmount { cores: 0, bytes: to_bytes }, true),
        };
        let known = self.memory(of).filter(|_| is_memory);
        let held = self.held.entry(known.unwrap_or(number));
        held.and_modify(|held| held.amount.bytes = held.amount.bytes.max(amount.bytes))
            .or_insert(HeldShare { of, amount, is_memory, is_leaving: false });
        debug_assert!(self.is_within(), "{} are held, and the limits are {:?}", self.total(), self.limits);
        known.unwrap_or(number)
    }

    /// Whether the granted shares exceed no limit.
    fn is_within(&self) -> bool {
        let BudgetAmount { cores, bytes } = self.total();
        self.limits.cores.is_none_or(|limit| cores <= u64::from(limit))
            && self.limits.memory_bytes.is_none_or(|limit| bytes <= limit)
    }

    /// The number under which a memory component is held.
    fn memory(&self, of: usize) -> Option<u64> {
        let is_it = |held: &HeldShare| held.is_memory && held.of == of && !held.is_leaving;
        self.held.iter().find(|(_, held)| is_it(held)).map(|(&number, _)| number)
    }

    /// Amount that a request adds to the granted shares.
    fn missing(&self, what: BudgetNeed) -> BudgetAmount {
        match what {
            BudgetNeed::Workers(amount) => amount,
            BudgetNeed::Memory { of, to_bytes } => {
                let has = self.memory(of).map_or(0, |number| self.held[&number].amount.bytes);
                BudgetAmount { cores: 0, bytes: to_bytes.saturating_sub(has) }
            }
        }
    }

    fn total(&self) -> BudgetAmount {
        self.held.values().fold(BudgetAmount::default(), |sum, held| BudgetAmount {
            cores: sum.cores.saturating_add(held.amount.cores),
            bytes: sum.bytes.saturating_add(held.amount.bytes),
        })
    }

    fn fits(&self, want: &BudgetRequest) -> bool {
        let (missing, total) = (self.missing(want.what), self.total());
        let is_within = |held: u64, more: u64, limit: Option<u64>| {
            // A request for nothing more fits.
            more == 0 || limit.is_none_or(|limit| held.checked_add(more).is_some_and(|all| all <= limit))
        };
        is_within(total.cores, missing.cores, self.limits.cores.map(u64::from))
            && is_within(total.bytes, missing.bytes, self.limits.memory_bytes)
    }

    /// Components that wait, and those that wait for them because they exchange messages.
    fn waiting(&self) -> BTreeSet<usize> {
        let mut waiting: BTreeSet<usize> = self.wants.values().map(|want| want.by).collect();
        loop {
            let joined =
                |&&(one, other): &&(usize, usize)| waiting.contains(&one) != waiting.contains(&other);
            let Some(&(one, other)) = self.partners.iter().find(joined) else { return waiting };
            waiting.extend([one, other]);
        }
    }

    fn end(&mut self, component: usize) {
        self.begun.remove(&component);
        self.wants.retain(|_, want| want.by != component);
        let own = self.held.values_mut().filter(|held| !held.is_memory && held.of == component);
        own.for_each(|held| held.is_leaving = true);
    }

    /// Returns whether a share will be returned without any waiting request being granted, or one of the requests can
    /// be granted.
    fn can_change(&self) -> bool {
        let waiting = self.waiting();
        let waits = |component: usize| waiting.contains(&component);
        let gives = |held: &HeldShare| held.is_leaving || (!held.is_memory && !waits(held.of));
        self.held.values().any(gives)
            || self.begun.iter().any(|&component| !waits(component))
            || self.wants.values().any(|want| self.fits(want))
    }
}

/// The budget of one run, shared by its threads.
pub(super) struct RunBudget {
    graph: Arc<Graph>,
    budget: Mutex<BudgetState>,
    changed: Condvar,
}

/// No component.
const NOBODY: usize = usize::MAX;

/// A share of a run's limits. It is returned when this is dropped.
pub(super) struct BudgetShare {
    account: Arc<RunBudget>,
    number: u64,
}

impl BudgetShare {
    /// Passes the share to another component. With `None` it is marked as being returned, for waiting requests.
    pub(super) fn hand_on(&self, to: Option<usize>) {
        self.account.change(|budget| {
            if let Some(held) = budget.held.get_mut(&self.number) {
                (held.of, held.is_leaving) = (to.unwrap_or(NOBODY), to.is_none());
            }
        });
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.account.change(|budget| {
            budget.held.remove(&self.number);
        });
    }
}

impl RunBudget {
    /// Creates the budget of a run. `graph` has memory components for messages; `described` has edges for them.
    pub(super) fn new(graph: Arc<Graph>, described: &Graph) -> Arc<RunBudget> {
        let budget = Mutex::new(BudgetState::of(described));
        Arc::new(RunBudget { graph, budget, changed: Condvar::new() })
    }

    /// Whether there is a limit of memory.
    pub(super) fn limits_memory(&self) -> bool {
        self.graph.limits.memory_bytes.is_some()
    }

    /// Ends components, whatever the reason, and begins others, in one step under the lock. The ended ones have no
    /// requests any more, and their shares are being returned; the others may request theirs.
    pub(super) fn turn(&self, over: impl IntoIterator<Item = usize>, begun: impl IntoIterator<Item = usize>) {
        self.change(|budget| {
            over.into_iter().for_each(|component| budget.end(component));
            budget.begun.extend(begun);
        });
    }

    /// Returns whether any request waits.
    pub(super) fn is_wanting(&self) -> bool {
        !lock(&self.budget).wants.is_empty()
    }

    /// Each waiting component, with the reason why it waits.
    pub(super) fn waiting(&self) -> Vec<(usize, String)> {
        let budget = lock(&self.budget);
        budget.wants.values().map(|want| (want.by, self.why(&budget, want))).collect()
    }

    /// Takes workers for a component, if no request waits and they fit.
    pub(super) fn take(self: &Arc<RunBudget>, component: usize, amount: BudgetAmount) -> Option<BudgetShare> {
        let mut budget = lock(&self.budget);
        if !budget.wants.is_empty() {
            return None;
        }
        let number = budget.want(BudgetRequest { by: component, what: BudgetNeed::Workers(amount) });
        let verdict = budget.judge(number);
        budget.wants.remove(&number);
        let Verdict::Granted(number) = verdict else { return None };
        Some(BudgetShare { account: self.clone(), number })
    }

    /// Takes workers for a component, which waits for them as long as it is needed, and reports the reason if it has
    /// to.
    ///
    /// # Errors
    /// `memory_exceeded` or `insufficient_resources` if it would wait for ever, `lease_ended` if it is not needed any
    /// more.
    pub(super) fn hold(
        self: &Arc<RunBudget>,
        component: usize,
        amount: BudgetAmount,
        wait: WaitCallbacks<'_>,
    ) -> Result<BudgetShare, Error> {
        let number = self.settle(BudgetRequest { by: component, what: BudgetNeed::Workers(amount) }, wait)?;
        Ok(BudgetShare { account: self.clone(), number })
    }

    /// Increases the share of a memory component to `to_bytes` bytes in all, for the running component `by`. Waits and
    /// fails like [`RunBudget::hold`].
    pub(super) fn hold_memory(
        self: &Arc<RunBudget>,
        by: usize,
        (of, to_bytes): (usize, u64),
        wait: WaitCallbacks<'_>,
    ) -> Result<(), Error> {
        self.settle(BudgetRequest { by, what: BudgetNeed::Memory { of, to_bytes } }, wait).map(drop)
    }

    /// Reduces the share of a memory component, which has given back its bytes beyond `to_bytes`.
    pub(super) fn shorten_memory(&self, of: usize, to_bytes: u64) {
        self.change(|budget| {
            let held = budget.memory(of).and_then(|number| budget.held.get_mut(&number));
            if let Some(held) = held {
                held.amount.bytes = held.amount.bytes.min(to_bytes);
            }
        });
    }

    /// Turns the share of a memory component into a [`BudgetShare`]: it is returned when that is dropped.
    pub(super) fn leave_memory(self: &Arc<RunBudget>, of: usize) -> Option<BudgetShare> {
        let mut budget = lock(&self.budget);
        let number = budget.memory(of)?;
        budget.held.get_mut(&number)?.is_leaving = true;
        drop(budget);
        self.changed.notify_all();
        Some(BudgetShare { account: self.clone(), number })
    }

    fn settle(&self, want: BudgetRequest, wait: WaitCallbacks<'_>) -> Result<u64, Error> {
        let mut budget = lock(&self.budget);
        let number = budget.want(want);
        let mut is_told = false;
        loop {
            // Checked before the request is granted, since a share that no caller uses would not be returned.
            if !budget.wants.contains_key(&number) || !(wait.is_wanted)() {
                budget.wants.remove(&number);
                self.changed.notify_all();
                let name = &self.graph.components[want.by].name;
                let message = format!("component {name} is not waited for any more");
                return Err(Error::new(Code::LeaseEnded, message));
            }
            match budget.judge(number) {
                Verdict::Granted(held) => {
                    self.changed.notify_all();
                    return Ok(held);
                }
                Verdict::Refused => {
                    let error = self.refusal(&budget, &want);
                    budget.wants.remove(&number);
                    return Err(error);
                }
                Verdict::Waits if !is_told => {
                    is_told = true;
                    (wait.tell)(Error::new(Code::NoCapacity, self.why(&budget, &want)));
                    // Another waiting request may depend on the fact that this one waits.
                    self.changed.notify_all();
                }
                Verdict::Waits => {
                    let waited = self.changed.wait_timeout(budget, LOOK);
                    budget = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn change(&self, what: impl FnOnce(&mut BudgetState)) {
        what(&mut lock(&self.budget));
        self.changed.notify_all();
    }

    /// The missing amount of a request, and the components that hold it.
    fn why(&self, budget: &BudgetState, want: &BudgetRequest) -> String {
        let missing = budget.missing(want.what);
        let mut holders: Vec<&str> = Vec::new();
        for held in budget.held.values() {
            let of_it =
                (missing.cores > 0 && held.amount.cores > 0) || (missing.bytes > 0 && held.amount.bytes > 0);
            let name = self.graph.components.get(held.of).map(|of| of.name.as_str());
            holders.extend(name.filter(|name| of_it && !holders.contains(name)));
        }
        format!("{missing} within the graph's limits, of which {} have {}", list(&holders), budget.total())
    }

    fn refusal(&self, budget: &BudgetState, want: &BudgetRequest) -> Error {
        let (missing, total, limits) = (budget.missing(want.what), budget.total(), &self.graph.limits);
        let allowed = BudgetAmount {
            cores: limits.cores.map_or(u64::MAX, u64::from),
            bytes: limits.memory_bytes.unwrap_or(u64::MAX),
        };
        let lacks_memory = total.bytes.saturating_add(missing.bytes) > allowed.bytes;
        let code = if lacks_memory { Code::MemoryExceeded } else { Code::InsufficientResources };
        let allowed = match (limits.cores, lacks_memory) {
            (_, true) => BudgetAmount { cores: 0, ..allowed },
            (_, false) => BudgetAmount { bytes: 0, ..allowed },
        };
        let what = match want.what {
            BudgetNeed::Workers(_) => format!("component {} needs", self.graph.components[want.by].name),
            BudgetNeed::Memory { of, .. } => {
                format!("memory component {} needs, to grow,", self.graph.components[of].name)
            }
        };
        let message = format!(
            "{what} {missing}: the graph's limits allow a run {allowed}, of which {total} are held by what waits for it"
        );
        Error::new(code, message)
    }
}

/// Callbacks of a waiting request.
pub(super) struct WaitCallbacks<'call> {
    /// Called once with the reason why the request waits.
    pub(super) tell: &'call mut dyn FnMut(Error),
    pub(super) is_wanted: &'call dyn Fn() -> bool,
}

impl fmt::Display for BudgetAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BudgetAmount { cores: 1, bytes: 0 } => f.write_str("1 core"),
            BudgetAmount { cores, bytes: 0 } => write!(f, "{cores} cores"),
            BudgetAmount { cores: 0, bytes } => write!(f, "{bytes} bytes"),
            BudgetAmount { cores, bytes } => {
                write!(f, "{} and {bytes} bytes", BudgetAmount { cores, bytes: 0 })
            }
        }
    }
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "others".to_owned(),
        names if names.len() > 4 => format!("{} and {} others", names[..4].join(", "), names.len() - 4),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests;
