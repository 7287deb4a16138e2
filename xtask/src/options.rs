//! Options of a chore's command line: pairs of `--name value`, and before them at most one word, the part of the chore.

use std::io;

/// The options after the chore's name.
pub struct ChoreOptions {
    /// The word before the options, if there is one.
    part: Option<String>,
    /// Pairs of a name and its value.
    pairs: Vec<(String, String)>,
}

impl ChoreOptions {
    /// Pairs each `--name` with the value after it.
    pub fn parse(arguments: impl Iterator<Item = String>) -> io::Result<ChoreOptions> {
        let mut arguments = arguments.peekable();
        let part = arguments.next_if(|word| !word.starts_with("--"));
        let mut pairs = Vec::new();
        while let Some(name) = arguments.next() {
            let value = arguments.next();
            match (name.strip_prefix("--"), value) {
                (Some(name), Some(value)) => pairs.push((name.to_owned(), value)),
                (Some(_), None) => return Err(io::Error::other(format!("{name} needs a value"))),
                (None, _) => return Err(io::Error::other(format!("{name:?} is not an option"))),
            }
        }
        Ok(ChoreOptions { part, pairs })
    }

    /// Takes the word before the options.
    pub fn take_part(&mut self) -> Option<String> {
        self.part.take()
    }

    /// Takes the value of `--name`.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(given, _)| given == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    /// Fails if a word or an option is left that the chore did not take: a misspelt option is not silently ignored.
    pub fn end(self) -> io::Result<()> {
        if let Some(part) = self.part {
            return Err(io::Error::other(format!("{part:?} is not an option")));
        }
        match self.pairs.first() {
            Some((name, _)) => Err(io::Error::other(format!("there is no option --{name}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> io::Result<ChoreOptions> {
        ChoreOptions::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn one_word_may_precede_the_options() {
        let mut options = parsed(&["scad", "--only", "warm"]).unwrap();
        assert_eq!(options.take_part().as_deref(), Some("scad"));
        assert_eq!(options.take("only").as_deref(), Some("warm"));
        options.end().unwrap();
    }

    #[test]
    fn words_and_options_that_no_chore_takes_are_errors() {
        let error = |words: &[&str]| parsed(words).and_then(ChoreOptions::end).unwrap_err().to_string();
        assert_eq!(error(&["scad"]), "\"scad\" is not an option");
        assert_eq!(error(&["--only", "warm"]), "there is no option --only");
        assert_eq!(error(&["--only", "warm", "scad"]), "\"scad\" is not an option");
        assert_eq!(error(&["--only"]), "--only needs a value");
    }
}
