//! Configuration of `sublet manager` and `sublet agent`: a table of keys for each program, with values from four sources.
//! Flags override the environment, which overrides the file, which overrides the defaults.
//!
//! A [`Schema`] defines all keys of a program: the file, the environment, the flags with their help, and
//! `--print-config` follow it, and a test compares the documented examples in `packaging/` with it. Every value
//! is text until it is used, so that one parser reads it from every source, and errors name the source.

pub(crate) mod agent;
mod file;
mod flags;
pub(crate) mod manager;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use sublet_proto::{Code, Error};

use schema::{ConfigKey, Otherwise, Setting, ValueSource};

pub(crate) use flags::{ConfigFlags, ConfiguredProgram};
pub(crate) use schema::Schema;

/// Effective values by the names of their keys.
#[derive(Debug)]
pub(crate) struct EffectiveSettings {
    schema: &'static Schema,
    settings: BTreeMap<String, Setting>,
    /// Values of the file that the environment overrides.
    replaced: Vec<Override>,
}

/// A value of the file that an environment variable overrides.
#[derive(Debug)]
struct Override {
    key: &'static str,
    file: ValueSource,
    variable: &'static str,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Override { key, file, variable } = self;
        write!(f, "the environment variable {variable} overrides {key} in {file}")
    }
}

/// A line of `--print-config`.
#[derive(Debug, Serialize)]
pub(crate) struct ConfigLine {
    pub(crate) key: String,
    /// Value; if absent, `meaning` explains it.
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meaning: Option<&'static str>,
    pub(crate) from: String,
}

impl EffectiveSettings {
    /// Combines the file, if there is one, the environment and the flags.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a file that does not fit the [`Schema`], with line and key; [`Code::System`] for
    /// a file that cannot be read.
    pub(crate) fn read<P: ConfiguredProgram>(flags: ConfigFlags<P>) -> Result<EffectiveSettings, Error> {
        let schema = P::SCHEMA;
        let mut settings = EffectiveSettings { schema, settings: BTreeMap::new(), replaced: Vec::new() };
        settings.add_defaults();
        if let Some(path) = flags.config.or_else(|| schema.existing_file()) {
            for (name, setting) in file::read(&path, schema)? {
                settings.settings.insert(name, setting);
            }
        }
        settings.add_environment(|variable| std::env::var(variable).ok());
        for (key, text) in flags.given {
            settings.put(key, text, ValueSource::Flag(key.flag));
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
            self.put(key, text, ValueSource::Default);
        }
    }

    fn add_environment(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for key in self.schema.keys.iter().filter(|key| !key.environment.is_empty()) {
            if let Some(text) = variable(key.environment).filter(|text| !text.is_empty()) {
                self.note_replaced(key, &text);
                self.put(key, text, ValueSource::Environment(key.environment));
            }
        }
    }

    fn note_replaced(&mut self, key: &ConfigKey, text: &str) {
        if let Some(Setting { text: before, source: file @ ValueSource::File { .. } }) =
            self.settings.get(key.name)
            && before != text
        {
            let file = file.clone();
            self.replaced.push(Override { key: key.name, file, variable: key.environment });
        }
    }

    /// Describes the keys of the file that the environment overrides.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        // A flag may override the variable in turn.
        let holds = |replaced: &&Override| {
            let setting = self.settings.get(replaced.key);
            setting.is_some_and(|setting| setting.source == ValueSource::Environment(replaced.variable))
        };
        self.replaced.iter().filter(holds).map(ToString::to_string)
    }

    fn put(&mut self, key: &ConfigKey, text: String, source: ValueSource) {
        debug_assert!(!key.is_pattern(), "{} stands for many names, and {source} sets it", key.name);
        self.settings.insert(key.name.to_owned(), Setting { text, source });
    }

    /// Parses the value of a key. The error of `parse` gets the name and source of the key.
    pub(crate) fn value<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        debug_assert!(self.schema.key(name).is_some(), "{name} is not among {}", self.schema.names());
        let Some(setting) = self.settings.get(name) else { return Ok(None) };
        parse(&setting.text).map(Some).map_err(|why| self.invalid(name, &why))
    }

    /// Parses the value of a required key.
    pub(crate) fn needed<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        self.value(name, parse)?.ok_or_else(|| self.invalid(name, "it must be set"))
    }

    /// Parses the values of a list.
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

    /// Lists the names for the `*` of this table that have any key: `gpu` for `price.pu.gpu.compute`.
    pub(crate) fn names_under(&self, table: &str) -> Vec<&str> {
        let names = self.settings.keys().filter_map(|name| name.strip_prefix(table)?.split('.').next());
        let mut names: Vec<_> = names.collect();
        names.dedup();
        debug_assert_eq!(
            names.iter().collect::<BTreeSet<_>>().len(),
            names.len(),
            "twice in {table}: {names:?}"
        );
        names
    }

    /// Returns whether any source sets the key.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.settings.get(name).is_some_and(|setting| setting.source != ValueSource::Default)
    }

    /// Returns which of two alternative keys comes from the stronger source.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if both are set in the same source.
    pub(crate) fn stronger(&self, one: &'static str, other: &'static str) -> Result<&'static str, Error> {
        let rank = |name| self.settings.get(name).map_or(0, |setting| setting.source.rank());
        match rank(one).cmp(&rank(other)) {
            std::cmp::Ordering::Less => Ok(other),
            std::cmp::Ordering::Equal if rank(one) > 0 => {
                Err(self.invalid(one, &format!("{} is also set: set only one of the two", self.place(other))))
            }
            _ => Ok(one),
        }
    }

    /// Error about the value of a key.
    pub(crate) fn invalid(&self, name: &str, why: &str) -> Error {
        Error::new(Code::InvalidArgument, format!("{}: {why}", self.place(name)))
    }

    /// Describes the source and name of a key, or where it could be set.
    fn place(&self, name: &str) -> String {
        match self.settings.get(name) {
            Some(Setting { source, .. }) => match source {
                ValueSource::Default => format!("{name} (by default)"),
                ValueSource::File { .. } => format!("{source}: {name}"),
                ValueSource::Environment(_) | ValueSource::Flag(_) => source.to_string(),
            },
            None => self.schema.key(name).map_or(name.to_owned(), ConfigKey::places),
        }
    }

    /// Lists every key with its value and source.
    pub(crate) fn lines(&self) -> Vec<ConfigLine> {
        let mut lines = Vec::with_capacity(self.schema.keys.len());
        for key in self.schema.keys {
            let set = self.settings.iter().filter(|(name, _)| key.is_named(name));
            lines.extend(set.map(|(name, setting)| ConfigLine {
                key: name.clone(),
                value: Some(key.shown.show(&setting.text)),
                meaning: None,
                from: setting.source.to_string(),
            }));
            match key.otherwise {
                Otherwise::Means(meaning) if !key.is_pattern() && !self.settings.contains_key(key.name) => {
                    let meaning = Some(meaning);
                    lines.push(ConfigLine {
                        key: key.name.into(),
                        value: None,
                        meaning,
                        from: "default".into(),
                    });
                }
                _ => {}
            }
        }
        debug_assert_eq!(
            lines.iter().filter(|line| line.value.is_some()).count(),
            self.settings.len(),
            "a value has one line: {lines:?}"
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::schema::Visibility;
    use super::*;

    #[test]
    fn star_matches_one_name() {
        let key = |name| manager::SCHEMA.key(name).map(|key| key.name);
        assert_eq!(key("price.pu.gpu.compute"), Some("price.pu.*.compute"));
        assert_eq!(key("tls.key"), Some("tls.key"));
        for name in ["price.pu.compute", "price.pu..compute", "price.pu.a.b.compute", "tls", "*", ""] {
            assert_eq!(key(name), None, "{name}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(Visibility::Never.show("sublet_0_secret"), "(hidden)");
        let urls = "nats://me:secret@one:4222,nats://two";
        assert_eq!(Visibility::WithoutUser.show(urls), "nats://(hidden)@one:4222,nats://two");
    }

    #[test]
    fn every_key_is_set_in_one_way_only() {
        for schema in [&manager::SCHEMA, &agent::SCHEMA] {
            for places in
                [|key: &ConfigKey| key.name, |key: &ConfigKey| key.environment, |key: &ConfigKey| key.flag]
            {
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
    fn warns_of_variable_that_overrides_the_file() {
        let mut settings =
            EffectiveSettings { schema: &agent::SCHEMA, settings: BTreeMap::new(), replaced: Vec::new() };
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
        settings.put(key, "https://n:1".into(), ValueSource::Flag("manager"));
        assert_eq!(settings.warnings().count(), 0);
    }

    const EXAMPLES: [(&Schema, &str, &str); 2] = [
        (&manager::SCHEMA, "manager.toml", include_str!("../../../packaging/manager.toml")),
        (&agent::SCHEMA, "agent.toml", include_str!("../../../packaging/agent.toml")),
    ];

    /// Returns the example with every key uncommented.
    fn uncommented(example: &str) -> String {
        let is_key = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line.len() > 1;
        let lines = example.lines().map(|line| if is_key(line) { &line[1..] } else { line });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn documented_examples_match_keys_and_defaults() {
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
    fn flags_override_environment_which_overrides_file() {
        let schema = &agent::SCHEMA;
        let mut settings = EffectiveSettings { schema, settings: BTreeMap::new(), replaced: Vec::new() };
        settings.add_defaults();
        let of_file =
            file::parse(Path::new("a.toml"), "clients = 'all-users'\ncores = 1\nmemory = 5", schema);
        settings.settings.extend(of_file.unwrap());
        let variables = [("SUBLET_CORES", "2"), ("SUBLET_MEMORY", "")];
        settings.add_environment(|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, text)| (*text).to_owned())
        });
        let text = |settings: &EffectiveSettings, name| {
            settings.needed(name, |text| Ok::<_, String>(text.to_owned())).unwrap()
        };
        assert_eq!(["clients", "cores", "memory"].map(|name| text(&settings, name)), ["all-users", "2", "5"]);
        settings.put(schema.key("cores").unwrap(), "3".into(), ValueSource::Flag("cores"));
        assert_eq!(text(&settings, "cores"), "3");
    }

    #[test]
    fn stronger_of_two_alternatives_wins_and_equals_conflict() {
        let schema = &agent::SCHEMA;
        let mut settings = EffectiveSettings { schema, settings: BTreeMap::new(), replaced: Vec::new() };
        assert_eq!(settings.stronger("token_file", "token").unwrap(), "token_file");
        let put = |settings: &mut EffectiveSettings, name, source| {
            settings.put(schema.key(name).unwrap(), "x".into(), source);
        };
        put(&mut settings, "token", ValueSource::Environment("SUBLET_TOKEN"));
        put(&mut settings, "token_file", ValueSource::File { path: "a.toml".into(), line: 7 });
        assert_eq!(settings.stronger("token_file", "token").unwrap(), "token");
        put(&mut settings, "token_file", ValueSource::Environment("SUBLET_TOKEN_FILE"));
        let error = settings.stronger("token_file", "token").unwrap_err().message;
        assert!(error.contains("SUBLET_TOKEN_FILE") && error.contains("SUBLET_TOKEN is also set"), "{error}");
    }
}
