//! Which listeners of a Gateway a route attaches to, and for which hosts it is asked there.
//!
//! A listener takes a route of a kind and a namespace that it allows, if one of the route's hosts
//! is one of its own. A route that names a ListenerSet attaches to the listeners of that alone, and
//! one that names the Gateway to the Gateway's own. One that is not served takes routes as well: it
//! counts them, and no traffic comes. Nothing here may let a route attach that the author of the
//! listener does not allow.

use std::collections::BTreeMap;

use ambit_model::http::gateway::HostMatch;

use super::listeners::Judged;
use super::sets::ListenerSet;
use crate::Kind;
use crate::routing::{Parent, ParentKind};

/// A route, as far as listeners look at it.
#[derive(Debug, Clone, Copy)]
pub struct Attaching<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: &'a str,
    /// The labels of that.
    pub labels: &'a BTreeMap<String, String>,
    /// Its hosts; none for those of the listener.
    pub hosts: &'a [String],
}

/// A listener to which a route is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its index among the Gateway's listeners.
    pub listener: usize,
    /// The hosts for which the route is asked, which both have; `None` is every one.
    pub hosts: Vec<Option<HostMatch>>,
}

/// Why a route attaches to no listener of a Gateway or ListenerSet; the later, the less is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unattached {
    /// No listener has the name or the port.
    NoListener,
    /// Those that have it are for other kinds of routes.
    OtherKinds,
    /// Those that have it are for other namespaces.
    OtherNamespaces,
    /// Those that allow the route have other hosts.
    OtherHosts,
}

impl Unattached {
    /// The reason in a condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoListener => "NoMatchingParent",
            Self::OtherKinds | Self::OtherNamespaces => "NotAllowedByListeners",
            Self::OtherHosts => "NoMatchingListenerHostname",
        }
    }

    /// What is wrong.
    pub fn what(self, parent: &Parent<'_>, route: &Attaching<'_>) -> String {
        let Attaching { kind, namespace, .. } = route;
        let (kind, written) = (kind.name(), parent.written);
        let parent = format!("the {} `{}`", Kind::from(parent.kind), parent.name);
        match self {
            Self::NoListener => {
                let named = written.section_name.as_deref();
                let named = named.map(|name| format!(" called `{name}`")).unwrap_or_default();
                let port = written.port.map(|port| format!(" on port {port}")).unwrap_or_default();
                format!("{parent} has no listener{named}{port}")
            }
            Self::OtherKinds => {
                format!("no listener of {parent} that is meant takes a {kind}")
            }
            Self::OtherNamespaces => format!(
                "no listener of {parent} that is meant takes routes of the namespace \
                 `{namespace}`"
            ),
            Self::OtherHosts => format!(
                "the route and the listeners of {parent} that are meant have no host in common"
            ),
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NoListener => "correct `parentRefs`",
            Self::OtherKinds => {
                "attach it to a listener of another protocol, or set `allowedRoutes.kinds` of the \
                 listener"
            }
            Self::OtherNamespaces => "set `allowedRoutes.namespaces` of the listener",
            Self::OtherHosts => "correct `hostnames` of the route, or `hostname` of a listener",
        }
    }
}

/// The listeners of a Gateway in the namespace `own` that take a route with this parent, which is
/// the Gateway or one of its sets; at least one.
pub fn attach(
    own: &str,
    listeners: &[Judged<'_>],
    parent: &Parent<'_>,
    route: &Attaching<'_>,
) -> Result<Vec<Attachment>, Unattached> {
    let written = parent.written;
    let set = (parent.kind == ParentKind::ListenerSet).then_some((parent.namespace, parent.name));
    let is_meant = |it: &Judged<'_>| {
        it.set.map(ListenerSet::namespaced_name) == set
            && written.port.is_none_or(|port| port == i64::from(it.listener.port))
            && written.section_name.as_ref().is_none_or(|name| *name == it.listener.name)
    };
    let (mut attached, mut why) = (Vec::new(), Unattached::NoListener);
    for (listener, judged) in listeners.iter().enumerate().filter(|(_, it)| is_meant(it)) {
        match hosts_at(own, judged, route) {
            Ok(hosts) => attached.push(Attachment { listener, hosts }),
            Err(other) => why = why.max(other),
        }
    }
    if attached.is_empty() { Err(why) } else { Ok(attached) }
}

/// The hosts for which a listener asks a route.
fn hosts_at(
    own: &str,
    judged: &Judged<'_>,
    route: &Attaching<'_>,
) -> Result<Vec<Option<HostMatch>>, Unattached> {
    if !judged.kind_names().any(|it| it == route.kind.name()) {
        return Err(Unattached::OtherKinds);
    }
    if !judged.admits(own, route.namespace, route.labels) {
        return Err(Unattached::OtherNamespaces);
    }
    let own = judged.host();
    if route.hosts.is_empty() {
        return Ok(vec![own.cloned()]);
    }
    let mut hosts = Vec::new();
    for host in route.hosts.iter().map(|it| HostMatch::new(it)) {
        let both = match own {
            Some(own) => own.both(&host),
            None => Some(host),
        };
        hosts.extend(both.map(Some).filter(|it| !hosts.contains(it)));
    }
    if hosts.is_empty() { Err(Unattached::OtherHosts) } else { Ok(hosts) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::gateway::listeners::judge;
    use crate::gateway::{AMBIT_EDGE, GatewaySpec};

    struct Case {
        listeners: Value,
        parent: Value,
        kind: Kind,
        namespace: &'static str,
        hosts: &'static [&'static str],
    }

    /// A route of the Gateway's own namespace that names no listener.
    fn case(listeners: Value, hosts: &'static [&'static str]) -> Case {
        let (parent, kind) = (json!({"name": "edge"}), Kind::HttpRoute);
        Case { listeners, parent, kind, namespace: "infra", hosts }
    }

    /// The hosts at each listener, or the reason.
    fn check(case: &Case, expected: Result<&[(usize, &[&str])], &str>) {
        let Case { listeners, parent, kind, namespace, hosts } = case;
        let spec = json!({"gatewayClassName": AMBIT_EDGE, "listeners": listeners});
        let spec: GatewaySpec = serde_json::from_value(spec).expect("a Gateway");
        let written = serde_json::from_value(parent.clone()).expect("a reference");
        let labels = BTreeMap::from([("team".to_owned(), (*namespace).to_owned())]);
        let hosts: Vec<String> = hosts.iter().map(|it| (*it).to_owned()).collect();
        let route = Attaching { kind: *kind, namespace, labels: &labels, hosts: &hosts };
        let named = Parent {
            index: 0,
            kind: ParentKind::Gateway,
            namespace: "infra",
            name: "edge",
            written: &written,
        };
        let attached = attach("infra", &judge(&spec), &named, &route);
        let host = |host: Option<HostMatch>| match host {
            None => "any".to_owned(),
            Some(HostMatch::Exact(name)) => name.to_string(),
            Some(HostMatch::Suffix(end)) => format!("*{end}"),
        };
        let attached = attached.map(|all| {
            let one = |it: Attachment| (it.listener, it.hosts.into_iter().map(host).collect());
            all.into_iter().map(one).collect::<Vec<(usize, Vec<String>)>>()
        });
        let expected = expected.map(|all| {
            let owned = |hosts: &[&str]| hosts.iter().map(|it| (*it).to_owned()).collect();
            all.iter().map(|(listener, hosts)| (*listener, owned(hosts))).collect()
        });
        let why = format!("{listeners} {parent} {kind:?} {namespace} {hosts:?}");
        if let Err(reason) = &attached {
            assert!(reason.what(&named, &route).contains("`edge`"), "{why}");
        }
        assert_eq!(attached.map_err(Unattached::reason), expected, "{why}");
    }

    fn http(hostname: Option<&str>) -> Value {
        let mut listener = json!({"name": "web", "port": 80, "protocol": "HTTP"});
        if let Some(hostname) = hostname {
            listener["hostname"] = hostname.into();
        }
        json!([listener])
    }

    #[test]
    fn a_route_is_asked_for_the_hosts_that_both_have() {
        let other = Err("NoMatchingListenerHostname");
        let wild = || http(Some("*.example.com"));
        let at = |hosts: &'static [&'static str]| [(0, hosts)];
        check(&case(http(None), &[]), Ok(&at(&["any"])));
        check(&case(http(None), &["a.com", "*.b.org"]), Ok(&at(&["a.com", "*.b.org"])));
        check(&case(wild(), &[]), Ok(&at(&["*.example.com"])));
        // The examples of the specification.
        check(
            &case(wild(), &["test.example.com", "*.example.com", "foo.example.org"]),
            Ok(&at(&["test.example.com", "*.example.com"])),
        );
        check(
            &case(http(Some("test.example.com")), &["*.example.com"]),
            Ok(&at(&["test.example.com"])),
        );
        check(&case(wild(), &["a.b.example.com"]), Ok(&at(&["a.b.example.com"])));
        check(&case(wild(), &["*.a.example.com"]), Ok(&at(&["*.a.example.com"])));
        check(&case(wild(), &["*.com"]), Ok(&at(&["*.example.com"])));
        check(&case(wild(), &["*.com", "*.example.com"]), Ok(&at(&["*.example.com"])));
        check(&case(wild(), &["A.Example.com"]), Ok(&at(&["a.example.com"])));
        check(&case(wild(), &["example.com"]), other);
        check(&case(wild(), &["*.ample.com"]), other);
        check(&case(wild(), &["foo.example.org", "*.example.net"]), other);
        check(&case(http(Some("a.com")), &["b.com"]), other);
    }

    #[test]
    fn a_route_attaches_to_the_listeners_that_it_means() {
        let listeners = json!([
            {"name": "web", "port": 80, "protocol": "HTTP"},
            {"name": "own", "port": 80, "protocol": "HTTP", "hostname": "own.com"},
            {"name": "alt", "port": 8080, "protocol": "HTTP"},
        ]);
        let check = |named: Value, expected: Result<&[usize], &str>| {
            let mut parent = json!({"name": "edge"});
            let named = named.as_object().expect("fields").clone();
            parent.as_object_mut().expect("a reference").extend(named);
            let case = Case { parent, ..case(listeners.clone(), &["own.com"]) };
            let hosts: Result<Vec<(usize, &[&str])>, &str> =
                expected.map(|all| all.iter().map(|it| (*it, &["own.com"][..])).collect());
            check(&case, hosts.as_deref().map_err(|reason| *reason));
        };
        check(json!({}), Ok(&[0, 1, 2]));
        check(json!({"port": 80}), Ok(&[0, 1]));
        check(json!({"sectionName": "own"}), Ok(&[1]));
        check(json!({"sectionName": "own", "port": 80}), Ok(&[1]));
        check(json!({"sectionName": "own", "port": 8080}), Err("NoMatchingParent"));
        check(json!({"sectionName": "none"}), Err("NoMatchingParent"));
        check(json!({"port": 81}), Err("NoMatchingParent"));
    }

    #[test]
    fn a_listener_says_whose_routes_it_takes_and_of_which_kind() {
        let listeners = |namespaces: Value, kinds: Value| {
            json!([{"name": "web", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {"namespaces": namespaces, "kinds": kinds}}])
        };
        let selected = json!({"from": "Selector", "selector": {"matchLabels": {"team": "shop"}}});
        let denied = "NotAllowedByListeners";
        let any = || json!([]);
        for (listeners, kind, namespace, expected) in [
            (listeners(json!({}), any()), Kind::HttpRoute, "infra", Ok(())),
            (listeners(json!({}), any()), Kind::GrpcRoute, "infra", Ok(())),
            (listeners(json!({}), any()), Kind::TcpRoute, "infra", Err(denied)),
            (listeners(json!({}), any()), Kind::HttpRoute, "shop", Err(denied)),
            (listeners(json!({"from": "All"}), any()), Kind::HttpRoute, "shop", Ok(())),
            (listeners(selected.clone(), any()), Kind::HttpRoute, "shop", Ok(())),
            (listeners(selected, any()), Kind::HttpRoute, "bank", Err(denied)),
            (
                listeners(json!({}), json!([{"kind": "GRPCRoute"}])),
                Kind::HttpRoute,
                "infra",
                Err(denied),
            ),
            (
                json!([{"name": "tcp", "port": 9000, "protocol": "TCP"}]),
                Kind::TcpRoute,
                "infra",
                Ok(()),
            ),
        ] {
            let case = Case { kind, namespace, ..case(listeners, &[]) };
            const ALL: &[(usize, &[&str])] = &[(0, &["any"])];
            check(&case, expected.map(|()| ALL));
        }
    }

    #[test]
    fn the_listener_that_comes_the_nearest_says_why() {
        let listeners = json!([
            {"name": "tcp", "port": 9000, "protocol": "TCP"},
            {"name": "web", "port": 80, "protocol": "HTTP", "hostname": "a.com"},
        ]);
        check(&case(listeners, &["b.com"]), Err("NoMatchingListenerHostname"));
    }
}
