//! Hosts of a test's own: network namespaces, each with a cable to one switch, on which links can be cut.
//!
//! A program is started on a host by its [`Host::entry`], and [`Host::run`] lets a thread of the test itself talk from
//! there. All hosts see the same files, so a client and an agent on two hosts of [`SwitchedNetwork::make`] still reach each
//! other by a Unix socket. Hosts of [`SwitchedNetwork::of_machines`] are machines to Sublet: a program that is started on one
//! sees a boot id of its own, and shares memory with no program elsewhere.
//!
//! A link is cut in one direction: a packet from one address to another is dropped where it arrives, and neither side
//! is notified. All hosts are in namespaces that are named for the test's process, so tests run beside each other. The
//! namespaces are removed when the [`SwitchedNetwork`] is dropped; those that a killed test has left behind are removed by the
//! next test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sublet_means::{Means, skip};
use tempfile::NamedTempFile;

use crate::process::wait_until;

/// Where `ip netns` keeps names.
const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "sublet-test-";
/// Addresses that each host has.
pub const ADDRESSES: u8 = 4;
/// The rule by which the kernel knows its own addresses, moved behind those that drop.
const LOCAL_RULE: &str = "100";
const DROPPING_RULES: &str = "50";
/// Shell command that gives a host a boot id of its own until its standard input ends.
const HOLD: &str = r#"mount --bind "$1" /proc/sys/kernel/random/boot_id && echo held && cat"#;

/// Hosts on one switch.
pub struct SwitchedNetwork {
    name: String,
    hosts: Vec<Host>,
}

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    namespace: String,
    number: u8,
    machine: Option<Arc<HostMachine>>,
}

/// Process that holds the mounts of a host, which make the host a machine.
#[derive(Debug)]
struct HostMachine {
    holder: Child,
    _boot_id: NamedTempFile,
}

impl SwitchedNetwork {
    /// Makes `hosts` hosts. Returns `None`, and says so on standard output, where this user may not make any.
    ///
    /// # Panics
    /// If one could be made and the rest cannot.
    pub fn make(hosts: u8) -> Option<SwitchedNetwork> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        remove_left_behind();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let mut network = SwitchedNetwork { name, hosts: Vec::new() };
        let switch = network.switch();
        let tried = ip(&["netns", "add", &switch]);
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr);
            skip(
                Means::Namespaces,
                format_args!("this user may not make network namespaces: {}", why.trim()),
            );
            return None;
        }
        must(&["-n", &switch, "link", "add", "switch", "type", "bridge"]);
        must(&["-n", &switch, "link", "set", "switch", "up"]);
        for number in 0..hosts {
            network.add_host(number);
        }
        Some(network)
    }

    /// Does what [`SwitchedNetwork::make`] does, with hosts that are machines.
    pub fn of_machines(hosts: u8) -> Option<SwitchedNetwork> {
        let mut network = SwitchedNetwork::make(hosts)?;
        for host in &mut network.hosts {
            host.machine = Some(Arc::new(HostMachine::start(host)));
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

    /// Undoes one [`SwitchedNetwork::cut`].
    pub fn mend(&self, from: Ipv4Addr, to: Ipv4Addr) {
        self.rule("del", from, to);
    }

    /// Limits the rate at which a host sends and receives, in Mbit/s.
    pub fn shape(&self, host: u8, mbit: u32) {
        let (switch, port, rate) = (self.switch(), port(host), format!("{mbit}mbit"));
        let limits = ["root", "tbf", "rate", &rate, "burst", "256kb", "latency", "50ms"];
        let [up, down] =
            [(self.namespace(host), "eth0"), (switch.as_str(), port.as_str())].map(|(namespace, device)| {
                ["-n", namespace, "qdisc", "add", "dev", device].into_iter().chain(limits).collect::<Vec<_>>()
            });
        must_tc(&up);
        must_tc(&down);
    }

    /// Sets the largest packet of a host's interface, which cuts what it sends by itself, as a card does on a wire.
    pub fn set_mtu(&self, host: u8, bytes: u32) {
        let bytes = bytes.to_string();
        must(&["-n", self.namespace(host), "link", "set", "eth0", "mtu", &bytes, "gso_max_segs", "1"]);
    }

    /// Sets the largest packet that the switch takes from and gives to a host. The switch drops larger packets without
    /// an error.
    pub fn set_port_mtu(&self, host: u8, bytes: u32) {
        must(&["-n", &self.switch(), "link", "set", &port(host), "mtu", &bytes.to_string()]);
    }

    /// Takes a host's interface away, for good.
    pub fn unplug(&self, host: u8) {
        must(&["-n", self.namespace(host), "link", "del", "eth0"]);
    }

    fn namespace(&self, host: u8) -> &str {
        &self.hosts[usize::from(host)].namespace
    }

    fn rule(&self, verb: &str, from: Ipv4Addr, to: Ipv4Addr) {
        let [.., host, _] = to.octets();
        let namespace = &self.hosts[usize::from(host)].namespace;
        let (from, to) = (from.to_string(), to.to_string());
        let place = ["-n", namespace, "rule", verb, "pref", DROPPING_RULES];
        must(&[&place[..], &["from", &from, "to", &to, "blackhole"]].concat());
    }

    fn add_host(&mut self, number: u8) {
        let host = Host { namespace: format!("{}-{number}", self.name), number, machine: None };
        let (namespace, switch, port) = (host.namespace.as_str(), self.switch(), port(number));
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

impl Drop for SwitchedNetwork {
    fn drop(&mut self) {
        for namespace in self.hosts.iter().map(|host| host.namespace.clone()).chain([self.switch()]) {
            // The next test removes a namespace that cannot be removed now.
            let _ = ip(&["netns", "del", &namespace]);
        }
    }
}

/// How many connections lead from this thread's machine to an address.
pub fn connections_to(address: SocketAddrV4) -> usize {
    const ESTABLISHED: &str = "01";
    let there = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    let leads_there = |line: &'_ str| {
        let mut fields = line.split_whitespace().skip(1);
        let from = fields.next()?.to_owned();
        (fields.next() == Some(&there) && fields.next() == Some(ESTABLISHED)).then_some(from)
    };
    let known = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the kernel lists them");
    // While others come and go the list, which is read piece by piece, has some twice.
    known.lines().filter_map(leads_there).collect::<BTreeSet<_>>().len()
}

/// Waits until a machine has acknowledged everything that this thread's machine has sent to its address.
#[track_caller]
pub fn wait_until_acknowledged(address: Ipv4Addr) {
    let there = format!("{:08X}:", u32::from_ne_bytes(address.octets()));
    let has_unacknowledged = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_open = fields.get(3) == Some(&"01");
        let leads_there = fields.get(2).is_some_and(|to| to.starts_with(&there));
        // Bytes that are sent and not acknowledged, and bytes that are received and not read.
        is_open && leads_there && fields.get(4).is_some_and(|queues| !queues.starts_with("00000000:"))
    };
    wait_until("all that was sent is acknowledged", || {
        let known = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the kernel lists them");
        !known.lines().any(has_unacknowledged)
    });
}

impl Host {
    /// One of its addresses; the first is what it speaks from.
    pub fn address(&self, which: u8) -> Ipv4Addr {
        assert!(which < ADDRESSES, "a host has {ADDRESSES} addresses");
        Ipv4Addr::new(10, 99, self.number, 1 + which)
    }

    /// How a program is started on this host: see [`crate::program::inside`].
    pub fn entry(&self) -> Vec<String> {
        match &self.machine {
            None => vec![format!("--net={}", self.path().display())],
            Some(machine) => {
                vec!["--target".into(), machine.holder.id().to_string(), "--net".into(), "--mount".into()]
            }
        }
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

    /// Number of bytes that have passed the host's interface, in both directions.
    pub fn passed_bytes(&self) -> u64 {
        let read = self.run(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let devices = read.expect("the kernel lists them");
        let line = devices.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
        let line = line.expect("a host has an interface");
        let counts: Vec<u64> =
            line.split_whitespace().map(|count| count.parse().expect("it is a number")).collect();
        // The first count is of received bytes, and the ninth of sent ones.
        counts[0] + counts[8]
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(NAMESPACES).join(&self.namespace)
    }
}

impl HostMachine {
    fn start(host: &Host) -> HostMachine {
        let mut boot_id = NamedTempFile::new().expect("a folder for temporary files is there");
        let [.., low] = host.number.to_be_bytes();
        writeln!(boot_id, "{:08x}-0000-4000-8000-0000000000{low:02x}", std::process::id())
            .expect("a temporary file can be written to");
        let mut holder = Command::new("nsenter")
            .args(host.entry())
            .args(["unshare", "--mount", "sh", "-c", HOLD, "hold"])
            .arg(boot_id.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter of util-linux can be executed");
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("its standard output is a pipe");
        BufReader::new(stdout).read_line(&mut said).expect("a pipe can be read");
        assert_eq!(said.trim(), "held", "a user that may make network namespaces may mount");
        HostMachine { holder, _boot_id: boot_id }
    }
}

impl Drop for HostMachine {
    fn drop(&mut self) {
        // If it has ended already, that is as well.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A host's place at the switch.
fn port(host: u8) -> String {
    format!("port{host}")
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
    iproute2("ip", arguments)
}

fn must(arguments: &[&str]) {
    must_succeed("ip", arguments, &ip(arguments));
}

fn must_tc(arguments: &[&str]) {
    must_succeed("tc", arguments, &iproute2("tc", arguments));
}

fn must_succeed(program: &str, arguments: &[&str], output: &Output) {
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {why}", arguments.join(" "));
}

fn iproute2(program: &str, arguments: &[&str]) -> Output {
    // Debian puts it where an ordinary user does not look.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let run = Command::new(program).env("PATH", path).args(arguments).output();
    run.unwrap_or_else(|error| panic!("{program} of iproute2 is needed: {error}"))
}
