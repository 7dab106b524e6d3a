//! Tables: what `kubectl get` prints, as a server computes it.
//!
//! The columns are Kubernetes', or those that the definitions of Istio and of the Gateway API name.
//! A kind without columns here has its name and its age, as a kind of somebody's own has in
//! Kubernetes.

mod age;
mod autoscalers;
mod cells;
mod jobs;
mod pods;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::age::age;
pub use self::autoscalers::autoscaler_targets;
use crate::resource::Resource;

/// What says how a cell is made from an object.
#[derive(Clone, Copy)]
enum Cell {
    /// The object's name.
    Name,
    /// How long the object is there.
    Age,
    /// How long ago it was what a field says.
    Since(&'static str),
    /// A field as it is written.
    Field(&'static str),
    /// What a function makes of the object.
    Made(fn(&Value) -> Value),
    /// What a function makes of the object at this moment.
    MadeNow(fn(&Value, Timestamp) -> Value),
}

/// A column.
struct Column {
    name: &'static str,
    cell: Cell,
    /// It is printed with `-o wide` alone.
    is_wide: bool,
}

const fn column(name: &'static str, cell: Cell) -> Column {
    Column { name, cell, is_wide: false }
}

const fn wide(name: &'static str, cell: Cell) -> Column {
    Column { name, cell, is_wide: true }
}

const NAME: Column = column("Name", Cell::Name);
const AGE: Column = column("Age", Cell::Age);

/// The columns of a kind without columns of its own.
const PLAIN: &[Column] = &[NAME, AGE];

/// The columns of the others, by plural.
const COLUMNS: &[(&str, &[Column])] = &[
    (
        "pods",
        &[
            NAME,
            column("Ready", Cell::Made(pods::ready)),
            column("Status", Cell::Made(pods::status)),
            column("Restarts", Cell::Made(pods::restarts)),
            AGE,
            wide("IP", Cell::Made(pods::ip)),
            wide("Node", Cell::Made(pods::node)),
            wide("Nominated Node", Cell::Made(cells::none)),
            wide("Readiness Gates", Cell::Made(cells::none)),
        ],
    ),
    (
        "nodes",
        &[
            NAME,
            column("Status", Cell::Made(cells::node_status)),
            column("Roles", Cell::Made(cells::node_roles)),
            AGE,
            column("Version", Cell::Field("/status/nodeInfo/kubeletVersion")),
            wide("Internal-IP", Cell::Made(cells::node_address)),
            wide("External-IP", Cell::Made(cells::none)),
            wide("OS-Image", Cell::Field("/status/nodeInfo/osImage")),
            wide("Kernel-Version", Cell::Field("/status/nodeInfo/kernelVersion")),
            wide("Container-Runtime", Cell::Field("/status/nodeInfo/containerRuntimeVersion")),
        ],
    ),
    ("namespaces", &[NAME, column("Status", Cell::Made(cells::namespace_status)), AGE]),
    ("configmaps", &[NAME, column("Data", Cell::Made(cells::data)), AGE]),
    (
        "secrets",
        &[
            NAME,
            column("Type", Cell::Made(cells::secret_type)),
            column("Data", Cell::Made(cells::data)),
            AGE,
        ],
    ),
    ("serviceaccounts", &[NAME, column("Secrets", Cell::Made(cells::secrets)), AGE]),
    (
        "services",
        &[
            NAME,
            column("Type", Cell::Field("/spec/type")),
            column("Cluster-IP", Cell::Made(cells::cluster_ip)),
            column("External-IP", Cell::Made(cells::none)),
            column("Port(s)", Cell::Made(cells::service_ports)),
            AGE,
            wide("Selector", Cell::Made(cells::service_selector)),
        ],
    ),
    ("endpoints", &[NAME, column("Endpoints", Cell::Made(cells::endpoints)), AGE]),
    (
        "endpointslices",
        &[
            NAME,
            column("AddressType", Cell::Field("/addressType")),
            column("Ports", Cell::Made(cells::slice_ports)),
            column("Endpoints", Cell::Made(cells::slice_endpoints)),
            AGE,
        ],
    ),
    (
        "events",
        &[
            column("Last Seen", Cell::Since("/lastTimestamp")),
            column("Type", Cell::Field("/type")),
            column("Reason", Cell::Field("/reason")),
            column("Object", Cell::Made(cells::event_object)),
            wide("Subobject", Cell::Field("/involvedObject/fieldPath")),
            wide("Source", Cell::Field("/source/component")),
            column("Message", Cell::Field("/message")),
            wide("First Seen", Cell::Since("/firstTimestamp")),
            wide("Count", Cell::Field("/count")),
            wide("Name", Cell::Name),
        ],
    ),
    (
        "deployments",
        &[
            NAME,
            column("Ready", Cell::Made(cells::deployment_ready)),
            column("Up-to-date", Cell::Made(cells::deployment_updated)),
            column("Available", Cell::Made(cells::deployment_available)),
            AGE,
            wide("Containers", Cell::Made(cells::template_containers)),
            wide("Images", Cell::Made(cells::template_images)),
            wide("Selector", Cell::Made(cells::selector)),
        ],
    ),
    (
        "jobs",
        &[
            NAME,
            column("Status", Cell::Made(jobs::status)),
            column("Completions", Cell::Made(jobs::completions)),
            column("Duration", Cell::MadeNow(jobs::duration)),
            AGE,
            wide("Containers", Cell::Made(cells::template_containers)),
            wide("Images", Cell::Made(cells::template_images)),
            wide("Selector", Cell::Made(cells::selector)),
        ],
    ),
    (
        "cronjobs",
        &[
            NAME,
            column("Schedule", Cell::Field("/spec/schedule")),
            column("Timezone", Cell::Made(jobs::time_zone)),
            column("Suspend", Cell::Made(jobs::is_suspended)),
            column("Active", Cell::Made(jobs::active)),
            column("Last Schedule", Cell::MadeNow(jobs::last_schedule)),
            AGE,
            wide("Containers", Cell::Made(cells::job_template_containers)),
            wide("Images", Cell::Made(cells::job_template_images)),
            wide("Selector", Cell::Made(cells::none)),
        ],
    ),
    (
        "statefulsets",
        &[
            NAME,
            column("Ready", Cell::Made(cells::deployment_ready)),
            AGE,
            wide("Containers", Cell::Made(cells::template_containers)),
            wide("Images", Cell::Made(cells::template_images)),
        ],
    ),
    (
        "daemonsets",
        &[
            NAME,
            column("Desired", Cell::Field("/status/desiredNumberScheduled")),
            column("Current", Cell::Field("/status/currentNumberScheduled")),
            column("Ready", Cell::Field("/status/numberReady")),
            column("Up-to-date", Cell::Field("/status/updatedNumberScheduled")),
            column("Available", Cell::Field("/status/numberAvailable")),
            AGE,
            wide("Containers", Cell::Made(cells::template_containers)),
            wide("Images", Cell::Made(cells::template_images)),
            wide("Selector", Cell::Made(cells::selector)),
        ],
    ),
    (
        "horizontalpodautoscalers",
        &[
            NAME,
            column("Reference", Cell::Made(autoscalers::reference)),
            column("Targets", Cell::Made(autoscalers::targets)),
            column("MinPods", Cell::Made(autoscalers::least)),
            column("MaxPods", Cell::Field("/spec/maxReplicas")),
            column("Replicas", Cell::Made(autoscalers::replicas)),
            AGE,
        ],
    ),
    (
        "persistentvolumeclaims",
        &[
            NAME,
            column("Status", Cell::Field("/status/phase")),
            column("Volume", Cell::Field("/spec/volumeName")),
            column("Capacity", Cell::Field("/status/capacity/storage")),
            column("Access Modes", Cell::Made(cells::access_modes)),
            column("StorageClass", Cell::Field("/spec/storageClassName")),
            AGE,
        ],
    ),
    (
        "poddisruptionbudgets",
        &[
            NAME,
            column("Min Available", Cell::Made(cells::min_available)),
            column("Max Unavailable", Cell::Made(cells::max_unavailable)),
            column("Allowed Disruptions", Cell::Made(cells::allowed_disruptions)),
            AGE,
        ],
    ),
    (
        "gatewayclasses",
        &[
            NAME,
            column("Controller", Cell::Field("/spec/controllerName")),
            column("Accepted", Cell::Made(cells::accepted)),
            AGE,
            wide("Description", Cell::Field("/spec/description")),
        ],
    ),
    (
        "gateways",
        &[
            NAME,
            column("Class", Cell::Field("/spec/gatewayClassName")),
            column("Address", Cell::Made(cells::gateway_address)),
            column("Programmed", Cell::Made(cells::programmed)),
            AGE,
        ],
    ),
    (
        "listenersets",
        &[
            NAME,
            column("Accepted", Cell::Made(cells::accepted)),
            column("Programmed", Cell::Made(cells::programmed)),
            AGE,
        ],
    ),
    ("httproutes", &[NAME, column("Hostnames", Cell::Field("/spec/hostnames")), AGE]),
    ("grpcroutes", &[NAME, column("Hostnames", Cell::Field("/spec/hostnames")), AGE]),
    (
        "virtualservices",
        &[
            NAME,
            column("Gateways", Cell::Field("/spec/gateways")),
            column("Hosts", Cell::Field("/spec/hosts")),
            AGE,
        ],
    ),
    ("destinationrules", &[NAME, column("Host", Cell::Field("/spec/host")), AGE]),
    (
        "serviceentries",
        &[
            NAME,
            column("Hosts", Cell::Field("/spec/hosts")),
            column("Location", Cell::Field("/spec/location")),
            column("Resolution", Cell::Field("/spec/resolution")),
            AGE,
        ],
    ),
    ("workloadentries", &[NAME, AGE, column("Address", Cell::Field("/spec/address"))]),
    ("authorizationpolicies", &[NAME, column("Action", Cell::Field("/spec/action")), AGE]),
    ("peerauthentications", &[NAME, column("Mode", Cell::Field("/spec/mtls/mode")), AGE]),
];

fn columns(resource: &Resource) -> &'static [Column] {
    let found = COLUMNS.iter().find(|(plural, _)| *plural == resource.plural);
    found.map_or(PLAIN, |(_, columns)| columns)
}

/// The definitions of a kind's columns.
pub(crate) fn definitions(resource: &Resource) -> Vec<Value> {
    let definition = |column: &Column| {
        let is_name = matches!(column.cell, Cell::Name);
        json!({
            "name": column.name,
            "type": "string",
            "format": if is_name { "name" } else { "" },
            "description": "",
            "priority": u8::from(column.is_wide),
        })
    };
    columns(resource).iter().map(definition).collect()
}

/// The cells of one object's row.
pub(crate) fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let field = |pointer: &str| object.pointer(pointer).cloned();
    let cell = |column: &Column| match column.cell {
        Cell::Name => field("/metadata/name").unwrap_or_default(),
        Cell::Age => age(object.pointer("/metadata/creationTimestamp"), now),
        Cell::Since(pointer) => age(object.pointer(pointer), now),
        // As for a kind of somebody's own: a list is JSON, and what is not there is empty.
        Cell::Field(pointer) => match field(pointer) {
            Some(Value::String(text)) => json!(text),
            Some(other) => json!(other.to_string()),
            None => json!(""),
        },
        Cell::Made(make) => make(object),
        Cell::MadeNow(make) => make(object, now),
    };
    columns(resource).iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(plural: &'static str, object: &Value, expected: &[&str]) {
        let resource = Resource {
            kind: "Any",
            plural,
            namespaced: true,
            api_versions: &["v1"],
            only_read: None,
        };
        let now = "2026-01-31T12:00:00Z".parse().expect("a time");
        let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
        let shown: Vec<String> = cells(&resource, object, now).iter().map(text).collect();
        assert_eq!(shown, expected, "{plural}");
        assert_eq!(definitions(&resource).len(), shown.len());
    }

    fn named(mut object: Value) -> Value {
        object["metadata"]["name"] = json!("web");
        object["metadata"]["creationTimestamp"] = json!("2026-01-31T11:00:00Z");
        object
    }

    #[test]
    fn what_the_machine_itself_has() {
        check("others", &named(json!({})), &["web", "60m"]);
        check(
            "namespaces",
            &named(json!({"status": {"phase": "Active"}})),
            &["web", "Active", "60m"],
        );
        check(
            "configmaps",
            &named(json!({"data": {"a": "b"}, "binaryData": {"c": ""}})),
            &["web", "2", "60m"],
        );
        check("secrets", &named(json!({"data": {"a": "b"}})), &["web", "Opaque", "1", "60m"]);
        check("serviceaccounts", &named(json!({})), &["web", "0", "60m"]);
        let node = named(json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1"},
        }}));
        check(
            "nodes",
            &node,
            &["web", "Ready", "<none>", "60m", "v1", "10.0.0.1", "<none>", "", "", ""],
        );
    }

    #[test]
    fn services_and_what_is_behind_them() {
        let service = named(json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.1",
            "selector": {"app": "web"},
            "ports": [{"port": 80, "protocol": "TCP"},
                {"port": 53, "nodePort": 30053, "protocol": "UDP"}]}}));
        check(
            "services",
            &service,
            &["web", "ClusterIP", "10.96.0.1", "<none>", "80/TCP,53:30053/UDP", "60m", "app=web"],
        );
        check(
            "services",
            &named(json!({"spec": {"type": "ClusterIP", "clusterIP": "None"}})),
            &["web", "ClusterIP", "None", "<none>", "<none>", "60m", "<none>"],
        );
        let endpoints = named(json!({"subsets": [{
            "addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 80}],
        }]}));
        check("endpoints", &endpoints, &["web", "10.0.0.1:80,10.0.0.2:80", "60m"]);
        check("endpoints", &named(json!({})), &["web", "<none>", "60m"]);
        let four: Vec<Value> =
            (1..=4).map(|it| json!({"addresses": [format!("10.0.0.{it}")]})).collect();
        let slice =
            named(json!({"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": four}));
        check(
            "endpointslices",
            &slice,
            &["web", "IPv4", "80", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...", "60m"],
        );
    }

    #[test]
    fn deployments_count_their_pods() {
        let deployment = named(json!({
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web", "b": "c"}},
                "template": {"spec": {"containers": [
                    {"name": "one", "image": "i:1"}, {"name": "two", "image": "i:2"},
                ]}}},
            "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1},
        }));
        check(
            "deployments",
            &deployment,
            &["web", "1/3", "2", "1", "60m", "one,two", "i:1,i:2", "app=web,b=c"],
        );
        check(
            "deployments",
            &named(json!({"spec": {}})),
            &["web", "0/0", "0", "0", "60m", "<none>", "<none>", "<none>"],
        );
    }

    #[test]
    fn an_autoscaler_says_what_it_measures() {
        let mut autoscaler = named(json!({"spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}],
        }}));
        let check = |of: &Value, targets: &str, replicas: &str| {
            let cells = ["web", "Deployment/web", targets, "1", "5", replicas, "60m"];
            super::tests::check("horizontalpodautoscalers", of, &cells);
        };
        check(&autoscaler, "cpu: <unknown>/50%", "0");
        autoscaler["status"] = json!({"currentReplicas": 2, "currentMetrics": [{"type": "Resource",
            "resource": {"name": "cpu",
                "current": {"averageUtilization": 7, "averageValue": "7m"}}}]});
        check(&autoscaler, "cpu: 7%/50%", "2");
        autoscaler["spec"]["metrics"][0]["resource"]["target"] =
            json!({"type": "AverageValue", "averageValue": "500m"});
        check(&autoscaler, "cpu: 7m/500m", "2");
        let external = json!({"type": "External"});
        let metrics = autoscaler["spec"]["metrics"].as_array_mut().expect("a list");
        metrics.extend([external.clone(), external]);
        check(&autoscaler, "cpu: 7m/500m, External: <unknown>/<unknown> + 1 more...", "2");
    }

    #[test]
    fn a_budget_says_how_many_pods_may_go() {
        let mut budget = named(json!({"spec": {"minAvailable": "50%"}}));
        check("poddisruptionbudgets", &budget, &["web", "50%", "N/A", "0", "60m"]);
        budget["spec"] = json!({"maxUnavailable": 1});
        budget["status"] = json!({"disruptionsAllowed": 1});
        check("poddisruptionbudgets", &budget, &["web", "N/A", "1", "1", "60m"]);
    }

    #[test]
    fn jobs_say_how_far_they_are() {
        let template = json!({"spec": {"containers": [{"name": "one", "image": "i:1"}]}});
        let mut job = named(json!({
            "spec": {"completions": 3, "template": template.clone(),
                "selector": {"matchLabels": {"job": "web"}}},
            "status": {"succeeded": 2, "startTime": "2026-01-31T11:58:00Z"},
        }));
        let rest = ["60m", "one", "i:1", "job=web"];
        check("jobs", &job, &[&["web", "Running", "2/3", "2m"][..], &rest].concat());
        job["status"] = json!({"succeeded": 3, "startTime": "2026-01-31T11:58:00Z",
            "completionTime": "2026-01-31T11:58:05Z",
            "conditions": [{"type": "Complete", "status": "True"}]});
        check("jobs", &job, &[&["web", "Complete", "3/3", "5s"][..], &rest].concat());
        job["status"] = json!({});
        check("jobs", &job, &[&["web", "Running", "0/3", ""][..], &rest].concat());
        let mut cron_job = named(json!({"spec": {"schedule": "*/5 * * * *",
            "jobTemplate": {"spec": {"template": template}}}}));
        let rest = ["60m", "one", "i:1", "<none>"];
        let first = ["web", "*/5 * * * *", "<none>", "False", "0", "<none>"];
        check("cronjobs", &cron_job, &[&first[..], &rest].concat());
        cron_job["spec"]["timeZone"] = json!("Europe/Berlin");
        cron_job["spec"]["suspend"] = json!(true);
        cron_job["status"] =
            json!({"active": [{"name": "web-1"}], "lastScheduleTime": "2026-01-31T11:55:00Z"});
        let first = ["web", "*/5 * * * *", "Europe/Berlin", "True", "1", "5m"];
        check("cronjobs", &cron_job, &[&first[..], &rest].concat());
    }

    #[test]
    fn sets_count_their_pods() {
        let template = json!({"spec": {"containers": [{"name": "one", "image": "i:1"}]}});
        let set = json!({"spec": {"replicas": 3, "template": template.clone()},
            "status": {"readyReplicas": 1}});
        check("statefulsets", &named(set), &["web", "1/3", "60m", "one", "i:1"]);
        let set = json!({
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
            "status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberReady": 1,
                "updatedNumberScheduled": 2, "numberAvailable": 1},
        });
        let expected = ["web", "2", "2", "1", "2", "1", "60m", "one", "i:1", "app=web"];
        check("daemonsets", &named(set), &expected);
    }

    #[test]
    fn events_and_policies() {
        let event = named(json!({"lastTimestamp": "2026-01-31T11:59:55Z", "type": "Normal",
            "reason": "Started", "message": "why", "count": 2,
            "involvedObject": {"kind": "Pod", "name": "p"}}));
        check(
            "events",
            &event,
            &["5s", "Normal", "Started", "pod/p", "", "", "why", "<unknown>", "2", "web"],
        );
        let gateway = named(json!({"spec": {"gatewayClassName": "c"}, "status": {
            "addresses": [{"value": "10.0.0.1"}],
            "conditions": [{"type": "Programmed", "status": "True"}]}}));
        check("gateways", &gateway, &["web", "c", "10.0.0.1", "True", "60m"]);
        check(
            "httproutes",
            &named(json!({"spec": {"hostnames": ["a", "b"]}})),
            &["web", "[\"a\",\"b\"]", "60m"],
        );
        check(
            "authorizationpolicies",
            &named(json!({"spec": {"action": "DENY"}})),
            &["web", "DENY", "60m"],
        );
    }
}
