//! The chunked coding (RFC 9112, 7.1), both ways.
//!
//! The decoder lends pieces of the input and copies nothing but trailers. Extensions are read and
//! forgotten: nobody uses them but those who hide a request in one. So the encoder writes none, and
//! what leaves has the sizes of our own pieces, not the sender's lines.

use super::lines::Limits;
use super::trailers::Section;
use super::{options, write};
use crate::fields::Fields;
use crate::grammar;
use crate::refused::Refused;

/// How many digits a chunk's size has at most; more would overflow a number of 64 bits.
const SIZE_DIGITS: u8 = 16;

/// How many bytes all extensions of a body have at most.
const EXTENSION_BYTES: u32 = 4 * 1024;

/// What came next in a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Data, which is part of the input.
    Data(&'a [u8]),
    /// The input ends before the next piece.
    Partial,
    /// The end of the body, and its trailers.
    End(Fields),
}

/// Where the decoder is.
#[derive(Clone, Debug)]
enum State {
    /// In a chunk's size, of which so many digits are read.
    Size { digits: u8, size: u64 },
    /// In the extensions behind it.
    Extension { size: u64 },
    /// At the LF behind the size.
    SizeLf { size: u64 },
    /// In a chunk's data, of which so many bytes are left.
    Data { left: u64 },
    /// At the CR behind the data.
    DataCr,
    /// At the LF behind the data.
    DataLf,
    /// Behind the last chunk.
    Trailers(Section),
    /// Behind the body.
    Ended,
}

/// Reads a chunked body.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    extension_bytes: u32,
    limits: Limits,
}

impl Decoder {
    /// At the beginning of a body. The limits are for its trailers.
    pub fn new(limits: Limits) -> Self {
        Self { state: State::Size { digits: 0, size: 0 }, extension_bytes: 0, limits }
    }

    /// Reads up to the next piece. The number is how many bytes of the input were used; the next
    /// call gets what follows them. Behind the end nothing is used.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Piece<'a>), Refused> {
        let mut used = 0;
        while let Some(byte) = input.get(used) {
            match &mut self.state {
                State::Data { left } => {
                    let rest = &input[used..];
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= length as u64;
                    if *left == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok((used + length, Piece::Data(&rest[..length])));
                }
                State::Trailers(section) => {
                    let (taken, fields) = section.take(&input[used..], &self.limits)?;
                    used += taken;
                    if let Some(fields) = fields {
                        self.state = State::Ended;
                        return Ok((used, Piece::End(fields)));
                    }
                }
                State::Ended => break,
                _ => {
                    self.step(*byte)?;
                    used += 1;
                }
            }
        }
        Ok((used, Piece::Partial))
    }

    /// One byte of what is between the data.
    fn step(&mut self, byte: u8) -> Result<(), Refused> {
        self.state = match (&self.state, byte) {
            (State::Size { digits: 1.., size }, b'\r') => State::SizeLf { size: *size },
            (State::Size { digits: 1.., size }, b';') => self.extension(*size)?,
            (State::Size { digits, size }, _) if *digits < SIZE_DIGITS => {
                let digit = char::from(byte).to_digit(16).ok_or(size_refused(byte))?;
                State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (State::Size { .. }, _) => return Err(size_refused(byte)),
            (State::Extension { size }, b'\r') => State::SizeLf { size: *size },
            (State::Extension { .. }, b'\n') => return Err(Refused::BareLf),
            (State::Extension { size }, _) if grammar::is_value_byte(byte) => {
                self.extension(*size)?
            }
            (State::Extension { .. }, _) => return Err(Refused::ChunkExtension),
            (State::SizeLf { size: 0 }, b'\n') => State::Trailers(Section::default()),
            (State::SizeLf { size }, b'\n') => State::Data { left: *size },
            (State::SizeLf { .. }, _) => return Err(Refused::BareCr),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size { digits: 0, size: 0 },
            (State::DataCr, b'\n') => return Err(Refused::BareLf),
            (State::DataCr | State::DataLf, _) => return Err(Refused::ChunkEnd),
            // `decode` handles these.
            (State::Data { .. } | State::Trailers(_) | State::Ended, _) => return Ok(()),
        };
        Ok(())
    }

    fn extension(&mut self, size: u64) -> Result<State, Refused> {
        self.extension_bytes += 1;
        if self.extension_bytes > EXTENSION_BYTES {
            return Err(Refused::ChunkExtension);
        }
        Ok(State::Extension { size })
    }
}

fn size_refused(byte: u8) -> Refused {
    if byte == b'\n' { Refused::BareLf } else { Refused::ChunkSize }
}

/// Writes data as one chunk. No data is no chunk, since an empty one would end the body.
pub fn encode(data: &[u8], out: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    let mut size = data.len();
    let mut digits = [0; 16];
    let mut start = digits.len();
    while size > 0 {
        start -= 1;
        digits[start] = b"0123456789abcdef"[size & 0xf];
        size >>= 4;
    }
    out.extend_from_slice(&digits[start..]);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Writes the end of a body with its trailers. Those that must not be trailers are left out.
pub fn encode_end(trailers: Option<&Fields>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for field in trailers.into_iter().flat_map(Fields::iter) {
        if !options::belongs_in_head(&field) {
            write::field(field.name, field.value, out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
