//! Rules of wording that a program can check, each a list of words or a bound.
//!
//! A rule names only wording that is never the best choice, so that nobody writes worse to satisfy it.

use std::collections::{BTreeMap, BTreeSet};

use super::text::{Kind, Text};

/// A rule that is checked on one text at a time.
pub struct Rule {
    pub name: &'static str,
    pub help: &'static str,
    pub find: fn(&Text) -> Vec<String>,
}

/// All rules that are checked on one text at a time.
pub const RULES: &[Rule] = &[
    Rule { name: "opening", help: "start the sentence with its subject", find: openings },
    Rule { name: "fragment", help: "begin a doc comment with a noun or a verb", find: fragments },
    Rule { name: "person", help: "name the process, thread or reader that is meant", find: persons },
    Rule { name: "phrase", help: "use the usual phrase", find: phrases },
    Rule { name: "noun", help: "use the field's word", find: private_nouns },
    Rule { name: "participle", help: "name a type by a noun", find: participles },
    Rule { name: "long_test", help: "name a test in at most 10 words", find: long_tests },
    Rule { name: "long_sentence", help: "split a sentence of more than 45 words", find: long_sentences },
];

/// Name of the rule that exported types of different modules have different names.
pub const REPEATED: &str = "repeated";
/// Advice of the rule [`REPEATED`].
pub const REPEATED_HELP: &str = "give each exported type a name of its own";

/// Words that start a sentence only by turning it around, unless it is a question.
const TURNED: &[&str] = &["what", "of", "whom", "whoever", "whomever"];

/// Words that a doc comment starts with only if it continues another one.
const CONTINUING: &[&str] = &[
    "and", "also", "as", "both", "but", "by", "from", "it", "its", "likewise", "none", "or", "so", "their",
    "these", "they", "those", "to", "which", "who", "with", "without",
];

/// Pronouns for persons, which processes and threads are not.
const PERSONS: &[&str] = &["anybody", "everybody", "nobody", "somebody", "whoever", "whom", "whomever"];

/// Phrases of this project's own, as words.
const PHRASES: &[&[&str]] = &[
    &["am", "told"],
    &["are", "told"],
    &["be", "told"],
    &["been", "told"],
    &["is", "told"],
    &["was", "told"],
    &["were", "told"],
    &["are", "none"],
    &["is", "none"],
    &["was", "none"],
    &["it", "is", "looked"],
    &["is", "good"],
    &["is", "good", "for"],
    &["ended", "well"],
    &["ends", "well"],
    &["end", "well"],
    &["goes", "on"],
    &["go", "on"],
    &["went", "on"],
    &["so", "many"],
    &["as", "many", "as"],
];

/// Nouns that only this project uses, in the singular, each with the field's word.
const PRIVATE: &[&str] = &[
    "carrier",
    "crew",
    "desk",
    "errand",
    "figure",
    "fleet",
    "guest",
    "household",
    "kin",
    "mood",
    "room",
    "stranger",
    "trunk",
    "usher",
];

/// Participles without a regular ending.
const IRREGULAR: &[&str] = &[
    "asked",
    "begun",
    "bound",
    "built",
    "done",
    "drawn",
    "found",
    "gone",
    "given",
    "heard",
    "held",
    "kept",
    "known",
    "left",
    "lent",
    "lost",
    "made",
    "met",
    "paid",
    "put",
    "ran",
    "said",
    "seen",
    "sent",
    "shown",
    "taken",
    "told",
    "coming",
    "forgetting",
    "leaving",
    "looking",
    "asking",
    "waiting",
    "keeping",
    "standing",
    "taking",
    "answering",
    "holding",
    "living",
    "running",
];

/// Nouns that end like a participle.
const NOUNS_IN_ED: &[&str] = &["bed", "embed", "feed", "need", "seed", "shed", "speed"];

const MOST_WORDS_OF_TEST: usize = 10;
const MOST_WORDS_OF_SENTENCE: usize = 45;

/// Sentences of a text: each ends at a mark that is followed by a capital letter or code.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, mark) in text.match_indices(['.', '?', '!']) {
        let end = at + mark.len();
        let rest = &text[end..];
        let starts_next = |first: char| first.is_uppercase() || first == '`';
        if rest.is_empty() || rest.strip_prefix(' ').is_some_and(|next| next.starts_with(starts_next)) {
            sentences.push(text[start..end].trim());
            start = end;
        }
    }
    sentences.push(text[start..].trim());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// Words in lower case, code between backticks as one word.
fn words(sentence: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in sentence.split('`').enumerate() {
        if at % 2 == 1 {
            words.push("`".to_owned());
            continue;
        }
        let split = part.split(|c: char| !c.is_alphanumeric() && !matches!(c, '\'' | '-' | '_'));
        words.extend(split.filter(|word| !word.is_empty()).map(str::to_lowercase));
    }
    words
}

/// Words of a name in snake or camel case, in lower case.
fn words_of_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for character in name.chars() {
        if character == '_' || character.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| character != '_') {
            word.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The start of a sentence, to recognize it by.
fn excerpt(sentence: &str) -> String {
    sentence.chars().take(70).collect()
}

fn openings(text: &Text) -> Vec<String> {
    let is_turned = |sentence: &&str| {
        let words = words(sentence);
        let Some(first) = words.first().filter(|_| !sentence.ends_with('?')) else { return false };
        let second = words.get(1).map_or("", String::as_str);
        TURNED.contains(&first.as_str()) && (first, second) != (&"of".to_owned(), "course")
            || is_participle(first) && matches!(second, "is" | "are" | "was" | "were")
    };
    let sentences = if text.is_prose() { sentences(&text.text) } else { Vec::new() };
    sentences.into_iter().filter(is_turned).map(excerpt).collect()
}

fn fragments(text: &Text) -> Vec<String> {
    let first = words(&text.text).into_iter().next().unwrap_or_default();
    let is_fragment = text.kind == Kind::Doc && CONTINUING.contains(&first.as_str());
    is_fragment.then(|| excerpt(&text.text)).into_iter().collect()
}

fn persons(text: &Text) -> Vec<String> {
    if text.is_name() {
        return Vec::new();
    }
    words(&text.text).into_iter().filter(|word| PERSONS.contains(&word.as_str())).collect()
}

fn phrases(text: &Text) -> Vec<String> {
    if text.is_name() {
        return Vec::new();
    }
    let words = words(&text.text);
    let found = PHRASES.iter().flat_map(|phrase| {
        let is_phrase = |(at, window): &(usize, &[String])| {
            // "There is none" is plain English.
            let follows_there = *at > 0 && words[*at - 1] == "there";
            !follows_there && window.iter().zip(*phrase).all(|(word, wanted)| word == wanted)
        };
        words.windows(phrase.len()).enumerate().filter(is_phrase).map(|(_, window)| window.join(" "))
    });
    found.collect()
}

fn private_nouns(text: &Text) -> Vec<String> {
    let words = if text.is_name() { words_of_name(&text.text) } else { words(&text.text) };
    let is_private = |(at, word): &(usize, &String)| {
        // "Figure 3" is a figure of a paper.
        let is_numbered =
            words.get(at + 1).is_some_and(|next| next.starts_with(|first: char| first.is_ascii_digit()));
        !is_numbered && PRIVATE.contains(&word.strip_suffix('s').unwrap_or(word))
    };
    words.iter().enumerate().filter(is_private).map(|(_, word)| word.clone()).collect()
}

fn participles(text: &Text) -> Vec<String> {
    let is_type = matches!(text.kind, Kind::Type | Kind::ExportedType);
    let words = words_of_name(&text.text);
    let is_bare = is_type && words.len() == 1 && is_participle(&words[0]);
    is_bare.then(|| text.text.clone()).into_iter().collect()
}

fn is_participle(word: &str) -> bool {
    IRREGULAR.contains(&word) || word.ends_with("ed") && !NOUNS_IN_ED.contains(&word)
}

fn long_tests(text: &Text) -> Vec<String> {
    let is_long = text.kind == Kind::Test && words_of_name(&text.text).len() > MOST_WORDS_OF_TEST;
    is_long.then(|| text.text.clone()).into_iter().collect()
}

fn long_sentences(text: &Text) -> Vec<String> {
    let is_long = |sentence: &&str| words(sentence).len() > MOST_WORDS_OF_SENTENCE;
    let sentences = if text.is_prose() { sentences(&text.text) } else { Vec::new() };
    sentences.into_iter().filter(is_long).map(excerpt).collect()
}

/// Names that mean the same in every file of a folder, where the crate or the module tells the types apart: a crate's
/// errors, and the arguments of a subcommand.
const CONVENTIONAL: &[(&str, &str)] = &[("Error", ""), ("Arguments", "crates/cli/src/cli/")];

/// The exported types that have the name of an earlier one in another file, with their places. A name of
/// [`CONVENTIONAL`] may be repeated in its folder.
pub fn repeated_types(types: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut repeated = Vec::new();
    for (name, place) in types {
        let conventional =
            CONVENTIONAL.iter().find(|(known, folder)| *known == name && place.starts_with(folder));
        let file = place.split(':').next().unwrap_or_default();
        // All files of a conventional name's folder count as one.
        let home = conventional.map_or(file, |(_, folder)| folder).to_owned();
        let homes = seen.entry(name.clone()).or_default();
        if !homes.is_empty() && !homes.contains(&home) {
            repeated.push((name, place));
        }
        homes.insert(home);
    }
    repeated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(kind: Kind, text: &str) -> Vec<&'static str> {
        let text = Text { kind, line: 1, text: text.to_owned() };
        RULES.iter().filter(|rule| !(rule.find)(&text).is_empty()).map(|rule| rule.name).collect()
    }

    #[test]
    fn turned_sentences_are_found() {
        for turned in
            ["What it costs. The rest.", "Reads it. Of both.", "Known is the size.", "Told are two."]
        {
            assert_eq!(broken(Kind::Prose, turned), ["opening"], "{turned}");
        }
        for straight in
            ["What does it cost?", "Of course not.", "Reads a file, e.g. of text.", "Need is known."]
        {
            assert!(broken(Kind::Prose, straight).is_empty(), "{straight}");
        }
    }

    #[test]
    fn doc_comments_that_continue_another_are_found() {
        assert_eq!(broken(Kind::Doc, "With a name."), ["fragment"]);
        assert_eq!(broken(Kind::Doc, "Its number."), ["fragment"]);
        assert!(broken(Kind::Prose, "With a name, this works.").is_empty(), "comments may begin so");
        assert!(broken(Kind::Doc, "Number of the node.").is_empty());
    }

    #[test]
    fn words_of_this_project_alone_are_found() {
        assert_eq!(broken(Kind::Message, "nobody answers"), ["person"]);
        assert_eq!(broken(Kind::Message, "the app is good: 2 components"), ["phrase"]);
        assert_eq!(broken(Kind::Message, "no room for 2 pages"), ["noun"]);
        assert!(broken(Kind::Prose, "Fails if there is none (Scad, Figure 3).").is_empty());
        assert_eq!(broken(Kind::Name, "serve_guests"), ["noun"]);
        assert!(broken(Kind::Message, "the `room` field is larger").is_empty(), "code is quoted as it is");
        assert!(broken(Kind::Name, "mushroom").is_empty());
    }

    #[test]
    fn types_named_by_participles_are_found() {
        assert_eq!(broken(Kind::Type, "Taken"), ["participle"]);
        assert_eq!(broken(Kind::ExportedType, "Deployed"), ["participle"]);
        assert!(broken(Kind::Type, "Seed").is_empty());
        assert!(broken(Kind::Type, "DeployedPackage").is_empty());
        assert!(broken(Kind::Name, "taken").is_empty(), "functions and modules are not types");
    }

    #[test]
    fn long_names_of_tests_and_long_sentences_are_found() {
        let name = |words: usize| vec!["a"; words].join("_");
        assert!(broken(Kind::Test, &name(MOST_WORDS_OF_TEST)).is_empty());
        assert_eq!(broken(Kind::Test, &name(MOST_WORDS_OF_TEST + 1)), ["long_test"]);
        let sentence = |words: usize| vec!["a"; words].join(" ");
        assert!(broken(Kind::Prose, &sentence(MOST_WORDS_OF_SENTENCE)).is_empty());
        assert_eq!(broken(Kind::Prose, &sentence(MOST_WORDS_OF_SENTENCE + 1)), ["long_sentence"]);
    }

    #[test]
    fn repeated_types_are_counted_once_for_each_further_file() {
        let types = [("A", "a.rs:1"), ("B", "a.rs:2"), ("A", "b.rs:1"), ("A", "b.rs:9")];
        let types = types.map(|(name, place)| (name.to_owned(), place.to_owned()));
        assert_eq!(repeated_types(types.into()), [("A".to_owned(), "b.rs:1".to_owned())]);
    }

    #[test]
    fn conventional_names_may_be_repeated_in_their_folder() {
        let types = [
            ("Error", "crates/a/src/lib.rs:2"),
            ("Error", "crates/b/src/lib.rs:3"),
            ("Arguments", "crates/cli/src/cli/agent.rs:1"),
            ("Arguments", "crates/cli/src/cli/bench.rs:1"),
            ("Arguments", "crates/devices/src/driver.rs:1"),
        ];
        let types = types.map(|(name, place)| (name.to_owned(), place.to_owned()));
        let repeated = ("Arguments".to_owned(), "crates/devices/src/driver.rs:1".to_owned());
        assert_eq!(repeated_types(types.into()), [repeated]);
    }
}
