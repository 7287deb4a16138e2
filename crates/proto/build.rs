//! Generates the control messages and the gRPC stubs from the schema, which is their documentation.

const SCHEMAS: [&str; 5] = [
    "proto/sublet/v1/control.proto",
    "proto/sublet/v1/node.proto",
    "proto/sublet/v1/sandbox.proto",
    "proto/sublet/v1/shim.proto",
    "proto/sublet/v1/store.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // These hold values of secrets: `needs` shows them without.
    tonic_prost_build::configure()
        .build_transport(false)
        .skip_debug(["sublet.v1.Variable", "sublet.v1.SetSecretRequest"])
        .compile_protos(&SCHEMAS, &["proto"])?;
    Ok(())
}
