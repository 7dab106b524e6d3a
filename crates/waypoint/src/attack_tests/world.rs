//! A waypoint, its mesh, and clients whose tunnels come in.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ambit_dataplane::certificates::{Authority as Sign, Certificates, Clock, Keeper, SignError};
use ambit_dataplane::demand::Demand;
use ambit_dataplane::descriptors::Shares;
use ambit_dataplane::learned::Successor;
use ambit_dataplane::mesh::Mesh;
use ambit_dataplane::own::OwnWorkload;
use ambit_model::http::bytes::BytesRule;
use ambit_model::http::certificate::{Certificate, CertificateName};
use ambit_model::http::gateway::{
    self, Challenge, Gateway, GatewayRoute, GatewayRouteName, Listener, Proof,
};
use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::rule::Rule;
use ambit_model::http::service::{Protocol, ServiceHttp};
use ambit_model::identity::Identity;
use ambit_model::names::{NetworkAddress, ServiceName, WorkloadName};
use ambit_model::service::{Mode, Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::{
    AppProtocol, GatewayAddress, GatewayDestination, PortMapping, Workload,
};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, Settings, Transport, Tunnel};
use ambit_net::netlink::RouteSocket;
use ambit_net::socket::{ListenOptions, tcp_listener};
use ambit_net::sys::process::{self, Namespaces};
use ambit_tls::service::ServerCertificate;
use ambit_tls::{Authority, AuthorityBundle};
use clap::Parser;
use futures::future::BoxFuture;
use http::{Method, Request};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::{LocalSet, spawn_local};

use crate::config::{Args, Config, FurtherArgs, Place};
use crate::exports::Queue;
use crate::shared::Shared;
use crate::worker;

/// Whatever has not happened by then does not happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Tunnels that one connection of a client's proxy carries.
const TUNNELS: usize = 100;
const HOUR: Duration = Duration::from_secs(3600);
pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Where the servers are, in the test's own network namespace: no endpoint has a loopback address.
const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 3)];
/// Set in the process that runs inside a user namespace.
const INSIDE: &str = "AMBIT_TEST_IN_USER_NAMESPACE";

/// The service's ports, by what they are declared as. Each has a server of its own.
pub(super) const HTTP: u16 = 80;
pub(super) const UNDECLARED: u16 = 81;
pub(super) const HTTP2: u16 = 82;
/// Where the good client goes.
pub(super) const GOOD: u16 = 83;

/// What a good client is answered.
const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
    #[command(flatten)]
    further: FurtherArgs,
}

#[derive(Clone)]
struct Signer(Arc<AuthorityBundle>);

impl Sign for Signer {
    fn sign(
        &self,
        identity: &Identity,
        csr_pem: String,
    ) -> BoxFuture<'static, Result<Vec<String>, SignError>> {
        let signed = self.0.sign(&csr_pem, identity, HOUR, SystemTime::now()).unwrap();
        Box::pin(async move { Ok(signed) })
    }
}

/// Another namespace than the service's.
pub(super) const STRANGER: &str = "other";

/// What a test works with.
pub(super) struct World {
    shared: Arc<Shared>,
    hbone: SocketAddr,
    drain: Drain,
    clients: RefCell<Vec<Rc<Client>>>,
    apart: RefCell<Vec<Rc<Client>>>,
    servers: RefCell<Vec<(u16, TcpListener)>>,
    thread: Option<JoinHandle<()>>,
    control: Option<Runtime>,
}

/// A listener, and the rules that are attached to it for its own host.
pub(super) struct Served {
    listener: Listener,
    rules: Vec<Arc<Rule>>,
    connections: Vec<Arc<BytesRule>>,
}

impl Served {
    /// A listener without routes.
    pub(super) fn bare(listener: Listener) -> Self {
        Self { listener, rules: Vec::new(), connections: Vec::new() }
    }

    pub(super) fn with_rule(self, rule: Arc<Rule>) -> Self {
        Self { rules: vec![rule], ..self }
    }

    pub(super) fn with_bytes(self, rule: Arc<BytesRule>) -> Self {
        Self { connections: vec![rule], ..self }
    }

    fn route(self, gateway: &ServiceName) -> GatewayRoute {
        let Self { listener, rules, connections } = self;
        let route = format!("HTTPRoute/app/{}", listener.name).into();
        let name = GatewayRouteName { gateway: gateway.clone(), route };
        let places = vec![gateway::Place { listener: listener.name, hosts: vec![listener.host] }];
        GatewayRoute { name, places, rules, connections }
    }
}

/// What says that a gateway serves this.
fn served(
    own: &ServiceName,
    listeners: Vec<Served>,
    with: impl FnOnce(Gateway) -> Gateway,
) -> Vec<Change> {
    let gateway = with(Gateway::new(own.clone(), listeners.iter().map(|it| it.listener.clone())));
    let routes = listeners.into_iter().map(|it| Change::GatewayRoute(Arc::new(it.route(own))));
    routes.chain([Change::Gateway(Arc::new(gateway))]).collect()
}

/// Runs a test beside a waypoint with these flags.
pub(super) fn run(flags: &[&str], test: impl AsyncFnOnce(&World) + Send) {
    run_as(flags, Vec::new(), test);
}

/// Runs a test beside a gateway with these flags and listeners.
pub(super) fn run_gateway(
    flags: &[&str],
    listeners: Vec<Served>,
    test: impl AsyncFnOnce(&World) + Send,
) {
    let flags = [&["--position=gateway"], flags].concat();
    run_as(&flags, listeners, test);
}

fn run_as(flags: &[&str], listeners: Vec<Served>, test: impl AsyncFnOnce(&World) + Send) {
    if process::effective_uid() != 0 && std::env::var_os(INSIDE).is_none() {
        return run_as_root_of_a_user_namespace();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            process::unshare(Namespaces::NET).unwrap();
            let mut network = RouteSocket::open().unwrap();
            network.set_up("lo").unwrap();
            for address in [VIP, SERVERS[0], SERVERS[1]] {
                network.ensure_address("lo", IpAddr::V4(address).into()).unwrap();
            }
            run_here(flags, listeners, test);
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs the test that this thread is named for again, where it may make network namespaces.
fn run_as_root_of_a_user_namespace() {
    let thread = std::thread::current();
    let name = thread.name().unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    process::start_in_namespaces(&mut again, Namespaces::USER | Namespaces::NET);
    let output = again.output().expect("user namespaces, or root, are needed for this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "inside: {output:?}");
}

fn run_here(flags: &[&str], listeners: Vec<Served>, test: impl AsyncFnOnce(&World)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let mut world = World::new(flags, listeners).await;
        let testing = tokio::time::timeout(PATIENCE, test(&world));
        testing.await.expect("the test ends in time");
        world.clients.borrow_mut().clear();
        world.apart.borrow_mut().clear();
        world.shared.stopping.send_replace(true);
        let thread = world.thread.take().unwrap();
        tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
        world.control.take().unwrap().shutdown_background();
    });
}

impl World {
    async fn new(flags: &[&str], listeners: Vec<Served>) -> Self {
        let config = config(flags);
        let control = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let authority = Authority::generate("cluster.local", SystemTime::now()).unwrap();
        let signer = Signer(Arc::new(AuthorityBundle::new(authority)));
        let (certificates, asks) = Certificates::new(Clock::system());
        let settings = config.settings();
        let mesh = Arc::new(Mesh::new(settings, certificates.clone(), Demand::nothing()));
        let (successor, learned) = Successor::new();
        drop(learned);
        let metrics = mesh.metrics.clone();
        let nowhere = "/nonexistent".into();
        let keeper = Keeper::new(certificates.clone(), asks, signer, successor, metrics, nowhere);
        control.spawn(keeper.run());
        let stranger = Identity::new("cluster.local", STRANGER, "client");
        for identity in [identity("way"), identity("client"), stranger] {
            certificates.hold(identity.clone()).await;
            until("a certificate", || certificates.cached(&identity).is_some()).await;
        }
        let name = WorkloadName::new("app", "way-1");
        let shares = Shares::new(&mesh.descriptors, &name);
        let uid = name.to_string().into();
        let own = OwnWorkload {
            uid,
            name,
            netns: None,
            outside: None,
            identity: identity("way"),
            shares,
        };
        let mut servers = Vec::new();
        for port in [HTTP, UNDECLARED, HTTP2, GOOD] {
            servers.push((port, TcpListener::bind((SERVERS[0], 0)).await.unwrap()));
        }
        let mut view = view(&config, &servers);
        for change in served(&config.own_service(), listeners, |gateway| gateway) {
            view.apply(change);
        }
        mesh.publish(view);
        let (exports, _) = Queue::new();
        let shared = Arc::new(Shared::new(config, mesh, Arc::new(own), exports));
        let listener =
            tcp_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &ListenOptions::default());
        let listener = listener.unwrap();
        let hbone = listener.local_addr().unwrap();
        let listener = (shared.config.place == Place::Waypoint).then_some(listener);
        let serving = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            LocalSet::new().block_on(&runtime.unwrap(), worker::run(serving, listener));
        });
        let world = Self {
            shared,
            hbone,
            drain: Drain::new(),
            clients: RefCell::default(),
            apart: RefCell::default(),
            servers: RefCell::new(servers),
            thread: Some(thread),
            control: Some(control),
        };
        world.serve(GOOD, |stream| answer(stream, FINE));
        world
    }

    /// Serves a port, each connection by a task of its own.
    pub(super) fn serve<F: Future<Output = ()> + 'static>(
        &self,
        port: u16,
        each: impl Fn(TcpStream) -> F + 'static,
    ) {
        let mut servers = self.servers.borrow_mut();
        let at = servers.iter().position(|(of, _)| *of == port).unwrap();
        let (_, listener) = servers.remove(at);
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(each(stream));
            }
        });
    }

    /// One more endpoint of the service, at another address; its listener for `HTTP`.
    pub(super) async fn second_server(&self) -> TcpListener {
        let address = SERVERS[1];
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let mut server = Workload::named("Kubernetes//Pod/app/web-2", "app", "web-2");
        server.addresses = vec![IpAddr::V4(address)].into();
        server.node = "node".into();
        let (service_port, app_protocol) = (HTTP, AppProtocol::Unknown);
        let target_port = listener.local_addr().unwrap().port();
        server.serve(web(), vec![PortMapping { service_port, target_port, app_protocol }]);
        self.change(Change::Workload(server));
        listener
    }

    /// Changes what holds for the service.
    pub(super) fn change_http(&self, change: impl FnOnce(&mut ServiceHttp)) {
        let view = self.shared.mesh.view.load_full();
        let mut http = (**view.http_service(&web()).unwrap()).clone();
        change(&mut http);
        self.change(Change::HttpService(Arc::new(http)));
    }

    /// Changes the listeners of the gateway.
    pub(super) fn listen(&self, listeners: Vec<Served>) {
        self.serves(listeners, |gateway| gateway);
        self.shared.mesh.needs_changed.send_modify(|version| *version += 1);
    }

    /// The name of a route of the gateway.
    pub(super) fn route_of_gateway(&self, name: &str) -> GatewayRouteName {
        let route = format!("HTTPRoute/app/{name}").into();
        GatewayRouteName { gateway: self.shared.config.own_service(), route }
    }

    /// Changes the view, and with it what the gateway needs.
    pub(super) fn tell(&self, change: Change) {
        self.change(change);
        self.shared.mesh.needs_changed.send_modify(|version| *version += 1);
    }

    /// Changes what proves the gateway to backends. Of its Secret `app/own` this pair is known.
    pub(super) fn prove(&self, listeners: Vec<Served>, proof: Proof, own: &ServerCertificate) {
        let gateway = self.shared.config.own_service();
        let key = CertificateName { gateway: gateway.clone(), secret: "app/own".into() };
        let (chain_pem, key_pem) = (own.chain_pem.clone(), own.key_pem.clone());
        self.change(Change::Certificate(Arc::new(Certificate { key, chain_pem, key_pem })));
        self.serves(listeners, |gateway| gateway.with_proof(proof));
    }

    /// Has the gateway answer this challenge.
    pub(super) fn answer(&self, listeners: Vec<Served>, challenge: Challenge) {
        self.serves(listeners, |gateway| gateway.with_challenges(vec![challenge]));
    }

    /// Changes what the gateway serves.
    fn serves(&self, listeners: Vec<Served>, with: impl FnOnce(Gateway) -> Gateway) {
        let own = self.shared.config.own_service();
        served(&own, listeners, with).into_iter().for_each(|change| self.change(change));
    }

    /// Judges what comes in to the gateway by this policy alone.
    pub(super) fn judge_outside_by(&self, policy: RequestPolicy) {
        let key = policy.key.clone();
        self.change(Change::RequestPolicy(Arc::new(policy)));
        let mut http = ServiceHttp::named(self.shared.config.own_service());
        http.policies = vec![key];
        self.change(Change::HttpService(Arc::new(http)));
    }

    /// A connection from outside to a port of the gateway; it is waited for.
    pub(super) async fn enter(&self, port: u16) -> TcpStream {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return stream,
                // Its thread opens it in a moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }

    /// What a client from outside that sends these bytes is answered, to the end of the connection.
    pub(super) async fn ask_gateway(&self, port: u16, request: &[u8]) -> String {
        let mut client = self.enter(port).await;
        let _refused = client.write_all(request).await;
        let mut all = Vec::new();
        let _broken = client.read_to_end(&mut all).await;
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Judges the service's requests by this policy alone.
    pub(super) fn judge_by(&self, policy: RequestPolicy) {
        let key = policy.key.clone();
        self.change(Change::RequestPolicy(Arc::new(policy)));
        self.change_http(|http| http.policies = vec![key]);
    }

    /// A connection to the waypoint's port from this address, which says nothing yet.
    pub(super) async fn touch(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(self.hbone).await.unwrap()
    }

    fn change(&self, change: Change) {
        let mut view = (*self.shared.mesh.view.load_full()).clone();
        view.apply(change);
        self.shared.mesh.publish(view);
    }

    /// A client's connection to a port of the service, through its proxy and the waypoint.
    pub(super) async fn connect(&self, port: u16) -> Tunnel {
        self.try_connect(port).await.expect("the waypoint takes a connection")
    }

    /// The same; `None` if it is refused.
    pub(super) async fn try_connect(&self, port: u16) -> Option<Tunnel> {
        let last = self.clients.borrow().last().filter(|it| it.tunnels() < TUNNELS).cloned();
        let client = match last {
            Some(client) => client,
            None => {
                let client = Rc::new(self.proxy().await);
                self.clients.borrow_mut().push(client.clone());
                client
            }
        };
        open(&client, port).await
    }

    /// A connection of another proxy: readers that stand still use up the window that a connection
    /// of HBONE has here.
    pub(super) async fn connect_apart(&self, port: u16) -> Tunnel {
        let client = Rc::new(self.proxy().await);
        self.apart.borrow_mut().push(client.clone());
        open(&client, port).await.expect("the waypoint takes a connection")
    }

    /// Says that the service is for the clients of one namespace alone, or for all.
    pub(super) fn keep_private(&self, is_private: bool) {
        let mut service = (**self.shared.mesh.view.load().service(&web()).unwrap()).clone();
        service.namespace_only = is_private;
        self.change(Change::Service(service));
    }

    /// Gives the service a waypoint without a pod, and says whether it is entered at the gateway.
    pub(super) fn front(&self, is_entered: bool) {
        let service = (**self.shared.mesh.view.load().service(&web()).unwrap()).clone();
        self.front_by(service, "other", is_entered);
    }

    fn front_by(&self, mut service: Service, waypoint: &str, is_entered: bool) {
        let waypoint = ServiceName::new("app", format!("{waypoint}.app.svc.cluster.local"));
        let destination = GatewayDestination::Hostname(waypoint);
        service.waypoint = Some(GatewayAddress { destination, hbone_mtls_port: 15008 });
        let own = self.shared.config.own_service();
        service.entrances = if is_entered { vec![own] } else { Vec::new() };
        self.change(Change::Service(service));
    }

    /// One more service, with one port and one server of its own, of which the listener is kept.
    /// Its pod is of the other service too, without a port there.
    pub(super) async fn second_service(
        &self,
        name: &ServiceName,
        other: &ServiceName,
    ) -> TcpListener {
        let address = SERVERS[1];
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let mut server = Workload::named("Kubernetes//Pod/app/second-1", "app", "second-1");
        server.addresses = vec![IpAddr::V4(address)].into();
        server.node = "node".into();
        let (service_port, app_protocol) = (GOOD, AppProtocol::Unknown);
        let target_port = listener.local_addr().unwrap().port();
        server.serve(name.clone(), vec![PortMapping { service_port, target_port, app_protocol }]);
        server.serve(other.clone(), Vec::new());
        self.change(Change::Workload(server));
        self.change(Change::HttpService(Arc::new(ServiceHttp::named(name.clone()))));
        listener
    }

    /// Has the service choose no endpoint: what is asked for is where its address is.
    pub(super) async fn pass_through(&self) -> TcpListener {
        let mut service = (**self.shared.mesh.view.load().service(&web()).unwrap()).clone();
        service.load_balancing.mode = Mode::Passthrough;
        self.change(Change::Service(service));
        TcpListener::bind((VIP, GOOD)).await.unwrap()
    }

    /// Says which waypoint that service has, and whether it is entered at the gateway.
    pub(super) fn front_second(
        &self,
        name: &ServiceName,
        waypoint: Option<&str>,
        is_entered: bool,
    ) {
        let mut service = Service::named("app", name.hostname.clone());
        let ip = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 2));
        let address = NetworkAddress { network: "".into(), ip };
        service.addresses = vec![VirtualAddress { address, prefix_len: None }];
        let (service_port, target_port, app_protocol) = (GOOD, 0, AppProtocol::Unknown);
        service.ports = vec![PortMapping { service_port, target_port, app_protocol }];
        match waypoint {
            Some(waypoint) => self.front_by(service, waypoint, is_entered),
            None => self.change(Change::Service(service)),
        }
    }

    /// Whether the waypoint takes a connection of a client of this namespace: the service's own, or
    /// [`STRANGER`].
    pub(super) async fn takes(&self, namespace: &str, port: u16) -> bool {
        let client = Identity::new("cluster.local", namespace, "client");
        open(&self.proxy_of(&client).await, port).await.is_some()
    }

    /// The connection of a client's proxy.
    async fn proxy(&self) -> Client {
        self.proxy_of(&identity("client")).await
    }

    async fn proxy_of(&self, client: &Identity) -> Client {
        let certificates = &self.shared.mesh.certificates;
        let credentials = certificates.cached(client).unwrap();
        let transport = Transport::new(TcpStream::connect(self.hbone).await.unwrap());
        let activity = transport.activity();
        let proven = credentials.connector.connect(transport, &[identity("way")]).await;
        let (stream, _) = proven.unwrap();
        let settings = Settings::default();
        Client::start(stream, activity, &settings, &self.drain.guard())
    }

    /// What a client that sends these bytes and then nothing is answered, to the end of the
    /// connection.
    pub(super) async fn ask(&self, port: u16, request: &[u8]) -> String {
        let mut client = self.connect(port).await;
        // It may be refused before all is written.
        let _refused = client.write_all(request).await;
        let _refused = client.shutdown().await;
        text(&mut client).await
    }

    /// A good client is answered as ever.
    pub(super) async fn stays_good(&self) {
        let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        let answer = self.ask(GOOD, request).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("fine"), "{answer}");
    }

    /// Bytes that wait in the engine's buffers.
    pub(super) fn held_bytes(&self) -> usize {
        self.shared.config.engine.pressure.held_bytes()
    }

    /// Bytes that the tunnels of all clients hold, or may still be sent.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.shared.mesh.memory.reserved_bytes()
    }

    /// The sum of all series that begin with this and have this in their labels.
    pub(super) fn sum(&self, start: &str, part: &str) -> f64 {
        let text = self.shared.mesh.metrics.encode().unwrap();
        let lines = text.lines().filter(|line| line.starts_with(start) && line.contains(part));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The value of a metric, 0 if it is not there.
    pub(super) fn metric(&self, named: &str) -> f64 {
        let text = self.shared.mesh.metrics.encode().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(named)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

async fn open(client: &Client, port: u16) -> Option<Tunnel> {
    let to = SocketAddr::from((VIP, port)).to_string();
    let ask = Request::builder().method(Method::CONNECT).uri(to).body(()).unwrap();
    client.connect(ask).await.ok().map(|(_, tunnel)| tunnel)
}

fn config(flags: &[&str]) -> Config {
    let own = [
        "ambit",
        "--pod-name=way-1",
        "--pod-namespace=app",
        "--service-account=way",
        "--instance-ip=127.0.0.1",
        "--gateway-name=way",
        "--threads=1",
        "--drain=100ms",
        // A busy machine is no overload of the waypoint's.
        "--overload-lag=0",
    ];
    let cli = Cli::parse_from(own.iter().chain(flags));
    Config::new(&cli.args, &cli.further).unwrap()
}

fn identity(account: &str) -> Identity {
    Identity::new("cluster.local", "app", account)
}

/// The service.
pub(super) fn web() -> ServiceName {
    ServiceName::new("app", "web.app.svc.cluster.local")
}

fn view(config: &Config, servers: &[(u16, TcpListener)]) -> View {
    let own = config.own_service();
    let web = web();
    let mapping = |service_port, target_port| {
        let app_protocol = AppProtocol::Unknown;
        PortMapping { service_port, target_port, app_protocol }
    };
    let mut way = Workload::named("Kubernetes//Pod/app/way-1", "app", "way-1");
    way.addresses = vec![config.instance].into();
    way.service_account = "way".into();
    way.node = "node".into();
    way.serve(own.clone(), vec![mapping(15008, 15008)]);
    let mut server = Workload::named("Kubernetes//Pod/app/web-1", "app", "web-1");
    server.addresses = vec![IpAddr::V4(SERVERS[0])].into();
    server.node = "node".into();
    let ports = servers.iter().map(|(port, it)| mapping(*port, it.local_addr().unwrap().port()));
    server.serve(web.clone(), ports.collect());
    let mut service = Service::named("app", web.hostname.clone());
    let address = NetworkAddress { network: "".into(), ip: IpAddr::V4(VIP) };
    service.addresses = vec![VirtualAddress { address, prefix_len: None }];
    service.ports = servers.iter().map(|(port, _)| mapping(*port, 0)).collect();
    if config.place == Place::Waypoint {
        let destination = GatewayDestination::Hostname(own.clone());
        service.waypoint = Some(GatewayAddress { destination, hbone_mtls_port: 15008 });
    }
    let mut http = ServiceHttp::named(web);
    http.protocols.insert(HTTP, Protocol::Http);
    http.protocols.insert(HTTP2, Protocol::Http2);
    http.protocols.insert(GOOD, Protocol::Http);
    let mut view = View::default();
    view.apply(Change::Workload(way));
    view.apply(Change::Workload(server));
    view.apply(Change::Service(Service::named("app", own.hostname.clone())));
    view.apply(Change::Service(service));
    view.apply(Change::HttpService(Arc::new(http)));
    view.apply(Change::HttpService(Arc::new(ServiceHttp::named(own))));
    view
}

/// A server that answers whatever looks like the end of a request's head.
pub(super) async fn answer<S>(mut stream: S, answer: impl AsRef<[u8]>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut heard = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut heard).await {
        while let Some(at) = heard.windows(4).position(|it| it == b"\r\n\r\n") {
            heard.drain(..at + 4);
            if stream.write_all(answer.as_ref()).await.is_err() {
                return;
            }
        }
    }
}

/// All that comes.
pub(super) async fn text(stream: &mut Tunnel) -> String {
    let mut all = Vec::new();
    // One that is reset has said what it had to say.
    let _broken = stream.read_to_end(&mut all).await;
    String::from_utf8_lossy(&all).into_owned()
}

/// Waits for something.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect(what);
}

/// Counts, for servers whose tasks run on this thread.
#[derive(Clone, Default)]
pub(super) struct Count(Rc<Cell<usize>>);

impl Count {
    pub(super) fn add(&self, number: usize) {
        self.0.set(self.0.get() + number);
    }

    pub(super) fn remove(&self, number: usize) {
        self.0.set(self.0.get() - number);
    }

    pub(super) fn at_least(&self, number: usize) {
        self.0.set(self.0.get().max(number));
    }

    pub(super) fn get(&self) -> usize {
        self.0.get()
    }
}
