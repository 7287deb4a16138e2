//! The parts of `sublet.toml` that say what functions need beside cores and memory: `[environment]`, `secrets`,
//! `folders`, `temporary_bytes`, `isolation` and `[devices]`.

use std::collections::BTreeMap;

use crate::needs::parse_secret_use;
use crate::v1::{DeviceCount, Needs, SecretUse, Variable};

/// Reads the needs of a manifest. An error says what is wrong with the manifest.
pub(super) fn read(
    environment: Option<toml::Table>,
    secrets: Option<toml::Value>,
    folders: Vec<String>,
    temporary_bytes: Option<u64>,
    isolation: Option<String>,
    devices: BTreeMap<String, u32>,
) -> Result<Needs, String> {
    let needs = Needs {
        variables: environment.into_iter().flatten().map(variable).collect::<Result<_, _>>()?,
        secrets: secrets.map(secret_uses).transpose()?.unwrap_or_default(),
        folders,
        temporary_bytes: temporary_bytes.unwrap_or_default(),
        isolation: isolation.unwrap_or_default(),
        devices: devices.into_iter().map(|(kind, count)| DeviceCount { kind, count }).collect(),
    };
    needs.check().map_err(|error| format!("is not valid: {}", error.message))?;
    Ok(needs)
}

fn variable((name, value): (String, toml::Value)) -> Result<Variable, String> {
    match value {
        toml::Value::String(value) => Ok(Variable { name, value }),
        _ => Err(format!(
            "sets the environment variable {name} to something else than text in quotation marks"
        )),
    }
}

/// A list of names, or a table of variables and names.
fn secret_uses(secrets: toml::Value) -> Result<Vec<SecretUse>, String> {
    let other = || {
        "has secrets that are neither a list of names nor a table of variables and names of secrets"
            .to_owned()
    };
    let text = |value: toml::Value| match value {
        toml::Value::String(text) => Ok(text),
        _ => Err(other()),
    };
    match secrets {
        toml::Value::Array(names) => {
            names.into_iter().map(|name| text(name).map(|name| parse_secret_use(&name))).collect()
        }
        toml::Value::Table(uses) => {
            let one = |(variable, secret)| text(secret).map(|secret| SecretUse { variable, secret });
            uses.into_iter().map(one).collect()
        }
        _ => Err(other()),
    }
}

#[cfg(test)]
mod tests {
    use crate::package::Manifest;

    const HEAD: &str = "name = 'p'\nlibrary = 'p.so'\n";

    fn message(text: &str) -> String {
        Manifest::parse(&format!("{HEAD}{text}")).unwrap_err().message
    }

    #[test]
    fn manifest_names_variables_secrets_folders_and_space() {
        let text = format!(
            "{HEAD}secrets = ['KEY']\nfolders = ['data']\ntemporary_bytes = 1048576\n[environment]\nLEVEL = '3'"
        );
        let needs = Manifest::parse(&text).unwrap().needs;
        assert_eq!((needs.variables[0].name.as_str(), needs.variables[0].value.as_str()), ("LEVEL", "3"));
        assert_eq!((needs.secrets[0].variable.as_str(), needs.secrets[0].secret.as_str()), ("KEY", "KEY"));
        assert_eq!((needs.folders, needs.temporary_bytes), (vec!["data".to_owned()], 1 << 20));
        let text = format!("{HEAD}[secrets]\nDB_KEY = 'db-key'");
        let needs = Manifest::parse(&text).unwrap().needs;
        assert_eq!(
            (needs.secrets[0].variable.as_str(), needs.secrets[0].secret.as_str()),
            ("DB_KEY", "db-key")
        );
        assert!(Manifest::parse(HEAD).unwrap().needs.is_empty());
    }

    #[test]
    fn manifest_names_devices() {
        let needs = Manifest::parse(&format!("{HEAD}[devices]\ncuda = 2\nfpga = 1")).unwrap().needs;
        let devices: Vec<_> = needs.devices.iter().map(|one| (one.kind.as_str(), one.count)).collect();
        assert_eq!(devices, [("cuda", 2), ("fpga", 1)]);
        assert!(message("[devices]\ncuda = 0").contains("0 devices of the kind cuda"));
        assert!(message("[devices]\n'../x' = 1").contains("../x"));
        assert!(message("image = 'a/b'\n[devices]\ncuda = 1").contains("devices"));
        let other =
            "name = 'p'\nlibrary = 'p.js'\nkind = 'nodejs'\n[[function]]\nname = 'f'\n[devices]\ncuda = 1";
        assert!(Manifest::parse(other).unwrap_err().message.contains("the kind nodejs"));
    }

    #[test]
    fn manifest_with_invalid_needs_is_refused_by_name() {
        assert!(message("[environment]\nPORT = 8080").contains("PORT"));
        assert!(message("[environment]\nLD_PRELOAD = 'x'").contains("LD_PRELOAD"));
        assert!(message("secrets = ['db-key']").contains("db-key"));
        assert!(message("secrets = 'KEY'").contains("neither a list"));
        assert!(message("secrets = [1]").contains("neither a list"));
        assert!(message("folders = ['../etc']").contains("../etc"));
        assert!(message("temporary_bytes = 1").contains("temporary space"));
        assert!(message("isolation = 'vm'").contains("\"vm\" is not an isolation"));
        assert!(message("isolation = 'runsc'").contains("no image"));
        assert!(message("isolation = 'process'\nimage = 'a/b'").contains("an image"));
        let isolated = Manifest::parse(&format!("{HEAD}isolation = 'process'")).unwrap();
        assert_eq!(isolated.needs.isolation, "process");
        assert!(message("secrets = ['A']\n[environment]\nA = 'x'").contains("A is set twice"));
        let kernels =
            "name = 'p'\nlibrary = 'p.cl'\nkind = 'opencl'\n[[function]]\nname = 'f'\n[environment]\nA = ''";
        assert!(Manifest::parse(kernels).unwrap_err().message.contains("opencl"));
    }
}
