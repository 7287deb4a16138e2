//! Tests of a run's budget: what is granted, and what waits.

use proptest::prelude::*;

use super::*;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const MEMORY: usize = 3;

fn budget(cores: u32, bytes: u64) -> BudgetState {
    BudgetState::new(RunLimits { cores: Some(cores), memory_bytes: Some(bytes), ..RunLimits::default() })
}

fn workers(by: usize, cores: u64, bytes: u64) -> BudgetRequest {
    BudgetRequest { by, what: BudgetNeed::Workers(BudgetAmount { cores, bytes }) }
}

fn memory(by: usize, to_bytes: u64) -> BudgetRequest {
    BudgetRequest { by, what: BudgetNeed::Memory { of: MEMORY, to_bytes } }
}

/// Begins, and asks.
fn begin(budget: &mut BudgetState, want: BudgetRequest) -> (u64, Verdict) {
    budget.begun.insert(want.by);
    let number = budget.want(want);
    (number, budget.judge(number))
}

#[test]
fn requests_that_do_not_fit_wait_in_order() {
    let mut budget = budget(3, 1000);
    let (first, verdict) = begin(&mut budget, workers(A, 2, 100));
    assert_eq!(verdict, Verdict::Granted(first));
    let (second, verdict) = begin(&mut budget, workers(B, 2, 100));
    assert_eq!(verdict, Verdict::Waits);
    let (third, verdict) = begin(&mut budget, workers(C, 1, 100));
    assert_eq!(verdict, Verdict::Granted(third), "the one before does not fit anyway");
    budget.end(A);
    assert_eq!(budget.judge(second), Verdict::Waits, "it is being given back");
    budget.held.remove(&first);
    assert_eq!(budget.judge(second), Verdict::Granted(second));
}

#[test]
fn only_a_request_that_would_wait_for_ever_is_refused() {
    let mut budget = budget(2, 1000);
    assert_eq!(begin(&mut budget, workers(A, 3, 0)).1, Verdict::Refused, "no run ever has three cores");
    budget.end(A);
    let (b, verdict) = begin(&mut budget, workers(B, 1, 100));
    assert_eq!(verdict, Verdict::Granted(b));
    let grown = budget.want(memory(B, 500));
    assert!(matches!(budget.judge(grown), Verdict::Granted(_)));
    let more = budget.want(memory(B, 901));
    assert_eq!(budget.judge(more), Verdict::Refused, "what it waits for is its own");
    budget.wants.remove(&more);
    budget.begun.insert(C);
    let (a, verdict) = begin(&mut budget, workers(A, 1, 500));
    assert_eq!(verdict, Verdict::Waits, "two others are not over");
    let more = budget.want(memory(B, 901));
    assert_eq!(budget.judge(more), Verdict::Waits, "C has begun, and may have something to give");
    budget.end(C);
    assert_eq!((budget.judge(a), budget.judge(more)), (Verdict::Refused, Verdict::Refused));
}

#[test]
fn memory_grows_in_place_and_is_counted_once() {
    let mut budget = budget(1, 100);
    let (first, verdict) = begin(&mut budget, memory(A, 60));
    assert_eq!(verdict, Verdict::Granted(first));
    let again = budget.want(memory(B, 100));
    assert_eq!(budget.judge(again), Verdict::Granted(first));
    assert_eq!(budget.total(), BudgetAmount { cores: 0, bytes: 100 });
    let less = budget.want(memory(B, 10));
    assert_eq!(budget.judge(less), Verdict::Granted(first));
    assert_eq!(budget.total().bytes, 100);
}

#[test]
fn who_begins_again_waits_for_what_it_had_before() {
    let mut budget = budget(2, 1000);
    let (first, _) = begin(&mut budget, workers(A, 2, 0));
    budget.end(A);
    let (again, verdict) = begin(&mut budget, workers(A, 2, 0));
    assert_eq!(verdict, Verdict::Waits, "its own workers of before are on their way back");
    budget.held.remove(&first);
    assert_eq!(budget.judge(again), Verdict::Granted(again));
}

#[test]
fn who_exchanges_messages_with_somebody_who_waits_gives_nothing_back() {
    let mut budget = budget(2, 1000);
    budget.partners = vec![(A, B)];
    begin(&mut budget, workers(A, 2, 0));
    assert_eq!(begin(&mut budget, workers(B, 1, 0)).1, Verdict::Refused, "A ends with it, and not before");
    let mut budget = self::budget(2, 1000);
    budget.partners = vec![(A, B)];
    begin(&mut budget, workers(A, 1, 0));
    begin(&mut budget, workers(C, 1, 0));
    assert_eq!(begin(&mut budget, workers(B, 1, 0)).1, Verdict::Waits, "C will end");
}

#[test]
fn without_limits_all_fit() {
    let mut budget = BudgetState::new(RunLimits::default());
    for by in [A, B, C] {
        assert!(matches!(begin(&mut budget, workers(by, u64::MAX, u64::MAX)).1, Verdict::Granted(_)));
    }
}

fn account(cores: u32) -> Arc<RunBudget> {
    let compute = |name: &str, entry: bool| {
        format!(r#"{{"name":"{name}","type":"compute","package":"p","function":"f","entry":{entry}}}"#)
    };
    let document = format!(
        r#"{{"version":1,"name":"g","components":[{},{}],"edges":[{{"type":"trigger","from":"a","to":"b"}}],"limits":{{"cores":{cores}}}}}"#,
        compute("a", true),
        compute("b", false)
    );
    let graph = Graph::parse(document.as_bytes()).unwrap();
    RunBudget::new(Arc::new(graph.clone()), &graph)
}

fn cores(cores: u64) -> BudgetAmount {
    BudgetAmount { cores, bytes: 0 }
}

#[test]
fn waiting_request_reports_its_reason_and_continues_when_granted() {
    let account = account(2);
    account.turn([], [A, B]);
    let share = account.take(A, cores(2)).unwrap();
    assert!(account.take(B, cores(1)).is_none());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut tell = |why: Error| tell.send(why.message).unwrap();
            account.hold(B, cores(1), WaitCallbacks { tell: &mut tell, is_wanted: &|| true }).map(drop)
        });
        let why = told.recv().unwrap();
        assert!(why.starts_with("1 core within") && why.contains("of which a have 2 cores"), "{why}");
        assert_eq!(account.waiting(), [(B, why)]);
        assert!(account.take(A, cores(0)).is_none(), "a request does not overtake a waiting one");
        account.turn([A], []);
        drop(share);
        waiter.join().unwrap().unwrap();
    });
    assert!(!account.is_wanting());
}

#[test]
fn shortened_memory_frees_its_bytes_for_other_requests() {
    let account = account(1);
    let hold = |to_bytes| {
        let wait = WaitCallbacks { tell: &mut |_| (), is_wanted: &|| true };
        account.hold_memory(A, (MEMORY, to_bytes), wait).unwrap();
    };
    let held = || lock(&account.budget).total().bytes;
    hold(1000);
    account.shorten_memory(MEMORY, 400);
    account.shorten_memory(MEMORY, 700);
    account.shorten_memory(B, 0);
    assert_eq!(held(), 400);
    hold(500);
    assert_eq!(held(), 500);
    drop(account.leave_memory(MEMORY));
    assert_eq!(held(), 0);
}

#[test]
fn cancelled_requests_stop_waiting_and_impossible_ones_fail() {
    let account = account(2);
    account.turn([], [A, B]);
    let _share = account.take(A, cores(2)).unwrap();
    let hold = |is_wanted: &dyn Fn() -> bool, amount| {
        account.hold(B, amount, WaitCallbacks { tell: &mut |_| {}, is_wanted }).err().unwrap()
    };
    assert_eq!(hold(&|| false, cores(1)).code, Code::LeaseEnded);
    account.turn([A], []);
    drop(_share);
    let error = hold(&|| true, cores(3));
    assert_eq!(error.code, Code::InsufficientResources);
    assert!(
        error.message.starts_with("component b needs 3 cores: the graph's limits allow a run 2 cores"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn limits_hold_and_everybody_is_served_or_rightly_refused(
        limit in 1_u64..8,
        steps in proptest::collection::vec((0_usize..6, 0_u64..9, any::<bool>()), 1..200),
    ) {
        let mut budget = budget(limit as u32, limit * 10);
        for (component, amount, is_memory) in steps {
            let what = BudgetNeed::Memory { of: 100 + component, to_bytes: amount * 10 };
            let want = match is_memory {
                true => BudgetRequest { by: component, what },
                false => workers(component, amount, amount),
            };
            if budget.begun.contains(&component) && amount == 0 {
                budget.end(component);
                budget.held.retain(|_, held| !held.is_leaving);
            } else if !budget.wants.values().any(|want| want.by == component) {
                budget.begun.insert(component);
                budget.want(want);
            }
            let numbers: Vec<u64> = budget.wants.keys().copied().collect();
            for number in numbers {
                let want = budget.wants[&number];
                if budget.judge(number) == Verdict::Refused {
                    prop_assert!(!budget.fits(&want));
                    // Even if all holders that do not wait themselves ended, the request would not fit.
                    let waits = |of: usize| budget.wants.values().any(|want| want.by == of);
                    prop_assert!(budget.held.values().all(|held| held.is_memory || waits(held.of)));
                    prop_assert!(budget.begun.iter().all(|&begun| waits(begun)));
                    budget.wants.remove(&number);
                    budget.end(want.by);
                    budget.held.retain(|_, held| !held.is_leaving);
                }
            }
            let total = budget.total();
            prop_assert!(total.cores <= limit && total.bytes <= limit * 10, "{:?}", total);
        }
    }
}
