//! Connects an endpoint with its peer, and disconnects it.

use std::time::{Duration, Instant};

use super::contact::Contact;
use super::live::{LANDING_BYTES, Live};
use super::message::Tail;
use super::{OfiEndpoint, OfiNetwork, State};
use crate::FabricError;
use crate::sync::Ordering;

/// Longest time for a peer to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest time for the last message to leave.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// State of the first message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GreetingState {
    ToSend,
    Sent,
    Left,
}

impl OfiEndpoint {
    /// Opens a network on the connecting side. Regions can be exposed from now on. Returns this endpoint's contact, for
    /// the peer's [`accept`](OfiEndpoint::accept).
    pub fn open(&self, network: &OfiNetwork) -> Result<Vec<u8>, FabricError> {
        self.disconnect("connected anew");
        let mut live = Live::open(network, self.exposed.clone(), LANDING_BYTES)?;
        let contact = live.contact(false)?;
        self.install(live);
        Ok(contact.encode())
    }

    /// Opens a network on the accepting side, for the peer with this contact. Returns this endpoint's contact, for the
    /// peer's [`connect`](OfiEndpoint::connect). A connected endpoint accepts the peer within its progress.
    pub fn accept(&self, network: &OfiNetwork, contact: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.disconnect("connected anew");
        let peer = Contact::decode(contact)?;
        let network = OfiNetwork { toward: peer.ip().or(network.toward), ..network.clone() };
        let mut live = Live::open(&network, self.exposed.clone(), LANDING_BYTES)?;
        let contact = live.contact(true)?;
        live.meet(&peer)?;
        self.install(live);
        self.up.store(1, Ordering::SeqCst);
        Ok(contact.encode())
    }

    /// Connects to the peer with this contact, after [`open`](OfiEndpoint::open). Waits until a first message has left,
    /// for which most providers need the peer's progress.
    pub fn connect(&self, contact: &[u8]) -> Result<(), FabricError> {
        let peer = Contact::decode(contact)?;
        let met = self.lock().live()?.meet(&peer);
        if let Err(error) = met {
            self.disconnect(&error.to_string());
            return Err(error);
        }
        let begun = Instant::now();
        let mut greeting = GreetingState::ToSend;
        while greeting != GreetingState::Left {
            if begun.elapsed() > CONNECT_LIMIT {
                self.disconnect("the peer did not accept the connection");
                return Err(FabricError::TimedOut(CONNECT_LIMIT));
            }
            greeting = self.greet(greeting)?;
        }
        self.up.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the connection: later operations fail. When this returns, no operation claimed earlier is still being sent.
    pub fn disconnect(&self, reason: &str) {
        let mut state = self.lock();
        self.cut(&mut state, reason, true);
    }

    /// Reason why the connection is down, or `None` while it is up.
    pub fn down(&self) -> Option<String> {
        self.is_down().then(|| self.lock().why_down())
    }

    pub(super) fn is_down(&self) -> bool {
        self.up.load(Ordering::SeqCst) == 0
    }

    /// Ends the connection after an error. Sends the peer the reason, unless the peer ended the connection.
    #[cold]
    pub(super) fn end(&self, state: &mut State, error: FabricError) -> FabricError {
        let (reason, tell) = match error {
            FabricError::Disconnected { reason } => (reason, false),
            other => (other.to_string(), true),
        };
        self.cut(state, &reason, tell);
        FabricError::Disconnected { reason }
    }

    /// Closes everything that the connection had open, and wakes all waiting threads.
    #[cold]
    fn cut(&self, state: &mut State, reason: &str, tell: bool) {
        self.up.store(0, Ordering::SeqCst);
        if let Ok(live) = &mut state.live {
            if tell {
                live.say_goodbye(reason, GOODBYE_LIMIT);
            }
            state.live = Err(reason.into());
        }
        self.sleep.poke();
        self.waiters.poke_all();
    }

    /// Executes a step towards the first message, which makes the provider connect.
    fn greet(&self, greeting: GreetingState) -> Result<GreetingState, FabricError> {
        let mut state = self.lock();
        self.look(&mut state, true)?;
        let live = state.live()?;
        match greeting {
            GreetingState::ToSend if live.is_up() => match live.send(&Tail::Nothing, true) {
                Ok(Some(_)) => return Ok(GreetingState::Sent),
                Ok(None) => {}
                Err(error) => return Err(self.end(&mut state, error)),
            },
            GreetingState::Sent if live.flow.has_left(0) => return Ok(GreetingState::Left),
            _ => {}
        }
        drop(state);
        std::thread::sleep(Duration::from_micros(50));
        Ok(greeting)
    }

    fn install(&self, live: Live) {
        let mut state = self.lock();
        state.generation += 1;
        state.live = Ok(Box::new(live));
    }
}
