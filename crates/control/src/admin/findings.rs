//! Well-formed objects that probably do not do what their author meant, for `ambit status`.
//!
//! A label that names a missing waypoint makes connections be refused: an error. Policies that
//! select nothing, clients from namespaces that do not exist and misspelt labels have no effect at
//! all: warnings. `ambit apply` reports the same, but only for the manifests that it applies, and
//! others change a cluster too. Nothing here decides about a connection.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use ambit_manifest::gateway::Unbound;
use ambit_manifest::istio::WorkloadSelector;
use ambit_manifest::policy::{self, named_namespaces};
use ambit_manifest::remarks::Remark;
use ambit_manifest::{BUILT_IN_NAMESPACES, Kind, ObjectName, meant_label};
use ambit_model::workload::WorkloadKind;
use ambit_wire::admin::{Finding, Severity};
use ambit_words::labels::USE_WAYPOINT;
use ambit_words::names::MESH_CONFIG_MAP;

use super::{admission, attached, authentications, conflicts, gateways};
use crate::view_builder::Builder;
use crate::view_builder::edge::Edges;
use crate::view_builder::gateways::{Naming, named_waypoint};
use crate::view_builder::http_services;
use crate::view_builder::records::PodRecord;
use crate::view_builder::selectors::Labels;
use crate::view_builder::store::{Store, selector};

/// Names that a finding lists; the rest is counted.
const NAMES_MAX: usize = 5;
/// The labels of an object that leaves the word to its namespace.
static NO_LABELS: Labels = Labels::new();
/// Findings of one rule; the rest is counted in one more.
const SAME_RULE_MAX: usize = 20;

/// All findings; errors come first.
pub(super) fn findings(builder: &Builder) -> Vec<Finding> {
    let mut found = bounded(waypoints(builder.store()));
    found.extend(bounded(gateways::findings(builder)));
    found.extend(bounded(attached::canaries(builder)));
    found.extend(bounded(policies(builder)));
    found.extend(bounded(attached::findings(builder)));
    found.extend(bounded(admission::findings(builder)));
    found.extend(bounded(authentications::findings(builder)));
    found.extend(bounded(routes(builder)));
    found.extend(bounded(traffic(builder)));
    found.extend(bounded(mesh_config(builder)));
    found.extend(bounded(providers(builder)));
    found.extend(bounded(conflicts::findings(builder)));
    found.extend(bounded(slips(builder.store())));
    found.sort_by_key(|finding| finding.severity);
    found
}

/// Keeps as many findings of one rule as a person reads, and counts the rest.
fn bounded(mut found: Vec<Finding>) -> Vec<Finding> {
    let more = found.len().saturating_sub(SAME_RULE_MAX);
    found.truncate(SAME_RULE_MAX);
    if let Some(last) = found.last().filter(|_| more > 0) {
        let (severity, rule) = (last.severity, last.rule.clone());
        let what = format!("{more} more findings of this kind");
        let remedy = "correct those above first".to_owned();
        found.push(Finding { severity, rule, object: "others".to_owned(), what, remedy });
    }
    found
}

/// An object that a user wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Written<'a> {
    kind: Kind,
    /// Empty for what lies in no namespace.
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Written<'a> {
    fn new(kind: Kind, name: &'a ObjectName) -> Self {
        Self { kind, namespace: &name.namespace, name: &name.name }
    }

    /// A pod, or the Deployment that it comes of.
    fn pod(name: &'a ObjectName, pod: &'a PodRecord) -> Self {
        match pod.kind {
            WorkloadKind::Deployment => {
                Self { kind: Kind::Deployment, namespace: &name.namespace, name: &pod.owner }
            }
            _ => Self::new(Kind::Pod, name),
        }
    }
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            "" => write!(f, "{} {}", self.kind.name(), self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind.name(), self.name),
        }
    }
}

/// Labels of every object that may take part in the mesh, each with the object. Pods of one
/// Deployment come under its name.
fn labelled(store: &Store) -> impl Iterator<Item = (Written<'_>, &Labels)> {
    let namespaces = store.namespaces().map(|(name, record)| {
        (Written { kind: Kind::Namespace, namespace: "", name }, &*record.labels)
    });
    let services = store.services().filter_map(|(name, record)| {
        let labels = record.object.metadata.labels.as_ref()?;
        Some((Written::new(Kind::Service, name), labels))
    });
    let entries = store.service_entries().filter_map(|(name, entry)| {
        Some((Written::new(Kind::ServiceEntry, name), entry.metadata.labels.as_ref()?))
    });
    let workloads = store.workload_entries().filter_map(|(name, entry)| {
        Some((Written::new(Kind::WorkloadEntry, name), entry.metadata.labels.as_ref()?))
    });
    let pods = store.pods().map(|(name, pod)| (Written::pod(name, pod), &*pod.labels));
    namespaces.chain(services).chain(entries).chain(workloads).chain(pods)
}

/// Labels that name a waypoint which is none for them: what must pass it is refused.
fn waypoints(store: &Store) -> Vec<Finding> {
    let named = labelled(store).filter_map(|(it, labels)| {
        let namespace = if it.kind == Kind::Namespace { it.name } else { it.namespace };
        let of_namespace = store.namespace(namespace).labels;
        let naming = Naming {
            namespace,
            // What a namespace says of its Services.
            labels: if it.kind == Kind::Namespace { &NO_LABELS } else { labels },
            of_namespace: &of_namespace,
            is_workload: matches!(it.kind, Kind::Pod | Kind::Deployment | Kind::WorkloadEntry),
        };
        let waypoint = named_waypoint(labels)?;
        let (_, _, binding) = store.gateways().named(&naming)?;
        Some((it, (waypoint, binding.err()?)))
    });
    let named: BTreeMap<Written<'_>, (&str, Unbound)> = named.collect();
    let finding = |(written, (waypoint, unbound)): (&Written<'_>, &(&str, Unbound))| {
        let refused = match written.kind {
            Kind::Namespace => of_namespace(store, written.name),
            Kind::Pod | Kind::Deployment => {
                Some(format!("the pods of {}/{}", written.namespace, written.name))
            }
            _ => Some(format!("{}/{}", written.namespace, written.name)),
        };
        let (severity, effect) = match refused {
            Some(refused) => (
                Severity::Error,
                format!("every new connection of captured clients to {refused} is refused"),
            ),
            None => (Severity::Warning, "connections to its Services will be refused".to_owned()),
        };
        Finding {
            severity,
            rule: "waypoint".into(),
            object: written.to_string(),
            what: format!(
                "its label {USE_WAYPOINT} names the waypoint {waypoint}, which {}: {effect}",
                unbound.what()
            ),
            remedy: format!(
                "{}, or remove the label {USE_WAYPOINT} from {written}",
                unbound.remedy()
            ),
        }
    };
    named.iter().map(finding).collect()
}

/// The Services of a namespace for which its label speaks.
fn of_namespace(store: &Store, namespace: &str) -> Option<String> {
    let inherits = |labels: Option<&Labels>| labels.is_none_or(|it| !it.contains_key(USE_WAYPOINT));
    let services = store.services();
    let services = services.filter(|(_, it)| inherits(it.object.metadata.labels.as_ref()));
    let entries = store.service_entries();
    let entries = entries.filter(|(_, it)| inherits(it.metadata.labels.as_ref()));
    let names = services.map(|(name, _)| name).chain(entries.map(|(name, _)| name));
    let names: Vec<&str> =
        names.filter(|name| *name.namespace == *namespace).map(|name| &*name.name).collect();
    (!names.is_empty()).then(|| format!("the Services of {namespace} ({})", listed(&names)))
}

fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Policies that hold for nobody, or name clients that cannot exist.
fn policies(builder: &Builder) -> Vec<Finding> {
    let (store, mesh) = (builder.store(), builder.mesh());
    let mut found = Vec::new();
    for (name, object) in store.policies() {
        let written = Written::new(Kind::AuthorizationPolicy, name);
        let is_root = name.namespace == mesh.root_namespace;
        let scope = (!is_root).then_some(&*name.namespace);
        if policy::is_sent(object) {
            found.extend(selects_nothing(store, written, scope, object.spec.selector.as_ref()));
        }
        let missing = named_namespaces(object).into_iter().filter(|named| {
            let name = named.namespace.as_str();
            let is_known = BUILT_IN_NAMESPACES.contains(&name) || store.has_namespace(name);
            named.is_of(&mesh.trust_domain) && !is_known
        });
        found.extend(missing.map(|named| Finding {
            severity: Severity::Warning,
            rule: "unknown-namespace".into(),
            object: written.to_string(),
            what: format!(
                "{}: {} does not exist: no client matches it",
                named.field,
                named.named()
            ),
            remedy: "correct the name, or create the namespace".to_owned(),
        }));
    }
    for (name, object) in store.peer_authentications() {
        let written = Written::new(Kind::PeerAuthentication, name);
        let scope = Some(&*name.namespace);
        found.extend(selects_nothing(store, written, scope, object.spec.selector.as_ref()));
    }
    found
}

/// Routes of which something cannot be honoured, or that attach to nothing.
fn routes(builder: &Builder) -> Vec<Finding> {
    let store = builder.store();
    let edges = Edges::new(store);
    let mut found = Vec::new();
    for (name, route) in store.routes().iter() {
        let Some(routing) = builder.routing(name) else { continue };
        let object = Written::new(name.0, &name.1).to_string();
        let lost = match routing.connections.is_empty() {
            true => "is answered with 500",
            false => "is refused",
        };
        for problem in &routing.problems {
            let at = problem.at.as_str();
            let what = match problem.rule {
                Some(rule) => format!("{at}: {}: what rule {rule} matches {lost}", problem.what),
                None if problem.is_of_copies() => {
                    format!("{at}: {}: no copies are sent", problem.what)
                }
                None => format!("{at}: {}: its share {lost}", problem.what),
            };
            let (object, remedy) = (object.clone(), problem.remedy.clone());
            let severity = Severity::Error;
            found.push(Finding { severity, rule: "route".into(), object, what, remedy });
        }
        for parent in route.parents() {
            let warning = |rule: &'static str, what: String, remedy: &str| Finding {
                severity: Severity::Warning,
                rule: rule.into(),
                object: object.clone(),
                what: format!("spec.parentRefs[{}]: {what}", parent.index),
                remedy: remedy.to_owned(),
            };
            if parent.kind.has_listeners() {
                let edge = edges.of_parent(&parent);
                if let Some(Err(why)) = edge.map(|edge| edge.attach(store, route, &parent)) {
                    let what = format!("{}: nothing routes by it", why.message);
                    found.push(warning("route-parent", what, "correct the route or the Gateway"));
                }
            } else if let Err(why) = http_services::attaches(store, routing, &parent) {
                let remedy = "correct the reference, or add what it names";
                let what = format!("{why}: nothing routes by it");
                found.push(warning("route-parent", what, remedy));
            } else if let Some(displaced) = http_services::displaced(store, route, &parent) {
                let remedy = "attach the two to different ports, or write all rules as HTTPRoutes: \
                              a method of gRPC is the path `/SERVICE/METHOD`";
                found.push(warning("conflicting-routes", displaced.message(), remedy));
            }
        }
    }
    found.sort_by_key(|finding| finding.severity);
    found
}

/// What of VirtualServices, DestinationRules and Telemetry is wrong, or has no effect.
fn traffic(builder: &Builder) -> Vec<Finding> {
    let store = builder.store();
    let mut found = Vec::new();
    let mut add = |written: Written<'_>, remarks: &[Remark]| {
        found.extend(remarks.iter().map(|remark| remarked("traffic", written, remark)));
    };
    for (name, _, remarks) in store.destination_rules().iter() {
        add(Written::new(Kind::DestinationRule, name), remarks);
    }
    for (name, service) in store.virtual_services().iter() {
        let remarks = builder.virtual_service_remarks(service);
        add(Written::new(Kind::VirtualService, name), &remarks);
    }
    for (name, _) in store.telemetries() {
        add(Written::new(Kind::Telemetry, name), &builder.telemetry_remarks(name));
    }
    found.sort_by_key(|finding| finding.severity);
    found
}

/// What of the mesh configuration is wrong, or has no effect.
fn mesh_config(builder: &Builder) -> Vec<Finding> {
    let written = Written {
        kind: Kind::ConfigMap,
        namespace: &builder.mesh().root_namespace,
        name: MESH_CONFIG_MAP,
    };
    let remarks = builder.store().mesh_config_remarks().iter();
    remarks.map(|remark| remarked("mesh-config", written, remark)).collect()
}

/// CUSTOM policies whose provider cannot be asked: they deny.
fn providers(builder: &Builder) -> Vec<Finding> {
    let policies = builder.store().policies();
    let found = policies.filter_map(|(name, policy)| {
        let why = builder.provider_problem(policy)?;
        Some(Finding {
            severity: Severity::Error,
            rule: "provider".into(),
            object: Written::new(Kind::AuthorizationPolicy, name).to_string(),
            what: format!("spec.provider.name: {why}: all requests that it matches are refused"),
            remedy: format!(
                "define the provider in extensionProviders of the ConfigMap {}/{MESH_CONFIG_MAP}",
                builder.mesh().root_namespace
            ),
        })
    });
    found.collect()
}

fn remarked(rule: &'static str, written: Written<'_>, remark: &Remark) -> Finding {
    Finding {
        severity: if remark.is_wrong { Severity::Error } else { Severity::Warning },
        rule: rule.into(),
        object: written.to_string(),
        what: format!("{}: {}", remark.at.as_str(), remark.what),
        remedy: remark.remedy.clone(),
    }
}

fn selects_nothing(
    store: &Store,
    written: Written<'_>,
    scope: Option<&str>,
    selected: Option<&WorkloadSelector>,
) -> Option<Finding> {
    let labels = selector(selected).filter(|labels| !store.has_member(scope, labels))?;
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let place = scope.map_or("any namespace".to_owned(), |it| format!("namespace {it}"));
    Some(Finding {
        severity: Severity::Warning,
        rule: "policy-selects-nothing".into(),
        object: written.to_string(),
        what: format!("no workload of {place} has {}: it holds for nobody", labels.join(" and ")),
        remedy: "make its selector and the pods' labels agree".to_owned(),
    })
}

/// Label keys that are a letter off.
fn slips(store: &Store) -> Vec<Finding> {
    // The same keys come again and again.
    let mut known: HashMap<&str, Option<&'static str>> = HashMap::new();
    let mut slips = BTreeSet::new();
    for (written, labels) in labelled(store) {
        for key in labels.keys() {
            if let Some(meant) = *known.entry(key).or_insert_with(|| meant_label(key)) {
                slips.insert((written, key.as_str(), meant));
            }
        }
    }
    let finding = |(written, key, meant): (Written<'_>, &str, &str)| Finding {
        severity: Severity::Warning,
        rule: "misspelt-label".into(),
        object: written.to_string(),
        what: format!("its label {key} is no label that is known, and has no effect"),
        remedy: format!("write {meant}, if that is meant"),
    };
    slips.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use ambit_manifest::stored;
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};

    fn namespace(name: &str, labels: &Value) -> (Kind, Value) {
        (Kind::Namespace, json!({"metadata": {"name": name, "labels": labels}}))
    }

    fn of(kind: Kind, name: &str, labels: &Value, spec: &Value) -> (Kind, Value) {
        let metadata = json!({"namespace": "app", "name": name, "uid": name, "labels": labels});
        let (version, word) = (kind.api_versions()[0], kind.name());
        (kind, json!({"apiVersion": version, "kind": word, "metadata": metadata, "spec": spec}))
    }

    /// What is found among these objects: severity, rule, object, and a part of the sentence.
    fn check(objects: &[(Kind, Value)], expected: &[(Severity, &str, &str, &str)]) {
        let mut builder = Builder::new(Mesh::sample(), Vips::default());
        let put = |(kind, object): &(Kind, Value)| {
            Event::Put(stored(*kind, object.to_string().as_bytes()).expect("valid"))
        };
        builder.apply(objects.iter().map(put));
        let found = findings(&builder);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (finding, (severity, rule, object, part)) in found.iter().zip(expected) {
            assert_eq!((finding.severity, &*finding.rule), (*severity, *rule), "{finding:?}");
            assert_eq!(finding.object, *object);
            assert!(finding.what.contains(part), "{} lacks {part}", finding.what);
            assert!(!finding.remedy.is_empty());
        }
    }

    #[test]
    fn a_gateway_that_is_not_programmed_says_why() {
        let condition = |kind: &str, status: &str| {
            let message = format!("no {kind}");
            json!({"type": kind, "status": status, "reason": "R", "message": message})
        };
        let gateway = |accepted: &str, programmed: &str| {
            let listener = json!({"name": "mesh", "protocol": "HBONE", "port": 15008});
            let spec = json!({"gatewayClassName": "ambit-waypoint", "listeners": [listener]});
            let (kind, mut object) = of(Kind::Gateway, "way", &json!({}), &spec);
            let conditions = [condition("Accepted", accepted), condition("Programmed", programmed)];
            object["status"] = json!({ "conditions": conditions });
            (kind, object)
        };
        check(&[gateway("True", "True")], &[]);
        check(
            &[gateway("True", "False")],
            &[(Severity::Warning, "gateway", "Gateway app/way", "no Programmed")],
        );
        check(
            &[gateway("False", "False")],
            &[(Severity::Error, "gateway", "Gateway app/way", "no Accepted")],
        );
    }

    #[test]
    fn a_waypoint_that_does_not_exist_is_an_error_of_the_object_that_names_it() {
        use Severity::{Error, Warning};
        let waypoint = json!({"istio.io/use-waypoint": "wp"});
        let ports = json!({"ports": [{"port": 80}]});
        let web = of(Kind::Service, "web", &json!({}), &ports);
        let out = of(Kind::Service, "out", &json!({"istio.io/use-waypoint": "none"}), &ports);
        let whole = namespace("app", &waypoint);
        let told = (Error, "waypoint", "Namespace app", "to the Services of app (web) is refused");
        check(&[whole.clone(), web, out], &[told]);
        check(&[whole], &[(Warning, "waypoint", "Namespace app", "will be refused")]);
        let one = of(Kind::Service, "web", &waypoint, &ports);
        check(&[one], &[(Error, "waypoint", "Service app/web", "clients to app/web is refused")]);
        let mut pods = [1, 2]
            .map(|n| of(Kind::Pod, &format!("web-{n}"), &waypoint, &json!({"containers": []})));
        for (_, pod) in &mut pods {
            let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web",
                "uid": "d", "controller": true});
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        check(&pods, &[(Error, "waypoint", "Deployment app/web", "the pods of app/web")]);
        check(&[namespace("app", &json!({"istio.io/use-waypoint": "none"}))], &[]);
    }

    #[test]
    fn policies_without_effect_are_warnings() {
        use Severity::Warning;
        let app = namespace("app", &json!({}));
        let web = of(Kind::Pod, "web", &json!({"app": "web"}), &json!({"containers": []}));
        let selecting = |value: &str| {
            let spec = json!({"selector": {"matchLabels": {"app": value}}});
            [
                of(Kind::AuthorizationPolicy, "p", &json!({}), &spec),
                of(Kind::PeerAuthentication, "m", &json!({}), &spec),
            ]
        };
        let [policy, modes] = selecting("web");
        check(&[app.clone(), web.clone(), policy, modes], &[]);
        let [policy, modes] = selecting("wep");
        let part = "no workload of namespace app has app=wep";
        let expected = [
            (Warning, "policy-selects-nothing", "AuthorizationPolicy app/p", part),
            (Warning, "policy-selects-nothing", "PeerAuthentication app/m", part),
        ];
        check(&[app.clone(), web, policy, modes], &expected);
        let from = json!({"principals": ["cluster.local/ns/app/sa/a", "cluster.local/ns/ap/sa/a"]});
        let spec = json!({"rules": [{"from": [{"source": from}]}]});
        let policy = of(Kind::AuthorizationPolicy, "p", &json!({}), &spec);
        let part = "spec.rules[0].from[0].source.principals[1]: the namespace `ap` of";
        let expected = (Warning, "unknown-namespace", "AuthorizationPolicy app/p", part);
        check(&[app, policy], &[expected]);
    }

    #[test]
    fn what_of_a_route_cannot_be_honoured_is_found() {
        use Severity::{Error, Warning};
        let web = of(Kind::Service, "web", &json!({}), &json!({"ports": [{"port": 80}]}));
        let spec = json!({
            "parentRefs": [{"group": "", "kind": "Service", "name": "web", "port": 81}],
            "rules": [{"backendRefs": [{"name": "gone", "port": 80}]},
                {"filters": [{"type": "Newer"}]}],
        });
        let route = of(Kind::HttpRoute, "r", &json!({}), &spec);
        let object = "HTTPRoute app/r";
        check(
            &[web, route],
            &[
                (
                    Error,
                    "route",
                    object,
                    "`app/gone` does not exist: its share is answered with 500",
                ),
                (Error, "route", object, "what rule 1 matches is answered with 500"),
                (Warning, "route-parent", object, "`app/web` has no port 81: nothing routes by it"),
            ],
        );
    }

    #[test]
    fn an_http_route_in_whose_place_a_grpc_route_holds_is_found() {
        let web = of(Kind::Service, "web", &json!({}), &json!({"ports": [{"port": 80}]}));
        let spec = json!({"parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]});
        let http = of(Kind::HttpRoute, "h", &json!({}), &spec);
        let grpc = of(Kind::GrpcRoute, "g", &json!({}), &spec);
        let part = "spec.parentRefs[0]: only GRPCRoutes hold at port 80 (GRPCRoute app/g)";
        let expected = [
            (Severity::Warning, "route-waypoint", "GRPCRoute app/g", "nobody routes by it"),
            (Severity::Warning, "conflicting-routes", "HTTPRoute app/h", part),
        ];
        check(&[web, http, grpc], &expected);
    }

    #[test]
    fn labels_that_are_a_letter_off_are_warnings_and_counted() {
        use Severity::Warning;
        let label = json!({"istio.io/dataplane-mod": "ambient"});
        let part = "its label istio.io/dataplane-mod is";
        check(&[namespace("app", &label)], &[(Warning, "misspelt-label", "Namespace app", part)]);
        let many: Vec<_> = (10..40).map(|n| namespace(&format!("ns-{n}"), &label)).collect();
        let names: Vec<String> = (10..30).map(|n| format!("Namespace ns-{n}")).collect();
        let mut expected: Vec<(Severity, &str, &str, &str)> =
            names.iter().map(|name| (Warning, "misspelt-label", name.as_str(), part)).collect();
        expected.push((Warning, "misspelt-label", "others", "10 more"));
        check(&many, &expected);
    }
}
