//! Patches of the objects that a waypoint is made of, as a ConfigMap says them.
//!
//! Its keys are Istio's, each a strategic merge patch. What names an object, what finds the pods,
//! and what makes a pod its Gateway's own stays as it is: a patch that changes it is refused, and
//! with it the whole ConfigMap. Nothing here reads a ConfigMap.

use std::collections::BTreeMap;

use ambit_words::labels::{DATAPLANE_MODE, GATEWAY_MANAGED, GATEWAY_NAME};
use ambit_words::names::ISTIO_PROXY;
use ambit_words::variables::waypoint_problem;
use serde_json::{Map, Value, json};

use super::{Common, Place, STATUS_PORT, merge};
use crate::Kind;
use crate::document;
use crate::gateway::{Gateway, ParametersRef, Position};

/// Longest patch that is read.
const PATCH_SIZE_MAX_BYTES: usize = 64 << 10;
/// The annotation by which an autoscaler and a number of replicas are kept apart.
const REPLICAS: &str = "/spec/replicas";

/// An object that is made for a waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What its pods run as.
    ServiceAccount,
    /// Its address.
    Service,
    /// Its pods.
    Deployment,
    /// How many of its pods may go at a time.
    PodDisruptionBudget,
    /// How many pods it has; there is one only where it is patched.
    HorizontalPodAutoscaler,
}

impl Part {
    /// All of them, in the order in which they are applied.
    const ALL: [Self; 5] = [
        Self::ServiceAccount,
        Self::Service,
        Self::Deployment,
        Self::PodDisruptionBudget,
        Self::HorizontalPodAutoscaler,
    ];

    /// Its key in a ConfigMap.
    fn key(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceAccount",
            Self::Service => "service",
            Self::Deployment => "deployment",
            Self::PodDisruptionBudget => "podDisruptionBudget",
            Self::HorizontalPodAutoscaler => "horizontalPodAutoscaler",
        }
    }

    /// What a patch must not change.
    fn fixed(self) -> Vec<String> {
        let mut fixed: Vec<String> =
            ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"]
                .into_iter()
                .chain(["/metadata/ownerReferences"])
                .map(str::to_owned)
                .collect();
        fixed.extend([GATEWAY_NAME, GATEWAY_MANAGED].map(|key| label("/metadata", key)));
        let own: &[&str] = match self {
            Self::ServiceAccount => &[],
            Self::Service | Self::PodDisruptionBudget => &["/spec/selector"],
            Self::Deployment => &[
                "/spec/selector",
                "/spec/template/spec/serviceAccountName",
                "/spec/template/spec/hostNetwork",
            ],
            Self::HorizontalPodAutoscaler => &["/spec/scaleTargetRef"],
        };
        fixed.extend(own.iter().map(|it| (*it).to_owned()));
        if self == Self::Deployment {
            let keys = [GATEWAY_NAME, GATEWAY_MANAGED, DATAPLANE_MODE];
            fixed.extend(keys.map(|key| label("/spec/template/metadata", key)));
        }
        fixed
    }
}

/// The pointer to a label.
fn label(metadata: &str, key: &str) -> String {
    format!("{metadata}/labels/{}", key.replace('/', "~1"))
}

/// The patches of one ConfigMap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Patches {
    /// The ConfigMap, for people.
    source: String,
    of: BTreeMap<Part, Map<String, Value>>,
}

impl Patches {
    /// Reads the values of the ConfigMap that `source` describes; an error says what of it is
    /// wrong.
    pub fn read(source: String, data: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut of = BTreeMap::new();
        for (key, text) in data {
            let Some(part) = Part::ALL.into_iter().find(|part| part.key() == key) else {
                let known = Part::ALL.map(Part::key).join(", ");
                return Err(format!("{source}: the key {key} is none of {known}"));
            };
            let patch = patch(text).map_err(|what| format!("{source}: {key}: {what}"))?;
            of.insert(part, patch);
        }
        Ok(Self { source, of })
    }
}

fn patch(text: &str) -> Result<Map<String, Value>, String> {
    if text.len() > PATCH_SIZE_MAX_BYTES {
        return Err(format!("it is longer than {PATCH_SIZE_MAX_BYTES} bytes"));
    }
    let parsed = document::parse_one(text);
    match parsed.map_err(|error| format!("line {}: {}", error.line, error.what))? {
        Some(Value::Object(patch)) => Ok(patch),
        None | Some(Value::Null) => Ok(Map::new()),
        Some(_) => Err("it is no map of fields".to_owned()),
    }
}

/// The name of the ConfigMap with a Gateway's patches, if it names one; an error says why what it
/// names is none.
pub fn config_map(gateway: &Gateway) -> Option<Result<&str, String>> {
    let parameters = gateway.spec.infrastructure.as_ref()?.parameters_ref.as_ref()?;
    let ParametersRef { group, kind, name } = parameters;
    Some(match (group.as_str(), kind.as_str()) {
        ("", "ConfigMap") => Ok(name),
        _ => Err(format!(
            "infrastructure.parametersRef names {kind} {name} of group {group:?}; name a ConfigMap \
             of group \"\""
        )),
    })
}

/// The objects of a Gateway, in the order in which they are applied, after these
/// patches; an error names the patch that cannot be.
pub fn objects(
    gateway: &Gateway,
    common: &Common<'_>,
    patches: &[Patches],
) -> Result<Vec<Value>, String> {
    let mut made = Vec::new();
    for part in Part::ALL {
        let patched = patches.iter().filter_map(|it| Some((&it.source, it.of.get(&part)?)));
        let patched: Vec<_> = patched.collect();
        let is_of_machine = common.place == Place::Machine;
        let Some(before) = unpatched(gateway, common, part, !patched.is_empty()) else {
            match patched.first() {
                Some((source, _)) if is_of_machine => {
                    let key = part.key();
                    return Err(format!("{source}: a machine has no {key}; remove the key"));
                }
                _ => continue,
            }
        };
        let mut object = before.clone();
        for (source, patch) in patched {
            let fields = object.as_object_mut().expect("an object is a map");
            let wrong = |what: String| format!("{source}: {}{what}", part.key());
            merge::merge(fields, patch).map_err(wrong)?;
            keeps(part, &before, &object).map_err(wrong)?;
            known_variables(&object).map_err(wrong)?;
        }
        made.push(object);
    }
    let of = |kind: &str| made.iter().find(|it| it["kind"] == kind);
    let scales = of("Deployment").is_some_and(|it| it.pointer(REPLICAS).is_some());
    if scales && of("HorizontalPodAutoscaler").is_some() {
        return Err(
            "both a number of replicas and a horizontalPodAutoscaler are asked for; remove \
                    one, or write replicas: null in the later patch"
                .to_owned(),
        );
    }
    Ok(made)
}

/// Whether a patch has left alone what is not its to change.
fn keeps(part: Part, before: &Value, after: &Value) -> Result<(), String> {
    let changed = part.fixed().into_iter().find(|it| before.pointer(it) != after.pointer(it));
    if let Some(pointer) = changed {
        let field = pointer.replace('/', ".").replace("~1", "/");
        return Err(format!(
            "{field} must stay as it is: by it the waypoint is found; use the annotations \
             gateway.istio.io/name-override and gateway.istio.io/service-account for names"
        ));
    }
    if part != Part::Service {
        return Ok(());
    }
    let ports = |of: &Value| -> Vec<(Value, Value)> {
        let all = of.pointer("/spec/ports").and_then(Value::as_array);
        let all = all.into_iter().flatten().filter(|it| it["name"] != STATUS_PORT);
        all.map(|it| (it["port"].clone(), it["targetPort"].clone())).collect()
    };
    let left = ports(after);
    match ports(before).into_iter().find(|it| !left.contains(it)) {
        Some((port, _)) => Err(format!(".spec.ports must keep port {port}")),
        None => Ok(()),
    }
}

/// Whether the waypoint knows all variables that it is given: one that is misspelt would have no
/// effect.
fn known_variables(object: &Value) -> Result<(), String> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let containers = list(object.pointer("/spec/template/spec/containers"));
    let own = containers.iter().filter(|it| it["name"] == ISTIO_PROXY);
    let variables = own.flat_map(|it| list(it.get("env")));
    let problem = variables.into_iter().find_map(|it| waypoint_problem(it["name"].as_str()?));
    problem.map_or(Ok(()), |what| Err(format!(".spec.template.spec.containers.env: {what}")))
}

fn unpatched(
    gateway: &Gateway,
    common: &Common<'_>,
    part: Part,
    is_patched: bool,
) -> Option<Value> {
    let of_kind = |wanted: Kind| {
        let made = super::objects(gateway, common).into_iter();
        made.into_iter().find(|(kind, _)| *kind == wanted).map(|(_, object)| object)
    };
    match part {
        Part::ServiceAccount => of_kind(Kind::ServiceAccount),
        Part::Service => of_kind(Kind::Service),
        Part::Deployment => of_kind(Kind::Deployment),
        _ if common.place == Place::Machine => None,
        Part::PodDisruptionBudget => Some(super::disruption_budget(gateway, common.position)),
        Part::HorizontalPodAutoscaler => is_patched.then(|| autoscaler(gateway, common.position)),
    }
}

/// An autoscaler that says nothing yet but what it scales.
fn autoscaler(gateway: &Gateway, position: Position) -> Value {
    let name = super::names(gateway, position).objects;
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": super::metadata(gateway, position, &name),
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway() -> Gateway {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "way", "namespace": "shop", "uid": "u1"},
            "spec": {"gatewayClassName": "istio-waypoint",
                "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]},
        });
        serde_json::from_value(gateway).expect("a Gateway")
    }

    fn common(place: Place<'_>) -> Common<'_> {
        Common {
            position: Position::Waypoint,
            sets: &[],
            image: "i",
            place,
            control: "https://10.0.0.1:15012",
            control_host: None,
            trust_domain: "cluster.local",
            cluster_id: "Kubernetes",
        }
    }

    fn read(data: &[(&str, &str)]) -> Result<Patches, String> {
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        Patches::read("ConfigMap shop/p".to_owned(), &data.collect())
    }

    fn built(place: Place<'_>, all: &[&[(&str, &str)]]) -> Result<Vec<Value>, String> {
        let patches = all.iter().map(|data| read(data)).collect::<Result<Vec<_>, _>>()?;
        objects(&gateway(), &common(place), &patches)
    }

    const CLUSTER: Place<'static> = Place::Cluster { pull_policy: None };

    fn of<'a>(made: &'a [Value], kind: &str) -> &'a Value {
        made.iter().find(|it| it["kind"] == kind).unwrap_or(&Value::Null)
    }

    #[test]
    fn a_patch_changes_its_object_and_a_later_one_comes_on_top() {
        let first: &[_] = &[("deployment", "spec: {replicas: 2, minReadySeconds: 5}")];
        let second: &[_] = &[
            (
                "deployment",
                "spec:\n  replicas: 3\n  template:\n    spec:\n      containers:\n      \
              - name: istio-proxy\n        resources: {requests: {cpu: '1'}}\n",
            ),
            ("service", "spec: {type: LoadBalancer}"),
        ];
        let made = built(CLUSTER, &[first, second]).expect("right");
        let deployment = of(&made, "Deployment");
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["spec"]["minReadySeconds"], 5);
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers.as_array().expect("a list").len(), 1);
        assert_eq!(containers[0]["resources"]["requests"], json!({"cpu": "1", "memory": "128Mi"}));
        assert_eq!(containers[0]["image"], "i");
        assert_eq!(of(&made, "Service")["spec"]["type"], "LoadBalancer");
        assert!(of(&made, "HorizontalPodAutoscaler").is_null(), "nobody asked for it");
        assert_eq!(of(&made, "PodDisruptionBudget")["spec"]["maxUnavailable"], 1);
    }

    #[test]
    fn an_autoscaler_is_there_where_it_is_patched() {
        let patch = "spec: {minReplicas: 2, maxReplicas: 5}";
        let scaled: &[_] = &[("horizontalPodAutoscaler", patch)];
        let made = built(CLUSTER, &[scaled]).expect("right");
        let autoscaler = of(&made, "HorizontalPodAutoscaler");
        assert_eq!(autoscaler["spec"]["maxReplicas"], 5);
        assert_eq!(autoscaler["spec"]["scaleTargetRef"]["name"], "way");
        let replicas: &[_] = &[("deployment", "spec: {replicas: 2}")];
        let both = built(CLUSTER, &[replicas, scaled]).expect_err("they would fight");
        assert!(both.contains("replicas: null"), "{both}");
        let without: &[_] =
            &[("deployment", "spec: {replicas: null}"), ("horizontalPodAutoscaler", patch)];
        built(CLUSTER, &[replicas, without]).expect("one of them");
        let machine = built(Place::Machine, &[scaled]).expect_err("not there");
        assert!(machine.contains("horizontalPodAutoscaler"), "{machine}");
    }

    #[test]
    fn what_finds_the_waypoint_is_not_to_be_patched() {
        for (key, text, part) in [
            ("deployment", "metadata: {name: other}", ".metadata.name must stay"),
            ("service", "metadata: {namespace: other}", ".metadata.namespace"),
            ("service", "kind: Pod", ".kind"),
            ("deployment", "metadata: {ownerReferences: [{uid: x}]}", ".metadata.ownerReferences"),
            ("deployment", "spec: {selector: {matchLabels: {a: b}}}", ".spec.selector"),
            ("deployment", "spec: {template: {spec: {serviceAccountName: root}}}", "AccountName"),
            ("deployment", "spec: {template: {spec: {hostNetwork: true}}}", "hostNetwork"),
            (
                "deployment",
                "spec: {template: {metadata: {labels: {istio.io/dataplane-mode: ambient}}}}",
                "istio.io/dataplane-mode must stay",
            ),
            ("service", "spec: {ports: [{port: 15008, $patch: delete}]}", "must keep port 15008"),
            ("horizontalPodAutoscaler", "spec: {scaleTargetRef: {name: web}}", "scaleTargetRef"),
        ] {
            let error = built(CLUSTER, &[&[(key, text)]]).expect_err(text);
            assert!(error.starts_with(&format!("ConfigMap shop/p: {key}")), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_service_at_the_edge_keeps_the_ports_of_its_listeners() {
        let mut gateway = gateway();
        let listeners = json!([{"name": "web", "protocol": "HTTP", "port": 80}]);
        gateway.spec.listeners = serde_json::from_value(listeners).expect("listeners");
        let common = Common { position: Position::Edge, ..common(CLUSTER) };
        let patched = |text: &str| objects(&gateway, &common, &[read(&[("service", text)])?]);
        let more = "spec: {ports: [{port: 8080, name: more, targetPort: 80}]}";
        patched(more).expect("a port more");
        let error = patched("spec: {ports: [{port: 80, $patch: delete}]}").expect_err("it is gone");
        assert!(error.contains(".spec.ports must keep port 80"), "{error}");
    }

    #[test]
    fn a_variable_that_a_waypoint_does_not_know_is_refused() {
        let with = |name: &str| {
            let text = format!(
                "spec: {{template: {{spec: {{containers: [{{name: istio-proxy, env: [{{name: \
                 {name}, value: none}}]}}]}}}}}}"
            );
            built(CLUSTER, &[&[("deployment", &text)]])
        };
        let error = with("AMBIT_PATH_NORMALISATION").expect_err("it is misspelt");
        assert!(error.starts_with("ConfigMap shop/p: deployment.spec.template"), "{error}");
        assert!(error.contains("did you mean AMBIT_PATH_NORMALIZATION?"), "{error}");
        for name in ["AMBIT_PATH_NORMALIZATION", "TZ"] {
            with(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn a_config_map_that_cannot_be_read_says_why() {
        for (key, text, part) in [
            ("deploymnet", "{}", "the key deploymnet is none of serviceAccount, service"),
            ("deployment", "spec: [", "deployment: line "),
            ("deployment", "- a", "no map of fields"),
            ("deployment", "a: 1\n---\nb: 2", "one document"),
        ] {
            let error = read(&[(key, text)]).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
        let long = " ".repeat(PATCH_SIZE_MAX_BYTES + 1);
        assert!(read(&[("service", &long)]).expect_err("long").contains("longer than"));
        assert_eq!(read(&[("service", "")]).expect("nothing").of[&Part::Service], Map::new());
    }

    #[test]
    fn parameters_are_a_config_map() {
        let named = |group: &str, kind: &str| {
            let mut gateway = gateway();
            let reference = json!({"parametersRef": {"group": group, "kind": kind, "name": "p"}});
            gateway.spec.infrastructure = Some(serde_json::from_value(reference).expect("right"));
            config_map(&gateway).map(|it| it.map(str::to_owned))
        };
        assert_eq!(named("", "ConfigMap"), Some(Ok("p".to_owned())));
        assert!(named("v1", "Secret").expect("there is one").is_err());
        assert_eq!(config_map(&gateway()), None);
    }
}
