//! The kinds of other APIs than Kubernetes' own that a machine knows, as CustomResourceDefinitions:
//! clients such as istioctl look there for what they may ask.

use serde_json::{Value, json};

use crate::objects::Kind;

/// What definitions are called.
pub(super) const KIND: &str = "CustomResourceDefinition";
/// The same in paths.
pub(super) const PLURAL: &str = "customresourcedefinitions";
/// Where they are.
pub(super) const API_VERSION: &str = "apiextensions.k8s.io/v1";
/// How the groups end that Kubernetes does not bring itself.
const GROUPS: [&str; 3] = [".istio.io", "gateway.networking.k8s.io", "ambit.io"];
/// Of which release of the Gateway API its kinds are: the annotation, and the release.
const GATEWAY_API: (&str, &str) = ("gateway.networking.k8s.io/bundle-version", "v1.6.0");

/// One for each kind.
pub(super) fn definitions() -> Vec<Value> {
    Kind::all().filter_map(definition).collect()
}

fn definition(kind: Kind) -> Option<Value> {
    let (group, _) = kind.api_versions().first()?.split_once('/')?;
    if !GROUPS.iter().any(|end| group.ends_with(end)) {
        return None;
    }
    let names = json!({
        "kind": kind.name(), "plural": kind.plural(),
        "singular": kind.name().to_lowercase(), "listKind": format!("{}List", kind.name()),
    });
    let versions = kind.api_versions().iter().filter_map(|it| Some(it.split_once('/')?.1));
    let stored = versions.clone().next();
    let versions: Vec<Value> = versions
        .map(|name| json!({"name": name, "served": true, "storage": Some(name) == stored}))
        .collect();
    let mut metadata = json!({"name": format!("{}.{group}", kind.plural())});
    if group == "gateway.networking.k8s.io" {
        let (annotation, release) = GATEWAY_API;
        metadata["annotations"] = json!({annotation: release});
    }
    let established =
        |of: &str| json!({"type": of, "status": "True", "reason": "Known", "message": ""});
    Some(json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata,
        "spec": {
            "group": group, "names": names, "versions": versions,
            "scope": if kind.is_namespaced() { "Namespaced" } else { "Cluster" },
        },
        "status": {
            "acceptedNames": names, "storedVersions": [stored],
            "conditions": [established("NamesAccepted"), established("Established")],
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kinds_of_other_apis_are_defined() {
        let all = definitions();
        let named = |name: &str| all.iter().find(|it| it["metadata"]["name"] == name);
        let services = named("virtualservices.networking.istio.io").unwrap();
        assert_eq!(services["spec"]["names"]["kind"], "VirtualService");
        assert_eq!(services["spec"]["scope"], "Namespaced");
        let versions = services["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.iter().filter(|it| it["storage"] == true).count(), 1);
        let classes = named("gatewayclasses.gateway.networking.k8s.io").unwrap();
        assert_eq!(classes["spec"]["scope"], "Cluster");
        assert_eq!(classes["metadata"]["annotations"][GATEWAY_API.0], GATEWAY_API.1);
        assert!(named("trafficpolicies.ambit.io").is_some());
        let is_own = |it: &Value| it["spec"]["group"] == "apps" || it["spec"]["group"] == "";
        assert!(!all.iter().any(is_own));
    }
}
