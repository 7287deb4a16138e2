//! Steps on the connection, under its lock: arrivals are processed, and pending operations are tried until they
//! succeed.

use std::time::Duration;

use super::live::Live;
use super::{OfiEndpoint, State};
use crate::FabricError;

impl OfiEndpoint {
    /// Processes arrivals, rings the bell and wakes the reader as they require. An error has ended the connection.
    #[inline]
    pub(super) fn look(&self, state: &mut State, events: bool) -> Result<(), FabricError> {
        let live = state.live()?;
        let looked = if events { live.progress_all() } else { live.progress() };
        let effects = std::mem::take(&mut live.effects);
        if effects.bell {
            self.bell.ring();
        }
        if effects.published {
            self.sleep.notify();
        }
        looked.and_then(|()| live.settle()).map_err(|error| self.end(state, error))
    }

    /// Repeats a step until it is done, and processes arrivals in between. Fails without a peer, or if the connection
    /// is not the one of `generation`. Returns the generation of the connection.
    #[inline]
    pub(super) fn attempt<T>(
        &self,
        generation: Option<u64>,
        mut step: impl FnMut(&mut Live) -> Result<Option<T>, FabricError>,
    ) -> Result<(u64, T), FabricError> {
        let mut rounds = 0;
        loop {
            let mut state = self.lock();
            if self.is_down() {
                return Err(FabricError::Disconnected { reason: state.why_down() });
            }
            if generation.is_some_and(|expected| expected != state.generation) {
                return Err(FabricError::Disconnected { reason: "it was connected anew meanwhile".into() });
            }
            let (of, live) = (state.generation, state.live()?);
            let tried = if live.is_up() { step(live) } else { Ok(None) };
            match tried {
                Ok(Some(done)) => return Ok((of, done)),
                Ok(None) => self.look(&mut state, false)?,
                Err(error) if is_the_callers(&error) => return Err(error),
                Err(error) => return Err(self.end(&mut state, error)),
            }
            drop(state);
            pause(rounds);
            rounds += 1;
        }
    }
}

/// Whether an error is the caller's, and not the connection's.
fn is_the_callers(error: &FabricError) -> bool {
    use FabricError::{DoesNotFit, Limit, OutOfBounds, Unaligned, Unsupported};
    matches!(error, OutOfBounds { .. } | Unaligned { .. } | DoesNotFit { .. } | Limit(_) | Unsupported(_))
}

/// Pauses between two attempts; later pauses leave more time to other threads.
#[inline]
fn pause(rounds: u32) {
    const ALONE: u32 = 1 << 14;
    const NAP: Duration = Duration::from_micros(100);
    match rounds {
        0..ALONE if rounds % 32 != 31 => std::hint::spin_loop(),
        0..ALONE => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}
