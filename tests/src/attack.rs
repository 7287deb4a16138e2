//! Hostile connections from many addresses: each stays open, and one that the other end closes is made anew; or each is
//! closed at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::numbers::narrow;
use crate::process::wait_until;

/// Addresses from which the connections come.
pub const ADDRESSES: usize = 100;
const THREADS: usize = 4;
/// Time between two looks at the connections.
const ROUND: Duration = Duration::from_millis(200);

/// Running attackers. They end when [`Attack::end`] is called.
pub struct Attack {
    running: Arc<AttackState>,
    threads: Vec<JoinHandle<()>>,
}

/// State that the threads of one attack share.
#[derive(Default)]
struct AttackState {
    is_over: AtomicBool,
    made: AtomicUsize,
}

impl AttackState {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }
}

impl Attack {
    /// Opens connections to an address, and returns when each was made once.
    ///
    /// # Panics
    /// If that takes very long.
    pub fn begin(target: SocketAddrV4, connections: usize) -> Attack {
        let own = connections.div_ceil(THREADS);
        let attack = Attack::of(move |thread, running| keep_open(target, own, thread, running));
        wait_until("all have connected", || attack.running.made() >= connections);
        attack
    }

    /// Opens connections to an address and closes them at once, and returns when each attacking address has done so ten
    /// times.
    ///
    /// # Panics
    /// If that takes very long.
    pub fn flood(target: SocketAddrV4) -> Attack {
        let attack = Attack::of(move |thread, running| come_and_go(target, thread, running));
        wait_until("they connect", || attack.running.made() >= 10 * ADDRESSES);
        attack
    }

    fn of(act: impl Fn(usize, &AttackState) + Copy + Send + 'static) -> Attack {
        raise_files();
        let running = Arc::new(AttackState::default());
        let begin = |thread| {
            let running = running.clone();
            std::thread::spawn(move || act(thread, &running))
        };
        let threads = (0..THREADS).map(begin).collect();
        Attack { running, threads }
    }

    /// Ends it, and returns how many connections were made.
    ///
    /// # Panics
    /// If an attacker has panicked.
    pub fn end(self) -> usize {
        self.running.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("attackers do not panic"));
        self.running.made()
    }
}

/// Lets this process have as many files open as it may.
pub fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused only where the limit is as high already.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn keep_open(target: SocketAddrV4, connections: usize, thread: usize, running: &AttackState) {
    let mut open: Vec<Option<TcpStream>> = (0..connections).map(|_| None).collect();
    while !running.is_over() {
        for (number, slot) in open.iter_mut().enumerate() {
            if slot.as_ref().is_none_or(is_closed) {
                *slot = connect_from(attacker(number, thread), target);
                running.count();
            }
        }
        std::thread::sleep(ROUND);
    }
}

fn come_and_go(target: SocketAddrV4, thread: usize, running: &AttackState) {
    for number in 0.. {
        if running.is_over() {
            return;
        }
        if connect_from(attacker(number, thread), target).is_some() {
            running.count();
        }
    }
}

/// The address of a thread's connection.
fn attacker(number: usize, thread: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, 0, 1 + narrow::<_, u8>((number * THREADS + thread) % ADDRESSES))
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
