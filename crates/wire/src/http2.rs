//! HTTP/2 for tunnels (RFC 9113): one connection as a state machine without I/O.
//!
//! HBONE needs streams of CONNECT and nothing else, so there is no push, no priority and no field
//! table of our own. [`Session`] takes the peer's bytes and returns [`Event`]s. What it has to say
//! itself waits in [`Session::take_output`]. The payload of DATA passes beside it: it says how much
//! may be sent and gives each frame's head, and never copies or holds a byte of it.
//!
//! ```text
//!   peer's bytes --> next() --> Event        a tunnel, or its other end
//!   transport    <-- take_output()           SETTINGS, HEADERS, credit, PING, RST_STREAM, GOAWAY
//!   transport    <-- data() + payload        DATA, whose payload never passes here
//! ```
//!
//! The order matters in one place: what [`Session::take_output`] has goes before a frame whose head
//! [`Session::data`] makes later, since HEADERS open the stream that the frame is of.
//!
//! | a peer may | bound |
//! |---|---|
//! | open streams | [`Limits::streams`]; with those that have ended, twice as many |
//! | be refused streams, or send malformed requests | 1,000 in a row |
//! | send fields | [`Limits::field_bytes`] in at most 64 frames |
//! | send frames that are answered | 64 KiB of answers that nobody has taken |
//! | send empty DATA | 100 in a row |
//! | hold our side up with its window | as long as it likes: nothing is queued for a window |
//!
//! It is strict. What the RFC calls an error of the connection is a [`Fault`], and ends it. Every
//! peer may cost no more than its [`Limits`]: streams count until our side has let go of them, a
//! block of fields and the answers that wait have bounds, and so has a row of empty frames.

mod frame;
mod head;
mod hpack;
mod reading;
mod session;
mod windows;

#[cfg(test)]
mod tests;

pub use head::{Request, Response};
pub use session::{Event, Session};

use std::fmt;

/// Why a stream or a connection ends (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// In good order.
    pub const NO_ERROR: Self = Self(0);
    /// The peer breaks the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// The peer sends more than its window.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame on a stream that has ended.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame has a wrong size.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// Nothing was done with the stream; it may be opened again.
    pub const REFUSED_STREAM: Self = Self(7);
    /// Nobody wants the stream any more.
    pub const CANCEL: Self = Self(8);
    /// A block of fields cannot be read.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The connection that a CONNECT asked for broke.
    pub const CONNECT_ERROR: Self = Self(10);
    /// The peer costs too much.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "error {:#x}", self.0),
        }
    }
}

/// The peer broke the protocol, or a bound: the connection ends with GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {what}")]
pub struct Fault {
    /// What GOAWAY says.
    pub reason: Reason,
    /// What the peer did.
    pub what: &'static str,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Client,
    /// Accepts them.
    Server,
}

/// What the peer may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams that it may have open at once (server).
    pub streams: u32,
    /// Payload of a frame, 16,384 at least.
    pub frame_bytes: u32,
    /// Fields of a head, with 32 bytes for each.
    pub field_bytes: u32,
    /// The window that a stream begins with.
    pub stream_window_bytes: u32,
}
