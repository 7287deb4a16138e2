//! An error as a gRPC status of an unknown peer: any status, with any details, is some error with a stable code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sublet_proto::{Code, Error};

fuzz_target!(|input: (i32, String, &[u8])| {
    let (grpc, message, details) = input;
    let status = tonic::Status::with_details(tonic::Code::from_i32(grpc), message, details.to_vec().into());
    let error = Error::from_status(&status);
    assert!(Code::ALL.contains(&error.code));
    assert_eq!(Error::from_status(&error.clone().into_status()), error);
});
