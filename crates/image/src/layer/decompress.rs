//! Detects the compression of a layer by its first bytes, and decompresses it.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::limits::MAX_ZSTD_WINDOW_BYTES;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// End of the magic numbers of zstd's sixteen kinds of frames without content.
const ZSTD_SKIPPED: &[u8] = &[0x2a, 0x4d, 0x18];
const BUFFER_BYTES: usize = 128 << 10;

/// Decompresses gzip of one or more members or zstd of one or more frames; anything else is passed on unchanged.
pub(crate) fn decompressed<'a>(mut reader: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut first = Vec::new();
    reader.by_ref().take(ZSTD.len() as u64).read_to_end(&mut first)?;
    let is_skipped_frame = first.len() == 4 && first[0] & 0xf0 == 0x50 && first.ends_with(ZSTD_SKIPPED);
    let (is_gzip, is_zstd) = (first.starts_with(GZIP), first.starts_with(ZSTD) || is_skipped_frame);
    let whole = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(first).chain(reader));
    Ok(match () {
        () if is_gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(whole))),
        () if is_zstd => Box::new(ZstdFrames::new(whole)),
        () => Box::new(whole),
    })
}

/// The frames of zstd one after the other, which the library reads one by one.
struct ZstdFrames<R: Read> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    is_within: bool,
}

impl<R: Read> ZstdFrames<R> {
    fn new(source: BufReader<R>) -> ZstdFrames<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW_BYTES);
        ZstdFrames { source, decoder, is_within: false }
    }

    /// Begins the next frame. Returns `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            if !self.is_within && !self.begin()? {
                break;
            }
            self.is_within = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(invalid)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.is_within = false,
                read => return Ok(read),
            }
        }
        Ok(0)
    }
}

fn invalid(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        decompressed(bytes)?.read_to_end(&mut content).map(|_| content)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    #[test]
    fn every_compression_gives_the_same_bytes_also_in_several_pieces() {
        let content: Vec<u8> = (0..300_000_u32).map(|index| (index % 251) as u8).collect();
        let (one, two) = content.split_at(100_001);
        assert_eq!(read(&content).unwrap(), content);
        assert_eq!(read(&[gzip(one), gzip(two)].concat()).unwrap(), content);
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        let frames = [skipped.clone(), zstd(one), skipped.clone(), zstd(b""), zstd(two), skipped].concat();
        assert_eq!(read(&frames).unwrap(), content);
        assert_eq!(read(b"").unwrap(), b"");
        assert_eq!(read(b"x").unwrap(), b"x");
    }

    #[test]
    fn rejects_truncated_data_and_trailing_bytes() {
        let content: Vec<u8> =
            (0..300_000_u32).flat_map(|index| index.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        for whole in [gzip(&content), zstd(&content)] {
            assert!(read(&whole[..whole.len() / 2]).is_err());
            assert!(read(&[&whole[..], b"something else"].concat()).is_err());
        }
    }

    #[test]
    fn a_window_larger_than_memory_is_refused() {
        // No single segment, a window of 2^41 bytes, and a block that needs none of it.
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8][..], &[0x01, 0, 0]].concat();
        assert!(read(&frame).is_err());
    }
}
