//! Warm language runtimes of a node, as its operator uses and measures them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sublet_tests::platform::{PlatformProcess, sublet};
use sublet_tests::process::wait_until;

/// Interpreter that `scripts/setup.sh test` has made.
fn python() -> PathBuf {
    sublet_tests::root().join("target/tools/python/bin/python3")
}

/// List of sandboxes that the command prints, or its error output.
fn sandbox(platform: &PlatformProcess, words: &[&str]) -> Result<Value, String> {
    let agent = platform.state().join("agent.sock");
    let output = sublet()
        .args(["sandbox", "--json", "--agent", agent.to_str().unwrap()])
        .args(words)
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(serde_json::from_slice::<Value>(&output.stdout).unwrap()["sandboxes"].take());
    }
    Err(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn an_operator_starts_copies_of_warm_interpreters() {
    let platform = PlatformProcess::start_with(|up| {
        up.arg("--python").arg(python()).args(["--node", "node"]);
    });
    let folder = tempfile::tempdir().unwrap();
    for (language, file, text) in [
        ("python", "job.py", "import os, sys, json\nsys.exit(int(sys.argv[1]) + int(os.environ['MORE']))"),
        ("node", "job.js", "process.exit(Number(process.argv[2]) + Number(process.env.MORE))"),
    ] {
        let path = folder.path().join(file);
        fs::write(&path, text).unwrap();
        let words = ["create", "--start", "--count", "2", "--env", "MORE=3", "--template", language];
        let program = ["--import", "fs", "--", path.to_str().unwrap(), "4"];
        let program =
            if language == "python" { ["--import", "json", "--", program[3], "4"] } else { program };
        let made = sandbox(&platform, &[&words[..], &program].concat()).unwrap();
        let ids = [0, 1].map(|index: usize| made[index]["id"].to_string());
        wait_until("both have ended", || {
            let states = sandbox(&platform, &["state", &ids[0], &ids[1]]).unwrap();
            [0, 1].iter().all(|index: &usize| states[*index]["exit"] == json!("exited with status 7"))
        });
        sandbox(&platform, &["delete", &ids[0], &ids[1]]).unwrap();
        let refused = sandbox(&platform, &["create", "--template", language, "--import=a b", "--", "/x"]);
        assert!(refused.unwrap_err().contains("no name of one"));
        let missing = folder.path().join("none").join(file);
        let missing = missing.to_str().unwrap();
        let refused = sandbox(&platform, &["create", "--template", language, "--", missing]).unwrap_err();
        assert!(refused.contains(missing) && refused.contains("No such file"), "{refused}");
        assert!(!refused.contains("Invalid argument"), "{refused}");
    }
}

#[test]
fn a_node_without_an_interpreter_says_so() {
    let platform = PlatformProcess::start();
    for (language, name) in [("python", "Python"), ("node", "Node")] {
        let refused = sandbox(&platform, &["create", "--template", language, "--", "/x.py"]).unwrap_err();
        assert!(refused.contains(&format!("keeps no {name} warm")), "{refused}");
    }
    let mut up = sublet();
    let output =
        up.args(["up", "--python", "/bin/true", "--state"]).arg(platform.state().join("other")).output();
    let output = output.unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && complained.contains("the Python /bin/true"), "{complained}");
    let wrong = sublet().args(["up", "--node", "node", "--node-modules", "/tmp"]).output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("not a folder called node_modules"));
}

#[test]
fn a_start_is_measured_beside_a_cold_one() {
    for (module, language, interpreter) in [("json", "--python", python()), ("zlib", "--node", "node".into())]
    {
        assert_is_measured(module, language, &interpreter);
    }
}

fn assert_is_measured(module: &str, language: &str, interpreter: &Path) {
    let output = sublet()
        .args(["bench", "cold", "--json", "--sandbox", "template", "--n", "2", "--import", module, language])
        .arg(interpreter)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figure: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&figure["sandbox"], &figure["n"]), (&json!("template"), &json!(2)));
    assert!(figure["floor_us"].as_f64() > Some(0.0) && figure["median_us"].as_f64() > Some(0.0), "{figure}");
    assert_eq!(figure["steps"].as_array().unwrap().len(), 2);
}
