//! The reports of captured pods, and why others are not captured: files in the registry of one
//! machine, annotations in a cluster.
//!
//! The control plane offers the mesh's protocol to pods reported as captured only. A report names a
//! pod by its uid, so that a later pod of the same name is never reported by mistake.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ambit_wire::capture::Obstacle;
use ambit_words::annotations::{
    CAPTURE_LACKS, ENABLED, NOT_CAPTURED, OLDER_CONNECTIONS, REDIRECTION,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::files::{CapturedFiles, RegistryError};
use crate::pod::{PodName, PodObject, PodUid, RegistryView};

/// Longest that the server may take to write a report.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two writes of which only the number of older connections is the reason: it falls
/// one by one, and the API server is for others as well. That none is left is written at once.
const OLDER_PAUSE: Duration = Duration::from_secs(60);

/// What is reported of a captured pod, beside that it is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Open connections that are older than the capture.
    pub(crate) older: usize,
    /// The kernel parameter that capture has to do without.
    pub(crate) lacks: Option<&'static str>,
}

impl Report {
    fn older(&self) -> Option<String> {
        (self.older > 0).then(|| self.older.to_string())
    }

    fn lacks(&self) -> Option<String> {
        self.lacks.map(str::to_owned)
    }
}

/// Why a pod could not be reported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// In the registry of one machine.
    #[error(transparent)]
    Files(#[from] RegistryError),
    /// The server refused, or is away.
    #[error(
        "write the pod's annotation {REDIRECTION} (the agent may need `patch` on \
        pods/status)"
    )]
    Annotate(#[source] kube::Error),
    /// The server did not answer.
    #[error(
        "write the pod's annotation {REDIRECTION}: no answer of the API server within {}s",
        WRITE_TIMEOUT.as_secs()
    )]
    Silence,
    /// The name is another pod's.
    #[error("the pod is gone, and another has its name")]
    AnotherPod,
}

/// Where pods are reported.
#[derive(Clone, Debug)]
pub(crate) enum Reports {
    /// Beside the registry of one machine.
    Files(CapturedFiles),
    /// On the pods themselves.
    Annotations(Annotations),
}

impl Reports {
    /// Reports a pod as captured.
    pub(crate) async fn mark(
        &self,
        name: &PodName,
        uid: &PodUid,
        report: Report,
    ) -> Result<(), ReportError> {
        match self {
            Self::Files(files) => {
                let notes = [report.older(), report.lacks()];
                Ok(files.mark(name, uid, &notes.map(Option::unwrap_or_default))?)
            }
            Self::Annotations(annotations) => annotations.write(name, uid, Some(report)).await,
        }
    }

    /// Says why a pod that is to be captured is not. It never says that a pod is captured or not.
    pub(crate) async fn explain(
        &self,
        name: &PodName,
        uid: &PodUid,
        obstacle: &Obstacle,
    ) -> Result<(), ReportError> {
        match self {
            Self::Files(files) => Ok(files.explain(name, uid, &obstacle.line())?),
            Self::Annotations(annotations) => annotations.explain(name, uid, obstacle).await,
        }
    }

    /// Takes the report back, and the reason why there was none.
    pub(crate) async fn clear(&self, name: &PodName, uid: &PodUid) -> Result<(), ReportError> {
        match self {
            Self::Files(files) => Ok(files.clear(name, uid)?),
            Self::Annotations(annotations) => annotations.write(name, uid, None).await,
        }
    }

    /// Every report: what an earlier agent left.
    pub(crate) fn all(&self) -> Result<Vec<(PodName, PodUid)>, ReportError> {
        match self {
            Self::Files(files) => Ok(files.all()?),
            Self::Annotations(annotations) => Ok(annotations.all()),
        }
    }

    /// The pods whose reasons outlive them: what an earlier agent left.
    pub(crate) fn explained(&self) -> Result<Vec<(PodName, PodUid)>, ReportError> {
        match self {
            Self::Files(files) => Ok(files.explained()?),
            Self::Annotations(_) => Ok(Vec::new()),
        }
    }
}

/// What this agent wrote for a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Last {
    #[default]
    Nothing,
    /// A write failed, or it was done and the answer was lost.
    Unsure,
    /// What the pod was reported as, and when.
    Wrote(Option<Report>, Instant),
}

/// What was last written for a pod; held while it is written, so that reports of one pod are
/// written in their order and those of others do not wait.
type Written = Arc<tokio::sync::Mutex<Last>>;

/// The annotation of each pod, by merge patches on its status.
#[derive(Clone)]
pub(crate) struct Annotations {
    client: Client,
    view: watch::Receiver<Arc<RegistryView>>,
    written: Arc<Mutex<HashMap<PodUid, Written>>>,
}

impl std::fmt::Debug for Annotations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Annotations")
    }
}

impl Annotations {
    /// The view tells what the annotations are now.
    pub(crate) fn new(client: Client, view: watch::Receiver<Arc<RegistryView>>) -> Self {
        Self { client, view, written: Arc::default() }
    }

    async fn write(
        &self,
        name: &PodName,
        uid: &PodUid,
        report: Option<Report>,
    ) -> Result<(), ReportError> {
        let written = self.written(uid);
        let mut last = written.lock().await;
        if self.is_written(name, uid, report, *last) {
            // Nothing to write, and no need for a server.
            return Ok(());
        }
        *last = Last::Unsure;
        // The uid makes it conditional: no other pod of this name is meant.
        let patch = json!({"metadata": {"uid": uid.as_str(), "annotations": {
            REDIRECTION: report.map(|_| ENABLED),
            OLDER_CONNECTIONS: report.and_then(|it| it.older()),
            CAPTURE_LACKS: report.and_then(|it| it.lacks()),
            NOT_CAPTURED: null,
        }}});
        self.patch(name, uid, &patch, report.is_some()).await?;
        *last = Last::Wrote(report, now());
        Ok(())
    }

    async fn explain(
        &self,
        name: &PodName,
        uid: &PodUid,
        obstacle: &Obstacle,
    ) -> Result<(), ReportError> {
        let written = self.written(uid);
        // Not while a report is written: that takes the reason back.
        let _last = written.lock().await;
        let line = obstacle.line();
        let is_said = |pod: &PodObject| pod.annotations.get(NOT_CAPTURED) == Some(&line);
        if self.view.borrow().pods.get(name).is_some_and(|pod| pod.uid == *uid && is_said(pod)) {
            return Ok(());
        }
        let annotations = json!({ NOT_CAPTURED: line });
        let patch = json!({"metadata": {"uid": uid.as_str(), "annotations": annotations}});
        self.patch(name, uid, &patch, false).await
    }

    /// Patches the pod; one that is gone is no error unless it `must_be` there.
    async fn patch(
        &self,
        name: &PodName,
        uid: &PodUid,
        patch: &Value,
        must_be: bool,
    ) -> Result<(), ReportError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &name.namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let work = async {
            match pods.patch_status(&name.name, &parameters, &patch).await {
                Ok(_) => Ok(()),
                Err(error) if is_elsewhere(&error) => {
                    match pods.get_metadata_opt(&name.name).await {
                        Ok(Some(pod)) if pod.uid().as_deref() == Some(uid.as_str()) => {
                            Err(ReportError::Annotate(error))
                        }
                        Ok(_) if must_be => Err(ReportError::AnotherPod),
                        Ok(_) => Ok(()),
                        Err(_) => Err(ReportError::Annotate(error)),
                    }
                }
                Err(error) => Err(ReportError::Annotate(error)),
            }
        };
        let result = tokio::time::timeout(WRITE_TIMEOUT, work).await;
        result.unwrap_or(Err(ReportError::Silence))
    }

    /// Whether the pod says what is to be reported, as of the view, or will do for a while.
    fn is_written(&self, name: &PodName, uid: &PodUid, report: Option<Report>, last: Last) -> bool {
        let view = self.view.borrow();
        let Some(pod) = view.pods.get(name).filter(|pod| pod.uid == *uid) else { return false };
        let says = |key: &str| pod.annotations.get(key).cloned();
        let is_captured = says(REDIRECTION).is_some_and(|value| value == ENABLED);
        let lacks = report.and_then(|it| it.lacks());
        let is_explained = says(NOT_CAPTURED).is_some();
        if is_captured != report.is_some() || says(CAPTURE_LACKS) != lacks || is_explained {
            return false;
        }
        let older = report.and_then(|it| it.older());
        let is_same = says(OLDER_CONNECTIONS) == older;
        match last {
            Last::Unsure => false,
            Last::Nothing => is_same,
            Last::Wrote(wrote, _) if wrote == report => is_same,
            // Several are left still, and it was said a moment ago that there are some.
            Last::Wrote(Some(wrote), at) => {
                let is_fewer = report.is_some_and(|it| (1..wrote.older).contains(&it.older));
                is_fewer && now().saturating_duration_since(at) < OLDER_PAUSE
            }
            Last::Wrote(None, _) => false,
        }
    }

    fn written(&self, uid: &PodUid) -> Written {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if !written.contains_key(uid) {
            let view = self.view.borrow();
            let there = |uid: &PodUid| view.pods.values().any(|pod| pod.uid == *uid);
            written.retain(|uid, last| Arc::strong_count(last) > 1 || there(uid));
        }
        written.entry(uid.clone()).or_default().clone()
    }

    fn all(&self) -> Vec<(PodName, PodUid)> {
        let view = self.view.borrow();
        let captured = view
            .pods
            .values()
            .filter(|pod| pod.annotations.get(REDIRECTION).is_some_and(|value| value == ENABLED));
        captured.map(|pod| (pod.name.clone(), pod.uid.clone())).collect()
    }
}

/// The clock that tests can hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Whether the pod may be gone, or another bear its name: not found, conflict, immutable uid.
fn is_elsewhere(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409 | 422))
}
