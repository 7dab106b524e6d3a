//! What every source of objects must do, tested on each of them.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::kubernetes::fake::FakeApi;

/// Longest wait for an event that must come.
const PATIENCE: Duration = Duration::from_secs(10);
/// The root namespace.
const ROOT: &str = "istio-system";

/// Where a test writes objects.
enum Bed {
    Files(PathBuf),
    Kubernetes(FakeApi),
}

impl Bed {
    fn all(name: &str) -> [Self; 2] {
        let path = std::env::temp_dir().join(format!("ambit-source-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        [Self::Files(path), Self::Kubernetes(FakeApi::default())]
    }

    fn open(&self) -> Registry {
        match self {
            Self::Files(root) => Registry::files(root).unwrap(),
            Self::Kubernetes(api) => Registry::kubernetes(&api.client(), ROOT),
        }
    }

    fn write(root: &std::path::Path, path: &str, contents: &str) {
        let path = root.join(path);
        let directory = path.parent().unwrap();
        std::fs::create_dir_all(directory).unwrap();
        let beside = directory.join(".writing");
        std::fs::write(&beside, contents).unwrap();
        std::fs::rename(beside, path).unwrap();
    }

    fn put_namespace(&self, name: &str, label: &str) {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"x": label}},
        });
        match self {
            Self::Files(root) => {
                let path = format!("objects/namespaces/_/{name}.json");
                Self::write(root, &path, &object.to_string());
            }
            Self::Kubernetes(api) => api.put(&format!("/api/v1/namespaces/{name}"), object),
        }
    }

    fn delete_namespace(&self, name: &str) {
        match self {
            Self::Files(root) => {
                std::fs::remove_file(root.join(format!("objects/namespaces/_/{name}.json")))
                    .unwrap();
            }
            Self::Kubernetes(api) => api.delete(&format!("/api/v1/namespaces/{name}")),
        }
    }

    /// A slice `a/db` with one endpoint.
    fn put_slice(&self, address: &str) {
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "a", "name": "db",
                "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4", "endpoints": [{"addresses": [address], "zone": "z"}],
            "ports": [{"name": "sql", "port": 5432}],
        });
        match self {
            Self::Files(root) => {
                Self::write(root, "objects/endpointslices/a/db.json", &object.to_string());
            }
            Self::Kubernetes(api) => api.put(&slice_path("db"), object),
        }
    }

    fn delete_slice(&self) {
        match self {
            Self::Files(root) => {
                std::fs::remove_file(root.join("objects/endpointslices/a/db.json")).unwrap();
            }
            Self::Kubernetes(api) => api.delete(&slice_path("db")),
        }
    }

    /// A running, captured pod `a/web`.
    fn put_pod(&self) {
        let spec = json!({
            "serviceAccountName": "web", "nodeName": "node-1",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "LONG", "value": "x"}],
                "ports": [{"name": "http", "containerPort": 80}]}],
        });
        match self {
            Self::Files(root) => {
                let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                    "metadata": {"namespace": "a", "name": "web", "uid": "u1"}});
                let status = json!({"uid": "u1", "phase": "Running", "podIPs": ["10.0.0.1"],
                    "ready": true, "restarts": 2});
                Self::write(root, "objects/pods/a/web.json", &pod.to_string());
                Self::write(root, "status/pods/a/web.json", &status.to_string());
                Self::write(root, "captured/a/web", "u1");
            }
            Self::Kubernetes(api) => {
                let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                    "metadata": {"uid": "u1", "managedFields": [{"manager": "kubelet"}],
                        "annotations": {"ambient.istio.io/redirection": "enabled", "long": "x"}},
                    "status": {"phase": "Running", "podIP": "10.0.0.1",
                        "podIPs": [{"ip": "10.0.0.1"}],
                        "conditions": [{"type": "Ready", "status": "True"},
                            {"type": "Initialized", "status": "True"}],
                        "containerStatuses": [{"name": "c", "image": "i", "imageID": "i",
                            "ready": true, "restartCount": 2}]}});
                api.put("/api/v1/namespaces/a/pods/web", pod);
            }
        }
    }

    /// What is reported about pods apart from their objects: in a cluster the objects hold it.
    fn beside<'a>(&self, told: &'a [&'static str]) -> &'a [&'static str] {
        match self {
            Self::Files(_) => told,
            Self::Kubernetes(_) => &[],
        }
    }

    fn delete_pod(&self) {
        match self {
            Self::Files(root) => {
                for path in ["objects/pods/a/web.json", "status/pods/a/web.json", "captured/a/web"]
                {
                    std::fs::remove_file(root.join(path)).unwrap();
                }
            }
            Self::Kubernetes(api) => api.delete("/api/v1/namespaces/a/pods/web"),
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Self::Files(root) = self {
            let _ = std::fs::remove_dir_all(root);
        }
    }
}

/// One line for each event.
fn lines(events: &[Event]) -> Vec<String> {
    let line = |event: &Event| match event {
        Event::Put(typed) => format!("+{}", typed.key()),
        Event::Delete(key) => format!("-{key}"),
        Event::PodStatus { namespace, name, status } => match status {
            Some(it) => format!(
                "status {namespace}/{name} {} {} {:?} {} {}",
                it.uid, it.phase, it.pod_ips, it.ready, it.restarts
            ),
            None => format!("status {namespace}/{name} -"),
        },
        Event::Uncaptured { namespace, name, obstacle } => match obstacle {
            Some((uid, obstacle)) => format!("uncaptured {namespace}/{name} {uid} {obstacle}"),
            None => format!("uncaptured {namespace}/{name} -"),
        },
        Event::Captured { namespace, name, uid, .. } => {
            format!("captured {namespace}/{name} {}", uid.as_deref().unwrap_or("-"))
        }
        Event::IssuerKeys(source, _) => format!("keys {source}"),
    };
    events.iter().map(line).collect()
}

/// A source that runs.
struct Running {
    batches: mpsc::Receiver<Batch>,
    task: tokio::task::JoinHandle<Result<(), RegistryError>>,
    _marks: watch::Sender<u64>,
}

impl Running {
    /// Starts `registry`; answers with what was there.
    async fn start(mut registry: Registry) -> (Self, Vec<String>) {
        let mut initial = Vec::new();
        let loading = registry.load(|events| initial.extend(lines(&events)));
        tokio::time::timeout(PATIENCE, loading).await.expect("loaded in time").unwrap();
        let (sender, batches) = mpsc::channel(1000);
        let (marks, marked) = watch::channel(0);
        let task = tokio::spawn(registry.run(marked, sender));
        initial.sort();
        (Self { batches, task, _marks: marks }, initial)
    }

    /// Waits for exactly these lines, in whatever batches and order they come.
    async fn sees(&mut self, expected: &[&str]) {
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            let batch = tokio::time::timeout(PATIENCE, self.batches.recv()).await;
            let batch = batch.unwrap_or_else(|_| panic!("{seen:?} of {expected:?}"));
            seen.extend(lines(&batch.expect("a running registry").events));
        }
        seen.sort();
        assert_eq!(seen, expected);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn objects_come_change_and_go() {
    for bed in Bed::all("events") {
        bed.put_namespace("a", "1");
        bed.put_pod();
        let (mut running, initial) = Running::start(bed.open()).await;
        let beside = ["captured a/web u1", "status a/web u1 Running [10.0.0.1] true 2"];
        assert_eq!(initial, [&["+Namespace a", "+Pod a/web"], bed.beside(&beside)].concat());
        bed.put_namespace("a", "2");
        running.sees(&["+Namespace a"]).await;
        bed.put_namespace("a", "2");
        bed.delete_pod();
        let beside = ["captured a/web -", "status a/web -"];
        running.sees(&[&["-Pod a/web"], bed.beside(&beside)].concat()).await;
        bed.delete_namespace("a");
        bed.put_namespace("b", "1");
        running.sees(&["+Namespace b", "-Namespace a"]).await;
    }
}

#[tokio::test]
async fn slices_come_change_and_go() {
    for bed in Bed::all("slices") {
        bed.put_slice("192.0.2.1");
        let (mut running, initial) = Running::start(bed.open()).await;
        assert_eq!(initial, ["+EndpointSlice a/db"]);
        bed.put_slice("192.0.2.2");
        running.sees(&["+EndpointSlice a/db"]).await;
        bed.delete_slice();
        running.sees(&["-EndpointSlice a/db"]).await;
    }
}

#[tokio::test]
async fn churn_does_not_hold_changes_back() {
    for bed in Bed::all("churn") {
        let (mut running, _) = Running::start(bed.open()).await;
        let start = std::time::Instant::now();
        let (mut written, mut batches) = (0, 0);
        while start.elapsed() < Duration::from_millis(400) {
            written += 1;
            bed.put_namespace("a", &written.to_string());
            tokio::task::yield_now().await;
            batches += usize::from(running.batches.try_recv().is_ok());
        }
        assert!(batches >= 3, "only {batches} batches of {written} changes");
    }
}

fn slice_path(name: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/{name}")
}

#[tokio::test]
async fn slices_that_follow_selectors_are_not_asked_for() {
    let api = FakeApi::default();
    let slice = |author: &str, address: &str| {
        json!({"metadata": {"labels": {"kubernetes.io/service-name": "db",
                "endpointslice.kubernetes.io/managed-by": author}},
            "addressType": "IPv4", "endpoints": [{"addresses": [address]}]})
    };
    let (controller, mirror) =
        ("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io");
    api.put(&slice_path("web"), slice(controller, "10.0.0.1"));
    api.put(&slice_path("db"), slice(mirror, "192.0.2.1"));
    let (mut running, initial) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    assert_eq!(initial, ["+EndpointSlice a/db"]);
    api.put(&slice_path("web"), slice(controller, "10.0.0.2"));
    api.put(&slice_path("db"), slice(mirror, "192.0.2.2"));
    running.sees(&["+EndpointSlice a/db"]).await;
}

fn policy(spec: &Value) -> Value {
    json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {},
        "spec": spec, "status": {"conditions": []}})
}

const POLICIES: &str = "security.istio.io/v1/authorizationpolicies";

fn policy_path(name: &str) -> String {
    format!("/apis/security.istio.io/v1/namespaces/a/authorizationpolicies/{name}")
}

#[tokio::test]
async fn what_vanished_while_nobody_watched_is_told() {
    let api = FakeApi::default();
    for name in ["a", "b"] {
        api.put(&format!("/api/v1/namespaces/{name}"), json!({"metadata": {}}));
    }
    let (mut running, _) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    api.be_away(true);
    api.delete("/api/v1/namespaces/a");
    api.put("/api/v1/namespaces/c", json!({"metadata": {}}));
    api.be_away(false);
    running.sees(&["+Namespace c", "-Namespace a"]).await;
    // The versions in between are forgotten: everything is listed again.
    api.be_away(true);
    api.delete("/api/v1/namespaces/b");
    api.put("/api/v1/namespaces/d", json!({"metadata": {}}));
    api.compact();
    api.be_away(false);
    running.sees(&["+Namespace d", "-Namespace b"]).await;
    api.end_watches();
    api.put("/api/v1/namespaces/e", json!({"metadata": {}}));
    running.sees(&["+Namespace e"]).await;
}

#[tokio::test]
async fn a_heartbeat_is_no_news() {
    let api = FakeApi::default();
    let node = |beat: u32| {
        json!({"metadata": {"labels": {"kubernetes.io/hostname": "n"}},
            "status": {"conditions": [{"type": "Ready", "status": "True",
                "lastHeartbeatTime": format!("2026-01-01T00:00:{beat:02}Z")}]}})
    };
    api.put("/api/v1/nodes/n", node(0));
    let (mut running, initial) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    assert_eq!(initial, ["+Node n"]);
    for beat in 1..9 {
        api.put("/api/v1/nodes/n", node(beat));
    }
    api.put("/api/v1/namespaces/a", json!({"metadata": {}}));
    running.sees(&["+Namespace a"]).await;
}

#[tokio::test]
async fn more_objects_than_a_page_holds_are_read() {
    let api = FakeApi::default();
    for index in 0..1201 {
        api.put(&format!("/api/v1/namespaces/n{index}"), json!({"metadata": {}}));
    }
    let (_running, initial) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    assert_eq!(initial.len(), 1201);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_cluster_lacks_is_empty_until_it_comes() {
    let api = FakeApi::default();
    api.know(POLICIES, false);
    api.put("/api/v1/namespaces/a", json!({"metadata": {}}));
    let (mut running, initial) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    assert_eq!(initial, ["+Namespace a"]);
    api.put(&policy_path("p"), policy(&json!({})));
    api.know(POLICIES, true);
    tokio::time::advance(Duration::from_secs(11)).await;
    running.sees(&["+AuthorizationPolicy a/p"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_for_is_not_taken_for_empty() {
    // A kind that is served in another version; a cluster's own kind.
    let (policies, namespaces) = (POLICIES, "v1/namespaces");
    for (missing, served) in [(policies, "security.istio.io/v2"), (namespaces, "a.b/v1")] {
        let api = FakeApi::default();
        api.know(missing, false);
        api.serve_as(served, "authorizationpolicies");
        let mut registry = Registry::kubernetes(&api.client(), ROOT);
        let loading = tokio::time::timeout(Duration::from_secs(600), registry.load(|_| {})).await;
        assert!(loading.is_err(), "{missing} was taken for empty");
        assert_eq!(api.count("GET /apis/security.istio.io/v2") > 0, missing == policies);
        api.know(missing, true);
        registry.load(|_| {}).await.unwrap();
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_read_keeps_its_last_good_version() {
    let api = FakeApi::default();
    let path =
        |name: &str| format!("/apis/networking.istio.io/v1/namespaces/a/serviceentries/{name}");
    let entry = |hosts: &Value| {
        json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {},
            "spec": {"hosts": hosts}})
    };
    api.put(&path("good"), entry(&json!(["a.b"])));
    api.put(&path("never"), entry(&json!("a.b")));
    let (mut running, initial) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    assert_eq!(initial, ["+ServiceEntry a/good"]);
    api.put(&path("good"), entry(&json!("a.b")));
    api.put("/api/v1/namespaces/a", json!({"metadata": {}}));
    running.sees(&["+Namespace a"]).await;
    api.be_away(true);
    api.compact();
    api.be_away(false);
    api.delete(&path("good"));
    running.sees(&["-ServiceEntry a/good"]).await;
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_is_told_all_the_same() {
    let api = FakeApi::default();
    api.put(&policy_path("good"), policy(&json!({"action": "DENY"})));
    api.put(&policy_path("never"), policy(&json!({"action": "NEWER"})));
    let (mut running, initial) = Running::start(Registry::kubernetes(&api.client(), ROOT)).await;
    assert_eq!(initial, ["+AuthorizationPolicy a/good", "+AuthorizationPolicy a/never"]);
    api.put(&policy_path("good"), policy(&json!({"action": "NEWER"})));
    running.sees(&["+AuthorizationPolicy a/good"]).await;
    api.delete(&policy_path("never"));
    running.sees(&["-AuthorizationPolicy a/never"]).await;
}
