//! `ambit get`: lists from control and from the proxies, as columns or as they are.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ambit_machine::layout::Layout;
use ambit_machine::{Client, PodInfo, Record};
use ambit_model::printable::printable;
use ambit_net::local_http;
use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::{Value, json};

use super::mesh::{self, Answers, Mesh};
use crate::args::{GetArgs, Kind, Output};
use crate::table;

/// How long a role may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The label that has such connections cut.
const CUT: &str = "ambit.io/cut-open-connections";

/// A column: its title and where in an item it lies. Pointers after the first are joined to it by
/// a slash.
type Column = (&'static str, &'static [&'static str]);

/// Prints a list.
pub(super) async fn get(args: GetArgs) -> Result<ExitCode> {
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let items = items(&mesh, args.kind, args.namespace.as_deref()).await?;
    if items.is_empty() {
        eprintln!("{}", nothing_found(&mesh, args.namespace.as_deref()).await);
    }
    let mut list = json!({ "items": items });
    if args.kind == Kind::Connections {
        let older = older(&mesh, args.namespace.as_deref()).await;
        older.iter().for_each(|it| eprintln!("{}", bypassing(it)));
        list["olderThanCapture"] = json!(older);
    }
    match args.output {
        Output::Json => super::print_json(&list)?,
        Output::Yaml => super::print_text(&serde_saphyr::to_string(&list)?)?,
        Output::Table | Output::Wide if items.is_empty() => {}
        Output::Table | Output::Wide => {
            let (narrow, wide) = columns(args.kind);
            let more: &[Column] = if args.output == Output::Wide { wide } else { &[] };
            let columns: Vec<&Column> = narrow.iter().chain(more).collect();
            let header: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
            let row = |item: &Value| columns.iter().map(|(_, at)| cell(item, at)).collect();
            let rows: Vec<Vec<String>> = items.iter().map(row).collect();
            super::print_text(&table::format(&header, &rows))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Pods with connections that no proxy lists, because they are older than the pod's capture; the
/// pods' agents count them. A list without them looks like all that is open.
async fn older(mesh: &Mesh, namespace: Option<&str>) -> Vec<Value> {
    match mesh.control("/status").await {
        Ok(status) => of_namespace(&status, namespace),
        Err(error) => {
            eprintln!(
                "warning: connections that are older than the capture of their pods are left out, \
                 control does not answer: {error:#}"
            );
            Vec::new()
        }
    }
}

fn of_namespace(status: &Value, namespace: Option<&str>) -> Vec<Value> {
    let told = status.pointer("/pods/olderThanCapture").and_then(Value::as_array);
    let is_wanted = |it: &&Value| {
        let of_pod = it["pod"].as_str().and_then(|pod| pod.split_once('/'));
        namespace.is_none_or(|wanted| of_pod.is_some_and(|(of, _)| of == wanted))
    };
    told.into_iter().flatten().filter(is_wanted).cloned().collect()
}

fn bypassing(older: &Value) -> String {
    format!(
        "note: {} has {} more open connections, older than its capture: in plain text, \
         without policy and not in this list; restart their clients, or label the pod {CUT}=true",
        printable(&text(&older["pod"])),
        older["connections"]
    )
}

/// What is said of an empty list, so that a misspelt namespace is not taken for an empty one.
async fn nothing_found(mesh: &Mesh, namespace: Option<&str>) -> String {
    let Some(wanted) = namespace else { return "No resources found.".to_owned() };
    match mesh.control("/get/namespaces").await {
        Ok(list) => not_in_namespace(wanted, &list),
        Err(_) => format!("No resources found in {wanted} namespace."),
    }
}

fn not_in_namespace(wanted: &str, namespaces: &Value) -> String {
    let items = namespaces["items"].as_array().into_iter().flatten();
    let names: Vec<&str> = items.filter_map(|item| item["name"].as_str()).collect();
    if names.contains(&wanted) {
        return format!("No resources found in {wanted} namespace.");
    }
    format!(
        "No resources found in {wanted} namespace: it does not exist; there are {}",
        names.join(", ")
    )
}

async fn items(mesh: &Mesh, kind: Kind, namespace: Option<&str>) -> Result<Vec<Value>> {
    if let Mesh::Machine(layout) = mesh
        && !Record::read(layout)?.mesh
    {
        return pods_without_mesh(layout, kind, namespace).await;
    }
    let name = match kind {
        Kind::Pods => "pods",
        Kind::Services => "services",
        Kind::Workloads => "workloads",
        Kind::Policies => "policies",
        Kind::Nodes => "nodes",
        Kind::Certificates => return of_proxies(mesh, "/certificates", namespace).await,
        Kind::Connections => return of_proxies(mesh, "/connections", namespace).await,
    };
    let query = namespace.map(|namespace| format!("?namespace={namespace}")).unwrap_or_default();
    let list = mesh.control(&format!("/get/{name}{query}")).await?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// What there is to show of a machine that no control plane knows.
async fn pods_without_mesh(
    layout: &Layout,
    kind: Kind,
    namespace: Option<&str>,
) -> Result<Vec<Value>> {
    if kind != Kind::Pods {
        bail!("this machine was started without the mesh; it has only pods to show");
    }
    let pods = Client::new(layout.clone()).pods().await?;
    let wanted = pods.into_iter().filter(|pod| namespace.is_none_or(|it| pod.namespace == it));
    let item = |pod: PodInfo| {
        let mut item = serde_json::to_value(&pod)?;
        item["ips"] = item["podIps"].take();
        Ok(item)
    };
    wanted.map(item).collect()
}

/// The items of every node's proxy, each with its node. A node that is left out is named, because
/// a shorter list looks like fewer connections.
async fn of_proxies(mesh: &Mesh, path: &str, namespace: Option<&str>) -> Result<Vec<Value>> {
    let (all, warnings) = gather(mesh.proxies(path).await?, namespace)?;
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    Ok(all)
}

/// The items of all proxies that answered, and a word on each that did not or not in full. Without
/// any answer there is nothing to show, which is an error.
fn gather(answers: Answers, namespace: Option<&str>) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut all, mut shorter, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    let nodes = answers.len();
    for (node, answer) in answers {
        match answer.and_then(list) {
            Ok((items, missing)) => {
                shorter.extend(missing.map(|missing| format!("{node}: {missing}")));
                all.extend(items.into_iter().filter_map(|mut item| {
                    item["node"] = json!(node);
                    namespace.is_none_or(|wanted| concerns(&item, wanted)).then_some(item)
                }));
            }
            Err(error) => {
                left_out.push(format!("{node} is left out, its proxy cannot be asked: {error:#}"))
            }
        }
    }
    if nodes > 0 && left_out.len() == nodes {
        bail!("no proxy answers: {}", left_out.join("; "));
    }
    left_out.extend(shorter);
    Ok((all, left_out))
}

/// The items of one proxy's answer, and what it says is missing: a list, or one with a number of
/// workers that are left out.
fn list(mut answer: Value) -> Result<(Vec<Value>, Option<String>)> {
    let missing = match answer.get("leftOut") {
        Some(Value::Null) => Some(
            "connections that earlier workers of the proxy may still finish are left out, its \
             supervisor cannot be asked for them"
                .to_owned(),
        ),
        Some(count) if *count != 0 => {
            Some(format!("connections of workers that do not answer ({count}) are left out"))
        }
        _ => None,
    };
    let items = if answer.is_object() { answer["items"].take() } else { answer };
    match items {
        Value::Array(items) => Ok((items, missing)),
        _ => bail!("it does not answer with a list; is it another program than `ambit proxy`?"),
    }
}

/// Whether an item of a proxy names a workload or identity of the namespace.
fn concerns(item: &Value, namespace: &str) -> bool {
    let names = ["sourceWorkload", "destinationWorkload"];
    let workload = names.iter().any(|name| {
        let text = item[name].as_str().and_then(|text| text.split_once('/'));
        text.is_some_and(|(of, _)| of == namespace)
    });
    let within = format!("/ns/{namespace}/");
    workload || item["identity"].as_str().is_some_and(|identity| identity.contains(&within))
}

/// Asks a role's administration for JSON.
pub(super) async fn ask(socket: &Path, target: &str) -> Result<Value> {
    request(socket, Method::GET, target).await
}

/// One request without a body to an administration socket.
pub(super) async fn request(socket: &Path, method: Method, target: &str) -> Result<Value> {
    let body = bytes::Bytes::new();
    let (status, body) = local_http::request(socket, method, target, body, PATIENCE).await?;
    let value: Value =
        serde_json::from_slice(&body).with_context(|| format!("read the answer to {target}"))?;
    if !status.is_success() {
        bail!("{}", value["error"].as_str().unwrap_or(status.as_str()));
    }
    Ok(value)
}

fn columns(kind: Kind) -> (&'static [Column], &'static [Column]) {
    match kind {
        Kind::Pods => (
            &[
                ("NAMESPACE", &["/namespace"]),
                ("NAME", &["/name"]),
                ("READY", &["/ready"]),
                ("PHASE", &["/phase"]),
                ("RESTARTS", &["/restarts"]),
                ("NODE", &["/node"]),
                ("IP", &["/ips/0"]),
                ("CAPTURED", &["/captured"]),
                ("REASON", &["/reason"]),
            ],
            &[("SERVICE ACCOUNT", &["/serviceAccount"]), ("IPS", &["/ips"])],
        ),
        Kind::Services => (
            &[
                ("NAMESPACE", &["/namespace"]),
                ("NAME", &["/name"]),
                ("ADDRESS", &["/addresses/0"]),
                ("PORTS", &["/ports"]),
                ("ENDPOINTS", &["/endpoints/ready", "/endpoints/total"]),
            ],
            &[
                ("HOSTNAME", &["/hostname"]),
                ("ADDRESSES", &["/addresses"]),
                ("BALANCING", &["/loadBalancing/mode"]),
                ("WAYPOINT", &["/waypoint"]),
            ],
        ),
        Kind::Workloads => (
            &[
                ("NAMESPACE", &["/namespace"]),
                ("NAME", &["/name"]),
                ("ADDRESS", &["/addresses/0"]),
                ("NODE", &["/node"]),
                ("PROTOCOL", &["/protocol"]),
                ("HEALTHY", &["/healthy"]),
            ],
            &[
                ("IDENTITY", &["/identity"]),
                ("SERVICES", &["/services"]),
                ("POLICIES", &["/policies"]),
                ("WAYPOINT", &["/waypoint"]),
            ],
        ),
        _ => more_columns(kind),
    }
}

fn more_columns(kind: Kind) -> (&'static [Column], &'static [Column]) {
    match kind {
        Kind::Policies => (
            &[
                ("KIND", &["/kind"]),
                ("NAMESPACE", &["/namespace"]),
                ("NAME", &["/name"]),
                ("ACTION", &["/action", "/mode"]),
                ("SCOPE", &["/scope"]),
                ("WORKLOADS", &["/workloads"]),
                ("ACCEPTED", &["/conditions/0/status"]),
            ],
            &[
                ("RULES", &["/rules"]),
                ("DRY RUN", &["/dryRun"]),
                ("REASON", &["/conditions/0/reason"]),
                ("MESSAGE", &["/conditions/0/message"]),
            ],
        ),
        Kind::Certificates => (
            &[
                ("NODE", &["/node"]),
                ("IDENTITY", &["/identity"]),
                ("STATE", &["/state"]),
                ("SERIAL", &["/certChain/0/serialNumber"]),
                ("EXPIRES", &["/certChain/0/expirationTime"]),
            ],
            &[("VALID FROM", &["/certChain/0/validFrom"])],
        ),
        Kind::Connections => (
            &[
                ("NODE", &["/node"]),
                ("DIRECTION", &["/direction"]),
                ("SOURCE", &["/sourceWorkload"]),
                ("DESTINATION", &["/destinationWorkload"]),
                ("ADDRESS", &["/destinationAddress"]),
                ("PLAN", &["/plan"]),
                ("GROUP", &["/tlsGroup"]),
                ("POLICY", &["/policy"]),
                ("AGE MS", &["/ageMs"]),
            ],
            &[
                ("SOURCE IDENTITY", &["/sourceIdentity"]),
                ("DESTINATION IDENTITY", &["/destinationIdentity"]),
                ("HBONE PEER", &["/hbonePeer"]),
                ("TO SERVER", &["/bytesToServer"]),
                ("TO CLIENT", &["/bytesToClient"]),
            ],
        ),
        _ => (
            &[
                ("NAME", &["/name"]),
                ("ZONE", &["/zone"]),
                ("PODS", &["/pods"]),
                ("PROXY CONNECTED", &["/proxyConnected"]),
            ],
            &[("REGION", &["/region"])],
        ),
    }
}

/// The text of a cell: the values at the pointers that are there, joined by a slash.
fn cell(item: &Value, pointers: &[&str]) -> String {
    let present = pointers.iter().filter_map(|pointer| item.pointer(pointer));
    let texts: Vec<String> = present.filter(|value| !value.is_null()).map(text).collect();
    texts.join("/")
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(fields) => match (fields.get("port"), fields.get("targetPort")) {
            (Some(port), Some(target)) if target != 0 && port != target => {
                format!("{port}->{target}")
            }
            (Some(port), Some(_)) => port.to_string(),
            _ => value.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_what_a_person_looks_for() {
        let item = json!({"a": true, "ports": [{"port": 80, "targetPort": 8080}], "n": null,
            "ready": 1, "total": 2});
        assert_eq!(cell(&item, &["/a"]), "yes");
        assert_eq!(cell(&item, &["/ports"]), "80->8080");
        assert_eq!(cell(&item, &["/n"]), "");
        assert_eq!(cell(&item, &["/ready", "/total"]), "1/2");
    }

    #[test]
    fn a_proxy_that_does_not_answer_hides_no_other() {
        let answer = || json!([{ "identity": "spiffe://t/ns/app/sa/web" }]);
        let refused = || Err(anyhow::anyhow!("no such page"));
        let answers = vec![
            ("node-1".to_owned(), Ok(answer())),
            ("node-2".to_owned(), refused()),
            ("node-3".to_owned(), Ok(json!({ "proxy": "another" }))),
        ];
        let (all, left_out) = gather(answers, Some("app")).unwrap();
        assert_eq!(all, [json!({ "identity": "spiffe://t/ns/app/sa/web", "node": "node-1" })]);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].contains("node-2") && left_out[0].contains("no such page"));
        assert!(left_out[1].contains("node-3") && left_out[1].contains("another program"));
        assert!(gather(vec![("node-1".to_owned(), refused())], None).is_err());
    }

    #[test]
    fn a_list_that_is_not_whole_says_so() {
        let check = |answer: Value, expected: Option<&str>| {
            let answers = vec![("node-1".to_owned(), Ok(answer))];
            let (all, warnings) = gather(answers, None).unwrap();
            assert_eq!(all, [json!({ "ageMs": 1, "node": "node-1" })]);
            assert_eq!(warnings.len(), usize::from(expected.is_some()), "{warnings:?}");
            let said = warnings.iter().zip(expected).all(|(warning, expected)| {
                warning.starts_with("node-1: ") && warning.contains(expected)
            });
            assert!(said, "{warnings:?}");
        };
        let items = json!([{ "ageMs": 1 }]);
        check(items.clone(), None);
        check(json!({ "items": items, "leftOut": 0 }), None);
        check(json!({ "items": items, "leftOut": 2 }), Some("do not answer (2)"));
        check(json!({ "items": items, "leftOut": null }), Some("supervisor"));
    }

    #[test]
    fn connections_that_bypass_the_mesh_are_counted_beside_the_list() {
        let of = |pod: &str, connections: u32| json!({ "pod": pod, "connections": connections });
        let older = [of("app/web", 2), of("client/load", 3)];
        let status = json!({ "pods": { "olderThanCapture": older } });
        assert_eq!(of_namespace(&status, None).len(), 2);
        let of_app = of_namespace(&status, Some("app"));
        assert_eq!(of_app, [json!({ "pod": "app/web", "connections": 2 })]);
        let note = bypassing(&of_app[0]);
        assert!(note.starts_with("note: app/web has 2 more open connections"), "{note}");
        assert!(note.contains("ambit.io/cut-open-connections=true"), "{note}");
        assert!(of_namespace(&json!({}), None).is_empty());
    }

    #[test]
    fn an_unknown_namespace_is_told_from_an_empty_one() {
        let namespaces = json!({ "items": [{ "name": "app" }, { "name": "client" }] });
        let check = |wanted, expected: &str| {
            assert_eq!(not_in_namespace(wanted, &namespaces), expected);
        };
        check("app", "No resources found in app namespace.");
        let unknown = "No resources found in nope namespace: it does not exist; there are app, \
            client";
        check("nope", unknown);
    }
}
