//! What a FIFO is measured beside: two threads on the same cores, by pipes or by a plain TCP connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use sublet_fabric::region::PAGE_BYTES;
use sublet_proto::{Code, Error};

use super::Block;
use crate::bench::kin::lost;
use crate::bench::{Core, pin};

/// By which the two threads reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// A FIFO of the kernel's each way.
    Pipe,
    Tcp,
}

/// Two threads on the same cores, with a way each way.
pub(super) struct Beside {
    orders: [SyncSender<Block>; 2],
    took: Receiver<Result<u64, Error>>,
}

impl Beside {
    pub(super) fn start(carrier: Carrier, size: u32) -> Result<Beside, Error> {
        let ends = match carrier {
            Carrier::Pipe => pipes(),
            Carrier::Tcp => connection(),
        };
        let [one, two] =
            ends.map_err(|error| Error::new(Code::System, format!("pipes or sockets: {error}")))?;
        let (tell, took) = sync_channel(2);
        let start = |core: Core, (from, to): (OwnedFd, OwnedFd), begins: bool| {
            let (order, orders) = sync_channel::<Block>(1);
            let tell = tell.clone();
            let body = move || {
                let mut end = End::new(from, to, size as usize, begins);
                let pinned = pin(core);
                for block in orders {
                    let took = pinned.clone().and_then(|()| end.block(block));
                    if begins || took.is_err() {
                        let _ = tell.send(took);
                    }
                }
            };
            let thread = std::thread::Builder::new().name("fifo".into()).spawn(body);
            thread.map_err(|error| Error::new(Code::System, format!("cannot start a thread: {error}")))?;
            Ok::<_, Error>(order)
        };
        let first = start(Core::Last, one, true)?;
        let second = start(Core::First, two, false)?;
        Ok(Beside { orders: [first, second], took })
    }

    pub(super) fn block(&self, block: Block) -> Result<u64, Error> {
        for order in self.orders.iter().rev() {
            order.send(block).map_err(|_| lost())?;
        }
        self.took.recv().map_err(|_| lost())?
    }
}

struct End {
    from: std::fs::File,
    to: std::fs::File,
    memory: Vec<u8>,
    /// Where the message is in it: from the beginning of a page on, as on our side.
    message: Range<usize>,
    begins: bool,
}

impl End {
    fn new(from: OwnedFd, to: OwnedFd, size: usize, begins: bool) -> End {
        let memory = vec![7; size + PAGE_BYTES as usize];
        let at = memory.as_ptr().align_offset(PAGE_BYTES as usize).min(PAGE_BYTES as usize);
        End { from: from.into(), to: to.into(), memory, message: at..at + size, begins }
    }

    fn block(&mut self, Block { rounds, think }: Block) -> Result<u64, Error> {
        let failed =
            |error: std::io::Error| Error::new(Code::System, format!("a FIFO of the measurement: {error}"));
        let blocking = !think.is_zero();
        rustix::io::ioctl_fionbio(&self.from, !blocking).map_err(|error| failed(error.into()))?;
        let mut took = Duration::ZERO;
        for _ in 0..rounds {
            let mut since = Instant::now();
            if self.begins {
                while since.elapsed() < think {}
                since = Instant::now();
                self.send().map_err(failed)?;
            }
            self.receive().map_err(failed)?;
            if self.begins {
                took += since.elapsed();
            } else {
                self.send().map_err(failed)?;
            }
        }
        Ok(took.as_nanos() as u64)
    }

    fn send(&mut self) -> std::io::Result<()> {
        let mut rest = &self.memory[self.message.clone()];
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(some) => rest = &rest[some..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> std::io::Result<()> {
        let mut rest = &mut self.memory[self.message.clone()];
        while !rest.is_empty() {
            match self.from.read(rest) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(some) => rest = &mut rest[some..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What each of two ends reads from and writes to.
type Ends = [(OwnedFd, OwnedFd); 2];

fn pipes() -> std::io::Result<Ends> {
    let (forth, back) = (pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?);
    Ok([(back.0, forth.1), (forth.0, back.1)])
}

/// A TCP connection within this machine, without delay.
fn connection() -> std::io::Result<Ends> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (two, _) = listener.accept()?;
    let both = |stream: TcpStream| {
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>((stream.try_clone()?.into(), stream.into()))
    };
    Ok([both(one)?, both(two)?])
}
