//! The objects of a large cluster, by number.
//!
//! Nodes carry the annotation by which kwok knows its own, and a taint that keeps real pods off;
//! pods say themselves that they are captured, as an agent would.

use std::net::Ipv4Addr;
use std::time::Instant;

use ambit_words::annotations::{ENABLED, REDIRECTION};
use ambit_words::labels;
use ambit_words::names::{DEFAULT_MESH_NAMESPACE, PROXY};
use anyhow::Result;
use futures::stream::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::api::Api;
use super::{PopulateArgs, Size};

/// The first pod's address, and that of the first proxy's pod.
const FIRST_POD: u32 = 0x0a80_0001;
const FIRST_PROXY: u32 = 0x0af0_0001;
/// Which address kwok is to give a pod.
const ADDRESS: &str = "scale.ambit/ip";

/// Writes what is missing.
pub(super) async fn run(args: &PopulateArgs) -> Result<()> {
    let api = Api::open(&args.kubeconfig).await?;
    let start = Instant::now();
    let size = args.size;
    if args.pods_before == 0 {
        make(&api, args.writers, (0..size.nodes).map(|it| ("/api/v1/nodes".into(), node(it))))
            .await?;
        let namespaces = (0..size.namespaces).map(|it| {
            let name = namespace(it);
            let metadata =
                json!({"name": name, "labels": {labels::DATAPLANE_MODE: labels::AMBIENT}});
            ("/api/v1/namespaces".to_owned(), json!({ "metadata": metadata }))
        });
        make(&api, args.writers, namespaces).await?;
        let proxies = (0..size.nodes).map(|it| (path(DEFAULT_MESH_NAMESPACE, "pods"), proxy(it)));
        make(&api, args.writers, proxies).await?;
    }
    let services = args.services_before..size.services;
    let services =
        services.map(|it| (path(&namespace(it % size.namespaces), "services"), service(it)));
    make(&api, args.writers, services).await?;
    let pods = args.pods_before..size.pods;
    let pods = pods.map(|it| (path(&pod_namespace(size, it), "pods"), pod(size, it)));
    make(&api, args.writers, pods).await?;
    println!("{}", json!({ "seconds": start.elapsed().as_secs_f64() }));
    Ok(())
}

async fn make(
    api: &Api,
    writers: usize,
    objects: impl Iterator<Item = (String, Value)>,
) -> Result<()> {
    let making = objects.map(|(path, object)| async move { api.make(&path, &object).await });
    futures::stream::iter(making).buffer_unordered(writers).try_collect().await
}

/// Where objects of a kind are made.
pub(super) fn path(namespace: &str, plural: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}")
}

fn namespace(index: u32) -> String {
    format!("scale-{index:03}")
}

/// The namespace of a pod is that of the service that selects it.
pub(super) fn pod_namespace(size: Size, index: u32) -> String {
    namespace(index % size.services % size.namespaces)
}

/// The name of a pod, made as a Deployment's would be.
pub(super) fn pod_name(size: Size, index: u32) -> String {
    format!("app-{}-6d4cf56db6-{index:05}", index % size.services)
}

pub(super) fn node_name(index: u32) -> String {
    format!("scale-node-{index:04}")
}

/// The name of the pod of a node's proxy.
pub(super) fn proxy_name(index: u32) -> String {
    format!("scale-ztunnel-{index:04}")
}

fn node(index: u32) -> Value {
    let name = node_name(index);
    json!({
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                labels::HOSTNAME: name,
                labels::REGION: "region-1",
                labels::ZONE: format!("zone-{}", index % 3),
            },
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "effect": "NoSchedule"}]},
    })
}

fn service(index: u32) -> Value {
    json!({
        "metadata": {
            "name": format!("app-{index}"),
            // Not for the real nodes' kube-proxy.
            "labels": {"service.kubernetes.io/service-proxy-name": "none"},
        },
        "spec": {
            "selector": {"app": format!("app-{index}")},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    })
}

fn pod(size: Size, index: u32) -> Value {
    let app = format!("app-{}", index % size.services);
    let labels = json!({"app": app, "version": "v1", "pod-template-hash": "6d4cf56db6"});
    let address = Ipv4Addr::from(FIRST_POD + index);
    let node = node_name(index % size.nodes);
    let mut pod = any_pod(&pod_name(size, index), &node, address, "default", labels);
    pod["metadata"]["annotations"][REDIRECTION] = ENABLED.into();
    pod
}

fn proxy(index: u32) -> Value {
    let address = Ipv4Addr::from(FIRST_PROXY + index);
    let labels = json!({"app": "scale-ztunnel"});
    any_pod(&proxy_name(index), &node_name(index), address, PROXY, labels)
}

fn any_pod(name: &str, node: &str, address: Ipv4Addr, account: &str, labels: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": {ADDRESS: address}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "app",
                "image": "registry.local/none:1",
                "ports": [{"name": "http", "containerPort": 8080}],
            }],
        },
    })
}
