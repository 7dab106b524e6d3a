//! Connections that are no HTTP: what is counted of them.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::net::TcpStream;

use super::world::{UNDECLARED, run, until};

/// What no HTTP begins with.
const BYTES: &[u8] = b"\0\x01hello";

/// A server that sends back what it is sent.
async fn echo(stream: TcpStream) {
    let (mut from, mut to) = split(stream);
    let _broken = copy(&mut from, &mut to).await;
}

#[test]
fn a_connection_that_lasts_is_counted_while_it_lasts() {
    run(&[], async |world| {
        world.serve(UNDECLARED, echo);
        let of = |metric: &str| {
            let metric = format!("istio_tcp_{metric}_total{{reporter=\"waypoint\"");
            world.sum(&metric, "destination_service=\"web.app.svc.cluster.local\"")
        };
        let mut client = world.connect(UNDECLARED).await;
        let mut said = [0; BYTES.len()];
        for _ in 0..2 {
            client.write_all(BYTES).await.unwrap();
            client.read_exact(&mut said).await.unwrap();
        }
        assert_eq!(said, BYTES);
        let bytes = 2.0 * BYTES.len() as f64;
        assert_eq!((of("received_bytes"), of("sent_bytes")), (bytes, bytes));
        assert_eq!((of("connections_opened"), of("connections_closed")), (1.0, 0.0));
        client.shutdown().await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        drop(client);
        until("the connection has ended", || of("connections_closed") == 1.0).await;
        world.stays_good().await;
    });
}
