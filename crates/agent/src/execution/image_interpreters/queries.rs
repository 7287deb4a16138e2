//! Queries of images: each image is asked once for all leases that need its interpreter, and its answer is remembered.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::Code;

use super::answer::{Answer, ImageInterpreter, QueryKey};
use crate::execution::shared_work::{KnownResults, SharedWork, WorkBounds, WorkEnd, WorkRefusal};

/// Bounds of queries. Each query may use 512 MiB of the node's memory, beside those of leases.
const BOUNDS: WorkBounds =
    WorkBounds { of_node: 8, of_tenant: 2, calls_of_tenant: 1024, patience: Duration::from_secs(90) };
/// Interpreters of images that are remembered.
const MAX_KNOWN: usize = 1024;
/// How long an image is refused without being asked again: the state of the node may have been the cause, such as a lack of
/// memory.
const REFUSAL: Duration = Duration::from_secs(60);

/// See the [module](self).
pub(super) struct Queries {
    work: SharedWork<QueryKey, ImageInterpreter>,
    known: Mutex<KnownResults<QueryKey, Answer>>,
}

impl Queries {
    pub(super) fn new() -> Queries {
        Queries::with(BOUNDS)
    }

    fn with(bounds: WorkBounds) -> Queries {
        let known = Mutex::new(KnownResults::new(MAX_KNOWN));
        Queries { work: SharedWork::new(bounds, describe), known }
    }

    /// The answer of an image, for a call of a tenant, if it is known.
    pub(super) fn find(&self, key: &QueryKey, tenant: &str) -> Option<Answer> {
        lock(&self.known).find(key, tenant, Instant::now())
    }

    /// The answer of an image, for a call of a tenant. If the answer is not known, `ask` gives it, on this thread, or on that
    /// of another call. If `ask` gives up, another call asks.
    ///
    /// # Errors
    /// Those of `ask`, and `try_later` if the image cannot be asked in time.
    pub(super) fn find_or_ask(
        &self,
        key: &QueryKey,
        tenant: &str,
        ask: impl FnOnce() -> WorkEnd<ImageInterpreter>,
    ) -> Answer {
        if let Some(known) = self.find(key, tenant) {
            return known;
        }
        self.work.execute_unless_given_up(key, tenant, || {
            if let Some(known) = self.find(key, tenant) {
                return WorkEnd::Done(known);
            }
            let end = ask();
            if let WorkEnd::Done(answer) = &end {
                self.remember(key, tenant, answer);
            }
            end
        })
    }

    /// Keeps an answer, unless it says nothing about the image.
    fn remember(&self, key: &QueryKey, tenant: &str, answer: &Answer) {
        let until = match answer {
            Ok(_) => None,
            Err(error) if error.code == Code::InvalidPackage => Some(Instant::now() + REFUSAL),
            Err(_) => return,
        };
        lock(&self.known).insert(key, tenant, answer.clone(), until);
    }
}

/// The message of a query without an answer.
fn describe(refusal: WorkRefusal, bounds: &WorkBounds) -> String {
    let WorkBounds { of_node, of_tenant, calls_of_tenant, patience } = bounds;
    match refusal {
        WorkRefusal::TooManyCalls => {
            format!("{calls_of_tenant} starts of this tenant wait for interpreters of images already")
        }
        WorkRefusal::TooLate => format!(
            "it has not reported its version after {} s: a node asks at most {of_tenant} images of a tenant and {of_node} of \
             all at once",
            patience.as_secs()
        ),
        WorkRefusal::Panicked => "the query of its version has failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::tests::{key, python};
    use super::*;
    use sublet_proto::Error;

    #[test]
    fn asks_an_image_once() {
        let queries = Queries::new();
        assert_eq!(queries.find(&key("a1"), "a"), None);
        let asked = queries.find_or_ask(&key("a1"), "a", || WorkEnd::Done(python("3.12")));
        assert_eq!(asked, python("3.12"));
        let never = || panic!("the image is asked again");
        assert_eq!(queries.find_or_ask(&key("a1"), "b", never), python("3.12"));
        assert_eq!(queries.find(&key("a1"), "b"), Some(python("3.12")));
    }

    #[test]
    fn remembers_refusals_of_images_and_no_fault_of_the_node() {
        let queries = Queries::new();
        for (code, is_known) in [(Code::System, false), (Code::TryLater, false), (Code::InvalidPackage, true)]
        {
            let refused: Answer = Err(Error::new(code, "no Python"));
            let asked = queries.find_or_ask(&key("a1"), "a", || WorkEnd::Done(refused.clone()));
            assert_eq!(asked, refused);
            assert_eq!(queries.find(&key("a1"), "a"), is_known.then_some(refused));
        }
    }

    #[test]
    fn remembers_no_query_that_was_given_up() {
        let queries = Queries::new();
        let ended = Error::new(Code::InvalidPackage, "its python3 does not work: it was killed by SIGKILL");
        let given_up = queries.find_or_ask(&key("a1"), "a", || WorkEnd::GivenUp(ended.clone()));
        assert_eq!((given_up, queries.find(&key("a1"), "a")), (Err(ended), None));
    }

    #[test]
    fn says_why_an_image_was_not_asked_in_time() {
        let queries = Queries::with(WorkBounds { patience: Duration::ZERO, ..BOUNDS });
        let late = queries.find_or_ask(&key("a1"), "a", || {
            let never = || panic!("the image is asked twice");
            WorkEnd::Done(queries.find_or_ask(&key("a1"), "b", never))
        });
        let error = late.unwrap_err();
        assert_eq!(error.code, Code::TryLater);
        assert!(error.message.contains("2 images of a tenant and 8 of all"), "{error}");
    }
}
