//! A mesh in this process: pods are network namespaces on one bridge, proxies are threads.
//!
//! Only the data path is real: namespaces, capture rules, sockets, certificates. The test writes
//! the view, and the certificate authority is a struct.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ambit_dataplane::certificates::{Authority as Sign, Certificates, Clock, Keeper, SignError};
use ambit_dataplane::demand::Demand;
use ambit_dataplane::descriptors::{Descriptors, Process, Shares};
use ambit_dataplane::learned::Successor;
use ambit_model::identity::Identity;
use ambit_model::names::{ServiceName, WorkloadName};
use ambit_model::policy::Policy;
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::{AppProtocol, PortMapping, Tunnel, Workload};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, HboneError, Settings, Transport};
use ambit_net::namespace::{NetNs, set_sysctl};
use ambit_net::netlink::{self, RouteSocket};
use ambit_net::nftables::{Chain, Family, Hook, Nftables, Priority, Protocol, Rule, Table};
use ambit_net::socket::{DialOptions, ListenOptions, tcp_dial, tcp_listener, udp_bind};
use ambit_net::sys::process::{self, Namespaces};
use ambit_tls::{Authority, AuthorityBundle};
use ambit_wire::admin;
use clap::Parser;
use futures::future::BoxFuture;
use http::{Method, Request, StatusCode};
use tempfile::NamedTempFile;
use tokio::sync::{mpsc, oneshot};

use crate::config::{Config, Environment, KernelPathUse, SameNode};
use crate::dataplane::{self, Command, Listeners};
use crate::dns;
use crate::pods::Pod;
use crate::shared::Shared;
use crate::worker::kernel_path;

/// No exchange takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const MARK: u32 = 0x539;
const TRANSPARENT: u32 = 0x111;
const MASK: u32 = 0xfff;
const HOUR: Duration = Duration::from_secs(3600);

/// Set in the process that runs inside the user namespace.
const INSIDE: &str = "AMBIT_TEST_IN_USER_NAMESPACE";

/// Runs a test body with the rights of root over new network namespaces.
pub(crate) fn privileged(test: &str, body: fn()) {
    if process::effective_uid() == 0 || std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let name = test.split_once("::").unwrap().1;
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    let namespaces = Namespaces::USER | Namespaces::NET | Namespaces::MOUNT;
    process::start_in_namespaces(&mut again, namespaces);
    let output = again.output().expect("user namespaces, or root, are needed for this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "inside: {output:?}");
}

/// Whether this process is root of a user namespace that [`privileged`] made, and of nothing else.
pub(crate) fn is_in_a_user_namespace() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The whole mesh of one test.
pub(crate) struct World {
    fabric: NetNs,
    authority: Arc<AuthorityBundle>,
    revocations: NamedTempFile,
    next_pod: AtomicU32,
}

/// One proxy.
pub(crate) struct Proxy {
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) thread: Option<JoinHandle<()>>,
    /// How many seconds its wall clock is ahead of ours.
    pub(crate) ahead_s: Arc<AtomicU64>,
    control: tokio::runtime::Runtime,
}

/// One pod, enrolled or not.
pub(crate) struct PodBox {
    pub(crate) netns: NetNs,
    pub(crate) v4: IpAddr,
    pub(crate) v6: IpAddr,
    pub(crate) workload: Workload,
    uid: String,
}

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: crate::Args,
}

/// The configuration that flags make.
pub(crate) fn config(flags: &[&str]) -> Config {
    let cli = Cli::parse_from(["ambit", "--node-name", "node"].iter().chain(flags));
    Config::new(&cli.args, &Environment::default()).unwrap()
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

impl World {
    pub(crate) fn new() -> Self {
        // Shown when a test fails. Another test of this process may have been first.
        let _first = tracing_subscriber::fmt().with_test_writer().try_init();
        let fabric = NetNs::create().unwrap();
        let mut links = RouteSocket::open_in(&fabric).unwrap();
        links.set_up("lo").unwrap();
        links.ensure_bridge("fabric").unwrap();
        links.set_up("fabric").unwrap();
        let authority = Authority::generate("cluster.local", SystemTime::now()).unwrap();
        let authority = Arc::new(AuthorityBundle::new(authority));
        let revocations = NamedTempFile::new().unwrap();
        Self { fabric, authority, revocations, next_pod: AtomicU32::new(1) }
    }

    /// Takes back the certificate that a pod has now.
    pub(crate) fn revoke(&self, proxy: &Proxy, pod: &PodBox) {
        let certificates = &proxy.shared.mesh.certificates;
        let credentials = certificates.cached(&pod.workload.identity()).unwrap();
        let serial = credentials.certificate.serial().clone();
        let list = self.authority.revoke(&[serial], SystemTime::now(), HOUR).unwrap();
        // Whoever reads it sees all of it, or the one before.
        let beside = self.revocations.path().with_extension("new");
        std::fs::write(&beside, list).unwrap();
        std::fs::rename(&beside, self.revocations.path()).unwrap();
    }

    /// A pod of a service account that is not in the mesh (yet).
    pub(crate) fn pod(&self, name: &str, service_account: &str) -> PodBox {
        let number = self.next_pod.fetch_add(1, Ordering::Relaxed);
        let (v4, v6) = (format!("10.9.0.{number}"), format!("fd09::{number:x}"));
        let netns = self.namespace_at(number, &v4, &v6);
        let mut workload =
            Workload::named(format!("Kubernetes//Pod/default/{name}"), "default", name);
        workload.addresses = vec![v4.parse().unwrap(), v6.parse().unwrap()].into();
        workload.service_account = service_account.into();
        workload.workload_name = name.into();
        workload.node = "node".into();
        let (v4, v6) = (v4.parse().unwrap(), v6.parse().unwrap());
        PodBox { netns, v4, v6, workload, uid: format!("uid-{name}") }
    }

    fn namespace_at(&self, number: u32, v4: &str, v6: &str) -> NetNs {
        let netns = NetNs::create().unwrap();
        // Addresses are ours alone: nobody has to be asked.
        netns.run(|| set_sysctl("net.ipv6.conf.default.accept_dad", "0").unwrap()).unwrap();
        let mut here = RouteSocket::open_in(&netns).unwrap();
        let mut there = RouteSocket::open_in(&self.fabric).unwrap();
        let cable = format!("pod{number}");
        there.ensure_veth(&cable, "eth0", Some(&netns)).unwrap();
        there.set_master(&cable, "fabric").unwrap();
        there.set_up(&cable).unwrap();
        here.set_up("lo").unwrap();
        here.ensure_address("eth0", format!("{v4}/16").parse().unwrap()).unwrap();
        here.ensure_address("eth0", format!("{v6}/64").parse().unwrap()).unwrap();
        here.set_up("eth0").unwrap();
        netns
    }

    /// A proxy with one data-plane thread.
    pub(crate) fn proxy(&self, same_node: SameNode) -> Proxy {
        self.proxy_of(same_node, None)
    }

    /// The same with a limit of descriptors, if given.
    pub(crate) fn proxy_of(&self, same_node: SameNode, limit: Option<usize>) -> Proxy {
        self.proxy_with(same_node, limit, &[])
    }

    /// The same with more flags.
    pub(crate) fn proxy_with(
        &self,
        same_node: SameNode,
        limit: Option<usize>,
        flags: &[&str],
    ) -> Proxy {
        let mut config = config(flags);
        config.same_node = same_node;
        let ahead_s = Arc::new(AtomicU64::new(0));
        let ahead = ahead_s.clone();
        let (certificates, asks) = Certificates::new(Clock::of(move || {
            SystemTime::now() + Duration::from_secs(ahead.load(Ordering::Relaxed))
        }));
        // What tests do not ask for they are not given: it is not possible everywhere.
        let kernel_path = match config.kernel_path {
            KernelPathUse::Auto => None,
            KernelPathUse::On | KernelPathUse::Off => kernel_path(&config).expect("as asked for"),
        };
        let mut shared = Shared::new(config, certificates.clone(), Demand::nothing(), kernel_path);
        if let Some(limit) = limit {
            let mesh = Arc::get_mut(&mut shared.mesh).expect("not shared yet");
            mesh.descriptors = Descriptors::new(Process { limit, threads: 1 });
        }
        shared.mesh.metrics.watch_descriptors(shared.mesh.descriptors.clone());
        let shared = Arc::new(shared);
        let control = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (successor, mut learned) = Successor::new();
        control.spawn(async move { while learned.recv().await.is_some() {} });
        let keeper = Keeper::new(
            certificates,
            asks,
            Signer(self.authority.clone()),
            successor,
            shared.mesh.metrics.clone(),
            self.revocations.path().to_owned(),
        );
        control.spawn(keeper.run());
        let (commands, receiver) = mpsc::channel(16);
        let served = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime.unwrap(), dataplane::run(served, receiver));
        });
        Proxy { shared, commands, thread: Some(thread), ahead_s, control }
    }
}

impl Proxy {
    /// Enrols a pod: capture rules in its namespace, sockets, certificate.
    pub(crate) fn enrol(&self, pod: &mut PodBox) {
        pod.workload.tunnel = Tunnel::Hbone;
        capture(&pod.netns);
        let enrolled = Arc::new(Pod {
            uid: pod.uid.as_str().into(),
            name: WorkloadName::new("default", pod.workload.name.clone()),
            netns: Some(Arc::new(pod.netns.try_clone().unwrap())),
            outside: None,
            identity: pod.workload.identity(),
            shares: Shares::new(
                &self.shared.mesh.descriptors,
                &WorkloadName::new("default", pod.workload.name.clone()),
            ),
        });
        self.shared.pods.rcu(|pods| {
            let mut pods = (**pods).clone();
            pods.insert(enrolled.clone());
            pods
        });
        let certificates = &self.shared.mesh.certificates;
        self.control.block_on(certificates.hold(enrolled.identity.clone()));
        super::wait_until("a certificate", || certificates.cached(&enrolled.identity).is_some());
        let listeners = pod.netns.run(listeners).unwrap();
        self.commands.blocking_send(Command::Add { pod: enrolled, listeners }).ok().unwrap();
    }

    /// Asks for a tunnel with a pod's certificate, whatever the pod's proxy would plan; `None` is
    /// no answer.
    pub(crate) fn tunnel(&self, from: &PodBox, to: &PodBox, authority: &str) -> Option<StatusCode> {
        let certificates = &self.shared.mesh.certificates;
        let credentials = certificates.cached(&from.workload.identity()).unwrap();
        let request = Request::builder().method(Method::CONNECT).uri(authority).body(()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = async {
            let options = DialOptions { mark: Some(MARK), ..DialOptions::default() };
            let hbone = SocketAddr::new(to.v4, 15008);
            let dialling = from.netns.run(|| tcp_dial(hbone, &options)).unwrap().unwrap();
            let transport = Transport::new(dialling.connected().await.unwrap());
            let activity = transport.activity();
            let expected = [to.workload.identity()];
            let proven = credentials.connector.connect(transport, &expected).await;
            let (drain, settings) = (Drain::new(), Settings::default());
            let (stream, _) = proven.unwrap();
            let client = Client::start(stream, activity, &settings, &drain.guard());
            match client.connect(request).await {
                Ok(_) => StatusCode::OK,
                Err(HboneError::Refused(status)) => status,
                Err(error) => panic!("{authority}: {error}"),
            }
        };
        let asked = async { tokio::time::timeout(PATIENCE, asked).await.ok() };
        tokio::task::LocalSet::new().block_on(&runtime, asked)
    }

    /// Serves DNS in a pod that is enrolled, until the test ends.
    pub(crate) fn serve_dns(&self, pod: &PodBox) {
        let enrolled = self.shared.pods.load();
        let enrolled = enrolled.iter().find(|it| *it.uid == *pod.uid).cloned().unwrap();
        let sockets = pod.netns.run(dns_sockets).unwrap();
        let shared = self.shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let (commands, receiver) = mpsc::channel(1);
            tokio::task::LocalSet::new().block_on(&runtime.unwrap(), async {
                let add = dns::Command::Add { pod: enrolled, sockets };
                assert!(commands.send(add).await.is_ok());
                dns::run(shared, receiver).await;
            });
        });
    }

    /// A pod is gone.
    pub(crate) fn remove(&self, pod: &PodBox, deadline: Duration) {
        let uid = pod.uid.as_str().into();
        self.commands.blocking_send(Command::Remove { uid, deadline }).ok().unwrap();
    }

    /// The proxy itself must end by then.
    pub(crate) fn end_by(&self, deadline: Duration) {
        self.commands.blocking_send(Command::EndBy(deadline)).ok().unwrap();
    }

    pub(crate) fn list(&self) -> Vec<admin::Connection> {
        let (answer, list) = oneshot::channel();
        self.commands.blocking_send(Command::List(answer)).ok().unwrap();
        list.blocking_recv().unwrap()
    }

    /// Takes no new connections, and returns when the last one has ended.
    pub(crate) fn stop(&mut self) {
        // A thread that has ended already takes no commands.
        let _stopped = self.commands.blocking_send(Command::StopAccepting);
        self.thread.take().unwrap().join().unwrap();
    }

    /// What an operator sees of its shares.
    pub(crate) fn shares(&self) -> admin::Shares {
        let pods = self.shared.pods.load();
        self.shared.mesh.descriptors.told(pods.iter().map(|pod| &pod.shares))
    }

    pub(crate) fn metrics(&self) -> String {
        self.shared.mesh.metrics.encode().unwrap()
    }
}

/// Publishes the mesh to several proxies.
pub(crate) fn publish(proxies: &[&Proxy], pods: &[&PodBox], further: &[Change]) {
    let mut view = View::default();
    for pod in pods {
        view.apply(Change::Workload(pod.workload.clone()));
    }
    for change in further {
        view.apply(change.clone());
    }
    proxies.iter().for_each(|proxy| proxy.shared.mesh.publish(view.clone()));
}

/// Applies one more change to what a proxy knows.
pub(crate) fn change(proxies: &[&Proxy], change: Change) {
    for proxy in proxies {
        let mut view = (*proxy.shared.mesh.view.load_full()).clone();
        view.apply(change.clone());
        proxy.shared.mesh.publish(view);
    }
}

/// A service on one virtual address, and its endpoints made members of it.
pub(crate) fn service(name: &str, ip: &str, port: u16, endpoints: &mut [&mut PodBox]) -> Change {
    let mut service = Service::named("default", format!("{name}.default.svc.cluster.local"));
    let address = ambit_model::names::NetworkAddress::new("", ip.parse().unwrap());
    service.addresses = vec![VirtualAddress { address, prefix_len: None }];
    let mapping =
        PortMapping { service_port: 80, target_port: port, app_protocol: AppProtocol::Tcp };
    service.ports = vec![mapping];
    for pod in endpoints {
        let key = ServiceName::new("default", service.key.hostname.clone());
        pod.workload.serve(key, vec![mapping]);
    }
    Change::Service(service)
}

/// A policy of the namespace that allows one service account, or denies it.
pub(crate) fn policy(name: &str, action: ambit_model::policy::Action, account: &str) -> Policy {
    use ambit_model::policy::{Clause, Match, PolicyScope, Rule, TextMatch};
    let principal = format!("cluster.local/ns/default/sa/{account}");
    let one =
        Match { principals: [TextMatch::Exact(principal.into())].into(), ..Default::default() };
    Policy {
        key: ambit_model::names::PolicyName::new("default", name),
        scope: PolicyScope::Namespace,
        action,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![one] }] }],
        dry_run: false,
        is_of_waypoints: false,
    }
}

impl PodBox {
    /// What is left of a pod's network when it has been torn down.
    pub(crate) fn take_network_down(&self) {
        let mut links = RouteSocket::open_in(&self.netns).unwrap();
        ["eth0", "lo"].into_iter().for_each(|link| links.set_down(link).unwrap());
    }

    /// Connects from this pod.
    pub(crate) fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = self.netns.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Connects, says a word and returns the answer.
    pub(crate) fn ask(&self, to: SocketAddr) -> std::io::Result<String> {
        let mut stream = self.connect(to)?;
        stream.write_all(b"hello\n")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Serves in this pod until the test ends; every connection in a thread of its own.
    pub(crate) fn serve(&self, port: u16, serve: fn(TcpStream)) {
        let address: SocketAddr = format!("[::]:{port}").parse().unwrap();
        let options = ListenOptions { v6only: false, ..ListenOptions::default() };
        let listener = self.netns.run(|| tcp_listener(address, &options)).unwrap().unwrap();
        listener.set_nonblocking(false).unwrap();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || serve(stream));
            }
        });
    }
}

/// Answers with what it received and its peer's address, when the client has ended.
pub(crate) fn mirror(mut stream: TcpStream) {
    let peer = ambit_net::socket::normalise(stream.peer_addr().unwrap()).ip();
    let mut heard = String::new();
    if stream.read_to_string(&mut heard).is_ok() {
        let _gone = stream.write_all(format!("{peer} said {heard}").as_bytes());
    }
}

/// Sends back every byte at once.
pub(crate) fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..bytes]).is_err() {
            return;
        }
    }
}

fn listeners() -> Listeners {
    let options = ListenOptions {
        reuse_port: true,
        transparent: true,
        mark: Some(MARK),
        v6only: false,
        ..ListenOptions::default()
    };
    let open = |port: u16| {
        let address = SocketAddr::new("::".parse().unwrap(), port);
        vec![tcp_listener(address, &options).unwrap()]
    };
    Listeners { outbound: open(15001), inbound: open(15008), plaintext: open(15006) }
}

fn dns_sockets() -> dns::Sockets {
    let options = ListenOptions { mark: Some(MARK), ..ListenOptions::default() };
    let mut sockets = dns::Sockets::default();
    for ip in ["127.0.0.1", "::1"] {
        let address = SocketAddr::new(ip.parse().unwrap(), 15053);
        sockets.udp.push(udp_bind(address, &options).unwrap());
        sockets.tcp.push(tcp_listener(address, &options).unwrap());
    }
    sockets
}

/// The capture rules of WIRE.md, as far as a test needs them.
fn capture(netns: &NetNs) {
    let tables = [(Family::Ip, "127.0.0.1/32"), (Family::Ip6, "::1/128")];
    let tables = tables.map(|(family, localhost)| {
        let localhost = || localhost.parse().unwrap();
        let redirect = |name: &str, port: u16| {
            let rule = Rule::new(name).protocol(Protocol::Tcp).destination_not(localhost());
            let rule = rule.mark_not(MARK, MASK);
            if port == 15006 { rule.port_not(15008).redirect(port) } else { rule.redirect(port) }
        };
        let mark_connection = Rule::new("ours").mark(MARK, MASK).set_connection_mark(TRANSPARENT);
        let mark_packet =
            Rule::new("answers").connection_mark(TRANSPARENT, MASK).mark_from_connection();
        let answers = Rule::new("answers").protocol(Protocol::Tcp).mark(TRANSPARENT, MASK).accept();
        let itself = Rule::new("itself").out_interface("lo").destination_not(localhost()).accept();
        let dns = |protocol| {
            let rule = Rule::new("dns").protocol(protocol).port(53).out_interface_not("lo");
            rule.mark_not(MARK, MASK).redirect(15053)
        };
        // The proxy's own queries may have the addresses and ports of those that they serve.
        let ours = Rule::new("ours").protocol(Protocol::Udp).mark(MARK, MASK);
        let theirs = Rule::new("theirs").protocol(Protocol::Udp).mark_not(MARK, MASK);
        let (nat, mangle) = (Priority::DESTINATION_NAT, Priority::MANGLE);
        Table::new(family, "test")
            .chain(Chain::filter("pre", Hook::Prerouting, mangle).rule(mark_connection))
            .chain(Chain::route("out", mangle).rule(mark_packet))
            .chain(Chain::nat("nat-pre", Hook::Prerouting, nat).rule(redirect("in", 15006)))
            .chain(
                Chain::filter("raw-pre", Hook::Prerouting, Priority::RAW)
                    .rule(theirs.source_port(53).zone(1)),
            )
            .chain(
                Chain::filter("raw-out", Hook::Output, Priority::RAW).rule(ours.port(53).zone(1)),
            )
            .chain(
                Chain::nat("nat-out", Hook::Output, nat)
                    .rule(dns(Protocol::Udp))
                    .rule(dns(Protocol::Tcp))
                    .rule(answers)
                    .rule(itself)
                    .rule(redirect("out", 15001)),
            )
    });
    Nftables::open_in(netns).unwrap().replace(&tables).unwrap();
    let mut routes = RouteSocket::open_in(netns).unwrap();
    for (ipv6, all) in [(false, "0.0.0.0/0"), (true, "::/0")] {
        let rule =
            netlink::Rule { ipv6, priority: 32764, mark: TRANSPARENT, mask: MASK, table: 100 };
        routes.ensure_rule(&rule).unwrap();
        routes.ensure_route(&netlink::Route::local(all.parse().unwrap(), 100)).unwrap();
    }
}
