//! A tunnel that is read and written as a stream of bytes.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Hop, on_one_thread, reset};

/// More than the windows hold, so that both sides wait for one another.
const MANY: usize = 8 << 20;

#[test]
fn a_tunnel_is_a_stream_of_bytes_with_an_end_on_each_side() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let (mut tunnel, mut server) = hop.tunnel().await;
        tunnel.write_all(b"question").await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut asked = String::new();
        server.read_to_string(&mut asked).await.unwrap();
        assert_eq!(asked, "question");
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answered = String::new();
        tunnel.read_to_string(&mut answered).await.unwrap();
        assert_eq!(answered, "answer");
    });
}

#[test]
fn more_than_a_window_goes_both_ways_at_once() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let (tunnel, mut server) = hop.tunnel().await;
        let (mut reads, mut writes) = tokio::io::split(tunnel);
        let (mut server_reads, mut server_writes) = server.split();
        let sent: Vec<u8> = (0..MANY).map(|number| (number % 251) as u8).collect();
        let (mut came, mut returned) = (Vec::new(), Vec::new());
        let asking = async {
            writes.write_all(&sent).await.unwrap();
            writes.shutdown().await.unwrap();
        };
        let answering = async {
            server_writes.write_all(&sent).await.unwrap();
            server_writes.shutdown().await.unwrap();
        };
        let (ours, theirs, (), ()) = tokio::join!(
            reads.read_to_end(&mut returned),
            server_reads.read_to_end(&mut came),
            asking,
            answering
        );
        assert_eq!((ours.unwrap(), theirs.unwrap()), (MANY, MANY));
        assert!(came == sent && returned == sent, "the same bytes in the same order");
    });
}

#[test]
fn an_end_that_breaks_is_an_error_and_no_end_of_the_stream() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let (mut tunnel, server) = hop.tunnel().await;
        reset(server);
        let error = tunnel.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}
