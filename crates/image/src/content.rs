//! Bytes on their way from an archive to a tree: a part of a file, decompressed, within bounds.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::limits::{Budget, Exceeded, Limits};

const BUFFER_SIZE_BYTES: usize = 128 << 10;
/// How much of its output a zstd stream may make the reader keep: that of `zstd --long=27`.
const ZSTD_WINDOW_MAX_BYTES: u64 = 128 << 20;
/// Forms that are known and not read, by how they begin.
const UNSUPPORTED: [(&[u8], &str); 4] = [
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"PK\x03\x04", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
];

/// Data that can be passed over.
pub(crate) trait Input: Read {
    /// Goes on `count` bytes later; an error if there are fewer.
    fn skip(&mut self, count: u64) -> io::Result<()>;
}

/// A part of a file, read from its start. Others may read the same file.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Slice {
    pub(crate) fn whole(file: File) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), at: 0, end })
    }

    /// `size` bytes from here on; `None` if there are fewer.
    pub(crate) fn part(&self, size: u64) -> Option<Self> {
        let end = self.at.checked_add(size).filter(|end| *end <= self.end)?;
        Some(Self { file: self.file.clone(), at: self.at, end })
    }

    pub(crate) fn size(&self) -> u64 {
        self.end - self.at
    }
}

impl Read for Slice {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.size()).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..wanted], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Input for Slice {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let at = self.at.checked_add(count).filter(|at| *at <= self.end);
        self.at = at.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(())
    }
}

/// Data that can only be read: passing over is reading.
pub(crate) struct Stream<R>(pub(crate) R);

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<R: Read> Input for Stream<R> {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let passed = io::copy(&mut Read::take(&mut self.0, count), &mut io::sink())?;
        if passed == count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Counts what is read through it, for somebody who does not hold it.
pub(crate) struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R> Counted<R> {
    pub(crate) fn new(inner: R) -> (Self, Rc<Cell<u64>>) {
        let count = Rc::new(Cell::new(0));
        (Self { inner, count: count.clone() }, count)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// Reads what was compressed with gzip or zstd, or not at all: the first bytes say which.
///
/// The media type is not asked: it is often wrong, and says nothing about archives.
pub(crate) fn decompressed<'r>(input: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut input = BufReader::with_capacity(BUFFER_SIZE_BYTES, input);
    let first = input.fill_buf()?;
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(magic, _)| first.starts_with(magic)) {
        let text = format!("it is compressed with {name}; gzip, zstd and no compression are read");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    match first {
        [0x1f, 0x8b, ..] => Ok(Box::new(MultiGzDecoder::new(input))),
        // A frame, or one of those that are skipped, which may come first.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Ok(Box::new(Zstd::new(input)))
        }
        _ => Ok(Box::new(input)),
    }
}

/// Whether data that begins so is compressed in a way that is read.
pub(crate) fn is_compressed(first: &[u8]) -> bool {
    first.starts_with(&[0x1f, 0x8b])
        || first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || UNSUPPORTED.iter().any(|(magic, _)| first.starts_with(magic))
}

/// A stream of zstd frames, one after the other; frames to be skipped are skipped.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_MAX_BYTES);
        Self { source, decoder, in_frame: false }
    }

    /// Whether there is a next frame.
    fn start_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.source.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? != u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.start_frame()? {
                return Ok(0);
            }
            self.in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let decoded = self
                    .decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(io::Error::other)?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.in_frame = false;
        }
    }
}

/// Decompressed data within its bounds: how much, and how much more than what was read for it.
pub(crate) struct Bounded<'b, R> {
    inner: R,
    total: &'b mut Budget,
    compressed: Rc<Cell<u64>>,
    given: u64,
    ratio: u64,
    ratio_free_bytes: u64,
}

impl<'b, R> Bounded<'b, R> {
    /// `compressed` counts what goes into the decompression.
    pub(crate) fn new(
        inner: R,
        total: &'b mut Budget,
        compressed: Rc<Cell<u64>>,
        limits: &Limits,
    ) -> Self {
        let (ratio, ratio_free_bytes) = (limits.ratio, limits.ratio_free_bytes);
        Self { inner, total, compressed, given: 0, ratio, ratio_free_bytes }
    }
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.total.take(count as u64).map_err(io::Error::other)?;
        self.given += count as u64;
        let most = self.compressed.get().saturating_mul(self.ratio);
        if self.given > self.ratio_free_bytes && self.given > most {
            let what = "times the size of its compressed data";
            return Err(io::Error::other(Exceeded { what, limit: self.ratio }));
        }
        Ok(count)
    }
}

/// The bound that an error of reading is about.
pub(crate) fn exceeded(error: &io::Error) -> Option<Exceeded> {
    error.get_ref()?.downcast_ref::<Exceeded>().cloned()
}

/// Reads the rest.
pub(crate) fn drain(input: &mut impl Read) -> io::Result<()> {
    io::copy(input, &mut io::sink()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        decompressed(bytes)?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn streams_may_have_parts() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(read(&text).unwrap(), text);
        assert_eq!(read(&[gzip(&text), gzip(b"b")].concat()).unwrap(), [&text[..], b"b"].concat());
        let skipped = b"\x52\x2a\x4d\x18\x03\0\0\0abc";
        let parts = [&skipped[..], &zstd(&text), skipped, &zstd(b"b"), skipped].concat();
        assert_eq!(read(&parts).unwrap(), [&text[..], b"b"].concat());
        assert!(read(b"").unwrap().is_empty());
    }

    #[test]
    fn cut_streams_are_errors() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(|number| number.to_le_bytes()).collect();
        for whole in [gzip(&text), zstd(&text)] {
            for length in [4, 9, whole.len() / 2, whole.len() - 1] {
                assert!(read(&whole[..length]).is_err(), "{length}");
            }
        }
        assert!(read(b"\x52\x2a\x4d\x18\x03\0\0\0ab").is_err());
        assert!(read(b"\xfd7zXZ\0").unwrap_err().to_string().contains("xz"));
    }

    #[test]
    fn decompression_is_bounded() {
        let check = |limits: &Limits, total: u64, expected: Option<&str>| {
            let zeros = gzip(&vec![0; 4 << 20]);
            let (counted, count) = Counted::new(&zeros[..]);
            let mut budget = Budget::new(total, "bytes");
            let plain = decompressed(counted).unwrap();
            let mut bounded = Bounded::new(plain, &mut budget, count, limits);
            let error = drain(&mut bounded).err().map(|it| exceeded(&it).unwrap().to_string());
            assert_eq!(error.as_deref(), expected);
        };
        check(&Limits::default(), 4 << 20, None);
        check(&Limits::default(), 1 << 20, Some("more than 1048576 bytes"));
        let tight = Limits { ratio_free_bytes: 1 << 20, ..Limits::default() };
        check(&tight, u64::MAX, Some("more than 200 times the size of its compressed data"));
    }
}
