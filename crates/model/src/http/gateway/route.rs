//! A route as it is attached to a gateway: sent, compiled and replaced alone, so that one of
//! thousands that changes touches the tables of its own hosts and nothing else.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use crate::Text;
use crate::http::bytes::{BytesRule, ServerNameMatch as HostMatch};
use crate::http::rule::{RouteKind, Rule};
use crate::http::table::RouteTable;
use crate::map::Map;
use crate::names::{NameError, ServiceName};

/// The name of a route at one gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayRouteName {
    /// The service in front of the gateway's pods.
    pub gateway: ServiceName,
    /// The route: `kind/namespace/name`.
    pub route: Text,
}

impl fmt::Display for GatewayRouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.gateway, self.route)
    }
}

impl FromStr for GatewayRouteName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let ends = text.match_indices('/').map(|(at, _)| at).nth(1);
        let (gateway, route) = ends.map_or((text, ""), |at| (&text[..at], &text[at + 1..]));
        if route.is_empty() {
            return Err(NameError::new(text));
        }
        Ok(Self { gateway: gateway.parse()?, route: route.into() })
    }
}

/// A route, and where it is attached.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayRoute {
    /// Its name.
    pub name: GatewayRouteName,
    /// The listeners to which it is attached, each once.
    pub places: Vec<Place>,
    /// Its rules for requests.
    pub rules: Vec<Arc<Rule>>,
    /// Its rules for connections that are no HTTP, and for datagrams.
    pub connections: Vec<Arc<BytesRule>>,
}

/// A listener to which a route is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The listener's name.
    pub listener: Text,
    /// The hosts for which it asks the route, each once; `None` is every one that it has.
    pub hosts: Vec<Option<HostMatch>>,
}

impl GatewayRoute {
    /// The services to which it leads; one may come several times.
    pub fn destinations(&self) -> impl Iterator<Item = &ServiceName> {
        let connections = self.connections.iter().flat_map(|it| &it.backends);
        let connections = connections.filter_map(|it| it.destination.service());
        self.rules.iter().flat_map(|it| it.destinations()).chain(connections)
    }

    /// Whether it is for datagrams.
    pub fn takes_datagrams(&self) -> bool {
        self.connections.iter().any(|it| it.origin.kind == RouteKind::UdpRoute)
    }
}

/// The routes of one listener's requests, by the hosts that they are for. Persistent: a clone is a
/// handful of reference counts.
#[derive(Clone, Debug, Default)]
pub(super) struct HostTables {
    exact: Map<Text, Arc<HostTable>>,
    /// By what hosts end with, the dot included: `.example.com`; nothing for `*`.
    suffixes: Map<Text, Arc<HostTable>>,
    /// For every host.
    all: Option<Arc<HostTable>>,
}

/// The routes for one host. Most hosts of thousands are asked for seldom, and control never asks,
/// so they are compiled when a request first does.
#[derive(Debug, Default)]
struct HostTable {
    /// In the order of their names.
    routes: Vec<Arc<GatewayRoute>>,
    compiled: OnceLock<Box<RouteTable>>,
}

impl HostTables {
    pub(super) fn attach(&mut self, host: Option<&HostMatch>, route: &Arc<GatewayRoute>) {
        match host {
            None => with(self.all.get_or_insert_default(), route),
            Some(HostMatch::Exact(host)) => {
                with(self.exact.entry(host.clone()).or_default(), route);
            }
            Some(HostMatch::Suffix(end)) => {
                with(self.suffixes.entry(end.clone()).or_default(), route);
            }
        }
    }

    pub(super) fn detach(&mut self, host: Option<&HostMatch>, name: &GatewayRouteName) {
        match host {
            None => {
                if self.all.as_mut().is_some_and(|table| is_empty_without(table, name)) {
                    self.all = None;
                }
            }
            Some(HostMatch::Exact(host)) => {
                if self.exact.get_mut(host).is_some_and(|table| is_empty_without(table, name)) {
                    self.exact.remove(host);
                }
            }
            Some(HostMatch::Suffix(end)) => {
                if self.suffixes.get_mut(end).is_some_and(|table| is_empty_without(table, name)) {
                    self.suffixes.remove(end);
                }
            }
        }
    }

    /// The tables for a host, the more specific first.
    pub(super) fn of<'a, 'b>(
        &'a self,
        host: &'b str,
    ) -> impl Iterator<Item = &'a RouteTable> + use<'a, 'b> {
        let begin = |(at, _)| at > 0;
        let ends = host.match_indices('.').filter(move |it| begin(*it)).map(|(at, _)| &host[at..]);
        let suffixed = ends.chain([""]).filter_map(|end| self.suffixes.get(end));
        self.exact.get(host).into_iter().chain(suffixed).chain(&self.all).map(|it| it.compiled())
    }

    /// All tables with their hosts, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<HostMatch>, &RouteTable)> {
        let exact = self.exact.iter();
        let exact = exact.map(|(host, it)| (Some(HostMatch::Exact(host.clone())), it));
        let suffixes = self.suffixes.iter();
        let suffixes = suffixes.map(|(end, it)| (Some(HostMatch::Suffix(end.clone())), it));
        let all = self.all.iter().map(|it| (None, it));
        exact.chain(suffixes).chain(all).map(|(host, it)| (host, it.compiled()))
    }
}

impl HostTable {
    fn compiled(&self) -> &RouteTable {
        let rules = self.routes.iter().flat_map(|it| &it.rules).cloned();
        self.compiled.get_or_init(|| Box::new(RouteTable::new(rules)))
    }
}

/// Where a route of this name is or would be.
pub(super) fn place(routes: &[Arc<GatewayRoute>], name: &GatewayRouteName) -> Result<usize, usize> {
    routes.binary_search_by(|it| it.name.route.cmp(&name.route))
}

/// Adds a route to those of a host, or replaces the one of its name.
fn with(table: &mut Arc<HostTable>, route: &Arc<GatewayRoute>) {
    change(table, |routes| put(routes, route));
}

/// Takes a route from those of a host; answers whether none is left.
fn is_empty_without(table: &mut Arc<HostTable>, name: &GatewayRouteName) -> bool {
    if place(&table.routes, name).is_ok() {
        change(table, |routes| remove(routes, name));
    }
    table.routes.is_empty()
}

fn change(table: &mut Arc<HostTable>, change: impl FnOnce(&mut Vec<Arc<GatewayRoute>>)) {
    // Nothing that was compiled is copied.
    let mut routes = match Arc::get_mut(table) {
        Some(own) => std::mem::take(&mut own.routes),
        None => table.routes.clone(),
    };
    change(&mut routes);
    let changed = HostTable { routes, compiled: OnceLock::new() };
    match Arc::get_mut(table) {
        Some(own) => *own = changed,
        None => *table = Arc::new(changed),
    }
}

/// Adds a route, or replaces the one of its name.
pub(super) fn put(routes: &mut Vec<Arc<GatewayRoute>>, route: &Arc<GatewayRoute>) {
    match place(routes, &route.name) {
        Ok(at) => routes[at] = route.clone(),
        Err(at) => routes.insert(at, route.clone()),
    }
}

/// Takes out the route of this name.
pub(super) fn remove(routes: &mut Vec<Arc<GatewayRoute>>, name: &GatewayRouteName) {
    if let Ok(at) = place(routes, name) {
        routes.remove(at);
    }
}
