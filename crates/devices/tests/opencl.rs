//! The suite of all devices, on OpenCL, and tests of features that only OpenCL has.

#![allow(clippy::unwrap_used)]

mod suite;
mod support;

use sublet_devices::opencl::{OpenCl, Partition};
use sublet_devices::{CacheSettings, DeviceError, DeviceSandboxes, Driver, ImagePart};
use suite::{DeviceFixture, ONE, call, spec, started};
use support::{OpenClFixture, builder, device};

conformance!(OpenClFixture);

mod apart {
    use crate::suite;

    crate::conformance!(crate::support::ApartFixture);
}

#[test]
fn a_device_says_what_it_is_and_has() {
    let device = device();
    assert!(device.compute_units > 0 && device.memory_bytes > 0 && device.most_bytes > 0, "{device:?}");
    assert!(!device.name.is_empty() && !device.platform.is_empty() && !device.version.is_empty());
}

#[test]
fn divided_device_runs_programs_built_for_the_whole() {
    let device = device();
    let settings = CacheSettings { store: Some(suite::store()), ..CacheSettings::default() };
    let function = [spec::<OpenClFixture>(ONE, "double", "main_kernel")];
    if device.most_parts.min(device.compute_units) < 2 {
        let refused = OpenCl::open(&device, Partition::Parts(2), None);
        assert!(matches!(refused, Err(DeviceError::Unusable { .. })));
        return;
    }
    let parts = OpenCl::open(&device, Partition::Parts(2), Some(builder())).unwrap();
    let sandboxes = DeviceSandboxes::open(parts, &settings).unwrap();
    let id = started(&sandboxes, &function)[0];
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let sandboxes = &sandboxes;
            scope.spawn(move || {
                (0..50).for_each(|_| assert_eq!(call(sandboxes, id, &[thread]).unwrap(), [thread * 2]))
            });
        }
    });
}

#[test]
fn a_partition_that_cannot_be_is_refused() {
    for partition in
        [Partition::Queues(0), Partition::Queues(1000), Partition::Parts(0), Partition::Parts(16)]
    {
        if let Partition::Parts(16) = partition
            && device().compute_units >= 16
        {
            continue;
        }
        assert!(matches!(OpenCl::open(&device(), partition, None), Err(DeviceError::Unusable { .. })));
    }
}

#[test]
fn sources_without_a_builder_are_refused_with_a_reason() {
    let driver = OpenCl::open(&device(), Partition::Queues(1), None).unwrap();
    let sandboxes = DeviceSandboxes::open(driver, &CacheSettings::default()).unwrap();
    let error = sandboxes.create(&[spec::<OpenClFixture>(ONE, "echo", "main_kernel")]).remove(0).unwrap_err();
    assert!(error.to_string().contains("sources need a builder"), "{error}");
}

#[test]
fn a_builder_that_is_not_there_is_named() {
    let absent = sublet_devices::builder::Builder::new("/no/such/builder".into());
    let driver = OpenCl::open(&device(), Partition::Queues(1), Some(absent)).unwrap();
    let sandboxes = DeviceSandboxes::open(driver, &CacheSettings::default()).unwrap();
    let error = sandboxes.create(&[spec::<OpenClFixture>(ONE, "echo", "main_kernel")]).remove(0).unwrap_err();
    assert!(error.to_string().contains("/no/such/builder"), "{error}");
}

/// Number of programs of an image with these functions.
fn programs(names: &[&str]) -> usize {
    let kernels = ["main_kernel".to_owned()];
    let texts: Vec<String> = names.iter().map(|name| OpenClFixture::source(name)).collect();
    let prefixes: Vec<String> = (0..names.len()).map(|number| format!("f{number}_")).collect();
    let part = |(text, prefix)| ImagePart::Source { text, options: "", kernels: &kernels, prefix };
    let parts: Vec<_> =
        texts.iter().map(String::as_str).zip(prefixes.iter().map(String::as_str)).map(part).collect();
    let build = OpenClFixture::driver(1).build(&parts).unwrap();
    assert!(build.parts.iter().all(Result::is_ok), "{:?}", build.parts);
    build.programs.len()
}

#[test]
fn functions_whose_kernels_are_called_the_same_become_one_program() {
    assert_eq!(programs(&["echo", "leak", "add"]), 1);
}

#[test]
fn functions_with_clashing_helpers_become_few_programs() {
    assert_eq!(programs(&["add", "double", "echo"]), 2);
}
