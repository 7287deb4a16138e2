//! Reads the results of the parts from the tests' lines, such as `part fifos ok 12`.

use std::fmt::Write;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct PartOutcome {
    name: String,
    has_passed: bool,
    seconds: u64,
}

impl PartOutcome {
    fn of(line: &str) -> Option<PartOutcome> {
        let words: Vec<_> = line.split(' ').collect();
        let ["part", name, result, seconds] = words[..] else { return None };
        let has_passed = match result {
            "ok" => true,
            "FAILED" => false,
            _ => return None,
        };
        Some(PartOutcome { name: name.to_owned(), has_passed, seconds: seconds.parse().ok()? })
    }

    /// Whether it passed.
    pub fn is_good(&self) -> bool {
        self.has_passed
    }

    fn verdict(&self) -> &'static str {
        if self.has_passed { "ok" } else { "FAILED" }
    }
}

/// Parses the outcomes of the parts from the lines that the tests print.
pub fn read(lines: &[String]) -> Vec<PartOutcome> {
    lines.iter().filter_map(|line| PartOutcome::of(line)).collect()
}

/// Formats the outcomes as a table, for people.
pub fn table(outcomes: &[PartOutcome]) -> String {
    outcomes.iter().fold(String::new(), |mut table, outcome| {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{:<10}{:<8}{:>6} s", outcome.name, outcome.verdict(), outcome.seconds);
        table
    })
}

/// Formats the outcomes as JSON, for programs.
pub fn json(outcomes: &[PartOutcome]) -> String {
    let object = |outcome: &PartOutcome| {
        let PartOutcome { name, seconds, .. } = outcome;
        let result = outcome.verdict().to_lowercase();
        format!("{{\"name\": \"{name}\", \"result\": \"{result}\", \"seconds\": {seconds}}}")
    };
    format!("{{\"parts\": [{}]}}\n", outcomes.iter().map(object).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_parsed_from_well_formed_lines_only() {
        let said =
            "running 1 test\npart fifos ok 12\npart of something\npart death FAILED 3\npart x good 1\n";
        let lines: Vec<_> = said.lines().map(str::to_owned).collect();
        let outcomes = read(&lines);
        let told: Vec<_> = outcomes.iter().map(|part| (part.name.as_str(), part.is_good())).collect();
        assert_eq!(told, [("fifos", true), ("death", false)]);
        assert_eq!(table(&outcomes).lines().nth(1), Some("death     FAILED       3 s"));
        assert!(json(&outcomes).contains("{\"name\": \"fifos\", \"result\": \"ok\", \"seconds\": 12}, {"));
    }
}
