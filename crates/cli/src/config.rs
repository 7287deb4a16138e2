//! The configuration of `sublet manager` and `sublet agent`: one table of keys for each, and four places that may set
//! them. A flag beats the environment, which beats the file, which beats the default.
//!
//! A [`Schema`] is the whole truth about a program's keys: the file, the environment, the flags with their help, and
//! `--print-config` are read from it, and a test holds the documented examples in `packaging/` against it. Every value
//! is text until it is asked for, so that one parser reads it, wherever it was set, and its error says where.

pub(crate) mod agent;
mod file;
mod flags;
pub(crate) mod manager;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sublet_proto::{Code, Error};

pub(crate) use flags::{Configured, Flags};

/// What is logged; of both programs.
const LOG: Key = Key {
    name: "log",
    kind: Kind::Text,
    environment: "SUBLET_LOG",
    flag: "log",
    value: "LEVEL",
    help: "What is logged to standard error: off, error, warn, info, debug, trace, or TARGET=LEVEL between commas",
    otherwise: Otherwise::Is("info"),
    shown: Shown::Openly,
};

/// All that one program can be told.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Read if it exists and no other is named.
    pub(crate) file: &'static str,
    pub(crate) keys: &'static [Key],
}

/// One thing that can be told.
#[derive(Debug)]
pub(crate) struct Key {
    /// As it stands in the file, with the tables that it is in: `tls.key`. A `*` stands for any one name.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Empty if it cannot be set there.
    pub(crate) environment: &'static str,
    /// Without its dashes; empty if there is none.
    pub(crate) flag: &'static str,
    /// What a value is called in the help.
    pub(crate) value: &'static str,
    /// One line: what it means.
    pub(crate) help: &'static str,
    pub(crate) otherwise: Otherwise,
    pub(crate) shown: Shown,
}

/// What a value looks like in the file. Elsewhere everything is text, and the values of a list stand between commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Whole,
    /// A whole number, or text with a unit.
    Size,
    List,
    /// `true` or `false`.
    Switch,
}

impl Kind {
    /// For errors.
    fn allowed(self) -> &'static str {
        match self {
            Kind::Text => "text in quotation marks",
            Kind::Whole => "a whole number of at least 0",
            Kind::Size => "a whole number of bytes, or text as \"4GiB\"",
            Kind::List => "a list of texts, as [\"one\", \"two\"]",
            Kind::Switch => "true or false",
        }
    }
}

/// What holds if nobody says anything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Otherwise {
    Is(&'static str),
    Found(fn() -> String),
    /// No value; what that means.
    Means(&'static str),
}

/// What `--print-config` may show of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Openly,
    Never,
    /// A URL without the user and password in it.
    WithoutUser,
}

/// Where a value comes from; a later one beats an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Environment(&'static str),
    Flag(&'static str),
}

impl Source {
    fn rank(&self) -> u8 {
        match self {
            Source::Default => 0,
            Source::File { .. } => 1,
            Source::Environment(_) => 2,
            Source::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Environment(variable) => f.write_str(variable),
            Source::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// A value that holds.
#[derive(Clone, Debug)]
struct Setting {
    text: String,
    source: Source,
}

/// The values that hold, by the names of their keys.
#[derive(Debug)]
pub(crate) struct Settings {
    schema: &'static Schema,
    settings: BTreeMap<String, Setting>,
    /// What the environment has replaced in the file by another value.
    replaced: Vec<Replaced>,
}

/// A value of the file that does not hold, since a variable has another one.
#[derive(Debug)]
struct Replaced {
    key: &'static str,
    file: Source,
    variable: &'static str,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replaced { key, file, variable } = self;
        write!(f, "{variable} is set in the environment, and holds in place of {key} in {file}")
    }
}

/// A line of `--print-config`.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) key: String,
    /// Nothing: no value, which `meaning` explains.
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meaning: Option<&'static str>,
    pub(crate) from: String,
}

impl Settings {
    /// Reads the file, if there is one, and the environment, and lays the flags over them.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a file that is not what [`Schema`] says, by line and key; [`Code::System`] for
    /// one that cannot be read.
    pub(crate) fn read<P: Configured>(flags: Flags<P>) -> Result<Settings, Error> {
        let schema = P::SCHEMA;
        let mut settings = Settings { schema, settings: BTreeMap::new(), replaced: Vec::new() };
        settings.add_defaults();
        if let Some(path) = flags.config.or_else(|| schema.existing_file()) {
            for (name, setting) in file::read(&path, schema)? {
                settings.settings.insert(name, setting);
            }
        }
        settings.add_environment(|variable| std::env::var(variable).ok());
        for (key, text) in flags.given {
            settings.put(key, text, Source::Flag(key.flag));
        }
        Ok(settings)
    }

    fn add_defaults(&mut self) {
        for key in self.schema.keys {
            let text = match key.otherwise {
                Otherwise::Is(text) => text.to_owned(),
                Otherwise::Found(find) => find(),
                Otherwise::Means(_) => continue,
            };
            self.put(key, text, Source::Default);
        }
    }

    fn add_environment(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for key in self.schema.keys.iter().filter(|key| !key.environment.is_empty()) {
            if let Some(text) = variable(key.environment).filter(|text| !text.is_empty()) {
                self.note_replaced(key, &text);
                self.put(key, text, Source::Environment(key.environment));
            }
        }
    }

    fn note_replaced(&mut self, key: &Key, text: &str) {
        if let Some(Setting { text: before, source: file @ Source::File { .. } }) =
            self.settings.get(key.name)
            && before != text
        {
            let file = file.clone();
            self.replaced.push(Replaced { key: key.name, file, variable: key.environment });
        }
    }

    /// What of the file does not hold because of the environment, for people.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        // A flag may have replaced the variable in turn.
        let holds = |replaced: &&Replaced| {
            let setting = self.settings.get(replaced.key);
            setting.is_some_and(|setting| setting.source == Source::Environment(replaced.variable))
        };
        self.replaced.iter().filter(holds).map(ToString::to_string)
    }

    fn put(&mut self, key: &Key, text: String, source: Source) {
        self.settings.insert(key.name.to_owned(), Setting { text, source });
    }

    /// The value of a key, read by `parse`, whose error says what is wrong with it.
    pub(crate) fn value<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let Some(setting) = self.settings.get(name) else { return Ok(None) };
        parse(&setting.text).map(Some).map_err(|why| self.invalid(name, &why))
    }

    /// The value of a key that always has one.
    pub(crate) fn needed<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        self.value(name, parse)?.ok_or_else(|| self.invalid(name, "it must be set"))
    }

    /// The values of a key that is a list.
    pub(crate) fn list<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, Error> {
        let items = |text: &str| {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(&parse).collect::<Result<Vec<T>, String>>()
        };
        self.value(name, items).map(Option::unwrap_or_default)
    }

    /// The names, in place of the `*`, for which any key under this table is set: `gpu` of `price.pu.gpu.compute`.
    pub(crate) fn names_under(&self, table: &str) -> Vec<&str> {
        let names = self.settings.keys().filter_map(|name| name.strip_prefix(table)?.split('.').next());
        let mut names: Vec<_> = names.collect();
        names.dedup();
        names
    }

    /// Whether anybody has set it.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.settings.get(name).is_some_and(|setting| setting.source != Source::Default)
    }

    /// Of two keys that say the same thing in two ways, the one that is set in the stronger place.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if both are set in the same place.
    pub(crate) fn stronger(&self, one: &'static str, other: &'static str) -> Result<&'static str, Error> {
        let rank = |name| self.settings.get(name).map_or(0, |setting| setting.source.rank());
        match rank(one).cmp(&rank(other)) {
            std::cmp::Ordering::Less => Ok(other),
            std::cmp::Ordering::Equal if rank(one) > 0 => {
                Err(self.invalid(one, &format!("{} is set as well: set one of the two", self.place(other))))
            }
            _ => Ok(one),
        }
    }

    /// That the value of a key cannot be.
    pub(crate) fn invalid(&self, name: &str, why: &str) -> Error {
        Error::new(Code::InvalidArgument, format!("{}: {why}", self.place(name)))
    }

    /// Where a key is set, and its name; or where it could be.
    fn place(&self, name: &str) -> String {
        match self.settings.get(name) {
            Some(Setting { source, .. }) => match source {
                Source::Default => format!("{name} (by default)"),
                Source::File { .. } => format!("{source}: {name}"),
                Source::Environment(_) | Source::Flag(_) => source.to_string(),
            },
            None => self.schema.key(name).map_or(name.to_owned(), Key::places),
        }
    }

    /// Every key with its value and where that comes from.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::with_capacity(self.schema.keys.len());
        for key in self.schema.keys {
            let set = self.settings.iter().filter(|(name, _)| key.is_named(name));
            lines.extend(set.map(|(name, setting)| Line {
                key: name.clone(),
                value: Some(key.shown.show(&setting.text)),
                meaning: None,
                from: setting.source.to_string(),
            }));
            match key.otherwise {
                Otherwise::Means(meaning) if !key.is_pattern() && !self.settings.contains_key(key.name) => {
                    let meaning = Some(meaning);
                    lines.push(Line { key: key.name.into(), value: None, meaning, from: "default".into() });
                }
                _ => {}
            }
        }
        lines
    }
}

impl Schema {
    fn existing_file(&self) -> Option<PathBuf> {
        let path = Path::new(self.file);
        path.exists().then(|| path.to_owned())
    }

    fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.is_named(name))
    }

    /// All names, for who has mistaken one.
    fn names(&self) -> String {
        self.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }
}

impl Key {
    fn is_named(&self, name: &str) -> bool {
        let (mut own, mut given) = (self.name.split('.'), name.split('.'));
        loop {
            match (own.next(), given.next()) {
                (None, None) => return true,
                (Some(own), Some(given)) if own == given || (own == "*" && !given.is_empty()) => {}
                _ => return false,
            }
        }
    }

    /// Whether it stands for keys of many names.
    fn is_pattern(&self) -> bool {
        self.name.contains('*')
    }

    /// Where it can be set.
    fn places(&self) -> String {
        match (self.flag, self.environment) {
            ("", "") => self.name.to_owned(),
            ("", environment) => format!("{} ({environment})", self.name),
            (flag, _) => format!("{} (--{flag})", self.name),
        }
    }
}

impl Shown {
    fn show(self, text: &str) -> String {
        match self {
            Shown::Openly => text.to_owned(),
            Shown::Never => "(hidden)".to_owned(),
            Shown::WithoutUser => text.split(',').map(without_user).collect::<Vec<_>>().join(","),
        }
    }
}

fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://(hidden)@{host}"),
        (None, Some((_, host))) => format!("(hidden)@{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_one_name() {
        let key = |name| manager::SCHEMA.key(name).map(|key| key.name);
        assert_eq!(key("price.pu.gpu.compute"), Some("price.pu.*.compute"));
        assert_eq!(key("tls.key"), Some("tls.key"));
        for name in ["price.pu.compute", "price.pu..compute", "price.pu.a.b.compute", "tls", "*", ""] {
            assert_eq!(key(name), None, "{name}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(Shown::Never.show("sublet_0_secret"), "(hidden)");
        let urls = "nats://me:secret@one:4222,nats://two";
        assert_eq!(Shown::WithoutUser.show(urls), "nats://(hidden)@one:4222,nats://two");
    }

    #[test]
    fn every_key_is_set_in_one_way_only() {
        for schema in [&manager::SCHEMA, &agent::SCHEMA] {
            for places in [|key: &Key| key.name, |key: &Key| key.environment, |key: &Key| key.flag] {
                let mut seen: Vec<_> =
                    schema.keys.iter().map(places).filter(|place| !place.is_empty()).collect();
                let all = seen.len();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), all, "{seen:?}");
            }
        }
    }

    #[test]
    fn a_variable_that_replaces_a_value_of_the_file_is_told() {
        let mut settings =
            Settings { schema: &agent::SCHEMA, settings: BTreeMap::new(), replaced: Vec::new() };
        let file =
            file::parse(Path::new("agent.toml"), "name = 'a'\n\nmanagers = ['https://m:1']", &agent::SCHEMA);
        settings.settings.extend(file.unwrap());
        let variables =
            [("SUBLET_MANAGER", "unix:/tmp/m.sock"), ("SUBLET_NAME", "a"), ("SUBLET_STATE", "/s")];
        let variable =
            |name: &str| Some(variables.iter().find(|(variable, _)| *variable == name)?.1.to_owned());
        settings.add_environment(variable);
        let warnings: Vec<_> = settings.warnings().collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("SUBLET_MANAGER") && warnings[0].contains("managers in agent.toml:3"),
            "{warnings:?}"
        );
        let key = agent::SCHEMA.key("managers").unwrap();
        settings.put(key, "https://n:1".into(), Source::Flag("manager"));
        assert_eq!(settings.warnings().count(), 0);
    }

    const EXAMPLES: [(&Schema, &str, &str); 2] = [
        (&manager::SCHEMA, "manager.toml", include_str!("../../../packaging/manager.toml")),
        (&agent::SCHEMA, "agent.toml", include_str!("../../../packaging/agent.toml")),
    ];

    /// The example with every key in force.
    fn uncommented(example: &str) -> String {
        let is_key = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
        let lines = example.lines().map(|line| if is_key(line) { &line[1..] } else { line });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_documented_examples_have_every_key_and_no_other_and_the_defaults_that_hold() {
        for (schema, name, example) in EXAMPLES {
            let in_force = file::parse(Path::new(name), example, schema).unwrap();
            let mut places = in_force.iter().map(|(name, _)| name.as_str());
            assert!(places.all(|name| name == "state" || name == "socket"), "{name} sets {in_force:?}");
            let settings = file::parse(Path::new(name), &uncommented(example), schema).unwrap();
            for key in schema.keys {
                let shown = settings.iter().find(|(name, _)| key.is_named(name));
                let (_, setting) = shown.unwrap_or_else(|| panic!("{name} does not show {}", key.name));
                if let Otherwise::Is(default) = key.otherwise {
                    assert_eq!(setting.text, default, "{name}: {}", key.name);
                }
            }
        }
    }

    #[test]
    fn the_environment_beats_the_file_and_a_flag_beats_both() {
        let schema = &agent::SCHEMA;
        let mut settings = Settings { schema, settings: BTreeMap::new(), replaced: Vec::new() };
        settings.add_defaults();
        let of_file =
            file::parse(Path::new("a.toml"), "clients = 'all-users'\ncores = 1\nmemory = 5", schema);
        settings.settings.extend(of_file.unwrap());
        let variables = [("SUBLET_CORES", "2"), ("SUBLET_MEMORY", "")];
        settings.add_environment(|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, text)| (*text).to_owned())
        });
        let text = |settings: &Settings, name| {
            settings.needed(name, |text| Ok::<_, String>(text.to_owned())).unwrap()
        };
        assert_eq!(["clients", "cores", "memory"].map(|name| text(&settings, name)), ["all-users", "2", "5"]);
        settings.put(schema.key("cores").unwrap(), "3".into(), Source::Flag("cores"));
        assert_eq!(text(&settings, "cores"), "3");
    }

    #[test]
    fn of_two_ways_to_say_it_the_stronger_holds_and_equals_contradict() {
        let schema = &agent::SCHEMA;
        let mut settings = Settings { schema, settings: BTreeMap::new(), replaced: Vec::new() };
        assert_eq!(settings.stronger("token_file", "token").unwrap(), "token_file");
        let put = |settings: &mut Settings, name, source| {
            settings.put(schema.key(name).unwrap(), "x".into(), source);
        };
        put(&mut settings, "token", Source::Environment("SUBLET_TOKEN"));
        put(&mut settings, "token_file", Source::File { path: "a.toml".into(), line: 7 });
        assert_eq!(settings.stronger("token_file", "token").unwrap(), "token");
        put(&mut settings, "token_file", Source::Environment("SUBLET_TOKEN_FILE"));
        let error = settings.stronger("token_file", "token").unwrap_err().message;
        assert!(error.contains("SUBLET_TOKEN_FILE") && error.contains("SUBLET_TOKEN is set"), "{error}");
    }
}
