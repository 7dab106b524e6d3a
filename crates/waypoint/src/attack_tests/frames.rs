//! Frames of HTTP/2 by hand, as no library would send them.

use tokio::io::{AsyncRead, AsyncReadExt as _};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;

pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What a client begins with; each setting is a number and a value.
pub(super) fn preface(settings: &[(u16, u32)]) -> Vec<u8> {
    let settings = settings
        .iter()
        .flat_map(|(number, value)| [&number.to_be_bytes()[..], &value.to_be_bytes()[..]].concat());
    let settings: Vec<u8> = settings.collect();
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &settings)].concat()
}

/// A field as HPACK writes it without a table (RFC 7541, 6.2.2).
pub(super) fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0][..], &string(name), &string(value)].concat()
}

/// A string of HPACK, not compressed (RFC 7541, 5.2).
pub(super) fn string(text: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    let mut left = text.len();
    if left < 0x7f {
        coded.push(u8::try_from(left).unwrap());
    } else {
        coded.push(0x7f);
        left -= 0x7f;
        while left >= 0x80 {
            coded.push(u8::try_from(left % 0x80).unwrap() | 0x80);
            left /= 0x80;
        }
        coded.push(u8::try_from(left).unwrap());
    }
    coded.extend(text);
    coded
}

/// Fields one after the other.
pub(super) fn fields(all: &[(&str, &str)]) -> Vec<u8> {
    all.iter().flat_map(|(name, value)| field(name.as_bytes(), value.as_bytes())).collect()
}

/// The fields of a request.
pub(super) fn request(method: &str, path: &str) -> Vec<u8> {
    let all = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "web")];
    fields(&all)
}

/// A whole GET.
pub(super) fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("GET", "/"))
}

/// The number of a client's n-th stream.
pub(super) fn stream(number: u32) -> u32 {
    2 * number + 1
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Came {
    /// The code of a RST_STREAM, or of a GOAWAY.
    pub(super) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// The next frame; `None` at the end.
pub(super) async fn next(from: &mut (impl AsyncRead + Unpin)) -> Option<Came> {
    let mut header = [0; 9];
    from.read_exact(&mut header).await.ok()?;
    let [high, middle, low, kind, flags, number @ ..] = header;
    let length = u32::from_be_bytes([0, high, middle, low]);
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload).await.ok()?;
    Some(Came { kind, flags, stream: u32::from_be_bytes(number), payload })
}
