//! The `sublet` command: one program that runs Sublet and uses it.
//!
//! This file only joins the parts: [`cli`] reads the command line and runs one of its commands, of which manager and
//! agent have a [`config`], and one serves a [`mount`]; the exit status is 0, or the number of the error's stable code.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod cli;
mod config;
mod fabrics;
mod mount;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
