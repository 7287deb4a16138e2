//! Connects an endpoint with its peer, and disconnects it.

use std::time::{Duration, Instant};

use super::contact::Contact;
use super::live::{LANDING_BYTES, Live};
use super::message::Tail;
use super::{Endpoint, Network, State};
use crate::FabricError;
use crate::sync::Ordering;

/// How long a peer that was called may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long the last message may take to leave.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// How far the first message is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Greeting {
    ToSend,
    Sent,
    Left,
}

impl Endpoint {
    /// Opens a network, for the side that connects. Regions can be exposed from now on. Returns this end's contact, for
    /// the peer's [`accept`](Endpoint::accept).
    pub fn open(&self, network: &Network) -> Result<Vec<u8>, FabricError> {
        self.disconnect("connected anew");
        let mut live = Live::open(network, self.exposed.clone(), LANDING_BYTES)?;
        let contact = live.contact(false)?;
        self.install(live);
        Ok(contact.encode())
    }

    /// Opens a network, for the side that is connected to by the peer whose contact is there. Returns this end's contact,
    /// for the peer's [`connect`](Endpoint::connect). Of a connected kind this end accepts the peer within its progress.
    pub fn accept(&self, network: &Network, contact: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.disconnect("connected anew");
        let peer = Contact::decode(contact)?;
        let network = Network { toward: peer.ip().or(network.toward), ..network.clone() };
        let mut live = Live::open(&network, self.exposed.clone(), LANDING_BYTES)?;
        let contact = live.contact(true)?;
        live.meet(&peer)?;
        self.install(live);
        self.up.store(1, Ordering::SeqCst);
        Ok(contact.encode())
    }

    /// Goes on with the peer whose contact is there, after [`open`](Endpoint::open). Waits until a first message has
    /// left, for which most providers need the peer's progress.
    pub fn connect(&self, contact: &[u8]) -> Result<(), FabricError> {
        let peer = Contact::decode(contact)?;
        let met = self.lock().live()?.meet(&peer);
        if let Err(error) = met {
            self.disconnect(&error.to_string());
            return Err(error);
        }
        let begun = Instant::now();
        let mut greeting = Greeting::ToSend;
        while greeting != Greeting::Left {
            if begun.elapsed() > CONNECT_LIMIT {
                self.disconnect("the peer did not accept the connection");
                return Err(FabricError::TimedOut(CONNECT_LIMIT));
            }
            greeting = self.greet(greeting)?;
        }
        self.up.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the connection: from now on operations fail. When this returns, nothing that was claimed earlier is still
    /// being sent.
    pub fn disconnect(&self, reason: &str) {
        let mut state = self.lock();
        self.cut(&mut state, reason, true);
    }

    /// Why there is no connection, if there is none.
    pub fn down(&self) -> Option<String> {
        self.is_down().then(|| self.lock().why_down())
    }

    pub(super) fn is_down(&self) -> bool {
        self.up.load(Ordering::SeqCst) == 0
    }

    /// The connection cannot go on. The peer is told why, unless it is the one that ended it.
    #[cold]
    pub(super) fn end(&self, state: &mut State, error: FabricError) -> FabricError {
        let (reason, tell) = match error {
            FabricError::Disconnected { reason } => (reason, false),
            other => (other.to_string(), true),
        };
        self.cut(state, &reason, tell);
        FabricError::Disconnected { reason }
    }

    /// Closes everything that the connection had open, and wakes all who wait.
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

    /// A step towards the first message, which makes the provider connect.
    fn greet(&self, greeting: Greeting) -> Result<Greeting, FabricError> {
        let mut state = self.lock();
        self.look(&mut state, true)?;
        let live = state.live()?;
        match greeting {
            Greeting::ToSend if live.is_up() => match live.send(&Tail::Nothing, true) {
                Ok(Some(_)) => return Ok(Greeting::Sent),
                Ok(None) => {}
                Err(error) => return Err(self.end(&mut state, error)),
            },
            Greeting::Sent if live.flow.has_left(0) => return Ok(Greeting::Left),
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
