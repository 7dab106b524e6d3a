//! Frames of HTTP/2 (RFC 9113 section 4): their heads, kinds, flags, and the small ones whole.

use bytes::{BufMut, BytesMut};

use super::Reason;

/// What a client sends before its first frame (RFC 9113 section 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a frame begins with.
pub(super) const HEAD_BYTES: usize = 9;

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Of the payload.
    pub(super) bytes: usize,
    /// One of [`kind`], or one that is not known.
    pub(super) kind: u8,
    /// Of [`flag`]; others are ignored.
    pub(super) flags: u8,
    /// 0: the connection itself.
    pub(super) stream: u32,
}

/// Kinds of frames (RFC 9113 section 6).
pub(super) mod kind {
    /// Bytes of a stream.
    pub(in super::super) const DATA: u8 = 0;
    /// Fields; opens a stream.
    pub(in super::super) const HEADERS: u8 = 1;
    /// Means nothing any more.
    pub(in super::super) const PRIORITY: u8 = 2;
    /// Ends a stream at once.
    pub(in super::super) const RST_STREAM: u8 = 3;
    /// What the sender takes.
    pub(in super::super) const SETTINGS: u8 = 4;
    /// Never allowed here.
    pub(in super::super) const PUSH_PROMISE: u8 = 5;
    /// A question, or its answer.
    pub(in super::super) const PING: u8 = 6;
    /// The end of new streams.
    pub(in super::super) const GOAWAY: u8 = 7;
    /// Credit for bytes.
    pub(in super::super) const WINDOW_UPDATE: u8 = 8;
    /// More of a block of fields.
    pub(in super::super) const CONTINUATION: u8 = 9;
}

/// Flags. The same bit means different things for different kinds.
pub(super) mod flag {
    /// Nothing follows on the stream.
    pub(in super::super) const END_STREAM: u8 = 0x1;
    /// An answer, of SETTINGS and PING.
    pub(in super::super) const ACK: u8 = 0x1;
    /// The block of fields is whole.
    pub(in super::super) const END_HEADERS: u8 = 0x4;
    /// The payload begins with the length of its padding.
    pub(in super::super) const PADDED: u8 = 0x8;
    /// Five bytes of priority come first.
    pub(in super::super) const PRIORITY: u8 = 0x20;
}

/// Names of settings (RFC 9113 section 6.5.2).
pub(super) mod setting {
    /// Of the table for fields.
    pub(in super::super) const HEADER_TABLE_SIZE: u16 = 1;
    /// Whether the server may push.
    pub(in super::super) const ENABLE_PUSH: u16 = 2;
    /// Streams that the other side may have open.
    pub(in super::super) const MAX_CONCURRENT_STREAMS: u16 = 3;
    /// The window of a stream, from now on and of all that are open.
    pub(in super::super) const INITIAL_WINDOW_SIZE: u16 = 4;
    /// Payload of a frame.
    pub(in super::super) const MAX_FRAME_SIZE: u16 = 5;
    /// Fields of a head; advice.
    pub(in super::super) const MAX_HEADER_LIST_SIZE: u16 = 6;
    /// Ambit's own, of the numbers for experiments (section 11.3): 1 says that DATA may follow a
    /// CONNECT before its answer. Everybody else ignores it (section 6.5.2).
    pub(in super::super) const EARLY_DATA: u16 = 0xf0ea;
}

impl Head {
    /// Reads the first nine bytes of a frame.
    pub(super) fn read(from: &[u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, rest @ ..] = *from;
        // The highest bit is reserved and ignored.
        let stream = u32::from_be_bytes(rest) & 0x7fff_ffff;
        let bytes = u32::from_be_bytes([0, a, b, c]) as usize;
        Self { bytes, kind, flags, stream }
    }

    /// Those nine bytes.
    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let [_, a, b, c] = (self.bytes as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    /// Whether the flag is set.
    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a frame whose payload is a few numbers.
fn put(kind: u8, flags: u8, stream: u32, payload: &[u8], into: &mut BytesMut) {
    into.put_slice(&Head { bytes: payload.len(), kind, flags, stream }.bytes());
    into.put_slice(payload);
}

/// Appends SETTINGS.
pub(super) fn put_settings(settings: &[(u16, u32)], into: &mut BytesMut) {
    into.put_slice(
        &Head { bytes: 6 * settings.len(), kind: kind::SETTINGS, flags: 0, stream: 0 }.bytes(),
    );
    for (name, value) in settings {
        into.put_u16(*name);
        into.put_u32(*value);
    }
}

/// Appends the acknowledgement of SETTINGS.
pub(super) fn put_settings_ack(into: &mut BytesMut) {
    put(kind::SETTINGS, flag::ACK, 0, &[], into);
}

/// Appends PING, or the answer to one.
pub(super) fn put_ping(opaque: [u8; 8], is_ack: bool, into: &mut BytesMut) {
    put(kind::PING, if is_ack { flag::ACK } else { 0 }, 0, &opaque, into);
}

/// Appends credit, for a stream or (0) for all of them.
pub(super) fn put_window_update(stream: u32, bytes: u32, into: &mut BytesMut) {
    put(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes(), into);
}

/// Appends RST_STREAM.
pub(super) fn put_reset(stream: u32, reason: Reason, into: &mut BytesMut) {
    put(kind::RST_STREAM, 0, stream, &reason.0.to_be_bytes(), into);
}

/// Appends GOAWAY: streams above `last` were not touched.
pub(super) fn put_goaway(last: u32, reason: Reason, into: &mut BytesMut) {
    let [a, b, c, d] = last.to_be_bytes();
    let [e, f, g, h] = reason.0.to_be_bytes();
    put(kind::GOAWAY, 0, 0, &[a, b, c, d, e, f, g, h], into);
}

/// Appends a block of fields; more than a frame holds goes on in CONTINUATION.
pub(super) fn put_block(stream: u32, block: &[u8], is_end: bool, most: usize, into: &mut BytesMut) {
    let mut chunks = block.chunks(most).peekable();
    let mut kind = kind::HEADERS;
    let mut flags = if is_end { flag::END_STREAM } else { 0 };
    while let Some(chunk) = chunks.next() {
        if chunks.peek().is_none() {
            flags |= flag::END_HEADERS;
        }
        put(kind, flags, stream, chunk, into);
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}
