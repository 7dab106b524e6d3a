//! The objects of a machine as Kubernetes shows them.
//!
//! Most are as they are stored. A pod has in its status what its node reports; endpoints and events
//! are made from what the machine knows. What Kubernetes says by a word and the machine by a
//! sentence is said by both: the word in `reason`, the sentence in `message`.

use std::path::PathBuf;

use ambit_kubeapi::{Key, Log, Status};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{definitions, endpoints, refusals};
use crate::client::PodInfo;
use crate::layout::Layout;
use crate::objects::{Kind, ObjectRef};
use crate::pod_object::complete_pod;
use crate::registry::Phase;
use crate::state::{Machine, Objects};

/// What serves the API, as versions say it.
pub(super) const VERSION: &str = concat!("ambit-", env!("CARGO_PKG_VERSION"));

/// Lists of a pod's containers, each with the list of their states.
const CONTAINERS: [(&str, &str); 2] =
    [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")];

/// Why an object that is shown cannot be written.
pub(super) const MADE: &str =
    "the machine makes it of other objects; write those, or an object of another name";

/// All objects of a kind.
pub(super) fn objects(machine: &Machine, plural: &str) -> Vec<(Key, Value)> {
    let copied = copied(&machine.layout, &machine.objects(), plural);
    finished(plural, copied)
}

/// The objects of a kind, as long as nobody else changes them.
pub(super) fn copied(layout: &Layout, objects: &Objects, plural: &str) -> Vec<Value> {
    match plural {
        "pods" => pods(layout, objects),
        "endpoints" => endpoints::endpoints(objects),
        "events" => objects.events.to_json(),
        definitions::PLURAL => definitions::definitions(),
        _ => {
            let stored = objects.store.of_plural(plural).map(|(_, value)| value.clone());
            let made = match plural {
                "endpointslices" => endpoints::slices(objects),
                _ => Vec::new(),
            };
            stored.chain(made).collect()
        }
    }
}

/// Copied objects with what else Kubernetes shows.
pub(super) fn finished(plural: &str, copied: Vec<Value>) -> Vec<(Key, Value)> {
    copied.into_iter().map(|it| keyed(shown(plural, it))).collect()
}

fn keyed(object: Value) -> (Key, Value) {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    (Key { namespace: namespace.to_owned(), name: name.to_owned() }, object)
}

/// A stored object with what Kubernetes adds to those of its kind.
pub(super) fn shown(plural: &str, mut object: Value) -> Value {
    match plural {
        "nodes" => describe_node(&mut object),
        "deployments" => judge_deployment(&mut object),
        "secrets" => encode_texts(&mut object),
        _ => {}
    }
    object
}

/// Each pod with what its node reports.
fn pods(layout: &Layout, objects: &Objects) -> Vec<Value> {
    let pod = |info: PodInfo| {
        let named = ObjectRef::new(Kind::Pod, Some(&info.namespace), &info.name);
        let mut object = objects.store.object(&named)?.clone();
        complete_pod(&mut object, &info);
        let status = objects.reported.status(&info.namespace, &info.name, &info.uid);
        let started = status.and_then(|it| it.started_at.as_deref());
        complete_words(&mut object, started);
        let node = ObjectRef::new(Kind::Node, None, &info.node);
        if let Some(node) = objects.store.object(&node) {
            complete_host(&mut object, node);
        }
        Some(object)
    };
    objects.pods(layout).into_iter().filter_map(pod).collect()
}

/// Says which addresses the node of a pod has.
fn complete_host(pod: &mut Value, node: &Value) {
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let own = addresses.filter(|it| it["type"] == "InternalIP").map(|it| &it["address"]);
    let own: Vec<&Value> = own.collect();
    let Some(first) = own.first() else { return };
    pod["status"]["hostIP"] = json!(first);
    pod["status"]["hostIPs"] = own.iter().map(|ip| json!({ "ip": ip })).collect();
}

/// Puts Kubernetes' words where it has words, and the times that are known.
fn complete_words(object: &mut Value, started: Option<&str>) {
    let status = &mut object["status"];
    if let Some(started) = started {
        status["startTime"] = json!(started);
    }
    for (_, list) in CONTAINERS {
        let statuses = status.get_mut(list).and_then(Value::as_array_mut);
        for one in statuses.into_iter().flatten() {
            let restarts = one["restartCount"].as_u64().unwrap_or_default();
            for state in ["state", "lastState"] {
                let started = started.filter(|_| restarts == 0);
                if let Some(state) = one.get_mut(state) {
                    complete_state(state, started);
                }
            }
        }
    }
}

fn complete_state(state: &mut Value, started: Option<&str>) {
    if let Some(waiting) = state.get_mut("waiting") {
        let reason = waiting["reason"].as_str().unwrap_or_default().to_owned();
        if reason != "CrashLoopBackOff" {
            *waiting = json!({"reason": "ContainerCreating", "message": reason});
        }
    }
    if let (Some(running), Some(started)) = (state.get_mut("running"), started) {
        running["startedAt"] = json!(started);
    }
}

/// What runs a node, for `kubectl get nodes -o wide` and `describe`.
fn describe_node(node: &mut Value) {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let total = read("/proc/meminfo");
    let total = total.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.map(|it| it.replace("kB", "Ki").replace(' ', ""));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Every node has all of the machine.
    let room =
        json!({"cpu": processors.to_string(), "memory": total.unwrap_or_else(|| "0".to_owned())});
    node["status"]["capacity"] = room.clone();
    node["status"]["allocatable"] = room;
    node["status"]["nodeInfo"] = json!({
        "kubeletVersion": VERSION,
        "containerRuntimeVersion": format!("ambit://{}", env!("CARGO_PKG_VERSION")),
        "kernelVersion": kernel.trim(),
        "operatingSystem": std::env::consts::OS,
        "architecture": ambit_words::host_architecture(),
    });
}

/// The conditions that `kubectl wait` and `kubectl rollout status` ask for.
fn judge_deployment(deployment: &mut Value) {
    let number =
        |pointer: &str| deployment.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let wanted = number("/spec/replicas");
    let (available, updated) =
        (number("/status/availableReplicas"), number("/status/updatedReplicas"));
    let is_available = available >= wanted;
    let is_done = is_available && updated >= wanted && number("/status/replicas") == updated;
    let condition = |kind: &str, is_so: bool, [yes, no]: [&str; 2]| {
        let (status, reason) = if is_so { ("True", yes) } else { ("False", no) };
        json!({"type": kind, "status": status, "reason": reason})
    };
    let reasons = ["MinimumReplicasAvailable", "MinimumReplicasUnavailable"];
    let reason = if is_done { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" };
    deployment["status"]["unavailableReplicas"] = json!(wanted.saturating_sub(available));
    deployment["status"]["conditions"] = json!([
        condition("Available", is_available, reasons),
        condition("Progressing", true, [reason; 2]),
    ]);
}

/// `stringData` is for writing alone: what it says is in `data`.
fn encode_texts(secret: &mut Value) {
    let Some(texts) = secret.as_object_mut().and_then(|it| it.remove("stringData")) else {
        return;
    };
    if !secret["data"].is_object() {
        secret["data"] = Value::Object(Map::new());
    }
    for (key, text) in texts.as_object().into_iter().flatten() {
        secret["data"][key] = json!(STANDARD.encode(text.as_str().unwrap_or_default()));
    }
}

/// A pod as it is stored.
pub(super) fn stored_pod(machine: &Machine, namespace: &str, name: &str) -> Result<Value, Status> {
    let object = ObjectRef::new(Kind::Pod, Some(namespace), name);
    let found = machine.objects().store.object(&object).cloned();
    found.ok_or_else(|| Status::not_found(&refusals::resource(Kind::Pod), name))
}

/// Where the log is that is asked for.
pub(super) fn log_of(machine: &Machine, log: &Log) -> Result<PathBuf, Status> {
    let pod = stored_pod(machine, &log.namespace, &log.pod)?;
    let container = container(&pod, &log.pod, log.container.as_deref())?;
    let path = machine.layout.pod_log(&log.namespace, &log.pod, &container);
    if path.exists() {
        return Ok(path);
    }
    let message = format!(
        "container {container:?} in pod {:?} is waiting to start: ContainerCreating",
        log.pod
    );
    Err(Status::bad_request(message))
}

/// The container that is meant: names of others never become paths.
pub(super) fn container(pod: &Value, name: &str, asked: Option<&str>) -> Result<String, Status> {
    let named = |list: &str| -> Vec<String> {
        let all = pod["spec"][list].as_array().into_iter().flatten();
        all.filter_map(|it| it["name"].as_str()).map(str::to_owned).collect()
    };
    let [init, main] = CONTAINERS.map(|(list, _)| named(list));
    match (asked, &main[..]) {
        (Some(asked), _) if init.iter().chain(&main).any(|it| it == asked) => Ok(asked.to_owned()),
        (Some(asked), _) => {
            let message = format!("container {asked} is not valid for pod {name}");
            Err(Status::bad_request(message))
        }
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            [init, main].concat().join(" ")
        ))),
    }
}

/// Whether a pod may still write to its log.
pub(super) fn goes_on(machine: &Machine, log: &Log) -> bool {
    let objects = machine.objects();
    let object = ObjectRef::new(Kind::Pod, Some(&log.namespace), &log.pod);
    let Some(pod) = objects.store.object(&object) else { return false };
    let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let status = objects.reported.status(&log.namespace, &log.pod, uid);
    status.is_none_or(|it| !matches!(it.phase, Phase::Succeeded | Phase::Failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_words_and_times() {
        let mut pod = json!({"status": {
            "initContainerStatuses": [
                {"restartCount": 0,
                    "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            ],
            "containerStatuses": [
                {"restartCount": 0, "state": {"running": {}}},
                {"restartCount": 1, "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}}},
                {"restartCount": 0, "state": {"waiting": {"reason": "its image is unpacked"}}},
                {"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff",
                    "message": "exited with 3"}}},
            ],
        }});
        complete_words(&mut pod, Some("2026-01-31T12:00:00Z"));
        let expected = json!({
            "startTime": "2026-01-31T12:00:00Z",
            "initContainerStatuses": [
                {"restartCount": 0,
                    "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            ],
            "containerStatuses": [
                {"restartCount": 0, "state": {"running": {"startedAt": "2026-01-31T12:00:00Z"}}},
                {"restartCount": 1, "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}}},
                {"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating",
                    "message": "its image is unpacked"}}},
                {"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff",
                    "message": "exited with 3"}}},
            ],
        });
        assert_eq!(pod["status"], expected);
    }

    #[test]
    fn a_pod_has_the_addresses_of_its_node() {
        let addresses = json!([
            {"type": "InternalIP", "address": "10.1.0.1"},
            {"type": "InternalIP", "address": "fd00::1"},
            {"type": "Hostname", "address": "node-1"},
        ]);
        let mut pod = json!({});
        complete_host(&mut pod, &json!({"status": {"addresses": addresses}}));
        let expected =
            json!({"hostIP": "10.1.0.1", "hostIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}]});
        assert_eq!(pod["status"], expected);
        let mut other = json!({});
        complete_host(&mut other, &json!({}));
        assert_eq!(other, json!({}), "a node without addresses");
    }

    #[test]
    fn a_deployment_says_whether_it_is_there() {
        let check = |status: Value, expected: [&str; 2]| {
            let mut deployment = json!({"spec": {"replicas": 2}, "status": status});
            judge_deployment(&mut deployment);
            let conditions = &deployment["status"]["conditions"];
            let found = [&conditions[0]["status"], &conditions[1]["reason"]];
            assert_eq!(found, [&json!(expected[0]), &json!(expected[1])]);
        };
        let counts = |replicas: u64, updated: u64, available: u64| {
            json!({
                "replicas": replicas,
                "updatedReplicas": updated,
                "availableReplicas": available,
            })
        };
        check(counts(2, 2, 2), ["True", "NewReplicaSetAvailable"]);
        check(counts(3, 2, 2), ["True", "ReplicaSetUpdated"]);
        check(counts(2, 2, 1), ["False", "ReplicaSetUpdated"]);
        check(json!({}), ["False", "ReplicaSetUpdated"]);
    }

    #[test]
    fn a_secret_has_its_texts_in_data() {
        let secret = json!({"data": {"a": "YQ=="}, "stringData": {"b": "b"}});
        assert_eq!(shown("secrets", secret), json!({"data": {"a": "YQ==", "b": "Yg=="}}));
        let secret = json!({"stringData": {"b": "b"}});
        assert_eq!(shown("secrets", secret), json!({"data": {"b": "Yg=="}}));
    }

    #[test]
    fn a_container_is_one_of_the_pod() {
        let check = |pod: &Value, asked: Option<&str>, expected: Result<&str, &str>| {
            let found = container(pod, "web", asked);
            let found = found.map_err(|it| it.to_json()["message"].to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
                (found, _) => panic!("{asked:?}: {found:?}"),
            }
        };
        let one =
            json!({"spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "i"}]}});
        check(&one, None, Ok("main"));
        check(&one, Some("i"), Ok("i"));
        check(&one, Some("../x"), Err("container ../x is not valid for pod web"));
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        check(&two, None, Err("choose one of: [a b]"));
        check(&two, Some("b"), Ok("b"));
    }
}
