//! Discovery: which groups, versions and kinds a server has.
//!
//! kubectl asks for the aggregated form and reads everything at once; older clients ask for each
//! group. Both are made from the same list of kinds.

use serde_json::{Value, json};

use crate::form::DiscoveryForm;
use crate::resource::Resource;

/// What may be done with objects.
const VERBS: [&str; 3] = ["get", "list", "watch"];
/// Parts of a pod, with the kind of what is sent to them and what may be done with them.
const PARTS: [(&str, &str, &[&str]); 3] = [
    ("exec", "PodExecOptions", &["create", "get"]),
    ("log", "Pod", &["get"]),
    ("portforward", "PodPortForwardOptions", &["create", "get"]),
];
/// The type of a document in the aggregated form.
pub(crate) const AGGREGATED_TYPE: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The groups of these kinds, each once, in their order. The oldest has no name.
fn groups(resources: &[Resource]) -> Vec<&'static str> {
    let mut groups = Vec::new();
    for resource in resources {
        if !groups.contains(&resource.group()) {
            groups.push(resource.group());
        }
    }
    groups
}

/// The versions of a group, the preferred first.
fn versions(resources: &[Resource], group: &str) -> Vec<&'static str> {
    let mut versions = Vec::new();
    for resource in resources.iter().filter(|it| it.group() == group) {
        for version in resource.versions().filter(|it| !versions.contains(it)).collect::<Vec<_>>() {
            versions.push(version);
        }
    }
    versions
}

fn of_version<'a>(
    resources: &'a [Resource],
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    let is_there =
        move |it: &&Resource| it.group() == group && it.versions().any(|one| one == version);
    resources.iter().filter(is_there)
}

/// The answer to `/api` (of the oldest group) or `/apis` (of all others), without its type.
pub(crate) fn root(resources: &[Resource], is_oldest: bool, form: DiscoveryForm) -> Value {
    let groups = groups(resources);
    let shown = || groups.iter().copied().filter(|group| group.is_empty() == is_oldest);
    match form {
        DiscoveryForm::Aggregated => json!({
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": shown().map(|group| aggregated(resources, group)).collect::<Vec<_>>(),
        }),
        DiscoveryForm::Single if is_oldest => json!({
            "kind": "APIVersions",
            "versions": versions(resources, ""),
            "serverAddressByClientCIDRs": [],
        }),
        DiscoveryForm::Single => json!({
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": shown().map(|group| of_group(resources, group)).collect::<Vec<_>>(),
        }),
    }
}

/// The answer to `/apis/GROUP`, if there is that group.
pub(crate) fn group(resources: &[Resource], group: &str) -> Option<Value> {
    let is_there = !group.is_empty() && groups(resources).contains(&group);
    is_there.then(|| {
        let mut document = of_group(resources, group);
        document["kind"] = json!("APIGroup");
        document["apiVersion"] = json!("v1");
        document
    })
}

fn of_group(resources: &[Resource], group: &str) -> Value {
    let named =
        |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let versions: Vec<Value> = versions(resources, group).iter().map(named).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// The answer to `/api/VERSION` and `/apis/GROUP/VERSION`, if there is that version.
pub(crate) fn version(resources: &[Resource], group: &str, version: &str) -> Option<Value> {
    let mut listed = Vec::new();
    for resource in of_version(resources, group, version) {
        listed.push(json!({
            "name": resource.plural,
            "singularName": resource.kind.to_lowercase(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": VERBS,
            "shortNames": resource.short_names(),
            "categories": resource.categories(),
        }));
        for (part, kind, verbs) in parts(resource) {
            listed.push(json!({
                "name": format!("{}/{part}", resource.plural),
                "singularName": "",
                "namespaced": true,
                "kind": kind,
                "verbs": verbs,
            }));
        }
    }
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!listed.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": listed,
        })
    })
}

fn parts(resource: &Resource) -> &'static [(&'static str, &'static str, &'static [&'static str])] {
    if resource.plural == "pods" { &PARTS } else { &[] }
}

fn aggregated(resources: &[Resource], group: &str) -> Value {
    let resource = |it: &Resource, version: &str| {
        let kind = json!({"group": group, "version": version, "kind": it.kind});
        let mut shown = json!({
            "resource": it.plural,
            "responseKind": kind,
            "scope": if it.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": it.kind.to_lowercase(),
            "verbs": VERBS,
            "shortNames": it.short_names(),
            "categories": it.categories(),
        });
        let part = |(part, kind, verbs): &(&str, &str, &[&str])| {
            let kind = json!({"group": group, "version": version, "kind": kind});
            json!({"subresource": part, "responseKind": kind, "verbs": verbs})
        };
        let parts: Vec<Value> = parts(it).iter().map(part).collect();
        if !parts.is_empty() {
            shown["subresources"] = json!(parts);
        }
        shown
    };
    let version = |version: &str| {
        let listed = of_version(resources, group, version).map(|it| resource(it, version));
        json!({
            "version": version,
            "resources": listed.collect::<Vec<_>>(),
            "freshness": "Current",
        })
    };
    let versions: Vec<Value> = versions(resources, group).into_iter().map(version).collect();
    json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
}
