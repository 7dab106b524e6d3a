//! The name in a client's TLS handshake, read before the connection is passed on.
//!
//! Only where somebody asks for it: a server that speaks first must not wait for a client that
//! waits for it.

use std::time::Duration;

use ambit_http::engine::halves::BoxStream;
use ambit_tls::client_hello::{ClientHello, client_hello};
use bytes::BytesMut;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

/// How long a client of a port of TLS has for its first message.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerName {
    /// Nobody has looked, or the message cannot be read, or did not come in time.
    Unknown,
    /// It names this host, in lower case; or it names none, or is no TLS.
    Known(Option<String>),
}

impl ServerName {
    /// The host that it names.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Self::Unknown => None,
            Self::Known(name) => name.as_deref(),
        }
    }
}

/// Reads the name. What is read is added to `first`, which was read before.
pub(crate) async fn server_name(
    stream: &mut BoxStream,
    first: &mut BytesMut,
    limit: Duration,
) -> ServerName {
    let reading = async {
        loop {
            match client_hello(first) {
                ClientHello::More => {}
                ClientHello::Other => return ServerName::Known(None),
                ClientHello::Whole(name) => return ServerName::Known(name),
                ClientHello::Unreadable => return ServerName::Unknown,
            }
            match stream.read_buf(first).await {
                Ok(0) | Err(_) => return ServerName::Unknown,
                Ok(_) => {}
            }
        }
    };
    timeout(limit, reading).await.unwrap_or(ServerName::Unknown)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// A hello without extensions.
    fn hello() -> Vec<u8> {
        let mut hello = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
        hello.extend([7; 32]);
        hello.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        hello
    }

    /// What is known after these pieces, and the bytes that were read.
    async fn read(pieces: &[&[u8]], is_closed: bool) -> (ServerName, Vec<u8>) {
        let (mut client, server) = duplex(1 << 16);
        for piece in pieces {
            client.write_all(piece).await.expect("there is room");
        }
        let kept = (!is_closed).then_some(client);
        let (mut stream, mut first) = (Box::new(server) as BoxStream, BytesMut::new());
        let name = server_name(&mut stream, &mut first, HELLO_TIMEOUT).await;
        drop(kept);
        (name, first.to_vec())
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_client_that_says_nothing_or_not_enough() {
        let whole = hello();
        for (bytes, is_closed, expected) in [
            (&whole[..], false, ServerName::Known(None)),
            (b"EHLO me\r\n", false, ServerName::Known(None)),
            (b"", false, ServerName::Unknown),
            (&whole[..20], false, ServerName::Unknown),
            (&whole[..20], true, ServerName::Unknown),
            (b"\x16\x03\x01\0\0", false, ServerName::Unknown),
        ] {
            let (name, first) = read(&[bytes], is_closed).await;
            assert_eq!(name, expected, "{bytes:?}");
            assert_eq!(first, bytes, "what was read is passed on");
        }
    }
}
