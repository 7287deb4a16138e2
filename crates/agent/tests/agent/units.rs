//! Tests an agent's reports of its devices, and its knowledge of its neighbours.

use std::fs;
use std::process::Command;

use sublet_proto::v1::*;
use sublet_proto::{package, pu};

use crate::SLEEPS;
use crate::common::*;

/// Packages of kernels as an agent has programs for them, of which the builder does something of the test's own.
fn described_by(does: &str) -> NodeDescription {
    let node = NodeFixture::with(SLEEPS, |options, _| {
        let beside = |name: &str| options.worker.with_file_name(name);
        let source = beside("builder.c");
        fs::write(&source, format!("#include <unistd.h>\nint main(void) {{ {does} }}\n")).unwrap();
        let builder = beside("sublet-worker-kernels");
        assert!(Command::new("cc").arg("-o").arg(builder).arg(source).status().unwrap().success());
        options.devices = Some(vec![package::PackageKind::OpenCl]);
    });
    node.manager.book().registrations[0].node.clone().unwrap()
}

#[test]
fn offers_a_device_even_if_its_driver_fails() {
    for does in ["return 1;", SLEEPS, "write(0, \"\\377\\377\", 2); for (;;) pause();"] {
        let said = described_by(does);
        assert_eq!(said.devices, ["opencl"], "this machine has a driver of OpenCL");
        assert_eq!(said.device_units, [pu::undescribed("opencl")], "{does}");
    }
}

#[test]
fn reports_neighbours_and_their_known_version() {
    let node = NodeFixture::with(SLEEPS, |options, manager| {
        (options.pu, options.neighbours) = ("dpu".into(), vec!["host".into()]);
        manager.book().neighbours = Some(Neighbours { version: 3, all: Vec::new() });
    });
    let said = node.manager.book().registrations[0].node.clone().unwrap();
    assert_eq!((said.pu.as_str(), &*said.neighbours), ("dpu", &["host".to_owned()][..]));
    assert_eq!(node.manager.next_report().neighbours, 3);
    node.manager.book().neighbours = Some(Neighbours { version: 4, all: Vec::new() });
    let knows = |book: &Book| book.reports.last().is_some_and(|report| report.neighbours == 4);
    node.manager.wait_for("the agent knows the news", knows);
}
