//! Takes the mesh out of a cluster before its parts are deleted: orders every agent to release its
//! pods, and reads their answers.
//!
//! The order is an annotation of the agents' DaemonSet, each answer an annotation of an agent's
//! pod. First every pod is opened to plain connections, then all leave: so the pods that leave
//! first still reach those that leave last, whatever the policies say. Open connections continue
//! until they end or the time is over. If an agent does not answer, or this process is asked to
//! stop, the order is withdrawn and everything stays as before. If this process dies, the order to
//! open names its own end, after which agents apply the policies again. That one annotation is all
//! that this module changes in a cluster.

use std::time::{Duration, SystemTime};

use ambit_words::annotations::{DEPARTURE, ENABLED, REDIRECTION};
use ambit_words::departure::{Answer, Order};
use ambit_words::durations::write_duration;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Cluster;
use crate::api::{ClusterError, Form};
use crate::findings::listed;
use crate::json::{annotation, name, namespace, owner, text};
use crate::parts::AGENT;

/// How often the answers are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long an agent may take to open its pods.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// How long pods stay open if nothing else is ordered: the limit, time for the next order to reach
/// every node, and for clocks that differ.
const OPEN_TIME: Duration = Duration::from_secs(120);
/// How long an API server that restarts is asked again. What an order's answers need is asked for
/// as long as the agents have.
const ASK_LIMIT: Duration = Duration::from_secs(20);
/// How long an agent may take beyond the time that open connections have.
const LEAVE_MARGIN: Duration = Duration::from_secs(30);
/// How long after a time was said the next one is.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// How the mesh leaves.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// How long connections through the mesh may stay open.
    pub grace: Duration,
    /// Goes on without agents that do not answer.
    pub is_forced: bool,
}

/// Why the mesh did not leave.
#[derive(Debug, thiserror::Error)]
pub enum DepartureError {
    /// The cluster cannot be read or changed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Agents did not carry out the order in time.
    #[error(
        "the agents of these nodes have not answered within {within:?}: {nodes}; their pods stay \
         in the mesh, and so do all others; see `ambit logs --kube node/NODE` and whether their \
         clocks agree with the one here, or force it"
    )]
    Silent {
        /// The first few nodes.
        nodes: String,
        /// How long was waited.
        within: Duration,
    },
    /// Pods are on nodes without an agent.
    #[error(
        "these pods are still reported as captured, and no agent releases them: {0}; see `ambit \
         check`, or force it"
    )]
    Captured(String),
    /// Somebody did not wait for the end.
    #[error(
        "stopped by a signal before every pod had left; all pods stay in the mesh, or return to it"
    )]
    Stopped,
}

impl Departure {
    /// Takes all pods out of the mesh, unless `stop` comes first; answers how many connections were
    /// cut, counted at each end that the mesh had.
    pub async fn run(
        self,
        cluster: &Cluster,
        mut say: impl FnMut(&str),
        stop: impl Future<Output = ()>,
    ) -> Result<usize, DepartureError> {
        let left = tokio::select! {
            left = self.leave(cluster, &mut say) => left,
            () = stop => Err(DepartureError::Stopped),
        };
        if left.is_err() {
            // The reason is the first error; that the order stays would be another.
            // A server that restarts may refuse for a while what it allows.
            let is_passing = |error: &_| !matches!(error, ClusterError::Absent(_));
            if let Err(error) = patiently(is_passing, || cluster.order(None)).await {
                say(&format!(
                    "the order cannot be withdrawn: {error}; remove the annotation \
                    {DEPARTURE} of DaemonSet {}/{AGENT}",
                    cluster.mesh_namespace()
                ));
            }
        }
        left
    }

    async fn leave(
        self,
        cluster: &Cluster,
        say: &mut impl FnMut(&str),
    ) -> Result<usize, DepartureError> {
        // Who has left already, by a command before this one, is not called back.
        let standing = patiently(may_pass, || cluster.standing_order()).await?;
        if !matches!(standing.parse(), Ok(Order::<Timestamp>::Leave(_))) {
            say("every pod lets plain connections in");
            let order = Order::Open(moment(OPEN_TIME)).to_string();
            let is_open = |it: &Option<Answer>| *it == Some(Answer::Open);
            self.await_answers(cluster, &order, OPEN_LIMIT, say, is_open).await?;
        }
        let grace = write_duration(self.grace);
        say(&format!("every pod leaves; open connections have {grace} to end"));
        let order = Order::Leave(moment(self.grace)).to_string();
        let limit = self.grace + LEAVE_MARGIN;
        let has_left = |it: &Option<Answer>| matches!(it, Some(Answer::Left(_)));
        let answers = self.await_answers(cluster, &order, limit, say, has_left).await?;
        let captured = patiently(may_pass, || cluster.captured()).await?;
        if !captured.is_empty() && !self.is_forced {
            return Err(DepartureError::Captured(listed(&captured)));
        }
        if !captured.is_empty() {
            say(&format!("still reported as captured: {}", listed(&captured)));
        }
        Ok(answers.iter().map(|it| if let Some(Answer::Left(cut)) = it { *cut } else { 0 }).sum())
    }

    /// Orders, and waits until every agent has answered as it should.
    async fn await_answers(
        self,
        cluster: &Cluster,
        order: &str,
        limit: Duration,
        say: &mut impl FnMut(&str),
        is_done: impl Fn(&Option<Answer>) -> bool,
    ) -> Result<Vec<Option<Answer>>, DepartureError> {
        patiently(may_pass, || cluster.order(Some(order))).await?;
        let start = Instant::now();
        let mut said_at = start;
        loop {
            let answers = match cluster.answers(order).await {
                // The API server restarts, for example: the agents continue meanwhile.
                Err(error) if may_pass(&error) && start.elapsed() < limit => {
                    if said_at.elapsed() >= SAY_AGAIN {
                        said_at = Instant::now();
                        say(&format!("asked again: {error}"));
                    }
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                answers => answers?,
            };
            let late: Vec<&str> =
                answers.iter().filter(|it| !is_done(&it.1)).map(|it| &*it.0).collect();
            if late.is_empty() {
                return Ok(answers.into_iter().map(|it| it.1).collect());
            }
            if start.elapsed() >= limit {
                if !self.is_forced {
                    return Err(DepartureError::Silent { nodes: listed(&late), within: limit });
                }
                say(&format!("no answer within {limit:?} of {}", listed(&late)));
                return Ok(answers.into_iter().map(|it| it.1).collect());
            }
            if said_at.elapsed() >= SAY_AGAIN {
                said_at = Instant::now();
                let open: usize = answers
                    .iter()
                    .map(|it| if let Some(Answer::Leaving(open)) = it.1 { open } else { 0 })
                    .sum();
                say(&format!("waiting for {}: {open} connections are open", listed(&late)));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Cluster {
    async fn order(&self, order: Option<&str>) -> Result<(), ClusterError> {
        let annotations = json!({ DEPARTURE: order });
        self.patch(&self.agents(), &json!({"metadata": {"annotations": annotations}})).await
    }

    /// The order in force; empty if there is none.
    async fn standing_order(&self) -> Result<String, ClusterError> {
        let set = self.read(&self.agents()).await?;
        Ok(annotation(&set, DEPARTURE).unwrap_or_default().to_owned())
    }

    fn agents(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/daemonsets/{AGENT}", self.mesh_namespace())
    }

    /// What each agent has answered to this order, if it has, by node.
    async fn answers(&self, order: &str) -> Result<Vec<(String, Option<Answer>)>, ClusterError> {
        let namespace = self.mesh_namespace();
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{AGENT}");
        let pods = self.list(&path, Form::Whole, |_| {}).await?;
        let lives = |pod: &&Value| {
            owner(pod, "DaemonSet") == Some(AGENT) && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let answer = |pod: &Value| {
            let node = text(pod, "/spec/nodeName").to_owned();
            (node, annotation(pod, DEPARTURE).and_then(|it| Answer::read(it, order)))
        };
        Ok(pods.iter().filter(lives).map(answer).collect())
    }

    /// The pods that are reported as captured.
    async fn captured(&self) -> Result<Vec<String>, ClusterError> {
        let pods = self.list("/api/v1/pods", Form::Metadata, |_| {}).await?;
        let is_captured = |pod: &&Value| annotation(pod, REDIRECTION) == Some(ENABLED);
        let named = |pod: &Value| format!("{}/{}", namespace(pod), name(pod));
        Ok(pods.iter().filter(is_captured).map(named).collect())
    }
}

/// Whether asking again may help.
fn may_pass(error: &ClusterError) -> bool {
    !matches!(error, ClusterError::Absent(_) | ClusterError::Refused { .. })
}

/// Asks again, for a while, after errors that may pass.
async fn patiently<T>(
    is_passing: impl Fn(&ClusterError) -> bool,
    ask: impl AsyncFn() -> Result<T, ClusterError>,
) -> Result<T, ClusterError> {
    let start = Instant::now();
    loop {
        match ask().await {
            Err(error) if is_passing(&error) && start.elapsed() < ASK_LIMIT => {
                tokio::time::sleep(LOOK).await;
            }
            answer => return answer,
        }
    }
}

/// So long from now.
fn moment(later: Duration) -> Timestamp {
    let moment = SystemTime::now() + later;
    // No clock is beyond what can be written.
    Timestamp::try_from(moment).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;

    use super::*;

    /// Two agents; each answers an order so.
    struct Played {
        /// What is ordered.
        order: Option<String>,
        /// All that was ordered.
        orders: Vec<Option<String>>,
        /// The answers of n1 and n2 to an order that begins like this.
        answers: [fn(&str) -> Option<&'static str>; 2],
        captured: bool,
        /// From when to when the API server answers nothing.
        away: Range<Instant>,
    }

    impl Played {
        fn is_away(&self) -> bool {
            self.away.contains(&Instant::now())
        }

        fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Value {
            if method == Method::PATCH {
                let patch: Value = serde_json::from_slice(body).expect("a patch is JSON");
                let order = &patch["metadata"]["annotations"][DEPARTURE];
                self.order = order.as_str().map(str::to_owned);
                self.orders.push(self.order.clone());
                return json!({});
            }
            if path.contains("/daemonsets/") {
                return json!({"metadata": {"annotations": {DEPARTURE: self.order}}});
            }
            if path.starts_with("/api/v1/pods") {
                let value = if self.captured { "enabled" } else { "other" };
                let annotations = json!({ REDIRECTION: value });
                let pod = json!({"metadata": {"namespace": "a", "name": "b",
                    "annotations": annotations}});
                return json!({"metadata": {}, "items": [pod]});
            }
            let agent = |node: usize| {
                let order = self.order.as_deref().unwrap_or_default();
                let said = (self.answers[node])(order).map(|it| format!("{order} {it}"));
                let annotations = json!({ DEPARTURE: said });
                json!({"metadata": {"name": "agent", "annotations": annotations,
                    "ownerReferences": [{"kind": "DaemonSet", "name": AGENT}]},
                    "spec": {"nodeName": format!("n{}", node + 1)}})
            };
            json!({"metadata": {}, "items": [agent(0), agent(1)]})
        }
    }

    fn obeys(order: &str) -> Option<&'static str> {
        Some(if order.starts_with("open/") { "open" } else { "left 3" })
    }

    fn never_leaves(order: &str) -> Option<&'static str> {
        Some(if order.starts_with("open/") { "open" } else { "leaving 7" })
    }

    async fn play(
        answers: [fn(&str) -> Option<&'static str>; 2],
        captured: bool,
        is_forced: bool,
    ) -> (Result<usize, String>, Vec<String>, String) {
        play_from(None, answers, captured, is_forced, Duration::MAX).await
    }

    async fn play_from(
        order: Option<String>,
        answers: [fn(&str) -> Option<&'static str>; 2],
        captured: bool,
        is_forced: bool,
        stop: Duration,
    ) -> (Result<usize, String>, Vec<String>, String) {
        let now = Instant::now();
        let orders = Vec::new();
        let played = Played { order, orders, answers, captured, away: now..now };
        play_out(played, is_forced, stop).await
    }

    /// Runs a departure that is asked to stop after that time; returns its outcome, the start of
    /// each order, and its messages.
    async fn play_out(
        played: Played,
        is_forced: bool,
        stop: Duration,
    ) -> (Result<usize, String>, Vec<String>, String) {
        let played = Arc::new(Mutex::new(played));
        let of_service = played.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let played = of_service.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body in memory is read");
                let path = parts.uri.path_and_query().expect("a path is asked for").as_str();
                let mut played = played.lock().expect("no panic");
                if played.is_away() {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                let answer = played.answer(&parts.method, path, &body).to_string();
                Ok::<_, std::io::Error>(Response::new(Body::from(answer.into_bytes())))
            }
        });
        let cluster = Cluster::played(kube::Client::new(service, "default"));
        let departure = Departure { grace: Duration::from_secs(60), is_forced };
        let mut said = String::new();
        let stop = tokio::time::sleep(stop);
        let outcome = departure.run(&cluster, |words| said.push_str(words), stop).await;
        let orders = played.lock().expect("no panic").orders.clone();
        let begin = |it: Option<String>| {
            it.map_or("none".to_owned(), |it| it.split('/').next().unwrap_or_default().to_owned())
        };
        let orders = orders.into_iter().map(begin).collect();
        (outcome.map_err(|error| error.to_string()), orders, said)
    }

    #[tokio::test(start_paused = true)]
    async fn all_open_first_then_all_leave_and_the_cut_are_counted() {
        let (outcome, orders, _) = play([obeys, obeys], false, false).await;
        assert_eq!((outcome, orders), (Ok(6), vec!["open".to_owned(), "leave".to_owned()]));
        // Those who have left are not called back.
        let order = Some("leave/2026-01-01T00:00:00Z".to_owned());
        let (outcome, orders, _) =
            play_from(order, [obeys, obeys], false, false, Duration::MAX).await;
        assert_eq!((outcome, orders), (Ok(6), vec!["leave".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_does_not_answer_is_named_and_the_order_withdrawn() {
        let (outcome, orders, _) = play([obeys, |_| None], false, false).await;
        let error = outcome.expect_err("n2 is silent");
        assert!(error.contains("30s: n2"), "{error}");
        assert_eq!(orders, ["open", "none"]);
        let (outcome, orders, said) = play([obeys, never_leaves], false, false).await;
        let error = outcome.expect_err("n2 never leaves");
        assert!(error.contains("90s: n2"), "{error}");
        assert!(said.contains("waiting for n2: 7 connections are open"), "{said}");
        assert_eq!(orders, ["open", "leave", "none"]);
    }

    #[tokio::test(start_paused = true)]
    async fn told_to_stop_it_withdraws_its_order() {
        for (after, expected) in [(20, &["open", "none"][..]), (40, &["open", "leave", "none"])] {
            let second: fn(&str) -> Option<&'static str> =
                if after < 30 { |_| None } else { never_leaves };
            let stop = Duration::from_secs(after);
            let (outcome, orders, _) = play_from(None, [obeys, second], false, false, stop).await;
            assert!(outcome.expect_err("stopped").contains("stopped by a signal"));
            assert_eq!(orders, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_restarts_is_outlasted() {
        let seconds = Duration::from_secs;
        let away = |from: u64, to: u64, answers| {
            let now = Instant::now();
            let away = now + seconds(from)..now + seconds(to);
            Played { order: None, orders: Vec::new(), answers, captured: false, away }
        };
        // While it is asked for answers; while the order is withdrawn; for longer than that.
        let second: fn(&str) -> Option<&'static str> = never_leaves;
        let (outcome, orders, said) =
            play_out(away(5, 45, [obeys, second]), false, Duration::MAX).await;
        assert!(outcome.expect_err("n2 never leaves").contains("90s: n2"));
        assert_eq!(orders, ["open", "leave", "none"]);
        assert!(said.contains("asked again"), "{said}");
        let (_, orders, said) = play_out(away(20, 35, [obeys, second]), false, seconds(20)).await;
        assert_eq!(
            (orders, said.contains("withdrawn")),
            (vec!["open".to_owned(), "leave".to_owned(), "none".to_owned()], false)
        );
        let (_, orders, said) = play_out(away(20, 60, [obeys, second]), false, seconds(20)).await;
        assert_eq!(orders, ["open", "leave"]);
        assert!(said.contains("cannot be withdrawn"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn by_force_it_goes_on_and_says_without_whom() {
        let (outcome, orders, said) = play([obeys, |_| None], true, true).await;
        assert_eq!((outcome, orders), (Ok(3), vec!["open".to_owned(), "leave".to_owned()]));
        assert!(said.contains("within 90s of n2"), "{said}");
        assert!(said.contains("still reported as captured: a/b"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_nobody_releases_is_named() {
        let (outcome, orders, _) = play([obeys, obeys], true, false).await;
        assert!(outcome.expect_err("a/b is captured").contains("a/b"));
        assert_eq!(orders, ["open", "leave", "none"]);
    }
}
