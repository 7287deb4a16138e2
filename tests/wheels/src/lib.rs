//! Makes small wheels for tests, valid ones and others: zip archives of files that are not compressed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// A wheel that is put together.
#[derive(Clone, Debug)]
pub struct WheelBuilder {
    name: String,
    version: String,
    tag: String,
    files: Vec<(String, Vec<u8>)>,
    record: Vec<(String, String)>,
    requires: Vec<String>,
}

impl WheelBuilder {
    /// A wheel for every Python and platform, without a module.
    pub fn new(name: &str, version: &str) -> WheelBuilder {
        WheelBuilder {
            name: name.to_owned(),
            version: version.to_owned(),
            tag: "py3-none-any".to_owned(),
            files: Vec::new(),
            record: Vec::new(),
            requires: Vec::new(),
        }
    }

    /// Sets its tag, as `cp311-cp311-manylinux_2_17_x86_64`.
    #[must_use]
    pub fn tag(mut self, tag: &str) -> WheelBuilder {
        tag.clone_into(&mut self.tag);
        self
    }

    /// Adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> WheelBuilder {
        self.files.push((path.to_owned(), content.as_ref().to_vec()));
        self
    }

    /// Adds a file that its record describes as having this content instead.
    #[must_use]
    pub fn recorded_as(mut self, path: &str, content: &[u8], recorded: &[u8]) -> WheelBuilder {
        self.record.push((path.to_owned(), record_line(path, recorded)));
        self.file(path, content)
    }

    /// Adds a file that its record does not have.
    #[must_use]
    pub fn unrecorded(mut self, path: &str, content: &[u8]) -> WheelBuilder {
        self.record.push((path.to_owned(), String::new()));
        self.file(path, content)
    }

    /// Adds a requirement.
    #[must_use]
    pub fn requires(mut self, requirement: &str) -> WheelBuilder {
        self.requires.push(requirement.to_owned());
        self
    }

    /// Returns the name of its file.
    pub fn file_name(&self) -> String {
        format!("{}-{}-{}.whl", self.name, self.version, self.tag)
    }

    /// Returns the file.
    pub fn bytes(&self) -> Vec<u8> {
        let WheelBuilder { name, version, tag, .. } = self;
        let information = format!("{name}-{version}.dist-info");
        let requires: String = self.requires.iter().map(|one| format!("Requires-Dist: {one}\n")).collect();
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}");
        let wheel = format!("Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n");
        let mut files = self.files.clone();
        files.push((format!("{information}/METADATA"), metadata.into_bytes()));
        files.push((format!("{information}/WHEEL"), wheel.into_bytes()));
        let line = |(path, content): &(String, Vec<u8>)| {
            let said = self.record.iter().find(|(said, _)| said == path);
            said.map_or_else(|| record_line(path, content), |(_, line)| line.clone())
        };
        let record: String = files.iter().map(line).collect();
        files.push((
            format!("{information}/RECORD"),
            format!("{record}{information}/RECORD,,\n").into_bytes(),
        ));
        let files: Vec<_> = files.iter().map(|(path, content)| (path.as_str(), content.as_slice())).collect();
        zip(&files)
    }
}

fn record_line(path: &str, content: &[u8]) -> String {
    let quoted = if path.contains([',', '"']) {
        format!("\"{}\"", path.replace('"', "\"\""))
    } else {
        path.to_owned()
    };
    format!("{quoted},sha256={},{}\n", URL_SAFE_NO_PAD.encode(Sha256::digest(content)), content.len())
}

/// Makes an archive of files that are not compressed.
pub fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let half = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    let (mut data, mut directory) = (Vec::new(), Vec::new());
    for (path, content) in files {
        let at = data.len();
        let sizes =
            [&crc(content).to_le_bytes()[..], &word(content.len()), &word(content.len()), &half(path.len())]
                .concat();
        data.extend(
            [&b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0"[..], &sizes, &[0; 2], path.as_bytes(), content].concat(),
        );
        directory.extend(
            [
                &b"PK\x01\x02\x14\x03\x14\0\0\0\0\0\0\0\0\0"[..],
                &sizes,
                &[0; 8],
                &word(0o100_644 << 16),
                &word(at),
                path.as_bytes(),
            ]
            .concat(),
        );
    }
    let count = half(files.len());
    let end =
        [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &word(directory.len()), &word(data.len()), &[0; 2]];
    [data, directory, end.concat()].concat()
}

fn crc(data: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !data.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}
