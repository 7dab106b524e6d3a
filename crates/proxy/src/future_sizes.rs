//! The sizes of what lives as long as a connection.
//!
//! Ten thousand connections have it ten thousand times. A value that is held across an `.await`
//! makes a task larger without a trace in the code. The bounds are what was measured plus a tenth:
//! 4456 bytes for a connection that brings tunnels, and for what carries a connection 600 bytes
//! between two sockets and 584 between a socket and a tunnel.

use std::net::SocketAddr;
use std::rc::Rc;

use ambit_dataplane::connections::Entered;
use ambit_dataplane::descriptors::Permit;
use ambit_dataplane::own::Served;
use ambit_dataplane::record::{Record, Tally};
use ambit_net::copy::{End, SocketEnd};
use ambit_net::hbone::Tunnel;
use tokio::net::TcpStream;

use crate::thread::Thread;
use crate::{inbound, outbound, phases, plaintext};

/// The size of the future that a direction makes of an accepted connection.
fn of_task<F>(
    _serve: impl Fn(Rc<Thread>, Rc<Served>, TcpStream, SocketAddr, Permit) -> F,
) -> usize {
    size_of::<F>()
}

/// The size of what carries a connection between two ends.
fn of_carrying<C: End, S: End, F>(
    _carry: impl Fn(Entered, (C, S), Vec<Record>, &'static Tally, Permit) -> F,
) -> usize {
    size_of::<F>()
}

#[track_caller]
fn check(name: &str, bytes: usize, most: usize) {
    println!("{name}: {bytes} bytes");
    assert!(bytes <= most, "{name}: {bytes} bytes; at most {most}: what does it hold that is new?");
}

#[test]
fn a_connection_is_a_small_task() {
    check("outbound::serve", of_task(outbound::serve), 32);
    check("plaintext::serve", of_task(plaintext::serve), 32);
    check("inbound::serve", of_task(inbound::serve), 4900);
    check("carry, joined", of_carrying::<SocketEnd, SocketEnd, _>(phases::carry), 660);
    check("carry, tunnel", of_carrying::<SocketEnd, Tunnel, _>(phases::carry), 640);
}
