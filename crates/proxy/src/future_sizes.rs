//! The sizes of the tasks that live as long as a connection.
//!
//! Each connection has one of them, so ten thousand connections have ten thousand. A value that is
//! held across an `.await` makes a task larger without a trace in the code. The bounds are what was
//! measured plus a tenth: 3936 bytes outbound, 5216 inbound, 1856 in plain text, and 3184 of a
//! tunnel.

use std::net::SocketAddr;
use std::rc::Rc;

use ambit_dataplane::descriptors::Permit;
use ambit_dataplane::own::Served;
use tokio::net::TcpStream;

use crate::thread::Thread;
use crate::{inbound, outbound, plaintext};

/// The size of the future that a direction makes of an accepted connection.
fn size_bytes<F>(
    _serve: impl Fn(Rc<Thread>, Rc<Served>, TcpStream, SocketAddr, Permit) -> F,
) -> usize {
    size_of::<F>()
}

#[track_caller]
pub(crate) fn check(name: &str, bytes: usize, most: usize) {
    println!("{name}: {bytes} bytes");
    assert!(bytes <= most, "{name}: {bytes} bytes; at most {most}: what does it hold that is new?");
}

#[test]
fn a_connection_is_a_small_task() {
    check("outbound::serve", size_bytes(outbound::serve), 4330);
    check("inbound::serve", size_bytes(inbound::serve), 5740);
    check("plaintext::serve", size_bytes(plaintext::serve), 2040);
}
