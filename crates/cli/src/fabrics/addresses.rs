//! The addresses of this machine's interfaces, as the kernel lists them over a netlink socket.
//!
//! The kernel's answer is a sequence of messages, each with attributes; the numbers are those of
//! `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_addr.h`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Size of a message's head, in bytes; the sizes after it are those of an address's head and of an attribute's.
const HEAD: usize = 16;
const ADDRESS_HEAD: usize = 8;
const ATTRIBUTE_HEAD: usize = 4;
/// Largest part of the kernel's answer, in bytes.
const PART_BYTES: usize = 64 << 10;
/// Parts of one answer: more addresses than any machine has.
const MAX_PARTS: usize = 4096;
/// The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// An address, and the number of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) interface: u32,
    pub(super) address: IpAddr,
}

/// Returns all addresses of this machine's interfaces.
pub(super) fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    // Without a protocol, netlink uses protocol 0: routes, addresses and interfaces.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    send(&socket, &request(), SendFlags::empty())?;
    let (mut found, mut part) = (Vec::new(), vec![0; PART_BYTES]);
    for _ in 0..MAX_PARTS {
        let (len, _) = recv(&socket, &mut part[..], RecvFlags::empty())?;
        if take(&part[..len], &mut found)? {
            return Ok(found);
        }
    }
    Err(io::Error::other(format!("the kernel's list of addresses has more than {MAX_PARTS} parts")))
}

/// Asks for the addresses of all families.
fn request() -> Vec<u8> {
    let mut message = Vec::with_capacity(HEAD + ADDRESS_HEAD);
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    let len_bytes = (HEAD + ADDRESS_HEAD) as u32;
    message.extend(len_bytes.to_ne_bytes());
    message.extend(RTM_GETADDR.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    message.resize(HEAD + ADDRESS_HEAD, 0);
    message
}

/// Adds the addresses in a part of the answer. Returns whether it was the last part.
fn take(mut part: &[u8], found: &mut Vec<InterfaceAddress>) -> io::Result<bool> {
    while !part.is_empty() {
        let cut = || io::Error::other("the kernel's list of addresses ends in the middle of a message");
        let len = u32_at(part, 0).ok_or_else(cut)? as usize;
        let kind = u16_at(part, 4).ok_or_else(cut)?;
        let body = part.get(HEAD..len).ok_or_else(cut)?;
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = u32_at(body, 0).map_or(0, |number| number.cast_signed().wrapping_neg());
                return Err(io::Error::from_raw_os_error(errno));
            }
            RTM_NEWADDR => found.extend(assigned(body)),
            _ => {}
        }
        part = part.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Parses a message. Returns the address that it assigns, if its kind is known here.
fn assigned(body: &[u8]) -> Option<InterfaceAddress> {
    let interface = u32_at(body, 4)?;
    let mut attributes = body.get(ADDRESS_HEAD..)?;
    let (mut address, mut local) = (None, None);
    while attributes.len() >= ATTRIBUTE_HEAD {
        let len = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(ATTRIBUTE_HEAD..len)?;
        match u16_at(attributes, 2)? {
            IFA_ADDRESS => address = ip(value),
            // Where two ends have an address each, the other one is the peer's.
            IFA_LOCAL => local = ip(value),
            _ => {}
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    local.or(address).map(|address| InterfaceAddress { interface, address })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(|octets| Ipv4Addr::from(octets).into());
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(|octets| Ipv6Addr::from(octets).into())).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = ((HEAD + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.resize(HEAD, 0);
        message.extend(body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    fn address(interface: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(interface.to_ne_bytes());
        for (kind, value) in attributes {
            body.extend(((ATTRIBUTE_HEAD + value.len()) as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        message(RTM_NEWADDR, &body)
    }

    #[test]
    fn an_interface_has_its_own_address_and_not_its_peers() {
        let mut part = address(3, &[(9, b"odd"), (IFA_ADDRESS, &[10, 0, 0, 2]), (IFA_LOCAL, &[10, 0, 0, 1])]);
        part.extend(address(4, &[(IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets())]));
        part.extend(message(NLMSG_DONE, &[0; 4]));
        let mut found = Vec::new();
        assert!(take(&part, &mut found).unwrap());
        let expected = [(3, "10.0.0.1"), (4, "::1")]
            .map(|(interface, address)| InterfaceAddress { interface, address: address.parse().unwrap() });
        assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_an_answer_or_an_error() {
        let whole = address(3, &[(IFA_LOCAL, &[10, 0, 0, 1])]);
        for len in 1..whole.len() {
            let mut found = Vec::new();
            assert!(take(&whole[..len], &mut found).is_err(), "{len}");
        }
        let wrong = message(NLMSG_ERROR, &(-13i32).to_ne_bytes());
        assert_eq!(take(&wrong, &mut Vec::new()).unwrap_err().raw_os_error(), Some(13));
        for byte in 0..=255 {
            // Says nothing that matters: it must end.
            let _ = take(&[byte; 333], &mut Vec::new());
            let _ = take(&message(RTM_NEWADDR, &[byte; 99]), &mut Vec::new());
        }
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        let all = addresses().unwrap();
        assert!(all.iter().any(|assigned| assigned.address == loopback), "{all:?}");
    }
}
