//! Clients that open more connections than they need.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::world::{HTTP, answer, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Where connections come from that prove nothing.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// Connections of one stranger.
const CONNECTIONS: usize = 400;
/// So many of them may stay without having said anything.
const SILENT: usize = 128;

#[test]
fn a_stranger_keeps_few_connections_and_no_place_of_others() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let mut all = Vec::new();
        for number in 0..CONNECTIONS {
            let mut stream = world.touch(STRANGER).await;
            if number % 2 == 1 {
                // No TLS: an answer would be one that a waypoint must not give.
                let _closed = stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
            }
            all.push(stream);
        }
        world.stays_good().await;
        let (mut open, mut answered) = (0, 0);
        for stream in &mut all {
            let mut came = Vec::new();
            let reading = timeout(Duration::from_millis(20), stream.read_to_end(&mut came));
            open += usize::from(reading.await.is_err());
            answered += usize::from(came.starts_with(b"HTTP/"));
        }
        println!("{CONNECTIONS} connections of a stranger: {open} are open");
        assert!(open <= SILENT, "{open}");
        assert_eq!(answered, 0);
        world.stays_good().await;
    });
}
