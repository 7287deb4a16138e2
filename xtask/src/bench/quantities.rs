//! Tests of the quantities in documents: a measured time, rate or share is only in text that a measuring command has written.
//!
//! A quantity is a number with a unit, or a factor. Outside of such text and of code, a quantity must be a bound ("at most
//! 2 ms", "within 100 ms"), or of one of [`KINDS`].

use std::fs;

use super::report::{BEGIN, BEGIN_OF_SCAD, END};
use super::{DOCUMENT, README};
use crate::map::files;
use crate::root;

/// Kinds of quantities that are not measured.
const KINDS: [&str; 4] = ["limit", "default", "promise", "from a paper"];

/// A part of a document that has quantities of one kind.
struct Exception {
    document: &'static str,
    part: Part,
    kind: &'static str,
}

/// A part of a document.
enum Part {
    Whole,
    /// The section below this heading.
    Section(&'static str),
    /// The sentences that contain these words.
    Sentence(&'static str),
}

const EXCEPTIONS: &[Exception] = &[
    Exception { document: "SPECIFICATION.md", part: Part::Section("## Speed"), kind: "promise" },
    Exception {
        document: DOCUMENT,
        part: Part::Section("## Comparison with the papers"),
        kind: "from a paper",
    },
    Exception { document: "docs/reference/limits.md", part: Part::Whole, kind: "limit" },
    of_sentence("CONTRIBUTING.md", "60 s for each target", "default"),
    of_sentence("docs/python/executor.md", "chunks of about 2 ms", "default"),
    of_sentence("docs/python/functions.md", "takes more than 5 ms", "limit"),
    of_sentence("docs/python/leases.md", "1 ms of polling", "default"),
    of_sentence("docs/python/leases.md", "the default is 1 ms", "default"),
    of_sentence("docs/python/leases.md", "chunks that take about 2 ms", "default"),
    of_sentence("docs/security.md", "5 s for each step", "limit"),
    of_sentence("docs/security.md", "valid token 10 s more", "limit"),
    of_sentence("docs/security.md", "kind of refusal in 10 s", "limit"),
    of_sentence("docs/security.md", "5 s after its grant", "limit"),
    of_sentence("docs/security.md", "a line for each kind in 10 s", "limit"),
    of_sentence("docs/security.md", "others wait 20 s", "limit"),
];

const fn of_sentence(document: &'static str, words: &'static str, kind: &'static str) -> Exception {
    Exception { document, part: Part::Sentence(words), kind }
}

impl Exception {
    fn covers(&self, document: &str, sentence: &Sentence) -> bool {
        let is_in_part = match self.part {
            Part::Whole => true,
            Part::Section(heading) => sentence.heading == heading,
            Part::Sentence(words) => sentence.text.contains(words),
        };
        self.document == document && is_in_part
    }
}

/// The marks around text that a measuring command writes.
const WRITTEN: [(&str, &str); 3] = [
    (BEGIN, END),
    (BEGIN_OF_SCAD, END),
    ("<!-- begin of the results of use_cases.py -->", "<!-- end of the results of use_cases.py -->"),
];

const UNITS: [&str; 19] = [
    "ns",
    "us",
    "µs",
    "ms",
    "s",
    "second",
    "seconds",
    "nanoseconds",
    "microseconds",
    "milliseconds",
    "percent",
    "%",
    "kB/s",
    "MB/s",
    "GB/s",
    "KiB/s",
    "MiB/s",
    "GiB/s",
    "million/s",
];
/// Units that may follow a number without a space.
const ATTACHED: [&str; 8] = ["ns", "us", "µs", "ms", "s", "%", "/s", "x"];
/// Words that make a factor of "3 times".
const COMPARING: [&str; 9] =
    ["as", "faster", "slower", "less", "more", "smaller", "larger", "longer", "shorter"];
/// Words before a number that is a bound or an interval.
const BOUNDING: [&str; 5] = ["within", "after", "for", "every", "under"];
const BOUNDING_PAIRS: [[&str; 2]; 2] = [["up", "to"], ["longer", "than"]];

/// A sentence or a cell of a table, with the heading of its section. Code is left out of it.
struct Sentence {
    heading: String,
    text: String,
}

/// Returns the sentences of a document outside of code and of what commands have written.
fn sentences(markdown: &str) -> Vec<Sentence> {
    let mut markdown = markdown.to_owned();
    for (begin, end) in WRITTEN {
        if let Some((before, rest)) = markdown.split_once(begin) {
            let (_, after) = rest.split_once(end).expect("the mark at the end is there");
            markdown = format!("{before}{after}");
        }
    }
    let (mut found, mut heading, mut block, mut in_code) = (Vec::new(), String::new(), String::new(), false);
    for line in markdown.lines().map(str::trim) {
        if line.starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            if line.is_empty() || ["|", "- ", "#"].iter().any(|&start| line.starts_with(start)) {
                add_sentences(&block, &heading, &mut found);
                block.clear();
            }
            if line.starts_with("## ") {
                line.clone_into(&mut heading);
            }
            block += line;
            block.push(' ');
        }
    }
    add_sentences(&block, &heading, &mut found);
    found
}

fn add_sentences(block: &str, heading: &str, found: &mut Vec<Sentence>) {
    let parts = block.split('`').enumerate();
    let prose: String = parts.map(|(at, part)| if at % 2 == 0 { part } else { "code" }).collect();
    let sentences = prose.replace([';', '|'], ". ");
    found.extend(
        sentences.split(". ").map(|text| Sentence { heading: heading.to_owned(), text: text.to_owned() }),
    );
}

fn is_number(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_digit()) && word.replace(',', "").parse::<f64>().is_ok()
}

/// Whether a sentence has a quantity that is not a bound.
fn has_quantity(sentence: &str) -> bool {
    let is_mark = |c: char| "(),:;.*\"".contains(c);
    let words: Vec<&str> = sentence.split_whitespace().map(|word| word.trim_matches(is_mark)).collect();
    if ["at most", "at least"].iter().any(|&bound| sentence.contains(bound)) {
        return false;
    }
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    (0..words.len()).any(|at| {
        let is_attached = ATTACHED.iter().any(|&unit| word(at).strip_suffix(unit).is_some_and(is_number));
        let is_factor = word(at + 1) == "times" && COMPARING.contains(&word(at + 2));
        let is_quantity = is_attached || is_number(word(at)) && (is_factor || UNITS.contains(&word(at + 1)));
        let follows = |pair: &[&str; 2]| at >= 2 && words[at - 2..at] == pair[..];
        let is_bound = at >= 1 && BOUNDING.contains(&word(at - 1)) || BOUNDING_PAIRS.iter().any(follows);
        is_quantity && !is_bound
    })
}

#[test]
fn measured_quantities_are_only_in_what_commands_have_written() {
    let mut problems = Vec::new();
    let mut used = vec![false; EXCEPTIONS.len()];
    for path in files(&["md"]).unwrap() {
        let document = path.to_str().expect("names of documents are text");
        // The changelog may state the quantities of earlier versions.
        if document == "CHANGELOG.md" {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for sentence in sentences(&text).iter().filter(|sentence| has_quantity(&sentence.text)) {
            let covers = |exception: &Exception| exception.covers(document, sentence);
            match EXCEPTIONS.iter().position(covers) {
                Some(at) => used[at] = true,
                None => problems.push(format!("{document}: {}", sentence.text.trim())),
            }
        }
    }
    assert!(
        problems.is_empty(),
        "measured quantities belong to {DOCUMENT} and {README}, where `cargo xtask bench` writes them, or beside the command that \
         repeats them; a bound says \"at most\" or \"within\"; one of {KINDS:?} is listed in EXCEPTIONS: {problems:#?}"
    );
    for (exception, is_used) in EXCEPTIONS.iter().zip(used) {
        assert!(KINDS.contains(&exception.kind), "{} is not one of {KINDS:?}", exception.kind);
        let part = match exception.part {
            Part::Whole => "",
            Part::Section(part) | Part::Sentence(part) => part,
        };
        assert!(is_used, "{}: remove the exception for {part:?}, which has no quantity", exception.document);
    }
}

#[test]
fn a_promise_stands_beside_what_shows_it() {
    let specification = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let (_, speed) = specification.split_once("\n## Speed\n").unwrap();
    let speed = speed.split("\n## ").next().unwrap_or_default();
    let promises: Vec<_> =
        speed.lines().filter(|line| line.starts_with("| ") && line.contains(" at ")).collect();
    assert!(promises.len() > 20, "only {} promises were found", promises.len());
    for promise in promises {
        assert!(promise.contains('`'), "no command shows it: {promise}");
    }
}

#[test]
fn a_quantity_has_a_unit_or_is_a_factor() {
    for sentence in [
        "It takes 4.6 us",
        "some 9519 MB/s",
        "it starts 3 times faster",
        "gains 12%",
        "1.8x as fast",
        "(2.19 s against 1.31 s)",
        "20,000/s of them",
        "more than 5 ms",
    ] {
        assert!(has_quantity(sentence), "{sentence}");
    }
    for sentence in [
        "within 800 ms",
        "at most 150 ns",
        "for 10 s",
        "up to 5 s",
        "lease us 2 cores",
        "2 nsec",
        "1500 x 1500",
        "3 times",
        "96 of 97 nodes",
    ] {
        assert!(!has_quantity(sentence), "{sentence}");
    }
}

#[test]
fn code_and_written_text_have_no_sentences() {
    let markdown = format!(
        "# A\n\n## B\nOne `1 us`, and\ntwo. Three\n```text\n4 us\n```\n- five; six\n{BEGIN}\n7 us\n{END}\n| 8 | 9 |\n"
    );
    let found: Vec<_> =
        sentences(&markdown).iter().map(|found| format!("{} {}", found.heading, found.text.trim())).collect();
    let found: Vec<_> = found.iter().filter(|text| text.starts_with("## B ") && text.len() > 5).collect();
    let expected =
        ["## B ## B One code, and two", "## B Three", "## B - five", "## B six", "## B 8", "## B 9"];
    assert_eq!(found, expected);
}
