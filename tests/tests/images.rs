//! `sublet image` as the operator of a node uses it: on the agent's own folder, whether an agent runs or not.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sublet_proto::Code;
use sublet_tests::platform::sublet;

/// Runs `sublet image` on a state folder; its status, and its JSON.
fn image(state: &Path, words: &[&str]) -> (Option<i32>, Value) {
    let output = sublet().args(["image", "--json", "--state"]).arg(state).args(words).output().unwrap();
    let said = if output.status.success() { &output.stdout } else { &output.stderr };
    let json = serde_json::from_slice(said).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(said)));
    (output.status.code(), json)
}

fn done(state: &Path, words: &[&str]) -> Value {
    let (status, json) = image(state, words);
    assert_eq!(status, Some(0), "{words:?}: {json}");
    json
}

fn refused(state: &Path, words: &[&str], code: Code) {
    let (status, json) = image(state, words);
    assert_eq!(json["error"]["code"], code.name(), "{words:?}: {json}");
    assert_eq!(status, i32::try_from(code.number()).ok());
}

/// A layout with one image of one file, made by Debian's umoci.
fn layout(folder: &Path) -> String {
    fs::write(folder.join("hello"), "hello").unwrap();
    for words in [
        &["init", "--layout", "layout"][..],
        &["new", "--image", "layout:app"],
        &["insert", "--rootless", "--image", "layout:app", "hello", "/etc/hello"],
        &["config", "--image", "layout:app", "--config.cmd", "/bin/true"],
    ] {
        let output =
            Command::new("umoci").args(words).current_dir(folder).output().expect("umoci is installed");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    folder.join("layout").display().to_string()
}

#[test]
fn an_operator_imports_lists_and_removes_images() {
    let folder = tempfile::tempdir().unwrap();
    let (state, layout) = (folder.path().join("state"), layout(folder.path()));
    let imported = done(&state, &["import", &layout]);
    let one = &imported["images"][0];
    assert_eq!(one["cmd"], json!(["/bin/true"]));
    let layer = Path::new(one["layers"][0].as_str().unwrap());
    assert!(layer.starts_with(state.join("images").canonicalize().unwrap()), "{}", layer.display());
    assert_eq!(fs::read(layer.join("etc/hello")).unwrap(), b"hello");
    let digest = one["digest"].as_str().unwrap();
    assert_eq!(done(&state, &["list"]), imported);
    assert_eq!(done(&state, &["show", digest]), imported);
    let text = sublet().args(["image", "list", "--state"]).arg(&state).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains(digest));
    assert_eq!(done(&state, &["prune"]), json!({"layers": 0, "in_use": 0}));
    assert_eq!(done(&state, &["remove", digest]), json!({"digest": digest}));
    assert_eq!(done(&state, &["list"]), json!({"images": []}));
    assert_eq!(done(&state, &["prune"]), json!({"layers": 1, "in_use": 0}));
    assert!(!layer.exists());
}

#[test]
fn invalid_and_missing_images_have_their_codes() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::write(folder.path().join("text"), "no image").unwrap();
    let text = folder.path().join("text").display().to_string();
    refused(&state, &["import", &text], Code::InvalidImage);
    refused(&state, &["import", "/nowhere"], Code::System);
    refused(&state, &["show", "debian:12"], Code::UnknownImage);
    refused(&state, &["remove", &format!("sha256:{}", "0".repeat(64))], Code::UnknownImage);
    refused(&state, &["show", "Not A Name"], Code::InvalidArgument);
    refused(&state, &["pull", "localhost:1/app"], Code::RegistryUnreachable);
    refused(&state, &["pull", "a@sha256:12"], Code::InvalidArgument);
}
