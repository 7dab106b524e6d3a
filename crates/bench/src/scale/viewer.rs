//! One proxy that does with what it gets what a real one does: it makes a view of it.

use std::time::Instant;

use ambit_model::view::View;
use ambit_net::grpc::messages::{self, Limit};
use ambit_wire::proto::envoy::service::discovery::v3::DeltaDiscoveryResponse;
use ambit_wire::xds::client::{Client, Interest};
use ambit_wire::xds::node::ProxyNode;
use ambit_wire::xds::{DELTA_PATH, MAX_RESPONSE_BYTES};
use ambit_words::names::DEFAULT_MESH_NAMESPACE;
use anyhow::{Context, Result};
use prost::Message as _;
use serde::Serialize;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;

use super::held::TYPES;
use super::population;

/// Requests on their way, as in a proxy.
const REQUESTS: usize = 256;

/// How long a proxy takes from nothing to a view.
#[derive(Debug, Serialize)]
pub(super) struct Viewed {
    /// Until the connection stood and the stream was accepted.
    accepted_ms: f64,
    /// From there to the complete view.
    view_ms: f64,
    resources: usize,
    bytes: usize,
}

/// Connects as the first node's proxy, knowing nothing.
pub(super) async fn run(target: &ambit_net::grpc::Target, token: &str) -> Result<Viewed> {
    let node = ProxyNode {
        ip: std::net::Ipv4Addr::LOCALHOST.into(),
        pod: population::proxy_name(0),
        namespace: DEFAULT_MESH_NAMESPACE.to_owned(),
        node: population::node_name(0),
        metadata: std::collections::BTreeMap::new(),
    };
    let interests = TYPES.map(|resource_type| (resource_type, Interest::Everything));
    let mut client = Client::new(node.into(), interests);
    let start = Instant::now();
    let channel = ambit_net::grpc::connect(target).await?;
    let (requests, outgoing) = mpsc::channel(REQUESTS);
    for request in client.connected(false) {
        requests.try_send(request)?;
    }
    let mut metadata = MetadataMap::new();
    metadata.insert("authorization", format!("Bearer {token}").parse()?);
    let limit = Limit { bytes: MAX_RESPONSE_BYTES, fields: usize::MAX, nested: &[] };
    let call = messages::call(channel, DELTA_PATH, metadata, outgoing, limit);
    let (_, mut responses) = call.await?;
    let accepted = Instant::now();
    let (mut view, mut resources, mut bytes) = (View::default(), 0, 0);
    while !client.is_complete() {
        let response: Option<DeltaDiscoveryResponse> = responses.next().await?;
        let response = response.context("the control plane ended the stream")?;
        resources += response.resources.len();
        bytes += response.encoded_len();
        let received = client.receive(response);
        received.changes.into_iter().for_each(|change| view.apply(change));
        requests.send(received.reply).await.context("the control plane takes no requests")?;
    }
    let ms = |duration: std::time::Duration| (duration.as_secs_f64() * 1e5).round() / 1e2;
    Ok(Viewed {
        accepted_ms: ms(accepted - start),
        view_ms: ms(accepted.elapsed()),
        resources,
        bytes,
    })
}
