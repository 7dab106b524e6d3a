//! The visible effects of the store: objects in memory and files on disk, before and after.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Admission, ApplyError, Kind, Limited, ObjectRef, Outcome, Sent, Store};
use crate::image::ImageMap;
use crate::layout::Layout;
use crate::node_labels::NodeLabels;

const NOW: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

struct Fixture {
    _root: TempDir,
    layout: Layout,
    store: Store,
    admission: Admission,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path());
        let store = Store::create(layout.clone()).unwrap();
        let admission = Admission {
            images: ImageMap::default(),
            rootless: false,
            node_labels: NodeLabels::default(),
            limited: Limited::default(),
        };
        let mut fixture = Self { _root: root, layout, store, admission };
        fixture.apply(vec![namespace("default")]).unwrap();
        fixture
    }

    fn apply(&mut self, objects: Vec<Value>) -> Result<Vec<Outcome>, ApplyError> {
        let changes = self.store.apply(objects, &self.admission, NOW)?;
        Ok(changes.changes.into_iter().map(|change| change.outcome).collect())
    }

    /// As `ambit apply` does it: the outcomes, and the warnings.
    fn apply_manifests(&mut self, manifests: Vec<Value>) -> (Vec<Outcome>, Vec<String>) {
        let sent = (Sent::Manifests, manifests);
        let (settled, changes) = self.store.draft_sent(sent, &self.admission, NOW).unwrap();
        self.store.commit(settled).unwrap();
        let outcomes = changes.changes.into_iter().map(|change| change.outcome);
        (outcomes.collect(), changes.warnings)
    }

    /// Why manifests are refused.
    fn refused(&self, manifests: Vec<Value>) -> String {
        let sent = (Sent::Manifests, manifests);
        let error = self.store.draft_sent(sent, &self.admission, NOW).unwrap_err();
        format!("{:#}", anyhow::Error::new(error))
    }

    fn object(&self, plural: &str, name: &str) -> Option<&Value> {
        self.store.object(&reference(plural, name))
    }

    /// Every file of the registry with its content.
    fn files(&self) -> Vec<(PathBuf, Value)> {
        fn walk(directory: &Path, files: &mut Vec<(PathBuf, Value)>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, files);
                } else {
                    let text = fs::read(&path).unwrap();
                    files.push((path, serde_json::from_slice(&text).unwrap()));
                }
            }
        }
        let mut files = Vec::new();
        walk(&self.layout.objects(), &mut files);
        files.sort_by(|a, b| a.0.cmp(&b.0));
        files
    }
}

fn reference(plural: &str, name: &str) -> ObjectRef {
    ObjectRef::new(Kind::from_plural(plural).unwrap(), Some("default"), name)
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn config_map(name: &str, value: &str) -> Value {
    let data = json!({"k": value});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

#[test]
fn what_is_applied_is_completed_and_written() {
    let mut fixture = Fixture::new();
    let before = fixture.files().len();
    assert_eq!(fixture.apply(vec![config_map("a", "1")]).unwrap(), [Outcome::Created]);
    let first = fixture.object("configmaps", "a").unwrap().clone();
    assert_eq!(first["metadata"]["namespace"], "default");
    assert_eq!(first["metadata"]["creationTimestamp"], NOW);
    assert_eq!(first["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(fixture.files().len(), before + 1);
    assert_eq!(fixture.apply(vec![config_map("a", "1")]).unwrap(), [Outcome::Unchanged]);
    assert_eq!(fixture.object("configmaps", "a").unwrap(), &first);
    assert_eq!(fixture.apply(vec![config_map("a", "2")]).unwrap(), [Outcome::Configured]);
    let second = fixture.object("configmaps", "a").unwrap();
    assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
    let version = |object: &Value| -> u64 {
        object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    assert!(version(second) > version(&first));
    assert!(fixture.object("serviceaccounts", "default").is_some(), "each namespace has one");
}

#[test]
fn an_error_anywhere_leaves_everything_as_it_was() {
    let mut fixture = Fixture::new();
    fixture.apply(vec![config_map("a", "1")]).unwrap();
    let before = fixture.files();
    let mut elsewhere = config_map("c", "1");
    elsewhere["metadata"]["namespace"] = json!("nowhere");
    fixture.apply(vec![config_map("a", "2"), config_map("b", "1"), elsewhere]).unwrap_err();
    assert_eq!(fixture.files(), before);
    // A directory where a file should go: the move fails when others have been made already.
    let obstacle = fixture.layout.object("secrets", Some("default"), "s").join("x");
    fs::create_dir_all(&obstacle).unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let error = fixture.apply(vec![config_map("a", "3"), config_map("b", "1"), secret]);
    assert!(matches!(error, Err(ApplyError::Store(_))), "{error:?}");
    fs::remove_dir_all(obstacle.parent().unwrap()).unwrap();
    assert_eq!(fixture.files(), before);
    assert_eq!(fixture.object("configmaps", "a").unwrap()["data"]["k"], "1");
    assert!(fixture.object("configmaps", "b").is_none());
}

#[test]
fn services_keep_the_addresses_they_were_given() {
    let mut fixture = Fixture::new();
    let ports = json!([{"port": 80}]);
    let dual = json!({"ports": ports, "ipFamilyPolicy": "PreferDualStack"});
    let plain = json!({"ports": ports});
    let asked = json!({"ports": ports, "clusterIP": "10.96.9.9"});
    let headless = json!({"ports": ports, "clusterIP": "None"});
    let all = || {
        vec![
            service("dual", dual.clone()),
            service("plain", plain.clone()),
            service("asked", asked.clone()),
            service("headless", headless.clone()),
        ]
    };
    fixture.apply(all()).unwrap();
    let ips = |fixture: &Fixture, name: &str| {
        fixture.object("services", name).unwrap()["spec"]["clusterIPs"].clone()
    };
    assert_eq!(ips(&fixture, "dual"), json!(["10.96.1.0", "fd00:10:96::100"]));
    assert_eq!(ips(&fixture, "plain"), json!(["10.96.1.1"]));
    assert_eq!(ips(&fixture, "asked"), json!(["10.96.9.9"]));
    assert_eq!(ips(&fixture, "headless"), json!(["None"]));
    assert_eq!(fixture.apply(all()).unwrap(), [Outcome::Unchanged; 4]);
    let changed = json!({"ports": [{"port": 81}], "ipFamilyPolicy": "PreferDualStack"});
    fixture.apply(vec![service("dual", changed)]).unwrap();
    assert_eq!(ips(&fixture, "dual"), json!(["10.96.1.0", "fd00:10:96::100"]));
    let error = fixture.apply(vec![service("other", asked)]).unwrap_err().to_string();
    assert!(error.contains("taken by another service"), "{error}");
    // What is deleted gives its addresses back.
    fixture.store.delete(&[reference("services", "dual")], false, LATER).unwrap();
    fixture.apply(vec![service("new", plain)]).unwrap();
    assert_eq!(ips(&fixture, "new"), json!(["10.96.1.0"]));
}

#[test]
fn deleting_names_what_goes_and_refuses_what_is_not_there() {
    let mut fixture = Fixture::new();
    fixture.apply(vec![config_map("a", "1"), config_map("b", "1")]).unwrap();
    let both = [reference("configmaps", "a"), reference("configmaps", "nothing")];
    let error = fixture.store.delete(&both, false, LATER).unwrap_err().to_string();
    assert_eq!(error, "ConfigMap default/nothing does not exist");
    assert!(fixture.object("configmaps", "a").is_some(), "nothing was deleted");
    let changes = fixture.store.would_delete(&both, true, LATER).unwrap();
    assert_eq!(changes.changes.len(), 1);
    assert!(fixture.object("configmaps", "a").is_some(), "a dry run");
    fixture.store.delete(&both, true, LATER).unwrap();
    assert!(fixture.object("configmaps", "a").is_none());
    // A namespace takes along what is in it, and nothing else.
    let space = |name: &str| ObjectRef::new(Kind::Namespace, None, name);
    let inside = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "other"}});
    let before = fixture.files().len();
    fixture.apply(vec![namespace("other"), inside]).unwrap();
    let changes = fixture.store.delete(&[space("other")], false, LATER).unwrap().changes;
    let gone: Vec<String> = changes.iter().map(|change| change.object.to_string()).collect();
    assert_eq!(gone, ["Namespace other", "ConfigMap other/c", "ServiceAccount other/default"]);
    assert_eq!(fixture.files().len(), before, "{:?}", fixture.files());
    for lasting in ["default", "kube-public", "kube-system"].map(space) {
        let refused = fixture.store.delete(&[lasting], true, LATER);
        assert!(matches!(refused, Err(ApplyError::LastingNamespace { .. })), "{refused:?}");
    }
    assert!(fixture.object("configmaps", "b").is_some(), "what is in it stays");
}

#[test]
fn a_restart_outlives_the_next_apply_of_the_same_manifest() {
    let mut fixture = Fixture::new();
    let deployment = || {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {
                "selector": {"matchLabels": {"app": "d"}},
                "template": {
                    "metadata": {"labels": {"app": "d"}},
                    "spec": {"containers": [{"name": "c", "image": "busybox"}]},
                },
            },
        })
    };
    fixture.apply(vec![deployment()]).unwrap();
    fixture.store.restart(&reference("deployments", "d"), LATER).unwrap();
    let template =
        |fixture: &Fixture| fixture.object("deployments", "d").unwrap()["spec"]["template"].clone();
    let restarted = template(&fixture);
    assert_eq!(
        restarted["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"],
        json!(LATER)
    );
    assert_eq!(fixture.apply(vec![deployment()]).unwrap(), [Outcome::Unchanged]);
    assert_eq!(template(&fixture), restarted);
    fixture.store.scale(&reference("deployments", "d"), 4, LATER).unwrap();
    assert_eq!(fixture.object("deployments", "d").unwrap()["spec"]["replicas"], 4);
}

/// An object with a template of pods.
fn workload(api_version: &str, kind: &str, spec: Value) -> Value {
    let mut value = json!({
        "apiVersion": api_version, "kind": kind, "metadata": {"name": "w"},
        "spec": {
            "selector": {"matchLabels": {"app": "w"}},
            "template": {
                "metadata": {"labels": {"app": "w"}},
                "spec": {"containers": [{"name": "c", "image": "busybox"}]},
            },
        },
    });
    for (field, said) in spec.as_object().unwrap() {
        value["spec"][field] = said.clone();
    }
    value
}

#[test]
fn what_makes_pods_is_completed_as_on_kubernetes() {
    let mut fixture = Fixture::new();
    let all = [("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("batch/v1", "Job")];
    for (api_version, kind) in all {
        let mut value = workload(api_version, kind, json!({}));
        value["status"] = json!({"replicas": 9});
        assert_eq!(fixture.apply(vec![value.clone()]).unwrap(), [Outcome::Created], "{kind}");
        assert_eq!(fixture.apply(vec![value]).unwrap(), [Outcome::Unchanged], "{kind}");
    }
    let spec = |plural: &str, pointer: &str| {
        fixture.object(plural, "w").unwrap().pointer(pointer).cloned().unwrap_or_default()
    };
    assert_eq!(spec("statefulsets", "/status"), Value::Null, "the status is the controllers'");
    assert_eq!(spec("statefulsets", "/spec/podManagementPolicy"), "OrderedReady");
    assert_eq!(spec("daemonsets", "/spec/updateStrategy/type"), "RollingUpdate");
    assert_eq!(spec("jobs", "/spec/completions"), 1);
    assert_eq!(spec("jobs", "/spec/backoffLimit"), 6);
    assert_eq!(spec("jobs", "/spec/template/spec/serviceAccountName"), "default");
}

#[test]
fn what_makes_pods_is_refused_with_a_reason() {
    let mut fixture = Fixture::new();
    let mut check = |value: Value, expected: &str| {
        let why = fixture.apply(vec![value]).unwrap_err().to_string();
        assert!(why.contains(expected), "{why}");
    };
    let set = |spec: Value| workload("apps/v1", "StatefulSet", spec);
    let block = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"}, "spec": {"volumeMode": "Block"},
    });
    check(block, "spec.volumeMode: a machine has no block devices; write Filesystem");
    check(set(json!({"selector": {"matchLabels": {"app": "x"}}})), "does not match");
    let mut long = set(json!({}));
    long["metadata"]["name"] = json!("w".repeat(53));
    check(long, "may have 52 characters");
}

#[test]
fn what_pods_depend_on_cannot_change() {
    let mut fixture = Fixture::new();
    let job = |image: &str| {
        let mut value = workload("batch/v1", "Job", json!({}));
        value["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        value
    };
    fixture.apply(vec![job("busybox"), workload("apps/v1", "StatefulSet", json!({}))]).unwrap();
    let why = fixture.apply(vec![job("curlimages/curl")]).unwrap_err().to_string();
    assert!(why.contains("spec.template cannot change"), "{why}");
    let parallel = workload("apps/v1", "StatefulSet", json!({"podManagementPolicy": "Parallel"}));
    let why = fixture.apply(vec![parallel]).unwrap_err().to_string();
    assert!(why.contains("spec.podManagementPolicy cannot change"), "{why}");
}

#[test]
fn only_what_has_replicas_is_scaled() {
    let mut fixture = Fixture::new();
    fixture
        .apply(vec![
            workload("apps/v1", "StatefulSet", json!({})),
            workload("apps/v1", "DaemonSet", json!({})),
            workload("batch/v1", "Job", json!({})),
        ])
        .unwrap();
    let store = &mut fixture.store;
    store.scale(&reference("statefulsets", "w"), 3, LATER).unwrap();
    let why = store.scale(&reference("daemonsets", "w"), 3, LATER).unwrap_err().to_string();
    assert!(why.contains("DaemonSet default/w has no replicas"), "{why}");
    store.restart(&reference("daemonsets", "w"), LATER).unwrap();
    let why = store.restart(&reference("jobs", "w"), LATER).unwrap_err().to_string();
    assert!(why.contains("Job default/w has no pods to restart"), "{why}");
}

/// An autoscaler of such an object.
fn autoscaler(kind: &str, most: u64) -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "w"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": "w"},
            "maxReplicas": most,
        },
    })
}

#[test]
fn what_an_autoscaler_has_set_outlives_the_next_apply() {
    let replicas_after = |autoscaled: Option<&str>, again: Value| {
        let mut fixture = Fixture::new();
        let workload = |spec| workload("apps/v1", "StatefulSet", spec);
        let mut objects = vec![workload(json!({}))];
        objects.extend(autoscaled.map(|kind| autoscaler(kind, 5)));
        fixture.apply(objects).unwrap();
        fixture.store.scale(&reference("statefulsets", "w"), 4, LATER).unwrap();
        fixture.apply(vec![workload(again)]).unwrap();
        fixture.object("statefulsets", "w").unwrap()["spec"]["replicas"].clone()
    };
    let other = json!({"revisionHistoryLimit": 3});
    assert_eq!(replicas_after(Some("StatefulSet"), other.clone()), 4);
    assert_eq!(replicas_after(Some("StatefulSet"), json!({"replicas": 2})), 2);
    assert_eq!(replicas_after(Some("Deployment"), other.clone()), 1);
    assert_eq!(replicas_after(None, other), 1);
}

#[test]
fn an_autoscaler_may_not_ask_for_more_pods_than_there_can_be() {
    let mut fixture = Fixture::new();
    let why = fixture.apply(vec![autoscaler("Deployment", 10_001)]).unwrap_err().to_string();
    let expected = "HorizontalPodAutoscaler default/w: spec.maxReplicas: one object has at most \
                    10000 pods at a time; write a lower number";
    assert_eq!(why, expected);
    fixture.apply(vec![autoscaler("Deployment", 10_000)]).unwrap();
    let spec = &fixture.object("horizontalpodautoscalers", "w").unwrap()["spec"];
    assert_eq!(spec["minReplicas"], 1);
}

#[test]
fn whose_the_fields_are_stays_until_it_is_said_anew() {
    let mut fixture = Fixture::new();
    let owned = |manager: &str| {
        let mut object = config_map("m", "1");
        object["metadata"]["managedFields"] = json!([{"manager": manager}]);
        object
    };
    let owners = |fixture: &Fixture| {
        let object = fixture.object("configmaps", "m").unwrap();
        object["metadata"]["managedFields"][0]["manager"].clone()
    };
    fixture.apply(vec![owned("helm")]).unwrap();
    assert_eq!(fixture.apply(vec![config_map("m", "1")]).unwrap(), [Outcome::Unchanged]);
    assert_eq!(fixture.apply(vec![config_map("m", "2")]).unwrap(), [Outcome::Configured]);
    assert_eq!(owners(&fixture), "helm");
    fixture.apply(vec![owned("other")]).unwrap();
    assert_eq!(owners(&fixture), "other");
}

#[test]
fn a_node_that_joined_can_be_deleted_with_its_pods() {
    let mut fixture = Fixture::new();
    let nodes = [1, 3].map(crate::addresses::NodeNetwork::new);
    let (own, value) = super::node_object(nodes[0], &NodeLabels::default());
    fixture.store.write(own.clone(), value, NOW).unwrap();
    let (joined, value) = super::joined_node_object(nodes[1]);
    fixture.store.write(joined.clone(), value, NOW).unwrap();
    for (name, node) in [("far", "node-3"), ("near", "node-1")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node}});
        fixture.store.write(reference("pods", name), pod, NOW).unwrap();
    }
    let refused = fixture.store.delete(&[joined.clone(), own.clone()], false, NOW);
    assert!(matches!(refused, Err(ApplyError::Node { .. })), "its own stay: {refused:?}");
    assert!(fixture.object("pods", "far").is_some(), "nothing was changed");
    let would = fixture.store.would_delete(std::slice::from_ref(&joined), false, NOW).unwrap();
    assert_eq!(would.changes.len(), 2);
    assert!(fixture.object("pods", "far").is_some(), "nothing was changed");
    let deleted = fixture.store.delete(std::slice::from_ref(&joined), false, NOW).unwrap();
    assert_eq!(deleted.changes, would.changes);
    assert!(fixture.store.object(&joined).is_none() && fixture.store.object(&own).is_some());
    assert!(fixture.object("pods", "far").is_none() && fixture.object("pods", "near").is_some());
}

#[test]
fn what_a_manifest_does_not_name_is_left_to_others() {
    let mut fixture = Fixture::new();
    let manifest = |spec: Value| {
        let mut manifest = workload("apps/v1", "Deployment", spec);
        manifest["metadata"]["labels"] = json!({"team": "shop"});
        manifest
    };
    let first = manifest(json!({"progressDeadlineSeconds": 5, "revisionHistoryLimit": 3}));
    let none: Vec<String> = Vec::new();
    assert_eq!(
        fixture.apply_manifests(vec![first.clone()]),
        (vec![Outcome::Created], none.clone())
    );
    assert_eq!(
        fixture.apply_manifests(vec![first.clone()]),
        (vec![Outcome::Unchanged], none.clone())
    );
    let web = reference("deployments", "w");
    fixture.store.scale(&web, 4, LATER).unwrap();
    fixture.store.restart(&web, LATER).unwrap();
    let mut labelled = fixture.object("deployments", "w").unwrap().clone();
    labelled["metadata"]["labels"]["tier"] = json!("one");
    fixture.apply(vec![labelled]).unwrap();
    assert_eq!(
        fixture.apply_manifests(vec![first]),
        (vec![Outcome::Unchanged], none.clone()),
        "it names nothing of what others have done"
    );
    let mut next = manifest(json!({"progressDeadlineSeconds": 6}));
    next["spec"]["template"]["spec"]["containers"] = json!([{"name": "d", "image": "busybox"}]);
    assert_eq!(fixture.apply_manifests(vec![next]), (vec![Outcome::Configured], none));
    let after = fixture.object("deployments", "w").unwrap();
    assert_eq!(after["metadata"]["labels"], json!({"team": "shop", "tier": "one"}));
    let spec = &after["spec"];
    assert_eq!((&spec["replicas"], &spec["progressDeadlineSeconds"]), (&json!(4), &json!(6)));
    assert!(spec.get("revisionHistoryLimit").is_none(), "it is named no more");
    let template = &spec["template"];
    let restarted = &template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"];
    assert_eq!(restarted, LATER);
    let containers = template["spec"]["containers"].as_array().unwrap();
    assert_eq!((containers.len(), &containers[0]["name"]), (1, &json!("d")));
}

#[test]
fn what_was_made_without_apply_keeps_its_fields_and_that_is_said_once() {
    let mut fixture = Fixture::new();
    fixture.apply(vec![config_map("a", "1"), config_map("b", "1")]).unwrap();
    let manifests = || {
        let mut manifests = vec![config_map("a", "2"), config_map("b", "2")];
        manifests[0]["data"] = json!({"other": "1"});
        manifests
    };
    let (_, warnings) = fixture.apply_manifests(manifests());
    let expected = "ConfigMap default/a and 1 more was not made by apply: fields that the manifest \
                    does not name stay; from now on, those that it names are known";
    assert_eq!(warnings, [expected]);
    let data = |fixture: &Fixture| fixture.object("configmaps", "a").unwrap()["data"].clone();
    assert_eq!(data(&fixture), json!({"k": "1", "other": "1"}));
    let (outcomes, warnings) = fixture.apply_manifests(manifests());
    assert_eq!((outcomes, warnings), (vec![Outcome::Unchanged; 2], Vec::new()));
    fixture.apply_manifests(vec![config_map("a", "3")]);
    assert_eq!(data(&fixture), json!({"k": "3"}));
    let (_, warnings) = fixture.apply_manifests(vec![namespace("default")]);
    assert!(warnings.is_empty(), "a namespace is made by a command as a rule: {warnings:?}");
}

#[test]
fn a_manifest_that_is_too_long_leaves_others_their_fields_and_is_taken_back() {
    let mut fixture = Fixture::new();
    let long = || {
        let mut map = config_map("a", &"x".repeat(256 << 10));
        map["data"]["more"] = json!("1");
        map
    };
    assert_eq!(fixture.apply_manifests(vec![long()]), (vec![Outcome::Created], Vec::new()));
    assert_eq!(fixture.apply_manifests(vec![long()]), (vec![Outcome::Unchanged], Vec::new()));
    let mut patched = fixture.object("configmaps", "a").unwrap().clone();
    patched["data"]["others"] = json!("1");
    patched["metadata"]["finalizers"] = json!(["example.org/a"]);
    fixture.apply(vec![patched]).unwrap();
    let short = fixture.apply_manifests(vec![config_map("a", "1")]);
    assert_eq!(short, (vec![Outcome::Configured], Vec::new()));
    let after = fixture.object("configmaps", "a").unwrap();
    assert_eq!(after["data"], json!({"k": "1", "others": "1"}));
    assert_eq!(after["metadata"]["finalizers"], json!(["example.org/a"]));
    let mut full = after.clone();
    full["metadata"]["annotations"]["others"] = json!("x".repeat((256 << 10) - 100));
    fixture.apply(vec![full]).unwrap();
    let why = fixture.refused(vec![config_map("a", "2")]);
    assert!(why.starts_with("ConfigMap default/a: metadata.annotations: "), "{why}");
}

/// A Deployment with a container of these fields.
fn with_container(fields: Value) -> Value {
    let mut manifest = workload("apps/v1", "Deployment", json!({}));
    let container = &mut manifest["spec"]["template"]["spec"]["containers"][0];
    for (name, value) in fields.as_object().unwrap() {
        container[name] = value.clone();
    }
    manifest
}

#[test]
fn what_a_manifest_and_others_make_together_is_judged() {
    let check = |theirs: Value, manifest: Value, expected: &str| {
        let mut fixture = Fixture::new();
        fixture.apply(vec![theirs]).unwrap();
        let before = fixture.files();
        let why = fixture.refused(vec![config_map("new", "1"), manifest, config_map("z", "1")]);
        assert!(why.starts_with(expected) && why.contains("what others have set"), "{why}");
        assert_eq!(fixture.files(), before, "all or nothing");
    };
    let env = |variable: Value| with_container(json!({"env": [variable]}));
    let of_pod = json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    let at = "Deployment default/w: spec.template.spec.containers[0].env[0]";
    check(env(json!({"name": "A", "value": "1"})), env(of_pod.clone()), at);
    let at = "Service default/web: spec.ports[1].name";
    let port = |port: u16| service("web", json!({"ports": [{"name": "http", "port": port}]}));
    check(port(80), port(8080), at);
    let probe = |handler: Value| with_container(json!({"livenessProbe": handler}));
    let (tcp, http) = (json!({"tcpSocket": {"port": 80}}), json!({"httpGet": {"port": 80}}));
    let at = "Deployment default/w: spec.template.spec.containers[0].livenessProbe";
    check(probe(http.clone()), probe(tcp.clone()), at);
    check(probe(tcp), probe(http), at);
}

#[test]
fn what_a_manifest_itself_changes_is_no_mixture() {
    let change = |from: Value, to: Value, pointer: &str, expected: Value| {
        let mut fixture = Fixture::new();
        let (plural, name) = match from["kind"] == "Service" {
            true => ("services", "web"),
            false => ("deployments", "w"),
        };
        fixture.apply_manifests(vec![from]);
        let (outcomes, warnings) = fixture.apply_manifests(vec![to]);
        assert_eq!((outcomes, warnings), (vec![Outcome::Configured], Vec::new()));
        assert_eq!(fixture.object(plural, name).unwrap().pointer(pointer), Some(&expected));
    };
    let container = "/spec/template/spec/containers/0";
    let of_pod = json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let plain = json!([{"name": "A", "value": "1"}]);
    let env = |list: &Value| with_container(json!({ "env": list }));
    change(env(&plain), env(&of_pod), &format!("{container}/env"), of_pod.clone());
    change(env(&of_pod), env(&plain), &format!("{container}/env"), plain.clone());
    let probe = |handler: &Value| with_container(json!({"livenessProbe": handler}));
    let (tcp, http) = (json!({"tcpSocket": {"port": 80}}), json!({"httpGet": {"port": 80}}));
    change(probe(&http), probe(&tcp), &format!("{container}/livenessProbe"), tcp.clone());
    let port = |port: u16| service("web", json!({"ports": [{"name": "http", "port": port}]}));
    let after = json!([{"name": "http", "port": 8080, "protocol": "TCP", "targetPort": 8080}]);
    change(port(80), port(8080), "/spec/ports", after);
}

#[test]
fn what_is_not_of_its_shape_is_refused_before_it_is_merged() {
    let mut fixture = Fixture::new();
    fixture.apply_manifests(vec![config_map("a", "1")]);
    for annotations in [json!("x"), json!([1]), json!({"a": 1})] {
        for name in ["a", "b"] {
            let mut wrong = config_map(name, "1");
            wrong["metadata"]["annotations"] = annotations.clone();
            let why = fixture.refused(vec![wrong]);
            assert!(why.contains("is not of the shape of its kind"), "{why}");
        }
    }
}

#[test]
fn what_a_manifest_leaves_out_is_not_named_by_its_default() {
    let mut fixture = Fixture::new();
    let policy = json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "p"}, "spec": {"rules": [{}]}});
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}}});
    let both = || vec![policy.clone(), scaler.clone()];
    fixture.apply_manifests(both());
    let mut patched = fixture.object("authorizationpolicies", "p").unwrap().clone();
    assert_eq!(patched["spec"]["action"], "ALLOW");
    patched["spec"]["action"] = json!("DENY");
    patched["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
    let mut scaled = fixture.object("horizontalpodautoscalers", "h").unwrap().clone();
    let percent = "/spec/metrics/0/resource/target/averageUtilization";
    assert_eq!(scaled.pointer(percent), Some(&json!(80)), "{scaled}");
    *scaled.pointer_mut(percent).unwrap() = json!(30);
    fixture.apply(vec![patched, scaled]).unwrap();
    assert_eq!(fixture.apply_manifests(both()).0, [Outcome::Unchanged; 2]);
    let mut next = policy;
    next["spec"]["rules"] = json!([]);
    next["spec"]["selector"] = Value::Null;
    assert_eq!(fixture.apply_manifests(vec![next, scaler]).0[0], Outcome::Configured);
    let policy = fixture.object("authorizationpolicies", "p").unwrap();
    assert_eq!(policy["spec"], json!({"action": "DENY", "rules": []}));
    let scaler = fixture.object("horizontalpodautoscalers", "h").unwrap();
    assert_eq!(scaler.pointer(percent), Some(&json!(30)));
}

#[test]
fn a_key_that_kubectl_has_applied_as_string_data_is_taken_back() {
    let mut fixture = Fixture::new();
    let secret = |fields: Value| {
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
        for (name, value) in fields.as_object().unwrap() {
            secret[name] = value.clone();
        }
        secret
    };
    let mut theirs = secret(json!({"data": {"a": "YQ==", "b": "Yg=="}}));
    let text = secret(json!({"stringData": {"a": "a", "b": "b"}})).to_string();
    theirs["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": text});
    fixture.apply(vec![theirs]).unwrap();
    fixture.apply_manifests(vec![secret(json!({"data": {"a": "YQ=="}}))]);
    assert_eq!(fixture.object("secrets", "s").unwrap()["data"], json!({"a": "YQ=="}));
}

#[test]
fn the_pods_of_a_cron_jobs_jobs_are_as_many_as_its_next_manifest_says() {
    let mut fixture = Fixture::new();
    let manifest = |spec: Value| {
        let mut job = workload("batch/v1", "Job", spec)["spec"].clone();
        job.as_object_mut().unwrap().remove("selector");
        job["template"]["spec"]["restartPolicy"] = json!("Never");
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job}}})
    };
    fixture.apply_manifests(vec![manifest(json!({}))]);
    assert_eq!(fixture.apply_manifests(vec![manifest(json!({}))]).0, [Outcome::Unchanged]);
    fixture.apply_manifests(vec![manifest(json!({"parallelism": 3}))]);
    let job = &fixture.object("cronjobs", "tick").unwrap()["spec"]["jobTemplate"]["spec"];
    assert_eq!((&job["parallelism"], job.get("completions")), (&json!(3), None));
    assert_eq!(job["template"]["spec"]["serviceAccountName"], "default");
}

#[test]
fn a_second_address_family_is_never_dropped_in_silence() {
    let mut fixture = Fixture::new();
    let with = |more: Value| {
        let mut spec = json!({"ports": [{"port": 80}]});
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        service("web", spec)
    };
    let both = json!(["IPv4", "IPv6"]);
    fixture.apply_manifests(vec![with(json!({}))]);
    let why = fixture.refused(vec![with(json!({"ipFamilies": both}))]);
    assert!(why.contains("spec.ipFamilies: ") && why.contains("PreferDualStack"), "{why}");
    let dual = json!({"ipFamilies": both, "ipFamilyPolicy": "PreferDualStack"});
    fixture.apply_manifests(vec![with(dual)]);
    let families = |fixture: &Fixture| {
        fixture.object("services", "web").unwrap()["spec"]["ipFamilies"].clone()
    };
    assert_eq!(families(&fixture), both);
    let single = json!({"ipFamilies": both, "ipFamilyPolicy": "SingleStack"});
    fixture.apply_manifests(vec![with(single)]);
    assert_eq!(families(&fixture), json!(["IPv4"]), "it wants one of those that it had");
    let mut made = service("new", json!({"ipFamilies": both, "ipFamilyPolicy": "SingleStack"}));
    made["spec"]["ports"] = json!([{"port": 80}]);
    assert!(fixture.refused(vec![made]).contains("spec.ipFamilies: "));
}

#[test]
fn a_service_gives_back_what_it_no_longer_wants() {
    let mut fixture = Fixture::new();
    let ports = json!([{"port": 80}]);
    let with = |spec: Value| {
        let mut service = service("web", spec);
        service["spec"]["ports"] = ports.clone();
        service
    };
    let dual = json!({"type": "NodePort", "ipFamilyPolicy": "PreferDualStack"});
    fixture.apply_manifests(vec![with(dual)]);
    let spec = |fixture: &Fixture| fixture.object("services", "web").unwrap()["spec"].clone();
    let before = spec(&fixture);
    assert!(before["ports"][0]["nodePort"].is_u64() && before["clusterIPs"][1].is_string());
    fixture.apply_manifests(vec![with(json!({"ipFamilyPolicy": "SingleStack"}))]);
    let after = spec(&fixture);
    assert_eq!(
        (&after["type"], &after["ports"][0]["nodePort"]),
        (&json!("ClusterIP"), &Value::Null)
    );
    assert_eq!(after["clusterIPs"], json!([before["clusterIP"]]));
}

#[test]
fn a_memory_that_cannot_be_read_names_its_object() {
    let mut fixture = Fixture::new();
    let mut map = config_map("a", "1");
    map["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": "{"});
    fixture.apply(vec![map]).unwrap();
    let text = fixture.refused(vec![config_map("a", "2")]);
    assert!(text.starts_with("ConfigMap default/a: the annotation kubectl."), "{text}");
}

#[test]
fn claims_go_with_their_pod() {
    let mut fixture = Fixture::new();
    let pod = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let store = &mut fixture.store;
    store.write(reference("pods", "waits"), pod("waits", json!({})), NOW).unwrap();
    let runs = pod("runs", json!({"nodeName": "node-1"}));
    store.write(reference("pods", "runs"), runs, NOW).unwrap();
    for (name, owner) in [("a", "waits"), ("b", "runs"), ("c", "")] {
        let owner = store.object(&reference("pods", owner)).map(|it| it["metadata"]["uid"].clone());
        let claim = json!({"metadata": {"name": name, "ownerReferences": [{"uid": owner}]}});
        store.write(reference("persistentvolumeclaims", name), claim, NOW).unwrap();
    }
    let claims = |store: &Store| -> Vec<String> {
        let all = store.of_plural("persistentvolumeclaims");
        all.map(|(claim, _)| claim.name.clone()).collect()
    };
    store.delete(&[reference("pods", "waits"), reference("pods", "runs")], false, LATER).unwrap();
    assert_eq!(claims(store), ["b", "c"], "one has to end first");
    store.remove_gone(&[reference("pods", "runs")]).unwrap();
    assert_eq!(claims(store), ["c"]);
}
