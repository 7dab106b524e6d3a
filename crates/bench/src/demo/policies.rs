//! Allowed and denied connections, each with the rule that decides.

use std::time::Duration;

use ambit_load::Report;
use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Attempt, Flip, PolicyProof, Strict};
use super::stage::{POLICIES, STRICT, Stage};

/// Each policy of the example: who it lets in, who it does not, and to what.
const CASES: [(&str, &str, &str, &str); 4] = [
    ("tier-1-app-a-viewer", "client/load", "ns-1/tier-3-app-a-v1", "tier-1-app-a"),
    ("tier-2-app-a-viewer", "ns-1/tier-1-app-a", "client/load", "tier-2-app-a"),
    ("tier-2-app-b-viewer", "ns-1/tier-1-app-a", "client/load", "tier-2-app-b"),
    ("tier-3-app-a-viewer", "ns-1/tier-2-app-a-v1", "client/load", "tier-3-app-a"),
];

/// What a client outside the mesh can prove.
const NO_IDENTITY: &str = "no identity";

/// How long pods may take to start.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Applies the policies and tries each from an allowed and from a denied client.
pub(super) async fn prove(stage: &Stage) -> Result<Vec<PolicyProof>> {
    stage.apply("policies", POLICIES).await?;
    let mut proofs = Vec::new();
    for (policy, good, bad, service) in CASES {
        stage
            .settled(&format!("{policy} is in force"), async || {
                Ok(!attempt(stage, bad, service).await?.connected)
            })
            .await?;
        let allowed = attempt(stage, good, service).await?;
        let denied = attempt(stage, bad, service).await?;
        let is_named = allowed.decided_by.contains(policy) && denied.reason.contains(policy);
        let holds = allowed.connected && !denied.connected && is_named;
        proofs.push(PolicyProof { policy: policy.to_owned(), allowed, denied, holds });
    }
    Ok(proofs)
}

/// The same pod twice; only its service account differs.
pub(super) async fn flip(stage: &Stage) -> Result<Flip> {
    let with_vegeta = attempt_as(stage, "vegeta").await?;
    let with_other = attempt_as(stage, "bystander").await?;
    let holds = with_vegeta.connected && !with_other.connected;
    Ok(Flip { with_vegeta, with_other, holds })
}

async fn attempt_as(stage: &Stage, account: &str) -> Result<Attempt> {
    let manifests = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {account}, namespace: client}}\n\
         ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: flip, namespace: client}}\nspec:\n  \
         serviceAccountName: {account}\n  containers:\n  - name: flip\n    \
         image: ambit/sample:1\n    args: [sleep]\n"
    );
    let pod_only = "apiVersion: v1\nkind: Pod\nmetadata: {name: flip, namespace: client}\n\
                    spec: {containers: [{name: flip, image: \"ambit/sample:1\", args: [sleep]}]}\n";
    stage.apply("flip", &manifests).await?;
    stage.client().wait_until_ready(READY_TIMEOUT, |_| {}).await?;
    stage
        .settled("the new pod is captured", async || {
            Ok(stage.pod("client", "flip").await?.captured)
        })
        .await?;
    let attempt = attempt(stage, "client/flip", "tier-1-app-a").await?;
    stage.delete("flip-delete", pod_only).await?;
    stage
        .settled("the pod is gone", async || {
            let pods = stage.client().pods().await?;
            Ok(!pods.iter().any(|pod| pod.name == "flip"))
        })
        .await?;
    Ok(attempt)
}

/// A client outside the mesh, before and under STRICT.
pub(super) async fn strict(stage: &Stage) -> Result<Strict> {
    let service = "details-two-writes";
    let before = attempt(stage, "outside/stranger", service).await?;
    stage.apply("strict", STRICT).await?;
    stage
        .settled("STRICT is in force", async || {
            Ok(!attempt(stage, "outside/stranger", service).await?.connected)
        })
        .await?;
    let under_strict = attempt(stage, "outside/stranger", service).await?;
    let meshed = attempt(stage, "client/load", service).await?;
    let holds = before.connected && !under_strict.connected && meshed.connected;
    Ok(Strict { before, under_strict, meshed, holds })
}

/// One request from a pod to a service of ns-1, and what `ambit why` says about it.
async fn attempt(stage: &Stage, from: &str, service: &str) -> Result<Attempt> {
    let (port, path) = match service {
        "details-two-writes" => (9080, "/details/0"),
        _ => (8080, "/"),
    };
    let url = format!("http://{service}.ns-1:{port}{path}");
    let words = "--rate 1 --connections 1 --duration 500ms --keep-going --output json";
    let words: Vec<&str> = ["load", &url].into_iter().chain(words.split(' ')).collect();
    let result = stage.in_pod(from, &words, "").await?;
    let result: Report = serde_json::from_value(result).context("read the load's result")?;
    let (namespace, name) = from.split_once('/').context("a pod has a namespace")?;
    let pod = stage.pod(namespace, name).await?;
    let source = format!("{namespace}/{}", pod.name);
    let destination = format!("ns-1/{service}:{port}");
    let why = stage.ambit(&["why", &source, &destination, "-o", "json"]).await?;
    let why: Value = serde_json::from_str(&why).context("read why")?;
    let text =
        |pointer: &str| why.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    // A refusal by the mesh is a connection that ends before any answer; a status would be the
    // application's own word.
    let by_application = result.errors.keys().any(|reason| reason.starts_with("status"));
    let is_captured = why["source"]["captured"] == true;
    Ok(Attempt {
        from: source,
        identity: if is_captured { text("/source/identity") } else { NO_IDENTITY.to_owned() },
        to: destination,
        connected: result.failed == 0 || by_application,
        seen: result.errors.into_keys().collect::<Vec<_>>().join(", "),
        decided_by: text("/policy/name"),
        reason: text("/reason"),
    })
}
