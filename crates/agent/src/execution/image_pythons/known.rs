//! Answers of images that were asked for their Python, up to a number. If there are more, the tenant with the most answers
//! loses the one that was not used for the longest time. So a tenant that names many images evicts only its own answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sublet_proto::Code;

use super::answer::{Answer, QueryKey};

/// How long an image is refused without being asked again: the state of the node may have been the cause, such as a lack of
/// memory.
const REFUSAL: Duration = Duration::from_secs(60);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct KnownPythons {
    most: usize,
    answers: BTreeMap<QueryKey, KnownPython>,
    /// Number of uses of any answers.
    uses: u64,
}

#[derive(Debug)]
struct KnownPython {
    answer: Answer,
    /// The tenant whose it counts as: of those that have used it, one with few answers.
    tenant: String,
    /// Number of its latest use.
    used: u64,
    /// End of a refusal.
    until: Option<Instant>,
}

impl KnownPythons {
    /// Keeps up to `most` answers.
    pub(super) fn new(most: usize) -> KnownPythons {
        KnownPythons { most, answers: BTreeMap::new(), uses: 0 }
    }

    /// The answer of an image, for a call of a tenant.
    pub(super) fn find(&mut self, key: &QueryKey, tenant: &str, now: Instant) -> Option<Answer> {
        let known = self.answers.get(key)?;
        if known.until.is_some_and(|until| until <= now) {
            self.answers.remove(key);
            return None;
        }
        let is_cheaper = known.tenant != tenant && self.count(tenant) + 1 < self.count(&known.tenant);
        self.uses += 1;
        let known = self.answers.get_mut(key)?;
        known.used = self.uses;
        if is_cheaper {
            known.tenant = tenant.to_owned();
        }
        Some(known.answer.clone())
    }

    /// Keeps an answer that a tenant's call has received, unless it says nothing about the image.
    pub(super) fn insert(&mut self, key: &QueryKey, tenant: &str, answer: &Answer, now: Instant) {
        let until = match answer {
            Ok(_) => None,
            Err(error) if error.code == Code::InvalidPackage => Some(now + REFUSAL),
            Err(_) => return,
        };
        self.answers.remove(key);
        while self.answers.len() >= self.most
            && let Some(victim) = self.victim()
        {
            self.answers.remove(&victim);
        }
        self.uses += 1;
        let known = KnownPython { answer: answer.clone(), tenant: tenant.to_owned(), used: self.uses, until };
        self.answers.insert(key.clone(), known);
    }

    /// Number of answers that count as a tenant's.
    fn count(&self, tenant: &str) -> usize {
        self.answers.values().filter(|known| known.tenant == tenant).count()
    }

    fn victim(&self) -> Option<QueryKey> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for known in self.answers.values() {
            *counts.entry(&known.tenant).or_default() += 1;
        }
        let most = counts.values().max()?;
        let is_of_most = |known: &KnownPython| counts.get(&*known.tenant) == Some(most);
        let candidates = self.answers.iter().filter(|(_, known)| is_of_most(known));
        candidates.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::image_pythons::answer::tests::{key, python};
    use sublet_proto::Error;

    #[test]
    fn a_tenant_with_many_images_evicts_only_its_own() {
        let (mut known, now) = (KnownPythons::new(4), Instant::now());
        for name in ["b1", "c1"] {
            known.insert(&key(name), &name[..1], &python("3.12"), now);
        }
        for number in 0..9 {
            known.insert(&key(&format!("a{number}")), "a", &python("3.13"), now);
        }
        let kept: Vec<_> = known.answers.keys().cloned().collect();
        assert_eq!(kept, ["a7", "a8", "b1", "c1"].map(key));
    }

    #[test]
    fn evicts_the_least_recently_used_answer() {
        let (mut known, now) = (KnownPythons::new(2), Instant::now());
        known.insert(&key("a1"), "a", &python("3.12"), now);
        known.insert(&key("a2"), "a", &python("3.12"), now);
        assert_eq!(known.find(&key("a1"), "a", now), Some(python("3.12")));
        known.insert(&key("a3"), "a", &python("3.12"), now);
        assert_eq!(known.find(&key("a2"), "a", now), None);
        assert_eq!(known.find(&key("a1"), "a", now), Some(python("3.12")));
    }

    #[test]
    fn an_answer_counts_as_that_of_a_tenant_with_few() {
        let (mut known, now) = (KnownPythons::new(3), Instant::now());
        for name in ["a1", "a2", "a3"] {
            known.insert(&key(name), "a", &python("3.12"), now);
        }
        known.find(&key("a1"), "b", now);
        for name in ["a4", "a5", "a6"] {
            known.insert(&key(name), "a", &python("3.12"), now);
        }
        assert_eq!(known.find(&key("a1"), "b", now), Some(python("3.12")));
    }

    #[test]
    fn keeps_a_refusal_briefly_and_no_fault_of_the_node() {
        let (mut known, now) = (KnownPythons::new(3), Instant::now());
        let refused: Answer = Err(Error::new(Code::InvalidPackage, "too old"));
        known.insert(&key("a1"), "a", &refused, now);
        known.insert(&key("a2"), "a", &Err(Error::new(Code::System, "no memory")), now);
        assert_eq!(known.find(&key("a1"), "a", now + Duration::from_secs(59)), Some(refused));
        assert_eq!(known.find(&key("a1"), "a", now + Duration::from_secs(60)), None);
        assert_eq!(known.find(&key("a2"), "a", now), None);
    }
}
