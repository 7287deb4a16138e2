//! The suite of all devices, on CUDA, where there is a GPU (`cargo xtask gpu-check`). Tests without a GPU run
//! everywhere.

#![allow(clippy::unwrap_used)]

mod suite;

use sublet_devices::cuda::{Cuda, discover};
use suite::DeviceFixture;

struct CudaFixture;

impl DeviceFixture for CudaFixture {
    type Driver = Cuda;

    fn driver(lanes: u32) -> Cuda {
        Cuda::open(&discover().unwrap()[0], lanes).unwrap()
    }

    fn source(name: &str) -> String {
        match name {
            "echo" => ptx(&[("main_kernel", &each(""))]),
            "add" => ptx(&[("main_kernel", &each("add.u32 %r7, %r7, 1;"))]),
            "double" => ptx(&[("main_kernel", &each("shl.b32 %r7, %r7, 1;"))]),
            "leak" => ptx(&[("main_kernel", &first(LEAK))]),
            "answers" => {
                let (fails, lies) =
                    (first(&fails()), first("add.u32 %r7, %r2, 1;\n st.global.u32 [%rd3], %r7;"));
                ptx(&[("fails", &fails), ("lies", &lies), ("is_silent", "ret;")])
            }
            "slow" => ptx(&[("main_kernel", &first(SLOW))]),
            "broken" => ptx(&[("main_kernel", "no.such.instruction %r1;")]),
            other => panic!("no program {other}"),
        }
    }
}

/// A module of kernels with the signature of functions. A kernel's registers `%rd1` to `%rd3` are input, output and
/// written, `%r1` and `%r2` size and capacity, `%r6` its index, `%rd5` and `%rd6` the addresses of its bytes of input
/// and output.
fn ptx(kernels: &[(&str, &str)]) -> String {
    let kernel = |(name, body): &(&str, &str)| {
        format!(
            ".visible .entry {name}(.param .u64 input, .param .u32 size, .param .u64 output, .param .u32 capacity,
 .param .u64 written) {{
 .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<12>;
 ld.param.u64 %rd1, [input]; ld.param.u32 %r1, [size]; ld.param.u64 %rd2, [output];
 ld.param.u32 %r2, [capacity]; ld.param.u64 %rd3, [written];
 cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2; cvta.to.global.u64 %rd3, %rd3;
 mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r6, %r3, %r4, %r5;
 cvt.u64.u32 %rd4, %r6; add.u64 %rd5, %rd1, %rd4; add.u64 %rd6, %rd2, %rd4;
 {body}
}}
"
        )
    };
    let kernels: String = kernels.iter().map(kernel).collect();
    format!(".version 6.0\n.target sm_50\n.address_size 64\n{kernels}")
}

/// A byte for each work-item, changed by an instruction on `%r7`.
fn each(change: &str) -> String {
    format!(
        "setp.ge.u32 %p1, %r6, %r1; @%p1 bra WORD;
 ld.global.u8 %r7, [%rd5];
 {change}
 st.global.u8 [%rd6], %r7;
WORD:
 setp.ne.u32 %p2, %r6, 0; @%p2 bra END;
 st.global.u32 [%rd3], %r1;
END:
 ret;"
    )
}

/// Restricts a body to the first work-item.
fn first(body: &str) -> String {
    format!("setp.ne.u32 %p1, %r6, 0; @%p1 bra END;\n {body}\nEND:\n ret;")
}

/// Copies memory from its input on, up to the size of its output.
const LEAK: &str = "mov.u32 %r8, 0;
LOOP:
 setp.ge.u32 %p2, %r8, %r2; @%p2 bra DONE;
 cvt.u64.u32 %rd7, %r8; add.u64 %rd8, %rd1, %rd7; add.u64 %rd9, %rd2, %rd7;
 ld.global.u8 %r9, [%rd8]; st.global.u8 [%rd9], %r9;
 add.u32 %r8, %r8, 1; bra LOOP;
DONE:
 st.global.u32 [%rd3], %r2;";

/// Computes for a while, and then echoes one byte.
const SLOW: &str = "ld.global.u8 %r7, [%rd1]; mul.lo.u32 %r8, %r7, 1000000; mov.u32 %r9, 0; mov.u32 %r10, 1;
LOOP:
 setp.ge.u32 %p2, %r9, %r8; @%p2 bra DONE;
 mad.lo.u32 %r10, %r10, 3, %r9; st.volatile.global.u8 [%rd2], %r10;
 add.u32 %r9, %r9, 1; bra LOOP;
DONE:
 st.global.u8 [%rd2], %r7; mov.u32 %r11, 1; st.global.u32 [%rd3], %r11;";

fn fails() -> String {
    let store = |(at, byte): (usize, u8)| format!("mov.u32 %r7, {byte}; st.global.u8 [%rd2+{at}], %r7;\n ");
    let message: String = b"no luck\0".iter().copied().enumerate().map(store).collect();
    message + "mov.u32 %r8, 0xffffffff; st.global.u32 [%rd3], %r8;"
}

conformance!(CudaFixture, #[ignore = "needs a GPU: cargo xtask gpu-check"]);

/// Prints whether there is a GPU. `cargo xtask gpu-check` decides by it whether to continue.
#[test]
#[ignore = "cargo xtask gpu-check asks"]
fn what_gpu_is_there() {
    match discover() {
        Ok(gpus) => println!("\ngpu: {}", gpus[0].name),
        Err(error) => println!("\nno gpu: {error}"),
    }
}

#[test]
fn without_a_driver_the_error_says_what_is_missing() {
    if let Err(error) = discover() {
        let said = error.to_string();
        assert!(said.starts_with("cuda cannot be used: "), "{said}");
        assert!(said.contains("libcuda.so.1") || said.contains("NVIDIA"), "{said}");
    }
}

#[test]
#[ignore = "needs a GPU: cargo xtask gpu-check"]
fn garbage_programs_are_refused_alone() {
    use sublet_devices::{KernelProgram, KernelSpec};
    let sandboxes = suite::open::<CudaFixture>(1);
    let echo = suite::spec::<CudaFixture>(suite::ONE, "echo", "main_kernel");
    let source = |text: &str| KernelProgram::Source { text: text.into(), options: String::new() };
    let hostile = [
        source("garbage"),
        source(".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry main_kernel() { garbage; }"),
        source(".version 99.0\n.target sm_999\n.address_size 64\n.visible .entry main_kernel() { ret; }"),
        KernelProgram::Binary(b"garbage".to_vec()),
        KernelProgram::Binary(vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
    ];
    for program in hostile {
        let spec = KernelSpec { program, ..echo.clone() };
        let created = sandboxes.create(&[spec.clone(), echo.clone()]);
        assert!(created[0].is_err(), "{spec:?}");
        let id = *created[1].as_ref().unwrap();
        sandboxes.start(&[id]).remove(0).unwrap();
        assert_eq!(suite::call(&sandboxes, id, b"x").unwrap(), b"x");
    }
}

#[test]
fn the_kernels_of_the_suite_are_whole_ptx() {
    for name in ["echo", "add", "double", "leak", "answers", "slow", "broken"] {
        let text = CudaFixture::source(name);
        let (opened, closed) = (text.matches('{').count(), text.matches('}').count());
        assert!(text.contains(".entry") && opened == closed, "{text}");
        if let Ok(folder) = std::env::var("PTX_FOLDER") {
            // To have them read by ptxas where that is.
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.ptx")), text).unwrap();
        }
    }
}

/// All tests above, against a driver of the tests' own: errors of the CUDA binding show without a GPU, too.
#[test]
fn the_suite_holds_on_a_driver_that_has_no_gpu() {
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/driver/cuda.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", source, "-o"]);
    assert!(gcc.arg(folder.path().join("libcuda.so.1")).status().unwrap().success());
    let mut suite = Command::new(std::env::current_exe().unwrap());
    suite.args(["--ignored", "--skip", "what_gpu_is_there"]).env("LD_LIBRARY_PATH", folder.path());
    let output = suite.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("15 passed"), "{said}");
}
