//! Lists the descriptors that a language runtime holds open for itself. A copy has the same numbers, as its
//! memory says, and nothing behind them that is also the template's or another copy's.

use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::system;

/// Descriptors beside the standard ones that hold no state, so that new ones can replace them.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    events: Vec<RawFd>,
    polls: Vec<RawFd>,
    nulls: Vec<RawFd>,
    pipes: Vec<OpenPipe>,
    libraries: Vec<RawFd>,
}

/// A pipe of which both ends are here, or one.
#[derive(Debug, Default)]
struct OpenPipe {
    name: String,
    reading: Vec<RawFd>,
    writing: Vec<RawFd>,
}

impl Descriptors {
    /// Collects the descriptors of this process. An error names the first one that cannot be made again.
    pub(super) fn of_this_process() -> io::Result<Descriptors> {
        let mut found = Descriptors::default();
        let numbers: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|&number| number > libc::STDERR_FILENO)
            .collect();
        for number in numbers {
            // The folder that was just read is closed again.
            let Ok(target) = fs::read_link(format!("/proc/self/fd/{number}")) else { continue };
            found.add(number, &target)?;
        }
        Ok(found)
    }

    fn add(&mut self, number: RawFd, target: &Path) -> io::Result<()> {
        match target.to_str() {
            Some("anon_inode:[eventfd]") => self.events.push(number),
            Some("anon_inode:[eventpoll]") => self.polls.push(number),
            Some("/dev/null") => self.nulls.push(number),
            Some(name) if name.starts_with("pipe:") => self.add_pipe(number, name)?,
            Some(name) if is_library(number, name)? => self.libraries.push(number),
            _ => {
                let message = format!("keeps {} open", target.display());
                return Err(io::Error::other(message));
            }
        }
        Ok(())
    }

    fn add_pipe(&mut self, number: RawFd, name: &str) -> io::Result<()> {
        let known = self.pipes.iter().position(|pipe| pipe.name == name);
        let at = known.unwrap_or(self.pipes.len());
        if known.is_none() {
            self.pipes.push(OpenPipe { name: name.to_owned(), ..OpenPipe::default() });
        }
        let ends = match system::status_flags(number)? & OFlags::ACCMODE {
            OFlags::WRONLY => &mut self.pipes[at].writing,
            _ => &mut self.pipes[at].reading,
        };
        ends.push(number);
        Ok(())
    }

    /// Returns the numbers of the descriptors.
    pub(super) fn numbers(&self) -> Vec<RawFd> {
        let pipes = self.pipes.iter().flat_map(|pipe| pipe.reading.iter().chain(&pipe.writing));
        let single = [&self.events, &self.polls, &self.nulls, &self.libraries];
        single.into_iter().flatten().chain(pipes).copied().collect()
    }

    /// Opens the libraries once more, in their places.
    pub(super) fn reopen_libraries(&self) -> io::Result<()> {
        for &number in &self.libraries {
            // By the descriptor and not by the path, which may be another version's by now.
            let again = fs::File::open(format!("/proc/self/fd/{number}"))?;
            system::replace(number, OwnedFd::from(again))?;
        }
        Ok(())
    }

    /// Puts new descriptors in the places of all others.
    pub(super) fn make_again(&self) -> io::Result<()> {
        for &number in &self.events {
            system::replace(number, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
        }
        for &number in &self.polls {
            system::replace(number, epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        }
        for &number in &self.nulls {
            system::replace(
                number,
                OwnedFd::from(fs::File::options().read(true).write(true).open("/dev/null")?),
            )?;
        }
        for pipe in &self.pipes {
            let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            for (ends, end) in [(&pipe.reading, reading), (&pipe.writing, writing)] {
                for &number in ends {
                    system::replace(number, end.try_clone()?)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a descriptor only reads a library that this process has loaded. libffi keeps itself open to map more of its code.
fn is_library(number: RawFd, path: &str) -> io::Result<bool> {
    if system::status_flags(number)? & OFlags::ACCMODE != OFlags::RDONLY {
        return Ok(false);
    }
    let maps = fs::read("/proc/self/maps")?;
    Ok(is_executed(&String::from_utf8_lossy(&maps), path))
}

/// Whether one of these mappings, written as in `/proc/self/maps`, executes code of the file.
fn is_executed(maps: &str, path: &str) -> bool {
    maps.lines().any(|line| {
        let rights = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        rights.contains('x') && line.find('/').is_some_and(|begin| &line[begin..] == path)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn finds_files_whose_code_is_executed() {
        let maps = "\
7f0000000000-7f0000001000 r--p 00000000 fe:00 1234      /usr/lib/a library.so
7f0000001000-7f0000002000 r-xp 00001000 fe:00 1234      /usr/lib/a library.so
7f0000003000-7f0000004000 r--p 00000000 fe:00 1235      /usr/share/data
7f0000004000-7f0000005000 r-xp 00000000 fe:00 1236      /usr/lib/old.so (deleted)
7f0000005000-7f0000006000 r-xp 00000000 00:00 0         [vdso]
";
        for executed in ["/usr/lib/a library.so", "/usr/lib/old.so (deleted)"] {
            assert!(is_executed(maps, executed), "{executed}");
        }
        for other in ["/usr/share/data", "library.so", "/usr/lib/old.so", "[vdso]", ""] {
            assert!(!is_executed(maps, other), "{other}");
        }
    }

    #[test]
    fn takes_a_library_only_if_it_is_open_for_reading() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let own = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let (reads, writes) =
            (fs::File::open(&file).unwrap(), fs::File::options().append(true).open(&file).unwrap());
        let is_taken = |file: &fs::File| {
            let number = file.as_raw_fd();
            let path = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
            is_library(number, path.to_str().unwrap()).unwrap()
        };
        assert!(is_taken(&own) && !is_taken(&reads) && !is_taken(&writes));
    }
}
