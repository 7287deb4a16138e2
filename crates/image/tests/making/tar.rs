//! Tars, entry by entry, with whatever paths and kinds.

/// The kinds of entries, as archives have them.
pub const FILE: u8 = b'0';
pub const HARD_LINK: u8 = b'1';
pub const SYMBOLIC_LINK: u8 = b'2';
pub const CHARACTER_DEVICE: u8 = b'3';
pub const BLOCK_DEVICE: u8 = b'4';
pub const FOLDER: u8 = b'5';
pub const FIFO: u8 = b'6';
pub const LONG_NAME: u8 = b'L';
pub const EXTENDED: u8 = b'x';

/// When everything was modified.
pub const MODIFIED_S: i64 = 1_234_567_890;

/// An archive on its way.
#[derive(Default)]
pub struct Tar(pub Vec<u8>);

impl Tar {
    pub fn new() -> Tar {
        Tar::default()
    }

    pub fn file(self, path: &str, content: &[u8]) -> Tar {
        self.entry(FILE, path.as_bytes(), b"", 0o644, content)
    }

    pub fn folder(self, path: &str) -> Tar {
        self.entry(FOLDER, path.as_bytes(), b"", 0o755, b"")
    }

    pub fn symbolic_link(self, path: &str, target: &str) -> Tar {
        self.entry(SYMBOLIC_LINK, path.as_bytes(), target.as_bytes(), 0o777, b"")
    }

    pub fn hard_link(self, path: &str, target: &str) -> Tar {
        self.entry(HARD_LINK, path.as_bytes(), target.as_bytes(), 0o644, b"")
    }

    /// Any entry; long paths get an entry of their own before it.
    pub fn entry(mut self, kind: u8, path: &[u8], target: &[u8], mode: u32, content: &[u8]) -> Tar {
        if path.len() > 100 {
            self = self.entry(LONG_NAME, b"././@LongLink", b"", 0, path);
        }
        self.0.extend(header(kind, path, target, mode, content.len() as u64));
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// An extended header for the next entry.
    pub fn extended(self, records: &[(&str, &[u8])]) -> Tar {
        let content: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.entry(EXTENDED, b"PaxHeaders/x", b"", 0o644, &content)
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let mut length = rest.len();
    while rest.len() + length.to_string().len() != length {
        length = rest.len() + length.to_string().len();
    }
    [length.to_string().as_bytes(), &rest].concat()
}

/// One header; its content may be left out, or be another.
pub fn header(kind: u8, path: &[u8], target: &[u8], mode: u32, bytes: u64) -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &path[..path.len().min(100)]);
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{bytes:011o}").as_bytes());
    put(136, format!("{MODIFIED_S:011o}").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, &target[..target.len().min(100)]);
    put(257, b"ustar\x0000");
    put(329, b"0000001\x000000003");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
