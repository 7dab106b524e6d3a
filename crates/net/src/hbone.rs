//! HBONE: TCP connections as HTTP/2 CONNECT streams inside mutual TLS.
//!
//! A [`Client`] opens tunnels over one TLS stream, [`serve`] accepts them; both run on the thread
//! they were started on and are kept alive by PING. `ambit_wire` knows what the headers mean, the
//! roles decide who may connect: here are only streams, windows and limits.

use std::time::Duration;

use crate::copy::READ_BYTES;
pub use crate::ended::Ended;
use crate::memory::Accounts;

mod client;
mod credit;
mod driver;
mod early;
mod keepalive;
mod link;
mod place;
mod server;
mod stream;
mod transport;
mod tunnel;
mod waiting;

pub use client::Client;
pub use early::Early;
pub use server::{Connect, serve};
pub use transport::{Activity, Transport};
pub use tunnel::Tunnel;

/// Streams a peer may have open on one connection to us.
pub const MAX_SERVER_STREAMS: u32 = 200;
/// All header fields of one request, decoded (server).
pub(crate) const MAX_REQUEST_HEADER_BYTES: u32 = 64 * 1024;
/// All header fields of one response, decoded (client).
pub(crate) const MAX_RESPONSE_HEADER_BYTES: u32 = 16 * 1024;
/// Bytes that may wait for the transport, of one stream and of all of them together; beyond them no
/// source is read. Whole reads, so that no small rest of room makes for small reads.
const MAX_SEND_BUFFER_BYTES: usize = 2 * READ_BYTES;

/// Windows and frame size of HTTP/2, those of both directions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What one stream may send before the receiver's application has taken it, at most.
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together, at most.
    pub connection_window_bytes: u32,
    /// The largest frame that is accepted. A frame is received whole before it is passed on.
    pub frame_size_bytes: u32,
    /// The accounts of the connection's owners; its windows follow what is left of them.
    pub accounts: Accounts,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 64 << 20,
            frame_size_bytes: 64 << 10,
            accounts: Accounts::default(),
        }
    }
}

/// Why an HBONE connection or a tunnel in it could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HboneError {
    /// The peer speaks TLS but no HTTP/2.
    #[error("the HTTP/2 handshake failed")]
    Handshake(#[source] Ended),
    /// The peer speaks TLS and then nothing.
    #[error("the peer did not begin with HTTP/2 within {} s", .0.as_secs())]
    Silent(Duration),
    /// The connection takes no new tunnels; another one may.
    #[error("the HBONE connection is being closed")]
    Closing(#[source] Ended),
    /// The tunnel broke before the peer answered.
    #[error("the HBONE connection broke before the tunnel was accepted")]
    Broken(#[source] Ended),
    /// The client broke before the peer was asked.
    #[error("the client's connection broke before there was a tunnel")]
    Client(#[source] std::io::Error),
    /// The peer answered, but not with 200.
    #[error("the peer refused the tunnel with status {0}")]
    Refused(http::StatusCode),
}

impl HboneError {
    /// What the transport said, if it was the transport that failed.
    pub fn transport(&self) -> Option<&std::io::Error> {
        match self {
            Self::Handshake(Ended::Transport(error))
            | Self::Closing(Ended::Transport(error))
            | Self::Broken(Ended::Transport(error)) => Some(error),
            _ => None,
        }
    }
}
