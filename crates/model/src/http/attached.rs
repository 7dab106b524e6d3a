//! Rules as they are attached: to all ports of a service or to one, for everybody or for the
//! clients of one namespace. Compiled when they arrive, for each port and each such namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Text;
use crate::http::rule::Rule;

/// Rules of routes that are attached to the same, to all ports or to one.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteGroup<R = Rule> {
    /// The namespace whose clients they are for, if it is not the service's own (consumer routes);
    /// `None` for the producer's, which are for everybody.
    pub client_namespace: Option<Text>,
    /// The port that they are for; `None` for all.
    pub port: Option<u16>,
    /// The rules, in any order.
    pub rules: Vec<Arc<R>>,
}

/// The rules that meet at one port, compiled.
pub trait Compile<R: 'static>: Sized {
    /// Compiles them; `None` where there are none.
    fn compile<'a>(rules: impl Iterator<Item = &'a Arc<R>> + Clone) -> Option<Self>;
}

/// The routes of a service, compiled for each port and each namespace that has routes of its own.
#[derive(Clone, Debug)]
pub struct Attached<R, T> {
    groups: Vec<RouteGroup<R>>,
    producer: Ports<T>,
    consumers: BTreeMap<Text, Ports<T>>,
}

/// The tables of one side. None of them is empty.
#[derive(Clone, Debug)]
struct Ports<T> {
    /// Of every port that has no table of its own.
    all: Option<T>,
    /// Of ports for which there are rules, together with those for all ports.
    single: BTreeMap<u16, T>,
}

impl<R: 'static, T: Compile<R>> Attached<R, T> {
    /// Compiles groups, of which several may be for the same namespace and port.
    pub fn new(groups: Vec<RouteGroup<R>>) -> Self {
        let namespaces = groups.iter().filter_map(|it| it.client_namespace.clone());
        let consumers: BTreeSet<Text> = namespaces.collect();
        let of = |namespace: Option<&Text>| {
            Ports::new(groups.iter().filter(|it| it.client_namespace.as_ref() == namespace))
        };
        let producer = of(None);
        let consumers = consumers.into_iter().map(|it| (it.clone(), of(Some(&it)))).collect();
        Self { groups, producer, consumers }
    }
}

impl<R, T> Attached<R, T> {
    /// What this was compiled from.
    pub fn groups(&self) -> &[RouteGroup<R>] {
        &self.groups
    }

    /// The table for a client of this namespace, if its identity is proven, at a port.
    pub(super) fn at(&self, port: u16, client_namespace: Option<&str>) -> Option<&T> {
        let own = client_namespace.and_then(|namespace| self.consumers.get(namespace));
        own.and_then(|ports| ports.at(port)).or_else(|| self.producer.at(port))
    }
}

impl<R, T> Default for Attached<R, T> {
    fn default() -> Self {
        let producer = Ports { all: None, single: BTreeMap::new() };
        Self { groups: Vec::new(), producer, consumers: BTreeMap::new() }
    }
}

impl<R: PartialEq, T> PartialEq for Attached<R, T> {
    fn eq(&self, other: &Self) -> bool {
        self.groups == other.groups
    }
}

impl<T> Ports<T> {
    fn new<'a, R: 'static>(groups: impl Iterator<Item = &'a RouteGroup<R>> + Clone) -> Self
    where
        T: Compile<R>,
    {
        let at = |port: Option<u16>| {
            let here = groups.clone().filter(|it| it.port.is_none() || it.port == port);
            T::compile(here.flat_map(|it| &it.rules))
        };
        let ports: BTreeSet<u16> = groups.clone().filter_map(|it| it.port).collect();
        let single = ports.into_iter().filter_map(|port| Some((port, at(Some(port))?)));
        Self { all: at(None), single: single.collect() }
    }

    fn at(&self, port: u16) -> Option<&T> {
        self.single.get(&port).or(self.all.as_ref())
    }
}
