//! The registry as the API server: pods of this node and the labels of all namespaces are watched,
//! the pods' network namespaces are found on the node itself.
//!
//! What is known stays in force while the server is away or a watch starts over: losing sight of
//! the server must never take pods out of the mesh. At the start, when nothing is known yet, the
//! agent waits for the server; pods that an earlier agent captured stay so meanwhile. This module
//! never believes an address: which namespace is a pod's comes from the CNI plugin or from
//! [`super::processes`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ambit_apiserver::WATCH_TIMEOUT_SECONDS;
use ambit_net::namespace::NetNs;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::mirror::{Mirror, Versioned};
use super::processes::{self, Sources};
use super::{REFRESH_QUEUE, Refresh, RegistryHandle};
use crate::place::Place;
use crate::pod::{NewPod, PodName, PodObject, PodStatus, PodUid, RegistryView};

/// Wait before the first new try of a watch; doubles with each further failure.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
/// Longest wait between two tries of a watch.
const RECONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest that the server may take to answer for one pod.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups under way at a time; more announcements wait.
const LOOK_UPS_MAX: usize = 16;
/// Wait before the node's processes are looked at again for the same pods; doubles.
const SCAN_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two looks at the node's processes.
const SCAN_MAX: Duration = Duration::from_secs(15);

/// A pod of this node, reduced to what the agent uses.
#[derive(Debug, Clone)]
struct KnownPod {
    object: PodObject,
    ips: Vec<IpAddr>,
    terminated: bool,
}

/// A pod's network namespace, kept open.
struct Held {
    netns: Arc<NetNs>,
    /// The pod's addresses when it was found: with others it has another namespace.
    ips: Vec<IpAddr>,
}

/// What the server answered for an announced pod.
struct LookedUp {
    pod: Result<Option<Pod>, String>,
    namespace: Result<Option<PartialObjectMeta<Namespace>>, String>,
    name: PodName,
    /// Who waits for it.
    announced: Option<Refresh>,
}

/// Follows the server until the handle is dropped. Comes back when everything is known.
pub(crate) async fn follow(
    client: Client,
    node: &str,
    sources: Sources,
) -> (RegistryHandle, impl Future<Output = ()> + use<>) {
    let (refresh, mut requests) = mpsc::channel(REFRESH_QUEUE);
    let (publish, view) = watch::channel(Arc::new(RegistryView::default()));
    let mut follower = Follower::new(client, node, sources, publish);
    while !follower.is_listed() {
        follower.step().await;
    }
    follower.scan().await;
    follower.publish();
    let task = async move {
        loop {
            let busy = follower.look_ups.len() >= LOOK_UPS_MAX;
            tokio::select! {
                request = requests.recv(), if !busy => match request {
                    Some(request) => follower.look_up(request),
                    None => return,
                },
                () = follower.step() => {}
            }
            follower.publish();
        }
    };
    (RegistryHandle { view, refresh }, task)
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;
type Found = io::Result<HashMap<PodUid, Arc<NetNs>>>;

struct Follower {
    client: Client,
    node: String,
    sources: Sources,
    pod_events: Events<Pod>,
    namespace_events: Events<PartialObjectMeta<Namespace>>,
    pods: Mirror<PodName, KnownPod>,
    /// The labels that matter.
    namespaces: Mirror<String, BTreeMap<String, String>>,
    held: HashMap<PodUid, Held>,
    look_ups: JoinSet<LookedUp>,
    scans: JoinSet<Found>,
    /// The pods that were last looked for, when to look again, and the wait after that.
    missing: BTreeSet<PodUid>,
    scan_at: Instant,
    scan_wait: Duration,
    publish: watch::Sender<Arc<RegistryView>>,
}

impl Follower {
    fn new(
        client: Client,
        node: &str,
        sources: Sources,
        publish: watch::Sender<Arc<RegistryView>>,
    ) -> Self {
        let all = watcher::Config::default().timeout(WATCH_TIMEOUT_SECONDS);
        let of_node = all.clone().fields(&format!("spec.nodeName={node}"));
        let pods: Api<Pod> = Api::all(client.clone());
        let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
        Self {
            client,
            node: node.to_owned(),
            sources,
            pod_events: watcher(pods, of_node).backoff(Reconnect::new(node)).boxed(),
            namespace_events: watcher(namespaces, all).backoff(Reconnect::new(node)).boxed(),
            pods: Mirror::new(),
            namespaces: Mirror::new(),
            held: HashMap::new(),
            look_ups: JoinSet::new(),
            scans: JoinSet::new(),
            missing: BTreeSet::new(),
            scan_at: Instant::now(),
            scan_wait: SCAN_MIN,
            publish,
        }
    }

    fn is_listed(&self) -> bool {
        self.pods.is_listed() && self.namespaces.is_listed()
    }

    /// Waits for one thing to happen and takes note of it.
    async fn step(&mut self) {
        let scan_due = self.is_listed() && self.scans.is_empty() && !self.missing.is_empty();
        tokio::select! {
            Some(event) = self.pod_events.next() => self.on_pod(event),
            Some(event) = self.namespace_events.next() => self.on_namespace(event),
            Some(looked_up) = self.look_ups.join_next() => self.on_looked_up(joined(looked_up)),
            Some(found) = self.scans.join_next() => self.on_found(joined(found)),
            () = tokio::time::sleep_until(self.scan_at), if scan_due => self.start_scan(),
        }
    }

    fn on_pod(&mut self, event: watcher::Result<Event<Pod>>) {
        match event {
            Ok(Event::Init) => self.pods.list(),
            Ok(Event::InitApply(pod)) => {
                if let Some((name, pod)) = reduce(&pod) {
                    self.pods.list_one(name, pod);
                }
            }
            Ok(Event::InitDone) => {
                for name in self.pods.end_list() {
                    self.start_look_up(name, None);
                }
            }
            Ok(Event::Apply(pod)) => {
                if let Some((name, pod)) = reduce(&pod) {
                    self.pods.apply(name, pod);
                }
            }
            Ok(Event::Delete(pod)) => {
                if let Some((name, pod)) = reduce(&pod) {
                    self.pods.delete(&name, &pod);
                }
            }
            Err(error) => complain("pods", &error),
        }
        self.look_for_missing();
    }

    fn on_namespace(&mut self, event: watcher::Result<Event<PartialObjectMeta<Namespace>>>) {
        match event {
            Ok(Event::Init) => self.namespaces.list(),
            Ok(Event::InitApply(found)) => {
                self.namespaces.list_one(found.name_any(), labels(&found))
            }
            // One that a look-up found is deleted before long, or is in the next list.
            Ok(Event::InitDone) => drop(self.namespaces.end_list()),
            Ok(Event::Apply(found)) => self.namespaces.apply(found.name_any(), labels(&found)),
            Ok(Event::Delete(found)) => self.namespaces.delete(&found.name_any(), &labels(&found)),
            Err(error) => complain("namespaces", &error),
        }
    }

    /// The pod that the CNI plugin announced may be newer than the watch.
    fn look_up(&mut self, request: Refresh) {
        self.start_look_up(request.new_pod.name.clone(), Some(request));
    }

    fn start_look_up(&mut self, name: PodName, announced: Option<Refresh>) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &name.namespace);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        self.look_ups.spawn(async move {
            let (pod, namespace) = tokio::join!(
                in_time(pods.get_opt(&name.name)),
                in_time(namespaces.get_metadata_opt(&name.namespace)),
            );
            LookedUp { pod, namespace, name, announced }
        });
    }

    fn on_looked_up(&mut self, looked_up: LookedUp) {
        let LookedUp { pod, namespace, name, announced } = looked_up;
        let is_here = |pod: &&Pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&self.node)
        };
        let pod = pod.map(|pod| match pod.as_ref().filter(is_here).and_then(reduce) {
            Some((_, pod)) => self.pods.look_up(name.clone(), pod),
            None => self.pods.forget(&name),
        });
        let namespace = namespace.map(|found| match found {
            Some(found) => self.namespaces.look_up(name.namespace.clone(), labels(&found)),
            None => self.namespaces.forget(&name.namespace),
        });
        if let Some(Refresh { new_pod, answer }) = announced {
            let known = self.take_up(&new_pod, pod.and(namespace));
            let view = self.publish();
            // Whoever asked may have given up.
            let _: Result<(), _> = answer.send(known.map(|()| view));
        }
        self.look_for_missing();
    }

    /// Keeps the namespace of an announced pod, if the pod is the one that is known now.
    fn take_up(&mut self, new_pod: &NewPod, asked: Result<(), String>) -> Result<(), String> {
        let labels = self.namespaces.get(&new_pod.name.namespace).is_some();
        let known = self.pods.get(&new_pod.name).filter(|known| {
            // Without a uid to compare, only the server can tell.
            new_pod.uid.is_some() && known.object.is_announced_by(new_pod) || asked.is_ok()
        });
        let Some(known) = known.filter(|_| labels) else {
            // Without an error the agent says itself what is missing.
            return asked;
        };
        if !known.object.is_announced_by(new_pod) {
            return Ok(());
        }
        match Place::At(new_pod.netns.clone()).open() {
            Ok(netns) => {
                let uid = known.object.uid.clone();
                self.held.insert(uid, Held { netns, ips: new_pod.ips.clone() });
            }
            Err(problem) => tracing::warn!(pod = %new_pod.name, %problem, "announced"),
        }
        Ok(())
    }

    /// Takes note of the pods whose namespace is to be looked for.
    fn look_for_missing(&mut self) {
        let alive = |pod: &&KnownPod| !pod.terminated && !pod.object.host_network;
        let pods = self.pods.iter().map(|(_, pod)| pod).filter(alive);
        let pods: HashMap<&PodUid, &KnownPod> = pods.map(|pod| (&pod.object.uid, pod)).collect();
        self.held.retain(|uid, held| {
            let Some(pod) = pods.get(uid) else { return false };
            if held.ips.is_empty() {
                held.ips.clone_from(&pod.ips);
            }
            true
        });
        let is_missing = |uid: &PodUid, pod: &KnownPod| {
            let other = |held: &Held| !pod.ips.iter().any(|ip| held.ips.contains(ip));
            !pod.ips.is_empty() && self.held.get(uid).is_none_or(other)
        };
        let missing = pods.iter().filter(|(uid, pod)| is_missing(uid, pod));
        let missing: BTreeSet<PodUid> = missing.map(|(uid, _)| (*uid).clone()).collect();
        if !missing.is_subset(&self.missing) {
            (self.scan_at, self.scan_wait) = (Instant::now(), SCAN_MIN);
        }
        self.missing = missing;
    }

    fn start_scan(&mut self) {
        self.scan_at = Instant::now() + self.scan_wait;
        self.scan_wait = (2 * self.scan_wait).min(SCAN_MAX);
        let (sources, wanted) = (self.sources.clone(), self.missing.clone());
        self.scans.spawn_blocking(move || processes::find(&sources, &wanted));
    }

    /// Looks for the namespaces of all pods and waits for the result.
    async fn scan(&mut self) {
        self.look_for_missing();
        if self.missing.is_empty() {
            return;
        }
        self.start_scan();
        if let Some(found) = self.scans.join_next().await {
            self.on_found(joined(found));
        }
    }

    fn on_found(&mut self, found: Found) {
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, proc = %self.sources.proc.display(), "cannot look at the \
                node's processes (--proc)");
            HashMap::new()
        });
        let ips: HashMap<_, _> =
            self.pods.iter().map(|(_, pod)| (pod.object.uid.clone(), pod.ips.clone())).collect();
        for (uid, netns) in found {
            if let Some(ips) = ips.get(&uid) {
                self.held.insert(uid, Held { netns, ips: ips.clone() });
            }
        }
        self.look_for_missing();
        if !self.missing.is_empty() {
            let pods: Vec<_> = self.missing.iter().map(PodUid::as_str).collect();
            tracing::debug!(?pods, "no network namespace found yet");
        }
    }

    /// Tells the agent, if anything is different; answers with the view.
    fn publish(&self) -> Arc<RegistryView> {
        let view = Arc::new(self.view());
        self.publish.send_if_modified(|current| {
            let modified = *current != view;
            if modified {
                *current = view.clone();
            }
            modified
        });
        view
    }

    fn view(&self) -> RegistryView {
        let mut view = RegistryView::default();
        for (name, pod) in self.pods.iter() {
            let uid = &pod.object.uid;
            let held = self.held.get(uid);
            let announced = || held.map(|held| held.ips.clone()).unwrap_or_default();
            let status = PodStatus {
                uid: uid.clone(),
                node: Some(self.node.clone()),
                terminated: pod.terminated,
                ips: if pod.ips.is_empty() { announced() } else { pod.ips.clone() },
                netns: held.map(|held| Place::Open(held.netns.clone())),
            };
            view.pods.insert(name.clone(), pod.object.clone());
            view.statuses.insert(name.clone(), status);
            if let Some(labels) = self.namespaces.get(&name.namespace) {
                view.namespaces.insert(name.namespace.clone(), labels.clone());
            }
        }
        view
    }
}

/// What the agent uses of a pod. `None` for one without a name or uid, which no server sends.
fn reduce(pod: &Pod) -> Option<(PodName, Versioned<KnownPod>)> {
    let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
    let name = PodName::new(metadata.namespace.clone()?, metadata.name.clone()?);
    let service_account = spec.service_account_name.clone().filter(|name| !name.is_empty());
    let object = PodObject {
        name: name.clone(),
        uid: PodUid::new(metadata.uid.as_deref()?),
        node: spec.node_name.clone(),
        service_account: service_account.unwrap_or_else(|| "default".to_owned()),
        host_network: spec.host_network.unwrap_or(false),
        labels: relevant(metadata.labels.as_ref()),
        annotations: relevant(metadata.annotations.as_ref()),
    };
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.pod_ips.as_deref()).unwrap_or_default();
    let known = KnownPod {
        object,
        ips: all.iter().filter_map(|ip| ip.ip.parse().ok()).collect(),
        terminated: matches!(
            status.and_then(|status| status.phase.as_deref()),
            Some("Succeeded" | "Failed")
        ),
    };
    Some((name, Versioned::new(metadata.resource_version.as_deref(), known)))
}

/// The labels or annotations that enrolment knows; a pod may carry many that it does not.
fn relevant(all: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let all = all.into_iter().flatten();
    let ours = all.filter(|(key, _)| PodObject::uses(key));
    ours.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn labels(namespace: &PartialObjectMeta<Namespace>) -> Versioned<BTreeMap<String, String>> {
    let metadata = &namespace.metadata;
    Versioned::new(metadata.resource_version.as_deref(), relevant(metadata.labels.as_ref()))
}

async fn in_time<T>(work: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(LOOK_UP_TIMEOUT, work).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(format!("the API server cannot be asked: {error}")),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

fn complain(kind: &str, error: &watcher::Error) {
    tracing::warn!(%error, "cannot watch {kind}; what is known of them stays in force");
}

fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// The waits between tries of a watch: they double, and differ from node to node.
pub(crate) struct Reconnect {
    first: Duration,
    next: Duration,
}

impl Reconnect {
    pub(crate) fn new(node: &str) -> Self {
        let sum =
            node.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let first = RECONNECT_MIN + RECONNECT_MIN * (sum % 256) / 256;
        Self { first, next: first }
    }
}

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.next;
        self.next = (2 * wait).min(RECONNECT_MAX);
        Some(wait)
    }
}

impl Backoff for Reconnect {
    fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use ambit_wire::capture::Obstacle;
    use ambit_words::annotations::{NOT_CAPTURED, REDIRECTION};
    use ambit_words::labels::DATAPLANE_MODE;
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::fake_api::FakeApi;
    use crate::registry::reports::{Annotations, Report, ReportError, Reports};
    use crate::testbed::{Directory, PATIENCE};

    const UID: &str = "aaaaaaaa-2222-3333-4444-555555555555";
    const OTHER: &str = "bbbbbbbb-2222-3333-4444-555555555555";
    const WEB: &str = "/api/v1/namespaces/shop/pods/web";

    fn pod(uid: &str, ip: Option<&str>) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": uid,
                "labels": {"app": "web"}, "annotations": {"large": "thing"}},
            "spec": {"nodeName": "node-1", "serviceAccountName": "web", "containers": []},
            "status": {"phase": "Running", "podIPs": ip.map(|ip| [json!({"ip": ip})])},
        })
    }

    fn namespace(mode: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop",
            "labels": {"istio.io/dataplane-mode": mode, "team": "a"}}})
    }

    /// A server, a node without processes, and the registry that follows them.
    struct World {
        api: FakeApi,
        directory: Directory,
        handle: RegistryHandle,
        following: tokio::task::JoinHandle<()>,
    }

    impl World {
        async fn new(name: &str, objects: &[Value]) -> Self {
            let (api, directory) = (FakeApi::default(), Directory::new(name));
            objects.iter().for_each(|object| api.put(object.clone()));
            let sources =
                Sources { proc: directory.path("proc"), cni_results: directory.path("results") };
            std::fs::create_dir_all(&sources.proc).expect("directory");
            let (handle, following) = follow(api.client(), "node-1", sources).await;
            Self { api, directory, handle, following: tokio::spawn(following) }
        }

        async fn until(&mut self, holds: impl Fn(&RegistryView) -> bool) {
            let seen = self.handle.view.wait_for(|view| holds(view));
            tokio::time::timeout(PATIENCE, seen).await.expect("in time").expect("followed");
        }

        fn announcement(&self, uid: Option<&str>) -> NewPod {
            NewPod {
                name: name(),
                uid: uid.map(PodUid::new),
                netns: self.directory.path("netns"),
                ips: vec!["10.244.1.9".parse().expect("literal")],
            }
        }

        /// Annotations as of now: the uid that is reported.
        fn reported(&self) -> Option<String> {
            let pod = self.api.object(WEB)?;
            let annotation = &pod["metadata"]["annotations"][REDIRECTION];
            (annotation == "enabled").then(|| pod["metadata"]["uid"].as_str().map(str::to_owned))?
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            self.following.abort();
        }
    }

    fn name() -> PodName {
        PodName::new("shop", "web")
    }

    fn uid(view: &RegistryView) -> Option<&str> {
        view.pods.get(&name()).map(|pod| pod.uid.as_str())
    }

    fn is_ambient(view: &RegistryView) -> bool {
        view.namespaces.get("shop").is_some_and(|labels| labels[DATAPLANE_MODE] == "ambient")
    }

    #[tokio::test]
    async fn pods_and_labels_are_followed_and_reduced_to_what_counts() {
        let objects = [namespace("none"), pod(UID, Some("10.244.1.5"))];
        let mut world = World::new("kube-follow", &objects).await;
        let view = world.handle.view.borrow().clone();
        let found = &view.pods[&name()];
        assert_eq!((found.uid.as_str(), found.service_account.as_str()), (UID, "web"));
        assert!(found.labels.is_empty() && found.annotations.is_empty());
        let status = &view.statuses[&name()];
        assert_eq!(status.ips, ["10.244.1.5".parse::<IpAddr>().expect("literal")]);
        assert!(!is_ambient(&view) && status.netns.is_none() && !status.terminated);

        world.api.put(namespace("ambient"));
        world.until(is_ambient).await;
        let mut ended = pod(UID, Some("10.244.1.5"));
        ended["status"]["phase"] = "Succeeded".into();
        world.api.put(ended);
        world.until(|view| view.statuses[&name()].terminated).await;
        world.api.delete(WEB);
        world.until(|view| view.pods.is_empty() && view.statuses.is_empty()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_vanishes_while_the_server_is_away_or_the_watch_starts_over() {
        let objects = [namespace("ambient"), pod(UID, None)];
        let mut world = World::new("kube-away", &objects).await;
        world.handle.view.mark_unchanged();
        world.api.away(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!world.handle.view.has_changed().expect("followed"));
        world.api.away(false);
        world.api.put(pod(OTHER, None));
        world.until(|view| uid(view) == Some(OTHER)).await;
        // Whatever the view was on the way, it always had the pod and its labels.
        world.api.mute(true);
        world.api.put(pod(UID, None));
        world.api.mute(false);
        world.api.expire_watches();
        world.handle.view.changed().await.expect("followed");
        let view = world.handle.view.borrow().clone();
        assert_eq!(uid(&view), Some(UID));
        assert!(is_ambient(&view));
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_start_the_server_is_waited_for() {
        let (api, directory) = (FakeApi::default(), Directory::new("kube-start"));
        api.put(namespace("ambient"));
        api.put(pod(UID, None));
        api.away(true);
        let sources =
            Sources { proc: directory.path("proc"), cni_results: directory.path("results") };
        let mut start = Box::pin(follow(api.client(), "node-1", sources));
        tokio::time::timeout(Duration::from_secs(60), &mut start).await.err().expect("waits");
        api.away(false);
        let (handle, _following) = start.await;
        assert_eq!(uid(&handle.view.borrow()), Some(UID));
    }

    #[tokio::test]
    async fn an_announced_pod_is_looked_up_with_its_namespace_before_the_watch_tells() {
        let mut world = World::new("kube-announced", &[]).await;
        let netns = NetNs::create().expect("make a namespace (these tests need root)");
        netns.pin(&world.directory.path("netns")).expect("pin");
        world.api.mute(true);
        world.api.put(namespace("ambient"));
        world.api.put(pod(UID, None));
        let view = world.handle.refresh(&world.announcement(Some(UID))).await.expect("known");
        assert_eq!(uid(&view), Some(UID));
        assert!(is_ambient(&view));
        let status = &view.statuses[&name()];
        assert_eq!(status.netns.as_ref().and_then(Place::inode), Some(netns.inode()));
        assert_eq!(status.ips, world.announcement(None).ips, "until the server knows them");

        // The pod is replaced: the announcement of the earlier one says nothing about it.
        world.api.put(pod(OTHER, None));
        let view = world.handle.refresh(&world.announcement(Some(UID))).await.expect("known");
        assert_eq!(uid(&view), Some(OTHER));
        assert!(!view.pods[&name()].is_announced_by(&world.announcement(Some(UID))));
        assert_eq!(view.statuses[&name()].netns, None);

        world.api.away(true);
        let unsure = world.handle.refresh(&world.announcement(None)).await;
        assert!(unsure.expect_err("refused").contains("API server"));
        world.handle.refresh(&world.announcement(Some(OTHER))).await.expect("known by its uid");
        world.until(|view| view.statuses[&name()].netns.is_some()).await;
        ambit_net::namespace::unpin(&world.directory.path("netns")).expect("unpin");
    }

    #[tokio::test]
    async fn a_namespace_of_unknown_labels_keeps_its_pods_from_starting() {
        let world = World::new("kube-labels", &[pod(UID, None)]).await;
        world.api.away(true);
        let unsure = world.handle.refresh(&world.announcement(Some(UID))).await;
        assert!(unsure.expect_err("refused").contains("API server"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_pod_is_looked_for_among_the_processes_until_it_is_found() {
        let objects = [namespace("ambient"), pod(UID, Some("10.244.1.5"))];
        let mut world = World::new("kube-scan", &objects).await;
        let netns = NetNs::create().expect("make a namespace (these tests need root)");
        let path = world.directory.path("netns");
        netns.pin(&path).expect("pin");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let process = world.directory.path("proc/7");
        std::fs::create_dir_all(process.join("ns")).expect("directory");
        std::fs::write(process.join("cgroup"), format!("0::/kubepods/pod{UID}/0")).expect("write");
        std::fs::write(process.join("stat"), format!("7 (a) {}", "1 ".repeat(40))).expect("write");
        std::os::unix::fs::symlink(&path, process.join("ns/net")).expect("symlink");
        let here = |view: &RegistryView| {
            view.statuses[&name()].netns.as_ref().and_then(Place::inode) == Some(netns.inode())
        };
        let found = world.handle.view.wait_for(|view| here(view));
        tokio::time::timeout(2 * SCAN_MAX, found).await.expect("in time").expect("followed");
        ambit_net::namespace::unpin(&path).expect("unpin");
    }

    #[tokio::test]
    async fn the_reason_of_a_pod_that_is_not_captured_is_annotated_until_it_is() {
        let mut world = World::new("kube-reason", &[namespace("ambient"), pod(UID, None)]).await;
        let annotations = Annotations::new(world.api.client(), world.handle.view.clone());
        let reports = Reports::Annotations(annotations);
        let (name, this) = (name(), PodUid::new(UID));
        let taken = Obstacle::PortTaken { port: 15006, process: Some("nginx".to_owned()) };
        let says = |view: &RegistryView| {
            let pod = view.pods.get(&PodName::new("shop", "web"));
            pod.and_then(|pod| pod.annotations.get(NOT_CAPTURED).cloned())
        };
        reports.explain(&name, &this, &taken).await.expect("said");
        assert_eq!(world.reported(), None);
        world.until(|view| says(view).as_deref() == Some("PortTaken 15006 nginx")).await;
        world.api.away(true);
        reports.explain(&name, &this, &taken).await.expect("said already");
        world.api.away(false);
        reports.mark(&name, &this, Report::default()).await.expect("marked");
        assert_eq!(world.reported().as_deref(), Some(UID));
        world.until(|view| says(view).is_none()).await;
    }

    #[tokio::test]
    async fn captured_pods_are_annotated_once_and_only_the_one_meant() {
        let mut world = World::new("kube-reports", &[namespace("ambient"), pod(UID, None)]).await;
        let annotations = Annotations::new(world.api.client(), world.handle.view.clone());
        let reports = Reports::Annotations(annotations);
        let (name, this, other) = (name(), PodUid::new(UID), PodUid::new(OTHER));
        assert_eq!(reports.all().expect("none"), []);
        reports.mark(&name, &this, Report::default()).await.expect("marked");
        assert_eq!(world.reported().as_deref(), Some(UID));
        let marked =
            |view: &RegistryView| !view.pods[&PodName::new("shop", "web")].annotations.is_empty();
        world.until(marked).await;
        assert_eq!(reports.all().expect("one"), [(name.clone(), this.clone())]);
        assert_eq!(world.api.patches().len(), 1);
        world.api.away(true);
        reports.mark(&name, &this, Report::default()).await.expect("known to be there");
        reports.clear(&name, &this).await.expect_err("cannot be told");
        world.api.away(false);
        reports
            .mark(&name, &this, Report::default())
            .await
            .expect("the failed write may have been done");
        assert_eq!(world.api.patches().len(), 1);

        let refused =
            reports.mark(&name, &other, Report::default()).await.expect_err("another pod");
        assert!(matches!(refused, ReportError::AnotherPod), "{refused}");
        reports.clear(&name, &other).await.expect("nothing to take back");
        assert_eq!(world.reported().as_deref(), Some(UID), "the pod's own is spared");
        reports.clear(&name, &this).await.expect("cleared");
        assert_eq!(world.reported(), None);
        world.api.delete(WEB);
        reports.clear(&name, &this).await.expect("gone is cleared");
    }
}
