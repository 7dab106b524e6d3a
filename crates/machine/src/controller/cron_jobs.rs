//! The Jobs of a CronJob: one at each time of its schedule, or none where one still runs or it came
//! too late.
//!
//! A CronJob's status is its memory: when it last started a Job, and when one last ended well. Of
//! times that passed without a Job the latest alone is made up for.

use cronexpr::Crontab;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::owned::{Action, controller};
use super::{jobs, text};
use crate::cron::{FAILED_KEPT, SUCCESSFUL_KEPT, latest, next, schedule};
use crate::objects::{Kind, ObjectRef, Store, default_job, is_owned_by};

/// On a Job, the time for which it was started.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// When something happens to the CronJob by the mere passing of time. The end of a Job for which it
/// waits is a change of its own.
pub(super) fn next_time(value: &Value, now: Timestamp) -> Option<Timestamp> {
    let active = value.pointer("/status/active").and_then(Value::as_array);
    let is_blocked = text(value, "/spec/concurrencyPolicy") == "Forbid"
        && active.is_some_and(|it| !it.is_empty());
    if is_suspended(value) || is_blocked {
        return None;
    }
    next(&followed(value)?, now)
}

fn is_suspended(value: &Value) -> bool {
    value.pointer("/spec/suspend") == Some(&json!(true))
}

/// Its schedule, which was looked at when it was applied.
fn followed(value: &Value) -> Option<Crontab> {
    let zone = value.pointer("/spec/timeZone").and_then(Value::as_str);
    schedule(text(value, "/spec/schedule"), zone).ok()
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
    let jobs = store.of_plural(Kind::Job.plural());
    let all = jobs.filter(|(_, value)| is_owned_by(value, uid));
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
    let mut active_after: Vec<Value> =
        active.iter().map(|it| reference(&it.object, &it.uid)).collect();
    follow(&mut status, value, now);
    if let Some(time) = due(value, &status, now) {
        let (named, new) = job(object, value, time);
        if jobs.iter().any(|it| it.object == named) {
            // It was made, and that alone could not be noted.
            status["lastScheduleTime"] = json!(time.to_string());
        } else if store.object(&named).is_some() {
            // Somebody else's: nothing is made, and nothing noted.
        } else if let Some(replaced) = replaced(value, &active) {
            if !replaced.is_empty() {
                active_after.clear();
            }
            action.retire.extend(replaced);
            action.create.push((named, new));
            status["lastScheduleTime"] = json!(time.to_string());
        }
    }
    status["active"] = json!(active_after);
    action.status = status;
    action
}

/// The Jobs that make room for a new one; `None` if it has to wait for them.
fn replaced(value: &Value, active: &[&OwnedJob]) -> Option<Vec<ObjectRef>> {
    match text(value, "/spec/concurrencyPolicy") {
        "Forbid" if !active.is_empty() => None,
        "Replace" => Some(active.iter().map(|it| it.object.clone()).collect()),
        _ => Some(Vec::new()),
    }
}

/// Notes which schedule is followed, and since when, if it is another than before: times of the new
/// one that passed under the old one are not made up for.
fn follow(status: &mut Value, value: &Value, now: Timestamp) {
    let followed = json!([value["spec"]["schedule"], value["spec"]["timeZone"]]);
    match status.get("observedSchedule") {
        Some(before) if *before == followed => return,
        Some(_) => status["scheduleSince"] = json!(now.to_string()),
        None => {}
    }
    status["observedSchedule"] = followed;
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
fn due(value: &Value, status: &Value, now: Timestamp) -> Option<Timestamp> {
    if is_suspended(value) {
        return None;
    }
    let created = text(value, "/metadata/creationTimestamp").parse().unwrap_or(now);
    let noted = ["/lastScheduleTime", "/scheduleSince"].map(|it| text(status, it).parse().ok());
    let mut since: Timestamp = noted.into_iter().flatten().fold(created, Timestamp::max);
    let deadline = value.pointer("/spec/startingDeadlineSeconds").and_then(Value::as_i64);
    let earliest = deadline.map(|it| now.checked_sub(SignedDuration::from_secs(it)));
    if let Some(Ok(earliest)) = earliest {
        since = since.max(earliest);
    }
    latest(&followed(value)?, since, now)
}

/// A new Job. Its name is that of the time, as Kubernetes makes it, so that no time has two.
fn job(object: &ObjectRef, value: &Value, time: Timestamp) -> (ObjectRef, Value) {
    let template = &value["spec"]["jobTemplate"];
    let name = format!("{}-{}", object.name, time.as_second() / 60);
    let kept = |field: &str| {
        let kept = template.pointer(&format!("/metadata/{field}")).filter(|it| it.is_object());
        kept.cloned().unwrap_or_else(|| json!({}))
    };
    let mut job = json!({
        "apiVersion": Kind::Job.api_versions()[0],
        "kind": Kind::Job.name(),
        "metadata": {
            "name": name, "namespace": object.namespace,
            "labels": kept("labels"), "annotations": kept("annotations"),
        },
        "spec": template["spec"],
    });
    default_job(&mut job);
    let metadata = &mut job["metadata"];
    metadata["annotations"][SCHEDULED] = json!(time.to_string());
    let owner = controller(Kind::CronJob, &object.name, text(value, "/metadata/uid"));
    metadata["ownerReferences"] = json!([owner]);
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
            let value = cron_job(spec, status);
            let due = due(&value, &value["status"], at(now)).map(|it| it.to_string());
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
    fn another_schedule_begins_when_it_is_written() {
        let value = |schedule: &str| cron_job(json!({"schedule": schedule}), json!({}));
        let mut status = json!({"lastScheduleTime": "2026-01-01T03:00:00Z"});
        follow(&mut status, &value("0 3 * * *"), at("2026-01-01T03:00:00Z"));
        assert_eq!(status.get("scheduleSince"), None);
        let other = value("0 9 * * *");
        follow(&mut status, &other, at("2026-01-01T10:00:00Z"));
        assert_eq!(due(&other, &status, at("2026-01-01T10:00:00Z")), None);
        let next_day = at("2026-01-02T09:00:00Z");
        assert_eq!(due(&other, &status, next_day), Some(next_day));
        let before = status.clone();
        follow(&mut status, &other, next_day);
        assert_eq!(status, before, "it comes to rest");
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = crate::layout::Layout::new(directory.path().to_owned());
        (directory, Store::create(layout).expect("a store"))
    }

    /// How many Jobs a CronJob makes and retires at its first time, a second later and at its
    /// second time, and its status then. The first Job ends well at once, if that is wanted.
    fn played(policy: &str, ends: bool) -> (Vec<[usize; 2]>, Value) {
        let (_directory, mut store) = store();
        let object = ObjectRef::new(Kind::CronJob, Some("app"), "tick");
        let mut value = cron_job(json!({"concurrencyPolicy": policy}), json!({}));
        let mut counts = Vec::new();
        for now in ["2026-01-01T00:05:00Z", "2026-01-01T00:05:01Z", "2026-01-01T00:10:00Z"] {
            let action = act(&object, &value, &store, at(now));
            counts.push([action.create.len(), action.retire.len()]);
            value["status"] = action.status;
            for (job, mut new) in action.create {
                if ends {
                    let end = json!({
                        "type": "Complete", "status": "True", "lastTransitionTime": now,
                    });
                    new["status"] = json!({"conditions": [end]});
                }
                store.write(job, new, now).expect("written");
            }
        }
        (counts, value["status"].clone())
    }

    #[test]
    fn a_job_that_still_runs_is_treated_as_the_policy_says() {
        let run = |policy: &str, ends: bool| played(policy, ends).0;
        assert_eq!(run("Allow", false), [[1, 0], [0, 0], [1, 0]]);
        assert_eq!(run("Forbid", false), [[1, 0], [0, 0], [0, 0]]);
        assert_eq!(run("Replace", false), [[1, 0], [0, 0], [1, 1]]);
        assert_eq!(run("Forbid", true), [[1, 0], [0, 0], [1, 0]]);
        let (_, status) = played("Forbid", true);
        assert_eq!(status["lastSuccessfulTime"], "2026-01-01T00:05:00Z");
    }

    #[test]
    fn a_job_of_somebody_else_is_left_alone() {
        let (_directory, mut store) = store();
        let object = ObjectRef::new(Kind::CronJob, Some("app"), "tick");
        let value = cron_job(json!({}), json!({}));
        let now = "2026-01-01T00:05:00Z";
        let (named, mut theirs) = job(&object, &value, at(now));
        theirs["metadata"]["ownerReferences"] = json!([]);
        store.write(named, theirs, now).expect("written");
        let action = act(&object, &value, &store, at(now));
        assert_eq!((action.create.len(), action.retire.len()), (0, 0));
        assert_eq!(action.status.get("lastScheduleTime"), None);
    }

    #[test]
    fn a_new_job_is_named_after_its_time() {
        let object = ObjectRef::new(Kind::CronJob, Some("app"), "tick");
        let value = cron_job(json!({}), json!({}));
        let (reference, job) = job(&object, &value, at("2026-01-01T00:05:00Z"));
        assert_eq!(reference.name, "tick-29453765");
        assert_eq!(job["spec"]["x"], 1);
        assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], "CronJob");
        assert_eq!(job["metadata"]["annotations"][SCHEDULED], "2026-01-01T00:05:00Z");
    }

    #[test]
    fn a_new_job_is_completed_as_one_that_is_applied() {
        let object = ObjectRef::new(Kind::CronJob, Some("app"), "tick");
        let check = |spec: Value, completions: Value, parallelism: u64| {
            let value = cron_job(json!({"jobTemplate": {"spec": spec}}), json!({}));
            let (_, job) = job(&object, &value, at("2026-01-01T00:05:00Z"));
            let spec = &job["spec"];
            assert_eq!(
                (&spec["completions"], &spec["parallelism"]),
                (&completions, &json!(parallelism))
            );
            assert_eq!(spec["backoffLimit"], 6);
        };
        check(json!({}), json!(1), 1);
        check(json!({"parallelism": 3}), Value::Null, 3);
        check(json!({"completions": 3}), json!(3), 1);
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
