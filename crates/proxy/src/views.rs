//! The view of the mesh, as the control plane tells it (delta xDS).
//!
//! One stream at a time, resumed with the versions already held; what is received is applied to a
//! copy of the view, published, mirrored to the supervisor, and only then acknowledged. While the
//! control plane is away the last view stays in force. Nothing here decides about a connection.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ambit_net::grpc;
use ambit_net::grpc::messages::{self, Limit, Messages};
use ambit_wire::proto::ambit::snapshot::{Delta, Snapshot};
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use ambit_wire::xds::client::{Client, Demand as Answer, Interest, Received};
use ambit_wire::xds::digest;
use ambit_wire::xds::replies::Replies;
use ambit_wire::xds::{Backoff, DELTA_PATH, MAX_RESPONSE_BYTES, ResourceType};
use http::HeaderMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tracing::{debug, info, warn};

use crate::config::{Config, NodeMetadata};
use crate::control_plane::{self, ControlPlaneError};
use crate::link::Link;
use crate::shared::Shared;

/// Requests on their way to the control plane.
const REQUESTS: usize = 256;
/// Demands that may wait to be sent.
const DEMANDS: usize = 1024;
/// How long a connection waits for what it demanded.
const DEMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// While connected, how often the supervisor is told that the view is still in force.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(60);
/// How often it is said that the control plane is away, however often it is asked.
const AWAY_INTERVAL: Duration = Duration::from_secs(15);
/// Refused resources that are logged one by one.
const MAX_LOGGED_REFUSALS: usize = 5;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("discovery")]
    Connect(#[source] ControlPlaneError),
    #[error("the control plane refused discovery")]
    Status(#[source] Box<tonic::Status>),
    #[error("the control plane ended the stream")]
    Ended,
    #[error("the control plane takes no requests")]
    Stuck,
    #[error("another kind of control plane than before")]
    OtherServer,
}

impl StreamError {
    /// Whether nobody listens where the control plane should.
    fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(ControlPlaneError::Connect(error)) if error.is_refused())
    }
}

/// One name that a connection needs.
struct Demanded {
    name: String,
    answered: oneshot::Sender<()>,
}

/// Asks for workloads and services when they are needed; does nothing when all are known anyway.
#[derive(Clone)]
pub(crate) struct Demand(Option<mpsc::Sender<Demanded>>);

impl Demand {
    /// For a proxy that knows everything.
    pub(crate) fn nothing() -> Self {
        Self(None)
    }

    /// Whether names have to be asked for at all.
    pub(crate) fn is_needed(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until the view says what there is to say about an address (`network/ip`) or a service
    /// (`namespace/hostname`), but not for ever: then the view is taken as it is.
    pub(crate) async fn address(&self, name: String) {
        let Some(demands) = &self.0 else { return };
        let asking = async {
            let (answered, waiting) = oneshot::channel();
            // Without a control plane nobody takes demands, and their queue may be full.
            if demands.send(Demanded { name, answered }).await.is_ok() {
                // The one who answers may have given up.
                drop(waiting.await);
            }
        };
        drop(tokio::time::timeout(DEMAND_TIMEOUT, asking).await);
    }
}

/// The receiving end of [`Demand`].
pub(crate) struct Demands(Option<mpsc::Receiver<Demanded>>);

/// Both ends, for one worker.
pub(crate) fn demand(config: &Config) -> (Demand, Demands) {
    if !config.on_demand {
        return (Demand::nothing(), Demands(None));
    }
    let (sender, receiver) = mpsc::channel(DEMANDS);
    (Demand(Some(sender)), Demands(Some(receiver)))
}

impl Demands {
    async fn next(&mut self) -> Demanded {
        let next = match &mut self.0 {
            Some(demands) => demands.recv().await,
            None => None,
        };
        match next {
            Some(demanded) => demanded,
            None => std::future::pending().await,
        }
    }
}

/// The client of the control plane.
pub(crate) struct Views {
    shared: Arc<Shared>,
    link: Link,
    client: Client,
    /// The last server compares digests.
    server_compares: bool,
    demands: Demands,
    waiting: HashMap<String, Vec<oneshot::Sender<()>>>,
}

impl Views {
    /// A client that knows nothing yet.
    pub(crate) fn new(shared: Arc<Shared>, link: Link, demands: Demands) -> Self {
        let interest =
            if shared.config.on_demand { Interest::OnDemand } else { Interest::Everything };
        // Policies are few, and a policy that is only asked for when it is needed comes too late.
        let interests = [
            (ResourceType::Authorization, Interest::Everything),
            (ResourceType::Address, interest),
        ];
        let client = Client::new(node(&shared.config.node.metadata), interests);
        let waiting = HashMap::new();
        Self { shared, link, client, server_compares: false, demands, waiting }
    }

    /// Starts from what the supervisor kept, so that pods are served without the control plane.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        match self.client.restore(snapshot) {
            Ok(changes) => {
                let mut view = (**self.shared.view.load()).clone();
                let resources = changes.len();
                changes.into_iter().for_each(|change| view.apply(change));
                self.shared.publish(view);
                self.shared.view_complete.send_replace(true);
                info!(resources, "starting from the supervisor's view");
            }
            Err(error) => warn!(%error, "the supervisor's view is not used"),
        }
    }

    /// Follows the control plane for as long as the worker lives.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut warned: Option<Instant> = None;
        loop {
            let mut worked = false;
            let error = match self.stream(&mut worked).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let reason = match &error {
                StreamError::Connect(_) => "ConnectionError",
                StreamError::Ended | StreamError::OtherServer => "Complete",
                StreamError::Status(_) | StreamError::Stuck => "Error",
            };
            self.shared.metrics.discovery_ended(reason);
            if worked {
                backoff.worked();
                warned = None;
            }
            let wait = backoff.wait(error.is_refused(), rand::random());
            let error = format!("{:#}", anyhow::Error::new(error));
            if worked {
                info!(error, "connecting again");
            } else if warned.is_none_or(|warned| warned.elapsed() >= AWAY_INTERVAL) {
                warned = Some(Instant::now());
                warn!(error, ?wait, "the last view stays in force");
            } else {
                debug!(error, ?wait, "the control plane is still away");
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn stream(&mut self, worked: &mut bool) -> Result<std::convert::Infallible, StreamError> {
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        for request in self.client.connected(self.server_compares) {
            requests.try_send(request).map_err(|_| StreamError::Stuck)?;
        }
        let (headers, mut responses) = self.open(outgoing).await?;
        // Until it answers: one that cannot make sense of the digests ends the stream, and is told
        // names the next time.
        let told_digests = std::mem::take(&mut self.server_compares);
        let compares = digest::is_announced(&headers);
        if told_digests && !compares {
            // It has not understood what is held, and would not say what of it is gone.
            return Err(StreamError::OtherServer);
        }
        info!(server = %self.shared.config.discovery.uri, "discovery stream open");
        let mut confirm = tokio::time::interval(CONFIRM_INTERVAL);
        let mut replies = Replies::default();
        loop {
            let now = Instant::now();
            for reply in replies.take_due(now.into_std()) {
                send(&requests, reply).await?;
            }
            let due = replies.due_at(now.into_std());
            tokio::select! {
                response = responses.next() => {
                    let response: Option<DeltaDiscoveryResponse> = response.map_err(refused)?;
                    let response = response.ok_or(StreamError::Ended)?;
                    *worked = true;
                    self.server_compares = compares;
                    replies.add(self.take(response).await);
                }
                () = until(due) => {}
                demanded = self.demands.next() => {
                    if let Some(request) = self.ask(demanded) {
                        send(&requests, request).await?;
                    }
                }
                _ = confirm.tick(), if *worked => {
                    self.link.view(Delta::default(), self.client.is_complete()).await;
                }
            }
        }
    }

    async fn open(
        &self,
        outgoing: mpsc::Receiver<DeltaDiscoveryRequest>,
    ) -> Result<(HeaderMap, Messages), StreamError> {
        let Config { discovery, token, node, sockets, .. } = &self.shared.config;
        let target = control_plane::target(discovery, sockets.mark);
        let target = target.map_err(StreamError::Connect)?;
        let channel = grpc::connect(&target).await;
        let channel = channel.map_err(ControlPlaneError::Connect).map_err(StreamError::Connect)?;
        let mut metadata = MetadataMap::new();
        control_plane::introduce(&mut metadata, discovery, token, &node.cluster_id)
            .map_err(StreamError::Connect)?;
        // The control plane is trusted to know how much there is.
        let limit = Limit { bytes: MAX_RESPONSE_BYTES, fields: usize::MAX, nested: &[] };
        let call = messages::call(channel, DELTA_PATH, metadata, outgoing, limit);
        call.await.map_err(refused)
    }

    /// Puts a response into force and returns its acknowledgement or refusal.
    async fn take(&mut self, response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
        let (type_url, resources) = (response.type_url.clone(), response.resources.len());
        let Received { changes, answered, refused, delta, reply } = self.client.receive(response);
        self.shared.metrics.discovery_message(&type_url, resources, refused.len());
        if !changes.is_empty() {
            let mut view = (**self.shared.view.load()).clone();
            changes.into_iter().for_each(|change| view.apply(change));
            self.shared.publish(view);
        }
        let complete = self.client.is_complete();
        if complete {
            self.shared.view_complete.send_if_modified(|was| !std::mem::replace(was, true));
        }
        for refusal in refused.iter().take(MAX_LOGGED_REFUSALS) {
            warn!(name = refusal.name, reason = %refusal.reason, "resource not taken as it came");
        }
        if refused.len() > MAX_LOGGED_REFUSALS {
            let further = refused.len() - MAX_LOGGED_REFUSALS;
            warn!(further, "resources not taken as they came");
        }
        debug!(%type_url, resources, complete, "view published");
        self.link.view(delta, complete).await;
        for name in answered {
            self.answer(&name);
        }
        reply
    }

    /// Registers a demand; returns the request that it needs.
    fn ask(&mut self, demanded: Demanded) -> Option<DeltaDiscoveryRequest> {
        let Demanded { name, answered } = demanded;
        let request = match self.client.demand(ResourceType::Address, &name) {
            Ok(Answer::Known) => {
                // The one who waits may have given up by now.
                let _gone = answered.send(());
                return None;
            }
            Ok(Answer::Pending) => None,
            Ok(Answer::Send(request)) => Some(*request),
            Err(error) => {
                warn!(%error, name, "cannot ask for an address");
                return None;
            }
        };
        let waiting = self.waiting.entry(name).or_default();
        waiting.retain(|waiting| !waiting.is_closed());
        waiting.push(answered);
        request
    }

    fn answer(&mut self, name: &str) {
        for waiting in self.waiting.remove(name).into_iter().flatten() {
            // The one who waits may have given up by now.
            let _gone = waiting.send(());
        }
    }
}

async fn until(due: Option<std::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn refused(status: tonic::Status) -> StreamError {
    StreamError::Status(Box::new(status))
}

async fn send(
    requests: &mpsc::Sender<DeltaDiscoveryRequest>,
    request: DeltaDiscoveryRequest,
) -> Result<(), StreamError> {
    requests.send(request).await.map_err(|_| StreamError::Ended)
}

/// This proxy, as discovery introduces it.
fn node(metadata: &NodeMetadata) -> Node {
    let fields = metadata.fields.iter().map(|(name, value)| (name.clone(), protobuf(value)));
    let fields: BTreeMap<_, _> = fields.collect();
    Node {
        id: metadata.id.clone(),
        metadata: Some(prost_types::Struct { fields }),
        ..Default::default()
    }
}

fn protobuf(value: &serde_json::Value) -> prost_types::Value {
    use prost_types::value::Kind;
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(it) => Kind::BoolValue(*it),
        serde_json::Value::Number(it) => Kind::NumberValue(it.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(it) => Kind::StringValue(it.clone()),
        serde_json::Value::Array(items) => {
            let values = items.iter().map(protobuf).collect();
            Kind::ListValue(prost_types::ListValue { values })
        }
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), protobuf(value)));
            Kind::StructValue(prost_types::Struct { fields: fields.collect() })
        }
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests;
