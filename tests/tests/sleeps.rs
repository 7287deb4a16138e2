//! Sleeps in tests: each is listed with its reason, so that a test waits for what it needs and not for a time.

use std::collections::BTreeMap;
use std::path::Path;

use sublet_tests::{files, read};

const POLL: &str = "a pause between two looks, with a bound";
const PACE: &str = "the pace of work beside the test, on which no check depends";
const SPAN: &str = "the time itself: a longer one changes nothing";
const WORK: &str = "a function or iterable that takes long";

/// The files of tests that sleep: how often, and why that cannot fail a test on a slow machine. Others wait by
/// `sublet_tests::process::wait_until`, `wait_until_busy` or `with_growing_time`, `sublet_tests::rounds`,
/// `sublet_means::spawn_until_asleep`, or by `python/tests/waiting.py`.
const SLEEPS: &[(&str, usize, &str)] = &[
    ("crates/agent/src/leases/ledger/tests.rs", 1, SPAN),
    ("crates/agent/src/leases/usage.rs", 6, SPAN),
    ("crates/agent/src/shim/tests.rs", 3, PACE),
    ("crates/agent/tests/agent/common.rs", 1, POLL),
    ("crates/agent/tests/agent/main.rs", 1, POLL),
    ("crates/agent/tests/agent/managers.rs", 1, POLL),
    ("crates/devices/tests/hostile.rs", 1, "a process that stays until it is killed"),
    ("crates/fabric/src/clock.rs", 1, SPAN),
    ("crates/fabric/src/tcp/stalled.rs", 1, SPAN),
    ("crates/fabric/tests/conformance/ends.rs", 1, PACE),
    (
        "crates/fabric/tests/conformance/lent_regions.rs",
        1,
        "half a reply may arrive before the next step; nothing shows when",
    ),
    (
        "crates/fabric/tests/conformance/passive.rs",
        3,
        "two looks until something is so, and a network that holds data back",
    ),
    ("crates/fabric/tests/conformance/refusals.rs", 1, "a look until the connection is down"),
    ("crates/fabric/tests/conformance/transfers.rs", 1, WORK),
    ("crates/image/tests/serving/mod.rs", 1, POLL),
    ("crates/image/tests/stores.rs", 1, PACE),
    ("crates/manager/src/collection.rs", 1, "a look until a deployment has stored its package"),
    ("crates/manager/tests/access.rs", 1, SPAN),
    ("crates/manager/tests/common/mod.rs", 1, POLL),
    ("crates/manager/tests/manager.rs", 4, POLL),
    ("crates/manager/tests/quotas.rs", 2, POLL),
    (
        "crates/manager/tests/store/faults.rs",
        5,
        "three looks, a kill at any moment, and a silence, which is repeated if an operation fails",
    ),
    ("crates/runtime/tests/fixture/mod.rs", 1, POLL),
    ("crates/sandbox/tests/attacks.rs", 1, "the span of a measurement of shares"),
    ("crates/sandbox/tests/support/standby.rs", 1, POLL),
    ("crates/sandbox/tests/templates.rs", 1, POLL),
    ("crates/sandbox/tests/weak.rs", 1, POLL),
    ("python/tests/cpython_executor.py", 1, "an event that the tests of CPython wait for"),
    ("python/tests/images.py", 1, POLL),
    ("python/tests/page.py", 2, POLL),
    ("python/tests/test_calls.py", 2, WORK),
    ("python/tests/test_chain.py", 1, POLL),
    ("python/tests/test_classes.py", 1, WORK),
    ("python/tests/test_environments.py", 2, WORK),
    ("python/tests/test_executor.py", 5, WORK),
    ("python/tests/test_graphs.py", 3, WORK),
    ("python/tests/test_imports.py", 2, POLL),
    ("python/tests/test_integrations.py", 4, WORK),
    (
        "python/tests/test_local.py",
        4,
        "three programs that stay until they are killed, and the time in which a wrong stop would come",
    ),
    ("python/tests/test_maps.py", 9, WORK),
    ("python/tests/test_xpu.py", 2, POLL),
    ("python/tests/waiting.py", 2, "the waits themselves"),
    ("tests/benches/cold.rs", 2, PACE),
    ("tests/capi/run.sh", 1, POLL),
    ("tests/means/src/asleep.rs", 1, "the wait itself"),
    ("tests/src/attack.rs", 1, PACE),
    ("tests/src/crowd.rs", 1, PACE),
    ("tests/src/emulated.rs", 1, "a look until the agent serves or has ended"),
    ("tests/src/nats.rs", 1, POLL),
    ("tests/src/process.rs", 1, "the wait itself"),
    ("tests/tests/books.rs", 4, PACE),
    ("tests/tests/idle.rs", 1, "the span of a measurement"),
    ("tests/tests/listeners.rs", 1, "a second upload may arrive before the next step; nothing shows when"),
    ("tests/tests/managers_die.rs", 2, PACE),
    ("tests/tests/memory.rs", 1, SPAN),
    ("tests/tests/random_kills.rs", 3, PACE),
    ("tests/tests/regression.rs", 3, PACE),
    ("tests/tests/runs.rs", 2, PACE),
    ("tests/tests/state.rs", 1, POLL),
    ("tests/tests/stores.rs", 3, SPAN),
    ("tests/tests/tickets.rs", 2, SPAN),
    ("tests/upgrade/make-state.sh", 1, POLL),
];

/// How often a text sleeps: calls a function of this name, or the command with a number. Definitions, methods and
/// comments do not count.
fn sleeps(text: &str) -> usize {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.match_indices("sleep").filter(|&(at, word)| is_sleep(line, at, word)).count()).sum()
}

fn is_sleep(line: &str, at: usize, word: &str) -> bool {
    let (before, after) = (&line[..at], &line[at + word.len()..]);
    let is_call = after.starts_with('(');
    let is_command =
        after.strip_prefix(' ').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
    let is_definition = before.ends_with("fn ") || before.ends_with("def ");
    // In Rust, functions follow a colon; a dot makes a method, except after the name of a module of Python.
    let modules = ["time.", "asyncio.", "__import__(\"time\")."];
    let is_method = before.ends_with('.') && !modules.iter().any(|module| before.ends_with(module));
    (is_call || is_command) && is_word && !is_definition && !is_method
}

/// The part of a file that is executed in tests only.
fn of_tests(path: &Path, text: &str) -> String {
    let is_test = path.iter().any(|part| part == "tests") || path.ends_with("tests.rs");
    if is_test {
        return text.to_owned();
    }
    text.split_once("\nmod tests {").map(|(_, tests)| tests.to_owned()).unwrap_or_default()
}

#[test]
fn tests_sleep_only_where_a_reason_is_listed() {
    let rust = ["crates", "tests", "xtask", "python/src"].map(|folder| files(folder, &[".rs", ".sh"]));
    let all = rust.into_iter().flatten().chain(files("python/tests", &[".py"]));
    let found: BTreeMap<String, usize> = all
        .map(|path| (path.display().to_string(), sleeps(&of_tests(&path, &read(&path)))))
        .filter(|&(_, count)| count > 0)
        .collect();
    let listed = SLEEPS.iter().map(|(path, count, _)| ((*path).to_owned(), *count)).collect();
    assert_eq!(
        found, listed,
        "sleeps by file: wait for the condition itself, or say in tests/sleeps.rs why a slow machine cannot fail the test"
    );
}

#[test]
fn counts_calls_and_commands_and_nothing_else() {
    let call = ["sleep", "(1)"].concat();
    let sleeping = [
        format!("thread::{call}"),
        format!("    {call};"),
        format!("time.{call}"),
        ["; sleep", " 0.1"].concat(),
    ];
    assert!(sleeping.iter().all(|line| sleeps(line) == 1), "{sleeping:?}");
    let others = [format!("pen.{call}"), format!("fn {call}"), format!("// {call}"), format!("u{call}")];
    let names = ["submit(time.sleep, 1)", "/bin/sleep {seconds}"].map(str::to_owned);
    assert!(others.iter().chain(&names).all(|line| sleeps(line) == 0), "{others:?}");
}
