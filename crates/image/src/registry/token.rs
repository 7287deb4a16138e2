//! Makes the header that authenticates to a registry, with tokens from another server where necessary.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use ureq::http::{StatusCode, header};

use super::{Challenge, Registry};
use crate::credentials::Credentials;
use crate::error::ImageError;

const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Answer of a token server. Servers use either name for the token.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// Creates the header's value for one of these challenges; `None` if none can be met.
    pub(super) fn authorize(&self, challenges: &[Challenge]) -> Result<Option<String>, ImageError> {
        if let Credentials::Token(token) = &self.credentials {
            return Ok(Some(format!("Bearer {token}")));
        }
        let bearer = challenges.iter().find_map(|challenge| match challenge {
            Challenge::Bearer { realm, service, scope } => Some((realm, service, scope)),
            Challenge::Basic => None,
        });
        match bearer {
            Some((realm, service, scope)) => {
                self.token(realm, service.as_deref(), scope.as_deref()).map(Some)
            }
            None if challenges.contains(&Challenge::Basic) => Ok(self.basic()),
            None => Err(self.nonsense("it asks for credentials of a kind that is not known here")),
        }
    }

    fn token(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<String, ImageError> {
        // Plain HTTP is used only if the registry itself is accessed that way.
        if !(realm.starts_with("https://") || (self.is_plain && realm.starts_with("http://"))) {
            return Err(self.nonsense("it sends credentials to where they are not safe"));
        }
        let own_scope = format!("repository:{}:pull", self.repository);
        let mut request = self.agent.get(realm).query("scope", scope.unwrap_or(&own_scope));
        if let Some(service) = service {
            request = request.query("service", service);
        }
        if let Some(basic) = self.basic() {
            request = request.header(header::AUTHORIZATION, basic);
        }
        let sent = request.config().timeout_recv_body(Some(super::ANSWER_TIME)).build().call();
        let mut response = sent.map_err(|error| self.unreachable(error))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                let registry = self.registry.clone();
                return Err(ImageError::Refused { registry, status: StatusCode::UNAUTHORIZED.as_u16() });
            }
            _ => return self.checked("token", response).map(|_| String::new()),
        }
        let answer: TokenAnswer = serde_json::from_slice(&self.short(&mut response)?)
            .map_err(|_| self.nonsense("the answer for a token is not JSON"))?;
        let token = answer.token.or(answer.access_token).filter(|token| is_token(token));
        token
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| self.nonsense("there is no token in the answer"))
    }

    fn basic(&self) -> Option<String> {
        match &self.credentials {
            Credentials::Basic { user, password } => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
            _ => None,
        }
    }
}

/// Whether a token can stand in a header.
fn is_token(token: &str) -> bool {
    !token.is_empty() && token.len() <= MAX_TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic())
}
