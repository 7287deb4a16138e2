//! Choices of the kind of processing unit, and of the build of a package, for a request.

use sublet_proto::v1::{self, Price};

use super::*;

/// A core whose processing units have prices: on `opencl` computing costs a tenth, memory ten times as much.
fn priced() -> CoreFixture {
    let computing = |compute_nano_per_core_s, allocation_nano_per_gib_s| Price {
        compute_nano_per_core_s,
        allocation_nano_per_gib_s,
        polling_nano_per_core_s: 0,
    };
    let by_pu = [("opencl", computing(10, 10_000)), ("dpu", computing(50, 1_000))];
    let by_pu = by_pu.map(|(pu, price)| (pu.to_owned(), price)).into();
    let prices = Prices { default: computing(100, 1_000), by_pu };
    let mut fixture = CoreFixture::new();
    fixture.core = Core::new(CoreSettings {
        epoch: 1,
        seed: 7,
        prices,
        queue: QueueLimits::default(),
        balanced_bytes: None,
    });
    fixture
}

fn granted(actions: Vec<CoreAction>) -> Result<Vec<LeaseId>, Error> {
    match actions.into_iter().next() {
        Some(CoreAction::Granted { leases, .. }) => Ok(leases),
        Some(CoreAction::Refused { error, .. }) => Err(error),
        other => panic!("answered by {other:?}"),
    }
}

impl CoreFixture {
    /// The kind of processing unit and the build that a request is granted.
    fn choice(&mut self, architectures: &[&str], asked: &LeaseRequest) -> Result<(String, u32), Error> {
        let leases = granted(self.request_of_builds("t", architectures, asked))?;
        let lease = self.core.describe(self.core.lease(leases[0]).unwrap());
        assert_eq!(lease.price.unwrap(), self.price(&lease.pu));
        Ok((lease.pu, lease.build))
    }

    fn price(&self, pu: &str) -> Price {
        let compute_nano_per_core_s = match pu {
            "opencl" => 10,
            "dpu" => 50,
            _ => 100,
        };
        let allocation_nano_per_gib_s = if pu == "opencl" { 10_000 } else { 1_000 };
        Price { compute_nano_per_core_s, allocation_nano_per_gib_s, polling_nano_per_core_s: 0 }
    }
}

const BUILDS: [&str; 3] = ["x86_64", "wasm32", "opencl"];

fn is(pu: &str, build: u32) -> Result<(String, u32), Error> {
    Ok((pu.to_owned(), build))
}

#[test]
fn of_several_builds_the_cheapest_that_is_free_is_taken() {
    let mut fixture = priced();
    let dpu = NodeDescription { pu: "dpu".into(), architecture: "aarch64".into(), ..node("d", 1) };
    let device = NodeDescription { devices: vec!["opencl".into()], ..node("o", 1) };
    for (number, description) in [(1, node("c", 1)), (2, dpu), (3, device)] {
        fixture.register(description, number, Vec::new()).unwrap();
    }
    assert_eq!(fixture.choice(&BUILDS, &asked(1)), is("opencl", 2));
    // The device is taken, and its node's processor with it.
    assert_eq!(fixture.choice(&BUILDS, &asked(1)), is("dpu", 1));
    assert_eq!(fixture.choice(&BUILDS, &asked(1)), is("cpu", 0));
    let error = fixture.choice(&BUILDS, &asked(1)).unwrap_err();
    assert_eq!(error.code, Code::NoCapacity);
    for class in ["opencl: 1 cores asked, 0 of 1 free", "dpu/aarch64: ", "cpu/x86_64: "] {
        assert!(error.message.contains(class), "{error}");
    }
    // A request that exceeds every class is refused for good.
    assert_eq!(fixture.choice(&BUILDS, &asked(9)).unwrap_err().code, Code::InsufficientResources);
}

#[test]
fn what_is_cheap_depends_on_what_is_asked() {
    let mut fixture = priced();
    let devices = vec!["opencl".into()];
    fixture.register(NodeDescription { devices, ..node("o", 9) }, 1, Vec::new()).unwrap();
    assert_eq!(fixture.choice(&BUILDS, &asked(1)), is("opencl", 2));
    let much_memory = LeaseRequest { memory_bytes: GIB / 2, ..asked(1) };
    assert_eq!(fixture.choice(&BUILDS, &much_memory), is("cpu", 0));
}

#[test]
fn first_equally_priced_build_wins_unless_a_kind_is_named() {
    let mut fixture = priced();
    let devices = vec!["opencl".into()];
    fixture.register(NodeDescription { devices, ..node("o", 9) }, 1, Vec::new()).unwrap();
    let on = |pu: &str| LeaseRequest { pu: pu.into(), ..asked(1) };
    assert_eq!(fixture.choice(&BUILDS, &on("cpu")), is("cpu", 0));
    assert_eq!(fixture.choice(&["opencl", "wasm32", "x86_64"], &on("cpu")), is("cpu", 1));
    assert_eq!(fixture.choice(&["aarch64", "wasm32"], &on("")), is("cpu", 1));
    assert_eq!(fixture.choice(&BUILDS, &on("opencl")), is("opencl", 2));
    let error = fixture.choice(&BUILDS, &on("dpu")).unwrap_err();
    assert_eq!(error.code, Code::InsufficientResources);
    assert!(error.message.contains("no node of dpu/x86_64 or dpu/wasm32 is there"), "{error}");
    let error = fixture.choice(&["aarch64", "cuda"], &on("")).unwrap_err();
    assert!(error.message.contains("no node of cpu/aarch64 or cuda is there"), "{error}");
}

/// A DPU that is cheaper and slower than a host, and a host with a device that is dearer and faster than it.
fn profiled() -> (CoreFixture, [v1::Profile; 3]) {
    let mut fixture = priced();
    let dpu = NodeDescription { pu: "dpu".into(), architecture: "aarch64".into(), ..node("d", 9) };
    let device = NodeDescription { devices: vec!["opencl".into()], ..node("o", 9) };
    for (number, description) in [(1, dpu), (2, device)] {
        fixture.register(description, number, Vec::new()).unwrap();
    }
    let profile =
        |pu: &str, memory_bytes, speed_permille| v1::Profile { pu: pu.into(), memory_bytes, speed_permille };
    (fixture, [profile("cpu", 0, 1000), profile("dpu", 64 << 20, 400), profile("opencl", GIB / 4, 8_000)])
}

#[test]
fn chooses_the_cheapest_or_fastest_profile_by_the_requests_weight() {
    // It names no memory.
    let asked = |cores| LeaseRequest { memory_bytes: 0, ..asked(cores) };
    let (_, profiles) = profiled();
    let taken = |profiles: &[v1::Profile], asked: &LeaseRequest| {
        let (mut fixture, _) = profiled();
        let leases = granted(fixture.request_with_profiles("t", &BUILDS, profiles, asked))?;
        let lease = fixture.core.describe(fixture.core.lease(leases[0]).unwrap());
        Ok::<_, Error>((lease.pu, lease.memory_bytes, lease.choice))
    };
    let weighed = |time_weight_permille| LeaseRequest { time_weight_permille, ..asked(1) };
    // A second of the host's work costs 100, and 125 for its memory; on the DPU 2.5 s of 50 and 62, on the device an
    // eighth of 10 and 2500.
    let (pu, _, choice) = taken(&profiles, &weighed(0)).unwrap();
    assert_eq!(pu, "cpu");
    assert_eq!(
        choice,
        "by price: cpu (225 nano-units for a second's work, speed 1) is taken, dpu (281 nano-units for a second's work, speed 0.4), \
         opencl (313 nano-units for a second's work, speed 8)"
    );
    let (pu, memory_bytes, choice) = taken(&profiles, &weighed(1000)).unwrap();
    assert_eq!((pu.as_str(), memory_bytes), ("opencl", GIB / 4));
    assert!(
        choice.starts_with("by time: opencl (313 nano-units for a second's work, speed 8) is taken"),
        "{choice}"
    );
    // A kind without a profile is not chosen, but a request that names it gets it.
    let (pu, memory_bytes, choice) = taken(&profiles[1..2], &weighed(1000)).unwrap();
    assert_eq!((pu.as_str(), memory_bytes, choice.as_str()), ("dpu", 64 << 20, ""));
    let on_host = LeaseRequest { pu: "cpu".into(), ..asked(1) };
    assert_eq!(taken(&profiles[1..2], &on_host).unwrap().0, "cpu");
    // The request's own memory counts, whatever the profile says.
    let much = LeaseRequest { memory_bytes: GIB / 2, time_weight_permille: 1000, ..asked(1) };
    assert_eq!(taken(&profiles, &much).unwrap().1, GIB / 2);
    // Memory is for each worker.
    let two = LeaseRequest { cores: 2, time_weight_permille: 1000, ..asked(1) };
    assert_eq!(taken(&profiles, &two).unwrap().1, GIB / 2);
}

#[test]
fn full_kind_is_named_and_the_next_one_chosen() {
    let (mut fixture, profiles) = profiled();
    let nine = LeaseRequest { cores: 9, time_weight_permille: 1000, memory_bytes: GIB / 8, ..asked(1) };
    granted(fixture.request_with_profiles("t", &BUILDS, &profiles, &nine)).unwrap();
    let fast = LeaseRequest { cores: 1, ..nine };
    let leases = granted(fixture.request_with_profiles("t", &BUILDS, &profiles, &fast)).unwrap();
    let lease = fixture.core.describe(fixture.core.lease(leases[0]).unwrap());
    assert_eq!(lease.pu, "dpu");
    assert!(
        lease.choice.contains("opencl (") && lease.choice.contains(" has no free capacity, "),
        "{}",
        lease.choice
    );
}

#[test]
fn who_waits_is_served_by_whatever_comes_first() {
    let mut fixture = priced();
    fixture.register(node("c", 1), 1, Vec::new()).unwrap();
    let held = fixture.grant(&asked(1))[0];
    let waits = |pu: &str| LeaseRequest { wait_ms: 60_000, pu: pu.into(), ..asked(1) };
    assert!(fixture.request_of_builds("t", &BUILDS, &waits("")).is_empty());
    assert!(fixture.request_of_builds("u", &["cuda"], &waits("")).is_empty(), "such a device may yet come");
    let devices = vec!["opencl".into()];
    let answers = {
        let joining = Joining {
            description: NodeDescription { devices, ..node("o", 1) },
            instance: InstanceId(2),
            generation: 1,
            leases: Vec::new(),
        };
        fixture.event(CoreEvent::Register(Box::new(joining)))
    };
    let leases = answers.into_iter().find_map(|action| match action {
        CoreAction::Granted { leases, .. } => Some(leases),
        _ => None,
    });
    let lease = fixture.core.lease(leases.unwrap()[0]).unwrap();
    assert_eq!((fixture.core.describe(lease).pu.as_str(), lease.build), ("opencl", 2));
    assert_eq!(fixture.core.waiting(), 1);
    assert!(fixture.core.lease(held).is_some());
}

#[test]
fn agent_cannot_register_an_unlimited_number_of_architectures() {
    let mut fixture = priced();
    let mut register = |architecture: String| {
        let description = NodeDescription { architecture, ..node("n", 1) };
        fixture.register(description, 1, Vec::new()).map(|_| ())
    };
    for number in 0..classes::MAX_CLASSES {
        register(format!("a{number}")).unwrap();
    }
    let error = register("x86_64".into()).unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.contains("x86_64"), "{error}");
    register("a7".into()).unwrap();
    assert_eq!(fixture.choice(&["a7"], &asked(1)), is("cpu", 0));
}

#[test]
fn agent_cannot_register_an_unlimited_number_of_interpreters() {
    let mut fixture = priced();
    let mut register = |first: usize| {
        let runtimes = (0..16).map(|number| format!("python{first}.{number}")).collect();
        fixture.register(NodeDescription { runtimes, ..node("n", 1) }, 1, Vec::new()).map(|_| ())
    };
    // Each registration names 16 others.
    let refused = (0..=classes::MAX_ALL_CLASSES / 16).find_map(|first| register(first).err());
    let error = refused.expect("a registration is refused");
    assert!(error.code == Code::InvalidArgument && error.message.contains("node n has more"), "{error}");
    register(0).unwrap();
    assert_eq!(fixture.choice(&["python0.3"], &asked(1)), is("cpu", 0));
}

#[test]
fn restarted_manager_knows_the_kind_and_build_of_a_lease() {
    let mut fixture = priced();
    let devices = vec!["opencl".into()];
    fixture.register(NodeDescription { devices, ..node("o", 1) }, 1, Vec::new()).unwrap();
    let lease = granted(fixture.request_of_builds("t", &BUILDS, &asked(1))).unwrap()[0];
    let stored = fixture.core.describe(fixture.core.lease(lease).unwrap());
    let mut later = priced();
    later.event(CoreEvent::Restored(Box::new(stored)));
    let restored = later.core.describe(later.core.lease(lease).unwrap());
    assert_eq!((restored.pu.as_str(), restored.build), ("opencl", 2));
    let error = later.choice(&["wasm32"], &asked(1)).unwrap_err();
    assert!(error.message.contains("no node of cpu/wasm32"), "{error}");
}

#[test]
fn kernels_go_to_their_device_and_use_the_nodes_cores() {
    let mut fixture = CoreFixture::with_node(4);
    let devices = ["opencl", "opencl", "abacus"].map(str::to_owned).to_vec();
    let (with_device, _) =
        fixture.register(NodeDescription { devices, ..node("d", 3) }, 2, Vec::new()).unwrap();
    for _ in 0..2 {
        let leases = granted(fixture.request_for("t", "opencl", &asked(1))).unwrap();
        assert_eq!(fixture.core.lease(leases[0]).unwrap().node, with_device);
    }
    let error = granted(fixture.request_for("t", "cuda", &asked(1))).unwrap_err();
    assert_eq!(error.code, Code::InsufficientResources);
    assert!(error.message.contains("no node of cuda is"), "{error}");
    // A package that runs everywhere goes to either, and takes what is left on both.
    assert_eq!(fixture.grant(&LeaseRequest { max_nodes: 0, ..asked(5) }).len(), 2);
    assert!(granted(fixture.request_for("t", "wasm32", &asked(1))).is_err());
    assert_eq!(granted(fixture.request_for("t", "opencl", &asked(1))).unwrap_err().code, Code::NoCapacity);
    // A device that no longer exists takes no leases.
    fixture.register(node("d", 9), 2, Vec::new()).unwrap();
    assert!(
        granted(fixture.request_for("t", "opencl", &asked(1))).unwrap_err().message.contains("no node of")
    );
}

#[test]
fn each_python_worker_is_a_lease_at_a_matching_interpreter() {
    let mut fixture = priced();
    let with = |name: &str, cores, runtime: &str| NodeDescription {
        runtimes: vec![runtime.into()],
        ..node(name, cores)
    };
    fixture.register(node("none", 9), 1, Vec::new()).unwrap();
    fixture.register(with("one", 2, "python3.11"), 2, Vec::new()).unwrap();
    fixture.register(with("other", 3, "python3.12"), 3, Vec::new()).unwrap();
    let mut leases = |architecture: &str, cores| {
        let leases = granted(fixture.request_of_builds("t", &[architecture], &asked(cores)))?;
        let described = leases.iter().map(|&lease| fixture.core.describe(fixture.core.lease(lease).unwrap()));
        let parts: Vec<_> = described.map(|lease| (lease.node, lease.cores, lease.pu)).collect();
        Ok::<_, Error>(parts)
    };
    let part = |node: &str| (node.to_owned(), 1, "cpu".to_owned());
    assert_eq!(leases("python3.11", 2), Ok(vec![part("one"), part("one")]));
    assert_eq!(leases("python3.11", 1).unwrap_err().code, Code::NoCapacity);
    assert_eq!(leases("python", 3), Ok(vec![part("other"); 3]));
    assert_eq!(leases("x86_64", 9).unwrap().len(), 1, "of other packages one process has all cores");
    let error = leases("python3.13", 1).unwrap_err();
    assert!(error.message.contains("no node of cpu/python3.13 is there"), "{error}");
}
