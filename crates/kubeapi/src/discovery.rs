//! Discovery: which groups, versions and kinds a server has.
//!
//! kubectl asks for the aggregated form and reads everything at once; older clients ask for each
//! group. Both are made from the same list of kinds.

use serde_json::{Value, json};

use crate::form::DiscoveryForm;
use crate::resource::Resource;

/// What may be done with objects.
const VERBS: [&str; 8] =
    ["create", "delete", DELETE_ALL, "get", "list", "patch", "update", "watch"];
const DELETE_ALL: &str = "deletecollection";
/// What may be done with objects that the server makes itself.
const READING_VERBS: [&str; 3] = ["get", "list", "watch"];
/// What may be done with a part of a pod that is a stream.
const STREAM_VERBS: &[&str] = &["create", "get"];
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
            "verbs": verbs(resource),
            "shortNames": resource.short_names(),
            "categories": resource.categories(),
        }));
        for part in parts(resource) {
            let mut shown = json!({
                "name": format!("{}/{}", resource.plural, part.name),
                "singularName": "",
                "namespaced": true,
                "kind": part.kind.map_or(resource.kind, |(_, _, kind)| kind),
                "verbs": part.verbs,
            });
            if let Some((group, version, _)) = part.kind {
                shown["group"] = json!(group);
                shown["version"] = json!(version);
            }
            listed.push(shown);
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

pub(crate) fn verbs(resource: &Resource) -> Vec<&'static str> {
    if resource.only_read.is_some() {
        return READING_VERBS.to_vec();
    }
    let is_taken = |verb: &&&str| match **verb {
        "create" | "delete" => resource.comes_and_goes(),
        DELETE_ALL => resource.comes_and_goes() && resource.takes_deletion_of_all(),
        _ => true,
    };
    VERBS.iter().filter(is_taken).copied().collect()
}

/// The parts of a kind's objects that have paths of their own, and what may be done with each.
pub(crate) fn verbs_of_parts(
    resource: &Resource,
) -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    parts(resource).into_iter().map(|part| (part.name, part.verbs))
}

/// A part of objects that has a path of its own.
struct Part {
    name: &'static str,
    /// The group, version and name of its kind, if it is not that of the object.
    kind: Option<(&'static str, &'static str, &'static str)>,
    verbs: &'static [&'static str],
}

fn parts(resource: &Resource) -> Vec<Part> {
    let mut parts = Vec::new();
    if resource.is_pod() {
        let kind = Some(("policy", "v1", "Eviction"));
        parts.push(Part { name: "eviction", kind, verbs: &["create"] });
        let kind = Some(("", "v1", "PodExecOptions"));
        parts.push(Part { name: "exec", kind, verbs: STREAM_VERBS });
        parts.push(Part { name: "log", kind: None, verbs: &["get"] });
        let kind = Some(("", "v1", "PodPortForwardOptions"));
        parts.push(Part { name: "portforward", kind, verbs: STREAM_VERBS });
    }
    if resource.has_scale() {
        let kind = Some(("autoscaling", "v1", "Scale"));
        parts.push(Part { name: "scale", kind, verbs: &["get", "patch", "update"] });
    }
    parts
}

fn aggregated(resources: &[Resource], group: &str) -> Value {
    let resource = |it: &Resource, version: &str| {
        let kind = json!({"group": group, "version": version, "kind": it.kind});
        let mut shown = json!({
            "resource": it.plural,
            "responseKind": kind,
            "scope": if it.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": it.kind.to_lowercase(),
            "verbs": verbs(it),
            "shortNames": it.short_names(),
            "categories": it.categories(),
        });
        let part = |part: Part| {
            let kind = match part.kind {
                Some((group, version, kind)) => {
                    json!({"group": group, "version": version, "kind": kind})
                }
                None => kind.clone(),
            };
            json!({"subresource": part.name, "responseKind": kind, "verbs": part.verbs})
        };
        let parts: Vec<Value> = parts(it).into_iter().map(part).collect();
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
