//! What a user, or a service account, may do on a cluster, according to its API server.

use std::fmt;

use futures::StreamExt;
use serde_json::{Value, json};

use crate::api::ClusterError;
use crate::json::text;

/// Questions that are asked at the same time.
pub(crate) const ASKED_AT_ONCE: usize = 6;
/// The first minor version that asks who opens a WebSocket to a pod for `create` too.
const WEBSOCKET_CREATE_MINOR: u32 = 35;

/// Something to be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Such as `create`.
    pub verb: &'static str,
    /// Empty for Kubernetes' own objects.
    pub group: &'static str,
    /// In the plural, with its part if one is meant: `pods/exec`.
    pub resource: &'static str,
    /// Empty for the whole cluster.
    pub namespace: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

impl crate::Cluster {
    /// Which of these the user lacks, in their order.
    pub async fn lacking(&self, rights: Vec<Right>) -> Result<Vec<Right>, ClusterError> {
        let asked = rights.into_iter().map(|right| async move {
            let is_allowed = self.may(None, &right).await?;
            Ok::<_, ClusterError>((!is_allowed).then_some(right))
        });
        let mut answers = futures::stream::iter(asked).buffered(ASKED_AT_ONCE);
        let mut lacking = Vec::new();
        while let Some(answer) = answers.next().await {
            lacking.extend(answer?);
        }
        Ok(lacking)
    }

    /// Whether a user may do it; without a user, the caller.
    pub(crate) async fn may(
        &self,
        user: Option<String>,
        right: &Right,
    ) -> Result<bool, ClusterError> {
        let (kind, spec) = match user {
            None => ("SelfSubjectAccessReview", json!({"resourceAttributes": attributes(right)})),
            Some(user) => (
                "SubjectAccessReview",
                json!({"user": user, "resourceAttributes": attributes(right)}),
            ),
        };
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_lowercase());
        let answer = self.review(&path, &review).await?;
        Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
    }

    /// The verbs that `exec` and port-forwards need: they are WebSockets, which begin as a GET.
    pub async fn websocket_verbs(&self) -> Result<&'static [&'static str], ClusterError> {
        let version = self.read("/version").await?;
        let is_new = minor(&version).is_some_and(|minor| minor >= WEBSOCKET_CREATE_MINOR);
        let verbs: &[&str] = if is_new { &["get", "create"] } else { &["get"] };
        Ok(verbs)
    }
}

/// The minor version of an API server of version 1.
pub(crate) fn minor(version: &Value) -> Option<u32> {
    // Some providers write the minor version as `30+`.
    let minor = text(version, "/minor").trim_end_matches('+').parse();
    minor.ok().filter(|_| text(version, "/major") == "1")
}

/// As the API server itself takes a request apart: a namespace lies in itself.
fn attributes(right: &Right) -> Value {
    let (resource, part) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let name = if resource == "namespaces" { &*right.namespace } else { "" };
    json!({"group": right.group, "resource": resource, "subresource": part, "verb": right.verb,
        "namespace": right.namespace, "name": name})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::playing;

    fn right(verb: &'static str, resource: &'static str, namespace: &str) -> Right {
        Right { verb, group: "", resource, namespace: namespace.to_owned() }
    }

    #[tokio::test]
    async fn what_is_not_allowed_is_lacking() {
        let cluster = playing(|_, _| (201, json!({"status": {"allowed": false}})));
        let rights = vec![right("create", "pods", "a"), right("list", "nodes", "")];
        assert_eq!(cluster.lacking(rights.clone()).await.unwrap(), rights);
        let cluster = playing(|_, path| {
            assert_eq!(path, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
            (201, json!({"status": {"allowed": true}}))
        });
        assert_eq!(cluster.lacking(rights.clone()).await.unwrap(), []);
        let cluster = playing(|_, _| (500, json!({"kind": "Status", "code": 500})));
        assert!(cluster.lacking(rights).await.is_err());
    }

    #[tokio::test]
    async fn who_opens_a_websocket_gets_and_from_some_version_on_creates() {
        let check = async |major: &'static str, minor: &'static str, expected: &[&str]| {
            let version = move || json!({"major": major, "minor": minor});
            let cluster = playing(move |_, _| (200, version()));
            assert_eq!(cluster.websocket_verbs().await.unwrap(), expected, "{major}.{minor}");
        };
        check("1", "34", &["get"]).await;
        check("1", "35+", &["get", "create"]).await;
        check("1", "later", &["get"]).await;
    }

    #[test]
    fn a_right_is_asked_for_as_the_request_will_be() {
        let check = |right: &Right, resource: &str, part: &str, name: &str| {
            let asked = attributes(right);
            let text = |field| text(&asked, field);
            let found = (text("/resource"), text("/subresource"), text("/name"));
            assert_eq!(found, (resource, part, name), "{asked}");
            assert_eq!(asked["namespace"], right.namespace);
        };
        check(&right("get", "pods/exec", "a"), "pods", "exec", "");
        check(&right("delete", "namespaces", "a"), "namespaces", "", "a");
        check(&right("create", "namespaces", ""), "namespaces", "", "");
        let daemon_set = Right { group: "apps", ..right("get", "daemonsets", "a") };
        assert_eq!(daemon_set.to_string(), "get daemonsets.apps");
    }
}
