//! Parses a configuration file: TOML in which every key must be known and have the right type.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sublet_proto::{Code, Error};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema::{Schema, Setting, ValueKind, ValueSource};

/// Largest configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the settings of a file.
pub(super) fn read(path: &Path, schema: &'static Schema) -> Result<Vec<(String, Setting)>, Error> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| {
        Error::of_system(format_args!("reading the configuration {}", path.display()), &error)
    })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let message =
            format!("{}: a configuration file must have at most {MAX_FILE_BYTES} bytes", path.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    parse(path, &text, schema)
}

pub(super) fn parse(
    path: &Path,
    text: &str,
    schema: &'static Schema,
) -> Result<Vec<(String, Setting)>, Error> {
    let mut reader = ConfigReader { path, text, schema, settings: Vec::new() };
    let document = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        reader.invalid(start, error.message())
    })?;
    reader.table("", document.get_ref())?;
    Ok(reader.settings)
}

struct ConfigReader<'file> {
    path: &'file Path,
    text: &'file str,
    schema: &'static Schema,
    settings: Vec<(String, Setting)>,
}

impl ConfigReader<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) -> Result<(), Error> {
        for (key, value) in table.iter() {
            let name = format!("{prefix}{}", key.get_ref());
            match (self.schema.key(&name), value.get_ref()) {
                // A quoted key with a dot would look like a key in a table.
                _ if key.get_ref().contains('.') => return Err(self.unknown(&name, key.span().start)),
                (Some(known), _) => {
                    let text = self.text_of(&name, known.kind, value)?;
                    let source =
                        ValueSource::File { path: self.path.to_owned(), line: self.line(key.span().start) };
                    self.settings.push((name, Setting { text, source }));
                }
                (None, DeValue::Table(inner)) if self.is_table(&name) => {
                    self.table(&format!("{name}."), inner)?;
                }
                (None, _) => return Err(self.unknown(&name, key.span().start)),
            }
        }
        Ok(())
    }

    /// Returns whether a table of this name can have keys.
    fn is_table(&self, name: &str) -> bool {
        let depth = name.split('.').count();
        self.schema.keys.iter().any(|key| {
            let (mut own, given) = (key.name.split('.'), name.split('.'));
            key.name.split('.').count() > depth
                && given.zip(&mut own).all(|(given, own)| own == given || own == "*")
        })
    }

    fn text_of(&self, name: &str, kind: ValueKind, value: &Spanned<DeValue<'_>>) -> Result<String, Error> {
        let wrong = |value: &Spanned<DeValue<'_>>| {
            let why = format!("{name}: found {}, expected {}", value.get_ref().type_str(), kind.allowed());
            self.invalid(value.span().start, &why)
        };
        match (kind, value.get_ref()) {
            (ValueKind::Text | ValueKind::Size, DeValue::String(text)) => Ok(text.to_string()),
            (ValueKind::Switch, DeValue::Boolean(value)) => Ok(value.to_string()),
            (ValueKind::Whole | ValueKind::Size, DeValue::Integer(number)) => {
                let number = u64::from_str_radix(number.as_str(), number.radix());
                number.map(|number| number.to_string()).map_err(|_| wrong(value))
            }
            (ValueKind::Fraction, DeValue::Float(number)) => Ok(number.as_str().to_owned()),
            (ValueKind::Fraction, DeValue::Integer(number)) => Ok(number.as_str().to_owned()),
            // A single value may replace a list, and a list of one value a single value: the same key may be a list for one
            // program and not for the other.
            (ValueKind::List, DeValue::String(text)) => Ok(text.to_string()),
            (ValueKind::Text, DeValue::Array(items)) if items.len() == 1 => {
                self.text_of(name, kind, &items[0])
            }
            (ValueKind::List, DeValue::Array(items)) => {
                let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                    DeValue::String(text) if !text.contains(',') => Ok(text.to_string()),
                    _ => Err(wrong(item)),
                };
                items.iter().map(text).collect::<Result<Vec<_>, _>>().map(|items| items.join(","))
            }
            _ => Err(wrong(value)),
        }
    }

    fn unknown(&self, name: &str, at: usize) -> Error {
        self.invalid(at, &format!("unknown key {name}; the keys are: {}", self.schema.names()))
    }

    fn invalid(&self, at: usize, why: &str) -> Error {
        let (path, line) = (self.path.display(), self.line(at));
        Error::new(Code::InvalidArgument, format!("{path}:{line}: {}", why.trim().replace('\n', "; ")))
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{agent, manager};

    fn settings(text: &str) -> Result<Vec<(String, String)>, String> {
        let settings = parse(Path::new("m.toml"), text, &manager::SCHEMA).map_err(|error| error.message)?;
        Ok(settings.into_iter().map(|(name, setting)| (name, setting.text)).collect())
    }

    #[test]
    fn tables_are_equivalent_to_dotted_names() {
        let text = "listen = ['a:1', 'b:2']\n[tls]\nkey = 'k'\n[price.pu.gpu]\ncompute = 1_000\n";
        let expected = [("listen", "a:1,b:2"), ("price.pu.gpu.compute", "1000"), ("tls.key", "k")];
        assert_eq!(settings(text).unwrap(), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(settings("").unwrap(), []);
    }

    #[test]
    fn accepts_single_value_as_text_or_list() {
        let of = |schema, text: &str| {
            let settings = parse(Path::new("a.toml"), text, schema).map_err(|error| error.message).unwrap();
            settings.into_iter().map(|(_, setting)| setting.text).collect::<Vec<_>>()
        };
        for text in ["listen = '0.0.0.0:1'", "listen = ['0.0.0.0:1']"] {
            assert_eq!(of(&manager::SCHEMA, text), ["0.0.0.0:1"], "{text}");
            assert_eq!(of(&agent::SCHEMA, text), ["0.0.0.0:1"], "{text}");
        }
        assert_eq!(of(&agent::SCHEMA, "managers = 'https://a:1,https://b:1'"), ["https://a:1,https://b:1"]);
    }

    #[test]
    fn errors_name_file_line_key_and_allowed_values() {
        for (text, named) in [
            ("\nlistn = 1", &["m.toml:2: unknown key listn", "listen"][..]),
            ("[tls]\n\nkeys = 'k'", &["m.toml:3: unknown key tls.keys", "tls.key"]),
            ("tls = 1", &["m.toml:1: unknown key tls;"]),
            ("'tls.key' = 'k'", &["m.toml:1: unknown key tls.key"]),
            ("listen = 1", &["m.toml:1: listen: found integer", "a list of texts"]),
            ("state = ['a', 'b']", &["m.toml:1: state: found array", "text in quotation marks"]),
            ("listen = [\n'a:1',\n2]", &["m.toml:3: listen: found integer", "a list of texts"]),
            ("state = 1", &["m.toml:1: state: found integer", "text in quotation marks"]),
            ("price.compute = -1", &["m.toml:1: price.compute: found integer", "0 or more"]),
            ("[price.pu.gpu]\ncost = 1", &["m.toml:2: unknown key price.pu.gpu.cost", "price.pu.*.compute"]),
            ("state = 'a'\nstate = 'b'", &["m.toml:2: duplicate key"]),
            ("state = ", &["m.toml:1: "]),
        ] {
            let error = settings(text).unwrap_err();
            assert!(named.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
    }

    #[test]
    fn parser_survives_any_bytes() {
        for text in
            ["\u{0}", "[", "[[listen]]", "a.b.c.d = 1", "= 1", "x", "listen = [[]]", "[price.pu]\nx = 1"]
        {
            assert!(settings(text).is_err(), "{text:?}");
        }
        assert!(parse(Path::new("a.toml"), "memory = 1\ncores = 2\nencrypt = true", &agent::SCHEMA).is_ok());
        let error = parse(Path::new("a.toml"), "encrypt = 'yes'", &agent::SCHEMA).err().unwrap();
        assert!(error.message.contains("encrypt: found string, expected true or false"), "{error}");
    }
}
