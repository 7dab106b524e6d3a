//! Connections that are no HTTP: what is counted of them, and how many there may be.

use ambit_model::http::service::Traffic;
use ambit_model::http::traffic::{Limits, TrafficPolicy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::net::TcpStream;

use super::world::{UNDECLARED, World, run, until};

/// What no HTTP begins with.
const BYTES: &[u8] = b"\0\x01hello";

/// A server that sends back what it is sent.
async fn echo(stream: TcpStream) {
    let (mut from, mut to) = split(stream);
    let _broken = copy(&mut from, &mut to).await;
}

/// How many connections came to nothing for this reason.
fn refused(world: &World, reason: &str) -> f64 {
    let reporter = "ambit_refusals_total{reporter=\"waypoint\"";
    world.sum(reporter, &format!("reason=\"{reason}\""))
}

#[test]
fn no_more_connections_pass_than_there_may_be() {
    run(&[], async |world| {
        world.serve(UNDECLARED, echo);
        let limits = Limits { connections: Some(2), ..Limits::default() };
        let all = TrafficPolicy { limits, ..TrafficPolicy::default() };
        world.change_http(|http| http.traffic = Traffic { all, ..Traffic::default() });
        let mut clients = Vec::new();
        for _ in 0..2 {
            let mut client = world.connect(UNDECLARED).await;
            client.write_all(BYTES).await.unwrap();
            client.read_exact(&mut [0; BYTES.len()]).await.unwrap();
            clients.push(client);
        }
        assert_eq!(world.ask(UNDECLARED, BYTES).await, "", "a third is cut");
        assert_eq!(refused(world, "overflow"), 1.0);
        let overflowed = world.sum("istio_tcp_connections_failed_total", "response_flags=\"UO\"");
        assert_eq!(overflowed, 1.0);
        // Another port has its own.
        world.stays_good().await;
        clients.clear();
        let closed = || world.sum("istio_tcp_connections_closed_total", "reporter=\"waypoint\"");
        until("both have ended", || closed() == 2.0).await;
        assert_eq!(world.ask(UNDECLARED, BYTES).await.as_bytes(), BYTES);
    });
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
