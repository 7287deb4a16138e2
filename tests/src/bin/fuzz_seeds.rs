//! `fuzz-seeds FOLDER`: writes the first inputs of the fuzz targets, made by the real encoders.
//!
//! They are made and not kept, so they follow every change of the schema by themselves. An input's first bytes are
//! what the target of that name reads first: which message follows.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

use prost::Message;
use sublet_proto::ticket::Signing;
use sublet_proto::v1::{self, agent_to_client, client_to_agent, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, package};
use sublet_tests::numbers::narrow;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: fuzz-seeds FOLDER");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz-seeds: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    write(folder, "package_validate", packages(folder)?)?;
    write(folder, "ticket_verify", tickets())?;
    write(folder, "control_messages", control_messages())?;
    write(folder, "node_messages", node_messages())?;
    write(folder, "wire_request", vec![vec![0; 44], vec![1; 44]])?;
    write(folder, "image", images())?;
    write(folder, "listeners", at_listeners())?;
    write(folder, "error_status", statuses())
}

fn write(folder: &Path, target: &str, seeds: Vec<Vec<u8>>) -> io::Result<()> {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    for (index, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(index.to_string()), seed)?;
    }
    Ok(())
}

/// The bytes after the number that says what they are.
fn tagged(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], bytes].concat()
}

fn packages(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    const MANIFEST: &str = "name = \"seed\"\nlibrary = \"lib/seed.so\"\n\n[[function]]\nname = \"noop\"\n";
    let library = fs::read(shared_object(folder)?)?;
    let file = v1::PackageFile { path: "lib/seed.so".into(), data: library.clone(), executable: true };
    let made = package::from_files(MANIFEST, vec![file]).map_err(io::Error::other)?;
    // The same package with its fields the other way round: it must not pass as a second package.
    let manifest = v1::Package { manifest: MANIFEST.into(), files: Vec::new() }.encode_to_vec();
    let files = v1::Package { manifest: String::new(), files: made.files.clone() }.encode_to_vec();
    let source = v1::PackageFile { path: "k.cl".into(), data: b"kernel".to_vec(), executable: false };
    let kernels = package::from_files(KERNELS, vec![source]).map_err(io::Error::other)?;
    Ok(vec![
        tagged(0, &package::encode(&made)),
        tagged(0, &[files, manifest].concat()),
        tagged(1, &library),
        tagged(1, MODULE),
        tagged(2, MANIFEST.as_bytes()),
        tagged(0, &package::encode(&kernels)),
        tagged(2, KERNELS.as_bytes()),
    ])
}

/// A package of kernels, with all that it can say of them.
const KERNELS: &str = "name = \"k\"\nkind = \"opencl\"\nlibrary = \"k.cl\"\n[kernels]\noptions = \"-DN=2 -cl-x\"\n\
    deadline_ms = 7\n[[function]]\nname = \"f\"\nsymbol = \"g\"\nprogram = \"k.cl\"\nitems = 2\nbytes_per_item = 4\ngroup = 8\n";

/// A WebAssembly module with a memory and one function.
const MODULE: &[u8] =
    b"\0asm\x01\0\0\0\x01\x08\x01\x60\x03\x7f\x7f\x7f\x01\x7f\x03\x02\x01\0\x05\x03\x01\0\x01\
    \x07\x11\x02\x06memory\x02\0\x04noop\0\0\x0a\x06\x01\x04\0\x41\0\x0b";

/// A shared object of a kilobyte or two, with one function.
fn shared_object(folder: &Path) -> io::Result<PathBuf> {
    const SOURCE: &str = "unsigned noop(void *in, unsigned size, void *out) { return 0; }\n";
    const SMALL: &[&str] =
        &["-shared", "-fPIC", "-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,-z,noseparate-code"];
    fs::create_dir_all(folder)?;
    let (source, library) = (folder.join("seed.c"), folder.join("seed.so"));
    fs::write(&source, SOURCE)?;
    let status = Command::new("cc").args(SMALL).arg("-o").arg(&library).arg(&source).status()?;
    if status.success() { Ok(library) } else { Err(io::Error::other(format!("cc: {status}"))) }
}

fn lease() -> v1::Lease {
    v1::Lease {
        id: "0123456789abcdef0123456789abcdef".into(),
        tenant: "tenant".into(),
        node: "node".into(),
        cores: 2,
        memory_bytes: 1 << 30,
        granted_unix_ms: 999_000,
        expires_unix_ms: 2_000_000,
        options: Some(options()),
        state: v1::LeaseState::Attached.into(),
        price: Some(sublet_proto::price::DEFAULT_PRICE),
        usage: Some(usage()),
        ..v1::Lease::default()
    }
}

fn options() -> v1::WorkerOptions {
    v1::WorkerOptions {
        slots: 8,
        slot_bytes: 4096,
        hot_timeout_ns: 1_000_000,
        swap_bytes: 1 << 30,
        cores: 0,
        swap_if_possible: false,
    }
}

fn usage() -> v1::Usage {
    v1::Usage {
        allocated_ns: 3,
        executing_ns: 2,
        polling_ns: 1,
        calls: 7,
        failed_calls: 1,
        memory_byte_us: 9,
        memory_peak_bytes: 4,
    }
}

/// Seeds for the listeners: the door, how the bytes are cut, and the bytes.
fn at_listeners() -> Vec<Vec<u8>> {
    const WHOLE: u8 = 255;
    let requests = [
        ("v1.Manager/ListNodes", Vec::new()),
        (
            "v1.Manager/ListLeases",
            v1::ListLeasesRequest { include_ended: true, ..Default::default() }.encode_to_vec(),
        ),
        ("v1.Manager/Resolve", v1::ResolveRequest { name: "seed/noop".into() }.encode_to_vec()),
        (
            "v1.Manager/RequestLease",
            v1::LeaseRequest { package: "seed".into(), cores: 1, ..Default::default() }.encode_to_vec(),
        ),
        (
            "v1.Nodes/Register",
            v1::Registration { node: Some(node()), instance: "2".repeat(32), ..Default::default() }
                .encode_to_vec(),
        ),
    ];
    let requests = requests.iter().map(|(method, message)| http2_request(method, message));
    // In the clear and within TLS.
    let mut seeds: Vec<_> =
        requests.flat_map(|request| [1, 2].map(|door| [&[door, WHOLE], &*request].concat())).collect();
    let ticket = tickets().swap_remove(0);
    let attach = client_to_agent::Body::Attach(v1::Attach { ticket, start: true, ..Default::default() });
    let command =
        client_to_agent::Body::Command(v1::Command { state: v1::NodeState::Lending.into(), grace_ms: 0 });
    for body in [attach, command] {
        let message = v1::ClientToAgent { body: Some(body) }.encode_to_vec();
        seeds.extend([3, 5].map(|door| [&[door, WHOLE], &*message].concat()));
    }
    // A client's greeting, TLS's first record, and calls of the shim: one for each operation.
    seeds.push([&[4, WHOLE], &b"\x89Sublet\n\x01\0\0\0\0\0\0\0"[..], &[0; 64]].concat());
    seeds.push([&[0, WHOLE], &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..], &[7; 64]].concat());
    let calls: Vec<u8> = (0..14u8).flat_map(|operation| [operation, operation, 4, 1, 2, 3, 0, 0]).collect();
    seeds.push([&[6, WHOLE, 0], &*calls].concat());
    seeds
}

/// A call of gRPC as the first bytes of a connection: preface, settings, headers, and the message. Headers are literals.
fn http2_request(method: &str, message: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&[narrow::<_, u8>(text.len())], text.as_bytes()].concat();
    let path = [vec![0x04], text(&format!("/sublet.{method}"))].concat();
    let kind = [vec![0x0f, 0x10], text("application/grpc")].concat();
    let trailers = [vec![0x00], text("te"), text("trailers")].concat();
    let token = [vec![0x0f, 0x08], text("Bearer sublet_0123456789abcdef_AAAA")].concat();
    // POST, and http.
    let headers = [vec![0x83, 0x86], path, kind, trailers, token].concat();
    let body = [&[0], &narrow::<_, u32>(message.len()).to_be_bytes()[..], message].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    [preface, http2_frame(4, 0, 0, &[]), http2_frame(1, 4, 1, &headers), http2_frame(0, 1, 1, &body)].concat()
}

fn http2_frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = narrow::<_, u32>(payload.len()).to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], payload].concat()
}

fn tickets() -> Vec<Vec<u8>> {
    let ticket =
        v1::Ticket { lease: Some(lease()), registration: 1, issued_unix_ms: 999_500, ..Default::default() };
    let signed = Signing::from_seed(&[7; 32]).sign(&ticket);
    vec![tagged(0, &signed), tagged(1, &ticket.encode_to_vec())]
}

fn package_info() -> v1::PackageInfo {
    let function = v1::FunctionInfo { name: "noop".into() };
    let build = v1::PackageBuild { symbols: vec!["noop".into()], ..v1::PackageBuild::default() };
    let (functions, builds) = (vec![function], vec![build]);
    v1::PackageInfo { name: "seed".into(), functions, builds, ..v1::PackageInfo::default() }
}

fn node() -> v1::NodeDescription {
    v1::NodeDescription {
        name: "node".into(),
        agent: "unix:/agent.sock".into(),
        cores: 2,
        network: Some(v1::NodeNetwork {
            address: "192.0.2.7:7441".into(),
            certificate: vec![1; 40],
            fabrics: vec!["tcp".into()],
            encrypted: false,
        }),
        devices: vec!["opencl".into()],
        neighbours: vec!["dpu".into()],
        device_units: vec![device()],
        model: "a processor".into(),
        ..Default::default()
    }
}

fn device() -> v1::DeviceUnit {
    let device = sublet_proto::pu::undescribed("opencl");
    v1::DeviceUnit { model: "a device".into(), compute_units: 2, memory_bytes: 1 << 30, ..device }
}

fn neighbours() -> v1::Neighbours {
    let neighbour = v1::Neighbour {
        node: "dpu".into(),
        unit: 7,
        network: node().network,
        secret: vec![7; 32],
        registration: 1,
        ..Default::default()
    };
    v1::Neighbours { version: 1, all: vec![neighbour] }
}

/// Seeds of control messages, in the order in which the target numbers them.
fn control_messages() -> Vec<Vec<u8>> {
    let bill = sublet_proto::price::bill(&lease());
    let grant = v1::LeaseGrant {
        ticket: vec![1; 80],
        agent: "unix:/agent.sock".into(),
        lease: Some(lease()),
        package: Some(package_info()),
        host: "host".into(),
        network: node().network,
    };
    let request =
        v1::LeaseRequest { package: "seed".into(), cores: 1, options: Some(options()), ..Default::default() };
    let report = v1::LeaseReport { lease: lease().id, usage: Some(usage()), ..Default::default() };
    let info = v1::NodeInfo { description: Some(node()), cores_leased: 1, ..Default::default() };
    let messages = [
        v1::PackageChunk { data: vec![1, 2, 3] }.encode_to_vec(),
        v1::DeployReply { package: Some(package_info()), known: true, ..Default::default() }.encode_to_vec(),
        v1::ResolveRequest { name: "seed/noop".into() }.encode_to_vec(),
        package_info().encode_to_vec(),
        v1::PackageList { packages: vec![package_info()], next: "1/a/b".into() }.encode_to_vec(),
        request.encode_to_vec(),
        grant.encode_to_vec(),
        v1::ListLeasesRequest { include_ended: true, ..Default::default() }.encode_to_vec(),
        v1::LeaseList { leases: vec![lease(), lease()], next: String::new() }.encode_to_vec(),
        v1::NodeList { nodes: vec![info], next: "a".into() }.encode_to_vec(),
        v1::BillRequest { lease: lease().id, ..Default::default() }.encode_to_vec(),
        v1::BillReply { lines: vec![bill.clone()], total: Some(bill), left_out: 1 }.encode_to_vec(),
        node().encode_to_vec(),
        v1::NodeRegistration {
            verifying_key: vec![7; 32],
            registration: 1,
            neighbours: Some(neighbours()),
            ..Default::default()
        }
        .encode_to_vec(),
        v1::NodeReport { node: "node".into(), leases: vec![report], ..Default::default() }.encode_to_vec(),
        v1::NodeReportReply {
            end: vec![v1::EndOrder { lease: lease().id, ..Default::default() }],
            neighbours: Some(neighbours()),
            ..Default::default()
        }
        .encode_to_vec(),
    ];
    (0..).zip(&messages).map(|(kind, message)| tagged(kind, message)).collect()
}

/// Each arm of each packet's `oneof`, the setup of a worker, and a device.
fn node_messages() -> Vec<Vec<u8>> {
    let setup = v1::WorkerSetup {
        lease: lease().id,
        cores: vec![0, 1],
        options: Some(options()),
        ..Default::default()
    };
    let look = v1::DeviceLook { body: Some(v1::device_look::Body::Device(device())) };
    let mut seeds = vec![tagged(2, &setup.encode_to_vec()), tagged(8, &look.encode_to_vec())];
    seeds.push(tagged(9, &v1::EnterShim { version: 1 }.encode_to_vec()));
    seeds.extend(shim_messages());
    let to_agent = to_agent().map(|body| v1::ClientToAgent { body: Some(body) }.encode_to_vec());
    seeds.extend(to_agent.map(|message| tagged(0, &message)));
    let from_agent = from_agent().map(|body| v1::AgentToClient { body: Some(body) }.encode_to_vec());
    seeds.extend(from_agent.map(|message| tagged(1, &message)));
    let to_worker = to_worker().map(|body| v1::ClientToWorker { body: Some(body) }.encode_to_vec());
    seeds.extend(to_worker.map(|message| tagged(3, &message)));
    let from_worker = from_worker().map(|body| v1::WorkerToClient { body: Some(body) }.encode_to_vec());
    seeds.extend(from_worker.map(|message| tagged(4, &message)));
    seeds
}

/// Each message from a client to an agent.
fn to_agent() -> [client_to_agent::Body; 6] {
    use client_to_agent::Body as ToAgent;
    [
        ToAgent::Attach(v1::Attach {
            ticket: vec![1; 80],
            program: Some(program()),
            ..v1::Attach::default()
        }),
        ToAgent::Start(v1::Start {}),
        ToAgent::Stop(v1::Stop { reason: "deadline".into() }),
        ToAgent::Release(v1::Release {}),
        ToAgent::ToWorker(vec![1; 20]),
        ToAgent::Alive(v1::Alive {}),
    ]
}

/// Each message from an agent to a client.
fn from_agent() -> [agent_to_client::Body; 7] {
    use agent_to_client::Body as FromAgent;
    [
        FromAgent::Attached(v1::Attached {
            inbox_bytes: 1 << 20,
            ticks_per_ns: 2.5,
            link_secret: vec![1; 32],
            worker_certificate: vec![2; 40],
            memory: Some(v1::RegionKey { key: 1 << 20, base: 0, stored: false }),
            joined: false,
            process: 1 << 32 | 1,
            calls: 1,
            messages: 1,
        }),
        FromAgent::Started(v1::Started {
            pid: 7,
            requested_ns: 1,
            package_ready_ns: 2,
            spawned_ns: 3,
            cold_imports: None,
            isolation: "process".into(),
        }),
        FromAgent::WorkerExited(v1::WorkerExited {
            code: Code::WorkerDied.number(),
            reason: "signal 11".into(),
        }),
        FromAgent::LeaseEnded(v1::LeaseEnded { code: 0, reason: "released".into(), usage: Some(usage()) }),
        FromAgent::Failure(failure()),
        FromAgent::FromWorker(vec![1; 20]),
        FromAgent::Alive(v1::Alive {}),
    ]
}

/// Each message from a client to a worker.
fn to_worker() -> [client_to_worker::Body; 3] {
    use client_to_worker::Body as ToWorker;
    [
        ToWorker::Connect(v1::Connect {
            results_bytes: 4096,
            start_positions: vec![0, 1 << 40],
            results: Some(v1::RegionKey { key: 1 << 20, base: 0, stored: false }),
            contacts: vec![vec![1; 40]],
            ..v1::Connect::default()
        }),
        ToWorker::MapRegion(v1::MapRegion { region: 2, len_bytes: 1 << 20, ..v1::MapRegion::default() }),
        ToWorker::Link(v1::Link { worker: 1 }),
    ]
}

/// Each message from a worker to a client.
fn from_worker() -> [worker_to_client::Body; 3] {
    use worker_to_client::Body as FromWorker;
    [
        FromWorker::Ready(v1::Ready { entered_ns: 1, loaded_ns: 2, ready_ns: 3, ..v1::Ready::default() }),
        FromWorker::RegionMapped(v1::RegionMapped { region: 2, ..v1::RegionMapped::default() }),
        FromWorker::Failure(failure()),
    ]
}

fn failure() -> v1::Failure {
    v1::Failure { code: Code::NoCapacity.number(), message: "2 cores asked".into() }
}

fn program() -> v1::Program {
    v1::Program { path: "bin/p".into(), args: vec![b"p".to_vec()], env: vec![b"A=b".to_vec()] }
}

/// Messages from shims to processes and to other shims, and messages of a process that spawns.
fn shim_messages() -> Vec<Vec<u8>> {
    use v1::shim_message::Body as Said;
    use v1::shim_to_process::Body as Told;
    let across = v1::FifoAcross {
        own_key: 1,
        peer_key: 2,
        certificate: vec![1; 40],
        private_key: vec![2; 40],
        spare_key: 3,
        along: Some(v1::FifoWay { object: 1 << 32 | 3, connection: 1 }),
    };
    let joined = v1::FifoJoined {
        connection: 1,
        peer: 1 << 32 | 1,
        object: 1 << 32 | 2,
        lines: 16,
        slot_bytes: 4096,
        across: Some(across),
    };
    let told = [
        Told::Entered(v1::Entered { pid: 1 << 32 | 1 }),
        Told::Made(v1::FifoMade { object: 1 << 32 | 2, lines: 16, slot_bytes: 4096 }),
        Told::Joined(joined),
        Told::Parted(v1::FifoParted { connection: 1, at_once: true }),
    ];
    let name = || v1::FifoName { tenant: "tenant".into(), name: "frames".into(), object: 1 << 32 | 2 };
    let said = [
        Said::Sync(v1::ShimSync {
            instance: "i".into(),
            units: vec![1],
            kind: "dpu".into(),
            names: vec![name()],
            ..Default::default()
        }),
        Said::Claim(v1::NameClaim { token: 1, name: Some(name()) }),
        Said::Update(v1::RightsUpdate {
            token: 2,
            process: 1 << 32 | 1,
            object: 2 << 32 | 1,
            rights: 7,
            ..Default::default()
        }),
        Said::Connect(v1::FifoConnect { token: 3, object: 1 << 32 | 2, writer: 2 << 32 | 1 }),
        Said::Invited(v1::FifoInvited {
            token: 3,
            place: vec![1; 16],
            secret: vec![2; 32],
            along: Some(v1::FifoWay { object: 1 << 32 | 3, connection: 1 }),
            ..Default::default()
        }),
        Said::Gone(v1::ShimGone { processes: vec![2 << 32 | 1], names: vec![name()] }),
    ];
    let told = told.map(|body| tagged(10, &v1::ShimToProcess { body: Some(body) }.encode_to_vec()));
    let said = said.map(|body| tagged(11, &v1::ShimMessage { body: Some(body) }.encode_to_vec()));
    let spawn = v1::SpawnProgram {
        program: Some(program()),
        capabilities: vec![v1::Capability { object: 1 << 32 | 2, rights: 2 }],
        package: "libx".into(),
    };
    let spawn = tagged(12, &spawn.encode_to_vec());
    told.into_iter().chain(said).chain([spawn]).collect()
}

/// An index, a manifest and a configuration; a name; a layer with an entry of each kind.
fn images() -> Vec<Vec<u8>> {
    const BLOB: &str =
        r#""digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "size": 7"#;
    const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    let platform = r#""platform": {"os": "linux", "architecture": "amd64", "variant": "v1"}"#;
    let index = format!(r#"{{"schemaVersion": 2, "manifests": [{{{BLOB}, {platform}}}]}}"#);
    let layer = format!(r#"{{"mediaType": "{LAYER}", {BLOB}}}"#);
    let manifest = format!(r#"{{"schemaVersion": 2, "config": {{{BLOB}}}, "layers": [{layer}]}}"#);
    let config = r#"{"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b"], "Cmd": ["/c"]}, "rootfs": {"diff_ids": []}}"#;
    vec![
        tagged(0, index.as_bytes()),
        tagged(0, manifest.as_bytes()),
        tagged(1, config.as_bytes()),
        tagged(2, b"localhost:5000/some/app:1.2"),
        tagged(3, &archive()),
    ]
}

fn archive() -> Vec<u8> {
    let entries = [
        (b'5', "folder/", "", ""),
        (b'0', "folder/file", "", "content"),
        (b'2', "link", "../../etc", ""),
        (b'1', "folder/hard", "folder/file", ""),
        (b'0', "folder/.wh.gone", "", ""),
        (b'0', "folder/.wh..wh..opq", "", ""),
        (b'L', "././@LongLink", "", "a/long/name"),
        (b'3', "device", "", ""),
        (b'x', "PaxHeaders", "", "21 path=another/name\n"),
        (b'0', "file", "", ""),
    ];
    let mut archive: Vec<u8> = entries.iter().flat_map(|entry| tar_entry(*entry)).collect();
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// Kind, name, target of a link, content.
fn tar_entry((kind, name, target, content): (u8, &str, &str, &str)) -> Vec<u8> {
    let mut block = vec![0; if content.is_empty() { 512 } else { 1024 }];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000755");
    put(124, format!("{:011o}", content.len()).as_bytes());
    put(136, b"00000000001");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    if !content.is_empty() {
        put(512, content.as_bytes());
    }
    let sum: u32 = block[..512].iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A gRPC code, then the details that a peer of ours sends.
fn statuses() -> Vec<Vec<u8>> {
    let errors = Code::ALL.iter().map(|&code| Error::new(code, "message").into_status());
    errors.map(|status| [&(status.code() as i32).to_le_bytes(), status.details()].concat()).collect()
}
