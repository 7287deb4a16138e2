//! Knows the managers of a node, and the one with which the node is registered.
//!
//! The node stays with one manager while that manager answers, and moves round robin to the next when it does not. The
//! node knows the managers that were configured at its start, and those that managers name in their answers, so that it
//! finds one when all of the configured ones are gone. A manager whose address is less secure than the configured ones
//! is ignored, so that no answer makes the node send its token unencrypted.

use std::sync::Mutex;

use sublet_fabric::sync::lock;
use sublet_proto::Error;
use sublet_runtime::access::{Access, Address, MAX_MANAGERS};
use tracing::debug;

use crate::leases::manager::ManagerLink;

/// The managers that the node knows.
pub(crate) struct Managers(Mutex<ManagerAddresses>);

struct ManagerAddresses {
    /// Access to the managers. The configured ones come first, and stay.
    access: Access,
    configured: usize,
    current: usize,
}

impl Managers {
    /// Creates the list from an access. The first manager becomes the current one.
    pub(crate) fn new(access: Access) -> Managers {
        let configured = access.managers.len();
        Managers(Mutex::new(ManagerAddresses { access, configured, current: 0 }))
    }

    /// Connects to the current manager.
    pub(crate) fn connect(&self) -> Result<ManagerLink, Error> {
        let known = lock(&self.0);
        ManagerLink::connect(&known.access, known.current)
    }

    /// Connects to all managers, the current one first.
    pub(crate) fn connect_each(&self) -> impl Iterator<Item = Result<ManagerLink, Error>> {
        let known = lock(&self.0);
        let (access, current, count) = (known.access.clone(), known.current, known.access.managers.len());
        (0..count).map(move |step| ManagerLink::connect(&access, (current + step) % count))
    }

    /// Makes the next manager the current one.
    pub(crate) fn move_on(&self) {
        let mut known = lock(&self.0);
        known.current = (known.current + 1) % known.access.managers.len().max(1);
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.0).access.managers.len()
    }

    /// Replaces the learned managers by those that a manager has named. The current one always stays.
    pub(crate) fn learn(&self, named: &[String]) {
        let mut known = lock(&self.0);
        let (configured, current) = (known.configured, known.current);
        let first = &known.access.managers[..configured];
        let mut managers = first.to_vec();
        if current >= configured {
            managers.extend(known.access.managers.get(current).cloned());
        }
        let parsed = named.iter().filter_map(|text| {
            text.parse().inspect_err(|error| debug!(%error, "a manager named another")).ok()
        });
        for address in parsed.filter(|address| first.iter().any(|one| is_as_safe(address, one))) {
            if managers.len() < MAX_MANAGERS && !managers.contains(&address) {
                managers.push(address);
            }
        }
        known.current = current.min(configured);
        known.access.managers = managers;
    }
}

/// Whether two addresses use the same kind of connection, with the same protection.
fn is_as_safe(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Unix(_), Address::Unix(_)) => true,
        (Address::Tcp { tls: one, .. }, Address::Tcp { tls: other, .. }) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managers(configured: &str) -> Managers {
        Managers::new(Access::parse(configured).unwrap())
    }

    fn list(managers: &Managers) -> (Vec<String>, usize) {
        let known = lock(&managers.0);
        (known.access.managers.iter().map(Address::to_string).collect(), known.current)
    }

    fn learn(managers: &Managers, named: &[&str]) {
        managers.learn(&named.iter().map(|name| name.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn visits_managers_in_turn_and_keeps_the_current_one() {
        let managers = managers("unix:/a,unix:/b");
        learn(&managers, &["unix:/b", "unix:/c", "unix:/d"]);
        assert_eq!(list(&managers).0, ["unix:/a", "unix:/b", "unix:/c", "unix:/d"]);
        (0..3).for_each(|_| managers.move_on());
        learn(&managers, &["unix:/e"]);
        assert_eq!(
            list(&managers),
            (vec!["unix:/a".into(), "unix:/b".into(), "unix:/d".into(), "unix:/e".into()], 2)
        );
        (0..2).for_each(|_| managers.move_on());
        learn(&managers, &[]);
        assert_eq!(list(&managers), (vec!["unix:/a".into(), "unix:/b".into()], 0));
    }

    #[test]
    fn ignores_less_secure_managers_and_bounds_the_list() {
        let managers = managers("https://a:1");
        learn(&managers, &["http://127.0.0.1:1", "unix:/x", "nonsense", "https://b:1", "https://b:1"]);
        assert_eq!(list(&managers).0, ["https://a:1", "https://b:1"]);
        let many: Vec<String> = (0..100).map(|port| format!("https://c:{}", port + 1)).collect();
        managers.learn(&many);
        assert_eq!(managers.count(), MAX_MANAGERS);
    }
}
