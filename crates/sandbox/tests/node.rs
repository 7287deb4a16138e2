//! Templates of Node.js, which was not made to be forked: its copies are tested under load of its garbage collector,
//! its compiler, its timers and its threads for files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use sublet_sandbox::{Interpreter, IsolationKind, Language, ProgramEnd, SandboxProgram, Spec};

use crate::support::{MIB, SandboxFixture, Sort, template_of};

/// Longest wait for a template to become warm.
const PATIENCE: Duration = Duration::from_secs(180);
/// First lines of each program: they define the function that writes a line to the control socket.
const SAY: &str =
    "const fs = require('fs');\nconst say = (...words) => fs.writeSync(0, words.join(' ') + '\\n');\n";

fn node() -> Interpreter {
    let found =
        ["/usr/bin/node", "/usr/local/bin/node"].map(Path::new).into_iter().find(|path| path.exists());
    Interpreter::node(found.expect("scripts/setup.sh test installs it"), &[]).unwrap()
}

fn open() -> SandboxFixture {
    SandboxFixture::showing(Sort::Template, &node().shown)
}

/// Runs a program, and returns its output and its exit status.
#[track_caller]
fn run(fixture: &SandboxFixture, text: &str, imports: &[&str]) -> (String, ProgramEnd) {
    run_with(fixture, text, imports, |_| {})
}

/// Runs a program like [`run`], with a changed specification.
#[track_caller]
fn run_with(
    fixture: &SandboxFixture,
    text: &str,
    imports: &[&str],
    change: impl FnOnce(&mut Spec),
) -> (String, ProgramEnd) {
    let path =
        fixture.folder.path().join(format!("{}.js", fs::read_dir(fixture.folder.path()).unwrap().count()));
    fs::write(&path, format!("{SAY}{text}")).unwrap();
    fixture.run_with(&["one", "two"], |spec: &mut Spec| {
        spec.kind = IsolationKind::Template(template_of(Language::Node, &node(), imports));
        spec.program = SandboxProgram::Outside(path);
        spec.limits.memory_bytes = Some(1024 * MIB);
        spec.limits.processes = Some(64);
        change(spec);
    })
}

#[test]
fn program_runs_as_in_its_own_node() {
    let fixture = open();
    let text = "\
say(require.main === module, process.argv.slice(2), __filename === process.argv[1]);
say(JSON.stringify(process.env), process.pid, process.ppid, fs.readlinkSync('/proc/self'));
say(fs.readdirSync('/proc/self/task').length, Object.keys(require.cache).join() === __filename);
process.on('exit', (code) => say('exit', code));
setTimeout(() => fs.readFile('/proc/self/comm', async (error, data) => { await 0; say('file', !error); process.exitCode = 4; }), 1);";
    let (said, exit) = run(&fixture, text, &[]);
    let expected = "true one,two true\n{\"GIVEN\":\"yes\"} 2 1 2\n1 true\nfile true\nexit 4\n";
    assert_eq!((said.as_str(), exit), (expected, ProgramEnd::Status(4)));
}

#[test]
fn local_time_is_that_of_the_zone_in_the_environment() {
    let fixture = open();
    let text = "say(new Date(1751328000000).getTimezoneOffset(), require('os').userInfo().username);";
    for (zone, offset) in [("America/New_York", 240), ("Asia/Kolkata", -330)] {
        let (said, _) = run_with(&fixture, text, &[], |spec| spec.env.push(("TZ".into(), zone.into())));
        assert_eq!(said, format!("{offset} sandbox\n"), "{zone}");
    }
}

#[test]
fn a_program_ends_as_in_a_node_of_its_own() {
    let fixture = open();
    for (text, expected) in [
        ("process.exit(3)", ("", 3)),
        ("throw new Error('unexpected')", ("", 1)),
        ("Promise.reject(new Error('unexpected'))", ("", 1)),
        (
            "process.on('uncaughtException', (error) => say(error.message)); throw new Error('caught')",
            ("caught\n", 0),
        ),
        ("say('end')", ("end\n", 0)),
        (
            "let more = 2; process.on('beforeExit', () => { if (more--) setTimeout(() => say('more'), 1) })",
            ("more\nmore\n", 0),
        ),
        ("setInterval(() => process.exit(5), 1)", ("", 5)),
        ("require('no-such-module')", ("", 1)),
        ("this is no JavaScript", ("", 1)),
    ] {
        let (said, exit) = run(&fixture, text, &[]);
        assert_eq!((said.as_str(), exit), (expected.0, ProgramEnd::Status(expected.1)), "{text}");
    }
}

/// Much garbage, code that is compiled again and again, timers, compression and hashes in threads, children.
#[test]
fn copies_hold_under_load() {
    let fixture = open();
    let text = "\
const zlib = require('zlib'), crypto = require('crypto'), { execFileSync } = require('child_process');
let kept = [];
for (let round = 0; round < 10; round++) {
  kept = [];
  for (let i = 0; i < 100000; i++) kept.push({ i, more: [i, String(i)] });
  const add = new Function('a', 'let sum = 0; for (let i = 0; i < 200000; i++) sum += i % (a + 2); return sum;');
  if (!(add(round) > 0)) throw new Error('wrong');
}
const gzip = () => new Promise((done, fail) => zlib.gzip(Buffer.alloc(1e6, 'a'), (error, data) => error ? fail(error) : done(data)));
const hash = () => new Promise((done, fail) => crypto.pbkdf2('a', 'b', 2000, 32, 'sha256', (error, key) => error ? fail(error) : done(key)));
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
  for (let round = 0; round < 5; round++) {
    const [zip, key] = await Promise.all([gzip(), hash(), wait(5)]);
    if (zlib.gunzipSync(zip).length !== 1e6 || key.length !== 32) throw new Error('wrong');
    kept = Array.from({ length: 100000 }, (_, i) => new Map([[i, kept[i]]]));
  }
  say('whole', kept.length);
})();";
    for _ in 0..5 {
        assert_eq!(run(&fixture, text, &[]), ("whole 100000\n".to_owned(), ProgramEnd::Status(0)));
    }
}

#[test]
fn no_two_copies_have_the_same_random_numbers_or_descriptors() {
    let fixture = open();
    let text = "\
say(Math.random(), require('crypto').randomUUID());
for (const number of fs.readdirSync('/proc/self/fd')) {
  try { const target = fs.readlinkSync(`/proc/self/fd/${number}`); if (/^(pipe|socket):/.test(target) && number > 2) say(target); } catch {}
}";
    let said: Vec<String> = (0..4).map(|_| run(&fixture, text, &[]).0).collect();
    let mut words: Vec<&str> = said.iter().flat_map(|lines| lines.split_whitespace()).collect();
    words.sort_unstable();
    // Both ends of a pipe have one name in a copy.
    let mut different = words.clone();
    different.dedup();
    assert!(said.iter().all(|lines| lines.contains('.')), "{said:?}");
    for name in &different {
        let having = said.iter().filter(|lines| lines.split_whitespace().any(|word| word == *name)).count();
        assert_eq!(having, 1, "{name}: {said:?}");
    }
}

#[test]
fn modules_that_are_asked_for_again_are_there() {
    let fixture = open();
    let begun = Instant::now();
    let text = "say(process.moduleLoadList.includes('NativeModule inspector'))";
    let text = format!("{text}; say(1)").replace("inspector", "readline/promises");
    while run(&fixture, &text, &["readline/promises"]).0 != "true\n1\n" {
        assert!(begun.elapsed() < PATIENCE);
    }
}
