//! `cargo xtask language`: lists wording that the rules for plain English in STYLE.md forbid, by rule. In documents it
//! ignores code spans and tables, where STYLE.md quotes wrong wording.
//!
//! The table `xtask/language.txt` holds how many findings each area of the repository may have. A test fails where there
//! are more, so that the counts only fall. An area without a line in the table is finished: it may have none. After
//! rewording, `cargo xtask language --write yes` lowers the table.

mod rules;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::map::files;
use crate::options::ChoreOptions;
use crate::root;
use rules::{RULES, repeated_types};
use text::Text;

/// Path of the table of allowed counts.
const TABLE: &str = "xtask/language.txt";

/// Endings of the names of files whose wording is checked.
const CHECKED: &[&str] = &[
    "rs", "c", "cpp", "h", "hpp", "cl", "f90", "go", "js", "proto", "py", "pyi", "sh", "md", "toml", "yml",
    "yaml",
];

/// Files of the checker itself, which hold words that the rules forbid.
const EXEMPT: &[&str] = &["xtask/src/language/rules.rs", "xtask/src/language/text.rs"];

/// Area of findings that concern the repository as a whole.
const WHOLE: &str = "repository";

/// Number of findings by area and rule.
type Counts = BTreeMap<(String, String), usize>;

/// A place in the repository where a rule is broken.
struct BrokenRule {
    area: String,
    rule: &'static str,
    place: String,
    excerpt: String,
}

/// Prints the findings, all or those of one `--area` and `--rule`, and their sums; `--write yes` lowers the table.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let (area, rule, write) = (options.take("area"), options.take("rule"), options.take("write"));
    options.end()?;
    let found = findings()?;
    if write.is_some() {
        fs::write(root().join(TABLE), table(&counts(&found)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_shown = |finding: &&BrokenRule| {
        area.as_ref().is_none_or(|area| *area == finding.area)
            && rule.as_ref().is_none_or(|rule| rule == finding.rule)
    };
    match print(found.iter().filter(is_shown)) {
        // The reader, `head` for instance, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        printed => printed.map(|()| ExitCode::SUCCESS),
    }
}

fn print<'a>(findings: impl Iterator<Item = &'a BrokenRule>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut sums: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in findings {
        writeln!(out, "{}: {}: {}", finding.place, finding.rule, finding.excerpt)?;
        *sums.entry(finding.rule).or_default() += 1;
    }
    for (rule, sum) in &sums {
        let help =
            RULES.iter().find(|known| known.name == *rule).map_or(rules::REPEATED_HELP, |rule| rule.help);
        writeln!(out, "{sum:6} {rule}: {help}")?;
    }
    writeln!(out, "{:6} in all", sums.values().sum::<usize>())
}

/// Every broken rule in every checked file.
fn findings() -> io::Result<Vec<BrokenRule>> {
    let mut found = Vec::new();
    let mut types: Vec<(String, String)> = Vec::new();
    for path in
        files(CHECKED)?.iter().filter(|path| !EXEMPT.iter().any(|exempt| path.as_path() == Path::new(exempt)))
    {
        let source = fs::read_to_string(root().join(path))?;
        for text in text::texts(path, &source) {
            let place = format!("{}:{}", path.display(), text.line);
            found.extend(broken_rules(&area(path), &place, &text));
            if text.is_exported_type() {
                types.push((text.text, place));
            }
        }
    }
    found.extend(repeated_types(types).into_iter().map(|(name, place)| BrokenRule {
        area: WHOLE.to_owned(),
        rule: rules::REPEATED,
        place,
        excerpt: name,
    }));
    Ok(found)
}

fn broken_rules(area: &str, place: &str, text: &Text) -> Vec<BrokenRule> {
    let excerpts = RULES.iter().flat_map(|rule| {
        let found = (rule.find)(text).into_iter();
        found.map(|excerpt| (rule.name, excerpt))
    });
    let finding =
        |(rule, excerpt)| BrokenRule { area: area.to_owned(), rule, place: place.to_owned(), excerpt };
    excerpts.map(finding).collect()
}

/// The part of the repository that a file belongs to: a crate, or a folder or document at the top.
fn area(path: &Path) -> String {
    let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let first = parts.next().unwrap_or_default();
    if first == "crates" { parts.next().unwrap_or_default() } else { first }
}

fn counts(findings: &[BrokenRule]) -> Counts {
    let mut counts = Counts::new();
    for finding in findings {
        *counts.entry((finding.area.clone(), finding.rule.to_owned())).or_default() += 1;
    }
    counts
}

fn table(counts: &Counts) -> String {
    let lines = counts.iter().map(|((area, rule), count)| format!("{area} {rule} {count}\n"));
    format!(
        "# Findings of `cargo xtask language` that are left, by area and rule. Counts only fall.\n{}",
        lines.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Counts {
        let table = fs::read_to_string(root().join(TABLE)).unwrap();
        let lines = table.lines().filter(|line| !line.starts_with('#'));
        let entry = |line: &str| {
            let fields: Vec<_> = line.split(' ').collect();
            let [area, rule, count] = fields[..] else {
                panic!("{TABLE}: not an area, a rule and a count: {line:?}")
            };
            ((area.to_owned(), rule.to_owned()), count.parse().unwrap())
        };
        lines.map(entry).collect()
    }

    #[test]
    fn wording_gets_no_worse() {
        let allowed = allowed();
        let found = findings().unwrap();
        let mut worse = String::new();
        for ((area, rule), count) in counts(&found) {
            let limit = allowed.get(&(area.clone(), rule.clone())).copied().unwrap_or(0);
            if count > limit {
                worse += &format!(
                    "{area} {rule}: {count} findings, {limit} allowed: cargo xtask language --area {area} --rule {rule}\n"
                );
            }
        }
        assert!(worse.is_empty(), "more findings than {TABLE} allows:\n{worse}");
    }

    #[test]
    fn table_survives_a_round_trip() {
        let allowed = allowed();
        assert_eq!(
            table(&allowed),
            fs::read_to_string(root().join(TABLE)).unwrap(),
            "write it by --write yes"
        );
    }

    #[test]
    fn areas_are_crates_and_top_folders() {
        assert_eq!(area(Path::new("crates/proto/src/lib.rs")), "proto");
        assert_eq!(area(Path::new("docs/guide/start.md")), "docs");
        assert_eq!(area(Path::new("README.md")), "README.md");
    }
}
