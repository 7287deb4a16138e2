//! Counts the instructions of sending and of receiving by single steps: exactly, without a performance counter of the
//! processor, and also in emulation. Instructions of the kernel are not counted.
//!
//! The child marks the counted code by a signal to itself before and after; its parent steps it from one mark to the
//! other. An empty pair of marks gives the instructions of the marks themselves.

#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use sublet_fabric::FabricError;

use super::{Ends, Run, connect};

/// The counted operations of each round, in this order, after the empty pair.
const COUNTED: [&str; 4] = ["endpoint_send", "endpoint_receive", "raw_send", "raw_receive"];
const ROUNDS: usize = 3;
/// Number of rounds before the counted ones: first executions take more instructions.
const WARM_UP: usize = 2;
const MARK: i32 = libc::SIGUSR1;
/// Time in which a message arrives, so that only its receiver still has work to do.
const ARRIVAL: Duration = Duration::from_millis(20);

/// Runs this program again as a child with `--counted`, and prints the medians as JSON.
pub fn trace() -> Result<(), FabricError> {
    let failed = |what: &str| FabricError::system(what, std::io::Error::last_os_error());
    let own = std::env::current_exe().map_err(|error| FabricError::system("finding this program", error))?;
    let mut command = Command::new(own);
    command.arg("--counted").args(std::env::args().skip(2));
    // SAFETY: one system call between fork and exec, which is allowed there.
    unsafe { command.pre_exec(trace_me) };
    let child =
        command.spawn().map_err(|error| FabricError::system("starting the counted process", error))?;
    let pid = child.id() as i32;
    let mut counts = vec![Vec::new(); COUNTED.len() + 1];
    let (mut counting, mut steps, mut pair) = (false, 0u64, 0usize);
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable, and the child is this process's.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
            return Err(failed("waiting for the counted process"));
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            break;
        }
        let signal = libc::WSTOPSIG(status);
        steps += u64::from(counting);
        if signal == MARK {
            if counting {
                counts[pair % (COUNTED.len() + 1)].push(steps);
                pair += 1;
            }
            (counting, steps) = (!counting, 0);
        }
        let pass =
            if signal == MARK || signal == libc::SIGTRAP || signal == libc::SIGSTOP { 0 } else { signal };
        let how = if counting { libc::PTRACE_SINGLESTEP } else { libc::PTRACE_CONT };
        // SAFETY: the child is stopped; neither request touches memory.
        if unsafe { libc::ptrace(how, pid, 0, i64::from(pass)) } < 0 {
            return Err(failed("stepping the counted process"));
        }
    }
    print(counts)
}

fn trace_me() -> std::io::Result<()> {
    // SAFETY: the request touches no memory.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

fn print(mut counts: Vec<Vec<u64>>) -> Result<(), FabricError> {
    let mut medians = counts.iter_mut().map(|all| {
        all.drain(..all.len().min(WARM_UP));
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    });
    let marks = medians.next().flatten();
    let counted: Option<Vec<u64>> = medians.map(|all| Some(all?.saturating_sub(marks?))).collect();
    let Some(counted) = counted else {
        return Err(FabricError::Protocol("the counted process ended before it was done".into()));
    };
    let fields: Vec<_> =
        COUNTED.iter().zip(counted).map(|(name, count)| format!("\"{name}\": {count}")).collect();
    println!("{{{}}}", fields.join(", "));
    Ok(())
}

/// Executes the child's part.
pub fn be_traced(run: &Run) -> Result<(), FabricError> {
    let Ends { client, worker, mut ping, mut pong } = connect(run)?;
    let payload = vec![1; run.len_bytes];
    for n in 0..(WARM_UP + ROUNDS) as u64 {
        counted(|| Ok(()))?;
        counted(|| client.send(n, &payload))?;
        std::thread::sleep(ARRIVAL);
        counted(|| worker.receive(n))?;
        counted(|| ping.send(run.len_bytes as u64))?;
        std::thread::sleep(ARRIVAL);
        counted(|| pong.receive())?;
    }
    Ok(())
}

fn counted(what: impl FnOnce() -> Result<(), FabricError>) -> Result<(), FabricError> {
    mark();
    let done = what();
    mark();
    done
}

fn mark() {
    // SAFETY: the parent takes the signal; it is never delivered.
    unsafe { libc::raise(MARK) };
}
