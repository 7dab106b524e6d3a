//! Cells of Jobs and CronJobs.

use ambit_words::names::NOTHING;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::{age, written};
use super::cells::{condition, list, number, text};

/// What a Job has come to; `printJob` of Kubernetes.
pub(super) fn status(job: &Value) -> Value {
    let is = |kind: &str| condition(job, kind) == "True";
    let is_going = job.pointer("/metadata/deletionTimestamp").is_some();
    let found = ["Complete", "Failed"].into_iter().find(|kind| is(kind));
    json!(match found {
        Some(word) => word,
        None if is_going => "Terminating",
        None if is("Suspended") => "Suspended",
        None => ["FailureTarget", "SuccessCriteriaMet"]
            .into_iter()
            .find(|kind| is(kind))
            .unwrap_or("Running"),
    })
}

/// How many of its pods have succeeded, and of how many.
pub(super) fn completions(job: &Value) -> Value {
    let succeeded = number(job, "/status/succeeded");
    let of = match job.pointer("/spec/completions").and_then(Value::as_u64) {
        Some(completions) => completions.to_string(),
        // A queue of work ends with its first pod that succeeds.
        None => match number(job, "/spec/parallelism") {
            parallelism if parallelism > 1 => format!("1 of {parallelism}"),
            _ => "1".to_owned(),
        },
    };
    json!(format!("{succeeded}/{of}"))
}

/// How long it ran, or has run.
pub(super) fn duration(job: &Value, now: Timestamp) -> Value {
    let time = |pointer: &str| text(job, pointer).parse::<Timestamp>().ok();
    let Some(started) = time("/status/startTime") else { return json!("") };
    let ended = time("/status/completionTime").unwrap_or(now);
    json!(written(ended.as_second() - started.as_second()))
}

pub(super) fn time_zone(cron_job: &Value) -> Value {
    let zone = text(cron_job, "/spec/timeZone");
    json!(if zone.is_empty() { NOTHING } else { zone })
}

pub(super) fn is_suspended(cron_job: &Value) -> Value {
    let is_suspended = cron_job.pointer("/spec/suspend") == Some(&json!(true));
    json!(if is_suspended { "True" } else { "False" })
}

/// How many of its Jobs run.
pub(super) fn active(cron_job: &Value) -> Value {
    json!(list(cron_job, "/status/active").len())
}

pub(super) fn last_schedule(cron_job: &Value, now: Timestamp) -> Value {
    match cron_job.pointer("/status/lastScheduleTime") {
        Some(time) => age(Some(time), now),
        None => json!(NOTHING),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_says_what_it_has_come_to() {
        let with = |conditions: &[&str]| {
            let conditions: Vec<Value> =
                conditions.iter().map(|it| json!({"type": it, "status": "True"})).collect();
            json!({"status": {"conditions": conditions}})
        };
        for (conditions, word) in [
            (&[][..], "Running"),
            (&["SuccessCriteriaMet"], "SuccessCriteriaMet"),
            (&["SuccessCriteriaMet", "Complete"], "Complete"),
            (&["FailureTarget", "Failed"], "Failed"),
            (&["Suspended"], "Suspended"),
        ] {
            assert_eq!(status(&with(conditions)), word, "{conditions:?}");
        }
        let mut going = with(&[]);
        going["metadata"] = json!({"deletionTimestamp": "2026-01-31T12:00:00Z"});
        assert_eq!(status(&going), "Terminating");
    }

    #[test]
    fn a_queue_of_work_has_no_number_of_completions() {
        let check = |spec: Value, expected: &str| {
            let job = json!({"spec": spec, "status": {"succeeded": 1}});
            assert_eq!(completions(&job), expected);
        };
        check(json!({"completions": 3, "parallelism": 2}), "1/3");
        check(json!({"parallelism": 2}), "1/1 of 2");
        check(json!({"parallelism": 1}), "1/1");
    }
}
