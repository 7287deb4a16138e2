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

/// Of descriptors that are not the standard ones: those that hold nothing, so that new ones are as good.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    events: Vec<RawFd>,
    polls: Vec<RawFd>,
    nulls: Vec<RawFd>,
    pipes: Vec<Pipe>,
}

/// A pipe of which both ends are here, or one.
#[derive(Debug, Default)]
struct Pipe {
    name: String,
    reading: Vec<RawFd>,
    writing: Vec<RawFd>,
}

impl Descriptors {
    /// Those of this process. An error names the first that cannot be made again.
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
            self.pipes.push(Pipe { name: name.to_owned(), ..Pipe::default() });
        }
        let ends = match system::status_flags(number)? & OFlags::ACCMODE {
            OFlags::WRONLY => &mut self.pipes[at].writing,
            _ => &mut self.pipes[at].reading,
        };
        ends.push(number);
        Ok(())
    }

    /// Their numbers.
    pub(super) fn numbers(&self) -> Vec<RawFd> {
        let pipes = self.pipes.iter().flat_map(|pipe| pipe.reading.iter().chain(&pipe.writing));
        self.events.iter().chain(&self.polls).chain(&self.nulls).chain(pipes).copied().collect()
    }

    /// Puts new ones in their places.
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
