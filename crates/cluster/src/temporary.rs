//! A namespace of one's own for a while: made with a mark, looked at, and taken away again.
//!
//! Nothing is taken over: a namespace of that name that is there already is an error, and only what
//! bears this run's mark is deleted.

use std::time::Duration;

use ambit_words::annotations::{ENABLED, REDIRECTION};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Cluster;
use crate::api::{ClusterError, Form};
use crate::json::{annotation, condition, is_ready, items, label, name, namespace, number, text};
use crate::parts::PodName;

/// The mark: whose value is the run's alone.
const MARK: &str = "ambit.io/bench-run";
/// For how long an API server goes on with a request whose answer nobody waits for any more: its
/// `--request-timeout`, unless that is set to something else.
const LANDING_LIMIT: Duration = Duration::from_secs(60);
/// How long a namespace may take to go, its pods included.
const GONE_LIMIT: Duration = Duration::from_secs(180);
/// How often it is looked whether it has gone.
const LOOK: Duration = Duration::from_millis(500);

/// A namespace that is one's own for a while.
pub struct TemporaryNamespace {
    cluster: Cluster,
    name: String,
    run: String,
    making: Making,
}

/// How far its making is.
enum Making {
    /// The API server was asked for nothing, has made nothing, or it is gone again.
    NotBegun,
    /// To be awaited before it is deleted, also by who was interrupted.
    UnderWay(JoinHandle<Result<(), ClusterError>>),
    /// The API server has said so.
    Made,
    /// It has not said whether: it may be made until then, also after it was looked for in vain.
    Unanswered { until: Instant },
}

/// What there is of its name.
enum Found {
    Nothing,
    Own,
    Another,
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
        Self { cluster, name: name.to_owned(), run: run.to_owned(), making: Making::NotBegun }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What selects all namespaces of a run, and those of no other.
    pub fn selector(run: &str) -> String {
        format!("{MARK}={run}")
    }

    /// Whether it may be there.
    pub fn may_be_there(&self) -> bool {
        !matches!(self.making, Making::NotBegun)
    }

    /// Fails if there is a namespace of that name, and says what to do about it.
    pub async fn ensure_free(&self) -> Result<(), ClusterError> {
        match self.cluster.read(&self.path()).await {
            Err(ClusterError::Absent(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(found) => Err(taken(&found, &self.cluster.kubectl())),
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
        let task = tokio::spawn(async move { cluster.create(NAMESPACES, &object).await });
        self.making = Making::UnderWay(task);
        match self.made().await {
            Err(ClusterError::Exists(_)) => match self.cluster.read(&self.path()).await {
                // The client asks again when a server is busy, though it may have been made.
                Ok(found) if self.owns(&found) => Ok(()),
                Ok(found) => Err(taken(&found, &self.cluster.kubectl())),
                // It has gone in between.
                Err(ClusterError::Absent(_)) => Err(ClusterError::Exists(self.path())),
                Err(error) => Err(error),
            },
            made => made,
        }
    }

    /// The end of its making, if that is under way.
    async fn made(&mut self) -> Result<(), ClusterError> {
        let Making::UnderWay(task) = &mut self.making else { return Ok(()) };
        let made = task.await.expect("what makes a namespace does not panic");
        self.making = match &made {
            // Of what is there already, its mark says whose it is.
            Ok(()) | Err(ClusterError::Exists(_)) => Making::Made,
            Err(error) if error.leaves_open() => {
                Making::Unanswered { until: Instant::now() + LANDING_LIMIT }
            }
            Err(_) => Making::NotBegun,
        };
        made
    }

    /// Whether it is the run's own.
    fn owns(&self, found: &Value) -> bool {
        label(found, MARK) == Some(self.run.as_str())
    }

    /// Makes an object in it.
    pub async fn add(&self, object: &Value) -> Result<(), ClusterError> {
        match self.cluster.create(&list_path(&self.name, object), object).await {
            // Nobody else makes anything here: the client has asked again, as above.
            Err(ClusterError::Exists(_)) => Ok(()),
            made => made,
        }
    }

    /// How its pods fare.
    pub async fn pods(&self) -> Result<Vec<LivePod>, ClusterError> {
        let path = format!("{}/pods", self.path());
        let pods = self.cluster.list(&path, Form::Whole, |_| {}).await?;
        Ok(pods.iter().map(LivePod::of).collect())
    }

    /// Deletes it, if it was made, and waits until it is gone. What the API server cannot answer
    /// now it may answer later, so that only a refusal ends it early: nobody else takes it away.
    pub async fn delete(&mut self) -> Result<(), ClusterError> {
        // What came of it is in its state.
        let _made = self.made().await;
        if !self.may_be_there() {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            let late = match self.look_and_delete().await {
                Ok(Found::Another) => break,
                Ok(Found::Nothing) if !self.may_come() => break,
                Ok(_) => ClusterError::Stays(self.name.clone(), GONE_LIMIT),
                Err(error @ ClusterError::Refused { .. }) => return Err(error),
                Err(error) => error,
            };
            if start.elapsed() > GONE_LIMIT {
                return Err(late);
            }
            tokio::time::sleep(LOOK).await;
        }
        self.making = Making::NotBegun;
        Ok(())
    }

    /// Looks what there is of its name, and asks for its end if it is the run's own.
    async fn look_and_delete(&mut self) -> Result<Found, ClusterError> {
        let path = self.path();
        let found = match self.cluster.read(&path).await {
            Err(ClusterError::Absent(_)) => return Ok(Found::Nothing),
            found => found?,
        };
        if !self.owns(&found) {
            return Ok(Found::Another);
        }
        // It came, and comes once only.
        self.making = Making::Made;
        if found["metadata"]["deletionTimestamp"].is_null() {
            match self.cluster.delete(&path, text(&found, "/metadata/uid")).await {
                Ok(()) | Err(ClusterError::Absent(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Found::Own)
    }

    /// Whether it may be made yet, though it is not there now.
    fn may_come(&self) -> bool {
        matches!(self.making, Making::Unanswered { until } if Instant::now() < until)
    }

    fn path(&self) -> String {
        format!("{NAMESPACES}/{}", self.name)
    }
}

/// Where namespaces are.
const NAMESPACES: &str = "/api/v1/namespaces";

/// Whose a namespace is that is there already.
fn taken(found: &Value, kubectl: &str) -> ClusterError {
    let name = name(found).to_owned();
    let whose = match label(found, MARK) {
        None => {
            "which is not of `ambit bench`; rename it, or measure on another cluster".to_owned()
        }
        Some(_) => format!(
            "of a run of `ambit bench` that began at {}; wait until it ends, or, if it was killed, \
             delete what it left with `{kubectl} delete namespace {name}`",
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
            is_captured: annotation(pod, REDIRECTION) == Some(ENABLED),
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Method;

    use super::*;
    use crate::api::playing;

    fn found(run: Option<&str>) -> Value {
        json!({"metadata": {"name": "bench", "uid": "u", "creationTimestamp": "noon",
            "labels": {MARK: run}}})
    }

    type Answer = fn(&Method, &str) -> (u16, Value);

    fn temporary(
        answer: impl Fn(&Method, &str) -> (u16, Value) + Send + 'static,
    ) -> TemporaryNamespace {
        TemporaryNamespace::new(playing(answer), "bench", "mine")
    }

    fn status(code: u16, message: &str) -> (u16, Value) {
        (code, json!({"kind": "Status", "code": code, "message": message}))
    }

    fn not_found() -> (u16, Value) {
        status(404, "not found")
    }

    #[tokio::test]
    async fn a_name_that_is_taken_is_refused_with_what_to_do() {
        let refused =
            async |answer: Answer| temporary(answer).ensure_free().await.unwrap_err().to_string();
        let foreign = refused(|_, _| (200, found(None))).await;
        assert!(foreign.contains("not of `ambit bench`; rename it"), "{foreign}");
        let other = refused(|_, _| (200, found(Some("theirs")))).await;
        assert!(other.contains("began at noon"), "{other}");
        assert!(other.contains("`kubectl --context test delete namespace bench`"), "{other}");
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

    /// What comes of making and deleting it where the API server answers the n-th question about
    /// it, and its deletion, as `steps` say; and what of them was asked.
    async fn deleted(
        made: (u16, Value),
        steps: Vec<(Method, (u16, Value))>,
    ) -> (Result<(), String>, usize, Duration) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = steps.len();
        let next = asked.clone();
        let mut temporary = temporary(move |method, _| {
            if *method == Method::POST {
                return made.clone();
            }
            // The last answer stands.
            let at = next.fetch_add(1, Ordering::SeqCst).min(count - 1);
            assert_eq!(*method, steps[at].0, "question {at}");
            steps[at].1.clone()
        });
        let _made = temporary.make(json!({})).await;
        let start = Instant::now();
        let deleted = temporary.delete().await.map_err(|error| error.to_string());
        (deleted, asked.load(Ordering::SeqCst), start.elapsed())
    }

    fn get(answer: (u16, Value)) -> (Method, (u16, Value)) {
        (Method::GET, answer)
    }

    fn own() -> (u16, Value) {
        (200, found(Some("mine")))
    }

    #[tokio::test(start_paused = true)]
    async fn only_its_own_is_deleted_and_waited_for() {
        let deletion = || (Method::DELETE, (200, json!({})));
        let theirs = get((200, found(Some("theirs"))));
        let (outcome, asked, _) = deleted((201, json!({})), vec![theirs]).await;
        assert_eq!((outcome, asked), (Ok(()), 1), "another's is left alone");
        let steps = vec![get(own()), deletion(), get(own()), deletion(), get(not_found())];
        let (outcome, asked, _) = deleted((201, json!({})), steps).await;
        assert_eq!((outcome, asked), (Ok(()), 5));
        let mut never_made = temporary(|_, _| panic!("nothing is to be asked"));
        assert!(!never_made.may_be_there());
        never_made.delete().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn errors_in_between_are_outlasted_and_a_refusal_is_not() {
        let broken = || status(503, "later");
        let steps = vec![
            get(broken()),
            get(own()),
            (Method::DELETE, broken()),
            get(status(429, "too many")),
            get(own()),
            (Method::DELETE, status(409, "of another UID")),
            get(own()),
            (Method::DELETE, (200, json!({}))),
            get(not_found()),
        ];
        let (outcome, asked, _) = deleted((201, json!({})), steps).await;
        assert_eq!((outcome, asked), (Ok(()), 9));
        let refused = vec![get(own()), (Method::DELETE, status(403, "you may not"))];
        let (outcome, asked, _) = deleted((201, json!({})), refused).await;
        assert!(outcome.unwrap_err().contains("you may not"));
        assert_eq!(asked, 2);
        let (outcome, _, took) = deleted((201, json!({})), vec![get(broken())]).await;
        assert!(outcome.unwrap_err().contains("later"));
        assert!(took > GONE_LIMIT && took < GONE_LIMIT * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_made_after_its_answer_was_given_up_is_deleted() {
        let steps = vec![
            get(not_found()),
            get(not_found()),
            get(own()),
            (Method::DELETE, (200, json!({}))),
            get(not_found()),
        ];
        let (outcome, asked, took) = deleted(status(504, "no answer in time"), steps).await;
        assert_eq!((outcome, asked), (Ok(()), 5));
        assert!(took < LANDING_LIMIT, "{took:?}");
        // What never comes is waited for as long as it may.
        let never = || vec![get(not_found())];
        let (outcome, _, took) = deleted(status(504, "no answer in time"), never()).await;
        assert!(outcome.is_ok() && took >= LANDING_LIMIT, "{took:?}");
        // Of one that is there already: it was made by the first of two attempts.
        let exists = (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"}));
        let mut again = temporary(move |method, _| match *method {
            Method::POST => exists.clone(),
            _ => own(),
        });
        again.make(json!({})).await.unwrap();
        assert!(again.may_be_there());
        let (outcome, asked, _) = deleted(status(400, "a webhook says no"), never()).await;
        assert_eq!((outcome, asked), (Ok(()), 0));
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
