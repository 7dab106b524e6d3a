//! The compressed headers of a connection: one zlib stream each way, a part of it in each frame.
//!
//! Reading needs a dictionary before the first byte, which not every implementation of the
//! compression can be given. Two facts of RFC 1951 help: an inflater looks back at whatever it has
//! written, and a stored block is written as it is. So the dictionary is the first, stored block of
//! what is inflated, and what it becomes is thrown away. For writing nothing is compressed: there
//! are stored blocks only.

use flate2::{Decompress, FlushDecompress, Status};

use super::dictionary::{self, dictionary};
use super::error::SpdyError;

/// Most that the headers of one frame become.
const HEADERS_SIZE_MAX_BYTES: usize = 16 << 10;
/// What a zlib stream begins with here: the method with its largest window, and that the number of
/// a dictionary follows (RFC 1950, section 2.2).
const ZLIB_START: [u8; 2] = [0x78, 0xbb];
/// A bit of the second byte: the number of a dictionary follows.
const HAS_DICTIONARY: u8 = 0x20;
/// The end of a part: an empty stored block, which makes the reader use all before it.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// Reads headers.
#[derive(Debug)]
pub(super) struct HeaderReader {
    inflater: Decompress,
    has_begun: bool,
}

/// Writes headers.
#[derive(Debug, Default)]
pub(super) struct HeaderWriter {
    has_begun: bool,
}

impl HeaderReader {
    pub(super) fn new() -> Self {
        let mut inflater = Decompress::new(false);
        let dictionary = dictionary();
        let mut thrown_away = vec![0; dictionary.len()];
        let block = stored(&dictionary);
        let read = inflater.decompress(&block, &mut thrown_away, FlushDecompress::Sync);
        debug_assert!(read.is_ok() && thrown_away == dictionary, "a stored block stays as it is");
        Self { inflater, has_begun: false }
    }

    /// Reads the headers of a frame.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
        let block = if self.has_begun { block } else { after_start(block)? };
        self.has_begun = true;
        pairs(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let broken = SpdyError::Headers("they are not compressed as zlib does");
        let mut text = vec![0; HEADERS_SIZE_MAX_BYTES + 1];
        let mut length = 0;
        loop {
            let before = (self.inflater.total_in(), self.inflater.total_out());
            let read = self.inflater.decompress(block, &mut text[length..], FlushDecompress::Sync);
            let taken = moved(before.0, self.inflater.total_in());
            let given = moved(before.1, self.inflater.total_out());
            (block, length) = (&block[taken..], length + given);
            if length > HEADERS_SIZE_MAX_BYTES {
                return Err(SpdyError::Headers("they are larger than 16 KiB"));
            }
            match read {
                Ok(Status::Ok | Status::BufError) if taken + given > 0 => {}
                Ok(Status::Ok | Status::BufError) if block.is_empty() => {
                    text.truncate(length);
                    return Ok(text);
                }
                // The stream goes on to the end of the connection.
                _ => return Err(broken),
            }
        }
    }
}

fn moved(before: u64, after: u64) -> usize {
    usize::try_from(after - before).expect("it is within a buffer")
}

/// What follows the start of a zlib stream.
fn after_start(block: &[u8]) -> Result<&[u8], SpdyError> {
    let Some((&[method, flags, a, b, c, d], rest)) = block.split_first_chunk() else {
        return Err(SpdyError::Headers("they end within the start of their zlib stream"));
    };
    let is_whole = u16::from_be_bytes([method, flags]).is_multiple_of(31);
    let is_deflated = method & 0x0f == ZLIB_START[0] & 0x0f;
    if !is_whole || !is_deflated || flags & HAS_DICTIONARY == 0 {
        return Err(SpdyError::Headers("they do not begin as a zlib stream with a dictionary"));
    }
    if u32::from_be_bytes([a, b, c, d]) != dictionary::ID {
        return Err(SpdyError::Headers("their dictionary is not that of SPDY/3"));
    }
    Ok(rest)
}

/// Reads a count, and so many names and values, each behind its length.
fn pairs(mut text: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
    let count = number(&mut text)?;
    let mut pairs: Vec<(String, String)> = Vec::new();
    for _ in 0..count {
        let (name, value) = (word(&mut text)?, word(&mut text)?);
        if name.is_empty() || name.bytes().any(|it| it.is_ascii_uppercase()) {
            return Err(SpdyError::Headers("a name is empty or not in small letters"));
        }
        if pairs.iter().any(|(other, _)| *other == name) {
            return Err(SpdyError::Headers("a name is there twice"));
        }
        pairs.push((name, value));
    }
    if text.is_empty() { Ok(pairs) } else { Err(SpdyError::Headers("something follows them")) }
}

fn number(text: &mut &[u8]) -> Result<usize, SpdyError> {
    let Some((number, rest)) = text.split_first_chunk() else {
        return Err(SpdyError::Headers("they end within a number"));
    };
    *text = rest;
    Ok(usize::try_from(u32::from_be_bytes(*number)).unwrap_or(usize::MAX))
}

fn word(text: &mut &[u8]) -> Result<String, SpdyError> {
    let length = number(text)?;
    let Some((word, rest)) = text.split_at_checked(length) else {
        return Err(SpdyError::Headers("they end within a name or a value"));
    };
    *text = rest;
    let word = std::str::from_utf8(word).map_err(|_| SpdyError::Headers("they are no UTF-8"))?;
    Ok(word.to_owned())
}

impl HeaderWriter {
    /// Writes the headers of a frame that has none.
    pub(super) fn none(&mut self) -> Vec<u8> {
        let mut block = Vec::new();
        if !self.has_begun {
            self.has_begun = true;
            block.extend_from_slice(&ZLIB_START);
            block.extend_from_slice(&dictionary::ID.to_be_bytes());
        }
        block.extend_from_slice(&stored(&0_u32.to_be_bytes()));
        block.extend_from_slice(&FLUSH);
        block
    }
}

/// A block of a compressed stream that is not compressed (RFC 1951, section 3.2.4).
fn stored(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("what is stored here is short");
    let mut block = vec![0];
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(&(!length).to_le_bytes());
    block.extend_from_slice(bytes);
    block
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a client sends first, without compression.
    pub(in super::super) fn first(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut block = ZLIB_START.to_vec();
        block.extend_from_slice(&dictionary::ID.to_be_bytes());
        block.extend_from_slice(&next(pairs));
        block
    }

    /// What it sends later.
    pub(in super::super) fn next(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut block = stored(&text(pairs));
        block.extend_from_slice(&FLUSH);
        block
    }

    fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
        let number = |it: usize| u32::try_from(it).expect("short").to_be_bytes();
        let mut text = number(pairs.len()).to_vec();
        for word in pairs.iter().flat_map(|(name, value)| [name, value]) {
            text.extend_from_slice(&number(word.len()));
            text.extend_from_slice(word.as_bytes());
        }
        text
    }

    fn refused(block: &[u8], part: &str) {
        let error = HeaderReader::new().read(block).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn headers_are_read_one_after_the_other() {
        let mut reader = HeaderReader::new();
        let pairs = [("port", "80"), ("streamtype", "error")];
        let expected: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(reader.read(&first(&pairs)), Ok(expected.clone()));
        assert_eq!(reader.read(&next(&pairs)), Ok(expected));
        assert_eq!(reader.read(&next(&[])), Ok(Vec::new()));
    }

    #[test]
    fn the_dictionary_is_known() {
        // A compressor that has written the dictionary before refers to it.
        let mut compressor = flate2::Compress::new(flate2::Compression::best(), false);
        let mut block = vec![0; 4096];
        let mut packed = |text: &[u8]| {
            let before = compressor.total_out();
            compressor.compress(text, &mut block, flate2::FlushCompress::Sync).expect("packed");
            block[..moved(before, compressor.total_out())].to_vec()
        };
        packed(&dictionary());
        let value = "application/xhtml+xml";
        let text = packed(&text(&[("proxy-authorization", value)]));
        assert!(text.len() < 2 * value.len(), "it refers to the dictionary");
        let start = [&ZLIB_START[..], &dictionary::ID.to_be_bytes(), &text].concat();
        let read = HeaderReader::new().read(&start).expect("read");
        assert_eq!(read, [("proxy-authorization".to_owned(), value.to_owned())]);
    }

    #[test]
    fn what_is_not_of_the_form_is_refused() {
        refused(b"\x78\xbb", "end within the start");
        refused(b"\x78\x9c\xe3\xc6\xa7\xc2\0", "with a dictionary");
        refused(b"\x78\xbb\xe3\xc6\xa7\xc3\0", "not that of SPDY/3");
        let broken = [first(&[]), vec![0x07]].concat();
        refused(&broken, "not compressed");
        let mut ended = first(&[]);
        ended[6] |= 1;
        refused(&ended, "not compressed");
        refused(&first(&[("Port", "80")]), "small letters");
        refused(&first(&[("", "80")]), "empty");
        refused(&first(&[("port", "80"), ("port", "81")]), "twice");
        let mut long = first(&[("port", "80")]);
        long[14] = 9;
        refused(&long, "end within");
        refused(&first(&[("port", &"8".repeat(17_000))]), "larger than 16 KiB");
    }

    #[test]
    fn little_does_not_become_much() {
        let mut compressor = flate2::Compress::new(flate2::Compression::best(), false);
        let mut block = vec![0; 1 << 20];
        let zeros = vec![0; 64 << 20];
        compressor.compress(&zeros, &mut block, flate2::FlushCompress::Sync).expect("packed");
        let start = [&ZLIB_START[..], &dictionary::ID.to_be_bytes(), &block].concat();
        refused(&start, "larger than 16 KiB");
    }

    #[test]
    fn no_headers_are_read_back() {
        let (mut writer, mut reader) = (HeaderWriter::default(), HeaderReader::new());
        for _ in 0..3 {
            assert_eq!(reader.read(&writer.none()), Ok(Vec::new()));
        }
    }
}
