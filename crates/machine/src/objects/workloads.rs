//! Admission of objects that have a template of pods: Deployments, StatefulSets, DaemonSets, Jobs,
//! CronJobs; of what scales them, HorizontalPodAutoscalers; and of what their pods claim.
//!
//! What a controller relies on is completed or checked here; how many pods there are is no matter
//! of this file.

use serde_json::{Value, json};

use super::admit::{Admission, ApplyError, RESTARTED_AT_ANNOTATION, default_to, keep_status};
use super::store::Draft;
use super::{Kind, ObjectRef, scaled_by, workload_fields};
use crate::claims;
use crate::cron;

/// Where `restart` writes when it happened.
const RESTARTED_AT: &str = "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt";
/// Longest name of a CronJob: its Jobs have a dash and eight digits more.
const CRON_JOB_NAME_LEN_MAX: usize = NAME_LEN_MAX - 9;
/// Longest name of a StatefulSet, Job or DaemonSet: with what is added it must still be a label.
const NAME_LEN_MAX: usize = 52;

impl Draft<'_> {
    /// Refuses what a machine cannot do.
    pub(super) fn refuse(kind: Kind, object: &ObjectRef, value: &Value) -> Result<(), ApplyError> {
        workload_fields::refused(kind, value).map_or(Ok(()), |(field, what, remedy)| {
            let object = Box::new(object.clone());
            Err(ApplyError::Refused { object, field, what, remedy })
        })
    }

    /// Completes such an object, or says why it cannot be.
    pub(super) fn admit_workload(
        &self,
        kind: Kind,
        object: &ObjectRef,
        value: &mut Value,
        old: Option<&Value>,
        admission: &Admission,
    ) -> Result<(), ApplyError> {
        Self::refuse(kind, object, value)?;
        if kind != Kind::Deployment && object.name.len() > NAME_LEN_MAX {
            return Err(ApplyError::LongName { object: object.clone(), most: NAME_LEN_MAX });
        }
        match kind {
            Kind::Job => default_job(value),
            Kind::DaemonSet => {
                default_to(value, "/spec/updateStrategy/type", "RollingUpdate".into())
            }
            Kind::StatefulSet => {
                default_to(value, "/spec/replicas", self.replicas(object, old));
                default_to(value, "/spec/podManagementPolicy", "OrderedReady".into());
                default_to(value, "/spec/updateStrategy/type", "RollingUpdate".into());
            }
            _ => {
                default_to(value, "/spec/replicas", self.replicas(object, old));
                default_to(value, "/spec/strategy/type", json!("RollingUpdate"));
            }
        }
        self.admit_pod_spec(object, &mut value["spec"]["template"]["spec"], admission)?;
        keep_status(value, old);
        keep_what_may_not_change(kind, object, value, old)?;
        if kind != Kind::Job {
            check_selector(object, value)?;
            keep_restart(value, old);
        }
        Ok(())
    }

    /// Completes a HorizontalPodAutoscaler, or says why it cannot be.
    pub(super) fn admit_autoscaler(
        object: &ObjectRef,
        value: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), ApplyError> {
        Self::refuse(Kind::HorizontalPodAutoscaler, object, value)?;
        default_to(value, "/spec/minReplicas", json!(1));
        keep_status(value, old);
        Ok(())
    }

    /// Completes a PersistentVolumeClaim, or says why it cannot be.
    pub(super) fn admit_claim(
        object: &ObjectRef,
        value: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), ApplyError> {
        Self::refuse(Kind::PersistentVolumeClaim, object, value)?;
        claims::complete(value, old).map_err(|field| ApplyError::Refused {
            object: Box::new(object.clone()),
            field: field.to_owned(),
            what: "a claim is not changed after its creation",
            remedy: "delete it with what it holds, and apply it again",
        })
    }

    /// How many replicas an object has that does not say it: as many as before if an autoscaler
    /// decides that.
    fn replicas(&self, object: &ObjectRef, old: Option<&Value>) -> Value {
        let names_it = |(other, value): (&ObjectRef, &Value)| {
            other.plural == Kind::HorizontalPodAutoscaler.plural()
                && scaled_by(other, value).as_ref() == Ok(object)
        };
        let before = old.and_then(|old| old.pointer("/spec/replicas"));
        let before = before.filter(|_| self.iter().any(names_it));
        before.cloned().unwrap_or_else(|| json!(1))
    }

    /// Completes a CronJob and its Jobs, or says why it cannot be.
    pub(super) fn admit_cron_job(
        &self,
        object: &ObjectRef,
        value: &mut Value,
        old: Option<&Value>,
        admission: &Admission,
    ) -> Result<(), ApplyError> {
        Self::refuse(Kind::CronJob, object, value)?;
        if object.name.len() > CRON_JOB_NAME_LEN_MAX {
            let (object, most) = (object.clone(), CRON_JOB_NAME_LEN_MAX);
            return Err(ApplyError::LongName { object, most });
        }
        let zone = value.pointer("/spec/timeZone").and_then(Value::as_str);
        let written = value.pointer("/spec/schedule").and_then(Value::as_str).unwrap_or_default();
        match cron::schedule(written, zone) {
            Ok(_) => {}
            Err(cron::Wrong::Zone(problem)) => {
                return Err(ApplyError::TimeZone { object: object.clone(), problem });
            }
            Err(cron::Wrong::Schedule(problem)) => {
                let (object, written) = (Box::new(object.clone()), written.to_owned());
                return Err(ApplyError::Schedule { object, written, problem });
            }
        }
        default_to(value, "/spec/concurrencyPolicy", json!("Allow"));
        default_to(value, "/spec/suspend", json!(false));
        default_to(value, "/spec/successfulJobsHistoryLimit", json!(cron::SUCCESSFUL_KEPT));
        default_to(value, "/spec/failedJobsHistoryLimit", json!(cron::FAILED_KEPT));
        // The rest of its Jobs is completed when they are made: how many pods one has depends on
        // fields that may still be written.
        let pods = &mut value["spec"]["jobTemplate"]["spec"]["template"]["spec"];
        self.admit_pod_spec(object, pods, admission)?;
        keep_status(value, old);
        Ok(())
    }
}

/// Completes a Job.
pub(crate) fn default_job(value: &mut Value) {
    if value.pointer("/spec/completions").is_none() && value.pointer("/spec/parallelism").is_none()
    {
        default_to(value, "/spec/completions", json!(1));
    }
    default_to(value, "/spec/parallelism", json!(1));
    default_to(value, "/spec/backoffLimit", json!(6));
    default_to(value, "/spec/completionMode", json!("NonIndexed"));
    default_to(value, "/spec/suspend", json!(false));
}

/// Fields on which pods that are there already depend.
fn immutable(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Job => &[
            ("/spec/completionMode", "spec.completionMode"),
            ("/spec/completions", "spec.completions"),
            ("/spec/template", "spec.template"),
        ],
        Kind::StatefulSet => &[
            ("/spec/selector", "spec.selector"),
            ("/spec/serviceName", "spec.serviceName"),
            ("/spec/podManagementPolicy", "spec.podManagementPolicy"),
            ("/spec/volumeClaimTemplates", "spec.volumeClaimTemplates"),
        ],
        _ => &[("/spec/selector", "spec.selector")],
    }
}

fn keep_what_may_not_change(
    kind: Kind,
    object: &ObjectRef,
    value: &Value,
    old: Option<&Value>,
) -> Result<(), ApplyError> {
    let Some(old) = old else { return Ok(()) };
    for (pointer, field) in immutable(kind) {
        if old.pointer(pointer) != value.pointer(pointer) {
            return Err(ApplyError::Immutable { object: object.clone(), field });
        }
    }
    Ok(())
}

fn check_selector(object: &ObjectRef, value: &Value) -> Result<(), ApplyError> {
    let labels = value.pointer("/spec/template/metadata/labels");
    let wanted = value.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let matches = wanted.is_some_and(|wanted| {
        let label = |name: &String| labels.and_then(|labels| labels.get(name));
        !wanted.is_empty() && wanted.iter().all(|(name, value)| label(name) == Some(value))
    });
    if matches { Ok(()) } else { Err(ApplyError::Selector { object: object.clone() }) }
}

/// `restart` wrote when it happened; an apply of the same manifest must not undo that by another
/// restart.
fn keep_restart(value: &mut Value, old: Option<&Value>) {
    if let Some(restarted) = old.and_then(|old| old.pointer(RESTARTED_AT))
        && value.pointer(RESTARTED_AT).is_none()
    {
        let metadata = &mut value["spec"]["template"]["metadata"];
        metadata["annotations"][RESTARTED_AT_ANNOTATION] = restarted.clone();
    }
}
