//! The process that makes sandboxes. An agent starts it with a folder, paths of the host that sandboxes see beside its
//! libraries, places of what belongs to devices, and a socket as standard input. With `--weak` first it makes
//! sandboxes of weak isolation. With `--look FOLDER` it prints how strong sandboxes are here instead.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use sublet_sandbox::{LOOK, Walls, spawner};

fn main() -> ExitCode {
    if let Some(status) = spawner::trial() {
        return ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX));
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [look, folder] if look == LOOK => spawner::look(folder.as_ref()),
        [weak, folder, shown @ ..] if weak == spawner::WEAK => run(folder, shown, Walls::Weak),
        [folder, shown @ ..] => run(folder, shown, Walls::Full),
        _ => {
            eprintln!(
                "sublet-spawner is started by an agent, with a folder and a socket as its standard input"
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn run(folder: &OsStr, shown: &[OsString], walls: Walls) {
    let (shown, places) = spawner::shown_and_places(shown);
    spawner::run(folder.as_ref(), (&shown, &places), walls);
}
