//! A pod's queries that are not for the mesh: each goes to the resolver that the pod chose.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::at;
use super::world::{self, PATIENCE, PodBox, World};
use crate::config::SameNode;

/// A name that the mesh does not know.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x09elsewhere\x07example\0\0\x01\0\x01";
/// How often two resolvers are asked in turn.
const ROUNDS: usize = 10;

/// The same with this code.
fn answer(query: &[u8], code: u8) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer[2] |= 0x80;
    answer[3] = code;
    answer
}

/// Answers every query with this code, at both addresses of the pod, until the test ends.
fn resolve(pod: &PodBox, code: u8) {
    for ip in [pod.v4, pod.v6] {
        let udp = pod.netns.run(|| UdpSocket::bind(at(ip, 53))).unwrap().unwrap();
        let tcp = pod.netns.run(|| TcpListener::bind(at(ip, 53))).unwrap().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
                udp.send_to(&answer(&buffer[..length], code), peer).unwrap();
            }
        });
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = tcp.accept() {
                let mut query = [0; 2 + QUERY.len()];
                if stream.read_exact(&mut query).is_ok() {
                    let answered = [&query[..2], &answer(&query[2..], code)].concat();
                    let _gone = stream.write_all(&answered);
                }
            }
        });
    }
}

fn socket(pod: &PodBox, ip: IpAddr) -> UdpSocket {
    let socket = pod.netns.run(|| UdpSocket::bind(at(ip, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Asks a resolver; returns the answer's code.
fn ask_udp(socket: &UdpSocket, resolver: SocketAddr) -> u8 {
    socket.send_to(QUERY, resolver).unwrap();
    let mut buffer = [0; 512];
    let (_, from) = socket.recv_from(&mut buffer).expect("an answer in time");
    assert_eq!(from, resolver, "it comes from whom was asked");
    buffer[3] & 0x0f
}

fn ask_tcp(stream: &mut TcpStream) -> u8 {
    let length = (QUERY.len() as u16).to_be_bytes();
    stream.write_all(&[&length[..], QUERY].concat()).unwrap();
    let mut buffer = [0; 2 + QUERY.len()];
    stream.read_exact(&mut buffer).expect("an answer in time");
    buffer[5] & 0x0f
}

in_namespaces! {
    fn each_query_goes_to_the_resolver_that_it_was_sent_to() {
        let world = World::new();
        let proxy = world.proxy(SameNode::Join);
        let mut client = world.pod("client", "c");
        let resolvers = [world.pod("first", "r"), world.pod("second", "r")];
        proxy.enrol(&mut client);
        proxy.serve_dns(&client);
        const CODES: [u8; 2] = [3, 9];
        resolvers.iter().zip(CODES).for_each(|(pod, code)| resolve(pod, code));
        for is_ipv6 in [false, true] {
            let ip = |pod: &PodBox| if is_ipv6 { pod.v6 } else { pod.v4 };
            let addresses = resolvers.each_ref().map(|pod| at(ip(pod), 53));
            // Two processes' sockets, and one socket for both.
            let sockets = addresses.map(|_| socket(&client, ip(&client)));
            let both = socket(&client, ip(&client));
            let mut streams = addresses.map(|it| client.connect(it).unwrap());
            let mut took = Duration::ZERO;
            for round in 0..ROUNDS {
                for (index, resolver) in addresses.into_iter().enumerate() {
                    let (code, about) = (CODES[index], format!("round {round}, {resolver}"));
                    let start = Instant::now();
                    assert_eq!(ask_udp(&sockets[index], resolver), code, "{about}: udp");
                    took += start.elapsed();
                    assert_eq!(ask_udp(&both, resolver), code, "{about}: one socket");
                    assert_eq!(ask_tcp(&mut streams[index]), code, "{about}: tcp");
                    let mut stream = client.connect(resolver).unwrap();
                    assert_eq!(ask_tcp(&mut stream), code, "{about}: a new connection");
                }
            }
            println!("{:?} for each query", took / (2 * ROUNDS as u32));
        }
    }

    fn a_port_that_is_used_again_is_no_memory_of_whom_it_asked() {
        let world = World::new();
        let proxy = world.proxy(SameNode::Join);
        let mut client = world.pod("client", "c");
        let resolvers = [world.pod("first", "r"), world.pod("second", "r")];
        proxy.enrol(&mut client);
        proxy.serve_dns(&client);
        resolvers.iter().zip([3, 9]).for_each(|(pod, code)| resolve(pod, code));
        let first = socket(&client, client.v4);
        let port = first.local_addr().unwrap().port();
        assert_eq!(ask_udp(&first, at(resolvers[0].v4, 53)), 3);
        drop(first);
        let again = client.netns.run(|| UdpSocket::bind(at(client.v4, port))).unwrap().unwrap();
        again.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(ask_udp(&again, at(resolvers[1].v4, 53)), 9);
    }
}
