//! A Sublet of several processes: `sublet manager`s of one store and `sublet agent`s, by TLS and with tokens, on
//! addresses and in folders of the test's own. Each can be killed, stopped and started again.
//!
//! All agents lend cores of this one machine, each the same ones. Nothing here asks how long something took.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use serde_json::Value;
use sublet::{Access, Allocation, Code, Invoker};
use sublet_proto::v1::{
    BillLine, BillRequest, CreateTokenReply, CreateTokenRequest, Lease, LeaseState, NodeInfo, NodeState,
    Quota, Role, Tenant,
};
use tempfile::TempDir;

use crate::disk::SmallDisk;
use crate::functions::package;
use crate::nats::{self, NatsServer};
use crate::network::{Host, SwitchedNetwork};
use crate::numbers::narrow;
use crate::platform::{assert_echoes, by_programs, sublet};
use crate::process::{self, is_alive, wait_until};
use crate::program::{ServerProgram, inside};

/// The port of managers on hosts of their own.
const PORT: u16 = 7433;
/// Hosts of a [`SwitchedNetwork`], by their numbers: clients, all managers with their store, and from here on agents.
pub const CLIENT_HOST: u8 = 0;
/// See [`CLIENT_HOST`].
pub const MANAGER_HOST: u8 = 1;
/// See [`CLIENT_HOST`].
pub const FIRST_AGENT_HOST: u8 = 2;
/// Whose tokens users have if a test does not care.
pub const TENANT: &str = "somebody";

/// Parts of a cluster, other than its agents.
pub struct ClusterPlan {
    /// Number of managers.
    pub managers: u8,
    /// Store that the managers share.
    pub store: StoreChoice,
    /// Network of the cluster, if it is to run on hosts of its own.
    pub network: Option<SwitchedNetwork>,
    /// Size of the small disk for a manager's state, if there is to be one.
    pub disk_bytes: Option<u64>,
    /// Further command-line arguments of the managers.
    pub arguments: Vec<String>,
    /// Folder of the programs of managers and agents, if that is not the one of this build.
    pub programs: Option<PathBuf>,
}

/// Store that managers share.
pub enum StoreChoice {
    /// A file: for one manager.
    Embedded,
    /// A server of the test's own.
    Nats(nats::NatsSettings),
}

/// Cores that an agent lends.
#[derive(Clone, Copy, Debug)]
pub struct LentCores {
    /// Cores that are leased whole, each to one lease.
    pub cores: u32,
    /// Cores that several leases share, and the number of workers that they take.
    pub shared: Option<(u32, u32)>,
}

/// Running managers and agents; gone when it is dropped.
pub struct Cluster {
    /// Agents, in the order of their starts.
    pub agents: Vec<AgentProcess>,
    /// Managers, in the order of their starts.
    pub managers: Vec<ManagerProcess>,
    /// The store of the managers, if it is a server.
    pub nats: Option<NatsServer>,
    /// The hosts of the managers and agents.
    pub network: Option<SwitchedNetwork>,
    /// The first manager's disk, if it is a small one.
    pub disk: Option<SmallDisk>,
    /// Folder of the programs of those that are started next, if that is not the one of this build.
    pub programs: Option<PathBuf>,
    ca: Vec<u8>,
    folder: TempDir,
}

/// A manager's process.
pub struct ManagerProcess {
    program: ServerProgram,
    state: PathBuf,
    socket: PathBuf,
    /// `https://...`
    pub address: String,
    /// The address's number part.
    pub ip: Ipv4Addr,
}

/// An agent's process.
pub struct AgentProcess {
    program: ServerProgram,
    state: PathBuf,
    /// Name of the agent's node.
    pub name: String,
    /// Host on which the agent runs.
    pub host: Option<Host>,
}

impl Default for ClusterPlan {
    fn default() -> ClusterPlan {
        ClusterPlan {
            managers: 1,
            store: StoreChoice::Embedded,
            network: None,
            disk_bytes: None,
            arguments: Vec::new(),
            programs: None,
        }
    }
}

impl ClusterPlan {
    /// Managers of one NATS server.
    pub fn of_managers(managers: u8) -> ClusterPlan {
        ClusterPlan {
            managers,
            store: StoreChoice::Nats(nats::NatsSettings::default()),
            ..ClusterPlan::default()
        }
    }
}

impl LentCores {
    /// Lends `cores` cores and no shared ones.
    pub fn cores(cores: u32) -> LentCores {
        LentCores { cores, shared: None }
    }

    /// Lends `cores` shared cores that take `places` workers, and no others.
    pub fn shared(cores: u32, places: u32) -> LentCores {
        LentCores { cores: 0, shared: Some((cores, places)) }
    }
}

impl Cluster {
    /// Starts one manager and `agents` agents, which lend a core each.
    pub fn with_agents(agents: usize) -> Cluster {
        let mut cluster = Cluster::start(ClusterPlan::default());
        for _ in 0..agents {
            cluster.add_agent(LentCores::cores(1));
        }
        cluster
    }

    /// Starts managers.
    pub fn start(plan: ClusterPlan) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder for temporary files is there");
        let host = plan.network.as_ref().map(|network| network.host(MANAGER_HOST));
        let nats = match &plan.store {
            StoreChoice::Embedded => None,
            StoreChoice::Nats(settings) => Some(match &host {
                None => NatsServer::start_with(settings),
                Some(host) => host.run(|| NatsServer::start_with(settings)),
            }),
        };
        let disk = plan.disk_bytes.map(|bytes| {
            let state = folder.path().join(manager_name(0));
            fs::create_dir(&state).expect("the folder can be written to");
            SmallDisk::mount(&state, bytes)
        });
        let disk = disk.flatten();
        let mut cluster = Cluster {
            agents: Vec::new(),
            managers: Vec::new(),
            nats,
            network: plan.network,
            disk,
            programs: plan.programs,
            ca: Vec::new(),
            folder,
        };
        for number in 0..plan.managers {
            let manager = cluster.start_manager(number, host.as_ref(), &plan.arguments);
            cluster.managers.push(manager);
        }
        cluster
    }

    /// Starts a manager above those that there are, which is not among them.
    pub fn start_global(&mut self) -> ManagerProcess {
        self.start_manager(narrow(self.managers.len()), None, &["--global".to_owned()])
    }

    fn start_manager(&mut self, number: u8, host: Option<&Host>, more: &[String]) -> ManagerProcess {
        let (ip, port) = match host {
            Some(host) => (host.address(number), PORT),
            None => free_address(),
        };
        let (name, address) = (manager_name(number), format!("https://{ip}:{port}"));
        let (state, socket) =
            (self.folder.path().join(&name), self.folder.path().join(format!("{name}.sock")));
        let mut arguments: Vec<String> = ["manager", "--json", "--state"].map(str::to_owned).into();
        arguments.extend([state.display().to_string(), "--socket".into(), socket.display().to_string()]);
        arguments.extend(["--listen".into(), format!("{ip}:{port}")]);
        arguments.extend(["--tls-names".into(), ip.to_string(), "--advertise".into(), address.clone()]);
        if let Some(nats) = &self.nats {
            arguments.extend(["--store".into(), "nats".into(), "--store-url".into(), nats.url()]);
        }
        arguments.extend(more.iter().cloned());
        let entry = host.map(Host::entry).or(self.disk.as_ref().map(SmallDisk::entry));
        let program = ServerProgram::start(&name, self.folder.path(), self.maker(arguments, entry));
        let state = self.disk.as_ref().map_or(state, SmallDisk::path);
        let certificate = fs::read(state.join("tls/ca.pem")).expect("the manager has made a certificate");
        self.ca.extend(certificate);
        fs::write(self.ca_file(), &self.ca).expect("the folder can be written to");
        ManagerProcess { program, state, socket, address, ip }
    }

    /// Starts an agent, on the next host if there are hosts, and waits until its node is lent. Says its number.
    pub fn add_agent(&mut self, lent: LentCores) -> usize {
        self.add_agent_with(lent, &[])
    }

    /// Does what [`Cluster::add_agent`] does, with further command-line arguments.
    pub fn add_agent_with(&mut self, lent: LentCores, more: &[&str]) -> usize {
        self.add_agent_to(&self.addresses(), lent, more)
    }

    /// Does what [`Cluster::add_agent`] does, with an agent that knows only these managers.
    pub fn add_agent_to(&mut self, managers: &str, lent: LentCores, more: &[&str]) -> usize {
        let number = self.agents.len();
        let name = format!("node-{number}");
        let token = self.token(&CreateTokenRequest {
            role: Role::Agent.into(),
            node: name.clone(),
            ..CreateTokenRequest::default()
        });
        let mut agent = self.begin_agent_to(managers, &name, &token.secret, lent, more);
        agent.program.wait_until_it_serves();
        self.agents.push(agent);
        number
    }

    /// Does what [`Cluster::add_agent_with`] does, with the agent's state on a small disk: one that was mounted at
    /// [`Cluster::next_agents_state`].
    pub fn add_agent_on(&mut self, disk: &SmallDisk, lent: LentCores, more: &[&str]) -> usize {
        let number = self.agents.len();
        let name = format!("node-{number}");
        let request = CreateTokenRequest {
            role: Role::Agent.into(),
            node: name.clone(),
            ..CreateTokenRequest::default()
        };
        let (token, managers) = (self.token(&request).secret, self.addresses());
        let mut agent = self.begin_agent_by(&managers, &name, &token, lent, more, Some(disk.entry()));
        agent.program.wait_until_it_serves();
        self.agents.push(agent);
        number
    }

    /// The state folder of the agent that is added next.
    pub fn next_agents_state(&self) -> PathBuf {
        self.folder.path().join(format!("node-{}", self.agents.len()))
    }

    /// Starts an agent with a token, and does not wait for anything.
    pub fn begin_agent(&self, name: &str, token: &str, lent: LentCores, more: &[&str]) -> AgentProcess {
        self.begin_agent_to(&self.addresses(), name, token, lent, more)
    }

    /// Does what [`Cluster::begin_agent`] does, with an agent that knows only these managers.
    pub fn begin_agent_to(
        &self,
        managers: &str,
        name: &str,
        token: &str,
        lent: LentCores,
        more: &[&str],
    ) -> AgentProcess {
        self.begin_agent_by(managers, name, token, lent, more, None)
    }

    fn begin_agent_by(
        &self,
        managers: &str,
        name: &str,
        token: &str,
        lent: LentCores,
        more: &[&str],
        entry: Option<Vec<String>>,
    ) -> AgentProcess {
        let host = self
            .network
            .as_ref()
            .map(|network| network.host(FIRST_AGENT_HOST + narrow::<_, u8>(self.agents.len())));
        let state = self.folder.path().join(name);
        let token_file = self.folder.path().join(format!("{name}.token"));
        fs::write(&token_file, token).expect("the folder can be written to");
        let mut arguments: Vec<String> = ["agent", "--json", "--name", name].map(str::to_owned).into();
        for (flag, value) in [
            ("--state", state.display().to_string()),
            ("--manager", managers.to_owned()),
            ("--ca", self.ca_file().display().to_string()),
            ("--token-file", token_file.display().to_string()),
            ("--cores", lent.cores.to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        // Several agents may be on one host.
        if !more.contains(&"--listen") {
            let any_port = if host.is_some() { "0.0.0.0:0" } else { "127.0.0.1:0" };
            arguments.extend(["--listen".into(), any_port.into()]);
        }
        if let Some((cores, places)) = lent.shared {
            arguments.extend(["--shared-cores".into(), cores.to_string()]);
            arguments.extend(["--shared-places".into(), places.to_string()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let program = ServerProgram::begin(
            name,
            self.folder.path(),
            self.maker(arguments, entry.or(host.as_ref().map(Host::entry))),
        );
        AgentProcess { program, state, name: name.to_owned(), host }
    }

    /// The addresses of all managers, as clients and agents take them.
    pub fn addresses(&self) -> String {
        let addresses: Vec<_> = self.managers.iter().map(|manager| manager.address.clone()).collect();
        addresses.join(",")
    }

    /// Path of the certificate authority to trust.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The test's own folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Makes a token.
    pub fn token(&self, request: &CreateTokenRequest) -> CreateTokenReply {
        let made = self.operator().manager().create_token(request.clone());
        made.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A token of a user of a tenant.
    pub fn user_token(&self, tenant: &str) -> CreateTokenReply {
        self.token(&CreateTokenRequest {
            tenant: tenant.to_owned(),
            role: Role::User.into(),
            ..CreateTokenRequest::default()
        })
    }

    /// The way of a user of a tenant to all managers.
    pub fn user(&self, tenant: &str) -> Access {
        self.access(&self.addresses(), &self.user_token(tenant).secret)
    }

    /// The way to managers with a token.
    pub fn access(&self, managers: &str, token: &str) -> Access {
        let access = Access::parse(managers).and_then(|access| access.with_ca_file(&self.ca_file()));
        access.and_then(|access| access.with_token(token)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Bounds a tenant.
    pub fn set_quota(&self, tenant: &str, quota: Quota) {
        let tenant = Tenant { name: tenant.to_owned(), quota: Some(quota), ..Tenant::default() };
        self.operator().manager().set_tenant(tenant).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A client of some tenant, without a lease.
    pub fn invoker(&self) -> Invoker {
        connect(&self.user(TENANT))
    }

    /// A client of some tenant with a core for the functions of a source.
    pub fn client(&self, source: &'static str) -> Invoker {
        let mut invoker = self.invoker();
        invoker.allocate(&Allocation::new(package(source))).unwrap_or_else(|error| panic!("{error}"));
        invoker
    }

    /// An operator, by the first manager's own socket.
    pub fn operator(&self) -> Invoker {
        self.managers[0].operator()
    }

    /// The command, as an operator beside the first manager.
    pub fn command(&self) -> Command {
        self.managers[0].command()
    }

    /// Deploys a package and makes it public, as an operator beside the first manager.
    #[track_caller]
    pub fn publish(&self, path: impl AsRef<Path>) {
        self.managers[0].publish(path);
    }

    /// The command on a host, as a user of some tenant.
    pub fn user_command(&self, host: &Host) -> Command {
        let mut command = sublet();
        command.env("SUBLET_MANAGER", self.addresses()).env("SUBLET_CA", self.ca_file());
        command.env("SUBLET_TOKEN", self.user_token(TENANT).secret);
        inside(&host.entry(), &command)
    }

    /// Runs the command with `--json` and returns the JSON that it prints.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        self.managers[0].json(arguments)
    }

    /// A node, as the first manager has it.
    pub fn node(&self, name: &str) -> Option<NodeInfo> {
        self.managers[0].node(name)
    }

    /// A lease, ended or not, as the first manager has it.
    pub fn lease(&self, id: &str) -> Option<Lease> {
        let leases = self.operator().manager().leases_with_ended().unwrap_or_else(|error| panic!("{error}"));
        leases.into_iter().find(|lease| lease.id == id)
    }

    /// The line of a lease's bill, when there is one: a lease is billed from its first report on.
    #[track_caller]
    pub fn billed(&self, lease: &str) -> BillLine {
        let (operator, mut line) = (self.operator(), None);
        wait_until("the lease is on a bill", || {
            let request = BillRequest { lease: lease.to_owned(), ..BillRequest::default() };
            match operator.manager().bill(request) {
                Ok(bill) => line = bill.lines.into_iter().next(),
                Err(error) => assert_eq!(error.code, Code::UnknownLease, "{error}"),
            }
            line.is_some()
        });
        line.unwrap_or_default()
    }

    /// Waits until a lease's end has been reported, and gives its bill, which is the last one.
    #[track_caller]
    pub fn final_bill(&self, lease: &str) -> BillLine {
        wait_until("the end of the lease is known", || {
            self.lease(lease).is_some_and(|lease| lease.state() == LeaseState::Ended)
        });
        self.billed(lease)
    }

    /// Waits until nothing is leased any more of the nodes that are heard of.
    #[track_caller]
    pub fn wait_until_idle(&self) {
        wait_until("nothing is leased any more", || {
            let nodes = self.managers.iter().flat_map(ManagerProcess::nodes);
            let idle = |node: NodeInfo| {
                let leased = (node.cores_leased, node.shared_leased, node.memory_leased_bytes);
                leased == (0, 0, 0) || node.state() == NodeState::Lost
            };
            nodes.into_iter().all(idle)
        });
    }

    /// A new client can take a lease, call and give the lease back.
    #[track_caller]
    pub fn assert_serves(&self) {
        let mut client = self.invoker();
        // A request waits at the manager that it has reached, whose agents may have moved to another.
        let allocation = Allocation::new(package("calls.c")).wait(Duration::from_secs(10));
        wait_until("a lease is granted", || client.allocate(&allocation).is_ok());
        assert_echoes(&client);
        client.deallocate().unwrap_or_else(|error| panic!("{error}"));
    }

    /// How to start `sublet`, again and again, on a host or with a disk of its own.
    fn maker(
        &self,
        arguments: Vec<String>,
        entry: Option<Vec<String>>,
    ) -> impl Fn() -> Command + Send + Sync + use<> + 'static {
        let programs = self.programs.clone();
        move || {
            let mut command = sublet();
            command.args(&arguments).env("SUBLET_LOG", "info");
            for variable in ["SUBLET_CA", "SUBLET_TOKEN", "SUBLET_TOKEN_FILE"] {
                command.env_remove(variable);
            }
            if let Some(programs) = &programs {
                command = by_programs(&command, programs);
            }
            match &entry {
                None => command,
                Some(entry) => inside(entry, &command),
            }
        }
    }

    fn workers(&self) -> Vec<u32> {
        self.agents.iter().flat_map(AgentProcess::workers).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let workers = self.workers();
        self.agents.clear();
        self.managers.clear();
        if !std::thread::panicking() {
            let any_lives = || workers.iter().any(|&worker| is_alive(worker));
            wait_until("workers die with their agents", || !any_lives());
        }
    }
}

impl ManagerProcess {
    /// An operator, by its own socket.
    pub fn operator(&self) -> Invoker {
        Invoker::connect_to(&self.socket()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The command, as an operator beside it.
    pub fn command(&self) -> Command {
        let mut command = sublet();
        command.env("SUBLET_MANAGER", self.socket());
        command
    }

    /// Runs the command with `--json` and returns the JSON that it prints.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command().args(arguments).arg("--json").output().expect("sublet can be executed");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("--json prints JSON")
    }

    /// Deploys a package and makes it public, as an operator.
    #[track_caller]
    pub fn publish(&self, path: impl AsRef<Path>) {
        let deployed = self.json(&["deploy", path.as_ref().to_str().expect("the path is UTF-8")]);
        self.json(&["package", "publish", deployed["name"].as_str().expect("a package has a name")]);
    }

    /// Path of the manager's state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Nodes that the manager lists.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.operator().manager().nodes().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A node that has registered with it.
    pub fn node(&self, name: &str) -> Option<NodeInfo> {
        self.nodes().into_iter().find(|node| node.description.as_ref().is_some_and(|said| said.name == name))
    }

    /// Whether it has the node and hears of it.
    pub fn hears_of(&self, name: &str) -> bool {
        self.node(name).is_some_and(|node| node.state() != NodeState::Lost)
    }

    /// The manager's TCP address.
    ///
    /// # Panics
    /// If it is not one of version 4.
    pub fn socket_address(&self) -> SocketAddrV4 {
        let address = self.address.strip_prefix("https://").and_then(|address| address.parse().ok());
        address.expect("a manager of a test has an address of version 4")
    }

    /// The address of its own socket, for operators.
    pub fn socket(&self) -> String {
        format!("unix:{}", self.socket.display())
    }
}

impl AgentProcess {
    /// Path of the agent's state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The processes of its workers.
    pub fn workers(&self) -> Vec<u32> {
        process::workers(self.pid())
    }

    /// The process of its only worker.
    #[track_caller]
    pub fn worker(&self) -> u32 {
        let workers = self.workers();
        assert_eq!(workers.len(), 1, "workers: {workers:?}");
        workers[0]
    }

    /// Command with which an operator changes the running agent: `--drain`, `--reclaim`, `--lend`.
    pub fn told<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = sublet();
        command.args(["agent", "--json", "--state"]).arg(&self.state).args(arguments);
        command
    }
}

impl Deref for ManagerProcess {
    type Target = ServerProgram;
    fn deref(&self) -> &ServerProgram {
        &self.program
    }
}

impl DerefMut for ManagerProcess {
    fn deref_mut(&mut self) -> &mut ServerProgram {
        &mut self.program
    }
}

impl Deref for AgentProcess {
    type Target = ServerProgram;
    fn deref(&self) -> &ServerProgram {
        &self.program
    }
}

impl DerefMut for AgentProcess {
    fn deref_mut(&mut self) -> &mut ServerProgram {
        &mut self.program
    }
}

/// A client.
#[track_caller]
pub fn connect(access: &Access) -> Invoker {
    Invoker::connect_with(access.clone()).unwrap_or_else(|error| panic!("{error}"))
}

fn manager_name(number: u8) -> String {
    format!("manager-{number}")
}

/// Returns a loopback address that no other test has, and a port on it. No connection starts at that address, so the
/// port stays free while a manager is dead.
pub fn free_address() -> (Ipv4Addr, u16) {
    // Addresses are taken again after 256 others.
    static TAKEN: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, high, low, TAKEN.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((IpAddr::V4(ip), 0)).expect("there is a free port");
    (ip, listener.local_addr().expect("a listener has an address").port())
}
