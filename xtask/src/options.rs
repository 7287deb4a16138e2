//! Options of a chore's command line: pairs of `--name value` only.

use std::io;

/// The options after the chore's name: pairs of a name and its value.
pub struct ChoreOptions(Vec<(String, String)>);

impl ChoreOptions {
    /// Pairs each `--name` with the value after it.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> io::Result<ChoreOptions> {
        let mut pairs = Vec::new();
        while let Some(name) = arguments.next() {
            let value = arguments.next();
            match (name.strip_prefix("--"), value) {
                (Some(name), Some(value)) => pairs.push((name.to_owned(), value)),
                (Some(_), None) => return Err(io::Error::other(format!("{name} needs a value"))),
                (None, _) => return Err(io::Error::other(format!("{name:?} is not an option"))),
            }
        }
        Ok(ChoreOptions(pairs))
    }

    /// Takes the value of `--name`.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(given, _)| given == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Fails if an option is left that the chore did not take: a misspelt option is not silently ignored.
    pub fn end(self) -> io::Result<()> {
        match self.0.first() {
            Some((name, _)) => Err(io::Error::other(format!("there is no option --{name}"))),
            None => Ok(()),
        }
    }
}
