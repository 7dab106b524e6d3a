//! Other implementations of HTTP/2 as the other end: h2, which ztunnel and hyper are built on.

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::spawn_local;

use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, HboneError, Settings, Transport, serve};

use crate::on_one_thread;

/// More than all windows together, and not a whole number of frames.
const BULK_BYTES: usize = 3_333_333;

fn bulk() -> Vec<u8> {
    (0..BULK_BYTES).map(|number| (number * 31 % 251) as u8).collect()
}

/// Sends all of it, as windows allow, and ends.
async fn say(mut stream: SendStream<Bytes>, bytes: Vec<u8>) {
    let mut rest = Bytes::from(bytes);
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
        stream.send_data(rest.split_to(room), false).unwrap();
    }
    stream.send_data(Bytes::new(), true).unwrap();
}

async fn hear(mut stream: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece.unwrap();
        stream.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    all
}

/// Our server on a stream: sends everything back, and refuses port 2.
fn our_server(far: DuplexStream, drain: &Drain) {
    let guard = drain.guard();
    drain.guard().spawn_local(async move {
        let transport = Transport::new(far);
        let activity = transport.activity();
        let each = |connect: ambit_net::hbone::Connect| {
            if connect.uri().port_u16() == Some(2) {
                return connect.refuse(StatusCode::UNAUTHORIZED).unwrap();
            }
            let mut tunnel = connect.accept(HeaderMap::new()).unwrap();
            spawn_local(async move {
                let mut all = Vec::new();
                tunnel.read_to_end(&mut all).await.unwrap();
                tunnel.write_all(&all).await.unwrap();
                tunnel.shutdown().await.unwrap();
            });
        };
        serve(transport, activity, &Settings::default(), &guard, each).await.unwrap();
    });
}

fn connect(target: &str) -> Request<()> {
    Request::builder().method(Method::CONNECT).uri(target).body(()).unwrap()
}

#[test]
fn h2_opens_tunnels_to_us() {
    on_one_thread(async {
        let (near, far) = duplex(1 << 16);
        let drain = Drain::new();
        our_server(far, &drain);
        let (mut client, connection) = h2::client::handshake(near).await.unwrap();
        let driven = spawn_local(connection);
        let (answer, stream) = client.send_request(connect("10.0.0.1:1"), false).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let (heard, ()) = tokio::join!(hear(answer.into_body()), say(stream, bulk()));
        assert!(heard == bulk());
        let (refused, _stream) = client.send_request(connect("10.0.0.1:2"), false).unwrap();
        assert_eq!(refused.await.unwrap().status(), StatusCode::UNAUTHORIZED);
        // Asked to leave, it opens no more streams, and the connection ends.
        drain.start(None);
        driven.await.unwrap().unwrap();
        drain.finished().await;
    });
}

#[test]
fn we_open_tunnels_to_h2() {
    on_one_thread(async {
        let (near, far) = duplex(1 << 16);
        spawn_local(async move {
            let mut builder = h2::server::Builder::new();
            builder.max_concurrent_streams(2).initial_window_size(20_000);
            let mut connection = builder.handshake::<_, Bytes>(far).await.unwrap();
            while let Some(request) = connection.accept().await {
                let (request, mut respond) = request.unwrap();
                spawn_local(async move {
                    if request.uri().port_u16() == Some(2) {
                        let refusal = Response::builder().status(401).body(()).unwrap();
                        respond.send_response(refusal, true).unwrap();
                        return;
                    }
                    let stream = respond.send_response(Response::new(()), false).unwrap();
                    let all = hear(request.into_body()).await;
                    say(stream, all).await;
                });
            }
        });
        let drain = Drain::new();
        let transport = Transport::new(near);
        let activity = transport.activity();
        let client = Client::start(transport, activity, &Settings::default(), &drain.guard());
        let carry = async || {
            let (_, mut tunnel) = client.connect(connect("10.0.0.1:1")).await.unwrap();
            tunnel.write_all(&bulk()).await.unwrap();
            tunnel.shutdown().await.unwrap();
            let mut all = Vec::new();
            tunnel.read_to_end(&mut all).await.unwrap();
            assert!(all == bulk());
        };
        carry().await;
        // It takes two at once: the third waits until one of them has ended.
        tokio::join!(carry(), carry(), carry());
        let refused = client.connect(connect("10.0.0.1:2")).await.err();
        assert!(matches!(refused, Some(HboneError::Refused(StatusCode::UNAUTHORIZED))));
        drop(client);
        drain.finished().await;
    });
}
