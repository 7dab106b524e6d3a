//! SPDY/3.1, as far as Kubernetes' clients use it: connections to ports, and the commands of older
//! clients.
//!
//! Neither they nor Kubernetes' servers keep to the windows of SPDY's flow control: whoever does
//! not read holds up the connection. So windows are read over here too.
//! (<https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/>)

mod dictionary;
mod error;
mod headers;

pub use self::error::SpdyError;
use self::headers::{HeaderReader, HeaderWriter};

/// Bytes before the payload of a frame.
pub const HEAD_SIZE_BYTES: usize = 8;
/// Largest payload of a frame with data.
const DATA_SIZE_MAX_BYTES: usize = 1 << 20;
/// Largest payload of any other frame.
const CONTROL_SIZE_MAX_BYTES: usize = 16 << 10;
/// The version in frames that are not data.
const VERSION: u16 = 3;
/// Largest number of a stream.
const STREAM_MAX: u32 = 0x7fff_ffff;
/// The flag of the last frame of a stream in one direction.
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// A frame of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// It opens a stream.
    Open {
        /// The stream.
        stream: u32,
        /// It will send nothing on it.
        is_last: bool,
        /// What the stream is for.
        headers: Vec<(String, String)>,
    },
    /// More of what a stream carries.
    Data {
        /// The stream.
        stream: u32,
        /// There is no more.
        is_last: bool,
        /// The bytes.
        payload: &'a [u8],
    },
    /// It wants no more of a stream.
    Reset {
        /// The stream.
        stream: u32,
    },
    /// It asks for an answer with this number, or answers.
    Ping {
        /// The number: odd if a client asks.
        number: u32,
    },
    /// It opens no more streams.
    GoAway,
    /// It changes nothing: settings, windows, more headers.
    Other,
}

/// Why a stream is refused or cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ResetCode {
    /// The client breaks the protocol.
    ProtocolError = 1,
    /// The stream was not looked at.
    Refused = 3,
}

/// Reads the frames of a client.
#[derive(Debug)]
pub struct FrameReader {
    headers: HeaderReader,
}

/// Writes frames to a client.
#[derive(Debug, Default)]
pub struct FrameWriter {
    headers: HeaderWriter,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self { headers: HeaderReader::new() }
    }
}

impl FrameReader {
    /// How many bytes the frame has whose first ones these are.
    ///
    /// # Errors
    /// It is too large.
    pub fn length(head: [u8; HEAD_SIZE_BYTES]) -> Result<usize, SpdyError> {
        let [first, .., a, b, c] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let most = if first & 0x80 == 0 { DATA_SIZE_MAX_BYTES } else { CONTROL_SIZE_MAX_BYTES };
        match length {
            length if length <= most => Ok(HEAD_SIZE_BYTES + length),
            _ => Err(SpdyError::Frame("it is larger than 1 MiB, or than 16 KiB without data")),
        }
    }

    /// Reads a whole frame.
    ///
    /// # Errors
    /// It is not of its form; the connection cannot go on.
    pub fn read<'a>(&mut self, frame: &'a [u8]) -> Result<Frame<'a>, SpdyError> {
        let Some((&[a, b, c, d, flags, ..], payload)) =
            frame.split_first_chunk::<HEAD_SIZE_BYTES>()
        else {
            return Err(SpdyError::Frame("it ends within its head"));
        };
        let first = u32::from_be_bytes([a, b, c, d]);
        let is_last = flags & FIN != 0;
        if first & 0x8000_0000 == 0 {
            let stream = stream(first)?;
            return Ok(Frame::Data { stream, is_last, payload });
        }
        if u16::from_be_bytes([a & 0x7f, b]) != VERSION {
            return Err(SpdyError::Frame("its version is not 3"));
        }
        self.control(u16::from_be_bytes([c, d]), is_last, payload)
    }

    fn control(
        &mut self,
        kind: u16,
        is_last: bool,
        payload: &[u8],
    ) -> Result<Frame<'static>, SpdyError> {
        let (&[a, b, c, d], rest) =
            payload.split_first_chunk().ok_or(SpdyError::Frame("it ends before its number"))?;
        let number = u32::from_be_bytes([a, b, c, d]);
        match kind {
            SYN_STREAM => {
                // Behind the stream: another that it belongs to, its priority, and a slot.
                let (_, block) = rest
                    .split_first_chunk::<6>()
                    .ok_or(SpdyError::Frame("it ends before its headers"))?;
                let headers = self.headers.read(block)?;
                Ok(Frame::Open { stream: stream(number)?, is_last, headers })
            }
            // What a client says later of its streams; their headers are compressed as one.
            HEADERS => self.headers.read(rest).map(|_| Frame::Other),
            RST_STREAM => Ok(Frame::Reset { stream: stream(number)? }),
            PING => Ok(Frame::Ping { number }),
            GOAWAY => Ok(Frame::GoAway),
            SETTINGS | WINDOW_UPDATE => Ok(Frame::Other),
            SYN_REPLY => Err(SpdyError::Frame("it answers a stream that was not opened")),
            _ => Err(SpdyError::Frame("its kind is not one of SPDY/3.1")),
        }
    }
}

fn stream(number: u32) -> Result<u32, SpdyError> {
    match number & STREAM_MAX {
        0 => Err(SpdyError::Frame("it is of stream 0")),
        number => Ok(number),
    }
}

impl FrameWriter {
    /// Answers that a stream is open.
    pub fn opened(&mut self, stream: u32) -> Vec<u8> {
        let headers = self.headers.none();
        control(SYN_REPLY, &[&stream.to_be_bytes(), &headers])
    }

    /// More of what a stream carries.
    pub fn data(stream: u32, payload: &[u8], is_last: bool) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEAD_SIZE_BYTES + payload.len());
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&length(payload.len()));
        frame[4] = if is_last { FIN } else { 0 };
        frame.extend_from_slice(payload);
        frame
    }

    /// Cuts a stream.
    pub fn reset(stream: u32, code: ResetCode) -> Vec<u8> {
        control(RST_STREAM, &[&stream.to_be_bytes(), &(code as u32).to_be_bytes()])
    }

    /// Asks for an answer, by an even number, or answers, by that which was asked.
    pub fn ping(number: u32) -> Vec<u8> {
        control(PING, &[&number.to_be_bytes()])
    }

    /// Says that the client has broken the protocol, before the connection ends.
    pub fn go_away(last_stream: u32) -> Vec<u8> {
        control(GOAWAY, &[&last_stream.to_be_bytes(), &1_u32.to_be_bytes()])
    }
}

fn control(kind: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&(VERSION | 0x8000).to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&length(parts.iter().map(|it| it.len()).sum()));
    for part in parts {
        frame.extend_from_slice(part);
    }
    frame
}

/// A length behind the place of the flags.
fn length(bytes: usize) -> [u8; 4] {
    assert!(bytes <= DATA_SIZE_MAX_BYTES, "a frame is made of what fits into it");
    (bytes as u32).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::headers::tests::{first, next};
    use super::*;

    fn read(frame: &[u8]) -> Result<Frame<'_>, SpdyError> {
        FrameReader::default().read(frame)
    }

    fn syn_stream(stream: u32, block: &[u8]) -> Vec<u8> {
        control(SYN_STREAM, &[&stream.to_be_bytes(), &[0; 6], block])
    }

    #[test]
    fn frames_are_read() {
        let data = FrameWriter::data(7, b"hello", true);
        assert_eq!(read(&data), Ok(Frame::Data { stream: 7, is_last: true, payload: b"hello" }));
        assert_eq!(read(&FrameWriter::ping(5)), Ok(Frame::Ping { number: 5 }));
        let reset = FrameWriter::reset(3, ResetCode::Refused);
        assert_eq!(read(&reset), Ok(Frame::Reset { stream: 3 }));
        assert_eq!(read(&FrameWriter::go_away(3)), Ok(Frame::GoAway));
        assert_eq!(read(&control(SETTINGS, &[&[0; 4]])), Ok(Frame::Other));
        assert_eq!(read(&control(WINDOW_UPDATE, &[&[0; 8]])), Ok(Frame::Other));
    }

    #[test]
    fn streams_are_opened_with_headers() {
        let mut reader = FrameReader::default();
        let pairs = [("streamtype", "data")];
        let headers = vec![("streamtype".to_owned(), "data".to_owned())];
        let open = |stream| Frame::Open { stream, is_last: false, headers: headers.clone() };
        assert_eq!(reader.read(&syn_stream(1, &first(&pairs))), Ok(open(1)));
        let more = control(HEADERS, &[&1_u32.to_be_bytes(), &next(&pairs)]);
        assert_eq!(reader.read(&more), Ok(Frame::Other));
        assert_eq!(reader.read(&syn_stream(3, &next(&pairs))), Ok(open(3)));
    }

    #[test]
    fn a_length_has_a_bound() {
        let check = |head: [u8; HEAD_SIZE_BYTES], expected: Option<usize>| {
            assert_eq!(FrameReader::length(head).ok(), expected, "{head:?}");
        };
        check([0, 0, 0, 1, 0, 0, 0, 5], Some(13));
        check([0, 0, 0, 1, FIN, 0x10, 0, 0], Some((1 << 20) + 8));
        check([0, 0, 0, 1, FIN, 0x10, 0, 1], None);
        check([0x80, 3, 0, 1, 0, 0, 0x40, 0], Some((16 << 10) + 8));
        check([0x80, 3, 0, 1, 0, 0, 0x40, 1], None);
    }

    #[test]
    fn what_is_not_of_the_form_is_refused() {
        let check = |frame: &[u8], part: &str| {
            let error = read(frame).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&[0; 7], "within its head");
        check(&[0; 8], "stream 0");
        check(&[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], "version is not 3");
        check(&control(PING, &[]), "before its number");
        check(&control(RST_STREAM, &[&[0; 8]]), "stream 0");
        check(&control(SYN_STREAM, &[&[0, 0, 0, 1, 0]]), "before its headers");
        check(&syn_stream(0, &first(&[])), "stream 0");
        check(&syn_stream(1, &next(&[])), "zlib stream");
        check(&control(SYN_REPLY, &[&[0, 0, 0, 2]]), "not opened");
        check(&control(5, &[&[0; 4]]), "not one of SPDY/3.1");
    }

    proptest! {
        /// Whatever comes, and whatever was before.
        #[test]
        fn noise_is_an_error_or_a_frame(
            blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..4),
            kind in 0..10_u16,
        ) {
            let mut reader = FrameReader::default();
            reader.read(&syn_stream(1, &first(&[("port", "80")]))).expect("a stream");
            for block in &blocks {
                let _either = reader.read(&control(kind, &[&[0, 0, 0, 3], block]));
                let _either = reader.read(block);
            }
        }
    }
}
