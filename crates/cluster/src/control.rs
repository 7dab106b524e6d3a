//! Requests to the control plane, whose replicas have the same view but different proxies.
//!
//! A proxy is connected to one replica, so the lists of connections are merged from all replicas;
//! any replica can answer everything else.

use ambit_wire::admin::{Explanation, List, Node, Status, control};
use ambit_words::ports;
use serde::de::DeserializeOwned;

use crate::api::ClusterError;
use crate::parts::PodName;

impl crate::Cluster {
    /// How the mesh is, put together of what all replicas of control say.
    pub async fn status(&self) -> Result<Status, ClusterError> {
        self.ask_all(control::STATUS).await.map(merge_status)
    }

    /// The nodes, each connected if its proxy is connected to any replica.
    pub async fn nodes(&self) -> Result<List<Node>, ClusterError> {
        self.ask_all(control::NODES).await.map(merge_nodes)
    }

    /// What happens to a connection, by the replica that issued the client's certificate. The
    /// target is [`control::WHY`] with its parameters.
    pub async fn why(&self, target: &str) -> Result<Explanation, ClusterError> {
        self.ask_all(target).await.map(merge_why)
    }

    /// Asks control what any replica answers alike: one after another until one answers. What a
    /// replica refuses, all refuse.
    pub async fn ask_control<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClusterError> {
        let mut last = None;
        for pod in self.control_pods().await? {
            match self.ask(&pod, ports::CONTROL_ADMIN, target).await {
                Err(error @ ClusterError::Forward { .. }) => last = Some(error),
                answer => return answer,
            }
        }
        Err(last.expect("without a pod of control there is an error before"))
    }

    /// The answers of all replicas; one at least.
    async fn ask_all<T: DeserializeOwned>(&self, target: &str) -> Result<Vec<T>, ClusterError> {
        let pods = self.control_pods().await?;
        let ask = |pod: PodName| async move { self.ask(&pod, ports::CONTROL_ADMIN, target).await };
        let answers = futures::future::join_all(pods.into_iter().map(ask)).await;
        answers.into_iter().collect()
    }
}

/// One status of all replicas' ones.
fn merge_status(mut answers: Vec<Status>) -> Status {
    let replicas = answers.len();
    let mut merged = answers.swap_remove(0);
    for other in answers {
        merged.discovery.clients += other.discovery.clients;
        merged.discovery.behind.extend(other.discovery.behind);
        merged.authority.issued += other.authority.issued;
        // Without a proxy is the node whose proxy no replica knows.
        let without = &other.discovery.nodes_without_proxy;
        merged.discovery.nodes_without_proxy.retain(|node| without.contains(node));
        merged.authority.problem = merged.authority.problem.or(other.authority.problem);
    }
    merged.replicas = Some(replicas);
    merged
}

fn merge_nodes(mut answers: Vec<List<Node>>) -> List<Node> {
    let mut merged = answers.swap_remove(0);
    for node in &mut merged.items {
        let mut others = answers.iter().flat_map(|answer| &answer.items);
        node.proxy_connected |= others.any(|it| it.name == node.name && it.proxy_connected);
    }
    merged
}

fn merge_why(mut answers: Vec<Explanation>) -> Explanation {
    let issuer = answers.iter().position(|answer| answer.certificate.is_some());
    answers.swap_remove(issuer.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use ambit_wire::admin::{
        ApiVersion, Authority, CertificateInForce, Client, Decision, Destination, Discovery,
    };

    use super::*;

    #[test]
    fn what_replicas_say_of_their_connections_is_put_together() {
        let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let replica = |clients: usize, without: &[&str], behind: &[&str]| Status {
            discovery: Discovery {
                clients,
                nodes_without_proxy: texts(without),
                behind: texts(behind),
            },
            authority: Authority { issued: clients, ..Authority::default() },
            ..Status::default()
        };
        let merged = merge_status(vec![
            replica(2, &["n3", "n4"], &["n1: late"]),
            replica(1, &["n1", "n2", "n4"], &[]),
        ]);
        let discovery = replica(3, &["n4"], &["n1: late"]).discovery;
        assert_eq!(merged.discovery, discovery);
        assert_eq!((merged.replicas, merged.authority.issued), (Some(2), 3));
    }

    #[test]
    fn a_node_is_connected_to_any_replica() {
        let nodes = |first, second| {
            let node = |(name, proxy_connected): (&str, bool)| Node {
                name: name.to_owned(),
                proxy_connected,
                ..Node::default()
            };
            List::from_iter([("n1", first), ("n2", second)].map(node))
        };
        let merged = merge_nodes(vec![nodes(true, false), nodes(false, true)]);
        assert_eq!(merged, nodes(true, true));
        assert_eq!(merge_nodes(vec![nodes(true, false)]), nodes(true, false));
    }

    #[test]
    fn the_issuer_of_the_certificate_explains() {
        let why = |serial: Option<&str>| Explanation {
            api_version: ApiVersion,
            source: Client {
                pod: "app/web".to_owned(),
                address: [10, 0, 0, 1].into(),
                node: "n1".to_owned(),
                captured: true,
                identity: "spiffe://cluster.local/ns/app/sa/web".to_owned(),
            },
            certificate: serial.map(|serial| CertificateInForce {
                serial: serial.to_owned(),
                not_after: "2026-06-02T00:00:00Z".to_owned(),
            }),
            destination: Destination {
                name: "app/db".to_owned(),
                address: ([10, 0, 0, 2], 80).into(),
            },
            plan: "tunnel".into(),
            path: None,
            server: None,
            decision: Decision::Allow,
            decided_by: None,
            policy: None,
            reason: String::new(),
            remedy: None,
            request: None,
            connection: None,
            notes: Vec::new(),
        };
        assert_eq!(merge_why(vec![why(None), why(Some("1"))]), why(Some("1")));
        assert_eq!(merge_why(vec![why(None)]), why(None));
    }
}
