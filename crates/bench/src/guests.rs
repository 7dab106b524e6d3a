//! The pods of `path` on a cluster, as Kubernetes JSON without a namespace: each mode has its own.
//!
//! They need nothing that the pod security level `restricted` forbids, and select their node by
//! affinity, so the scheduler still checks whether they fit.

use serde_json::{Value, json};

use super::experiment::{CLUSTER_CLIENT, CLUSTER_NEIGHBOUR, CLUSTER_SERVER, CLUSTER_STRANGER};

/// Whom the policy lets in, and who else there is: accounts of the same names as their pods.
const SERVERS: &str = "server";
/// The container of those who only call.
pub(super) const CLIENT_CONTAINER: &str = "sleep";
/// The user of all of them: none that a file of the image belongs to.
const USER: u32 = 65532;
/// HTTP, and a sink for streams.
const PORTS: [(&str, u16); 2] = [("echo", 8080), ("sink", 9000)];

/// The objects in the namespace of every mode. The client is on the first node, and so is one
/// server; the other one is on the second node, if there is one.
pub(super) fn objects(image: &str, nodes: &[String]) -> Vec<Value> {
    let Some(here) = nodes.first() else { return Vec::new() };
    let mut servers = vec![(CLUSTER_NEIGHBOUR, here)];
    servers.extend(nodes.get(1).map(|there| (CLUSTER_SERVER, there)));
    let accounts = [CLUSTER_CLIENT, CLUSTER_STRANGER, SERVERS].map(account);
    let clients = [CLUSTER_CLIENT, CLUSTER_STRANGER]
        .map(|name| pod(name, name, here, &[container(CLIENT_CONTAINER, image, &["sleep"], None)]));
    let servers = servers.into_iter().flat_map(|(name, node)| {
        let containers = PORTS.map(|(sample, port)| {
            let listen = format!("[::]:{port}");
            container(sample, image, &[sample, "--listen", &listen], Some(port))
        });
        [service(name), pod(name, SERVERS, node, &containers)]
    });
    accounts.into_iter().chain(servers).chain(clients).collect()
}

/// The client may call the servers, and nobody else may.
pub(super) fn policy() -> Value {
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": { "name": "server-viewer" },
        "spec": {
            "selector": { "matchLabels": { "role": SERVERS } },
            "action": "ALLOW",
            // Of any trust domain and namespace: each mode has its own, which a policy of the
            // namespace alone cannot know.
            "rules": [{ "from": [{ "source": {
                "principals": [format!("*/sa/{CLUSTER_CLIENT}")]
            } }] }]
        }
    })
}

fn account(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } })
}

fn service(name: &str) -> Value {
    let port = |(name, port): (&str, u16)| json!({ "name": format!("tcp-{name}"), "port": port });
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name },
        "spec": { "selector": { "app": name }, "ports": PORTS.map(port) }
    })
}

fn pod(name: &str, account: &str, node: &str, containers: &[Value]) -> Value {
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let terms = json!([{ "matchFields": [field] }]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name, "role": account } },
        "spec": {
            "serviceAccountName": account,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms }
            } },
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": { "type": "RuntimeDefault" }
            },
            "containers": containers
        }
    })
}

fn container(name: &str, image: &str, words: &[&str], port: Option<u16>) -> Value {
    let mut container = json!({
        "name": name,
        "image": image,
        // The proxy of the node has brought it there; its secrets are in another namespace.
        "imagePullPolicy": "IfNotPresent",
        "command": ["/ambit", "sample"],
        "args": words,
        "resources": { "requests": { "cpu": "50m", "memory": "32Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] }
        }
    });
    if let Some(port) = port {
        container["readinessProbe"] = json!({ "tcpSocket": { "port": port }, "periodSeconds": 2 });
    }
    container
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(nodes: &[&str]) -> Vec<(String, String)> {
        let nodes: Vec<String> = nodes.iter().map(|it| (*it).to_owned()).collect();
        let objects = objects("ambit:1", &nodes);
        let pods = objects.iter().filter(|it| it["kind"] == "Pod");
        let node = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/\
                    nodeSelectorTerms/0/matchFields/0/values/0";
        let text = |value: Option<&Value>| value.unwrap().as_str().unwrap().to_owned();
        pods.map(|it| (text(it.pointer("/metadata/name")), text(it.pointer(node)))).collect()
    }

    #[test]
    fn client_and_neighbour_share_a_node_and_the_server_has_another() {
        let named = |pods: Vec<(&str, &str)>| -> Vec<(String, String)> {
            pods.into_iter().map(|(pod, node)| (pod.to_owned(), node.to_owned())).collect()
        };
        let here = [("neighbour", "n1"), ("client", "n1"), ("stranger", "n1")];
        assert_eq!(pods(&["n1"]), named(here.to_vec()));
        let both = [here[0], ("server", "n2"), here[1], here[2]];
        assert_eq!(pods(&["n1", "n2"]), named(both.to_vec()));
        assert!(pods(&[]).is_empty());
    }

    #[test]
    fn who_calls_has_the_container_that_loads_run_in() {
        let objects = objects("ambit:1", &["n1".to_owned()]);
        for caller in [CLUSTER_CLIENT, CLUSTER_STRANGER] {
            let is_caller = |it: &&Value| it["kind"] == "Pod" && it["metadata"]["name"] == caller;
            let pod = objects.iter().find(is_caller).unwrap();
            assert_eq!(pod["spec"]["containers"][0]["name"], CLIENT_CONTAINER);
        }
    }

    #[test]
    fn every_pod_is_fit_for_a_restricted_namespace() {
        let objects = objects("ambit:1", &["n1".to_owned(), "n2".to_owned()]);
        let pods: Vec<&Value> = objects.iter().filter(|it| it["kind"] == "Pod").collect();
        for pod in &pods {
            let spec = &pod["spec"];
            assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
            assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
            for container in spec["containers"].as_array().unwrap() {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false);
                assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
                assert_eq!(container["image"], "ambit:1");
            }
            let account = &spec["serviceAccountName"];
            let is_account = |it: &Value| it["kind"] == "ServiceAccount";
            let mut accounts = objects.iter().filter(|it| is_account(it));
            assert!(accounts.any(|it| it["metadata"]["name"] == *account), "{account}");
        }
    }

    #[test]
    fn the_policy_selects_servers_and_names_the_client() {
        let policy = policy();
        assert_eq!(policy["spec"]["selector"]["matchLabels"]["role"], "server");
        assert!(policy.to_string().contains("*/sa/client\""), "{policy}");
    }
}
