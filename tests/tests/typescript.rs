//! Functions in TypeScript, and the types of `@sublet/sublet` with which they are compiled.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sublet::{Allocation, Invoker};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::{read, root};
use tempfile::TempDir;

/// Folder of the package of npm with the types.
const PACKAGE: &str = "crates/template-node/npm";
/// Fields of objects of each class, which its prototype does not show.
const FIELDS: [(&str, &[&str]); 5] = [
    ("Channel", &["name", "readonly"]),
    ("xpu.Reader", &["object"]),
    ("xpu.Writer", &["object"]),
    ("xpu.Executor", &["pid"]),
    ("xpu.Chain", &[]),
];

fn platform() -> PlatformProcess {
    PlatformProcess::start_with(|up| {
        up.args(["--node", "node"]);
    })
}

fn client(platform: &PlatformProcess, folder: &Path) -> Invoker {
    platform.client_with(&Allocation::new(folder.to_str().unwrap()).memory_bytes(64 << 20))
}

#[track_caller]
fn call(client: &Invoker, function: &str, input: &[u8]) -> String {
    let mut output = vec![0u8; 64 << 10];
    let done = client.submit(function, input, &mut output).unwrap().wait().unwrap();
    output.truncate(done.output_bytes);
    String::from_utf8(output).unwrap()
}

/// A folder outside of the package with the packages of npm that a program in TypeScript needs.
fn workplace() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().join("node_modules");
    let installed = root().join("target/tools/typescript/node_modules");
    assert!(
        installed.join("typescript/bin/tsc").is_file(),
        "TypeScript is missing: scripts/setup.sh test installs it"
    );
    fs::create_dir_all(modules.join("@sublet")).unwrap();
    for name in ["typescript", "@types", "undici-types"] {
        symlink(installed.join(name), modules.join(name)).unwrap();
    }
    symlink(root().join(PACKAGE), modules.join("@sublet/sublet")).unwrap();
    folder
}

/// Compiles files as strictly as the compiler can, with these more arguments, and returns the compiler's errors. The compiler
/// takes seconds to start, and little more for several files than for one.
fn compile(folder: &Path, files: &[String], more: &[&str]) -> Result<(), String> {
    let mut node = Command::new("node");
    node.arg(folder.join("node_modules/typescript/bin/tsc"))
        .args(["--strict", "--noUnusedLocals", "--target", "es2022", "--module", "node16", "--types", "node"])
        .args(more)
        .args(files)
        .current_dir(folder);
    let output = node.output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// The errors in a file among those of the compiler, with the lines that continue them.
fn errors_in(errors: &str, file: &str) -> String {
    let mut is_of_file = false;
    let lines = errors.lines().filter(|line| {
        if !line.starts_with(' ') {
            is_of_file = line.strip_prefix(file).is_some_and(|rest| rest.starts_with('('));
        }
        is_of_file
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A block of the guide, by its title.
fn documented(title: &str) -> String {
    let guide = read("docs/guides/nodejs.md");
    let (_, block) = guide.split_once(&format!(" title=\"{title}\"\n")).unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// The names of a list in JSON, as a type of TypeScript.
fn union(names: &Value, more: &[&str]) -> String {
    let names = names.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    names.chain(more.iter().copied()).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(" | ")
}

#[test]
fn types_have_the_names_of_the_module() {
    let platform = platform();
    let client = client(&platform, &root().join("tests/functions/nodejs_components"));
    let names: Value = serde_json::from_str(&call(&client, "names", b"")).unwrap();
    let mut checks = vec![
        "import * as sublet from '@sublet/sublet';".to_owned(),
        "type Names<T> = Extract<keyof T, string>;".to_owned(),
        "type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : { missing: Exclude<B, A> }) : { unknown: Exclude<A, B> };"
            .to_owned(),
        format!("export const own: Same<Names<typeof sublet>, {}> = true;", union(&names[""], &[])),
        format!("export const xpu: Same<Names<typeof sublet.xpu>, {}> = true;", union(&names["xpu"], &[])),
    ];
    for (class, fields) in FIELDS {
        let name = class.rsplit('.').next().unwrap();
        let members = union(&names[name], fields);
        checks.push(format!("export const of{name}: Same<Names<sublet.{class}>, {members}> = true;"));
    }
    let folder = workplace();
    let mut files = vec!["names.ts".to_owned()];
    fs::write(folder.path().join(&files[0]), checks.join("\n")).unwrap();
    // A name that only one side has is an error.
    for (from, to) in [("'send'", "'sent'"), (" | 'fifo'", ""), ("'object'", "'object' | 'more'")] {
        let changed = checks.join("\n").replacen(from, to, 1);
        assert_ne!(changed, checks.join("\n"), "{from} is not in {checks:?}");
        let file = format!("changed{}.ts", files.len());
        fs::write(folder.path().join(&file), changed).unwrap();
        files.push(file);
    }
    let errors = compile(folder.path(), &files, &["--noEmit"]).unwrap_err();
    let is_of_changed = |line: &str| line.starts_with("changed") || line.starts_with(' ');
    assert!(errors.lines().all(is_of_changed), "{errors}");
    for file in &files[1..] {
        assert!(errors_in(&errors, file).contains("is not assignable"), "{file}: {errors}");
    }
}

#[test]
fn documented_function_in_typescript_is_compiled_and_called() {
    let folder = workplace();
    let package = folder.path().join("orders");
    fs::create_dir(&package).unwrap();
    for file in ["sublet.toml", "index.ts"] {
        fs::write(package.join(file), documented(&format!("orders/{file}"))).unwrap();
    }
    compile(folder.path(), &["orders/index.ts".to_owned()], &[]).unwrap();
    let platform = platform();
    let client = client(&platform, &package);
    let order = br#"{"items": [{"price": 2.5, "count": 4}, {"price": 1, "count": 2}]}"#;
    assert_eq!(call(&client, "total", order), "12");
    assert_eq!(call(&client, "shout", b"hello"), "HELLO");
}

#[test]
fn compiler_rejects_wrong_use_of_the_module() {
    let folder = workplace();
    let wrong = [
        ("xpu.fifo(1)", "Argument of type 'number'"),
        ("xpu.connect('mail', { timeout: 1 })", "'timeout' does not exist"),
        ("new Channel()", "is private"),
        ("channel('numbers').read('0')", "Argument of type 'string'"),
        ("channel('numbers').array(0)", "Property 'array' does not exist"),
        ("const text: string = receive('tell')", "is not assignable to type 'string'"),
        ("json((order: number) => order)(1)", "Argument of type 'number'"),
        (
            "const shout: SubletFunction = (input: number) => input",
            "is not assignable to type 'SubletFunction'",
        ),
    ];
    let files: Vec<String> = (0..wrong.len()).map(|number| format!("wrong{number}.ts")).collect();
    for ((statement, _), file) in wrong.iter().zip(&files) {
        let names = ["xpu", "Channel", "channel", "receive", "json", "type SubletFunction"];
        let used = names.iter().filter(|name| statement.contains(name.trim_start_matches("type "))).copied();
        let import = format!("import {{ {} }} from '@sublet/sublet';", used.collect::<Vec<_>>().join(", "));
        fs::write(folder.path().join(file), format!("{import}\nexport {{}};\n{statement};\n")).unwrap();
    }
    let errors = compile(folder.path(), &files, &["--noEmit", "--noUnusedLocals", "false"]).unwrap_err();
    for ((statement, error), file) in wrong.iter().zip(&files) {
        let found = errors_in(&errors, file);
        assert!(found.contains(&format!("{file}(3,")) && found.contains(error), "{statement}: {errors}");
    }
}

/// A package of functions, with the package of npm among its dependencies.
fn package_with_types(module: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let installed: PathBuf = folder.path().join("node_modules/@sublet/sublet");
    fs::create_dir_all(&installed).unwrap();
    for file in ["package.json", "index.js", "index.d.ts"] {
        fs::copy(root().join(PACKAGE).join(file), installed.join(file)).unwrap();
    }
    let manifest = "name = 'p'\nkind = 'nodejs'\nlibrary = 'm.mjs'\n[[function]]\nname = 'f'\n";
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    fs::write(folder.path().join("m.mjs"), module).unwrap();
    folder
}

#[test]
fn modules_of_ecmascript_import_the_installed_package() {
    let names = ["json", "xpu", "Channel", "channel", "send", "receive", "instance", "instances"].join(", ");
    let module = format!(
        "import {{ {names} }} from '@sublet/sublet';\nimport * as all from '@sublet/sublet';\n\
         export const f = json(() => [[{names}].every(Boolean), instances(), Object.keys(all).sort()]);\n"
    );
    let folder = package_with_types(&module);
    let platform = platform();
    let told: Value = serde_json::from_str(&call(&client(&platform, folder.path()), "f", b"")).unwrap();
    assert_eq!((&told[0], &told[1]), (&Value::Bool(true), &1.into()));
    // Node.js adds a name of its own to the names of a CommonJS module.
    let mut exported: Vec<&str> = told[2].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    exported.retain(|name| !["default", "module.exports"].contains(name));
    let mut expected: Vec<&str> = names.split(", ").collect();
    expected.sort_unstable();
    assert_eq!(exported, expected);
    let mut node = Command::new("node");
    let outside = node.arg(folder.path().join("m.mjs")).output().unwrap();
    let said = String::from_utf8_lossy(&outside.stderr);
    assert!(!outside.status.success(), "{said}");
    assert!(said.contains("@sublet/sublet is available in functions that Sublet executes"), "{said}");
}

#[test]
fn package_of_npm_has_the_version_of_sublet() {
    let package: Value = serde_json::from_str(&read(format!("{PACKAGE}/package.json"))).unwrap();
    assert_eq!(package["version"], env!("CARGO_PKG_VERSION"));
}
