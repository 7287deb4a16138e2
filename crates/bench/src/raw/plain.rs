//! A TCP connection to a thread of this process that sends the requested bytes, and discards received ones.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};

use sublet_proto::{Code, Error, to_usize};

/// Requests to the thread: send bytes, receive bytes, or confirm by one byte that all earlier requests are complete.
const ASK: u64 = 0;
const TAKE: u64 = 1;
const SIGN: u64 = 2;
const HEAD_BYTES: usize = 16;
/// Size of the thread's own memory, through which it moves.
const WALK_BYTES: usize = 64 << 20;

/// The client's end. The thread ends with it.
pub(crate) struct Plain(TcpStream);

impl Plain {
    /// Starts the thread, and connects to it by this address.
    pub(crate) fn connect(address: IpAddr) -> Result<Plain, Error> {
        connect(address).map(Plain).map_err(failed)
    }

    /// Requests `len` bytes.
    pub(crate) fn ask(&mut self, len: usize) -> Result<(), Error> {
        self.0.write_all(&head(ASK, len)).map_err(failed)
    }

    /// Receives requested bytes.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<(), Error> {
        self.0.read_exact(into).map_err(failed)
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, from: &[u8]) -> Result<(), Error> {
        let head = head(TAKE, from.len());
        let mut slices = [io::IoSlice::new(&head), io::IoSlice::new(from)];
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let sent = self.0.write_vectored(left).map_err(failed)?;
            io::IoSlice::advance_slices(&mut left, sent);
        }
        Ok(())
    }

    /// Waits until all sent bytes have arrived.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        self.0.write_all(&head(SIGN, 0)).and_then(|()| self.0.read_exact(&mut [0])).map_err(failed)
    }
}

fn connect(address: IpAddr) -> io::Result<TcpStream> {
    let listener = TcpListener::bind((address, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (served, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    served.set_nodelay(true)?;
    std::thread::Builder::new().name("raw connection".into()).spawn(move || {
        // Fails once the client closes its side.
        let _ = serve(served);
    })?;
    Ok(stream)
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut memory = vec![1; WALK_BYTES];
    let (mut head, mut at) = ([0; HEAD_BYTES], 0);
    loop {
        stream.read_exact(&mut head)?;
        let (what, len) = head.split_at(HEAD_BYTES / 2);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let len = to_usize(word(len));
        if at + len > memory.len() {
            at = 0;
            memory.resize(memory.len().max(len), 1);
        }
        match word(what) {
            ASK => stream.write_all(&memory[at..at + len])?,
            TAKE => stream.read_exact(&mut memory[at..at + len])?,
            _ => stream.write_all(&[1])?,
        }
        at += len;
    }
}

fn head(what: u64, len: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..HEAD_BYTES / 2].copy_from_slice(&what.to_ne_bytes());
    head[HEAD_BYTES / 2..].copy_from_slice(&(len as u64).to_ne_bytes());
    head
}

fn failed(error: io::Error) -> Error {
    Error::new(Code::System, format!("the raw connection: {error}"))
}
