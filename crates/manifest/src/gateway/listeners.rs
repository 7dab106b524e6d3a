//! What a gateway at the edge makes of each of its listeners.
//!
//! [`judge`] says which listeners are served, by the rules of the Gateway API: what is spoken
//! there, whether the port is free, whether a connection or a request can be told from one for
//! another listener, which kinds of routes may attach, and what is wrong with its certificates. Of
//! listeners that conflict none is served: a gateway must not choose one. Whether a Secret that is
//! named exists is for the caller to say.
//!
//! Of listeners of different authors, the Gateway's and those of its ListenerSets, the earlier one
//! stays and the later one is not served.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ambit_model::http::gateway::HostMatch;
use ambit_model::http::rule::RouteKind;
use ambit_words::ports;

use super::sets::ListenerSet;
use super::{GatewaySpec, Listener, Position, RouteGroupKind, SecretRef, UNSUPPORTED_PROTOCOL};
use crate::routes::GrantFrom;

/// The ports of the pod that the gateway itself uses.
const TAKEN: [u16; 5] =
    [ports::OUTBOUND, ports::INBOUND, ports::HBONE, ports::PROXY_METRICS, ports::PROXY_READINESS];
/// The API group of routes.
pub const ROUTES_GROUP: &str = "gateway.networking.k8s.io";
/// The kinds of routes that may be named.
const KINDS: [(RouteKind, &str); 5] = [
    (RouteKind::HttpRoute, "HTTPRoute"),
    (RouteKind::GrpcRoute, "GRPCRoute"),
    (RouteKind::TlsRoute, "TLSRoute"),
    (RouteKind::TcpRoute, "TCPRoute"),
    (RouteKind::UdpRoute, "UDPRoute"),
];

/// What is spoken at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// HTTP in TLS that ends at the gateway.
    Https,
    /// Bytes in TLS that ends at the gateway.
    TlsTerminate,
    /// TLS that only the two ends read.
    TlsPassthrough,
    /// Bytes.
    Tcp,
    /// Datagrams.
    Udp,
}

/// The reason where the Secret of a certificate cannot be used.
pub const INVALID_CERTIFICATE: &str = "InvalidCertificateRef";
/// The same of the certificate by which a Gateway proves itself to backends.
pub(crate) const INVALID_CLIENT_CERTIFICATE: &str = "InvalidClientCertificateRef";

/// What is wrong: the reason of a condition, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The reason.
    pub reason: &'static str,
    /// What is wrong.
    pub what: String,
}

impl Fault {
    /// The same of the certificate by which a Gateway proves itself to backends: its reason has
    /// another word.
    pub fn of_client_certificate(self) -> Self {
        let is_invalid = self.reason == INVALID_CERTIFICATE;
        let reason = if is_invalid { INVALID_CLIENT_CERTIFICATE } else { self.reason };
        Self { reason, ..self }
    }
}

/// What a gateway makes of a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged<'a> {
    /// The listener.
    pub listener: &'a Listener,
    /// The set that it is of; none if it is the Gateway's own.
    pub set: Option<&'a ListenerSet>,
    /// What is spoken there, if the word is known.
    protocol: Option<Protocol>,
    /// The host that it serves; `None` is every one.
    host: Option<HostMatch>,
    /// Why it is not accepted, whatever other listeners are.
    refused: Option<Fault>,
    /// Why it cannot be told from others.
    conflict: Option<Fault>,
    /// Whether that is the fault of an earlier author's. It then keeps nobody away.
    gives_way: bool,
    /// The kinds of routes that may attach.
    kinds: Vec<RouteKind>,
    /// What is wrong with what it names.
    unresolved: Option<Fault>,
}

/// Judges the own listeners of a Gateway at the edge, in their order. What ListenerSets add changes
/// nothing for them.
pub fn judge(spec: &GatewaySpec) -> Vec<Judged<'_>> {
    judge_all(spec, &[])
}

/// Judges the listeners of a Gateway at the edge, and those of the sets that it takes, which are in
/// their order.
pub fn judge_all<'a>(spec: &'a GatewaySpec, sets: &[&'a ListenerSet]) -> Vec<Judged<'a>> {
    let mut all = judge_author(&spec.listeners, None, &[]);
    for set in sets {
        let own = judge_author(&set.spec.listeners, Some(set), &all);
        all.extend(own);
    }
    all
}

/// Judges the listeners of a ListenerSet as if they were a Gateway's only ones.
pub(crate) fn judge_set(set: &ListenerSet) -> Vec<Judged<'_>> {
    judge_author(&set.spec.listeners, Some(set), &[])
}

/// Judges the listeners of one author, after those that come before them.
fn judge_author<'a>(
    listeners: &'a [Listener],
    set: Option<&'a ListenerSet>,
    earlier: &[Judged<'a>],
) -> Vec<Judged<'a>> {
    let mut own: Vec<Judged<'a>> = listeners.iter().map(|it| Judged::alone(it, set)).collect();
    for judged in &mut own {
        judged.conflict = conflict(judged, earlier.iter());
        judged.gives_way = judged.conflict.is_some();
    }
    let mut names = BTreeSet::new();
    for judged in own.iter_mut().filter(|it| !names.insert(&it.listener.name)) {
        // Routes could not tell which of them they name.
        let what = format!("an earlier listener is called `{}` too", judged.listener.name);
        judged.conflict = Some(Fault { reason: "HostnameConflict", what });
        judged.gives_way = true;
    }
    let among = |at: usize| {
        let others = own[..at].iter().chain(&own[at + 1..]);
        (!own[at].gives_way).then(|| conflict(&own[at], others)).flatten()
    };
    let conflicts: Vec<Option<Fault>> = (0..own.len()).map(among).collect();
    for (judged, conflict) in own.iter_mut().zip(conflicts) {
        judged.conflict = judged.conflict.take().or(conflict);
    }
    own
}

/// Whether pods run for a Gateway: they serve one of its listeners, and it asks for no address that
/// nobody can give.
pub fn runs(spec: &GatewaySpec, position: Position) -> bool {
    match position {
        Position::Waypoint => spec.waypoint_listener().is_some(),
        Position::Edge => {
            spec.unknown_address_type().is_none() && judge(spec).iter().any(Judged::is_served)
        }
    }
}

impl Protocol {
    /// What a listener speaks, if the word is known.
    fn of(listener: &Listener) -> Option<Self> {
        let is_passed_through = listener.tls.as_ref().is_some_and(|it| it.is_passed_through());
        Some(match listener.protocol.as_str() {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" if is_passed_through => Self::TlsPassthrough,
            "TLS" => Self::TlsTerminate,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            _ => return None,
        })
    }

    /// Whether TLS ends at the gateway.
    pub fn ends_tls(self) -> bool {
        matches!(self, Self::Https | Self::TlsTerminate)
    }

    /// Whether a host tells listeners of one port apart.
    fn has_hosts(self) -> bool {
        !matches!(self, Self::Tcp | Self::Udp)
    }

    /// Whether both can be spoken at one port, for different hosts.
    fn goes_with(self, other: Self) -> bool {
        let is_tls = |it: Self| it.ends_tls() || it == Self::TlsPassthrough;
        self == other || (is_tls(self) && is_tls(other))
    }

    /// The kinds of routes that can attach.
    fn kinds(self) -> &'static [RouteKind] {
        match self {
            Self::Http | Self::Https => &[RouteKind::HttpRoute, RouteKind::GrpcRoute],
            Self::TlsTerminate => &[RouteKind::TlsRoute, RouteKind::TcpRoute],
            Self::TlsPassthrough => &[RouteKind::TlsRoute],
            Self::Tcp => &[RouteKind::TcpRoute],
            Self::Udp => &[RouteKind::UdpRoute],
        }
    }
}

impl<'a> Judged<'a> {
    /// What is made of a listener that is the only one.
    fn alone(listener: &'a Listener, set: Option<&'a ListenerSet>) -> Self {
        let protocol = Protocol::of(listener);
        let refused = refused(listener, protocol);
        let (kinds, wrong_kinds) = kinds(listener, protocol);
        let unresolved = wrong_kinds.or_else(|| wrong_certificates(listener, protocol));
        let (conflict, gives_way) = (None, false);
        let host = host(listener, protocol);
        Self { listener, set, protocol, host, refused, conflict, gives_way, kinds, unresolved }
    }

    /// Whether it is served.
    pub fn is_served(&self) -> bool {
        self.not_accepted().is_none()
    }

    /// Why it is not served; a conflict is a reason.
    pub fn not_accepted(&self) -> Option<&Fault> {
        self.refused.as_ref().or(self.conflict.as_ref())
    }

    /// Why it cannot be told from other listeners.
    pub fn conflict(&self) -> Option<&Fault> {
        self.conflict.as_ref()
    }

    /// What is wrong with what it names: kinds of routes, certificates.
    pub fn unresolved(&self) -> Option<&Fault> {
        self.unresolved.as_ref()
    }

    /// What is spoken there, if the word is known.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// The kinds of routes that may attach.
    pub fn kinds(&self) -> &[RouteKind] {
        &self.kinds
    }

    /// The same by their names.
    pub fn kind_names(&self) -> impl Iterator<Item = &'static str> {
        names(&self.kinds)
    }

    /// The names of all kinds of routes that can attach where this is spoken.
    pub(crate) fn possible_kinds(protocol: Option<Protocol>) -> impl Iterator<Item = &'static str> {
        names(protocol.map_or(&[], Protocol::kinds))
    }

    /// Whether routes of a namespace with these labels may attach; `own` is the Gateway's.
    pub fn admits(&self, own: &str, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.listener.admits(self.namespace(own), namespace, labels)
    }

    /// The namespace of who wrote it; `own` is the Gateway's.
    pub fn namespace<'b>(&self, own: &'b str) -> &'b str
    where
        'a: 'b,
    {
        self.set.map_or(own, |set| set.namespaced_name().0)
    }

    /// As whom it refers to objects of other namespaces; `own` is the Gateway's namespace.
    pub fn refers_as(&self, own: &str) -> GrantFrom {
        match self.set {
            None => GrantFrom::of_gateways(own),
            Some(set) => GrantFrom::of_listener_sets(set.namespaced_name().0),
        }
    }

    /// A name that no other listener of the Gateway has: `web` of the Gateway's own, and
    /// `namespace/set/web` of a set's.
    pub fn full_name(&self) -> Cow<'a, str> {
        let name = self.listener.name.as_str();
        self.set.map_or(Cow::Borrowed(name), |set| {
            let (namespace, set) = set.namespaced_name();
            Cow::Owned(format!("{namespace}/{set}/{name}"))
        })
    }

    /// The port; `None` for a number that is none.
    pub fn port(&self) -> Option<u16> {
        port(self.listener)
    }

    /// The host that it serves; `None` is every one.
    pub fn host(&self) -> Option<&HostMatch> {
        self.host.as_ref()
    }

    /// The Secrets with its certificates. Other objects that it names are left out.
    pub fn certificates(&self) -> impl Iterator<Item = &'a SecretRef> {
        let ends_tls = self.protocol.is_some_and(Protocol::ends_tls);
        let tls = self.listener.tls.as_ref().filter(|_| ends_tls);
        tls.into_iter().flat_map(|it| &it.certificate_refs).filter(|it| it.is_secret())
    }
}

fn names(kinds: &[RouteKind]) -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter(|it| kinds.contains(&it.0)).map(|it| it.1)
}

fn host(listener: &Listener, protocol: Option<Protocol>) -> Option<HostMatch> {
    let written = listener.hostname.as_deref().filter(|it| !it.is_empty());
    written.filter(|_| protocol.is_some_and(Protocol::has_hosts)).map(HostMatch::new)
}

fn port(listener: &Listener) -> Option<u16> {
    u16::try_from(listener.port).ok().filter(|port| *port != 0)
}

/// Why a listener is not accepted, whatever others are.
fn refused(listener: &Listener, protocol: Option<Protocol>) -> Option<Fault> {
    let unsupported = |what: String| Some(Fault { reason: UNSUPPORTED_PROTOCOL, what });
    let Listener { name, port: number, protocol: written, tls, .. } = listener;
    if protocol.is_none() {
        return unsupported(format!(
            "listener `{name}` is {written}; a gateway serves HTTP, HTTPS, TLS, TCP and UDP"
        ));
    }
    if protocol == Some(Protocol::Https) && tls.as_ref().is_some_and(|it| it.is_passed_through()) {
        return unsupported(format!(
            "listener `{name}` is HTTPS, which ends TLS, and has mode Passthrough, which does not"
        ));
    }
    let what = match port(listener) {
        None => format!("{number} of listener `{name}` is no port"),
        Some(port) if TAKEN.contains(&port) => {
            format!("the gateway itself uses port {port} of listener `{name}`")
        }
        Some(_) => return None,
    };
    Some(Fault { reason: "PortUnavailable", what })
}

/// Why a listener cannot be told from others. Those that are refused anyway are no others, and
/// neither are those that give way.
fn conflict<'a, 'b: 'a>(
    own: &Judged<'_>,
    others: impl Iterator<Item = &'a Judged<'b>> + Clone,
) -> Option<Fault> {
    // Connections and datagrams have ports of their own.
    let is_udp = own.protocol == Some(Protocol::Udp);
    let others = || {
        let is_there = |it: &&Judged<'_>| {
            it.refused.is_none() && !it.gives_way && (it.protocol == Some(Protocol::Udp)) == is_udp
        };
        others.clone().filter(is_there).filter(|it| it.listener.port == own.listener.port)
    };
    let protocol = own.protocol.filter(|_| own.refused.is_none())?;
    // An author learns no names of others'.
    let named = |other: &Judged<'_>| match other.set {
        _ if other.set.map(ListenerSet::namespaced_name)
            == own.set.map(ListenerSet::namespaced_name) =>
        {
            format!("listeners `{}` and `{}`", own.listener.name, other.listener.name)
        }
        None => format!("listener `{}` and one of the Gateway", own.listener.name),
        Some(_) => format!("listener `{}` and one of an older ListenerSet", own.listener.name),
    };
    let port = own.listener.port;
    let clashes = |other: &&Judged<'_>| !other.protocol.is_some_and(|it| it.goes_with(protocol));
    let same = |other: &&Judged<'_>| other.host() == own.host();
    if let Some(other) = others().find(clashes) {
        let (one, two) = (&own.listener.protocol, &other.listener.protocol);
        let what = format!("{} speak {one} and {two} at port {port}", named(other));
        return Some(Fault { reason: "ProtocolConflict", what });
    }
    let other = others().find(same)?;
    let (reason, what) = if protocol.has_hosts() {
        ("HostnameConflict", "have the same host")
    } else {
        ("ProtocolConflict", "both take every connection")
    };
    Some(Fault { reason, what: format!("{} {what} at port {port}", named(other)) })
}

/// The kinds of routes that may attach, and what is wrong with those that are named.
fn kinds(listener: &Listener, protocol: Option<Protocol>) -> (Vec<RouteKind>, Option<Fault>) {
    let possible = protocol.map_or(&[][..], Protocol::kinds);
    let named = listener.allowed_routes.as_ref().and_then(|it| it.kinds.as_deref());
    let named = named.unwrap_or_default();
    if named.is_empty() {
        return (possible.to_vec(), None);
    }
    let mut kinds = Vec::new();
    let mut fault = None;
    for written in named {
        match route_kind(written).filter(|it| possible.contains(it)) {
            Some(kind) if !kinds.contains(&kind) => kinds.push(kind),
            Some(_) => {}
            None => {
                let (kind, name) = (&written.kind, &listener.name);
                let what = format!("{kind} cannot attach to listener `{name}`");
                fault = fault.or(Some(Fault { reason: "InvalidRouteKinds", what }));
            }
        }
    }
    (kinds, fault)
}

fn route_kind(written: &RouteGroupKind) -> Option<RouteKind> {
    let is_ours = written.group.as_deref().is_none_or(|it| it == ROUTES_GROUP);
    KINDS.iter().find(|it| is_ours && it.1 == written.kind).map(|it| it.0)
}

/// What is wrong with the certificates that are named.
fn wrong_certificates(listener: &Listener, protocol: Option<Protocol>) -> Option<Fault> {
    if !protocol.is_some_and(Protocol::ends_tls) {
        return None;
    }
    let name = &listener.name;
    let named = listener.tls.as_ref().map(|it| it.certificate_refs.as_slice());
    let what = match named.unwrap_or_default() {
        [] => format!("listener `{name}` ends TLS and names no certificate"),
        all => {
            let other = all.iter().find(|it| !it.is_secret())?;
            let kind = other.kind.as_deref().unwrap_or("Secret");
            let group = other.group.as_deref().unwrap_or_default();
            format!("listener `{name}` names {kind} {} of group {group:?}, no Secret", other.name)
        }
    };
    Some(Fault { reason: INVALID_CERTIFICATE, what })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(listeners: Value) -> GatewaySpec {
        let spec = json!({"gatewayClassName": "ambit", "listeners": listeners});
        serde_json::from_value(spec).expect("a Gateway")
    }

    fn one(listener: Value) -> GatewaySpec {
        spec(json!([listener]))
    }

    fn reason(fault: Option<&Fault>) -> &'static str {
        fault.map_or("", |it| it.reason)
    }

    #[test]
    fn a_protocol_and_a_port_are_accepted_or_not() {
        let check = |protocol: &str, port: i32, mode: Option<&str>, expected: &str| {
            let tls = mode.map(|mode| json!({"mode": mode, "certificateRefs": [{"name": "c"}]}));
            let spec = one(json!({"name": "l", "protocol": protocol, "port": port, "tls": tls}));
            let judged = &judge(&spec)[0];
            assert_eq!(reason(judged.not_accepted()), expected, "{protocol} {port} {mode:?}");
            assert_eq!(judged.is_served(), expected.is_empty());
        };
        check("HTTP", 80, None, "");
        check("HTTPS", 443, Some("Terminate"), "");
        check("HTTPS", 443, Some("Passthrough"), "UnsupportedProtocol");
        check("TLS", 443, Some("Passthrough"), "");
        check("TLS", 443, Some("Terminate"), "");
        check("TCP", 5432, None, "");
        check("UDP", 53, None, "");
        check("HBONE", 15008, None, "UnsupportedProtocol");
        check("http", 80, None, "UnsupportedProtocol");
        check("example.com/own", 80, None, "UnsupportedProtocol");
        for taken in [0, -1, 65_536, 15_001, 15_006, 15_008, 15_020, 15_021] {
            check("HTTP", taken, None, "PortUnavailable");
        }
        check("HTTP", 65_535, None, "");
    }

    #[test]
    fn pods_run_for_what_they_serve() {
        let check = |port: i32, address: &str, expected: bool| {
            let spec = json!({"listeners": [{"name": "l", "protocol": "HTTP", "port": port}],
                "addresses": [{"type": address}]});
            let spec = serde_json::from_value(spec).expect("a Gateway");
            assert_eq!(runs(&spec, Position::Edge), expected, "{port} {address}");
            assert!(!runs(&spec, Position::Waypoint));
        };
        check(80, "IPAddress", true);
        check(80, "Hostname", true);
        check(80, "example.com/own", false);
        check(15_008, "IPAddress", false);
    }

    #[test]
    fn listeners_of_a_port_that_cannot_be_told_apart_conflict() {
        let check = |listeners: &[(&str, i32, &str)], expected: &[&str]| {
            let of = |(index, it): (usize, &(&str, i32, &str))| {
                let (protocol, port, hostname) = *it;
                json!({"name": format!("l{index}"), "protocol": protocol, "port": port,
                    "hostname": hostname})
            };
            let spec = spec(listeners.iter().enumerate().map(of).collect());
            let all = judge(&spec);
            let found: Vec<_> = all.iter().map(|it| reason(it.conflict())).collect();
            assert_eq!(found, expected, "{listeners:?}");
            for it in &all {
                assert!(it.conflict().is_none() || !it.is_served(), "{it:?}");
            }
        };
        let (host, protocol) = ("HostnameConflict", "ProtocolConflict");
        check(&[("HTTP", 80, "a.com"), ("HTTP", 80, "b.com")], &["", ""]);
        check(&[("HTTP", 80, "*.a.com"), ("HTTP", 80, "x.a.com"), ("HTTP", 80, "")], &["", "", ""]);
        check(&[("HTTP", 80, "a.com"), ("HTTP", 81, "a.com")], &["", ""]);
        check(
            &[("HTTP", 80, "a.com"), ("HTTP", 80, "A.com"), ("HTTP", 80, "b.com")],
            &[host, host, ""],
        );
        check(&[("HTTP", 80, ""), ("HTTP", 80, "")], &[host, host]);
        check(&[("HTTP", 80, "a.com"), ("HTTPS", 80, "b.com")], &[protocol, protocol]);
        check(&[("HTTPS", 443, "a.com"), ("TLS", 443, "b.com")], &["", ""]);
        check(&[("HTTPS", 443, "a.com"), ("TLS", 443, "a.com")], &[host, host]);
        check(
            &[("TCP", 80, ""), ("HTTP", 80, "a.com"), ("HTTP", 80, "b.com")],
            &[protocol, protocol, protocol],
        );
        check(&[("TCP", 80, ""), ("TCP", 80, "")], &[protocol, protocol]);
        check(&[("TCP", 53, ""), ("UDP", 53, "")], &["", ""]);
        check(&[("HTTP", 80, ""), ("other.com/a", 80, "")], &["", ""]);
    }

    #[test]
    fn of_several_authors_the_earlier_one_stays() {
        let listeners = |all: &[(&str, i32, &str)]| -> Value {
            let of = |(index, it): (usize, &(&str, i32, &str))| {
                let (protocol, port, hostname) = *it;
                json!({"name": format!("l{index}"), "protocol": protocol, "port": port,
                    "hostname": hostname})
            };
            all.iter().enumerate().map(of).collect()
        };
        type Written<'a> = &'a [(&'a str, i32, &'a str)];
        let check = |own: Written<'_>, sets: &[Written<'_>], expected: &[&str]| {
            let spec = spec(listeners(own));
            let sets = sets.iter().enumerate().map(|(index, all)| {
                let set = json!({"apiVersion": "gateway.networking.k8s.io/v1",
                    "kind": "ListenerSet",
                    "metadata": {"namespace": "shop", "name": format!("s{index}")},
                    "spec": {"parentRef": {"name": "edge"}, "listeners": listeners(all)}});
                serde_json::from_value(set).expect("a ListenerSet")
            });
            let sets: Vec<ListenerSet> = sets.collect();
            let sets: Vec<&ListenerSet> = sets.iter().collect();
            let all = judge_all(&spec, &sets);
            let found: Vec<String> = all
                .iter()
                .map(|it| format!("{} {}", it.full_name(), reason(it.not_accepted())))
                .collect();
            assert_eq!(found.iter().map(|it| it.trim()).collect::<Vec<_>>(), expected);
            assert!(all.iter().zip(judge(&spec)).all(|(one, other)| *one == other));
        };
        let a: Written<'_> = &[("HTTP", 80, "a.com")];
        let b: Written<'_> = &[("HTTP", 80, "b.com")];
        let tcp: Written<'_> = &[("TCP", 80, "")];
        check(a, &[b], &["l0", "shop/s0/l0"]);
        check(a, &[a], &["l0", "shop/s0/l0 HostnameConflict"]);
        check(b, &[a, a], &["l0", "shop/s0/l0", "shop/s1/l0 HostnameConflict"]);
        check(a, &[tcp], &["l0", "shop/s0/l0 ProtocolConflict"]);
        // What loses to an earlier one keeps nobody away.
        check(a, &[tcp, b], &["l0", "shop/s0/l0 ProtocolConflict", "shop/s1/l0"]);
        let mixed: Written<'_> = &[("HTTP", 80, "b.com"), ("TCP", 80, ""), ("HTTP", 80, "a.com")];
        let (host, protocol) = ("shop/s0/l2 HostnameConflict", "shop/s0/l1 ProtocolConflict");
        check(a, &[mixed], &["l0", "shop/s0/l0", protocol, host]);
        // Of one author none is chosen, and each keeps others away.
        let twice: Written<'_> = &[("HTTP", 80, "b.com"), ("HTTP", 80, "b.com")];
        let neither = ["shop/s0/l0 HostnameConflict", "shop/s0/l1 HostnameConflict"];
        check(a, &[twice, b], &["l0", neither[0], neither[1], "shop/s1/l0 HostnameConflict"]);
        // One that is refused anyway is nowhere.
        check(&[("SCTP", 80, "")], &[a], &["l0 UnsupportedProtocol", "shop/s0/l0"]);
    }

    #[test]
    fn an_author_learns_no_names_of_others() {
        let set = |name: &str| -> ListenerSet {
            let set = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
                "metadata": {"namespace": "shop", "name": name},
                "spec": {"parentRef": {"name": "edge"}, "listeners": [
                    {"name": format!("of-{name}"), "protocol": "HTTP", "port": 80}]}});
            serde_json::from_value(set).expect("a ListenerSet")
        };
        let (one, two) = (set("one"), set("two"));
        let check = |own: &GatewaySpec, expected: &str| {
            let all = judge_all(own, &[&one, &two]);
            let fault = all.last().and_then(Judged::conflict).expect("a conflict");
            assert_eq!(fault.what, expected);
        };
        let same = "have the same host at port 80";
        let web = self::one(json!({"name": "web", "protocol": "HTTP", "port": 80}));
        check(&web, &format!("listener `of-two` and one of the Gateway {same}"));
        let alt = self::one(json!({"name": "web", "protocol": "HTTP", "port": 81}));
        check(&alt, &format!("listener `of-two` and one of an older ListenerSet {same}"));
    }

    #[test]
    fn a_listener_has_kinds_of_routes() {
        use RouteKind::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute};
        let check =
            |protocol: &str, mode: &str, kinds: Value, expected: &[RouteKind], why: &str| {
                let spec = one(json!({"name": "l", "protocol": protocol, "port": 80,
                "tls": {"mode": mode, "certificateRefs": [{"name": "c"}]},
                "allowedRoutes": {"kinds": kinds}}));
                let judged = &judge(&spec)[0];
                assert_eq!(judged.kinds(), expected, "{protocol} {mode} {kinds}");
                assert_eq!(reason(judged.unresolved()), why, "{protocol} {mode} {kinds}");
                assert!(judged.is_served(), "its other routes are");
            };
        let none = || json!(null);
        let wrong = "InvalidRouteKinds";
        check("HTTP", "", none(), &[HttpRoute, GrpcRoute], "");
        check("HTTP", "", json!([]), &[HttpRoute, GrpcRoute], "");
        check("HTTPS", "Terminate", none(), &[HttpRoute, GrpcRoute], "");
        check("TLS", "Terminate", none(), &[TlsRoute, TcpRoute], "");
        check("TLS", "Passthrough", none(), &[TlsRoute], "");
        check("TCP", "", none(), &[TcpRoute], "");
        check("HTTP", "", json!([{"kind": "HTTPRoute"}]), &[HttpRoute], "");
        check("HTTP", "", json!([{"group": ROUTES_GROUP, "kind": "GRPCRoute"}]), &[GrpcRoute], "");
        check("HTTP", "", json!([{"group": "other", "kind": "HTTPRoute"}]), &[], wrong);
        check("HTTP", "", json!([{"kind": "HTTPRoute"}, {"kind": "Wrong"}]), &[HttpRoute], wrong);
        check("HTTP", "", json!([{"kind": "TCPRoute"}]), &[], wrong);
        let spec = one(json!({"name": "l", "protocol": "HTTP", "port": 80}));
        assert!(judge(&spec)[0].kind_names().eq(["HTTPRoute", "GRPCRoute"]));
    }

    #[test]
    fn certificates_are_secrets() {
        let check = |protocol: &str, tls: Value, expected: &[&str], why: &str| {
            let spec = one(json!({"name": "l", "protocol": protocol, "port": 443, "tls": tls}));
            let judged = &judge(&spec)[0];
            assert!(
                judged.certificates().map(|it| &*it.name).eq(expected.iter().copied()),
                "{tls}"
            );
            assert_eq!(reason(judged.unresolved()), why, "{protocol} {tls}");
        };
        let wrong = "InvalidCertificateRef";
        let refs = |refs: Value| json!({ "certificateRefs": refs });
        check("HTTPS", json!(null), &[], wrong);
        check("HTTPS", json!({}), &[], wrong);
        check(
            "HTTPS",
            refs(json!([{"name": "a"}, {"name": "b", "kind": "Secret"}])),
            &["a", "b"],
            "",
        );
        check("HTTPS", refs(json!([{"name": "a", "kind": "ConfigMap"}])), &[], wrong);
        check("HTTPS", refs(json!([{"name": "a", "group": "g"}, {"name": "b"}])), &["b"], wrong);
        check("TLS", refs(json!([{"name": "a"}])), &["a"], "");
        check("TLS", json!({"mode": "Passthrough", "certificateRefs": [{"name": "a"}]}), &[], "");
        check("HTTP", json!(null), &[], "");
    }

    #[test]
    fn a_listener_serves_a_host() {
        let check = |protocol: &str, hostname: Value, expected: Option<HostMatch>| {
            let spec =
                one(json!({"name": "l", "protocol": protocol, "port": 1, "hostname": hostname}));
            assert_eq!(judge(&spec)[0].host(), expected.as_ref(), "{protocol} {hostname}");
        };
        check("HTTP", json!(null), None);
        check("HTTP", json!(""), None);
        check("HTTP", json!("Example.com"), Some(HostMatch::Exact("example.com".into())));
        check("TLS", json!("*.Example.com"), Some(HostMatch::Suffix(".example.com".into())));
        check("TCP", json!("example.com"), None);
    }
}
