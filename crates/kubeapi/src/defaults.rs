//! The fields that Kubernetes fills in, where an object leaves them out.
//!
//! Clients rely on them: kubectl reads some without looking whether they are there. They are in
//! answers alone. What is kept stays as it was written, so that pods are not replaced because a
//! server knows more defaults than before it, and what a client sends back is kept without them.

use ambit_words::labels::JOB_CONTROLLER_UID;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// The lists of a pod's containers.
const CONTAINERS: [&str; 2] = ["initContainers", "containers"];
const PROBES: [&str; 3] = ["startupProbe", "livenessProbe", "readinessProbe"];
/// The template of pods, from an object with one.
const TEMPLATE: &str = "/spec/template/spec";

/// Takes out of an object of a kind what it has only because its defaults have been shown to the
/// client that writes it.
pub fn forget_defaults(api_version: &str, plural: &str, object: &mut Value, stored: &Value) {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    forget_of(group, plural, object, stored);
}

/// Fills in what an object leaves out.
pub(crate) fn fill(resource: &Resource, object: &mut Value) {
    fill_of(resource.group(), resource.plural, object);
}

fn fill_of(group: &str, plural: &str, object: &mut Value) {
    match (group, plural) {
        ("", "pods") => fill_pod_at("/spec", object),
        ("apps", kind @ ("deployments" | "statefulsets" | "daemonsets")) => {
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                fill_workload(kind, spec);
            }
            fill_pod_at(TEMPLATE, object);
        }
        ("batch", "jobs") => {
            // Without one a client that looks for a Job's pods takes all that there are.
            let own = json!({"matchLabels": {JOB_CONTROLLER_UID: object["metadata"]["uid"]}});
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                set(spec, "selector", own);
            }
            fill_pod_at(TEMPLATE, object);
        }
        ("batch", "cronjobs") => fill_pod_at("/spec/jobTemplate/spec/template/spec", object),
        _ => {}
    }
}

/// Takes out of an object what it has only because [`fill`] has shown it to the client: fields that
/// the stored object leaves out, with the value that was shown.
pub(crate) fn forget(resource: &Resource, object: &mut Value, stored: &Value) {
    forget_of(resource.group(), resource.plural, object, stored);
}

fn forget_of(group: &str, plural: &str, object: &mut Value, stored: &Value) {
    let mut shown = stored.clone();
    fill_of(group, plural, &mut shown);
    forget_shown(object, stored, &shown);
}

fn forget_shown(object: &mut Value, stored: &Value, shown: &Value) {
    match (object, shown) {
        (Value::Object(object), Value::Object(shown)) => {
            for (field, shown) in shown {
                let Some(value) = object.get_mut(field) else { continue };
                match stored.get(field) {
                    None if value == shown => drop(object.remove(field)),
                    Some(Value::Null) if value == shown => *value = Value::Null,
                    None | Some(Value::Null) => {}
                    Some(stored) => forget_shown(value, stored, shown),
                }
            }
        }
        (Value::Array(object), Value::Array(shown)) => {
            for (index, element) in object.iter_mut().enumerate() {
                let is_meant = |it: &Value| it["name"] == element["name"];
                let at = match element.get("name") {
                    Some(_) => shown.iter().position(is_meant),
                    None => Some(index),
                };
                let pair = at.and_then(|at| Some((stored.get(at)?, shown.get(at)?)));
                if let Some((stored, shown)) = pair {
                    forget_shown(element, stored, shown);
                }
            }
        }
        _ => {}
    }
}

fn fill_workload(kind: &str, spec: &mut Map<String, Value>) {
    set(spec, "revisionHistoryLimit", json!(10));
    let strategy = match kind {
        "deployments" => {
            set(spec, "replicas", json!(1));
            set(spec, "progressDeadlineSeconds", json!(600));
            ("strategy", json!({"maxSurge": "25%", "maxUnavailable": "25%"}))
        }
        "statefulsets" => {
            set(spec, "replicas", json!(1));
            set(spec, "podManagementPolicy", json!("OrderedReady"));
            ("updateStrategy", json!({"partition": 0}))
        }
        _ => ("updateStrategy", json!({"maxSurge": 0, "maxUnavailable": 1})),
    };
    let (field, rolling) = strategy;
    set(spec, field, json!({}));
    let Some(strategy) = spec.get_mut(field).and_then(Value::as_object_mut) else { return };
    set(strategy, "type", json!("RollingUpdate"));
    if strategy["type"] != "RollingUpdate" {
        return;
    }
    set(strategy, "rollingUpdate", json!({}));
    let own = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut);
    if let (Some(own), Value::Object(rolling)) = (own, rolling) {
        rolling.into_iter().for_each(|(field, value)| set(own, &field, value));
    }
}

/// Fills in what the spec of a pod leaves out.
fn fill_pod_at(pointer: &str, object: &mut Value) {
    let Some(spec) = object.pointer_mut(pointer).and_then(Value::as_object_mut) else { return };
    set(spec, "dnsPolicy", json!("ClusterFirst"));
    set(spec, "enableServiceLinks", json!(true));
    set(spec, "restartPolicy", json!("Always"));
    set(spec, "schedulerName", json!("default-scheduler"));
    set(spec, "securityContext", json!({}));
    set(spec, "terminationGracePeriodSeconds", json!(30));
    for list in CONTAINERS {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        let containers = containers.into_iter().flatten().filter_map(Value::as_object_mut);
        containers.for_each(fill_container);
    }
}

fn fill_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    set(container, "imagePullPolicy", json!(policy));
    set(container, "resources", json!({}));
    set(container, "terminationMessagePath", json!("/dev/termination-log"));
    set(container, "terminationMessagePolicy", json!("File"));
    for probe in PROBES {
        let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) else { continue };
        set(probe, "failureThreshold", json!(3));
        set(probe, "periodSeconds", json!(10));
        set(probe, "successThreshold", json!(1));
        set(probe, "timeoutSeconds", json!(1));
        if let Some(request) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
            set(request, "path", json!("/"));
            set(request, "scheme", json!("HTTP"));
        }
    }
}

/// Whether an image is the latest of its name: by its tag, or by having neither tag nor digest.
fn is_latest(image: &str) -> bool {
    let (_, name) = image.rsplit_once('/').unwrap_or(("", image));
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Sets a field that is not there.
fn set(fields: &mut Map<String, Value>, field: &str, value: Value) {
    let there = fields.entry(field).or_insert(Value::Null);
    if there.is_null() {
        *there = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group_version: &'static [&'static str], plural: &'static str) -> Resource {
        Resource {
            kind: "X",
            plural,
            namespaced: true,
            api_versions: group_version,
            only_read: None,
        }
    }

    fn deployment() -> Value {
        json!({"spec": {"replicas": 2, "template": {"spec": {
            "restartPolicy": "Always",
            "containers": [{"name": "a", "image": "a:1", "resources": null,
                "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 5}}],
        }}}})
    }

    const DEPLOYMENTS: (&[&str], &str) = (&["apps/v1"], "deployments");

    #[test]
    fn what_is_left_out_is_filled_in() {
        let mut object = deployment();
        fill(&resource(DEPLOYMENTS.0, DEPLOYMENTS.1), &mut object);
        let rolling = json!({"maxSurge": "25%", "maxUnavailable": "25%"});
        let probe = json!({
            "failureThreshold": 3, "periodSeconds": 5, "successThreshold": 1, "timeoutSeconds": 1,
            "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        });
        let container = json!({
            "name": "a", "image": "a:1", "imagePullPolicy": "IfNotPresent", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "livenessProbe": probe,
        });
        let expected = json!({"spec": {
            "replicas": 2, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": {"spec": {
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true,
                "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "securityContext": {}, "terminationGracePeriodSeconds": 30,
                "containers": [container],
            }},
        }});
        assert_eq!(object, expected);
        let mut pod = json!({"spec": {"containers": [{"image": "a"}]}});
        fill(&resource(&["v1"], "pods"), &mut pod);
        assert_eq!(pod["spec"]["securityContext"], json!({}));
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "Always");
        let mut other = json!({"spec": {"containers": []}});
        fill(&resource(&["example.org/v1"], "pods"), &mut other);
        assert_eq!(other, json!({"spec": {"containers": []}}), "a kind of another group");
    }

    #[test]
    fn a_strategy_is_filled_in_by_its_type() {
        let check = |(versions, plural), field: &str, written: Value, expected: Value| {
            let mut object = json!({"spec": {field: written}});
            fill(&resource(versions, plural), &mut object);
            assert_eq!(object["spec"][field], expected);
        };
        let recreate = json!({"type": "Recreate"});
        check(DEPLOYMENTS, "strategy", recreate.clone(), recreate);
        let rolling = |surge: Value| json!({"maxSurge": surge, "maxUnavailable": "25%"});
        let written = json!({"rollingUpdate": {"maxSurge": 1}});
        let expected = json!({"type": "RollingUpdate", "rollingUpdate": rolling(json!(1))});
        check(DEPLOYMENTS, "strategy", written, expected);
        let sets = (DEPLOYMENTS.0, "statefulsets");
        let expected = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
        check(sets, "updateStrategy", json!({}), expected);
        let delete = json!({"type": "OnDelete"});
        check((DEPLOYMENTS.0, "daemonsets"), "updateStrategy", delete.clone(), delete);
    }

    #[test]
    fn what_was_shown_is_not_kept() {
        let resource = resource(DEPLOYMENTS.0, DEPLOYMENTS.1);
        let check = |change: &dyn Fn(&mut Value), expected: &dyn Fn(&mut Value)| {
            let (mut sent, mut kept) = (deployment(), deployment());
            fill(&resource, &mut sent);
            change(&mut sent);
            forget(&resource, &mut sent, &deployment());
            expected(&mut kept);
            assert_eq!(sent, kept);
        };
        check(&|_| {}, &|_| {});
        let scaled = |it: &mut Value| it["spec"]["replicas"] = json!(3);
        check(&scaled, &scaled);
        let pod = |it: &mut Value| it["spec"]["template"]["spec"]["dnsPolicy"] = json!("None");
        check(&pod, &pod);
        let path = "/spec/template/spec/containers";
        let add = |it: &mut Value| {
            let all = it.pointer_mut(path).and_then(Value::as_array_mut).expect("containers");
            all.insert(0, json!({"name": "b", "image": "b", "imagePullPolicy": "Always"}));
        };
        check(&add, &add);
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3}});
        let strategy = |it: &mut Value| it["spec"]["strategy"] = strategy.clone();
        check(&strategy, &strategy);
    }

    #[test]
    fn a_job_is_written_back_without_the_selector_that_it_was_shown_with() {
        let stored = json!({"metadata": {"uid": "u"}, "spec": {"parallelism": 1}});
        let mut sent = stored.clone();
        fill_of("batch", "jobs", &mut sent);
        assert_eq!(sent["spec"]["selector"], json!({"matchLabels": {JOB_CONTROLLER_UID: "u"}}));
        forget_defaults("batch/v1", "jobs", &mut sent, &stored);
        assert_eq!(sent, stored);
        let other = json!({"spec": {"selector": {"matchLabels": {JOB_CONTROLLER_UID: "v"}}}});
        let mut sent = other.clone();
        forget_defaults("batch/v1", "jobs", &mut sent, &stored);
        assert_eq!(sent, other);
    }

    #[test]
    fn the_latest_image_is_asked_for_again() {
        for (image, expected) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1", false),
            ("host:5000/nginx", true),
            ("host:5000/nginx:1", false),
            ("nginx@sha256:00", false),
        ] {
            assert_eq!(is_latest(image), expected, "{image}");
        }
    }
}
