//! Objects that are written through the Kubernetes API of a machine, as kubectl and helm write.
//!
//! No kubectl is needed: the requests are those that kubectl sends.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kubectl::{Api, head};
use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

const JSON: &str = "application/json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/app/deployments";
const WRITTEN: &str = "/apis/apps/v1/namespaces/app/deployments/written";
const PODS: &str = "/api/v1/namespaces/app/pods";

#[test]
fn kubectl_writes_a_machine() {
    let machine = Machine::up("kubectl-writes", Mesh::Off, &["--kubernetes-api"]);
    let client = Writer::of(&machine);
    objects_are_created(&client);
    objects_are_patched(&machine, &client);
    objects_are_applied(&client);
    ambit_and_kubectl_take_turns(&machine, &client);
    replicas_are_scaled(&machine, &client);
    who_is_late_is_refused(&client);
    what_is_wrong_is_refused(&client);
    a_dry_run_changes_nothing(&client);
    what_the_machine_makes_is_its_own(&machine, &client);
    objects_are_deleted(&machine, &client);
    machine.down();
}

/// A client that has the token.
pub(crate) struct Writer {
    api: Api,
}

/// An answer: its status, its headers as a text, and its body.
pub(crate) struct Answer(pub(crate) u16, pub(crate) String, pub(crate) Value);

impl Writer {
    pub(crate) fn of(machine: &Machine) -> Self {
        Self { api: Api::of(machine) }
    }

    pub(crate) fn send(&self, method: &str, target: &str, media_type: &str, body: &str) -> Answer {
        let (bearer, length) = (self.api.bearer(), body.len().to_string());
        let headers = [
            ("host", self.api.address.as_str()),
            ("authorization", &bearer),
            ("content-type", media_type),
            ("content-length", &length),
        ];
        let request = head(method, target, &headers) + body;
        let answer = self.api.exchange(&request, |_| false);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        let body = serde_json::from_str(body).unwrap_or_else(|_| panic!("JSON, not {body}"));
        Answer(status, head.to_owned(), body)
    }

    fn post(&self, target: &str, body: &Value) -> Answer {
        self.send("POST", target, JSON, &body.to_string())
    }

    pub(crate) fn patch(&self, target: &str, media_type: &str, body: &Value) -> Answer {
        self.send("PATCH", target, media_type, &body.to_string())
    }

    /// A request that is refused so.
    pub(crate) fn refused(&self, answer: Answer, status: u16, part: &str) {
        let Answer(found, _, body) = answer;
        let message = body["message"].as_str().unwrap_or_default();
        assert!(found == status && message.contains(part), "not {status} {part:?}: {body}");
    }
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                    {"name": "main", "image": "ambit/sample:1",
                     "command": ["sleep", "infinity"]},
                ]},
            },
        },
    })
}

fn objects_are_created(client: &Writer) {
    let Answer(status, _, made) = client.post(DEPLOYMENTS, &deployment("written"));
    assert_eq!((status, &made["metadata"]["namespace"]), (201, &json!("app")), "{made}");
    assert!(made["metadata"]["uid"].is_string(), "{made}");
    client.refused(client.post(DEPLOYMENTS, &deployment("written")), 409, "already exists");
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n";
    let Answer(status, ..) =
        client.send("POST", "/api/v1/namespaces", "application/yaml", namespace);
    assert_eq!(status, 201, "YAML is read too");
    // As `kubectl create namespace typed` writes: an envelope with the kind, and the name in it.
    let typed =
        "k8s\0\u{a}\u{f}\u{a}\u{2}v1\u{12}\u{9}Namespace\u{12}\u{9}\u{a}\u{7}\u{a}\u{5}typed";
    let protobuf = "application/vnd.kubernetes.protobuf";
    let Answer(status, _, made) = client.send("POST", "/api/v1/namespaces", protobuf, typed);
    assert_eq!((status, &made["metadata"]["name"]), (201, &json!("typed")), "{made}");
    let generated = json!({"metadata": {"generateName": "made-"}, "data": {"a": "b"}});
    let Answer(status, _, made) = client.post("/api/v1/namespaces/other/configmaps", &generated);
    let name = made["metadata"]["name"].as_str().unwrap_or_default();
    assert!(status == 201 && name.starts_with("made-") && name.len() == 10, "{made}");
    // Charts name it without making it, as every cluster has it.
    let everywhere = json!({"metadata": {"name": "everywhere"}});
    let Answer(status, _, made) =
        client.post("/api/v1/namespaces/kube-system/configmaps", &everywhere);
    assert_eq!(status, 201, "{made}");
    let deleted = client.send("DELETE", "/api/v1/namespaces/kube-system", JSON, "");
    client.refused(deleted, 403, "may not be deleted");
}

fn objects_are_patched(machine: &Machine, client: &Writer) {
    // As `kubectl set env`, `kubectl label` and `kubectl annotate` write.
    let env = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "main"}],
        "containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}],
    }}}});
    let Answer(status, _, patched) = client.patch(WRITTEN, STRATEGIC, &env);
    let container = &patched["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((status, &container["image"]), (200, &json!("ambit/sample:1")), "{patched}");
    assert_eq!(container["env"][0]["value"], "b", "{patched}");
    let labels = json!({"metadata": {"labels": {"tier": "one"}, "annotations": {"why": "test"}}});
    let Answer(status, ..) = client.patch(WRITTEN, MERGE, &labels);
    assert_eq!(status, 200);
    let operations = json!([{"op": "remove", "path": "/metadata/annotations/why"}]);
    let Answer(_, _, patched) = client.patch(WRITTEN, OPERATIONS, &operations);
    assert_eq!(patched["metadata"]["labels"], json!({"tier": "one"}), "{patched}");
    let stored = machine.run(&["get", "deploy/written", "-n", "app", "-o", "json"]);
    assert!(stored.contains("\"tier\": \"one\"") && !stored.contains("\"why\""), "{stored}");
    client.refused(client.patch(WRITTEN, "text/plain", &labels), 415, "is no patch");
}

/// As `kubectl apply --server-side` and helm write.
fn objects_are_applied(client: &Writer) {
    let apply = |manager: &str, more: &str, data: &str| {
        let target = "/api/v1/namespaces/app/configmaps/applied";
        let target = format!("{target}?fieldManager={manager}{more}");
        let body = format!("apiVersion: v1\nkind: ConfigMap\ndata: {data}\n");
        client.send("PATCH", &target, "application/apply-patch+yaml", &body)
    };
    assert_eq!(apply("helm", "", "{a: '1', b: '1'}").0, 201);
    let Answer(status, _, both) = apply("other", "", "{c: '1'}");
    assert_eq!((status, &both["data"]), (200, &json!({"a": "1", "b": "1", "c": "1"})), "{both}");
    client.refused(apply("other", "", "{a: '2', c: '1'}"), 409, "conflict with \"helm\": .data.a");
    let Answer(_, _, left) = apply("helm", "", "{a: '3'}");
    assert_eq!(left["data"], json!({"a": "3", "c": "1"}), "what is wanted no more goes");
    let Answer(_, _, forced) = apply("other", "&force=true", "{a: '2', c: '1'}");
    assert_eq!(forced["data"], json!({"a": "2", "c": "1"}));
    client.refused(apply("", "", "{}"), 400, "fieldManager");
}

/// The manifest of a Deployment with these labels and environment variables, and one container.
fn turns(labels: &[&str], variables: &[&str]) -> String {
    let mut manifest = deployment("turns");
    manifest["metadata"]["namespace"] = json!("app");
    manifest["metadata"]["labels"] = labels.iter().map(|it| (*it, "1")).collect();
    let spec = manifest["spec"].as_object_mut().expect("a map");
    spec.remove("replicas");
    let variables = variables.iter().map(|it| json!({"name": it, "value": "1"}));
    spec["template"]["spec"]["containers"][0]["env"] = variables.collect();
    manifest.to_string()
}

/// What one of them has applied and wants no more, the other one takes back; what neither names
/// stays.
fn ambit_and_kubectl_take_turns(machine: &Machine, client: &Writer) {
    const TURNS: &str = "/apis/apps/v1/namespaces/app/deployments/turns";
    let state = || {
        let (_, it) = client.api.get(TURNS, JSON);
        let env = it["spec"]["template"]["spec"]["containers"][0]["env"].as_array().cloned();
        let env = env.unwrap_or_default();
        let env: Vec<String> =
            env.iter().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect();
        let labels = it["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        let labels: Vec<String> = labels.keys().cloned().collect();
        (labels, env, it["spec"]["replicas"].clone())
    };
    machine.apply(&turns(&["a", "b"], &["A", "B"]));
    machine.run(&["annotate", "-n", "app", "deployment/turns", "others=1"]);
    machine.run(&["scale", "-n", "app", "deployment/turns", "--replicas", "2"]);
    machine.run(&["label", "-n", "app", "deployment/turns", "others=1"]);
    let variable = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "main", "env": [{"name": "OTHERS", "value": "1"}]}]}}}});
    assert_eq!(client.patch(TURNS, STRATEGIC, &variable).0, 200);
    let next = turns(&["b"], &["B", "C"]);
    let said = machine.ambit_with(&["diff", "-"], &next);
    assert_eq!(said.status.code(), Some(1), "{}", said.err);
    let gone: Vec<&str> = said.out.lines().filter(|it| it.starts_with('-')).collect();
    let all = said.out.as_str();
    assert!(gone.iter().any(|it| it.contains("name: A")) && all.contains("name: C"), "{all}");
    assert!(!gone.iter().any(|it| it.contains("OTHERS") || it.contains("replicas")), "{all}");
    assert_eq!(machine.apply(&next).matches("warning").count(), 0);
    let words = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    let expected = (words(&["b", "others"]), words(&["OTHERS", "B", "C"]), json!(2));
    let sorted = |(labels, mut env, replicas): (Vec<String>, Vec<String>, Value)| {
        env.sort();
        (labels, env, replicas)
    };
    assert_eq!(sorted(state()), sorted(expected));
    pods_stay_and_mixtures_are_refused(machine, client, &next);
    // kubectl's turn: it reads the annotation, and finds that C is to go.
    let (_, live) = client.api.get(TURNS, JSON);
    let key = "kubectl.kubernetes.io/last-applied-configuration";
    let last = live["metadata"]["annotations"][key].as_str().expect("it is kept").to_owned();
    let last: Value = serde_json::from_str(&last).expect("JSON");
    let manifest: Value = serde_json::from_str(&next).expect("JSON");
    assert_eq!(last["spec"]["template"]["spec"], manifest["spec"]["template"]["spec"]);
    let without = turns(&["b"], &["B"]);
    let patch = json!({
        "metadata": {"annotations": {key: without}},
        "spec": {"template": {"spec": {
            "$setElementOrder/containers": [{"name": "main"}],
            "containers": [{"name": "main", "$setElementOrder/env": [{"name": "B"}],
                "env": [{"name": "C", "$patch": "delete"}]}],
        }}},
    });
    assert_eq!(client.patch(TURNS, STRATEGIC, &patch).0, 200);
    machine.apply(&turns(&["b"], &[]));
    let expected = (words(&["b", "others"]), words(&["OTHERS"]), json!(2));
    assert_eq!(sorted(state()), sorted(expected), "B was kubectl's, and is named no more");
    let (_, live) = client.api.get(TURNS, JSON);
    assert_eq!(live["metadata"]["annotations"]["others"], "1");
    // What was made otherwise keeps its fields, and that is said.
    let said = machine.apply(&deployment("written").to_string().replace(
        r#""metadata":{"name":"written"}"#,
        r#""metadata":{"name":"written","namespace":"app"}"#,
    ));
    assert!(said.contains("Deployment app/written was not made by apply"), "{said}");
    machine.run(&["delete", "-n", "app", "deployment/turns"]);
}

/// The same manifest once more replaces no pod. One that cannot be what kubectl has made of the
/// object is refused with all that is applied beside it, by `diff` and dry runs, too.
fn pods_stay_and_mixtures_are_refused(machine: &Machine, client: &Writer, manifest: &str) {
    const PODS: &str = "/api/v1/namespaces/app/pods?labelSelector=app%3Dturns";
    const TURNS: &str = "/apis/apps/v1/namespaces/app/deployments/turns";
    let uids = || {
        let (_, pods) = client.api.get(PODS, JSON);
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let of = |it: Value| it["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let going = |it: &Value| it["metadata"].get("deletionTimestamp").is_some();
        pods.into_iter().filter(|it| !going(it)).map(of).collect::<BTreeSet<String>>()
    };
    machine.run(&["rollout", "status", "-n", "app", "deployment/turns"]);
    machine.wait("the pods of the last template are gone", SETTLE_TIMEOUT, || uids().len() == 2);
    let before = uids();
    let said = machine.ambit_with(&["apply", "-"], manifest);
    assert!(said.out.contains("Deployment app/turns unchanged"), "{} {}", said.out, said.err);
    assert_eq!(uids(), before);
    // What the API fills in and a client sends back changes nothing either, as `kubectl replace`.
    let (_, mut read) = client.api.get(TURNS, JSON);
    assert_eq!(read["spec"]["template"]["spec"]["dnsPolicy"], "ClusterFirst", "{read}");
    read["metadata"]["resourceVersion"].take();
    let Answer(status, _, put) = client.send("PUT", TURNS, JSON, &read.to_string());
    assert_eq!((status, &put["metadata"]["generation"]), (200, &read["metadata"]["generation"]));
    let mut mixed: Value = serde_json::from_str(manifest).expect("JSON");
    let others =
        json!({"name": "OTHERS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    let env = &mut mixed["spec"]["template"]["spec"]["containers"][0]["env"];
    env.as_array_mut().expect("a list").push(others);
    let map = |name: &str| {
        let metadata = json!({"name": name, "namespace": "app"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    let list = json!({"apiVersion": "v1", "kind": "List",
        "items": [map("mixed-a"), mixed, map("mixed-b")]});
    let (_, live) = client.api.get(TURNS, JSON);
    for words in [&["apply", "-"][..], &["apply", "--dry-run", "-"], &["diff", "-"]] {
        let refused = machine.ambit_with(words, &list.to_string());
        let at = "Deployment app/turns: spec.template.spec.containers[0].env[";
        let is_named = refused.err.contains(at) && refused.err.contains("what others have set");
        assert!(!refused.status.success() && is_named, "{words:?}: {}", refused.err);
        let (_, after) = client.api.get(TURNS, JSON);
        assert_eq!(after["metadata"]["generation"], live["metadata"]["generation"]);
        assert_eq!(client.api.get("/api/v1/namespaces/app/configmaps/mixed-a", JSON).0, 404);
    }
    assert_eq!(uids(), before);
}

fn replicas_are_scaled(machine: &Machine, client: &Writer) {
    let scale = format!("{WRITTEN}/scale");
    let Answer(status, _, scaled) = client.patch(&scale, MERGE, &json!({"spec": {"replicas": 2}}));
    assert_eq!((status, &scaled["kind"]), (200, &json!("Scale")), "{scaled}");
    machine.wait("two pods run", SETTLE_TIMEOUT, || {
        let (_, found) = client.api.get(&scale, JSON);
        (&found["spec"]["replicas"], &found["status"]["replicas"]) == (&json!(2), &json!(2))
    });
}

fn who_is_late_is_refused(client: &Writer) {
    let (_, mut read) = client.api.get(WRITTEN, JSON);
    read["metadata"]["labels"]["tier"] = json!("two");
    let text = read.to_string();
    loop {
        // The status changes as pods start, and the version with it.
        let Answer(status, _, body) = client.send("PUT", WRITTEN, JSON, &text);
        if status == 200 {
            break;
        }
        assert_eq!((status, &body["reason"]), (409, &json!("Conflict")), "{body}");
        let (_, again) = client.api.get(WRITTEN, JSON);
        read["metadata"]["resourceVersion"] = again["metadata"]["resourceVersion"].clone();
        let Answer(status, ..) = client.send("PUT", WRITTEN, JSON, &read.to_string());
        if status == 200 {
            break;
        }
    }
    client.refused(client.send("PUT", WRITTEN, JSON, &text), 409, "has been modified");
}

fn what_is_wrong_is_refused(client: &Writer) {
    let mut misspelt = deployment("misspelt");
    misspelt["spec"]["replikas"] = json!(3);
    let strict = format!("{DEPLOYMENTS}?fieldValidation=Strict");
    let Answer(status, _, refusal) = client.post(&strict, &misspelt);
    assert_eq!((status, &refusal["reason"]), (422, &json!("Invalid")), "{refusal}");
    assert_eq!(refusal["details"]["causes"][0]["field"], "spec.replikas", "{refusal}");
    let Answer(status, head, _) = client.post(DEPLOYMENTS, &misspelt);
    assert!(status == 201 && head.contains("warning: 299 - \"spec.replikas"), "{status} {head}");
    let mut unknown = deployment("unknown");
    let container = &mut unknown["spec"]["template"]["spec"]["containers"][0];
    *container = json!({"name": "main", "image": "nosuch:1"});
    client.refused(client.post(DEPLOYMENTS, &unknown), 422, "means nothing on this machine");
    let nowhere = "/apis/apps/v1/namespaces/nowhere/deployments";
    client.refused(client.post(nowhere, &deployment("x")), 404, "namespaces \"nowhere\" not found");
    let selector = json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}});
    client.refused(client.patch(WRITTEN, MERGE, &selector), 422, "spec.selector");
    client.refused(client.send("POST", PODS, "application/cbor", "x"), 415, "application/json");
    let protobuf = "application/vnd.kubernetes.protobuf";
    client.refused(client.send("POST", PODS, protobuf, "k8s"), 400, "protobuf");
    let long = format!("{{\"data\": \"{}\"}}", "x".repeat(3 << 20));
    let config_maps = "/api/v1/namespaces/app/configmaps";
    client.refused(client.send("POST", config_maps, JSON, &long), 413, "at most 3145728 bytes");
    client.refused(client.send("POST", config_maps, JSON, "{"), 400, "the body");
    client.refused(client.send("POST", config_maps, JSON, ""), 400, "no body");
}

fn a_dry_run_changes_nothing(client: &Writer) {
    let dry = format!("{DEPLOYMENTS}?dryRun=All");
    let Answer(status, _, shown) = client.post(&dry, &deployment("dry"));
    assert_eq!((status, &shown["spec"]["strategy"]["type"]), (201, &json!("RollingUpdate")));
    assert_eq!(client.api.get(&format!("{DEPLOYMENTS}/dry"), JSON).0, 404);
    let labels = json!({"metadata": {"labels": {"tier": "dry"}}});
    let Answer(_, _, shown) = client.patch(&format!("{WRITTEN}?dryRun=All"), MERGE, &labels);
    assert_eq!(shown["metadata"]["labels"]["tier"], "dry", "{shown}");
    let Answer(status, ..) = client.send("DELETE", &format!("{WRITTEN}?dryRun=All"), JSON, "");
    let (_, still) = client.api.get(WRITTEN, JSON);
    assert_eq!((status, &still["metadata"]["labels"]["tier"]), (200, &json!("two")));
}

fn what_the_machine_makes_is_its_own(machine: &Machine, client: &Writer) {
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let nodes = "/api/v1/nodes";
    client.refused(client.send("DELETE", nodes, JSON, ""), 405, "ambit up --nodes");
    let slices = "/apis/discovery.k8s.io/v1/namespaces/app/endpointslices";
    let (_, list) = client.api.get(slices, JSON);
    let name = list["items"][0]["metadata"]["name"].as_str().expect("the machine makes one");
    let slice = format!("{slices}/{name}");
    client.refused(client.patch(&slice, MERGE, &labels), 405, "makes it of other objects");
    client.refused(client.send("DELETE", &slice, JSON, ""), 405, "makes it of other objects");
    let status = format!("{WRITTEN}/status");
    client.refused(client.patch(&status, MERGE, &labels), 405, "what the server reports");
    // A pod of a Deployment can go: there is another one then.
    let pods = format!("{PODS}?labelSelector=app%3Dwritten");
    let (_, list) = client.api.get(&pods, JSON);
    let name = list["items"][0]["metadata"]["name"].as_str().expect("it has pods").to_owned();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": "app"}});
    let Answer(status, _, body) = client.post(&format!("{PODS}/{name}/eviction"), &eviction);
    assert_eq!((status, &body["status"]), (201, &json!("Success")), "{body}");
    machine.wait("another pod is there", SETTLE_TIMEOUT, || {
        let (_, list) = client.api.get(&pods, JSON);
        let items = list["items"].as_array().expect("items");
        items.len() == 2 && items.iter().all(|it| it["metadata"]["name"] != name.as_str())
    });
}

fn objects_are_deleted(machine: &Machine, client: &Writer) {
    let options = |what: Value| json!({"kind": "DeleteOptions", "preconditions": what}).to_string();
    let other = options(json!({"uid": "another"}));
    client.refused(client.send("DELETE", WRITTEN, JSON, &other), 409, "another");
    let orphans = format!("{WRITTEN}?propagationPolicy=Orphan");
    client.refused(client.send("DELETE", &orphans, JSON, ""), 400, "use Background");
    let Answer(status, _, body) = client.send("DELETE", WRITTEN, JSON, "");
    assert_eq!((status, &body["status"]), (200, &json!("Success")), "{body}");
    client.refused(client.send("DELETE", WRITTEN, JSON, ""), 404, "\"written\" not found");
    machine.wait("its pods go with it", SETTLE_TIMEOUT, || {
        let (_, list) = client.api.get(&format!("{PODS}?labelSelector=app%3Dwritten"), JSON);
        list["items"] == json!([])
    });
    let some = format!("{DEPLOYMENTS}?labelSelector=app%3Dmisspelt");
    let both = [deployment("one"), deployment("two")];
    for mut object in both {
        object["metadata"]["labels"] = json!({"app": "misspelt"});
        assert_eq!(client.post(DEPLOYMENTS, &object).0, 201);
    }
    let Answer(status, ..) = client.send("DELETE", &some, JSON, "");
    let (_, left) = client.api.get(&some, JSON);
    assert_eq!((status, &left["items"]), (200, &json!([])));
    let (_, others) = client.api.get(DEPLOYMENTS, JSON);
    assert!(others["items"].as_array().is_some_and(|it| !it.is_empty()), "the others stay");
    let Answer(status, ..) = client.send("DELETE", "/api/v1/namespaces/other", JSON, "");
    assert_eq!(status, 200);
    machine.wait("the namespace is gone", SETTLE_TIMEOUT, || {
        client.api.get("/api/v1/namespaces/other", JSON).0 == 404
    });
}
