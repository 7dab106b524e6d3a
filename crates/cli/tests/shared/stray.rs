//! An attacker with its own address: a stray TCP segment, then a connection from the same port. The
//! answer on that connection shows whether the segment opened a way past capture.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use ambit_net::namespace::NetNs;
use socket2::{Domain, Protocol, Socket, Type};

/// Longest that an answer may take; what is dropped has none.
const PATIENCE: Duration = Duration::from_secs(2);
/// TCP-MD5: a socket without a key drops such a segment and answers nothing.
const MD5: [u8; 20] = [1, 1, 19, 18, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

/// Segments that connection tracking may take for a part of a connection, or that say nothing else.
pub(crate) const WAYS: [(&str, u8); 5] = [
    ("bare ACK", 0x10),
    ("PSH+ACK", 0x18),
    ("URG+ACK", 0x30),
    ("SYN+ACK first", 0x12),
    ("FIN+ACK first", 0x11),
];

/// Tries every way to an HTTP server, from a namespace (needs root), each from a port of its own
/// from `port` on; says what each was answered.
pub(crate) fn try_all(netns: &NetNs, to: SocketAddr, port: u16) -> Vec<(String, String)> {
    let attempts = WAYS.iter().zip(port..);
    let version = if to.is_ipv6() { "V6" } else { "V4" };
    let attempt = |((name, flags), port): (&(&str, u8), u16)| {
        let answer = netns.run(|| try_one(*flags, to, port)).expect("enter the namespace");
        let answer = answer.unwrap_or_else(|error| error.to_string());
        (format!("{name}, {version}, across nodes, inbound"), answer)
    };
    attempts.map(attempt).collect()
}

fn try_one(flags: u8, to: SocketAddr, port: u16) -> std::io::Result<String> {
    let any: SocketAddr = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().expect("any");
    let route = UdpSocket::bind(any)?;
    route.connect(to)?;
    let from = SocketAddr::new(route.local_addr()?.ip(), port);
    let domain = Domain::for_address(to);
    let raw = Socket::new(domain, Type::RAW, Some(Protocol::TCP))?;
    raw.bind(&SocketAddr::new(from.ip(), 0).into())?;
    raw.send_to(&segment(from, to, flags), &SocketAddr::new(to.ip(), 0).into())?;

    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = [0; 256];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).lines().next().unwrap_or_default().to_owned())
}

fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend([0, 0, 3, 232, 0, 0, 7, 208, 10 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(MD5);
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let length = u8::try_from(segment.len()).expect("a header");
    let summed = [octets(from.ip()), octets(to.ip()), vec![0, 6, 0, length], segment.clone()];
    let mut sum: u32 =
        summed.concat().chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).expect("folded");
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}
