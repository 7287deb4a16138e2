//! Registries for tests: Debian's, with its configuration, and a fake one with answers of the test.

#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a registry may take to start before the test gives up.
const START_PATIENCE: Duration = Duration::from_secs(180);
/// `se:cret` by bcrypt, as the registry's file of users has it.
const USERS: &str = "me:$2b$04$abcdefghijklmnopqrstuu17JYDSDnwCnbeRSI7wxymnD3SKI1vtG\n";

/// Debian's docker-registry on a free port. It ends with its folder when it is dropped.
pub struct DebianRegistry {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
}

impl DebianRegistry {
    /// Starts a registry that admits every user.
    pub fn start() -> DebianRegistry {
        DebianRegistry::start_with("")
    }

    /// Starts a registry that admits only the user `me` with the password `se:cret`.
    pub fn with_password() -> DebianRegistry {
        DebianRegistry::start_with("auth:\n  htpasswd:\n    realm: tests\n    path: users\n")
    }

    /// Restarts the registry with its content over TLS at an address of this machine, with a certificate and its key as
    /// PEM.
    pub fn over_tls(mut self, address: Ipv4Addr, certificate: &str, key: &str) -> DebianRegistry {
        self.end();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        fs::write(folder.path().join("certificate.pem"), certificate).unwrap();
        fs::write(folder.path().join("key.pem"), key).unwrap();
        let settings = "  tls:\n    certificate: certificate.pem\n    key: key.pem\n";
        DebianRegistry::serve(folder, address, settings)
    }

    fn start_with(settings: &str) -> DebianRegistry {
        DebianRegistry::serve(tempfile::tempdir().unwrap(), Ipv4Addr::LOCALHOST, settings)
    }

    fn serve(folder: tempfile::TempDir, address: Ipv4Addr, settings: &str) -> DebianRegistry {
        let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        let storage = folder.path().join("storage").display().to_string();
        let lines = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {storage}\nhttp:\n  addr: {address}:{port}\n{settings}"
        );
        fs::write(folder.path().join("config.yml"), lines).unwrap();
        fs::write(folder.path().join("users"), USERS).unwrap();
        let mut command = Command::new(program());
        command.arg("serve").arg("config.yml").current_dir(folder.path());
        let child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the registry can be started");
        let registry = DebianRegistry { child, port, folder };
        let started = Instant::now();
        while TcpStream::connect((address, port)).is_err() {
            assert!(started.elapsed() < START_PATIENCE, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// Uploads a layout: its blobs, its manifests, and the last of the index's entries under a tag.
    pub fn push(&self, layout: &Path, repository: &str, tag: &str) {
        for entry in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
            let path = entry.unwrap().path();
            let digest = format!("sha256:{}", path.file_name().unwrap().to_str().unwrap());
            self.push_blob(repository, &digest, &fs::read(path).unwrap());
        }
        let index = json(&fs::read(layout.join("index.json")).unwrap());
        for entry in index["manifests"].as_array().unwrap() {
            self.push_manifest(layout, repository, entry, tag);
        }
    }

    fn push_blob(&self, repository: &str, digest: &str, bytes: &[u8]) {
        let begin = format!("http://localhost:{}/v2/{repository}/blobs/uploads/", self.port);
        let response = agent().post(begin).send_empty().unwrap();
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        let and = if location.contains('?') { '&' } else { '?' };
        let finish = format!("{location}{and}digest={digest}");
        let response = agent().put(finish).content_type("application/octet-stream").send(bytes).unwrap();
        assert_eq!(response.status(), 201, "{digest}");
    }

    /// Uploads a manifest or an index; the manifests of an index go before it.
    fn push_manifest(&self, layout: &Path, repository: &str, entry: &serde_json::Value, tag: &str) {
        let digest = entry["digest"].as_str().unwrap();
        let bytes = fs::read(layout.join("blobs/sha256").join(&digest[7..])).unwrap();
        for within in json(&bytes)["manifests"].as_array().into_iter().flatten() {
            self.push_manifest(layout, repository, within, within["digest"].as_str().unwrap());
        }
        let address = format!("http://localhost:{}/v2/{repository}/manifests/{tag}", self.port);
        let response =
            agent().put(address).content_type(entry["mediaType"].as_str().unwrap()).send(&bytes).unwrap();
        assert_eq!(response.status(), 201, "{digest}");
    }
}

impl DebianRegistry {
    fn end(&mut self) {
        // The registry may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for DebianRegistry {
    fn drop(&mut self) {
        self.end();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().into()
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Whether Debian's registry is installed.
pub fn has_registry() -> bool {
    Command::new(program()).arg("--version").output().is_ok()
}

/// Path of the registry's program: installed, or as `scripts/setup.sh test` has unpacked it.
fn program() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut unpacked =
        above.map(|folder| folder.join("target/tools/docker-registry/usr/bin/docker-registry"));
    unpacked.find(|program| program.exists()).unwrap_or_else(|| PathBuf::from("docker-registry"))
}

/// An answer: everything that is sent for a path, including the head.
pub type Answer = Arc<dyn Fn(&str, &mut TcpStream) + Send + Sync>;

/// A server that answers each path as a test requires, and keeps the requests.
pub struct FakeRegistry {
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeRegistry {
    pub fn start(answers: BTreeMap<String, Answer>) -> FakeRegistry {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (kept, answers) = (requests.clone(), Arc::new(answers));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, answers) = (kept.clone(), answers.clone());
                std::thread::spawn(move || serve(stream, &kept, &answers));
            }
        });
        FakeRegistry { port, requests }
    }

    /// Returns the heads of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Serves one request of a connection, which is closed afterwards.
fn serve(mut stream: TcpStream, kept: &Mutex<Vec<String>>, answers: &BTreeMap<String, Answer>) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while reader.read_line(&mut head).is_ok_and(|bytes| bytes > 2) {}
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    kept.lock().unwrap().push(head.clone());
    let answer = answers.iter().find(|(prefix, _)| path.starts_with(prefix.as_str()));
    match answer {
        Some((_, answer)) => answer(&head, &mut stream),
        None => respond(&mut stream, "404 Not Found", &[], b""),
    }
}

/// Sends a whole answer.
pub fn respond(stream: &mut TcpStream, status: &str, headers: &[&str], body: &[u8]) {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    // A client that closes the connection early is not a failure of the server.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// Creates an answer that is always the same.
pub fn always(status: &'static str, headers: Vec<String>, body: Vec<u8>) -> Answer {
    Arc::new(move |_, stream| {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        respond(stream, status, &headers, &body);
    })
}
