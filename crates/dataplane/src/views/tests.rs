//! Views against a control plane in this process, over real sockets.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use ambit_model::http::policy::{Action as RequestAction, RequestPolicy};
use ambit_model::http::service::ServiceHttp;
use ambit_model::names::PolicyName;
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::Service;
use ambit_model::workload::{GatewayAddress, GatewayDestination, Workload};
use ambit_wire::proto::ambit::http as layer7;
use ambit_wire::proto::envoy::service::discovery::v3::{self as proto, HeldVersion};
use ambit_wire::proto::istio::{security, workload};
use ambit_wire::xds::content_version;
use futures::Stream;
use prost::Message as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Status, Streaming};
use zeroize::Zeroizing;

use super::*;
use crate::certificates::{Certificates, Clock};
use crate::control_plane::{ControlPlane, RootCertificate, Token};
use crate::demand::{DEMAND_TIMEOUT, DEMANDS, demand};
use crate::memory::Budget;
use crate::settings::{Hbone, Settings, Sockets};

type Responses = mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>;

/// One stream as the control plane sees it.
struct Session {
    requests: Streaming<DeltaDiscoveryRequest>,
    responses: Responses,
    metadata: tonic::metadata::MetadataMap,
}

impl Session {
    /// The next request of this type.
    async fn request(&mut self) -> DeltaDiscoveryRequest {
        self.requests.message().await.expect("unbroken").expect("a request")
    }

    /// The opening requests, policies first.
    async fn opening(&mut self) -> [DeltaDiscoveryRequest; 2] {
        let mut both = [self.request().await, self.request().await];
        both.sort_by(|a, b| a.type_url.cmp(&b.type_url));
        assert!(both[0].type_url.ends_with("Authorization"));
        both
    }

    /// The next request that asks for names, or no longer does; replies are skipped.
    async fn names(&mut self) -> (String, Vec<String>, Vec<String>) {
        loop {
            let it = self.request().await;
            let (new, old) = (it.resource_names_subscribe, it.resource_names_unsubscribe);
            if !new.is_empty() || !old.is_empty() {
                return (it.type_url, new, old);
            }
        }
    }

    async fn respond(&self, nonce: &str, kind: ResourceType, resources: Vec<proto::Resource>) {
        let response = DeltaDiscoveryResponse {
            type_url: kind.url().to_owned(),
            nonce: nonce.to_owned(),
            resources: resources.iter().map(|it| it.encode_to_vec().into()).collect(),
            ..Default::default()
        };
        self.responses.send(Ok(response)).await.expect("the proxy listens");
    }
}

struct Plane {
    sessions: mpsc::Sender<Session>,
    compares: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl proto::aggregated_discovery_service_server::AggregatedDiscoveryService for Plane {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<proto::DiscoveryResponse, Status>> + Send>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        _request: Request<Streaming<proto::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("delta only"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (responses, stream) = mpsc::channel(16);
        let metadata = request.metadata().clone();
        let session = Session { requests: request.into_inner(), responses, metadata };
        let sent = self.sessions.send(session).await;
        sent.map_err(|_| Status::unavailable("the test has ended"))?;
        let mut response = Response::new(ReceiverStream::new(stream));
        if self.compares.load(Ordering::Relaxed) {
            let announced = AsciiMetadataValue::from_static(digest::RESUME_DIGESTS);
            response.metadata_mut().insert(digest::RESUME_HEADER, announced);
        }
        Ok(response)
    }
}

/// What a role might set.
pub(crate) fn settings() -> Settings {
    Settings {
        component: "ambit-proxy",
        network: "".into(),
        sockets: Sockets { mark: Some(1337), keepalive: None, user_timeout: None, ipv6: true },
        hbone: Hbone {
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 1 << 26,
            frame_size_bytes: 1 << 20,
            max_streams_per_connection: 100,
            idle_timeout: Duration::from_secs(300),
        },
        memory: Budget { worker_bytes: 512 << 20, pod_bytes: 128 << 20 },
        threads: 1,
        original_source: true,
        resolvers: Vec::new(),
        policy_info_logging: false,
    }
}

/// How the control plane at this address is asked.
fn access(address: SocketAddr) -> Access {
    let header = ("x-extra".parse().expect("a name"), AsciiMetadataValue::from_static("1"));
    let service = ControlPlane {
        uri: format!("http://{address}").parse().expect("a URI"),
        root: RootCertificate::System,
        server_name: "localhost".into(),
        headers: vec![header],
    };
    let token = Token::Literal(Zeroizing::new("a.b.c".into()));
    Access { service, token, cluster_id: "Kubernetes".into(), mark: Some(1337), outside: None }
}

/// A control plane and a proxy that follows it.
struct World {
    mesh: Arc<Mesh>,
    sessions: mpsc::Receiver<Session>,
    /// Whether the control plane says that it compares digests.
    compares: Arc<AtomicBool>,
    said: mpsc::Receiver<Learned>,
}

impl World {
    async fn new(on_demand: bool, restored: Option<Snapshot>) -> Self {
        Self::of(on_demand, restored, None).await
    }

    /// A proxy, or the waypoint of a service.
    async fn of(
        on_demand: bool,
        restored: Option<Snapshot>,
        waypoint: Option<ServiceName>,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address: SocketAddr = listener.local_addr().expect("an address");
        let (plane, sessions) = mpsc::channel(4);
        let compares = Arc::<AtomicBool>::default();
        let plane = Plane { sessions: plane, compares: compares.clone() };
        let service =
            proto::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer::new(
                plane,
            );
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let (certificates, _asks) = Certificates::new(Clock::system());
        let (demand, demands) = demand(on_demand);
        let mesh = Arc::new(Mesh::new(settings(), certificates, demand));
        let (successor, said) = Successor::new();
        let metadata = NodeMetadata {
            id: "ztunnel~1.1.1.1~proxy.system~system.svc.cluster.local".into(),
            fields: BTreeMap::from([("NODE_NAME".into(), "node".into())]),
        };
        let (own, access) = (mesh.clone(), access(address));
        let mut views = match waypoint {
            None => Views::new(own, access, &metadata, successor, demands),
            Some(it) => {
                let front = Front::Waypoint(it);
                Views::of_front(own, access, &metadata, successor, demands, front)
            }
        };
        if let Some(snapshot) = restored {
            views.restore(snapshot);
        }
        tokio::spawn(views.run());
        Self { mesh, sessions, compares, said }
    }

    async fn session(&mut self) -> Session {
        self.sessions.recv().await.expect("the proxy connects")
    }

    /// The next change that a successor received.
    async fn mirrored(&mut self) -> (Delta, bool) {
        loop {
            let learned = self.said.recv().await.expect("something is said");
            let Learned::View { delta, complete } = learned else { panic!("{learned:?}") };
            if delta != Delta::default() {
                return (delta, complete);
            }
        }
    }

    async fn until_known(&self, uid: &str) {
        let mut changed = self.mesh.view_changed.subscribe();
        while self.mesh.view.load().workload(uid).is_none() {
            changed.changed().await.expect("alive");
        }
    }
}

fn resource(name: &str, type_url: &str, body: Vec<u8>) -> proto::Resource {
    proto::Resource {
        name: name.to_owned(),
        version: content_version(&body),
        resource: Some(ambit_wire::proto::Any { type_url: type_url.into(), value: body.into() }),
        ..Default::default()
    }
}

fn pod(name: &str) -> proto::Resource {
    let uid = format!("k//Pod/shop/{name}");
    let mut pod = Workload::named(uid.as_str(), "shop", name);
    pod.addresses = vec![[10, 0, 0, 1].into()].into();
    let body = workload::Address::from(&pod).encode_to_vec();
    resource(&uid, ResourceType::Address.url(), body)
}

fn policy(name: &str) -> proto::Resource {
    let policy = Policy {
        key: ambit_model::names::PolicyName::new("shop", name),
        scope: PolicyScope::Namespace,
        action: Action::Deny,
        rules: Vec::new(),
        dry_run: false,
        is_of_waypoints: false,
    };
    let body = security::Authorization::from(&policy).encode_to_vec();
    resource(&format!("shop/{name}"), ResourceType::Authorization.url(), body)
}

#[tokio::test]
async fn a_view_is_published_mirrored_and_then_acknowledged() {
    let mut world = World::new(false, None).await;
    let mut session = world.session().await;
    assert_eq!(session.metadata.get("authorization").expect("sent"), "Bearer a.b.c");
    assert_eq!(session.metadata.get("x-extra").expect("sent"), "1");
    assert_eq!(session.metadata.get("clusterid").expect("sent"), "Kubernetes");
    let [policies, addresses] = session.opening().await;
    assert!(policies.initial_resource_versions.is_empty());
    assert!(addresses.resource_names_subscribe.is_empty(), "the wildcard");
    let node = addresses.node.expect("introduces itself");
    assert!(node.id.starts_with("ztunnel~"), "{}", node.id);
    session.respond("1", ResourceType::Authorization, vec![policy("deny")]).await;
    let acknowledged = session.request().await;
    assert_eq!((&*acknowledged.response_nonce, acknowledged.error_detail), ("1", None));
    let (delta, complete) = world.mirrored().await;
    assert_eq!((delta.resources.len(), complete), (1, false));
    assert!(!*world.mesh.view_complete.borrow(), "half a view serves nobody");
    session.respond("2", ResourceType::Address, vec![pod("cart")]).await;
    assert_eq!(session.request().await.response_nonce, "2");
    let (delta, complete) = world.mirrored().await;
    assert_eq!((delta.resources.len(), complete), (1, true));
    assert!(*world.mesh.view_complete.borrow());
    let view = world.mesh.view.load();
    assert!(view.workload("k//Pod/shop/cart").is_some());
    assert_eq!(view.policies().count(), 1);
}

#[tokio::test]
async fn a_bad_resource_is_refused_by_name_and_the_good_ones_are_taken() {
    let mut world = World::new(false, None).await;
    let mut session = world.session().await;
    session.opening().await;
    let damaged = resource("bad", ResourceType::Address.url(), vec![0xff; 4]);
    session.respond("1", ResourceType::Address, vec![damaged, pod("cart")]).await;
    let refused = session.request().await;
    assert_eq!(refused.response_nonce, "1");
    let detail = refused.error_detail.expect("a refusal");
    assert!(detail.message.contains("bad"), "{}", detail.message);
    world.until_known("k//Pod/shop/cart").await;
}

#[tokio::test]
async fn a_lost_stream_is_resumed_with_what_is_held() {
    let mut world = World::new(false, None).await;
    let mut session = world.session().await;
    session.opening().await;
    session.respond("1", ResourceType::Authorization, vec![policy("deny")]).await;
    session.respond("2", ResourceType::Address, vec![pod("cart")]).await;
    world.until_known("k//Pod/shop/cart").await;
    drop(session);
    let mut session = world.session().await;
    let [policies, addresses] = session.opening().await;
    let version = |resource: proto::Resource| HeldVersion::new(&resource.name, &resource.version);
    assert_eq!(policies.initial_resource_versions, [version(policy("deny"))]);
    assert_eq!(addresses.initial_resource_versions, [version(pod("cart"))]);
    assert!(world.mesh.view.load().workload("k//Pod/shop/cart").is_some(), "nothing is lost");
    // Removed while the proxy was away: the control plane says so now.
    let removal = DeltaDiscoveryResponse {
        type_url: ResourceType::Address.url().to_owned(),
        nonce: "3".into(),
        removed_resources: vec!["k//Pod/shop/cart".into()],
        ..Default::default()
    };
    session.responses.send(Ok(removal)).await.expect("the proxy listens");
    assert_eq!(session.request().await.response_nonce, "3");
    assert!(world.mesh.view.load().workload("k//Pod/shop/cart").is_none());
}

#[tokio::test]
async fn who_compares_digests_gets_them_and_nobody_else() {
    let mut world = World::new(false, None).await;
    world.compares.store(true, Ordering::Relaxed);
    let mut session = world.session().await;
    let [_, addresses] = session.opening().await;
    assert!(addresses.held_digests.is_empty(), "nothing is known of the server");
    session.respond("1", ResourceType::Address, vec![pod("cart")]).await;
    assert_eq!(session.request().await.response_nonce, "1");
    drop(session);
    let mut session = world.session().await;
    let [_, addresses] = session.opening().await;
    assert!(!addresses.held_digests.is_empty() && addresses.initial_resource_versions.is_empty());
    let asking = DeltaDiscoveryResponse {
        type_url: ResourceType::Address.url().to_owned(),
        nonce: "2".into(),
        differing_groups: vec![0],
        ..Default::default()
    };
    session.responses.send(Ok(asking)).await.expect("the proxy listens");
    let named = session.request().await;
    let cart = pod("cart");
    let expected = [HeldVersion::new(&cart.name, &cart.version)];
    assert_eq!((&*named.response_nonce, &*named.initial_resource_versions), ("2", &expected[..]));
    // Another control plane takes over, which would not understand digests.
    world.compares.store(false, Ordering::Relaxed);
    drop(session);
    let mut misunderstood = world.session().await;
    misunderstood.opening().await;
    let mut session = world.session().await;
    let [_, addresses] = session.opening().await;
    assert_eq!(addresses.initial_resource_versions, expected);
    assert!(addresses.held_digests.is_empty());
}

#[test]
fn what_the_control_plane_says_is_shown_as_it_says_it() {
    let check = |status: Status, expected: &str| {
        let shown = ambit_words::error_chain(&refused(status));
        assert_eq!(shown, format!("the control plane refused discovery: {expected}"));
    };
    let said = "no WorkloadEntry \"db\"; make it again";
    check(Status::permission_denied(said), said);
    check(Status::unavailable(""), tonic::Code::Unavailable.description());
    let reset = || std::io::Error::other("connection reset");
    check(Status::from_error(Box::new(reset())), "connection reset");
    let mut lost = Status::unknown("transport error");
    lost.set_source(std::sync::Arc::new(reset()));
    check(lost, "transport error: connection reset");
}

#[tokio::test]
async fn an_error_of_the_control_plane_leaves_the_view_in_force() {
    let mut world = World::new(false, None).await;
    let mut session = world.session().await;
    session.opening().await;
    session.respond("1", ResourceType::Address, vec![pod("cart")]).await;
    world.until_known("k//Pod/shop/cart").await;
    let failed = session.responses.send(Err(Status::unavailable("leaving"))).await;
    failed.expect("the proxy listens");
    let mut session = world.session().await;
    session.opening().await;
    assert!(world.mesh.view.load().workload("k//Pod/shop/cart").is_some());
}

#[tokio::test]
async fn a_restored_view_serves_at_once_and_is_resumed() {
    let kept = |resource: proto::Resource, kind: ResourceType| {
        ambit_wire::proto::ambit::snapshot::Resource {
            type_url: kind.url().into(),
            name: resource.name,
            version: resource.version,
            body: resource.resource.expect("a body").value,
        }
    };
    let resources = vec![
        kept(policy("deny"), ResourceType::Authorization),
        kept(pod("cart"), ResourceType::Address),
    ];
    let snapshot = Snapshot { resources, crl_pem: String::new(), created_unix: 1 };
    let mut world = World::new(false, Some(snapshot)).await;
    assert!(*world.mesh.view_complete.borrow(), "before the control plane said anything");
    assert!(world.mesh.view.load().workload("k//Pod/shop/cart").is_some());
    let mut session = world.session().await;
    let [policies, addresses] = session.opening().await;
    assert_eq!(policies.initial_resource_versions.len(), 1);
    assert_eq!(addresses.initial_resource_versions.len(), 1);
}

#[tokio::test]
async fn on_demand_addresses_are_asked_for_when_needed() {
    let mut world = World::new(true, None).await;
    assert!(world.mesh.demand.is_needed());
    let mut session = world.session().await;
    let [policies, addresses] = session.opening().await;
    assert!(policies.resource_names_subscribe.is_empty(), "policies are never on demand");
    assert_eq!(addresses.resource_names_subscribe, ["*"]);
    assert_eq!(addresses.resource_names_unsubscribe, ["*"]);
    let mesh = world.mesh.clone();
    let needed = tokio::spawn(async move { mesh.demand.address("/10.0.0.1".into()).await });
    let request = session.request().await;
    assert_eq!(request.resource_names_subscribe, ["/10.0.0.1"]);
    let mut found = pod("cart");
    found.aliases = vec!["/10.0.0.1".into()];
    session.respond("1", ResourceType::Address, vec![found]).await;
    needed.await.expect("answered");
    assert!(world.mesh.view.load().workload("k//Pod/shop/cart").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_connection_does_not_wait_longer_when_nobody_takes_demands() {
    let (demand, _nobody) = demand(true);
    let waiting = |number: usize| {
        let demand = demand.clone();
        async move { demand.address(format!("/10.0.0.{number}")).await }
    };
    // One more than the queue holds.
    let all = futures::future::join_all((0..=DEMANDS).map(waiting));
    let start = tokio::time::Instant::now();
    tokio::time::timeout(2 * DEMAND_TIMEOUT, all).await.expect("all go on");
    assert_eq!(start.elapsed(), DEMAND_TIMEOUT);
}

fn http_service(host: &str, policies: &[&str]) -> proto::Resource {
    let mut service = ServiceHttp::named(ServiceName::new("shop", host));
    service.policies = policies.iter().map(|it| PolicyName::new("shop", *it)).collect();
    let body = layer7::Service::from(&service).encode_to_vec();
    resource(&service.service.to_string(), ResourceType::HttpService.url(), body)
}

#[tokio::test]
async fn a_waypoint_asks_for_what_it_fronts_and_is_complete_when_it_has_it() {
    let (own, web) = (ServiceName::new("shop", "waypoint"), ServiceName::new("shop", "web"));
    let mut world = World::of(false, None, Some(own.clone())).await;
    let mut session = world.session().await;
    let mut opening = Vec::new();
    for _ in 0..4 {
        let request = session.request().await;
        let held = request.initial_resource_versions.iter().filter_map(HeldVersion::texts);
        let held: Vec<String> = held.map(|(name, version)| format!("{name}={version}")).collect();
        opening.push((request.type_url, held, request.resource_names_unsubscribe));
    }
    let [policies, services] = LAYER7.map(|it| it.url().to_owned());
    let nothing_else = vec!["*".to_owned()];
    assert!(opening.contains(&(policies.clone(), Vec::new(), nothing_else.clone())), "{opening:?}");
    let awaited = vec!["shop/waypoint=".to_owned()];
    assert!(opening.contains(&(services.clone(), awaited, nothing_else)), "{opening:?}");

    session.respond("1", ResourceType::Authorization, Vec::new()).await;
    let fronted = |waypoint: Option<&ServiceName>| {
        let mut service = Service::named("shop", "web");
        service.waypoint = waypoint.map(|it| {
            let destination = GatewayDestination::Hostname(it.clone());
            GatewayAddress { destination, hbone_mtls_port: 15008 }
        });
        let body = workload::Address::from(&service).encode_to_vec();
        resource("shop/web", ResourceType::Address.url(), body)
    };
    session.respond("2", ResourceType::Address, vec![fronted(Some(&own))]).await;
    let web_name = vec!["shop/web".to_owned()];
    assert_eq!(session.names().await, (services.clone(), web_name.clone(), Vec::new()));
    let both = vec![http_service("waypoint", &[]), http_service("web", &["admins"])];
    session.respond("3", ResourceType::HttpService, both).await;
    let admins = vec!["shop/admins".to_owned()];
    assert_eq!(session.names().await, (policies.clone(), admins.clone(), Vec::new()));
    assert!(!*world.mesh.view_complete.borrow(), "it would deny what it is to allow");

    let key = PolicyName::new("shop", "admins");
    let action = RequestAction::Deny;
    let policy =
        RequestPolicy { key, action, is_dry_run: false, rules: Vec::new(), condition: None };
    let body = layer7::RequestPolicy::from(&policy).encode_to_vec();
    let policy = resource("shop/admins", ResourceType::RequestPolicy.url(), body);
    session.respond("4", ResourceType::RequestPolicy, vec![policy]).await;
    let mut complete = world.mesh.view_complete.subscribe();
    complete.wait_for(|it| *it).await.expect("alive");
    let view = world.mesh.view.load_full();
    let known = view.http_service(&web).expect("it was sent");
    assert!(view.request_policies_of(known).all(|it| it.is_ok()));

    // It is no longer fronted: nothing of it is kept.
    session.respond("5", ResourceType::Address, vec![fronted(None)]).await;
    assert_eq!(session.names().await, (policies, Vec::new(), admins));
    assert_eq!(session.names().await, (services, Vec::new(), web_name));
    let view = world.mesh.view.load();
    assert!(view.http_service(&web).is_none() && view.http_service(&own).is_some());
}
