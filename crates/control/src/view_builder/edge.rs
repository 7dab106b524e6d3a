//! Gateways at the edge: which routes attach to their listeners, and what their pods are sent.
//!
//! What the ListenerSets add that a Gateway takes comes after its own listeners. All is read again
//! from the objects whenever it is asked for. A listener that is not accepted is not sent; routes
//! attach to it nevertheless, and are counted. A route is sent with all of its rules: those that
//! cannot be honoured answer 500. Nothing here may send a route to a Gateway whose listeners do not
//! take it, or to other listeners than those of the parent that it names.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ambit_manifest::gateway::acme::{self, Wanted};
use ambit_manifest::gateway::attach::{Attaching, Attachment, attach};
use ambit_manifest::gateway::listeners::{Fault, Judged, Protocol, judge_all};
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, Position};
use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routing::{self, Parent, ParentKind, Routing};
use ambit_manifest::waypoint::{self, ListenerMade};
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use ambit_model::http::gateway::{
    self as model, GatewayRoute, GatewayRouteName, HostMatch, ListenerSpeaks, Place, Termination,
};
use ambit_model::names::ServiceName;

use super::certificates;
use super::client_roots::{self, Asked};
use super::routes::{ParentName, Route, RouteName, parent_name};
use super::store::Store;

/// A Gateway at the edge.
pub(crate) struct Edge<'a> {
    name: ObjectName,
    gateway: &'a Gateway,
    listeners: Vec<Judged<'a>>,
}

/// The Gateways at the edge of one moment. Each is judged once, however many routes ask for it.
pub(crate) struct Edges<'a> {
    store: &'a Store,
    known: RefCell<BTreeMap<ObjectName, Option<Rc<Edge<'a>>>>>,
}

impl<'a> Edges<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store, known: RefCell::default() }
    }

    /// The objects.
    pub(crate) fn store(&self) -> &'a Store {
        self.store
    }

    /// The Gateway to whose listeners a route attaches that has this parent, if it is one at the
    /// edge.
    pub(crate) fn of_parent(&self, parent: &Parent<'_>) -> Option<Rc<Edge<'a>>> {
        let parent = parent_name(parent);
        let name = self.store.gateways().of_parent(&parent)?;
        let mut known = self.known.borrow_mut();
        if let Some(known) = known.get(name) {
            return known.clone();
        }
        let edge = Edge::find(self.store, name).map(Rc::new);
        known.insert(name.clone(), edge.clone());
        edge
    }
}

impl<'a> Edge<'a> {
    /// The Gateway of this name, if it is one at the edge.
    pub(crate) fn find(store: &'a Store, name: &ObjectName) -> Option<Self> {
        let gateway = store.gateways().edge(name)?;
        let sets = store.taken_sets(name, gateway);
        let sets: Vec<&ListenerSet> = sets.into_iter().map(|it| &**it).collect();
        let listeners = judge_all(&gateway.spec, &sets);
        Some(Self { name: name.clone(), gateway, listeners })
    }

    /// The Gateway and the sets that it takes, as parents of routes.
    pub(super) fn parents(&self) -> impl Iterator<Item = ParentName> {
        let sets = self.listeners.iter().filter_map(|it| it.set.map(ListenerSet::namespaced_name));
        let sets: BTreeSet<_> = sets.collect();
        let own = (ParentKind::Gateway, self.name.clone());
        let set = |(namespace, name): (&str, &str)| {
            (ParentKind::ListenerSet, ObjectName::new(namespace, name))
        };
        [own].into_iter().chain(sets.into_iter().map(set))
    }

    /// The routes that name it or one of those, each once.
    fn routes<'s>(&self, store: &'s Store) -> BTreeMap<&'s RouteName, &'s Route> {
        let parents: Vec<ParentName> = self.parents().collect();
        parents.iter().flat_map(|parent| store.routes().of_parent(parent)).collect()
    }

    /// Its listeners that take a route with this parent, or why none does.
    pub(crate) fn attach(
        &self,
        store: &Store,
        route: &Route,
        parent: &Parent<'_>,
    ) -> Result<Vec<Attachment>, StatusCondition> {
        let namespace = route.metadata().namespace.as_deref().unwrap_or_default();
        let labels = store.namespace(namespace).labels;
        let kind = route.kind();
        let is_of_hosts = !matches!(kind, Kind::TcpRoute | Kind::UdpRoute);
        let hosts = if is_of_hosts { route.hosts() } else { &[] };
        let attaching = Attaching { kind, namespace, labels: &labels, hosts };
        let own = &self.name.namespace;
        if parent.kind == ParentKind::ListenerSet
            && !self.parents().any(|it| it == parent_name(parent))
        {
            let what = format!(
                "the Gateway `{own}/{}` does not take the ListenerSet `{}/{}`; set \
                 `allowedListeners.namespaces` of the Gateway",
                self.name.name, parent.namespace, parent.name
            );
            return Err(routing::without_parent(what));
        }
        attach(own, &self.listeners, parent, &attaching).map_err(|why| {
            let what = why.what(parent, &attaching);
            routing::not_accepted(why.reason(), format!("{what}; {}", why.remedy()))
        })
    }

    /// Its listeners.
    pub(crate) fn listeners(&self) -> &[Judged<'a>] {
        &self.listeners
    }

    /// What is known of its listeners besides what they say, by their full names.
    pub(crate) fn made(&self, store: &Store) -> BTreeMap<String, ListenerMade> {
        let mut counts = vec![0; self.listeners.len()];
        for route in self.routes(store).into_values() {
            for at in self.places(store, route).into_keys() {
                counts[at] += 1;
            }
        }
        let listeners = self.listeners.iter().zip(counts);
        let made = listeners.map(|(judged, count)| {
            let attached_routes = Some(count);
            let certificates = certificates::fault(store, &self.name.namespace, judged);
            let clients = self.clients(store, judged);
            let unresolved = certificates.or(clients.unresolved);
            let made = ListenerMade { attached_routes, unresolved, refused: clients.refused };
            (judged.full_name().into_owned(), made)
        });
        made.collect()
    }

    /// What is wrong with the certificate by which it proves itself to backends.
    pub(crate) fn unresolved(&self, store: &Store) -> Option<Fault> {
        certificates::proof(store, &self.name.namespace, &self.gateway.spec).1
    }

    /// Where a route is attached, however often it names the Gateway or its sets: the listeners,
    /// each with the hosts for which it asks the route.
    fn places(&self, store: &Store, route: &Route) -> BTreeMap<usize, Vec<Option<HostMatch>>> {
        let parents = route.parents().into_iter();
        let here = parents.filter(|it| {
            store.gateways().of_parent(&parent_name(it)).is_some_and(|it| *it == self.name)
        });
        let mut places: BTreeMap<usize, Vec<Option<HostMatch>>> = BTreeMap::new();
        for it in here.filter_map(|parent| self.attach(store, route, &parent).ok()).flatten() {
            let hosts = places.entry(it.listener).or_default();
            for host in it.hosts {
                if !hosts.contains(&host) {
                    hosts.push(host);
                }
            }
        }
        places
    }

    /// The routes that its pods are sent.
    pub(super) fn attached(
        &self,
        store: &Store,
        routings: &BTreeMap<RouteName, Routing>,
        service: &ServiceName,
    ) -> BTreeMap<Text, GatewayRoute> {
        let names = self.routes(store).into_keys();
        let attached = names.filter_map(|name| {
            let route = self.attached_route(store, routings, service, name)?;
            Some((route.name.route.clone(), route))
        });
        attached.collect()
    }

    /// A route as its pods are sent it, if it is attached to a listener that is served.
    pub(super) fn attached_route(
        &self,
        store: &Store,
        routings: &BTreeMap<RouteName, Routing>,
        service: &ServiceName,
        name: &RouteName,
    ) -> Option<GatewayRoute> {
        let (route, routing) = (store.routes().get(name)?, routings.get(name)?);
        let places = self.places(store, route).into_iter().filter_map(|(at, hosts)| {
            let judged = &self.listeners[at];
            let listener = judged.is_served().then(|| (&*judged.full_name()).into())?;
            Some(Place { listener, hosts })
        });
        let places: Vec<Place> = places.collect();
        let name = GatewayRouteName { gateway: service.clone(), route: attached_name(name) };
        let (rules, connections) = (routing.rules.clone(), routing.connections.clone());
        (!places.is_empty()).then_some(GatewayRoute { name, places, rules, connections })
    }

    /// What its pods are sent besides the routes.
    pub(super) fn build(&self, store: &Store, service: ServiceName) -> model::Gateway {
        let listeners = self.listeners.iter().filter_map(|judged| {
            let (port, speaks) = (judged.port()?, self.speaks(store, judged)?);
            let name = (&*judged.full_name()).into();
            Some(model::Listener::new(name, port, judged.host().cloned(), speaks))
        });
        let (proof, _) = certificates::proof(store, &self.name.namespace, &self.gateway.spec);
        let gateway = model::Gateway::new(service, listeners).with_proof(proof);
        gateway.with_challenges(self.challenges(store))
    }

    /// What it answers to directories.
    pub(crate) fn challenges(&self, store: &Store) -> Vec<model::Challenge> {
        let named = waypoint::names(self.gateway, Position::Edge).objects;
        let service = store.service(&ObjectName::new(&self.name.namespace, &named));
        acme::challenges(service.and_then(|it| it.object.metadata.annotations.as_ref()))
    }

    /// The Secrets for which it asks a directory for certificates.
    pub(crate) fn wanted(&self) -> Wanted {
        acme::wanted(self.gateway, &self.listeners)
    }

    /// What is spoken at a listener; nothing if it is not served.
    fn speaks(&self, store: &Store, judged: &Judged<'_>) -> Option<ListenerSpeaks> {
        let termination = || Termination {
            certificates: certificates::usable(store, &self.name.namespace, judged),
            clients: self.clients(store, judged).validation,
        };
        match judged.protocol().filter(|_| judged.is_served())? {
            Protocol::Http => Some(ListenerSpeaks::Http),
            Protocol::Https => Some(ListenerSpeaks::Https(termination())),
            Protocol::TlsTerminate => Some(ListenerSpeaks::Tls(termination())),
            Protocol::TlsPassthrough => Some(ListenerSpeaks::TlsPassthrough),
            Protocol::Tcp => Some(ListenerSpeaks::Tcp),
            Protocol::Udp => Some(ListenerSpeaks::Udp),
        }
    }

    /// Which clients must prove themselves to a listener.
    fn clients(&self, store: &Store, judged: &Judged<'_>) -> Asked {
        let frontend = self.gateway.spec.tls.as_ref().and_then(|it| it.frontend.as_ref());
        let frontend = frontend.filter(|_| judged.protocol().is_some_and(Protocol::ends_tls));
        client_roots::asked(store, &self.name.namespace, frontend, judged.listener.port)
    }
}

/// The name of a route at a gateway.
pub(super) fn attached_name((kind, name): &RouteName) -> Text {
    format!("{}/{}/{}", kind.name(), name.namespace, name.name).into()
}
