//! Tests a store on NATS when its server is gone, slow, full, or belongs to another installation.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream;
use sublet_manager::store::{
    BLOB_PART_BYTES, Batch, BlobPart, MAX_VALUE_BYTES, NatsOptions, NatsStore, Store,
};
use sublet_proto::{Code, Error};

use super::nats::{NatsServer, NatsSettings};
use super::{open, options, put, value};

/// Longest time for which a test waits for a store to work again.
const PATIENCE: Duration = Duration::from_secs(180);

/// Repeats an operation until it succeeds; it may only fail because the server does not answer.
#[track_caller]
fn until_answered<T>(mut operation: impl FnMut() -> Result<T, Error>) -> T {
    let begun = Instant::now();
    loop {
        match operation() {
            Ok(done) => return done,
            Err(error) => assert_eq!(error.code, Code::StoreUnreachable, "{error}"),
        }
        assert!(begun.elapsed() < PATIENCE, "the store does not work again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn assert_unreachable<T>(result: Result<T, Error>, server: &NatsServer) {
    let error = result.err().expect("the server is unreachable");
    assert_eq!(error.code, Code::StoreUnreachable, "{error}");
    assert!(error.message.contains(&server.url()), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let mut server = NatsServer::start();
    server.kill();
    assert_unreachable(NatsStore::open(&options(&server)), &server);
}

#[test]
fn killed_server_fails_every_operation_and_keeps_its_data() {
    let mut server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "t/a", b"1").unwrap();
    server.kill();
    let part = BlobPart { digest: "d", index: 0 };
    assert_unreachable(store.get("t/a"), &server);
    assert_unreachable(put(&mut store, "t/a", b"2"), &server);
    assert_unreachable(store.compare_and_swap("t/b", 0, b"2"), &server);
    assert_unreachable(store.scan("t/", None, 9), &server);
    assert_unreachable(store.put_blob_part(part, b"2"), &server);
    assert_unreachable(store.blob_part(part), &server);
    assert_unreachable(store.remove_blob("d"), &server);
    server.restart();
    assert_eq!(until_answered(|| store.get("t/a")).unwrap().value, b"1");
    until_answered(|| put(&mut store, "t/a", b"3"));
    assert_eq!(value(&store, "t/a").unwrap(), b"3");
}

#[test]
fn repeating_a_half_failed_batch_completes_it() {
    let mut server = NatsServer::start();
    let mut store = open(&server);
    let mut batch = Batch::default();
    for number in 0..20_000 {
        batch.put(format!("t/{number:05}"), vec![1; 64]);
    }
    put(&mut store, "t/a", b"").unwrap();
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            server.kill();
            server.restart();
        });
        // Whether the kill comes in time to disturb it or not, the outcome is the same.
        until_answered(|| store.commit(&batch));
        killing.join().unwrap();
    });
    until_answered(|| store.commit(&batch));
    assert_eq!(until_answered(|| store.scan("t/0", None, 30_000)).len(), 10_000);
}

#[test]
fn a_long_scan_during_writes_gives_every_key_once() {
    const KEYS: usize = 15_000;
    let server = NatsServer::start();
    let (mut store, mut writer) = (open(&server), open(&server));
    let mut batch = Batch::default();
    for number in 0..KEYS {
        batch.put(format!("t/{number:05}"), number.to_le_bytes().to_vec());
    }
    store.commit(&batch).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                writer.commit(&Batch { puts: batch.puts[..1000].to_vec(), ..Batch::default() }).unwrap();
            }
        });
        let found = store.scan("t/", None, KEYS + 1).unwrap();
        assert!(found == batch.puts, "{} records instead of {KEYS}", found.len());
    });
}

#[test]
fn waits_for_a_server_that_is_silent_briefly() {
    let server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "t/a", b"1").unwrap();
    // On a machine that stands still, the silence may be longer than an operation waits.
    let is_answered = (0..5).any(|_| {
        server.pause();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                server.resume();
            });
            store.get("t/a").is_ok_and(|record| record.is_some_and(|record| record.value == b"1"))
        })
    });
    assert!(is_answered, "no operation waits");
}

#[test]
fn silent_server_fails_an_operation_at_its_deadline() {
    let server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "t/a", b"1").unwrap();
    server.pause();
    assert_unreachable(store.get("t/a"), &server);
    assert_unreachable(put(&mut store, "t/a", b"2"), &server);
    server.resume();
    until_answered(|| put(&mut store, "t/a", b"3"));
    assert_eq!(value(&store, "t/a").unwrap(), b"3");
}

/// Capacity of a server or an account in a test that fills it.
const STORAGE_BYTES: u64 = 8 << 20;

#[test]
fn full_server_returns_store_full_and_accepts_data_after_removal() {
    let settings = NatsSettings { storage_bytes: Some(STORAGE_BYTES), ..NatsSettings::default() };
    let server = NatsServer::start_with(&settings);
    fill_and_empty(&server, open(&server));
}

fn fill_and_empty(server: &NatsServer, mut store: NatsStore) {
    put(&mut store, "t/a", b"1").unwrap();
    put(&mut store, "t/b", b"1").unwrap();
    let fill = |store: &mut NatsStore, digest: &str| {
        let part = |index| BlobPart { digest, index };
        (0..).find_map(|index| {
            store.put_blob_part(part(index), &[7; BLOB_PART_BYTES]).err().map(|error| (index, error))
        })
    };
    let (parts, error) = fill(&mut store, "sha256:d").unwrap();
    assert_eq!(error.code, Code::StoreFull, "{error}");
    assert!(error.message.contains(&server.url()), "{error}");
    // The server looks before it writes, so the last part may reach beyond the limit.
    assert!(parts > 0 && u64::from(parts) <= STORAGE_BYTES >> 20, "{parts} parts of a megabyte");
    let part = BlobPart { digest: "sha256:d", index: parts };
    assert_eq!(store.blob_part(part).unwrap(), None, "the part that did not fit is not stored");
    assert_eq!(put(&mut store, "t/a", &[2; MAX_VALUE_BYTES]).unwrap_err().code, Code::StoreFull);
    assert_eq!(value(&store, "t/a").unwrap(), b"1", "what was there still is");
    let mut removal = Batch::default();
    removal.remove("t/b".into());
    store.commit(&removal).unwrap();
    store.remove_blob("sha256:d").unwrap();
    put(&mut store, "t/a", &[2; 4096]).unwrap();
    assert!(value(&store, "t/a").unwrap() == [2; 4096]);
    let (again, _) = fill(&mut store, "sha256:e").unwrap();
    assert!(again + 1 >= parts, "{again} parts fit after {parts} were removed");
}

#[test]
fn takes_credentials_for_the_server_from_the_address() {
    let lines = "authorization { user: \"me\", password: \"p@ss\" }\n".to_owned();
    let server = NatsServer::start_with(&NatsSettings { lines, ..NatsSettings::default() });
    let with = |url: String| NatsStore::open(&NatsOptions { url, ..options(&server) });
    let port = server.port();
    let mut store = with(format!("nats://me:p%40ss@127.0.0.1:{port}")).unwrap();
    put(&mut store, "t/a", b"1").unwrap();
    assert_unreachable(with(format!("nats://127.0.0.1:{port}")), &server);
    let error = with(format!("nats://me:wrong-secret@127.0.0.1:{port}")).err().unwrap();
    assert_eq!(error.code, Code::StoreUnreachable);
    assert!(!error.message.contains("wrong-secret"), "{error}");

    let lines = "authorization { token: \"t0ken\" }\n".to_owned();
    let server = NatsServer::start_with(&NatsSettings { lines, ..NatsSettings::default() });
    let url = format!("nats://t0ken@127.0.0.1:{}", server.port());
    put(&mut NatsStore::open(&NatsOptions { url, ..options(&server) }).unwrap(), "t/a", b"1").unwrap();
}

#[test]
fn an_account_that_may_not_store_is_refused() {
    let lines = "accounts { A: { users: [{ user: a, password: a }] } }\n".to_owned();
    let server = NatsServer::start_with(&NatsSettings { lines, ..NatsSettings::default() });
    let url = format!("nats://a:a@127.0.0.1:{}", server.port());
    let mut store = NatsStore::open(&NatsOptions { url, ..options(&server) }).unwrap();
    assert_unreachable(put(&mut store, "t/a", b"1"), &server);
}

#[test]
fn stores_of_different_names_on_one_server_are_apart() {
    let server = NatsServer::start();
    let named =
        |name: &str| NatsStore::open(&NatsOptions { name: name.to_owned(), ..options(&server) }).unwrap();
    let (mut one, other) = (named("one"), named("other"));
    put(&mut one, "t/a", b"1").unwrap();
    assert_eq!(other.get("t/a").unwrap(), None);
}

#[test]
fn a_server_is_trusted_by_its_authority() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("ca.pem"), made.cert.pem()).unwrap();
    std::fs::write(file("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let (certificate, key) = (file("ca.pem"), file("key.pem"));
    let lines = format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}\n");
    let server = NatsServer::start_with(&NatsSettings { lines, ..NatsSettings::default() });
    let url = format!("tls://127.0.0.1:{}", server.port());
    let trusting = NatsOptions { url, ca_file: Some(certificate), ..options(&server) };
    put(&mut NatsStore::open(&trusting).unwrap(), "t/a", b"1").unwrap();
    let doubting = NatsOptions { ca_file: None, ..trusting };
    assert_eq!(NatsStore::open(&doubting).err().unwrap().code, Code::StoreUnreachable);
}

/// Copies a folder of files and folders.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn streams_that_are_older_than_what_was_acknowledged_are_refused() {
    let mut server = NatsServer::start();
    let (folder, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let noted = folder.path().join("streams");
    let reopen = |server: &NatsServer| NatsStore::open_noting(&options(server), &noted);
    let mut store = reopen(&server).unwrap();
    put(&mut store, "token/a", b"valid").unwrap();
    put(&mut store, "tenant/a", b"1").unwrap();
    drop(store);
    server.kill();
    copy(server.folder(), old.path());
    server.restart();
    let mut store = until_answered(|| reopen(&server));
    assert!(store.compare_and_swap("token/a", 1, b"revoked").unwrap());
    drop(store);
    // The server comes back with the files of before the revocation.
    server.kill();
    std::fs::remove_dir_all(server.folder().join("jetstream")).unwrap();
    copy(&old.path().join("jetstream"), &server.folder().join("jetstream"));
    server.restart();
    let error = until_answered(|| match reopen(&server) {
        Err(error) if error.code == Code::StoreDamaged => Ok(error),
        Err(error) => Err(error),
        Ok(_) => panic!("a revocation is lost, and the store does not report it"),
    });
    for word in ["key-token ends with 1 of 2", "copies ends with 2 of 3", &noted.display().to_string()] {
        assert!(error.message.contains(word), "{error}");
    }
    assert!(!error.message.contains("key-tenant"), "{error}");
    // An operator that accepts the loss removes the file.
    std::fs::remove_file(&noted).unwrap();
    let store = reopen(&server).unwrap();
    assert_eq!(value(&store, "token/a").unwrap(), b"valid");
    drop(store);
    // A stream that is gone is lost, too.
    server.kill();
    std::fs::remove_dir_all(server.folder().join("jetstream")).unwrap();
    std::fs::write(&noted, "sublet-test-key-token 1\n").unwrap();
    server.restart();
    let error = until_answered(|| match reopen(&server) {
        Err(error) if error.code == Code::StoreDamaged => Ok(error),
        Err(error) => Err(error),
        Ok(_) => panic!("a stream is lost, and the store does not report it"),
    });
    assert!(error.message.contains("ends with 0 of 1"), "{error}");
}

/// Uses JetStream directly, beside the store.
fn with_jetstream<T>(server: &NatsServer, act: impl AsyncFnOnce(jetstream::Context) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = async_nats::connect(server.url()).await.unwrap();
        act(jetstream::new(client)).await
    })
}

/// Publishes a message with the headers of another one.
async fn publish(jetstream: &jetstream::Context, subject: &'static str, headers: HeaderMap, value: &[u8]) {
    let sent = jetstream.publish_with_headers(subject, headers, value.to_vec().into()).await.unwrap();
    sent.await.unwrap();
}

/// The keys of a kind that the store has.
fn keys_of(store: &NatsStore, prefix: &str) -> Vec<String> {
    store.scan(prefix, None, 99).unwrap().into_iter().map(|record| record.key).collect()
}

#[test]
fn removes_the_log_of_earlier_versions() {
    let server = NatsServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let jetstream = runtime.block_on(async {
        let jetstream = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
        let config = async_nats::jetstream::stream::Config {
            name: "sublet-test-log-deployments".into(),
            subjects: vec!["sublet.test.log.deployments".into()],
            ..Default::default()
        };
        jetstream.create_stream(config).await.unwrap();
        jetstream.publish("sublet.test.log.deployments", "x".into()).await.unwrap().await.unwrap();
        jetstream
    });
    let folder = tempfile::tempdir().unwrap();
    let noted = folder.path().join("streams");
    std::fs::write(&noted, "sublet-test-log-deployments 1\n").unwrap();
    for _ in 0..2 {
        NatsStore::open_noting(&options(&server), &noted).unwrap();
        assert!(runtime.block_on(jetstream.get_stream("sublet-test-log-deployments")).is_err());
    }
}

#[test]
fn rejects_a_value_that_differs_from_the_written_one() {
    let server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "token/a", b"good").unwrap();
    put(&mut store, "token/b", b"good").unwrap();
    // A faulty server would do the same: the value of another key, with its checksum.
    with_jetstream(&server, async |jetstream| {
        let stream = jetstream.get_stream("sublet-test-key-token").await.unwrap();
        let other = stream.get_last_raw_message_by_subject("sublet.test.key.token.b").await.unwrap();
        publish(&jetstream, "sublet.test.key.token.a", other.headers, &other.payload).await;
    });
    for error in [store.get("token/a").unwrap_err(), store.scan("token/", None, 9).unwrap_err()] {
        assert!(error.code == Code::StoreDamaged && error.message.contains("token/a"), "{error}");
    }
    assert_eq!(value(&store, "token/b").unwrap(), b"good");
}

/// The files in which a server has its messages.
fn blocks(folder: &Path) -> Vec<PathBuf> {
    let (mut waiting, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "blk") {
            found.push(path);
        }
    }
    found
}

/// Flips a bit of the only place where a server has these bytes in files of streams whose names contain `stream`.
fn flip(server: &NatsServer, stream: &str, bytes: &[u8]) {
    let mut flipped = 0;
    let blocks = blocks(&server.folder().join("jetstream"));
    for block in blocks.into_iter().filter(|block| block.to_string_lossy().contains(stream)) {
        let mut content = std::fs::read(&block).unwrap();
        if let Some(at) = content.windows(bytes.len()).position(|window| window == bytes) {
            content[at] ^= 1;
            std::fs::write(&block, content).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 1);
}

#[test]
fn record_damaged_on_the_servers_disk_is_not_absent() {
    let mut server = NatsServer::start();
    let mut store = open(&server);
    for key in ["token/a", "token/b", "token/c", "tenant/a", "tenant/gone"] {
        put(&mut store, key, format!("value of {key}").as_bytes()).unwrap();
    }
    let mut batch = Batch::default();
    batch.remove("tenant/gone".into());
    store.commit(&batch).unwrap();
    drop(store);
    server.stop();
    flip(&server, "key-token", b"value of token/b");
    server.restart();
    let store = until_answered(|| NatsStore::open(&options(&server)));
    for error in [store.get("token/b").unwrap_err(), store.scan("token/", None, 9).unwrap_err()] {
        assert!(error.code == Code::StoreDamaged && error.message.contains("key.token.b"), "{error}");
    }
    assert_eq!(store.get("tenant/gone").unwrap(), None);
    assert_eq!(value(&store, "token/c").unwrap(), b"value of token/c");
}

/// Deletes the message of a subject, as a server does that finds its file damaged after it was killed.
fn drop_message(server: &NatsServer, stream: &str, subject: &str) {
    with_jetstream(server, async |jetstream| {
        let stream = jetstream.get_stream(stream).await.unwrap();
        let last = stream.get_last_raw_message_by_subject(subject).await.unwrap();
        stream.delete_message(last.sequence).await.unwrap();
    });
}

#[test]
fn restores_records_that_a_server_drops_from_a_damaged_file() {
    let mut server = NatsServer::start();
    let folder = tempfile::tempdir().unwrap();
    let noted = folder.path().join("streams");
    let mut store = NatsStore::open_noting(&options(&server), &noted).unwrap();
    let keys: Vec<String> = (0..20).map(|number| format!("token/{number:02}")).collect();
    for key in &keys {
        put(&mut store, key, format!("value of {key}").as_bytes()).unwrap();
    }
    assert!(store.compare_and_swap("token/07", 8, b"revoked 07").unwrap());
    // Later messages of the stream are lost with the damaged one.
    put(&mut store, "token/19", b"value of token/19").unwrap();
    drop(store);
    server.kill();
    // The damage is in the stream itself: its copy is in another file.
    flip(&server, "key-token", b"revoked 07");
    server.restart();
    let store = until_answered(|| NatsStore::open_noting(&options(&server), &noted));
    assert_eq!(value(&store, "token/07").unwrap(), b"revoked 07");
    for key in keys.iter().filter(|key| *key != "token/07") {
        assert_eq!(value(&store, key).unwrap(), format!("value of {key}").as_bytes());
    }
    assert_eq!(store.scan("token/", None, 99).unwrap().len(), keys.len());
    assert_eq!(store.check().unwrap().lost, [""; 0]);
}

#[test]
fn dropped_record_is_not_taken_for_absent() {
    let server = NatsServer::start();
    let mut store = open(&server);
    for key in ["token/a", "token/b", "token/gone", "lease/a"] {
        put(&mut store, key, format!("value of {key}").as_bytes()).unwrap();
    }
    let mut batch = Batch::default();
    batch.remove("token/gone".into());
    store.commit(&batch).unwrap();
    assert!(store.compare_and_swap("token/b", 2, b"new").unwrap());
    assert_eq!(store.check().unwrap().restored, [""; 0]);
    drop_message(&server, "sublet-test-key-token", "sublet.test.key.token.b");
    let error = store.get("token/b").unwrap_err();
    assert!(error.code == Code::StoreDamaged && error.message.contains("token.b"), "{error}");
    assert_eq!(store.get("token/gone").unwrap(), None);
    let report = store.check().unwrap();
    assert_eq!((report.restored.as_slice(), report.lost.as_slice()), (&["token/b".to_owned()][..], &[][..]));
    assert_eq!(store.repair().unwrap().restored, ["token/b"]);
    assert_eq!(value(&store, "token/b").unwrap(), b"new");
    // A record that was put back and changed is copied as any other.
    put(&mut store, "token/b", b"newest").unwrap();
    drop_message(&server, "sublet-test-key-token", "sublet.test.key.token.b");
    assert_eq!(store.check().unwrap().restored, ["token/b"]);
    assert_eq!(store.repair().unwrap().restored, ["token/b"]);
    assert_eq!(value(&store, "token/b").unwrap(), b"newest");
    assert_eq!(store.check().unwrap().restored, [""; 0]);
}

#[test]
fn check_names_lost_leases_and_repair_goes_on_without_them() {
    let mut server = NatsServer::start();
    let mut store = open(&server);
    for key in ["lease/a", "lease/b", "lease/c", "token/a", "token/b"] {
        put(&mut store, key, format!("value of {key}").as_bytes()).unwrap();
    }
    drop(store);
    server.stop();
    flip(&server, "key-lease", b"value of lease/b");
    flip(&server, "copies-lease", b"value of lease/b");
    flip(&server, "key-token", b"value of token/a");
    server.restart();
    let mut store = until_answered(|| NatsStore::open(&options(&server)));
    let report = store.check().unwrap();
    assert!(report.lost.len() == 1 && report.lost[0].contains("lease/b"), "{report:?}");
    assert_eq!(report.restored, ["token/a"]);
    assert_eq!(report.records["lease"], 2);
    assert!(store.scan("lease/", None, 9).is_err());
    assert_eq!(store.repair().unwrap().restored, ["token/a"]);
    assert_eq!(store.scan("lease/", None, 9).unwrap().len(), 2);
    assert_eq!(value(&store, "token/a").unwrap(), b"value of token/a");
    assert_eq!(store.check().unwrap().lost, [""; 0]);
}

#[test]
fn start_restores_records_of_kinds_that_grow() {
    const GROWING: [&str; 6] = ["lease", "usage", "folded", "spend", "run", "journal"];
    for kind in GROWING {
        let mut server = NatsServer::start();
        let folder = tempfile::tempdir().unwrap();
        let noted = folder.path().join("streams");
        let mut store = NatsStore::open_noting(&options(&server), &noted).unwrap();
        let keys: Vec<String> = (0..20).map(|number| format!("{kind}/{number:02}")).collect();
        for key in &keys {
            put(&mut store, key, format!("value of {key}").as_bytes()).unwrap();
        }
        drop(store);
        server.kill();
        flip(&server, &format!("key-{kind}"), format!("value of {kind}/07").as_bytes());
        server.restart();
        let store = until_answered(|| NatsStore::open_noting(&options(&server), &noted));
        assert_eq!(keys_of(&store, &format!("{kind}/")), keys);
        for key in &keys {
            assert_eq!(value(&store, key).unwrap(), format!("value of {key}").as_bytes());
        }
        assert_eq!(store.check().unwrap().lost, [""; 0]);
    }
}

#[test]
fn start_restores_latest_values_of_an_older_stream() {
    let mut server = NatsServer::start();
    let (folder, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let noted = folder.path().join("streams");
    let mut store = NatsStore::open_noting(&options(&server), &noted).unwrap();
    put(&mut store, "lease/a", b"used").unwrap();
    put(&mut store, "lease/b", b"used").unwrap();
    server.stop();
    let stream = stream_folder(&server, "key-lease");
    copy(&stream, old.path());
    server.restart();
    until_answered(|| put(&mut store, "lease/a", b"used more"));
    drop(store);
    // There are as many records as copies: only the end of the stream shows the loss.
    server.stop();
    std::fs::remove_dir_all(&stream).unwrap();
    copy(old.path(), &stream);
    server.restart();
    let store = until_answered(|| NatsStore::open_noting(&options(&server), &noted));
    assert_eq!(value(&store, "lease/a").unwrap(), b"used more");
    assert_eq!(value(&store, "lease/b").unwrap(), b"used");
}

/// The folder in which a server has a stream.
fn stream_folder(server: &NatsServer, stream: &str) -> PathBuf {
    let blocks = blocks(&server.folder().join("jetstream"));
    let block = blocks.into_iter().find(|block| block.to_string_lossy().contains(stream)).unwrap();
    block.ancestors().nth(2).unwrap().to_owned()
}

#[test]
fn start_restores_streams_that_are_gone() {
    let server = NatsServer::start();
    let folder = tempfile::tempdir().unwrap();
    let noted = folder.path().join("streams");
    let mut store = NatsStore::open_noting(&options(&server), &noted).unwrap();
    for key in ["token/a", "tenant/a", "lease/a"] {
        put(&mut store, key, b"kept").unwrap();
    }
    drop(store);
    // Another manager, which has no notes of these streams, sees the loss, too.
    for noted in [noted, folder.path().join("other")] {
        with_jetstream(&server, async |jetstream| {
            for kind in ["token", "lease"] {
                jetstream.delete_stream(format!("sublet-test-key-{kind}")).await.unwrap();
            }
        });
        let mut restored = open(&server).check().unwrap().restored;
        restored.sort_unstable();
        assert_eq!(restored, ["lease/a", "token/a"]);
        let store = NatsStore::open_noting(&options(&server), &noted).unwrap();
        for key in ["token/a", "tenant/a", "lease/a"] {
            assert_eq!(value(&store, key).unwrap(), b"kept", "{key}");
        }
    }
}

#[test]
fn check_beside_the_work_completes_copies() {
    let server = NatsServer::start();
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&server);
    for key in ["lease/a", "lease/b", "lease/gone"] {
        put(&mut store, key, b"used").unwrap();
    }
    with_jetstream(&server, async |jetstream| {
        jetstream.delete_stream("sublet-test-copies-lease").await.unwrap();
    });
    // A start does not read all leases.
    drop(NatsStore::open_noting(&options(&server), &folder.path().join("streams")).unwrap());
    drop_message(&server, "sublet-test-key-lease", "sublet.test.key.lease.gone");
    let store = open(&server);
    assert_eq!(store.check_and_copy().unwrap().restored, [""; 0]);
    drop_message(&server, "sublet-test-key-lease", "sublet.test.key.lease.a");
    let error = store.get("lease/a").unwrap_err();
    assert!(error.code == Code::StoreDamaged && error.message.contains("lease.a"), "{error}");
    assert_eq!(store.get("lease/never").unwrap(), None);
    assert_eq!(store.check().unwrap().restored, ["lease/a"]);
    assert_eq!(open(&server).repair().unwrap().restored, ["lease/a"]);
    assert_eq!(value(&store, "lease/a").unwrap(), b"used");
}

#[test]
fn older_copy_does_not_replace_a_damaged_record() {
    let server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "token/a", b"valid").unwrap();
    put(&mut store, "token/b", b"valid too").unwrap();
    with_jetstream(&server, async |jetstream| {
        let stream = jetstream.get_stream("sublet-test-key-token").await.unwrap();
        // This is a later value that does not match its checksum, and of which its manager could write no copy.
        let other = stream.get_last_raw_message_by_subject("sublet.test.key.token.b").await.unwrap();
        publish(&jetstream, "sublet.test.key.token.a", other.headers, b"revoked").await;
    });
    let report = store.check().unwrap();
    assert!(report.lost.len() == 1 && report.lost[0].starts_with("token/a: "), "{report:?}");
    assert_eq!(report.restored, [""; 0]);
    store.repair().unwrap();
    assert_eq!(store.get("token/a").unwrap(), None);
    assert_eq!(value(&store, "token/b").unwrap(), b"valid too");
}

#[test]
fn older_record_does_not_replace_its_later_copy() {
    let server = NatsServer::start();
    let mut store = open(&server);
    put(&mut store, "token/a", b"valid").unwrap();
    put(&mut store, "token/b", b"valid too").unwrap();
    with_jetstream(&server, async |jetstream| {
        let stream = jetstream.get_stream("sublet-test-key-token").await.unwrap();
        let old = stream.get_last_raw_message_by_subject("sublet.test.key.token.a").await.unwrap();
        assert!(store.compare_and_swap("token/a", 1, b"revoked").unwrap());
        // The server comes back with the stream of before.
        jetstream.delete_stream("sublet-test-key-token").await.unwrap();
        assert!(open(&server).scan("token/", None, 9).unwrap().is_empty());
        publish(&jetstream, "sublet.test.key.token.a", old.headers, &old.payload).await;
    });
    let mut store = open(&server);
    let mut restored = store.repair().unwrap().restored;
    restored.sort_unstable();
    assert_eq!(restored, ["token/a", "token/b"]);
    assert_eq!(value(&store, "token/a").unwrap(), b"revoked");
    assert_eq!(value(&store, "token/b").unwrap(), b"valid too");
}

/// Forwards connections to a server, and the data of clients only up to a number of bytes.
struct Line {
    port: u16,
    left: Arc<AtomicI64>,
    hold: Arc<Hold>,
}

/// Stops the data of clients before a message to a subject.
#[derive(Default)]
struct Hold {
    subject: Mutex<Option<String>>,
    is_held: AtomicBool,
}

impl Hold {
    /// Waits as long as these bytes contain a message to the subject, and others that came right before them.
    fn wait(&self, before: &[u8], bytes: &[u8]) {
        let text = [before, bytes].concat();
        let is_in = |subject: &String| {
            let publish = format!("PUB {subject} ");
            text.windows(publish.len()).any(|window| window == publish.as_bytes())
        };
        while self.subject.lock().unwrap().as_ref().is_some_and(is_in) {
            self.is_held.store(true, Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Line {
    fn to(server: &NatsServer) -> Line {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (port, server) = (listener.local_addr().unwrap().port(), server.port());
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let hold = Arc::new(Hold::default());
        let line = Line { port, left: Arc::clone(&left), hold: Arc::clone(&hold) };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (mut client, left, hold) = (client.unwrap(), Arc::clone(&left), Arc::clone(&hold));
                let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { continue };
                let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
                std::thread::spawn(move || {
                    let (mut bytes, mut before) = ([0; 512], Vec::new());
                    while let Ok(read @ 1..) = client.read(&mut bytes) {
                        hold.wait(&before, &bytes[..read]);
                        before = bytes[..read].to_vec();
                        let may_pass = left.fetch_sub(read as i64, Relaxed).clamp(0, read as i64);
                        if server.write_all(&bytes[..may_pass as usize]).is_err() || may_pass < read as i64 {
                            break;
                        }
                    }
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        line
    }

    /// Lets this many bytes pass from now on.
    fn pass(&self, bytes: i64) {
        self.left.store(bytes, Relaxed);
    }

    fn is_cut(&self) -> bool {
        self.left.load(Relaxed) < 0
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Runs something that publishes a message to this subject, and something else before the message arrives.
    fn hold(&self, subject: &str, publishing: impl FnOnce(), meanwhile: impl FnOnce() + Send) {
        self.hold.is_held.store(false, Relaxed);
        *self.hold.subject.lock().unwrap() = Some(subject.to_owned());
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let meanwhile = scope.spawn(|| {
                wait_until(|| self.hold.is_held.load(Relaxed) || has_ended.load(Relaxed));
                if self.hold.is_held.load(Relaxed) {
                    meanwhile();
                }
                *self.hold.subject.lock().unwrap() = None;
            });
            publishing();
            has_ended.store(true, Relaxed);
            meanwhile.join().unwrap();
        });
        assert!(self.hold.is_held.load(Relaxed), "no message to {subject} was published");
    }
}

#[test]
fn completed_copies_are_of_what_other_managers_left() {
    let server = NatsServer::start();
    let line = Line::to(&server);
    let checking = NatsStore::open(&NatsOptions { url: line.url(), ..options(&server) }).unwrap();
    let mut other = open(&server);
    for key in ["lease/changed", "lease/removed"] {
        put(&mut other, key, b"before").unwrap();
    }
    let drop_copies = || {
        with_jetstream(&server, async |jetstream| {
            jetstream.get_stream("sublet-test-copies-lease").await.unwrap().purge().await.unwrap();
        });
    };
    let check = || _ = checking.check_and_copy().unwrap();
    drop_copies();
    line.hold("sublet.test.copies.lease.removed", check, || {
        let version = other.get("lease/removed").unwrap().unwrap().version;
        assert!(other.remove_if("lease/removed", version).unwrap());
    });
    assert_eq!(other.check().unwrap().restored, [""; 0], "a copy is left of what was removed");
    drop_copies();
    line.hold("sublet.test.copies.lease.changed", check, || {
        put(&mut other, "lease/changed", b"later").unwrap();
    });
    drop_message(&server, "sublet-test-key-lease", "sublet.test.key.lease.changed");
    assert_eq!(open(&server).repair().unwrap().restored, ["lease/changed"]);
    assert_eq!(value(&other, "lease/changed").unwrap(), b"later");
}

#[test]
fn interrupted_repair_is_completed_by_the_next() {
    const MOMENTS: i64 = 12;
    let mut server = NatsServer::start();
    let mut store = open(&server);
    let keys: Vec<String> =
        ["lease", "token"].iter().flat_map(|kind| (0..20).map(move |n| format!("{kind}/{n:02}"))).collect();
    for key in &keys {
        put(&mut store, key, format!("value of {key}").as_bytes()).unwrap();
    }
    drop(store);
    server.stop();
    flip(&server, "key-lease", b"value of lease/07");
    flip(&server, "key-token", b"value of token/03");
    let damaged = tempfile::tempdir().unwrap();
    copy(&server.folder().join("jetstream"), damaged.path());
    let mut whole_bytes = None;
    for moment in 0..MOMENTS {
        std::fs::remove_dir_all(server.folder().join("jetstream")).unwrap();
        copy(damaged.path(), &server.folder().join("jetstream"));
        server.restart();
        let line = Line::to(&server);
        let mut dying =
            until_answered(|| NatsStore::open(&NatsOptions { url: line.url(), ..options(&server) }));
        let bytes = whole_bytes.map_or(i64::MAX, |whole: i64| whole * moment / MOMENTS);
        line.pass(bytes);
        // A manager that is cut off tries again for long, and none of that arrives.
        let repair = std::thread::spawn(move || _ = dying.repair());
        wait_until(|| repair.is_finished() || line.is_cut());
        whole_bytes.get_or_insert_with(|| i64::MAX - line.left.load(Relaxed));
        // A manager that starts now completes the repair. If it had not begun, a damaged lease is not looked for.
        let noted = tempfile::tempdir().unwrap();
        let store = NatsStore::open_noting(&options(&server), &noted.path().join("streams")).unwrap();
        for key in &keys {
            match store.get(key) {
                Ok(found) => assert_eq!(
                    found.unwrap().value,
                    format!("value of {key}").into_bytes(),
                    "after {bytes} of {whole_bytes:?} bytes"
                ),
                Err(error) => assert!(key == "lease/07" && error.code == Code::StoreDamaged, "{error}"),
            }
        }
        let mut store = open(&server);
        store.repair().unwrap();
        let found = ["lease/", "token/"].map(|kind| keys_of(&store, kind)).concat();
        assert_eq!(found, keys, "after {bytes} of {whole_bytes:?} bytes");
        assert_eq!(value(&store, "token/03").unwrap(), b"value of token/03");
        assert_eq!(store.check().unwrap().lost, [""; 0]);
        drop(store);
        server.stop();
    }
}

#[test]
fn store_of_a_version_without_copies_gets_them() {
    let server = NatsServer::start();
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&server);
    put(&mut store, "token/a", b"a").unwrap();
    with_jetstream(&server, async |jetstream| {
        jetstream.delete_stream("sublet-test-copies").await.unwrap();
    });
    drop(NatsStore::open_noting(&options(&server), &folder.path().join("streams")).unwrap());
    drop_message(&server, "sublet-test-key-token", "sublet.test.key.token.a");
    assert_eq!(open(&server).check().unwrap().restored, ["token/a"]);
}
