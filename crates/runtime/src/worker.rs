//! Implements a worker: a thread that executes the requests in its inbox.
//!
//! [`run`](Worker::run) takes the requests of one ring in order. For each it finds input and output in mapped memory,
//! calls the function through its [`engine`], and publishes the result in the client's memory. While no request comes
//! it polls (hot) for the time that its lease says, then sleeps (warm). It switches by itself, call by call (rFaaS
//! III-C, III-D). On a shared core it first takes the core, or rejects the request ([`slots`]).
//!
//! Between taking a request and publishing its result there is no system call, allocation, lock or log line except the
//! engine's own, and native code has none; only a sleeping client costs a wake-up. Over a network the function's output
//! is sent ahead of the result, in the same system call. A worker whose connection is lost ends its process. A request
//! that makes no sense is answered with an error. A function that breaks its process is handled by the agent
//! ([`process`] describes worker processes).

use std::ptr::NonNull;

use sublet_fabric::clock::ticks;
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_fabric::ring::Position;
use sublet_fabric::window::RegionAddress;
use sublet_fabric::{Endpoint, FabricError};
use sublet_proto::{ALWAYS_HOT_NS, Code, saturating_u64, to_usize};

use crate::wire::usage::WorkerMeter;
use crate::wire::{
    CallOutcome, Immediate, InboxLayout, MAX_MESSAGE_BYTES, OWN_REGION, ResultsLayout, WireRequest,
};
use engine::{CallInput, CallOutput, FunctionCaller};
use slots::CoreRight;

mod answers;
mod calls;
pub mod channel;
mod client;
mod components;
mod context;
mod control;
pub mod engine;
mod executor;
pub mod library;
pub mod loading;
pub(crate) mod mailbox;
mod preparation;
pub mod process;
pub mod program;
mod remote;
mod slots;
pub mod spawned;
pub mod swapping;
mod threads;
mod variables;
pub mod worker_run;

/// Number of polls of the line between two readings of the clock: large enough that a call seldom waits for the clock,
/// small enough that the latest reading tells when the call came.
const LOOKS_PER_CLOCK: u32 = 128;

/// A worker of a lease.
pub(crate) struct Worker<'lease, C> {
    /// Index of the worker within the lease.
    pub(crate) number: u32,
    pub(crate) inbox: &'lease Region,
    pub(crate) layout: InboxLayout,
    pub(crate) slot_bytes: u64,
    pub(crate) results: ResultsLayout,
    /// The end that reaches the client: region 0 is its results region, the others are its buffers.
    pub(crate) client: &'lease Endpoint,
    /// Socket on which the worker reports why it ends.
    pub(crate) control: &'lease PacketSocket,
    pub(crate) meter: WorkerMeter<'lease>,
    pub(crate) hot_timeout_ticks: u64,
    /// The ring position that is executed first.
    pub(crate) start: u64,
    /// Access to the core, which the worker needs in order to execute or poll.
    pub(crate) core: C,
}

/// Way in which a worker waited for a request.
#[derive(Clone, Copy)]
enum WaitKind {
    /// The worker polled from `since` on; when the request has come, `since` is its latest reading of the clock.
    Polling { since: u64 },
    /// The worker did not poll, but slept, or would have.
    Slept,
}

/// Addresses of a call's input and output in this process.
struct CallAddresses {
    input: NonNull<u8>,
    output: NonNull<u8>,
}

impl<C: CoreRight> Worker<'_, C> {
    /// Executes requests for ever.
    pub(crate) fn run(&self, caller: &mut impl FunctionCaller) -> ! {
        let mut waiting = if self.is_warm() || !self.core.take() {
            WaitKind::Slept
        } else {
            WaitKind::Polling { since: self.meter.poll() }
        };
        for count in self.start.. {
            let position = Position::new(count, self.layout.slots());
            let address = self.layout.line(self.number, position.line);
            let (Some(line), Some(watch)) =
                (self.inbox.view::<Line>(address.line), self.inbox.view::<Watch>(address.watch))
            else {
                fatal("the inbox is smaller than its layout");
            };
            waiting = self.await_turn((line, watch), position, waiting);
            let (bits, body) = line.read();
            let (immediate, request) = (Immediate::from_bits(bits), WireRequest::decode(&body));
            if !self.core.take() {
                self.reject(immediate, &request);
                waiting = WaitKind::Slept;
                continue;
            }
            let since = self.serve(position, immediate, &request, caller, waiting);
            waiting = if self.is_warm() {
                self.meter.rest();
                WaitKind::Slept
            } else {
                WaitKind::Polling { since }
            };
        }
        fatal("the ring's positions have run out");
    }

    /// Whether it never polls.
    #[inline(always)]
    fn is_warm(&self) -> bool {
        self.hot_timeout_ticks == 0
    }

    /// Polls, then sleeps, until the position's line is published.
    #[inline(always)]
    fn await_turn(&self, (line, watch): (&Line, &Watch), position: Position, state: WaitKind) -> WaitKind {
        if let WaitKind::Polling { since } = state {
            let mut now = since;
            loop {
                if self.client.spin((line, watch), position.turn, LOOKS_PER_CLOCK) {
                    return WaitKind::Polling { since: now };
                }
                self.check_connection();
                self.check_line(line, position);
                now = ticks();
                if now.saturating_sub(since) >= self.hot_timeout_ticks {
                    break;
                }
            }
            self.meter.sleep();
            self.core.give_back();
        }
        self.check_line(line, position);
        while !self.client.wait((line, watch), position.turn, None, || false) {
            self.check_connection();
            self.check_line(line, position);
        }
        WaitKind::Slept
    }

    /// Ends the process, over a network, if the awaited line holds a value that no client wrote. A function has then
    /// written over the inbox, and with it over requests, which would never be answered. In shared memory the client
    /// detects that itself.
    #[inline(always)]
    fn check_line(&self, line: &Line, position: Position) {
        if matches!(self.client, Endpoint::Shm(_)) {
            return;
        }
        let laps = position.count >> self.layout.slots().trailing_zeros();
        if !position.turn.may_follow(line.turn(), laps) {
            control::confused(self.control, "a function wrote over its worker's requests");
        }
    }

    /// Ends the process if no request can come any more. In shared memory there is nothing to check.
    #[inline(always)]
    fn check_connection(&self) {
        if let Some(reason) = self.client.down() {
            control::lost(self.control, &reason);
        }
    }

    /// Executes one request and publishes its result. Returns the time at which the function returned.
    #[inline(always)]
    fn serve(
        &self,
        at: Position,
        immediate: Immediate,
        request: &WireRequest,
        caller: &mut impl FunctionCaller,
        waiting: WaitKind,
    ) -> u64 {
        let entered = match waiting {
            WaitKind::Polling { since: latest } => latest,
            WaitKind::Slept => ticks(),
        };
        let call = self.meter.enter(immediate.function, entered, matches!(waiting, WaitKind::Polling { .. }));
        let (ended, output) = match self.places(at, request) {
            Ok(places) => (self.call(immediate.function, request, &places, caller), Some(places.output)),
            Err(refusal) => (refusal, None),
        };
        let executing_ticks = if request.timed { ticks().saturating_sub(entered) } else { 0 };
        let outcome = self.outcome(&ended, executing_ticks, immediate, caller);
        self.meter.answer(&call, ended.code.is_some());
        if self.is_warm() {
            self.core.give_back();
        }
        if !matches!(self.client, Endpoint::Shm(_)) {
            self.push(request, &ended, output);
        }
        self.publish(immediate, request, &outcome);
        // The clock is read when the client has its result already.
        let left = ticks();
        self.meter.leave(&call, left, left.saturating_sub(entered));
        caller.rest();
        left
    }

    /// Answers a request that finds the core taken: no function is called, and no time is counted.
    #[cold]
    fn reject(&self, immediate: Immediate, request: &WireRequest) {
        self.meter.reject();
        let outcome = CallOutcome { status: Code::CoreBusy.number(), output_len: 0, detail: 0 };
        self.publish(immediate, request, &outcome);
    }

    #[inline(always)]
    fn publish(&self, immediate: Immediate, request: &WireRequest, outcome: &CallOutcome) {
        let to = self.results.line(self.number, immediate.record());
        let sent = self.client.put_imm(to, request.result_turn, immediate.to_bits(), &outcome.encode());
        if let Err(error) = sent {
            self.unsent(&error);
        }
    }

    /// Sends the function's output to the client.
    #[cold]
    fn push(&self, request: &WireRequest, ended: &CallEnd, output: Option<NonNull<u8>>) {
        let Some(output) = output else { return };
        // More than the capacity is the error that there are more, and nothing was written.
        if !(1..=request.output_capacity).contains(&ended.written) {
            return;
        }
        // SAFETY: `places` has found `output_capacity` bytes there; mapped regions stay mapped. The function that wrote
        // them has returned, and its result's line follows on this thread. A client that writes there meanwhile only
        // changes the bytes that are sent.
        let pushed = unsafe { self.client.push(request.output, output, u64::from(ended.written)) };
        if let Err(error) = pushed {
            self.unsent(&error);
        }
    }

    #[cold]
    fn unsent(&self, error: &FabricError) -> ! {
        match self.client {
            Endpoint::Shm(_) => fatal("the results region is smaller than its layout"),
            _ => control::lost(self.control, &error.to_string()),
        }
    }

    /// Finds the bytes of a call, all of which must lie inside of mapped regions.
    #[inline(always)]
    fn places(&self, at: Position, request: &WireRequest) -> Result<CallAddresses, CallEnd> {
        let input_len = u64::from(request.input_len);
        let input = if request.input.region == OWN_REGION {
            if input_len > self.slot_bytes {
                return Err(CallEnd::of(Code::InputTooLarge));
            }
            self.inbox.pointer(self.layout.payload(self.number, at.line), input_len)
        } else {
            self.client.mapped(request.input, input_len)
        };
        let output = if request.output_capacity == 0 {
            Some(NonNull::<u128>::dangling().cast())
        } else if request.output.region == OWN_REGION {
            None
        } else {
            self.client.mapped(request.output, u64::from(request.output_capacity))
        };
        match (input, output) {
            (Some(input), Some(output)) => Ok(CallAddresses { input, output }),
            _ => Err(CallEnd::of(Code::InvalidArgument)),
        }
    }

    #[inline(always)]
    fn call(
        &self,
        function: u16,
        request: &WireRequest,
        places: &CallAddresses,
        caller: &mut impl FunctionCaller,
    ) -> CallEnd {
        // SAFETY: `places` has found the bytes of both in mapped regions, which stay mapped; no code in this process
        // has references to memory that clients write to.
        let (input, output) = unsafe {
            (
                CallInput::new(places.input, request.input_len, self.client),
                CallOutput::new(places.output, request.output_capacity),
            )
        };
        match caller.call(function, input, output) {
            Err(code) => {
                CallEnd { code: Some(code), written: caller.reported_bytes().min(request.output_capacity) }
            }
            Ok(written) if written > request.output_capacity => {
                CallEnd { code: Some(Code::OutputTooLarge), written }
            }
            Ok(written) => CallEnd { code: None, written },
        }
    }

    /// The contents of the result line; a function's own message is sent before.
    #[inline(always)]
    fn outcome(
        &self,
        ended: &CallEnd,
        executing_ticks: u64,
        immediate: Immediate,
        caller: &impl FunctionCaller,
    ) -> CallOutcome {
        let detail = match ended.code {
            None => executing_ticks,
            Some(Code::FunctionFailed | Code::MemoryExceeded | Code::DeadlineExceeded) => {
                self.put_message(immediate, caller.message())
            }
            Some(_) => 0,
        };
        CallOutcome { status: ended.code.map_or(0, Code::number), output_len: ended.written, detail }
    }

    #[cold]
    fn put_message(&self, immediate: Immediate, message: &[u8]) -> u64 {
        let message = &message[..message.len().min(to_usize(MAX_MESSAGE_BYTES))];
        let offset = self.results.message(self.number, immediate.record());
        match self.client.put(RegionAddress { region: OWN_REGION, offset }, message) {
            Ok(()) => message.len() as u64,
            Err(_) => 0,
        }
    }
}

/// End of a call: success, or an error code.
struct CallEnd {
    code: Option<Code>,
    written: u32,
}

impl CallEnd {
    #[cold]
    fn of(code: Code) -> CallEnd {
        CallEnd { code: Some(code), written: 0 }
    }
}

/// The ticks of a lease's hot timeout.
pub(crate) fn hot_timeout_ticks(hot_timeout_ns: u64, ticks_per_ns: f64) -> u64 {
    match hot_timeout_ns {
        ALWAYS_HOT_NS => u64::MAX,
        ns => saturating_u64(ns as f64 * ticks_per_ns),
    }
}

/// Ends the process: a worker that cannot trust its own set-up must not answer calls.
#[cold]
fn fatal(message: &str) -> ! {
    eprintln!("sublet-worker: {message}");
    std::process::abort();
}
