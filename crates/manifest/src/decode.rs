//! Values to typed objects, strictly: an unknown field or a wrong type is an error at that field.
//!
//! Strict, because otherwise a misspelt `matchLables` selects everything, as users of Kubernetes
//! know. Nothing here may judge a value that has the right type; `validate` does.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::finding::{Issues, Path};
use super::object::{Kind, Typed};
use super::type_errors::TypeError;

/// Decodes `value` as `kind`; adds problems to `issues`.
pub(crate) fn decode(kind: Kind, value: &Value, issues: &mut Issues) -> Option<Typed> {
    let joined = joined(kind, value);
    let value = joined.as_ref().unwrap_or(value);
    if !is_base64(kind, value, issues) {
        return None;
    }
    Some(match kind {
        Kind::Namespace => Typed::Namespace(strict(value, issues)?),
        Kind::Node => Typed::Node(strict(value, issues)?),
        Kind::ServiceAccount => Typed::ServiceAccount(strict(value, issues)?),
        Kind::ConfigMap => Typed::ConfigMap(strict(value, issues)?),
        Kind::Secret => Typed::Secret(strict(value, issues)?),
        Kind::Service => Typed::Service(strict(value, issues)?),
        Kind::Pod => Typed::Pod(strict(value, issues)?),
        Kind::Deployment => Typed::Deployment(strict(value, issues)?),
        Kind::StatefulSet => Typed::StatefulSet(strict(value, issues)?),
        Kind::DaemonSet => Typed::DaemonSet(strict(value, issues)?),
        Kind::Job => Typed::Job(strict(value, issues)?),
        Kind::CronJob => Typed::CronJob(strict(value, issues)?),
        Kind::PersistentVolumeClaim => Typed::PersistentVolumeClaim(strict(value, issues)?),
        Kind::PodDisruptionBudget => Typed::PodDisruptionBudget(strict(value, issues)?),
        Kind::HorizontalPodAutoscaler => Typed::HorizontalPodAutoscaler(strict(value, issues)?),
        Kind::EndpointSlice => Typed::EndpointSlice(strict(value, issues)?),
        Kind::ReferenceGrant => Typed::ReferenceGrant(strict(value, issues)?),
        Kind::HttpRoute => Typed::HttpRoute(strict(value, issues)?),
        Kind::GrpcRoute => Typed::GrpcRoute(strict(value, issues)?),
        Kind::TlsRoute => Typed::TlsRoute(strict(value, issues)?),
        Kind::TcpRoute => Typed::TcpRoute(strict(value, issues)?),
        Kind::UdpRoute => Typed::UdpRoute(strict(value, issues)?),
        Kind::DestinationRule => Typed::DestinationRule(strict(value, issues)?),
        Kind::VirtualService => Typed::VirtualService(strict(value, issues)?),
        Kind::BackendTlsPolicy => Typed::BackendTlsPolicy(strict(value, issues)?),
        Kind::TrafficPolicy => Typed::TrafficPolicy(strict(value, issues)?),
        Kind::Telemetry => Typed::Telemetry(strict(value, issues)?),
        Kind::AuthorizationPolicy => Typed::AuthorizationPolicy(strict(value, issues)?),
        Kind::PeerAuthentication => Typed::PeerAuthentication(strict(value, issues)?),
        Kind::RequestAuthentication => Typed::RequestAuthentication(strict(value, issues)?),
        Kind::ServiceEntry => Typed::ServiceEntry(strict(value, issues)?),
        Kind::WorkloadEntry => Typed::WorkloadEntry(strict(value, issues)?),
        Kind::GatewayClass => Typed::GatewayClass(strict(value, issues)?),
        Kind::Gateway => Typed::Gateway(strict(value, issues)?),
        Kind::ListenerSet => Typed::ListenerSet(strict(value, issues)?),
    })
}

/// The field of a kind whose values are base64, and the one whose values are plain.
fn binary_field(kind: Kind) -> Option<(&'static str, &'static str)> {
    match kind {
        Kind::Secret => Some(("data", "stringData")),
        Kind::ConfigMap => Some(("binaryData", "data")),
        _ => None,
    }
}

/// The value without the line breaks in its base64, if it has any: kustomize writes them, and Go's
/// decoder, and so Kubernetes, passes over them.
pub(crate) fn joined(kind: Kind, value: &Value) -> Option<Value> {
    let (field, _) = binary_field(kind)?;
    let is_broken = |value: &Value| value.as_str().is_some_and(|text| text.contains(['\r', '\n']));
    value.get(field)?.as_object()?.values().any(is_broken).then(|| {
        let mut value = value.clone();
        for text in value[field].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
            if let Value::String(text) = text {
                text.retain(|character| !matches!(character, '\r' | '\n'));
            }
        }
        value
    })
}

/// Whether the values that must be base64 are. Serde's own message would quote a secret.
fn is_base64(kind: Kind, value: &Value, issues: &mut Issues) -> bool {
    let Some((field, plain)) = binary_field(kind) else { return true };
    let mut all = true;
    for (key, value) in value.get(field).and_then(Value::as_object).into_iter().flatten() {
        if value.as_str().is_some_and(|text| BASE64_STANDARD.decode(text).is_err()) {
            all = false;
            issues.error(
                &Path::at(field).field(key),
                "the value is not base64",
                format!("encode it as base64, or write it as it is below `{plain}`"),
            );
        }
    }
    all
}

/// The JSON of a typed object: nulls and unset fields are gone.
pub(crate) fn canonical(typed: &Typed) -> Value {
    match typed {
        Typed::Namespace(object) => to_value(object),
        Typed::Node(object) => to_value(object),
        Typed::ServiceAccount(object) => to_value(object),
        Typed::ConfigMap(object) => to_value(object),
        Typed::Secret(object) => to_value(object),
        Typed::Service(object) => to_value(object),
        Typed::Pod(object) => to_value(object),
        Typed::Deployment(object) => to_value(object),
        Typed::StatefulSet(object) => to_value(object),
        Typed::DaemonSet(object) => to_value(object),
        Typed::Job(object) => to_value(object),
        Typed::CronJob(object) => to_value(object),
        Typed::PersistentVolumeClaim(object) => to_value(object),
        Typed::PodDisruptionBudget(object) => to_value(object),
        Typed::HorizontalPodAutoscaler(object) => to_value(object),
        Typed::EndpointSlice(object) => to_value(object),
        Typed::ReferenceGrant(object) => to_value(object),
        Typed::HttpRoute(object) => to_value(object),
        Typed::GrpcRoute(object) => to_value(object),
        Typed::TlsRoute(object) | Typed::TcpRoute(object) | Typed::UdpRoute(object) => {
            to_value(object)
        }
        Typed::DestinationRule(object) => to_value(object),
        Typed::VirtualService(object) => to_value(object),
        Typed::BackendTlsPolicy(object) => to_value(object),
        Typed::TrafficPolicy(object) => to_value(object),
        Typed::Telemetry(object) => to_value(object),
        Typed::AuthorizationPolicy(object) => to_value(object),
        Typed::PeerAuthentication(object) => to_value(object),
        Typed::RequestAuthentication(object) => to_value(object),
        Typed::ServiceEntry(object) => to_value(object),
        Typed::WorkloadEntry(object) => to_value(object),
        Typed::GatewayClass(object) => to_value(object),
        Typed::Gateway(object) => to_value(object),
        Typed::ListenerSet(object) => to_value(object),
    }
}

fn to_value<T: Serialize>(object: &Arc<T>) -> Value {
    serde_json::to_value(&**object).expect("API objects have string keys and finite numbers")
}

/// Decodes `value` as `T`; adds problems to `issues`.
pub(crate) fn strict<T: DeserializeOwned>(value: &Value, issues: &mut Issues) -> Option<Arc<T>> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let decoded = {
        let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
        serde_ignored::deserialize(tracked, |path| unknown.push(ignored_path(&path)))
    };
    for path in &unknown {
        let name = path.as_str().rsplit('.').next().unwrap_or_default();
        issues.error(
            path,
            format!("the field `{name}` does not exist here"),
            "remove it, or correct its spelling, case and indentation",
        );
    }
    match decoded {
        Ok(object) if unknown.is_empty() => Some(Arc::new(object)),
        Ok(_) => None,
        Err(error) => {
            let path = track.path().to_string();
            let path = if path == "." { Path::default() } else { Path::at(&path) };
            let TypeError { what, remedy } = TypeError::new(&error.to_string());
            issues.error(&path, what, remedy);
            None
        }
    }
}

fn ignored_path(path: &serde_ignored::Path<'_>) -> Path {
    use serde_ignored::Path as Ignored;
    match path {
        Ignored::Root => Path::default(),
        Ignored::Seq { parent, index } => ignored_path(parent).index(*index),
        Ignored::Map { parent, key } => ignored_path(parent).field(key),
        Ignored::Some { parent }
        | Ignored::NewtypeStruct { parent }
        | Ignored::NewtypeVariant { parent } => ignored_path(parent),
    }
}
