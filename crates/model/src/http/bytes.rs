//! Routes of connections that are no HTTP: TCPRoute, TLSRoute, and the `tcp` and `tls` routes of a
//! VirtualService, as used.
//!
//! A connection is routed once, when it begins. Of its bytes only the name in a TLS handshake is
//! ever looked at, which the caller passes in.

use std::cmp::Reverse;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::Text;
use crate::http::attached::{Attached, Compile};
use crate::http::rule::{Destination, NoBackend, Origin, RouteKind, drawn};
use crate::names::ServiceName;

/// One rule of a route of connections.
#[derive(Clone, Debug, PartialEq)]
pub struct BytesRule {
    /// Where it is written.
    pub origin: Origin,
    /// Alternatives; none matches every connection.
    pub matches: Vec<BytesMatch>,
    /// Where connections go, by weight. None at all, or none with a weight, refuses them.
    pub backends: Vec<BytesBackend>,
}

/// What a connection must be; all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BytesMatch {
    /// The name in its TLS handshake. What is no TLS, or names nobody, has none.
    pub server_name: Option<ServerNameMatch>,
    /// The client connected to one of these addresses; none is every one.
    pub destinations: Vec<IpNet>,
    /// The client's namespace, which it has proven.
    pub client_namespace: Option<Text>,
}

/// How the name in a TLS handshake is compared. All names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNameMatch {
    /// It is this.
    Exact(Text),
    /// It ends with this, and begins with something else: `.example.com` for `*.example.com`,
    /// nothing for `*`.
    Suffix(Text),
}

/// One of the places that connections of a rule go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BytesBackend {
    /// Its share of the sum of weights.
    pub weight: u32,
    /// What it is.
    pub destination: Destination,
}

/// A connection, as routes read it.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// The name in its TLS handshake, in lower case.
    pub server_name: Option<&'a str>,
    /// What the client connected to.
    pub destination: IpAddr,
    /// The client's namespace, if it has proven its identity.
    pub client_namespace: Option<&'a str>,
}

/// The rules that meet at one port, in the order in which they are asked: TLSRoutes, the more
/// specific name first; TCPRoutes; VirtualServices, `tls` before `tcp`. Of equals the older route
/// comes first, then its `NAMESPACE/NAME`, then its rules as they are written.
#[derive(Clone, Debug)]
pub struct BytesTable {
    /// A rule with several matches comes several times.
    entries: Vec<Entry>,
}

/// Routes are attached, and none takes a connection with this name in its TLS handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoBytesRoute(Option<Text>);

impl NoBytesRoute {
    /// None takes this connection.
    pub fn of(connection: &Connection<'_>) -> Self {
        Self(connection.server_name.map(Text::from))
    }
}

impl fmt::Display for NoBytesRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(name) => write!(f, "no route takes TLS connections to {name}"),
            None => f.write_str("no route takes connections that name no host by TLS"),
        }
    }
}

impl std::error::Error for NoBytesRoute {}

/// The routes of connections to a service that are no HTTP.
pub type BytesRoutes = Attached<BytesRule, BytesTable>;

/// A rule, and one of its matches.
type Entry = (BytesMatch, Arc<BytesRule>);

impl BytesTable {
    /// The first rule that takes a connection, and which of its matches holds.
    pub fn find(
        &self,
        connection: &Connection<'_>,
    ) -> Result<(&BytesMatch, &Arc<BytesRule>), NoBytesRoute> {
        let mut entries = self.entries.iter();
        let found = entries.find(|(wanted, _)| wanted.holds(connection));
        let found = found.map(|(wanted, rule)| (wanted, rule));
        found.ok_or_else(|| NoBytesRoute::of(connection))
    }

    /// All matches with their rules, in the order in which they are asked.
    pub fn iter(&self) -> impl Iterator<Item = (&BytesMatch, &BytesRule)> {
        self.entries.iter().map(|(wanted, rule)| (wanted, &**rule))
    }

    /// Whether a rule asks for the name in a TLS handshake.
    pub fn reads_server_names(&self) -> bool {
        self.entries.iter().any(|(wanted, _)| wanted.server_name.is_some())
    }
}

impl Compile<BytesRule> for BytesTable {
    fn compile<'a>(rules: impl Iterator<Item = &'a Arc<BytesRule>> + Clone) -> Option<Self> {
        let mut entries: Vec<Entry> = rules.flat_map(entries).collect();
        entries.sort_by_cached_key(|(wanted, rule)| place(wanted, &rule.origin));
        (!entries.is_empty()).then_some(Self { entries })
    }
}

fn entries(rule: &Arc<BytesRule>) -> Vec<Entry> {
    match &rule.matches[..] {
        [] => vec![(BytesMatch::default(), rule.clone())],
        all => all.iter().map(|wanted| (wanted.clone(), rule.clone())).collect(),
    }
}

/// The place of a match among all of a port; less comes first. Sorting keeps the order of what a
/// rule lists.
fn place(wanted: &BytesMatch, origin: &Origin) -> impl Ord + use<> {
    let is_named = wanted.server_name.is_some();
    let (kind, name) = match origin.kind {
        RouteKind::TlsRoute => (0, wanted.server_name.as_ref().map(ServerNameMatch::rank)),
        RouteKind::VirtualService if is_named => (2, None),
        RouteKind::VirtualService => (3, None),
        _ => (1, None),
    };
    let route = format!("{}/{}", origin.namespace, origin.name);
    (kind, Reverse(name), origin.created_unix_s, route, origin.index)
}

impl BytesMatch {
    fn holds(&self, connection: &Connection<'_>) -> bool {
        let Connection { server_name, destination, client_namespace } = *connection;
        let is_named = |wanted: &ServerNameMatch| server_name.is_some_and(|it| wanted.matches(it));
        self.server_name.as_ref().is_none_or(is_named)
            && (self.destinations.is_empty()
                || self.destinations.iter().any(|block| block.contains(&destination)))
            && self.client_namespace.as_deref().is_none_or(|it| client_namespace == Some(it))
    }
}

impl ServerNameMatch {
    /// Reads `example.com`, `*.example.com` or `*`, in any case.
    pub fn new(written: &str) -> Self {
        let lower = written.to_ascii_lowercase();
        match lower.strip_prefix('*') {
            Some(suffix) => Self::Suffix(suffix.into()),
            None => Self::Exact(lower.into()),
        }
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => name == &**text,
            Self::Suffix(text) => name.len() > text.len() && name.ends_with(&**text),
        }
    }

    /// The names that both match: those of the more specific one, if the other has them too.
    #[must_use]
    pub fn both(&self, other: &Self) -> Option<Self> {
        let (more, less) = if self.rank() >= other.rank() { (self, other) } else { (other, self) };
        let is_within = match (more, less) {
            (Self::Exact(name), _) => less.matches(name),
            (Self::Suffix(end), Self::Suffix(wider)) => end.ends_with(&**wider),
            (Self::Suffix(_), Self::Exact(_)) => false,
        };
        is_within.then(|| more.clone())
    }

    /// How specific it is; more is greater.
    pub(crate) fn rank(&self) -> (bool, usize) {
        match self {
            Self::Exact(text) => (true, text.len()),
            Self::Suffix(text) => (false, text.len()),
        }
    }
}

impl BytesRule {
    /// Draws where a connection goes. `random_below` answers a number below its argument.
    pub fn draw(&self, random_below: impl FnOnce(u64) -> u64) -> Result<&Destination, NoBackend> {
        let drawn = drawn(&self.backends, |it| it.weight, random_below).ok_or(NoBackend::None)?;
        match &drawn.destination {
            Destination::Invalid(reason) => Err(NoBackend::Invalid(reason.clone())),
            destination => Ok(destination),
        }
    }
}

/// The services that rules send connections to; one may come several times.
pub(crate) fn destinations(routes: &BytesRoutes) -> impl Iterator<Item = &ServiceName> {
    let rules = routes.groups().iter().flat_map(|group| &group.rules);
    rules.flat_map(|rule| rule.backends.iter().filter_map(|it| it.destination.service()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(kind: RouteKind, name: &str, created: i64, matches: Vec<BytesMatch>) -> Arc<BytesRule> {
        let origin = Origin {
            kind,
            namespace: "app".into(),
            name: name.into(),
            created_unix_s: created,
            index: 0,
            rule_name: None,
        };
        Arc::new(BytesRule { origin, matches, backends: Vec::new() })
    }

    fn named(name: &str) -> BytesMatch {
        BytesMatch { server_name: Some(ServerNameMatch::new(name)), ..BytesMatch::default() }
    }

    fn found(rules: &[Arc<BytesRule>], server_name: Option<&str>) -> Option<String> {
        let table = BytesTable::compile(rules.iter())?;
        let connection = Connection {
            server_name,
            destination: "10.96.0.1".parse().expect("an address"),
            client_namespace: Some("shop"),
        };
        table.find(&connection).ok().map(|(_, rule)| rule.origin.name.to_string())
    }

    #[test]
    fn two_names_have_in_common_what_the_more_specific_one_has() {
        for (one, other, expected) in [
            ("a.com", "a.com", Some("a.com")),
            ("a.com", "b.com", None),
            ("*.com", "a.com", Some("a.com")),
            ("*.a.com", "a.com", None),
            ("*.a.com", "*.com", Some("*.a.com")),
            ("*.a.com", "*.b.com", None),
            ("*", "*.a.com", Some("*.a.com")),
        ] {
            let (first, second) = (ServerNameMatch::new(one), ServerNameMatch::new(other));
            let expected = expected.map(ServerNameMatch::new);
            assert_eq!(first.both(&second), expected, "{one} {other}");
            assert_eq!(second.both(&first), expected, "{other} {one}");
        }
    }

    #[test]
    fn names_decide_before_everything_else_and_the_more_specific_first() {
        use RouteKind::{TcpRoute, TlsRoute, VirtualService};
        let rules = [
            rule(TcpRoute, "tcp", 1, vec![]),
            rule(TlsRoute, "any", 1, vec![named("*")]),
            rule(TlsRoute, "wild", 1, vec![named("*.Example.com")]),
            rule(TlsRoute, "young", 3, vec![named("a.example.com")]),
            rule(TlsRoute, "old", 2, vec![named("b.example.com"), named("a.example.com")]),
            rule(VirtualService, "never", 0, vec![]),
        ];
        for (name, expected) in [
            (Some("a.example.com"), "old"),
            (Some("b.example.com"), "old"),
            (Some("c.example.com"), "wild"),
            (Some("d.c.example.com"), "wild"),
            (Some("example.com"), "any"),
            (Some("other.org"), "any"),
            (None, "tcp"),
        ] {
            assert_eq!(found(&rules, name).as_deref(), Some(expected), "{name:?}");
        }
        // Without a TCPRoute nobody takes what names nobody.
        assert_eq!(found(&rules[1..5], None), None);
        assert_eq!(found(&[], Some("a")), None);
    }

    #[test]
    fn routes_of_a_virtual_service_are_asked_as_written_and_tls_first() {
        let block = |block: &str| BytesMatch {
            destinations: vec![block.parse().expect("a block")],
            ..BytesMatch::default()
        };
        let of = |client: &str| BytesMatch {
            client_namespace: Some(client.into()),
            ..BytesMatch::default()
        };
        let kind = RouteKind::VirtualService;
        for (first, second, name, expected) in [
            (vec![], vec![named("a")], Some("a"), Some("second")),
            (vec![], vec![named("a")], Some("b"), Some("first")),
            (vec![block("10.97.0.0/16")], vec![block("10.96.0.0/16")], None, Some("second")),
            (vec![block("10.97.0.0/16"), block("::/0")], vec![of("shop")], None, Some("second")),
            (vec![of("bank")], vec![of("other")], None, None),
            (vec![], vec![], None, Some("first")),
        ] {
            let told = format!("{first:?} {second:?} {name:?}");
            let rules = [rule(kind, "first", 1, first), rule(kind, "second", 2, second)];
            assert_eq!(found(&rules, name).as_deref(), expected, "{told}");
        }
    }

    #[test]
    fn each_backend_has_its_share_of_connections() {
        let to = |name: &str| Destination::Service {
            name: ServiceName::new("app", name),
            port: 90,
            subset: None,
        };
        let backend = |weight, destination| BytesBackend { weight, destination };
        let mut rule = BytesRule {
            backends: vec![
                backend(4, to("v1")),
                backend(0, to("v0")),
                backend(1, Destination::Invalid("gone".into())),
            ],
            ..(*rule(RouteKind::TcpRoute, "tcp", 0, vec![])).clone()
        };
        let drawn: Vec<_> = (0..5).map(|number| rule.draw(|_| number)).collect();
        assert!(drawn[..4].iter().all(|it| *it == Ok(&to("v1"))), "{drawn:?}");
        assert_eq!(drawn[4], Err(NoBackend::Invalid("gone".into())));
        rule.backends.clear();
        assert_eq!(rule.draw(|_| 0), Err(NoBackend::None));
    }
}
