//! The Kubernetes JSON of pods and namespaces, and the pod runner's status, as far as the agent
//! reads them.
//!
//! Unknown fields are ignored: these are the API server's objects, not the user's input. A wrong
//! type in a field that enrolment depends on is an error.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::place::Place;
use crate::pod::{PodName, PodObject, PodStatus, PodUid};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: Option<String>,
    #[serde(default)]
    service_account_name: Option<String>,
    #[serde(default)]
    host_network: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    uid: String,
    #[serde(default)]
    node: Option<String>,
    #[serde(default)]
    phase: Option<String>,
    #[serde(default, rename = "podIPs")]
    pod_ips: Vec<IpAddr>,
    #[serde(default)]
    netns: Option<PathBuf>,
}

/// Reads a Pod object. One without a uid is not complete yet, and is an error.
pub(crate) fn pod(json: &[u8]) -> Result<PodObject, serde_json::Error> {
    let Pod { metadata, spec } = serde_json::from_slice(json)?;
    let uid = metadata.uid.filter(|uid| !uid.is_empty());
    let uid = uid.ok_or_else(|| serde::de::Error::custom("metadata.uid is missing"))?;
    let namespace = metadata.namespace.unwrap_or_else(|| "default".to_owned());
    let service_account = spec.service_account_name.filter(|name| !name.is_empty());
    Ok(PodObject {
        name: PodName::new(namespace, metadata.name),
        uid: PodUid::new(&uid),
        node: spec.node_name,
        service_account: service_account.unwrap_or_else(|| "default".to_owned()),
        host_network: spec.host_network.unwrap_or(false),
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
    })
}

/// Reads a Namespace object: its name and labels.
pub(crate) fn namespace(
    json: &[u8],
) -> Result<(String, BTreeMap<String, String>), serde_json::Error> {
    let Namespace { metadata } = serde_json::from_slice(json)?;
    Ok((metadata.name, metadata.labels.unwrap_or_default()))
}

/// Reads the status that the pod runner writes.
pub(crate) fn status(json: &[u8]) -> Result<PodStatus, serde_json::Error> {
    let status: Status = serde_json::from_slice(json)?;
    let terminated = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    Ok(PodStatus {
        uid: PodUid::new(&status.uid),
        node: status.node,
        terminated,
        ips: status.pod_ips,
        netns: status.netns.filter(|path| !path.as_os_str().is_empty()).map(Place::At),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_reduced_to_what_enrolment_depends_on() {
        let json = br#"{"apiVersion":"v1","kind":"Pod",
            "metadata":{"name":"web","namespace":"shop","uid":"u1","labels":{"a":"b"},
                "annotations":null},
            "spec":{"nodeName":"node-1","serviceAccountName":"","hostNetwork":true,
                "containers":[]}}"#;
        let pod = pod(json).expect("a pod");
        assert_eq!(pod.name.to_string(), "shop/web");
        assert_eq!((pod.uid.as_str(), pod.service_account.as_str()), ("u1", "default"));
        assert!(pod.host_network && pod.annotations.is_empty());
        assert_eq!(pod.labels["a"], "b");
    }

    #[test]
    fn a_pod_without_uid_or_with_a_wrong_type_is_refused() {
        for json in [
            &br#"{"metadata":{"name":"web"}}"#[..],
            br#"{"metadata":{"name":"web","uid":"u","labels":["x"]}}"#,
            b"{",
        ] {
            pod(json).expect_err("refused");
        }
    }

    #[test]
    fn a_status_tells_the_namespace_and_whether_the_pod_ended() {
        let json =
            br#"{"uid":"u1","node":"node-1","phase":"Failed","podIPs":["10.244.1.5","fd00::5"],
            "ready":false,"netns":"/run/x","pid":7,"restarts":1,"reason":"","startedAt":"now"}"#;
        let status = status(json).expect("a status");
        assert!(status.terminated && status.ips.len() == 2);
        assert_eq!(status.netns, Some(Place::At("/run/x".into())));
        let json = br#"{"uid":"u1","phase":"Pending","netns":""}"#;
        let status = super::status(json).expect("a status");
        assert!(!status.terminated && status.netns.is_none());
    }
}
