//! The pods, services and endpoints of a machine, as a sidecar must know them.
//!
//! Read once, when the sidecars start: an experiment's machine is at rest then and changes no pods
//! until it ends. What a port carries is told by Kubernetes' `appProtocol` or by the port's name,
//! as Istio tells it.

use std::fmt;
use std::io;
use std::net::IpAddr;

use ambit_machine::{
    Client, ClientError, Dual, NodeNetwork, Phase, PodInfo, Record, ServiceView, WatchError,
    read_services,
};
use ambit_model::identity::Identity;
use ambit_net::namespace::NetNs;
use ambit_net::nftables::Protocol as Transport;
use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;
use ambit_words::names::DEFAULT_TRUST_DOMAIN;

/// Why sidecars cannot know what they must.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The machine does not answer.
    #[error("cannot ask the machine for its pods")]
    Machine(#[from] ClientError),
    /// The registry cannot be read.
    #[error("cannot read the machine's services")]
    Registry(#[from] WatchError),
    /// A pod cannot have a sidecar.
    #[error("{pod} does not run: {reason}")]
    NotRunning {
        /// Namespace and name.
        pod: String,
        /// Why not.
        reason: String,
    },
    /// The host's processes or a pod's namespace cannot be looked at.
    #[error("cannot open the network namespace of {pod}")]
    Namespace {
        /// Namespace and name, or what it was about.
        pod: String,
        /// Why.
        source: io::Error,
    },
}

/// All that sidecars have to know.
#[derive(Debug)]
pub(super) struct Topology {
    /// Each gets a sidecar.
    pub(super) pods: Vec<Pod>,
    /// In no order.
    pub(super) services: Vec<Service>,
}

/// A pod with a network of its own.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) identity: Identity,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) netns: NetNs,
    /// Its node, as it sees it.
    pub(super) gateway: Dual,
}

/// A service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its virtual addresses; of a headless one, those of its endpoints.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<Port>,
}

/// A TCP port of a service.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) number: u16,
    pub(super) protocol: Protocol,
    pub(super) endpoints: Vec<Endpoint>,
}

/// A pod behind a port.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// One of its addresses, of a family that the service has.
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) identity: Identity,
}

/// What a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 in clear text, gRPC among it.
    Http2,
    /// Anything else.
    Tcp,
    /// Nobody says: whether it is HTTP/1.1 is seen from the first bytes.
    Detect,
}

impl Topology {
    /// Reads that of a running machine.
    pub(super) async fn read(client: &Client, record: &Record) -> Result<Self, TopologyError> {
        let all = client.pods().await?;
        let failed = |pod: &str, source| TopologyError::Namespace { pod: pod.to_owned(), source };
        let processes =
            ambit_machine::processes(record, &all).map_err(|source| failed("every pod", source))?;
        let mut pods = Vec::new();
        for info in all.iter().filter(|info| info.phase != Phase::Succeeded) {
            let name = format!("{}/{}", info.namespace, info.name);
            let process = processes.iter().find(|it| info.pid != 0 && it.pid == info.pid);
            let Some((process, network)) = process.zip(NodeNetwork::of_name(&info.node)) else {
                let reason = info.reason.clone();
                return Err(TopologyError::NotRunning { pod: name, reason });
            };
            let netns = NetNs::of_pid(process.host_pid).map_err(|source| failed(&name, source))?;
            // On its node's own network: there is nothing to redirect that is the pod's alone.
            if !record.network_namespaces.values().any(|inode| *inode == netns.inode()) {
                pods.push(Pod::new(info, netns, network.gateway()));
            }
        }
        let services = read_services(client.layout()).await?;
        let services = services.iter().map(|view| service(view, &pods)).collect();
        Ok(Self { pods, services })
    }

    /// The identities of all pods, each once: those of `namespace` first, in the order of their
    /// names, as a policy for its workloads would name them.
    pub(super) fn identities_from(&self, namespace: &str) -> Vec<&Identity> {
        let mut identities: Vec<&Identity> = self.pods.iter().map(|pod| &pod.identity).collect();
        identities.sort_by_key(|it| (*it.namespace != *namespace, *it));
        identities.dedup();
        identities
    }

    /// The ports on which services reach a pod, each once.
    pub(super) fn inbound_ports(&self, pod: &Pod) -> Vec<(u16, Protocol)> {
        let ports = self.services.iter().flat_map(|service| &service.ports);
        let mut reached: Vec<(u16, Protocol)> = Vec::new();
        for port in ports {
            for endpoint in &port.endpoints {
                let known = reached.iter().any(|(number, _)| *number == endpoint.port);
                if pod.addresses.contains(&endpoint.address) && !known {
                    reached.push((endpoint.port, port.protocol));
                }
            }
        }
        reached
    }
}

impl Pod {
    fn new(info: &PodInfo, netns: NetNs, gateway: Dual) -> Self {
        let account = info.service_account.as_str();
        let identity = Identity::new(DEFAULT_TRUST_DOMAIN, info.namespace.as_str(), account);
        Self {
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            identity,
            addresses: info.pod_ips.clone(),
            netns,
            gateway,
        }
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Service {
    /// Its name in the cluster's DNS.
    pub(super) fn hostname(&self) -> String {
        format!("{}.{}.svc.{DEFAULT_CLUSTER_DOMAIN}", self.name, self.namespace)
    }

    /// Its port with this number.
    pub(super) fn port(&self, number: u16) -> Option<&Port> {
        self.ports.iter().find(|port| port.number == number)
    }
}

fn service(view: &ServiceView, pods: &[Pod]) -> Service {
    let has_family = |ip: &IpAddr| {
        view.addresses.is_empty() || view.addresses.iter().any(|it| it.is_ipv4() == ip.is_ipv4())
    };
    let endpoints = |index: usize| {
        let ready = view.endpoints.iter().filter(|endpoint| endpoint.ready);
        ready.filter_map(move |endpoint| {
            let address = endpoint.addresses.iter().copied().find(has_family)?;
            let pod = pods.iter().find(|pod| pod.addresses.contains(&address))?;
            let port = endpoint.ports.get(index).copied().flatten()?;
            Some(Endpoint { address, port, identity: pod.identity.clone() })
        })
    };
    let tcp = view.ports.iter().enumerate().filter(|(_, port)| port.protocol == Transport::Tcp);
    let ports: Vec<Port> = tcp
        .map(|(index, port)| Port {
            number: port.port,
            protocol: protocol(&port.name, port.application_protocol.as_deref()),
            endpoints: endpoints(index).collect(),
        })
        .collect();
    let mut addresses = view.addresses.clone();
    if addresses.is_empty() {
        addresses = view.endpoints.iter().flat_map(|it| it.addresses.iter().copied()).collect();
    }
    Service { namespace: view.namespace.clone(), name: view.name.clone(), addresses, ports }
}

/// What Istio takes a port for: `appProtocol` comes before the name, of which the part before the
/// first hyphen counts.
fn protocol(name: &str, application_protocol: Option<&str>) -> Protocol {
    let word = application_protocol.unwrap_or_else(|| name.split('-').next().unwrap_or_default());
    match word.to_ascii_lowercase().as_str() {
        "http" => Protocol::Http1,
        "http2" | "grpc" | "grpc-web" | "h2c" | "kubernetes.io/h2c" => Protocol::Http2,
        "tcp" | "https" | "tls" | "mongo" | "mysql" | "redis" => Protocol::Tcp,
        _ => Protocol::Detect,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One pod `app/server` behind a service with a port of each kind, and a client.
    pub(in crate::peer) fn example() -> Topology {
        let pod = |namespace: &str, name: &str, last: u8| Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: Identity::new(DEFAULT_TRUST_DOMAIN, namespace, name),
            addresses: NodeNetwork::new(1).pod(last).both().to_vec(),
            netns: NetNs::current().expect("every thread has a network"),
            gateway: NodeNetwork::new(1).gateway(),
        };
        let (server, client) = (pod("app", "server", 2), pod("a-client", "load", 3));
        let port = |number: u16, protocol| Port {
            number,
            protocol,
            endpoints: vec![Endpoint {
                address: server.addresses[0],
                port: number + 8000,
                identity: server.identity.clone(),
            }],
        };
        let kinds = [Protocol::Http1, Protocol::Http2, Protocol::Tcp, Protocol::Detect];
        let service = Service {
            namespace: "app".to_owned(),
            name: "web".to_owned(),
            addresses: vec!["10.96.1.0".parse().expect("a literal address")],
            ports: (80..).zip(kinds).map(|(number, kind)| port(number, kind)).collect(),
        };
        Topology { pods: vec![client, server], services: vec![service] }
    }

    #[test]
    fn pods_know_who_may_call_them_and_where() {
        let topology = example();
        let names = |namespace| {
            let identities = topology.identities_from(namespace);
            identities.iter().map(|it| it.service_account.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("app"), ["server", "load"]);
        assert_eq!(names("elsewhere"), ["load", "server"]);
        let [client, server] = topology.pods.as_slice() else { panic!("two pods") };
        let ports: Vec<u16> =
            topology.inbound_ports(server).into_iter().map(|(port, _)| port).collect();
        assert_eq!(ports, [8080, 8081, 8082, 8083]);
        assert_eq!(topology.inbound_ports(client), []);
    }

    #[test]
    fn ports_are_told_by_their_names() {
        for (name, application_protocol, expected) in [
            ("http", None, Protocol::Http1),
            ("http-web", None, Protocol::Http1),
            ("HTTP", None, Protocol::Http1),
            ("grpc-api", None, Protocol::Http2),
            ("tcp-echo", None, Protocol::Tcp),
            ("tls", None, Protocol::Tcp),
            ("", None, Protocol::Detect),
            ("web", None, Protocol::Detect),
            ("httpish", None, Protocol::Detect),
            ("tcp", Some("http"), Protocol::Http1),
            ("http", Some("kubernetes.io/h2c"), Protocol::Http2),
            ("http", Some("example.com/own"), Protocol::Detect),
        ] {
            let found = protocol(name, application_protocol);
            assert_eq!(found, expected, "{name:?}, {application_protocol:?}");
        }
    }
}
