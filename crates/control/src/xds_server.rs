//! Delta discovery: one task for each connected proxy.
//!
//! The stream's state machine decides what to send; this file feeds it requests and the newest
//! resources, and sends its responses. A change is sent as soon as the client can take it: there is
//! no timer that churn could extend, and changes that arrive while the client is busy go into the
//! next response. Nothing here may serve a client that has not proven to be a node's proxy,
//! a waypoint or a WorkloadEntry's computer, or that is none any more.

mod standing;
mod streams;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ambit_net::drain::Guard;
use ambit_net::grpc::messages::Messages;
use ambit_wire::admin::{ApiVersion, ProxySync, SyncStatus, TypeSync};
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, HeldVersion,
};
use ambit_wire::xds::resources::Resources;
use ambit_wire::xds::server::{Progress, Stream};
use ambit_wire::xds::{ResourceType, WILDCARD};
use ambit_words::error_chain;
use http::HeaderMap;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::authentication::Authentication;
use crate::callers::{Caller, SpeaksFor};
use crate::listener::Remote;
use crate::metrics::Metrics;
use crate::world::World;
use standing::Standing;
use streams::{FIRST_ANSWERS, FIRST_ANSWERS_OF_ENTRIES};
pub(crate) use streams::{Place, Streams};

/// Responses that wait for the connection to take them.
const RESPONSE_QUEUE: usize = 2;
/// First answers smaller than this are not counted.
const SMALL_ANSWER_BYTES: usize = 256 * 1024;
/// How long a client may take to acknowledge its first answer before the next gets its turn, and
/// how much of it must come through in a second beyond that: the answers of those whose turn is
/// over still take memory.
const TURN: Duration = Duration::from_secs(2);
const TURN_BYTES_PER_SECOND: u32 = 2 << 20;
/// How long a client may leave a response untaken before it is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the computer of a WorkloadEntry may take to read why its stream ends. Then its
/// connection is closed: what it has not read must not keep it in the mesh.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// The responses for one client.
type Responses = mpsc::Receiver<Result<DeltaDiscoveryResponse, Status>>;

/// Discovery for node proxies.
#[derive(Clone)]
pub(crate) struct Discovery {
    pub(crate) world: Arc<World>,
    /// Verifies callers; none on the loopback port without TLS.
    pub(crate) authentication: Option<Authentication>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) turns: Turns,
    pub(crate) streams: Streams,
    pub(crate) guard: Guard,
    /// At shutdown, streams end in the course of this time.
    pub(crate) spread: Duration,
}

/// Bounds the first answers under way.
#[derive(Clone)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    of_entries: Arc<Semaphore>,
}

/// The right to a first answer, for a while.
struct Turn {
    _permits: (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit),
    over_at: Instant,
}

impl Default for Turns {
    fn default() -> Self {
        let of_entries = Arc::new(Semaphore::new(FIRST_ANSWERS_OF_ENTRIES));
        Self { all: Arc::new(Semaphore::new(FIRST_ANSWERS)), of_entries }
    }
}

impl Turns {
    /// Waits for a turn; first come, first served. Computers of WorkloadEntries wait for each other
    /// first: only a few of them wait among the nodes' proxies.
    async fn take(&self, is_entry: bool) -> Turn {
        let permit =
            async |of: &Arc<Semaphore>| of.clone().acquire_owned().await.expect("nobody closes it");
        let of_entries = match is_entry {
            true => Some(permit(&self.of_entries).await),
            false => None,
        };
        let permits = (of_entries, permit(&self.all).await);
        Turn { _permits: permits, over_at: Instant::now() + TURN }
    }
}

/// How long the turn of an answer of this size is.
fn turn_length(bytes: usize) -> Duration {
    TURN + Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / TURN_BYTES_PER_SECOND
}

/// Ends when the turn is over, if there is one.
async fn turn_over(turn: Option<Instant>) {
    match turn {
        Some(over_at) => tokio::time::sleep_until(over_at).await,
        None => std::future::pending().await,
    }
}

/// The connected clients, for the status.
#[derive(Default)]
pub(crate) struct Clients {
    next: AtomicU64,
    connected: Mutex<BTreeMap<u64, Arc<Client>>>,
}

#[derive(Debug)]
struct Client {
    remote: Option<SocketAddr>,
    id: String,
    node: String,
    kind: ClientKind,
    since: SystemTime,
    progress: Mutex<Vec<Progress>>,
}

/// What a client is.
#[derive(Debug, PartialEq, Eq)]
enum ClientKind {
    /// A node's proxy, or somebody on loopback who proves nothing.
    Proxy,
    /// This pod of a waypoint.
    Waypoint(String),
    /// The computer of a WorkloadEntry. Whether it is connected and keeps up is its own affair: no
    /// command waits for a computer outside of the cluster.
    Entry,
}

impl Client {
    /// A client that has subscribed and, to `/debug/syncz`, has received nothing yet.
    fn new(remote: Option<SocketAddr>, node: String, stream: &Stream) -> Self {
        let id = stream.node().map(|told| told.id.to_string()).unwrap_or_default();
        let (since, progress) = (SystemTime::now(), Mutex::new(stream.progress()));
        Self { remote, id, node, kind: ClientKind::Proxy, since, progress }
    }

    /// Its name in messages.
    fn name(&self) -> String {
        match &self.kind {
            ClientKind::Waypoint(pod) => format!("{pod}: this waypoint"),
            ClientKind::Proxy | ClientKind::Entry => format!("{}: its proxy", self.node),
        }
    }

    fn progress(&self) -> Vec<Progress> {
        self.progress.lock().expect("no holder of the lock panics").clone()
    }
}

impl Clients {
    fn add(&self, key: u64, client: Arc<Client>) {
        self.connected.lock().expect("no holder of the lock panics").insert(key, client);
    }

    fn remove(&self, key: u64) {
        self.connected.lock().expect("no holder of the lock panics").remove(&key);
    }

    /// The nodes whose proxy is connected.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let connected = self.connected.lock().expect("no holder of the lock panics");
        let proxies = connected.values().filter(|client| client.kind == ClientKind::Proxy);
        proxies.map(|client| client.node.clone()).collect()
    }

    /// The nodes whose proxy, and the waypoints that have not answered the newest resources of a
    /// type that they asked for, each with why.
    pub(crate) fn behind(&self, resources: &Resources) -> Vec<String> {
        let connected = self.connected.lock().expect("no holder of the lock panics");
        let reason = |client: &Arc<Client>| {
            client.progress().iter().find_map(|it| {
                let newest = resources.of(it.resource_type).sequence();
                let kind = type_name(it.resource_type);
                match &it.rejection {
                    Some(rejection) => Some(format!(
                        "{} refuses the newest {kind} resources: {}",
                        client.name(),
                        rejection.reason
                    )),
                    None if it.acknowledged_sequence < newest => Some(format!(
                        "{} has not acknowledged the newest {kind} resources",
                        client.name()
                    )),
                    None => None,
                }
            })
        };
        let awaited = connected.values().filter(|client| client.kind != ClientKind::Entry);
        awaited.filter_map(reason).collect()
    }

    /// What each client was sent and has answered.
    pub(crate) fn sync_status(&self, resources: &Resources) -> SyncStatus {
        let connected = self.connected.lock().expect("no holder of the lock panics");
        let client = |client: &Arc<Client>| ProxySync {
            proxy: client.id.clone(),
            node: client.node.clone(),
            remote: client.remote,
            connected_seconds: client.since.elapsed().unwrap_or_default().as_secs(),
            types: client.progress().iter().map(|it| type_sync(it, resources)).collect(),
        };
        SyncStatus { api_version: ApiVersion, clients: connected.values().map(client).collect() }
    }
}

fn type_sync(progress: &Progress, resources: &Resources) -> TypeSync {
    let newest = resources.of(progress.resource_type).sequence();
    TypeSync {
        kind: type_name(progress.resource_type).into(),
        everything: progress.everything,
        names: progress.names,
        sent: progress.sent_sequence,
        acknowledged: progress.acknowledged_sequence,
        newest,
        synced: progress.acknowledged_sequence >= newest,
        rejected: progress.rejection.as_ref().map(|rejection| rejection.reason.to_string()),
    }
}

fn type_name(resource_type: ResourceType) -> &'static str {
    match resource_type {
        ResourceType::Authorization => "authorization",
        ResourceType::RequestPolicy => "requestPolicy",
        ResourceType::HttpService => "httpService",
        ResourceType::Certificate => "certificate",
        ResourceType::Gateway => "gateway",
        ResourceType::Address => "address",
        ResourceType::Workload => "workload",
    }
}

impl Discovery {
    /// Serves one client for as long as it stays. Returns the responses to send, and a guard to
    /// hold for as long as any of them may wait for the client.
    pub(crate) async fn follow(
        &self,
        headers: HeaderMap,
        requests: Messages,
        remote: Option<Remote>,
    ) -> Result<(Responses, Option<Place>), Status> {
        let metadata = MetadataMap::from_headers(headers);
        let caller = self.authenticate(&metadata, remote.as_ref()).await?;
        if self.guard.is_draining() {
            return Err(stopping());
        }
        let key = self.clients.next.fetch_add(1, Ordering::Relaxed);
        let place = match caller.as_ref().zip(remote.as_ref()) {
            Some((caller, remote)) => self.place(caller, key, remote).await,
            None => None,
        };
        let (responses, receiver) = mpsc::channel(RESPONSE_QUEUE);
        let connection = StreamTask {
            discovery: self.clone(),
            key,
            standing: Standing::new(caller, self.world.clone()),
            remote,
            resources: self.world.resources(),
            stream: Stream::new(),
            client: None,
            turn: None,
            responses,
        };
        self.guard.spawn(connection.run(requests));
        Ok((receiver, place))
    }

    /// The place of a caller's stream; none where nobody can say whose it is.
    async fn place(&self, caller: &Caller, key: u64, remote: &Remote) -> Option<Place> {
        let holder = caller.account_holder();
        if let SpeaksFor::Entry(_) = caller.speaks_for {
            let namespace = &caller.namespace;
            return Some(self.streams.enter_entry(namespace, &holder, key, remote).await);
        }
        if holder.is_empty() {
            return None;
        }
        Some(self.streams.enter(&holder, key, remote).await)
    }

    async fn authenticate(
        &self,
        metadata: &MetadataMap,
        remote: Option<&Remote>,
    ) -> Result<Option<Caller>, Status> {
        let Some(authentication) = &self.authentication else { return Ok(None) };
        let caller = authentication.caller(metadata, remote).await;
        caller.map(Some).map_err(|refusal| {
            let status = refusal.status();
            if refusal.lines().admits(Instant::now().into_std()) {
                let remote = remote.map(|remote| remote.address.to_string());
                tracing::warn!(remote, error = status.message(), "discovery refused");
            }
            status
        })
    }
}

/// One client's stream.
struct StreamTask {
    discovery: Discovery,
    key: u64,
    remote: Option<Remote>,
    standing: Standing,
    resources: watch::Receiver<Arc<Resources>>,
    stream: Stream,
    /// Once it has said who it is.
    client: Option<Arc<Client>>,
    /// Held while a large first answer is under way.
    turn: Option<Turn>,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

/// Why a stream ends.
enum End {
    /// The client left.
    Left,
    /// We end it, and say why.
    Told(Status),
}

impl StreamTask {
    async fn run(mut self, requests: Messages) {
        self.discovery.metrics.stream(1);
        let end = self.serve(requests).await;
        // It sends no more responses, and the client may never read the reason.
        self.turn = None;
        self.discovery.metrics.stream(-1);
        self.discovery.clients.remove(self.key);
        let (remote, node) = (self.address().map(|it| it.to_string()), self.node());
        match end {
            End::Left => tracing::info!(remote, node, "discovery client left"),
            End::Told(status) => {
                tracing::info!(remote, node, reason = status.message(), "discovery stream ended");
                self.farewell(status).await;
            }
        }
    }

    /// Says why the stream ends. The client may be gone already; then nobody receives it.
    async fn farewell(self, status: Status) {
        if !self.standing.is_entry() {
            let _ = self.responses.send_timeout(Err(status), SEND_TIMEOUT).await;
            return;
        }
        let read = async {
            let _ = self.responses.send(Err(status)).await;
            self.responses.closed().await;
        };
        if tokio::time::timeout(FAREWELL_TIMEOUT, read).await.is_err()
            && let Some(remote) = &self.remote
        {
            remote.end();
        }
    }

    async fn serve(&mut self, mut requests: Messages) -> End {
        let ending = ending(self.discovery.guard.clone(), self.discovery.spread, self.key);
        tokio::pin!(ending);
        loop {
            tokio::select! {
                request = requests.next() => match request {
                    Ok(Some(request)) => {
                        if let Err(end) = self.receive(request) {
                            return end;
                        }
                    }
                    Ok(None) => return End::Left,
                    // It may be the client's fault, who must hear of it, or that it is gone.
                    Err(status) => return End::Told(status),
                },
                changed = self.resources.changed() => {
                    if changed.is_err() {
                        return End::Told(Status::unavailable("the control plane stops"));
                    }
                }
                () = turn_over(self.turn.as_ref().map(|turn| turn.over_at)) => self.turn = None,
                status = self.standing.lost() => return End::Told(status),
                () = &mut ending => return End::Told(stopping()),
            }
            if let Err(end) = self.send().await {
                return end;
            }
        }
    }

    fn receive(&mut self, request: DeltaDiscoveryRequest) -> Result<(), End> {
        self.standing.check().map_err(End::Told)?;
        let is_first = self.stream.node().is_none();
        let resources = self.resources.borrow_and_update().clone();
        self.check_gateway(&request)?;
        let refused = self.stream.receive(request, &resources);
        let rejection =
            refused.map_err(|error| End::Told(Status::invalid_argument(error_chain(&error))))?;
        self.check_named()?;
        if is_first {
            self.check_node()?;
            let mut client = Client::new(self.address(), self.node(), &self.stream);
            client.kind = match self.standing.caller() {
                Some(caller) => match caller.speaks_for {
                    SpeaksFor::Node => ClientKind::Proxy,
                    SpeaksFor::Waypoint => ClientKind::Waypoint(caller.account_holder()),
                    SpeaksFor::Entry(_) => ClientKind::Entry,
                },
                None => ClientKind::Proxy,
            };
            let client = Arc::new(client);
            self.discovery.clients.add(self.key, client.clone());
            self.client = Some(client);
        }
        if self.stream.is_acknowledged() {
            self.turn = None;
        }
        self.tell_progress();
        if let Some(rejection) = rejection {
            let kind = type_name(rejection.resource_type);
            self.discovery.metrics.rejected(kind);
            let node = self.node();
            tracing::warn!(
                node,
                kind,
                reason = rejection.reason,
                "the proxy refuses a configuration"
            );
        }
        Ok(())
    }

    /// What is known of requests is for those who name the services that they serve.
    fn check_named(&self) -> Result<(), End> {
        let is_refused = |it: &Progress| it.everything && it.resource_type.is_only_by_name();
        match self.stream.progress().iter().find(|it| is_refused(it)) {
            Some(it) => Err(End::Told(Status::permission_denied(format!(
                "nobody is sent all {} resources; subscribe to those that you serve, by name",
                type_name(it.resource_type)
            )))),
            None => Ok(()),
        }
    }

    /// What a gateway at the edge serves is sent to its own pods alone. Without authentication
    /// nobody proves anything, here as elsewhere; private keys are then sent to nobody.
    fn check_gateway(&self, request: &DeltaDiscoveryRequest) -> Result<(), End> {
        let is_key = request.type_url == ResourceType::Certificate.url();
        if !is_key && request.type_url != ResourceType::Gateway.url() {
            return Ok(());
        }
        let own = match self.standing.caller() {
            Some(caller) => caller.gateway(&self.discovery.world).map(|own| own.to_string()),
            None if is_key => None,
            None => return Ok(()),
        };
        let is_own = |name: &&str| {
            let below = own.as_ref().and_then(|own| name.strip_prefix(own.as_str()));
            below.is_some_and(|it| it.starts_with('/') || it.is_empty() && !is_key)
        };
        // To name one as held asks for it too.
        let held = request.initial_resource_versions.iter().filter_map(HeldVersion::texts);
        let subscribed = request.resource_names_subscribe.iter().map(String::as_str);
        // Whoever asks for all is refused for that.
        let subscribed = subscribed.filter(|name| *name != WILDCARD);
        match held.map(|(name, _)| name).chain(subscribed).find(|name| !is_own(name)) {
            Some(name) => Err(End::Told(Status::permission_denied(format!(
                "{} is no pod of the gateway of {name:?}, whose listeners, routes and certificates \
                 are sent to its own pods alone",
                self.standing.caller().map_or_else(String::new, Caller::title)
            )))),
            None => Ok(()),
        }
    }

    /// Writes down for people how far the client is.
    fn tell_progress(&self) {
        if let Some(client) = &self.client {
            let progress = self.stream.progress();
            *client.progress.lock().expect("no holder of the lock panics") = progress;
        }
    }

    /// A proxy may only speak for the node that its token is bound to.
    fn check_node(&self) -> Result<(), End> {
        let told = self.stream.node().map_or("", |told| &*told.node);
        let proven = self.standing.caller().map_or("", |caller| &caller.node);
        if !told.is_empty() && !proven.is_empty() && told != proven {
            let what =
                format!("the proxy says it serves node {told}, its token is bound to {proven}");
            return Err(End::Told(Status::permission_denied(what)));
        }
        tracing::info!(
            remote = self.address().map(|it| it.to_string()),
            node = self.node(),
            proxy = self.stream.node().map(|node| &*node.id),
            "discovery client connected",
        );
        Ok(())
    }

    fn address(&self) -> Option<SocketAddr> {
        self.remote.as_ref().map(|remote| remote.address)
    }

    /// The node that it serves, or the WorkloadEntry: whatever a computer outside says of a node is
    /// not believed.
    fn node(&self) -> String {
        let proven = self.standing.caller().map(|caller| match &caller.speaks_for {
            SpeaksFor::Entry(_) => caller.title(),
            SpeaksFor::Node | SpeaksFor::Waypoint => caller.node.clone(),
        });
        let told = || self.stream.node().map(|told| told.node.to_string());
        proven.filter(|node| !node.is_empty()).or_else(told).unwrap_or_default()
    }

    /// Sends all that is due, each time from the newest resources.
    async fn send(&mut self) -> Result<(), End> {
        // Before it is put together: a thousand that wait hold a reference to each resource.
        let takes_turn = self.turn.is_none() && self.stream.owes_first_answer();
        if takes_turn {
            let mut guard = self.discovery.guard.clone();
            let is_entry = self.standing.is_entry();
            self.turn = tokio::select! {
                turn = self.discovery.turns.take(is_entry) => Some(turn),
                () = self.responses.closed() => return Err(End::Left),
                status = self.standing.lost() => return Err(End::Told(status)),
                _ = guard.draining() => return Err(End::Told(stopping())),
            };
        }
        let mut sent_bytes = 0;
        loop {
            let resources = self.resources.borrow_and_update().clone();
            // After they were taken: what is newer than this judgement is not sent by it.
            self.standing.check().map_err(End::Told)?;
            let next = self.stream.next_response(&resources);
            let next = next.map_err(|error| End::Told(Status::aborted(error_chain(&error))))?;
            let Some(response) = next else { break };
            if let Ok(resource_type) = response.type_url.parse::<ResourceType>() {
                self.discovery.metrics.pushed(type_name(resource_type));
            }
            tracing::debug!(
                node = self.node(),
                kind = response.type_url,
                resources = response.resources.len(),
                removed = response.removed_resources.len(),
                "discovery response",
            );
            sent_bytes += response.encoded_len();
            if let Some(turn) = self.turn.as_mut().filter(|_| takes_turn) {
                turn.over_at = Instant::now() + turn_length(sent_bytes);
            }
            self.hand_over(response).await?;
        }
        if takes_turn && sent_bytes < SMALL_ANSWER_BYTES {
            self.turn = None;
        }
        // Also when nothing was sent: what is none of the client's business counts as acknowledged.
        self.tell_progress();
        Ok(())
    }

    /// Gives a response to the connection, and the turn away when it is over.
    async fn hand_over(&mut self, response: DeltaDiscoveryResponse) -> Result<(), End> {
        let mut handed = pin!(self.responses.send_timeout(Ok(response), SEND_TIMEOUT));
        loop {
            tokio::select! {
                handed = &mut handed => return handed.map_err(|_| End::Left),
                status = self.standing.lost() => return Err(End::Told(status)),
                () = turn_over(self.turn.as_ref().map(|turn| turn.over_at)) => self.turn = None,
            }
        }
    }
}

fn stopping() -> Status {
    Status::unavailable("the control plane stops; reconnect")
}

/// Ends some time after the shutdown began. Streams are numbered; each number comes as far from the
/// others as can be (the golden ratio's multiples), however many there are.
async fn ending(mut guard: Guard, spread: Duration, number: u64) {
    guard.draining().await;
    let share = (number as f64 * 0.618_033_988_749_895).fract();
    tokio::time::sleep(spread.mul_f64(share)).await;
}

#[cfg(test)]
mod entry_tests;
#[cfg(test)]
mod tests {
    use ambit_model::workload::Workload;
    use ambit_net::drain::Drain;
    use ambit_net::grpc::messages::{Limit, framed};
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use bytes::Bytes;
    use futures::StreamExt as _;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use serde_json::{Value, json};
    use tokio_stream::wrappers::ReceiverStream;
    use tonic::body::Body;

    use super::*;
    use crate::callers::{Callers, Reviews};
    use crate::kubernetes::fake::FakeApi;
    use crate::registry::{Event, PodStatus};
    use crate::view_builder::{Mesh, Vips};
    use ambit_manifest::{Kind, stored};

    /// A world whose first answer is no small one.
    fn world(metrics: &Arc<Metrics>) -> Arc<World> {
        let path = std::env::temp_dir().join("ambit-discovery-none");
        let world = World::new(Mesh::sample(), Vips::default(), path, metrics.clone());
        world.apply((0..4000).flat_map(pod).collect());
        Arc::new(world)
    }

    fn pod(index: u32) -> [Event; 2] {
        let (name, uid) = (format!("pod-{index}"), format!("uid-{index}"));
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
            "metadata": {"namespace": "shop", "name": name, "uid": uid}});
        let pod = stored(Kind::Pod, pod.to_string().as_bytes()).unwrap();
        let address = std::net::Ipv4Addr::from_bits(0x0af4_0000 + index);
        let (phase, pod_ips) = ("Running".into(), vec![address.into()]);
        let status = PodStatus { uid: uid.into(), phase, pod_ips, ..PodStatus::default() };
        let (namespace, name, status) = ("shop".into(), name.into(), Some(status));
        [Event::Put(pod), Event::PodStatus { namespace, name, status }]
    }

    fn discovery(drain: &Drain) -> Discovery {
        let metrics = Arc::new(Metrics::new());
        Discovery {
            world: world(&metrics),
            authentication: None,
            clients: Arc::default(),
            metrics,
            turns: Turns::default(),
            streams: Streams::default(),
            guard: drain.guard(),
            spread: Duration::ZERO,
        }
    }

    fn messages(body: Body) -> Messages {
        let limit = Limit { bytes: usize::MAX, fields: usize::MAX, nested: &[] };
        Messages::of_request(&HeaderMap::new(), body, limit).unwrap()
    }

    #[test]
    fn who_waits_for_its_first_answer_is_behind() {
        let mut resources = Resources::default();
        resources.put_workload(&Workload::named("uid", "shop", "web"));
        let mut stream = Stream::new();
        let type_url = ResourceType::Address.url().to_owned();
        let request = DeltaDiscoveryRequest { type_url, ..Default::default() };
        stream.receive(request, &resources).expect("a known type");
        let clients = Clients::default();
        clients.add(0, Arc::new(Client::new(None, "n1".to_owned(), &stream)));
        let expected = "n1: its proxy has not acknowledged the newest address resources";
        assert_eq!(clients.behind(&resources), [expected]);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_first_answers_are_under_way_and_no_more() {
        let turns = Turns::default();
        let mut taken = Vec::new();
        for _ in 0..FIRST_ANSWERS_OF_ENTRIES {
            taken.push(turns.take(true).await);
        }
        // Whoever makes WorkloadEntries by the thousand lets nobody else wait.
        let mut crowd: Vec<_> = (0..1000).map(|_| Box::pin(turns.take(true))).collect();
        for waits in &mut crowd {
            assert!(tokio::time::timeout(Duration::ZERO, waits).await.is_err(), "one more");
        }
        for _ in FIRST_ANSWERS_OF_ENTRIES..FIRST_ANSWERS {
            let taken_at_once = tokio::time::timeout(Duration::ZERO, turns.take(false)).await;
            taken.push(taken_at_once.expect("a node's proxy does not wait for them"));
        }
        let next = tokio::time::timeout(TURN, turns.take(false)).await;
        assert!(next.is_err(), "one more than there may be");
        drop(taken.pop());
        turns.take(false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_ended_gives_its_turn_back() {
        let drain = Drain::new();
        let discovery = discovery(&drain);
        let ask = |type_url: &str| {
            let type_url = type_url.to_owned();
            framed(&DeltaDiscoveryRequest { type_url, ..DeltaDiscoveryRequest::default() })
        };
        // Two answers fill the queue, so that the reason why it ends waits for somebody to read it.
        let types = [ResourceType::Authorization, ResourceType::Address].map(ResourceType::url);
        let requests: Vec<u8> = types.into_iter().chain(["unknown"]).flat_map(ask).collect();
        let mut unread = Vec::new();
        for _ in 0..FIRST_ANSWERS {
            let requests = messages(Body::new(Full::new(requests.clone().into())));
            unread.push(discovery.follow(HeaderMap::new(), requests, None).await.unwrap().0);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let large = unread[0].try_recv().into_iter().chain(unread[0].try_recv());
        let bytes: usize = large.map(|it| it.unwrap().encoded_len()).sum();
        assert!(bytes >= SMALL_ANSWER_BYTES, "{bytes}: a small answer holds no turn");
        let mut taken = Vec::new();
        let turns = async {
            for _ in 0..FIRST_ANSWERS {
                taken.push(discovery.turns.take(false).await);
            }
        };
        tokio::time::timeout(SEND_TIMEOUT / 2, turns).await.expect("all turns are free");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_of_requests_is_sent_by_name_alone() {
        let drain = Drain::new();
        let discovery = discovery(&drain);
        let service = json!({"metadata": {"namespace": "shop", "name": "web"},
            "spec": {"ports": [{"port": 80, "name": "http"}]}});
        let service = stored(Kind::Service, service.to_string().as_bytes()).unwrap();
        discovery.world.apply(vec![Event::Put(service)]);
        let name = "shop/web.shop.svc.cluster.local";
        for (kind, names, expected) in [
            (ResourceType::HttpService, vec![name], Some(1)),
            (ResourceType::HttpService, vec![], None),
            (ResourceType::HttpService, vec!["*"], None),
            (ResourceType::RequestPolicy, vec![], None),
            // Nobody has proven anything here.
            (ResourceType::Certificate, vec!["shop/edge/shop/tls"], None),
            (ResourceType::Certificate, vec!["*"], None),
        ] {
            let request = DeltaDiscoveryRequest {
                type_url: kind.url().to_owned(),
                resource_names_subscribe: names.iter().map(|it| (*it).to_owned()).collect(),
                ..DeltaDiscoveryRequest::default()
            };
            // It stays open, or the answer would be that the client left.
            let frames = futures::stream::iter([Ok::<_, Status>(Frame::data(framed(&request)))]);
            let frames = frames.chain(futures::stream::pending());
            let requests = messages(Body::new(StreamBody::new(frames)));
            let (mut answers, _) =
                discovery.follow(HeaderMap::new(), requests, None).await.unwrap();
            match (answers.recv().await.unwrap(), expected) {
                (Ok(answer), Some(count)) => assert_eq!(answer.resources.len(), count),
                (Err(status), None) => {
                    assert_eq!(status.code(), tonic::Code::PermissionDenied, "{names:?}");
                }
                (answer, _) => panic!("{names:?}: {answer:?}"),
            }
        }
    }

    /// A pod that is of a Gateway if it says so, and a token of it.
    fn pod_of(api: &FakeApi, name: &str, of: &str, manager: &str) -> (Event, HeaderMap) {
        let labels = json!({"gateway.networking.k8s.io/gateway-name": of.replace("-ambit", ""),
            "gateway.istio.io/managed": manager, "pod-template-hash": "h"});
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
            "name": format!("{of}-h"), "uid": "r"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": labels,
                "ownerReferences": [owner]},
            "spec": {"nodeName": "node-1", "serviceAccountName": of, "containers": []}});
        let exp = SystemTime::now() + Duration::from_secs(600);
        let exp = exp.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let body = json!({"aud": ["istio-ca"], "exp": exp, "name": name}).to_string();
        let token = format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(body));
        let user = format!("system:serviceaccount:shop:{of}");
        let extra = json!({"authentication.kubernetes.io/pod-name": [name],
            "authentication.kubernetes.io/pod-uid": [name]});
        let user = json!({"username": user, "extra": extra});
        let review = json!({"authenticated": true, "audiences": ["istio-ca"], "user": user});
        api.review(&token, review);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        (Event::Put(stored(Kind::Pod, pod.to_string().as_bytes()).unwrap()), headers)
    }

    /// Asks for these names; one after `=` is told to be held.
    fn asking(kind: ResourceType, names: &[&str]) -> DeltaDiscoveryRequest {
        let (held, names): (Vec<&str>, Vec<&str>) =
            names.iter().copied().partition(|name| name.starts_with('='));
        let held = held.iter().map(|name| HeldVersion::new(&name[1..], ""));
        DeltaDiscoveryRequest {
            type_url: kind.url().to_owned(),
            resource_names_subscribe: names.into_iter().map(str::to_owned).collect(),
            initial_resource_versions: held.collect(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_gateway_serves_is_sent_to_its_own_pods_alone() {
        let (drain, api) = (Drain::new(), FakeApi::default());
        let mut discovery = discovery(&drain);
        let world = discovery.world.clone();
        let callers = Callers::Reviewed(Arc::new(Reviews::new(api.client())));
        let trusted_accounts = vec![("shop".into(), "node".into())];
        discovery.authentication =
            Some(Authentication { callers, world: world.clone(), trusted_accounts });
        let gateway = |name: &str, class: &str, listener: Value| {
            let gateway = json!({"apiVersion": "", "kind": "Gateway",
                "metadata": {"namespace": "shop", "name": name},
                "spec": {"gatewayClassName": class, "listeners": [listener]}});
            Event::Put(stored(Kind::Gateway, gateway.to_string().as_bytes()).unwrap())
        };
        let web = || json!({"name": "web", "protocol": "HTTP", "port": 80});
        let mesh = json!({"name": "mesh", "protocol": "HBONE", "port": 15008});
        world.apply(vec![
            gateway("one", "ambit", web()),
            gateway("two", "ambit", web()),
            gateway("way", "ambit-waypoint", mesh),
        ]);
        let (edge, way) = ("istio.io-gateway-controller", "istio.io-mesh-controller");
        let one = "shop/one-ambit.shop.svc.cluster.local";
        let key = "shop/one-ambit.shop.svc.cluster.local/shop/tls";
        let held = "=shop/one-ambit.shop.svc.cluster.local/shop/tls";
        let two_itself = "shop/two-ambit.shop.svc.cluster.local";
        let two = "shop/two-ambit.shop.svc.cluster.local/shop/tls";
        let longer = "shop/one-ambit.shop.svc.cluster.localhost/shop/tls";
        let route = "shop/one-ambit.shop.svc.cluster.local/HTTPRoute/shop/r";
        let (gateways, keys) = (ResourceType::Gateway, ResourceType::Certificate);
        for (kind, name, of, manager, asked, expected) in [
            (gateways, "one-1", "one-ambit", edge, vec![one], true),
            (gateways, "two-1", "two-ambit", edge, vec![one], false),
            (gateways, "two-2", "two-ambit", edge, vec![two_itself, one], false),
            (gateways, "way-1", "way", way, vec![one], false),
            (gateways, "way-2", "way", way, vec!["shop/way.shop.svc.cluster.local"], false),
            (gateways, "node-1", "node", "", vec![one], false),
            (gateways, "one-2", "one-ambit", edge, vec!["*"], false),
            (gateways, "one-6", "one-ambit", edge, vec![route], true),
            (gateways, "two-5", "two-ambit", edge, vec![two_itself, route], false),
            (gateways, "one-7", "one-ambit", edge, vec![longer], false),
            (keys, "one-3", "one-ambit", edge, vec![key], true),
            (keys, "one-4", "one-ambit", edge, vec![key, longer], false),
            (keys, "one-5", "one-ambit", edge, vec!["*"], false),
            (keys, "two-3", "two-ambit", edge, vec![key], false),
            (keys, "two-4", "two-ambit", edge, vec![two, held], false),
            (keys, "way-3", "way", way, vec![key], false),
            (keys, "node-2", "node", "", vec![key], false),
        ] {
            let (pod, headers) = pod_of(&api, name, of, manager);
            world.apply(vec![pod]);
            let request = asking(kind, &asked);
            let frames = futures::stream::iter([Ok::<_, Status>(Frame::data(framed(&request)))]);
            let frames = frames.chain(futures::stream::pending());
            let requests = messages(Body::new(StreamBody::new(frames)));
            let (mut answers, _) = discovery.follow(headers, requests, None).await.unwrap();
            match answers.recv().await.unwrap() {
                // There is no such Secret: then it is told that it is gone.
                Ok(answer) => {
                    let count = answer.resources.len() + answer.removed_resources.len();
                    assert!(expected && count == 1, "{name} {asked:?}");
                }
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::PermissionDenied, "{name}");
                    let why = match asked[..] {
                        ["*"] => "nobody is sent all",
                        _ => "own pods alone",
                    };
                    assert!(!expected && status.message().contains(why), "{status}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asked_for_names_is_not_behind_when_others_change() {
        let drain = Drain::new();
        let discovery = discovery(&drain);
        let (asks, asked) = mpsc::channel::<Bytes>(2);
        let frames = ReceiverStream::new(asked).map(|it| Ok::<_, Status>(Frame::data(it)));
        let requests = messages(Body::new(StreamBody::new(frames)));
        let (mut answers, _) = discovery.follow(HeaderMap::new(), requests, None).await.unwrap();
        let request = DeltaDiscoveryRequest {
            type_url: ResourceType::Address.url().to_owned(),
            resource_names_subscribe: vec!["*".to_owned(), "Kubernetes//Pod/shop/pod-1".to_owned()],
            resource_names_unsubscribe: vec!["*".to_owned()],
            ..DeltaDiscoveryRequest::default()
        };
        asks.send(framed(&request)).await.unwrap();
        let answer = answers.recv().await.unwrap().unwrap();
        assert_eq!(answer.resources.len(), 1);
        let request = DeltaDiscoveryRequest {
            type_url: answer.type_url,
            response_nonce: answer.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        asks.send(framed(&request)).await.unwrap();
        let behind = || discovery.clients.behind(&discovery.world.resources().borrow());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(behind(), Vec::<String>::new());
        discovery.world.apply(pod(5000).into());
        assert_eq!(behind().len(), 1, "it has not been looked at yet");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(behind(), Vec::<String>::new());
        assert!(answers.try_recv().is_err(), "nothing of it concerns the client");
    }
}
