//! One direction of a captured TCP connection.

use std::net::SocketAddr;

/// One direction of a TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// The port of the side that was connected to.
    pub server_port: u16,
    /// Whether the payload is complete from the first byte on, as far as the capture goes.
    pub complete: bool,
    /// The payload in order.
    pub payload: Vec<u8>,
}
