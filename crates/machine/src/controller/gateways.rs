//! From Gateways to their pods: waypoints, and gateways at the edge.
//!
//! Each Gateway of a class of Ambit's has a ServiceAccount, a Service and a Deployment, which
//! belong to it and go with it. An object of that name which somebody else made stays as it is, and
//! the Gateway's status says so. The number of replicas is the Deployment's own, unless a patch
//! says it.

mod listeners;
mod sets;

use std::collections::BTreeMap;

use ambit_manifest::gateway::listeners::{judge_all, runs};
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, GatewayClass, Position};
use ambit_manifest::waypoint::parameters::{self, Patches};
use ambit_manifest::waypoint::{self, Common, Made, Place, SetOf, attached_sets};
use ambit_words::annotations::ACME_CHALLENGES;
use ambit_words::labels::DEFAULTS_FOR_CLASS;
use ambit_words::{names, ports};
use serde_json::{Value, json};

use super::{decode, text};
use crate::addresses::CONTROL;
use crate::config::UpConfig;
use crate::image::WAYPOINT_IMAGE;
use crate::objects::{Admission, ApplyError, Kind, ObjectRef, Outcome, Store, StoreError};

/// The name of a machine's cluster, unless control is told another.
const DEFAULT_CLUSTER_ID: &str = "Kubernetes";

/// What names a machine's mesh.
#[derive(Clone, Debug)]
pub(crate) struct MeshNames {
    trust_domain: String,
    cluster_id: String,
}

impl MeshNames {
    /// The names that control is started with; none on a machine without the mesh.
    pub(crate) fn of(config: &UpConfig) -> Option<Self> {
        let flags = config.arguments.get("control").map(Vec::as_slice).unwrap_or_default();
        let given = |flag: &str, default: &str| {
            let joined =
                |word: &String| Some(word.strip_prefix(flag)?.strip_prefix('=')?.to_owned());
            let apart = || {
                let at = flags.iter().position(|word| word == flag)?;
                flags.get(at + 1).cloned()
            };
            flags.iter().find_map(joined).or_else(apart).unwrap_or_else(|| default.to_owned())
        };
        config.mesh.then(|| Self {
            trust_domain: given("--trust-domain", names::DEFAULT_TRUST_DOMAIN),
            cluster_id: given("--cluster-id", DEFAULT_CLUSTER_ID),
        })
    }
}

/// A Gateway that asks for pods.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// Its name.
    object: &'a ObjectRef,
    /// What it says.
    gateway: &'a Gateway,
    /// Where its pods are.
    position: Position,
    /// The ListenerSets that it takes, in their order.
    sets: &'a [&'a ListenerSet],
}

/// Brings the objects of Gateways closer to what they ask for. Answers whether anything
/// changed.
pub(super) fn step(
    store: &mut Store,
    admission: &Admission,
    mesh: Option<&MeshNames>,
    now: &str,
) -> Result<bool, StoreError> {
    let gateways: Vec<(ObjectRef, Gateway)> = store
        .of_plural(Kind::Gateway.plural())
        .map(|(object, value)| (object.clone(), decode(value)))
        .collect();
    let sets = sets::all(store);
    let mut changed = false;
    for (object, gateway) in gateways {
        let class = ObjectRef::new(Kind::GatewayClass, None, &gateway.spec.gateway_class_name);
        let class: Option<GatewayClass> = store.object(&class).map(decode);
        let class = class.map(|class| class.spec);
        let position = Position::of_class(&gateway.spec.gateway_class_name, class.as_ref());
        let Some(position) = position else {
            changed |= remove(store, &gateway, &[], now)?;
            continue;
        };
        let taken = sets::taken(store, &object, (&gateway, position), &sets);
        let asked = Asked { object: &object, gateway: &gateway, position, sets: &taken };
        let (mut made, is_news) = match (runs(&gateway.spec, position), mesh) {
            (true, Some(mesh)) => make(store, admission, mesh, asked, now)?,
            (false, _) => (Made::default(), remove(store, &gateway, &[], now)?),
            (true, None) => {
                let problem = "this machine was started without the mesh".to_owned();
                (Made { problem: Some(problem), ..Made::default() }, false)
            }
        };
        let judged = match position {
            Position::Waypoint => Vec::new(),
            Position::Edge => judge_all(&gateway.spec, &taken),
        };
        if position == Position::Edge {
            made.listeners = listeners::listeners(store, &object, &gateway, &judged);
            made.unresolved = listeners::client_certificate(store, &object, &gateway);
            made.sets = attached_sets(&judged, &made);
        }
        changed |= is_news;
        changed |= write_status(store, asked, &made, now)?;
        let of = SetOf { gateway: &gateway, position, listeners: &judged, made: &made };
        changed |= sets::write_status(store, &object, &sets, &of, now)?;
    }
    Ok(sets::without_gateway(store, &sets, now)? || changed)
}

/// Makes what is missing; answers what there is, and whether something changed.
fn make(
    store: &mut Store,
    admission: &Admission,
    mesh: &MeshNames,
    asked: Asked<'_>,
    now: &str,
) -> Result<(Made, bool), StoreError> {
    let Asked { object, gateway, position, sets } = asked;
    let control = format!("https://{}:{}", CONTROL.v4, ports::XDS);
    let common = Common {
        position,
        sets,
        image: WAYPOINT_IMAGE,
        place: Place::Machine,
        control: &control,
        control_host: Some(names::CONTROL_HOST),
        trust_domain: &mesh.trust_domain,
        cluster_id: &mesh.cluster_id,
    };
    let built = parameters(store, object, gateway)
        .and_then(|patches| parameters::objects(gateway, &common, &patches));
    let built = match built {
        Ok(built) => built,
        Err(what) => {
            return Ok((Made { wrong_parameters: Some(what), ..found(store, asked) }, false));
        }
    };
    let mut wanted = Vec::new();
    for mut value in built {
        let reference = reference(&value);
        let there = store.object(&reference);
        if there.is_some_and(|there| !is_of(there, gateway)) {
            let is_account = reference.plural == Kind::ServiceAccount.plural();
            if is_account && waypoint::names(gateway, position).is_account_given {
                continue;
            }
            let problem = format!(
                "{reference} is there already and is not this Gateway's; delete it, or rename the \
                 Gateway"
            );
            return Ok((Made { problem: Some(problem), ..Made::default() }, false));
        }
        if let Some(there) = there {
            keep(there, &mut value);
        }
        wanted.push(value);
    }
    let kept: Vec<ObjectRef> = wanted.iter().map(reference).collect();
    let changed = match store.draft_apply(wanted, admission, now) {
        Ok((settled, changes)) => {
            let is_news = changes.changes.iter().any(|it| it.outcome != Outcome::Unchanged);
            if is_news {
                store.commit(settled)?;
            }
            is_news
        }
        Err(ApplyError::Store(error)) => return Err(error),
        Err(error) => {
            let problem = Some(format!("{:#}", anyhow::Error::new(error)));
            return Ok((Made { problem, ..Made::default() }, false));
        }
    };
    // Another class or annotation gives its objects other names.
    let changed = remove(store, gateway, &kept, now)? || changed;
    Ok((found(store, asked), changed))
}

/// Keeps what others have written into an object that is made again.
fn keep(there: &Value, value: &mut Value) {
    // Whoever scaled it decides, unless a patch does.
    if let (Some(replicas), None) =
        (there.pointer("/spec/replicas"), value.pointer("/spec/replicas"))
    {
        value["spec"]["replicas"] = replicas.clone();
    }
    // What the gateway answers to a directory, by the user's command.
    let annotations = there.pointer("/metadata/annotations");
    if let Some(answers) = annotations.and_then(|it| it.get(ACME_CHALLENGES)) {
        value["metadata"]["annotations"][ACME_CHALLENGES] = answers.clone();
    }
}

/// The name of an object that is to be made.
fn reference(value: &Value) -> ObjectRef {
    let kind = Kind::of_manifest(text(value, "/apiVersion"), text(value, "/kind"));
    let kind = kind.expect("a machine has the kinds that Gateways are made into");
    ObjectRef::new(kind, Some(text(value, "/metadata/namespace")), text(value, "/metadata/name"))
}

/// The patches for a Gateway: those of its class, then those that it names.
fn parameters(
    store: &Store,
    object: &ObjectRef,
    gateway: &Gateway,
) -> Result<Vec<Patches>, String> {
    let data = |value: &Value| -> BTreeMap<String, String> {
        serde_json::from_value(value["data"].clone()).unwrap_or_default()
    };
    let class = &gateway.spec.gateway_class_name;
    let of_class = store.of_plural(Kind::ConfigMap.plural()).filter(|(object, value)| {
        object.namespace.as_deref() == Some(names::DEFAULT_MESH_NAMESPACE)
            && value["metadata"]["labels"][DEFAULTS_FOR_CLASS] == **class
    });
    let oldest = of_class.min_by_key(|(object, value)| {
        (text(value, "/metadata/creationTimestamp").to_owned(), object.name.clone())
    });
    let mut patches = Vec::new();
    if let Some((object, value)) = oldest {
        patches.push(Patches::read(object.to_string(), &data(value))?);
    }
    if let Some(name) = parameters::config_map(gateway) {
        let named = ObjectRef::new(Kind::ConfigMap, object.namespace.as_deref(), name?);
        let value = store.object(&named).ok_or_else(|| format!("{named} does not exist"))?;
        patches.push(Patches::read(named.to_string(), &data(value))?);
    }
    Ok(patches)
}

/// What there is of a Gateway.
fn found(store: &Store, asked: Asked<'_>) -> Made {
    let name = waypoint::names(asked.gateway, asked.position).objects;
    let reference = |kind| ObjectRef::new(kind, asked.object.namespace.as_deref(), &name);
    let service = store.object(&reference(Kind::Service));
    let addresses = service.and_then(|it| it.pointer("/spec/clusterIPs")).and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let deployment = store.object(&reference(Kind::Deployment));
    let count = |pointer| {
        let number = deployment.and_then(|it| it.pointer(pointer)).and_then(Value::as_u64);
        number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
    };
    Made {
        addresses: addresses.collect(),
        ready: count("/status/readyReplicas"),
        wanted: count("/spec/replicas"),
        ..Made::default()
    }
}

/// Whether an object belongs to this Gateway.
fn is_of(value: &Value, gateway: &Gateway) -> bool {
    let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let uid = gateway.metadata.uid.as_deref();
    owners.is_some_and(|owners| owners.iter().any(|it| it["uid"].as_str() == uid))
}

/// Removes what was made for a Gateway that no longer asks for it; what is `kept` stays.
fn remove(
    store: &mut Store,
    gateway: &Gateway,
    kept: &[ObjectRef],
    now: &str,
) -> Result<bool, StoreError> {
    let kinds = [Kind::Deployment, Kind::Service, Kind::ServiceAccount];
    let made = kinds.into_iter().flat_map(|kind| store.of_plural(kind.plural()));
    let made = made.filter(|(object, value)| is_of(value, gateway) && !kept.contains(object));
    let made: Vec<ObjectRef> = made.map(|(object, _)| object.clone()).collect();
    if made.is_empty() {
        return Ok(false);
    }
    match store.delete(&made, true, now) {
        Err(ApplyError::Store(error)) => Err(error),
        // Absent ones are ignored, and nothing else can be wrong with a deletion of these kinds.
        deleted => Ok(deleted.is_ok()),
    }
}

fn write_status(
    store: &mut Store,
    asked: Asked<'_>,
    made: &Made,
    now: &str,
) -> Result<bool, StoreError> {
    let Asked { object, gateway, position, .. } = asked;
    let Some(mut value) = store.object(object).cloned() else { return Ok(false) };
    let status = waypoint::status(gateway, position, made, now);
    if value.get("status") == Some(&status) || text(&value, "/metadata/uid").is_empty() {
        return Ok(false);
    }
    value["status"] = json!(status);
    store.write(object.clone(), value, now)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageMap;
    use crate::layout::Layout;
    use crate::node_labels::NodeLabels;
    use crate::objects::Limited;

    const NOW: &str = "2026-01-31T12:00:00Z";

    struct Bed {
        store: Store,
        admission: Admission,
        mesh: MeshNames,
        _root: tempfile::TempDir,
    }

    impl Bed {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let mut store = Store::create(Layout::new(root.path())).unwrap();
            let node_labels = NodeLabels::default();
            let images = ImageMap::default();
            let limited = Limited::default();
            let admission = Admission { images, rootless: true, node_labels, limited };
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "shop"}});
            store.apply(vec![namespace], &admission, NOW).unwrap();
            let mesh = MeshNames { trust_domain: "t".to_owned(), cluster_id: "c".to_owned() };
            Self { store, admission, mesh, _root: root }
        }

        fn apply(&mut self, object: Value) {
            self.store.apply(vec![object], &self.admission, NOW).unwrap();
            self.settle();
        }

        fn settle(&mut self) {
            for _ in 0..10 {
                let Self { store, admission, mesh, .. } = self;
                if !step(store, admission, Some(mesh), NOW).unwrap() {
                    return;
                }
            }
            panic!("the controller does not come to rest");
        }

        fn object(&self, plural: &str) -> Option<&Value> {
            self.named(plural, "way")
        }

        fn named(&self, plural: &str, name: &str) -> Option<&Value> {
            let kind = Kind::from_plural(plural).unwrap();
            self.store.object(&ObjectRef::new(kind, Some("shop"), name))
        }

        fn condition(&self, kind: &str) -> (String, String) {
            let gateway = self.object("gateways").unwrap();
            let all = gateway["status"]["conditions"].as_array().unwrap();
            let of = all.iter().find(|it| it["type"] == kind).unwrap();
            (of["reason"].as_str().unwrap().to_owned(), of["message"].as_str().unwrap().to_owned())
        }
    }

    fn gateway(class: &str, protocol: &str) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "way", "namespace": "shop"},
            "spec": {"gatewayClassName": class,
                "listeners": [{"name": "mesh", "protocol": protocol, "port": 15008}]},
        })
    }

    #[test]
    fn a_gateway_has_objects_of_its_own_which_go_with_it() {
        let mut bed = Bed::new();
        bed.apply(gateway("istio-waypoint", "HBONE"));
        for plural in ["serviceaccounts", "services", "deployments"] {
            let made = bed.object(plural).unwrap_or_else(|| panic!("no {plural}"));
            assert!(is_of(made, &decode(bed.object("gateways").unwrap())), "{plural}");
        }
        let address = bed.object("services").unwrap()["spec"]["clusterIP"].clone();
        let status = &bed.object("gateways").unwrap()["status"];
        assert_eq!(status["addresses"][0]["value"], address);
        assert_eq!(bed.condition("Programmed").0, "AddressNotUsable", "no pod is ready");
        let deployment = ObjectRef::new(Kind::Deployment, Some("shop"), "way");
        bed.store.scale(&deployment, 3, NOW).unwrap();
        let mut value = bed.object("deployments").unwrap().clone();
        value["status"] = json!({"readyReplicas": 2});
        bed.store.write(deployment, value, NOW).unwrap();
        bed.settle();
        assert_eq!(bed.object("deployments").unwrap()["spec"]["replicas"], 3);
        assert_eq!(bed.condition("Programmed").1, "2 of 3 pods are ready");
        let named = ObjectRef::new(Kind::Gateway, Some("shop"), "way");
        let gone = bed.store.delete(&[named], false, NOW).unwrap();
        assert_eq!(gone.changes.len(), 4, "{gone:?}");
        assert!(bed.object("deployments").is_none() && bed.object("services").is_none());
    }

    fn at_the_edge(port: u16) -> Value {
        let mut gateway = gateway("ambit", "HTTP");
        gateway["spec"]["listeners"][0]["port"] = json!(port);
        gateway
    }

    #[test]
    fn what_a_gateway_answers_to_a_directory_stays_until_it_is_taken_away() {
        let mut bed = Bed::new();
        bed.apply(at_the_edge(80));
        let answers = |bed: &Bed| {
            let service = bed.named("services", "way-ambit").unwrap();
            service["metadata"]["annotations"][ACME_CHALLENGES].clone()
        };
        assert_eq!(answers(&bed), Value::Null);
        let written = json!({ACME_CHALLENGES: "shop.test one one.two\n"});
        for annotations in [written, json!({})] {
            let mut service = bed.named("services", "way-ambit").unwrap().clone();
            service["metadata"]["annotations"] = annotations.clone();
            bed.apply(service);
            bed.apply(at_the_edge(8080));
            assert_eq!(answers(&bed), annotations[ACME_CHALLENGES]);
        }
    }

    #[test]
    fn a_gateway_at_the_edge_has_objects_too() {
        let mut bed = Bed::new();
        bed.apply(at_the_edge(8080));
        for plural in ["serviceaccounts", "services", "deployments"] {
            assert!(bed.named(plural, "way-ambit").is_some(), "{plural}");
            assert!(bed.object(plural).is_none(), "{plural}");
        }
        let service = &bed.named("services", "way-ambit").unwrap()["spec"];
        assert_eq!(
            (&service["type"], &service["ports"][1]["port"]),
            (&json!("ClusterIP"), &json!(8080))
        );
        let status = &bed.object("gateways").unwrap()["status"];
        assert_eq!(status["addresses"][0]["value"], service["clusterIP"]);
        assert_eq!(bed.condition("Accepted").0, "Accepted");
        assert_eq!(bed.condition("Programmed").0, "Pending", "no pod is ready");
        let template = &bed.named("deployments", "way-ambit").unwrap()["spec"]["template"];
        assert_eq!(template["spec"]["serviceAccountName"], "way-ambit");
        bed.apply(at_the_edge(9090));
        let service = &bed.named("services", "way-ambit").unwrap()["spec"];
        assert_eq!(service["ports"][1]["port"], 9090);
        bed.apply(gateway("ambit-waypoint", "HBONE"));
        assert!(bed.object("deployments").is_some(), "it is a waypoint now");
        assert_eq!(bed.named("services", "way-ambit"), None, "what it was before is gone");
    }

    #[test]
    fn listeners_at_the_edge_count_their_routes() {
        let mut bed = Bed::new();
        let route = |name: &str, kind: &str, section: &str| {
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": name, "namespace": "shop"},
                "spec": {"parentRefs": [{"name": "way", "sectionName": section}, {"name": "other"}],
                    "rules": [{}]}})
        };
        bed.apply(route("one", "HTTPRoute", "mesh"));
        bed.apply(route("two", "GRPCRoute", "mesh"));
        bed.apply(route("wrong", "HTTPRoute", "none"));
        bed.apply(at_the_edge(8080));
        let count = |bed: &Bed| {
            let gateway = bed.object("gateways").unwrap();
            gateway["status"]["listeners"][0]["attachedRoutes"].clone()
        };
        assert_eq!(count(&bed), 2);
        let named = ObjectRef::new(Kind::HttpRoute, Some("shop"), "one");
        bed.store.delete(&[named], false, NOW).unwrap();
        bed.settle();
        assert_eq!(count(&bed), 1);
    }

    #[test]
    fn a_listener_set_is_taken_and_says_how_it_is() {
        let mut bed = Bed::new();
        let set = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"name": "own", "namespace": "shop"}, "spec": {"parentRef": {"name": "way"},
                "listeners": [{"name": "alt", "protocol": "HTTP", "port": 8081}]}});
        bed.apply(set);
        let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "r", "namespace": "shop"}, "spec": {"rules": [{}],
                "parentRefs": [{"kind": "ListenerSet", "name": "own"}]}});
        bed.apply(route);
        let check = |bed: &Bed, reason: &str, routes: Option<u64>, ports: &[u64]| {
            let status = &bed.named("listenersets", "own").unwrap()["status"];
            let accepted = status["conditions"].as_array().unwrap();
            let accepted = accepted.iter().find(|it| it["type"] == "Accepted").unwrap();
            assert_eq!(accepted["reason"], reason, "{accepted}");
            assert_eq!(status["listeners"][0]["attachedRoutes"].as_u64(), routes, "{reason}");
            let service = bed.named("services", "way-ambit");
            let all = service.and_then(|it| it["spec"]["ports"].as_array());
            let all = all.into_iter().flatten().filter_map(|it| it["port"].as_u64());
            assert!(all.eq(ports.iter().copied()), "{reason}");
        };
        check(&bed, "ParentNotAccepted", None, &[]);
        let mut gateway = at_the_edge(8080);
        bed.apply(gateway.clone());
        check(&bed, "NotAllowed", None, &[15_021, 8080]);
        gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": "Same"}});
        bed.apply(gateway);
        check(&bed, "Accepted", Some(1), &[15_021, 8080, 8081]);
        let status = &bed.object("gateways").unwrap()["status"];
        assert_eq!(status["attachedListenerSets"], 1);
        assert_eq!(status["listeners"][0]["attachedRoutes"], 0, "it names the set alone");
    }

    #[test]
    fn a_certificate_is_there_and_may_be_used() {
        let mut bed = Bed::new();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "keys"}});
        bed.apply(namespace);
        let mut gateway = gateway("ambit", "HTTPS");
        gateway["spec"]["listeners"][0]["port"] = json!(443);
        let at = |of: &str| json!({"certificateRefs": [{"name": "web", "namespace": of}]});
        let secret = |of: &str, key: &str| {
            json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "web", "namespace": of},
                "data": {"tls.crt": "eA==", key: "eA=="}})
        };
        let mut check = |applied: Value, reason: &str| {
            bed.apply(applied);
            let gateway = bed.object("gateways").unwrap();
            let all = gateway["status"]["listeners"][0]["conditions"].as_array().unwrap();
            let found = all.iter().find(|it| it["type"] == "ResolvedRefs").unwrap();
            assert_eq!(found["reason"], reason, "{found}");
        };
        gateway["spec"]["listeners"][0]["tls"] = at("shop");
        check(gateway.clone(), "InvalidCertificateRef");
        check(secret("shop", "key"), "InvalidCertificateRef");
        check(secret("shop", "tls.key"), "ResolvedRefs");
        gateway["spec"]["listeners"][0]["tls"] = at("keys");
        check(gateway, "RefNotPermitted");
        let grant = json!({"apiVersion": "gateway.networking.k8s.io/v1beta1",
            "kind": "ReferenceGrant", "metadata": {"name": "web", "namespace": "keys"},
            "spec": {"to": [{"group": "", "kind": "Secret"}],
                "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway",
                    "namespace": "shop"}]}});
        check(grant, "InvalidCertificateRef");
        check(secret("keys", "tls.key"), "ResolvedRefs");
        // The same of the certificate for backends, which is the whole Gateway's.
        let mut check = |of: &str, reason: &str| {
            let mut edge = super::tests::gateway("ambit", "HTTP");
            edge["spec"]["listeners"][0]["port"] = json!(80);
            let named = json!({"name": "web", "namespace": of});
            edge["spec"]["tls"] = json!({"backend": {"clientCertificateRef": named}});
            bed.apply(edge);
            let all = &bed.object("gateways").unwrap()["status"]["conditions"];
            let all = all.as_array().unwrap();
            let found = all.iter().find(|it| it["type"] == "ResolvedRefs").unwrap();
            assert_eq!(found["reason"], reason, "{found}");
        };
        check("keys", "ResolvedRefs");
        check("other", "RefNotPermitted");
    }

    #[test]
    fn without_the_mesh_a_gateway_says_so() {
        let mut bed = Bed::new();
        let Bed { store, admission, .. } = &mut bed;
        store.apply(vec![at_the_edge(80)], admission, NOW).unwrap();
        assert!(step(store, admission, None, NOW).unwrap());
        let (reason, message) = bed.condition("Programmed");
        assert!(reason == "Invalid" && message.contains("without the mesh"), "{message}");
        assert_eq!(bed.named("deployments", "way-ambit"), None);
    }

    #[test]
    fn what_no_longer_asks_for_a_waypoint_loses_it() {
        for changed in [gateway("istio", "HBONE"), gateway("istio-waypoint", "HTTP")] {
            let mut bed = Bed::new();
            bed.apply(gateway("istio-waypoint", "HBONE"));
            assert!(bed.object("deployments").is_some());
            bed.apply(changed);
            for plural in ["serviceaccounts", "services", "deployments"] {
                assert_eq!(bed.object(plural), None);
            }
        }
    }

    #[test]
    fn objects_of_others_stay_as_they_are() {
        let mut bed = Bed::new();
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "way", "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}});
        bed.apply(service);
        let before = bed.object("services").cloned();
        bed.apply(gateway("ambit-waypoint", "HBONE"));
        assert_eq!(bed.object("services").cloned(), before);
        let (reason, message) = bed.condition("Programmed");
        assert!(reason == "Invalid" && message.contains("Service shop/way"), "{message}");
        assert_eq!(bed.object("deployments"), None);
    }

    fn parameters(name: &str, namespace: &str, labels: &Value, deployment: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "data": {"deployment": deployment}})
    }

    #[test]
    fn patches_of_the_class_and_of_the_gateway_are_followed() {
        let mut bed = Bed::new();
        bed.apply(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "istio-system"}}));
        let class = json!({"gateway.istio.io/defaults-for-class": "istio-waypoint"});
        let of_class = "spec: {replicas: 2, minReadySeconds: 1}";
        bed.apply(parameters("all", "istio-system", &class, of_class));
        bed.apply(gateway("istio-waypoint", "HBONE"));
        let spec =
            |bed: &Bed, field: &str| bed.object("deployments").unwrap()["spec"][field].clone();
        assert_eq!((spec(&bed, "replicas"), spec(&bed, "minReadySeconds")), (json!(2), json!(1)));
        let mut named = gateway("istio-waypoint", "HBONE");
        let reference = json!({"group": "", "kind": "ConfigMap", "name": "own"});
        named["spec"]["infrastructure"] = json!({"parametersRef": reference});
        bed.apply(named);
        let (reason, message) = bed.condition("Accepted");
        assert_eq!(reason, "InvalidParameters", "{message}");
        assert!(message.contains("shop/own does not exist"), "{message}");
        assert_eq!(spec(&bed, "replicas"), 2, "the waypoint stays as it is");
        bed.apply(parameters("own", "shop", &json!({}), "spec: {replicas: 3}"));
        assert_eq!((spec(&bed, "replicas"), spec(&bed, "minReadySeconds")), (json!(3), json!(1)));
        assert_eq!(bed.condition("Accepted").0, "Accepted");
        bed.apply(parameters("own", "shop", &json!({}), "metadata: {name: x}"));
        let (reason, message) = bed.condition("Accepted");
        assert_eq!(reason, "InvalidParameters", "{message}");
    }

    #[test]
    fn a_gateway_may_use_an_account_that_is_there() {
        let mut bed = Bed::new();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "cloud", "namespace": "shop"}});
        bed.apply(account);
        let mut named = gateway("istio-waypoint", "HBONE");
        named["metadata"]["annotations"] = json!({"gateway.istio.io/service-account": "cloud"});
        bed.apply(named);
        let pod = &bed.object("deployments").unwrap()["spec"]["template"]["spec"];
        assert_eq!(pod["serviceAccountName"], "cloud");
        assert_eq!(bed.object("serviceaccounts"), None, "it has no other");
    }

    #[test]
    fn it_says_what_a_listener_must_be() {
        let mut bed = Bed::new();
        bed.apply(gateway("ambit-waypoint", "HTTP"));
        let (reason, message) = bed.condition("Accepted");
        assert!(reason == "UnsupportedProtocol" && message.contains("HBONE"), "{message}");
        assert_eq!(bed.object("deployments"), None);
    }

    #[test]
    fn waypoints_learn_the_names_that_control_is_started_with() {
        let config = |flags: &[&str], mesh| UpConfig {
            state: "/s".into(),
            nodes: 1,
            binary: "/b".into(),
            mesh,
            images: ImageMap::default(),
            node_labels: NodeLabels::default(),
            host_paths: Vec::new(),
            confined: false,
            limits: false,
            egress: None,
            proxies: BTreeMap::new(),
            arguments: BTreeMap::from([(
                "control".to_owned(),
                flags.iter().map(|it| (*it).to_owned()).collect(),
            )]),
            environment: BTreeMap::new(),
            link: Default::default(),
        };
        let of = |flags: &[&str]| {
            let names = MeshNames::of(&config(flags, true)).unwrap();
            format!("{} {}", names.trust_domain, names.cluster_id)
        };
        assert_eq!(of(&[]), "cluster.local Kubernetes");
        assert_eq!(of(&["--trust-domain=a", "--cluster-id", "b"]), "a b");
        assert!(MeshNames::of(&config(&[], false)).is_none());
    }
}
