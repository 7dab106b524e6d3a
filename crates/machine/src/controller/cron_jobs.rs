//! The Jobs of a CronJob: one at each time of its schedule, or none where one still runs or it came
//! too late.
//!
//! A CronJob's status is its memory: when it last started a Job, and when one last ended well. Of
//! times that passed without a Job the latest alone is made up for.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::owned::Action;
use super::{jobs, text};
use crate::cron::{latest, schedule};
use crate::objects::{Kind, ObjectRef, Store};

/// On a Job, the time for which it was started.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Finished Jobs that stay where a CronJob does not say.
const SUCCESSFUL_KEPT: usize = 3;
const FAILED_KEPT: usize = 1;
/// Whether something may happen to the CronJob by the mere passing of time.
pub(super) fn waits_for_time(value: &Value) -> bool {
    value.pointer("/spec/suspend") != Some(&json!(true))
}

/// A Job of a CronJob.
struct OwnedJob {
    object: ObjectRef,
    uid: String,
    created: String,
    /// When it ended, and whether well.
    end: Option<(Timestamp, bool)>,
}

fn jobs_of(store: &Store, uid: &str) -> Vec<OwnedJob> {
    let owned = |value: &Value| {
        let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.is_some_and(|owners| owners.iter().any(|it| it["uid"] == uid))
    };
    let all = store.of_plural(Kind::Job.plural()).filter(|(_, value)| owned(value));
    let view = |(object, value): (&ObjectRef, &Value)| OwnedJob {
        object: object.clone(),
        uid: text(value, "/metadata/uid").to_owned(),
        created: text(value, "/metadata/creationTimestamp").to_owned(),
        end: jobs::finished(value).map(|at| (at, jobs::ended_well(value))),
    };
    all.map(view).collect()
}

/// What to do now for a CronJob: Jobs to create and to retire.
pub(super) fn act(object: &ObjectRef, value: &Value, store: &Store, now: Timestamp) -> Action {
    let jobs = jobs_of(store, text(value, "/metadata/uid"));
    let (active, over): (Vec<&OwnedJob>, Vec<&OwnedJob>) =
        jobs.iter().partition(|it| it.end.is_none());
    let mut status = value.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut action = Action { retire: too_old(value, &over), ..Action::default() };
    let ended_well = |it: &&OwnedJob| it.end.filter(|(_, is_well)| *is_well).map(|(at, _)| at);
    if let Some(last) = over.iter().filter_map(ended_well).max() {
        let before = text(&status, "/lastSuccessfulTime").parse::<Timestamp>().ok();
        status["lastSuccessfulTime"] = json!(before.map_or(last, |it| it.max(last)).to_string());
    }
    let mut now_active: Vec<Value> =
        active.iter().map(|it| reference(&it.object, &it.uid)).collect();
    if let Some(time) = due(value, now) {
        let replaces = match text(value, "/spec/concurrencyPolicy") {
            "Forbid" if !active.is_empty() => None,
            "Replace" => Some(active.iter().map(|it| it.object.clone()).collect()),
            _ => Some(Vec::new()),
        };
        if let Some(replaced) = replaces {
            if !replaced.is_empty() {
                now_active.clear();
            }
            action.retire.extend(replaced);
            action.create.push(job(object, value, time));
            status["lastScheduleTime"] = json!(time.to_string());
        }
    }
    status["active"] = json!(now_active);
    action.status = status;
    action
}

fn reference(job: &ObjectRef, uid: &str) -> Value {
    json!({
        "apiVersion": Kind::Job.api_versions()[0], "kind": Kind::Job.name(),
        "name": job.name, "namespace": job.namespace, "uid": uid,
    })
}

/// Finished Jobs beyond those that stay.
fn too_old(value: &Value, over: &[&OwnedJob]) -> Vec<ObjectRef> {
    let kept = |field: &str, usual: usize| {
        let kept = value.pointer(field).and_then(Value::as_u64);
        kept.map_or(usual, |kept| usize::try_from(kept).unwrap_or(usize::MAX))
    };
    let mut old = Vec::new();
    for (is_well, kept) in [
        (true, kept("/spec/successfulJobsHistoryLimit", SUCCESSFUL_KEPT)),
        (false, kept("/spec/failedJobsHistoryLimit", FAILED_KEPT)),
    ] {
        let mut these: Vec<&&OwnedJob> =
            over.iter().filter(|it| it.end.is_some_and(|(_, well)| well == is_well)).collect();
        these.sort_by(|a, b| b.created.cmp(&a.created));
        old.extend(these.into_iter().skip(kept).map(|it| it.object.clone()));
    }
    old
}

/// The latest time of the schedule for which no Job was started, if it is not too late for it.
fn due(value: &Value, now: Timestamp) -> Option<Timestamp> {
    if !waits_for_time(value) {
        return None;
    }
    let zone = value.pointer("/spec/timeZone").and_then(Value::as_str);
    // It was looked at when it was applied.
    let schedule = schedule(text(value, "/spec/schedule"), zone).ok()?;
    let created = text(value, "/metadata/creationTimestamp").parse().unwrap_or(now);
    let last = text(value, "/status/lastScheduleTime").parse::<Timestamp>();
    let mut since: Timestamp = last.map_or(created, |last| last.max(created));
    let deadline = value.pointer("/spec/startingDeadlineSeconds").and_then(Value::as_i64);
    if let Some(earliest) =
        deadline.and_then(|it| now.checked_sub(SignedDuration::from_secs(it)).ok())
    {
        since = since.max(earliest);
    }
    latest(&schedule, since, now)
}

/// A new Job. Its name is that of the time, as Kubernetes makes it, so that no time has two.
fn job(object: &ObjectRef, value: &Value, time: Timestamp) -> (ObjectRef, Value) {
    let template = &value["spec"]["jobTemplate"];
    let name = format!("{}-{}", object.name, time.as_second() / 60);
    let mut job = json!({
        "apiVersion": Kind::Job.api_versions()[0],
        "kind": Kind::Job.name(),
        "metadata": template.get("metadata").cloned().unwrap_or_else(|| json!({})),
        "spec": template["spec"],
    });
    let metadata = &mut job["metadata"];
    metadata["name"] = json!(name);
    metadata["namespace"] = json!(object.namespace);
    metadata["annotations"][SCHEDULED] = json!(time.to_string());
    metadata["ownerReferences"] = json!([{
        "apiVersion": Kind::CronJob.api_versions()[0], "kind": Kind::CronJob.name(),
        "name": object.name, "uid": value["metadata"]["uid"], "controller": true,
        "blockOwnerDeletion": true,
    }]);
    (ObjectRef::new(Kind::Job, object.namespace.as_deref(), &name), job)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn cron_job(spec: Value, status: Value) -> Value {
        let mut value = json!({
            "metadata": {"name": "tick", "uid": "u", "creationTimestamp": "2026-01-01T00:00:30Z"},
            "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"x": 1}}},
            "status": status,
        });
        for (field, what) in spec.as_object().expect("fields") {
            value["spec"][field] = what.clone();
        }
        value
    }

    #[test]
    fn the_latest_time_that_was_not_served_is_due() {
        let check = |spec: Value, status: Value, now: &str, expected: Option<&str>| {
            let due = due(&cron_job(spec, status), at(now)).map(|it| it.to_string());
            assert_eq!(due.as_deref(), expected, "{now}");
        };
        let none = || json!({});
        check(none(), none(), "2026-01-01T00:04:59Z", None);
        check(none(), none(), "2026-01-01T00:05:00Z", Some("2026-01-01T00:05:00Z"));
        let served = json!({"lastScheduleTime": "2026-01-01T00:05:00Z"});
        check(none(), served.clone(), "2026-01-01T00:09:59Z", None);
        // Of many that were missed the latest alone.
        check(none(), served.clone(), "2026-03-01T00:07:00Z", Some("2026-03-01T00:05:00Z"));
        let deadline = json!({"startingDeadlineSeconds": 60});
        check(deadline.clone(), served.clone(), "2026-03-01T00:07:00Z", None);
        check(deadline, served.clone(), "2026-03-01T00:05:30Z", Some("2026-03-01T00:05:00Z"));
        check(json!({"suspend": true}), served, "2026-03-01T00:07:00Z", None);
        let yearly = json!({"schedule": "0 0 29 2 *"});
        check(yearly, none(), "2029-01-01T00:00:00Z", Some("2028-02-29T00:00:00Z"));
    }

    #[test]
    fn a_new_job_is_named_after_its_time() {
        let object = ObjectRef::new(Kind::CronJob, Some("app"), "tick");
        let value = cron_job(json!({}), json!({}));
        let (reference, job) = job(&object, &value, at("2026-01-01T00:05:00Z"));
        assert_eq!(reference.name, "tick-29453765");
        assert_eq!(job["spec"], json!({"x": 1}));
        assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], "CronJob");
        assert_eq!(job["metadata"]["annotations"][SCHEDULED], "2026-01-01T00:05:00Z");
    }

    #[test]
    fn finished_jobs_beyond_the_limits_go_the_oldest_first() {
        let job = |name: &str, is_well: bool| OwnedJob {
            object: ObjectRef::new(Kind::Job, Some("app"), name),
            uid: name.to_owned(),
            created: name.to_owned(),
            end: Some((at("2026-01-01T00:00:00Z"), is_well)),
        };
        let all =
            [job("1", true), job("2", false), job("3", true), job("4", false), job("5", true)];
        let all: Vec<&OwnedJob> = all.iter().collect();
        let gone = |spec: Value| {
            let value = cron_job(spec, json!({}));
            too_old(&value, &all).into_iter().map(|it| it.name).collect::<Vec<_>>()
        };
        assert_eq!(gone(json!({})), ["2"]);
        let limits = json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0});
        assert_eq!(gone(limits), ["3", "1", "4", "2"]);
    }
}
