//! `ambit describe`: everything about an object of a machine, as kubectl lays it out, with what
//! happened to it.

mod outline;

use std::process::ExitCode;

use ambit_machine::objects::ObjectRef;
use ambit_machine::{Client, ServiceView, read_services};
use ambit_manifest::Kind;
use ambit_words::annotations::LAST_APPLIED;
use ambit_words::names::NOTHING;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use self::outline::{Outline, label, one_line};
use super::stored;
use crate::args::{DescribeArgs, Target, kind_of};
use crate::table;

/// Fields of metadata that have lines of their own, or mean nothing to a person.
const METADATA_SHOWN: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// Prints objects in full.
pub(super) async fn describe(args: DescribeArgs) -> Result<ExitCode> {
    let client = Client::new(super::layout(&args.state));
    let found = find(&client, &args).await?;
    let events = client.events().await?;
    let mut texts = Vec::new();
    for (kind, value) in found {
        let mut text = match kind {
            Kind::Pod => pod(&value, is_captured(&client, &value).await?),
            Kind::Service => {
                let services = read_services(client.layout()).await?;
                service(&value, &services)
            }
            Kind::Secret => secret(&value),
            Kind::Node => node(&value),
            _ => any(&value),
        };
        text += &of_events(&value, &events);
        texts.push(text);
    }
    super::print_text(&texts.join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The objects that are named, or all of a kind.
async fn find(client: &Client, args: &DescribeArgs) -> Result<Vec<(Kind, Value)>> {
    let wrong = |error: String| anyhow!(error);
    let is_here = |kind: Kind, value: &Value| {
        !kind.is_namespaced() || value["metadata"]["namespace"] == args.namespace.as_str()
    };
    if let [word] = args.words.as_slice()
        && !word.contains('/')
    {
        let kind = kind_of(word).map_err(wrong)?;
        let mut objects = stored::objects(client, kind).await?;
        objects.retain(|value| is_here(kind, value));
        if objects.is_empty() {
            bail!("there are no {} in namespace {}", kind.plural(), args.namespace);
        }
        return Ok(objects.into_iter().map(|value| (kind, value)).collect());
    }
    let targets = Target::all(&args.words).with_context(|| {
        format!("{}: name objects as KIND/NAME, or KIND NAME", args.words.join(" "))
    })?;
    let mut found = Vec::new();
    for Target { kind, name } in targets.map_err(wrong)? {
        let objects = stored::objects(client, kind).await?;
        let is_it =
            |value: &Value| is_here(kind, value) && value["metadata"]["name"] == name.as_str();
        let object = ObjectRef::new(kind, Some(&args.namespace), &name);
        let value = objects.into_iter().find(is_it).with_context(|| {
            format!("{object} does not exist; see `ambit get {} -A`", kind.plural())
        })?;
        found.push((kind, value));
    }
    Ok(found)
}

async fn is_captured(client: &Client, pod: &Value) -> Result<bool> {
    let pods = client.pods().await?;
    Ok(pods.iter().any(|it| pod["metadata"]["uid"] == it.uid.as_str() && it.captured))
}

/// Name, namespace, labels and annotations, which every object has.
fn head(value: &Value) -> Outline {
    let metadata = &value["metadata"];
    let mut outline = Outline::default();
    outline.field("Name", &metadata["name"]);
    if metadata["namespace"].is_string() {
        outline.field("Namespace", &metadata["namespace"]);
    }
    outline.pairs("Labels", &metadata["labels"], "=");
    let mut annotations = metadata["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        // The object once more, with all values of a Secret.
        annotations.remove(LAST_APPLIED);
    }
    outline.pairs("Annotations", &annotations, ": ");
    outline
}

fn pod(value: &Value, is_captured: bool) -> String {
    let (spec, status) = (&value["spec"], &value["status"]);
    let mut outline = head(value);
    outline.field("Service Account", &spec["serviceAccountName"]);
    outline.field("Node", &spec["nodeName"]);
    outline.field("Created", &value["metadata"]["creationTimestamp"]);
    outline.text(
        "Status",
        match value["metadata"]["deletionTimestamp"].is_string() {
            true => "Terminating",
            false => status["phase"].as_str().unwrap_or_default(),
        },
    );
    if status["message"].is_string() {
        outline.field("Message", &status["message"]);
    }
    let ips = status["podIPs"].as_array().into_iter().flatten();
    let ips: Vec<String> = ips.map(|it| one_line(&it["ip"])).collect();
    outline.text("IPs", &ips.join(", "));
    outline.text("In The Mesh", if is_captured { "yes" } else { "no" });
    if let Some(owner) = value.pointer("/metadata/ownerReferences/0") {
        let (kind, name) = (one_line(&owner["kind"]), one_line(&owner["name"]));
        outline.text("Controlled By", &format!("{kind}/{name}"));
    }
    let all = [
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
    ];
    for (title, specs, statuses) in all {
        let specs = spec[specs].as_array().map(Vec::as_slice).unwrap_or_default();
        if specs.is_empty() {
            continue;
        }
        outline.title(title);
        for container in specs {
            let mut statuses = status[statuses].as_array().into_iter().flatten();
            let reported = statuses.find(|it| it["name"] == container["name"]);
            outline.nested(|inner| of_container(inner, container, reported));
        }
    }
    conditions(&mut outline, &status["conditions"]);
    if let Some(volumes) = spec["volumes"].as_array().filter(|it| !it.is_empty()) {
        outline.title("Volumes");
        volumes.iter().for_each(|it| outline.nested(|inner| volume(inner, it)));
    }
    if let Some(selector) = spec.get("nodeSelector") {
        outline.pairs("Node-Selectors", selector, "=");
    }
    outline.finish()
}

fn of_container(outline: &mut Outline, container: &Value, reported: Option<&Value>) {
    outline.title(&one_line(&container["name"]));
    outline.nested(|inner| {
        inner.field("Image", &container["image"]);
        let ports = container["ports"].as_array().into_iter().flatten().map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            format!("{}/{protocol}", port["containerPort"])
        });
        let ports: Vec<String> = ports.collect();
        if !ports.is_empty() {
            inner.text("Ports", &ports.join(", "));
        }
        for (title, field) in [("Command", "command"), ("Args", "args")] {
            if let Some(words) = container[field].as_array() {
                let words: Vec<String> = words.iter().map(one_line).collect();
                inner.text(title, &words.join(" "));
            }
        }
        if let Some(reported) = reported {
            of_reported(inner, reported);
        }
        for (title, field) in [("Limits", "limits"), ("Requests", "requests")] {
            if let Some(amounts) = container["resources"].get(field) {
                inner.pairs(title, amounts, ": ");
            }
        }
        let environment = container["env"].as_array().into_iter().flatten();
        let environment: Vec<(String, String)> = environment.map(variable).collect();
        if !environment.is_empty() {
            inner.list("Environment", &environment);
        }
        let mounts = container["volumeMounts"].as_array().into_iter().flatten().map(|mount| {
            let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
            (one_line(&mount["mountPath"]), format!("from {} ({mode})", one_line(&mount["name"])))
        });
        let mounts: Vec<(String, String)> = mounts.collect();
        if !mounts.is_empty() {
            inner.list("Mounts", &mounts);
        }
        for (title, field) in [
            ("Liveness", "livenessProbe"),
            ("Readiness", "readinessProbe"),
            ("Startup", "startupProbe"),
        ] {
            if let Some(probe) = container.get(field) {
                inner.field(title, probe);
            }
        }
    });
}

fn variable(variable: &Value) -> (String, String) {
    let value = match variable.get("valueFrom") {
        Some(source) => format!("<from {}>", one_line(source)),
        None => one_line(&variable["value"]),
    };
    (one_line(&variable["name"]), value)
}

fn of_reported(outline: &mut Outline, reported: &Value) {
    for (title, field) in [("State", "state"), ("Last State", "lastState")] {
        let Some((state, more)) = reported[field].as_object().and_then(|it| it.iter().next())
        else {
            continue;
        };
        let more: Vec<String> = more
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (label(key), one_line(value)))
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| format!("{key}: {value}"))
            .collect();
        let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
        outline.text(title, &format!("{}{more}", label(state)));
    }
    outline.field("Ready", &reported["ready"]);
    outline.field("Restart Count", &reported["restartCount"]);
}

fn volume(outline: &mut Outline, volume: &Value) {
    outline.title(&one_line(&volume["name"]));
    let sources = volume.as_object().into_iter().flatten().filter(|(key, _)| *key != "name");
    outline.nested(|inner| sources.for_each(|(key, value)| inner.field(&label(key), value)));
}

fn conditions(outline: &mut Outline, conditions: &Value) {
    let conditions = conditions.as_array().into_iter().flatten().map(|it| {
        let why = [&it["reason"], &it["message"]].map(one_line);
        let why: Vec<String> = why.into_iter().filter(|it| !it.is_empty()).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(": ")) };
        (one_line(&it["type"]), format!("{}{why}", one_line(&it["status"])))
    });
    let conditions: Vec<(String, String)> = conditions.collect();
    if !conditions.is_empty() {
        outline.list("Conditions", &conditions);
    }
}

fn service(value: &Value, services: &[ServiceView]) -> String {
    let spec = &value["spec"];
    let mut outline = head(value);
    outline.pairs("Selector", &spec["selector"], "=");
    outline.text("Type", spec["type"].as_str().unwrap_or("ClusterIP"));
    let ips = spec["clusterIPs"].as_array().into_iter().flatten();
    outline.text("IPs", &ips.map(one_line).collect::<Vec<_>>().join(", "));
    let metadata = &value["metadata"];
    let is_it = |it: &&ServiceView| {
        metadata["namespace"] == it.namespace.as_str() && metadata["name"] == it.name.as_str()
    };
    let view = services.iter().find(is_it);
    let ports = spec["ports"].as_array().into_iter().flatten().enumerate();
    for (place, port) in ports {
        let name = port["name"].as_str().unwrap_or("<unset>");
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        outline.text("Port", &format!("{name} {}/{protocol}", port["port"]));
        let target = port.get("targetPort").unwrap_or(&port["port"]);
        outline.text("TargetPort", &one_line(target));
        outline.text("Endpoints", &endpoints(view, place));
    }
    outline.text("Session Affinity", spec["sessionAffinity"].as_str().unwrap_or("None"));
    outline.finish()
}

/// The addresses behind a port; those that are not ready say so.
fn endpoints(view: Option<&ServiceView>, place: usize) -> String {
    let endpoints = view.into_iter().flat_map(|it| &it.endpoints).flat_map(|endpoint| {
        let port = endpoint.ports.get(place).copied().flatten();
        let mark = if endpoint.ready { "" } else { " (not ready)" };
        endpoint
            .addresses
            .iter()
            .filter_map(move |ip| Some(format!("{}{mark}", std::net::SocketAddr::new(*ip, port?))))
    });
    let endpoints: Vec<String> = endpoints.collect();
    if endpoints.is_empty() { "<none>".to_owned() } else { endpoints.join(", ") }
}

fn node(value: &Value) -> String {
    let (spec, status) = (&value["spec"], &value["status"]);
    let mut outline = head(value);
    outline.field("Created", &value["metadata"]["creationTimestamp"]);
    let taints = spec["taints"].as_array().into_iter().flatten().map(|taint| {
        let [key, value, effect] = ["key", "value", "effect"].map(|it| one_line(&taint[it]));
        if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") }
    });
    let taints: Vec<String> = taints.collect();
    outline.text("Taints", &if taints.is_empty() { NOTHING.to_owned() } else { taints.join(", ") });
    outline.text("Unschedulable", if spec["unschedulable"] == true { "true" } else { "false" });
    let joined = |list: &Value, field: Option<&str>| {
        let list = list.as_array().into_iter().flatten();
        let texts = list.map(|it| one_line(field.map_or(it, |field| &it[field])));
        texts.collect::<Vec<_>>().join(", ")
    };
    outline.text("Addresses", &joined(&status["addresses"], Some("address")));
    outline.text("Pod CIDRs", &joined(&spec["podCIDRs"], None));
    conditions(&mut outline, &status["conditions"]);
    outline.finish()
}

/// A Secret, whose values nobody reads over a shoulder.
fn secret(value: &Value) -> String {
    let mut outline = head(value);
    outline.text("Type", value["type"].as_str().unwrap_or("Opaque"));
    let data = value["data"].as_object().into_iter().flatten().map(|(key, value)| {
        let encoded = value.as_str().unwrap_or_default().trim_end_matches('=');
        (key.clone(), format!("{} bytes", encoded.len() * 3 / 4))
    });
    let plain = value["stringData"].as_object().into_iter().flatten().map(|(key, value)| {
        (key.clone(), format!("{} bytes", value.as_str().unwrap_or_default().len()))
    });
    outline.list("Data", &data.chain(plain).collect::<Vec<_>>());
    outline.finish()
}

/// Any other object: all of its fields.
fn any(value: &Value) -> String {
    let mut outline = head(value);
    outline.field("API Version", &value["apiVersion"]);
    outline.field("Kind", &value["kind"]);
    let metadata = value["metadata"].as_object().into_iter().flatten();
    let more = metadata.filter(|(key, _)| !METADATA_SHOWN.contains(&key.as_str()));
    let more: serde_json::Map<String, Value> =
        more.map(|(key, value)| (key.clone(), value.clone())).collect();
    outline.tree("Metadata", &Value::Object(more));
    let fields = value.as_object().into_iter().flatten();
    for (key, value) in fields {
        match key.as_str() {
            "apiVersion" | "kind" | "metadata" => {}
            // Its keys are names that others chose.
            "data" | "binaryData" => outline.pairs(&label(key), value, ": "),
            _ => outline.tree(&label(key), value),
        }
    }
    outline.finish()
}

/// What happened to an object.
fn of_events(value: &Value, events: &[Value]) -> String {
    let metadata = &value["metadata"];
    let is_about = |event: &&Value| {
        let about = &event["involvedObject"];
        about["kind"] == value["kind"] && about["uid"] == metadata["uid"]
    };
    let row = |event: &Value| {
        let count = event["count"].as_u64().unwrap_or(1);
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        vec![
            one_line(&event["type"]),
            one_line(&event["reason"]),
            one_line(&event["lastTimestamp"]),
            format!("{}{times}", one_line(&event["message"])),
        ]
    };
    let rows: Vec<Vec<String>> = events.iter().filter(is_about).map(row).collect();
    if rows.is_empty() {
        return "Events:  <none>\n".to_owned();
    }
    let lines = table::format(&["TYPE", "REASON", "LAST SEEN", "MESSAGE"], &rows);
    let lines: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("Events:\n{lines}")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ambit_machine::Endpoint;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_described_with_what_is_reported_of_it() {
        let value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-1", "namespace": "app", "uid": "u", "labels": {"a": "b", "c": "d"},
                "ownerReferences": [{"kind": "Deployment", "name": "web"}],
                "creationTimestamp": "2026-01-31T12:00:00Z",
            },
            "spec": {
                "serviceAccountName": "web", "nodeName": "node-1",
                "initContainers": [{"name": "first", "image": "i"}],
                "containers": [{
                    "name": "main", "image": "w:1", "command": ["sh", "-c", "x"],
                    "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                    "env": [
                        {"name": "A", "value": "b"},
                        {"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    ],
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
                    "readinessProbe": {"tcpSocket": {"port": 80}},
                }],
                "volumes": [{"name": "v", "configMap": {"name": "settings"}}],
            },
            "status": {
                "phase": "Running", "message": "why", "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [
                    {"type": "Ready", "status": "False"},
                    {"type": "PodScheduled", "status": "False", "reason": "R", "message": "m"},
                ],
                "initContainerStatuses": [{
                    "name": "first", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": 0}},
                }],
                "containerStatuses": [{
                    "name": "main", "ready": true, "restartCount": 2, "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 3}},
                }],
            },
        });
        let events = [
            json!({
                "involvedObject": {"kind": "Pod", "uid": "u"}, "type": "Normal",
                "reason": "Started", "message": "Started container main", "count": 2,
                "lastTimestamp": "2026-01-31T12:00:01Z",
            }),
            json!({"involvedObject": {"kind": "Pod", "uid": "another"}}),
        ];
        insta::assert_snapshot!(format!("{}{}", pod(&value, true), of_events(&value, &events)));
    }

    #[test]
    fn a_service_is_described_with_its_endpoints() {
        let value = json!({
            "metadata": {"name": "web", "namespace": "app"},
            "spec": {
                "selector": {"app": "web"}, "clusterIPs": ["10.96.0.1"],
                "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"port": 81}],
            },
        });
        let endpoint = |ip: &str, ready| Endpoint {
            hostname: None,
            addresses: vec![ip.parse::<IpAddr>().expect("an address")],
            node: "node-1".to_owned(),
            ready,
            ports: vec![Some(8080), None],
        };
        let view = ServiceView {
            namespace: "app".to_owned(),
            name: "web".to_owned(),
            addresses: Vec::new(),
            ports: Vec::new(),
            endpoints: vec![endpoint("10.0.0.1", true), endpoint("fd00::1", false)],
            client_affinity: false,
            local_only: false,
        };
        insta::assert_snapshot!(service(&value, &[view]));
    }

    #[test]
    fn a_node_is_described_with_its_taints() {
        let value = json!({
            "metadata": {"name": "node-1", "labels": {"disk": "ssd"}},
            "spec": {
                "podCIDRs": ["10.0.1.0/24", "fd00::/64"], "unschedulable": true,
                "taints": [
                    {"key": "a", "value": "b", "effect": "NoExecute"},
                    {"key": "c", "effect": "NoSchedule"},
                ],
            },
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.9.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        insta::assert_snapshot!(node(&value), @r"
        Name:           node-1
        Labels:         disk=ssd
        Annotations:    <none>
        Created:        <none>
        Taints:         a=b:NoExecute, c:NoSchedule
        Unschedulable:  true
        Addresses:      10.9.0.1
        Pod CIDRs:      10.0.1.0/24, fd00::/64
        Conditions:
          Ready:  True
        ");
    }

    #[test]
    fn any_other_object_shows_all_but_secrets() {
        let policy = json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "one", "namespace": "app", "generation": 1},
            "spec": {
                "action": "ALLOW", "selector": {"matchLabels": {"app": "web"}},
                "rules": [
                    {"from": [{"source": {"principals": ["a", "b"]}}]},
                    {"to": [{"operation": {"ports": ["80"]}}]},
                ],
            },
        });
        let settings = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
            "data": {"camelCase": "one\ntwo"},
        });
        let hidden = json!({
            "metadata": {"name": "s"}, "data": {"password": "c2VjcmV0"},
        });
        insta::assert_snapshot!([any(&policy), any(&settings), secret(&hidden)].join("---\n"));
        assert!(!secret(&hidden).contains("c2V"));
    }
}
