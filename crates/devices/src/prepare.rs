//! Builds packages of kernels for this node's device: the work of `sublet-worker-kernels KIND BUILD` when an agent
//! starts it in a sandbox with an unpacked package.
//!
//! The process finds the device as the package's workers will, in a sandbox of the same kind, so an image that is valid
//! here is valid there. A [`Builder`] of its own, the same program started again, compiles the sources and tries the
//! binaries. Then all programs are loaded and each kernel is looked up, so that errors show now and not in a call.
//! Loading executes the package's code. For that reason this process has a sandbox, and the agent trusts its answer
//! only for this package.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use prost::Message;
use sublet_proto::package::built_file;
use sublet_proto::v1::kernel_build::Body;
use sublet_proto::v1::{Failure, KernelBuild};
use sublet_proto::{Error, MAX_PACKET_BYTES};

use crate::builder::{Builder, Confinement};
use crate::cuda::Cuda;
use crate::making::FunctionMaker;
use crate::opencl::{self, OpenCl};
use crate::package::PackageKernels;
use crate::{DeviceError, Driver, DriverKind, control, store};

/// Folder of the package in the sandbox.
const FOLDER: &str = "/package";
/// Longest time of a compiler.
const LONGEST_BUILD: Duration = Duration::from_secs(60);
/// Most bytes of an image in one packet: the encoding adds a few more.
const PIECE_BYTES: usize = MAX_PACKET_BYTES / 2;

/// Builds the package's build of this index, and reports to the agent at the other end of standard input.
pub fn serve(kind: DriverKind, build: u32) -> ExitCode {
    control::leave(answer(kind, build))
}

fn answer(kind: DriverKind, build: u32) -> Result<(), Error> {
    let socket = control::socket()?;
    let tell = |body| -> Result<(), Error> {
        Ok(socket.send(&KernelBuild { body: Some(body) }.encode_to_vec(), &[])?)
    };
    match built(kind, Path::new(FOLDER), build) {
        Ok(image) => {
            let image = image.unwrap_or_default();
            image.chunks(PIECE_BYTES).try_for_each(|piece| tell(Body::Piece(piece.to_vec())))?;
            tell(Body::IsAll(true))
        }
        Err(Error { code, message }) => tell(Body::Failure(Failure { code: code.number(), message })),
    }
}

fn built(kind: DriverKind, folder: &Path, build: u32) -> Result<Option<Vec<u8>>, Error> {
    match kind {
        DriverKind::OpenCl => {
            opencl::enter_environment(1);
            image(&OpenCl::first(1, Some(builder()?))?, folder, build)
        }
        DriverKind::Cuda => image(&Cuda::first(1)?, folder, build),
    }
}

/// Makes the image of a package's build for a device; `None` if the existing one is valid.
///
/// # Errors
/// `Code::InvalidPackage` and `Code::MissingSymbol` for the first kernel that cannot be made.
pub fn image<D: Driver>(driver: &D, folder: &Path, build: u32) -> Result<Option<Vec<u8>>, Error> {
    let kernels = PackageKernels::read(folder, build)?;
    let specs: Vec<_> = kernels.specs.iter().collect();
    let image = store::read(&folder.join(built_file(build)));
    let maker = FunctionMaker { driver, store: None, image: image.as_deref() };
    Ok(maker.prepare(&specs)?)
}

/// Starts this program again, in the same sandbox.
fn builder() -> Result<Builder, DeviceError> {
    let program = std::env::current_exe()
        .map_err(|error| DeviceError::Builder(format!("does not find its own program: {error}")))?;
    let confinement = Confinement::Surroundings;
    Ok(Builder { confinement, time: LONGEST_BUILD, ..Builder::new(program) })
}
