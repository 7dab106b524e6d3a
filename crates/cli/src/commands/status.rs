//! `ambit status` and `ambit why`: is all well, and what happens to a connection.

use std::fmt::Write;
use std::process::ExitCode;

use ambit_cluster::Cluster;
use ambit_machine::{Client, MachineStatus, RoleInfo};
use anyhow::Result;
use serde_json::{Value, json};

use super::mesh::{self, Answers, Mesh};
use crate::args::{Report, StatusArgs, WhyArgs};
use crate::table;

/// Prints the state of the machine and of the mesh; fails when something is not well.
pub(super) async fn status(args: StatusArgs) -> Result<ExitCode> {
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let machine = match &mesh {
        Mesh::Machine(layout) => Some(Client::new(layout.clone()).status().await?),
        Mesh::Cluster(_) => None,
    };
    let has_mesh = machine.as_ref().is_none_or(|machine| machine.mesh);
    let told = if has_mesh {
        let told = mesh.control("/status").await;
        told.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
    } else {
        json!({})
    };
    let shares = if has_mesh { shares(mesh.proxies("/shares").await) } else { Vec::new() };
    let certificates =
        if has_mesh { failing(mesh.proxies("/certificates").await) } else { Vec::new() };
    let (revoked, failing): (Vec<_>, Vec<_>) =
        certificates.into_iter().partition(|it| it.state == REVOKED);
    let are_roles_well = machine.iter().flat_map(|machine| &machine.roles).all(is_role_well);
    let is_well = are_roles_well
        && shares.iter().all(|share| share.used_up.is_empty())
        && revoked.is_empty()
        && failing.is_empty()
        && told["error"].is_null()
        && is_empty(&told, "/discovery/nodesWithoutProxy")
        && is_empty(&told, "/pods/waitingForCapture")
        && is_empty(&told, "/policiesNotAccepted");
    match (args.output, &mesh) {
        (Report::Json, Mesh::Machine(_)) => {
            let whole = json!({ "well": is_well, "machine": machine, "mesh": told,
                "shares": shares, "certificatesRevoked": revoked,
                "certificatesFailing": failing });
            super::print_json(&whole)?;
        }
        (Report::Json, Mesh::Cluster(cluster)) => {
            let cluster = json!({ "context": cluster.context() });
            let whole = json!({ "well": is_well, "cluster": cluster, "mesh": told,
                "shares": shares, "certificatesRevoked": revoked,
                "certificatesFailing": failing });
            super::print_json(&whole)?;
        }
        (Report::Text, _) => {
            let mut text = match (&machine, &mesh) {
                (None, Mesh::Cluster(cluster)) => cluster_text(cluster, &told),
                (machine, _) => machine.as_ref().map(machine_text).unwrap_or_default(),
            };
            text.push_str(&mesh_text(has_mesh, &told));
            text.push_str(&shares_text(&shares));
            text.push_str(&failing_text(&revoked));
            text.push_str(&failing_text(&failing));
            for left in machine.iter().flat_map(|machine| &machine.left_alone) {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "left alone: {left}");
            }
            text.push_str(if is_well { "all is well\n" } else { "not all is well\n" });
            super::print_text(&text)?;
        }
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What one node's proxy says of the shares of its descriptors.
#[derive(Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeShares {
    /// The node.
    node: String,
    /// Which are used up, and by whom: a sentence each.
    used_up: Vec<String>,
    /// Why they are not known. Another program than `ambit proxy` has none.
    unknown: Option<String>,
}

fn shares(answers: Result<Answers>) -> Vec<NodeShares> {
    let all = "all nodes".to_owned();
    let answers = answers.unwrap_or_else(|error| vec![(all, Err(error))]);
    let of_node = |(node, answer): (String, Result<Value>)| match answer {
        Ok(told) => {
            let sentences = told["usedUp"].as_array().into_iter().flatten();
            let used_up = sentences.map(plain).collect();
            NodeShares { node, used_up, unknown: None }
        }
        Err(error) => NodeShares { node, used_up: Vec::new(), unknown: Some(format!("{error:#}")) },
    };
    answers.into_iter().map(of_node).collect()
}

fn shares_text(shares: &[NodeShares]) -> String {
    let mut text = String::new();
    for NodeShares { node, used_up, unknown } in shares {
        for sentence in used_up {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "share used up on {node}: {sentence}");
        }
        if let Some(reason) = unknown {
            let _ = writeln!(text, "shares of {node} are not known: {reason}");
        }
    }
    text
}

/// The state of a certificate that is in date and not revoked.
const AVAILABLE: &str = "Available";
/// The state of a certificate that is revoked.
const REVOKED: &str = "Revoked";

/// An identity on a node whose certificate is revoked or out of date, or is not renewed.
#[derive(Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct FailingCertificate {
    /// The node.
    node: String,
    /// The identity. Unless the state is `Available`, its pods there have no connection with other
    /// nodes.
    identity: String,
    /// `Available`, `Revoked`, `Expired`, `NotYetValid` or `Unavailable`.
    state: String,
    /// Why no other has come, if that is known.
    reason: Option<String>,
}

/// Whose certificates cannot be used or are not renewed. Proxies that do not answer are named with
/// the shares.
fn failing(answers: Result<Answers>) -> Vec<FailingCertificate> {
    let mut all = Vec::new();
    for (node, answer) in answers.unwrap_or_default() {
        let Ok(Value::Array(items)) = answer else { continue };
        for item in &items {
            let reason = item["lastFailure"].as_str().map(str::to_owned);
            let state = item["state"].as_str().and_then(|it| it.split(':').next());
            let state = state.unwrap_or_default();
            let is_out_of_date = matches!(state, REVOKED | "Expired" | "NotYetValid");
            if is_out_of_date || reason.is_some() {
                let (node, identity) = (node.clone(), plain(&item["identity"]));
                all.push(FailingCertificate { node, identity, state: state.to_owned(), reason });
            }
        }
    }
    all
}

fn failing_text(certificates: &[FailingCertificate]) -> String {
    let mut text = String::new();
    for FailingCertificate { node, identity, state, reason } in certificates {
        let what = match state.as_str() {
            AVAILABLE => "not renewed",
            REVOKED => "revoked",
            "Expired" => "expired",
            "NotYetValid" => "not valid yet",
            _ => "missing",
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "certificate {what} on {node}: {identity}");
        let _ = match reason {
            Some(reason) => writeln!(text, " ({reason})"),
            None => writeln!(text),
        };
    }
    text
}

fn is_role_well(role: &RoleInfo) -> bool {
    role.pid.is_some() && role.waiting_for.is_none()
}

fn is_empty(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_array).is_none_or(Vec::is_empty)
}

fn cluster_text(cluster: &Cluster, mesh: &Value) -> String {
    let count = |pointer| mesh.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    format!(
        "cluster: {}\nready replicas of control: {}\nconnected proxies: {}\n",
        cluster.context(),
        count("/replicas"),
        count("/discovery/clients")
    )
}

fn machine_text(machine: &MachineStatus) -> String {
    let node = |node: &ambit_machine::NodeInfo| {
        let address = node.addresses.first().map(ToString::to_string).unwrap_or_default();
        vec![node.name.clone(), address, format!("{}/{}", node.running, node.pods)]
    };
    let nodes: Vec<_> = machine.nodes.iter().map(node).collect();
    let role = |role: &RoleInfo| {
        let state = match (&role.waiting_for, role.pid) {
            (Some(reason), _) => reason.clone(),
            (None, Some(_)) => "running".to_owned(),
            (None, None) => "not running".to_owned(),
        };
        vec![role.name.clone(), state, role.restarts.to_string(), role.log.display().to_string()]
    };
    let roles: Vec<_> = machine.roles.iter().map(role).collect();
    let mut text = table::format(&["NODE", "ADDRESS", "PODS RUNNING"], &nodes);
    text.push('\n');
    text.push_str(&table::format(&["ROLE", "STATE", "RESTARTS", "LOG"], &roles));
    text.push('\n');
    text
}

/// What control tells, for whatever it runs on.
fn mesh_text(has_mesh: bool, mesh: &Value) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    if let Some(error) = mesh["error"].as_str() {
        let _ = writeln!(text, "control does not answer: {error}");
    } else if has_mesh {
        let _ = writeln!(text, "captured pods: {}", mesh["pods"]["captured"]);
    } else {
        let _ = writeln!(text, "without the mesh: pods, services and DNS alone");
    }
    let told = |pointer| mesh.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    for it in told("/pods/olderThanCapture") {
        let (pod, connections) = (plain(&it["pod"]), &it["connections"]);
        let what = "open connections are older than its capture and in plain text";
        let _ = writeln!(text, "{pod}: {connections} {what}");
    }
    for it in told("/pods/captureLacks") {
        let (pod, parameter) = (plain(&it["pod"]), plain(&it["parameter"]));
        let _ = writeln!(text, "{pod}: captured without the kernel parameter {parameter}");
    }
    let lists = [
        ("waiting for capture", "/pods/waitingForCapture"),
        ("left alone, on their node's network", "/pods/hostNetworkLeftAlone"),
        ("nodes whose proxy is not connected", "/discovery/nodesWithoutProxy"),
        ("policies not enforced as written", "/policiesNotAccepted"),
    ];
    for (what, pointer) in lists.into_iter().filter(|(_, pointer)| !is_empty(mesh, pointer)) {
        let items = mesh.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
        for item in items {
            let item = match item.as_str() {
                Some(name) => waiting(name, mesh).unwrap_or_else(|| name.to_owned()),
                None => format!("{} ({})", plain(&item["policy"]), plain(&item["message"])),
            };
            let _ = writeln!(text, "{what}: {item}");
        }
    }
    text
}

/// A pod that waits for capture with what keeps it waiting, if its agent says so.
fn waiting(pod: &str, mesh: &Value) -> Option<String> {
    let told = mesh.pointer("/pods/notCaptured")?.as_array()?;
    let why = told.iter().find(|it| it["pod"] == pod)?;
    Some(format!("{pod} ({}; {})", plain(&why["message"]), plain(&why["remedy"])))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Prints what happens to a connection.
pub(super) async fn why(args: WhyArgs) -> Result<ExitCode> {
    let mesh = mesh::find(&args.state, &args.kube).await?;
    let query = format!("/why?src={}&dst={}", escape(&args.source), escape(&args.destination));
    let explanation = mesh.control(&query).await?;
    match args.output {
        Report::Json => super::print_json(&explanation)?,
        Report::Text => super::print_text(&why_text(&explanation))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

fn why_text(explanation: &Value) -> String {
    let at = |pointer: &str| explanation.pointer(pointer).filter(|value| !value.is_null());
    let lines = [
        ("from", "/source/pod"),
        ("identity", "/source/identity"),
        ("captured", "/source/captured"),
        ("certificate", "/certificate/serial"),
        ("valid until", "/certificate/notAfter"),
        ("to", "/destination/name"),
        ("address", "/destination/address"),
        ("plan", "/plan"),
        ("path", "/path"),
        ("server", "/server/workload"),
        ("server address", "/server/address"),
        ("must prove", "/server/identities/0"),
        ("decision", "/decision"),
        ("decided by", "/decidedBy"),
        ("policy", "/policy/name"),
        ("rule", "/policy/rule"),
        ("because", "/reason"),
        ("to change it", "/remedy"),
    ];
    let mut text = String::new();
    for (name, pointer) in lines {
        if let Some(value) = at(pointer) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<15}{}", plain(value));
        }
    }
    for note in explanation["notes"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{:<15}{}", "note", plain(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn shares_that_are_used_up_are_named_with_their_node() {
        let sentence = "pod app/server, inbound: 3 of 4 descriptors";
        let told = super::shares(Ok(vec![
            ("node-1".to_owned(), Ok(json!({ "usedUp": [] }))),
            ("node-2".to_owned(), Ok(json!({ "usedUp": [sentence] }))),
            ("node-3".to_owned(), Err(anyhow::anyhow!("no such page"))),
        ]));
        let expected = format!(
            "share used up on node-2: {sentence}\nshares of node-3 are not known: no such page\n"
        );
        assert_eq!(super::shares_text(&told), expected);
    }

    #[test]
    fn failing_certificates_are_named_with_their_node() {
        let one = |name: &str, state: &str, failure: Option<&str>| {
            let identity = format!("spiffe://t/ns/a/sa/{name}");
            json!({ "identity": identity, "state": state, "lastFailure": failure })
        };
        let first = [
            one("b", "Available", None),
            one("c", "Revoked", Some("no answer")),
            one("d", "Expired", Some("one clock is wrong")),
            one("e", "Available", Some("no answer")),
            one("f", "Unavailable: no answer", Some("no answer")),
            one("g", "Initializing", None),
            one("h", "NotYetValid", None),
        ];
        let told = super::failing(Ok(vec![
            ("node-1".to_owned(), Ok(json!(first))),
            ("node-2".to_owned(), Err(anyhow::anyhow!("no such page"))),
        ]));
        let expected = "certificate revoked on node-1: spiffe://t/ns/a/sa/c (no answer)\n\
            certificate expired on node-1: spiffe://t/ns/a/sa/d (one clock is wrong)\n\
            certificate not renewed on node-1: spiffe://t/ns/a/sa/e (no answer)\n\
            certificate missing on node-1: spiffe://t/ns/a/sa/f (no answer)\n\
            certificate not valid yet on node-1: spiffe://t/ns/a/sa/h\n";
        assert_eq!(super::failing_text(&told), expected);
    }

    #[test]
    fn a_pod_that_waits_for_capture_is_named_with_the_reason() {
        let why =
            json!({ "pod": "a/b", "message": "\"nginx\" has port 15006", "remedy": "stop it" });
        let told = json!({ "pods": { "captured": 0, "waitingForCapture": ["a/b", "a/c"],
            "notCaptured": [why] } });
        let expected = "captured pods: 0\nwaiting for capture: a/b (\"nginx\" has port 15006; stop \
            it)\nwaiting for capture: a/c\n";
        assert_eq!(super::mesh_text(true, &told), expected);
    }

    #[test]
    fn words_are_escaped_for_a_query() {
        assert_eq!(super::escape("a/b c&d:80"), "a/b%20c%26d:80");
    }
}
