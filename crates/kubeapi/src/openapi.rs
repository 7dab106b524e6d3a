//! OpenAPI, as far as clients ask it what a server can do.
//!
//! kubectl looks there whether a server checks fields and takes strategic merge patches, before it
//! applies. Schemas of the kinds are not there: a server of this crate does not know them, and a
//! client that wants one finds none.

use ambit_words::media_types::KUBERNETES_PROTOBUF;
use serde_json::{Map, Value, json};

use crate::patch::{APPLY_TYPE, JSON_TYPE, MERGE_TYPE, STRATEGIC_TYPE};
use crate::resource::Resource;

/// Parameters of requests that write.
const WRITE_PARAMETERS: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];

/// The answer to `/openapi/v3`: where the document of each group and version is.
pub(crate) fn root(resources: &[Resource]) -> Value {
    let mut paths = Map::new();
    for api_version in resources.iter().flat_map(|it| it.api_versions) {
        let path = path_of(api_version);
        let document = json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
        paths.insert(path, document);
    }
    json!({ "paths": paths })
}

/// The answer to `/openapi/v3/api/v1` and the like, if there is that group and version.
pub(crate) fn of_version(resources: &[Resource], path: &str) -> Option<Value> {
    let is_meant = |it: &&&str| path_of(it) == path;
    let mut paths = Map::new();
    for resource in resources {
        let Some(api_version) = resource.api_versions.iter().find(is_meant) else { continue };
        let namespaces = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let all = format!("/{path}/{namespaces}{}", resource.plural);
        paths.insert(format!("{all}/{{name}}"), of_object(resource, api_version));
        paths.insert(all, of_kind(resource, api_version));
    }
    // Without schemas kubectl takes those that it carries itself; without the map it warns.
    let info = json!({"title": "Kubernetes", "version": "v1.32"});
    (!paths.is_empty()).then(
        || json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}),
    )
}

fn path_of(api_version: &str) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    format!("{root}/{api_version}")
}

fn of_kind(resource: &Resource, api_version: &str) -> Value {
    let operation = |action: &str, method: &str| operation(resource, api_version, action, method);
    let mut operations = json!({"get": operation("list", "get")});
    if resource.only_read.is_none() {
        operations["post"] = operation("post", "post");
        if resource.takes_deletion_of_all() {
            operations["delete"] = operation("deletecollection", "delete");
        }
    }
    operations
}

fn of_object(resource: &Resource, api_version: &str) -> Value {
    let mut operations = json!({"get": operation(resource, api_version, "get", "get")});
    if resource.only_read.is_none() {
        for method in ["put", "patch", "delete"] {
            operations[method] = operation(resource, api_version, method, method);
        }
    }
    operations
}

fn operation(resource: &Resource, api_version: &str, action: &str, method: &str) -> Value {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let mut operation = json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind":
            {"group": group, "version": version, "kind": resource.kind},
        "responses": {"default": {"description": "the object, or a Status"}},
    });
    let types: &[&str] = match method {
        "post" | "put" => &["application/json", "application/yaml", KUBERNETES_PROTOBUF],
        "patch" if ambit_kustomize::takes_strategic_merge(api_version, resource.kind) => {
            &[APPLY_TYPE, JSON_TYPE, MERGE_TYPE, STRATEGIC_TYPE]
        }
        "patch" => &[APPLY_TYPE, JSON_TYPE, MERGE_TYPE],
        _ => return operation,
    };
    let parameter = |name| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    operation["parameters"] = WRITE_PARAMETERS.iter().map(parameter).collect();
    let content = types.iter().map(|it| ((*it).to_owned(), json!({})));
    operation["requestBody"] = json!({"content": content.collect::<Map<_, _>>()});
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources() -> Vec<Resource> {
        let resource = |kind, plural, namespaced, api_versions, only_read| Resource {
            kind,
            plural,
            namespaced,
            api_versions,
            only_read,
        };
        vec![
            resource("Node", "nodes", false, &["v1"], Some("no")),
            resource("Service", "services", true, &["v1"], None),
            resource("Gateway", "gateways", true, &["g.example/v1", "g.example/v1beta1"], None),
        ]
    }

    #[test]
    fn each_version_has_a_document() {
        let root = root(&resources());
        let paths: Vec<&String> = root["paths"].as_object().expect("paths").keys().collect();
        assert_eq!(paths, ["api/v1", "apis/g.example/v1", "apis/g.example/v1beta1"]);
        assert_eq!(root["paths"]["api/v1"]["serverRelativeURL"], "/openapi/v3/api/v1");
        assert_eq!(of_version(&resources(), "apis/g.example/v2"), None);
    }

    #[test]
    fn kubectl_sees_what_a_patch_may_be() {
        let check = |path: &str, at: &str, has_strategic: bool| {
            let document = of_version(&resources(), path).expect(path);
            let patch = &document["paths"][at]["patch"];
            assert_eq!(patch["parameters"][2]["name"], "fieldValidation", "{document}");
            let content = &patch["requestBody"]["content"];
            assert!(content[MERGE_TYPE].is_object(), "{content}");
            assert_eq!(content[STRATEGIC_TYPE].is_object(), has_strategic, "{content}");
            patch["x-kubernetes-group-version-kind"].clone()
        };
        let kind = check("api/v1", "/api/v1/namespaces/{namespace}/services/{name}", true);
        assert_eq!(kind, json!({"group": "", "version": "v1", "kind": "Service"}));
        let at = "/apis/g.example/v1beta1/namespaces/{namespace}/gateways/{name}";
        let kind = check("apis/g.example/v1beta1", at, false);
        assert_eq!(kind, json!({"group": "g.example", "version": "v1beta1", "kind": "Gateway"}));
    }

    #[test]
    fn what_is_only_read_has_no_other_operation() {
        let document = of_version(&resources(), "api/v1").expect("it is there");
        for path in ["/api/v1/nodes", "/api/v1/nodes/{name}"] {
            let operations = document["paths"][path].as_object().expect(path);
            assert_eq!(operations.keys().collect::<Vec<_>>(), ["get"], "{path}");
        }
    }
}
