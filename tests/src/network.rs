//! Hosts of a test's own: network namespaces, each with a cable to one switch, on which links can be cut.
//!
//! A program is started on a host by its [`Host::entry`], and [`Host::run`] lets a thread of the test itself talk from
//! there. Files are everybody's, so a client and an agent on two hosts still reach each other by a Unix socket.
//!
//! A link is cut in one direction: what comes from one address to another is dropped where it arrives, and nobody is
//! told. Everything is in namespaces that are named for the test's process, so tests run beside each other; they are
//! removed when the [`Network`] is dropped, and what a killed test has left behind by the next one.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where `ip netns` keeps names.
const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "sublet-test-";
/// Addresses that each host has.
pub const ADDRESSES: u8 = 4;
/// The rule by which the kernel knows its own addresses, moved behind those that drop.
const LOCAL_RULE: &str = "100";
const DROPPING_RULES: &str = "50";

/// Hosts on one switch.
pub struct Network {
    name: String,
    hosts: Vec<Host>,
}

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    namespace: String,
    number: u8,
}

impl Network {
    /// As many hosts. `None`, said on standard output, where this user may not make any.
    ///
    /// # Panics
    /// If one could be made and the rest cannot.
    pub fn make(hosts: u8) -> Option<Network> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        remove_left_behind();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let mut network = Network { name, hosts: Vec::new() };
        let switch = network.switch();
        let tried = ip(&["netns", "add", &switch]);
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr);
            println!("skipped: this user may not make network namespaces: {}", why.trim());
            return None;
        }
        must(&["-n", &switch, "link", "add", "switch", "type", "bridge"]);
        must(&["-n", &switch, "link", "set", "switch", "up"]);
        for number in 0..hosts {
            network.add_host(number);
        }
        Some(network)
    }

    /// A host, by its number.
    pub fn host(&self, number: u8) -> Host {
        self.hosts[usize::from(number)].clone()
    }

    /// Drops what goes from one address to another, from now on.
    pub fn cut(&self, from: Ipv4Addr, to: Ipv4Addr) {
        self.rule("add", from, to);
    }

    /// Undoes one [`Network::cut`].
    pub fn mend(&self, from: Ipv4Addr, to: Ipv4Addr) {
        self.rule("del", from, to);
    }

    fn rule(&self, verb: &str, from: Ipv4Addr, to: Ipv4Addr) {
        let [.., host, _] = to.octets();
        let namespace = &self.hosts[usize::from(host)].namespace;
        let (from, to) = (from.to_string(), to.to_string());
        let place = ["-n", namespace, "rule", verb, "pref", DROPPING_RULES];
        must(&[&place[..], &["from", &from, "to", &to, "blackhole"]].concat());
    }

    fn add_host(&mut self, number: u8) {
        let host = Host { namespace: format!("{}-{number}", self.name), number };
        let (namespace, switch, port) = (host.namespace.as_str(), self.switch(), format!("port{number}"));
        must(&["netns", "add", namespace]);
        self.hosts.push(host.clone());
        let cable = ["type", "veth", "peer", "name", "eth0", "netns", namespace];
        must(&[&["-n", switch.as_str(), "link", "add", &port][..], &cable].concat());
        must(&["-n", &switch, "link", "set", &port, "master", "switch", "up"]);
        for device in ["eth0", "lo"] {
            must(&["-n", namespace, "link", "set", device, "up"]);
        }
        for which in 0..ADDRESSES {
            let address = format!("{}/16", host.address(which));
            must(&["-n", namespace, "addr", "add", &address, "dev", "eth0"]);
        }
        // A connection's packets are to meet the rules, too, and its route is not to be remembered.
        host.run(|| {
            fs::write("/proc/sys/net/ipv4/tcp_early_demux", "0").expect("an administrator may write it");
        });
        must(&["-n", namespace, "rule", "add", "pref", LOCAL_RULE, "lookup", "local"]);
        must(&["-n", namespace, "rule", "del", "pref", "0"]);
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in self.hosts.iter().map(|host| host.namespace.clone()).chain([self.switch()]) {
            // What cannot be removed now is removed by the next test.
            let _ = ip(&["netns", "del", &namespace]);
        }
    }
}

impl Host {
    /// One of its addresses; the first is what it speaks from.
    pub fn address(&self, which: u8) -> Ipv4Addr {
        assert!(which < ADDRESSES, "a host has {ADDRESSES} addresses");
        Ipv4Addr::new(10, 99, self.number, 1 + which)
    }

    /// How a program is started on this host: see [`crate::program::inside`].
    pub fn entry(&self) -> String {
        format!("--net={}", self.path().display())
    }

    /// Runs something of this process on the host: all sockets that it, or a thread that it starts, opens are there.
    pub fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).expect("the namespace is there");
        let acting = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("an administrator may enter it");
            act()
        };
        let acted = std::thread::scope(|scope| scope.spawn(acting).join());
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(NAMESPACES).join(&self.namespace)
    }
}

/// Removes the namespaces of test processes that are dead.
fn remove_left_behind() {
    let Ok(entries) = fs::read_dir(NAMESPACES) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true)) {
            // Another test may have removed it at the same time.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Output {
    // Debian puts it where an ordinary user does not look.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let run = Command::new("ip").env("PATH", path).args(arguments).output();
    run.unwrap_or_else(|error| panic!("ip of iproute2 is needed: {error}"))
}

fn must(arguments: &[&str]) {
    let output = ip(arguments);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {why}", arguments.join(" "));
}
