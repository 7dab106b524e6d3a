//! The stream of a WorkloadEntry's computer: what it gets, and when it ends.

use std::sync::Arc;
use std::time::Duration;

use ambit_net::drain::Drain;
use ambit_net::grpc::messages::{Limit, framed};
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::xds::node::ProxyNode;
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::body::Body;
use tonic::transport::server::Connected as _;

use super::*;
use crate::entry_callers::testing::{Bed, LIFE, headers};
use crate::listener::{self, Connection, Security};

/// A mesh with one WorkloadEntry, and discovery for it.
struct Mesh {
    bed: Bed,
    discovery: Discovery,
    drain: Drain,
}

/// A client's side of its stream.
struct Client {
    asks: mpsc::Sender<Bytes>,
    answers: Responses,
    _place: Option<Place>,
}

fn mesh() -> Mesh {
    let (bed, drain) = (Bed::new(), Drain::new());
    bed.put("shop", "vm", "1", "web");
    let discovery = Discovery {
        world: bed.world.clone(),
        authentication: Some(bed.authentication.clone()),
        clients: Arc::default(),
        metrics: Arc::new(Metrics::new()),
        turns: Turns::default(),
        streams: Streams::default(),
        guard: drain.guard(),
        spread: Duration::ZERO,
    };
    Mesh { bed, discovery, drain }
}

impl Mesh {
    async fn client(&self, token: &str, entry: Option<&str>, remote: Option<Remote>) -> Client {
        let (asks, asked) = mpsc::channel::<Bytes>(16);
        let frames = ReceiverStream::new(asked).map(|it| Ok::<_, Status>(Frame::data(it)));
        let limit = Limit { bytes: usize::MAX, fields: usize::MAX, nested: &[] };
        let body = Body::new(StreamBody::new(frames));
        let requests = Messages::of_request(&HeaderMap::new(), body, limit).expect("a stream");
        let followed = self.discovery.follow(headers(token, entry), requests, remote).await;
        let (answers, _place) = followed.expect("it may call");
        Client { asks, answers, _place }
    }

    async fn computer(&self, life: Duration) -> Client {
        let token = self.bed.token("shop", "web", None, life);
        self.client(&token, Some("vm"), None).await
    }
}

impl Client {
    async fn ask(&self, request: DeltaDiscoveryRequest) {
        self.asks.send(framed(&request)).await.expect("it is read");
    }

    async fn subscribe(&self, kind: ResourceType) {
        let type_url = kind.url().to_owned();
        self.ask(DeltaDiscoveryRequest { type_url, ..DeltaDiscoveryRequest::default() }).await;
    }

    async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        self.answers.recv().await.expect("an answer")
    }

    async fn acknowledge(&self, answer: &DeltaDiscoveryResponse) {
        self.ask(DeltaDiscoveryRequest {
            type_url: answer.type_url.clone(),
            response_nonce: answer.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }
}

/// A connection to a port of ours, and its client's side.
pub(super) async fn connection(drain: &Drain) -> (Connection, TcpStream) {
    let bound = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = bound.local_addr().expect("an address");
    let mut established = listener::accept(bound, Security::Plain, 1024, drain.guard());
    let client = TcpStream::connect(address).await.expect("connected");
    (established.recv().await.expect("one").expect("good"), client)
}

#[tokio::test(start_paused = true)]
async fn a_computer_gets_what_a_nodes_proxy_gets_and_is_none() {
    let mesh = mesh();
    let node = mesh.bed.token("mesh", "node", None, LIFE);
    let mut node = mesh.client(&node, None, None).await;
    let mut computer = mesh.computer(LIFE).await;
    for kind in [ResourceType::Address, ResourceType::Authorization] {
        let mut told = Vec::new();
        for client in [&mut node, &mut computer] {
            // Whatever it says of itself.
            let node = Some(Node::from(ProxyNode {
                ip: "172.18.0.11".parse().expect("an address"),
                pod: "proxy".to_owned(),
                namespace: "mesh".to_owned(),
                node: "node-1".to_owned(),
                metadata: std::collections::BTreeMap::new(),
            }));
            let type_url = kind.url().to_owned();
            client.ask(DeltaDiscoveryRequest { node, type_url, ..Default::default() }).await;
            told.push(client.next().await.expect("it is served").resources);
        }
        assert_eq!(told[0], told[1], "{kind:?}");
        assert!(!told[0].is_empty(), "{kind:?}");
    }
    // Neither has acknowledged anything; only nodes are waited for.
    let resources = mesh.discovery.world.resources().borrow().clone();
    let status = mesh.discovery.clients.sync_status(&resources);
    let shown: Vec<&str> = status.clients.iter().map(|client| &*client.node).collect();
    assert_eq!(shown, ["node-1", "workload entry shop/vm"]);
    assert_eq!(mesh.discovery.clients.nodes(), ["node-1"]);
    let behind = mesh.discovery.clients.behind(&resources);
    assert_eq!(
        behind,
        ["node-1: its proxy has not acknowledged the newest authorization resources"]
    );
    // What a gateway serves is none of its business.
    computer.subscribe(ResourceType::Certificate).await;
    assert_eq!(computer.next().await.expect_err("no keys").code(), Code::PermissionDenied);
}

/// How a stream ends when `change` happens while a request of the client is there, too.
async fn check(change: impl Fn(&Bed), expected: &str) {
    // Which of the two is seen first is left to chance.
    for _ in 0..32 {
        let mesh = mesh();
        let mut computer = mesh.computer(LIFE).await;
        computer.subscribe(ResourceType::Address).await;
        let answer = computer.next().await.expect("it is served");
        computer.subscribe(ResourceType::Authorization).await;
        let _ = computer.next().await.expect("it is served");
        // The stream owes the change of another workload as well.
        mesh.bed.put("shop", "other", "9", "db");
        change(&mesh.bed);
        computer.acknowledge(&answer).await;
        let status = computer.next().await.expect_err("nothing more is sent");
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert!(status.message().contains(expected), "{status}");
        assert!(computer.answers.recv().await.is_none(), "it was the last");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_entry() {
    check(|bed| bed.delete("shop", "vm"), "no WorkloadEntry shop/vm").await;
    check(|bed| bed.put("shop", "vm", "1", "db"), "is db, the token's is web").await;
    let again = |bed: &Bed| {
        bed.delete("shop", "vm");
        bed.put("shop", "vm", "2", "web");
    };
    check(again, "deleted and made again").await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_while_its_entry_changes_otherwise() {
    let mesh = mesh();
    let mut computer = mesh.computer(LIFE).await;
    computer.subscribe(ResourceType::Address).await;
    let answer = computer.next().await.expect("it is served");
    computer.acknowledge(&answer).await;
    mesh.bed.put("shop", "vm", "1", "web");
    mesh.bed.put("shop", "other", "9", "db");
    let answer = computer.next().await.expect("it is served");
    assert_eq!(answer.resources.len(), 1, "the other");
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_token() {
    let mesh = mesh();
    let mut computer = mesh.computer(Duration::from_secs(30)).await;
    computer.subscribe(ResourceType::Address).await;
    computer.next().await.expect("it is served");
    let began = Instant::now();
    let status = computer.next().await.expect_err("the token ends");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let lasted = began.elapsed();
    assert!(lasted > Duration::from_secs(25) && lasted < Duration::from_secs(31), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_in_the_mesh_no_longer_for_that() {
    let kinds = [ResourceType::Address, ResourceType::Authorization, ResourceType::Workload];
    // With two answers the queue is full, with three the stream waits to send the last.
    for count in 1..=kinds.len() {
        for reads in [false, true] {
            let mesh = mesh();
            let (mut connection, _other_side) = connection(&mesh.drain).await;
            let token = mesh.bed.token("shop", "web", None, LIFE);
            let remote = Some(connection.connect_info());
            let mut computer = mesh.client(&token, Some("vm"), remote).await;
            for kind in &kinds[..count] {
                computer.subscribe(*kind).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            let began = Instant::now();
            mesh.bed.delete("shop", "vm");
            let mut byte = [0];
            if reads {
                let status = loop {
                    if let Err(status) = computer.next().await {
                        break status;
                    }
                };
                assert_eq!(status.code(), Code::PermissionDenied, "{count}: {status}");
                drop(computer);
                let closed = connection.read(&mut byte);
                let closed = tokio::time::timeout(2 * FAREWELL_TIMEOUT, closed).await;
                assert!(closed.is_err(), "{count}: it stays: {closed:?}");
                continue;
            }
            let closed = connection.read(&mut byte);
            let closed = tokio::time::timeout(2 * FAREWELL_TIMEOUT, closed).await;
            let closed = closed.unwrap_or_else(|_| panic!("{count}: it is closed"));
            assert!(matches!(closed, Ok(0) | Err(_)), "{count}: {closed:?}");
            let lasted = began.elapsed();
            assert!(lasted < FAREWELL_TIMEOUT + Duration::from_millis(100), "{count}: {lasted:?}");
            let resources = mesh.discovery.world.resources().borrow().clone();
            let status = mesh.discovery.clients.sync_status(&resources);
            assert!(status.clients.is_empty(), "{count}: {status:?}");
            // Nobody sends any more.
            let mut left = 0;
            while computer.answers.recv().await.is_some() {
                left += 1;
            }
            assert!(left <= RESPONSE_QUEUE, "{count}: {left}");
        }
    }
}
