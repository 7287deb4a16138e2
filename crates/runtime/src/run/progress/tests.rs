//! Tests of a run's progress: order of components, failures and replay.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use world::ComponentWorld;

mod ledger;
mod stories;
mod world;

fn graph(components: &str, edges: &str) -> Arc<Graph> {
    let json = format!(r#"{{"version":1,"name":"g","components":[{components}],"edges":[{edges}]}}"#);
    Arc::new(Graph::parse(json.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}\n{json}")))
}

fn compute(name: &str) -> String {
    let entry = if name == "a" { r#","entry":true"# } else { "" };
    format!(r#"{{"name":"{name}","type":"compute","package":"p","function":"f"{entry}}}"#)
}

fn memory(name: &str) -> String {
    format!(r#"{{"name":"{name}","type":"memory"}}"#)
}

fn edge(kind: &str, from: &str, to: &str) -> String {
    let rights = if kind == "access" { r#","rights":"write""# } else { "" };
    format!(r#"{{"type":"{kind}","from":"{from}","to":"{to}"{rights}}}"#)
}

/// a -> b -> c, a -> d; a and b share m.
fn forked() -> Arc<Graph> {
    let components = [compute("a"), compute("b"), compute("c"), compute("d"), memory("m")];
    let edges = [
        edge("trigger", "a", "b"),
        edge("trigger", "b", "c"),
        edge("trigger", "a", "d"),
        edge("access", "a", "m"),
        edge("access", "b", "m"),
    ];
    graph(&components.join(","), &edges.join(","))
}

fn outputs(text: &str) -> Outputs {
    Arc::new(vec![text.as_bytes().to_vec()])
}

fn start(component: usize, attempt: u32, input: &str) -> RunStep {
    RunStep::Start { component, attempt, input: Arc::new(input.as_bytes().to_vec()) }
}

fn record(from: usize, to: &[usize], text: &str) -> RunStep {
    RunStep::Record { from, to: to.to_vec(), outputs: outputs(text) }
}

fn gone() -> Error {
    Error::new(Code::WorkerDied, "gone")
}

#[test]
fn records_outputs_before_the_next_components_begin() {
    let mut progress = RunProgress::new(forked(), b"in".to_vec(), 3);
    assert_eq!(progress.begin().unwrap(), [start(0, 1, "in")]);
    assert_eq!(progress.upcoming().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(
        [0, 1, 4].map(|at| progress.standing(at)),
        [ComponentPhase::Running, ComponentPhase::Waiting, ComponentPhase::Memory]
    );
    assert_eq!(
        progress.ended(0, 1, outputs("A")).unwrap(),
        [record(0, &[1, 3], "A"), start(1, 1, "A"), start(3, 1, "A")]
    );
    let ended = progress.ended(1, 1, outputs("B")).unwrap();
    assert_eq!(ended, [record(1, &[2], "B"), RunStep::Drop { memory: 4 }, start(2, 1, "B")]);
    assert_eq!(progress.ended(3, 1, outputs("D")).unwrap(), [record(3, &[], "D")]);
    let finish = RunStep::Finish { outputs: vec![(2, outputs("C")), (3, outputs("D"))] };
    assert_eq!(progress.ended(2, 1, outputs("C")).unwrap(), [record(2, &[], "C"), finish]);
}

#[test]
fn a_loss_takes_its_communicating_set_along_and_nothing_else() {
    let mut progress = RunProgress::new(forked(), b"in".to_vec(), 3);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    // b shares m with a, which is done: both begin again. d, which has its input, continues.
    assert_eq!(
        progress.lost(1, 1, gone()).unwrap(),
        [RunStep::Cancel { component: 1 }, RunStep::Drop { memory: 4 }, start(0, 2, "in")]
    );
    assert_eq!(progress.ended(1, 1, outputs("late")).unwrap(), []);
    assert_eq!(progress.ended(0, 2, outputs("A2")).unwrap(), [record(0, &[1], "A2"), start(1, 2, "A2")]);
    // d shares nothing: it begins again alone, with the input that it had.
    assert_eq!(progress.lost(3, 1, gone()).unwrap(), [RunStep::Cancel { component: 3 }, start(3, 2, "A")]);
    assert_eq!(progress.lost_memory(4, gone()).unwrap().last(), Some(&start(0, 3, "in")));
}

#[test]
fn result_stays_until_the_end_and_survives_a_loss() {
    let result = r#"{"name":"m","type":"memory","result":true}"#.to_owned();
    let edges = [edge("trigger", "a", "b"), edge("access", "a", "m")];
    let graph = graph(&[compute("a"), compute("b"), result].join(","), &edges.join(","));
    let mut progress = RunProgress::new(graph.clone(), b"in".to_vec(), 3);
    progress.begin().unwrap();
    assert_eq!(progress.ended(0, 1, outputs("A")).unwrap(), [record(0, &[1], "A"), start(1, 1, "A")]);
    // Nothing that runs accesses it, and its caller is to have it.
    let again = [RunStep::Drop { memory: 2 }, start(0, 2, "in")];
    assert_eq!(progress.lost_memory(2, gone()).unwrap(), again);
    assert_eq!(progress.ended(1, 1, outputs("B")).unwrap(), [record(1, &[], "B")]);
    let finish = RunStep::Finish { outputs: vec![(1, outputs("B"))] };
    assert_eq!(progress.ended(0, 2, outputs("A")).unwrap(), [record(0, &[], "A"), finish]);
    // A client that continues the run has no memory of the one before it.
    let mut resumed = RunProgress::new(graph, b"in".to_vec(), 3);
    let records = [KeptRecord { from: 0, to: vec![1], outputs: outputs("A") }];
    assert_eq!(resumed.resume(&records).unwrap(), [RunStep::Drop { memory: 2 }, start(0, 1, "in")]);
}

#[test]
fn component_after_one_that_is_executed_again_is_not_upcoming() {
    // a -> b -> c -> d. a and b share m, and b and d share n.
    let components = [compute("a"), compute("b"), compute("c"), compute("d"), memory("m"), memory("n")];
    let triggers = [("a", "b"), ("b", "c"), ("c", "d")].map(|(from, to)| edge("trigger", from, to));
    let access = [("a", "m"), ("b", "m"), ("b", "n"), ("d", "n")].map(|(from, to)| edge("access", from, to));
    let edges = [&triggers[..], &access].concat().join(",");
    let mut progress = RunProgress::new(graph(&components.join(","), &edges), b"in".to_vec(), 3);
    progress.begin().unwrap();
    for (component, text) in [(0, "A"), (1, "B"), (2, "C")] {
        assert_eq!(progress.upcoming().collect::<Vec<_>>(), [component + 1]);
        progress.ended(component, 1, outputs(text)).unwrap();
    }
    assert!(progress.is_begun_by_another(5, 3) && progress.is_begun_by_another(5, 1));
    // c is done, and d waits for a and b.
    assert_eq!(progress.lost_memory(5, gone()).unwrap().last(), Some(&start(0, 2, "in")));
    assert_eq!(progress.upcoming().collect::<Vec<_>>(), [1]);
    assert!(!progress.is_begun_by_another(5, 3), "b has not begun again");
    progress.ended(0, 2, outputs("A")).unwrap();
    assert_eq!(progress.upcoming().collect::<Vec<_>>(), [3]);
    assert!(progress.is_begun_by_another(5, 3) && !progress.is_begun_by_another(5, 1));
}

#[test]
fn ignores_losses_of_earlier_attempts() {
    let mut progress = RunProgress::new(forked(), b"in".to_vec(), 3);
    progress.begin().unwrap();
    assert_eq!(progress.lost(0, 1, gone()).unwrap().last(), Some(&start(0, 2, "in")));
    assert_eq!(progress.lost(0, 1, gone()).unwrap(), [], "the loss was reported twice");
    assert_eq!(progress.ended(0, 2, outputs("A")).unwrap().len(), 3);
    assert_eq!(progress.lost(0, 2, gone()).unwrap(), [], "its output is there already");
    assert!(progress.is_current(1, 1) && progress.is_current(3, 1));
}

#[test]
fn memory_without_a_remaining_user_is_no_loss() {
    let mut progress = RunProgress::new(forked(), Vec::new(), 3);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    progress.ended(1, 1, outputs("B")).unwrap();
    assert_eq!(progress.lost_memory(4, gone()).unwrap(), []);
    assert_eq!(progress.lost(2, 1, gone()).unwrap(), [RunStep::Cancel { component: 2 }, start(2, 2, "B")]);
}

#[test]
fn memory_ends_with_its_last_release_and_returns_on_replay() {
    let mut progress = RunProgress::new(forked(), Vec::new(), 3);
    progress.begin().unwrap();
    assert!(!progress.released(0, 4), "b is to come, and may access it");
    progress.ended(0, 1, outputs("a")).unwrap();
    assert!(progress.released(1, 4));
    assert_eq!(progress.lost_memory(4, gone()), Ok(Vec::new()), "no component needs the memory");
    let steps = progress.lost(1, 1, gone()).unwrap();
    assert!(
        steps.contains(&RunStep::Cancel { component: 1 }) && steps.contains(&start(0, 2, "")),
        "{steps:?}"
    );
    // Both access it again.
    assert!(!progress.released(0, 4));
    progress.ended(0, 2, outputs("a")).unwrap();
    assert_eq!(progress.lost_memory(4, gone()).unwrap().len(), 3);
    assert!(!progress.released(2, 4), "c has not begun");
}

#[test]
fn ignores_release_by_cancelled_execution() {
    let mut progress = RunProgress::new(forked(), Vec::new(), 3);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    // The release arrives late, and does not concern the next execution.
    progress.lost(1, 1, gone()).unwrap();
    assert!(!progress.released(1, 4));
    assert_eq!(progress.ended(0, 2, outputs("A")).unwrap(), [record(0, &[1], "A"), start(1, 2, "A")]);
}

#[test]
fn a_component_is_not_lost_for_ever() {
    let mut progress = RunProgress::new(forked(), Vec::new(), 2);
    progress.begin().unwrap();
    for attempt in 1..=2 {
        progress.lost(0, attempt, gone()).unwrap();
    }
    let error = progress.lost(0, 3, gone()).unwrap_err();
    assert_eq!(error.code, Code::WorkerDied);
    assert!(
        error.message.contains("component a was lost 3 times") && error.message.contains("gone"),
        "{error}"
    );
}

#[test]
fn who_has_external_effects_does_not_begin_again() {
    let effects = r#"{"name":"b","type":"compute","package":"p","function":"f","external_effects":true}"#;
    let components = [compute("a"), effects.to_owned(), memory("m")].join(",");
    let edges = [edge("trigger", "a", "b"), edge("access", "a", "m"), edge("access", "b", "m")].join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    // It has not begun.
    assert!(progress.lost(0, 1, gone()).is_ok());
    progress.ended(0, 2, outputs("A")).unwrap();
    let error = progress.lost_memory(2, gone()).unwrap_err();
    assert!(error.message.contains("component b has external effects"), "{error}");
}

#[test]
fn a_run_goes_on_from_its_journal() {
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    let mut progress = RunProgress::new(forked(), b"in".to_vec(), 3);
    // b had not ended: m is needed, and lost with the client; so a writes it again. d has its input.
    let steps = progress.resume(&[at(0, &[1, 3], "A")]).unwrap();
    assert_eq!(steps, [RunStep::Drop { memory: 4 }, start(0, 1, "in")]);
    assert_eq!(progress.ended(0, 1, outputs("A2")).unwrap().first(), Some(&record(0, &[1, 3], "A2")));

    let mut progress = RunProgress::new(forked(), b"in".to_vec(), 3);
    let steps = progress.resume(&[at(0, &[1, 3], "A"), at(1, &[2], "B"), at(3, &[], "D")]).unwrap();
    assert_eq!(steps, [start(2, 1, "B")]);
    assert_eq!(progress.gone, BTreeSet::from([4]), "m was lost, and nothing else counts as lost memory");

    let mut progress = RunProgress::new(forked(), b"in".to_vec(), 3);
    let all = [at(0, &[1, 3], "A"), at(1, &[2], "B"), at(3, &[], "D"), at(2, &[], "C")];
    let finish = RunStep::Finish { outputs: vec![(2, outputs("C")), (3, outputs("D"))] };
    assert_eq!(progress.resume(&all).unwrap(), [finish]);
}

#[test]
fn several_outputs_are_one_message() {
    let components = [compute("a"), compute("b"), compute("c"), compute("d")].join(",");
    let triggers = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")];
    let edges = triggers.map(|(from, to)| edge("trigger", from, to)).join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 3);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    progress.ended(2, 1, outputs("C")).unwrap();
    let last = progress.ended(1, 1, outputs("B")).unwrap().pop();
    let message = run::message(&[b"B", b"C"]);
    assert_eq!(
        last,
        Some(RunStep::Start { component: 3, attempt: 1, input: Arc::new(message) }),
        "by the edges' order"
    );
}

/// a triggers b if its output begins with b, and c otherwise; both trigger d, and b triggers e; b and e share m.
fn choosing() -> Arc<Graph> {
    let components = [compute("a"), compute("b"), compute("c"), compute("d"), compute("e"), memory("m")];
    let case = |to: &str, case: &str| format!(r#"{{"type":"trigger","from":"a","to":"{to}",{case}}}"#);
    let edges = [
        case("b", r#""when":"b""#),
        case("c", r#""otherwise":true"#),
        edge("trigger", "b", "d"),
        edge("trigger", "c", "d"),
        edge("trigger", "b", "e"),
        edge("access", "b", "m"),
        edge("access", "e", "m"),
    ];
    graph(&components.join(","), &edges.join(","))
}

#[test]
fn skips_untriggered_components_and_passes_on_the_other_outputs() {
    let (cancel, drop) = (|component| RunStep::Cancel { component }, RunStep::Drop { memory: 5 });
    let mut progress = RunProgress::new(choosing(), Vec::new(), 3);
    progress.begin().unwrap();
    let ended = progress.ended(0, 1, outputs("bee")).unwrap();
    assert_eq!(ended, [record(0, &[1, 2], "bee"), cancel(2), start(1, 1, "bee")]);
    assert_eq!(progress.standing(2), ComponentPhase::Skipped);
    let ended = progress.ended(1, 1, outputs("B")).unwrap();
    assert_eq!(ended, [record(1, &[3, 4], "B"), start(3, 1, "B"), start(4, 1, "B")]);

    let mut progress = RunProgress::new(choosing(), Vec::new(), 3);
    progress.begin().unwrap();
    let ended = progress.ended(0, 1, outputs("sea")).unwrap();
    let expected = [record(0, &[1, 2], "sea"), cancel(1), cancel(4), drop.clone(), start(2, 1, "sea")];
    assert_eq!(ended, expected, "e is skipped with b, and then no component needs their memory");
    assert_eq!(progress.ended(2, 1, outputs("C")).unwrap(), [record(2, &[3], "C"), start(3, 1, "C")]);
    let finish = RunStep::Finish { outputs: vec![(3, outputs("D"))] };
    assert_eq!(progress.ended(3, 1, outputs("D")).unwrap(), [record(3, &[], "D"), finish]);

    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    let mut progress = RunProgress::new(choosing(), Vec::new(), 3);
    let steps = progress.resume(&[at(0, &[1, 2], "sea"), at(2, &[3], "C")]).unwrap();
    assert_eq!(steps.last(), Some(&start(3, 1, "C")), "{steps:?}");
    assert!(!steps.iter().any(|step| matches!(step, RunStep::Start { component: 0..=2, .. })), "{steps:?}");
}

#[test]
fn replayed_component_chooses_anew_until_a_successor_has_begun() {
    // a shares memory with c.
    let json = choosing().to_json().replace(r#""from":"b","to":"m""#, r#""from":"a","to":"m""#);
    let json = json.replace(r#""from":"e","to":"m""#, r#""from":"c","to":"m""#);
    let graph = Arc::new(Graph::parse(json.as_bytes()).unwrap());
    let mut progress = RunProgress::new(graph.clone(), Vec::new(), 9);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("sea")).unwrap();
    assert_eq!(progress.standing(1), ComponentPhase::Skipped);
    // c is lost, and with it a, which chooses differently now.
    let steps = progress.lost(2, 1, gone()).unwrap();
    assert_eq!(steps.last(), Some(&start(0, 2, "")), "{steps:?}");
    let again = progress.ended(0, 2, outputs("bee")).unwrap();
    assert!(again.contains(&record(0, &[1, 2], "bee")) && again.contains(&start(1, 1, "bee")), "{again:?}");
    assert_eq!(progress.standing(2), ComponentPhase::Skipped);
    // The same is read from the records, though c had ended once.
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    let mut resumed = RunProgress::new(graph, Vec::new(), 9);
    let records = [at(0, &[1, 2], "sea"), at(2, &[3], "C"), at(0, &[1, 2], "bee"), at(1, &[3, 4], "B")];
    let steps = resumed.resume(&records).unwrap();
    assert!(steps.contains(&start(3, 1, "B")) && steps.contains(&start(4, 1, "B")), "{steps:?}");
    assert_eq!(resumed.standing(2), ComponentPhase::Skipped);
}

/// A trigger if the output begins so.
fn case(from: &str, to: &str, text: &str) -> String {
    format!(r#"{{"type":"trigger","from":"{from}","to":"{to}","when":"{text}"}}"#)
}

#[test]
fn keeps_choice_while_successor_has_begun() {
    // a -> b -> c -> d -> e, and a -> d: without c, d begins all the same. a, b and e share m, c and d share n.
    let components =
        ["a", "b", "c", "d", "e"].map(compute).join(",") + "," + &["m", "n"].map(memory).join(",");
    let triggers =
        [("a", "b"), ("a", "d"), ("c", "d"), ("d", "e")].map(|(from, to)| edge("trigger", from, to));
    let access = [("a", "m"), ("b", "m"), ("e", "m"), ("c", "n"), ("d", "n")];
    let access = access.map(|(from, to)| edge("access", from, to));
    let edges = [&triggers[..], &access, &[case("b", "c", "y")]].concat().join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    let ended = progress.ended(1, 1, outputs("no")).unwrap();
    assert_eq!(ended.last(), Some(&start(3, 1, "A")), "{ended:?}");
    // a and b are executed again, since e needs their writes. d has begun without c, and accesses the same memory.
    let lost = progress.lost_memory(5, gone()).unwrap();
    assert_eq!(lost, [RunStep::Drop { memory: 5 }, start(0, 2, "")]);
    assert_eq!(progress.standing(2), ComponentPhase::Skipped);
    progress.ended(0, 2, outputs("A")).unwrap();
    assert_eq!(progress.ended(1, 2, outputs("yes")).unwrap(), [record(1, &[], "yes")], "its choice stands");
    assert_eq!(progress.standing(2), ComponentPhase::Skipped);
    // Its successor has ended: e begins.
    let ended = progress.ended(3, 1, outputs("D")).unwrap();
    assert_eq!(ended.last(), Some(&start(4, 1, "D")), "{ended:?}");
}

#[test]
fn waiting_component_takes_nothing_from_another_choice() {
    // a chooses b or c, a -> t, and t -> c. a and c share m.
    let components = ["a", "b", "c", "t"].map(compute).join(",") + "," + &memory("m");
    let access = ["a", "c"].map(|from| edge("access", from, "m"));
    let triggers =
        [case("a", "b", "x"), case("a", "c", "y"), edge("trigger", "a", "t"), edge("trigger", "t", "c")];
    let edges = [&triggers[..], &access].concat().join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    let ended = progress.ended(0, 1, outputs("x")).unwrap();
    assert!(ended.ends_with(&[start(1, 1, "x"), start(3, 1, "x")]), "{ended:?}");
    // a is executed again, for c needs what it wrote. c waits for t alone, since b and t have begun.
    assert_eq!(progress.lost_memory(4, gone()).unwrap(), [RunStep::Drop { memory: 4 }, start(0, 2, "")]);
    assert_eq!(progress.ended(0, 2, outputs("y")).unwrap(), [record(0, &[], "y")], "its choice stands");
    assert_eq!(progress.ended(3, 1, outputs("T")).unwrap().last(), Some(&start(2, 1, "T")));
}

#[test]
fn writes_again_what_was_dropped_with_skipped_component() {
    // a -> b, which chooses between c and d. a and c share m, b and d share n.
    let components = ["a", "b", "c", "d"].map(compute).join(",") + "," + &["m", "n"].map(memory).join(",");
    let access = [("a", "m"), ("c", "m"), ("b", "n"), ("d", "n")].map(|(from, to)| edge("access", from, to));
    let triggers = [edge("trigger", "a", "b"), case("b", "c", "c"), case("b", "d", "d")];
    let edges = [&triggers[..], &access].concat().join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    let ended = progress.ended(1, 1, outputs("d")).unwrap();
    assert!(ended.contains(&RunStep::Drop { memory: 4 }), "no component needs m without c: {ended:?}");
    // Nothing after b has begun any more: it may choose c, which needs the writes of a.
    progress.lost(3, 1, gone()).unwrap();
    let ended = progress.ended(1, 2, outputs("c")).unwrap();
    assert_eq!(ended.last(), Some(&start(0, 2, "")), "{ended:?}");
    assert_eq!(progress.ended(0, 2, outputs("A")).unwrap(), [record(0, &[], "A"), start(2, 1, "c")]);
}

#[test]
fn record_of_another_choice_voids_records_of_all_after_it() {
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    let records = [at(0, &[1, 2], "bee"), at(1, &[3, 4], "B"), at(4, &[], "E"), at(0, &[1, 2], "sea")];
    let mut progress = RunProgress::new(choosing(), Vec::new(), 9);
    let steps = progress.resume(&records).unwrap();
    assert_eq!(steps, [start(2, 1, "sea")]);
    assert_eq!(progress.standing(4), ComponentPhase::Skipped);
    progress.ended(2, 1, outputs("C")).unwrap();
    let finish = RunStep::Finish { outputs: vec![(3, outputs("D"))] };
    assert_eq!(progress.ended(3, 1, outputs("D")).unwrap().last(), Some(&finish));
}

fn effects(name: &str) -> String {
    compute(name).replace('}', r#","external_effects":true}"#)
}

#[test]
fn resume_keeps_component_after_skipped_one() {
    // a -> b -> c -> d -> e, and a -> d. a, b and e share m, c and d share n.
    let components = [compute("a"), compute("b"), compute("c"), effects("d"), compute("e")].join(",");
    let components = components + "," + &["m", "n"].map(memory).join(",");
    let triggers =
        [("a", "b"), ("a", "d"), ("c", "d"), ("d", "e")].map(|(from, to)| edge("trigger", from, to));
    let access = [("a", "m"), ("b", "m"), ("e", "m"), ("c", "n"), ("d", "n")];
    let access = access.map(|(from, to)| edge("access", from, to));
    let edges = [&triggers[..], &access, &[case("b", "c", "y")]].concat().join(",");
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    // b skipped c. While d ran, m was lost: a ended a second time, and the client died while b ran again.
    let records = [at(0, &[1, 3], "A"), at(1, &[2], "no"), at(0, &[1], "A"), at(3, &[4], "D")];
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    // c stays skipped, because d has begun without it. So no component needs n, and d is not executed again.
    let steps = progress.resume(&records).unwrap();
    assert_eq!(steps, [RunStep::Drop { memory: 5 }, start(0, 1, "")]);
    assert_eq!((progress.standing(2), progress.standing(3)), (ComponentPhase::Skipped, ComponentPhase::Done));
}

/// Graph a -> b -> c, b -> d -> e, and c only if b chooses it. a, b and e share m, c and d share n. d has external
/// effects.
fn choosing_beside() -> Arc<Graph> {
    let components = [compute("a"), compute("b"), compute("c"), effects("d"), compute("e")].join(",");
    let components = components + "," + &["m", "n"].map(memory).join(",");
    let triggers = [("a", "b"), ("b", "d"), ("d", "e")].map(|(from, to)| edge("trigger", from, to));
    let access = [("a", "m"), ("b", "m"), ("e", "m"), ("c", "n"), ("d", "n")];
    let access = access.map(|(from, to)| edge("access", from, to));
    let edges = [&triggers[..], &access, &[case("b", "c", "y")]].concat().join(",");
    graph(&components, &edges)
}

#[test]
fn resume_keeps_component_beside_skipped_one() {
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    // b skipped c. While e ran, m was lost: a ended a second time, and the client died while b ran again.
    let records = [at(0, &[1], "A"), at(1, &[2, 3], "no"), at(3, &[4], "D"), at(0, &[1], "A")];
    let mut progress = RunProgress::new(choosing_beside(), Vec::new(), 9);
    // The choice of b is final, because d has begun after it. So no component needs n, and d is not executed again.
    let steps = progress.resume(&records).unwrap();
    assert_eq!(steps, [RunStep::Drop { memory: 5 }, start(0, 1, "")]);
    assert_eq!((progress.standing(2), progress.standing(3)), (ComponentPhase::Skipped, ComponentPhase::Done));
}

#[test]
fn resume_keeps_component_after_standing_choice() {
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    // b skipped c. While e ran, m was lost: a and b ended a second time. b would choose c now, but d has begun after
    // it, so b handed nothing on. Then the client died.
    let records =
        [at(0, &[1], "A"), at(1, &[2, 3], "no"), at(3, &[4], "D"), at(0, &[1], "A"), at(1, &[], "yes")];
    let mut progress = RunProgress::new(choosing_beside(), Vec::new(), 9);
    let steps = progress.resume(&records).unwrap();
    assert_eq!(steps, [RunStep::Drop { memory: 5 }, start(0, 1, "")]);
    assert_eq!((progress.standing(2), progress.standing(3)), (ComponentPhase::Skipped, ComponentPhase::Done));
}

#[test]
fn resume_writes_lost_memory_again_at_once() {
    // a -> b -> d, a -> c -> d; b and d share m.
    let components = ["a", "b", "c", "d"].map(compute).join(",") + "," + &memory("m");
    let triggers =
        [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")].map(|(from, to)| edge("trigger", from, to));
    let access = ["b", "d"].map(|from| edge("access", from, "m"));
    let edges = [&triggers[..], &access].concat().join(",");
    let at = |from, to: &[usize], text| KeptRecord { from, to: to.to_vec(), outputs: outputs(text) };
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    // b does not wait for the end of c: d needs the writes of c, and begins when both have ended.
    let steps = progress.resume(&[at(0, &[1, 2], "A"), at(1, &[3], "B")]).unwrap();
    assert_eq!(steps, [RunStep::Drop { memory: 4 }, start(1, 1, "A"), start(2, 1, "A")]);
}

#[test]
fn keeps_releases_of_components_that_are_not_lost() {
    // a -> b, a -> c, a -> d; b and c share m.
    let components = ["a", "b", "c", "d"].map(compute).join(",") + "," + &memory("m");
    let triggers = ["b", "c", "d"].map(|to| edge("trigger", "a", to));
    let access = ["b", "c"].map(|from| edge("access", from, "m"));
    let edges = [&triggers[..], &access].concat().join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    assert!(!progress.released(1, 4), "c may access m");
    progress.lost(3, 1, gone()).unwrap();
    assert!(progress.released(2, 4), "b released m before d was lost");
}

#[test]
fn cancels_components_before_their_memory_is_dropped() {
    // The document names the memory first.
    let components = [memory("m"), compute("a"), compute("b")].join(",");
    let edges = [edge("trigger", "a", "b"), edge("access", "a", "m"), edge("access", "b", "m")].join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    progress.ended(1, 1, outputs("A")).unwrap();
    let lost = progress.lost(2, 1, gone()).unwrap();
    assert_eq!(lost, [RunStep::Cancel { component: 2 }, RunStep::Drop { memory: 0 }, start(1, 2, "")]);
}

/// More ways lead through this graph than could be followed one by one.
#[test]
fn follows_graph_of_many_paths() {
    let layers: Vec<[String; 2]> = (0..64).map(|at| [format!("l{at}"), format!("r{at}")]).collect();
    let names: Vec<&str> = std::iter::once("a").chain(layers.iter().flatten().map(String::as_str)).collect();
    let mut edges: Vec<String> = layers[0].iter().map(|to| edge("trigger", "a", to)).collect();
    for pair in layers.windows(2) {
        for from in &pair[0] {
            edges.extend(pair[1].iter().map(|to| edge("trigger", from, to)));
        }
    }
    let components: Vec<String> = names.iter().copied().map(compute).collect();
    let mut progress = RunProgress::new(graph(&components.join(","), &edges.join(",")), Vec::new(), 9);
    progress.begin().unwrap();
    progress.lost(0, 1, gone()).unwrap();
    progress.ended(0, 2, outputs("A")).unwrap();
    let mut last = Vec::new();
    for component in 1..names.len() {
        last = progress.ended(component, 1, outputs("")).unwrap();
    }
    assert!(matches!(last.last(), Some(RunStep::Finish { outputs }) if outputs.len() == 2), "{last:?}");
}

#[test]
fn writes_again_what_was_dropped_by_release() {
    // a -> b, a -> e, and b chooses between c and d. a, c and e share m, b and d share n.
    let components =
        ["a", "b", "c", "d", "e"].map(compute).join(",") + "," + &["m", "n"].map(memory).join(",");
    let access = [("a", "m"), ("c", "m"), ("e", "m"), ("b", "n"), ("d", "n")];
    let access = access.map(|(from, to)| edge("access", from, to));
    let triggers =
        [edge("trigger", "a", "b"), edge("trigger", "a", "e"), case("b", "c", "c"), case("b", "d", "d")];
    let edges = [&triggers[..], &access].concat().join(",");
    let mut progress = RunProgress::new(graph(&components, &edges), Vec::new(), 9);
    progress.begin().unwrap();
    progress.ended(0, 1, outputs("A")).unwrap();
    progress.ended(1, 1, outputs("d")).unwrap();
    assert!(progress.released(4, 5), "c is skipped, so e was the last to access m");
    // b is lost with d, and may choose c, which needs the writes of a. e still runs.
    progress.lost(3, 1, gone()).unwrap();
    let ended = progress.ended(1, 2, outputs("c")).unwrap();
    let expected = [RunStep::Cancel { component: 4 }, RunStep::Drop { memory: 5 }, start(0, 2, "")];
    assert!(ended.ends_with(&expected), "{ended:?}");
    assert_eq!(progress.standing(2), ComponentPhase::Waiting, "c begins when a has written again");
}

/// Compute components 0 to n - 1, each triggered by some before it, and memory that some of them share.
fn any_graph() -> impl Strategy<Value = Arc<Graph>> {
    let shape = (2usize..8, prop::collection::vec(any::<u32>(), 64));
    shape.prop_map(|(count, chance)| {
        let name = |at: usize| char::from(b'a' + at as u8).to_string();
        let mut dice = chance.into_iter().cycle();
        let mut roll = |sides: usize| dice.next().unwrap() as usize % sides;
        let mut edges = BTreeSet::new();
        for to in 1..count {
            let before: BTreeSet<usize> = (0..=roll(2)).map(|_| roll(to)).collect();
            for from in before {
                let mut edge = edge("trigger", &name(from), &name(to));
                if let word @ ("y" | "n") = ["y", "n", "", ""][roll(4)] {
                    edge = edge.replace('}', &format!(r#","when":"{word}"}}"#));
                }
                edges.insert(edge);
            }
        }
        let memories = roll(4);
        for at in 0..memories {
            for _ in 0..=roll(4) {
                edges.insert(edge("access", &name(roll(count)), &format!("m{at}")));
            }
        }
        let computes = (0..count).map(|at| compute(&name(at)));
        let all: Vec<String> = computes.chain((0..memories).map(|at| memory(&format!("m{at}")))).collect();
        graph(&all.join(","), &edges.into_iter().collect::<Vec<_>>().join(","))
    })
}

fn undisturbed(graph: &Arc<Graph>) -> Vec<(usize, Outputs)> {
    let mut world = ComponentWorld::begin(graph.clone());
    while world.finished.is_none() {
        let (running, _) = world.running();
        world.end(running[0], None).unwrap();
    }
    world.finished.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Losses and deaths of the client at any time do not change the result of a run, and no component ever reads
    /// memory into which its predecessors have not written.
    #[test]
    fn losses_change_nothing(
        graph in any_graph(),
        story in prop::collection::vec((0u8..10, any::<prop::sample::Index>()), 0..60),
    ) {
        let expected = undisturbed(&graph);
        let mut world = ComponentWorld::begin(graph.clone());
        for (what, which) in story {
            if world.finished.is_some() {
                break;
            }
            let (running, _) = world.running();
            let component = running[which.index(running.len())];
            match what {
                0..6 => world.end(component, None).unwrap(),
                6 | 7 => {
                    let steps = world.progress.lost(component, world.running[&component].attempt, gone());
                    world.take(steps).unwrap();
                }
                8 => {
                    let is_memory = |at: &usize| graph.components[*at].memory().is_some();
                    let memories: Vec<usize> = (0..graph.components.len()).filter(is_memory).collect();
                    if !memories.is_empty() {
                        let steps = world.progress.lost_memory(memories[which.index(memories.len())], gone());
                        world.take(steps).unwrap();
                    }
                }
                // The client dies, and another continues the run.
                _ => world = world.resume().unwrap(),
            }
        }
        while world.finished.is_none() {
            let (running, _) = world.running();
            world.end(running[0], None).unwrap();
        }
        prop_assert_eq!(world.finished.unwrap(), expected);
    }
}
