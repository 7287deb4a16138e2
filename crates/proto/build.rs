//! Generates the control messages and the gRPC stubs from the schema, which is their documentation.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_protos(&["proto/sublet/v1/control.proto", "proto/sublet/v1/node.proto"], &["proto"])?;
    Ok(())
}
