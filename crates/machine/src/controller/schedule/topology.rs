//! What a pod says of other pods: near which it must or should be, far from which, and how evenly
//! they are spread.
//!
//! Near means in the same domain: on nodes with the same value of a label. A rule that cannot be
//! judged admits no node.

use std::collections::BTreeMap;

use ambit_manifest::selector::matches;
use k8s_openapi::api::core::v1::{
    Affinity, Pod, PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::nodes;
use super::taints::{self, BARRING};
use super::views::{NodeView, Placed, required_away};

/// What a pod is placed among.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) nodes: &'a [NodeView],
    pub(super) placed: &'a [Placed],
}

impl<'a> Around<'a> {
    /// The pods in the node's domain; none if the node is in none.
    fn in_domain(self, node: &'a NodeView, key: &'a str) -> impl Iterator<Item = &'a Placed> {
        let domain = node.labels.get(key);
        self.placed
            .iter()
            .filter(move |other| domain.is_some() && self.domain(&other.node, key) == domain)
    }

    fn domain(self, node: &str, key: &str) -> Option<&'a String> {
        self.nodes.iter().find(|it| it.name == node)?.labels.get(key)
    }
}

/// Whether a pod may be on a node beside the pods that are placed; if not, why.
pub(super) fn admits(pod: &Pod, node: &NodeView, around: Around<'_>) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let near = required_near(spec.affinity.as_ref());
    let away = required_away(spec.affinity.as_ref());
    for term in near.iter().chain(away) {
        can_be_judged(term)?;
    }
    for term in away {
        if around.in_domain(node, &term.topology_key).any(|other| selects(term, pod, other)) {
            return Err("node(s) didn't match pod anti-affinity rules".to_owned());
        }
    }
    let is_kept_away = |other: &Placed| {
        let domain = |key: &str| around.domain(&other.node, key);
        let mut terms = other.keeps_away.iter();
        terms.any(|term| {
            let key = term.topology_key.as_str();
            node.labels.contains_key(key)
                && node.labels.get(key) == domain(key)
                && selects_pod(term, &other.namespace, pod)
        })
    };
    if around.placed.iter().any(is_kept_away) {
        return Err("node(s) didn't satisfy existing pods anti-affinity rules".to_owned());
    }
    for term in near {
        let is_near = around.in_domain(node, &term.topology_key).any(|it| selects(term, pod, it));
        // The first of pods that want to be near one another has nobody to be near to.
        let is_first = node.labels.contains_key(&term.topology_key)
            && selects_pod(term, pod.metadata.namespace.as_deref().unwrap_or_default(), pod)
            && !around.placed.iter().any(|other| selects(term, pod, other));
        if !is_near && !is_first {
            return Err("node(s) didn't match pod affinity rules".to_owned());
        }
    }
    for constraint in spec.topology_spread_constraints.iter().flatten() {
        if constraint.when_unsatisfiable != "ScheduleAnyway" {
            let most = i64::from(constraint.max_skew);
            match skew(constraint, pod, node, around) {
                None => {
                    return Err(format!(
                        "node(s) didn't match pod topology spread constraints (missing required \
                         label {})",
                        constraint.topology_key
                    ));
                }
                Some(skew) if skew > most => {
                    return Err("node(s) didn't match pod topology spread constraints".into());
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// How much a pod prefers a node for the pods that are placed.
pub(super) fn preference(pod: &Pod, node: &NodeView, around: Around<'_>) -> i64 {
    let Some(spec) = &pod.spec else { return 0 };
    let affinity = spec.affinity.as_ref();
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let near = near.and_then(|it| it.preferred_during_scheduling_ignored_during_execution.as_ref());
    let away = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let away = away.and_then(|it| it.preferred_during_scheduling_ignored_during_execution.as_ref());
    let weight = |weighted: &WeightedPodAffinityTerm| {
        let term = &weighted.pod_affinity_term;
        let met = around.in_domain(node, &term.topology_key).filter(|it| selects(term, pod, it));
        i64::from(weighted.weight) * met.count() as i64
    };
    let spread = spec.topology_spread_constraints.iter().flatten();
    let spread = spread.filter(|it| it.when_unsatisfiable == "ScheduleAnyway");
    let skews: i64 = spread.filter_map(|it| skew(it, pod, node, around)).sum();
    near.into_iter().flatten().map(weight).sum::<i64>()
        - away.into_iter().flatten().map(weight).sum::<i64>()
        - skews
}

fn required_near(affinity: Option<&Affinity>) -> &[PodAffinityTerm] {
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    near.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

fn can_be_judged(term: &PodAffinityTerm) -> Result<(), String> {
    match &term.namespace_selector {
        Some(selector) if *selector != LabelSelector::default() => Err(
            "node(s) were not judged: a machine reads no namespaceSelector of an affinity, name \
                 the namespaces"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Whether a term of `pod` means another one.
fn selects(term: &PodAffinityTerm, pod: &Pod, other: &Placed) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let own = pod.metadata.labels.as_ref();
    let label = |key: &String| own.and_then(|own| own.get(key));
    let same = |keys: &Option<Vec<String>>, wanted: bool| {
        let known = keys.iter().flatten().filter(|key| label(key).is_some());
        known.into_iter().all(|key| (other.labels.get(key) == label(key)) == wanted)
    };
    is_in_reach(term, namespace, &other.namespace)
        && term.label_selector.as_ref().is_some_and(|selector| matches(selector, &other.labels))
        && same(&term.match_label_keys, true)
        && same(&term.mismatch_label_keys, false)
}

/// Whether a term of a pod of `namespace` means this pod.
fn selects_pod(term: &PodAffinityTerm, namespace: &str, pod: &Pod) -> bool {
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    is_in_reach(term, namespace, pod.metadata.namespace.as_deref().unwrap_or_default())
        && term.label_selector.as_ref().is_some_and(|selector| matches(selector, labels))
}

fn is_in_reach(term: &PodAffinityTerm, own: &str, other: &str) -> bool {
    let named = term.namespaces.as_deref().unwrap_or_default();
    let is_everywhere = term.namespace_selector.is_some();
    is_everywhere || named.iter().any(|it| it == other) || named.is_empty() && own == other
}

/// How many more pods than the emptiest domain the node's would have with this pod; none if the
/// node is in no domain.
fn skew(
    constraint: &TopologySpreadConstraint,
    pod: &Pod,
    node: &NodeView,
    around: Around<'_>,
) -> Option<i64> {
    let key = &constraint.topology_key;
    let own = node.labels.get(key)?;
    let selected = |namespace: &str, labels: &BTreeMap<String, String>| {
        let own = pod.metadata.labels.as_ref();
        let mut same = constraint.match_label_keys.iter().flatten();
        namespace == pod.metadata.namespace.as_deref().unwrap_or_default()
            && constraint.label_selector.as_ref().is_some_and(|it| matches(it, labels))
            && same.all(|key| own.and_then(|own| own.get(key)) == labels.get(key))
    };
    let counts_all = constraint.node_affinity_policy.as_deref() == Some("Ignore");
    let honours_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
    let spec = pod.spec.as_ref()?;
    let counts = |it: &&NodeView| {
        (counts_all || nodes::admits(spec, it).is_ok())
            && !(honours_taints && taints::untolerated(spec, it, &BARRING).is_some())
    };
    let mut domains: BTreeMap<&String, i64> = BTreeMap::new();
    for it in around.nodes.iter().filter(counts) {
        let Some(domain) = it.labels.get(key) else { continue };
        let here = around.placed.iter().filter(|other| other.node == it.name);
        let here = here.filter(|other| selected(&other.namespace, &other.labels)).count();
        *domains.entry(domain).or_default() += here as i64;
    }
    let is_few = constraint.min_domains.is_some_and(|least| domains.len() < least.max(0) as usize);
    let least = if is_few { 0 } else { domains.values().min().copied().unwrap_or(0) };
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let added = i64::from(selected(namespace, labels));
    Some(domains.get(own).copied().unwrap_or(0) + added - least)
}
