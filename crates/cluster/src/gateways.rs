//! The Gateways of a cluster, as `ambit waypoint` makes and deletes them, and the label by which a
//! namespace names its waypoint.
//!
//! Only objects that the user names are changed.

use ambit_words::labels::USE_WAYPOINT;
use serde_json::{Value, json};

use crate::Cluster;
use crate::api::{ClusterError, Form, escape};
use crate::json::text;

const API: &str = "/apis/gateway.networking.k8s.io/v1";

fn path(namespace: &str, name: &str) -> String {
    format!("{API}/namespaces/{namespace}/gateways/{name}")
}

impl Cluster {
    /// The Gateways of a namespace, or of all.
    pub async fn gateways(&self, namespace: Option<&str>) -> Result<Vec<Value>, ClusterError> {
        let path = match namespace {
            Some(namespace) => format!("{API}/namespaces/{namespace}/gateways"),
            None => format!("{API}/gateways"),
        };
        self.list(&path, Form::Whole, |_| {}).await
    }

    /// Makes a Gateway, or changes the one of its name; answers whether it is new.
    pub async fn apply_gateway(&self, gateway: &Value) -> Result<bool, ClusterError> {
        let namespace = text(gateway, "/metadata/namespace");
        let list = format!("{API}/namespaces/{namespace}/gateways");
        match self.create(&list, gateway).await {
            Ok(()) => Ok(true),
            Err(ClusterError::Exists(_)) => {
                self.patch(&path(namespace, text(gateway, "/metadata/name")), gateway).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes a Gateway that was read, unless another of its name is there by now.
    pub async fn delete_gateway(&self, gateway: &Value) -> Result<(), ClusterError> {
        let named = |pointer| text(gateway, pointer);
        let path = path(named("/metadata/namespace"), named("/metadata/name"));
        self.delete(&path, named("/metadata/uid")).await
    }

    /// The objects of a kind, in all namespaces, that have a label of this value; none if the
    /// cluster does not know the kind.
    pub async fn labelled(
        &self,
        version: &str,
        plural: &str,
        label: &str,
        value: &str,
    ) -> Result<Vec<Value>, ClusterError> {
        let root = if version.contains('/') { "apis" } else { "api" };
        let selector = escape(&format!("{label}={value}"));
        let path = format!("/{root}/{version}/{plural}?labelSelector={selector}");
        match self.list(&path, Form::Whole, |_| {}).await {
            Err(ClusterError::Absent(_)) => Ok(Vec::new()),
            found => found,
        }
    }

    /// A namespace.
    pub async fn namespace(&self, name: &str) -> Result<Value, ClusterError> {
        self.read(&format!("/api/v1/namespaces/{name}")).await
    }

    /// Has a namespace name a waypoint.
    pub async fn use_waypoint(&self, namespace: &str, waypoint: &str) -> Result<(), ClusterError> {
        let labels = json!({ "metadata": { "labels": { USE_WAYPOINT: waypoint } } });
        self.patch(&format!("/api/v1/namespaces/{namespace}"), &labels).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::Method;

    use super::*;
    use crate::api::playing;

    #[tokio::test]
    async fn a_gateway_is_made_or_changed() {
        let check = async |exists: bool, expected: &[&str]| {
            let asked = Arc::new(Mutex::new(Vec::new()));
            let seen = asked.clone();
            let cluster = playing(move |method, path| {
                seen.lock().unwrap().push(format!("{method} {path}"));
                if exists && *method == Method::POST {
                    let status = json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"});
                    return (409, status);
                }
                (200, json!({}))
            });
            let gateway = json!({"metadata": {"namespace": "shop", "name": "way", "uid": "u"}});
            assert_eq!(cluster.apply_gateway(&gateway).await.unwrap(), !exists);
            assert_eq!(*asked.lock().unwrap(), expected);
        };
        let list = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways";
        let (made, changed) = (format!("POST {list}"), format!("PATCH {list}/way"));
        check(false, &[&made]).await;
        check(true, &[&made, &changed]).await;
    }
    #[tokio::test]
    async fn labelled_objects_are_found_and_an_unknown_kind_has_none() {
        let cluster = playing(|_, path| match path {
            "/api/v1/services?labelSelector=istio.io%2Fuse-waypoint%3Dway&limit=500" => {
                (200, json!({"items": [{"metadata": {"name": "web"}}]}))
            }
            _ => (404, json!({"kind": "Status", "code": 404, "message": "not found"})),
        });
        let found = cluster.labelled("v1", "services", USE_WAYPOINT, "way").await.unwrap();
        assert_eq!(found.len(), 1);
        let absent = cluster.labelled("a.io/v1", "things", USE_WAYPOINT, "way").await.unwrap();
        assert_eq!(absent.len(), 0);
    }
}
