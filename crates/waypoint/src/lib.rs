//! Role: the layer-7 proxy. Until layer 7 exists its pod is ready and serves nothing: what must
//! pass a waypoint is refused.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener};
use std::time::Duration;

use ambit_words::ports::PROXY_READINESS;

/// How long a probe may take to ask.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// What a probe sends at most.
const PROBE_SIZE_BYTES: usize = 1024;

/// Answers probes until the process is ended.
///
/// # Errors
/// The port of probes cannot be opened.
pub fn run() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PROXY_READINESS))?;
    for connection in listener.incoming() {
        // One probe that fails is its own affair.
        let _answered = connection.and_then(|mut connection| {
            connection.set_read_timeout(Some(PROBE_TIMEOUT))?;
            let _asked = connection.read(&mut [0; PROBE_SIZE_BYTES])?;
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        });
    }
    Ok(())
}
