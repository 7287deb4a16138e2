//! Credentials for registries.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::error::ImageError;
use crate::reference::Reference;

const MAX_FILE_BYTES: u64 = 1 << 20;
/// Names of Docker's registry in Docker's own files.
const DOCKERS_OWN: &[&str] =
    &["https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io"];

/// Proof of identity for a registry. Its `Debug` does not show the secrets.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// No credentials: the registry shows only what is public.
    #[default]
    Anonymous,
    /// A name and a password; a registry may exchange them for a token.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token, as the registry takes it.
    Token(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Anonymous => f.write_str("Anonymous"),
            Credentials::Basic { user, .. } => write!(f, "Basic {{ user: {user:?}, .. }}"),
            Credentials::Token(_) => f.write_str("Token(..)"),
        }
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
struct Login {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    registrytoken: Option<String>,
}

impl Credentials {
    /// Reads the credentials that `docker login` has stored for an image's registry in `$DOCKER_CONFIG/config.json` or
    /// `~/.docker/config.json`; anonymous if there are none. Docker's credential helpers are not asked.
    pub fn of_docker(reference: &Reference) -> Result<Credentials, ImageError> {
        match default_file() {
            Some(file) => Credentials::from_file(&file, reference),
            None => Ok(Credentials::Anonymous),
        }
    }

    /// Reads credentials from a file in Docker's format; a missing file has none.
    pub fn from_file(path: &Path, reference: &Reference) -> Result<Credentials, ImageError> {
        let wrong = |problem| ImageError::CredentialsFile { path: path.to_owned(), problem };
        let bytes = match fs::metadata(path).and_then(|found| Ok((found.len(), fs::read(path)?))) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Credentials::Anonymous),
            Err(error) => return Err(ImageError::system("reading", path, error)),
            Ok((size, _)) if size > MAX_FILE_BYTES => return Err(wrong("it is larger than 1 MiB")),
            Ok((_, bytes)) => bytes,
        };
        // The library's error text could show a part of a secret.
        let file: File =
            serde_json::from_slice(&bytes).map_err(|_| wrong("it is not JSON as Docker writes it"))?;
        let login = file.auths.into_iter().find(|(name, _)| is_of(name, reference));
        login.map_or(Ok(Credentials::Anonymous), |(_, login)| login.credentials().map_err(wrong))
    }
}

impl Login {
    fn credentials(self) -> Result<Credentials, &'static str> {
        if let Some(token) = self.registrytoken.filter(|token| !token.is_empty()) {
            return Ok(Credentials::Token(token));
        }
        if let (Some(user), Some(password)) = (self.username, self.password) {
            return Ok(Credentials::Basic { user, password });
        }
        let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) else { return Ok(Credentials::Anonymous) };
        let pair = STANDARD.decode(auth.trim()).ok().and_then(|pair| String::from_utf8(pair).ok());
        let pair = pair.ok_or("an \"auth\" in it is not base64 of text")?;
        let (user, password) = pair.split_once(':').ok_or("an \"auth\" in it has no colon")?;
        Ok(Credentials::Basic { user: user.to_owned(), password: password.to_owned() })
    }
}

/// Whether a name in Docker's file is that of an image's registry.
fn is_of(name: &str, reference: &Reference) -> bool {
    let bare = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    bare.split('/').next() == Some(&reference.registry)
        || (reference.registry == DOCKERS_OWN[2] && DOCKERS_OWN.contains(&name))
}

fn default_file() -> Option<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = given("DOCKER_CONFIG").or_else(|| Some(given("HOME")?.join(".docker")))?;
    Some(folder.join("config.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, image: &str) -> Result<Credentials, ImageError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, text).unwrap();
        Credentials::from_file(&path, &image.parse().unwrap())
    }

    fn basic() -> Credentials {
        Credentials::Basic { user: "me".into(), password: "se:cret".into() }
    }

    #[test]
    fn reads_the_registrys_credentials_from_dockers_file() {
        let auth = STANDARD.encode("me:se:cret");
        let text = format!(
            r#"{{"auths": {{"a.example:5000": {{"auth": "{auth}"}}, "https://index.docker.io/v1/": {{"auth": "{auth}"}},
            "b.example": {{"registrytoken": "t"}}, "c.example": {{}}}}, "credsStore": "x"}}"#
        );
        for image in ["a.example:5000/x", "debian"] {
            assert_eq!(read(&text, image).unwrap(), basic(), "{image}");
        }
        assert_eq!(read(&text, "b.example/x").unwrap(), Credentials::Token("t".into()));
        for image in ["a.example/x", "c.example/x", "d.example/x"] {
            assert_eq!(read(&text, image).unwrap(), Credentials::Anonymous, "{image}");
        }
    }

    #[test]
    fn secrets_are_shown_by_no_error_and_not_for_debugging() {
        for text in [
            "",
            "{",
            r#"{"auths": {"a.b": {"auth": "secret"}}}"#,
            r#"{"auths": {"a.b": {"auth": ["secret"]}}}"#,
        ] {
            let error = read(text, "a.b/x").unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(!format!("{:?} {:?}", basic(), Credentials::Token("se:cret".into())).contains("cret"));
    }

    #[test]
    fn without_a_file_one_is_anonymous() {
        let reference = "debian".parse().unwrap();
        let read = Credentials::from_file(Path::new("/nowhere/config.json"), &reference);
        assert_eq!(read.unwrap(), Credentials::Anonymous);
    }
}
