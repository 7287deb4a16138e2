//! One build of kernels: a sandbox with a package, the builder's answer, and its end.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketSocket;
use sublet_proto::package::PackageKind;
use sublet_proto::package::kernels::MAX_IMAGE_BYTES;
use sublet_proto::v1::KernelBuild;
use sublet_proto::v1::kernel_build::Body;
use sublet_proto::{Code, Error, decode};
use sublet_sandbox::{SandboxLimits, Sandboxes};

use super::builder::{BuildOrder, BuilderProcess};
use crate::execution::start_cores::{CoreLoan, lease_ended};
use crate::signal::wait_readable;

/// How long a build may take, the start of its sandbox included.
const LONGEST_BUILD: Duration = Duration::from_secs(90);
/// Memory of the node that a build may use beside all leases, in bytes.
const BUILD_MEMORY_BYTES: u64 = 2 << 30;
/// Bytes of a build's memory that it may write to files.
const BUILD_SCRATCH_BYTES: u64 = 512 << 20;
const BUILD_PROCESSES: u32 = 256;

/// Builds the package in a folder with a builder program on these cores, until they are called back. Returns the image, or
/// an empty one if the existing image is valid.
pub(super) fn image(
    sandboxes: Arc<Sandboxes>,
    builder: &Path,
    (kind, build): (PackageKind, u32),
    folder: &Path,
    loan: CoreLoan,
) -> Result<Vec<u8>, Error> {
    let until = Instant::now() + LONGEST_BUILD;
    let limits = SandboxLimits {
        cores: distinct(loan.numbers()),
        memory_bytes: Some(BUILD_MEMORY_BYTES),
        shown_memory_bytes: None,
        processes: Some(BUILD_PROCESSES),
        scratch_bytes: BUILD_SCRATCH_BYTES,
    };
    let what = build.to_string().into();
    let order = BuildOrder { program: builder, kind, what, folder: Some(folder), limits };
    let build = BuilderProcess::start(sandboxes, order, Some(loan))?;
    hear((&build.socket, build.called_back()), until, || build.describe())
}

fn distinct(cores: &[u32]) -> Vec<u32> {
    let cores: BTreeSet<u32> = cores.iter().copied().collect();
    cores.into_iter().collect()
}

/// Receives a build's answer: an image, or an empty one if the existing image is valid. The answer is not trusted: it
/// comes from a process that has executed content of the package.
fn hear(
    from: (&PacketSocket, Option<BorrowedFd<'_>>),
    until: Instant,
    how: impl Fn() -> Option<String>,
) -> Result<Vec<u8>, Error> {
    let mut image = Vec::new();
    loop {
        match next(from, until, &how)? {
            Some(Body::Piece(piece)) if (image.len() + piece.len()) as u64 <= MAX_IMAGE_BYTES => {
                image.extend(piece);
            }
            Some(Body::Piece(_)) => return Err(failed(Code::InvalidPackage, "gave too large an image")),
            Some(Body::IsAll(_)) => return Ok(image),
            Some(Body::Failure(failure)) => {
                return Err(Error::new(Code::from_number(failure.code), failure.message));
            }
            None => return Err(failed(Code::InvalidPackage, "said nothing that is known")),
        }
    }
}

/// Receives the next message, unless the descriptor is readable before. An end without an answer counts as the package's
/// fault if it is known how the builder ended.
fn next(
    (socket, called_back): (&PacketSocket, Option<BorrowedFd<'_>>),
    until: Instant,
    how: impl Fn() -> Option<String>,
) -> Result<Option<Body>, Error> {
    let [_, is_called_back] = wait_readable([Some(socket.as_fd()), called_back], Some(until))?;
    if is_called_back {
        return Err(lease_ended());
    }
    match socket.receive(Some(until.saturating_duration_since(Instant::now()))) {
        Ok(Some(packet)) => Ok(decode::<KernelBuild>("the answer of a build", &packet.bytes)?.body),
        Ok(None) => Err(match how() {
            Some(how) => failed(Code::InvalidPackage, &how),
            None => failed(Code::System, "has ended"),
        }),
        Err(_) => Err(failed(Code::InvalidPackage, "took too long")),
    }
}

fn failed(code: Code, what: &str) -> Error {
    Error::new(code, format!("the building of the package's kernels {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::start_cores::StartCores;
    use prost::Message;
    use sublet_proto::v1::Failure;

    fn heard(bodies: Vec<Body>) -> Result<Vec<u8>, Error> {
        let (here, there) = PacketSocket::pair().unwrap();
        for body in bodies {
            there.send(&KernelBuild { body: Some(body) }.encode_to_vec(), &[]).unwrap();
        }
        drop(there);
        let until = Instant::now() + Duration::from_secs(180);
        hear((&here, None), until, || Some("was killed".to_owned()))
    }

    #[test]
    fn returns_the_whole_image_or_reports_the_builds_end() {
        let piece = |byte: u8| Body::Piece(vec![byte; 3]);
        assert_eq!(heard(vec![piece(1), piece(2), Body::IsAll(true)]).unwrap(), [1, 1, 1, 2, 2, 2]);
        assert!(heard(vec![Body::IsAll(true)]).unwrap().is_empty());
        let error = heard(vec![piece(1)]).unwrap_err();
        assert!(error.code == Code::InvalidPackage && error.message.ends_with("was killed"), "{error}");
        let failure = Failure { code: Code::InvalidPackage.number(), message: "line 1".into() };
        let error = heard(vec![piece(1), Body::Failure(failure)]).unwrap_err();
        assert_eq!(error, Error::new(Code::InvalidPackage, "line 1"));
        let (here, there) = PacketSocket::pair().unwrap();
        assert!(hear((&here, None), Instant::now(), || None).unwrap_err().message.ends_with("took too long"));
        drop(there);
        assert_eq!(
            hear((&here, None), Instant::now(), || None).unwrap_err().code,
            Code::System,
            "the cause of the end is unknown"
        );
    }

    #[test]
    fn gives_up_once_its_cores_are_called_back() {
        let (here, _there) = PacketSocket::pair().unwrap();
        let cores = StartCores::new(vec![0]).unwrap();
        let loan = cores.lend().unwrap();
        assert!(!cores.call_back(Instant::now()));
        let until = Instant::now() + Duration::from_secs(3600);
        let given_up = hear((&here, Some(loan.called_back())), until, || None).unwrap_err();
        assert_eq!(given_up.code, Code::LeaseEnded);
    }
}
