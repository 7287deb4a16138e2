//! Whole messages over a TCP stream: what does not block is tried again at once.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Sends all bytes.
///
/// # Errors
/// That of the connection.
pub fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if is_only_not_ready(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills the buffer.
///
/// # Errors
/// That of the connection, or its end.
pub fn receive(stream: &mut TcpStream, mut bytes: &mut [u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => bytes = &mut bytes[got..],
            Err(error) if is_only_not_ready(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_only_not_ready(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
