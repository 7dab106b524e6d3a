//! Questions to the control plane, whose replicas all have the same view but not the same proxies.
//!
//! A proxy is connected to one replica. What a replica says of its connections is therefore put
//! together from all of them; everything else any replica can answer.

use serde_json::{Value, json};

use crate::api::ClusterError;
use crate::json::{items, text};
use crate::parts::{CONTROL_PORT, PodName};

impl crate::Cluster {
    /// Asks control, by the paths of its administration.
    pub async fn ask_control(&self, target: &str) -> Result<Value, ClusterError> {
        let pods = self.control_pods().await?;
        let path = target.split('?').next().unwrap_or_default();
        let merge: fn(Vec<Value>) -> Value = match path {
            "/status" => merge_status,
            "/get/nodes" => merge_nodes,
            "/why" => merge_why,
            _ => return self.ask_any(&pods, target).await,
        };
        let asked = pods.iter().map(|pod| self.ask(pod, CONTROL_PORT, target));
        let mut answers = Vec::new();
        for answer in futures::future::join_all(asked).await {
            answers.push(answer?);
        }
        Ok(merge(answers))
    }

    /// Asks one replica after another until one answers. What a replica refuses, all refuse.
    async fn ask_any(&self, pods: &[PodName], target: &str) -> Result<Value, ClusterError> {
        let mut last = None;
        for pod in pods {
            match self.ask(pod, CONTROL_PORT, target).await {
                Err(error @ ClusterError::Forward { .. }) => last = Some(error),
                answer => return answer,
            }
        }
        Err(last.expect("without a pod of control there is an error before"))
    }
}

/// One status of all replicas' ones.
fn merge_status(mut answers: Vec<Value>) -> Value {
    let texts = |answer: &Value, pointer: &str| -> Vec<String> {
        items(answer, pointer).filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let count = |pointer: &str| -> u64 {
        answers.iter().map(|answer| crate::json::number(answer, pointer)).sum()
    };
    let (clients, issued) = (count("/discovery/clients"), count("/authority/issued"));
    // Without a proxy is the node whose proxy no replica knows.
    let nodes = "/discovery/nodesWithoutProxy";
    let mut without = answers.first().map(|it| texts(it, nodes)).unwrap_or_default();
    for answer in &answers {
        let of_this = texts(answer, nodes);
        without.retain(|node| of_this.contains(node));
    }
    let behind: Vec<String> =
        answers.iter().flat_map(|answer| texts(answer, "/discovery/behind")).collect();
    let replicas = answers.len();
    let mut merged = answers.swap_remove(0);
    merged["replicas"] = json!(replicas);
    merged["discovery"]["clients"] = json!(clients);
    merged["discovery"]["nodesWithoutProxy"] = json!(without);
    merged["discovery"]["behind"] = json!(behind);
    merged["authority"]["issued"] = json!(issued);
    merged
}

/// The nodes, each connected if its proxy is connected to any replica.
fn merge_nodes(mut answers: Vec<Value>) -> Value {
    let connected: Vec<String> = answers
        .iter()
        .flat_map(|answer| items(answer, "/items"))
        .filter(|node| node["proxyConnected"] == true)
        .map(|node| text(node, "/name").to_owned())
        .collect();
    let mut merged = answers.swap_remove(0);
    for node in merged["items"].as_array_mut().into_iter().flatten() {
        node["proxyConnected"] = json!(connected.iter().any(|name| name == text(node, "/name")));
    }
    merged
}

/// The explanation of the replica that issued the client's certificate.
fn merge_why(mut answers: Vec<Value>) -> Value {
    let issuer = answers.iter().position(|answer| !answer["certificate"].is_null());
    answers.swap_remove(issuer.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replicas_say_of_their_connections_is_put_together() {
        let replica = |clients: u64, without: Value, behind: Value| {
            json!({
                "version": "1",
                "discovery": {"clients": clients, "nodesWithoutProxy": without, "behind": behind},
                "authority": {"issued": clients},
            })
        };
        let merged = merge_status(vec![
            replica(2, json!(["n3", "n4"]), json!(["n1: late"])),
            replica(1, json!(["n1", "n2", "n4"]), json!([])),
        ]);
        let discovery = json!({"clients": 3, "nodesWithoutProxy": ["n4"], "behind": ["n1: late"]});
        assert_eq!(merged["discovery"], discovery);
        assert_eq!((&merged["replicas"], &merged["authority"]["issued"]), (&json!(2), &json!(3)));

        let nodes = |first, second| {
            json!({"items": [{"name": "n1", "proxyConnected": first},
                {"name": "n2", "proxyConnected": second}]})
        };
        let merged = merge_nodes(vec![nodes(true, false), nodes(false, true)]);
        assert_eq!(merged, nodes(true, true));
        assert_eq!(merge_nodes(vec![nodes(true, false)]), nodes(true, false));

        let why = |serial: Value| json!({"certificate": serial});
        assert_eq!(merge_why(vec![why(Value::Null), why(json!("1"))]), why(json!("1")));
        assert_eq!(merge_why(vec![why(Value::Null)]), why(Value::Null));
    }
}
