//! What the backends of a route name.

use ambit_model::http::rule::{Destination, RouteKind};
use ambit_model::names::ServiceName;

use super::parents::{Parent, ParentKind, Port};
use super::problem::{Problems, Reason};
use crate::FieldPath;
use crate::routes::{BackendRef, GROUP, GrantFrom, GrantTo, ReferenceGrantSpec};

/// The group and kind of a backend that is named by its host.
const HOSTNAME: (&str, &str) = ("networking.istio.io", "Hostname");
/// The group and kind of a backend of which nothing is said.
const SERVICE: (&str, &str) = ("", "Service");

/// What routes may refer to.
pub trait Backends {
    /// The Service, if it exists.
    fn service(&self, namespace: &str, name: &str) -> Option<Known>;

    /// The service of a host, a Service's or a ServiceEntry's, as routes of this namespace see it.
    fn host(&self, namespace: &str, hostname: &str) -> Option<Known>;

    /// Whether a ReferenceGrant of `namespace` lets routes refer to its Service.
    fn is_granted(&self, from: &GrantFrom, namespace: &str, service: &str) -> bool;

    /// Whether a DestinationRule defines a subset of the service; taken for granted where rules are
    /// not known.
    fn has_subset(&self, _service: &ServiceName, _subset: &str) -> bool {
        true
    }
}

/// A service that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its name in the view.
    pub name: ServiceName,
    /// Its ports that take connections; none where it is not known which.
    pub ports: Vec<Port>,
    /// Its ports that take datagrams, where it is known which.
    pub datagrams: Option<Vec<Port>>,
}

/// Everything that a route can name exists, and may be named: for checks of a route by itself.
pub(crate) struct Whatever;

impl Backends for Whatever {
    fn service(&self, namespace: &str, name: &str) -> Option<Known> {
        Some(Known { name: ServiceName::new(namespace, name), ports: Vec::new(), datagrams: None })
    }

    fn host(&self, namespace: &str, hostname: &str) -> Option<Known> {
        Some(Known {
            name: ServiceName::new(namespace, hostname),
            ports: Vec::new(),
            datagrams: None,
        })
    }

    fn is_granted(&self, _: &GrantFrom, _: &str, _: &str) -> bool {
        true
    }
}

/// Whether a grant of an object's own namespace lets `from` refer to it: its group, kind and name.
pub fn grants(grant: &ReferenceGrantSpec, from: &GrantFrom, target: (&str, &str, &str)) -> bool {
    let (group, kind, name) = target;
    let is_target = |to: &GrantTo| {
        (&*to.group, &*to.kind) == (group, kind) && to.name.as_ref().is_none_or(|it| it == name)
    };
    grant.from.contains(from) && grant.to.iter().any(is_target)
}

/// The name of a kind of routes.
pub(super) fn kind_name(kind: RouteKind) -> &'static str {
    match kind {
        RouteKind::HttpRoute => "HTTPRoute",
        RouteKind::GrpcRoute => "GRPCRoute",
        RouteKind::VirtualService => "VirtualService",
        RouteKind::TlsRoute => "TLSRoute",
        RouteKind::TcpRoute => "TCPRoute",
        RouteKind::UdpRoute => "UDPRoute",
    }
}

/// Looks up the backends of one route.
pub(super) struct Lookup<'a> {
    /// Of which kind the route is.
    pub(super) kind: RouteKind,
    /// The route's namespace.
    pub(super) namespace: &'a str,
    /// What the route attaches to. A route may send the requests to a Service of another namespace
    /// on to that Service without a grant: its clients may call it anyway. Those of a Gateway may
    /// not.
    pub(super) parents: Vec<Parent<'a>>,
    /// What there is.
    pub(super) backends: &'a dyn Backends,
}

impl Lookup<'_> {
    /// What a backend names; one that cannot be used is noted.
    pub(super) fn destination(
        &self,
        written: &BackendRef,
        at: &FieldPath,
        problems: &mut Problems,
    ) -> Destination {
        match self.find(written) {
            Ok(destination) => destination,
            Err((reason, what, remedy)) => {
                problems.add(reason, at, what.clone(), remedy);
                Destination::Invalid(what.into())
            }
        }
    }

    fn find(&self, written: &BackendRef) -> Result<Destination, (Reason, String, String)> {
        let group = written.group.as_deref().unwrap_or(SERVICE.0);
        let kind = written.kind.as_deref().unwrap_or(SERVICE.1);
        let name = &*written.name;
        let known = match (group, kind) {
            SERVICE => self.service(written)?,
            HOSTNAME if written.namespace.is_some() => {
                let what = format!("the host `{name}` is in no namespace");
                return Err((Reason::InvalidKind, what, "remove `namespace`".to_owned()));
            }
            HOSTNAME => self.backends.host(self.namespace, name).ok_or_else(|| {
                let what = format!("no Service and no ServiceEntry has the host `{name}`");
                let remedy = "correct the name, or add a ServiceEntry".to_owned();
                (Reason::BackendNotFound, what, remedy)
            })?,
            _ => {
                let what = format!("a {kind} ({group}) cannot be a backend");
                let remedy = "name a Service, or a Hostname of networking.istio.io".to_owned();
                return Err((Reason::InvalidKind, what, remedy));
            }
        };
        let port = written.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        let takes_datagrams = self.kind == RouteKind::UdpRoute;
        let ports = if takes_datagrams {
            known.datagrams
        } else {
            Some(known.ports).filter(|it| !it.is_empty())
        };
        match port {
            Some(port) if ports.as_ref().is_none_or(|it| it.iter().any(|it| it.number == port)) => {
                Ok(Destination::Service { name: known.name, port, subset: None })
            }
            Some(port) => {
                let ports = ports.iter().flatten().map(|it| it.number.to_string());
                let ports: Vec<String> = ports.collect();
                let protocol = if takes_datagrams { " that speaks UDP" } else { "" };
                let what = format!("`{name}` has no port {port}{protocol}");
                let remedy = match ports.as_slice() {
                    [] => "name a Service that has one".to_owned(),
                    ports => format!("use {}", ports.join(" or ")),
                };
                Err((Reason::BackendNotFound, what, remedy))
            }
            None => {
                let what = format!("it is not said which port of `{name}` is meant");
                Err((Reason::BackendNotFound, what, "add `port`, 1 to 65535".to_owned()))
            }
        }
    }

    fn service(&self, written: &BackendRef) -> Result<Known, (Reason, String, String)> {
        let namespace = written.namespace.as_deref().unwrap_or(self.namespace);
        let name = &*written.name;
        let from = GrantFrom {
            group: GROUP.to_owned(),
            kind: kind_name(self.kind).to_owned(),
            namespace: self.namespace.to_owned(),
        };
        let is_parent = self.parents.iter().any(|parent| {
            parent.kind == ParentKind::Service
                && (parent.namespace, parent.name) == (namespace, name)
        });
        let is_at_gateway = self.parents.iter().any(|parent| parent.kind.has_listeners());
        let is_free = namespace == self.namespace || is_parent && !is_at_gateway;
        // First, so that nobody learns from a condition what another namespace has.
        if !is_free && !self.backends.is_granted(&from, namespace, name) {
            let what = format!(
                "no ReferenceGrant of `{namespace}` lets {}s of `{}` refer to its Service `{name}`",
                from.kind, self.namespace
            );
            let remedy = format!("add one to `{namespace}`, or use a Service of this namespace");
            return Err((Reason::RefNotPermitted, what, remedy));
        }
        self.backends.service(namespace, name).ok_or_else(|| {
            let what = format!("the Service `{namespace}/{name}` does not exist");
            (Reason::BackendNotFound, what, "correct the name, or add the Service".to_owned())
        })
    }
}
