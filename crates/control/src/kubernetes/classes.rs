//! Makes the GatewayClasses of waypoints and of gateways at the edge, and says in their status what
//! these can do.
//!
//! Classes of other names that name one of our controllers are ours as well. A class that is there
//! is accepted only if it names our controller. Which version of the Gateway API a cluster has is
//! written on its definitions; `SupportedVersion` says whether we know it.

use ambit_manifest::{Kind, gateway};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{ApiError, FIELD_MANAGER, answer};
use crate::registry::kubernetes::istio;

/// The annotation of a definition that names its version of the Gateway API.
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";
/// The definition that is looked at.
const DEFINITION: &str = "gatewayclasses.gateway.networking.k8s.io";
/// The first and the last minor version of the Gateway API, 1, that waypoints are made for:
/// GRPCRoute is in the standard channel since the first, the last is the one that is tested.
const MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 1..=6;
/// What the Gateway API calls the features of waypoints, sorted. `cargo xtask conformance`
/// tests each of them. Those that begin with `Mesh` are not among them: they are not for a class.
const OF_WAYPOINTS: [&str; 7] = [
    "GRPCRoute",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteParentRefPort",
    "HTTPRouteResponseHeaderModification",
];
/// What the Gateway API calls the features of gateways at the edge, sorted.
const OF_EDGES: [&str; 48] = [
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];
/// All classes, each with its controller, what it is for, and its features.
/// The last is Istio's gateways at the edge.
const CLASSES: [(&str, &str, &str, &[&str]); 4] = [
    of_waypoints(gateway::CLASSES[0]),
    of_waypoints(gateway::CLASSES[1]),
    of_edges(gateway::EDGE_CLASSES[0]),
    of_edges(gateway::EDGE_CLASSES[1]),
];

const fn of_waypoints(
    (name, controller): (&'static str, &'static str),
) -> (&'static str, &'static str, &'static str, &'static [&'static str]) {
    (name, controller, "Waypoints: layer 7 of the mesh", &OF_WAYPOINTS)
}

const fn of_edges(
    (name, controller): (&'static str, &'static str),
) -> (&'static str, &'static str, &'static str, &'static [&'static str]) {
    (name, controller, "Gateways at the edge: what comes into the mesh from outside", &OF_EDGES)
}

/// Those that are ours.
fn ours(
    stands_in: bool,
) -> &'static [(&'static str, &'static str, &'static str, &'static [&'static str])] {
    if stands_in { &CLASSES } else { &CLASSES[..3] }
}

/// What the Gateway API calls the features of classes of this controller, if it is ours.
fn features(controller: &str, stands_in: bool) -> Option<&'static [&'static str]> {
    ours(stands_in).iter().find(|it| it.1 == controller).map(|it| it.3)
}

/// Whether classes of this controller are ours; `stands_in` says whether those of Istio's gateways
/// at the edge are.
pub(super) fn is_ours(controller: &str, stands_in: bool) -> bool {
    features(controller, stands_in).is_some()
}

/// Makes the classes that are missing, and says in their status, and in that of these others of our
/// controllers, how they are. A cluster without the Gateway API has none: the answer is whether it
/// has it.
pub(super) async fn write<'a>(
    client: &Client,
    manager: &str,
    stands_in: bool,
    others: impl Iterator<Item = &'a str>,
) -> Result<bool, ApiError> {
    let ours = ours(stands_in);
    let classes: Api<DynamicObject> = Api::all_with(client.clone(), &istio(Kind::GatewayClass));
    let mut version = None;
    let others = others.filter(|name| ours.iter().all(|it| it.0 != *name));
    let made = ours.iter().map(|(name, controller, description, _)| {
        (*name, Some(class(name, controller, description)))
    });
    for (name, wanted) in made.chain(others.map(|name| (name, None))) {
        let there = match (answer(classes.get_opt(name)).await, wanted) {
            (Ok(Some(there)), _) => there,
            (Err(error), _) if error.is_not_found() => return Ok(false),
            (Err(error), _) => return Err(error),
            (Ok(None), None) => continue,
            (Ok(None), Some(wanted)) => match answer(classes.create(&as_us(), &wanted)).await {
                Ok(made) => made,
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) if error.is_conflict() => continue,
                Err(error) => return Err(error),
            },
        };
        let controller = there.data.pointer("/spec/controllerName").and_then(Value::as_str);
        let Some(features) = controller.and_then(|it| features(it, stands_in)) else { continue };
        if version.is_none() {
            version = Some(bundle_version(client).await?);
        }
        tell(&classes, manager, &there, (features, version.as_deref().unwrap_or_default())).await?;
    }
    Ok(true)
}

/// Says in the status of a class how it is.
async fn tell(
    classes: &Api<DynamicObject>,
    manager: &str,
    class: &DynamicObject,
    (features, version): (&[&str], &str),
) -> Result<(), ApiError> {
    let before = class.data.get("status").cloned().unwrap_or_default();
    let generation = class.metadata.generation.unwrap_or_default();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let after = status(&before, features, generation, version, &now);
    if after == before {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": class.metadata.resource_version}, "status": after,
    });
    let as_us = PatchParams { field_manager: Some(manager.to_owned()), ..Default::default() };
    let name = class.metadata.name.as_deref().unwrap_or_default();
    match answer(classes.patch_status(name, &as_us, &Patch::Merge(&patch))).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

fn as_us() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn class(name: &str, controller: &str, description: &str) -> DynamicObject {
    let class = json!({
        "apiVersion": Kind::GatewayClass.api_versions()[0],
        "kind": Kind::GatewayClass.name(),
        "metadata": {"name": name},
        "spec": {"controllerName": controller, "description": description},
    });
    serde_json::from_value(class).expect("it has the form of an object")
}

/// The version of the Gateway API, such as `v1.6.3`; empty if its definitions do not say.
async fn bundle_version(client: &Client) -> Result<String, ApiError> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let definition = answer(definitions.get_opt(DEFINITION)).await?;
    let mut annotations = definition.and_then(|it| it.metadata.annotations).unwrap_or_default();
    Ok(annotations.remove(BUNDLE_VERSION).unwrap_or_default())
}

/// Whether waypoints are made for this version.
fn is_supported(version: &str) -> bool {
    let minor = version.strip_prefix("v1.").and_then(|rest| rest.split(['.', '-']).next());
    minor.and_then(|minor| minor.parse().ok()).is_some_and(|it| MINOR_VERSIONS.contains(&it))
}

/// The status of a class as it should be. Conditions of others stay, and times of what did not
/// change.
fn status(before: &Value, features: &[&str], generation: i64, version: &str, now: &str) -> Value {
    let found = if version.is_empty() { "of an unknown version" } else { version };
    let (first, last) = (MINOR_VERSIONS.start(), MINOR_VERSIONS.end());
    let message = format!(
        "the definitions of the Gateway API are {found}; install those of v1.{first} to v1.{last}"
    );
    let supported = match is_supported(version) {
        true => ("True", "SupportedVersion", String::new()),
        false => ("False", "UnsupportedVersion", message),
    };
    let told = before.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut conditions = told.clone();
    for (kind, (status, reason, message)) in
        [("Accepted", ("True", "Accepted", String::new())), ("SupportedVersion", supported)]
    {
        let same = told.iter().find(|it| it["type"] == kind && it["status"] == status);
        let since = same.map_or_else(|| json!(now), |it| it["lastTransitionTime"].clone());
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": generation,
        });
        match conditions.iter_mut().find(|it| it["type"] == kind) {
            Some(there) => *there = condition,
            None => conditions.push(condition),
        }
    }
    let features: Vec<Value> = features.iter().map(|name| json!({"name": name})).collect();
    let mut after = if before.is_object() { before.clone() } else { json!({}) };
    after["conditions"] = json!(conditions);
    after["supportedFeatures"] = json!(features);
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_waypoints_are_made_for() {
        for (version, expected) in [
            ("v1.1.0", true),
            ("v1.6.3", true),
            ("v1.6.0-rc.1", true),
            ("v1.0.0", false),
            ("v1.7.0", false),
            ("v2.1.0", false),
            ("", false),
        ] {
            assert_eq!(is_supported(version), expected, "{version}");
        }
    }

    #[test]
    fn a_class_says_what_it_can_and_keeps_what_others_say() {
        let status = |before: &Value, generation, version: &str, now: &str| {
            status(before, &OF_WAYPOINTS, generation, version, now)
        };
        let other = json!({"type": "Other", "status": "True"});
        let first = status(&json!({"conditions": [other]}), 1, "v1.6.3", "t1");
        assert_eq!(first["conditions"][0], other);
        let told = |status: &Value, index: usize, field: &str| {
            status["conditions"][index][field].as_str().unwrap_or_default().to_owned()
        };
        assert_eq!(told(&first, 1, "type") + &told(&first, 1, "status"), "AcceptedTrue");
        assert_eq!(told(&first, 2, "type") + &told(&first, 2, "status"), "SupportedVersionTrue");
        assert_eq!(first["supportedFeatures"][0]["name"], "GRPCRoute");
        assert!(CLASSES.iter().all(|(.., features)| features.is_sorted()));
        assert_eq!(status(&first, 1, "v1.6.3", "t2"), first, "nothing changed");
        let later = status(&first, 2, "v1.9.0", "t2");
        assert_eq!(told(&later, 1, "lastTransitionTime"), "t1");
        assert_eq!(told(&later, 2, "lastTransitionTime"), "t2");
        assert!(told(&later, 2, "message").contains("v1.9.0"), "{later}");
    }
}
