//! A flag in shared memory, forth and back; for `echo` and the copy that it makes.

use std::sync::atomic::Ordering;

use rustix::thread::futex;
use sublet_fabric::clock::ticks_ordered;
use sublet_proto::Error;
use sublet_runtime::{CallOptions, Invoker};

use crate::Samples;
use crate::rounds::{CalledFunction, HEAD_BYTES, Mode, Rounds, UNCOUNTED, think};

/// The flags, as indices of 32-bit words of the input's head.
const REQUEST: usize = 128 / 4;
const RESPONSE: usize = 256 / 4;

const _: () = assert!(REQUEST < RESPONSE && RESPONSE < HEAD_BYTES / 4, "the flags lie in the input's head");

/// The other side is the function `raw` of `functions/bench.c`, in the worker.
pub(super) fn block(
    invoker: &Invoker,
    rounds: &mut Rounds,
    counted: u32,
    samples: &mut Samples,
) -> Result<(), Error> {
    let total = UNCOUNTED + counted;
    let copy_bytes = if rounds.function == CalledFunction::Echo { rounds.size } else { 0 };
    let sleeps = rounds.mode == Mode::Warm;
    rounds.input.copy_from(0, &[total, 0, copy_bytes, u32::from(sleeps)]);
    rounds.input.set(REQUEST, 0);
    rounds.input.set(RESPONSE, 0);
    let Rounds { input, output, think_ticks, .. } = rounds;
    let input = &*input;
    let responder = invoker.submit_with(invoker.function("raw")?, input, output, CallOptions::default())?;
    let (request, response) = (input.atomic(REQUEST), input.atomic(RESPONSE));
    for round in 1..=total {
        think(*think_ticks);
        let since = ticks_ordered();
        request.store(round, Ordering::Release);
        if sleeps {
            let _ = futex::wake(request, futex::Flags::empty(), 1);
        }
        while response.load(Ordering::Acquire) != round {}
        if round > UNCOUNTED {
            samples.since(since);
        }
    }
    responder.wait().map(drop)
}
