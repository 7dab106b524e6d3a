//! Which waypoint an object's traffic must pass, and which pods are Gateways'.
//!
//! Only a Gateway of a waypoint's class with a listener that it serves is a waypoint, and its
//! listener says which namespaces may name it. Who names another one, or one that is missing, is
//! refused: a Service of the name is never taken for it. Nothing here may look at the waypoint's
//! pods: a proxy that finds none refuses as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::canary::{self, Said, Unfit, WHOLE};
use ambit_manifest::gateway::listeners::runs;
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{
    Bound, Gateway, GatewayClass, ISTIO_EDGE_CONTROLLER, Listener, Position, Unbound, binding,
    edge_controller,
};
use ambit_manifest::routing::ParentKind;
use ambit_manifest::waypoint;
use ambit_model::Text;
use ambit_model::names::ServiceName;
use ambit_model::workload::{GatewayAddress, GatewayDestination, WorkloadKind};
use ambit_words::labels::{
    GATEWAY_MANAGED, GATEWAY_NAME, NONE, USE_WAYPOINT, USE_WAYPOINT_CANARY, USE_WAYPOINT_NAMESPACE,
};
use ambit_words::ports;

use super::Mesh;
use super::certificates::secret_of;
use super::listener_sets::ListenerSets;
use super::records::PodRecord;
use super::routes::ParentName;
use super::selectors::{Labels, selects};
use super::services::service_name;

/// The Gateways, their classes, and what adds listeners to them.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    gateways: BTreeMap<ObjectName, Arc<Gateway>>,
    classes: BTreeMap<Text, Arc<GatewayClass>>,
    sets: ListenerSets,
    /// Whether those of Istio's class at the edge are ours.
    stands_in: bool,
}

/// An object that may name a waypoint.
#[derive(Clone, Copy)]
pub(crate) struct Naming<'a> {
    /// Its namespace.
    pub(crate) namespace: &'a str,
    /// Its labels.
    pub(crate) labels: &'a Labels,
    /// The labels of its namespace, which speak where its own say nothing.
    pub(crate) of_namespace: &'a Labels,
    /// Whether it is a workload; otherwise it is a service.
    pub(crate) is_workload: bool,
}

/// What a service and its namespace say of the canary's share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shares<'a> {
    /// The service's own annotation.
    pub(crate) own: Option<&'a str>,
    /// That of its namespace.
    pub(crate) of_namespace: Option<&'a str>,
}

/// The canary that a service names: its Gateway, and its share of new connections or why it gets
/// none.
pub(crate) type Canary = (ObjectName, Result<u32, Unfit>);

/// The waypoint that these labels name.
pub(crate) fn named_waypoint(labels: &Labels) -> Option<&str> {
    let name = labels.get(USE_WAYPOINT).map(String::as_str);
    name.filter(|name| !["", NONE].contains(name))
}

/// Whether these labels name a Gateway of this name, as a waypoint or as a canary.
pub(super) fn names(labels: &Labels, gateway: &str) -> bool {
    [USE_WAYPOINT, USE_WAYPOINT_CANARY]
        .into_iter()
        .any(|key| labels.get(key).is_some_and(|name| name == gateway))
}

impl Gateways {
    /// Puts or removes a Gateway; answers whether that may change who has a waypoint.
    pub(super) fn put(&mut self, name: ObjectName, gateway: Option<Arc<Gateway>>) -> bool {
        let said = |it: &Arc<Gateway>| {
            let names = self.names(it);
            let names = (names.objects.into_owned(), names.account.into_owned());
            (it.spec.clone(), it.metadata.labels.clone(), names)
        };
        let old = self.gateways.get(&name).map(said);
        let is_news = old != gateway.as_ref().map(said);
        match gateway {
            Some(gateway) => self.gateways.insert(name, gateway),
            None => self.gateways.remove(&name),
        };
        is_news
    }

    /// Puts or removes a class; answers with the Gateways that are of it.
    pub(super) fn put_class(
        &mut self,
        name: Text,
        class: Option<Arc<GatewayClass>>,
    ) -> Vec<ObjectName> {
        let of_class =
            |(_, it): &(&ObjectName, &Arc<Gateway>)| *it.spec.gateway_class_name == *name;
        let gateways = self.gateways.iter().filter(of_class).map(|(name, _)| name.clone());
        let gateways = gateways.collect();
        match class {
            Some(class) => self.classes.insert(name, class),
            None => self.classes.remove(&name),
        };
        gateways
    }

    /// Puts or removes a ListenerSet; answers with the Gateways that it concerns.
    pub(super) fn put_set(
        &mut self,
        name: &ObjectName,
        set: Option<Arc<ListenerSet>>,
    ) -> Vec<ObjectName> {
        self.sets.put(name, set)
    }

    /// The ListenerSets, whether their Gateways take them or not.
    pub(crate) fn sets(&self) -> &ListenerSets {
        &self.sets
    }

    /// The Gateway to whose listeners a route attaches that has this parent.
    pub(crate) fn of_parent<'a>(&'a self, (kind, name): &'a ParentName) -> Option<&'a ObjectName> {
        match kind {
            ParentKind::Gateway => Some(name),
            ParentKind::ListenerSet => self.sets.gateway(name),
            ParentKind::Service | ParentKind::ServiceEntry => None,
        }
    }

    /// The listeners of a Gateway and of the sets that name it, each with the namespace of who
    /// wrote it.
    fn listeners<'a>(
        &'a self,
        name: &'a ObjectName,
        gateway: &'a Gateway,
    ) -> impl Iterator<Item = (&'a str, &'a Listener)> {
        let own = gateway.spec.listeners.iter().map(|it| (&*name.namespace, it));
        let added = self.sets.of(name).flat_map(|(set, it)| {
            it.spec.listeners.iter().map(|listener| (&*set.namespace, listener))
        });
        own.chain(added)
    }

    /// All Gateways.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectName, &Arc<Gateway>)> {
        self.gateways.iter()
    }

    /// All classes.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (&Text, &Arc<GatewayClass>)> {
        self.classes.iter()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.gateways.is_empty()
    }

    /// None yet; `stands_in` says whether those of Istio's class at the edge are ours.
    pub(super) fn new(stands_in: bool) -> Self {
        Self { stands_in, ..Self::default() }
    }

    /// The position of Gateways of this class, if they are ours.
    pub(crate) fn position(&self, class: &str) -> Option<Position> {
        let position = Position::of_class(class, self.classes.get(class).map(|it| &it.spec))?;
        let is_ours = position != Position::Edge || self.edge_controller(class).is_some();
        is_ours.then_some(position)
    }

    /// The controller of Gateways at the edge of this class, if they are ours.
    fn edge_controller(&self, class: &str) -> Option<&'static str> {
        let controller = edge_controller(class, self.classes.get(class).map(|it| &it.spec));
        controller.filter(|it| self.stands_in || *it != ISTIO_EDGE_CONTROLLER)
    }

    /// The controller of a Gateway at the edge that is ours.
    pub(crate) fn controller(&self, gateway: &ObjectName) -> Option<&'static str> {
        self.edge_controller(&self.gateways.get(gateway)?.spec.gateway_class_name)
    }

    /// Whether Gateways of this class are waypoints.
    pub(crate) fn is_of_waypoints(&self, class: &str) -> bool {
        self.position(class) == Some(Position::Waypoint)
    }

    /// Whether a Gateway asks for a waypoint that runs.
    pub(crate) fn is_waypoint(&self, name: &ObjectName) -> bool {
        self.running(name) == Some(Position::Waypoint)
    }

    /// The position of a Gateway whose pods are Ambit's and run.
    fn running(&self, name: &ObjectName) -> Option<Position> {
        let spec = &self.gateways.get(name)?.spec;
        self.position(&spec.gateway_class_name).filter(|position| runs(spec, *position))
    }

    /// The names of a Gateway's objects; of one that is not Ambit's, as if it were a waypoint.
    fn names<'a>(&self, gateway: &'a Gateway) -> waypoint::Names<'a> {
        let position = self.position(&gateway.spec.gateway_class_name);
        waypoint::names(gateway, position.unwrap_or(Position::Waypoint))
    }

    /// The Gateway, if it is one at the edge.
    pub(crate) fn edge(&self, name: &ObjectName) -> Option<&Gateway> {
        let gateway = self.gateways.get(name)?;
        let position = self.position(&gateway.spec.gateway_class_name);
        (position == Some(Position::Edge)).then_some(gateway)
    }

    /// Whether a Gateway asks for a waypoint that runs, or is at the edge.
    pub(crate) fn is_ours(&self, name: &ObjectName) -> bool {
        self.is_waypoint(name) || self.edge(name).is_some()
    }

    /// Whether a Gateway is of this class.
    pub(super) fn is_of_class(&self, name: &ObjectName, class: &str) -> bool {
        self.gateways.get(name).is_some_and(|it| it.spec.gateway_class_name == class)
    }

    /// The Gateway at the edge whose pods are behind this service.
    pub(crate) fn edge_behind(&self, mesh: &Mesh, service: &ServiceName) -> Option<&ObjectName> {
        let here = self.gateways.keys().filter(|it| it.namespace == service.namespace);
        let mut edges = here.filter(|it| self.edge(it).is_some());
        edges.find(|it| self.service_of(mesh, it) == *service)
    }

    /// Whether a Gateway is at the edge, and its pods have these labels. Those that a patch adds do
    /// not count: it is not known here.
    pub(super) fn selects(&self, name: &ObjectName, labels: &Labels) -> bool {
        self.edge(name)
            .is_some_and(|gateway| selects(labels, &waypoint::pod_labels(gateway, Position::Edge)))
    }

    /// The Gateways at the edge that choose routes or ListenerSets by the labels of their
    /// namespaces.
    pub(super) fn selecting_namespaces(&self) -> impl Iterator<Item = &ObjectName> {
        self.gateways.keys().filter(move |name| {
            self.edge(name).is_some_and(|gateway| {
                let sets = gateway.spec.allowed_listeners.as_ref();
                let sets = sets.and_then(|it| it.namespaces.as_ref());
                let listeners = self.listeners(name, gateway);
                let routes =
                    listeners.filter_map(|(_, it)| it.allowed_routes.as_ref()?.namespaces.as_ref());
                routes.chain(sets).any(|it| it.selects())
            })
        })
    }

    /// The Gateways at the edge for which Secrets or ConfigMaps of this namespace are named.
    pub(super) fn referring_to(&self, namespace: &str) -> impl Iterator<Item = &ObjectName> {
        self.gateways.keys().filter(move |name| {
            let of_there = |it: ObjectName| *it.namespace == *namespace;
            self.edge(name).is_some_and(|it| {
                self.secrets(name, it).any(of_there) || root_maps(name, it).any(of_there)
            })
        })
    }

    /// The Gateways at the edge for which this Secret is named.
    pub(super) fn with_secret(&self, secret: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.gateways.keys().filter(move |name| {
            self.edge(name).is_some_and(|it| self.secrets(name, it).any(|it| it == *secret))
        })
    }

    /// The Secrets that a Gateway and the sets that name it want for their listeners.
    fn secrets<'a>(
        &'a self,
        name: &'a ObjectName,
        gateway: &'a Gateway,
    ) -> impl Iterator<Item = ObjectName> {
        let of_listeners = self.listeners(name, gateway).flat_map(|(namespace, it)| {
            let named = it.tls.iter().flat_map(|it| &it.certificate_refs);
            named.map(move |it| secret_of(namespace, it))
        });
        let for_backends = gateway.spec.client_certificate();
        of_listeners.chain(for_backends.map(|it| secret_of(&name.namespace, it)))
    }

    /// The Gateways at the edge that name this ConfigMap.
    pub(super) fn with_root_map(&self, map: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.gateways.keys().filter(move |name| {
            self.edge(name).is_some_and(|it| root_maps(name, it).any(|it| it == *map))
        })
    }

    /// The ConfigMaps that Gateways at the edge name.
    pub(super) fn root_maps(&self) -> BTreeSet<ObjectName> {
        let named = self.gateways.keys().filter_map(|name| Some((name, self.edge(name)?)));
        named.flat_map(|(name, gateway)| root_maps(name, gateway)).collect()
    }

    /// The Gateway that a pod is of, and its position: the pod says so, its account is the
    /// Gateway's, and its owner is the Gateway's Deployment.
    pub(crate) fn of_pod<'a>(
        &self,
        namespace: &str,
        pod: &'a PodRecord,
    ) -> Option<(&'a str, Position)> {
        let (name, position) = self.of_labels(namespace, &pod.labels)?;
        let gateway = self.gateways.get(&ObjectName::new(namespace, name))?;
        let names = waypoint::names(gateway, position);
        let is_its = *pod.service_account == *names.account
            && (pod.kind, &*pod.owner) == (WorkloadKind::Deployment, &*names.objects)
            && !pod.host_network;
        is_its.then_some((name, position))
    }

    /// The service in front of a Gateway's pods.
    pub(crate) fn service_of(&self, mesh: &Mesh, gateway: &ObjectName) -> ServiceName {
        match self.gateways.get(gateway).map(|it| self.names(it).objects) {
            Some(name) => service_name(mesh, &ObjectName::new(&gateway.namespace, &name)),
            None => service_name(mesh, gateway),
        }
    }

    /// The Gateway that an object with these labels was made for, and its position.
    fn of_labels<'a>(&self, namespace: &str, labels: &'a Labels) -> Option<(&'a str, Position)> {
        let position = Position::of_label(labels.get(GATEWAY_MANAGED)?)?;
        let name = labels.get(GATEWAY_NAME)?;
        let is_its = self.running(&ObjectName::new(namespace, name)) == Some(position);
        is_its.then_some((name, position))
    }

    /// The Gateway that `naming` names, and whether it is a waypoint for it.
    pub(crate) fn named<'a>(
        &self,
        naming: &Naming<'a>,
    ) -> Option<(&'a str, ObjectName, Result<(), Unbound>)> {
        // A waypoint has none: it would send to itself for ever. A gateway at the edge has none:
        // its policies are attached to itself, and its clients are outside.
        if self.of_labels(naming.namespace, naming.labels).is_some() {
            return None;
        }
        let is_own = naming.labels.contains_key(USE_WAYPOINT);
        let labels = if is_own { naming.labels } else { naming.of_namespace };
        let name = named_waypoint(labels)?;
        let namespace = labels.get(USE_WAYPOINT_NAMESPACE).map_or(naming.namespace, String::as_str);
        let object = ObjectName::new(namespace, name);
        match self.binding(&object, naming) {
            // A namespace speaks for its services; for its pods only if there is such a waypoint.
            Err(Unbound::OtherTraffic) if !is_own => None,
            Err(_) if !is_own && naming.is_workload => None,
            binding => Some((name, object, binding)),
        }
    }

    /// Whether a Gateway is a waypoint for what names it.
    fn binding(&self, gateway: &ObjectName, naming: &Naming<'_>) -> Result<(), Unbound> {
        let gateway = self.gateways.get(gateway);
        let class = gateway.and_then(|it| self.classes.get(it.spec.gateway_class_name.as_str()));
        let Naming { namespace, of_namespace: labels, is_workload, .. } = *naming;
        let bound = Bound { namespace, labels, is_workload };
        binding(gateway.map(|it| &**it), class.map(|it| &it.spec), bound)
    }

    /// The canary that a service names beside a waypoint that it has.
    pub(crate) fn canary(&self, naming: &Naming<'_>, shares: Shares<'_>) -> Option<Canary> {
        let (_, primary, Ok(())) = self.named(naming)? else { return None };
        let own = Said { labels: naming.labels, weight: shares.own };
        let of_namespace = Said { labels: naming.of_namespace, weight: shares.of_namespace };
        let asked = canary::canary(own, of_namespace)?;
        let object = ObjectName::new(asked.namespace.unwrap_or(naming.namespace), asked.name);
        let share = match asked.share {
            _ if object == primary => Err(Unfit::SameAsPrimary),
            Err(_) => Err(Unfit::Weight),
            Ok(share) => self.binding(&object, naming).map(|()| share).map_err(Unfit::Unbound),
        };
        Some((object, share))
    }

    /// The waypoints among which a service's connections are split; empty if it has no canary. One
    /// with a share of nothing is among them: it knows the service before its first connection.
    pub(super) fn weighted(
        &self,
        mesh: &Mesh,
        naming: &Naming<'_>,
        shares: Shares<'_>,
    ) -> Vec<(GatewayAddress, u32)> {
        let Some((canary, Ok(share))) = self.canary(naming, shares) else { return Vec::new() };
        let Some(primary) = self.waypoint(mesh, naming) else { return Vec::new() };
        let destination = GatewayDestination::Hostname(self.service_of(mesh, &canary));
        let canary = GatewayAddress { destination, hbone_mtls_port: ports::HBONE };
        vec![(primary, WHOLE - share), (canary, share)]
    }

    /// The waypoint that traffic to `naming` must pass, or that it is refused for.
    pub(super) fn waypoint(&self, mesh: &Mesh, naming: &Naming<'_>) -> Option<GatewayAddress> {
        let (_, object, binding) = self.named(naming)?;
        let service = self.service_of(mesh, &object);
        let destination = match binding {
            Ok(()) => GatewayDestination::Hostname(service),
            Err(_) => GatewayDestination::Refused(service.hostname),
        };
        Some(GatewayAddress { destination, hbone_mtls_port: ports::HBONE })
    }
}

/// The ConfigMaps that a Gateway names for its clients.
fn root_maps<'a>(
    name: &'a ObjectName,
    gateway: &'a Gateway,
) -> impl Iterator<Item = ObjectName> + use<'a> {
    let frontend = gateway.spec.tls.as_ref().and_then(|it| it.frontend.as_ref());
    let settings = frontend.into_iter().flat_map(|it| {
        let ports = it.per_port.iter().map(|it| &it.tls);
        ports.chain([&it.of_all])
    });
    let named = settings.filter_map(|it| it.validation.as_ref());
    named.flat_map(|it| &it.ca_certificate_refs).filter_map(|it| it.holder(&name.namespace))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gateways(traffic: &str, allowed: &str) -> Gateways {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "infra", "name": "way",
                "labels": {"istio.io/waypoint-for": traffic}},
            "spec": {"gatewayClassName": "istio-waypoint", "listeners": [{"name": "mesh",
                "protocol": "HBONE", "port": 15008,
                "allowedRoutes": {"namespaces": {"from": allowed}}}]},
        });
        let mut gateways = Gateways::default();
        let name = ObjectName::new("infra", "way");
        assert!(gateways.put(name, Some(Arc::new(serde_json::from_value(gateway).unwrap()))));
        gateways
    }

    fn labels(labels: &Value) -> Labels {
        serde_json::from_value(labels.clone()).expect("labels")
    }

    #[derive(Debug, PartialEq)]
    enum Way {
        Direct,
        Through,
        Refused,
    }
    use Way::{Direct, Refused, Through};

    fn check(gateways: &Gateways, namespace: &str, own: &Value, inherited: &Value, way: [Way; 2]) {
        let (own, inherited) = (labels(own), labels(inherited));
        let ways = [false, true].map(|is_workload| {
            let naming = Naming { namespace, labels: &own, of_namespace: &inherited, is_workload };
            match gateways.waypoint(&Mesh::sample(), &naming).map(|it| it.destination) {
                None => Direct,
                Some(GatewayDestination::Hostname(name)) => {
                    assert_eq!(name.to_string(), "infra/way.infra.svc.cluster.local");
                    Through
                }
                Some(_) => Refused,
            }
        });
        assert_eq!(ways, way, "{namespace} {own:?} {inherited:?}");
    }

    #[test]
    fn services_and_workloads_go_where_their_labels_say() {
        let (no, way) = (json!({}), json!({"istio.io/use-waypoint": "way"}));
        let far = json!({"istio.io/use-waypoint": "way",
            "istio.io/use-waypoint-namespace": "infra"});
        let none = json!({"istio.io/use-waypoint": "none"});
        let other = json!({"istio.io/use-waypoint": "other"});
        let all = gateways("all", "Same");
        check(&all, "infra", &no, &no, [Direct, Direct]);
        check(&all, "infra", &way, &no, [Through, Through]);
        check(&all, "infra", &no, &way, [Through, Through]);
        check(&all, "infra", &none, &way, [Direct, Direct]);
        check(&all, "infra", &other, &way, [Refused, Refused]);
        check(&all, "infra", &no, &other, [Refused, Direct]);
        check(&all, "shop", &far, &no, [Refused, Refused]);
        check(&gateways("all", "All"), "shop", &far, &no, [Through, Through]);
        let services = gateways("service", "Same");
        check(&services, "infra", &way, &no, [Through, Refused]);
        check(&services, "infra", &no, &way, [Through, Direct]);
        let workloads = gateways("workload", "Same");
        check(&workloads, "infra", &way, &no, [Refused, Through]);
        check(&workloads, "infra", &no, &way, [Direct, Through]);
        check(&gateways("none", "Same"), "infra", &no, &way, [Direct, Direct]);
    }

    #[test]
    fn a_waypoint_has_none_and_nobody_else_passes_for_one() {
        let all = gateways("all", "Same");
        let own = |name: &str| {
            json!({"gateway.networking.k8s.io/gateway-name": name,
                "gateway.istio.io/managed": "istio.io-mesh-controller"})
        };
        let way = json!({"istio.io/use-waypoint": "way"});
        check(&all, "infra", &own("way"), &way, [Direct, Direct]);
        check(&all, "infra", &own("other"), &way, [Through, Through]);
        let pod = |account: &str, owner: &str| {
            let pod = json!({
                "metadata": {"namespace": "infra", "name": "way-1", "uid": "u",
                    "labels": own("way"), "ownerReferences": [{"apiVersion": "apps/v1",
                        "kind": "Deployment", "name": owner, "uid": "d", "controller": true}]},
                "spec": {"serviceAccountName": account, "containers": []},
            });
            PodRecord::new(&serde_json::from_value(pod).expect("a pod"))
        };
        assert_eq!(all.of_pod("infra", &pod("way", "way")), Some(("way", Position::Waypoint)));
        assert_eq!(all.of_pod("infra", &pod("web", "way")), None);
        assert_eq!(all.of_pod("infra", &pod("way", "web")), None);
        assert_eq!(all.of_pod("shop", &pod("way", "way")), None);
        assert_eq!(Gateways::default().of_pod("infra", &pod("way", "way")), None);
    }

    #[test]
    fn a_gateway_at_the_edge_has_pods_of_its_own_names() {
        let mut all = gateways("all", "Same");
        let name = ObjectName::new("infra", "in");
        let put = |all: &mut Gateways, class: &str, port: u16| {
            let gateway = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"namespace": "infra", "name": "in"},
                "spec": {"gatewayClassName": class,
                    "listeners": [{"name": "web", "protocol": "HTTP", "port": port}]},
            });
            all.put(name.clone(), Some(Arc::new(serde_json::from_value(gateway).unwrap())));
        };
        let labels = |managed: &str| {
            json!({"gateway.networking.k8s.io/gateway-name": "in",
                "gateway.istio.io/managed": managed})
        };
        let pod = |managed: &str, account: &str| {
            let pod = json!({
                "metadata": {"namespace": "infra", "name": "in-1", "uid": "u",
                    "labels": labels(managed), "ownerReferences": [{"apiVersion": "apps/v1",
                        "kind": "Deployment", "name": "in-ambit", "uid": "d",
                        "controller": true}]},
                "spec": {"serviceAccountName": account, "containers": []},
            });
            PodRecord::new(&serde_json::from_value(pod).expect("a pod"))
        };
        let edge = "istio.io-gateway-controller";
        put(&mut all, "ambit", 80);
        assert_eq!(all.running(&name), Some(Position::Edge));
        let service = all.service_of(&Mesh::sample(), &name);
        assert_eq!(service.to_string(), "infra/in-ambit.infra.svc.cluster.local");
        let of_pod = |all: &Gateways, managed: &str, account: &str| {
            all.of_pod("infra", &pod(managed, account)).map(|it| it.1)
        };
        assert_eq!(of_pod(&all, edge, "in-ambit"), Some(Position::Edge));
        assert_eq!(of_pod(&all, edge, "in"), None);
        assert_eq!(of_pod(&all, "istio.io-mesh-controller", "in-ambit"), None);
        let way = json!({"istio.io/use-waypoint": "way"});
        check(&all, "infra", &labels(edge), &way, [Direct, Direct]);
        put(&mut all, "ambit", 15_008);
        assert_eq!(all.running(&name), None, "it has no listener that is served");
        put(&mut all, "other", 80);
        assert_eq!(of_pod(&all, edge, "in-ambit"), None);
    }

    #[test]
    fn only_a_class_of_waypoints_makes_a_waypoint() {
        let mut all = gateways("all", "Same");
        let name = ObjectName::new("infra", "way");
        assert!(all.is_waypoint(&name));
        let class = json!({"apiVersion": "", "kind": "GatewayClass",
            "metadata": {"name": "istio-waypoint"},
            "spec": {"controllerName": "example.com/other"}});
        let class = Arc::new(serde_json::from_value(class).unwrap());
        let of_class = all.put_class("istio-waypoint".into(), Some(class));
        assert_eq!(of_class, std::slice::from_ref(&name));
        assert!(!all.is_waypoint(&name));
        let unchanged = all.gateways[&name].clone();
        assert!(!all.put(name, Some(unchanged)), "nothing that matters changed");
    }
}
