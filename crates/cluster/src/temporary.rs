//! A namespace of one's own for a while: made with a mark, looked at, and taken away again.
//!
//! Nothing is taken over: a namespace of that name that is there already is an error, and only what
//! bears this run's mark is deleted.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::Cluster;
use crate::api::{ClusterError, Form};
use crate::findings::REDIRECTION;
use crate::json::{annotation, condition, is_ready, items, label, name, namespace, number, text};
use crate::parts::PodName;

/// The mark: whose value is the run's alone.
const MARK: &str = "ambit.io/bench-run";
/// How long a namespace may take to go, its pods included.
const GONE_LIMIT: Duration = Duration::from_secs(180);
/// How often it is looked whether it has gone.
const LOOK: Duration = Duration::from_millis(500);

/// A namespace that is one's own for a while.
pub struct TemporaryNamespace {
    cluster: Cluster,
    name: String,
    run: String,
    /// Under way: to be awaited before it is deleted, also by who was interrupted.
    making: Option<JoinHandle<Result<(), ClusterError>>>,
}

/// How a pod fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePod {
    /// Its name.
    pub name: PodName,
    /// It runs, and its probes pass.
    pub is_ready: bool,
    /// It is in the mesh, as the agent says.
    pub is_captured: bool,
    /// How often a container of it was started again.
    pub restarts: u64,
    /// Why it is not ready, as far as the cluster says.
    pub waits_for: String,
}

impl TemporaryNamespace {
    /// One that is not made yet. `run` tells this run from every other.
    pub fn new(cluster: Cluster, name: &str, run: &str) -> Self {
        Self { cluster, name: name.to_owned(), run: run.to_owned(), making: None }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fails if there is a namespace of that name, and says what to do about it.
    pub async fn ensure_free(&self) -> Result<(), ClusterError> {
        match self.cluster.read(&self.path()).await {
            Err(ClusterError::Absent(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(found) => Err(taken(&found)),
        }
    }

    /// Makes it, with labels.
    pub async fn make(&mut self, mut labels: Value) -> Result<(), ClusterError> {
        labels[MARK] = json!(self.run);
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": self.name, "labels": labels }
        });
        let cluster = self.cluster.clone();
        // A task of its own: when nobody waits for it any more, it may be made all the same.
        let making = tokio::spawn(async move { cluster.create(NAMESPACES, &object).await });
        let made = self.making.insert(making).await;
        self.making = None;
        match made.expect("what makes a namespace does not panic") {
            Err(ClusterError::Exists(_)) => {
                self.ensure_free().await?;
                // It has gone in between.
                Err(ClusterError::Exists(self.path()))
            }
            made => made,
        }
    }

    /// Makes an object in it.
    pub async fn add(&self, object: &Value) -> Result<(), ClusterError> {
        self.cluster.create(&list_path(&self.name, object), object).await
    }

    /// How its pods fare.
    pub async fn pods(&self) -> Result<Vec<LivePod>, ClusterError> {
        let path = format!("{}/pods", self.path());
        let pods = self.cluster.list(&path, Form::Whole, |_| {}).await?;
        Ok(pods.iter().map(LivePod::of).collect())
    }

    /// Deletes it, if it was made, and waits until it is gone.
    pub async fn delete(&mut self) -> Result<(), ClusterError> {
        if let Some(making) = self.making.take() {
            // Whether it was made is looked at, whatever came of it.
            let _made = making.await;
        }
        let path = self.path();
        let start = Instant::now();
        loop {
            let found = match self.cluster.read(&path).await {
                Err(ClusterError::Absent(_)) => return Ok(()),
                found => found?,
            };
            if label(&found, MARK) != Some(self.run.as_str()) {
                return Ok(());
            }
            if found["metadata"]["deletionTimestamp"].is_null() {
                match self.cluster.delete(&path, text(&found, "/metadata/uid")).await {
                    Ok(()) | Err(ClusterError::Absent(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            if start.elapsed() > GONE_LIMIT {
                return Err(ClusterError::Stays(self.name.clone(), GONE_LIMIT));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn path(&self) -> String {
        format!("{NAMESPACES}/{}", self.name)
    }
}

/// Where namespaces are.
const NAMESPACES: &str = "/api/v1/namespaces";

/// Whose a namespace is that is there already.
fn taken(found: &Value) -> ClusterError {
    let name = name(found).to_owned();
    let whose = match label(found, MARK) {
        None => {
            "which is not of `ambit bench`; rename it, or measure on another cluster".to_owned()
        }
        Some(_) => format!(
            "of a run of `ambit bench` that began at {}; wait until it ends, or, if it was killed, \
             delete what it left with `kubectl delete namespace {name}`",
            text(found, "/metadata/creationTimestamp")
        ),
    };
    ClusterError::Taken { name, whose }
}

/// Where objects like this one are: `AuthorizationPolicy` at `authorizationpolicies`.
fn list_path(namespace: &str, object: &Value) -> String {
    let version = text(object, "/apiVersion");
    let group = if version.contains('/') { "apis" } else { "api" };
    let kind = text(object, "/kind").to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    format!("/{group}/{version}/namespaces/{namespace}/{plural}")
}

impl LivePod {
    fn of(pod: &Value) -> Self {
        let containers = || items(pod, "/status/containerStatuses");
        let (namespace, name) = (namespace(pod).to_owned(), name(pod).to_owned());
        Self {
            name: PodName { namespace, name },
            is_ready: is_ready(pod),
            is_captured: annotation(pod, REDIRECTION) == Some("enabled"),
            restarts: containers().map(|it| number(it, "/restartCount")).sum(),
            waits_for: waits_for(pod),
        }
    }
}

/// The first reason that the cluster gives.
fn waits_for(pod: &Value) -> String {
    let of = |value: &Value| {
        let (reason, message) = (text(value, "/reason"), text(value, "/message"));
        [reason, message].iter().filter(|it| !it.is_empty()).copied().collect::<Vec<_>>().join(": ")
    };
    let waiting = items(pod, "/status/containerStatuses")
        .filter_map(|it| it.pointer("/state/waiting").or(it.pointer("/lastState/terminated")))
        .map(of);
    let scheduled = condition(pod, "PodScheduled").filter(|it| it["status"] == "False").map(of);
    let phase = text(pod, "/status/phase").to_owned();
    let mut reasons = scheduled.into_iter().chain(waiting).chain([phase]);
    reasons.find(|it| !it.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Method;

    use super::*;
    use crate::api::playing;

    fn found(run: Option<&str>) -> Value {
        json!({"metadata": {"name": "bench", "uid": "u", "creationTimestamp": "noon",
            "labels": {MARK: run}}})
    }

    type Answer = fn(&Method, &str) -> (u16, Value);

    fn temporary(answer: Answer) -> TemporaryNamespace {
        TemporaryNamespace::new(playing(answer), "bench", "mine")
    }

    fn not_found() -> (u16, Value) {
        (404, json!({"kind": "Status", "code": 404, "message": "not found"}))
    }

    #[tokio::test]
    async fn a_name_that_is_taken_is_refused_with_what_to_do() {
        let refused =
            async |answer: Answer| temporary(answer).ensure_free().await.unwrap_err().to_string();
        let foreign = refused(|_, _| (200, found(None))).await;
        assert!(foreign.contains("not of `ambit bench`; rename it"), "{foreign}");
        let other = refused(|_, _| (200, found(Some("theirs")))).await;
        assert!(other.contains("began at noon") && other.contains("kubectl delete"), "{other}");
        assert!(temporary(|_, _| not_found()).ensure_free().await.is_ok());
        let exists = |method: &Method, _: &str| match *method {
            Method::POST => {
                (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"}))
            }
            _ => (200, found(Some("theirs"))),
        };
        let made = temporary(exists).make(json!({})).await;
        assert!(made.unwrap_err().to_string().contains("began at noon"));
    }

    #[tokio::test(start_paused = true)]
    async fn only_its_own_is_deleted_and_waited_for() {
        static DELETED: AtomicUsize = AtomicUsize::new(0);
        let delete = |answer: Answer| async move { temporary(answer).delete().await };
        delete(|method, _| {
            assert_eq!(method, Method::GET, "another's is left alone");
            (200, found(Some("theirs")))
        })
        .await
        .unwrap();
        delete(|method, _| match (method, DELETED.load(Ordering::SeqCst)) {
            (&Method::DELETE, _) => {
                DELETED.fetch_add(1, Ordering::SeqCst);
                (200, json!({}))
            }
            (_, 0) => (200, found(Some("mine"))),
            _ => not_found(),
        })
        .await
        .unwrap();
        assert_eq!(DELETED.load(Ordering::SeqCst), 1);
        let refused = delete(|method, _| match *method {
            Method::GET => (200, found(Some("mine"))),
            _ => (403, json!({"kind": "Status", "code": 403, "message": "you may not"})),
        });
        assert!(refused.await.unwrap_err().to_string().contains("you may not"));
    }

    #[test]
    fn objects_go_where_their_kind_is() {
        let check = |version: &str, kind: &str, expected: &str| {
            let object = json!({"apiVersion": version, "kind": kind});
            assert_eq!(list_path("a", &object), expected);
        };
        check("v1", "Pod", "/api/v1/namespaces/a/pods");
        check("v1", "ServiceAccount", "/api/v1/namespaces/a/serviceaccounts");
        check(
            "security.istio.io/v1",
            "AuthorizationPolicy",
            "/apis/security.istio.io/v1/namespaces/a/authorizationpolicies",
        );
    }

    #[test]
    fn a_pod_says_what_it_waits_for() {
        let check = |status: Value, expected: &str| {
            let pod = json!({"metadata": {"namespace": "a", "name": "b"}, "status": status});
            let pod = LivePod::of(&pod);
            assert_eq!((&*pod.waits_for, pod.is_ready, pod.is_captured), (expected, false, false));
        };
        check(json!({"phase": "Pending"}), "Pending");
        let condition = json!({"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes"});
        check(json!({"phase": "Pending", "conditions": [condition]}), "Unschedulable: 0/2 nodes");
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
        check(json!({"containerStatuses": [{"state": waiting}]}), "ErrImagePull: no such image");
        let ready = json!({"metadata": {"annotations": {REDIRECTION: "enabled"}}, "status":
            {"conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 2}, {"restartCount": 1}]}});
        let pod = LivePod::of(&ready);
        assert_eq!((pod.is_ready, pod.is_captured, pod.restarts), (true, true, 3));
    }
}
