//! Packages of kernels, built for this node's device: what `sublet-device-builder KIND BUILD` does when an agent starts it in a
//! sandbox with an unpacked package.
//!
//! It finds the device as the package's workers will, in a sandbox of the same kind, so an image that is good here is
//! good there. Sources are compiled, and binaries tried, by a [`Builder`] of its own, the same program once more; then all
//! is loaded and each kernel looked for, so that whatever is wrong shows now and not in a call. Loading executes what the
//! package has brought: that is why this has a sandbox, and why the agent believes nothing of what it answers but that it
//! belongs to this package.

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
use crate::making::Maker;
use crate::opencl::{self, OpenCl};
use crate::package::Kernels;
use crate::{DeviceError, Driver, Kind, control, store};

/// Where the sandbox has the package.
const FOLDER: &str = "/package";
/// How long a compiler may take.
const LONGEST_BUILD: Duration = Duration::from_secs(60);
/// Of an image in one packet, in bytes: what is around it takes a few more.
const PIECE_BYTES: usize = MAX_PACKET_BYTES / 2;

/// Builds the package's build of this index, and tells the agent at the other end of standard input.
pub fn serve(kind: Kind, build: u32) -> ExitCode {
    control::leave(answer(kind, build))
}

fn answer(kind: Kind, build: u32) -> Result<(), Error> {
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

fn built(kind: Kind, folder: &Path, build: u32) -> Result<Option<Vec<u8>>, Error> {
    match kind {
        Kind::OpenCl => {
            opencl::enter_environment(1);
            image(&OpenCl::first(1, Some(builder()?))?, folder, build)
        }
        Kind::Cuda => image(&Cuda::first(1)?, folder, build),
    }
}

/// The image of a package's build for a device; nothing if the one that stands beside it is good.
///
/// # Errors
/// [`Code::InvalidPackage`] and [`Code::MissingSymbol`] for what is wrong with the first kernel that cannot be had.
pub fn image<D: Driver>(driver: &D, folder: &Path, build: u32) -> Result<Option<Vec<u8>>, Error> {
    let kernels = Kernels::read(folder, build)?;
    let specs: Vec<_> = kernels.specs.iter().collect();
    let image = store::read(&folder.join(built_file(build)));
    let maker = Maker { driver, store: None, image: image.as_deref() };
    Ok(maker.prepare(&specs)?)
}

/// This program once more, in the same sandbox.
fn builder() -> Result<Builder, DeviceError> {
    let program = std::env::current_exe()
        .map_err(|error| DeviceError::Builder(format!("does not find its own program: {error}")))?;
    let confinement = Confinement::Surroundings;
    Ok(Builder { confinement, time: LONGEST_BUILD, ..Builder::new(program) })
}
