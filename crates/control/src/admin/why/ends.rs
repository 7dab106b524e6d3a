//! Which pod and which address the words of a question mean.
//!
//! A word that means nothing is refused with what it may have been meant to be. Nothing here may
//! guess: what a name means is what the client's proxy would find by it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ambit_manifest::{ObjectName, nearest};
use ambit_model::names::{ServiceName, WorkloadName};
use ambit_model::service::Service;
use ambit_model::workload::{Workload, WorkloadKind};

use crate::view_builder::Builder;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::admin) enum WhyError {
    /// The client is not a pod of the mesh's registry.
    #[error(
        "there is no running pod {0}, nor a workload of that name with one{hint}; write the \
         client as NAMESPACE/POD or NAMESPACE/WORKLOAD, see `ambit get pods`",
        hint = did_you_mean(.1)
    )]
    NoSource(String, Option<String>),
    /// The destination cannot be read.
    #[error(
        "{0:?} is no destination; write NAMESPACE/POD, NAMESPACE/WORKLOAD, NAMESPACE/SERVICE, a \
         host name or an address, each with :PORT"
    )]
    NoDestination(String),
    /// Nothing of that name exists.
    #[error(
        "there is no {0} {1}{hint}; see `ambit get services` and `ambit get pods`",
        hint = did_you_mean(.2)
    )]
    Unknown(&'static str, String, Option<String>),
    /// The host is not in the registry, and DNS is not asked here.
    #[error(
        "no service is called {0:?}{hint}; for a host outside of the mesh write its address",
        hint = did_you_mean(.1)
    )]
    UnknownHost(String, Option<String>),
    /// The port matters and is not said.
    #[error("{0} has the ports {1:?}; say which, as in {0}:{2}")]
    Port(String, Vec<u16>, u16),
    /// The port matters and nothing is known about it.
    #[error("say which port of {0}, as in {0}:8080")]
    AnyPort(String),
    /// The port of an IPv6 address matters and is not said, or cannot be told from the address.
    #[error("say which port of {0}, as in [{0}]:8080; the brackets end the address")]
    AnyPortIpv6(std::net::Ipv6Addr),
    /// The request cannot be read.
    #[error("the request cannot be read: {0}")]
    Request(String),
    /// Nothing listens on port 0.
    #[error("port 0 is no destination; say a port from 1 to 65535")]
    PortZero,
    /// The destination is a Gateway at the edge.
    #[error(
        "{pod} is a pod of Gateway {gateway}: what becomes of a request at a gateway is not \
         explained here; see `ambit routes {gateway}` for its routes, and `ambit get policies`"
    )]
    Gateway {
        /// The pod.
        pod: String,
        /// The Gateway.
        gateway: String,
    },
    /// The destination has no address yet.
    #[error("{0} has no address: it is not running, or has no endpoint; see `ambit get pods`")]
    NoAddress(String),
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

/// Where a connection is to go.
pub(super) struct Destination {
    pub(super) name: String,
    pub(super) address: SocketAddr,
}

/// What kind of object a word names, if it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Any,
    Pod,
    Deployment,
    Service,
}

/// What a word may begin with to say what it names.
const PREFIXES: [(&str, Named); 5] = [
    ("pod/", Named::Pod),
    ("deployment/", Named::Deployment),
    ("deploy/", Named::Deployment),
    ("service/", Named::Service),
    ("svc/", Named::Service),
];

impl Named {
    fn of(text: &str) -> (Self, &str) {
        let mut said =
            PREFIXES.iter().filter_map(|(word, it)| Some((*it, text.strip_prefix(word)?)));
        said.next().unwrap_or((Self::Any, text))
    }

    fn may_be(self, other: Self) -> bool {
        self == Self::Any || self == other
    }

    /// What is missing if there is none.
    fn word(self) -> &'static str {
        match self {
            Self::Any => "service, pod or workload",
            Self::Pod => "pod",
            Self::Deployment => "Deployment",
            Self::Service => "service",
        }
    }
}

/// Finds the ends of a connection.
pub(super) struct Ends<'a> {
    pub(super) builder: &'a Builder,
}

impl<'a> Ends<'a> {
    /// The pod that connects.
    pub(super) fn source(
        &self,
        text: &str,
        notes: &mut Vec<String>,
    ) -> Result<&'a Workload, WhyError> {
        let (named, bare) = Named::of(text);
        let (namespace, name) = bare.split_once('/').unwrap_or(("default", bare));
        self.workload(named, (namespace, name), notes).ok_or_else(|| {
            let name = format!("{namespace}/{name}");
            let near = nearest(&name, self.owners().iter().map(String::as_str));
            WhyError::NoSource(text.to_owned(), near)
        })
    }

    /// The address that `client` connects to.
    pub(super) fn destination(
        &self,
        client: &Workload,
        text: &str,
        notes: &mut Vec<String>,
    ) -> Result<Destination, WhyError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            return Ok(Destination { name: text.to_owned(), address });
        }
        match text.trim_matches(['[', ']']).parse() {
            Ok(IpAddr::V4(ip)) => return Err(WhyError::AnyPort(ip.to_string())),
            Ok(IpAddr::V6(ip)) => return Err(WhyError::AnyPortIpv6(ip)),
            Err(_) => {}
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => {
                let port = port.parse().map_err(|_| WhyError::NoDestination(text.to_owned()))?;
                (name, Some(port))
            }
            None => (text, None),
        };
        let (named, bare) = Named::of(name);
        if bare.is_empty() {
            return Err(WhyError::NoDestination(text.to_owned()));
        }
        if named == Named::Any && !bare.contains('/') {
            return match self.hosted_service(client, bare) {
                Some(service) => self.at_service(service, bare, port),
                None => Err(WhyError::UnknownHost(bare.to_owned(), self.near_host(client, bare))),
            };
        }
        let object = bare.split_once('/').unwrap_or((&client.namespace, bare));
        if named.may_be(Named::Service)
            && let Some(service) = self.service(object)
        {
            return self.at_service(service, bare, port);
        }
        match self.workload(named, object, notes) {
            Some(workload) => at_pod(workload, port),
            None => Err(self.missing(named, object)),
        }
    }

    /// A pod by its name, or one of those that a name owns: of several one that is ready.
    fn workload(
        &self,
        named: Named,
        (namespace, name): (&str, &str),
        notes: &mut Vec<String>,
    ) -> Option<&'a Workload> {
        let view = self.builder.view();
        if named.may_be(Named::Pod)
            && let Some(pod) = view.workload_named(&WorkloadName::new(namespace, name))
        {
            return Some(pod);
        }
        if !named.may_be(Named::Deployment) {
            return None;
        }
        let is_owned = |it: &&Workload| {
            let is_meant = named == Named::Any || it.kind == WorkloadKind::Deployment;
            is_meant && it.is_pod() && *it.namespace == *namespace && *it.workload_name == *name
        };
        let owned = || view.workloads().map(|it| &**it).filter(is_owned);
        let count = owned().count();
        let chosen = owned().min_by_key(|it| (!it.healthy, &it.name))?;
        if count > 1 {
            notes.push(format!(
                "{namespace}/{name} has {count} pods that run; this is {namespace}/{}",
                chosen.name
            ));
        }
        if !chosen.healthy {
            notes.push(format!("{namespace}/{} is not ready", chosen.name));
        }
        Some(chosen)
    }

    /// Why nothing of this name can be connected to.
    fn missing(&self, named: Named, (namespace, name): (&str, &str)) -> WhyError {
        let full = format!("{namespace}/{name}");
        let store = self.builder.store();
        let is_pod = || store.pod(&ObjectName::new(namespace, name)).is_some();
        let is_owner =
            || store.pods().any(|(pod, it)| *pod.namespace == *namespace && *it.owner == *name);
        if named.may_be(Named::Pod) && is_pod() || named.may_be(Named::Deployment) && is_owner() {
            return WhyError::NoAddress(full);
        }
        let mut known = BTreeSet::new();
        if named.may_be(Named::Service) {
            known.extend(self.services());
        }
        if named != Named::Service {
            known.extend(self.owners());
        }
        let near = nearest(&full, known.iter().map(String::as_str));
        WhyError::Unknown(named.word(), full, near)
    }

    /// What owns the pods that run, `NAMESPACE/NAME`; a pod that nothing owns is its own.
    fn owners(&self) -> BTreeSet<String> {
        let pods = self.builder.view().workloads().filter(|it| it.is_pod());
        let owners: BTreeSet<_> = pods.map(|it| (&*it.namespace, &*it.workload_name)).collect();
        owners.into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }

    /// The Kubernetes Services, `NAMESPACE/NAME`.
    fn services(&self) -> impl Iterator<Item = String> {
        let names = self.builder.store().services().map(|(name, _)| name);
        names.map(|name| format!("{}/{}", name.namespace, name.name))
    }

    /// The name nearest to a host that no service has, in the form that was written.
    fn near_host(&self, client: &Workload, host: &str) -> Option<String> {
        let own = self.builder.store().services().map(|(name, _)| name);
        let own = own.filter(|name| name.namespace == client.namespace);
        let other = self.services().filter_map(|it| {
            it.split_once('/').map(|(namespace, name)| format!("{name}.{namespace}"))
        });
        let full = self.builder.view().services().map(|it| it.key.hostname.to_string());
        let known: BTreeSet<String> =
            own.map(|name| name.name.to_string()).chain(other).chain(full).collect();
        nearest(host, known.iter().map(String::as_str))
    }

    fn service(&self, (namespace, name): (&str, &str)) -> Option<&'a Service> {
        let hostname = format!("{name}.{namespace}.svc.{}", self.builder.mesh().domain);
        let key = ServiceName::new(namespace, hostname);
        self.builder.view().service(&key).map(|service| &**service)
    }

    /// The service that a name means to `client`, as its proxy answers it: what the client's own
    /// namespace declares by this very name, then a service of the namespace that the name names,
    /// then what any namespace declares by it.
    fn hosted_service(&self, client: &Workload, host: &str) -> Option<&'a Service> {
        let view = self.builder.view();
        let (namespace, domain) = (&client.namespace, &self.builder.mesh().domain);
        let host = host.trim_end_matches('.');
        let candidates = [
            format!("{host}.{namespace}.svc.{domain}"),
            format!("{host}.svc.{domain}"),
            format!("{host}.{domain}"),
            host.to_owned(),
        ];
        let declared = || {
            let mut candidates = candidates.iter();
            candidates.find_map(|it| view.service_by_hostname(it, namespace))
        };
        let own = view.service(&ServiceName::new(namespace.clone(), host));
        own.or_else(declared).map(|service| &**service)
    }

    fn at_service(
        &self,
        service: &Service,
        name: &str,
        port: Option<u16>,
    ) -> Result<Destination, WhyError> {
        let ports = service.ports.iter().map(|port| port.service_port).collect();
        let port = port.map_or_else(|| only_port(name, ports), Ok)?;
        if let Some(address) = service.addresses.first() {
            let address = SocketAddr::new(address.address.ip, port);
            return Ok(Destination { name: service.key.to_string(), address });
        }
        // Headless: its name resolves to the endpoints themselves, on their own ports.
        let endpoints = self.builder.view().endpoints(&service.key);
        let endpoint = endpoints.and_then(|endpoints| endpoints.iter().find(|it| it.healthy));
        let missing = || WhyError::NoAddress(service.key.to_string());
        let endpoint = endpoint.ok_or_else(missing)?;
        let ip = endpoint.addresses.first().ok_or_else(missing)?;
        let name = format!("{} (headless, endpoint {})", service.key, endpoint.name);
        Ok(Destination { name, address: SocketAddr::new(*ip, port) })
    }
}

fn at_pod(workload: &Workload, port: Option<u16>) -> Result<Destination, WhyError> {
    let full = format!("{}/{}", workload.namespace, workload.name);
    let served = workload.services.values().flatten().map(|port| port.target_port);
    let mut ports: Vec<u16> = served.collect();
    ports.sort_unstable();
    ports.dedup();
    let port = port.map_or_else(|| only_port(&full, ports), Ok)?;
    let ip = workload.addresses.first().ok_or_else(|| WhyError::NoAddress(full.clone()))?;
    Ok(Destination { name: full, address: SocketAddr::new(*ip, port) })
}

/// The port that is meant where none was said.
fn only_port(name: &str, ports: Vec<u16>) -> Result<u16, WhyError> {
    match ports[..] {
        [port] => Ok(port),
        [first, ..] => Err(WhyError::Port(name.to_owned(), ports, first)),
        [] => Err(WhyError::AnyPort(name.to_owned())),
    }
}
