//! Lists all pods cheaply.
//!
//! In a large cluster, the start of a control plane waits for the list of pods. In pages of JSON,
//! each page costs the API server a read of its store, and each pod costs both ends three kilobytes
//! or more for the few hundred bytes that the view needs. So the whole list is requested at once,
//! which the API server answers from its memory (before Kubernetes 1.31, or without an etcd that
//! reports progress, from its store), and in protobuf, whose unneeded fields are skipped.
//!
//! [`watcher`] is kube's, over a client that does this: the watcher gets an empty list with the
//! version of the list that was read, and the pods bypass it. Everything else passes unchanged:
//! watches, refusals, and lists from servers without protobuf.

use std::sync::Arc;

use ambit_wire::kubernetes::{MEDIA_TYPE, Part, PodListError, PodListReader};
use ambit_wire::proto::kubernetes as message;
use futures::stream::{self, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerState, ContainerStateWaiting, ContainerStatus, Pod,
    PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{PAGE, Watched, reduce};

/// Where the API server has all pods. A selector in a list would be lost here: pods have none.
const PODS: &str = "/api/v1/pods";
/// Pages that wait while other kinds are listed.
const READY: usize = 16;

/// The events of [`watcher::watcher`] for all pods.
pub(super) fn watcher(client: &Client, config: Config) -> Watched<Pod> {
    let (sender, pages) = mpsc::channel(READY);
    let lists = Arc::new(Lists { below: client.clone(), pages: sender });
    let service = tower::service_fn(move |request| lists.clone().answer(request));
    let events = watcher::watcher(Api::all(Client::new(service, "default")), config).boxed();
    let told = Merged { events, held: None, pages, page: Vec::new().into_iter() };
    stream::unfold(told, |mut told| async { Some((told.next().await?, told)) }).boxed()
}

/// The events of the pods, from both sources.
struct Merged {
    /// The watcher's events: everything except the lists that were read here.
    events: Watched<Pod>,
    /// An event of the watcher, held until all pods that were read before it are passed on.
    held: Option<watcher::Result<Event<Pod>>>,
    pages: mpsc::Receiver<Vec<Pod>>,
    page: std::vec::IntoIter<Pod>,
}

impl Merged {
    async fn next(&mut self) -> Option<watcher::Result<Event<Pod>>> {
        loop {
            if let Some(pod) = self.page.next() {
                return Some(Ok(Event::InitApply(pod)));
            }
            if let Ok(page) = self.pages.try_recv() {
                self.page = page.into_iter();
            } else if let Some(held) = self.held.take() {
                return Some(held);
            } else {
                tokio::select! {
                    Some(page) = self.pages.recv() => self.page = page.into_iter(),
                    event = self.events.next() => self.held = Some(event?),
                }
            }
        }
    }
}

/// Answers for the API server.
struct Lists {
    below: Client,
    /// Takes what the lists hold.
    pages: mpsc::Sender<Vec<Pod>>,
}

impl Lists {
    async fn answer(self: Arc<Self>, request: Request<Body>) -> kube::Result<Response<Body>> {
        let query = request.uri().query().unwrap_or_default();
        let begins_list = |pair: &str| pair != "watch=true" && !pair.starts_with("continue=");
        if request.uri().path() != PODS || !query.split('&').all(begins_list) {
            return self.below.send(request).await;
        }
        let accepted = format!("{MEDIA_TYPE}, application/json");
        let list = Request::get(PODS).header(ACCEPT, accepted).body(Body::empty());
        let response = self.below.send(list.map_err(kube::Error::HttpError)?).await?;
        match (is_protobuf(&response), response.status().is_success()) {
            (true, true) => {}
            (false, false) => return Ok(response),
            // A refusal that the watcher cannot read, or more at once than it asks for.
            (true, false) | (false, true) => return self.below.send(request).await,
        }
        // A separate task, so that it continues while its pods wait; cancelled with the request.
        let mut reader = JoinSet::new();
        reader.spawn(read(response.into_body(), self.pages.clone()));
        let metadata = reader.join_next().await.expect("a task was spawned").map_err(cut)??;
        let list = List::<Pod> { metadata, items: Vec::new() };
        let list = serde_json::to_vec(&list).map_err(kube::Error::SerdeError)?;
        Ok(Response::new(list.into()))
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

/// What is wrong with a list.
fn unreadable(error: PodListError) -> kube::Error {
    match error {
        PodListError::Cut => cut(error),
        _ => kube::Error::SerdeError(serde::de::Error::custom(error)),
    }
}

/// Reads a list and sends its pods; answers with what else it says.
async fn read(mut body: Body, pages: mpsc::Sender<Vec<Pod>>) -> kube::Result<ListMeta> {
    let mut reader = PodListReader::default();
    let mut list = ListMeta::default();
    let mut page = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame?.into_data() else { continue };
        reader.feed(&bytes);
        while let Some(part) = reader.next_part().map_err(unreadable)? {
            match part {
                Part::Metadata(metadata) => {
                    list.resource_version = some(metadata.resource_version.as_bytes());
                }
                Part::Pod(it) => {
                    // Already here, for pages may wait, and an annotation may be long.
                    let mut pod = pod(*it);
                    (reduce::POD.reduce)(&mut pod);
                    page.push(pod);
                }
            }
            if page.len() == PAGE as usize {
                pages.send(std::mem::take(&mut page)).await.map_err(cut)?;
            }
        }
    }
    reader.end().map_err(unreadable)?;
    pages.send(page).await.map_err(cut)?;
    Ok(list)
}

/// What is no UTF-8 is replaced, as it is in the API server's JSON.
fn text(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// An empty text is none: JSON leaves it out.
fn some(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| text(bytes))
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
    let annotations = metadata.annotations.iter().map(|it| (text(&it.key), text(&it.value)));
    let owners = metadata.owner_references.into_iter().map(owner).collect::<Vec<_>>();
    ObjectMeta {
        name: some(&metadata.name),
        namespace: some(&metadata.namespace),
        uid: some(&metadata.uid),
        resource_version: some(&metadata.resource_version),
        deletion_timestamp: deleted.map(Time),
        labels: (!metadata.labels.is_empty()).then_some(metadata.labels),
        annotations: Some(annotations.collect()),
        owner_references: (!owners.is_empty()).then_some(owners),
        ..ObjectMeta::default()
    }
}

fn owner(owner: message::OwnerReference) -> OwnerReference {
    OwnerReference {
        kind: text(&owner.kind),
        name: text(&owner.name),
        uid: text(&owner.uid),
        api_version: text(&owner.api_version),
        controller: owner.controller,
        block_owner_deletion: owner.block_owner_deletion,
    }
}

fn spec(spec: message::PodSpec) -> PodSpec {
    let containers = spec.containers.into_iter().map(|container| Container {
        name: text(&container.name),
        ports: Some(container.ports.into_iter().map(port).collect()),
        ..Container::default()
    });
    PodSpec {
        containers: containers.collect(),
        service_account_name: some(&spec.service_account_name),
        node_name: some(&spec.node_name),
        host_network: spec.host_network.then_some(true),
        ..PodSpec::default()
    }
}

fn port(port: message::ContainerPort) -> ContainerPort {
    ContainerPort {
        name: some(&port.name),
        host_port: (port.host_port != 0).then_some(port.host_port),
        container_port: port.container_port,
        protocol: some(&port.protocol),
        host_ip: some(&port.host_ip),
    }
}

fn status(status: message::PodStatus) -> PodStatus {
    let conditions = status.conditions.into_iter().map(|condition| PodCondition {
        type_: text(&condition.r#type),
        status: text(&condition.status),
        message: some(&condition.message),
        ..PodCondition::default()
    });
    let containers = status.container_statuses.into_iter().map(container_status);
    let init_containers = status.init_container_statuses.into_iter().map(container_status);
    let ips = status.pod_ips.into_iter().map(|it| PodIP { ip: text(&it.ip) }).collect::<Vec<_>>();
    PodStatus {
        phase: some(&status.phase),
        reason: some(&status.reason),
        pod_ip: some(&status.pod_ip),
        pod_ips: (!ips.is_empty()).then_some(ips),
        conditions: Some(conditions.collect()),
        container_statuses: Some(containers.collect()),
        init_container_statuses: Some(init_containers.collect()),
        ..PodStatus::default()
    }
}

fn container_status(container: message::ContainerStatus) -> ContainerStatus {
    let waiting = container.state.and_then(|state| state.waiting);
    let waiting = waiting.map(|waiting| ContainerStateWaiting {
        reason: some(&waiting.reason),
        ..ContainerStateWaiting::default()
    });
    ContainerStatus {
        restart_count: container.restart_count,
        state: waiting
            .map(|waiting| ContainerState { waiting: Some(waiting), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::TryStreamExt;
    use http::StatusCode;
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
        (Client::new(service, "default"), asked)
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
            metadata: Some(message::ObjectMeta {
                name: format!("web-{n}").into(),
                uid: format!("u{n}").into(),
                ..Default::default()
            }),
            ..Default::default()
        });
        message::PodList { metadata: Some(metadata), items: items.collect() }
    }

    /// The pods that a watcher reports until the list is complete, or the first error.
    async fn listed(client: &Client) -> watcher::Result<Vec<Pod>> {
        let config = Config::default().page_size(PAGE);
        let told = watcher(client, config).try_take_while(|event| {
            let is_over = matches!(event, Event::InitDone);
            async move { Ok(!is_over) }
        });
        let pods = told.try_filter_map(async |event| {
            Ok(match event {
                Event::InitApply(pod) => Some(pod),
                _ => None,
            })
        });
        pods.try_collect().await
    }

    async fn names(client: &Client) -> Vec<String> {
        listed(client).await.unwrap().into_iter().filter_map(|pod| pod.metadata.name).collect()
    }

    #[tokio::test]
    async fn one_list_comes_in_pages() {
        for pods in [0, 1, 499, 500, 501, 1700] {
            let (client, asked) = api_server(move |_, request| {
                assert_eq!(request.uri(), PODS);
                protobuf(StatusCode::OK, "PodList", &list_of(pods))
            });
            let names = (0..pods).map(|n| format!("web-{n}")).collect::<Vec<_>>();
            assert_eq!(self::names(&client).await, names);
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
        let config = Config::default().page_size(PAGE);
        let told = watcher(&client, config).take(4).try_collect::<Vec<_>>().await.unwrap();
        let Some(Event::Apply(pod)) = told.last() else { panic!("{told:?}") };
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
    async fn a_pod_that_is_no_utf8_leaves_the_others() {
        let mut list = list_of(3);
        let metadata = list.items[1].metadata.as_mut().unwrap();
        let value = (&b"\xff"[..]).into();
        metadata.annotations = vec![message::Annotation { key: "x".into(), value }];
        metadata.owner_references =
            vec![message::OwnerReference { kind: (&b"\xff"[..]).into(), ..Default::default() }];
        let reason = (&b"\xc3("[..]).into();
        list.items[1].status = Some(message::PodStatus { reason, ..Default::default() });
        let (client, _) = api_server(move |_, _| protobuf(StatusCode::OK, "PodList", &list));
        assert_eq!(names(&client).await, ["web-0", "web-1", "web-2"]);
    }

    #[tokio::test]
    async fn what_is_no_list_is_unreadable_and_nobody_is_away() {
        let (client, _) = api_server(|_, _| protobuf(StatusCode::OK, "NodeList", &list_of(1)));
        let error = listed(&client).await.unwrap_err();
        let watcher::Error::InitialListFailed(kube::Error::SerdeError(_)) = error else {
            panic!("{error}")
        };
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_keeps_failing_on_its_way_is_asked_for_ever_less() {
        let lists = Arc::new(AtomicUsize::new(0));
        let counter = lists.clone();
        let whole = protobuf(StatusCode::OK, "PodList", &list_of(1200));
        let whole = whole.into_body().collect_bytes().await.unwrap();
        let (client, _) = api_server(move |_, request| {
            let response = Response::builder();
            if request.uri().query().unwrap_or_default().contains("watch=true") {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return response.status(status).body(Vec::new().into()).unwrap();
            }
            if request.uri().path() != PODS {
                let empty = json!({"metadata": {"resourceVersion": "7"}, "items": []});
                return response.body(empty.to_string().into_bytes().into()).unwrap();
            }
            counter.fetch_add(1, Ordering::Relaxed);
            let cut = whole.slice(..whole.len() - 1).to_vec();
            response.header(CONTENT_TYPE, MEDIA_TYPE).body(cut.into()).unwrap()
        });
        let mut registry = super::super::KubernetesRegistry::open(&client, "istio-system");
        let mut told = 0;
        let loading = registry.load(|events| told += events.len());
        let ended = tokio::time::timeout(Duration::from_secs(20), loading).await;
        assert!(ended.is_err(), "a list that was cut is not all");
        // After 0.1 s, 0.2, 0.4 and so on up to five.
        assert!((5..=10).contains(&lists.load(Ordering::Relaxed)), "{lists:?}");
        // Complete pages were reported, once: two pages.
        assert_eq!(told, 1000);
    }

    /// The whole list failed once, and comes in pages now; or it never comes in protobuf.
    #[tokio::test]
    async fn a_list_in_pages_stays_in_pages() {
        for first in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::OK] {
            let (client, asked) = api_server(move |number, request| {
                let query = request.uri().query().unwrap_or_default();
                let (name, more) = match number {
                    0 if first.is_success() => ("all", None),
                    0 => return protobuf(first, "Status", &list_of(0)),
                    1 => ("web-0", Some("more")),
                    _ => ("web-1", None),
                };
                assert_eq!(number > 0, query.contains("limit=500"), "{query}");
                assert_eq!(number == 2, query.contains("continue=more"), "{query}");
                let metadata = json!({"resourceVersion": "7", "continue": more});
                let list = json!({"metadata": metadata, "items": [{"metadata": {"name": name}}]});
                Response::new(list.to_string().into_bytes().into())
            });
            assert_eq!(names(&client).await, ["web-0", "web-1"]);
            assert_eq!(asked.load(Ordering::Relaxed), 3);
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

    /// A list of two pods, one with all that is read and one with next to nothing, as an API server
    /// of Kubernetes 1.36 wrote it in each encoding.
    #[tokio::test]
    async fn a_list_says_the_same_in_both_encodings() {
        let json: List<Pod> = serde_json::from_str(include_str!("pods/sample.json")).unwrap();
        let reduced = |mut pod: Pod| {
            (reduce::POD.reduce)(&mut pod);
            serde_json::to_value(pod).unwrap()
        };
        let expected: Vec<_> = json.items.into_iter().map(reduced).collect();
        let (client, _) = api_server(|_, _| {
            let response = Response::builder().header(CONTENT_TYPE, MEDIA_TYPE);
            response.body(include_bytes!("pods/sample.protobuf").to_vec().into()).unwrap()
        });
        let pods = listed(&client).await.unwrap();
        let told: Vec<_> = pods.into_iter().map(|pod| serde_json::to_value(pod).unwrap()).collect();
        assert_eq!(told, expected);
        assert_eq!(told[0]["status"]["podIPs"][1]["ip"], "2001:db8::7");
        assert_eq!(told[0]["metadata"]["ownerReferences"][0]["name"], "web");
    }
}
