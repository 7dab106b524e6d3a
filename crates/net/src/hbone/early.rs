//! What a client has said before its tunnel is there, sent along with the CONNECT.
//!
//! It saves a connection the round trip between the proxies. The bytes stay in the client's socket:
//! what copies them later reads them there, and the tunnel leaves out as many as were sent. So
//! whoever gives up this tunnel has lost nothing, and may ask another proxy, as long as this one
//! has surely not passed them on: see [`Early::is_spent`].

use std::cell::Cell;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;

use crate::sys::socket_option;

/// So much of it at most: a request with its head. What is longer gains nothing.
const MAX_BYTES: usize = 4096;
/// A peer that has answered within this is believed to be there. Any other could be gone without a
/// word, and would take the bytes to where nobody knows whether they arrived.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// What a client has said before its tunnel is there.
#[derive(Debug)]
pub struct Early<'a> {
    client: &'a TcpStream,
    is_spent: Cell<bool>,
}

impl<'a> Early<'a> {
    /// Of a client whose bytes nobody has read yet.
    pub fn of(client: &'a TcpStream) -> Self {
        Self { client, is_spent: Cell::new(false) }
    }

    /// Whether a proxy got the bytes and did not say that it has let go of them: it may have passed
    /// them on, so no other may get them.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    pub(super) fn set_spent(&self, is_spent: bool) {
        self.is_spent.set(is_spent);
    }

    /// The first bytes, as many as are there now; none when the client waits for the server's first
    /// word. An error is one of the client's connection, and the kernel reports it once.
    pub(super) fn look(&self) -> io::Result<Bytes> {
        let mut room = [0; MAX_BYTES];
        match socket_option::peek(self.client, &mut room) {
            Ok(bytes) => Ok(Bytes::copy_from_slice(&room[..bytes])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }
}
