//! Pods as a scheduler sees them: what each asks for, and where it may go.
//!
//! A [`PodGroup`] is a number of pods that are alike. It is read from a pod's spec by the API
//! server's and the scheduler's rules: a limit without a request is the request, containers run
//! beside one another, init containers one after the other. Nothing here may place a pod.

use std::collections::BTreeMap;

use ambit_manifest::selector::matches;
use ambit_words::labels::{HOSTNAME, ZONE};
use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::quantity::{AmountError, Resources, parse_cpu, parse_memory};

/// What the scheduler's scores take a container for that requests nothing.
const SCORED_WITHOUT_REQUEST: Resources = Resources::of_mebibytes(100, 200);

/// Pods that are alike.
#[derive(Clone, Debug)]
pub struct PodGroup {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// How many; on each node, for those that run on every one.
    pub(crate) count: u32,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) requests: Needs,
    /// The same as the scheduler's scores see it.
    pub(crate) scored: Needs,
    /// How much of the requests is the mesh's.
    pub(crate) mesh: Resources,
    pub(crate) rules: Rules,
    pub(crate) is_on_node_network: bool,
    pub(crate) part: Part,
}

/// Whose pods they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Application,
    Mesh,
}

/// What a pod needs over its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Once it runs.
    pub(crate) running: Resources,
    /// At the hungriest of its init containers.
    pub(crate) starting: Resources,
}

/// Where a pod may go.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rules {
    pub(crate) node_name: Option<String>,
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Any of these; none means anywhere.
    pub(crate) node_terms: Vec<NodeSelectorTerm>,
    pub(crate) apart: Vec<PodTerm>,
    pub(crate) together: Vec<PodTerm>,
    /// Positive weights attract, negative ones repel.
    pub(crate) preferences: Vec<(i64, PodTerm)>,
}

/// Other pods, and how near is near.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodTerm {
    selector: LabelSelector,
    namespaces: Namespaces,
    pub(crate) topology: Topology,
}

#[derive(Clone, Debug, PartialEq)]
enum Namespaces {
    All,
    Listed(Vec<String>),
}

/// What "near" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Node,
    Zone,
    /// A label that planned nodes do not have.
    Other,
}

/// Something about a field of a pod's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldNote {
    /// The path below the spec.
    pub field: String,
    /// What is wrong or doubtful.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// A group, and what its reader should know.
#[derive(Debug)]
pub struct ReadPods {
    /// The pods.
    pub group: PodGroup,
    /// Doubts.
    pub warnings: Vec<FieldNote>,
}

impl Needs {
    pub(crate) fn running(running: Resources) -> Self {
        Self { running, starting: Resources::default() }
    }

    /// What the scheduler reserves.
    pub(crate) fn total(self) -> Resources {
        self.running.max(self.starting)
    }
}

impl PodGroup {
    /// Pods that only ask for this much.
    pub fn plain(namespace: &str, name: &str, count: u32, requests: Resources) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            count,
            labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
            requests: Needs::running(requests),
            scored: Needs::running(requests),
            mesh: Resources::default(),
            rules: Rules::default(),
            is_on_node_network: false,
            part: Part::Application,
        }
    }

    /// Pods of the mesh itself.
    pub(crate) fn of_mesh(namespace: &str, name: &str, count: u32, requests: Resources) -> Self {
        Self { mesh: requests, part: Part::Mesh, ..Self::plain(namespace, name, count, requests) }
    }

    /// Reads `count` pods from their spec.
    pub fn read(
        namespace: &str,
        name: &str,
        count: u32,
        labels: &BTreeMap<String, String>,
        spec: &PodSpec,
    ) -> Result<ReadPods, FieldNote> {
        let requests = needs(spec, Resources::default())?;
        let scored = needs(spec, SCORED_WITHOUT_REQUEST)?;
        let mut warnings = Vec::new();
        missing_requests(requests, &mut warnings);
        let rules = rules(namespace, spec, &mut warnings);
        let group = Self {
            labels: labels.clone(),
            requests,
            scored,
            rules,
            is_on_node_network: spec.host_network == Some(true),
            ..Self::plain(namespace, name, count, Resources::default())
        };
        Ok(ReadPods { group, warnings })
    }

    /// The same pods in another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        let mut copy = self.clone();
        for term in copy.rules.pod_terms_mut() {
            if let Namespaces::Listed(listed) = &mut term.namespaces {
                let own = listed.iter_mut().filter(|it| **it == self.namespace);
                own.for_each(|it| namespace.clone_into(it));
            }
        }
        Self { namespace: namespace.to_owned(), ..copy }
    }

    /// Whether the pods want nodes of certain names.
    pub fn names_nodes(&self) -> bool {
        !self.rules.node_names().is_empty()
    }

    /// The same pods, free to go to a node of any name.
    #[must_use]
    pub fn on_any_node(mut self) -> Self {
        self.rules.node_name = None;
        self.rules.node_selector.remove(HOSTNAME);
        for term in &mut self.rules.node_terms {
            term.match_fields = None;
            if let Some(wanted) = &mut term.match_expressions {
                wanted.retain(|it| it.key != HOSTNAME);
            }
        }
        let says_something = |term: &NodeSelectorTerm| {
            term.match_expressions.as_ref().is_some_and(|wanted| !wanted.is_empty())
        };
        // One alternative that asks for nothing any more makes the others idle.
        if !self.rules.node_terms.iter().all(says_something) {
            self.rules.node_terms.clear();
        }
        self
    }

    /// The same pods with a proxy in each.
    pub(crate) fn with_sidecar(mut self, sidecar: Resources) -> Self {
        let before = self.requests.total();
        self.requests.running = self.requests.running.plus(sidecar);
        self.scored.running = self.scored.running.plus(sidecar);
        self.mesh = self.mesh.plus(self.requests.total().less(before));
        self
    }

    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn missing_requests(requests: Needs, warnings: &mut Vec<FieldNote>) {
    let total = requests.total();
    let missing = match (total.cpu_millicores, total.memory_bytes) {
        (0, 0) => "neither CPU nor memory is requested: both are counted as 0",
        (0, _) => "no CPU is requested: it is counted as 0",
        (_, 0) => "no memory is requested: it is counted as 0",
        _ => return,
    };
    warnings.push(FieldNote {
        field: "containers[0].resources".to_owned(),
        what: missing.to_owned(),
        remedy: "add `resources.requests`".to_owned(),
    });
}

/// Adds up what a spec asks for; `default` stands for what a container does not ask for.
fn needs(spec: &PodSpec, default: Resources) -> Result<Needs, FieldNote> {
    let mut running = Resources::default();
    for (index, container) in spec.containers.iter().enumerate() {
        running = running.plus(container_needs(container, "containers", index, default)?);
    }
    let (mut beside, mut starting) = (Resources::default(), Resources::default());
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let needs = container_needs(container, "initContainers", index, default)?;
        // A restartable init container is a sidecar: it stays beside all that come after it.
        if container.restart_policy.as_deref() == Some("Always") {
            beside = beside.plus(needs);
            starting = starting.max(beside);
        } else {
            starting = starting.max(beside.plus(needs));
        }
    }
    running = running.plus(beside);
    let of_pod = amounts(spec.resources.as_ref(), "resources")?;
    // What the pod as a whole requests counts instead of its containers'.
    let whole = |it: Resources| Resources {
        cpu_millicores: of_pod.0.unwrap_or(it.cpu_millicores),
        memory_bytes: of_pod.1.unwrap_or(it.memory_bytes),
    };
    let (cpu, memory) = quantities(spec.overhead.as_ref(), "overhead")?;
    let overhead = Resources::new(cpu.unwrap_or(0), memory.unwrap_or(0));
    Ok(Needs { running: whole(running).plus(overhead), starting: whole(starting).plus(overhead) })
}

fn container_needs(
    container: &Container,
    list: &str,
    index: usize,
    default: Resources,
) -> Result<Resources, FieldNote> {
    let field = format!("{list}[{index}].resources");
    let (cpu, memory) = amounts(container.resources.as_ref(), &field)?;
    Ok(Resources {
        cpu_millicores: cpu.unwrap_or(default.cpu_millicores),
        memory_bytes: memory.unwrap_or(default.memory_bytes),
    })
}

type Amounts = (Option<u64>, Option<u64>);

/// Requests, and limits where there is no request, as the API server fills them in.
fn amounts(resources: Option<&ResourceRequirements>, field: &str) -> Result<Amounts, FieldNote> {
    let Some(resources) = resources else { return Ok((None, None)) };
    let requests = quantities(resources.requests.as_ref(), &format!("{field}.requests"))?;
    let limits = quantities(resources.limits.as_ref(), &format!("{field}.limits"))?;
    Ok((requests.0.or(limits.0), requests.1.or(limits.1)))
}

fn quantities(map: Option<&BTreeMap<String, Quantity>>, field: &str) -> Result<Amounts, FieldNote> {
    let read = |name: &str, parse: fn(&str) -> Result<u64, AmountError>| {
        let Some(Quantity(text)) = map.and_then(|map| map.get(name)) else { return Ok(None) };
        parse(text).map(Some).map_err(|error| {
            let why = error.to_string();
            let (what, remedy) = why.split_once("; ").unwrap_or((&why, "correct it"));
            FieldNote {
                field: format!("{field}.{name}"),
                what: format!("`{text}` {what}"),
                remedy: remedy.to_owned(),
            }
        })
    };
    Ok((read("cpu", parse_cpu)?, read("memory", parse_memory)?))
}

fn rules(namespace: &str, spec: &PodSpec, warnings: &mut Vec<FieldNote>) -> Rules {
    let none = Affinity::default();
    let affinity = spec.affinity.as_ref().unwrap_or(&none);
    let mut reader = TermReader { namespace, warnings };
    let (apart, repelled) =
        affinity.pod_anti_affinity.as_ref().map_or_else(Default::default, |it| {
            let required = &it.required_during_scheduling_ignored_during_execution;
            let preferred = &it.preferred_during_scheduling_ignored_during_execution;
            let weighted = preferred.iter().flatten();
            let weighted = weighted.map(|it| (-i64::from(it.weight), &it.pod_affinity_term));
            reader.read("podAntiAffinity", required.iter().flatten(), weighted)
        });
    let (together, attracted) =
        affinity.pod_affinity.as_ref().map_or_else(Default::default, |it| {
            let required = &it.required_during_scheduling_ignored_during_execution;
            let preferred = &it.preferred_during_scheduling_ignored_during_execution;
            let weighted = preferred.iter().flatten();
            let weighted = weighted.map(|it| (i64::from(it.weight), &it.pod_affinity_term));
            reader.read("podAffinity", required.iter().flatten(), weighted)
        });
    let node = affinity.node_affinity.as_ref();
    let required =
        node.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let spread = spec.topology_spread_constraints.iter().flatten();
    if spread.into_iter().any(|it| it.when_unsatisfiable == "DoNotSchedule") {
        warnings.push(FieldNote {
            field: "topologySpreadConstraints".to_owned(),
            what: "spreading by DoNotSchedule is not modelled: placed may need more nodes"
                .to_owned(),
            remedy: "write it as podAntiAffinity to plan with it".to_owned(),
        });
    }
    Rules {
        node_name: spec.node_name.clone(),
        node_selector: spec.node_selector.clone().unwrap_or_default(),
        node_terms: required.map(|it| it.node_selector_terms.clone()).unwrap_or_default(),
        apart,
        together,
        preferences: repelled.into_iter().chain(attracted).collect(),
    }
}

struct TermReader<'a> {
    namespace: &'a str,
    warnings: &'a mut Vec<FieldNote>,
}

impl TermReader<'_> {
    fn read<'t>(
        &mut self,
        field: &str,
        required: impl Iterator<Item = &'t PodAffinityTerm>,
        preferred: impl Iterator<Item = (i64, &'t PodAffinityTerm)>,
    ) -> (Vec<PodTerm>, Vec<(i64, PodTerm)>) {
        let required = required.map(|term| self.term(field, term)).collect();
        let preferred = preferred.map(|(weight, term)| (weight, self.term(field, term))).collect();
        (required, preferred)
    }

    fn term(&mut self, field: &str, term: &PodAffinityTerm) -> PodTerm {
        let topology = match term.topology_key.as_str() {
            HOSTNAME => Topology::Node,
            ZONE => Topology::Zone,
            _ => Topology::Other,
        };
        let listed = term.namespaces.clone().unwrap_or_default();
        let everywhere = term.namespace_selector.as_ref().map(|selector| {
            let labels = selector.match_labels.iter().flatten().count();
            labels + selector.match_expressions.iter().flatten().count() == 0
        });
        if everywhere == Some(false) {
            self.warnings.push(FieldNote {
                field: format!("affinity.{field}"),
                what: "namespaces are not selected by label here: only its own is looked at"
                    .to_owned(),
                remedy: "list them below `namespaces`".to_owned(),
            });
        }
        let namespaces = match everywhere {
            Some(true) => Namespaces::All,
            _ if listed.is_empty() => Namespaces::Listed(vec![self.namespace.to_owned()]),
            _ => Namespaces::Listed(listed),
        };
        let selector = term.label_selector.clone();
        // No selector at all selects nothing, unlike an empty one.
        let namespaces = if selector.is_some() { namespaces } else { Namespaces::Listed(vec![]) };
        PodTerm { selector: selector.unwrap_or_default(), namespaces, topology }
    }
}

impl PodTerm {
    /// Whether it means these pods.
    pub(crate) fn selects(&self, group: &PodGroup) -> bool {
        let in_reach = match &self.namespaces {
            Namespaces::All => true,
            Namespaces::Listed(listed) => listed.contains(&group.namespace),
        };
        in_reach && matches(&self.selector, &group.labels)
    }
}

impl Rules {
    fn pod_terms_mut(&mut self) -> impl Iterator<Item = &mut PodTerm> {
        let preferred = self.preferences.iter_mut().map(|(_, term)| term);
        self.apart.iter_mut().chain(&mut self.together).chain(preferred)
    }

    /// Names of nodes that are asked for.
    pub(crate) fn node_names(&self) -> Vec<&str> {
        let named = self.node_name.as_deref().into_iter();
        let selected = self.node_selector.get(HOSTNAME).map(String::as_str);
        let wanted = self.node_terms.iter().flat_map(|term| {
            let labels = term.match_expressions.iter().flatten().filter(|it| it.key == HOSTNAME);
            labels.chain(term.match_fields.iter().flatten())
        });
        let wanted = wanted.filter(|it| it.operator == "In");
        let wanted = wanted.flat_map(|it| it.values.iter().flatten().map(String::as_str));
        named.chain(selected).chain(wanted).collect()
    }

    /// Whether what it asks of nodes is the same for all planned ones.
    pub(crate) fn is_same_everywhere(&self) -> bool {
        let differs = |key: &String| [HOSTNAME, ZONE].contains(&key.as_str());
        let by_label = self.node_terms.iter().flat_map(|it| it.match_expressions.iter().flatten());
        self.node_name.is_none()
            && !self.node_selector.keys().any(differs)
            && !by_label.map(|it| &it.key).any(differs)
            && self.node_terms.iter().all(|it| it.match_fields.is_none())
    }

    /// Whether a node of this name and with these labels will do; if not, what it lacks.
    pub(crate) fn admits(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        if let Some(wanted) = self.node_name.as_ref().filter(|wanted| *wanted != name) {
            return Err(format!("nodeName {wanted}"));
        }
        for (key, value) in &self.node_selector {
            if labels.get(key) != Some(value) {
                return Err(format!("the label {key}={value}"));
            }
        }
        let meets = |term: &NodeSelectorTerm| {
            let fields = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
            let by_label = term.match_expressions.iter().flatten();
            let by_field = term.match_fields.iter().flatten();
            by_label.clone().count() + by_field.clone().count() > 0
                && by_label.into_iter().all(|it| meets(it, labels))
                && by_field.into_iter().all(|it| meets(it, &fields))
        };
        if !self.node_terms.is_empty() && !self.node_terms.iter().any(meets) {
            let keys = self.node_terms.iter().flat_map(|it| it.match_expressions.iter().flatten());
            let keys: Vec<&str> = keys.map(|it| it.key.as_str()).collect();
            return Err(format!("what its nodeAffinity asks of {}", keys.join(", ")));
        }
        Ok(())
    }
}

fn meets(wanted: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&wanted.key);
    let listed = || wanted.values.iter().flatten();
    let number = |text: &String| text.parse::<i64>().ok();
    let bound = || listed().next().and_then(number);
    match wanted.operator.as_str() {
        "In" => value.is_some_and(|value| listed().any(|it| it == value)),
        "NotIn" => value.is_none_or(|value| listed().all(|it| it != value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((value.and_then(number), bound()), (Some(a), Some(b)) if a > b),
        "Lt" => matches!((value.and_then(number), bound()), (Some(a), Some(b)) if a < b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> Result<ReadPods, FieldNote> {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        PodGroup::read("n", "a", 1, &BTreeMap::from([("app".into(), "a".into())]), &spec)
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn requests_add_up_as_kubernetes_adds_them() {
        let check = |spec: Value, expected: &str, scored: &str| {
            let group = read(spec).unwrap().group;
            assert_eq!(group.requests.total().to_string(), expected);
            assert_eq!(group.scored.total().to_string(), scored);
        };
        let two = json!([container("200m", "100Mi"), container("300m", "50Mi")]);
        check(json!({"containers": two}), "500m/150Mi", "500m/150Mi");
        let mut sidecar = container("50m", "10Mi");
        sidecar["restartPolicy"] = json!("Always");
        let inits = json!([container("900m", "1Mi"), sidecar, container("100m", "200Mi")]);
        // CPU: max(900, 50 + 100, 500 + 50); memory: max(1, 10 + 200, 150 + 10).
        check(json!({"containers": two, "initContainers": inits}), "900m/210Mi", "900m/210Mi");
        let limited = json!({"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
        check(json!({"containers": [limited]}), "1/1Gi", "1/1Gi");
        check(json!({"containers": [{"name": "c"}]}), "0m/0Mi", "100m/200Mi");
        let whole = json!({"requests": {"cpu": "2"}});
        let overhead = json!({"cpu": "10m", "memory": "1Mi"});
        let spec = json!({"containers": two, "resources": whole, "overhead": overhead});
        check(spec, "2010m/151Mi", "2010m/151Mi");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let warned = read(json!({"containers": [{"name": "c"}]})).unwrap().warnings;
        assert_eq!(warned[0].what, "neither CPU nor memory is requested: both are counted as 0");
        let check = |cpu: &str, expected: &str| {
            let note = read(json!({"containers": [container(cpu, "1Mi")]})).unwrap_err();
            assert_eq!(note.field, "containers[0].resources.requests.cpu");
            assert_eq!(format!("{}; {}", note.what, note.remedy), expected);
        };
        check("two", "`two` is not a quantity; write it as 700m, 0.5 or 2");
        check("-1", "`-1` is negative; write 0 or more");
    }

    #[test]
    fn node_names_can_be_asked_for_and_forgotten() {
        let check = |more: Value, expected: &[&str]| {
            let mut spec = json!({"containers": []});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let group = read(spec).unwrap().group;
            assert_eq!(group.rules.node_names(), expected);
            assert!(!group.on_any_node().names_nodes());
        };
        check(json!({"nodeName": "x"}), &["x"]);
        check(json!({"nodeSelector": {HOSTNAME: "y"}}), &["y"]);
        let affinity = |expression: Value| {
            let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
            json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": terms}}})
        };
        let wanted = json!({"key": HOSTNAME, "operator": "In", "values": ["a", "b"]});
        check(affinity(wanted), &["a", "b"]);
        check(affinity(json!({"key": "disk", "operator": "Exists"})), &[]);
    }
}
