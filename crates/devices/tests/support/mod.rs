//! OpenCL's house: PoCL on the processor, and the kernels in OpenCL C.

// Each of the tests' programs uses what it needs.
#![allow(dead_code, clippy::unwrap_used)]

use sublet_devices::builder::Builder;
use sublet_devices::opencl::{OpenCl, OpenClDeviceInfo, Partition, discover};

use crate::suite::DeviceFixture;

/// The first device that compiles.
pub fn device() -> OpenClDeviceInfo {
    let devices = discover().expect("scripts/setup.sh test installs PoCL");
    devices.into_iter().find(|device| device.unusable.is_none() && device.has_compiler).expect("a device")
}

pub fn builder() -> Builder {
    Builder::new(env!("CARGO_BIN_EXE_sublet-worker-kernels").into())
}

pub struct OpenClFixture;

/// The same, where host and device share no memory: everything goes by commands, as to most graphics processors.
pub struct ApartFixture;

impl DeviceFixture for ApartFixture {
    type Driver = OpenCl;

    fn driver(lanes: u32) -> OpenCl {
        let mut device = device();
        device.shares_memory = false;
        OpenCl::open(&device, Partition::Queues(lanes), Some(builder())).unwrap()
    }

    fn source(name: &str) -> String {
        OpenClFixture::source(name)
    }
}

impl DeviceFixture for OpenClFixture {
    type Driver = OpenCl;

    fn driver(lanes: u32) -> OpenCl {
        OpenCl::open(&device(), Partition::Queues(lanes), Some(builder())).unwrap()
    }

    fn source(name: &str) -> String {
        let kernel = |name: &str, body: &str| {
            format!(
                "kernel void {name}(global const uchar *input, uint size, global uchar *output, uint capacity, \
                 global uint *written) {{ size_t at = get_global_id(0); {body} }}\n"
            )
        };
        let each = |value: &str| {
            let body = format!("if (at < size) output[at] = {value}; if (at == 0) *written = size;");
            kernel("main_kernel", &body)
        };
        match name {
            "echo" => each("input[at]"),
            "add" => format!("uchar helper(uchar x) {{ return x + 1; }}\n{}", each("helper(input[at])")),
            "double" => format!("uchar helper(uchar x) {{ return x * 2; }}\n{}", each("helper(input[at])")),
            "leak" => kernel(
                "main_kernel",
                "if (at == 0) { for (uint i = 0; i < capacity; i++) output[i] = input[i]; *written = capacity; }",
            ),
            "answers" => {
                kernel(
                    "fails",
                    "if (at == 0) { constant char *said = \"no luck\"; \
                     for (uint i = 0; i < 8; i++) output[i] = said[i]; *written = 0xffffffff; }",
                ) + &kernel("lies", "*written = capacity + 1;")
                    + &kernel("is_silent", "")
            }
            "slow" => kernel(
                "main_kernel",
                "if (at == 0) { volatile uint x = 1; for (uint i = 0; i < input[0] * 1000000u; i++) x = x * 3 + i; \
                 output[0] = input[0]; *written = 1; }",
            ),
            "broken" => format!("int x = y;{}", "\nint a = b;".repeat(2000)),
            other => panic!("no program {other}"),
        }
    }
}
