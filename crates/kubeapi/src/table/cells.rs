//! Cells that are more than one field.

use ambit_words::names::NOTHING;
use serde_json::{Map, Value, json};

/// Endpoints that are listed before the rest is counted.
const ENDPOINTS_MAX: usize = 3;
/// Where an object has the template of its pods.
const TEMPLATE: &str = "/spec/template";
/// The same of what makes Jobs.
const TEMPLATE_OF_JOBS: &str = "/spec/jobTemplate/spec/template";
/// How a label begins that names a role of a node.
const ROLE: &str = "node-role.kubernetes.io/";

pub(super) fn none(_object: &Value) -> Value {
    json!(NOTHING)
}

pub(super) fn or_none(text: &str) -> Value {
    json!(if text.is_empty() { NOTHING } else { text })
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn number(object: &Value, pointer: &str) -> u64 {
    object.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn count(object: &Value, pointer: &str) -> usize {
    object.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len)
}

fn joined(parts: impl Iterator<Item = String>) -> Value {
    or_none(&parts.collect::<Vec<_>>().join(","))
}

/// As kubectl shortens them.
pub(super) fn access_modes(claim: &Value) -> Value {
    let modes = claim.pointer("/status/accessModes").and_then(Value::as_array);
    let short = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    json!(modes.into_iter().flatten().map(short).collect::<Vec<_>>().join(","))
}

pub(super) fn min_available(budget: &Value) -> Value {
    amount(budget, "/spec/minAvailable")
}

pub(super) fn max_unavailable(budget: &Value) -> Value {
    amount(budget, "/spec/maxUnavailable")
}

fn amount(budget: &Value, pointer: &str) -> Value {
    match budget.pointer(pointer) {
        Some(Value::String(percentage)) => json!(percentage),
        Some(number) => json!(number.to_string()),
        None => json!("N/A"),
    }
}

pub(super) fn allowed_disruptions(budget: &Value) -> Value {
    json!(number(budget, "/status/disruptionsAllowed"))
}

pub(super) fn node_status(node: &Value) -> Value {
    let ready = condition(node, "Ready");
    let word = if ready == "True" { "Ready" } else { "NotReady" };
    let is_closed = node.pointer("/spec/unschedulable") == Some(&json!(true));
    json!(if is_closed { format!("{word},SchedulingDisabled") } else { word.to_owned() })
}

pub(super) fn node_roles(node: &Value) -> Value {
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let roles = labels.into_iter().flatten().filter_map(|(label, _)| label.strip_prefix(ROLE));
    joined(roles.map(str::to_owned))
}

pub(super) fn node_address(node: &Value) -> Value {
    let addresses = list(node, "/status/addresses").iter();
    let own = addresses.filter(|it| it["type"] == "InternalIP").map(|it| text(it, "/address"));
    or_none(own.take(1).next().unwrap_or_default())
}

pub(super) fn namespace_status(namespace: &Value) -> Value {
    let is_going = namespace.pointer("/metadata/deletionTimestamp").is_some();
    let phase = text(namespace, "/status/phase");
    json!(if is_going { "Terminating" } else { phase })
}

pub(super) fn data(object: &Value) -> Value {
    json!(count(object, "/data") + count(object, "/binaryData"))
}

pub(super) fn secret_type(secret: &Value) -> Value {
    let word = text(secret, "/type");
    json!(if word.is_empty() { "Opaque" } else { word })
}

pub(super) fn secrets(account: &Value) -> Value {
    json!(list(account, "/secrets").len())
}

pub(super) fn cluster_ip(service: &Value) -> Value {
    or_none(text(service, "/spec/clusterIP"))
}

pub(super) fn service_ports(service: &Value) -> Value {
    let port = |it: &Value| {
        let protocol = it["protocol"].as_str().unwrap_or("TCP");
        match it["nodePort"].as_u64() {
            Some(node) if node != 0 => format!("{}:{node}/{protocol}", it["port"]),
            _ => format!("{}/{protocol}", it["port"]),
        }
    };
    joined(list(service, "/spec/ports").iter().map(port))
}

fn labels(set: Option<&Value>) -> Value {
    let pairs = set.and_then(Value::as_object).into_iter().flatten();
    joined(pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())))
}

pub(super) fn service_selector(service: &Value) -> Value {
    labels(service.pointer("/spec/selector"))
}

pub(super) fn selector(object: &Value) -> Value {
    labels(object.pointer("/spec/selector/matchLabels"))
}

/// The first of a list, and how many more there are.
fn shortened(all: &[String]) -> Value {
    let first = all.iter().take(ENDPOINTS_MAX).map(String::as_str).collect::<Vec<_>>().join(",");
    match all.len().saturating_sub(ENDPOINTS_MAX) {
        0 => or_none(&first),
        more => json!(format!("{first} + {more} more...")),
    }
}

pub(super) fn endpoints(endpoints: &Value) -> Value {
    let mut all = Vec::new();
    for subset in list(endpoints, "/subsets") {
        for port in list(subset, "/ports") {
            let addresses = list(subset, "/addresses").iter().map(|it| text(it, "/ip"));
            all.extend(addresses.map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{}", port["port"]),
                false => format!("{ip}:{}", port["port"]),
            }));
        }
    }
    shortened(&all)
}

pub(super) fn slice_ports(slice: &Value) -> Value {
    joined(list(slice, "/ports").iter().map(|it| it["port"].to_string()))
}

pub(super) fn slice_endpoints(slice: &Value) -> Value {
    let addresses = list(slice, "/endpoints").iter().flat_map(|it| list(it, "/addresses"));
    let all: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
    shortened(&all)
}

pub(super) fn event_object(event: &Value) -> Value {
    let kind = text(event, "/involvedObject/kind").to_lowercase();
    json!(format!("{kind}/{}", text(event, "/involvedObject/name")))
}

pub(super) fn deployment_ready(deployment: &Value) -> Value {
    let ready = number(deployment, "/status/readyReplicas");
    json!(format!("{ready}/{}", number(deployment, "/spec/replicas")))
}

pub(super) fn deployment_updated(deployment: &Value) -> Value {
    json!(number(deployment, "/status/updatedReplicas"))
}

pub(super) fn deployment_available(deployment: &Value) -> Value {
    json!(number(deployment, "/status/availableReplicas"))
}

fn of_containers(object: &Value, template: &str, field: &str) -> Value {
    let containers = list(object, &format!("{template}/spec/containers")).iter();
    joined(containers.filter_map(|it| it[field].as_str()).map(str::to_owned))
}

pub(super) fn template_containers(object: &Value) -> Value {
    of_containers(object, TEMPLATE, "name")
}

pub(super) fn template_images(object: &Value) -> Value {
    of_containers(object, TEMPLATE, "image")
}

pub(super) fn job_template_containers(object: &Value) -> Value {
    of_containers(object, TEMPLATE_OF_JOBS, "name")
}

pub(super) fn job_template_images(object: &Value) -> Value {
    of_containers(object, TEMPLATE_OF_JOBS, "image")
}

pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let mut all = list(object, "/status/conditions").iter().filter(|it| it["type"] == kind);
    all.next().map(|it| text(it, "/status")).unwrap_or_default()
}

pub(super) fn accepted(object: &Value) -> Value {
    json!(condition(object, "Accepted"))
}

pub(super) fn programmed(object: &Value) -> Value {
    json!(condition(object, "Programmed"))
}

pub(super) fn gateway_address(gateway: &Value) -> Value {
    let addresses = list(gateway, "/status/addresses").iter().map(|it| text(it, "/value"));
    json!(addresses.collect::<Vec<_>>().join(","))
}
