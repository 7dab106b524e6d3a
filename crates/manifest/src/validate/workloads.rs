//! Rules for the kinds whose controllers make pods from a template: Deployment, StatefulSet,
//! DaemonSet, Job and CronJob.
//!
//! They are Kubernetes'. What a machine cannot do of them is said where it admits objects; nothing
//! here may guess that.

use std::collections::BTreeMap;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::claims;
use super::core::one_of;
use super::names::{self, require};
use super::pods;
use crate::finding::{Issues, Path};

/// How a StatefulSet and a DaemonSet replace their pods.
const UPDATES: [&str; 2] = ["RollingUpdate", "OnDelete"];
/// Most completions of an indexed Job, as in Kubernetes.
const INDEXED_COMPLETIONS_MAX: i32 = 100_000;

/// Checks a Deployment.
pub(crate) fn deployment(deployment: &Deployment, issues: &mut Issues) {
    let at = Path::at("spec");
    let Some(spec) = &deployment.spec else { return no_spec("Deployment", issues) };
    not_negative(&[("replicas", spec.replicas)], &at, issues);
    let strategy = spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    one_of(strategy, &["RollingUpdate", "Recreate"], &at.field("strategy.type"), issues);
    restarting("Deployment", &spec.selector, &spec.template, issues);
}

/// Checks a StatefulSet.
pub(crate) fn stateful_set(set: &StatefulSet, issues: &mut Issues) {
    let at = Path::at("spec");
    let Some(spec) = &set.spec else { return no_spec("StatefulSet", issues) };
    let update = spec.update_strategy.as_ref();
    let rolling = update.and_then(|update| update.rolling_update.as_ref());
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    let counts = [
        ("replicas", spec.replicas),
        ("ordinals.start", start),
        ("updateStrategy.rollingUpdate.partition", rolling.and_then(|rolling| rolling.partition)),
    ];
    not_negative(&counts, &at, issues);
    let kind = update.and_then(|update| update.type_.as_deref());
    one_of(kind, &UPDATES, &at.field("updateStrategy.type"), issues);
    let management = spec.pod_management_policy.as_deref();
    let policies = ["OrderedReady", "Parallel"];
    one_of(management, &policies, &at.field("podManagementPolicy"), issues);
    if let Some(retention) = &spec.persistent_volume_claim_retention_policy {
        let at = at.field("persistentVolumeClaimRetentionPolicy");
        let policies = ["Retain", "Delete"];
        let (deleted, scaled) = (&retention.when_deleted, &retention.when_scaled);
        one_of(deleted.as_deref(), &policies, &at.field("whenDeleted"), issues);
        one_of(scaled.as_deref(), &policies, &at.field("whenScaled"), issues);
    }
    if let Some(service) = spec.service_name.as_deref().filter(|name| !name.is_empty()) {
        require(issues, &at.field("serviceName"), names::dns_label, service);
    }
    let mut claims_seen = BTreeSet::new();
    for (index, claim) in spec.volume_claim_templates.iter().flatten().enumerate() {
        let at = at.field("volumeClaimTemplates").index(index);
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        require(issues, &at.field("metadata.name"), names::dns_label, name);
        if !claims_seen.insert(name) {
            issues.error(
                &at.field("metadata.name"),
                format!("two claims are called `{name}`"),
                "give each its own name",
            );
        }
        match &claim.spec {
            Some(claim) => claims::claim_spec(claim, &at.field("spec"), issues),
            None => issues.error(&at.field("spec"), "a claim needs a spec", "add it"),
        }
    }
    restarting("StatefulSet", &spec.selector, &spec.template, issues);
}

/// Checks a DaemonSet.
pub(crate) fn daemon_set(set: &DaemonSet, issues: &mut Issues) {
    let at = Path::at("spec");
    let Some(spec) = &set.spec else { return no_spec("DaemonSet", issues) };
    let kind = spec.update_strategy.as_ref().and_then(|update| update.type_.as_deref());
    one_of(kind, &UPDATES, &at.field("updateStrategy.type"), issues);
    restarting("DaemonSet", &spec.selector, &spec.template, issues);
}

/// Checks a Job.
pub(crate) fn job(job: &Job, issues: &mut Issues) {
    let at = Path::at("spec");
    match &job.spec {
        Some(spec) => spec_of_job(spec, &at, issues),
        None => issues.error(&at, "a Job needs a spec", "add `spec.template`"),
    }
}

/// Checks a CronJob. Whether its schedule is one is checked where it is followed.
pub(crate) fn cron_job(job: &CronJob, issues: &mut Issues) {
    let at = Path::at("spec");
    let spec = &job.spec;
    let counts = [
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit),
    ];
    not_negative(&counts, &at, issues);
    if spec.starting_deadline_seconds.is_some_and(|seconds| seconds < 0) {
        let at = at.field("startingDeadlineSeconds");
        issues.error(&at, "the deadline is negative", "write 0 or a positive number");
    }
    let policies = ["Allow", "Forbid", "Replace"];
    let policy = spec.concurrency_policy.as_deref();
    one_of(policy, &policies, &at.field("concurrencyPolicy"), issues);
    let at = at.field("jobTemplate").field("spec");
    match &spec.job_template.spec {
        Some(spec) => spec_of_job(spec, &at, issues),
        None => issues.error(&at, "a CronJob needs a Job", "add `spec.jobTemplate.spec.template`"),
    }
}

fn spec_of_job(spec: &JobSpec, at: &Path, issues: &mut Issues) {
    counts_of_job(spec, at, issues);
    if spec.manual_selector != Some(true) && spec.selector.is_some() {
        issues.error(&at.field("selector"), "a Job selects its pods by itself", "remove it");
    }
    let at = at.field("template");
    template(&spec.template, &at, issues);
    let policy = spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref());
    if !matches!(policy, Some("Never" | "OnFailure")) {
        issues.error(
            &at.field("spec.restartPolicy"),
            format!("a Job's pods must end, `{}` is impossible", policy.unwrap_or("Always")),
            "write Never or OnFailure",
        );
    }
}

fn counts_of_job(spec: &JobSpec, at: &Path, issues: &mut Issues) {
    let counts = [
        ("completions", spec.completions),
        ("parallelism", spec.parallelism),
        ("backoffLimit", spec.backoff_limit),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished),
    ];
    not_negative(&counts, at, issues);
    if spec.active_deadline_seconds.is_some_and(|seconds| seconds < 1) {
        issues.error(
            &at.field("activeDeadlineSeconds"),
            "the deadline is not in the future",
            "write a positive number",
        );
    }
    let mode = spec.completion_mode.as_deref();
    one_of(mode, &["NonIndexed", "Indexed"], &at.field("completionMode"), issues);
    if mode == Some("Indexed") {
        let at = at.field("completions");
        match spec.completions {
            None => issues.error(&at, "an indexed Job needs the number of its pods", "add it"),
            Some(count) if count > INDEXED_COMPLETIONS_MAX => issues.error(
                &at,
                format!("{count} is more than {INDEXED_COMPLETIONS_MAX}"),
                "split the work into several Jobs",
            ),
            Some(_) => {}
        }
    }
}

fn no_spec(kind: &str, issues: &mut Issues) {
    let remedy = "add `spec.selector` and `spec.template`";
    issues.error(&Path::at("spec"), format!("a {kind} needs a spec"), remedy);
}

fn not_negative(counts: &[(&str, Option<i32>)], at: &Path, issues: &mut Issues) {
    for (field, count) in counts {
        if let Some(count) = count.filter(|count| *count < 0) {
            issues.error(
                &at.field(field),
                format!("{count} is negative"),
                "write 0 or a positive number",
            );
        }
    }
}

/// The template and the selector of a kind whose pods always restart.
fn restarting(
    kind: &str,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    issues: &mut Issues,
) {
    let labels = template.metadata.clone().unwrap_or_default().labels.unwrap_or_default();
    template_labels(template, &Path::at("spec.template"), issues);
    self::selector(selector, &labels, &Path::at("spec"), issues);
    let at = Path::at("spec.template");
    template_spec(template, &at, issues);
    let policy = template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref());
    if let Some(policy) = policy.filter(|policy| *policy != "Always") {
        issues.error(
            &at.field("spec.restartPolicy"),
            format!("a {kind}'s pods always restart, `{policy}` is impossible"),
            "remove it, or use a Pod or a Job",
        );
    }
}

fn template(template: &PodTemplateSpec, at: &Path, issues: &mut Issues) {
    template_labels(template, at, issues);
    template_spec(template, at, issues);
}

fn template_labels(template: &PodTemplateSpec, at: &Path, issues: &mut Issues) {
    let at = at.field("metadata.labels");
    let labels = template.metadata.iter().flat_map(|metadata| metadata.labels.iter().flatten());
    super::labels(labels.clone(), &at, issues);
    super::slips(labels, &at, issues);
}

fn template_spec(template: &PodTemplateSpec, at: &Path, issues: &mut Issues) {
    let at = at.field("spec");
    match &template.spec {
        Some(pod) => pods::pod_spec(pod, &at, issues),
        None => issues.error(&at, "the template has no spec", "add `containers`"),
    }
}

fn selector(
    selector: &LabelSelector,
    labels: &BTreeMap<String, String>,
    at: &Path,
    issues: &mut Issues,
) {
    let wanted = selector.match_labels.clone().unwrap_or_default();
    let at = at.field("selector");
    if selector.match_expressions.as_ref().is_some_and(|all| !all.is_empty()) {
        issues.error(
            &at.field("matchExpressions"),
            "selecting by expressions is not supported here",
            "use matchLabels",
        );
        return;
    }
    let at = at.field("matchLabels");
    super::labels(&wanted, &at, issues);
    if wanted.is_empty() {
        issues.error(&at, "the selector is empty", "name the labels of the template");
    }
    for (key, value) in &wanted {
        if labels.get(key) != Some(value) {
            let has = labels.get(key).map_or("none".to_owned(), |has| format!("`{has}`"));
            issues.error(
                &at.field(key),
                format!("the selector wants `{key}: {value}`, the template's label is {has}"),
                "make spec.selector.matchLabels and spec.template.metadata.labels agree",
            );
        }
    }
}
