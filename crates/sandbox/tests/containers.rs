//! Tests that only containers need: the files of an image. Tests for every kind of sandbox are in
//! `conformance.rs` and `attacks.rs`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_means::{Means, skip};
use sublet_sandbox::{IsolationKind, MAX_LAYERS, ProgramEnd, SandboxProgram, Spec};

use crate::support::{MIB, SandboxFixture, Sort, image, is_root, own};

/// Returns the layers of a specification's image.
fn layers(spec: &mut Spec) -> &mut Vec<PathBuf> {
    match &mut spec.kind {
        IsolationKind::Container(image) => &mut image.layers,
        other => panic!("{other:?}"),
    }
}

/// Adds a layer over the image, whose files a function creates.
fn add_layer(fixture: &SandboxFixture, spec: &mut Spec, make: impl FnOnce(&Path)) {
    let layer = fixture.folder.path().join("layer");
    fs::create_dir(&layer).unwrap();
    fs::set_permissions(&layer, fs::Permissions::from_mode(0o755)).unwrap();
    make(&layer);
    own(&layer);
    layers(spec).push(layer);
}

#[test]
fn container_has_its_image_and_loses_its_changes() {
    let fixture = SandboxFixture::open(Sort::Container);
    let words = ["change", "/etc/issue", "/etc/gone", "/etc/new", "/bin/probe"];
    for _ in 0..2 {
        let (said, exit) = fixture.run(&words);
        let lines: Vec<_> = said.lines().collect();
        // The content of each file: at first, after a write, and after its removal.
        let expected = [
            "said /etc/issue upper, changed, ENOENT",
            "said /etc/gone ENOENT, changed, ENOENT",
            "said /etc/new ENOENT, changed, ENOENT",
            "said /bin/probe \u{7f}ELF, changed, ENOENT",
            "said done",
        ];
        assert_eq!(lines, expected);
        assert_eq!(exit, ProgramEnd::Status(0));
    }
    assert_eq!(fs::read_to_string(image()[0].join("etc/issue")).unwrap(), "lower");
    assert_eq!(fs::read_to_string(image()[1].join("etc/issue")).unwrap(), "upper");
}

#[test]
fn a_program_of_the_host_runs_in_a_container() {
    let fixture = SandboxFixture::open(Sort::Container);
    let path = fixture.folder.path().join("outside");
    fs::copy(image()[0].join("bin/probe"), &path).unwrap();
    let (said, exit) =
        fixture.run_with(&["change", "/etc/issue"], |spec| spec.program = SandboxProgram::Outside(path));
    assert_eq!(
        (said.as_str(), exit),
        ("said /etc/issue upper, changed, ENOENT\nsaid done\n", ProgramEnd::Status(0))
    );
}

#[test]
fn what_makes_no_container_is_named_and_leaves_nothing() {
    let fixture = SandboxFixture::open(Sort::Container);
    let refusal = |change: &dyn Fn(&mut Spec)| {
        let (mut spec, _outside) = fixture.probe(&["exit"]);
        change(&mut spec);
        fixture.sandboxes.launch(vec![spec]).remove(0).unwrap_err().to_string()
    };
    let missing = refusal(&|spec| layers(spec)[0] = "/no/such/layer".into());
    assert!(missing.contains("showing a container /no/such/layer"), "{missing}");
    for count in [0, MAX_LAYERS + 1] {
        let counted = refusal(&|spec| *layers(spec) = vec![image()[0].clone(); count]);
        assert!(counted.contains("1 to 128 layers"), "{counted}");
    }
    let folder = refusal(&|spec| match &mut spec.kind {
        IsolationKind::Container(image) => image.working_folder = "/not/there".into(),
        other => panic!("{other:?}"),
    });
    assert!(folder.contains("mounting a container's image failed: No such file"), "{folder}");
    let program = refusal(&|spec| spec.program = SandboxProgram::Inside("/bin/none".into()));
    assert!(program.contains("executing a sandbox's program failed: No such file"), "{program}");
}

#[test]
fn mounts_the_maximum_number_of_layers() {
    let fixture = SandboxFixture::open(Sort::Container);
    let (mut spec, _outside) = fixture.probe(&["exit", "4"]);
    let folders: Vec<_> =
        (1..MAX_LAYERS).map(|number| fixture.folder.path().join(number.to_string())).collect();
    for folder in &folders {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("last"), folder.file_name().unwrap().as_encoded_bytes()).unwrap();
        own(folder);
    }
    layers(&mut spec).truncate(1);
    layers(&mut spec).extend(folders);
    let made = fixture.sandboxes.launch(vec![spec]).remove(0).unwrap();
    assert_eq!(fixture.wait(&made).exit, Some(ProgramEnd::Status(4)));
}

#[test]
fn what_a_container_writes_has_a_bound() {
    let fixture = SandboxFixture::open(Sort::Container);
    let folder = fixture.folder.path().join("everybodys");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let (said, _) = fixture.run_with(&["flood"], |spec| {
        spec.limits.scratch_bytes = 4 * MIB;
        spec.folder = Some(folder.clone());
    });
    // The image's list of users, to which the sandbox's is added, takes a page.
    assert!(said.contains(&format!("said {} ENOSPC", 4 * MIB - 4096)), "{said}");
    assert!(said.contains("files ENOSPC"), "{said}");
    let blocked = said.lines().filter(|line| line.starts_with("blocked")).count();
    assert_eq!((blocked, said.contains("BREACH")), (6, false), "{said}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn links_and_devices_in_an_image_lead_nowhere() {
    let fixture = SandboxFixture::open(Sort::Container);
    let secret = fixture.folder.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let paths = ["/absolute", "/relative", "/process", "/mem"];
    let words: Vec<_> = ["files"].into_iter().chain(paths).collect();
    let (said, _) = fixture.run_with(&words, |spec| {
        let folder = fixture.folder.path().join("package");
        fs::create_dir(&folder).unwrap();
        spec.folder = Some(folder);
        add_layer(&fixture, spec, |layer| {
            symlink(&secret, layer.join("absolute")).unwrap();
            symlink("../../../../../../../../../../../etc/shadow", layer.join("relative")).unwrap();
            symlink("/proc/1/root/etc/shadow", layer.join("process")).unwrap();
            // Links in the places of mount points.
            symlink(&outside, layer.join("package")).unwrap();
            symlink(&outside, layer.join("tmp")).unwrap();
            symlink("../../../../../../../../etc", layer.join("dev")).unwrap();
            symlink("nowhere", layer.join("proc")).unwrap();
            if is_root() {
                let mknod =
                    |arguments: &[&str]| Command::new("mknod").args(arguments).status().unwrap().success();
                assert!(mknod(&[layer.join("mem").to_str().unwrap(), "--mode=666", "c", "1", "1"]));
            }
        });
    });
    assert!(!said.contains("BREACH"), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("blocked")).count(), 6 * paths.len(), "{said}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn set_user_id_program_in_an_image_gives_no_rights() {
    if !is_root() {
        skip(Means::Root, "only root can make such a program");
        return;
    }
    let fixture = SandboxFixture::open(Sort::Container);
    let (said, _) = fixture.run_with(&["show"], |spec| {
        add_layer(&fixture, spec, |layer| {
            fs::create_dir(layer.join("bin")).unwrap();
            fs::copy(image()[0].join("bin/probe"), layer.join("bin/suid")).unwrap();
        });
        let path = fixture.folder.path().join("layer/bin/suid");
        std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        spec.program = SandboxProgram::Inside("/bin/suid".into());
    });
    assert!(said.contains("said user 1000 "), "{said}");
}
