//! The builder's own side: applies its limits, then builds the image of one job.

use std::io::{Read, Write};
use std::process::ExitCode;

use rustix::process::{Signal, kill_process};

use super::{MAX_ANSWER_BYTES, confine, wire};
use crate::opencl;

/// Executes the builder's own side: the whole of `sublet-worker-kernels`.
pub fn serve() -> ExitCode {
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sublet-worker-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer() -> std::io::Result<()> {
    let limits = confine::BuilderLimits::of(std::env::args_os().skip(1))?;
    // Output of a compiler must not be taken for the answer.
    let mut channel = std::fs::File::from(rustix::io::dup(rustix::stdio::stdout())?);
    rustix::stdio::dup2_stdout(std::fs::File::options().write(true).open("/dev/null")?)?;
    let built = match confine::apply(&limits) {
        Err(reason) => Err(reason),
        Ok(()) => {
            let mut job = Vec::new();
            std::io::stdin().lock().take(MAX_ANSWER_BYTES).read_to_end(&mut job)?;
            let (identity, parts) = wire::decode_job(&job).ok_or(std::io::ErrorKind::InvalidData)?;
            opencl::serve(&identity, &parts.borrowed()).map_err(|error| error.to_string())
        }
    };
    channel.write_all(&wire::encode_answer(&built))?;
    drop(channel);
    // Drivers have threads that may hang at a regular exit, and no work remains for them.
    kill_process(rustix::process::getpid(), Signal::KILL)?;
    Ok(())
}
