//! Converts a schema to flags of the command line.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::schema::{ConfigKey, Otherwise, Schema, ValueKind};

/// A program that has a configuration.
pub(crate) trait ConfiguredProgram {
    /// Keys of the program.
    const SCHEMA: &'static Schema;
}

/// Flags of a program's configuration.
pub(crate) struct ConfigFlags<P> {
    pub(super) config: Option<PathBuf>,
    pub(super) given: Vec<(&'static ConfigKey, String)>,
    program: PhantomData<P>,
}

impl<P> fmt::Debug for ConfigFlags<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigFlags").field("config", &self.config).field("given", &self.given).finish()
    }
}

impl<P: ConfiguredProgram> Args for ConfigFlags<P> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!("Configuration file [default: {}, if it exists]", P::SCHEMA.file));
        command.arg(config).args(with_flag(P::SCHEMA).map(|key| argument(key).help_heading("Configuration")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: ConfiguredProgram> FromArgMatches for ConfigFlags<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ConfigFlags<P>, clap::Error> {
        let given = with_flag(P::SCHEMA).filter_map(|key| {
            let values: Vec<&str> = matches.get_many::<String>(key.name)?.map(String::as_str).collect();
            Some((key, values.join(",")))
        });
        let config = matches.get_one::<PathBuf>("config").cloned();
        Ok(ConfigFlags { given: given.collect(), config, program: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn with_flag(schema: &'static Schema) -> impl Iterator<Item = &'static ConfigKey> {
    schema.keys.iter().filter(|key| !key.flag.is_empty())
}

fn argument(key: &'static ConfigKey) -> Arg {
    debug_assert!(!key.flag.is_empty(), "{} has no flag", key.name);
    let otherwise = match key.otherwise {
        Otherwise::Is(text) => format!(" [default: {text}]"),
        Otherwise::Means(text) => format!(" [default: {text}]"),
        Otherwise::Found(_) => String::new(),
    };
    let environment = match key.environment {
        "" => String::new(),
        variable => format!(" [env: {variable}]"),
    };
    let action = if key.kind == ValueKind::List { ArgAction::Append } else { ArgAction::Set };
    let help = format!("{}{otherwise}{environment}", key.help);
    let flag = Arg::new(key.name).long(key.flag).value_name(key.value).action(action).help(help);
    match key.kind {
        // The flag without a value means true.
        ValueKind::Switch => flag.num_args(0..=1).default_missing_value("true"),
        _ => flag,
    }
}
