//! Connections from the network that have not shown a ticket: how many there may be, in all and from one address.
//!
//! Each is a thread with a deadline. Who has shown a ticket is no stranger any more: the node's own cores bound them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use sublet_proto::{Code, Error};

use crate::lock;

/// Strangers at a time.
const MAX_STRANGERS: usize = 256;
/// Strangers of one address at a time: others still find room beside an address that takes all of its.
const MAX_STRANGERS_OF_AN_ADDRESS: usize = 64;

/// Who is there without a ticket.
#[derive(Default)]
pub(crate) struct Strangers(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    /// By the order of their coming: from where, and their connections.
    all: HashMap<u64, (IpAddr, TcpStream)>,
    came: u64,
    is_closed: bool,
}

/// One of them, until it is dropped.
pub(crate) struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    /// Lets one in from this address, if there is room.
    pub(crate) fn enter(self: &Arc<Strangers>, from: IpAddr, socket: &TcpStream) -> Result<Stranger, Error> {
        let counted = counted(from);
        let mut inside = lock(&self.0);
        let (all, own) =
            (inside.all.len(), inside.all.values().filter(|(address, _)| *address == counted).count());
        if inside.is_closed {
            return Err(Error::new(Code::LeaseEnded, "the agent is stopping"));
        }
        if own >= MAX_STRANGERS_OF_AN_ADDRESS {
            let message = format!("{own} connections from {counted} have shown no ticket yet");
            return Err(Error::new(Code::TryLater, message));
        }
        if all >= MAX_STRANGERS {
            let message = format!("{all} connections have shown no ticket yet");
            return Err(Error::new(Code::TryLater, message));
        }
        let socket = socket.try_clone().map_err(|error| {
            Error::new(Code::System, format!("a connection from {from} cannot be kept: {error}"))
        })?;
        let number = inside.came;
        inside.came += 1;
        inside.all.insert(number, (counted, socket));
        Ok(Stranger { strangers: self.clone(), number })
    }

    /// Cuts all of them off, and lets no more in.
    pub(crate) fn close(&self) {
        let mut inside = lock(&self.0);
        inside.is_closed = true;
        for (_, socket) in inside.all.values() {
            // One that is cut off already is as well.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        lock(&self.strangers.0).all.remove(&self.number);
    }
}

/// What counts as one address: of version 6, the network of 64 bits that one host has all of.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn an_address_that_takes_all_its_places_leaves_room_for_others() {
        let (strangers, (socket, _there)) = (Arc::new(Strangers::default()), connected());
        let enter = |from: &str| strangers.enter(address(from), &socket);
        let mut greedy: Vec<_> =
            (0..MAX_STRANGERS_OF_AN_ADDRESS).map(|_| enter("192.0.2.1").unwrap()).collect();
        let error = enter("::ffff:192.0.2.1").err().unwrap();
        assert!(error.code == Code::TryLater && error.message.contains("192.0.2.1"), "{error}");
        let other = enter("192.0.2.2").unwrap();
        greedy.pop();
        let again = enter("192.0.2.1").unwrap();
        drop((greedy, other, again));
        assert!(lock(&strangers.0).all.is_empty());
    }

    #[test]
    fn all_of_them_together_have_a_bound() {
        let (strangers, (socket, _there)) = (Arc::new(Strangers::default()), connected());
        let enter = |number: usize| {
            strangers.enter(address(&format!("10.0.{}.{}", number / 256, number % 256)), &socket)
        };
        let inside: Vec<_> = (0..MAX_STRANGERS).map(|number| enter(number).unwrap()).collect();
        assert_eq!(enter(MAX_STRANGERS).err().unwrap().code, Code::TryLater);
        drop(inside);
        enter(0).unwrap();
    }

    #[test]
    fn whoever_is_inside_is_cut_off_when_it_closes() {
        let (strangers, (socket, mut there)) = (Arc::new(Strangers::default()), connected());
        let inside = strangers.enter(address("192.0.2.1"), &socket).unwrap();
        let (known, mut known_there) = connected();
        drop(strangers.enter(address("192.0.2.1"), &known).unwrap());
        strangers.close();
        assert_eq!(there.read(&mut [0; 1]).unwrap(), 0);
        assert!(strangers.enter(address("192.0.2.1"), &socket).is_err());
        drop(inside);
        known_there.set_nonblocking(true).unwrap();
        let waits = known_there.read(&mut [0; 1]).unwrap_err();
        assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "who is known stays");
    }

    #[test]
    fn a_host_has_one_address_of_version_6_however_many_it_takes() {
        assert_eq!(counted(address("2001:db8::1")), counted(address("2001:db8::ffff:1")));
        assert_ne!(counted(address("2001:db8::1")), counted(address("2001:db8:0:1::1")));
    }
}
