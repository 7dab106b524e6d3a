//! What a client may reach outside of the mesh where only what is declared may be reached
//! (`outboundTrafficPolicy.mode: REGISTRY_ONLY`).
//!
//! An address that is nothing of the mesh's may belong to a name that a ServiceEntry declares. A
//! client says a name in its TLS handshake, which proves nothing: the name counts only if it leads
//! to the very address that the client connects to. Pure functions: whoever calls them reads the
//! handshake and looks names up.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::Text;
use crate::names::ServiceName;
use crate::service::Service;
use crate::workload::AppProtocol;

/// A connection to an address that nothing of the mesh has. What is declared for its port may allow
/// it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fenced {
    /// Where the client wanted to go.
    pub destination: SocketAddr,
    /// The client's namespace.
    namespace: Text,
    /// What the client sees of what is declared for that port, of its own namespace first; never
    /// empty.
    declared: Vec<Arc<Service>>,
}

/// What the first bytes of a client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// A TLS handshake for this host, in lower case.
    Name(&'a str),
    /// A TLS handshake for none, or one that cannot be read.
    NoName,
    /// Something else.
    Bytes,
    /// Nothing in time: maybe it waits for the server.
    Nothing,
}

/// What must hold so that a connection is allowed.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// This name leads to the address.
    Name(Text, Arc<Service>),
    /// The host of one of these does.
    AnyOf(Vec<Arc<Service>>),
}

/// Why a connection leaves the mesh for nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undeclared {
    /// Nothing that the client may use has this address.
    Address(SocketAddr),
    /// Nothing that the client may use has the name that it says.
    Name(Text, SocketAddr),
    /// It says no name, and its address alone allows nothing.
    NoName(SocketAddr),
    /// It says no name in time.
    Silent(SocketAddr),
    /// The name that it says leads elsewhere.
    Elsewhere(Text, SocketAddr),
    /// What is declared there has a waypoint, which the connection would go around.
    AroundWaypoint(ServiceName, SocketAddr),
}

impl Undeclared {
    /// One word of a fixed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address(_) => "registry_only",
            Self::Name(..) => "registry_only_name",
            Self::NoName(_) | Self::Silent(_) => "registry_only_no_name",
            Self::Elsewhere(..) => "registry_only_elsewhere",
            Self::AroundWaypoint(..) => "around_waypoint",
        }
    }

    /// What its operator can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Address(_) | Self::Name(..) => {
                "declare the host and the port in a ServiceEntry that is exported to the client's \
                 namespace"
            }
            Self::NoName(_) | Self::Silent(_) => {
                "let the client name the host in its TLS handshake; or declare the port's protocol \
                 as TCP, or the address in a ServiceEntry"
            }
            Self::Elsewhere(..) => {
                "let the client use the address that DNS gives for the name; the client's resolver \
                 and the node's may differ"
            }
            Self::AroundWaypoint(..) => {
                "let the client connect to the address that the mesh's DNS gives for the host"
            }
        }
    }
}

impl fmt::Display for Undeclared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "only what is declared may be reached (REGISTRY_ONLY), and ")?;
        match self {
            Self::Address(to) => write!(
                f,
                "{to} is of no Service, ServiceEntry or workload that this client may use"
            ),
            Self::Name(name, to) => {
                write!(
                    f,
                    "no ServiceEntry that this client may use has {name} at port {}",
                    to.port()
                )
            }
            Self::NoName(to) => {
                write!(f, "the client names no host for {to} in a TLS handshake")
            }
            Self::Silent(to) => write!(
                f,
                "the client says nothing to {to} before the server does, so that it names no host"
            ),
            Self::Elsewhere(name, to) => {
                write!(f, "{name}, which the client names, does not lead to {}", to.ip())
            }
            Self::AroundWaypoint(service, to) => {
                write!(f, "{service} has a waypoint, and {to} is the way around it")
            }
        }
    }
}

impl Fenced {
    /// A connection to this address, for whose port this is declared; nothing if that is nothing.
    pub(crate) fn new(
        destination: SocketAddr,
        namespace: &Text,
        declared: Vec<Arc<Service>>,
    ) -> Option<Self> {
        let namespace = namespace.clone();
        (!declared.is_empty()).then_some(Self { destination, namespace, declared })
    }

    /// The declared hosts that a connection without a name may mean, if they lead to the address.
    /// `is_opaque` are those whose bytes nobody looks at, so that a server may speak first.
    fn by_address(&self, is_opaque: bool) -> Option<Condition> {
        let port = self.destination.port();
        let is_meant = |service: &&Arc<Service>| {
            let protocol = service.port(port).map(|it| it.app_protocol);
            let is_tls = protocol == Some(AppProtocol::Tls);
            let is_tcp = protocol == Some(AppProtocol::Tcp);
            !service.key.hostname.starts_with('*') && if is_opaque { is_tcp } else { !is_tls }
        };
        let all: Vec<_> = self.declared.iter().filter(is_meant).cloned().collect();
        (!all.is_empty()).then_some(Condition::AnyOf(all))
    }

    /// What allows the connection whatever the client says, if its host leads to the address: what
    /// is declared as TCP is not looked at.
    pub fn unseen(&self) -> Option<Condition> {
        self.by_address(true)
    }

    /// What allows the connection of a client that says this.
    pub fn allowed_by(&self, said: Said<'_>) -> Result<Condition, Undeclared> {
        let to = self.destination;
        match said {
            Said::Name(name) => match self.named(name) {
                Some(service) => Ok(Condition::Name(name.into(), service.clone())),
                None => Err(Undeclared::Name(name.into(), to)),
            },
            Said::NoName => Err(Undeclared::NoName(to)),
            Said::Bytes => self.by_address(false).ok_or(Undeclared::NoName(to)),
            Said::Nothing => Err(Undeclared::Silent(to)),
        }
    }

    /// What has this name: of the client's own namespace before others', the very host before a
    /// wildcard, the longest of those, and at last what has a waypoint.
    fn named(&self, name: &str) -> Option<&Arc<Service>> {
        let matching = self.declared.iter().filter(|it| covers(&it.key.hostname, name));
        matching.max_by_key(|it| {
            let host = &it.key.hostname;
            let is_own = it.key.namespace == self.namespace;
            (is_own, !host.starts_with('*'), host.len(), it.has_waypoint())
        })
    }

    /// The declared hosts, for words.
    pub fn hosts(&self) -> impl Iterator<Item = &Text> {
        self.declared.iter().map(|it| &it.key.hostname)
    }
}

/// Whether a host, or a wildcard, covers a name.
pub fn covers(host: &str, name: &str) -> bool {
    match host.strip_prefix('*') {
        None => host.eq_ignore_ascii_case(name),
        Some(suffix) => name.len().checked_sub(suffix.len()).is_some_and(|at| {
            at > 0
                && suffix.starts_with('.')
                && name.is_char_boundary(at)
                && name[at..].eq_ignore_ascii_case(suffix)
        }),
    }
}
