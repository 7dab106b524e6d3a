//! Clients that give up while their server reads nothing leave nothing behind.

use std::time::Duration;

use crate::{Hop, Joined, in_simulated_time, joined_by_sockets, on_one_thread, reset};
use ambit_net::copy::{CopyError, MAX_STANDSTILL};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Clients that fill up and give up.
const CLIENTS: usize = 60;
/// A flow whose client is gone ends within this time, of the machine's clock.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends until nothing more is taken for a while.
async fn fill(client: &mut TcpStream) {
    let bytes = vec![7; 256 << 10];
    while timeout(Duration::from_millis(100), client.write_all(&bytes)).await.is_ok() {}
}

async fn all_end_with(joined: Vec<Joined>, leave: impl AsyncFn(TcpStream)) {
    let mut left = Vec::new();
    for Joined { mut client, server, ended, .. } in joined {
        fill(&mut client).await;
        leave(client).await;
        left.push((server, ended));
    }
    for (mut server, ended) in left {
        let ended = timeout(PATIENCE, ended).await.expect("it ends although nothing is read");
        let error = ended.unwrap().unwrap_err();
        assert!(matches!(error, CopyError::Client(_)), "{error:?}");
        // The application sees a reset, be it behind bytes that have arrived.
        let rest = timeout(PATIENCE, server.read_to_end(&mut Vec::new())).await;
        assert!(rest.expect("told").is_err());
    }
}

async fn sockets() -> Vec<Joined> {
    let mut joined = Vec::new();
    for _ in 0..CLIENTS {
        joined.push(joined_by_sockets().await);
    }
    joined
}

async fn tunnels(hop: &Hop) -> Vec<Joined> {
    let mut joined = Vec::new();
    for _ in 0..CLIENTS {
        joined.push(hop.joined().await);
    }
    joined
}

#[test]
fn a_reset_is_noticed_though_the_server_reads_nothing() {
    on_one_thread(async { all_end_with(sockets().await, async |client| reset(client)).await });
}

#[test]
fn a_reset_is_noticed_through_a_tunnel_though_the_server_reads_nothing() {
    on_one_thread(async {
        let hop = Hop::new().await;
        all_end_with(tunnels(&hop).await, async |client| reset(client)).await;
    });
}

/// A client that has said its last word waits for an answer, however long it takes.
#[test]
fn a_half_closed_client_is_served_on() {
    async fn check(joined: Joined) {
        let Joined { mut client, mut server, ended, .. } = joined;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = Vec::new();
        server.read_to_end(&mut question).await.unwrap();
        for _ in 0..5 {
            sleep(MAX_STANDSTILL).await;
            server.write_all(b"x").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'x');
            assert!(!ended.is_finished());
        }
        sleep(3 * MAX_STANDSTILL).await;
        server.write_all(b"answer").await.unwrap();
        server.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        ended.await.unwrap().unwrap();
    }
    in_simulated_time(async { check(joined_by_sockets().await).await });
}

/// Sends until the flow stalls, with no timer. The last bytes still fit in the proxy's kernel, so a
/// FIN behind them arrives.
async fn fill_up(joined: &mut Joined) {
    let bytes = [7; 8 << 10];
    loop {
        let moved = joined.flow.to_server();
        joined.client.try_write(&bytes).unwrap();
        for _ in 0..200 {
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_micros(50));
            if joined.flow.to_server() > moved {
                break;
            }
        }
        if joined.flow.to_server() == moved {
            return;
        }
    }
}

/// Its last bytes are taken by nobody.
#[test]
fn a_client_that_has_closed_does_not_wait_for_ever() {
    in_simulated_time(async {
        let mut joined = joined_by_sockets().await;
        fill_up(&mut joined).await;
        joined.client.shutdown().await.unwrap();
        sleep(MAX_STANDSTILL / 2).await;
        assert!(!joined.ended.is_finished(), "a slow server has time");
        let ended = timeout(2 * MAX_STANDSTILL, joined.ended).await.expect("it ends");
        assert!(matches!(ended.unwrap(), Err(CopyError::Standstill)));
    });
}

#[test]
fn a_slow_server_of_an_open_client_has_all_the_time() {
    in_simulated_time(async {
        let mut joined = joined_by_sockets().await;
        fill_up(&mut joined).await;
        sleep(5 * MAX_STANDSTILL).await;
        assert!(!joined.ended.is_finished(), "the client has not closed");
    });
}
