//! The process that makes sandboxes. An agent starts it with a folder, paths of the host that sandboxes see beside its
//! libraries, and a socket as standard input. With `--look FOLDER` it prints how strong sandboxes are here instead.

use std::ffi::OsString;
use std::process::ExitCode;

use sublet_sandbox::{LOOK, spawner};

fn main() -> ExitCode {
    if let Some(status) = spawner::trial() {
        return ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX));
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [look, folder] if look == LOOK => spawner::look(folder.as_ref()),
        [folder, shown @ ..] => {
            spawner::run(folder.as_ref(), &shown.iter().map(Into::into).collect::<Vec<_>>())
        }
        _ => {
            eprintln!(
                "sublet-spawner is started by an agent, with a folder and a socket as its standard input"
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
