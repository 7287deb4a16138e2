//! Operations that may wait, whatever they wait for, and the decoding of their requests.

use std::time::{Duration, Instant};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use sublet_proto::{Code, Error};

/// Longest attempt of an operation: then other operations use the thread.
const TICK: Duration = Duration::from_millis(50);

/// An operation in progress: a request of JavaScript, as JSON with bytes.
pub(crate) trait PollableOperation: Sized {
    /// Begins an operation, on the main thread.
    ///
    /// # Errors
    /// `invalid_argument` for a request that is not valid.
    fn begin(request: &str, bytes: Vec<u8>) -> Result<Self, Error>;

    /// Whether an attempt of it can be made on the main thread, which must not wait.
    fn may_begin_at_once(&self) -> bool;

    /// Makes an attempt that lasts until `tick` at most, and tells whether the operation has ended.
    fn attempt(&mut self, tick: Instant) -> bool;

    /// Whether it ends between two attempts.
    fn is_cancelled(&self) -> bool;

    /// Ends the operation on the main thread, and returns what JavaScript has to know of its outcome, with its bytes.
    ///
    /// # Errors
    /// The operation's own.
    fn end(self) -> Result<(Value, Option<Vec<u8>>), Error>;

    /// Makes an attempt that does not wait, and tells whether the operation has ended.
    fn look(&mut self) -> bool {
        self.attempt(Instant::now())
    }

    /// Makes an attempt that may wait for a [`TICK`], and tells whether the operation has ended.
    fn wait(&mut self) -> bool {
        self.attempt(Instant::now() + TICK)
    }
}

/// The time that an operation may take, in milliseconds; nothing for any time.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Patience {
    timeout_ms: Option<f64>,
}

pub(crate) fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

/// Decodes a request.
///
/// # Errors
/// `invalid_argument` if it is not one.
pub(crate) fn decode<T: DeserializeOwned>(request: &str) -> Result<T, Error> {
    serde_json::from_str(request)
        .map_err(|error| invalid(format!("a request of @sublet/sublet is wrong: {error}")))
}

/// The time until which a request may take, if it is limited.
///
/// # Errors
/// `invalid_argument` for a time that is not valid.
pub(crate) fn deadline(request: &str) -> Result<Option<Instant>, Error> {
    let Patience { timeout_ms } = decode(request)?;
    let Some(ms) = timeout_ms else { return Ok(None) };
    let timeout = Duration::try_from_secs_f64(ms / 1000.0)
        .map_err(|_| invalid(format!("a timeout of {ms} milliseconds is no time to wait")))?;
    Ok(Instant::now().checked_add(timeout))
}

/// Has a step wait until `tick` or the operation's deadline, whichever is earlier. Returns nothing if the operation has more
/// time than that and needs it.
pub(crate) fn within<T>(
    deadline: Option<Instant>,
    tick: Instant,
    step: impl FnOnce(Instant) -> Result<T, Error>,
) -> Option<Result<T, Error>> {
    let last = deadline.filter(|deadline| *deadline <= tick);
    let outcome = step(last.unwrap_or(tick));
    let is_late = matches!(&outcome, Err(error) if error.code == Code::DeadlineExceeded);
    let has_more = last.is_none_or(|last| Instant::now() < last);
    (!is_late || !has_more).then_some(outcome)
}
