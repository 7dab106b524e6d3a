//! The view of the mesh, as the control plane sends it (delta xDS).
//!
//! One stream at a time, resumed with the versions already held. A response is applied to a copy of
//! the view, published, sent to the successor, and only then acknowledged. While the control plane
//! is away the last view stays in force. Nothing here decides about a connection.
//!
//! A waypoint, and a gateway at the edge, also ask for what they need of layer 7, by name, and ask
//! again whenever their view says that they need something else. No other proxy asks for any of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ambit_model::http::needs::Needed;
use ambit_model::names::ServiceName;
use ambit_model::view::{Change, View};
use ambit_net::grpc;
use ambit_net::grpc::messages::{self, Limit, Messages};
use ambit_wire::proto::ambit::snapshot::{Delta, Snapshot};
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use ambit_wire::xds::client::{Client, Demand as Answer, Interest, Received, Wanted};
use ambit_wire::xds::digest;
use ambit_wire::xds::replies::Replies;
use ambit_wire::xds::{Backoff, DELTA_PATH, MAX_RESPONSE_BYTES, ResourceType};
use http::HeaderMap;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tracing::{debug, info, warn};

use crate::control_plane::{Access, ControlPlaneError};
use crate::demand::{Demanded, Demands};
use crate::learned::{Learned, Successor};
use crate::mesh::Mesh;

/// Requests on their way to the control plane.
const REQUESTS: usize = 256;
/// While connected, how often a successor is sent a confirmation that the view is in force.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(60);
/// What waypoints and gateways ask for.
const LAYER7: [ResourceType; 2] = [ResourceType::RequestPolicy, ResourceType::HttpService];
/// What gateways ask for too.
const OF_GATEWAYS: [ResourceType; 2] = [ResourceType::Certificate, ResourceType::Gateway];
/// How often at most the log reports that the control plane is away.
const AWAY_INTERVAL: Duration = Duration::from_secs(15);
/// Refused resources that are logged one by one.
const MAX_LOGGED_REFUSALS: usize = 5;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("discovery")]
    Connect(#[source] ControlPlaneError),
    #[error("the control plane refused discovery: {}", said(.0))]
    Status(Box<tonic::Status>),
    #[error("the control plane ended the stream")]
    Ended,
    #[error("the control plane takes no requests")]
    Stuck,
    #[error("another kind of control plane than before")]
    OtherServer,
}

impl StreamError {
    /// Whether the control plane has said that this proxy serves nobody.
    fn is_denied(&self) -> bool {
        let denied = tonic::Code::PermissionDenied;
        matches!(self, Self::Status(status) if status.code() == denied)
    }

    /// Whether nobody listens where the control plane should.
    fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(ControlPlaneError::Connect(error)) if error.is_refused())
    }
}

/// What this proxy tells the control plane about itself.
#[derive(Clone, Debug, Serialize)]
pub struct NodeMetadata {
    /// `ztunnel~<ip>~<pod>.<namespace>~<namespace>.svc.cluster.local`.
    pub id: String,
    /// Everything else.
    pub fields: BTreeMap<String, serde_json::Value>,
}

/// The client of the control plane.
pub struct Views {
    mesh: Arc<Mesh>,
    access: Access,
    successor: Successor,
    client: Client,
    /// The last server compares digests.
    server_compares: bool,
    demands: Demands,
    waiting: HashMap<String, Vec<oneshot::Sender<()>>>,
    /// What this is, if it asks for layer 7.
    front: Option<Front>,
}

/// What stands before services, named by the service in front of its pods.
#[derive(Clone, Debug)]
pub enum Front {
    /// A waypoint.
    Waypoint(ServiceName),
    /// A gateway at the edge.
    Gateway(ServiceName),
}

impl Front {
    /// What it needs by this view.
    fn needs(&self, view: &View) -> Needed {
        match self {
            Self::Waypoint(own) => view.needed_by_waypoint(own),
            Self::Gateway(own) => view.needed_by_gateway(own),
        }
    }

    /// Whether a change of this view may change what it needs.
    fn is_concerned(&self, view: &View, change: &Change) -> bool {
        match self {
            Self::Waypoint(own) => view.changes_needs_of_waypoint(own, change),
            Self::Gateway(own) => view.changes_needs_of_gateway(own, change),
        }
    }
}

impl Views {
    /// A client that knows nothing yet, and asks for nothing of layer 7.
    pub fn new(
        mesh: Arc<Mesh>,
        access: Access,
        metadata: &NodeMetadata,
        successor: Successor,
        demands: Demands,
    ) -> Self {
        Self::asking(mesh, access, metadata, successor, demands, None)
    }

    /// A client that also asks for layer 7 of all that this stands before.
    pub fn of_front(
        mesh: Arc<Mesh>,
        access: Access,
        metadata: &NodeMetadata,
        successor: Successor,
        demands: Demands,
        front: Front,
    ) -> Self {
        let mut it = Self::asking(mesh, access, metadata, successor, demands, Some(front));
        // The opening of the first stream says so.
        drop(it.want(&mut View::default()));
        it
    }

    fn asking(
        mesh: Arc<Mesh>,
        access: Access,
        metadata: &NodeMetadata,
        successor: Successor,
        demands: Demands,
        front: Option<Front>,
    ) -> Self {
        let interest =
            if mesh.demand.is_needed() { Interest::OnDemand } else { Interest::Everything };
        // Policies are few, and a policy that is only asked for when it is needed comes too late.
        let interests = [
            (ResourceType::Authorization, Interest::Everything),
            (ResourceType::Address, interest),
        ];
        let layer7 = LAYER7.map(|it| (it, Interest::OnDemand));
        let layer7 = layer7.into_iter().filter(|_| front.is_some());
        let is_gateway = matches!(front, Some(Front::Gateway(_)));
        let own = OF_GATEWAYS.map(|it| (it, Interest::OnDemand));
        let own = own.into_iter().filter(|_| is_gateway);
        let client = Client::new(node(metadata), interests.into_iter().chain(layer7).chain(own));
        let waiting = HashMap::new();
        Self { mesh, access, successor, client, server_compares: false, demands, waiting, front }
    }

    /// Starts from what another kept, so that pods are served without the control plane.
    pub fn restore(&mut self, snapshot: Snapshot) {
        match self.client.restore(snapshot) {
            Ok(changes) => {
                let mut view = (**self.mesh.view.load()).clone();
                let resources = changes.len();
                changes.into_iter().for_each(|change| view.apply(change));
                // The opening of the first stream says so.
                drop(self.want(&mut view));
                self.mesh.publish(view);
                self.mesh.view_complete.send_replace(true);
                info!(resources, "starting from the supervisor's view");
            }
            Err(error) => warn!(%error, "the supervisor's view is not used"),
        }
    }

    /// Follows the control plane for as long as the worker lives.
    pub async fn run(mut self) {
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
            self.mesh.metrics.discovery_ended(reason);
            if error.is_denied() {
                self.disowned(true);
            }
            if worked {
                backoff.worked();
                warned = None;
            }
            let wait = backoff.wait(error.is_refused(), rand::random());
            let error = format!("{:#}", anyhow::Error::new(error));
            self.mesh.control_plane_away.store(Some(Arc::new(error.as_str().into())));
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

    /// Notes whether the control plane knows whom this proxy serves, and has what is open judged
    /// again if that is new.
    fn disowned(&self, is_so: bool) {
        if self.mesh.disowned.swap(is_so, Ordering::Relaxed) != is_so {
            self.mesh.publish((**self.mesh.view.load()).clone());
        }
    }

    async fn stream(&mut self, worked: &mut bool) -> Result<std::convert::Infallible, StreamError> {
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        for request in self.client.connected(self.server_compares) {
            requests.try_send(request).map_err(|_| StreamError::Stuck)?;
        }
        let (headers, mut responses) = self.open(outgoing).await?;
        // Until it answers: a server that cannot read the digests ends the stream, and gets names
        // the next time.
        let told_digests = std::mem::take(&mut self.server_compares);
        let compares = digest::is_announced(&headers);
        if told_digests && !compares {
            // It has not understood what is held, and would not say what of it is gone.
            return Err(StreamError::OtherServer);
        }
        info!(server = %self.access.service.uri, "discovery stream open");
        self.mesh.control_plane_away.store(None);
        self.mesh.certificates.retry();
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
                    self.disowned(false);
                    self.server_compares = compares;
                    let (reply, wanted) = self.take(response).await;
                    replies.add(reply);
                    for request in wanted {
                        send(&requests, request).await?;
                    }
                }
                () = until(due) => {}
                demanded = self.demands.next() => {
                    if let Some(request) = self.ask(demanded) {
                        send(&requests, request).await?;
                    }
                }
                _ = confirm.tick(), if *worked => {
                    let complete = self.is_complete();
                    self.successor.tell(Learned::View { delta: Delta::default(), complete }).await;
                }
            }
        }
    }

    async fn open(
        &self,
        outgoing: mpsc::Receiver<DeltaDiscoveryRequest>,
    ) -> Result<(HeaderMap, Messages), StreamError> {
        let target = self.access.target().map_err(StreamError::Connect)?;
        let channel = grpc::connect(&target).await;
        let channel = channel.map_err(ControlPlaneError::Connect).map_err(StreamError::Connect)?;
        let mut metadata = MetadataMap::new();
        self.access.introduce(&mut metadata).map_err(StreamError::Connect)?;
        // The control plane is trusted to know how much there is.
        let limit = Limit { bytes: MAX_RESPONSE_BYTES, fields: usize::MAX, nested: &[] };
        let call = messages::call(channel, DELTA_PATH, metadata, outgoing, limit);
        call.await.map_err(refused)
    }

    /// Puts a response into force and returns its acknowledgement or refusal, and what else must be
    /// asked for.
    async fn take(
        &mut self,
        response: DeltaDiscoveryResponse,
    ) -> (DeltaDiscoveryRequest, Vec<DeltaDiscoveryRequest>) {
        let (type_url, resources) = (response.type_url.clone(), response.resources.len());
        let Received { changes, answered, refused, delta, reply } = self.client.receive(response);
        self.mesh.metrics.discovery_message(&type_url, resources, refused.len());
        let mut wanted = Vec::new();
        if !changes.is_empty() {
            let mut view = (**self.mesh.view.load()).clone();
            let changes_needs = self
                .front
                .as_ref()
                .is_some_and(|it| changes.iter().any(|change| it.is_concerned(&view, change)));
            changes.into_iter().for_each(|change| view.apply(change));
            // First, because to find out what else is needed takes time.
            self.mesh.publish(view.clone());
            if changes_needs {
                wanted = self.want(&mut view);
                self.mesh.publish(view);
                self.mesh.needs_changed.send_modify(|version| *version += 1);
            }
        }
        let complete = self.is_complete();
        if complete {
            self.mesh.view_complete.send_if_modified(|was| !std::mem::replace(was, true));
        }
        for refusal in refused.iter().take(MAX_LOGGED_REFUSALS) {
            warn!(name = refusal.name, reason = %refusal.reason, "resource not taken as it came");
        }
        if refused.len() > MAX_LOGGED_REFUSALS {
            let further = refused.len() - MAX_LOGGED_REFUSALS;
            warn!(further, "resources not taken as they came");
        }
        debug!(%type_url, resources, complete, "view published");
        self.successor.tell(Learned::View { delta, complete }).await;
        for name in answered {
            self.answer(&name);
        }
        (reply, wanted)
    }

    /// Whether all is known without which nothing can be served.
    fn is_complete(&self) -> bool {
        let mut layer7 = LAYER7.into_iter().chain(OF_GATEWAYS);
        self.client.is_complete() && layer7.all(|it| self.client.is_answered(it))
    }

    /// Asks for what is needed of layer 7 by this view, and drops the rest from it.
    fn want(&mut self, view: &mut View) -> Vec<DeltaDiscoveryRequest> {
        let Some(front) = &self.front else { return Vec::new() };
        let Needed { services, policies, certificates } = front.needs(view);
        let own = match front {
            Front::Waypoint(_) => BTreeSet::new(),
            Front::Gateway(own) => BTreeSet::from([own.to_string()]),
        };
        let services: BTreeSet<String> = services.iter().map(ToString::to_string).collect();
        let policies: BTreeSet<String> = policies.iter().map(ToString::to_string).collect();
        let certificates = certificates.iter().map(ToString::to_string).collect();
        let mut requests = Vec::new();
        for (resource_type, names) in [
            (ResourceType::Certificate, certificates),
            (ResourceType::Gateway, own),
            (ResourceType::RequestPolicy, policies),
            (ResourceType::HttpService, services),
        ] {
            match self.client.want(resource_type, &names) {
                Ok(Wanted { request, changes }) => {
                    changes.into_iter().for_each(|change| view.apply(change));
                    requests.extend(request);
                }
                Err(error) => {
                    warn!(%error, %resource_type, "requests to further services are refused");
                }
            }
        }
        requests
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

/// What a control plane said, or what broke, for people to read: a status shows itself with quotes
/// that are escaped once more wherever the text goes. Where it says nothing, the code.
fn said(status: &tonic::Status) -> String {
    let mut text = match status.message() {
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    };
    let mut cause = status.source();
    while let Some(error) = cause {
        let what = error.to_string();
        // The message of a connection that broke is that of its first cause.
        if !text.ends_with(&what) {
            text.push_str(": ");
            text.push_str(&what);
        }
        cause = error.source();
    }
    text
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
pub(crate) mod tests;
