//! Workloads: pods, and their equivalents outside Kubernetes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::Text;
use crate::identity::Identity;
use crate::names::{NetworkAddress, PolicyName, ServiceName};

/// One workload as the control plane describes it (istio.workload.Workload): its own fields, and
/// its [`Template`], whose fields read and write as if they were its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name in the view, `cluster//Pod/namespace/name`.
    pub uid: Text,
    /// The pod's name.
    pub name: Text,
    /// The pod's addresses, none for a workload that is found by hostname alone.
    pub addresses: Addresses,
    /// The name of its owner, for a pod that nothing owns its own.
    pub workload_name: Text,
    /// The node it runs on.
    pub node: Text,
    /// Its region, zone and subzone, which all workloads of its node share.
    pub locality: Arc<Locality>,
    /// Whether it is ready for traffic.
    pub healthy: bool,
    /// What it shares with the other replicas of its owner. It holds most of a pod's data, and
    /// 100,000 pods have only as many templates as they have Deployments.
    pub template: Arc<Template>,
}

/// What all replicas of one owner have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    /// The pod's namespace.
    pub namespace: Text,
    /// The hostname of a workload without addresses, empty otherwise.
    pub hostname: Text,
    /// The network it is on, empty for the only one.
    pub network: Text,
    /// How it is reached.
    pub tunnel: Tunnel,
    /// The trust domain of its identity.
    pub trust_domain: Text,
    /// The service account of its identity.
    pub service_account: Text,
    /// The waypoint that all its inbound traffic must pass.
    pub waypoint: Option<Arc<GatewayAddress>>,
    /// The gateway to its network, for a workload on another one.
    pub network_gateway: Option<Arc<GatewayAddress>>,
    /// The canonical service, a telemetry label.
    pub canonical_name: Text,
    /// The canonical revision, a telemetry label.
    pub canonical_revision: Text,
    /// What owns it.
    pub kind: WorkloadKind,
    /// It speaks HBONE itself; the proxy neither wraps nor unwraps.
    pub native_tunnel: bool,
    /// How the proxy passes tunnelled bytes to it, if not as plain TCP.
    pub application_tunnel: Option<ApplicationTunnel>,
    /// The services that have it as an endpoint, and the ports on which it serves them; shared,
    /// because several owners may serve the same.
    pub services: Arc<BTreeMap<ServiceName, Vec<PortMapping>>>,
    /// The policies that select it.
    pub policies: Vec<PolicyName>,
    /// The cluster it lives in.
    pub cluster_id: Text,
    /// It shares its node's network: its address is not its own.
    pub host_network: bool,
    /// Its weight among the endpoints of a service.
    pub capacity: u32,
    /// It may reach only what is declared (`outboundTrafficPolicy.mode: REGISTRY_ONLY`).
    pub registry_only: bool,
}

impl Deref for Workload {
    type Target = Template;

    fn deref(&self) -> &Template {
        &self.template
    }
}

impl DerefMut for Workload {
    /// It gets a template of its own if it shared one.
    fn deref_mut(&mut self) -> &mut Template {
        Arc::make_mut(&mut self.template)
    }
}

/// The addresses of a workload: nearly always one, which takes no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(AddressList);

#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressList {
    One(IpAddr),
    Other(Box<[IpAddr]>),
}

impl Deref for Addresses {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        match &self.0 {
            AddressList::One(one) => std::slice::from_ref(one),
            AddressList::Other(all) => all,
        }
    }
}

impl From<Vec<IpAddr>> for Addresses {
    fn from(all: Vec<IpAddr>) -> Self {
        Self(match *all {
            [one] => AddressList::One(one),
            _ => AddressList::Other(all.into()),
        })
    }
}

impl<'a> IntoIterator for &'a Addresses {
    type Item = &'a IpAddr;
    type IntoIter = std::slice::Iter<'a, IpAddr>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// How a workload is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tunnel {
    /// Plain TCP: it is not in the mesh.
    None,
    /// HTTP/2 CONNECT in mutual TLS on port 15008.
    Hbone,
    /// A sidecar's mutual TLS, which a node proxy treats as plain TCP.
    LegacyIstioMtls,
}

/// What owns a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkloadKind {
    /// A Deployment, or anything that is none of the others.
    Deployment,
    /// A CronJob.
    CronJob,
    /// Nothing: a pod of its own.
    Pod,
    /// A Job.
    Job,
}

/// A gateway or waypoint and its HBONE port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatewayAddress {
    /// Where it is.
    pub destination: GatewayDestination,
    /// Its HBONE port, normally 15008.
    pub hbone_mtls_port: u16,
}

/// Where a gateway or waypoint is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GatewayDestination {
    /// A service of the view.
    Hostname(ServiceName),
    /// Nowhere: this name is not one of a waypoint that those who wrote it may use. What names it
    /// is refused, never sent around it. It travels as a hostname in no namespace, which no proxy
    /// finds.
    Refused(Text),
    /// An address.
    Address(NetworkAddress),
}

/// How the proxy speaks to an application that understands more than TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApplicationTunnel {
    /// What precedes the bytes.
    pub protocol: ApplicationProtocol,
    /// The port to send to, the original one when absent.
    pub port: Option<u16>,
}

/// What precedes the bytes of an application tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApplicationProtocol {
    /// Nothing.
    None,
    /// A PROXY protocol version 2 header.
    Proxy,
}

/// A port of a service and the port of the workload behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortMapping {
    /// The service's port.
    pub service_port: u16,
    /// The workload's port; on a service 0 means "as the workload says".
    pub target_port: u16,
    /// The declared application protocol.
    pub app_protocol: AppProtocol,
}

/// The declared protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the names of the protocols are their description")]
pub enum AppProtocol {
    #[default]
    Unknown,
    Http11,
    Http2,
    Grpc,
    Tcp,
    Tls,
}

/// Where a workload runs, in Istio's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "topology labels carry these very names")]
pub struct Locality {
    pub region: Text,
    pub zone: Text,
    pub subzone: Text,
}

impl Workload {
    /// The identity this workload must prove.
    pub fn identity(&self) -> Identity {
        Identity {
            trust_domain: self.trust_domain.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// Makes it an endpoint of `service` at these ports.
    pub fn serve(&mut self, service: ServiceName, ports: Vec<PortMapping>) {
        Arc::make_mut(&mut self.services).insert(service, ports);
    }

    /// Whether its addresses are its own, as a pod's are, which was given to a node; an entry that
    /// somebody wrote may name any address.
    pub fn is_pod(&self) -> bool {
        !self.node.is_empty()
    }

    /// A workload with nothing but its names; everything else as the protocol elides it.
    pub fn named(uid: impl Into<Text>, namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        let empty: Text = "".into();
        let template = Template {
            namespace: namespace.into(),
            hostname: empty.clone(),
            network: empty.clone(),
            tunnel: Tunnel::None,
            trust_domain: ambit_words::names::DEFAULT_TRUST_DOMAIN.into(),
            service_account: crate::identity::DEFAULT_SERVICE_ACCOUNT.into(),
            waypoint: None,
            network_gateway: None,
            canonical_name: empty.clone(),
            canonical_revision: empty.clone(),
            kind: WorkloadKind::Pod,
            native_tunnel: false,
            application_tunnel: None,
            services: Arc::default(),
            policies: Vec::new(),
            cluster_id: empty.clone(),
            host_network: false,
            capacity: 1,
            registry_only: false,
        };
        Self {
            uid: uid.into(),
            name: name.into(),
            addresses: Vec::new().into(),
            workload_name: empty.clone(),
            node: empty,
            locality: Arc::default(),
            healthy: true,
            template: Arc::new(template),
        }
    }
}
