//! Describes this node's devices. Their drivers are never loaded here, so the builder is asked, once for each
//! kind when the agent starts, in a sandbox like those of workers.
//!
//! The builder is not trusted to answer correctly or in time. The agent uses only two parts of its answer: the model,
//! which is shown to people, and the sizes, which are numbers. Without an answer in time the node still offers the
//! device.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketSocket;
use sublet_proto::package::PackageKind;
use sublet_proto::v1::device_look::Body;
use sublet_proto::v1::{DeviceLook, DeviceUnit};
use sublet_proto::{Code, Error, decode, pu};
use sublet_sandbox::{SandboxLimits, Sandboxes};
use tracing::warn;

use super::builder::{BuildOrder, BuilderProcess};

/// Longest time for the description of a device, including the start of the sandbox. An agent starts later by at most
/// this time.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// Memory of the node that the description may use while it runs, in bytes.
const LOOK_MEMORY_BYTES: u64 = 1 << 30;
const LOOK_SCRATCH_BYTES: u64 = 64 << 20;
const LOOK_PROCESSES: u32 = 256;
/// Argument with which the builder describes a device.
const DEVICE: &str = "device";

/// Devices whose descriptions are requested.
pub(crate) struct DeviceQuery {
    until: Instant,
    asked: Vec<(PackageKind, Receiver<Result<DeviceUnit, Error>>)>,
}

impl DeviceQuery {
    /// Begins to query the device of each kind. The queries run at the same time and share one deadline.
    pub(super) fn begin(
        sandboxes: &Arc<Sandboxes>,
        builder: &Path,
        kinds: &[PackageKind],
        cores: &[u32],
    ) -> DeviceQuery {
        let until = Instant::now() + LONGEST_LOOK;
        let ask = |&kind: &PackageKind| {
            let (tell, told) = sync_channel(1);
            let (sandboxes, builder, cores) = (sandboxes.clone(), builder.to_owned(), cores.to_vec());
            let look = move || tell.send(device(sandboxes, &builder, (kind, cores), until));
            // A thread that cannot be started sends nothing, which counts as no answer.
            let _ = std::thread::Builder::new().name("sublet-look".to_owned()).spawn(look);
            (kind, told)
        };
        DeviceQuery { until, asked: kinds.iter().map(ask).collect() }
    }

    /// Descriptions of the devices. A device without a description in time is reported as undescribed.
    pub(crate) fn found(self) -> Vec<DeviceUnit> {
        let DeviceQuery { until, asked } = self;
        let late = || Err(Error::new(Code::DeadlineExceeded, "its driver has not described it in time"));
        let found = asked.into_iter().map(|(kind, told)| {
            let left = until.saturating_duration_since(Instant::now());
            told.recv_timeout(left).unwrap_or_else(|_| late()).unwrap_or_else(|error| {
                warn!(device = kind.name(), %error, "it is not known what a device is; it is offered all the same");
                pu::undescribed(kind.name())
            })
        });
        found.collect()
    }
}

fn device(
    sandboxes: Arc<Sandboxes>,
    builder: &Path,
    (kind, cores): (PackageKind, Vec<u32>),
    until: Instant,
) -> Result<DeviceUnit, Error> {
    let machine = rustix::system::sysinfo();
    let limits = SandboxLimits {
        cores,
        memory_bytes: Some(LOOK_MEMORY_BYTES),
        // Drivers that compute on processors take the size of a device's memory from there.
        shown_memory_bytes: Some((machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit))),
        processes: Some(LOOK_PROCESSES),
        scratch_bytes: LOOK_SCRATCH_BYTES,
    };
    let builder = BuilderProcess::start(
        sandboxes,
        BuildOrder { program: builder, kind, what: DEVICE.into(), folder: None, limits },
        None,
    )?;
    hear(&builder.socket, kind, until, || builder.describe())
}

fn hear(
    socket: &PacketSocket,
    kind: PackageKind,
    until: Instant,
    how: impl Fn() -> Option<String>,
) -> Result<DeviceUnit, Error> {
    let failed = |what: &str| Error::new(Code::System, format!("what looked at the device {what}"));
    let packet = socket.receive(Some(until.saturating_duration_since(Instant::now())))?;
    let Some(packet) = packet else { return Err(failed(&how().unwrap_or_else(|| "has ended".to_owned()))) };
    match decode::<DeviceLook>("what was said of a device", &packet.bytes)?.body {
        Some(Body::Device(DeviceUnit { model, compute_units, memory_bytes, .. })) => Ok(DeviceUnit {
            model: pu::cleaned(&model),
            compute_units,
            memory_bytes,
            ..pu::undescribed(kind.name())
        }),
        Some(Body::Failure(failure)) => {
            Err(Error::new(Code::from_number(failure.code), pu::cleaned(&failure.message)))
        }
        None => Err(failed("said nothing that is known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use sublet_proto::v1::Failure;

    fn heard(said: &[u8]) -> Result<DeviceUnit, Error> {
        let (here, there) = PacketSocket::pair().unwrap();
        there.send(said, &[]).unwrap();
        hear(&here, PackageKind::OpenCl, Instant::now() + Duration::from_secs(180), || None)
    }

    fn says(body: Body) -> Result<DeviceUnit, Error> {
        heard(&DeviceLook { body: Some(body) }.encode_to_vec())
    }

    #[test]
    fn accepts_only_the_description_fields_of_a_device() {
        let said = DeviceUnit {
            unit: "cpu".into(),
            kind: "cuda".into(),
            model: format!("a\x1b[2J device\n{}", "x".repeat(1000)),
            compute_units: 132,
            memory_bytes: 7,
        };
        let found = says(Body::Device(said)).unwrap();
        assert_eq!(
            (found.unit.as_str(), found.kind.as_str()),
            ("opencl0", "opencl"),
            "whatever it calls itself"
        );
        assert_eq!((found.compute_units, found.memory_bytes), (132, 7));
        assert!(
            found.model.starts_with("a [2J device x") && found.model.len() == pu::MAX_MODEL_BYTES,
            "{found:?}"
        );
        let failure = Failure { code: Code::System.number(), message: "no\ndriver".into() };
        assert_eq!(says(Body::Failure(failure)).unwrap_err(), Error::new(Code::System, "no driver"));
        assert_eq!(heard(&[0xff; 9]).unwrap_err().code, Code::Protocol);
        let unknown = heard(&[15 << 3, 1]).unwrap_err();
        assert!(unknown.message.ends_with("said nothing that is known"), "{unknown}");
    }

    #[test]
    fn who_says_nothing_is_not_waited_for() {
        let (here, there) = PacketSocket::pair().unwrap();
        assert!(hear(&here, PackageKind::OpenCl, Instant::now(), || None).is_err(), "its time is over");
        drop(there);
        let killed = || Some("was killed by SIGSEGV".to_owned());
        let error = hear(&here, PackageKind::OpenCl, Instant::now(), killed).unwrap_err();
        assert!(error.message.ends_with("was killed by SIGSEGV"), "{error}");
        let asked = vec![(PackageKind::OpenCl, sync_channel(1).1)];
        assert_eq!(DeviceQuery { until: Instant::now(), asked }.found(), [pu::undescribed("opencl")]);
    }
}
