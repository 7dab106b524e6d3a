//! A node and a pod as two network namespaces joined by a veth pair, with listeners that say who
//! answered. Tests need root.
//!
//! ```text
//!   pod: eth0 10.244.1.5, fd00:10:244:1::5    node: veth0 10.244.1.1, fd00:10:244:1::1
//!        eth1 10.245.1.5, fd00:10:245:1::5          veth1 10.245.1.1, fd00:10:245:1::1
//! ```
//! The node also bears the addresses of a remote server and of a DNS server, on loopback.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::netlink::{Route, RouteSocket};
use ambit_net::seqpacket::Connection;
use ambit_net::socket::{self, DialOptions, ListenOptions};
use ambit_wire::zds::MAX_PACKET_BYTES;
use ambit_wire::zds::proxy::{Enrolment, Event, Packet};
use ambit_words::ports;
use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

use crate::capture::rules::{IpVersion, PROXY_MARK};

/// Longest that anything in these tests may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Port of the application and of the remote server.
pub(crate) const APP: u16 = 8080;

/// Addresses of one IP version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) version: IpVersion,
    pub(crate) pod: IpAddr,
    pub(crate) pod_second: IpAddr,
    pub(crate) node: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) dns: IpAddr,
    pub(crate) localhost: IpAddr,
    pub(crate) probe: IpAddr,
    /// An address that nobody has: a client far away.
    pub(crate) client: IpAddr,
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("literal")
}

/// The addresses of IPv4 and IPv6.
pub(crate) fn both() -> [Addresses; 2] {
    [IpVersion::V4, IpVersion::V6].map(addresses)
}

/// The addresses of one version.
pub(crate) fn addresses(version: IpVersion) -> Addresses {
    let [pod, pod_second, node, remote, dns, localhost, client] = match version {
        IpVersion::V4 => [
            "10.244.1.5",
            "10.245.1.5",
            "10.244.1.1",
            "192.0.2.10",
            "10.96.0.10",
            "127.0.0.1",
            "198.51.100.7",
        ],
        IpVersion::V6 => [
            "fd00:10:244:1::5",
            "fd00:10:245:1::5",
            "fd00:10:244:1::1",
            "2001:db8:2::10",
            "fd00:10:96::a",
            "::1",
            "2001:db8:51::7",
        ],
    }
    .map(ip);
    let probe = version.probe();
    Addresses { version, pod, pod_second, node, remote, dns, localhost, probe, client }
}

/// The two namespaces and everything that listens in them.
pub(crate) struct Testbed {
    pub(crate) node: Arc<NetNs>,
    pub(crate) pod: Arc<NetNs>,
    listeners: JoinSet<()>,
}

impl Testbed {
    /// Namespaces with addresses and routes; nothing listens yet.
    pub(crate) fn new() -> Self {
        let node = NetNs::create().expect("make a namespace (these tests need root)");
        let pod = NetNs::create().expect("make a namespace");
        let mut at_node = RouteSocket::open_in(&node).expect("rtnetlink");
        let mut at_pod = RouteSocket::open_in(&pod).expect("rtnetlink");
        at_node.set_up("lo").expect("up");
        at_pod.set_up("lo").expect("up");
        for (index, subnet) in ["244", "245"].iter().enumerate() {
            let (outer, inner) = (format!("veth{index}"), format!("eth{index}"));
            at_node.ensure_veth(&outer, &inner, Some(&pod)).expect("veth");
            for (host, routes, link) in [(1, &mut at_node, &outer), (5, &mut at_pod, &inner)] {
                routes.set_up(link).expect("up");
                for address in
                    [format!("10.{subnet}.1.{host}/24"), format!("fd00:10:{subnet}:1::{host}/64")]
                {
                    routes
                        .ensure_address(link, address.parse().expect("literal"))
                        .expect("address");
                }
            }
        }
        for addresses in both() {
            for address in [addresses.remote, addresses.dns] {
                at_node.ensure_address("lo", IpNet::from(address)).expect("address");
            }
            let everything = match addresses.version {
                IpVersion::V4 => "0.0.0.0/0",
                IpVersion::V6 => "::/0",
            };
            let default = Route {
                link: Some("eth0".to_owned()),
                ..Route::via(everything.parse().expect("literal"), addresses.node)
            };
            at_pod.ensure_route(&default).expect("default route");
        }
        Self { node: Arc::new(node), pod: Arc::new(pod), listeners: JoinSet::new() }
    }

    /// Listens on TCP in the pod (with the proxy's mark, or without); each connection is told
    /// `tag original-destination peer` and then echoed to.
    pub(crate) fn pod_listens(&mut self, tag: &'static str, port: u16, mark: Option<u32>) {
        let pod = self.pod.clone();
        for addresses in both() {
            let address = SocketAddr::new(socket::unspecified_like(addresses.pod), port);
            self.listen(&pod, tag, address, mark);
        }
    }

    /// Listens on every port that the proxy has in a pod, each named after what it is for.
    pub(crate) fn proxy_listens(&mut self) {
        let listeners = [
            ("outbound", ports::OUTBOUND),
            ("inbound", ports::INBOUND),
            ("hbone", ports::HBONE),
            ("dns", ports::DNS_CAPTURE),
        ];
        for (tag, port) in listeners {
            self.pod_listens(tag, port, Some(PROXY_MARK));
        }
        let pod = self.pod.clone();
        for addresses in both() {
            let address = SocketAddr::new(addresses.localhost, ports::DNS_CAPTURE);
            self.answers_datagrams(&pod, "dns", address, Some(PROXY_MARK));
        }
    }

    /// Listens on TCP somewhere.
    pub(crate) fn listen(
        &mut self,
        netns: &NetNs,
        tag: &'static str,
        address: SocketAddr,
        mark: Option<u32>,
    ) {
        // Only the proxy, who has a mark, may answer from addresses that the pod does not have.
        let transparent = mark.is_some();
        let options = ListenOptions { mark, transparent, ..ListenOptions::default() };
        let listener = netns.run(|| socket::tcp_listener(address, &options)).expect("enter");
        let listener = TcpListener::from_std(listener.expect("listen")).expect("listener");
        self.listeners.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.expect("accept");
                connections.spawn(serve(stream, tag, socket::normalise(peer).ip()));
            }
        });
    }

    /// Answers datagrams with `tag`.
    pub(crate) fn answers_datagrams(
        &mut self,
        netns: &NetNs,
        tag: &'static str,
        address: SocketAddr,
        mark: Option<u32>,
    ) {
        let udp = udp(netns, address, mark);
        self.listeners.spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (_, peer) = udp.recv_from(&mut buffer).await.expect("receive");
                udp.send_to(tag.as_bytes(), peer).await.expect("send");
            }
        });
    }
}

async fn serve(mut stream: TcpStream, tag: &str, peer: IpAddr) {
    // Where nothing is tracked, nothing was redirected.
    let local = stream.local_addr().expect("local address");
    let original = socket::original_destination(&stream).unwrap_or(local);
    let greeting = format!("{tag} {original} {peer}\n");
    if stream.write_all(greeting.as_bytes()).await.is_err() {
        return;
    }
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// A datagram socket in a namespace.
pub(crate) fn udp(netns: &NetNs, address: SocketAddr, mark: Option<u32>) -> UdpSocket {
    let options = ListenOptions { mark, ..ListenOptions::default() };
    let udp = netns.run(|| socket::udp_bind(address, &options)).expect("enter").expect("bind");
    UdpSocket::from_std(udp).expect("socket")
}

/// A client's connection, greeted.
pub(crate) struct Client {
    stream: TcpStream,
    /// `tag original-destination peer`
    pub(crate) greeting: String,
}

impl Client {
    /// Connects from a namespace and reads who answers; the error is what a client sees.
    pub(crate) async fn connect(
        netns: &NetNs,
        destination: SocketAddr,
        options: &DialOptions,
    ) -> Result<Self, String> {
        let connect = async {
            let dial = netns.run(|| socket::tcp_dial(destination, options));
            let dial = dial.expect("enter").map_err(|e| e.to_string())?;
            let mut stream = dial.connected().await.map_err(|e| e.to_string())?;
            let mut greeting = String::new();
            while !greeting.ends_with('\n') {
                let byte = stream.read_u8().await.map_err(|e| e.to_string())?;
                greeting.push(byte.into());
            }
            greeting.pop();
            Ok(Self { stream, greeting })
        };
        tokio::time::timeout(PATIENCE, connect).await.unwrap_or_else(|_| Err("timeout".to_owned()))
    }

    /// Sends something and takes it back: the connection lives both ways.
    pub(crate) async fn echo(&mut self) -> Result<(), String> {
        let echo = async {
            self.stream.write_all(b"still there?").await.map_err(|e| e.to_string())?;
            let mut answer = [0; 12];
            self.stream.read_exact(&mut answer).await.map_err(|e| e.to_string())?;
            assert_eq!(&answer, b"still there?");
            Ok(())
        };
        tokio::time::timeout(PATIENCE, echo).await.unwrap_or_else(|_| Err("timeout".to_owned()))
    }
}

impl Client {
    /// Whether the connection is cut, at this end or the other, before anything is sent.
    pub(crate) async fn is_cut(&mut self) -> bool {
        use std::io::ErrorKind::{ConnectionAborted, ConnectionReset};
        let read = tokio::time::timeout(PATIENCE, self.stream.read_u8()).await;
        matches!(read, Ok(Err(error))
            if [ConnectionAborted, ConnectionReset].contains(&error.kind()))
    }

    /// Ends it by a reset, as a client does that died.
    pub(crate) fn reset(self) {
        socket::set_linger_reset(&self.stream).expect("set");
    }
}

/// Who answers a connection from a namespace: the tag, or what the client sees.
pub(crate) async fn who_answers(netns: &NetNs, destination: SocketAddr, mark: u32) -> String {
    let options = DialOptions { mark: (mark != 0).then_some(mark), ..DialOptions::default() };
    match Client::connect(netns, destination, &options).await {
        Ok(client) => client.greeting.split(' ').next().unwrap_or_default().to_owned(),
        Err(error) => error,
    }
}

/// Who answers a datagram, and from where.
pub(crate) async fn who_answers_datagram(udp: &UdpSocket, destination: SocketAddr) -> String {
    udp.send_to(b"?", destination).await.expect("send");
    let mut buffer = [0; 64];
    match tokio::time::timeout(PATIENCE, udp.recv_from(&mut buffer)).await {
        Ok(Ok((length, from))) => {
            let mut answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if from != destination {
                answer.push_str(" from elsewhere");
            }
            answer
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timeout".to_owned(),
    }
}

/// A node proxy that does as it is told, step by step.
pub(crate) struct FakeProxy {
    connection: Connection,
    enrolment: Enrolment,
    /// The namespaces that came with pods, by uid.
    pub(crate) namespaces: BTreeMap<String, NetNs>,
}

impl FakeProxy {
    /// Connects, as soon as somebody listens, and says hello.
    pub(crate) async fn connect(path: &Path) -> Self {
        let mut enrolment = Enrolment::new();
        let connection = Self::greet(path, &mut enrolment).await;
        Self { connection, enrolment, namespaces: BTreeMap::new() }
    }

    /// Connects again and goes on with the pods that it serves.
    pub(crate) async fn reconnect(&mut self, path: &Path) {
        self.connection = Self::greet(path, &mut self.enrolment).await;
    }

    async fn greet(path: &Path, enrolment: &mut Enrolment) -> Connection {
        let connection = loop {
            match Connection::connect(path) {
                Ok(connection) => break connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        connection.send(&enrolment.connected(), &[]).await.expect("hello");
        connection
    }

    /// Receives one request: `+uid`, `=uid`, `-uid`, `snapshot`; or `closed`. Does not answer it.
    pub(crate) async fn receive(&mut self) -> String {
        let mut buffer = [0; MAX_PACKET_BYTES];
        let Ok(packet) = self.connection.receive(&mut buffer).await else {
            return "closed".to_owned();
        };
        let bytes = &buffer[..packet.length];
        let descriptors = packet.fds.len();
        let event = self.enrolment.receive(Packet { bytes, truncated: false, descriptors });
        match event.expect("within the protocol") {
            Event::Serve(pod) => {
                let netns = packet.fds.into_iter().next().expect("a descriptor");
                let netns = NetNs::from_fd(netns).expect("a network namespace");
                self.namespaces.insert(pod.uid.to_string(), netns);
                format!("+{}", pod.uid)
            }
            Event::Keep(uid) => format!("={uid}"),
            Event::Stop(uid) => format!("-{uid}"),
            Event::Complete(_) => "snapshot".to_owned(),
            Event::Refuse(refusal) => format!("refuse {refusal}"),
        }
    }

    /// Answers what was received last.
    pub(crate) async fn answer(&mut self, outcome: Result<(), &str>) {
        let answer = self.enrolment.answer(outcome);
        self.connection.send(&answer, &[]).await.expect("answer");
    }

    /// Receives and acknowledges this many requests.
    pub(crate) async fn accept(&mut self, count: usize) -> Vec<String> {
        let mut requests = Vec::new();
        for _ in 0..count {
            requests.push(self.receive().await);
            self.answer(Ok(())).await;
        }
        requests
    }

    /// Acknowledges everything until the agent closes.
    pub(crate) async fn accept_all(mut self) {
        while self.receive().await != "closed" {
            self.answer(Ok(())).await;
        }
    }
}

/// Sets a kernel parameter in a namespace.
pub(crate) fn set_parameter(netns: &NetNs, name: &str, value: &str) {
    let set = netns.run(|| ambit_net::namespace::set_sysctl(name, value));
    set.expect("enter").expect("set the parameter");
}

/// Writes a file the way the registry's writers do: aside, then renamed.
pub(crate) fn write_atomically(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
    let aside = path.with_extension("tmp");
    let mut file = std::fs::File::create(&aside).expect("create");
    file.write_all(content.as_bytes()).expect("write");
    std::fs::rename(&aside, path).expect("rename");
}

/// A directory of this test alone, removed at the end.
pub(crate) struct Directory(std::path::PathBuf);

impl Directory {
    /// An empty directory; the name tells tests apart.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ambit-node-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("make a directory");
        Self(path)
    }

    /// A path inside of it.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("remove the test's directory");
    }
}
