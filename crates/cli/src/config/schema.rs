//! The keys of a program's configuration, and the sources of their values.

use std::fmt;
use std::path::{Path, PathBuf};

/// Key of the log filter, for both programs.
pub(super) const LOG: ConfigKey = ConfigKey {
    name: "log",
    kind: ValueKind::Text,
    environment: "SUBLET_LOG",
    flag: "log",
    value: "LEVEL",
    help: "Log level for standard error: off, error, warn, info, debug, trace, or TARGET=LEVEL, separated by commas",
    otherwise: Otherwise::Is("info"),
    shown: Visibility::Openly,
};

/// All keys of a program.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Default path of the configuration file, which need not exist.
    pub(crate) file: &'static str,
    pub(crate) keys: &'static [ConfigKey],
}

/// A key of the configuration.
#[derive(Debug)]
pub(crate) struct ConfigKey {
    /// Name in the file, with its tables: `tls.key`. A `*` stands for any one name.
    pub(crate) name: &'static str,
    pub(crate) kind: ValueKind,
    /// Name of the environment variable; empty if there is none.
    pub(crate) environment: &'static str,
    /// Name of the flag without its dashes; empty if there is none.
    pub(crate) flag: &'static str,
    /// Placeholder for the value in the help.
    pub(crate) value: &'static str,
    /// Meaning of the key, in one line.
    pub(crate) help: &'static str,
    pub(crate) otherwise: Otherwise,
    pub(crate) shown: Visibility,
}

/// Type of a value in the file. Elsewhere every value is text, and commas separate the values of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Text,
    Whole,
    /// A whole number, or text with a unit.
    Size,
    /// A number with a decimal point, or a whole one.
    Fraction,
    List,
    /// `true` or `false`.
    Switch,
}

impl ValueKind {
    /// Describes the allowed values, for errors.
    pub(super) fn allowed(self) -> &'static str {
        match self {
            ValueKind::Text => "text in quotation marks",
            ValueKind::Whole => "a whole number, 0 or more",
            ValueKind::Size => "a whole number of bytes, or text as \"4GiB\"",
            ValueKind::Fraction => "a number, as 0.7",
            ValueKind::List => "a list of texts, as [\"one\", \"two\"]",
            ValueKind::Switch => "true or false",
        }
    }
}

/// Behaviour of a key that is not set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Otherwise {
    Is(&'static str),
    Found(fn() -> String),
    /// Meaning of an absent value.
    Means(&'static str),
}

/// Part of a value that `--print-config` may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Openly,
    Never,
    /// URL without user and password.
    WithoutUser,
}

/// Source of a value. Later variants override earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    Default,
    File { path: PathBuf, line: usize },
    Environment(&'static str),
    Flag(&'static str),
}

impl ValueSource {
    /// Order of the sources: a higher one overrides a lower one.
    pub(super) fn rank(&self) -> u8 {
        match self {
            ValueSource::Default => 0,
            ValueSource::File { .. } => 1,
            ValueSource::Environment(_) => 2,
            ValueSource::Flag(_) => 3,
        }
    }
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSource::Default => f.write_str("default"),
            ValueSource::File { path, line } => write!(f, "{}:{line}", path.display()),
            ValueSource::Environment(variable) => f.write_str(variable),
            ValueSource::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// An effective value.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) text: String,
    pub(super) source: ValueSource,
}

impl Schema {
    /// The default file, if it exists.
    pub(super) fn existing_file(&self) -> Option<PathBuf> {
        let path = Path::new(self.file);
        path.exists().then(|| path.to_owned())
    }

    /// The key of this name.
    pub(super) fn key(&self, name: &str) -> Option<&'static ConfigKey> {
        self.keys.iter().find(|key| key.is_named(name))
    }

    /// Lists all names, for errors.
    pub(super) fn names(&self) -> String {
        self.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }
}

impl ConfigKey {
    /// Tells whether the key has this name, or stands for it.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let (mut own, mut given) = (self.name.split('.'), name.split('.'));
        loop {
            match (own.next(), given.next()) {
                (None, None) => return true,
                (Some(own), Some(given)) if own == given || (own == "*" && !given.is_empty()) => {}
                _ => return false,
            }
        }
    }

    /// Returns whether the key stands for many names.
    pub(super) fn is_pattern(&self) -> bool {
        self.name.contains('*')
    }

    /// Describes how the key can be set.
    pub(super) fn places(&self) -> String {
        match (self.flag, self.environment) {
            ("", "") => self.name.to_owned(),
            ("", environment) => format!("{} ({environment})", self.name),
            (flag, _) => format!("{} (--{flag})", self.name),
        }
    }
}

impl Visibility {
    /// The part of a value that may be shown.
    pub(super) fn show(self, text: &str) -> String {
        match self {
            Visibility::Openly => text.to_owned(),
            Visibility::Never => "(hidden)".to_owned(),
            Visibility::WithoutUser => text.split(',').map(without_user).collect::<Vec<_>>().join(","),
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
