//! Reads manifests for planning: the objects that run pods, and nothing else.
//!
//! A planner counts more kinds than Ambit runs itself (StatefulSets, DaemonSets, ReplicaSets) and
//! does not need the rest. Kinds that reserve nothing are skipped; a kind that may run pods and is
//! not understood is named in a warning. Nothing here may judge how much a pod requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::decode::strict;
use super::document::{Document, FieldLines};
use super::finding::{Issues, Path};
use super::validate::{pods, workloads};
use super::{Errors, Finding, Input, Loader, Location, subject, twice};

/// Most pods that one object may ask for; more is a typing error.
const REPLICAS_MAX: u32 = 100_000;

/// A kind that runs pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub enum WorkloadKind {
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
}

/// One object that runs pods, all of them alike.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How many pods; for a DaemonSet, how many on each node.
    pub replicas: u32,
    /// The pods' labels.
    pub labels: BTreeMap<String, String>,
    /// What each pod is.
    pub spec: PodSpec,
    location: Location,
    lines: FieldLines,
}

/// What a planner needs of an input.
#[derive(Debug, Default)]
pub struct Workloads {
    /// The objects that run pods, in the order of the input.
    pub workloads: Vec<Workload>,
    /// Namespaces that hold a Service.
    pub service_namespaces: BTreeSet<String>,
    /// What the user should know.
    pub warnings: Vec<Finding>,
}

impl WorkloadKind {
    /// The kind's name, as in `kind: Pod`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
        }
    }

    fn of(api_version: &str, name: &str) -> Option<Self> {
        match (api_version, name) {
            ("v1", "Pod") => Some(Self::Pod),
            ("apps/v1", "Deployment") => Some(Self::Deployment),
            ("apps/v1", "ReplicaSet") => Some(Self::ReplicaSet),
            ("apps/v1", "StatefulSet") => Some(Self::StatefulSet),
            ("apps/v1", "DaemonSet") => Some(Self::DaemonSet),
            _ => None,
        }
    }
}

impl Workload {
    /// The path of the pods' spec inside the object.
    pub fn spec_path(&self) -> &'static str {
        if self.kind == WorkloadKind::Pod { "spec" } else { "spec.template.spec" }
    }

    /// Something about a field of it, with file and line.
    pub fn finding(&self, field: &str, what: &str, remedy: &str) -> Finding {
        Finding {
            location: Location { line: self.lines.line(field), ..self.location.clone() },
            object: self.to_string(),
            field: field.to_owned(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// Reads the workloads of `inputs`, all or nothing.
pub fn load_workloads(inputs: &[Input]) -> Result<Workloads, Errors> {
    let mut loader = Loader::default();
    loader.inputs(inputs, Loader::workload);
    loader.finish(|loader| Workloads { warnings: loader.warnings, ..loader.workloads })
}

impl Loader {
    fn workload(&mut self, file: &str, document: Document) {
        let mut issues = Issues::default();
        let read = read(&document.value, &mut issues);
        self.report(file, &document, issues);
        match read {
            Some(Read::Service(namespace)) => {
                self.workloads.service_namespaces.insert(namespace);
            }
            Some(Read::Pods(pods)) => self.add_workload(file, *pods, document),
            None => {}
        }
    }

    fn add_workload(&mut self, file: &str, pods: PodsOf, document: Document) {
        let location = Location { file: file.to_owned(), line: document.lines.line("") };
        let same = |it: &&Workload| {
            (it.kind, &it.namespace, &it.name) == (pods.kind, &pods.namespace, &pods.name)
        };
        if let Some(first) = self.workloads.workloads.iter().find(same) {
            let same = twice(location.clone(), subject(&document.value), &first.location);
            self.errors.push(same);
        }
        let PodsOf { kind, namespace, name, replicas, labels, spec } = pods;
        let lines = document.lines;
        let workload = Workload { kind, namespace, name, replicas, labels, spec, location, lines };
        self.workloads.workloads.push(workload);
    }
}

/// How a planner reads a document.
enum Read {
    Service(String),
    Pods(Box<PodsOf>),
}

struct PodsOf {
    kind: WorkloadKind,
    namespace: String,
    name: String,
    replicas: u32,
    labels: BTreeMap<String, String>,
    spec: PodSpec,
}

fn read(value: &Value, issues: &mut Issues) -> Option<Read> {
    let text = |field| value.get(field).and_then(Value::as_str);
    let (Some(api_version), Some(kind)) = (text("apiVersion"), text("kind")) else {
        let missing = if text("apiVersion").is_none() { "apiVersion" } else { "kind" };
        let what = "not a Kubernetes object: the field is missing or no text";
        issues.error(&Path::at(missing), what, "start the document with `apiVersion:` and `kind:`");
        return None;
    };
    if (api_version, kind) == ("v1", "Service") {
        let namespace = value.pointer("/metadata/namespace").and_then(Value::as_str);
        return Some(Read::Service(namespace.unwrap_or("default").to_owned()));
    }
    let Some(known) = WorkloadKind::of(api_version, kind) else {
        let runs_pods = ["/spec/template", "/spec/jobTemplate"];
        if runs_pods.iter().any(|pointer| value.pointer(pointer).is_some()) {
            let what = format!("{kind} ({api_version}) may run pods and is not counted");
            issues.warn(&Path::at("kind"), what, "add its pods as a Deployment to count them");
        }
        return None;
    };
    pods_of(known, value, issues).map(|pods| Read::Pods(Box::new(pods)))
}

/// An object's metadata, number of pods and template.
type Shape = (ObjectMeta, i32, PodTemplateSpec);

fn pods_of(kind: WorkloadKind, value: &Value, issues: &mut Issues) -> Option<PodsOf> {
    let mut value = value.clone();
    value.as_object_mut()?.remove("status");
    let (metadata, replicas, template) = shape(kind, &value, issues)?;
    let Some(name) = metadata.name.filter(|name| !name.is_empty()) else {
        issues.error(&Path::at("metadata.name"), "the object has no name", "add metadata.name");
        return None;
    };
    let replicas = match u32::try_from(replicas) {
        Ok(replicas) if replicas <= REPLICAS_MAX => replicas,
        _ => {
            let what = format!("{replicas} pods are not between 0 and {REPLICAS_MAX}");
            issues.error(&Path::at("spec.replicas"), what, "write a number in that range");
            return None;
        }
    };
    if !issues.errors.is_empty() {
        return None;
    }
    Some(PodsOf {
        kind,
        namespace: metadata.namespace.unwrap_or_else(|| "default".to_owned()),
        name,
        replicas,
        labels: template.metadata.and_then(|it| it.labels).unwrap_or_default(),
        spec: template.spec?,
    })
}

fn shape(kind: WorkloadKind, value: &Value, issues: &mut Issues) -> Option<Shape> {
    match kind {
        WorkloadKind::Pod => {
            let pod = strict::<Pod>(value, issues)?;
            pods::pod(&pod, issues);
            let labels = pod.metadata.labels.clone();
            let metadata = Some(ObjectMeta { labels, ..ObjectMeta::default() });
            let template = PodTemplateSpec { metadata, spec: pod.spec.clone() };
            Some((pod.metadata.clone(), 1, template))
        }
        WorkloadKind::Deployment => {
            let deployment = strict::<Deployment>(value, issues)?;
            workloads::deployment(&deployment, issues);
            let spec = deployment.spec.clone()?;
            Some((deployment.metadata.clone(), spec.replicas.unwrap_or(1), spec.template))
        }
        WorkloadKind::ReplicaSet => {
            let set = strict::<ReplicaSet>(value, issues)?;
            let spec = set.spec.clone().unwrap_or_default();
            let template = checked(spec.template.unwrap_or_default(), issues);
            Some((set.metadata.clone(), spec.replicas.unwrap_or(1), template))
        }
        WorkloadKind::StatefulSet => {
            let set = strict::<StatefulSet>(value, issues)?;
            let spec = set.spec.clone().unwrap_or_default();
            let template = checked(spec.template, issues);
            Some((set.metadata.clone(), spec.replicas.unwrap_or(1), template))
        }
        WorkloadKind::DaemonSet => {
            let set = strict::<DaemonSet>(value, issues)?;
            let template = checked(set.spec.clone().unwrap_or_default().template, issues);
            Some((set.metadata.clone(), 1, template))
        }
    }
}

fn checked(template: PodTemplateSpec, issues: &mut Issues) -> PodTemplateSpec {
    let at = Path::at("spec.template.spec");
    match &template.spec {
        Some(spec) => pods::pod_spec(spec, &at, issues),
        None => issues.error(&at, "the template has no spec", "add `containers`"),
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Workloads, Errors> {
        load_workloads(&[Input::Text { name: "t.yaml".to_owned(), text: text.to_owned() }])
    }

    const POD: &str = "{containers: [{name: c, image: i}]}";

    #[test]
    fn whatever_runs_pods_is_read_and_the_rest_passed_over() {
        let controller = |kind: &str, more: &str| {
            format!(
                "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\n\
                 spec:\n  {more}\n  selector: {{matchLabels: {{app: a}}}}\n  template:\n    \
                 metadata: {{labels: {{app: a}}}}\n    spec: {POD}\n---\n"
            )
        };
        let text = controller("Deployment", "replicas: 3")
            + &controller("StatefulSet", "serviceName: a")
            + &controller("ReplicaSet", "replicas: 0")
            + &controller("DaemonSet", "minReadySeconds: 0")
            + &format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {POD}\n---\n")
            + "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\n---\n"
            + "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\n---\n"
            + "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {}}\n";
        let read = load(&text).expect("valid objects");
        let found: Vec<String> =
            read.workloads.iter().map(|it| format!("{it} {}", it.replicas)).collect();
        let expected = [
            "Deployment shop/a 3",
            "StatefulSet shop/a 1",
            "ReplicaSet shop/a 0",
            "DaemonSet shop/a 1",
            "Pod default/p 1",
        ];
        assert_eq!(found, expected);
        assert_eq!(read.service_namespaces.iter().collect::<Vec<_>>(), ["shop"]);
        let warnings: Vec<String> = read.warnings.iter().map(ToString::to_string).collect();
        let job = "t.yaml:55: Job j: kind: Job (batch/v1) may run pods and is not counted; add \
                   its pods as a Deployment to count them";
        assert_eq!(warnings, [job]);
    }

    #[test]
    fn what_is_wrong_has_its_place() {
        let check = |text: &str, expected: &str| {
            let errors = load(text).expect_err(text).to_string();
            assert_eq!(errors, expected);
        };
        check(
            "kind: Pod\n",
            "t.yaml:1: Pod: apiVersion: not a Kubernetes object: the field is \
               missing or no text; start the document with `apiVersion:` and `kind:`",
        );
        check(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec:\n  replicas: -1\n  \
             selector: {}\n  serviceName: s\n  template: {spec: {containers: [{name: c, image: \
             i}]}}\n",
            "t.yaml:5: StatefulSet s: spec.replicas: -1 pods are not between 0 and 100000; write \
             a number in that range",
        );
        let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {POD}\n");
        check(
            &format!("{pod}---\n{pod}"),
            "t.yaml:6: Pod p: the same object is at t.yaml:1; remove one of the two, or rename it",
        );
    }
}
