//! What the mesh's departure changes for those who are in it: before it is uninstalled.

use std::collections::BTreeMap;

use ambit_words::annotations::{ENABLED, REDIRECTION};
use serde_json::Value;

use super::{Report, listed, object, outdated};
use crate::Facts;
use crate::facts::List;
use crate::json::{annotation, is_ready, items, name, namespace, owner, text};
use crate::parts::AGENT;

/// Keys of `when` that name identities.
const IDENTITY_KEYS: [&str; 2] = ["source.principal", "source.namespace"];
/// Fields of `source` that name identities.
const IDENTITY_FIELDS: [&str; 6] = [
    "principals",
    "notPrincipals",
    "namespaces",
    "notNamespaces",
    "serviceAccounts",
    "notServiceAccounts",
];

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let is_captured = |pod: &Value| annotation(pod, REDIRECTION) == Some(ENABLED);
    let has_members = facts.known(List::Pods).iter().any(is_captured);
    // Among them may be one that is STRICT.
    let unread = facts.outdated.iter().filter(|it| it.0.starts_with("peerauthentications."));
    unread.filter(|_| has_members).for_each(|it| outdated(it, report));
    let strict = facts.known(List::PeerAuthentications).iter().filter(|it| is_strict(it));
    for policy in strict.filter(|_| has_members) {
        report.error("strict", object("PeerAuthentication", policy)).says(
            "refuses plain text, and without the mesh there is nothing else: what it keeps out \
             today gets in, unencrypted",
            "set it to PERMISSIVE or delete it first, or run `ambit uninstall --force` before Helm",
        );
    }
    for policy in facts.known(List::AuthorizationPolicies) {
        let by_identity = if names_identities(policy) {
            ", and nothing else can tell the identities that it names"
        } else {
            ""
        };
        let action = match text(policy, "/spec/action") {
            "" => "ALLOW",
            action => action,
        };
        report.warning("policy-ends", object("AuthorizationPolicy", policy)).says(
            format!("{action}: enforced by nobody without the mesh{by_identity}"),
            "see that what it refuses may get in, or that something else refuses it",
        );
    }
    agents(facts, report);
}

/// Whether it refuses plain text; what control cannot read does too.
fn is_strict(policy: &Value) -> bool {
    let refuses = |mtls: &Value| match &mtls["mode"] {
        Value::Null => false,
        mode => !mode.as_str().is_some_and(|it| ["UNSET", "DISABLE", "PERMISSIVE"].contains(&it)),
    };
    let mut ports = policy["spec"]["portLevelMtls"].as_object().into_iter().flatten();
    refuses(&policy["spec"]["mtls"]) || ports.any(|(_, port)| refuses(port))
}

fn names_identities(policy: &Value) -> bool {
    items(policy, "/spec/rules").any(|rule| {
        let mut sources = items(rule, "/from").map(|from| &from["source"]);
        let mut conditions = items(rule, "/when");
        sources.any(|source| IDENTITY_FIELDS.iter().any(|field| source.get(field).is_some()))
            || conditions.any(|it| IDENTITY_KEYS.contains(&text(it, "/key")))
    })
}

/// Whether somebody is there to release every pod that is captured.
fn agents(facts: &Facts, report: &mut Report) {
    let mut captured: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in facts.known(List::Pods) {
        let node = text(pod, "/spec/nodeName");
        // What is on no node yet is not captured, whatever is written on it.
        if annotation(pod, REDIRECTION) == Some(ENABLED) && !node.is_empty() {
            *captured.entry(node).or_default() += 1;
        }
    }
    let has_agent = |node: &str| {
        facts.known(List::Pods).iter().any(|pod| {
            owner(pod, "DaemonSet") == Some(AGENT)
                && namespace(pod) == facts.mesh_namespace
                && text(pod, "/spec/nodeName") == node
                && is_ready(pod)
        })
    };
    let without: Vec<&str> = captured.keys().copied().filter(|node| !has_agent(node)).collect();
    if !without.is_empty() {
        report.error("no-agent", format!("Node {}", listed(&without))).says(
            "has captured pods and no agent that is ready: nobody would release them",
            "see `ambit check`; a node that is gone for good is deleted (kubectl delete node)",
        );
    }
    let (pods, nodes) = (captured.values().sum::<usize>(), captured.len());
    let set = facts.known(List::DaemonSets).iter().find(|set| name(set) == AGENT);
    if set.is_none() {
        let place = format!("DaemonSet {}/{AGENT}", facts.mesh_namespace);
        report.error("no-agent", place).says("is not there: nobody releases pods", "");
    }
    report
        .info("members", format!("Namespace {}", facts.mesh_namespace))
        .says(format!("{pods} pods on {nodes} nodes leave the mesh"), "");
}
