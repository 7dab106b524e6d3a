//! Lists of pods, cheaply.
//!
//! What the start of a control plane waits for in a large cluster is the list of its pods. In pages
//! of JSON each costs the API server a read of its store, and both ends three kilobytes or more for
//! the few hundred bytes that a view is made of. So the list is asked for at once, which the API
//! server answers from its memory, and in protobuf, of which what nobody needs is skipped.
//! [`client`] makes a client that does so below a watcher: the watcher asks for pages and gets
//! them, as the JSON that is left, while the list is still coming. Everything else goes through as
//! it is: watches, refusals, and the answer of whoever serves no protobuf.

use std::sync::Arc;

use ambit_wire::kubernetes::{MEDIA_TYPE, Part, PodListReader};
use ambit_wire::proto::kubernetes as message;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::{PAGE, reduce};

/// Where the API server has all pods.
const PODS: &str = "/api/v1/pods";
/// What a watcher is told to continue with. The list itself has no such places.
const MORE: &str = "more";
/// Pages that are ready before they are asked for.
const READY: usize = 2;

/// A client whose lists of all pods come in protobuf.
pub(super) fn client(below: Client) -> Client {
    let pages = Arc::new(Pages { below, coming: Mutex::default() });
    let service = tower::service_fn(move |request| pages.clone().answer(request));
    Client::new(service, "default")
}

struct Pages {
    below: Client,
    /// The rest of the list that is being read.
    coming: Mutex<Option<Coming>>,
}

/// A list that is being read.
struct Coming {
    pages: mpsc::Receiver<kube::Result<Vec<u8>>>,
    /// Reads it, as long as somebody wants it.
    _reader: JoinSet<()>,
}

impl Pages {
    async fn answer(self: Arc<Self>, request: Request<Body>) -> kube::Result<Response<Body>> {
        let query = request.uri().query().unwrap_or_default();
        let has = |pair: &str| query.split('&').any(|it| it == pair);
        if request.uri().path() != PODS || has("watch=true") {
            return self.below.send(request).await;
        }
        let mut coming = self.coming.lock().await;
        if !has(&format!("continue={MORE}")) {
            *coming = None;
            let response = self.list().await?;
            if !is_protobuf(&response) {
                return Ok(response);
            }
            if !response.status().is_success() {
                // A refusal that the watcher can read.
                return self.below.send(request).await;
            }
            *coming = Some(Coming::read(response.into_body()));
        }
        let page = match coming.as_mut() {
            Some(coming) => coming.pages.recv().await,
            None => None,
        };
        // Without a page the reader was stopped; whatever has begun is begun again.
        page.unwrap_or_else(|| Err(cut("the list was given up")))
            .map(|page| Response::new(page.into()))
    }

    async fn list(&self) -> kube::Result<Response<Body>> {
        let accepted = format!("{MEDIA_TYPE}, application/json");
        let request = Request::get(PODS).header(ACCEPT, accepted).body(Body::empty());
        self.below.send(request.map_err(kube::Error::HttpError)?).await
    }
}

fn is_protobuf(response: &Response<Body>) -> bool {
    let is = |value: &HeaderValue| value.as_bytes().starts_with(MEDIA_TYPE.as_bytes());
    response.headers().get(CONTENT_TYPE).is_some_and(is)
}

/// Why a list ended before its time.
fn cut(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> kube::Error {
    kube::Error::Service(why.into())
}

impl Coming {
    fn read(body: Body) -> Self {
        let (sender, pages) = mpsc::channel(READY);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            if let Err(error) = read(body, &sender).await {
                // Nobody may want it any more.
                let _unwanted = sender.send(Err(error)).await;
            }
        });
        Self { pages, _reader: reader }
    }
}

/// Reads a list and sends its pages.
async fn read(mut body: Body, pages: &mpsc::Sender<kube::Result<Vec<u8>>>) -> kube::Result<()> {
    let mut reader = PodListReader::default();
    let mut page = List::<Pod>::default();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame?.into_data() else { continue };
        reader.feed(&bytes);
        while let Some(part) = reader.next_part().map_err(cut)? {
            match part {
                Part::Metadata(metadata) => {
                    page.metadata.resource_version = text(metadata.resource_version);
                }
                Part::Pod(it) => {
                    let mut pod = pod(*it);
                    (reduce::POD.reduce)(&mut pod);
                    page.items.push(pod);
                }
            }
            if page.items.len() == PAGE as usize {
                page.metadata.continue_ = Some(MORE.to_owned());
                send(&page, pages).await?;
                page.items.clear();
                page.metadata.continue_ = None;
            }
        }
    }
    reader.end().map_err(cut)?;
    send(&page, pages).await
}

async fn send(page: &List<Pod>, pages: &mpsc::Sender<kube::Result<Vec<u8>>>) -> kube::Result<()> {
    let json = serde_json::to_vec(page).map_err(kube::Error::SerdeError)?;
    pages.send(Ok(json)).await.map_err(cut)
}

/// An empty text is none: JSON leaves it out.
fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn pod(pod: message::Pod) -> Pod {
    Pod {
        metadata: pod.metadata.map(metadata).unwrap_or_default(),
        spec: pod.spec.map(spec),
        status: pod.status.map(status),
    }
}

fn metadata(metadata: message::ObjectMeta) -> ObjectMeta {
    let deleted = metadata.deletion_timestamp;
    let deleted = deleted.map(|it| Timestamp::new(it.seconds, it.nanos).unwrap_or_default());
    let owners = metadata.owner_references.into_iter().map(owner).collect::<Vec<_>>();
    ObjectMeta {
        name: text(metadata.name),
        namespace: text(metadata.namespace),
        uid: text(metadata.uid),
        resource_version: text(metadata.resource_version),
        deletion_timestamp: deleted.map(Time),
        labels: (!metadata.labels.is_empty()).then_some(metadata.labels),
        annotations: (!metadata.annotations.is_empty()).then_some(metadata.annotations),
        owner_references: (!owners.is_empty()).then_some(owners),
        ..ObjectMeta::default()
    }
}

fn owner(owner: message::OwnerReference) -> OwnerReference {
    OwnerReference {
        kind: owner.kind,
        name: owner.name,
        uid: owner.uid,
        api_version: owner.api_version,
        controller: owner.controller,
        block_owner_deletion: owner.block_owner_deletion,
    }
}

fn spec(spec: message::PodSpec) -> PodSpec {
    let containers = spec.containers.into_iter().map(|container| Container {
        name: container.name,
        ports: Some(container.ports.into_iter().map(port).collect()),
        ..Container::default()
    });
    PodSpec {
        containers: containers.collect(),
        service_account_name: text(spec.service_account_name),
        node_name: text(spec.node_name),
        host_network: spec.host_network.then_some(true),
        ..PodSpec::default()
    }
}

fn port(port: message::ContainerPort) -> ContainerPort {
    ContainerPort {
        name: text(port.name),
        host_port: (port.host_port != 0).then_some(port.host_port),
        container_port: port.container_port,
        protocol: text(port.protocol),
        host_ip: text(port.host_ip),
    }
}

fn status(status: message::PodStatus) -> PodStatus {
    let conditions = status.conditions.into_iter().map(|condition| PodCondition {
        type_: condition.r#type,
        status: condition.status,
        ..PodCondition::default()
    });
    let containers = status.container_statuses.into_iter().map(|container| ContainerStatus {
        restart_count: container.restart_count,
        ..ContainerStatus::default()
    });
    let ips = status.pod_ips.into_iter().map(|it| PodIP { ip: it.ip }).collect::<Vec<_>>();
    PodStatus {
        phase: text(status.phase),
        reason: text(status.reason),
        pod_ip: text(status.pod_ip),
        pod_ips: (!ips.is_empty()).then_some(ips),
        conditions: Some(conditions.collect()),
        container_statuses: Some(containers.collect()),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::{StreamExt, TryStreamExt};
    use http::StatusCode;
    use kube::Api;
    use kube::runtime::watcher;
    use prost::Message;
    use serde_json::json;

    use super::*;

    /// An API server that gives `answer` for the request of this number, and its client.
    fn api_server(
        answer: impl Fn(usize, &Request<Body>) -> Response<Body> + Send + Sync + 'static,
    ) -> (Client, Arc<AtomicUsize>) {
        let (answer, asked) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let counter = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answer, number) = (answer.clone(), counter.fetch_add(1, Ordering::Relaxed));
            async move { Ok::<_, kube::Error>(answer(number, &request)) }
        });
        (client(Client::new(service, "default")), asked)
    }

    fn protobuf(status: StatusCode, kind: &str, object: &impl Message) -> Response<Body> {
        let type_meta = message::TypeMeta { api_version: "v1".into(), kind: kind.into() };
        let wrapped = message::Unknown {
            type_meta: Some(type_meta),
            raw: object.encode_to_vec().into(),
            content_encoding: String::new(),
        };
        let body = [b"k8s\0", &wrapped.encode_to_vec()[..]].concat();
        let response = Response::builder().status(status).header(CONTENT_TYPE, MEDIA_TYPE);
        response.body(body.into()).unwrap()
    }

    fn list_of(pods: usize) -> message::PodList {
        let metadata = message::ListMeta { resource_version: "7".into() };
        let items = (0..pods).map(|n| message::Pod {
            metadata: Some(message::ObjectMeta { name: format!("web-{n}"), ..Default::default() }),
            ..Default::default()
        });
        message::PodList { metadata: Some(metadata), items: items.collect() }
    }

    /// What a watcher tells until the list is told, or the first error.
    async fn listed(client: &Client) -> watcher::Result<Vec<String>> {
        let config = watcher::Config::default().page_size(PAGE);
        let events = watcher::watcher(Api::<Pod>::all(client.clone()), config);
        let told = events.try_take_while(|event| {
            let is_over = matches!(event, watcher::Event::InitDone);
            async move { Ok(!is_over) }
        });
        let names = told.try_filter_map(|event| async move {
            Ok(match event {
                watcher::Event::InitApply(pod) => pod.metadata.name,
                _ => None,
            })
        });
        names.try_collect().await
    }

    #[tokio::test]
    async fn one_list_comes_in_pages() {
        for pods in [0, 1, 499, 500, 501, 1700] {
            let (client, asked) = api_server(move |_, request| {
                assert_eq!(request.uri(), PODS);
                protobuf(StatusCode::OK, "PodList", &list_of(pods))
            });
            let names = (0..pods).map(|n| format!("web-{n}")).collect::<Vec<_>>();
            assert_eq!(listed(&client).await.unwrap(), names);
            assert_eq!(asked.load(Ordering::Relaxed), 1, "{pods} pods");
        }
    }

    #[tokio::test]
    async fn the_watch_begins_where_the_list_ends() {
        let (client, _) = api_server(|_, request| {
            if !request.uri().query().unwrap_or_default().contains("watch=true") {
                return protobuf(StatusCode::OK, "PodList", &list_of(1));
            }
            assert!(request.uri().query().unwrap().contains("resourceVersion=7"));
            let pod = json!({"metadata": {"name": "new", "resourceVersion": "8"}});
            let event = format!("{}\n", json!({"type": "ADDED", "object": pod}));
            Response::new(event.into_bytes().into())
        });
        let config = watcher::Config::default().page_size(PAGE);
        let events = watcher::watcher(Api::<Pod>::all(client), config);
        let told = events.take(4).try_collect::<Vec<_>>().await.unwrap();
        let Some(watcher::Event::Apply(pod)) = told.last() else { panic!("{told:?}") };
        assert_eq!(pod.metadata.name.as_deref(), Some("new"));
    }

    #[tokio::test]
    async fn a_list_that_is_cut_is_none() {
        let whole = protobuf(StatusCode::OK, "PodList", &list_of(1200));
        let whole = whole.into_body().collect_bytes().await.unwrap();
        for end in [0, 3, 10, whole.len() / 2, whole.len() - 1] {
            let part = whole.slice(..end);
            let (client, _) = api_server(move |_, _| {
                let response = Response::builder().header(CONTENT_TYPE, MEDIA_TYPE);
                response.body(part.to_vec().into()).unwrap()
            });
            let error = listed(&client).await.unwrap_err();
            assert!(matches!(error, watcher::Error::InitialListFailed(_)), "{end}: {error}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_as_it_is() {
        let refusal = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
            "reason": "Forbidden", "message": "pods is forbidden",
        });
        let (client, asked) = api_server(move |number, _| match number {
            0 => protobuf(StatusCode::FORBIDDEN, "Status", &list_of(0)),
            _ => {
                let response = Response::builder().status(StatusCode::FORBIDDEN);
                response.body(refusal.to_string().into_bytes().into()).unwrap()
            }
        });
        let error = listed(&client).await.unwrap_err();
        let watcher::Error::InitialListFailed(kube::Error::Api(status)) = error else {
            panic!("{error}")
        };
        assert_eq!(status.message, "pods is forbidden");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_pod_says_the_same_in_both_encodings() {
        let in_json = json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30,
                "labels": {"app": "web"},
                "annotations": {"ambient.istio.io/redirection": "enabled", "other": "x"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "1"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "2",
                     "controller": true, "blockOwnerDeletion": true},
                ],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "web", "hostNetwork": true,
                "containers": [
                    {"name": "web", "image": "web", "ports": [
                        {"name": "http", "containerPort": 8080, "protocol": "TCP",
                         "hostPort": 80, "hostIP": "192.0.2.1"},
                        {"containerPort": 9090, "protocol": "TCP"},
                    ]},
                    {"name": "side", "image": "side"},
                ],
            },
            "status": {
                "phase": "Running", "reason": "Evicted", "podIP": "192.0.2.7",
                "podIPs": [{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}],
                "conditions": [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": "False"},
                ],
                "containerStatuses": [
                    {"name": "web", "restartCount": 3, "ready": true, "image": "", "imageID": ""},
                ],
            },
        });
        let reduced = |mut pod: Pod| {
            (reduce::POD.reduce)(&mut pod);
            serde_json::to_value(pod).unwrap()
        };
        let in_json: Pod = serde_json::from_value(in_json).unwrap();
        assert_eq!(reduced(pod(sample())), reduced(in_json));
        let nothing: Pod = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let named = message::ObjectMeta { name: "a".into(), ..Default::default() };
        let bare = message::Pod { metadata: Some(named), ..Default::default() };
        assert_eq!(reduced(pod(bare)), reduced(nothing));
    }

    /// The pod of the test above.
    fn sample() -> message::Pod {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let owner = |kind: &str, name: &str, uid: &str, api: &str, is: Option<bool>| {
            message::OwnerReference {
                kind: kind.into(),
                name: name.into(),
                uid: uid.into(),
                api_version: api.into(),
                controller: is,
                block_owner_deletion: is,
            }
        };
        let http = message::ContainerPort {
            name: "http".into(),
            host_port: 80,
            container_port: 8080,
            protocol: "TCP".into(),
            host_ip: "192.0.2.1".into(),
        };
        let bare = message::ContainerPort { container_port: 9090, ..Default::default() };
        let condition = |kind: &str, status: &str| message::PodCondition {
            r#type: kind.into(),
            status: status.into(),
        };
        let ip = |ip: &str| message::PodIp { ip: ip.into() };
        message::Pod {
            metadata: Some(message::ObjectMeta {
                name: "web-0".into(),
                namespace: "shop".into(),
                uid: "u".into(),
                resource_version: "7".into(),
                deletion_timestamp: Some(message::Time { seconds: 1_767_225_630, nanos: 0 }),
                labels: text(&[("app", "web")]),
                annotations: text(&[("ambient.istio.io/redirection", "enabled"), ("other", "x")]),
                owner_references: vec![
                    owner("Node", "n1", "1", "v1", None),
                    owner("ReplicaSet", "web", "2", "apps/v1", Some(true)),
                ],
            }),
            spec: Some(message::PodSpec {
                containers: vec![
                    message::Container { name: "web".into(), ports: vec![http, bare] },
                    message::Container { name: "side".into(), ports: Vec::new() },
                ],
                service_account_name: "web".into(),
                node_name: "n1".into(),
                host_network: true,
            }),
            status: Some(message::PodStatus {
                phase: "Running".into(),
                conditions: vec![condition("PodScheduled", "True"), condition("Ready", "False")],
                reason: "Evicted".into(),
                pod_ip: "192.0.2.7".into(),
                container_statuses: vec![message::ContainerStatus { restart_count: 3 }],
                pod_ips: vec![ip("192.0.2.7"), ip("2001:db8::7")],
            }),
        }
    }
}
