//! Parses the challenges of a registry in `WWW-Authenticate`.

/// A way to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A name and a password.
    Basic,
    /// A token, which another server issues.
    Bearer {
        /// Address of that server.
        realm: String,
        /// Service for which the token is.
        service: Option<String>,
        /// Access for which the token is.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Parses one challenge of one header; `None` if it is of an unknown kind or invalid.
    pub(super) fn parse(header: &str) -> Option<Challenge> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (name, value) in parameters(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Challenge::Bearer { realm: realm?, service, scope })
    }
}

/// Splits `name="value", name=value`. Commas may stand within quotes.
fn parameters(mut text: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
                (value.trim().to_owned(), rest)
            }
        };
        found.push((name.trim_matches([' ', ',', '\t']), value));
        text = rest;
    }
    found
}

/// Returns the text up to the closing quote, and the rest.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (value, &text[index + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            character => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_registries_say_is_understood() {
        let docker = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let bearer = Challenge::Bearer {
            realm: "https://auth.docker.io/token".into(),
            service: Some("registry.docker.io".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(Challenge::parse(docker), Some(bearer));
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("basic"), Some(Challenge::Basic));
        let bare = Challenge::Bearer { realm: "http://a".into(), service: None, scope: None };
        assert_eq!(Challenge::parse("bearer Realm=http://a , x=y"), Some(bare));
    }

    #[test]
    fn what_makes_no_sense_is_no_challenge() {
        for text in [
            "",
            "Bearer",
            "Bearer realm",
            "Digest realm=\"x\"",
            "Bearer service=\"x\"",
            "Bearer =\"",
            "Bearer \"=\"",
        ] {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
        let open = Challenge::Bearer { realm: "x\"y".into(), service: None, scope: None };
        assert_eq!(Challenge::parse(r#"Bearer realm="x\"y"#), Some(open));
    }
}
