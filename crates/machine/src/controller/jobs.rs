//! The pods of a Job: as many as it takes until enough have ended well, or too many badly.
//!
//! A Job's status is its memory: when it began, which indexes are done, when a pod last failed, and
//! whether it is over. What is over never begins again. The words of conditions are Kubernetes'.

use std::collections::BTreeSet;

use ambit_words::labels::JOB_CONTROLLER_UID;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use serde_json::{Value, json};

use super::owned::{Action, INDEX, OwnedPod, Owner, random_name};
use super::{decode, text};
use crate::objects::ObjectRef;
use crate::registry::Phase;

/// Labels that name a pod's Job, by name and by uid; the short ones are those of old releases.
const JOB_NAME: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
const CONTROLLER_UID: [&str; 2] = [JOB_CONTROLLER_UID, "controller-uid"];
/// The variable that says which index a pod has.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Pods that may fail where a Job does not say.
const BACKOFF_LIMIT: u32 = 6;
/// Wait after the first failed pod; it doubles with each further one.
const BACK_OFF_FIRST_SECONDS: i64 = 10;
const BACK_OFF_MAX_SECONDS: i64 = 360;

/// What of a Job's pods its status counts.
#[derive(Debug, Default)]
struct Tally {
    succeeded: u32,
    failed: u32,
    /// Starts again in place of what failed.
    restarts: u32,
    done: BTreeSet<u32>,
}

/// How a Job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Complete,
    BackoffLimitExceeded,
    DeadlineExceeded,
}

impl End {
    /// Type, reason and message of its condition.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Complete => {
                ["Complete", "CompletionsReached", "Reached expected number of succeeded pods"]
            }
            Self::BackoffLimitExceeded => {
                ["Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"]
            }
            Self::DeadlineExceeded => {
                ["Failed", "DeadlineExceeded", "Job was active longer than specified deadline"]
            }
        }
    }
}

/// Whether the Job is over, and since when.
pub(super) fn finished(value: &Value) -> Option<Timestamp> {
    let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
    let is_end = |it: &&Value| {
        it["status"] == "True" && (it["type"] == "Complete" || it["type"] == "Failed")
    };
    let end = conditions?.iter().find(is_end)?;
    text(end, "/lastTransitionTime").parse().ok()
}

/// Whether a Job that is over has done its work.
pub(super) fn ended_well(value: &Value) -> bool {
    let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
    let is_complete = |it: &Value| it["type"] == "Complete" && it["status"] == "True";
    conditions.is_some_and(|all| all.iter().any(is_complete))
}

/// Whether the Job has been over for as long as it wants to be kept.
pub(super) fn is_expired(value: &Value, now: Timestamp) -> bool {
    let kept = value.pointer("/spec/ttlSecondsAfterFinished").and_then(Value::as_i64);
    let since = finished(value);
    kept.zip(since).is_some_and(|(kept, since)| has_passed(since, kept, now))
}

/// Whether something may happen to the Job by the mere passing of time.
pub(super) fn waits_for_time(value: &Value) -> bool {
    match finished(value) {
        Some(_) => value.pointer("/spec/ttlSecondsAfterFinished").is_some(),
        None => {
            value.pointer("/spec/activeDeadlineSeconds").is_some()
                || value.pointer("/status/lastFailureTime").is_some()
        }
    }
}

fn has_passed(since: Timestamp, seconds: i64, now: Timestamp) -> bool {
    now.duration_since(since) >= SignedDuration::from_secs(seconds)
}

/// What to do now for a Job.
pub(super) fn act(value: &Value, owner: &Owner<'_>, pods: &[OwnedPod], now: Timestamp) -> Action {
    let job: Job = decode(value);
    let spec = job.spec.unwrap_or_default();
    let active: Vec<&OwnedPod> =
        pods.iter().filter(|pod| !pod.terminating && !pod.has_ended()).collect();
    let all = || active.iter().map(|pod| pod.object.clone());
    let mut status = value.get("status").cloned().unwrap_or_else(|| json!({}));
    status["active"] = json!(active.len());
    status["ready"] = json!(active.iter().filter(|pod| pod.ready).count());
    status["observedGeneration"] = value["metadata"]["generation"].clone();
    if finished(value).is_some() {
        return Action { retire: all().collect(), status, ..Action::default() };
    }
    let tally = tally(&spec, value, pods);
    note(&mut status, &spec, &tally, value, now);
    if spec.suspend == Some(true) {
        if let Some(status) = status.as_object_mut() {
            status.remove("startTime");
        }
        suspended(&mut status, true, now);
        return Action { retire: all().collect(), status, ..Action::default() };
    }
    if status.get("startTime").is_none() {
        status["startTime"] = json!(now.to_string());
        suspended(&mut status, false, now);
    }
    let started = text(&status, "/startTime").parse().unwrap_or(now);
    if let Some(end) = end(&spec, &tally, active.len(), started, now) {
        close(&mut status, end, now);
        return Action { retire: all().collect(), status, ..Action::default() };
    }
    let wanted = wanted(&spec, &tally, active.len());
    let mut retire: Vec<&OwnedPod> = active.clone();
    retire.sort_by(|a, b| (a.ready, &b.created).cmp(&(b.ready, &a.created)));
    retire.truncate(active.len().saturating_sub(wanted));
    let missing = if may_start(&status, &tally, now) { wanted } else { 0 };
    let create = new_pods(&spec, owner, &active, &tally, missing.saturating_sub(active.len()));
    let retire = retire.into_iter().map(|pod| pod.object.clone()).collect();
    Action { create, retire, status, ..Action::default() }
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn count(value: Option<i32>) -> Option<u32> {
    value.map(|value| u32::try_from(value).unwrap_or(0))
}

fn tally(spec: &JobSpec, value: &Value, pods: &[OwnedPod]) -> Tally {
    let ended = |phase: Phase| pods.iter().filter(move |pod| pod.phase == phase);
    let mut done = indexes(text(value, "/status/completedIndexes"));
    done.extend(ended(Phase::Succeeded).filter_map(|pod| pod.index));
    done.retain(|index| count(spec.completions).is_some_and(|count| *index < count));
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let succeeded = match is_indexed(spec) {
        true => done.len(),
        false => ended(Phase::Succeeded).count(),
    };
    let going = pods.iter().filter(|pod| !pod.terminating && !pod.has_ended());
    // One that was asked to end may say that it failed; that is no failure of its own.
    let failed = ended(Phase::Failed).filter(|pod| !pod.terminating);
    Tally {
        succeeded: number(succeeded),
        failed: number(failed.count()),
        restarts: going.fold(0, |sum, pod| sum.saturating_add(pod.restarts)),
        done,
    }
}

/// Writes what is counted into the status.
fn note(status: &mut Value, spec: &JobSpec, tally: &Tally, value: &Value, now: Timestamp) {
    let failed = value.pointer("/status/failed").and_then(Value::as_u64).unwrap_or(0);
    if u64::from(tally.failed) > failed {
        status["lastFailureTime"] = json!(now.to_string());
    }
    status["succeeded"] = json!(tally.succeeded);
    status["failed"] = json!(tally.failed);
    if is_indexed(spec) {
        status["completedIndexes"] = json!(ranges(&tally.done));
    }
}

fn end(
    spec: &JobSpec,
    tally: &Tally,
    active: usize,
    started: Timestamp,
    now: Timestamp,
) -> Option<End> {
    let limit = count(spec.backoff_limit).unwrap_or(BACKOFF_LIMIT);
    let restarts_in_place = spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_ref());
    let is_again = restarts_in_place.is_some_and(|policy| policy == "OnFailure");
    // Kubernetes counts a start again as soon as it is one too many, a failed pod after that.
    let is_too_often = is_again && tally.restarts > 0 && tally.restarts >= limit;
    let is_late = |seconds: i64| has_passed(started, seconds, now);
    let is_complete = match count(spec.completions) {
        Some(wanted) => tally.succeeded >= wanted,
        None => tally.succeeded > 0 && active == 0,
    };
    if is_complete {
        Some(End::Complete)
    } else if tally.failed > limit || is_too_often {
        Some(End::BackoffLimitExceeded)
    } else if spec.active_deadline_seconds.is_some_and(is_late) {
        Some(End::DeadlineExceeded)
    } else {
        None
    }
}

/// How many pods should run.
fn wanted(spec: &JobSpec, tally: &Tally, active: usize) -> usize {
    let parallelism = count(spec.parallelism).unwrap_or(1) as usize;
    match count(spec.completions) {
        Some(completions) => parallelism.min(completions.saturating_sub(tally.succeeded) as usize),
        // One that has ended well says that the work is done: the others finish theirs.
        None if tally.succeeded > 0 => active.min(parallelism),
        None => parallelism,
    }
}

/// Whether the wait after the last failed pod is over.
fn may_start(status: &Value, tally: &Tally, now: Timestamp) -> bool {
    let Ok(failed) = text(status, "/lastFailureTime").parse() else { return true };
    let doubled = tally.failed.saturating_sub(1).min(16);
    has_passed(failed, (BACK_OFF_FIRST_SECONDS << doubled).min(BACK_OFF_MAX_SECONDS), now)
}

fn new_pods(
    spec: &JobSpec,
    owner: &Owner<'_>,
    active: &[&OwnedPod],
    tally: &Tally,
    number: usize,
) -> Vec<(ObjectRef, Value)> {
    let name = &owner.object.name;
    if !is_indexed(spec) {
        return (0..number).map(|_| new_pod(owner, &random_name(name), None)).collect();
    }
    let taken: BTreeSet<u32> = active.iter().filter_map(|pod| pod.index).collect();
    let open = (0..count(spec.completions).unwrap_or(0))
        .filter(|index| !tally.done.contains(index) && !taken.contains(index));
    let of_index =
        |index: u32| new_pod(owner, &random_name(&format!("{name}-{index}")), Some(index));
    open.take(number).map(of_index).collect()
}

fn new_pod(owner: &Owner<'_>, name: &str, index: Option<u32>) -> (ObjectRef, Value) {
    let (object, mut pod) = owner.pod(name);
    let uid = pod["metadata"]["ownerReferences"][0]["uid"].clone();
    for label in JOB_NAME {
        pod["metadata"]["labels"][label] = json!(owner.object.name);
    }
    for label in CONTROLLER_UID {
        pod["metadata"]["labels"][label] = uid.clone();
    }
    if let Some(index) = index {
        let text = index.to_string();
        pod["metadata"]["labels"][INDEX] = json!(text);
        pod["metadata"]["annotations"][INDEX] = json!(text);
        pod["spec"]["hostname"] = json!(format!("{}-{index}", owner.object.name));
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(|it| give_index(it, &text));
        }
    }
    (object, pod)
}

fn give_index(container: &mut Value, index: &str) {
    let variable = json!({"name": INDEX_VARIABLE, "value": index});
    match container.get_mut("env").and_then(Value::as_array_mut) {
        Some(env) if env.iter().any(|it| it["name"] == INDEX_VARIABLE) => {}
        Some(env) => env.push(variable),
        None => container["env"] = json!([variable]),
    }
}

fn suspended(status: &mut Value, is_suspended: bool, now: Timestamp) {
    let word = if is_suspended { "True" } else { "False" };
    let mut known = status["conditions"].as_array().into_iter().flatten();
    let known = known.find(|it| it["type"] == "Suspended").map(|it| it["status"] == word);
    // One that was never suspended does not say that it is not.
    if known == Some(true) || known.is_none() && !is_suspended {
        return;
    }
    let (reason, message) = match is_suspended {
        true => ("JobSuspended", "Job suspended"),
        false => ("JobResumed", "Job resumed"),
    };
    add_condition(status, ["Suspended", reason, message], word, now);
}

fn close(status: &mut Value, end: End, now: Timestamp) {
    let words = end.words();
    let first = if end == End::Complete { "SuccessCriteriaMet" } else { "FailureTarget" };
    add_condition(status, [first, words[1], words[2]], "True", now);
    add_condition(status, words, "True", now);
    if end == End::Complete {
        status["completionTime"] = json!(now.to_string());
    }
}

fn add_condition(
    status: &mut Value,
    [kind, reason, message]: [&str; 3],
    word: &str,
    now: Timestamp,
) {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|it| it["type"] != kind);
    conditions.push(json!({
        "type": kind, "status": word, "reason": reason, "message": message,
        "lastProbeTime": now.to_string(), "lastTransitionTime": now.to_string(),
    }));
    status["conditions"] = json!(conditions);
}

/// Indexes as Kubernetes writes them, `0,2-4`.
fn ranges(indexes: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*index) => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let write = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(write).collect::<Vec<_>>().join(",")
}

/// The same read again; what is no index is passed over.
fn indexes(text: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::owned::tests::owned;
    use crate::objects::Kind;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    /// A Job with pods that play, and a clock.
    struct Played {
        value: Value,
        pods: Vec<OwnedPod>,
        made: usize,
    }

    impl Played {
        fn new(spec: Value) -> Self {
            let mut value = json!({"metadata": {"uid": "u", "generation": 1}, "spec": {
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}},
            }});
            for (field, said) in spec.as_object().unwrap() {
                value["spec"][field] = said.clone();
            }
            Self { value, pods: Vec::new(), made: 0 }
        }

        /// Lets the controller act at this time; says how many pods it made and retired.
        fn act(&mut self, seconds: i64) -> (usize, usize) {
            let object = ObjectRef::new(Kind::Job, Some("app"), "j");
            let owner = Owner::new(&object, &self.value, None);
            let action = act(&self.value, &owner, &self.pods, time(seconds));
            self.pods.retain(|pod| !action.retire.contains(&pod.object));
            for (object, pod) in &action.create {
                self.made += 1;
                let index = pod["metadata"]["labels"][INDEX].as_str();
                let index = index.map(|text| text.parse().unwrap());
                self.pods.push(OwnedPod { index, ..owned(&object.name) });
            }
            self.value["status"] = action.status;
            (action.create.len(), action.retire.len())
        }

        fn end(&mut self, phase: Phase) {
            let mut going = self.pods.iter_mut().filter(|pod| !pod.has_ended());
            going.next().unwrap().phase = phase;
        }

        fn condition(&self) -> String {
            let conditions = self.value["status"]["conditions"].as_array();
            let last = conditions.and_then(|all| all.last().cloned()).unwrap_or_default();
            format!(
                "{} {} {}",
                text(&last, "/type"),
                text(&last, "/status"),
                text(&last, "/reason")
            )
        }
    }

    #[test]
    fn a_job_runs_until_enough_pods_have_ended_well() {
        let mut job = Played::new(json!({"completions": 3, "parallelism": 2}));
        assert_eq!(job.act(0), (2, 0));
        assert_eq!(job.act(1), (0, 0));
        job.end(Phase::Succeeded);
        assert_eq!(job.act(2), (1, 0));
        job.end(Phase::Succeeded);
        assert_eq!(job.act(3), (0, 0), "the last one runs");
        job.end(Phase::Succeeded);
        assert_eq!(job.act(4), (0, 0));
        assert_eq!(job.condition(), "Complete True CompletionsReached");
        assert_eq!(job.value["status"]["succeeded"], 3);
        job.pods.clear();
        assert_eq!(job.act(5), (0, 0), "what is over does not begin again");
    }

    #[test]
    fn a_pod_that_was_asked_to_end_has_not_failed() {
        let mut job = Played::new(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0}));
        assert_eq!(job.act(0), (2, 0));
        (job.pods[0].phase, job.pods[0].terminating) = (Phase::Failed, true);
        job.value["spec"]["parallelism"] = json!(1);
        assert_eq!(job.act(1), (0, 0));
        assert_eq!(job.value["status"]["failed"], 0);
        assert_eq!(job.condition(), "  ");
    }

    #[test]
    fn failed_pods_are_replaced_after_a_while_and_not_for_ever() {
        let mut job = Played::new(json!({"completions": 1, "backoffLimit": 1}));
        assert_eq!(job.act(0), (1, 0));
        job.end(Phase::Failed);
        assert_eq!(job.act(1), (0, 0), "it waits");
        assert!(waits_for_time(&job.value));
        assert_eq!(job.act(10), (0, 0));
        assert_eq!(job.act(11), (1, 0));
        job.end(Phase::Failed);
        assert_eq!(job.act(12), (0, 0));
        assert_eq!(job.condition(), "Failed True BackoffLimitExceeded");
    }

    #[test]
    fn starts_in_place_count_as_failures() {
        let mut job = Played::new(json!({"completions": 1, "backoffLimit": 2}));
        job.value["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
        job.act(0);
        job.pods[0].restarts = 1;
        assert_eq!(job.act(1), (0, 0));
        job.pods[0].restarts = 2;
        assert_eq!(job.act(2), (0, 1));
        assert_eq!(job.condition(), "Failed True BackoffLimitExceeded");
    }

    #[test]
    fn a_deadline_ends_a_job_and_its_pods() {
        let mut job = Played::new(json!({"completions": 1, "activeDeadlineSeconds": 5}));
        job.act(0);
        assert_eq!(job.act(4), (0, 0));
        assert_eq!(job.act(5), (0, 1));
        assert_eq!(job.condition(), "Failed True DeadlineExceeded");
    }

    #[test]
    fn a_suspended_job_has_no_pods_and_no_clock() {
        let mut job = Played::new(json!({"completions": 1, "suspend": true}));
        assert_eq!(job.act(0), (0, 0));
        assert_eq!(job.condition(), "Suspended True JobSuspended");
        job.value["spec"]["suspend"] = json!(false);
        assert_eq!(job.act(9), (1, 0));
        assert_eq!(job.condition(), "Suspended False JobResumed");
        assert_eq!(text(&job.value, "/status/startTime"), time(9).to_string());
        job.value["spec"]["suspend"] = json!(true);
        assert_eq!(job.act(10), (0, 1));
        assert_eq!(job.value["status"].get("startTime"), None);
    }

    #[test]
    fn each_index_ends_well_once() {
        let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"});
        let mut job = Played::new(spec);
        assert_eq!(job.act(0), (3, 0));
        job.pods[1].phase = Phase::Failed;
        job.pods[0].phase = Phase::Succeeded;
        job.act(1);
        assert_eq!(job.value["status"]["completedIndexes"], "0");
        assert_eq!(job.act(11), (1, 0));
        assert_eq!(job.pods.last().unwrap().index, Some(1), "the index that failed");
        assert!(job.pods.last().unwrap().object.name.starts_with("j-1-"));
        job.pods[2].phase = Phase::Succeeded;
        job.pods[3].phase = Phase::Succeeded;
        job.act(12);
        assert_eq!(job.value["status"]["completedIndexes"], "0-2");
        assert_eq!(job.condition(), "Complete True CompletionsReached");
    }

    #[test]
    fn a_pod_knows_its_index_and_its_job() {
        let value = json!({"metadata": {"uid": "u"}, "spec": {"template": {"spec": {
            "containers": [{"name": "a"}, {"name": "b", "env": [{"name": INDEX_VARIABLE}]}]}}}});
        let object = ObjectRef::new(Kind::Job, Some("app"), "j");
        let (_, pod) = new_pod(&Owner::new(&object, &value, None), "j-2-x", Some(2));
        assert_eq!(pod["spec"]["hostname"], "j-2");
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["value"], "2");
        assert_eq!(pod["spec"]["containers"][1]["env"], json!([{"name": INDEX_VARIABLE}]));
        for (label, value) in [(JOB_NAME[0], "j"), (CONTROLLER_UID[1], "u"), (INDEX, "2")] {
            assert_eq!(pod["metadata"]["labels"][label], value);
        }
    }

    #[test]
    fn a_queue_of_work_is_done_when_all_pods_have_ended() {
        let mut job = Played::new(json!({"parallelism": 2}));
        assert_eq!(job.act(0), (2, 0));
        job.end(Phase::Succeeded);
        assert_eq!(job.act(1), (0, 0));
        assert_eq!(job.condition(), "  ");
        job.end(Phase::Succeeded);
        job.act(2);
        assert_eq!(job.condition(), "Complete True CompletionsReached");
    }

    #[test]
    fn a_job_that_is_over_is_kept_as_long_as_it_says() {
        let mut job = Played::new(json!({"completions": 0, "ttlSecondsAfterFinished": 3}));
        assert!(!is_expired(&job.value, time(0)));
        job.act(0);
        assert!(waits_for_time(&job.value));
        assert!(!is_expired(&job.value, time(2)) && is_expired(&job.value, time(3)));
    }

    #[test]
    fn indexes_are_written_as_ranges() {
        let check = |indexes_of: &[u32], expected: &str| {
            let set: BTreeSet<u32> = indexes_of.iter().copied().collect();
            assert_eq!(ranges(&set), expected);
            assert_eq!(indexes(expected), set);
        };
        check(&[], "");
        check(&[0, 2, 3, 4, 7, 8], "0,2-4,7,8");
        assert_eq!(indexes("x,1-y,3"), [3].into());
    }
}
