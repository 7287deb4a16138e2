//! Clients that take a lease, call, and give it back, again and again, while a test breaks what they use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sublet::{Access, Allocation, Code, Error, Invoker, Usage};
use sublet_fabric::sync::lock;

use crate::cluster::connect;
use crate::functions::package;
use crate::platform::assert_echoes;
use crate::process::wait_until;

/// Calls on each lease.
const CALLS: u64 = 3;
/// Pause after a request that failed.
const NAP: Duration = Duration::from_millis(20);
/// How long a request waits for capacity.
const WAIT: Duration = Duration::from_secs(2);

/// Clients at work. [`Crowd::stop`] returns the leases that they had.
pub struct Crowd {
    shared: Arc<CrowdState>,
    clients: Vec<JoinHandle<Vec<ServedLease>>>,
}

/// A lease that was taken, used and given back.
#[derive(Clone, Debug)]
pub struct ServedLease {
    /// Name of the lease.
    pub lease: String,
    /// Calls that were answered.
    pub calls: u64,
    /// Usage that the agent reported when the lease ended.
    pub usage: Usage,
}

struct CrowdState {
    stop: AtomicBool,
    /// Leases that were served in full.
    served: AtomicU64,
    /// Cores that clients hold of each node.
    held: Mutex<HashMap<String, u32>>,
    tolerated: fn(Code) -> bool,
}

impl Crowd {
    /// Starts `clients` clients with one access, which tolerate that a request fails with some codes. Each client holds
    /// one core at a time, and no node lends more than `cores`: if more are held at a time, a core was leased twice.
    pub fn start(access: &Access, clients: u32, cores: u32, tolerated: fn(Code) -> bool) -> Crowd {
        let shared = Arc::new(CrowdState {
            stop: AtomicBool::new(false),
            served: AtomicU64::new(0),
            held: Mutex::default(),
            tolerated,
        });
        let begin = |_| {
            let (shared, access) = (shared.clone(), access.clone());
            std::thread::spawn(move || shared.work(&access, cores))
        };
        let clients = (0..clients).map(begin).collect();
        Crowd { shared, clients }
    }

    /// How many leases were served in full so far.
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::Relaxed)
    }

    /// Waits until `more` further leases have been served.
    #[track_caller]
    pub fn wait_for(&self, more: u64) {
        let enough = self.served() + more;
        wait_until("clients are served", || {
            assert!(!self.clients.iter().any(JoinHandle::is_finished), "a client has given up");
            self.served() >= enough
        });
    }

    /// Lets every client finish, and gives all leases that were served.
    ///
    /// # Panics
    /// If a client has met what it does not tolerate.
    #[track_caller]
    pub fn stop(self) -> Vec<ServedLease> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let ended = self.clients.into_iter().map(JoinHandle::join);
        ended.flat_map(|served| served.unwrap_or_else(|_| panic!("a client has failed"))).collect()
    }
}

impl CrowdState {
    fn work(&self, access: &Access, cores: u32) -> Vec<ServedLease> {
        let mut invoker = connect(access);
        let mut served = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            match self.serve(&mut invoker, cores) {
                Ok(lease) => served.push(lease),
                Err(error) => {
                    assert!((self.tolerated)(error.code), "{}: {error}", error.code);
                    std::thread::sleep(NAP);
                }
            }
        }
        served
    }

    fn serve(&self, invoker: &mut Invoker, cores: u32) -> Result<ServedLease, Error> {
        invoker.allocate(&Allocation::new(package("calls.c")).wait(WAIT))?;
        let leases = invoker.leases();
        let [lease] = leases.as_slice() else { panic!("one core is one lease: {leases:?}") };
        let held = self.hold(&lease.node);
        assert!(held <= cores, "{held} cores of {} are held at a time, and it has {cores}", lease.node);
        for _ in 0..CALLS {
            assert_echoes(invoker);
        }
        // Before the agent may lend it again.
        self.let_go(&lease.node);
        let usage = invoker.deallocate()?;
        self.served.fetch_add(1, Ordering::Relaxed);
        Ok(ServedLease { lease: lease.id.clone(), calls: CALLS, usage })
    }

    fn hold(&self, node: &str) -> u32 {
        let mut held = lock(&self.held);
        let count = held.entry(node.to_owned()).or_default();
        *count += 1;
        *count
    }

    fn let_go(&self, node: &str) {
        let mut held = lock(&self.held);
        *held.entry(node.to_owned()).or_default() -= 1;
    }
}
