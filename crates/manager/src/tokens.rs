//! Access tokens: made, verified, revoked.
//!
//! A token is `sublet_<id>_<secret>`. The store has, under its id, its tenant and rights and the SHA-256 of its secret,
//! and nothing from which the token could be made again. A manager keeps the tokens of the store in memory and reads
//! them anew within a second of a change by any manager, so a request costs no access to the store, and a revocation
//! takes effect everywhere within that second. A token that is not in memory may be a new one: the manager looks it up
//! in the store. These look-ups are bounded in number and in rate, for any client can invent such tokens.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;
use sha2::{Digest, Sha256};
use sublet_fabric::sync::{read_lock, write_lock};
use sublet_proto::v1::{CreateTokenRequest, Role, Token};
use sublet_proto::{Code, Error, decode};
use tokio::sync::Semaphore;

use crate::chance;
use crate::database::Database;
use crate::names;
use crate::store::{Batch, Store, each_record, keys};

/// Most requests whose token is being looked up at the same time.
pub const MAX_UNVERIFIED: usize = 64;
/// Tokens that are looked up in a second because they are not in memory.
pub const MAX_LOOKUPS_PER_SECOND: u32 = 256;
/// Tokens of one store that are neither revoked nor expired.
pub const MAX_TOKENS: usize = 65_536;
/// Longest lifetime of a token, in milliseconds: a hundred years.
const MAX_LIFETIME_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
const MAX_NOTE_BYTES: usize = 256;

const PREFIX: &str = "sublet_";
const SECRET_BYTES: usize = 32;
/// Length of a secret in base64.
const SECRET_DIGITS: usize = 43;
const ID_DIGITS: usize = 16;
/// Written with each change of a token or tenant: its content is never read, only its version.
const REVISION: &str = "auth/revision";

/// A token's name, which is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TokenId(pub(crate) u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0ID_DIGITS$x}", self.0)
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<TokenId, Error> {
        let is_hex = text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(TokenId).ok_or_else(|| {
            Error::new(Code::InvalidArgument, format!("a token's id has {ID_DIGITS} hexadecimal digits"))
        })
    }
}

/// A token as a caller shows it: the hash of the secret, never the secret.
#[derive(Clone, Debug)]
pub(crate) struct ShownToken {
    pub(crate) id: TokenId,
    hash: Hash,
}

type Hash = [u8; 32];

impl FromStr for ShownToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<ShownToken, Error> {
        let parts = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
        let (id, secret) = parts.ok_or_else(not_valid)?;
        if secret.len() != SECRET_DIGITS {
            return Err(not_valid());
        }
        Ok(ShownToken { id: id.parse().map_err(|_| not_valid())?, hash: Sha256::digest(secret).into() })
    }
}

/// Returns one message for every fault of a token: it tells an attacker nothing.
fn not_valid() -> Error {
    Error::new(Code::Unauthenticated, "the access token is not valid: unknown, expired or revoked")
}

/// A token's record in the store.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TokenRecord {
    #[prost(message, required, tag = "1")]
    pub(crate) token: Token,
    /// SHA-256 of the secret's text.
    #[prost(bytes = "vec", tag = "2")]
    secret_sha256: Vec<u8>,
}

impl TokenRecord {
    fn is_valid(&self, now_ms: u64) -> bool {
        let Token { revoked_unix_ms, expires_unix_ms, .. } = self.token;
        revoked_unix_ms == 0 && (expires_unix_ms == 0 || expires_unix_ms > now_ms)
    }

    /// Checks that this is the shown token. Its running time does not depend on the hash.
    fn check(&self, shown: &ShownToken, now_ms: u64) -> Result<(), Error> {
        let differs =
            self.secret_sha256.iter().zip(shown.hash).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        let is_whole = self.secret_sha256.len() == shown.hash.len();
        if is_whole && differs == 0 && self.is_valid(now_ms) { Ok(()) } else { Err(not_valid()) }
    }
}

/// Result of the verification of a shown token.
pub(crate) enum TokenVerdict {
    /// The token is valid.
    Verified(Arc<TokenRecord>),
    /// The token is not in memory: see [`Tokens::look_up`].
    Unknown,
}

/// The tokens of a store.
pub(crate) struct Tokens {
    database: Database,
    known: RwLock<ValidTokens>,
    unverified: Semaphore,
    lookups_left: AtomicU32,
}

/// Valid tokens of a store, and the version of the revision at which they were read.
#[derive(Default)]
pub(crate) struct ValidTokens {
    records: HashMap<TokenId, Arc<TokenRecord>>,
    revision: u64,
}

impl ValidTokens {
    /// The revision is read first: a change while the tokens are read is read again with the next refresh.
    pub(crate) fn read(store: &dyn Store, now_ms: u64) -> Result<ValidTokens, Error> {
        let mut known = ValidTokens { revision: revision(store)?, ..ValidTokens::default() };
        each(store, |id, record| {
            if record.is_valid(now_ms) && known.records.len() < MAX_TOKENS {
                known.records.insert(id, Arc::new(record));
            }
        })?;
        Ok(known)
    }
}

impl Tokens {
    /// Creates the tokens of a store with the known ones.
    pub(crate) fn new(database: Database, known: ValidTokens) -> Tokens {
        Tokens {
            database,
            known: RwLock::new(known),
            unverified: Semaphore::new(MAX_UNVERIFIED),
            lookups_left: AtomicU32::new(MAX_LOOKUPS_PER_SECOND),
        }
    }

    /// Checks a shown token, as far as this manager knows it.
    ///
    /// # Errors
    /// `unauthenticated` if the token is not valid.
    pub(crate) fn verify(&self, shown: &ShownToken, now_ms: u64) -> Result<TokenVerdict, Error> {
        let known = read_lock(&self.known);
        match known.records.get(&shown.id) {
            Some(record) => record.check(shown, now_ms).map(|()| TokenVerdict::Verified(Arc::clone(record))),
            None => Ok(TokenVerdict::Unknown),
        }
    }

    /// Asks the store for a token that is not in memory.
    ///
    /// # Errors
    /// `unauthenticated` if it does not exist or is not valid, `try_later` if too many are looked up already, and the
    /// store's errors.
    pub(crate) async fn look_up(&self, shown: &ShownToken, now_ms: u64) -> Result<Arc<TokenRecord>, Error> {
        let _place = self.unverified.try_acquire().map_err(|_| {
            too_many(format!("{MAX_UNVERIFIED} requests wait already for their access token to be verified"))
        })?;
        let left =
            self.lookups_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| {
            too_many(format!("{MAX_LOOKUPS_PER_SECOND} unknown access tokens were shown in the last second"))
        })?;
        let id = shown.id;
        let record = self.database.with(move |store| read(store, id)).await?.ok_or_else(not_valid)?;
        record.check(shown, now_ms)?;
        let record = Arc::new(record);
        let mut known = write_lock(&self.known);
        if known.records.len() < MAX_TOKENS {
            known.records.insert(id, Arc::clone(&record));
        }
        Ok(record)
    }

    /// Tells whether leases that were taken with this token continue.
    pub(crate) fn is_valid(&self, id: TokenId, now_ms: u64) -> bool {
        let known = read_lock(&self.known);
        known.records.get(&id).is_some_and(|record| record.is_valid(now_ms))
    }

    /// Reads the tokens anew if any manager has changed one. Call it each second.
    ///
    /// # Errors
    /// Errors of the store: the tokens in memory then stay as they are.
    pub(crate) async fn refresh(&self, now_ms: u64) -> Result<(), Error> {
        self.lookups_left.store(MAX_LOOKUPS_PER_SECOND, Ordering::Relaxed);
        let last = read_lock(&self.known).revision;
        let read = self.database.with(move |store| {
            if revision(store)? == last { Ok(None) } else { ValidTokens::read(store, now_ms).map(Some) }
        });
        if let Some(known) = read.await? {
            *write_lock(&self.known) = known;
        }
        Ok(())
    }

    /// Makes a token, and says its text: this once.
    pub(crate) async fn create(
        &self,
        asked: CreateTokenRequest,
        now_ms: u64,
    ) -> Result<(Token, String), Error> {
        check(&asked)?;
        let count = read_lock(&self.known).records.len();
        if count >= MAX_TOKENS {
            let message = format!("there are {count} access tokens already: revoke some");
            return Err(Error::new(Code::QuotaExceeded, message));
        }
        let id = TokenId(u64::from_le_bytes(chance::secret()?));
        let secret = URL_SAFE_NO_PAD.encode(chance::secret::<SECRET_BYTES>()?);
        let expires_unix_ms =
            if asked.lifetime_ms == 0 { 0 } else { now_ms.saturating_add(asked.lifetime_ms) };
        let token = Token {
            id: id.to_string(),
            role: asked.role,
            tenant: asked.tenant,
            created_unix_ms: now_ms,
            expires_unix_ms,
            revoked_unix_ms: 0,
            note: asked.note,
            node: asked.node,
            max_cores: asked.max_cores,
            max_memory_bytes: asked.max_memory_bytes,
        };
        let record = TokenRecord { token: token.clone(), secret_sha256: Sha256::digest(&secret).to_vec() };
        self.write(id, record).await?;
        Ok((token, format!("{PREFIX}{id}_{secret}")))
    }

    /// Ends a token for good.
    pub(crate) async fn revoke(&self, id: &str, now_ms: u64) -> Result<Token, Error> {
        let id: TokenId = id.parse()?;
        let record = self.database.with(move |store| read(store, id)).await?;
        let unknown = || Error::new(Code::InvalidArgument, format!("there is no access token {id}"));
        let mut record = record.ok_or_else(unknown)?;
        if record.token.revoked_unix_ms == 0 {
            record.token.revoked_unix_ms = now_ms;
            self.write(id, record.clone()).await?;
        }
        Ok(record.token)
    }

    /// Lists every token, including expired ones, and on demand those that were revoked.
    pub(crate) async fn list(&self, revoked: RevokedTokens) -> Result<Vec<Token>, Error> {
        let tokens = self.database.with(move |store| {
            let mut tokens = Vec::new();
            each(store, |_, record| {
                if revoked == RevokedTokens::Included || record.token.revoked_unix_ms == 0 {
                    tokens.push(record.token);
                }
            })?;
            Ok(tokens)
        });
        let mut tokens = tokens.await?;
        tokens.sort_by(|a, b| (a.created_unix_ms, &a.id).cmp(&(b.created_unix_ms, &b.id)));
        Ok(tokens)
    }

    /// Puts a record into the store, tells every manager, and takes it into memory.
    async fn write(&self, id: TokenId, record: TokenRecord) -> Result<(), Error> {
        let stored = record.clone();
        self.database
            .with(move |store| {
                let mut batch = Batch::default();
                batch.put(format!("{}{id}", keys::TOKEN), stored.encode_to_vec());
                batch.put(REVISION.into(), chance::secret::<SECRET_BYTES>()?.to_vec());
                store.commit(&batch)
            })
            .await?;
        let mut known = write_lock(&self.known);
        known.records.insert(id, Arc::new(record));
        Ok(())
    }
}

/// Whether a list includes revoked tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RevokedTokens {
    Included,
    LeftOut,
}

fn check(asked: &CreateTokenRequest) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    match asked.role() {
        Role::User => names::check_tenant(&asked.tenant)?,
        Role::Operator => {}
        Role::Agent => names::check_node(&asked.node)?,
        Role::Unspecified => return invalid("a token is for a user, an operator or an agent".into()),
    }
    if asked.lifetime_ms > MAX_LIFETIME_MS {
        return invalid(format!(
            "{} ms of lifetime asked, at most {MAX_LIFETIME_MS} are possible",
            asked.lifetime_ms
        ));
    }
    if asked.note.len() > MAX_NOTE_BYTES {
        return invalid(format!(
            "the note has {} bytes, at most {MAX_NOTE_BYTES} are possible",
            asked.note.len()
        ));
    }
    Ok(())
}

fn too_many(message: String) -> Error {
    Error::new(Code::TryLater, message)
}

fn read(store: &dyn Store, id: TokenId) -> Result<Option<TokenRecord>, Error> {
    let found = store.get(&format!("{}{id}", keys::TOKEN))?;
    found.map(|found| decode("a stored token", &found.value)).transpose()
}

/// Returns the version of the revision.
fn revision(store: &dyn Store) -> Result<u64, Error> {
    Ok(store.get(REVISION)?.map_or(0, |found| found.version))
}

/// Shows every token of the store.
fn each(store: &dyn Store, mut visit: impl FnMut(TokenId, TokenRecord)) -> Result<(), Error> {
    each_record(store, keys::TOKEN, |found| {
        let id = found.key.strip_prefix(keys::TOKEN).unwrap_or_default().parse()?;
        visit(id, decode("a stored token", &found.value)?);
        Ok(())
    })
}
