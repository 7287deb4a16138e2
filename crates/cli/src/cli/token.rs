//! `sublet token`: creates, lists and revokes access tokens.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use sublet_proto::v1::{CreateTokenRequest, Role, Token};
use sublet_proto::{Code, Error};

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::{as_ms, duration, show_bytes, size};
use super::time::{now_ms, show_moment};

const EXAMPLES: &str = "\
Examples:
  sublet token create --tenant alice --lifetime 30d > alice.token
  sublet token create --role agent --node n1 --max-cores 64 --max-memory 256GiB > n1.token
  sublet token create --role operator --note 'the night shift'
  sublet token list
  sublet token revoke ID

A user leases, deploys and sees the bills of one tenant; an operator may do everything; an agent lends one node. On the
manager's Unix socket, the manager's user and root are operators without a token: create the first token there. A token
is shown only once, at its creation. A revoked token stops working within a second, at every manager.";

/// Create, list and revoke access tokens
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Box<Create>),
    List(List),
    Revoke(Revoke),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    User,
    Operator,
    Agent,
}

/// Create a token and print it, only this once
#[derive(Debug, Args)]
struct Create {
    /// Tenant of a user's token
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Role of the token
    #[arg(long, value_enum, default_value_t = RoleName::User)]
    role: RoleName,

    /// Node that an agent may lend
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// Maximum number of cores that an agent may lend, including shared ones [default: any number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_cores: Option<u32>,

    /// Maximum memory that an agent may lend [default: any amount]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_memory: Option<u64>,

    /// Lifetime [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lifetime: Option<Duration>,

    /// Note on the purpose of the token
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    note: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Show the tokens, without their secrets
#[derive(Debug, Args)]
struct List {
    /// Show also revoked tokens
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Revoke a token
#[derive(Debug, Args)]
struct Revoke {
    /// Identifier: the digits after `sublet_`
    id: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A token without its secret.
#[derive(Debug, Serialize)]
struct TokenView {
    id: String,
    role: &'static str,
    tenant: String,
    node: String,
    /// Maximum number of cores; absent: no limit.
    max_cores: Option<u32>,
    max_memory_bytes: Option<u64>,
    created_unix_ms: u64,
    /// Time of expiry; absent: never.
    expires_unix_ms: Option<u64>,
    revoked_unix_ms: Option<u64>,
    note: String,
}

impl From<Token> for TokenView {
    fn from(token: Token) -> TokenView {
        TokenView {
            role: match token.role() {
                Role::Unspecified => "unknown",
                Role::User => "user",
                Role::Operator => "operator",
                Role::Agent => "agent",
            },
            id: token.id,
            tenant: token.tenant,
            node: token.node,
            max_cores: Some(token.max_cores).filter(|&cores| cores > 0),
            max_memory_bytes: Some(token.max_memory_bytes).filter(|&bytes| bytes > 0),
            created_unix_ms: token.created_unix_ms,
            expires_unix_ms: Some(token.expires_unix_ms).filter(|&ms| ms > 0),
            revoked_unix_ms: Some(token.revoked_unix_ms).filter(|&ms| ms > 0),
            note: token.note,
        }
    }
}

/// Output of `create`.
#[derive(Debug, Serialize)]
struct CreatedToken {
    secret: String,
    #[serde(flatten)]
    token: TokenView,
}

/// Output of `list`.
#[derive(Debug, Serialize)]
struct TokensOutput {
    tokens: Vec<TokenView>,
}

impl Create {
    fn request(&self) -> Result<CreateTokenRequest, Error> {
        let refuse = |message: &str| Err(Error::new(Code::InvalidArgument, message));
        let is_bounded = self.node.is_some() || self.max_cores.is_some() || self.max_memory.is_some();
        match self.role {
            RoleName::User if self.tenant.is_none() => {
                return refuse("a token with --role user needs --tenant");
            }
            RoleName::Agent if self.node.is_none() => {
                return refuse("a token with --role agent needs --node");
            }
            RoleName::User | RoleName::Operator if is_bounded => {
                return refuse("--node, --max-cores and --max-memory are for --role agent");
            }
            RoleName::Operator | RoleName::Agent if self.tenant.is_some() => {
                return refuse("--tenant is for --role user");
            }
            _ => {}
        }
        debug_assert!(
            self.tenant.is_none() || self.node.is_none(),
            "a token is for the tenant {:?} or the node {:?}",
            self.tenant,
            self.node
        );
        let role = match self.role {
            RoleName::User => Role::User,
            RoleName::Operator => Role::Operator,
            RoleName::Agent => Role::Agent,
        };
        Ok(CreateTokenRequest {
            tenant: self.tenant.clone().unwrap_or_default(),
            role: role.into(),
            lifetime_ms: self.lifetime.map_or(0, as_ms),
            note: self.note.clone(),
            node: self.node.clone().unwrap_or_default(),
            max_cores: self.max_cores.unwrap_or(0),
            max_memory_bytes: self.max_memory.unwrap_or(0),
        })
    }
}

/// Creates, lists or revokes tokens.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.action {
        Action::Create(create) => run_create(create, output),
        Action::List(list) => {
            let tokens = list.connection.open()?.list_tokens(list.all)?;
            let tokens = TokensOutput { tokens: tokens.into_iter().map(TokenView::from).collect() };
            output.show(&tokens, |shown| text(&shown.tokens))
        }
        Action::Revoke(revoke) => {
            let token = revoke.connection.open()?.revoke_token(id_of(&revoke.id))?;
            output.show(&TokenView::from(token), |token| format!("token {} is revoked\n", token.id))
        }
    }
}

fn run_create(create: &Create, output: &CommandOutput) -> Result<(), Error> {
    let request = create.request()?;
    let reply = create.connection.open()?.create_token(request)?;
    let token = reply.token.ok_or_else(|| Error::new(Code::Protocol, "the manager names no token"))?;
    let created = CreatedToken { secret: reply.secret, token: token.into() };
    // Only the secret, so that the output can be redirected to a file.
    output.show(&created, |created| format!("{}\n", created.secret))
}

/// Extracts the id from a whole token, or returns the id itself.
fn id_of(text: &str) -> &str {
    let id = text.trim().strip_prefix("sublet_").unwrap_or(text.trim());
    id.split('_').next().unwrap_or(id)
}

fn text(tokens: &[TokenView]) -> String {
    let now_ms = now_ms();
    let rows: Vec<_> = tokens.iter().map(|token| row(token, now_ms)).collect();
    table(&["ID", "ROLE", "FOR", "AT MOST", "CREATED", "ENDS", "NOTE"], &rows)
}

fn row(token: &TokenView, now_ms: u64) -> Vec<String> {
    let cores = token.max_cores.map(|cores| format!("{cores} cores"));
    let memory = token.max_memory_bytes.map(show_bytes);
    let at_most: Vec<_> = cores.into_iter().chain(memory).collect();
    let ends = match (token.revoked_unix_ms, token.expires_unix_ms) {
        (Some(at_ms), _) => format!("revoked {}", show_moment(at_ms)),
        (None, Some(at_ms)) if at_ms <= now_ms => format!("expired {}", show_moment(at_ms)),
        (None, Some(at_ms)) => show_moment(at_ms),
        (None, None) => "never".to_owned(),
    };
    vec![
        token.id.clone(),
        token.role.to_owned(),
        if token.node.is_empty() { token.tenant.clone() } else { token.node.clone() },
        at_most.join(", "),
        show_moment(token.created_unix_ms),
        ends,
        token.note.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_extracted_from_whole_tokens() {
        for text in ["0123456789abcdef", "sublet_0123456789abcdef", "sublet_0123456789abcdef_c2VjcmV0\n"] {
            assert_eq!(id_of(text), "0123456789abcdef");
        }
    }
}
