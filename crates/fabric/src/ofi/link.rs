//! A connection's objects in libfabric, with their errors in this project's words.
//!
//! One thread at a time: `Link` is `Send` and not `Sync`, and the endpoint keeps it behind a lock.

use std::ffi::{CString, c_int, c_void};
use std::net::IpAddr;
use std::ptr::NonNull;

use rustix::process::{Resource, getrlimit};

use super::contact::Contact;
use super::ffi::{self, Completion, Event, Facts, Failure, Query, RawLink, RawRegistration, Table, Transfer};
use crate::FabricError;

/// Which network a connection goes over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// libfabric's name of the provider, whole: "verbs", "efa", "tcp;ofi_rxm".
    pub provider: String,
    /// The interface, as the provider names its domain, or its IP address. None: the one that leads to the peer, or the
    /// first.
    pub interface: Option<String>,
    /// Where the peer is, as far as is known: chooses among the interfaces.
    pub toward: Option<IpAddr>,
}

impl Network {
    /// The provider's interface that leads to the peer.
    pub fn of(provider: &str) -> Network {
        Network { provider: provider.into(), ..Network::default() }
    }

    /// The same, toward a peer.
    pub fn toward(mut self, peer: IpAddr) -> Network {
        self.toward = Some(peer);
        self
    }
}

/// The shim's `OFI_RDM`: endpoints that send to any other.
pub const RDM: u32 = 0;
/// The shim's `OFI_MSG`: endpoints that are connected to one other.
pub const MSG: u32 = 1;

/// An operation that moves bytes, as the shim posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Completes when the local bytes may be reused.
    Write,
    /// Completes when the bytes are in the peer's memory.
    WriteDelivered,
    /// As `Write`, and the peer gets a completion with data.
    WriteData,
    /// As `WriteData`, without a completion here.
    WriteDataSilently,
    /// The local bytes may be reused at once; there is no completion.
    Inject,
    /// As `Inject`, and the peer gets a completion with data.
    InjectData,
    /// Completes when the peer's bytes are here.
    Read,
    /// On words: operand, expected, result.
    FetchAdd,
    /// As `FetchAdd`.
    CompareSwap,
}

/// See the [module](self).
pub struct Link {
    table: &'static Table,
    raw: NonNull<RawLink>,
    registrations: Vec<RawRegistration>,
    /// What the provider does.
    pub facts: Facts,
}

// SAFETY: libfabric's objects belong to the process; the domain's threading model asks that one thread at a time uses
// them, which exclusive ownership ensures.
unsafe impl Send for Link {}

impl Link {
    /// Opens an interface of the provider; connects to nobody.
    pub fn open(network: &Network) -> Result<Link, FabricError> {
        let table = ffi::table()?;
        let named = network.interface.as_deref().filter(|name| name.parse::<IpAddr>().is_ok());
        let toward = network.toward.and_then(source_toward).map(|address| address.to_string());
        let sources: &[Option<&str>] = match (named, &toward) {
            (Some(_), _) => &[named],
            // The way to the peer may lead over an interface that is not the provider's; then its first is taken.
            (None, Some(toward)) => &[Some(toward), None],
            (None, None) => &[None],
        };
        let tries = [RDM, MSG].into_iter().flat_map(|kind| sources.iter().map(move |source| (kind, *source)));
        let mut last = -ffi::ENODATA;
        for (kind, source) in tries {
            match open_one(table, network, kind, source)? {
                Ok(link) => return Ok(link),
                // What was found and failed says more than what was not found.
                Err(rc) if last == -ffi::ENODATA => last = rc,
                Err(_) => {}
            }
        }
        Err(open_error(table, network, last))
    }

    /// What this end's contact says of itself.
    pub fn contact(&mut self, landing: &RawRegistration, base: u64) -> Result<Contact, FabricError> {
        let mut name = [0u8; 256];
        let mut len_bytes = name.len();
        // SAFETY: `name` has as many bytes as `len_bytes` says, and the link is open.
        let rc =
            unsafe { (self.table.name)(self.raw.as_ptr(), name.as_mut_ptr().cast(), &raw mut len_bytes) };
        self.check("asking for the end's name", rc)?;
        let mut token = [0; ffi::TOKEN_BYTES];
        random(&mut token)?;
        Ok(Contact {
            provider: self.facts.provider(),
            kind: self.facts.kind as u8,
            name: name[..len_bytes.min(name.len())].to_vec(),
            token,
            landing_key: landing.key,
            landing_base: base,
        })
    }

    /// Of a connected kind: waits for the peer, which [`Link::event`] tells.
    pub fn listen(&mut self) -> Result<(), FabricError> {
        // SAFETY: the link is open.
        let rc = unsafe { (self.table.listen)(self.raw.as_ptr()) };
        self.check("listening", rc)
    }

    /// Of an unconnected kind: learns where the peer is.
    pub fn insert(&mut self, peer: &Contact) -> Result<(), FabricError> {
        // SAFETY: the name has as many bytes as is said, and the link is open.
        let rc =
            unsafe { (self.table.insert)(self.raw.as_ptr(), peer.name.as_ptr().cast(), peer.name.len()) };
        self.check("learning the peer's address", rc)
    }

    /// Of a connected kind: begins to connect to the peer, which is told by [`Link::event`].
    pub fn dial(&mut self, peer: &Contact) -> Result<(), FabricError> {
        let (name, token) = (peer.name.as_ptr().cast(), peer.token.as_ptr());
        // SAFETY: the name has as many bytes as is said, the token as many as the shim takes; the link is open.
        let rc = unsafe { (self.table.dial)(self.raw.as_ptr(), name, peer.name.len(), token) };
        self.check("connecting", rc)
    }

    /// What has become of connecting, if anything new.
    pub fn event(&mut self) -> Result<Event, FabricError> {
        let mut event = Event::default();
        // SAFETY: `event` is writable, and the link is open with an event queue.
        let rc = unsafe { (self.table.event)(self.raw.as_ptr(), &raw mut event) };
        self.check("reading events", rc)?;
        Ok(event)
    }

    /// Makes the end for who asked last.
    pub fn admit(&mut self) -> Result<(), FabricError> {
        // SAFETY: the link is open.
        let rc = unsafe { (self.table.admit)(self.raw.as_ptr()) };
        self.check("making an end for the peer", rc)
    }

    /// Accepts whom [`Link::admit`] made an end for.
    pub fn accept(&mut self) -> Result<(), FabricError> {
        // SAFETY: the link is open and was admitted to.
        let rc = unsafe { (self.table.accept)(self.raw.as_ptr()) };
        self.check("accepting the peer", rc)
    }

    /// Refuses who asked last.
    pub fn refuse(&mut self) {
        // SAFETY: the link is open.
        unsafe { (self.table.refuse)(self.raw.as_ptr()) }
    }

    /// Of a connected kind: tells the peer that it is over.
    pub fn shutdown(&mut self) {
        // SAFETY: the link is open.
        unsafe { (self.table.shutdown)(self.raw.as_ptr()) }
    }

    /// Whether the provider adds and swaps words in the peer's memory.
    pub fn has_atomics(&mut self) -> bool {
        // SAFETY: the link is open.
        unsafe { (self.table.has_atomics)(self.raw.as_ptr()) != 0 }
    }

    /// Makes memory known to the provider, and reachable for the peer if `remote`. Dismissed with the link, at the
    /// latest.
    ///
    /// # Safety
    /// The memory must stay mapped until then.
    pub unsafe fn enroll(
        &mut self,
        memory: NonNull<u8>,
        len_bytes: u64,
        remote: bool,
    ) -> Result<RawRegistration, FabricError> {
        const ATTEMPTS: u32 = 8;
        let mut rc = -ffi::ENOKEY;
        for _ in 0..ATTEMPTS {
            let key = self.new_key()?;
            let mut registration =
                RawRegistration { handle: std::ptr::null_mut(), descriptor: std::ptr::null_mut(), key };
            let (raw, into) = (self.raw.as_ptr(), &raw mut registration);
            // SAFETY: the memory is the caller's duty; the rest is valid for the call.
            rc = unsafe {
                (self.table.enroll)(
                    raw,
                    memory.as_ptr().cast(),
                    len_bytes as usize,
                    c_int::from(remote),
                    key,
                    into,
                )
            };
            if rc == 0 {
                self.registrations.push(registration);
                return Ok(registration);
            }
            if rc != -ffi::ENOKEY {
                break;
            }
        }
        Err(self.enroll_error(len_bytes, rc))
    }

    /// Ends a registration.
    pub fn dismiss(&mut self, registration: &RawRegistration) {
        if let Some(at) = self.registrations.iter().position(|known| known.handle == registration.handle) {
            let known = self.registrations.swap_remove(at);
            // SAFETY: it was made by this link and not dismissed before.
            unsafe { (self.table.dismiss)(known.handle) };
        }
    }

    /// Posts room for a remote completion. False: not now.
    pub fn receive(&mut self, context: *mut c_void) -> Result<bool, FabricError> {
        // SAFETY: the link is open, and the context stays in place by the engine's duty.
        let rc = unsafe { (self.table.receive)(self.raw.as_ptr(), context) };
        self.posted("posting a receive", rc)
    }

    /// Posts an operation. False: not now, something must complete first.
    ///
    /// # Safety
    /// The local bytes must stay in place and unchanged until it has completed or the link is closed (for `Inject*`:
    /// during the call), those of a read or an atomic must not be touched by others meanwhile, and the context must
    /// stay in place as long.
    #[inline]
    pub unsafe fn post(&mut self, what: Post, transfer: &Transfer) -> Result<bool, FabricError> {
        let table = self.table;
        let post = match what {
            Post::Write => table.write,
            Post::WriteDelivered => table.write_delivered,
            Post::WriteData => table.write_data,
            Post::WriteDataSilently => table.write_data_silently,
            Post::Inject => table.inject,
            Post::InjectData => table.inject_data,
            Post::Read => table.read,
            Post::FetchAdd => table.fetch_add,
            Post::CompareSwap => table.compare_swap,
        };
        // SAFETY: the link is open; the rest is the caller's duty.
        let rc = unsafe { post(self.raw.as_ptr(), transfer) };
        self.posted("posting an operation", rc)
    }

    /// Takes completions. Says how many.
    #[inline]
    pub fn poll(&mut self, completions: &mut [Completion]) -> Result<usize, FabricError> {
        // SAFETY: there is room for as many as is said, and the link is open.
        let rc = unsafe { (self.table.poll)(self.raw.as_ptr(), completions.as_mut_ptr(), completions.len()) };
        match rc {
            0.. => Ok(rc as usize),
            _ if rc == -ffi::EAGAIN => Ok(0),
            _ => Err(self.completion_error(rc)),
        }
    }

    /// Whether the descriptors will tell of what comes next. False: something is there already.
    pub fn try_wait(&mut self) -> bool {
        // SAFETY: the link is open.
        unsafe { (self.table.try_wait)(self.raw.as_ptr()) == 0 }
    }

    /// What libfabric says of an error.
    pub fn error_text(&self, error: c_int) -> String {
        format!("{}: {}", self.facts.provider(), self.table.text(error))
    }

    /// Which flag a completion with the peer's data has.
    pub fn remote_data(&self) -> u64 {
        self.table.remote_data
    }

    #[inline]
    fn posted(&self, what: &str, rc: c_int) -> Result<bool, FabricError> {
        match rc {
            0 => Ok(true),
            _ if rc == -ffi::EAGAIN => Ok(false),
            _ => self.check(what, rc).map(|()| true),
        }
    }

    fn check(&self, what: &str, rc: c_int) -> Result<(), FabricError> {
        if rc >= 0 {
            return Ok(());
        }
        let operation = format!("{} over {}", what, self.facts.provider());
        Err(FabricError::system(operation, std::io::Error::other(self.table.text(rc))))
    }

    #[cold]
    fn completion_error(&mut self, rc: c_int) -> FabricError {
        let mut failure = Failure::empty();
        // SAFETY: `failure` is writable, and the link is open.
        let taken =
            rc == -ffi::EAVAIL && unsafe { (self.table.failure)(self.raw.as_ptr(), &raw mut failure) } > 0;
        let reason = match (taken, failure.text()) {
            (false, _) => self.table.text(rc),
            (true, text) if text.is_empty() => self.table.text(failure.error),
            (true, text) => format!("{}: {text}", self.table.text(failure.error)),
        };
        FabricError::Disconnected { reason: format!("{}: {reason}", self.facts.provider()) }
    }

    fn new_key(&self) -> Result<u64, FabricError> {
        let mut bytes = [0; 8];
        random(&mut bytes)?;
        let key = u64::from_ne_bytes(bytes);
        Ok(if self.facts.key_bytes >= 8 { key } else { key & ((1 << (8 * self.facts.key_bytes)) - 1) })
    }

    fn enroll_error(&self, len_bytes: u64, rc: c_int) -> FabricError {
        let limit = getrlimit(Resource::Memlock).current;
        match limit.filter(|_| rc == -ffi::ENOMEM) {
            Some(limit) => FabricError::Limit(lock_limit(&self.facts.provider(), len_bytes, limit)),
            None => {
                let operation = format!("registering {len_bytes} bytes with {}", self.facts.provider());
                FabricError::system(operation, std::io::Error::other(self.table.text(rc)))
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for registration in self.registrations.drain(..) {
            // SAFETY: made by this link and not dismissed before.
            unsafe { (self.table.dismiss)(registration.handle) };
        }
        // SAFETY: the link is open, and never used again.
        unsafe { (self.table.close)(self.raw.as_ptr()) };
    }
}

fn lock_limit(provider: &str, len_bytes: u64, limit: u64) -> String {
    format!(
        "{provider} cannot register {len_bytes} bytes of memory: this process may lock {limit} bytes (RLIMIT_MEMLOCK). \
         Raise the limit: `ulimit -l unlimited` in the shell that starts it, LimitMEMLOCK=infinity in a systemd unit, \
         or a memlock line in /etc/security/limits.conf"
    )
}

/// The outer error ends the search, the inner lets it go on.
fn open_one(
    table: &'static Table,
    network: &Network,
    kind: u32,
    source: Option<&str>,
) -> Result<Result<Link, c_int>, FabricError> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| FabricError::Protocol(format!("{text:?} is not a name of a network")))
    };
    let provider = text(&network.provider)?;
    let domain = network.interface.as_deref().filter(|name| name.parse::<IpAddr>().is_err());
    let domain = domain.map(text).transpose()?;
    let source = source.map(text).transpose()?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let query = Query {
        provider: provider.as_ptr(),
        domain: pointer(&domain),
        source: pointer(&source),
        kind,
        want_descriptor: 1,
    };
    let (mut raw, mut facts) = (std::ptr::null_mut(), Facts::empty());
    // SAFETY: the query's strings outlive the call, and both results are writable.
    let rc = unsafe { (table.open)(&raw const query, &raw mut raw, &raw mut facts) };
    match NonNull::new(raw).filter(|_| rc == 0) {
        Some(raw) => Ok(Ok(Link { table, raw, registrations: Vec::new(), facts })),
        None => Ok(Err(rc)),
    }
}

fn open_error(table: &Table, network: &Network, rc: c_int) -> FabricError {
    let Network { provider, interface, .. } = network;
    let on = interface.as_ref().map(|name| format!(" on interface {name}")).unwrap_or_default();
    if rc == -ffi::ENODATA {
        return FabricError::Unsupported(format!(
            "libfabric finds nothing here that provider {provider}{on} could use; `sublet fabrics` lists what it finds"
        ));
    }
    FabricError::system(format!("opening {provider}{on}"), std::io::Error::other(table.text(rc)))
}

/// The address of this machine from which packets to the peer go. Sends nothing.
fn source_toward(peer: IpAddr) -> Option<IpAddr> {
    const ANY_PORT: u16 = 9;
    let any: IpAddr = if peer.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, ANY_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Bytes that nobody guesses.
pub fn random(bytes: &mut [u8]) -> Result<(), FabricError> {
    getrandom::fill(bytes)
        .map_err(|error| FabricError::system("getrandom for a key", std::io::Error::other(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_limit_that_is_too_low_is_named_with_its_value_and_its_remedy() {
        let said = lock_limit("verbs", 1 << 20, 65536);
        for part in ["verbs", "1048576", "65536", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK=infinity"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn the_way_to_this_machine_is_this_machine() {
        assert_eq!(source_toward([127, 0, 0, 1].into()), Some([127, 0, 0, 1].into()));
    }
}
