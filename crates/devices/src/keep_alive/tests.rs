//! Tests of the policy that chooses which idle functions stay on the device.

use proptest::prelude::*;

use super::*;

const SAME: EntryCost = EntryCost { load_us: 1000, size_bytes: 10 };

fn filled(costs: &[EntryCost], capacity_bytes: u64) -> KeepAlive<usize> {
    let mut kept = KeepAlive::new(capacity_bytes);
    costs.iter().enumerate().for_each(|(key, cost)| assert!(kept.insert(key, *cost).is_empty()));
    kept
}

#[test]
fn evicts_the_least_recently_used_of_equals() {
    let mut kept = filled(&[SAME; 3], 30);
    kept.touch(&0);
    assert_eq!(kept.insert(3, SAME), [1]);
}

#[test]
fn expensive_outlives_cheap_and_small_outlives_large() {
    let dear = EntryCost { load_us: 100_000, ..SAME };
    assert_eq!(filled(&[dear, SAME], 20).insert(2, SAME), [1]);
    let large = EntryCost { size_bytes: 100, ..SAME };
    assert_eq!(filled(&[SAME, large], 110).insert(2, SAME), [1]);
}

#[test]
fn what_is_used_often_outlives_what_is_used_once() {
    let mut kept = filled(&[SAME; 2], 20);
    (0..5).for_each(|_| assert!(kept.touch(&0)));
    kept.touch(&1);
    assert_eq!(kept.insert(2, SAME), [1]);
}

#[test]
fn what_is_pinned_stays_and_goes_when_it_may() {
    let mut kept = filled(&[SAME; 2], 20);
    kept.pin(&0);
    kept.pin(&1);
    assert!(kept.insert(2, SAME).is_empty());
    assert_eq!(kept.used_bytes(), 30);
    assert_eq!(kept.unpin(&1), [1]);
    assert!(kept.contains(&0));
}

#[test]
fn larger_entry_than_the_limit_evicts_none() {
    let mut kept = filled(&[SAME; 2], 20);
    assert_eq!(kept.insert(9, EntryCost { load_us: u64::MAX, size_bytes: 21 }), [9]);
    assert_eq!(kept.used_bytes(), 20);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, EntryCost),
    Touch(u8),
    Pin(u8),
    Unpin(u8),
    Remove(u8),
}

fn cost() -> impl Strategy<Value = EntryCost> {
    (0..2_000_000u64, 1..400u64).prop_map(|(load_us, size_bytes)| EntryCost { load_us, size_bytes })
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..20u8;
    prop_oneof![
        4 => (key.clone(), cost()).prop_map(|(key, cost)| Step::Insert(key, cost)),
        4 => key.clone().prop_map(Step::Touch),
        1 => key.clone().prop_map(Step::Pin),
        1 => key.clone().prop_map(Step::Unpin),
        1 => key.prop_map(Step::Remove),
    ]
}

proptest! {
    /// Checks after any steps: the size is that of the entries; it fits, unless the pinned entries alone exceed the
    /// capacity; an evicted entry was not pinned, and had no higher priority than any other candidate.
    #[test]
    fn it_fits_and_chooses_the_least(steps in prop::collection::vec(step(), 1..200)) {
        let mut kept = KeepAlive::new(1000);
        for step in steps {
            let before = kept.clone();
            let (gone, newest) = match step {
                Step::Insert(key, cost) => (kept.insert(key, cost), Some(key)),
                Step::Touch(key) => { kept.touch(&key); (vec![], None) }
                Step::Pin(key) => { kept.pin(&key); (vec![], None) }
                Step::Unpin(key) => (kept.unpin(&key), None),
                Step::Remove(key) => { kept.remove(&key); (vec![], None) }
            };
            let sum: u64 = kept.entries.values().map(|entry| entry.cost.size_bytes).sum();
            prop_assert_eq!(sum, kept.used_bytes());
            let is_free = |key: &u8| kept.entries[key].pins == 0 && Some(*key) != newest;
            let makes_room = matches!(step, Step::Insert(..) | Step::Unpin(_));
            prop_assert!(!makes_room || kept.used_bytes() <= 1000 || !kept.entries.keys().any(is_free));
            prop_assert!(kept.clock >= before.clock);
            for key in gone.iter().filter(|key| Some(**key) != newest) {
                let chosen = &before.entries[key];
                prop_assert!(chosen.pins == 0 || matches!(step, Step::Unpin(unpinned) if unpinned == *key));
                let spared = kept.keys().filter(|key| is_free(key));
                prop_assert!(spared.into_iter().all(|key| kept.entries[key].priority >= chosen.priority));
            }
        }
    }

    /// An entry does not stay for good because it was expensive once: insertions of others age it.
    #[test]
    fn what_is_never_used_again_goes_in_the_end(dear in cost(), uses in 1..50u32) {
        let mut kept = KeepAlive::new(1000);
        kept.insert(0, dear);
        (1..uses).for_each(|_| assert!(kept.touch(&0)));
        let others = EntryCost { load_us: 1_000_000, size_bytes: 400 };
        let most = kept.entries[&0].priority as u64 / (1_000_000 / 400) * 3 + 10;
        let is_gone = (1..=most).any(|key| kept.insert(key, others).contains(&0));
        prop_assert!(is_gone);
    }
}
