//! Describes this node's device: the work of `sublet-worker-kernels KIND device` when an agent starts it in a sandbox.
//!
//! A driver is never loaded into an agent, and its description of a device depends on the parts of the machine that its
//! process sees. For that reason it is queried in a sandbox like those of workers. The agent uses the answer only for
//! display.

use std::process::ExitCode;
use std::thread::available_parallelism;

use prost::Message;
use sublet_proto::pu;
use sublet_proto::v1::device_look::Body;
use sublet_proto::v1::{DeviceLook, DeviceUnit, Failure};
use sublet_proto::{Code, Error};

use crate::{DriverKind, control, cuda, opencl};

/// Describes the device that executes a node's packages of a kind, to the agent at the other end of standard input.
pub fn serve(kind: DriverKind) -> ExitCode {
    control::leave(answer(kind))
}

fn answer(kind: DriverKind) -> Result<(), Error> {
    let socket = control::socket()?;
    let body = match device(kind) {
        Ok(device) => Body::Device(device),
        Err(Error { code, message }) => Body::Failure(Failure { code: code.number(), message }),
    };
    Ok(socket.send(&DeviceLook { body: Some(body) }.encode_to_vec(), &[])?)
}

/// The first device of its kind that can be used.
fn device(kind: DriverKind) -> Result<DeviceUnit, Error> {
    let (model, compute_units, memory_bytes) = match kind {
        DriverKind::OpenCl => {
            let cores =
                available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
            opencl::enter_environment(cores);
            let opencl::OpenClDeviceInfo { name, compute_units, memory_bytes, unusable, .. } =
                opencl::first()?;
            if let Some(reason) = unusable {
                return Err(Error::new(Code::System, format!("{name} cannot be used: {reason}")));
            }
            (name, compute_units, memory_bytes)
        }
        DriverKind::Cuda => {
            let cuda::CudaDeviceInfo { name, compute_units, memory_bytes, .. } = cuda::first()?;
            (name, compute_units, memory_bytes)
        }
    };
    let kind = kind.to_string();
    Ok(DeviceUnit { model, compute_units, memory_bytes, ..pu::undescribed(&kind) })
}
