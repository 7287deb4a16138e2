//! The run for which a worker process executes a component, with its channels to memory components and to the instances
//! of other components.

use std::os::fd::OwnedFd;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use sublet_fabric::sync::{read_lock, write_lock};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::v1;
use sublet_proto::{Code, Error};

use super::channel::{self, Channel};
use super::mailbox::{Mailbox, QueueReceiver};
use crate::memory::pieces::CacheSize;

pub use super::mailbox::{MAX_MESSAGE_BYTES, ReceiveError};

/// The caches of all channels have this part of the process's memory, at most.
const CACHES_PART: u64 = 8;

/// Stack of the thread that joins memory ahead.
const JOINING_STACK_BYTES: usize = 512 << 10;
/// Number of channels whose counts are reported in one message, which agents relay up to a length of 4096 bytes.
const REPORTED_AT_ONCE: usize = 32;

/// The run for which this process executes a component now.
static RUN: RwLock<Option<Arc<WorkerRun>>> = RwLock::new(None);

/// A run, as a worker process knows it.
pub struct WorkerRun {
    first_instance: u32,
    /// Number of instances that execute the component.
    pub instances: u32,
    /// No component needs contents in the memory of a device with smaller numbers ([`Channel::device_memory`]).
    pub device_memory_from: u64,
    channels: Vec<Channel>,
}

/// The run, if there is one.
pub fn current() -> Option<Arc<WorkerRun>> {
    read_lock(&RUN).clone()
}

/// Accepts a client's run, in place of the previous one, for `workers` workers. The cache of remote memory uses a part
/// of the process's own memory. Returns whether the run has memory to swap to.
pub(super) fn take(
    message: &v1::Run,
    fds: Vec<OwnedFd>,
    workers: usize,
    memory_bytes: u64,
) -> Result<bool, Error> {
    let channels = match message.channels {
        0 => Vec::new(),
        count => {
            let cache = CacheSize::within(memory_bytes / CACHES_PART / u64::from(count));
            channel::receive(count, fds, workers, cache)?
        }
    };
    let v1::Run { first_instance, instances, device_memory_from, .. } = *message;
    let run = Arc::new(WorkerRun { first_instance, instances, device_memory_from, channels });
    let swaps = run.swap_space().is_ok();
    *write_lock(&RUN) = Some(run.clone());
    if message.ahead {
        join_ahead(run);
    }
    Ok(swaps)
}

/// Joins the memory that exists of a run whose functions begin later, in a thread: the process can begin meanwhile.
fn join_ahead(run: Arc<WorkerRun>) {
    let join = move || run.channels.iter().for_each(Channel::join);
    let thread = std::thread::Builder::new().name("joining".to_owned()).stack_size(JOINING_STACK_BYTES);
    // Without the thread, functions join the memory when they access it.
    let _ = thread.spawn(join);
}

impl WorkerRun {
    /// The number of the instance that a worker of this process executes.
    pub fn instance(&self, worker: u32) -> u32 {
        self.first_instance.saturating_add(worker)
    }

    /// The channels to memory components that functions access.
    pub fn memory(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(|channel| channel.mailbox.is_none() && !channel.is_swap)
    }

    /// The channel to a component.
    ///
    /// # Errors
    /// `invalid_argument` without an access edge to it.
    pub fn channel(&self, component: &str) -> Result<&Channel, Error> {
        self.memory().find(|channel| channel.name() == component).ok_or_else(|| {
            let message = format!("the graph has no access edge from this component to {component:?}");
            Error::new(Code::InvalidArgument, message)
        })
    }

    /// Sends a message to an instance of a component, which receives it later. Waits at most until the deadline for
    /// free space in its queue. `own` is the sender's instance.
    ///
    /// # Errors
    /// `invalid_argument` without a message edge to the component, for an instance that it does not have, or more than
    /// 64 KiB; `deadline_exceeded`; `lease_ended` if the component has ended.
    pub fn send(
        &self,
        own: u32,
        (component, to): (&str, u32),
        message: SharedBytes<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        self.mailbox(component)?.send(own, to, message, deadline)
    }

    /// Takes the next message that any instance of a component has sent to this one, and waits for it at most until the
    /// deadline. Returns its length and the number of its sender. Threads of the instance may receive at the same time;
    /// each message goes to one of them.
    ///
    /// # Errors
    /// `invalid_argument` without a message edge to the component; `deadline_exceeded`; `lease_ended` if the component
    /// has ended and no message of it is left.
    pub fn receive(
        &self,
        own: u32,
        component: &str,
        into: SharedBytesMut<'_>,
        deadline: Option<Instant>,
    ) -> Result<(u32, u32), ReceiveError> {
        let receiver = QueueReceiver { instance: own, worker: own.saturating_sub(self.first_instance) };
        self.mailbox(component)?.receive(receiver, into, deadline)
    }

    /// The channel of this process's swap space.
    ///
    /// # Errors
    /// `internal` if the run has none.
    pub(super) fn swap_space(&self) -> Result<&Channel, Error> {
        self.channels
            .iter()
            .find(|channel| channel.is_swap)
            .ok_or_else(|| Error::new(Code::Internal, "the run has no memory to swap to"))
    }

    fn mailbox(&self, component: &str) -> Result<Mailbox<'_>, Error> {
        let of = |channel: &&Channel| channel.mailbox.as_ref().is_some_and(|told| told.peer == component);
        let none = || {
            let message = format!("the graph has no message edge between this component and {component:?}");
            Error::new(Code::InvalidArgument, message)
        };
        let channel = self.channels.iter().find(of).ok_or_else(none)?;
        let told = channel.mailbox.as_ref().ok_or_else(none)?;
        Ok(Mailbox { channel, told })
    }

    /// Makes all writes visible to other processes, except those to channels that the worker has released, and reports
    /// to the client what the process has moved.
    ///
    /// # Errors
    /// The reason why a component is over.
    pub fn sync(&self, worker: u32) -> Result<(), Error> {
        self.channels.iter().filter(|channel| !channel.is_released(worker)).try_for_each(Channel::sync)?;
        self.report_traffic();
        Ok(())
    }

    /// Reports what the process has moved since the previous report. The client has the counts before it has the result
    /// of the function.
    fn report_traffic(&self) {
        let counted: Vec<v1::ChannelTraffic> =
            self.channels.iter().filter_map(Channel::take_traffic).collect();
        for (part, channel) in counted.chunks(REPORTED_AT_ONCE).zip(self.channels.iter().cycle()) {
            // Without an answer only counts are lost: the run notices lost memory, and a lost client ends the lease.
            let _ = channel.report(part.to_vec());
        }
    }

    /// A worker's function has returned: it accesses nothing any more.
    pub(super) fn rest(&self, worker: u32) {
        for channel in self.channels.iter().filter(|channel| !channel.is_released(worker)) {
            channel.rest(worker);
        }
    }

    /// The channels, in the order of the edges.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }
}
