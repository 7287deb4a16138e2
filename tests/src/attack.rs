//! Hostile connections from many addresses: each stays open, and one that the other end closes is made anew.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::wait_until;

/// Addresses from which the connections come.
pub const ADDRESSES: usize = 100;
const THREADS: usize = 4;
/// Time between two looks at the connections.
const ROUND: Duration = Duration::from_millis(200);

/// Running attackers. They end when [`Attack::end`] is called.
pub struct Attack {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Attack {
    /// Opens connections to an address, and returns when each was made once.
    ///
    /// # Panics
    /// If that takes very long.
    pub fn begin(target: SocketAddrV4, connections: usize) -> Attack {
        raise_files();
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let own = connections.div_ceil(THREADS);
        let threads = (0..THREADS)
            .map(|thread| {
                let (stop, made) = (stop.clone(), made.clone());
                std::thread::spawn(move || keep_open(target, own, thread, &stop, &made))
            })
            .collect();
        let attack = Attack { stop, made, threads };
        wait_until("all have connected", || attack.made.load(Ordering::Relaxed) >= connections);
        attack
    }

    /// Ends it, and returns how many connections were made.
    ///
    /// # Panics
    /// If an attacker has panicked.
    pub fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("attackers do not panic"));
        self.made.load(Ordering::Relaxed)
    }
}

/// Lets this process have as many files open as it may.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused only where the limit is as high already.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn keep_open(target: SocketAddrV4, connections: usize, thread: usize, stop: &AtomicBool, made: &AtomicUsize) {
    let mut open: Vec<Option<TcpStream>> = (0..connections).map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        for (number, slot) in open.iter_mut().enumerate() {
            if slot.as_ref().is_none_or(is_closed) {
                let from = (number * THREADS + thread) % ADDRESSES;
                *slot = connect_from(Ipv4Addr::new(127, 77, 0, 1 + from as u8), target);
                made.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(ROUND);
    }
}

fn is_closed(socket: &TcpStream) -> bool {
    let _ = socket.set_nonblocking(true);
    match (&*socket).read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Half of them are silent, and half begin TLS and go no further.
fn connect_from(from: Ipv4Addr, to: SocketAddrV4) -> Option<TcpStream> {
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&socket, &SocketAddrV4::new(from, 0)).ok()?;
    connect(&socket, &to).ok()?;
    let mut socket = TcpStream::from(socket);
    if socket.local_addr().is_ok_and(|address| address.port() % 2 == 0) {
        let _ = socket.write_all(&[0x16, 3, 1, 0, 200, 1, 0, 0]);
    }
    Some(socket)
}
