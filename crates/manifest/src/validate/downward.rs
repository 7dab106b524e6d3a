//! Rules for what variables and files get of their own pod: `fieldRef` and `resourceFieldRef`.
//!
//! They are Kubernetes'. A pod that breaks one would wait for ever.

use k8s_openapi::api::core::v1::{ObjectFieldSelector, PodSpec, ResourceFieldSelector};

use crate::finding::{Issues, Path};
use crate::quantity::quantity;

/// Fields of a pod's metadata.
const OF_METADATA: [&str; 3] = ["metadata.name", "metadata.namespace", "metadata.uid"];
/// What variables get besides.
const OF_VARIABLES: [&str; 6] = [
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Maps, of which a variable gets one value, and a file one or all.
const MAPS: [&str; 2] = ["metadata.labels", "metadata.annotations"];

/// What gets a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An environment variable.
    Variable,
    /// A file of a volume.
    File,
}

/// Checks a `fieldRef`.
pub(crate) fn field(
    selector: &ObjectFieldSelector,
    target: Target,
    at: &Path,
    issues: &mut Issues,
) {
    let path = selector.field_path.as_str();
    let is_key_of = |map: &&str| {
        let key = path.strip_prefix(*map).and_then(|rest| rest.strip_prefix("['"));
        key.and_then(|rest| rest.strip_suffix("']")).is_some_and(|key| !key.is_empty())
    };
    let is_known = OF_METADATA.contains(&path)
        || MAPS.iter().any(is_key_of)
        || match target {
            Target::Variable => OF_VARIABLES.contains(&path),
            Target::File => MAPS.contains(&path),
        };
    if !is_known {
        let (what, remedy) = match target {
            Target::Variable => (
                "is no field that a variable gets",
                "write one such as metadata.name, metadata.labels['KEY'], spec.nodeName or \
                 status.podIP",
            ),
            Target::File => (
                "is no field that a file gets",
                "write one such as metadata.name, metadata.labels or metadata.annotations['KEY']",
            ),
        };
        issues.error(&at.field("fieldRef.fieldPath"), format!("`{path}` {what}"), remedy);
    }
}

/// Checks a `resourceFieldRef` of a pod with this spec.
pub(crate) fn resource(
    selector: &ResourceFieldSelector,
    target: Target,
    spec: &PodSpec,
    at: &Path,
    issues: &mut Issues,
) {
    let at = at.field("resourceFieldRef");
    let resource = selector.resource.as_str();
    let (list, name) = resource.split_once('.').unwrap_or_default();
    let is_known = ["cpu", "memory", "ephemeral-storage"].contains(&name)
        || name.strip_prefix("hugepages-").is_some_and(|size| !size.is_empty());
    if !["limits", "requests"].contains(&list) || !is_known {
        issues.error(
            &at.field("resource"),
            format!("`{resource}` is no resource of a container"),
            "write limits.cpu, limits.memory, requests.cpu or requests.memory",
        );
    }
    if let Some(divisor) = &selector.divisor
        && quantity(&divisor.0, -3).is_none()
    {
        let what = format!("`{}` is not a quantity", divisor.0);
        issues.error(&at.field("divisor"), what, "write for example `1m` of processors or `1Mi`");
    }
    let init = spec.init_containers.iter().flatten();
    let mut names = spec.containers.iter().chain(init).map(|container| container.name.as_str());
    match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(named) if !names.any(|name| name == named) => issues.error(
            &at.field("containerName"),
            format!("the pod has no container called `{named}`"),
            "name one of the pod's containers",
        ),
        None if target == Target::File => issues.error(
            &at.field("containerName"),
            "a file does not belong to a container",
            "name the container whose resource it is",
        ),
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec() -> PodSpec {
        let all = json!({"containers": [{"name": "c"}], "initContainers": [{"name": "first"}]});
        serde_json::from_value(all).expect("a pod's spec")
    }

    fn places(issues: Issues) -> Vec<String> {
        issues.errors.iter().map(|it| it.path.as_str().to_owned()).collect()
    }

    #[test]
    fn fields_are_those_that_kubernetes_has() {
        let check = |path: &str, for_variables: bool, for_files: bool| {
            for (target, expected) in [(Target::Variable, for_variables), (Target::File, for_files)]
            {
                let selector = serde_json::from_value(json!({"fieldPath": path})).expect("a field");
                let mut issues = Issues::default();
                field(&selector, target, &Path::at("at"), &mut issues);
                let expected: &[&str] = if expected { &[] } else { &["at.fieldRef.fieldPath"] };
                assert_eq!(places(issues), expected, "{path} for a {target:?}");
            }
        };
        check("metadata.name", true, true);
        check("metadata.labels['app']", true, true);
        check("metadata.annotations['a/b']", true, true);
        check("metadata.labels", false, true);
        check("status.podIP", true, false);
        check("spec.nodeName", true, false);
        for none in ["", "metadata", "metadata.labels['']", "metadata.labels[app]", "status.phase"]
        {
            check(none, false, false);
        }
    }

    #[test]
    fn resources_are_of_a_container_of_the_pod() {
        let check = |selector: Value, target: Target, expected: &[&str]| {
            let text = selector.to_string();
            let selector = serde_json::from_value(selector).expect("a selector");
            let mut issues = Issues::default();
            resource(&selector, target, &spec(), &Path::at("at"), &mut issues);
            let expected: Vec<String> =
                expected.iter().map(|field| format!("at.resourceFieldRef.{field}")).collect();
            assert_eq!(places(issues), expected, "{text} for a {target:?}");
        };
        for good in ["limits.cpu", "requests.memory", "limits.hugepages-2Mi"] {
            check(json!({"resource": good, "divisor": "1m"}), Target::Variable, &[]);
            let of_first = json!({"resource": good, "containerName": "first", "divisor": "0"});
            check(of_first, Target::File, &[]);
        }
        for bad in ["", "cpu", "limits.", "limits.gpu", "limits.hugepages-", "usage.cpu"] {
            check(json!({"resource": bad}), Target::Variable, &["resource"]);
        }
        let cpu = |more: Value| {
            let mut all = json!({"resource": "limits.cpu"});
            all.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            all
        };
        check(cpu(json!({"divisor": "x"})), Target::Variable, &["divisor"]);
        check(cpu(json!({"containerName": "x"})), Target::Variable, &["containerName"]);
        check(cpu(json!({})), Target::File, &["containerName"]);
    }
}
