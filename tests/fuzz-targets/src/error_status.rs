//! An error as a gRPC status of an unknown peer: any status, with any details, is some error with a stable code.

use sublet_proto::{Code, Error};

use crate::values;

/// Reads an error from a status, and makes a status of that error.
///
/// # Panics
/// If the error has an unknown code, or is not the same after a round trip.
pub fn run(input: &[u8]) {
    let Some((grpc, message, details)) = values::<(i32, String, &[u8])>(input) else { return };
    let status = tonic::Status::with_details(tonic::Code::from_i32(grpc), message, details.to_vec().into());
    let error = Error::from_status(&status);
    assert!(Code::ALL.contains(&error.code));
    assert_eq!(Error::from_status(&error.clone().into_status()), error);
}
