//! Describes this node's devices. Their drivers are never loaded here, so the builder is asked, once for each
//! kind when the agent starts, in a sandbox like those of workers.
//!
//! It may answer anything, late or never: of what it says the model is shown to people and the sizes are numbers, and without an
//! answer in time the node offers the device all the same.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketSocket;
use sublet_proto::package::Kind;
use sublet_proto::v1::device_look::Body;
use sublet_proto::v1::{DeviceLook, DeviceUnit};
use sublet_proto::{Code, Error, decode, pu};
use sublet_sandbox::{Limits, Sandboxes};
use tracing::warn;

use super::builder::{Builder, Order};

/// How long a device may take to be described, the start of the sandbox included: by so much an agent starts later at the most.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// What that may take of the node's memory, in bytes, for as long as it takes.
const LOOK_MEMORY_BYTES: u64 = 1 << 30;
const LOOK_SCRATCH_BYTES: u64 = 64 << 20;
const LOOK_PROCESSES: u32 = 256;
/// The builder's word for it.
const DEVICE: &str = "device";

/// Devices that are being looked at.
pub(crate) struct Looking {
    until: Instant,
    asked: Vec<(Kind, Receiver<Result<DeviceUnit, Error>>)>,
}

impl Looking {
    /// Begins to look at the device of each kind; none takes longer because of another.
    pub(super) fn begin(
        sandboxes: &Arc<Sandboxes>,
        builder: &Path,
        kinds: &[Kind],
        cores: &[u32],
    ) -> Looking {
        let until = Instant::now() + LONGEST_LOOK;
        let ask = |&kind: &Kind| {
            let (tell, told) = sync_channel(1);
            let (sandboxes, builder, cores) = (sandboxes.clone(), builder.to_owned(), cores.to_vec());
            let look = move || tell.send(device(sandboxes, &builder, (kind, cores), until));
            // A thread that cannot be started tells nothing, which is taken for that.
            let _ = std::thread::Builder::new().name("sublet-look".to_owned()).spawn(look);
            (kind, told)
        };
        Looking { until, asked: kinds.iter().map(ask).collect() }
    }

    /// What they are, as far as that is known in time.
    pub(crate) fn found(self) -> Vec<DeviceUnit> {
        let Looking { until, asked } = self;
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
    (kind, cores): (Kind, Vec<u32>),
    until: Instant,
) -> Result<DeviceUnit, Error> {
    let machine = rustix::system::sysinfo();
    let limits = Limits {
        cores,
        memory_bytes: Some(LOOK_MEMORY_BYTES),
        // Drivers that compute on processors take the size of a device's memory from there.
        shown_memory_bytes: Some((machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit))),
        processes: Some(LOOK_PROCESSES),
        scratch_bytes: LOOK_SCRATCH_BYTES,
    };
    let builder = Builder::start(
        sandboxes,
        Order { program: builder, kind, what: DEVICE.into(), folder: None, limits },
    )?;
    hear(&builder.socket, kind, until, || builder.describe())
}

fn hear(
    socket: &PacketSocket,
    kind: Kind,
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
        hear(&here, Kind::OpenCl, Instant::now() + Duration::from_secs(60), || None)
    }

    fn says(body: Body) -> Result<DeviceUnit, Error> {
        heard(&DeviceLook { body: Some(body) }.encode_to_vec())
    }

    #[test]
    fn what_is_said_of_a_device_is_a_description_of_it_and_nothing_else() {
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
        assert!(hear(&here, Kind::OpenCl, Instant::now(), || None).is_err(), "its time is over");
        drop(there);
        let killed = || Some("was killed by SIGSEGV".to_owned());
        let error = hear(&here, Kind::OpenCl, Instant::now(), killed).unwrap_err();
        assert!(error.message.ends_with("was killed by SIGSEGV"), "{error}");
        let asked = vec![(Kind::OpenCl, sync_channel(1).1)];
        assert_eq!(Looking { until: Instant::now(), asked }.found(), [pu::undescribed("opencl")]);
    }
}
